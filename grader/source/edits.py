"""Small edits of a student's file, all compiled into one program. A variable of the program chooses the active edit.

`candidates` lists edits of the functions that a part runs: another variable of the same type, two arguments swapped, a
bound one more or less, a `continue` left out. In `combined` each place becomes a conditional expression over the
variable CHOSEN, so one compilation serves all edits. A call whose first tensor begins with MAGIC sets the variable to
the tensor's second element.

The text is untrusted. Edits, names and functions are limited in number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product, zip_longest

from grader.source.cpptext import Definition, blanked, definitions
from grader.source.landmarks import closed

CHOSEN, MAGIC = "gpt149_chosen", -7.25e33
#: C++ that edits call, on one line: `gpt149_extreme` is min or max, `gpt149_least` limits an integer, and `gpt149_set`
#: sets a variable or all elements of an array.
HELPERS = (
    "struct gpt149_extreme { bool least; "
    "template <class T> T operator()(T a, T b) const { return least == (b < a) ? b : a; } }; "
    "template <class T> T gpt149_least(bool is, long a, T b) { return is && a < (long)b ? (T)a : b; } "
    "inline void gpt149_set(float& a, float v) { a = v; } inline void gpt149_set(double& a, float v) { a = v; } "
    "template <class T, decltype(sizeof 0) n> void gpt149_set(T (&a)[n], float v) { for (T& x : a) gpt149_set(x, v); } "
    "template <class C> auto gpt149_set(C& c, float v) -> decltype(c.begin(), void()) { for (auto& x : c) x = v; }"
)
MOST_EDITS, MOST_NAMES, MOST_TERMS, MOST_ATOMS = 1600, 10, 8, 6
#: Limits on the characters of a source, its variables, the words in a function, and the uses of a macro.
LARGEST, MOST_KNOWN, MOST_WORDS, MOST_USES = 1 << 17, 1000, 4000, 256
_DECLARED = re.compile(
    r"\b(const\s+|static\s+|constexpr\s+)*(?:(int|long|size_t|std::size_t|unsigned|int64_t)\b\s*&?|(float|double)\b\s*(\*?)"
    r"|(std::vector\s*<\s*float\s*>)\s*(?:const\s*)?&?)\s*(?:const\s+|__restrict(?:__)?\s+|restrict\s+)*([A-Za-z_]\w*)\s*(?=[=,;)\[({])"
)
_NEXT = re.compile(
    r"(?:[^,;(){}\[\]]|\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\[\]]*\])*,\s*(\*?)\s*([A-Za-z_]\w*)\s*(?=[=,;])"
)
_WORD = re.compile(r"(?<![\w.])(?:[A-Za-z_]\w*\b|\d+(?![.\w]))")
_LOOP_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(\s*(\w+)\s*,[^()\n]*\)[^\n]*\bfor\s*\(\s*int\s+\2\b", re.MULTILINE
)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([\w\s,]*)\)([^\n]*(?<!\\)$)", re.MULTILINE)
_CONSTANT = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\d+[ \t]*$", re.MULTILINE)
_LEAVES = re.compile(r"\b(?:continue|break|return)\s*;")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_NO_CALLS = frozenset({"if", "for", "while", "switch", "return", "sizeof", "defined"})
_SET = re.compile(r"\s*(?:[-+*/%|&^]?=(?!=)|\+\+|--)")
#: An expression to which a term may be added: the first value of a declared integer, or an index.
_SUM = re.compile(
    r"\b(?:int|long|size_t)\s[^;()]*?=[^;,]*?(?=[;,])|\[[^][;&=]+(?=\])|,\s*\w+\s*=[^;,()]*(?=;)"
)
#: The step NAME of a loop (`i += NAME`): usually the length of a tile.
_STEP = re.compile(r"\+=\s*([A-Za-z_]\w*)\b")
_COUNTER = re.compile(
    r"\bfor\s*\(\s*(?:const\s+)?(?:int|long|size_t|std::size_t|unsigned|int64_t|auto)\s+([A-Za-z_]\w*)"
)
_ALIAS = re.compile(r"\b([A-Za-z_]\w*)\s*=\s*([A-Za-z_]\w*)\s*[;,]")
_FACTOR = re.compile(r"\*\s*([A-Za-z_]\w*)")
_TWO_INDICES = re.compile(r"\[\s*([A-Za-z_]\w*)\s*\]\s*\[\s*([A-Za-z_]\w*)\s*\]")
#: Objects of a struct, declared by its name.
_OBJECTS = re.compile(r"^[ \t]*([A-Z]\w*)\s+(\w+(?:\s*,\s*\w+)*)\s*;", re.MULTILINE)
_EXTREME = re.compile(r"\b(?:std::)?(?:min|max)(?=\s*\()")
_FLOAT = (
    r"-?(?:\b\d+\.\d*(?:[eE][-+]?\d+)?f?|\b\d+[eE][-+]?\d+f?|"
    r"\b(?:FLT_M(?:IN|AX)|INFINITY)\b|std::numeric_limits<float>::\w+\(\))"
)
_HEAD = re.compile(r"[\w:\s]*?\b(\w+)\s*=([^;]*);\s*\1\s*<\s*([^;&|]+);(?:\s*\1\s*\+=\s*([^;)]+)|[^;)]*)")
_FOR = re.compile(r"\bfor\s*\(\s*" + _HEAD.pattern)
#: A declaration of one number with a first value.
_OWN = re.compile(r"(float|double|int)\s+(\w+)\s*(=)(?!=)")
#: The beginning of a line that computes a pointer.
_POINTS = re.compile(r"\*\s*(?:const\s+|__restrict(?:__)?\s+)*\w+\s*=|\.data\(\)|\.begin\(\)")
#: A variable or an element that is set or added to.
_ADDED_TO = re.compile(r"([\w.]+(?:\[[^\[\]]*\]|\([^()]*\)(?=\s*\+?=))*)\s*(\+?=)(?!=)")
_DIMENSION = re.compile(r"\b(?:float|double|int)\s+\w+(?:\[[^][]*\])*\[[^][]*$")
#: A statement that is not a declaration: an assignment, a call, `++` or `--`.
_ACTS = re.compile(
    r"(?:\+\+|--)?(?!(?:const|static|constexpr|auto|float|double|int|long|unsigned|size_t)\b)[\w:.]+\s*(?:[-+*/]?=|\[|\(|\+\+|--|->)(?!=)"
)
_QUOTIENT = re.compile(r"\b([A-Za-z_]\w*)\s*/\s*([A-Za-z_]\w*|\d+)(?=\s*[;,)])")


@dataclass(frozen=True)
class Edit:
    """One edit: its line, the text there and the new text, and the places (start, end, new text) in the source."""

    line: int
    old: str
    new: str
    places: tuple[tuple[int, int, str], ...]
    words: str = ""
    """Description of the edit; "" if "`new` in place of `old`" describes it."""
    declared: int = 0
    """Line of the declaration of the variable that the edit sets again; 0 for other edits."""

    @property
    def is_insertion(self) -> bool:
        return any("@" in new for _, _, new in self.places)

    @property
    def changes_numbers(self) -> bool:
        return self.is_insertion or any(new[:1].isdigit() or new[:1] == "-" for _, _, new in self.places)

    def lines(self, source: str) -> set[int]:
        """Return the lines of the source that this edit changes."""
        return {self.line, *(_line(source, begin) for begin, _, _ in self.places)}


@dataclass(frozen=True)
class _Statement:
    """A statement without the loop heads before it. `block` is the offset after the `{` of the block around it."""

    begin: int
    end: int
    text: str
    block: int
    is_bare: bool
    """True for the body of a loop without braces: no statement can be added before it."""


@dataclass(frozen=True)
class _Name:
    name: str
    kind: str
    begin: int
    end: int


def candidates(source: str, names: Sequence[str]) -> list[Edit]:
    """Return the edits of the functions `names` of a C++ source, and of its macros, the likeliest first.

    The first of the functions is the part's own.
    """
    if len(source) > LARGEST:
        return []
    code = blanked(source)
    functions = definitions(code)
    called = {each.name for each in functions}
    known = [each for each in islice(_declared(code), MOST_KNOWN) if each.name not in called]
    spans = [
        (each.start, each.end)
        for each in functions
        if each.name == names[0] or (each.name in names and not _converts(code, each))
    ]
    spans = [span for span in spans if not any(a < span[0] and span[1] <= b for a, b in spans)]
    found = list[tuple[float, Edit]]()
    for begin, end in spans:
        scope = [each for each in known if each.begin < end and each.end > begin]
        for kind in (
            _in_calls,
            _of_words,
            _others,
            _terms,
            _resets,
            _statements,
            _conditions,
            _factors,
            _values,
        ):
            found += kind(code, begin, end, scope)
    used = [each for each in known if any(each.begin < end and each.end > begin for begin, end in spans)]
    found += _in_macros(code, used)
    # Some vector instructions require constant arguments, and a vector is not a single number.
    vectors = {_line(code, one.start()) for one in re.finditer(r"\b_mm\w*\(|\b__m\d+", code)}
    kept = [each for each in found if each[1].line not in vectors or not each[1].changes_numbers]
    kept.sort(key=lambda each: each[0])
    return [edit for _, edit in kept[:MOST_EDITS]]


def _converts(code: str, one: Definition) -> bool:
    """Return True for a function that only converts a tensor to an array or back: it has no loop."""
    is_of_tensor = "Tensor" in code[one.start : one.closed]
    return is_of_tensor and re.search(r"\bfor\b", code[one.body : one.end]) is None


def combined(source: str, function: str, edits: Sequence[Edit], bad: Collection[Edit] = ()) -> str:
    """Return the source with all edits in it, numbered from 1, except those in `bad`.

    The code that sets CHOSEN begins the body of `function`. Returns "" if the source does not define the function, or
    its first parameter is not a tensor. One line is added after the includes: later line numbers are one higher.
    """
    code = blanked(source)
    body = next((each for each in definitions(code) if each.name == function), None)
    if body is None:
        return ""
    tensor = re.match(r"\s*(?:const\s+)?(?:at|torch)::Tensor\s*&?\s*(\w+)", code[body.opened :])
    if tensor is None:
        return ""
    heads = list(re.finditer(r"^[ \t]*#[ \t]*include\b.*\n", code[: body.start], re.MULTILINE))
    places = dict[tuple[int, int], list[tuple[int, str]]]()
    for number, edit in enumerate(edits, 1):
        for begin, end, new in edit.places if edit not in bad else ():
            places.setdefault((begin, end), []).append((number, new))
    changes = [(begin, end, _chosen(source[begin:end], new)) for (begin, end), new in places.items()]
    gives = tensor[1] if re.search(r"Tensor\s+$", code[: body.start]) else ""
    first = f"{tensor[1]}.data_ptr<float>()"
    choice = f" if ({first}[0] == {MAGIC!r}f) {{ {CHOSEN} = (int){first}[1]; return {gives}; }} "
    changes.append((body.body, body.body, choice))
    at = heads[-1].end() if heads else 0
    changes.append((at, at, f'_Pragma("GCC optimize(\\"O0\\")") static int {CHOSEN} = 0; {HELPERS}\n'))
    text, done = "", 0
    for begin, end, new in sorted(changes):
        if begin >= done:
            text += source[done:begin] + new
            done = end
    return text + source[done:]


def bracketed(source: str) -> tuple[str, list[int]]:
    """Return the source with brackets around its macros' texts and parameters, and the numbers of the changed lines."""
    code, text, lines = blanked(source), source, list[int]()
    for macro in reversed(list(_MACRO.finditer(code))):
        parameters, body = re.findall(r"\w+", macro[2]), macro[3].strip()
        if not parameters or re.search(r"[;{#]", body):
            continue
        new = re.sub(
            rf"(?<![\w(])(?:{'|'.join(parameters)})\b|(?<=\()(?:{'|'.join(parameters)})\b(?!\))",
            r"(\g<0>)",
            body,
        )
        if not body.startswith("(") or closed(body, 1, "()") < len(body):
            new = f"({new})"
        if new != body:
            text = f"{text[: macro.start(3)]} {new}{text[macro.end(3) :]}"
            lines.insert(0, _line(code, macro.start(1)))
    return text, lines


def _chosen(old: str, new: Sequence[tuple[int, str]]) -> str:
    if not old or "@" in new[0][1]:
        # At the same place, whole statements must come before the beginning of an expression.
        texts = [text.replace("@", f"{CHOSEN} == {number}") for number, text in new]
        return "".join(sorted(texts, key=lambda text: not text.rstrip().endswith((";", "}"))))
    if old.endswith(";"):
        others = "".join(f"if ({CHOSEN} == {number}) {text or ';'} else " for number, text in new)
        return f"{{ {others}{old} }}"
    if _EXTREME.match(f"{old}("):
        return f"gpt149_extreme{{({CHOSEN} == {new[0][0]}) != {'true' if old.endswith('min') else 'false'}}}"
    # The range check skips the chain of conditions if the chosen edit is at another place.
    chain = "".join(f"{CHOSEN} == {number} ? {text} : " for number, text in new)
    return f"({CHOSEN} < {new[0][0]} || {CHOSEN} > {new[-1][0]} ? {old} : {chain}{old})"


def _declared(code: str) -> Iterator[_Name]:
    """Yield the variables that a text declares, each with the span in which its name is known."""
    ends = _blocks(code)
    for one in _OBJECTS.finditer(code):
        for word in _WORD.finditer(code, one.start(2), one.end(2)):
            yield _Name(word[0], f"{one[1]} object", one.end(), _end(code, one.end(), ends))
    for one in _CONSTANT.finditer(code):
        yield _Name(one[1], "const int", one.end(), len(code))
    for macro in _LOOP_MACRO.finditer(code):
        uses = re.compile(rf"\b{macro[1]}\s*\(\s*(\w+)\s*,[^(){{}}]*(?:\([^()]*\)[^(){{}}]*)*\)")
        for use in islice(uses.finditer(code, macro.end()), MOST_USES):
            yield _Name(use[1], "int", use.end(1), _statement(code, use.end()))
    for one in _DECLARED.finditer(code):
        kind = one[2] or ("vector" if one[5] else "pointer" if one[4] else "float")
        kind = f"{kind} array" if code[one.end()] == "[" else kind
        kind = f"const {kind}" if one[1] and "const" in code[one.start() : one.end(1)] else kind
        end = _end(code, one.end(), ends)
        yield _Name(one[6], kind, _begun(code, one.end()), end)
        at, is_parameter = one.end(), code[one.end()] in ",)" and _is_in_brackets(code, one.start())
        while not is_parameter and (more := _NEXT.match(code, at)) and more.end() < end:
            yield _Name(
                more[2], kind if more[1] or "pointer" not in kind else "float", _begun(code, more.end()), end
            )
            at = more.end()


def _begun(code: str, at: int) -> int:
    """Return the end of the initialiser that begins at `at`. The new name can be used only after it."""
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


def _end(code: str, at: int, blocks: Sequence[tuple[int, int]]) -> int:
    """Return the end of a name's scope: of its block, loop or function. The name's declaration ends at `at`."""
    depth = 0
    for one in re.compile(r"[(){};]").finditer(code, at):
        depth += (one[0] == "(") - (one[0] == ")")
        if depth < 0:
            return _statement(code, one.end())
        if one[0] in "{};" and depth == 0:
            break
    else:
        return len(code)
    # In the head of a `for`, the bracket is closed after two semicolons.
    head = re.compile(r"for\s*\(").match(code, max(0, code.rfind("for", 0, at)))
    if head is not None and (after := closed(code, head.end(), "()")) > at:
        return _statement(code, after)
    inside = [end for begin, end in blocks if begin < at <= end]
    return min(inside, default=len(code))


def _statement(code: str, at: int) -> int:
    """Return the end of the statement, or of the function's body, that begins at `at`."""
    for _ in range(20):
        head = re.compile(r"\s*(?:#[^\n]*\n\s*)*(?:(?:for|if|while)\s*\(|(\{)|->\s*\w+\s*)?").match(code, at)
        if head is None:
            return at
        if head[1]:
            return closed(code, head.end(), "{}")
        if not head[0].strip().endswith("("):
            end = code.find(";", at)
            return len(code) if end < 0 else end + 1
        at = closed(code, head.end(), "()")
    return at


def _line(code: str, at: int) -> int:
    return code.count("\n", 0, at) + 1


def _is_whole(kind: str) -> bool:
    return bool(kind) and not kind.endswith(("float", "double", "pointer", "vector", "array", "object"))


def _in_scope(known: Sequence[_Name], at: int) -> dict[str, str]:
    return {each.name: each.kind for each in known if each.begin <= at < each.end}


def _likely(others: Sequence[str], declared: Sequence[str], old: str, favoured: Collection[str]) -> list[str]:
    """Return the likeliest replacements of `old`.

    First come names that differ in case only, then names in `favoured`. The others alternate between the name declared
    nearest to `old` and the name declared last.
    """
    at = declared.index(old) if old in declared else 0
    nearest = sorted(others, key=lambda name: abs(declared.index(name) - at))
    mixed = [name for pair in zip(nearest, reversed(others), strict=True) for name in pair]
    mixed.sort(key=lambda name: (name.lower() != old.lower(), name not in favoured))
    return list(dict.fromkeys(mixed))[:MOST_NAMES]


def _before(code: str, at: int) -> str:
    return code[max(0, at - 80) : at].rstrip()


def _is_free(code: str, word: re.Match[str]) -> bool:
    """Return True if the word can be replaced by another name: it is not declared or set here, nor a member."""
    before, row = _before(code, word.start()), code[code.rfind("\n", 0, word.start()) + 1 : word.start()]
    if row.lstrip().startswith("#") or before.endswith((".", "->", "::", "++", "--", "[&", "[=")):
        return False
    if _SET.match(code, word.end()) or re.search(
        r"\b(?:int|float|double|auto|long|size_t|unsigned|vector\s*<\s*float\s*>)\s*(?:const\s*)?[&*]?$",
        before,
    ):
        return False
    return not re.compile(r"\s*(?:\(|::)").match(code, word.end())


def _of_words(code: str, begin: int, end: int, known: Sequence[_Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that replace a variable or a small number, each with its rank: the lowest is the likeliest."""
    steps, counters = set(_STEP.findall(code, begin, end)), set(_COUNTER.findall(code, begin, end))
    factors = set(_FACTOR.findall(code, begin, end))
    for word in islice(_WORD.finditer(code, begin, end), MOST_WORDS):
        # A longer tile would hide a mistake that shows only with several tiles.
        is_step = re.search(r"\b([A-Za-z_]\w*)\s*=\s*$", _before(code, word.start()) + " ")
        is_head = re.search(rf"\b{word[0]}\s*=[^;]*;$", _before(code, word.start())) is not None
        is_dimension = _DIMENSION.search(_before(code, word.start())) is not None
        if (
            is_head
            or is_dimension
            or not _is_free(code, word)
            or (is_step is not None and is_step[1] in steps)
        ):
            continue
        scope, old = _in_scope(known, word.start()), word[0]
        kind = scope.get(old, "")
        after = code[word.end() : word.end() + 80].lstrip()
        is_bare = _before(code, word.start()).endswith(("(", ",")) and after.startswith((",", ")"))
        kinds = {kind, kind.removeprefix("const ")}
        # The parameter of a bare argument may be a reference, to which a constant cannot be bound.
        kinds |= {f"const {kind}"} if _is_whole(kind) and not is_bare else set()
        others = [name for name, of in scope.items() if of in kinds and name != old] if kind else []
        if code[word.start() - 1] == "[" and code[word.end()] == "]":
            # A size is out of bounds as an index, so an edited line with it would not affect the result.
            others = [name for name in others if name in counters]
        is_factor = _before(code, word.start()).endswith("*")
        others = _likely(others, list(scope), old, factors if is_factor else ())
        bound = re.search(r"[<>]=?\s*$", code[max(0, word.start() - 4) : word.start()]) is not None
        if old in ("0", "1") and not after.startswith("<"):
            others = ["1" if old == "0" else "0"]
        elif bound and _is_whole(kind):
            # OpenMP does not allow a loop's counter in the bound of the same loop.
            others = [
                name for name in others if not re.search(rf"\b{name}\s*[<>]=?$", _before(code, word.start()))
            ]
            others += [f"{old} + 1", f"{old} - 1"]
            if code[word.start() - 2] == "=":
                others += [f"{name} - 1" for name in others if re.fullmatch(r"[A-Z]|d|n", name)]
        row = code[code.rfind("\n", 0, word.start()) + 1 : word.start()]
        is_constant = re.search(rf"^[ \t]*#[ \t]*define[ \t]+{old}[ \t]", code, re.MULTILINE) is not None
        rank = 0.5 if is_bare or is_constant else 1.5 + 2 * (kind == "float" or old.isdigit())
        head = re.search(r"\w+\s*[-+*/<>=]+\s*$", row) if old.isdigit() else None
        shown = head[0].lstrip() if head else ""
        for k, new in enumerate(others):
            place = (word.start(), word.end(), new)
            yield rank + 0.1 * k, Edit(_line(code, word.start()), shown + old, shown + new, (place,))


def _in_calls(code: str, begin: int, end: int, known: Sequence[_Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that swap two arguments of a call, or add an offset to a pointer that is passed."""
    for call in _CALL.finditer(code, begin, end):
        if call[1] in _NO_CALLS:
            continue
        last = closed(code, call.end(), "()")
        scope, at, bare = _in_scope(known, call.start()), call.end(), list[tuple[int, int, str]]()
        for piece in re.finditer(r"(?<=[(,])\s*([A-Za-z_]\w*)\s*(?=[,)])", code[call.end() - 1 : last]):
            start = call.end() - 1 + piece.start(1)
            inner = code[at:start]
            if piece[1] in scope and inner.count("(") == inner.count(")"):
                bare.append((start, start + len(piece[1]), piece[1]))
        line = _line(code, call.start())
        for k, (a, b, one) in enumerate(bare):
            for c, d, other in bare[k + 1 : k + 4]:
                if scope[one] == scope[other] and one != other:
                    old, new = f"{one}, {other}", f"{other}, {one}"
                    yield 1, Edit(line, old, new, ((a, b, other), (c, d, one)))
            if scope[one].endswith("pointer"):
                for name in [name for name, kind in scope.items() if _is_whole(kind)][-4:]:
                    yield 1, Edit(line, one, f"{one} + {name}", ((a, b, f"{one} + {name}"),))


def _others(code: str, begin: int, end: int, known: Sequence[_Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that remove a jump or put `continue` in place of `return`, exchange min and max or two indices, or
    round a quotient up."""
    loops = _loops(code, begin, end)
    for jump in _LEAVES.finditer(code, begin, end):
        row = code[code.rfind("\n", 0, jump.start()) + 1 : jump.start()]
        condition = re.search(r"\bif\s*\(.*\)\s*\{?\s*$", row)
        old = (condition[0] if condition else "") + jump[0]
        yield 0, Edit(_line(code, jump.start()), old, "", ((jump.start(), jump.end(), ""),))
        if jump[0].startswith("return") and any(first < jump.start() < last for first, last in loops):
            place = (jump.start(), jump.end(), "continue;")
            yield 0, Edit(_line(code, jump.start()), jump[0], place[2], (place,))
    for pair in _TWO_INDICES.finditer(code, begin, end):
        if pair[1] != pair[2]:
            places = ((*pair.span(1), pair[2]), (*pair.span(2), pair[1]))
            yield 1, Edit(_line(code, pair.start()), pair[0], f"[{pair[2]}][{pair[1]}]", places)
    for one in _EXTREME.finditer(code, begin, end):
        new = one[0].replace("min", "max") if "min" in one[0] else one[0].replace("max", "min")
        yield 0, Edit(_line(code, one.start()), one[0], new, ((one.start(), one.end(), new),))
    for part in _QUOTIENT.finditer(code, begin, end):
        scope = _in_scope(known, part.start())
        if _is_whole(scope.get(part[1], "")) and _is_whole(scope.get(part[2], "int")):
            up = f" + (@ && {part[1]} % {part[2]} != 0)"
            new = f"({part[1]} + {part[2]} - 1) / {part[2]}"
            yield 0, Edit(_line(code, part.start()), part[0], new, ((part.end(), part.end(), up),))


def _terms(code: str, begin: int, end: int, known: Sequence[_Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add a term, such as `- pad` or `+ i0`, to an index or to the first value of an integer."""
    steps = set(_STEP.findall(code, begin, end))
    for last in islice(_SUM.finditer(code, begin, end), MOST_WORDS):
        declared = re.match(r"\w+\s+([A-Za-z_]\w*)\s*=", last[0])
        if declared is not None and declared[1] in steps:
            continue
        at, used = last.end(), set(_WORD.findall(last[0]))
        # Leave out names of the same value: after `T = TILE_SIZE`, an edit to `T - TILE_SIZE` would give 0.
        used |= {one[2] for one in _ALIAS.finditer(code, begin, end) if one[1] in used}
        whole = [
            name for name, kind in _in_scope(known, at).items() if kind.endswith("int") and name not in used
        ]
        # Variables of the same line first.
        row = set(_WORD.findall(code[code.rfind("\n", 0, at) + 1 : at]))
        names = [name for name in whole if name in row] + [
            name for name in reversed(whole) if name not in row
        ]
        old = last[0].lstrip("[, ").rpartition("=")[2].strip()
        for k, name in enumerate(names[:MOST_TERMS]):
            for sign in "+-":
                place = (at, at, f" {sign} (@ ? {name} : 0)")
                edit = Edit(_line(code, at - 1), old, f"{old} {sign} {name}", (place,))
                yield 1.2 + ("[" in last[0]) + 0.2 * k, edit


def _in_macros(code: str, known: Sequence[_Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that replace a parameter or a size in a macro's text. A size has a capital letter or `d` as name."""
    whole = [each.name for each in known if each.kind.endswith("int")]
    sizes = dict.fromkeys(name for name in whole if re.fullmatch(r"[A-Z]|d", name))
    for macro in _MACRO.finditer(code):
        parameters = re.findall(r"\w+", macro[2])
        if re.search(r"[;{?]", macro[3]):
            continue
        for word in _WORD.finditer(code, macro.start(3), macro.end(3)):
            for new in (*parameters, *sizes):
                is_apart = word[0] in sizes or code[word.start() - 1 : word.end() + 1] == f"({word[0]})"
                if (word[0] in parameters or word[0] in sizes) and is_apart and new != word[0]:
                    place = (word.start(), word.end(), new)
                    yield 2, Edit(_line(code, word.start()), word[0], new, (place,))


def _simple(code: str, begin: int, end: int) -> list[_Statement]:
    """Return the simple statements in a span, without those below an `if` or `else` without braces."""
    found, blocks, depth, start = list[_Statement](), list[int](), 0, begin
    for one in re.compile(r"[(){};]|^[ \t]*#[^\n]*", re.MULTILINE).finditer(code, begin, end):
        depth += (one[0] == "(") - (one[0] == ")")
        if one[0] in "()" or depth:
            continue
        if one[0] == ";" and blocks:
            at = start
            while (head := re.compile(r"\s*for\s*\(").match(code, at)) is not None:
                at = closed(code, head.end(), "()")
            at += len(code[at : one.end()]) - len(code[at : one.end()].lstrip())
            text = code[at : one.start()]
            if text and not re.match(
                r"(?:if|else|while|do|case|default|return|break|continue|using)\b", text
            ):
                found.append(_Statement(at, one.end(), text, blocks[-1], code[start:at].strip() != ""))
        if one[0] == "{":
            blocks.append(one.end())
        elif one[0] == "}" and blocks:
            blocks.pop()
        start = one.end()
    return found


def _loops(code: str, begin: int, end: int) -> list[tuple[int, int]]:
    """Return (begin, end) of the body of each loop in a span, without bodies that have no braces."""
    heads = re.compile(r"\b(?:for|while)\s*\(").finditer(code, begin, end)
    opened = [re.compile(r"\s*\{").match(code, closed(code, head.end(), "()")) for head in heads]
    return [(one.end(), closed(code, one.end(), "{}") - 1) for one in opened if one is not None]


def _resets(code: str, begin: int, end: int, known: Sequence[_Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that set a variable to its first value after its declaration, or at the start of a loop."""
    loops = _loops(code, begin, end)
    for each in known:
        if not each.kind.endswith(("float", "double", "vector", "array")) or each.kind.startswith("const"):
            continue
        element = rf"(?<![\w.]){each.name}\s*(?:\[[^\]=;]*\]\s*){{0,2}}"
        is_set = rf"{element}(?:[-+*/]=|=(?!=))|\w*[wW]rite\w*\(\s*{each.name}\b"
        if not re.compile(is_set).search(code, each.begin, min(end, each.end)):
            continue
        statement = code[max(0, code.rfind(each.name, 0, each.begin + 1)) : code.find(";", each.begin) + 1]
        given = re.search(rf"[=,]\s*({_FLOAT}|0)\s*\)?\s*[;,]", statement)
        is_maximum = re.compile(rf"{element}=[^;]*\bf?max|[<>]=?\s*{element}\)").search(code, begin, end)
        value = given[1] if given else "-INFINITY" if is_maximum else "0"
        is_one = each.kind.endswith(("float", "double"))
        shown = f"`{each.name} = {value};`" if is_one else f"a loop that sets all of {each.name} to {value}"
        new = f" if (@) gpt149_set({each.name}, {value.replace('-INFINITY', '-__builtin_inff()')}); "
        inside = [body for body, _ in loops if each.begin <= body < each.end]
        inside = [
            at for at in inside if re.compile(rf"\b{each.name}\b").search(code, at, closed(code, at, "{}"))
        ]
        own = code.find(";", each.begin) + 1
        is_alone = each.begin >= begin and "(" not in code[code.rfind("\n", 0, own) : own].split(each.name)[0]
        for k, at in enumerate([*([own] if is_alone else ()), *reversed(inside)]):
            line = _line(code, at)
            words, place = f"after line {line} add {shown}", (at, at, new)
            declared = _line(code, each.begin)
            yield 0.9 + 0.05 * k, Edit(line, "", shown, (place,), words, declared if declared != line else 0)


def _edit(
    code: str,
    rank: float,
    at: int,
    old: str,
    new: str,
    places: Sequence[tuple[int, int, str]],
    words: str = "",
) -> tuple[float, Edit]:
    return rank, Edit(_line(code, at), old, new, tuple(places), words)


def _put(at: int, text: str) -> tuple[int, int, str]:
    return at, at, text


def _row(code: str, at: int) -> str:
    """Return the text of a line before the offset `at`."""
    return code[code.rfind("\n", 0, at) + 1 : at]


def _statements(code: str, begin: int, end: int, known: Sequence[_Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that remove, move or exchange statements, exchange `=` and `+=`, or undo a shadowing declaration."""
    statements, loops = _simple(code, begin, end), _loops(code, begin, end)
    for one, then in zip_longest(statements, statements[1:]):
        at, shown, skip = one.begin, f"`{one.text};`", "if (!(@)) "
        if own := _OWN.match(one.text):
            kind, name = own[1], own[2]
            if any(each.name == name and each.kind == kind and each.begin < at < each.end for each in known):
                new = (
                    f"{kind}* gpt149_outer_{name} = &{name}; {kind} gpt149_own_{name} = 0; "
                    f"{kind}& {name} = @ ? *gpt149_outer_{name} : gpt149_own_{name}; {name} "
                )
                words = f"without {kind}: this declares a second {name}, which hides the outer one"
                yield _edit(code, 0.3, at, kind, "", [(at, at + own.start(3), new)], words)
            continue
        if not _ACTS.match(one.text):
            continue
        yield _edit(code, 1.6, at, shown, "", [_put(at, skip)], f"without {shown}")
        added = _ADDED_TO.match(one.text)
        if added is not None:
            name, begins = added[1], at + added.start(2)
            is_sum = added[2] == "+="
            new = f"= (@ ? {'0' if is_sum else name} : {name if is_sum else '0'}) + ("
            places = [(begins, begins + len(added[2]), new), _put(one.end - 1, ")")]
            other = "=" if is_sum else "+="
            yield _edit(code, 1.0 if is_sum else 1.3, at, f"{name} {added[2]}", f"{name} {other}", places)
        if one.is_bare:
            continue
        is_pair = then is not None and then.block == one.block and not code[one.end : then.begin].strip()
        if then is not None and is_pair and _ACTS.match(then.text):
            places = [_put(at, f" if (@) {{ {then.text}; }} "), _put(then.begin, skip)]
            yield _edit(code, 1.4, at, shown, "", places, f"this line after line {_line(code, then.begin)}")
        # A variable of an unknown type may not be known at the other place.
        names = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*\b(?!\s*(?:\(|::))", one.text))
        for body, last in [loop for loop in loops if loop[0] <= at < loop[1]][-1:]:
            head = code.rfind("for", begin, body)
            for to, where in ((head, "before"), (last + 1, "after")):
                if names <= _in_scope(known, to).keys() and re.search(r"[;{}]\s*$", code[to - 200 : to]):
                    places = [_put(to, f" if (@) {{ {one.text}; }} "), _put(at, skip)]
                    words = f"this line {where} the loop of line {_line(code, head)}"
                    yield _edit(code, 1.3, at, shown, "", places, words)


def _conditions(code: str, begin: int, end: int, known: Sequence[_Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits of conditions: exchange `<` and `<=`, limit a loop's end to a size, negate or drop an `if`."""
    for one in re.compile(r"\b(\w+)\s*(<=?)(?![<=])\s*(?=[\w(])(?!\w+\s*[;)])").finditer(code, begin, end):
        if _is_whole(_in_scope(known, one.start()).get(one[1], "")):
            by, new = ("1", "<=") if one[2] == "<" else ("-1", "<")
            place = _put(one.end(), f"(@ ? {by} : 0) + ")
            yield _edit(code, 1.1, one.start(), f"{one[1]} {one[2]}", f"{one[1]} {new}", [place])
    for one in re.compile(r"\bif\s*\(").finditer(code, begin, end):
        last = closed(code, one.end(), "()") - 1
        for rank, opened, words in (
            (1.2, "(@) != (", "with the opposite condition"),
            (1.5, "(@) || (", "without the condition"),
            (1.7, "!(@) && (", "without what this `if` does"),
        ):
            yield _edit(code, rank, one.start(), "if", "", [_put(one.end(), opened), _put(last, ")")], words)
    for one in re.compile(r"(?:=|\breturn|\()(\s*[^=?;(){},]*[<>]=?[^=?;{},]*)\?").finditer(code, begin, end):
        places = [_put(one.start(1), " (@) != ("), _put(one.end(1), ") ")]
        yield _edit(code, 1.2, one.start(1), one[1], "", places, f"with the opposite of {one[1].strip()}")
    # Inside a loop over tiles, limit the end of a tile to the bound of that loop.
    heads = [(head, _end(code, head.end(1), ())) for head in _FOR.finditer(code, begin, end)]
    for outer, last in [each for each in heads if (each[0][4] or "1").strip() != "1"]:
        size, counter = outer[3].strip(), outer[1]
        for head, _ in heads:
            is_parallel = (
                "#" in code[code.rfind("\n", 0, code.rfind("\n", 0, head.start())) + 1 : head.start()]
            )
            is_size = re.fullmatch(r"[A-Z]|d", head[3].strip()) and head[3].strip() != outer[4].strip()
            if outer.end() < head.start() < last and not is_parallel and not is_size:
                index = head[1] if counter in _WORD.findall(head[2]) else f"{counter} + {head[1]}"
                places, words = (
                    [_put(head.end(3), f" && !((@) && {index} >= {size})")],
                    f"`&& {index} < {size}`",
                )
                yield _edit(code, 1.2, head.end(3), "", words, places, f"with {words}")
        for one in re.compile(r"(?:(?<!\()\bint\s+|,\s*)(\w+)\s*=\s*([^;,?()]+)(?=[;,])").finditer(
            code, outer.end(), last
        ):
            if "min" not in one[2]:
                most = size if counter in _WORD.findall(one[2]) else f"{size} - {counter}"
                places = [_put(one.start(2), f"gpt149_least(@, {most}, "), _put(one.end(2), ")")]
                yield _edit(code, 1.0, one.start(2), one[2], f"std::min({one[2].strip()}, {most})", places)


def _factors(code: str, begin: int, end: int, known: Sequence[_Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits of expressions: exchange a sign, add or remove a factor or divisor, put brackets around a sum."""
    for sign in re.compile(r"(?<=[\w\])]) ?([-+]) ?(?=[\w(])").finditer(code, begin, end):
        row = _row(code, sign.start()).lstrip()
        if not _POINTS.search(row) and not re.search(r"\d[eE]$", row):
            old, other = f"{row[-12:]} {sign[1]}", "-" if sign[1] == "+" else "+"
            place = (sign.start(), sign.end(), f" {sign[1]} (@ ? -1 : 1) * ")
            yield _edit(code, 1.8, sign.start(), old, f"{old[:-1]}{other}", [place])
    # A factor that should multiply a whole sum: `b * H + h * N` in place of `(b * H + h) * N`.
    for tail in re.compile(r"(?<=[\w)\]])(?=\s*\+\s*\w+((?:\s*\*\s*\w+)+))").finditer(code, begin, end):
        at, factor = tail.start(), tail[1].strip()
        if not _POINTS.search(_row(code, at)):
            words = f"with brackets around the sum before {factor}"
            yield _edit(code, 0.9, at, "", factor, [_put(at, f" * (@ ? {factor[1:]} : 1)")], words)
    for factor in re.compile(r"\s*([*/])\s*([A-Za-z_]\w*)\b(?!\s*[\[(.])").finditer(code, begin, end):
        kind = _in_scope(known, factor.start(2)).get(factor[2], "")
        if kind.endswith(("int", "float")):
            place = (*factor.span(2), "1.0f" if kind.endswith("float") else "1")
            yield _edit(code, 1.7, factor.start(2), factor[0].strip(), "", [place])
    for copy in re.compile(r"\bfloat\s+\w+\s*=\s*([A-Za-z_]\w*)(?=\s*;)").finditer(code, begin, end):
        inverse = f"1.0f / {copy[1]}"
        yield _edit(code, 1.9, copy.start(1), copy[1], inverse, [(*copy.span(1), inverse)])
    # Floats that an edit may use: variables, and elements of arrays. The names in them must be in scope.
    names = {each.name: each for each in known if each.kind.endswith(("float", "vector", "pointer", "array"))}
    elements = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(\[[^\[\]]+\])?(?![\w\[(])").finditer(code, begin, end)
    atoms = {
        one[0]: (one[2] is not None, -names[one[1]].begin)
        for one in elements
        if one[1] in names and (one[2] is None) == names[one[1]].kind.endswith("float")
    }
    for one in _simple(code, begin, end):
        set_ = re.match(r"(?:(?:const\s+)?(?:float|auto)\s+)?(\w+)[^=<>]*=(?!=)", one.text)
        if set_ is None or set_[1] not in names:
            continue
        scope, right = _in_scope(known, one.begin), one.begin + set_.end()
        fitting = [atom for atom in atoms if atom not in code[right : one.end]]
        fitting = [atom for atom in fitting if set(re.findall(r"[A-Za-z_]\w*", atom)) <= scope.keys()]
        exps = re.compile(r"\bexpf?\s*\(").finditer(code, right, one.end)
        ends = list(_terms_of(code, right, one.end - 1))
        places_of = [*((at, "*/") for at in ends), (ends[-1], "+")]
        for at, operators in (*places_of, *((closed(code, each.end(), "()") - 1, "-") for each in exps)):
            old = code[right:at].strip()[-24:]
            for k, (atom, by) in enumerate(
                product(sorted(fitting, key=atoms.__getitem__)[:MOST_ATOMS], operators)
            ):
                neutral, rank = ("0.0f", 1.3) if by in "+-" else ("1.0f", 2.2)
                place = _put(at, f" {by} (@ ? {atom} : {neutral})")
                yield _edit(code, rank + 0.05 * k, at, old, f"{old} {by} {atom}", [place])


def _terms_of(code: str, at: int, end: int) -> Iterator[int]:
    """Yield the end of each term of a sum."""
    depth = 0
    for one in re.compile(r"[][()+?-]").finditer(code, at, end):
        if one[0] in "+-?" and depth == 0 and code[at : one.start()].strip():
            yield at + len(code[at : one.start()].rstrip())
            if one[0] == "?":
                return
        depth += (one[0] in "([") - (one[0] in ")]")
    yield at + len(code[at:end].rstrip())


def _values(code: str, begin: int, end: int, known: Sequence[_Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits of literal numbers: the first value of a sum or a maximum, and a step or a bound."""
    for one in re.compile(rf"(?<=[=,(:?])\s*({_FLOAT}|0)(?=\s*[;,):])").finditer(code, begin, end):
        old, before = one[1], _row(code, one.start(1))
        if old == "0" and not re.search(r"\bfloat\s+\w+\s*=\s*$", before):
            continue
        for k, new in enumerate(("0.0f", "1.0f", "-INFINITY")):
            if new.rstrip("f.0") != old.rstrip("f.0"):
                text = "-__builtin_inff()" if k == 2 else new
                yield _edit(code, 1.0 + 0.2 * k, one.start(1), old, new, [(*one.span(1), text)])
    number = re.compile(r"(?<![\w.\[])(?:[2-9]|[1-9]\d+)(?![\w.])(?!\s*>)")
    digits = dict.fromkeys(number.findall(code, begin, end))
    for one in number.finditer(code, begin, end):
        for new in [each for each in digits if each != one[0] and "#" not in _row(code, one.start())][:4]:
            yield _edit(code, 2.0, one.start(), one[0], new, [(*one.span(), new)])
