"""Edits of expressions: another variable, number, argument, index, term or factor. See `grader.source.edits`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise, product, zip_longest

from grader.source.cpptext import NAMED_NUMBER, apart, macros
from grader.source.edited_source import EXTREME, Edit, function_macros, insertion, ranked_edit, wrapped
from grader.source.landmarks import closed
from grader.source.scopes import (
    TILE_END,
    WORD,
    Name,
    in_scope,
    is_whole,
    line_of,
    row_before,
    simple_statements,
)

MOST_NAMES, MOST_TERMS, MOST_ATOMS, MOST_NEAREST, MOST_UNUSED, MOST_BRACKETED, MOST_TOKENS = (
    10,
    8,
    6,
    3,
    2,
    10,
    32,
)
#: Limits on the words of a function, on places that one edit changes in the same way, and on a call's characters.
MOST_WORDS, MOST_ALIKE, LONGEST_CALL = 4000, 4, 1000
#: Floats of the widest vector that edits know.
LANES = 8
#: Limit on the characters of an expression that a message shows whole. Of a longer one, it shows the last operand.
LONGEST_SHOWN = 48
_CALL = re.compile(r"\b([A-Za-z_]\w*)(?:<[\w\s,:*]*>)?\s*\(")
_NO_CALLS = frozenset({"if", "for", "while", "switch", "return", "sizeof", "defined"})
_SET = re.compile(r"\s*(?:[-+*/%|&^]?=(?!=)|\+\+|--)")
_DECLARES = re.compile(
    r"\b(?:int|float|double|auto|long|size_t|unsigned|vector\s*<\s*float\s*>)\s*(?:const\s*)?[&*]?$"
)
_TEMPLATE_END = re.compile(r"[^<>(){};]*>\s*[({]")
#: An expression to which a term may be added: the first value of a declared integer, or an index.
_SUM = re.compile(
    r"\b(?:int|long|size_t)\s[^;()]*?=[^;,]*?(?=[;,])|(?<=[\w\])])\[[^][;&=]+(?=\])|,\s*\w+\s*=[^;,()]*(?=;)"
)
#: The step NAME of a loop (`i += NAME`): usually the length of a tile.
_STEP = re.compile(r"\+=\s*([A-Za-z_]\w*)\b")
_COUNTER = re.compile(
    r"\bfor\s*\(\s*(?:const\s+)?(?:int|long|size_t|std::size_t|unsigned|int64_t|auto)\s+([A-Za-z_]\w*)"
)
#: A variable that is a sum, or an array of sums.
_SUMMED = re.compile(r"\b([A-Za-z_]\w*)(?:\[[^][]*\])?\s*(?:\+=|=(?!=)[^;=]*\+[^;=]*;)")
_ALIAS = re.compile(r"\b([A-Za-z_]\w*)\s*=\s*([A-Za-z_]\w*)\s*[;,]")
#: The head of a loop up to the counter that it declares.
_IN_HEAD = re.compile(r"\bfor\s*\([^;()]*$")
#: The first index of a tile: the tile's number times its length.
_FIRST = re.compile(r"\bint\s+(\w+)\s*=\s*[A-Za-z_]\w*\s*\*\s*[A-Za-z_]\w*(?=\s*[,;])")
#: A term in a sum of integers: a name, or a product of names.
_PRODUCT = re.compile(
    r"(?<=[-+=(\[])\s*([A-Za-z_]\w*(?:\s*\*\s*[A-Za-z_]\w*)*)(?=\s*[-+\]);,])(?!\]\s*[({])(?!\s*(?:\+\+|--|->))"
)
#: In the end of a tile, such as `k0 + T`: the tile's first index.
_FIRST_OF_TILE = re.compile(r"\b([A-Za-z_]\w*)\s*\+(?![+=])")
#: A loop's counter and its bound, if the bound is one name.
_BOUND = re.compile(r"\b(\w+)\s*<=?\s*([A-Za-z_]\w*)\s*(?=;)")
_FACTOR = re.compile(r"\*\s*([A-Za-z_]\w*)")
FLOAT = (
    r"-?(?:\b\d+\.\d*(?:[eE][-+]?\d+)?f?|\b\d+[eE][-+]?\d+f?|"
    r"\b(?:FLT_M(?:IN|AX)|INFINITY)\b|std::numeric_limits<float>::\w+\(\))"
)
#: A variable or element that is set to exp(a - b), the factor of old sums in a running softmax.
_RESCALING = re.compile(
    r"(?<![\w.])([A-Za-z_]\w*(?:\[\w+\])?)\s*=\s*(?:std::)?expf?\s*\([^-;]+-[^-;]+\)\s*[;,]"
)
#: The name of a function that reads an element: `twoDimRead`, `read`.
READER = re.compile(r"\w*(?<![tT]h)[rR]ead")
_EXP = re.compile(r"\b(?:std::)?expf?\s*\(")
#: A call exp(m - new), the factor of an old sum. Groups: the function, both names.
_RESCALES = re.compile(r"\b((?:std::)?expf?)\s*\(\s*(\w+)\s*-\s*(\w+)\s*\)")
#: A variable that is set to a maximum.
_MAXIMUM = re.compile(r"\b([A-Za-z_]\w*)\s*=\s*(?:std::)?f?max\w*\s*\(")
#: The last operand of a text: a name or number, with its index or arguments.
_OPERAND = re.compile(r"(?:[\w.]*(?:\[[^][]*\]|\([^()]*\))|[\w.]+|.)$")
#: The beginning of a line that computes a pointer.
_POINTS = re.compile(r"\*\s*(?:const\s+|__restrict(?:__)?\s+)*\w+\s*=|\.data\(\)|\.begin\(\)")
_CAST = r"\((?:float|double|int|long|size_t|std::size_t)\)\s*"
_SIZED = re.compile(rf"(?:{_CAST})?(?:\d[\w.]*|[A-Z]\w?|d)$|.*\($")
#: The operands, operators and brackets of a value. A call is an operand, but the brackets of exp() and log() can move.
_TOKEN = re.compile(
    rf"(?:std::)?(?:exp|log|sqrt)f?\(|(?:{_CAST})?\d[\w.]*(?:(?<=e)-\d+f?)?|(?:{_CAST})?[\w.:]+"
    r"(?:\[[^][]*(?:\[[^][]*\][^][]*)*\]|\((?:[^()]|\([^()]*\))*\))*|[-+*/()]"
)
#: An index of a matrix in an array. Groups: array, row length.
_ROW_LENGTH = re.compile(r"([A-Za-z_][\w.]*)\[(?:[^][;]*[\w)])\s*\*\s*([A-Za-z_][\w.]*)\s*\+\s*[\w.+\s]+\]")
#: Characters that separate the comparisons in a condition.
_PART = re.compile(r"[;{}&|?]")
_TWO_INDICES = re.compile(r"\[\s*([A-Za-z_]\w*)\s*\]\s*\[\s*([A-Za-z_]\w*)\s*\]")
#: A flat index, such as `i * N + j`, or the end of one. Groups: row, row length, column.
_FLAT_INDEX = re.compile(r"(?<=[\[+])\s*([A-Za-z_]\w*)\s*\*\s*(\w+)\s*\+\s*([A-Za-z_]\w*)\s*(?=\])")
_ADDS_UP = r"\b(?:std::)?(?:accumulate|inner_product|(?:transform_)?reduce)\s*\((?:[^;()]|\([^;()]*\))*?,\s*"
#: A library call that adds up from the whole number 0, or from an element, which is group 1.
_ACCUMULATED = re.compile(rf"{_ADDS_UP}0(?=\s*[,)])")
_BEGUN = re.compile(rf"{_ADDS_UP}([A-Za-z_]\w*(?:\[[^][]*\]|\([^()]*\)))(?=\s*[,)])")
#: A copy of an array's element. Groups: the copy, the element.
_COPIED = re.compile(
    r"(?<![\w.])([A-Za-z_]\w*(?:\[[^][]*\])?)\s*=(?!=)\s*([A-Za-z_]\w*\[[^][]*\])(?=\s*[;,])"
)
#: A number, a variable or an element.
_ATOM = r"[\w.]+(?:\[[^][]*\])?"
#: A variable that is set to a quotient, and a loop that begins at a variable. Groups: variable, divisor; variable.
_GROUPS = re.compile(r"\b(\w+)\s*=\s*\w+\s*/\s*(\w+)\s*;")
_BEGINS_AT = re.compile(r"\bfor\s*\([^;()=]*=\s*([A-Za-z_]\w*)(?=\s*;)")
#: A variable or element that is set to a sum. Groups: it, the two terms.
_SUM_OF_TWO = re.compile(rf"(?<![\w.])({_ATOM})\s*=\s*({_ATOM})\s*\+\s*({_ATOM})\s*;")
#: A variable that is set to a product. Groups: it, the two factors.
_PRODUCT_OF_TWO = re.compile(
    r"\b(?:float|double|auto)\s+(\w+)\s*=\s*([\w.]+(?:\[[^][]*\])*)\s*\*\s*([\w.]+(?:\[[^][]*\])*)\s*;"
)
_QUOTIENT = re.compile(r"\b([A-Za-z_]\w*)\s*/\s*([A-Za-z_]\w*|\d+)(?=\s*(?:-\s*1\s*)?[;:,)])")


def in_calls(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that swap two arguments of a call, or add an offset to an argument that is a pointer."""
    for call in _CALL.finditer(code, begin, end):
        if call[1] in _NO_CALLS:
            continue
        last = closed(code, call.end(), "()", LONGEST_CALL)
        scope, at, bare = in_scope(known, call.start()), call.end(), list[tuple[int, int, str]]()
        for piece in re.finditer(r"(?<=[(,])\s*([A-Za-z_]\w*)\s*(?=[,)])", code[call.end() - 1 : last]):
            start = call.end() - 1 + piece.start(1)
            inner = code[at:start]
            if piece[1] in scope and inner.count("(") == inner.count(")"):
                bare.append((start, start + len(piece[1]), piece[1]))
        line = line_of(code, call.start())
        for k, (a, b, one) in enumerate(bare):
            for c, d, other in bare[k + 1 : k + 4]:
                if scope[one] == scope[other] and one != other:
                    old, new = f"{one}, {other}", f"{other}, {one}"
                    yield 1, Edit(line, old, new, ((a, b, other), (c, d, one)))
            if scope[one].endswith("pointer"):
                for name in [name for name, kind in scope.items() if is_whole(kind)][-4:]:
                    yield 1, Edit(line, one, f"{one} + {name}", ((a, b, f"{one} + {name}"),))


def _named_numbers(code: str) -> set[str]:
    """Return the names of the macros without parameters."""
    return {macro.name for macro in macros(code) if macro.parameters is None and macro.text.strip()}


def of_words(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that replace a variable or a small number."""
    blocks, counters = _block_lengths(code, begin, end, known), set(_COUNTER.findall(code, begin, end))
    factors = set(_FACTOR.findall(code, begin, end))
    defined = _named_numbers(code)
    lengths = defined | set(re.findall(r"\bconst(?:expr)?\b[^;=]{0,80}\b(\w+)\s*=\s*\d+\s*;", code))
    uses = Counter(re.findall(r"\w+", code[begin:end]))
    tiles = dict.fromkeys(re.compile(r"\b(\w+)\s*\+=\s*[A-Za-z_]\w*\s*\)").findall(code, begin, end))
    tiles |= dict.fromkeys(_FIRST.findall(code, begin, end))
    computed = set(re.findall(r"\b(\w+)\s*=[^;=]*/", code[begin:end]))
    ends = set(_BOUND.findall(code, begin, end))
    for word in islice(WORD.finditer(code, begin, end), MOST_WORDS):
        at, old = word.start(), word[0]
        before, after = _before(code, at), code[word.end() : word.end() + 80].lstrip()
        is_head = re.search(rf"\b{old}\s*=[^;]*;$", before) is not None
        set_ = re.search(r"\b([A-Za-z_]\w*)\s*=$", before)
        is_length = set_ is not None and set_[1] in blocks
        if is_head or is_length or not _is_free(code, word):
            continue
        scope = in_scope(known, at)
        kind = scope.get(old, "")
        is_bare = before.endswith(("(", ",")) and after.startswith((",", ")"))
        kinds = {kind, kind.removeprefix("const ")}
        # Do not replace a whole argument by a constant: the argument may be passed by reference.
        kinds |= {f"const {kind}"} if is_whole(kind) and not is_bare else set()
        others = [name for name, of in scope.items() if of in kinds and name != old] if kind else []
        if old in blocks and (least := re.search(r"\bmin\s*\([^;]*$", before)):
            # `min(T, N - i)` with N in place of T would leave a single tile, which hides a mistake.
            others = [name for name in others if name not in WORD.findall(least[0] + _PART.split(after)[0])]
        if code[at - 1] == "[" and code[word.end()] == "]":
            # Only a counter replaces an index: a size would be out of bounds, and an arbitrary value would be read.
            others = [name for name in others if name in counters]
        if kind == "tensor":
            # Only a tensor that the function does not use yet replaces a tensor.
            unused = [name for name in others if uses[name] <= 1]
            others = unused if len(unused) <= MOST_UNUSED else []
        # No variable is put on both sides of a comparison: that would switch off a loop or a condition.
        clause = f"{_PART.split(before)[-1]} {_PART.split(after)[0]}"
        compared = set(WORD.findall(clause)) if re.search(r"[<>]|[=!]=", clause) else set[str]()
        is_bound = re.search(r"[<>]=?\s*$", code[max(0, at - 4) : at]) is not None
        # Other loops with the same counter may have the right bound.
        counter = re.search(r"\bfor\s*\([^()]*;\s*(\w+)\s*<=?$", before) if is_bound else None
        bounds = {bound for name, bound in ends if counter and name == counter[1]}
        favoured = bounds or (factors if before.endswith("*") else ())
        others = _likely([name for name in others if name not in compared], list(scope), old, favoured)
        if old in ("0", "1") and not after.startswith("<"):
            others = ["1" if old == "0" else "0"]
        elif is_bound and is_whole(kind):
            # OpenMP does not allow a loop's counter in the bound of the same loop.
            others = [name for name in others if not re.search(rf"\b{name}\s*[<>]=?$", before)]
            others = [f"{old} - 1", f"{old} + 1", *others]
            if code[at - 2] == "=":
                others += [f"{name} - 1" for name in others if re.fullmatch(r"[A-Z]|d|n", name)]
        line = line_of(code, at)
        if old in counters and not is_bound and not is_bare:
            begins = [name for name in tiles if is_whole(scope.get(name, "")) and name not in clause]
            for k, tile in enumerate(begins[-3:]):
                new = f"({tile} + {old})"
                yield 1.2 + 0.1 * k, Edit(line, old, new, ((*word.span(), new),))
        rank = 1.5 + 2 * (kind == "float" or old.isdigit())
        if is_bare or old in defined or re.match(r"\?|[=!]=", after):
            rank = 0.5
        if old == "1" and before.endswith(("+", "-")):
            rank = 1.4
        head = re.search(r"\w+\s*[-+*/<>=]+\s*$", row_before(code, at)) if old.isdigit() else None
        shown = head[0].lstrip() if head else ""
        for k, new in enumerate(others):
            is_weak = old in lengths and kind.endswith("int")
            # If nothing else uses the new variable, the edit is weak: it may only turn a write into one without effect.
            is_weak |= not is_whole(kind) and kind != "tensor" and uses[new] <= 1
            # A bound that is higher by one can add an empty last tile, which can hide a wrong test for the last tile.
            is_weak |= new == f"{old} + 1"
            # A size in place of a computed number of tiles may only make the loop long enough.
            is_weak |= is_bound and old in computed and re.fullmatch(r"[A-Z]\w?|d|n", new) is not None
            place = (*word.span(), new)
            # With a counter in place of a size, the part may be right by chance on all inputs that are tried.
            is_unlikely = new in counters and re.fullmatch(r"[A-Z]\w*|d", old) is not None
            # With a counter's end in place of the counter, a function may read the next row or behind the array.
            is_unlikely |= (is_bare or after.startswith("]")) and (old, new) in ends
            likely = rank + 0.1 * k + is_unlikely - 0.9 * (new in bounds)
            yield likely, Edit(line, shown + old, shown + new, (place,), is_weak=is_weak)


def _block_lengths(code: str, begin: int, end: int, known: Sequence[Name]) -> set[str]:
    """Return the names of integers that are lengths of blocks: steps of loops, and constants above 1.

    Edits that make a block longer could leave a single block, which hides a mistake that needs several blocks.
    """
    whole, numbers = {each.name for each in known if is_whole(each.kind)}, _named_numbers(code)
    named = NAMED_NUMBER.findall(code, begin, end)
    constants = {name for name, value in named if value.isdigit() or value in numbers}
    return (set(_STEP.findall(code, begin, end)) & whole) | constants


def _likely(others: Sequence[str], declared: Sequence[str], old: str, favoured: Collection[str]) -> list[str]:
    """Return the likeliest replacements of `old`.

    First come names that differ from `old` in case only. Then come those of which one begins with the other, as Bc and
    bcCur, then names in `favoured`, then the rest. In each group, the name declared nearest to `old` comes first, then
    the one declared last, then the second nearest, and so on.
    """
    at = declared.index(old) if old in declared else 0
    nearest = sorted(others, key=lambda name: abs(declared.index(name) - at))
    mixed = [name for pair in zip(nearest, reversed(others), strict=True) for name in pair]
    mixed.sort(key=lambda name: (name.lower() != old.lower(), not _is_akin(name, old), name not in favoured))
    return list(dict.fromkeys(mixed))[:MOST_NAMES]


def _is_akin(one: str, other: str) -> bool:
    """Return True if one of the names begins with the other, in any case, and both have several characters."""
    short, long = sorted((one.lower(), other.lower()), key=len)
    return len(short) > 1 and long.startswith(short)


def _before(code: str, at: int) -> str:
    return code[max(0, at - 80) : at].rstrip()


def _is_free(code: str, word: re.Match[str]) -> bool:
    """Return True if the word can be replaced by another name: it is not declared or set here, nor a member."""
    before = _before(code, word.start())
    if before.endswith((".", "->", "::", "++", "--", "[&", "[=")):
        return False
    if _SET.match(code, word.end()) or _DECLARES.search(before):
        return False
    # A template argument must be a constant.
    if re.search(r"\w<(?:[^<>(){};]*,)?$", before) and _TEMPLATE_END.match(code, word.end()):
        return False
    return not re.compile(r"\s*(?:\(|::)").match(code, word.end())


def members(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that replace a member, as in `tile.begin`, by another one of the same object.

    After `<` or `<=`, members of other objects are tried, too: those that the function compares, adds or assigns.
    """
    member = re.compile(r"(?<=[<=+-])\s*([A-Za-z_]\w*)\.(\w+)\b(?!\s*(?:[\w([.]|<[\w, ]+>|[-+*/]?=))")
    found = list(islice(member.finditer(code, begin, end), MOST_WORDS))
    every = dict.fromkeys(one.groups() for one in found)
    for one in found:
        is_bound, scope = code[: one.start()].endswith(("<", "<=")), in_scope(known, one.start())
        others = [(a, b) for a, b in every if a in scope and (is_bound or a == one[1])]
        others = [each for each in others if each != one.groups()]
        for k, (name, of) in enumerate(others[: MOST_NAMES if is_bound else MOST_UNUSED]):
            places = wrapped((one.start(1), one.end()), f"(@ ? {name}.{of} : ")
            yield ranked_edit(code, 1.0 + 0.1 * k, one.start(1), f"{one[1]}.{one[2]}", f"{name}.{of}", places)


def exchanged_indices(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that exchange an element's two indices."""
    for pair in _TWO_INDICES.finditer(code, begin, end):
        if pair[1] != pair[2]:
            places = ((*pair.span(1), pair[2]), (*pair.span(2), pair[1]))
            yield 1, Edit(line_of(code, pair.start()), pair[0], f"[{pair[2]}][{pair[1]}]", places)
    for flat in _FLAT_INDEX.finditer(code, begin, end):
        index = f"{flat[3]} * {flat[2]} + {flat[1]}"
        if flat[1] != flat[3]:
            ends = wrapped((flat.start(1), flat.end(3)), f"(@ ? {index} : ")
            yield ranked_edit(code, 1, flat.start(1), flat[0].strip(), index, ends)


def extremes(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that exchange min and max."""
    for one in EXTREME.finditer(code, begin, end):
        new = one[0].replace("min", "max") if "min" in one[0] else one[0].replace("max", "min")
        yield ranked_edit(code, 0, one.start(), one[0], new)


def integer_sums(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add up floats from 0.0f or 0.0 in place of 0, or from 0.0f in place of an element."""
    for one, zero in product(_ACCUMULATED.finditer(code, begin, end), ("0.0f", "0.0")):
        first, last = one.end() - 1, closed(code, code.find("(", one.start()) + 1, "()")
        new = f"{code[one.start() : first]}{zero}{code[first + 1 : last]}"
        cast = wrapped((one.start(), last), f"(@ ? {new} : ")
        words = f"with {zero} as the first value: from 0 each partial sum is cut to a whole number"
        rank, edit = ranked_edit(code, -1, first, "0", zero, cast, words)
        yield rank, replace(edit, is_sure=True)
    for one in _BEGUN.finditer(code, begin, end):
        cleared = wrapped(one.span(1), "(@ ? 0.0f : ")
        words = f"with 0.0f in place of {one[1]}, the first value of this sum"
        yield ranked_edit(code, 0.5, one.start(1), one[1], "0.0f", cleared, words)


def byte_counts(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that multiply a number of bytes by sizeof(float): `memset(a, 0, d)` sets a quarter of d floats."""
    for call in re.compile(r"\bmem(?:set|cpy|move)\s*\(").finditer(code, begin, end):
        last = closed(code, call.end(), "()") - 1
        size = apart(code[call.end() : last])[-1].strip()
        if "sizeof" not in size:
            sized = wrapped((last - len(size), last), "(", ") * (@ ? sizeof(float) : 1)")
            rank, edit = ranked_edit(code, -1, last - len(size), size, f"{size} * sizeof(float)", sized)
            yield rank, replace(edit, is_sure=True)


def uncleared(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that give a new tensor zeros in place of no values."""
    for call in re.compile(r"\b((?:at|torch)::)empty(_like)?\s*\(").finditer(code, begin, end):
        ended, old, new = (
            closed(code, call.end(), "()"),
            call[0].rstrip("( "),
            f"{call[1]}zeros{call[2] or ''}",
        )
        places = wrapped((call.start(), ended), f"(@ ? {new}({code[call.end() : ended]} : ")
        yield ranked_edit(code, 0.6, call.start(), old, new, places)


def filled(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that fill another vector."""
    pair = re.compile(r"\bfill\(\s*([A-Za-z_]\w*)\.begin\(\)\s*,\s*(\1)\.end\(\)")
    for call in pair.finditer(code, begin, end):
        scope = in_scope(known, call.start())
        for name in [name for name, kind in scope.items() if kind == scope.get(call[1]) and name != call[1]]:
            places, words = [(*call.span(k), name) for k in (1, 2)], f"{name} in place of {call[1]}"
            yield ranked_edit(code, 0.7, call.start(1), call[1], name, places, words)


def quotients(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that round a quotient up, or begin a loop at the multiple below instead of at the quotient."""
    rounded = list[Edit]()
    for part in _QUOTIENT.finditer(code, begin, end):
        scope = in_scope(known, part.start())
        if is_whole(scope.get(part[1], "")) and is_whole(scope.get(part[2], "int")):
            up = f" + (@ && {part[1]} % {part[2]} != 0)"
            new = f"({part[1]} + {part[2]} - 1) / {part[2]}"
            rounded.append(Edit(line_of(code, part.start()), part[0], new, ((part.end(), part.end(), up),)))
            if _IN_HEAD.search(row_before(code, part.start())):
                place = insertion(part.end(), f" * (@ ? {part[2]} : 1)")
                yield ranked_edit(code, 0.6, part.start(), part[0], f"{part[0]} * {part[2]}", [place])
    yield from ((0, edit) for edit in rounded)
    # A loop over the rest may begin at a number of groups in place of their end.
    groups = {one[1]: one[2] for one in _GROUPS.finditer(code, begin, end)}
    for one in _BEGINS_AT.finditer(code, begin, end):
        if by := groups.get(one[1]):
            new, place = f"{one[1]} * {by}", insertion(one.end(1), f" * (@ ? {by} : 1)")
            yield ranked_edit(code, 0.6, one.start(1), one[1], new, [place])
    if 1 < len(rounded) <= MOST_ALIKE:
        words = f"rounded up, like each quotient in lines {' and '.join(str(edit.line) for edit in rounded)}"
        together = tuple(place for edit in rounded for place in edit.places)
        yield 0.1, replace(rounded[0], places=together, words=words)


def terms(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add a term, such as `- pad` or `+ i0`, to an index or to the first value of an integer."""
    blocks, found = _block_lengths(code, begin, end, known), _ALIAS.finditer(code, begin, end)
    aliases = [one for one in found if not _IN_HEAD.search(row_before(code, one.start()))]
    for last in islice(_SUM.finditer(code, begin, end), MOST_WORDS):
        declared = re.match(r"\w+\s+([A-Za-z_]\w*)\s*=", last[0])
        if declared is not None and declared[1] in blocks:
            continue
        at, used, tiles = last.end(), set(WORD.findall(last[0])), set[str]()
        # For a counter's first value, leave out names in the loop's end: a loop that begins at its end does nothing.
        if re.search(r"\bfor\s*\($", row_before(code, last.start())):
            rest = code[at : at + 200].split(";")[1] if ";" in code[at : at + 2] else ""
            ends = set(WORD.findall(rest))
            # A loop to the end of a tile, such as `min(k0 + T, N)`, probably begins at the first index of the tile.
            bounds = [one[2] for one in TILE_END.finditer(code, begin, end) if one[1] in ends]
            tiles = {name for name in _FIRST_OF_TILE.findall(" ".join([*bounds, rest])) if name not in used}
            used |= ends - tiles
        # Leave out names of the same value: after `T = TILE_SIZE`, an edit to `T - TILE_SIZE` would give 0.
        used |= {one[2] for one in aliases if one[1] in used}
        kinds = in_scope(known, at).items()
        whole = [name for name, kind in kinds if kind.endswith("int") and name not in used]
        # Try variables of the same line first.
        row = set(WORD.findall(row_before(code, at)))
        names = [name for name in whole if name in tiles]
        names += [name for name in whole if name in row and name not in names]
        names += [name for name in reversed(whole) if name not in names]
        old = last[0].lstrip("[, ").rpartition("=")[2].strip()
        for k, name in enumerate(names[:MOST_TERMS]):
            for sign in "+-":
                places = [insertion(at, f" {sign} (@ ? {name} : 0)")]
                rank = 0.6 if name in tiles and sign == "+" else 1.2 + ("[" in last[0]) + 0.2 * k
                new = f"{old} {sign} {name}".removeprefix("0 + ")
                yield ranked_edit(code, rank, at - 1, old, new, places)


def sizes(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add a factor to a term of an offset, as in `bh * N * d` in place of `bh * d`."""
    often = [name for name, _ in Counter(_FACTOR.findall(code, begin, end)).most_common()]
    blocks = _block_lengths(code, begin, end, known)
    for term in islice(_PRODUCT.finditer(code, begin, end), MOST_WORDS):
        set_ = re.search(r"(\w+)\s*=\s*$", row_before(code, term.start(1)))
        if set_ is not None and set_[1] in blocks:
            continue
        at, names, scope = term.end(), WORD.findall(term[1]), in_scope(known, term.start(1))
        before, is_bare = row_before(code, at), code[term.start(1) - 1] == "(" and code[at] in ",)"
        if is_bare or re.search(r"\bfor\s*\([^()]*$", before):
            continue
        if all(is_whole(scope.get(name, "")) for name in names):
            sized = [name for name in scope if len(names) > 2 and re.fullmatch(r"[A-Z]", name)]
            others = [name for name in dict.fromkeys([*often, *sized]) if name not in names]
            others = [name for name in others if is_whole(scope.get(name, ""))]
            # In `b * N + h`, the size of the later counter h is likely to be the missing factor: `b * H * N + h`.
            later = WORD.findall(re.split(r"[;\]]", code[at : at + 80])[0])
            for k, name in enumerate(others[:MOST_UNUSED]):
                place = insertion(at, f" * (int)(@ ? {name} : 1)")
                rank = 1.3 + 0.2 * k - (name != name.lower() and name.lower() in later)
                yield ranked_edit(code, rank, at, term[1], f"{term[1]} * {name}", [place])


def row_lengths(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that give an index of an array the row length that other indices of the array have."""
    found = [one for one in _ROW_LENGTH.finditer(code) if not one[2].isdigit()]
    lengths = dict[str, dict[str, None]]()
    for one in found:
        lengths.setdefault(one[1], {})[one[2]] = None
    for one in found:
        scope = in_scope(known, one.start()) if begin <= one.start() < end else {}
        for new in list(lengths[one[1]])[:MOST_UNUSED]:
            if new != one[2] and new.partition(".")[0] in scope:
                places = wrapped(one.span(2), f"(@ ? {new} : ")
                yield ranked_edit(code, 0.9, one.start(2), one[2], new, places)


def in_macros(code: str, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that replace a parameter or a size in a macro's text. A size has a capital letter or `d` as name."""
    whole = [each.name for each in known if each.kind.endswith("int")]
    sizes = dict.fromkeys(name for name in whole if re.fullmatch(r"[A-Z]|d", name))
    for macro in function_macros(code):
        arrays = re.findall(r"(\w+)\s*\)?\s*[\[.]", macro.text)
        parameters = [name for name in macro.parameters or () if name not in arrays]
        if re.search(r"[;{?]", macro.text):
            continue
        for word in WORD.finditer(code, macro.begin, macro.end):
            for new in (*parameters, *sizes):
                is_apart = word[0] in sizes or code[word.start() - 1 : word.end() + 1] == f"({word[0]})"
                if (word[0] in parameters or word[0] in sizes) and is_apart and new != word[0]:
                    yield ranked_edit(code, 2, word.start(), word[0], new)


def signs(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that exchange the signs + and -, or negate a difference: `exp(old - new)` for `exp(new - old)`."""
    exponents = [(call.start(), closed(code, call.end(), "()")) for call in _EXP.finditer(code, begin, end)]
    for sign in re.compile(r"(?<=[\w\])]) ?([-+]) ?(?=[\w(])").finditer(code, begin, end):
        row = row_before(code, sign.start()).lstrip()
        # Do not try `exp(score + maximum)`: it can hide a wrong maximum.
        hides = sign[1] == "-" and any(first < sign.start() < last for first, last in exponents)
        if not hides and not _POINTS.search(row) and not re.search(r"\d[eE]$", row):
            old, other = f"{_OPERAND.findall(row)[0]} {sign[1]}", "-" if sign[1] == "+" else "+"
            place = (sign.start(), sign.end(), f" {sign[1]} (@ ? -1 : 1) * ")
            yield ranked_edit(code, 1.8, sign.start(), old, f"{old[:-1]}{other}", [place])
    value = r"\s*((?:\((?:float|double)\)\s*)?[\w.]+(?:\[[^][]*\])?)\s*"
    for call in re.compile(rf"{_EXP.pattern}{value}-{value}(?=\))").finditer(code, begin, end):
        places = wrapped((call.start(1), call.end()), "(@ ? -1.0f : 1.0f) * (")
        old, new = f"{call[1]} - {call[2]}", f"{call[2]} - {call[1]}"
        yield ranked_edit(code, 1.2, call.start(1), old, new, places)


def scaled_sums(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that multiply a whole sum by the factor of its last term: `(b * H + h) * N` for `b * H + h * N`."""
    tails = re.compile(r"(?<=[\w)\]])(?=\s*\+\s*\w+((?:\s*\*\s*\w+)+)\b(?!\s*[\[(.]))")
    for tail in tails.finditer(code, begin, end):
        at, factor = tail.start(), tail[1].strip()
        before = row_before(code, at)
        name = re.findall(r"[A-Za-z_]?\w*$", before)[0]
        is_number = not name or name.isdigit() or is_whole(in_scope(known, at).get(name, ""))
        if is_number and not re.search(rf"{_POINTS.pattern}|&\s*[\w.]+\[[^][]*\]$", before):
            words = f"with brackets around the sum before {factor}"
            yield ranked_edit(code, 0.9, at, "", factor, [insertion(at, f" * (@ ? {factor[1:]} : 1)")], words)


def distributed(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that multiply one term of a sum in place of both: `a * c - b` for `(a - b) * c`."""
    for one in re.compile(rf"\(({_ATOM}) ?([-+]) ?({_ATOM})\) ?\* ?([\w.:]+)(\(|\[)?").finditer(
        code, begin, end
    ):
        last = closed(code, one.end(), "()" if one[5] == "(" else "[]") if one[5] else one.end()
        by, span = code[one.start(4) : last], (one.start(), last)
        if not re.compile(r"\s*[\[(.]").match(code, last):
            for new in (f"{one[1]} * {by} {one[2]} {one[3]}", f"{one[1]} {one[2]} {one[3]} * {by}"):
                yield ranked_edit(
                    code, 0.9, span[0], code[slice(*span)], new, wrapped(span, f"(@ ? {new} : ")
                )


def remainders(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that take a quotient modulo a number, as in `kh = r / K % K` beside `kw = r % K`."""
    for part in _QUOTIENT.finditer(code, begin, end):
        row = code[code.rfind("\n", 0, part.start()) + 1 : (code.find("\n", part.end()) + 1 or end)]
        for by in dict.fromkeys(re.findall(r"%\s*([A-Za-z_]\w*)", row)):
            scope = in_scope(known, part.start())
            if is_whole(scope.get(part[1], "")) and is_whole(scope.get(by, "")):
                new, place = f"{part[0]} % {by}", insertion(part.end(), f" % (@ ? {by} : 0x7fffffff)")
                yield ranked_edit(code, 0.5, part.start(), part[0], new, [place])


def removed_factors(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that remove a factor or a divisor."""
    for factor in re.compile(r"\s*([*/])\s*([A-Za-z_]\w*)\b(?!\s*[\[(.])").finditer(code, begin, end):
        kind = in_scope(known, factor.start(2)).get(factor[2], "")
        if kind.endswith(("int", "float")):
            place = (*factor.span(2), "1.0f" if kind.endswith("float") else "1")
            yield ranked_edit(code, 1.7, factor.start(2), factor[0].strip(), "", [place])
    of_floats, values = ("vector", "pointer", "array", "tensor"), r"[A-Za-z_]\w*(?:\[[^][]+\]|\([^()]+\))"
    for factor in re.compile(rf"\s*([*/])\s*({values})(?=\s*[-+;,)])").finditer(code, begin, end):
        name = re.findall(r"\w+", factor[2])[0]
        kind = in_scope(known, factor.start(2)).get(name, "float vector" if READER.match(name) else "")
        if kind.endswith(of_floats) and not kind.startswith("int"):
            places = wrapped(factor.span(2), "(@ ? 1.0f : ")
            yield ranked_edit(code, 1.7, factor.start(2), factor[0].strip(), "", places)
    for lead in re.compile(r"(?<=[=(+])\s*([A-Za-z_]\w*\[[^][]+\])\s*\*(?!=)").finditer(code, begin, end):
        places = wrapped(lead.span(1), "(@ ? 1.0f : ")
        yield ranked_edit(code, 1.2, lead.start(1), f"{lead[1]} *", "", places)


def removed_terms(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that remove a superfluous term: a small number, as in `/ (sum + 1e-6f)`, or a name."""
    exponents = [(call.start(), closed(code, call.end(), "()")) for call in _EXP.finditer(code, begin, end)]
    added = rf"(?<=[\w\])])\s*([-+])\s*({FLOAT}|[A-Za-z_]\w*(?:\.\w+)?)(?!\s*(?:[\w(*/%[.]|::|<\w))"
    for extra in re.compile(added).finditer(code, begin, end):
        if not any(first < extra.start() < last for first, last in exponents):
            # Without the term, a condition that guards an access may always be true: such an edit is less likely.
            is_guard = re.compile(r"\s*<").match(code, extra.end()) is not None
            likely = (1.6 if extra[2][0].isalpha() else 0.9) + is_guard
            places = wrapped(extra.span(2), "(@ ? 0 : ")
            yield ranked_edit(code, likely, extra.start(2), extra[0].strip(), "", places)


def divisors(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that divide 1 by the value of a variable, or divide by another number than a sum in brackets."""
    for copy in re.compile(r"\bfloat\s+\w+\s*=\s*([A-Za-z_]\w*)(?=\s*;)").finditer(code, begin, end):
        yield ranked_edit(code, 1.9, copy.start(1), copy[1], f"1.0f / {copy[1]}")
    sums = re.compile(r"/\s*(\(\s*[\w.]+(?:\[[^][]*\])?\s*\+\s*[\w.]+(?:\[[^][]*\])?\s*\))")
    for sum_ in sums.finditer(code, begin, end):
        kinds = in_scope(known, sum_.start()).items()
        for name in [name for name, kind in kinds if kind.endswith(("float", "double"))][:6]:
            places = wrapped(sum_.span(1), f"(@ ? {name} : ")
            yield ranked_edit(code, 1.5, sum_.start(1), sum_[1], name, places)


def scaled_indices(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that multiply an index by a factor of other indices, such as the stride, but not a loop's end.

    In a sum, the other index gets the factor: `oh * stride + kh` in place of `oh + kh * stride`.
    """
    bounds = set(re.findall(r"<=?\s*([A-Za-z_]\w*)\s*[;&]", code[begin:end]))
    scaled = dict.fromkeys(re.findall(r"[\w)]\s*\*\s*([A-Za-z_]\w*)\b(?!\s*[\[(.])", code[begin:end]))
    for index in re.compile(r"(?<=\w)\[\s*([A-Za-z_]\w*)\s*\]").finditer(code, begin, end) if scaled else ():
        scope = in_scope(known, index.start())
        for factor in [one for one in scaled if one not in bounds and is_whole(scope.get(one, ""))][:4]:
            place = insertion(index.end(1), f" * (@ ? {factor} : 1)")
            yield ranked_edit(code, 1.9, index.start(1), index[1], f"{index[1]} * {factor}", [place])
    # A parameter that the function never reads may be the missing factor.
    uses = Counter(re.findall(r"\w+", code[begin:end]))
    scaled |= {
        one.name: None
        for one in known
        if begin < one.begin < end and is_whole(one.kind) and uses[one.name] == 1
    }
    declared = list(re.compile(r"\bint\s+\w+\s*=\s*([A-Za-z_]\w*)(?=\s*[-+])").finditer(code, begin, end))
    for index, after in zip_longest(declared, declared[1:]):
        scope = in_scope(known, index.start())
        # The last ones are parameters that nothing else reads: prefer them.
        whole = [one for one in scaled if one not in (*bounds, index[1]) and is_whole(scope.get(one, ""))]
        for factor in whole[: -MOST_UNUSED - 3 : -1]:
            place, new = insertion(index.end(1), f" * (@ ? {factor} : 1)"), f"{index[1]} * {factor}"
            yield ranked_edit(code, 1.3, index.start(1), index[1], new, [place])
            # Rows and columns of an image may lack the same factor, in lines one after the other.
            if after and code.count("\n", index.end(), after.start()) == 1:
                places = [place, insertion(after.end(1), f" * (@ ? {factor} : 1)")]
                words = f"{new} in place of {index[1]}, and {after[1]} * {factor} in line {line_of(code, after.end())}"
                yield ranked_edit(code, 1.3, index.start(1), index[1], new, places, words)
    # In `[offset + i * N + j]`, leave the first two terms together with the third.
    first_terms = r"(?<![\w.*/])(?<![-*/]\s)([A-Za-z_]\w*)\s*\+\s*([A-Za-z_]\w*)\s*\*\s*([A-Za-z_]\w*)\b"
    sums = re.compile(rf"{first_terms}(?!\s*[*/]|\s*\+\s*\w+\s*\])")
    for index in sums.finditer(code, begin, end):
        scope = in_scope(known, index.start())
        if all(is_whole(scope.get(name, "")) for name in index.groups()):
            new = f"{index[1]} * {index[3]} + {index[2]}"
            yield ranked_edit(
                code, 1.2, index.start(), index[0], new, wrapped(index.span(), f"(@ ? {new} : ")
            )


def stored_exps(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that store an exponential that is only added up: `sum += x[j] = exp(x[j])`."""
    added = re.compile(rf"\+=\s*({_EXP.pattern}\s*(\w+\[[^][]*\])\s*\))(?=\s*;)")
    for lone in added.finditer(code, begin, end):
        place = insertion(lone.start(1), f"(@ ? {lone[2]} : gpt149_kept) = ")
        yield ranked_edit(code, 1.4, lone.start(1), lone[1], f"{lone[2]} = {lone[1]}", [place])


def missing_exps(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that take the exponential of a value of which other lines take it: `exp(x[j]) / sum`."""
    calls = [
        (call.start(), call.end(), closed(code, call.end(), "()")) for call in _EXP.finditer(code, begin, end)
    ]
    texts = {code[at : last - 1].strip(): code[first:at] for first, at, last in calls}
    for text, call in list(texts.items())[:MOST_UNUSED]:
        for use in re.compile(rf"(?<![\w.&])(?<!\* ){re.escape(text)}(?!\s*[-+*/]?=(?!=)|\w)").finditer(
            code, begin, end
        ):
            if re.search(r"[\[(]", text) and not any(at <= use.start() < last for _, at, last in calls):
                new = f"{call}{text})"
                yield ranked_edit(code, 0.9, use.start(), text, new, wrapped(use.span(), f"(@ ? {new} : "))


def kept_copies(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that read the copy of an element after the element itself is set again: `Li[r]` for `L[i + r]`."""
    for copy in islice(_COPIED.finditer(code, begin, end), MOST_WORDS):
        element = re.escape(copy[2])
        again = re.compile(rf"(?<![\w.]){element}\s*[-+*/]?=(?!=)").search(code, copy.end(), end)
        if again is None:
            continue
        uses = re.compile(rf"(?<![\w.]){element}(?!\s*[-+*/]?=(?!=)|\s*[\[(.\w])")
        for use in islice(uses.finditer(code, again.end(), end), MOST_ALIKE):
            names = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", copy[1]))
            if names <= in_scope(known, use.start()).keys():
                places = wrapped(use.span(), f"(@ ? {copy[1]} : ")
                rank, edit = ranked_edit(code, 0.6, use.start(), copy[2], copy[1], places)
                yield rank, replace(edit, declared=line_of(code, again.start()), note="sets it before that")


@dataclass(frozen=True)
class _Value:
    """A value that a statement sets, returns or writes, from `begin` to `last` - 1, where a `;`, `,` or `)` ends it."""

    first: int  # begin of the statement
    begin: int
    last: int
    kept: list[tuple[int, int, str]]  # insertions around an argument that may be passed by reference
    atoms: list[str]  # variables and elements that an edit may use


def of_values(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits of values that are set or returned: brackets, a factor, a divisor, a term, or no call of exp()."""
    summed = {one[1] for one in _SUMMED.finditer(code, begin, end)}
    rescaling = set(_RESCALING.findall(code, begin, end))
    sums = {one[1]: {one[2], one[3]} for one in _SUM_OF_TWO.finditer(code, begin, end)}
    maxima = list(dict.fromkeys(_MAXIMUM.findall(code, begin, end)))
    for value in _values(code, begin, end, known):
        yield from _other_brackets(code, value)
        yield from _added_operands(code, value, rescaling | _halves(code, value, sums))
        yield from _rescaled_sums(code, value)
        yield from _rescaled_terms(code, value, maxima)
        yield from _rescaled_quotients(code, value, sums)
        yield from _without_exp(code, value)
        yield from _divided(code, value, summed)


def _values(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[_Value]:
    """Yield the values of floats that the statements of a function set, return or write."""
    # Floats that an edit may use: variables, and elements of arrays. The names in them must be in scope.
    of_floats = ("float", "double", "vector", "pointer", "array")
    names = {each.name: each for each in known if each.kind.endswith(of_floats)}
    elements = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(\[[^\[\]]+\])?(?![\w\[(])").finditer(code, begin, end)
    atoms = dict[str, list[int]]()
    for one in elements:
        if one[1] in names and (one[2] is None) == names[one[1]].kind.endswith(("float", "double")):
            atoms.setdefault(one[0], []).append(one.start())
    for first, at, last in _value_spans(code, begin, end, known, names):
        scope = in_scope(known, first)
        # An argument that may be passed by reference must be a variable: the edited value is stored in gpt149_kept.
        is_passed = code[last - 1] == ")" and re.fullmatch(r"\s*\w+\s*", code[at : last - 1]) is not None
        kept = wrapped((at, last - 1), "(gpt149_kept = ") if is_passed else []
        used = code[at:last]
        fitting = [atom for atom in atoms if not re.search(rf"(?<![\w.]){re.escape(atom)}(?!\w)", used)]
        numbers = {name for name, kind in scope.items() if not kind.endswith(("object", "objects"))}
        fitting = [atom for atom in fitting if set(re.findall(r"[A-Za-z_]\w*", atom)) <= numbers]
        # The same name may be an array in one scope and a number in another: keep what fits the scope here.
        floats = {name for name, kind in scope.items() if kind.endswith(("float", "double"))}
        fitting = [atom for atom in fitting if ("[" in atom) != (WORD.findall(atom)[0] in floats)]
        # Floats come first, then elements; of each, those that are used nearest to this value.
        fitting.sort(key=lambda atom: ("[" in atom, min(abs(use - first) for use in atoms[atom])))
        yield _Value(first, at, last, kept, fitting)


def _value_spans(
    code: str, begin: int, end: int, known: Sequence[Name], names: Collection[str]
) -> Iterator[tuple[int, int, int]]:
    """Yield statements that set, return or write a number: begin, begin of the value, and end."""
    for one in simple_statements(code, begin, end):
        at = one.begin
        for piece in apart(one.text):
            set_ = re.match(r"\s*(?:(?:const\s+)?(?:float|auto)\s+)?(\w+)([^=<>]*)=(?!=)", piece)
            ended = at + len(piece) + 1
            # Edit a value that a number or an element gets, but not an address that a pointer gets.
            is_pointer = in_scope(known, at).get(set_[1], "").endswith("pointer") if set_ else False
            if set_ and (set_[1] in names or set_[2].startswith("(")) and ("[" in set_[2] or not is_pointer):
                yield one.begin, at + set_.end(), ended
            at = ended
    for back in re.compile(r"\breturn\s+(\(*([A-Za-z_]\w*)[^;{}?]*;)").finditer(code, begin, end):
        if in_scope(known, back.start()).get(back[2], "").endswith(("float", "double")):
            yield back.start(), back.start(1), back.end()
    for call in re.compile(r"\b\w*[wW]rite\w*(?=\()").finditer(code, begin, end):
        last = closed(code, call.end() + 1, "()")
        yield call.start(), last - 1 - len(apart(code[call.end() + 1 : last - 1])[-1]), last


def _other_brackets(code: str, value: _Value) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add, move or remove a pair of brackets."""
    span, text = (value.begin, value.last - 1), code[value.begin : value.last - 1].strip()
    for k, new in enumerate(islice(_rebracketed(text), MOST_BRACKETED)):
        places, words = wrapped(span, f"(@ ? {new} : "), f"with the brackets of `{new}`"
        places = [*value.kept[:1], *places, *value.kept[1:]]
        yield ranked_edit(code, 0.8 + 0.04 * k, value.begin, text, new, places, words)


def _added_operands(code: str, value: _Value, rescaling: Collection[str]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add a factor, a divisor or a term. `rescaling` holds the factors of a running softmax."""
    begin, last = value.begin, value.last
    exps = _EXP.finditer(code, begin, last)
    ends = list(_terms_of(code, begin, last - 1))
    places_of = [*((at, "*/") for at in ends), (ends[-1], "+")]
    # The factor of a running softmax may also be missing in a sum in brackets.
    opened = [begin + one.end() for one in re.finditer(r"(?<![\w\])])\(", code[begin:last])]
    sums = [list(_terms_of(code, one, closed(code, one, "()") - 1)) for one in opened]
    places_of += [(at, "*") for each in sums if len(each) > 1 for at in each]
    for at, operators in (*places_of, *((closed(code, each.end(), "()") - 1, "-") for each in exps)):
        old = code[begin:at].strip()
        old = old if len(old) <= LONGEST_SHOWN else _OPERAND.findall(old)[0]
        old = old.lstrip("( ") if old.count("(") > old.count(")") else old
        nearest = value.atoms[:MOST_NEAREST]
        atoms = [
            atom for atom in value.atoms[:MOST_ATOMS] if operators != "*" or atom in (*rescaling, *nearest)
        ]
        for k, (atom, by) in enumerate(product(atoms, operators)):
            neutral, rank = (
                ("0.0f", 1.3) if by in "+-" else ("1.0f", 1.6 if by == "*" and atom in nearest else 2.2)
            )
            rank -= 1.3 * (by == "*" and atom in rescaling)
            places = [*value.kept[:1], insertion(at, f" {by} (@ ? {atom} : {neutral})"), *value.kept[1:]]
            yield ranked_edit(code, rank + 0.05 * k, at, old, f"{old} {by} {atom}", places)
    # In a running softmax, the term of a new maximum is exp(0) = 1.
    if re.match(r"\w+\s*=", code[value.first : begin]) and "(" in code[begin:last]:
        old = code[begin : ends[-1]].strip()
        place = insertion(ends[-1], " + (@ ? 1.0f : 0.0f)")
        yield ranked_edit(
            code, 1.3, ends[-1], old, f"{old} + 1.0f", [*value.kept[:1], place, *value.kept[1:]]
        )


def _halves(code: str, value: _Value, sums: Mapping[str, set[str]]) -> set[str]:
    """Return the terms of the sum that divides a value: in `(a + b) / s` after `s = l + k`, l may be a factor of a.

    `sums`: {variable or element: its two terms}.
    """
    divisors = re.findall(rf"/\s*({_ATOM})", code[value.begin : value.last])
    return set[str]().union(*(sums.get(each, set()) for each in divisors))


def _rescaled_quotients(
    code: str, value: _Value, sums: Mapping[str, set[str]]
) -> Iterator[tuple[float, Edit]]:
    """Yield edits that rescale the other term of a sum with a quotient: `o * l / s + k / s` in place of `o + k / s`.

    `sums`: {variable or element: its two terms}, as s above.
    """
    ends = list(_terms_of(code, value.begin, value.last - 1))
    spans = list(zip([value.begin, *ends], ends, strict=False))
    for divided in [one for one in spans if "/" in code[slice(*one)]]:
        divisor = re.split(r"/\s*", code[slice(*divided)])[-1].strip()
        for begin, end in [one for one in spans if "/" not in code[slice(*one)]]:
            term = code[begin:end].strip("+- \n")
            for factor in sorted(sums.get(divisor, ())):
                place = insertion(end, f" * (@ ? {factor} / {divisor} : 1.0f)")
                yield ranked_edit(code, 0.5, end, term, f"{term} * {factor} / {divisor}", [place])


def _rescaled_sums(code: str, value: _Value) -> Iterator[tuple[float, Edit]]:
    """Yield edits that multiply an old sum by a factor: a running softmax does it before it adds a term."""
    target = re.match(r"([\w.]+(?:\[[^][]*\])?)\s*\+=", code[value.first : value.begin])
    if target is None:
        return
    for k, atom in enumerate([atom for atom in value.atoms if "[" not in atom][:MOST_ATOMS]):
        place = insertion(value.first, f"(@) ? (void)({target[1]} *= {atom}) : (void)0, ")
        words = f"with {target[1]} * {atom} in place of the old {target[1]}"
        yield ranked_edit(code, 1.05 + 0.1 * k, value.first, atom, "", [place], words)


def _rescaled_terms(code: str, value: _Value, maxima: Sequence[str]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that rescale a term of a sum to a new maximum, if another term has a factor `exp(old - new)`."""
    text = code[value.begin : value.last - 1]
    factors = list(_RESCALES.finditer(text))
    ends = list(_terms_of(code, value.begin, value.last - 1))
    if len(ends) < 2 or not factors:
        return
    exp, old, new = factors[0].groups()
    for begin, end in zip([value.begin, *ends], ends, strict=False):
        if any(begin <= value.begin + one.start() < end for one in factors):
            continue
        term = code[begin:end].strip("+- \n")
        for k, maximum in enumerate([name for name in maxima if name not in (old, new)][:MOST_ATOMS]):
            factor = f"{exp}({maximum} - {new})"
            place = insertion(end, f" * (@ ? {factor} : 1)")
            places = [*value.kept[:1], place, *value.kept[1:]]
            yield ranked_edit(code, 0.4 + 0.1 * k, end, term, f"{term} * {factor}", places)


def _without_exp(code: str, value: _Value) -> Iterator[tuple[float, Edit]]:
    """Yield edits that leave out a call of exp()."""
    for call in _EXP.finditer(code, value.begin, value.last):
        ended = closed(code, call.end(), "()")
        places = wrapped((call.start(), ended), f"(@ ? ({code[call.end() : ended]} : ")
        yield ranked_edit(code, 0.9, call.start(), call[0], "", places, f"without {call[0].rstrip('( ')}()")


def _divided(code: str, value: _Value, summed: Collection[str]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that divide by one of the sums in `summed`, as the last step of a softmax does."""
    span, text = (value.begin, value.last - 1), code[value.begin : value.last - 1].strip()
    divisors = [atom for atom in value.atoms if WORD.findall(atom)[0] in summed]
    for k, atom in enumerate(divisors[-MOST_ATOMS:]):
        shown = text if re.fullmatch(r"[\w.]+(?:\[[^][]*\])?", text) else f"({text})"
        divided = wrapped(span, " (", f") / (@ ? {atom} : 1.0f)")
        places = [*value.kept[:1], *divided, *value.kept[1:]]
        yield ranked_edit(code, 1.0 + 0.05 * k, value.begin, text, f"{shown} / {atom}", places)


def _rebracketed(text: str) -> Iterator[str]:
    """Yield a value with one pair of brackets removed, moved or added, the smallest change first."""
    tokens, opened = _TOKEN.findall(text), list[int]()
    pairs, found = list[tuple[int, int]](), list[tuple[int, str]]()
    # Leave out long values, and those with other characters, with `*p`, or with a cast of a value in brackets.
    is_other = "".join(text.split()) != "".join("".join(tokens).split())
    if is_other or len(tokens) > MOST_TOKENS or re.search(rf"(?:^|[-+*/(])\s*\*|{_CAST}\(", text):
        tokens = []
    for k, token in enumerate(tokens):
        if token.endswith("("):
            opened.append(k)
        elif token == ")" and opened:
            pairs.append((opened.pop(), k))
    for first, last in pairs or [(-1, len(tokens))]:
        rest = [token for k, token in enumerate(tokens) if k not in (first, last)]
        lead = tokens[first] if pairs else "("
        found += [(0, " ".join(rest))] if pairs and lead == "(" else []
        for a in range(len(rest) - 1) if lead == "(" else (first,):
            for b in range(a + 1, len(rest) + 1):
                # Do not move a size or number out of exp(): there, it may cancel out later, which would hide a mistake.
                cancels = lead != "(" and b < last - 1 and _SIZED.match("".join(rest[b + 1 : b + 2]))
                if (a, b) != (first, last - 1) and not cancels and _is_needed(rest, a, b, lead):
                    new = " ".join([*rest[:a], lead, *rest[a:b], ")", *rest[b:]])
                    found.append((abs(a - first) + abs(b - last + 1), new))
    # A divisor of one term that should divide the whole sum.
    for begin, end in pairwise([0, *_terms_of(text, 0, len(text))]):
        divisor = re.search(r"\s*/\s*[\w.]+(?:\[[^][]*\])?$", text[begin:end])
        if divisor and end - begin < len(text):
            found.append((1, f"({text[: begin + divisor.start()]}{text[end:]}){divisor[0]}"))
    yield from dict.fromkeys(re.sub(r"(?<=\() | (?=\))", "", new) for _, new in sorted(found))


def _is_needed(tokens: Sequence[str], a: int, b: int, lead: str) -> bool:
    """Return True if brackets around the tokens from `a` to `b` - 1 are valid and change the value.

    `lead` is the opening bracket, with a function's name if there is one: "(" or "exp(".
    """
    before, inside, after = tokens[a - 1] if a else "(", tokens[a:b], tokens[b] if b < len(tokens) else ")"
    depths = list(accumulate((token[-1] == "(") - (token == ")") for token in inside))
    is_sum = any(depth == 0 and token in "+-" for depth, token in zip(depths, inside, strict=True))
    is_operand = inside[0] not in "+-*/)" and inside[-1] not in "+-*/"
    if depths[-1] or min(depths) < 0 or not is_operand or before[-1] not in "+-*/(":
        return False
    return lead != "(" or (before == "/" and b > a + 1) or (is_sum and (before in "-*" or after in "*/"))


def _terms_of(code: str, at: int, end: int) -> Iterator[int]:
    """Yield the end of each term of a sum."""
    depth = 0
    for one in re.compile(r"(?<!\+)[+](?!\+)|(?<!-)-(?![->])|[][()?]").finditer(code, at, end):
        # A sign after another operator, as in `== -1`, ends no term.
        may_end = one[0] in "+-?" and depth == 0
        if may_end and re.search(r"[\w)\]]$", before := code[at : one.start()].rstrip()):
            yield at + len(before)
            if one[0] == "?":
                return
        depth += (one[0] in "([") - (one[0] in ")]")
    yield at + len(code[at:end].rstrip())


def halves(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that take the other half of a vector, or another of its lanes from an array."""
    for call in re.compile(r"\b_mm\w*_(?:extract|insert)\w*\(").finditer(code, begin, end):
        old = code[call.start() : closed(code, call.end(), "()", LONGEST_CALL)]
        if half := re.search(r",\s*([01])\s*\)$", old):
            new = f"{old[: half.start(1)]}{1 - int(half[1])}{old[half.end(1) :]}"
            yield ranked_edit(code, 1.5, call.start(), old, new)
    lanes = list(re.compile(r"\b\w+\[([0-7])\]").finditer(code, begin, end))
    if re.compile(r"\b(?:_mm\d*_|__m\d)").search(code, begin, end) and len(lanes) <= 2 * LANES:
        for one, k in product(lanes, range(LANES)):
            if str(k) != one[1]:
                yield ranked_edit(code, 1.8, one.start(), one[0], one[0].replace(f"[{one[1]}]", f"[{k}]"))


def single_factors(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that use one factor of a product in place of the variable that keeps the product."""
    ends = {(each.name, line_of(code, each.begin)): each.end for each in known}
    for made in islice(_PRODUCT_OF_TWO.finditer(code, begin, end), MOST_TERMS):
        last = ends.get((made[1], line_of(code, made.start())), end)
        for use in re.compile(rf"(?<![\w.]){made[1]}\b(?!\s*[-+*/]?=(?!=))").finditer(code, made.end(), last):
            for factor in made.group(2, 3):
                yield ranked_edit(code, 1.6, use.start(), made[1], factor)


def numbers(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits of literal numbers: the first value of a sum or a maximum, and a step or a bound."""
    for one in re.compile(rf"(?<=[=,(:?])(?<![=!<>]=)\s*({FLOAT}|0)(?=\s*[;,):])").finditer(code, begin, end):
        old, before = one[1], row_before(code, one.start(1))
        if old == "0" and not re.search(r"\bfloat\s+\w+\s*=\s*$", before):
            continue
        for k, new in enumerate(("0.0f", "1.0f", "-INFINITY")):
            if new.rstrip("f.0") != old.rstrip("f.0"):
                text = "-__builtin_inff()" if k == 2 else new
                yield ranked_edit(code, 1.0 + 0.2 * k, one.start(1), old, new, [(*one.span(1), text)])
        # A maximum may begin at the first element.
        name = re.search(r"\b(\w+)\s*=\s*$", before)
        compared = rf"\bif\s*\(\s*(\w+\[[^][]*\])\s*>=?\s*{name[1]}\b" if name else r"(?!)"
        for element in re.compile(compared).findall(code, one.end(), min(end, one.end() + 400))[:1]:
            counters = re.findall(r"\bfor\s*\([^;=]*?(\w+)\s*=", code[one.end() : one.end() + 400])[:1]
            new = re.sub(rf"\b(?:{'|'.join(counters)})\b", "0", element) if counters else element
            yield ranked_edit(code, 0.9, one.start(1), old, new, [(*one.span(1), new)])
    number = re.compile(r"(?<![\w.\[])(?:[2-9]|[1-9]\d+)(?![\w.])(?!\s*>)")
    digits, blocks = dict.fromkeys(number.findall(code, begin, end)), _block_lengths(code, begin, end, known)
    for one in number.finditer(code, begin, end):
        before = row_before(code, one.start())
        # With a smaller step a loop visits some elements twice, which may hide a mistake.
        is_weak = before.rstrip().endswith("+=")
        set_ = re.search(r"(\w+)\s*=\s*$", before)
        if set_ is not None and set_[1] in blocks:
            continue
        for new in [each for each in digits if each != one[0]][:4]:
            rank, edit = ranked_edit(code, 2.0, one.start(), one[0], new)
            yield rank, replace(edit, is_weak=is_weak)
