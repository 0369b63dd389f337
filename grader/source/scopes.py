"""Variables of a C++ text with the spans in which they are in scope, and its loops and simple statements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from grader.source.cpptext import apart, macros
from grader.source.landmarks import closed

#: A declaration of any type. Group 1 is the name.
_LOCAL = re.compile(
    r"(?:\b(?:auto|float|double|int|long|bool)\b[\s&*]*|\b(?!(?:return|else)\b)[A-Za-z_][\w:]*(?:<[^;<>]*>[\s&*]*|\s+|\s*&\s*)"
    r"|,\s*[&*]*(?=\w+\s*=[^=]))"
    r"([A-Za-z_]\w*)\s*(?=[=;({:\[])"
)
#: The beginning of a lambda expression that is an argument.
_PASSED_BODY = re.compile(r"(?<=[(,])\s*\[&[^][]*\]\s*\([^()]*\)\s*\{")
#: Limit on uses of a macro.
MOST_USES = 256
#: Largest number of brackets and semicolons that are read to find the end of a statement.
MOST_BRACKETS = 2000
_DECLARED = re.compile(
    r"\b(const\s+|static\s+|constexpr\s+)*(?:(int|long|size_t|std::size_t|unsigned|int64_t)\b\s*&?|(float|double)\b\s*(\*?)&?"
    r"|((?:std::)?vector\s*<\s*[A-Za-z_]\w*\s*>|(?:torch|at)::Tensor\b)\s*(?:const\s*)?&?)\s*(?:const\s+|__restrict(?:__)?\s+|restrict\s+)*([A-Za-z_]\w*)\s*(?=[=,;)\[({])"
)
#: The text of a macro that declares a variable. Groups: const, type, `*`, name.
_DECLARES = re.compile(
    r"\s*(const\s+)?(?:(?:std::)?(int|long|size_t|int64_t|float|double)|auto)\b\s*([*&]*)\s*"
    r"(?:const\s+|__restrict(?:__)?\s+|restrict\s+)*(\w+)\s*[=(]"
)
#: A number that is declared by its first value.
_AUTO = re.compile(r"\bauto\s+(\w+)\s*=\s*-?(\d+\.?\d*f?|\.\d+f?)\s*(?=[;,])")
_NEXT = re.compile(
    r"(?:[^,;(){}\[\]]|\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\[\]]*\])*,\s*(\*?)\s*([A-Za-z_]\w*)\s*(?=[=,;({])"
)
#: The name of a size or of a tile's length: a capital letter, perhaps with one more character, or d.
SIZE = re.compile(r"[A-Z]\w?|d")
FOR_HEAD = re.compile(r"\bfor\s*\(")
#: A variable that is set to the end of a tile. Groups: the variable, the value.
TILE_END = re.compile(r"\b(\w+)\s*=([^;=]{0,200}(?:(?i:\bmin)|\?)[^;=]{0,200});")
WORD = re.compile(r"(?<![\w.])(?:[A-Za-z_]\w*\b|\d+(?![.\w]))")
#: The head of a statement: pragmas, then a loop, a condition, or an opening brace (group 1). Before the brace, a lambda
#: expression may have its return type, and a constructor the initial values of members.
_STATEMENT_HEAD = re.compile(
    r"\s*(?:#[^\n]*\n\s*)*(?:(?:for|if|while)\s*\(|(?:->\s*\w+\s*|:(?!:)[^;{}]*(?=\{))?(\{))"
)
_LAMBDA_BODY = re.compile(r"[)\]]\s*(?:mutable\s*|->\s*\w+\s*)*$")
#: A declaration of objects of a struct: `Matrix A, B;`, `const Tile &t = tiles[i];`.
_OBJECTS = re.compile(
    r"(?:^|(?<=[(,]))[ \t]*(?:const\s+)?([A-Z]\w*)(?:\s*&\s*|\s+)(\w+(?:\s*,\s*\w+)*)\s*(?=[=;({:,)])",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Name:
    """A variable, its `kind` ("const int" or "float array", say), and the offsets between which it is in scope."""

    name: str
    kind: str
    begin: int
    end: int


@dataclass(frozen=True)
class Statement:
    """A statement, without the loop heads before it. `block` is the offset after the `{` of the enclosing block."""

    begin: int
    end: int
    text: str
    block: int
    is_bare: bool
    """True for the body of a loop without braces: no statement can be added before it."""


@lru_cache(maxsize=4)
def _macro_words(code: str) -> dict[str, set[str]]:
    """Return the words in the text of each macro, without its parameters."""
    return {each.name: set(WORD.findall(each.text)) - {*(each.parameters or ())} for each in macros(code)}


def words_in(code: str, text: str) -> set[str]:
    """Return the words in a piece `text` of the source `code`, and in the macros that it uses."""
    found, macros = set[str](), _macro_words(code)
    pending = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))
    while pending:
        found |= pending
        pending = set().union(*(macros[word] for word in pending if word in macros)) - found
    return found


@lru_cache(maxsize=4)
def _declaring_macros(code: str) -> dict[str, tuple[str, int, int]]:
    """Return {macro that declares a variable: (kind, position of the parameter with its name, end of the macro)}."""
    found = dict[str, tuple[str, int, int]]()
    for each in macros(code):
        declared = _DECLARES.match(each.text)
        if declared is not None and declared[4] in (each.parameters or ()):
            kind = "pointer" if "*" in declared[3] else declared[2] or "float"
            at = (each.parameters or ()).index(declared[4])
            found[each.name] = (f"const {kind}" if declared[1] else kind, at, each.end)
    return found


@lru_cache(maxsize=4)
def declared_names(code: str) -> tuple[Name, ...]:
    """Return the variables that a text declares, each with the span in which it is in scope.

    All parts of a file ask for the same text, so the last texts' names are kept.
    """
    return tuple(_declared_names(code))


def _declared_names(code: str) -> Iterator[Name]:
    ends = _blocks(code)
    for one in _OBJECTS.finditer(code):
        for word in WORD.finditer(code, one.start(2), one.end(2)):
            yield Name(word[0], f"{one[1]} object", one.end(), scope_end(code, one.end(), ends))
    for macro in sorted(macros(code), key=lambda each: each.parameters is not None):
        if macro.parameters is None and macro.text.strip().isdigit():
            undone = re.compile(rf"#[ \t]*undef[ \t]+{macro.name}\b").search(code, macro.end)
            yield Name(macro.name, "const int", macro.end, undone.start() if undone else len(code))
    for first, last, closing in macro_counters(code):
        yield Name(code[first:last], "int", last, statement_end(code, closing))
    for name, (kind, at, end) in _declaring_macros(code).items():
        for use in islice(re.compile(rf"\b{name}\s*\(([\w\s,.]*)\)").finditer(code, end), MOST_USES):
            words = [word.strip() for word in use[1].split(",")]
            if at < len(words) and words[at].isidentifier():
                yield Name(words[at], kind, use.end(), scope_end(code, use.end(), ends))
    for one in _AUTO.finditer(code):
        kind = "int" if one[2].isdigit() else "float"
        yield Name(one[1], kind, one.end(), scope_end(code, one.end(), ends))
    texts = [(macro.begin, macro.end) for macro in macros(code)]
    for one in _DECLARED.finditer(code):
        is_of_macro = any(first <= one.start() < last for first, last in texts)
        if is_of_macro or row_before(code, one.start()).lstrip().startswith(("#", "typedef")):
            continue
        held = re.findall(r"<\s*(\w+)", one[5] or "")
        vectors = {"float": "vector", "double": "double vector"}
        of_values = vectors.get(held[0], "objects") if held else "tensor"
        kind = one[2] or (of_values if one[5] else "pointer" if one[4] else "float")
        # An edit cannot use an array of doubles in place of one of floats.
        is_array = code[one.end()] == "["
        if one[3] == "double" and (one[4] or is_array):
            kind = "double" if is_array else "double pointer"
        kind = f"{kind} array" if is_array else kind
        kind = f"const {kind}" if one[1] and "const" in code[one.start() : one.end(1)] else kind
        end = scope_end(code, one.end(), ends)
        yield Name(one[6], kind, _begun(code, one.end()), end)
        at, is_parameter = one.end(), code[one.end()] in ",)" and _is_in_brackets(code, one.start())
        while not is_parameter and (more := _NEXT.match(code, at)) and more.end() < end:
            of = kind if more[1] or "pointer" not in kind else "float"
            yield Name(more[2], of, _begun(code, more.end()), end)
            at = more.end()


@lru_cache(maxsize=4)
def _counting_macros(code: str) -> dict[str, tuple[list[int], int]]:
    """Return {loop macro: (positions of the parameters that it declares, end of the macro)}: 0 for `FOR(i, N)`."""
    found = dict[str, tuple[list[int], int]]()
    for macro in macros(code):
        clauses = re.findall(r"\bfor\s*\(\s*(?:int|long|size_t|auto)\s+([^;]*);", macro.text)
        names = {name for clause in clauses for name in re.findall(r"(?:^|,)\s*(\w+)", clause)}
        if declared := [k for k, name in enumerate(macro.parameters or ()) if name in names]:
            found[macro.name] = declared, macro.end
    return found


def macro_counters(code: str, text: str = "") -> Iterator[tuple[int, int, int]]:
    """Yield (begin, end, end of the macro's use) of each name that a loop macro declares in `text`, a part of `code`.

    Without a text, the whole code is read.
    """
    searched = text or code
    for name, (declared, end) in _counting_macros(code).items():
        uses = re.compile(rf"\b{name}\s*\(").finditer(searched, 0 if text else end)
        for use in islice(uses, MOST_USES):
            at, last = use.end(), closed(searched, use.end(), "()")
            for k, given in enumerate(apart(searched[at : last - 1])):
                if k in declared and (word := re.fullmatch(r"\s*([A-Za-z_]\w*)\s*", given)):
                    yield at + word.start(1), at + word.end(1), last
                at += len(given) + 1


def words_declared(code: str, text: str) -> set[str]:
    """Return the names that `text`, a part of `code`, declares."""
    return {*_LOCAL.findall(text), *(text[first:last] for first, last, _ in macro_counters(code, text))}


def _begun(code: str, at: int) -> int:
    """Return the end of the initialiser that begins at `at`. The declared variable counts as in scope from there on."""
    depth = 0
    for one in re.compile(r"[][(){},;]").finditer(code, at):
        if one[0] in ",;)" and depth == 0:
            return one.start()
        depth += (one[0] in "([{") - (one[0] in ")]}")
    return at


def _is_in_brackets(code: str, at: int) -> bool:
    return re.search(r"\([^();]*$", code[max(0, at - 400) : at]) is not None


def _blocks(code: str) -> list[tuple[int, int]]:
    opened, found = list[int](), list[tuple[int, int]]()
    for one in re.finditer(r"[{}]", code):
        if one[0] == "{":
            opened.append(one.start())
        elif opened:
            found.append((opened.pop(), one.start()))
    return sorted(found)


def scope_end(code: str, at: int, blocks: Sequence[tuple[int, int]]) -> int:
    """Return the end of a name's scope: of its block, loop or function. The name's declaration ends at `at`."""
    if re.search(r"\btemplate\s*<[^<>(){};]*$", code[max(0, at - 400) : at]):
        return statement_end(code, at)
    depth = 0
    for one in re.compile(r"[(){};]").finditer(code, at):
        depth += (one[0] == "(") - (one[0] == ")")
        if depth < 0:
            return statement_end(code, one.end())
        if one[0] in "{};" and depth == 0:
            break
    else:
        return len(code)
    # A name that the head of a `for` declares is in scope in the whole loop.
    head = re.compile(r"for\s*\(").match(code, max(0, code.rfind("for", 0, at)))
    if head is not None and (after := closed(code, head.end(), "()")) > at:
        return statement_end(code, after)
    inside = [end for begin, end in blocks if begin < at <= end]
    return min(inside, default=len(code))


def statement_end(code: str, at: int) -> int:
    """Return the end of the statement, or of the function's body, that begins at `at`."""
    for _ in range(20):
        head = _STATEMENT_HEAD.match(code, at)
        if head is None:
            break
        if head[1]:
            return closed(code, head.end(), "{}")
        at = closed(code, head.end(), "()")
    depth = 0
    for one in islice(re.compile(r"[(){};]").finditer(code, at), MOST_BRACKETS):
        depth += (one[0] in "({") - (one[0] in ")}")
        # A block ends a statement, but an initialiser and the body of a lambda expression do not.
        is_block = one[0] == "}" and re.compile(r"\s*[;,.()]").match(code, one.end()) is None
        if depth < 0 or (depth == 0 and (one[0] == ";" or is_block)):
            return one.start() + (depth == 0)
    return len(code)


@lru_cache(maxsize=4)
def members_of(code: str, kinds: str) -> frozenset[str]:
    """Return the names that a text declares with one of the types `kinds`, a pattern: as members of a struct, say."""
    declared = re.findall(rf"\b(?:{kinds})\b([^;(){{}}]*)", code)
    return frozenset(name for names in declared for name in WORD.findall(names))


def in_scope(known: Sequence[Name], at: int) -> dict[str, str]:
    """Return the kinds of the variables that are in scope at an offset, by name."""
    return {each.name: each.kind for each in known if each.begin <= at < each.end}


_NOT_WHOLE = ("float", "double", "pointer", "vector", "tensor", "array", "object", "objects")


def is_whole(kind: str) -> bool:
    """Return True for the kind of a single integer."""
    return bool(kind) and not kind.endswith(_NOT_WHOLE)


def line_of(code: str, at: int) -> int:
    """Return the line number of an offset."""
    return code.count("\n", 0, at) + 1


def row_before(code: str, at: int) -> str:
    """Return the text before the offset `at` in its line."""
    return code[code.rfind("\n", 0, at) + 1 : at]


def simple_statements(code: str, begin: int, end: int) -> list[Statement]:
    """Return the simple statements in a span. The body of an `if` or `else` is included only if it has braces.

    Calls of macros that declare a variable are left out.
    """
    found, depth, start = list[Statement](), 0, begin
    declaring = _declaring_macros(code)
    blocks = list[tuple[int, int]]()
    """For each open brace, the offset after it and the number of open round brackets around it."""
    for one in re.compile(r"[(){};]|^[ \t]*#[^\n]*", re.MULTILINE).finditer(code, begin, end):
        before = depth
        if one[0] in "()":
            depth += 1 if one[0] == "(" else -1
            continue
        if one[0] == "{":
            blocks.append((one.end(), depth))
            # The body of a lambda expression has statements, even inside the round brackets of a call.
            depth = 0 if _LAMBDA_BODY.search(code[max(begin, one.start() - 40) : one.start()]) else depth
        elif one[0] == "}" and blocks:
            _, depth = blocks.pop()
        elif one[0] == ";" and blocks and depth == 0:
            at = start
            while (head := re.compile(r"\s*for\s*\(").match(code, at)) is not None:
                at = closed(code, head.end(), "()")
            at += len(code[at : one.end()]) - len(code[at : one.end()].lstrip())
            text = code[at : one.start()]
            if (
                text
                and not re.match(r"\)|(?:if|else|while|do|case|default|return|break|continue|using)\b", text)
                and text.partition("(")[0].strip() not in declaring
            ):
                found.append(Statement(at, one.end(), text, blocks[-1][0], code[start:at].strip() != ""))
        start = one.end() if 0 in (before, depth) else start
    return found


def loop_bodies(code: str, begin: int, end: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the body of each loop in a span. Bodies without braces are left out.

    A lambda expression that is an argument counts as a loop: `for_each_tile(N, T, [&](int i) { ... })`.
    """
    heads = re.compile(rf"\b(?:{_loop_words(code)}|while)\s*\(").finditer(code, begin, end)
    opened = [re.compile(r"\s*\{").match(code, closed(code, head.end(), "()")) for head in heads]
    opened += _PASSED_BODY.finditer(code, begin, end)
    return sorted((one.end(), closed(code, one.end(), "{}") - 1) for one in opened if one is not None)


def collapsed(code: str, begin: int, end: int) -> Iterator[list[tuple[int, int]]]:
    """For each OpenMP pragma `for`, yield the head (begin, end) of its loop, or of several loops with `collapse`."""
    for pragma in re.compile(r"#\s*pragma\s+omp\b[^\n]*\bfor\b([^\n]*)\n").finditer(code, begin, end):
        count = re.search(r"\bcollapse\s*\(\s*(\d)\s*\)", pragma[1])
        heads, at = list[tuple[int, int]](), pragma.end()
        for _ in range(int(count[1]) if count else 1):
            if (head := re.compile(r"\s*\{?\s*(for\s*\()").match(code, at)) is None:
                break
            at = closed(code, head.end(), "()")
            heads.append((head.start(1), at))
        yield heads


@lru_cache(maxsize=4)
def _loop_words(code: str) -> str:
    """Return a pattern for the words that begin a loop: `for`, and the macros whose text is the head of a `for`."""
    heads = [macro for macro in macros(code) if macro.parameters and re.match(r"[\s\\]*for\s*\(", macro.text)]
    return "|".join(["for", *(each.name for each in heads if each.text.rstrip().endswith(")"))])


def for_loops(code: str, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, begin of its body, end) of each `for` loop, as offsets. A macro may stand for the loop's head."""
    for head in re.compile(rf"\b(?:{_loop_words(code)})\s*\(").finditer(code, begin, end):
        body = closed(code, head.end(), "()")
        yield head.start(), body, statement_end(code, body)


def while_loops(code: str, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, begin of its body, end) of each `while` loop with braces, as offsets."""
    for head in re.compile(r"(?<!\})\s\bwhile\s*\(").finditer(code, begin, end):
        body = closed(code, head.end(), "()")
        if re.compile(r"\s*\{").match(code, body):
            yield head.start() + 1, body, statement_end(code, body)


def outer_loops(code: str, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, begin of its body, end) of each `for` loop that may have other statements before and after it.

    Such a loop is directly in a block, not the only statement of another loop. If pragmas belong to the loop, `begin`
    is before them.
    """
    shared = {at for nest in collapsed(code, begin, end) for at, _ in nest[1:]}
    for at, body, last in for_loops(code, begin, end):
        first = max(begin, at - 400)
        before = re.search(r"[;{}](?:\s*|[ \t\n]*\n((?:[ \t]*#[ \t]*pragma\b[^\n]*\n)+)\s*)$", code[first:at])
        if at not in shared and before is not None:
            yield first + before.start() + 1 if before[1] else at, body, last


def hiding(
    code: str, begin: int, end: int, known: Sequence[Name]
) -> Iterator[tuple[int, tuple[int, int], str, str]]:
    """Yield the declarations of numbers that hide an outer number of the function and keep their first value.

    Each is (begin of the statement, span of the first value, name, words for students).
    """
    numbers = [each for each in known if is_whole(each.kind) or each.kind.endswith(("float", "double"))]
    for one in simple_statements(code, begin, end):
        for each in [each for each in numbers if one.begin < each.begin < one.end and not one.is_bare]:
            same = [(x.begin, x.end) for x in numbers if x.name == each.name]
            outer = [at for at, last in same if begin <= at <= one.begin < each.end < last]
            value = re.compile(rf"\b{each.name}\s*=(?!=)\s*").search(code, one.begin, each.begin)
            again = re.compile(rf"\b{each.name}\s*(?:[-+*/]?=(?!=)|\+\+|--)")
            if outer and value and not again.search(code, one.end, each.end):
                words = f"a second {each.name}, which hides that of line {line_of(code, outer[-1])}"
                yield one.begin, (value.end(), each.begin), each.name, words


_PARALLEL = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+omp[ \t]+parallel\b((?:\\\n|[^\n])*)\n", re.MULTILINE)
_PARALLEL_LOOP = re.compile(
    r"^[ \t]*#[ \t]*pragma[ \t]+omp\b[^\n]*\bfor\b[^\n]*(?:\\\n[^\n]*){0,9}\n\s{0,200}(for\b)", re.MULTILINE
)
_OWN_CLAUSE = re.compile(
    r"\b(?:(?:first|last)?private|linear)\s*\(([^()]*)\)|\breduction\s*\([^:()]*:([^()]*)\)"
)
#: A pragma that lets one thread run a block. Group 1 is its word.
_ONE_THREAD = re.compile(r"#[ \t]*pragma[ \t]+omp[ \t]+(single|master|masked)\b[^\n]*\n")
#: A pragma that shares out work inside a parallel region, or lets one thread do it.
_SHARES = re.compile(
    r"#[ \t]*pragma[ \t]+omp[ \t]+(?!parallel)[^\n]*\b(?:for|sections|single|master|task\w*|atomic)\b"
)
_SET_TO = re.compile(r"(?<![\w.\])>])(\w+)\s*=(?!=)\s*([^;{}]*)")
_STORE = re.compile(r"\w+\s*(?:\[[^;=]*\]|\([^;=()]*\))\s*[-+*/]?=(?!=)|\b\w*[wW]rite\w*\([^;]*")


def region_around(code: str, at: int) -> int | None:
    """Return the offset of the pragma of the parallel region around an offset; None outside of such regions."""
    pragmas = _PARALLEL.finditer(code, 0, at)
    return next((one.start() for one in pragmas if statement_end(code, one.end()) > at), None)


def shared_loop(code: str, at: int) -> list[int]:
    """Return the lines of the parallel region's pragma and of the head of the parallel loop, both around an offset."""
    region = region_around(code, at)
    if region is None:
        return []
    heads = [one.start(1) for one in _PARALLEL_LOOP.finditer(code, region, at)]
    around = [one for one in heads[-1:] if statement_end(code, one) > at]
    return [line_of(code, each) for each in (region, *around)]


def whole_loops(code: str, begin: int, end: int) -> list[int]:
    """Return the lines of loops that each thread of a parallel region runs as a whole, and that set shared elements.

    A loop that depends on the thread's number, or sets an element chosen by it, is left out.
    """
    known, found = declared_names(code), list[int]()
    for pragma in _PARALLEL.finditer(code, begin, end):
        at, last = pragma.end(), statement_end(code, pragma.end())
        region = code[at:last]
        if re.search(r"\b(?:for|sections|if)\b", pragma[1]) or _SHARES.search(region):
            continue
        # Variables that differ from thread to thread, and arrays that each thread declares.
        kinds = {each.name: each.kind for each in known if at <= each.begin < last}
        own = {name for name, kind in kinds.items() if kind.endswith(("vector", "array", "objects"))}
        own |= {"omp_get_thread_num", "omp_get_num_threads"}
        for set_ in _SET_TO.finditer(region):
            if own & set(WORD.findall(set_[2])) and not kinds.get(set_[1], "").endswith(("float", "double")):
                own.add(set_[1])
        while (head := re.compile(r"\b(?:for|while)\s*\(").search(code, at, last)) is not None:
            body = closed(code, head.end(), "()")
            is_body = at == pragma.end() and not code[at : head.start()].strip()
            at = statement_end(code, head.start())
            tests = [code[head.end() : body], *re.findall(r"\bif\s*\([^;{}]*[=!]=[^;{}]*", code[body:at])]
            stores = ["shared"] if is_body else _STORE.findall(code, body, at)
            if not own & set(WORD.findall(" ".join(tests))) and any(
                not own & set(WORD.findall(one)) for one in stores
            ):
                found.append(line_of(code, head.start()))
    return found


def lost_shares(code: str, begin: int, end: int) -> Iterator[tuple[int, str, str]]:
    """Yield the pragmas that let one thread of a parallel region add up what each thread has added up for itself.

    Each is (line, `single` or `master`, name of the array or number that each thread declares and adds to).
    """
    known = declared_names(code)
    for pragma in _ONE_THREAD.finditer(code, begin, end):
        if (region := region_around(code, pragma.start())) is None:
            continue
        own = {each.name for each in known if region < each.begin < pragma.start() < each.end}
        block = code[pragma.end() : statement_end(code, pragma.end())]
        added = [own & set(WORD.findall(value)) for value in re.findall(r"\+=([^;]*);", block)]
        before = code[region : pragma.start()]
        for name in sorted(set[str]().union(*added))[:1]:
            # A call may add to an array that it gets.
            if re.search(rf"\b{name}(?:\[[^][]*\])*\s*\+=|[(,]\s*&?\s*{name}\b", before):
                yield line_of(code, pragma.start()), pragma[1], name


def shared_numbers(code: str, begin: int, end: int) -> dict[int, list[str]]:
    """Return {line: names of the numbers declared there} for numbers that the threads of a parallel region share.

    These numbers are declared before the region, and set in it.
    """
    known, found = declared_names(code), dict[int, list[str]]()
    for pragma in _PARALLEL.finditer(code, begin, end):
        last = statement_end(code, pragma.end())
        own = {word for one in _OWN_CLAUSE.finditer(pragma[1]) for word in WORD.findall(one[1] or one[2])}
        own |= {each.name for each in known if pragma.end() <= each.begin < last}
        # The counters of the loops that OpenMP divides among the threads are private.
        own |= set(re.findall(r"\bfor\s*\(\s*(\w+)\s*=", code[pragma.end() : last])[:3])
        for each in known:
            is_number = is_whole(each.kind) or each.kind.endswith(("float", "double"))
            is_outside = begin <= each.begin < pragma.start() < each.end and not each.kind.startswith("const")
            is_set = re.compile(rf"(?<![\w.\]>]){each.name}\s*[-+*/]?=(?!=)")
            if is_number and is_outside and each.name not in own and is_set.search(code, pragma.end(), last):
                found.setdefault(line_of(code, each.begin), []).append(each.name)
    return found
