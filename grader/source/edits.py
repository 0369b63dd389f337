"""Small edits of a student's file that may correct it, the likeliest first.

`candidates` lists edits of the functions that a part runs: another variable of the same type, two arguments swapped, a
bound changed by 1, a `continue` left out. `grader.source.edited_source` compiles them together. Edits of statements
are here, edits of expressions in `grader.source.expression_edits`. Functions that yield edits get a source without
comments (`code`), the offsets `begin` and `end` of a function in it, and its variables (`known`). They yield (rank,
edit); the lowest rank is the likeliest edit. The text is untrusted. Edits, names and functions are limited in number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice, pairwise

from grader.source.cpptext import Definition, apart, blanked, definitions
from grader.source.edited_source import EXTREME, Edit, insertion, ranked_edit, wrapped
from grader.source.expression_edits import (
    FLOAT,
    factors,
    in_calls,
    in_macros,
    of_words,
    row_lengths,
    sizes,
    terms,
    values,
)
from grader.source.landmarks import closed
from grader.source.scopes import (
    FOR_HEAD,
    WORD,
    Name,
    collapsed,
    declared_names,
    for_loops,
    hiding,
    in_scope,
    is_whole,
    line_of,
    loop_bodies,
    outer_loops,
    row_before,
    scope_end,
    simple_statements,
    statement_end,
    while_loops,
)

#: Limits on edits, characters and variables of a source, `if`s of a function, and uses of a counter that hides an
#: outer variable. MOST_ALIKE limits the places that one edit changes in the same way.
MOST_EDITS, LARGEST, MOST_KNOWN, MOST_IFS, MOST_HIDDEN, MOST_ALIKE = 1600, 1 << 17, 1000, 12, 4, 4
#: Limits on statements that set one variable, on statements of a function to move, and on loops to exchange.
MOST_STATED, MOST_UNITS, MOST_LOOPS = 40, 400, 64
#: Limits on moving a statement: how many statements or loops it passes, how many loops it leaves, how many characters
#: it has, and how deep loops are nested.
MOST_STEPS, MOST_LEVELS, LONGEST_UNIT, MOST_DEPTH = 3, 3, 400, 900
_IN_MACRO = re.compile(r"\b(?!for\b)\w+\(\s*$")
#: The beginning of a pragma, of a `constexpr` declaration, or of the length of an array. Only the number of
#: `num_threads` in a pragma can be edited.
_FIXED = re.compile(
    r"#(?!.*\bnum_threads\s*\(\s*\d*$)|\bconstexpr\b[^;]*$"
    r"|\b(?:float|double|int)\s+\w+(?:\[[^][]*\])*\[[^][]*$"
)
#: The head of a `for` up to the end of its condition. Group 1 is the condition.
_CONDITION = re.compile(r"\bfor\s*\([^;{}]*;\s*([^;{}]*?)\s*(?=;)")
#: A declaration with a first value. Groups: type, name, first value.
_FIRST_VALUE = re.compile(
    r"([A-Za-z_][\w:]*(?:<[^;<>]*>)?)\s+(\w+)(\s*\([^;{}]*\)|\s*=\s*-?[\w.:<>()]*(?:\d|INF|max|MAX)[\w.:<>()]*)$"
)
_LEAVES = re.compile(r"\b(?:continue|break|return(?:\s+\w+)?)\s*;")
_TWO_INDICES = re.compile(r"\[\s*([A-Za-z_]\w*)\s*\]\s*\[\s*([A-Za-z_]\w*)\s*\]")
#: A flat index, such as `i * N + j`, or the end of one. Groups: row, row length, column.
_FLAT_INDEX = re.compile(r"(?<=[\[+])\s*([A-Za-z_]\w*)\s*\*\s*(\w+)\s*\+\s*([A-Za-z_]\w*)\s*(?=\])")
_FOR = re.compile(
    r"\bfor\s*\(" r"[\w:\s]*?\b(\w+)\s*=([^;]*);\s*\1\s*<\s*([^;&|]+);(?:\s*\1\s*\+=\s*([^;)]+)|[^;)]*)"
)
#: The head of a lambda expression that captures all variables by copy, or lists the captured variables by name.
_CAPTURES = re.compile(r"(?<![\w\])])\[(=[^][]*|[\w\s,]*)\]\s*\([^()]*\)\s*\{")
#: Texts that students copy together with a mistake: the head of a loop, an array's element, a call with a quotient.
_PIECE = re.compile(r"\bfor\s*\((?:[^(){}]|\([^()]*\))*\)|\b\w+\[[^][]*\]|\b\w+\([^()]*/[^()]*\)")
#: A declaration of any type. Group 1 is the name.
_LOCAL = re.compile(
    r"(?:\b(?:auto|float|double|int|long|bool)\b[\s&*]*|\b(?!(?:return|else)\b)[A-Za-z_][\w:]*(?:<[^;<>]*>[\s&*]*|\s+|\s*&\s*)"
    r"|,\s*[&*]*(?=\w+\s*=[^=]))"
    r"([A-Za-z_]\w*)\s*(?=[=;({:\[])"
)
#: The name of a size: one capital letter, or d.
_SIZE = re.compile(r"[A-Z]|d")
#: The right side of a comparison, if it is one name.
_COMPARED = re.compile(r"[<>]=?\s*([A-Za-z_]\w*)(?=\s*(?:&&|\|\||[;)?]))")
#: A declaration of one number with an initial value.
_OWN = re.compile(r"(float|double|int)\s+(\w+)\s*(=)(?!=)")
#: A variable or an element that is set or added to.
_ADDED_TO = re.compile(r"([\w.]+(?:\[[^\[\]]*\]|\([^()]*\)(?=\s*\+?=))*)\s*(\+?=)(?!=)")
#: The beginning of an assignment, a call, or a postfix `++` or `--`. Declarations and prints do not match.
_ACTS = re.compile(
    r"(?!(?:std::)?(?:f?printf|puts|cout|cerr)\b)(?:\+\+|--)?(?!(?:const|static|constexpr|auto|float|double|int|long|unsigned|size_t)\b)[\w:.]+\s*(?:[-+*/]?=|\[|\(|\+\+|--|->)(?!=)"
)
#: Template of a pattern. With `format` and a name, the pattern finds the places that set this variable or its elements.
_SET_OF = r"(?<![\w.])(?:{0})\s*(?:\[[^][;]*\]\s*)*(?:[-+*/]?=(?!=)|\+\+|--)|(?:\+\+|--)(?:{0})\b"
#: A lambda expression that copies variables. Group 1 is the text in its square brackets.
_COPIES = re.compile(r"\bauto\s+\w+\s*=\s*\[([^][&]*[\w=][^][]*)\]\s*(?:\([^()]*\))?[^{};]*\{")
#: A declaration of a number, pointer or iterator with a first value. Group 1 is the name.
_COPY = re.compile(r"\s*(?:const\s+)?(?:[\w:]+(?:<\w+>)?[\s*]+(?:const\s+)?)?(\w+)\s*=(?!=)")
_SET_BEFORE = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^][]*\])?\s*[-+*/]?=(?!=)")
_ACCUMULATED = re.compile(
    r"\b(?:std::)?(?:accumulate|inner_product|(?:transform_)?reduce)\s*\((?:[^;()]|\([^;()]*\))*?,\s*0(?=\s*[,)])"
)
#: Memory without initial values. Group 1 is its length in bytes, or group 2 its number of elements.
_ALLOCATED = re.compile(
    r"=\s*(?:\([^()]*\)\s*|\w*_cast<[^<>]*>\()?(?:(?:std::)?malloc\(((?:[^()]|\([^()]*\))*)\)"
    r"|new float\[([^][]*)\](?!\s*[({]))"
)
#: A loop that is left at its last piece: `if (hi > n) break;`. Groups: end of the piece, size, statement.
_LEFT_OUT = re.compile(r"\bif\s*\(\s*([\w.]+)\s*>=?\s*(\w+)\s*\)\s*\{?\s*(break|continue)(?=\s*;)")
#: A declaration of objects of a struct by constructor calls: `Tile a(h, w), b(h, w);`. Groups: type, objects.
_CONSTRUCTED = re.compile(
    r"(?<=[;{}])\s*([A-Z]\w*)\s+(\w+\s*[({](?:[^;{}()]|\([^;()]*\))*[)}](?:\s*,[^;]*)?);"
)
_MADE_BY = re.compile(r"\b(\w+)\s*(\((?:[^;()]|\([^()]*\))*\)|\{[^;{}]*\})(?=\s*[,;])")
_QUOTIENT = re.compile(r"\b([A-Za-z_]\w*)\s*/\s*([A-Za-z_]\w*|\d+)(?=\s*(?:-\s*1\s*)?[;,)])")
#: A loop that adds to each element of an array. Groups: loop head, counter, element.
_SUMS_OF = re.compile(
    r"(\bfor\s*\([^;(){}]*?\b(\w+)\s*=[^;(){}]*;[^;(){}]*;[^;(){}]*\))\s*\{?\s*(\w+\[[^][]*\b\2\b[^][]*\])\s*\+="
)
#: A value from a call with plain arguments, as in `blocks = split(N, Br);`, and the value of an exp() of a difference.
_OF_CALL = re.compile(r"[\w>]\s+\w+\s*=\s*((\w+)\((?:\w+,\s*)*\w+\))(?=\s*;)")
_EXPONENTIAL = re.compile(r"[^=!<>+*/-]=\s*((?:std::)?expf?\([^-;?()]+-[^-;?()]+\))(?=\s*[;,])")
#: A sum of integers that is compared with a size, as in `j0 + Bc == N`.
_REACHED = re.compile(r"([A-Za-z_]\w*\s*\+\s*\w+)\s*([=!]=)\s*([A-Za-z_]\w*)(?=\s*[;,)&|?])")


def candidates(source: str, names: Sequence[str]) -> list[Edit]:
    """Return up to MOST_EDITS edits of the functions `names` of a C++ source, and of its macros, the likeliest first.

    The first of the functions is the part's own. Returns [] for a source of more than LARGEST characters.
    """
    if len(source) > LARGEST:
        return []
    code = blanked(source)
    functions = definitions(code)
    called = {each.name for each in functions}
    known = [each for each in declared_names(code)[:MOST_KNOWN] if each.name not in called]
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
            in_calls,
            of_words,
            _others,
            terms,
            sizes,
            row_lengths,
            _resets,
            _made_anew,
            _all_threads,
            _clipped,
            _statements,
            _moves,
            _copied_early,
            _own_loops,
            _exchanged_loops,
            _exchanged_names,
            _kept,
            _conditions,
            _missing_conditions,
            _pointers,
            _hidden_counters,
            _hiding,
            factors,
            values,
        ):
            found += kind(code, begin, end, scope)
    # Drop edits of pragmas and array lengths: most of these need a plain name or a constant.
    found = [
        each for each in found if not any(_FIXED.search(row_before(code, at)) for at, _, _ in each[1].places)
    ]
    found += list(_repeated(code, found))
    used = [each for each in known if any(each.begin < end and each.end > begin for begin, end in spans)]
    found += in_macros(code, used)
    # Drop edits of numbers on lines with vector instructions: some of these require constant arguments.
    vectors = {line_of(code, one.start()) for one in re.finditer(r"\b_mm\w*\(|\b__m\d+", code)}
    kept = [each for each in found if each[1].line not in vectors or not each[1].changes_numbers]
    # Drop edits of `i` in `FOR(i, N)`, a use of a loop macro: the macro declares this counter.
    by_macro = {(each.begin - len(each.name), each.begin) for each in used}
    by_macro = {span for span in by_macro if _IN_MACRO.search(row_before(code, span[0]))}
    kept = [each for each in kept if not any(place[:2] in by_macro for place in each[1].places)]
    # Inside a lambda expression, drop edits that use a variable which is not captured, or an array captured by copy.
    for one in _CAPTURES.finditer(code):
        last = closed(code, one.end(), "{}")
        arrays, text = ("vector", "objects") if "=" in one[1] else ("",), code[one.start() : last]
        others = {each.name for each in used if each.kind.endswith(arrays)} - set(WORD.findall(text))
        kept = [
            each
            for each in kept
            if not any(
                one.end() <= at < last and others & set(WORD.findall(new)) for at, _, new in each[1].places
            )
        ]
    # With `collapse`, OpenMP forbids bounds that depend on the counters of the collapsed loops.
    for nest in [nest for begin, end in spans for nest in collapsed(code, begin, end) if nest]:
        counters = set(re.findall(r"(\w+)\s*=", " ".join(code[at : code.find(";", at)] for at, _ in nest)))
        first, last = (statement_end(code, head[1]) for head in (nest[-1], nest[0]))
        apart = [*((one[1], two[0]) for one, two in pairwise(nest)), (first, last - 1)]
        kept = [each for each in kept if not _changes_nest(each[1], nest, counters, apart)]
    kept.sort(key=lambda each: each[0])
    return [edit for _, edit in kept[:MOST_EDITS]]


def _changes_nest(
    edit: Edit, heads: Sequence[tuple[int, int]], counters: set[str], apart: Sequence[tuple[int, int]]
) -> bool:
    """Return True if OpenMP forbids an edit in loops under `collapse`: a statement between them (in a span of `apart`),
    or one of the `counters` in one of the `heads`."""
    for at, _, new in edit.places:
        used = counters & set(WORD.findall(new))
        if any(a <= at <= b for a, b in apart) or (used and any(a <= at < b for a, b in heads)):
            return True
    return False


def _repeated(code: str, found: Sequence[tuple[float, Edit]]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that change all places with the same text in the same way: a mistake may have been copied."""
    alike = dict[tuple[str, int, str], list[tuple[float, Edit]]]()
    for rank, edit in found:
        begin, end, new = edit.places[0]
        if len(edit.places) == 1 and begin < end:
            # A line may use one wrong size several times, as in `b = head / B, h = head % B`. Leave out heads of loops:
            # if the step of a loop over tiles is changed, this may hide a mistake.
            is_head = FOR_HEAD.search(row_before(code, begin)) is not None
            if _SIZE.fullmatch(code, begin, end) and _SIZE.fullmatch(new) and not is_head:
                alike.setdefault((code[begin:end], edit.line, new), []).append((rank, edit))
            for piece in _PIECE.finditer(code, code.rfind("\n", 0, begin) + 1, code.find("\n", end)):
                if piece.start() <= begin and end <= piece.end():
                    alike.setdefault((piece[0], begin - piece.start(), new), []).append((rank, edit))
                    break
    for each in alike.values():
        lines = list(dict.fromkeys(str(edit.line) for _, edit in each))
        if 1 < len(each) <= MOST_ALIKE:
            rank, first = each[0]
            places = tuple(place for _, edit in each for place in edit.places)
            where = f"in lines {' and '.join(lines)}" if len(lines) > 1 else f"{len(each)} times in this line"
            words = f"{first.new} in place of {first.old}, {where}"
            is_size = _SIZE.fullmatch(first.old) and _SIZE.fullmatch(first.new)
            # An edit of an index in several lines is weak: the array stays consistent, which may hide a mistake.
            is_weak = first.is_weak or (len(lines) > 1 and "[" in code[places[0][0] - 1 : places[0][1] + 1])
            edit = replace(first, places=places, words=words, is_weak=is_weak)
            yield rank + (-0.5 if is_size else 0.6), edit


def _converts(code: str, one: Definition) -> bool:
    """Return True for a function that only converts a tensor to an array or back: it has no loop."""
    is_of_tensor = "Tensor" in code[one.start : one.closed]
    return is_of_tensor and re.search(r"\bfor\b", code[one.body : one.end]) is None


def _others(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that remove or replace a jump, or exchange min and max or an element's two indices.

    Further edits round a quotient up, multiply a number of bytes by sizeof(float), or give a sum or counter another
    type. Others replace the number of threads by the thread's number, or by the number of threads of the next region.
    """
    loops = loop_bodies(code, begin, end)
    for jump in _LEAVES.finditer(code, begin, end):
        row = code[code.rfind("\n", 0, jump.start()) + 1 : jump.start()]
        condition = re.search(r"\bif\s*\(.*\)\s*\{?\s*$", row)
        old = (condition[0] if condition else "") + jump[0]
        is_in_loop = any(first < jump.start() < last for first, last in loops)
        # Remove a `return` with a value only if another one follows: the function must return a value.
        if " " in jump[0] and not (is_in_loop and "return" in code[jump.end() : end]):
            continue
        yield ranked_edit(code, 0, jump.start(), old, "", [(*jump.span(), "")])
        other = "continue;" if jump[0] == "return;" and is_in_loop else "break;" if jump[0][0] == "c" else ""
        if other:
            yield ranked_edit(code, 0, jump.start(), jump[0], other)
        for step in _skipped(code, begin, jump) if jump[0][0] == "c" else ():
            words, place = f"with `{step}` before it", (*jump.span(), f"{{ {step} continue; }}")
            yield ranked_edit(code, 0, jump.start(), jump[0], "", [place], words)
    for pair in _TWO_INDICES.finditer(code, begin, end):
        if pair[1] != pair[2]:
            places = ((*pair.span(1), pair[2]), (*pair.span(2), pair[1]))
            yield 1, Edit(line_of(code, pair.start()), pair[0], f"[{pair[2]}][{pair[1]}]", places)
    for flat in _FLAT_INDEX.finditer(code, begin, end):
        index = f"{flat[3]} * {flat[2]} + {flat[1]}"
        if flat[1] != flat[3]:
            ends = wrapped((flat.start(1), flat.end(3)), f"(@ ? {index} : ")
            yield ranked_edit(code, 1, flat.start(1), flat[0].strip(), index, ends)
    for one in EXTREME.finditer(code, begin, end):
        new = one[0].replace("min", "max") if "min" in one[0] else one[0].replace("max", "min")
        yield ranked_edit(code, 0, one.start(), one[0], new)
    for one in re.compile(r"\bomp_get_(?:num|max)_threads(?=\(\))").finditer(code, begin, end):
        for new in ("omp_get_max_threads", "omp_get_thread_num")[one[0] == "omp_get_max_threads" :]:
            yield ranked_edit(code, 0, one.start(), f"{one[0]}()", f"{new}()", [(*one.span(), new)])
    for one in _ACCUMULATED.finditer(code, begin, end):
        first, last = one.end() - 1, closed(code, code.find("(", one.start()) + 1, "()")
        cast = wrapped(
            (one.start(), last), f"(@ ? {code[one.start() : first]}0.0f{code[first + 1 : last]} : "
        )
        words = "with 0.0f as the first value: from 0 each partial sum is cut to a whole number"
        yield ranked_edit(code, 0, first, "0", "0.0f", cast, words)
    for one in re.compile(r"(?<=;)\s*(\w+)\s*>=\s*0\s*(?=;)").finditer(code, begin, end):
        name, shown = one[1], one[0].strip()
        kind = re.compile(rf"\b(?:unsigned|size_t|uint\d+_t)\b[^;{{}}()]*\b{name}\b")
        if kind.search(code, begin, one.start()):
            words = f"with a signed {name}: an unsigned number is always >= 0"
            cast = [insertion(one.start(1), f"@ ? (sizeof {name} < 8 ? (int){name} : (long){name}) >= 0 : ")]
            yield ranked_edit(code, 0, one.start(1), shown, "", cast, words)
    # These functions count bytes, not floats: `memset(a, 0, d)` sets only a quarter of d floats.
    for call in re.compile(r"\bmem(?:set|cpy|move)\s*\(").finditer(code, begin, end):
        last = closed(code, call.end(), "()") - 1
        size = apart(code[call.end() : last])[-1].strip()
        if "sizeof" not in size:
            sized = wrapped((last - len(size), last), "(", ") * (@ ? sizeof(float) : 1)")
            yield ranked_edit(code, 0, last - len(size), size, f"{size} * sizeof(float)", sized)
    rounded = list[Edit]()
    for part in _QUOTIENT.finditer(code, begin, end):
        scope = in_scope(known, part.start())
        if is_whole(scope.get(part[1], "")) and is_whole(scope.get(part[2], "int")):
            up = f" + (@ && {part[1]} % {part[2]} != 0)"
            new = f"({part[1]} + {part[2]} - 1) / {part[2]}"
            rounded.append(Edit(line_of(code, part.start()), part[0], new, ((part.end(), part.end(), up),)))
    yield from ((0, edit) for edit in rounded)
    if 1 < len(rounded) <= MOST_ALIKE:
        words = f"rounded up, like each quotient in lines {' and '.join(str(edit.line) for edit in rounded)}"
        together = tuple(place for edit in rounded for place in edit.places)
        yield 0.1, replace(rounded[0], places=together, words=words)


def _skipped(code: str, begin: int, jump: re.Match[str]) -> list[str]:
    """Return [the statement that changes the tested variable of a `while`] if `jump` (`continue`) skips it, else []."""
    found = list[str]()
    for head in re.compile(r"\bwhile\s*\(\s*(\w+)[^()]*\)").finditer(code, begin, jump.start()):
        row = re.compile(rf"\b{head[1]}\s*(?:[-+]?=[^=;]*|\+\+|--);")
        if step := row.search(code, jump.end(), max(jump.end(), statement_end(code, head.end()))):
            found = [step[0]]
    return found


def _resets(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that set a variable to its initial value, either after its declaration or at the start of a loop."""
    loops = loop_bodies(code, begin, end)
    stated = dict[str, list[tuple[int, str]]]()
    """Places and texts of statements by their first word."""
    for one in simple_statements(code, begin, end):
        if not one.is_bare:
            stated.setdefault(re.findall(r"\w*", one.text)[0], []).append((one.begin, one.text))
    for each in known:
        kinds = ("float", "double", "vector", "array", "objects")
        own = code.find(";", each.begin) + 1
        statement = re.split(rf"\b{each.name}\b", code[max(0, each.begin - 200) : own])[-1]
        allocated = _ALLOCATED.search(statement) if each.kind == "pointer" else None
        if not (each.kind.endswith(kinds) or allocated) or each.kind.startswith("const"):
            continue
        element = rf"(?<![\w.]){each.name}\s*(?:\[[^\]=;]*\]\s*){{0,2}}"
        is_set = (
            rf"{element}(?:[-+*/]=|=(?!=))|\w*[wW]rite\w*\(\s*{each.name}\b|&\s*\w+\s*[:=]\s*{each.name}\b"
            rf"|(?<![\w.]){each.name}\.(?:begin|data)\("
        )
        again = re.compile(
            rf"\bfill\w*\s*\(\s*{each.name}\b|\bmemset\s*\(\s*&?\s*{each.name}\b|\b{each.name}\.assign\("
            rf"|{element}=\s*(?:{FLOAT}|0)\s*;|:\s*{each.name}\)\s*\w+\s*=\s*(?:{FLOAT}|0)\s*;"
            rf"|\w*[wW]rite\w*\(\s*{each.name}\b[^;]*,\s*(?:{FLOAT}|0)\)"
        )
        last = min(end, each.end)
        if not re.compile(rf"{is_set}|{again.pattern}").search(code, each.begin, last):
            continue
        given = re.search(rf"[=,]\s*({FLOAT}|0)\s*\)?\s*[;,]", statement)
        is_maximum = re.compile(rf"{element}=[^;]*\bf?max|[<>]=?\s*{element}\)").search(code, begin, end)
        value = given[1] if given else "-INFINITY" if is_maximum else "0"
        # The logarithm of a sum starts at -INFINITY, the logarithm of 0.
        is_logarithm = re.compile(rf"\bexpf?\s*\(\s*{element}-").search(code, begin, end) and value == "0"
        is_one = each.kind.endswith(("float", "double"))
        value = "{}" if each.kind == "objects" else value
        shown = f"`{each.name} = {value};`" if is_one else f"a loop that sets all of {each.name} to {value}"
        bytes_ = f", {allocated[1] or f'({allocated[2]}) * sizeof(float)'}" if allocated else ""
        new = f" if (@) gpt149_set({each.name}, {value.replace('-INFINITY', '-__builtin_inff()')}{bytes_}); "
        if each.kind == "objects":
            new = f" if (@) for (auto& gpt149_one : {each.name}) gpt149_one = {{}}; "
        inside = [body for body, _ in loops if each.begin <= body < each.end]
        inside = [
            at for at in inside if re.compile(rf"\b{each.name}\b").search(code, at, closed(code, at, "{}"))
        ]
        # In a loop that changes the variable step by step, the edit is weak (`Edit.is_weak`): it would undo the steps.
        others = [one.start() for one in islice(again.finditer(code, each.begin, last), MOST_STATED)]
        is_step = re.compile(rf"{element}(?:[-+*/]=|=.*\b{each.name}\b)")
        steps = [at for at, text in stated.get(each.name, ())[:MOST_STATED] if is_step.match(text)]
        stepped = {max([body for body, ended in loops if body <= at < ended], default=0) for at in steps}
        is_alone = each.begin >= begin and "(" not in code[code.rfind("\n", 0, own) : own].split(each.name)[0]
        for k, at in enumerate([*([own] if is_alone else ()), *reversed(inside)]):
            line = line_of(code, at)
            words, place = f"after line {line} add {shown}", (at, at, new)
            declared = line_of(code, each.begin)
            note = "memory without initial values" if allocated else "its first value"
            if others:
                is_outside = not any(at <= one < closed(code, at, "{}") for one in others)
                nearest = max((one for one in others if one < at), default=others[0])
                declared, note = line_of(code, nearest) if is_outside else 0, "set here, outside of that loop"
            declared = declared if declared != line else 0
            edit = Edit(line, "", shown, (place,), words, declared, note, at in stepped)
            yield 0.9 + 0.05 * k, edit
            if is_logarithm:
                place = (at, at, new.replace(", 0", ", -__builtin_inff()", 1))
                words = re.sub(r"\b0(?=;|$)", "-INFINITY", words)
                yield 1.5 + 0.05 * k, replace(edit, new="-INFINITY", places=(place,), words=words)


def _made_anew(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that construct an object of a struct again at the start of each loop that uses it."""
    for one in _CONSTRUCTED.finditer(code, begin, end):
        last = closed(code, one.end(), "{}")
        for name, given in _MADE_BY.findall(code, one.start(2), one.end()):
            new = f"{name} = {one[1]}{given};"
            for body, ended in loop_bodies(code, one.end(), last):
                if re.compile(rf"\b{name}\b").search(code, body, ended):
                    line, words = line_of(code, body), f"after line {line_of(code, body)} add `{new}`"
                    place = insertion(body, f" if (@) {{ {new} }} ")
                    yield (
                        0.95,
                        Edit(line, "", new, (place,), words, line_of(code, one.start(1)), "its first value"),
                    )


def _all_threads(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that start all threads in place of a fixed number, for which other lines do not allow."""
    new = "omp_get_max_threads()"
    for one in re.compile(r"\bnum_threads\s*\(\s*(\d+)\s*\)").finditer(code, begin, end):
        yield ranked_edit(code, 0.7, one.start(1), one[1], new, wrapped(one.span(1), f"(@ ? {new} : "))


def _clipped(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that limit the end of a last piece in place of leaving the loop: `hi = n` for `break`."""
    for one in _LEFT_OUT.finditer(code, begin, end):
        new = f"{one[1]} = {one[2]}"
        place = insertion(one.start(3), f" if (@) {new}; else ")
        yield ranked_edit(code, 0.8, one.start(3), one[3], new, [place])


def _statements(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that remove statements, exchange `=` and `+=`, or undo a shadowing declaration."""
    # A sum that is added up whenever a block is full: add the last, incomplete block after the loop.
    full = re.compile(r"\bif\s*\([^;{}]*\)\s*\{\s*([\w.]+\s*\+=\s*(\w+)\s*;)(?=[^{}]*\b\2\s*=\s*0)")
    for block in full.finditer(code, begin, end):
        around = [loop for loop in outer_loops(code, begin, end) if loop[1] <= block.start() < loop[2]]
        for at, _, last in around[-1:]:
            words = f"after the loop of line {line_of(code, at)} add `{block[1]}`"
            yield ranked_edit(
                code, 0.7, block.start(1), block[1], "", [insertion(last, f" if (@) {block[1]} ")], words
            )
    statements = simple_statements(code, begin, end)
    for one in statements:
        at, shown, skip = one.begin, f"`{one.text};`", "if (!(@)) "
        if own := _OWN.match(one.text):
            kind, name = own[1], own[2]
            if any(each.name == name and each.kind == kind and each.begin < at < each.end for each in known):
                new = (
                    f"{kind}* gpt149_outer_{name} = &{name}; {kind} gpt149_own_{name} = 0; "
                    f"{kind}& {name} = @ ? *gpt149_outer_{name} : gpt149_own_{name}; {name} "
                )
                words = f"without {kind}: this declares a second {name}, which hides the outer one"
                yield ranked_edit(code, 0.3, at, kind, "", [(at, at + own.start(3), new)], words)
                inner = [each.end for each in known if each.name == name and at < each.begin <= one.end]
                is_set = re.compile(rf"{name}\s*[-+*/]?=(?!=)")
                for use in statements:
                    if at < use.begin < max(inner, default=at) and is_set.match(use.text):
                        outer = f"gpt149_outer_{name}_{use.begin}"
                        other = f"if (@) *{outer}{use.text[len(name) :]}; else "
                        places = [insertion(at, f" auto* {outer} = &{name}; "), insertion(use.begin, other)]
                        line = line_of(code, at)
                        words = f"with the outer {name}: line {line} declares a second {name}, which hides it"
                        yield ranked_edit(code, 0.3, use.begin, name, "", places, words)
            continue
        if not _ACTS.match(one.text):
            continue
        yield ranked_edit(code, 1.6, at, shown, "", [insertion(at, skip)], f"without {shown}")
        added = _ADDED_TO.match(one.text)
        if added is not None:
            name, begins = added[1], at + added.start(2)
            if in_scope(known, at).get(name, "").endswith("pointer"):
                continue
            is_sum = added[2] == "+="
            new = f"= (@ ? {'0' if is_sum else name} : {name if is_sum else '0'}) + ("
            # A comma ends the value, as in `b = i / H, h = i % H`.
            places = [(begins, begins + len(added[2]), new), insertion(at + len(apart(one.text)[0]), ")")]
            other = "=" if is_sum else "+="
            yield ranked_edit(
                code, 1.0 if is_sum else 1.3, at, f"{name} {added[2]}", f"{name} {other}", places
            )
        if one.is_bare:
            continue
        # If x[i] is the new maximum, a running sum of exp(x[i] - maximum) is scaled and gets the term exp(0) = 1.
        if scaled := re.match(r"([\w.]+(?:\[[^][]*\])?)\s*\*=", one.text):
            words, place = (
                f"after it add `{scaled[1]} += 1;`",
                insertion(one.end, f" if (@) {scaled[1]} += 1; "),
            )
            yield ranked_edit(code, 1.5, at, shown, "", [place], words)
            # The sum of the values in a running softmax needs the factor of the sum of the weights.
            for sums in _SUMS_OF.finditer(code, begin, end):
                new = f"{sums[3]} {one.text[len(scaled[1]) :].lstrip()};"
                names = set(WORD.findall(sums[1] + sums[3])) - {sums[2], "for", "int", "size_t", "0", "1"}
                if names <= in_scope(known, at).keys() and scaled[1] != sums[3]:
                    text = f"{' '.join(sums[1].split())} {new}"
                    words = f"after it add `{text}`"
                    yield ranked_edit(
                        code, 0.6, at, shown, "", [insertion(one.end, f" if (@) {text} ")], words
                    )


def _moves(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that move a statement: past a statement or loop beside it, or into or out of a loop."""
    loops = list(outer_loops(code, begin, end))
    statements = simple_statements(code, begin, end)
    blocks = {one.block: closed(code, one.block, "{}") for one in statements}
    beside = {
        block: [(one.begin, one.end, 0) for one in statements if one.block == block and not one.is_bare]
        for block in blocks
    }
    """Statements and loops by their block: begin, end, and the offset after the head of a loop (0: no loop)."""
    for at, body, last in loops:
        if around := [block for block, ended in blocks.items() if block <= at < ended]:
            beside[max(around)].append((at, last, body))
    for one in statements[:MOST_UNITS]:
        # To "move" a declaration, keep it, and assign its value to the variable again at the new place.
        own = _OWN.match(one.text)
        # Do not assign a constant again: the variable would lose a value that later lines read, such as a maximum.
        is_constant = own and re.match(rf"\s*(?:{FLOAT}|\d+)\s*(?:,|$)", one.text[own.end() :])
        if one.is_bare or is_constant or not (own or _ACTS.match(one.text)):
            continue
        text = one.text[own.start(2) :] if own else one.text
        # Move the statement only to places at which all of its variables are in scope.
        names = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*\b(?!\s*(?:\(|::))", one.text))
        to = list[tuple[int, str]]()
        is_set = _ADDED_TO.match(text)
        changed = "|".join(names if is_set is None else re.findall(r"\w+", is_set[1])[:1])
        passed = rf"\b(?:{changed})\b|{_SET_OF.format('|'.join(names))}"
        row = sorted(beside[one.block])
        k = [each[0] for each in row].index(one.begin)
        for step, side, edge in ((1, "after", "start"), (-1, "before", "end")):
            for at, last, body in (
                row[k + step :: step][:MOST_STEPS] if k + step >= 0 and (not own or step > 0) else ()
            ):
                line = line_of(code, body or at)
                if line == line_of(code, one.begin) or not re.search(passed, code[at:last]):
                    continue
                to.append((last if step > 0 else at, f"{side} {'the loop of ' if body else ''}line {line}"))
                if step > 0 and not own and body:
                    # The loop inside that loop may be the one that needs the statement again.
                    nested = [one for one in loops if body < one[0] and one[2] <= last][:MOST_STEPS]
                    for _, inner, ended in nested:
                        opened = re.compile(r"\s*\{").match(code, inner)
                        if opened and re.search(passed, code[inner:ended]):
                            to.append(
                                (opened.end(), f"at the start of the loop of line {line_of(code, inner)}")
                            )
                if body and (inside := re.compile(r"\s*\{").match(code, body)):
                    place = inside.end() if step > 0 else last - 1
                    to.append((place, f"at the {edge} of the loop of line {line}"))
        for at, where in to:
            # At later places in the statement's own block, all its names are in scope.
            if one.begin < at < blocks[one.block] or names <= in_scope(known, at).keys():
                places = [insertion(at, f" if (@) {{ {text}; }} ")]
                places += [] if own else [insertion(one.begin, "if (!(@)) ")]
                words = f"this line {where}"
                yield ranked_edit(code, 1.4, one.begin, f"`{one.text};`", "", places, words)


def _copied_early(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits of values that are computed too early: before a variable in them is set.

    The edit computes the value where it is used. If a lambda expression captures a copy of the variable too early, the
    edit makes it capture a reference.
    """
    loops, copies = loop_bodies(code, begin, end), list[tuple[int, int, int, str, str, int]]()
    """For each copy: begin and end, the end of its block, its name and value, and the place of a lambda's `]`."""
    for one in simple_statements(code, begin, end)[:MOST_UNITS]:
        for piece in apart(one.text):
            if own := _COPY.match(piece):
                last = closed(code, one.block, "{}")
                copies.append((one.begin, one.end, last, own[1], piece[own.end() :].strip(), 0))
    for head in _COPIES.finditer(code, begin, end):
        last = closed(code, head.end(), "{}")
        copies.append(
            (head.start(), last, end, "", code[head.end() : last] if "=" in head[1] else head[1], head.end(1))
        )
    for at, first, last, name, value, captures in copies:
        words = set(WORD.findall(value))
        later = [
            (sets.start(), each.name)
            for each in known
            if each.name in words and each.begin <= at < each.end and not each.kind.startswith("const")
            if is_whole(each.kind) or each.kind.endswith(("float", "double", "pointer"))
            if (sets := re.compile(_SET_OF.format(each.name)).search(code, first, min(last, each.end)))
        ]
        is_changed = name and re.compile(_SET_OF.format(name)).search(code, first, last)
        for set_at, copied in [] if is_changed else sorted(later)[:1]:
            new = f"gpt149_new_{copied}_{at}" if captures else f"({value})"
            span = (
                (captures, first)
                if captures
                else (min([set_at, *(body for body, ended in loops if first <= body < set_at < ended)]), last)
            )
            uses = re.compile(rf"(?<![\w.]){name or copied}\b").finditer(code, *span)
            places = [(*use.span(), new) for use in islice(uses, MOST_STATED)]
            if places and captures:
                places.append(insertion(captures, f", &{new} = {copied}"))
            line, how = (
                line_of(code, set_at),
                f"with &{copied} in its [...]" if captures else "computed where it is used",
            )
            if places:
                rank, edit = ranked_edit(
                    code, 0.5, at, copied, "", places, f"{how}: line {line} sets {copied} only later"
                )
                yield (
                    rank,
                    replace(edit, declared=line, note=f"sets {copied}, which an earlier line has copied"),
                )


def _own_loops(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that move a statement out of the loops around it, to the place before or after one of these loops.

    The moved statement may still need the loops that it leaves. So some edits put copies of these loops around it: of
    all, or of all but the outermost one.
    """
    apart = {at for at, _, _ in outer_loops(code, begin, end)}
    shared = {at for nest in collapsed(code, begin, end) for at, _ in nest}
    loops = sorted([*for_loops(code, begin, end), *while_loops(code, begin, end)])
    for at, last in islice(_units(code, loops), MOST_UNITS):
        acts = re.compile(r"(?<=[;{})])\s*(?!for\b|if\b)[\w.]+(?:\[[^][]*\])*\s*[-+*/]?=(?!=)").search(
            code, at, last
        )
        acts_on = line_of(code, acts.end()) if acts else 0
        used = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", code[at:last]))
        around = [loop for loop in loops if loop[1] <= at < loop[2]][: -MOST_LEVELS - 1 : -1]
        for level, (outer, body, ended) in enumerate(around):
            if outer in shared:
                continue
            inner = [code[one[0] : one[1]] for one in around[level - 1 :: -1]] if level else []
            own = set(_LOCAL.findall(code, outer, body))
            inside = {each.name for each in known if body < each.begin < at < each.end} | set(
                _LOCAL.findall(code, body, at)
            )
            inside -= set(_LOCAL.findall(f"{' '.join(inner)} {code[at:last]}"))
            words = used | set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", " ".join(inner)))
            # If the statement uses constants that the loop declares, copy their declarations, too.
            needed = sorted(words & inside)
            declared = [_constant(code, name, body, at) for name in needed] if not level else [""]
            declared = [text if len(inside & set(WORD.findall(text))) == 1 else "" for text in declared]
            for copied in (inner, [code[outer:body], *inner]):
                if (copied is inner and words & (own | inside)) or (words & inside and not all(declared)):
                    continue
                copy = " ".join(f"{' '.join(copied)} {{ {' '.join(declared)} {code[at:last]} }}".split())
                text = f" if (@) {{ {copy} }} "
                how = "this statement" if "\n" in code[at:last] else "this line"
                how += f" and the declaration of {' and '.join(needed)}" if any(declared) else ""
                how += " in a loop of its own" if copied else ""
                # If this loop is another loop's body without braces, add braces. `mark` sorts the closing ones.
                depth = sum(one[1] <= outer < one[2] for one in loops)
                opens, closes = ("", "") if outer in apart else (" {", " }")
                mark = f"/*{MOST_DEPTH - depth:03}*/" if closes else ""
                for side in ("before", "after"):
                    shown = f"{how} {side} the loop of line {line_of(code, outer)}"
                    beside = [insertion(outer, opens + text), insertion(ended, mark + closes)]
                    if side == "after":
                        beside = [insertion(outer, opens), insertion(ended, mark + text + closes)]
                    places = [*(each for each in beside if each[2]), insertion(at, "if (!(@)) ")]
                    # An edit is weak if the loop sets values that the statement then uses too early.
                    is_weak = side == "before" and bool(used & set(_SET_BEFORE.findall(code, body, at)))
                    rank, edit = ranked_edit(
                        code, 1.3 + 0.05 * len(copied), at, code[at:last], "", places, shown
                    )
                    other = acts_on if acts_on != edit.line else 0
                    yield rank, replace(edit, is_weak=is_weak, declared=other, note="the same statement")


def _constant(code: str, name: str, begin: int, end: int) -> str:
    """Return the declaration of the constant or pointer `name` between two offsets; "" without one."""
    kind = rf"(?:const(?:expr)?\s+\w+\s*\*?|\w+\s*\*)\s*{name}\s*=[^;{{}}]*;"
    found = re.compile(kind).search(code, begin, end)
    return found[0] if found else ""


def _units(code: str, loops: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of the statements that may be moved, in each loop with braces. `for` and `if` are included."""
    for _, body, last in loops:
        opened = re.compile(r"\s*\{").match(code, body)
        at = opened.end() if opened else last
        while at < last - 1:
            at += len(code[at:last]) - len(code[at:last].lstrip())
            ended = statement_end(code, at)
            while (other := re.compile(r"\s*else\b").match(code, ended)) is not None:
                ended = statement_end(code, other.end())
            text = code[at:ended]
            is_moved = len(text) <= LONGEST_UNIT and (_ACTS.match(text) or re.match(r"(?:for|if)\b", text))
            if is_moved and not re.search(r"#|\b(?:return|break|continue)\b", text):
                yield at, ended
            at = max(ended, at + 1)


def _exchanged_loops(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that exchange a loop with the loops directly in it, which have the same bounds."""
    heads = [
        (one, closed(code, code.find("(", one.start()) + 1, "()")) for one in _FOR.finditer(code, begin, end)
    ]
    loops = [(one.start(), body, statement_end(code, body), one[1]) for one, body in heads[:MOST_LOOPS]]
    for at, body, last, name in loops:
        inside = [loop for loop in loops if body <= loop[0] and loop[2] <= last]
        direct = [loop for loop in inside if not any(one[1] <= loop[0] < one[2] for one in inside)]
        begins, ends = [body, *(loop[2] for loop in direct)], [*(loop[0] for loop in direct), last]
        rest = "".join(code[a:b] for a, b in zip(begins, ends, strict=True))
        same = [re.sub(rf"\b{loop[3]}\b", name, code[loop[0] : loop[1]]) == code[at:body] for loop in direct]
        if (
            not direct
            or not all(same)
            or re.search(rf"\b{name}\b", rest)
            or len({loop[3] for loop in direct}) > 1
        ):
            continue
        other, places = direct[0][3], list[tuple[int, int, str]]()
        for loop in direct:
            kept = f" {{ const auto gpt149_a = {name}, gpt149_b = {other}; {{ "
            new = f"auto {name} = @ ? gpt149_b : gpt149_a, {other} = @ ? gpt149_a : gpt149_b; "
            # `_order` sorts closing braces by `mark`: the braces of this loop come after those of inner loops.
            depth = sum(body <= loop[0] < last for _, body, last in for_loops(code, begin, end))
            mark = f"/*{MOST_DEPTH - depth - 1:03}+*/"
            places += [insertion(loop[1], kept + new), insertion(loop[2], f"{mark} }} }}")]
        words = f"with this loop over {other} and the loop of line {line_of(code, direct[0][0])} over {name}"
        yield ranked_edit(code, 1.2, at, name, other, places, words)


def _exchanged_names(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that swap two integers: two bounds of one condition, two initial values of a form, two loops' steps.

    For example, an edit exchanges Br and Bc in `Tc = N / Br, Tr = N / Bc`.
    """
    bounds = [
        one
        for one in _COMPARED.finditer(code, begin, end)
        if is_whole(in_scope(known, one.start()).get(one[1], ""))
    ]
    for first, second in pairwise(bounds):
        if first[1] != second[1] and not re.search(r"[;{}]", code[first.end() : second.start()]):
            swapped = ((*first.span(1), second[1]), (*second.span(1), first[1]))
            old, new = f"{first[1]}, {second[1]}", f"{second[1]}, {first[1]}"
            words = f"{first[1]} and {second[1]} exchanged"
            yield ranked_edit(code, 1.0, first.start(), old, new, swapped, words)
    steps = [one.span(1) for one in re.compile(r"\+=\s*(\w+)(?=\s*\))").finditer(code, begin, end)]
    alike = {"": steps}
    """Spans of expressions by their form: the text with "w" in place of each word; "" for steps of loops."""
    for each in known:
        if begin <= each.begin < end and is_whole(each.kind):
            set_ = re.compile(rf"\b{each.name}\s*=(?!=)\s*")
            for name in list(set_.finditer(code, max(begin, each.begin - 200), each.begin))[-1:]:
                form = WORD.sub("w", code[name.end() : each.begin])
                # Leave out expressions with `?`: other edits put brackets around the condition alone, and those would
                # overlap with the brackets that this edit puts around the whole expression.
                if form != "w" and "?" not in form:
                    alike.setdefault(form, []).append((name.end(), each.begin))
    done = {span for same in alike.values() for span in same}
    for one in _OF_CALL.finditer(code, begin, end):
        if one.span(1) not in done:
            alike.setdefault(one[2] + WORD.sub("w", one[1]), []).append(one.span(1))
    pairs = [pair for same in alike.values() for pair in islice(combinations(same, 2), MOST_STATED)]
    # The two factors of a running softmax: exchange the whole values.
    exps = [one.span(1) for one in _EXPONENTIAL.finditer(code, begin, end)]
    for at, to in islice(pairwise(exps), MOST_STATED):
        early, late = code[slice(*at)], code[slice(*to)]
        if early != late and not re.search(r"[{}]", code[at[1] : to[0]]):
            places = [*wrapped(at, f"(@ ? {late} : "), *wrapped(to, f"(@ ? {early} : ")]
            lines = line_of(code, at[0]), line_of(code, to[0])
            words, note = f"{late} in place of {early}", f"{early} in place of {late}"
            shown = f"{words}, and {note} in line {lines[1]}"
            yield 0.8, Edit(lines[0], early, late, tuple(places), shown, declared=lines[1], note=note)
    for spans in pairs:
        texts, scopes = [code[at:last] for at, last in spans], [in_scope(known, at) for at, _ in spans]
        line, other = (line_of(code, at) for at, _ in spans)
        for old, new in dict.fromkeys(zip(*map(WORD.findall, texts), strict=True)):
            if old == new or not all(
                is_whole(scope.get(name, "")) for name in (old, new) for scope in scopes
            ):
                continue
            changed = (
                re.sub(rf"\b{a}\b", b, text) for text, a, b in zip(texts, (old, new), (new, old), strict=True)
            )
            places = [
                each
                for (at, last), text in zip(spans, changed, strict=True)
                for each in wrapped((at, last), f"(@ ? (decltype({code[at:last]}))({text}) : ")
            ]
            words, note = f"{new} in place of {old}", f"{old} in place of {new}"
            shown = f"{words}, and {note} in line {other}"
            yield 1.0, Edit(line, old, new, tuple(places), shown, declared=other, note=note)


def _kept(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that move a declaration out of the loop around it, so that its variable keeps its value."""
    loops = list(outer_loops(code, begin, end))
    for one in simple_statements(code, begin, end):
        own = _FIRST_VALUE.match(one.text)
        around = [loop for loop in loops if loop[1] <= one.begin < loop[2]]
        # Leave out first values with a name that the loop declares.
        if (
            own is None
            or not around
            or set(WORD.findall(own[3])) & set(_LOCAL.findall(code, around[-1][0], one.begin))
        ):
            continue
        (kind, name, value), kept = own.groups(), f"gpt149_kept_{own[2]}_{one.begin}"
        places = [
            insertion(around[-1][0], f" {kind} {kept}{value}; "),
            insertion(one.begin + own.start(2), "gpt149_new_"),
            insertion(one.end - 1, f"; {kind}& {name} = @ ? {kept} : gpt149_new_{name}"),
        ]
        words = f"this line before the loop of line {line_of(code, around[-1][1])}"
        yield ranked_edit(code, 1.3, one.begin, f"`{one.text};`", "", places, words)


def _conditions(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits of conditions: exchange `<` and `<=`, limit a loop's end to a size, negate or drop an `if`."""
    for one in re.compile(r"\b(\w+)\s*(<=?)(?![<=])\s*(?=[\w(])(?!\w+\s*[;)])").finditer(code, begin, end):
        if is_whole(in_scope(known, one.start()).get(one[1], "")):
            by, new = ("1", "<=") if one[2] == "<" else ("-1", "<")
            place = insertion(one.end(), f"(@ ? {by} : 0) + ")
            yield ranked_edit(code, 1.1, one.start(), f"{one[1]} {one[2]}", f"{one[1]} {new}", [place])
    for one in re.compile(r"\bif\s*\(").finditer(code, begin, end):
        last = closed(code, one.end(), "()") - 1
        for rank, opened, words in (
            (1.2, "(@) != (", "with the opposite condition"),
            (1.5, "(@) || (", "without the condition"),
            (1.7, "!(@) && (", "without what this `if` does"),
        ):
            yield ranked_edit(
                code, rank, one.start(), "if", "", [insertion(one.end(), opened), insertion(last, ")")], words
            )
    # The last tile may end beyond the size, so that `==` never holds. The edit writes `a >= b` as a == max(a, b).
    for one in _REACHED.finditer(code, begin, end):
        if is_whole(in_scope(known, one.start()).get(one[3], "")):
            sum_, size, new = one[1], one[3], ">=" if one[2] == "==" else "<"
            place = (*one.span(3), f"({sum_} < {size} ? {size} : {sum_})")
            words = f"{sum_} {new} {size} in place of {one[0]}"
            yield ranked_edit(code, 0.7, one.start(), one[0], new, [place], words)
    # A loop over tiles that stops before an incomplete tile: `i + T <= N` in place of `i < N`.
    for one in re.compile(r";\s*(\w+)\s*\+\s*[A-Za-z_]\w*\s*<=?\s*(\w+)\s*(?=;)").finditer(code, begin, end):
        shown, new = one[0].strip("; "), f"{one[1]} < {one[2]}"
        places = [insertion(one.start(1), f"(@) ? {new} : ")]
        yield ranked_edit(code, 0.9, one.start(1), shown, new, places)
    for one in re.compile(r"(?:=|\breturn|\()(\s*[^=?;(){},]*[<>]=?[^=?;{},]*)\?").finditer(code, begin, end):
        places = wrapped(one.span(1), " (@) != (", ") ")
        yield ranked_edit(
            code, 1.2, one.start(1), one[1], "", places, f"with the opposite of {one[1].strip()}"
        )
    # Inside a loop over tiles, limit the end of each tile to the end of all tiles.
    heads = [(head, scope_end(code, head.end(1), ())) for head in _FOR.finditer(code, begin, end)]
    for outer, last in [each for each in heads if (each[0][4] or "1").strip() != "1"]:
        size, counter = outer[3].strip(), outer[1]
        for head, _ in heads:
            is_parallel = (
                "#" in code[code.rfind("\n", 0, code.rfind("\n", 0, head.start())) + 1 : head.start()]
            )
            is_size = re.fullmatch(r"[A-Z]|d", head[3].strip()) and head[3].strip() != outer[4].strip()
            if outer.end() < head.start() < last and not is_parallel and not is_size:
                index = head[1] if counter in WORD.findall(head[2]) else f"{counter} + {head[1]}"
                places, words = (
                    [insertion(head.end(3), f" && !((@) && {index} >= {size})")],
                    f"`&& {index} < {size}`",
                )
                yield ranked_edit(code, 1.2, head.end(3), "", words, places, f"with {words}")
        for one in re.compile(r"(?:(?<!\()\bint\s+|,\s*)(\w+)\s*=\s*([^;,?()]+)(?=[;,])").finditer(
            code, outer.end(), last
        ):
            if "min" not in one[2]:
                most = size if counter in WORD.findall(one[2]) else f"{size} - {counter}"
                places = wrapped(one.span(2), f"gpt149_least(@, {most}, ")
                yield ranked_edit(
                    code, 1.0, one.start(2), one[2], f"std::min({one[2].strip()}, {most})", places
                )


def _missing_conditions(
    code: str, begin: int, end: int, known: Sequence[Name]
) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add to the condition of an `if` a term of another `if`, perhaps with other variables.

    A loop gets a term of another loop with the same first term, perhaps with another counter.
    """
    heads = islice(re.compile(r"\bif\s*\(").finditer(code, begin, end), MOST_IFS)
    ifs = [(head.end(), closed(code, head.end(), "()") - 1) for head in heads]
    shared, done = {at for nest in collapsed(code, begin, end) for at, _ in nest}, set[tuple[int, str]]()
    loops = [one.span(1) for one in _CONDITION.finditer(code, begin, end) if one.start() not in shared]
    for at, last in ifs:
        # The other sizes of a tile, in a condition such as `rows == T && columns == T`.
        terms = _operands(code[at:last])
        full = re.fullmatch(r"\s*\w+\s*==\s*([A-Za-z_]\w*)\s*", terms[0]) if terms else None
        if full and "||" not in terms:
            cut = re.findall(rf"\b(\w+)\s*=\s*(?:std::)?min\s*\([^;]*?\b{full[1]}\b", code[begin:at])
            for name in dict.fromkeys(cut):
                if name in in_scope(known, at) and name not in WORD.findall(code[at:last]):
                    new = f"{name} == {full[1]}"
                    places = [insertion(at, "("), insertion(last, f") && (!(@) || {new})")]
                    yield ranked_edit(code, 0.7, at, "", new, places, f"with `&& {new}`")
    for at, last in [*ifs, *loops[:MOST_LOOPS]]:
        own, spans = _operands(code[at:last]), ifs if (at, last) in ifs else loops[:MOST_LOOPS]
        scope = in_scope(known, at).keys()
        for other in (_operands(code[a:b]) for a, b in spans if a != at):
            if len(other) < 2 or (len(own) > 1 and own[1::2] != other[1 : len(own) : 2]):
                continue
            # Terms of the same form show how to rename variables: `tw < 0` here and `th < 0` there rename th to tw.
            names = {
                old: new
                for mine in own[::2]
                for term in other[::2]
                if mine not in other and term not in own and WORD.sub("w", mine) == WORD.sub("w", term)
                for old, new in zip(WORD.findall(term), WORD.findall(mine), strict=True)
            }
            if spans is not ifs and sum(old != new for old, new in names.items()) > 1:
                continue
            for term in other[::2] if names or set(own[::2]) & set(other[::2]) else ():
                pieces = re.findall(r"\w+|\W+", term)
                new = "".join(names.get(piece, piece) for piece in pieces)
                if (
                    new in own
                    or (at, new) in done
                    or not {name for name in WORD.findall(new) if not name.isdigit()} <= scope
                ):
                    continue
                by = other[1]
                done.add((at, new))
                places = [
                    insertion(at, "("),
                    insertion(
                        last, f") {by} {'!' if by == '&&' else ''}((@) && {'!' if by == '&&' else ''}({new}))"
                    ),
                ]
                yield ranked_edit(
                    code, 0.8, at, "", new, places, f"with `{by} {new}`, as in a similar condition"
                )


def _operands(condition: str) -> list[str]:
    """Split a condition at its `&&` or `||` into [term, operator, term, ...]; return [] if it has both operators."""
    parts = [part.strip() for part in re.split(r"(&&|\|\|)", condition)]
    return parts if len(set(parts[1::2])) < 2 else []


def _pointers(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that set a pointer back after a loop that moves it, or that also move another pointer in the loop."""
    for at, body, last in outer_loops(code, begin, end):
        for name in [
            each.name for each in known if each.kind.endswith("pointer") and each.begin <= at < each.end
        ]:
            if re.compile(rf"\b{name}\s*(?:\+\+|\+=)|\+\+{name}\b").search(code, body, last):
                kept = f"gpt149_kept_{name}_{at}"
                places = wrapped((at, last), f" auto {kept} = {name}; ", f" if (@) {name} = {kept}; ")
                words = f"after this loop set {name} back to its value before the loop"
                yield ranked_edit(code, 0.9, body, name, "", places, words)
        # Another pointer that the loop uses but does not move may need the same step.
        moved = r"\b(\w+)\s*\+=([^;,()=]*(?:\([^()]*\)[^;,()=]*)*)(?=[;,)])"
        names = {name for name, kind in in_scope(known, body).items() if kind.endswith("pointer")}
        for move in [one for one in re.finditer(moved, code[at:last]) if one[1] in names][-1:]:
            begun, ended = at + move.start(), at + move.end()
            is_step = begun < body
            for name in sorted(names) if is_step or code[ended] == ";" else ():
                changes = re.compile(rf"\b{name}\s*(?:\+\+|\+?=)|\+\+{name}\b").search(code, at, last)
                if changes is None and re.compile(rf"\b{name}\b").search(code, body, last):
                    new = f"{name} +={move[2]}"
                    text = f", (void)(@ ? {new} : {name})" if is_step else f" if (@) {new};"
                    place = insertion(ended + (not is_step), text)
                    yield ranked_edit(code, 0.5, begun, move[0], "", [place], f"after it add `{new}`")


def _hidden_counters(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that use an outer integer inside a loop (or loop macro) whose counter of the same name hides it."""
    for each in known:
        if not (begin <= each.begin < end) or each.kind != "int":
            continue
        row = row_before(code, each.begin)
        head = re.search(
            rf"\b\w+\s*\(\s*(?:\w+\s+)?{each.name}$|\bfor\s*\(\s*(?:\w+\s+)?{each.name}\s*=[^;]*$", row
        )
        outer = [
            one
            for one in known
            if one.name == each.name and is_whole(one.kind) and one.begin < each.begin < one.end
        ]
        if head is None or not outer:
            continue
        at = each.begin - len(row) + head.start()
        if not re.search(r"[;{}]\s*$", code[max(begin, at - 200) : at]):
            continue
        body = code.find(")", each.begin) + 1
        uses = list(re.compile(rf"(?<![\w.]){each.name}\b").finditer(code, body, each.end))[:MOST_HIDDEN]
        for mask in range(1, 1 << len(uses)):
            kept = f"gpt149_outer_{each.name}_{at}_{mask}"
            places = [insertion(at, f" const int {kept} = {each.name}; ")]
            places += [(*use.span(), kept) for k, use in enumerate(uses) if mask >> k & 1]
            line = line_of(code, outer[-1].begin)
            words = (
                f"with another name for its counter: this {each.name} hides the {each.name} of line {line}"
            )
            yield ranked_edit(code, 0.4, at, each.name, "", places, words)


def _hiding(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that use an outer number in place of an inner one of the same name, which hides the outer one."""
    for at, span, name, words in hiding(code, begin, end, known):
        hidden = f"gpt149_hidden_{name}_{at}"
        places = [insertion(at, f" const auto* {hidden} = &{name}; "), *wrapped(span, f"(@ ? *{hidden} : ")]
        yield ranked_edit(code, 0.3, span[0], name, "", places, f"without this declaration of {words}")
