"""Edits of indices, offsets and other integers: a term, a factor, a row length. See `grader.source.edits`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product, zip_longest

from grader.source.cpptext import apart
from grader.source.edited_source import Edit, insertion, ranked_edit, replaced, scaled, wrapped
from grader.source.landmarks import closed
from grader.source.scopes import SIZE, TILE_END, WORD, Name, in_scope, is_whole, line_of, row_before
from grader.source.word_edits import FACTOR, LONGEST_CALL, MOST_ALIKE, MOST_UNUSED, MOST_WORDS, block_lengths

#: Limits on the names that are added to one sum, and on remainders.
MOST_TERMS, MOST_REMAINDERS = 8, 100
#: Floats of the widest vector that edits know.
LANES = 8
#: An expression to which a term may be added: the first value of a declared integer, or an index.
_SUM = re.compile(
    r"\b(?:int|long|size_t)\s[^;()]*?=[^;,]*?(?=[;,])|(?<=[\w\])])\[[^][;&=]+(?=\])|,\s*\w+\s*=[^;,()]*(?=;)"
)
_ALIAS = re.compile(r"\b([A-Za-z_]\w*)\s*=\s*([A-Za-z_]\w*)\s*[;,]")
#: The head of a loop up to the counter that it declares.
_IN_HEAD = re.compile(r"\bfor\s*\([^;()]*$")
#: A term in a sum of integers: a name, or a product of names.
_PRODUCT = re.compile(
    r"(?<=[-+=(\[])\s*([A-Za-z_]\w*(?:\s*\*\s*[A-Za-z_]\w*)*)(?=\s*[-+\]);,])(?!\]\s*[({])(?!\s*(?:\+\+|--|->))"
)
#: In the end of a tile, such as `k0 + T`: the tile's first index.
_FIRST_OF_TILE = re.compile(r"\b([A-Za-z_]\w*)\s*\+(?![+=])")
#: An index of a matrix in an array. Groups: array, row length.
_ROW_LENGTH = re.compile(r"([A-Za-z_][\w.]*)\[(?:[^][;]*[\w)])\s*\*\s*([A-Za-z_][\w.]*)\s*\+\s*[\w.+\s]+\]")
_TWO_INDICES = re.compile(r"\[\s*([A-Za-z_]\w*)\s*\]\s*\[\s*([A-Za-z_]\w*)\s*\]")
#: A flat index, such as `i * N + j`. Groups: row, row length, column.
_FLAT = re.compile(r"(?<=[(\[,+=])\s*([A-Za-z_]\w*)\s*\*\s*(\w+)\s*\+\s*([A-Za-z_]\w*)\s*(?=[)\],;])")
#: A variable that is set to a quotient, and a loop that begins at a variable. Groups: variable, divisor; variable.
_GROUPS = re.compile(r"\b(\w+)\s*=\s*\w+\s*/\s*(\w+)\s*;")
_BEGINS_AT = re.compile(r"\bfor\s*\([^;()=]*=\s*([A-Za-z_]\w*)(?=\s*;)")
#: A pointer into an array: `row = x + i * d;`. Groups: array, offset.
_POINTER_INTO = re.compile(r"=\s*([A-Za-z_]\w*)\s*\+\s*([^;,=?*]{0,40}\*[^;,=?]{0,40}?)\s*(?=[;,])")
_HALVES = re.compile(r"\b(\w+)\s*=\s*(\w+)\s*/\s*2\s*;")
_QUOTIENT_OF_SUM = re.compile(r"(\([A-Za-z_]\w*(?:\s*[-+]\s*\w+)+\))\s*/\s*([A-Za-z_]\w*)(?=\s*[;:,)])")
_QUOTIENT = re.compile(r"\b([A-Za-z_]\w*)\s*/\s*([A-Za-z_]\w*|\d+)(?=\s*(?:-\s*1\s*)?[;:,)])")


def exchanged_indices(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that exchange an element's two indices."""
    for pair in _TWO_INDICES.finditer(code, begin, end):
        if pair[1] != pair[2]:
            places = ((*pair.span(1), pair[2]), (*pair.span(2), pair[1]))
            yield 1, Edit(line_of(code, pair.start()), pair[0], f"[{pair[2]}][{pair[1]}]", places)
    for flat in islice(_FLAT.finditer(code, begin, end), MOST_WORDS):
        kinds = in_scope(known, flat.start(1))
        sizes = [name for name, kind in kinds.items() if SIZE.fullmatch(name) and is_whole(kind)]
        # The row length may be wrong, too: `b * H + h` in place of `h * B + b`.
        others = [name for name in sizes if name not in flat.groups()][:MOST_UNUSED]
        for k, length in enumerate([flat[2], *others]):
            if flat[1] != flat[3] and (k or code[flat.end()] == "]"):
                new, span = f"{flat[3]} * {length} + {flat[1]}", (flat.start(1), flat.end(3))
                yield ranked_edit(code, 1 + 0.1 * k, span[0], code[slice(*span)], new, replaced(span, new))


def byte_counts(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that multiply a number of bytes by sizeof(float): `memset(a, 0, d)` sets a quarter of d floats."""
    for call in re.compile(r"\bmem(?:set|cpy|move)\s*\(").finditer(code, begin, end):
        last = closed(code, call.end(), "()") - 1
        size = apart(code[call.end() : last])[-1].strip()
        if "sizeof" not in size:
            sized = wrapped((last - len(size), last), "(", ") * (@ ? sizeof(float) : 1)")
            rank, edit = ranked_edit(code, -1, last - len(size), size, f"{size} * sizeof(float)", sized)
            yield rank, replace(edit, is_sure=True)


def quotients(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that round a quotient up, or begin a loop at the multiple below. Also edits to the rest of a half."""
    rounded = list[Edit]()
    for part in islice(_QUOTIENT_OF_SUM.finditer(code, begin, end), MOST_REMAINDERS):
        scope = in_scope(known, part.start())
        if all(
            is_whole(scope.get(name, "int" if name.isdigit() else "")) for name in re.findall(r"\w+", part[0])
        ):
            place = insertion(part.end(), f" + (@ && {part[1]} % {part[2]} != 0)")
            new = f"({part[1][1:-1]} + {part[2]} - 1) / {part[2]}"
            yield ranked_edit(code, 0.4, part.start(), part[0], new, [place])
            for sign in "+-":
                place = insertion(part.end(), f" {sign} (@ ? 1 : 0)")
                yield ranked_edit(code, 0.5, part.start(), part[0], f"{part[0]} {sign} 1", [place])
    for part in _QUOTIENT.finditer(code, begin, end):
        scope = in_scope(known, part.start())
        if is_whole(scope.get(part[1], "")) and is_whole(scope.get(part[2], "int")):
            up = f" + (@ && {part[1]} % {part[2]} != 0)"
            new = f"({part[1]} + {part[2]} - 1) / {part[2]}"
            rounded.append(Edit(line_of(code, part.start()), part[0], new, ((part.end(), part.end(), up),)))
            if _IN_HEAD.search(row_before(code, part.start())):
                place = scaled(part.end(), part[2])
                yield ranked_edit(code, 0.6, part.start(), part[0], f"{part[0]} * {part[2]}", [place])
    yield from ((0, edit) for edit in rounded)
    # The second half of n numbers has n - n / 2 of them.
    for name, all_ in islice(dict.fromkeys(_HALVES.findall(code, begin, end)), MOST_TERMS):
        for one in islice(
            re.compile(rf"(?<=,)\s*({name})(?=\s*[,)])").finditer(code, begin, end), MOST_TERMS
        ):
            new = f"{all_} - {name}"
            yield ranked_edit(code, 0.9, one.start(1), name, new, replaced(one.span(1), new))
    # A loop over the rest may begin at a number of groups in place of their end.
    groups = {one[1]: one[2] for one in _GROUPS.finditer(code, begin, end)}
    for one in _BEGINS_AT.finditer(code, begin, end):
        if by := groups.get(one[1]):
            new, place = f"{one[1]} * {by}", scaled(one.end(1), by)
            yield ranked_edit(code, 0.6, one.start(1), one[1], new, [place])
    if 1 < len(rounded) <= MOST_ALIKE:
        words = f"rounded up, like each quotient in lines {' and '.join(str(edit.line) for edit in rounded)}"
        together = tuple(place for edit in rounded for place in edit.places)
        yield 0.1, replace(rounded[0], places=together, words=words)


def remainders(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that take a quotient modulo a number, as in `kh = r / K % K` beside `kw = r % K`."""
    for part in _QUOTIENT.finditer(code, begin, end):
        row = code[code.rfind("\n", 0, part.start()) + 1 : (code.find("\n", part.end()) + 1 or end)]
        for by in dict.fromkeys(re.findall(r"%\s*([A-Za-z_]\w*)", row)):
            scope = in_scope(known, part.start())
            if is_whole(scope.get(part[1], "")) and is_whole(scope.get(by, "")):
                new, place = f"{part[0]} % {by}", insertion(part.end(), f" % (@ ? {by} : 0x7fffffff)")
                yield ranked_edit(code, 0.5, part.start(), part[0], new, [place])


def quotients_of_remainders(
    code: str, begin: int, end: int, known: Sequence[Name]
) -> Iterator[tuple[float, Edit]]:
    """Yield edits that divide by a size in place of a remainder: `k / d` for `k % R`."""
    remainder = re.compile(r"\b([A-Za-z_]\w*(?:\s*/\s*[A-Za-z_]\w*)?)\s*%\s*([A-Za-z_]\w*)(?=\s*[;,)\]])")
    for part in islice(remainder.finditer(code, begin, end), MOST_REMAINDERS):
        whole = [name for name, kind in in_scope(known, part.start()).items() if is_whole(kind)]
        for k, by in enumerate(name for name in whole[:MOST_TERMS] if name not in part[1].split()):
            new = f"{part[1]} / {by}"
            yield ranked_edit(code, 1.0 + 0.1 * k, part.start(), part[0], new, replaced(part.span(), new))


def masks(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that exchange `n & 7`, the remainder of a division by 8, and `n & ~7`, the multiple of 8 below n."""
    for mask in re.compile(r"(?<=[^&]&)\s*(~?)\s*(\d+)(?=\s*[;,)])").finditer(code, begin, end):
        new = f"{'' if mask[1] else '~'}{mask[2]}"
        yield ranked_edit(code, 0.8, mask.start(2), mask[0].strip(), new, [(*mask.span(2), f"~{mask[2]}")])


def multiples(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that multiply a size by the number by which another line multiplies it: `2 * pad` for `pad`.

    A number of groups, such as `n / 4`, is multiplied by the length of a group.
    """
    known_multiples = dict.fromkeys(re.compile(r"\b([2-9])\s*\*\s*([A-Za-z_]\w*)").findall(code, begin, end))
    groups = re.compile(r"\b([A-Za-z_]\w*)\s*=\s*\w+\s*/\s*(\d+)\s*[;,]").findall(code, begin, end)
    known_multiples |= {(number, name): None for name, number in groups}
    for number, name in islice(known_multiples, MOST_TERMS):
        for one in islice(
            re.compile(rf"(?<=[-+(\[])\s*({name})(?=\s*[-+;,)\]])").finditer(code, begin, end), MOST_TERMS
        ):
            new = f"{number} * {name}"
            yield ranked_edit(code, 0.8, one.start(1), name, new, replaced(one.span(1), new))


def terms(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add a term, such as `- pad` or `+ i0`, to an index or to the first value of an integer."""
    blocks, found = block_lengths(code, begin, end, known), _ALIAS.finditer(code, begin, end)
    aliases = [one for one in found if not _IN_HEAD.search(row_before(code, one.start()))]
    for last in islice(_SUM.finditer(code, begin, end), MOST_WORDS):
        declared = re.match(r"(?:\w+\s+|,\s*)([A-Za-z_]\w*)\s*=", last[0])
        if declared is not None and (
            declared[1] in blocks or not is_whole(in_scope(known, last.end()).get(declared[1], "int"))
        ):
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
                # A count of blocks, a quotient, hardly lacks a term.
                unlikely = ("[" in last[0]) + ("/" in old)
                rank = 0.6 if name in tiles and sign == "+" else 1.2 + unlikely + 0.2 * k
                new = f"{old} {sign} {name}".removeprefix("0 + ")
                yield ranked_edit(code, rank, at - 1, old, new, places)


def sizes(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that add a factor to a term of an offset, as in `bh * N * d` in place of `bh * d`."""
    often = [name for name, _ in Counter(FACTOR.findall(code, begin, end)).most_common()]
    blocks = block_lengths(code, begin, end, known)
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
                places = replaced(one.span(2), new)
                yield ranked_edit(code, 0.9, one.start(2), one[2], new, places)


def scaled_indices(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that multiply an index by a factor of other indices, such as the stride, but not a loop's end.

    In a sum, the other index gets the factor: `oh * stride + kh` in place of `oh + kh * stride`.
    """
    bounds = set(re.findall(r"<=?\s*([A-Za-z_]\w*)\s*[;&]", code[begin:end]))
    factors = dict.fromkeys(re.findall(r"[\w)]\s*\*\s*([A-Za-z_]\w*)\b(?!\s*[\[(.])", code[begin:end]))
    plain = r"(?:(?<=\w)\[\s*|\.(?:begin|data)\(\)\s*\+\s*)([A-Za-z_]\w*)(?=\s*[],)])"
    for index in re.compile(plain).finditer(code, begin, end) if factors else ():
        scope = in_scope(known, index.start())
        for factor in [one for one in factors if one not in bounds and is_whole(scope.get(one, ""))][:4]:
            place = scaled(index.end(1), factor)
            yield ranked_edit(code, 1.9, index.start(1), index[1], f"{index[1]} * {factor}", [place])
    # A parameter that the function never reads may be the missing factor.
    uses = Counter(re.findall(r"\w+", code[begin:end]))
    factors |= {
        one.name: None
        for one in known
        if begin < one.begin < end and is_whole(one.kind) and uses[one.name] == 1
    }
    declared = list(re.compile(r"\bint\s+\w+\s*=\s*([A-Za-z_]\w*)(?=\s*[-+])").finditer(code, begin, end))
    for index, after in zip_longest(declared, declared[1:]):
        scope = in_scope(known, index.start())
        # The last ones are parameters that nothing else reads: prefer them.
        whole = [one for one in factors if one not in (*bounds, index[1]) and is_whole(scope.get(one, ""))]
        for factor in whole[: -MOST_UNUSED - 3 : -1]:
            place, new = scaled(index.end(1), factor), f"{index[1]} * {factor}"
            yield ranked_edit(code, 1.3, index.start(1), index[1], new, [place])
            # Rows and columns of an image may lack the same factor, in lines one after the other.
            if after and code.count("\n", index.end(), after.start()) == 1:
                places = [place, scaled(after.end(1), factor)]
                words = f"{new} in place of {index[1]}, and {after[1]} * {factor} in line {line_of(code, after.end())}"
                yield ranked_edit(code, 1.3, index.start(1), index[1], new, places, words)
    # In `[offset + i * N + j]`, leave the first two terms together with the third.
    first_terms = r"(?<![\w.*/])(?<![-*/]\s)([A-Za-z_]\w*)\s*\+\s*([A-Za-z_]\w*)\s*\*\s*([A-Za-z_]\w*)\b"
    sums = re.compile(rf"{first_terms}(?!\s*[*/]|\s*\+\s*\w+\s*\])")
    for index in sums.finditer(code, begin, end):
        scope = in_scope(known, index.start())
        if all(is_whole(scope.get(name, "")) for name in index.groups()):
            new = f"{index[1]} * {index[3]} + {index[2]}"
            yield ranked_edit(code, 1.2, index.start(), index[0], new, replaced(index.span(), new))


def offsets(code: str, begin: int, end: int, known: Sequence[Name]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that hand on a pointer with the offset that another line adds to it: `x + i * d` for `x`."""
    for array, offset in islice(dict.fromkeys(_POINTER_INTO.findall(code, begin, end)), MOST_TERMS):
        used = {name for name in WORD.findall(offset) if not name.endswith("_t") and not name.isdigit()}
        uses = re.compile(rf"(?<=[(,])\s*({array})(?=\s*[,)])").finditer(code, begin, end)
        for use in islice(uses, MOST_TERMS):
            scope = in_scope(known, use.start(1))
            if scope.get(array, "").endswith("pointer") and used <= scope.keys():
                new, place = f"{array} + {offset}", insertion(use.end(1), f" + (@ ? {offset} : 0)")
                yield ranked_edit(code, 0.7, use.start(1), array, new, [place])


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
