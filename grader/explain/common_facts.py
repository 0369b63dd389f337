"""Facts that hold for all inputs of a wrong kernel: its wrong indices, and the sizes for which its outputs are right.

A fact is reported only if it holds for every input that was tried. Simple facts are tried first: conditions that
compare two sizes, for example, before conditions with a number such as 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product

from grader.core.arrays import Array, np
from grader.explain.deviation import Axis, usual_axes

Sizes = Mapping[str, int]
#: Numbers that are tried in conditions such as "N is a multiple of 8".
STEPS = (2, 3, 4, 8, 16, 32, 64, 128, 256)
#: A condition needs FEWEST_EACH right inputs and as many wrong ones; FEWEST_FOR_NUMBERS of each if it names a number
#: above 1. With fewer inputs it could hold by chance.
FEWEST_EACH, FEWEST_FOR_NUMBERS = 2, 4
#: A condition "N <= 64" is reported only if the smallest wrong size is below this many times the largest right size.
NEAREST = 1.5


@dataclass(frozen=True)
class Seen:
    """One input that was tried: its sizes, and a bool mask of the wrong elements (None if the output was right).

    `weak` marks an input on which even a wrong kernel may be right. `output` is the name of the wrong output, if the
    part has several.
    """

    sizes: Sizes
    wrong: Array | None
    weak: bool = False
    output: str = ""


@dataclass(frozen=True)
class _Set:
    """A possible set of wrong indices along an axis, described by `words`.

    `indices(sizes, length of the axis)` returns these indices in ascending order. `tile` names the size that is the
    length of a tile; "" if the set does not depend on such a size.
    """

    words: str
    indices: Callable[..., Sequence[int]]
    tile: str = ""


def place(seen: Sequence[Seen], axes: Sequence[Axis], tiles: Sequence[str]) -> str:
    """Return a clause on the wrong indices that holds for every input; "" if no simple clause does.

    `tiles` are the names of the sizes that are lengths of tiles.
    """
    wrong = [each for each in seen if each.wrong is not None and each.wrong.ndim]
    # Indices of different outputs cannot be compared.
    if not wrong or len({each.output for each in wrong}) > 1:
        return ""
    dimensions = wrong[0].wrong.ndim if wrong[0].wrong is not None else 0
    named = axes if len(axes) == dimensions else usual_axes(dimensions)
    found = [words for at in range(dimensions) for words in _along(seen, named[at], at, tiles, named)]
    listed = [at for at, axis in enumerate(named) if axis.listed]
    if not found and listed == [0, 1]:
        found = list(_of_pairs(seen, named))
    return "; ".join(found[:2])


def _along(
    seen: Sequence[Seen], axis: Axis, at: int, tiles: Sequence[str], axes: Sequence[Axis]
) -> Iterator[str]:
    """Yield the first fact that holds about axis number `at`, if any."""
    others = tuple(other for other in range(len(axes)) if other != at)
    yield from _first(_sets(axis, tiles, axes), seen, others, lambda sizes: sizes.get(axis.size, 0))


def _first(
    candidates: Iterable[_Set], seen: Sequence[Seen], others: tuple[int, ...], length: Callable[[Sizes], int]
) -> Iterator[str]:
    """Yield the words of the first set that fits all inputs, if any. Yield nothing if all indices are always wrong.

    An index is wrong if any element along the axes `others` is wrong. A right output has no mask: `length` returns its
    number of indices.
    """
    hits: list[tuple[Seen, Array | None, int]] = []
    for each in seen:
        if each.wrong is None:
            hits.append((each, None, length(each.sizes)))
        else:
            hit = np.asarray(each.wrong.any(axis=others)).reshape(-1)
            hits.append((each, np.flatnonzero(hit), len(hit)))
    if not all(hit is None or len(hit) == count for _, hit, count in hits):
        yield from (each.words for each in [next((c for c in candidates if _holds(c, hits)), None)] if each)


def _holds(candidate: _Set, hits: Sequence[tuple[Seen, Array | None, int]]) -> bool:
    for each, hit, length in hits:
        if candidate.tile and each.sizes.get(candidate.tile, 0) < 1:
            return False
        wanted = candidate.indices(each.sizes, length)
        if hit is None:
            if length and len(wanted) and not each.weak:
                return False
        elif len(wanted) != len(hit) or not np.array_equal(hit, np.asarray(wanted)):
            return False
    return True


def _sets(axis: Axis, tiles: Sequence[str], axes: Sequence[Axis]) -> Iterator[_Set]:
    one, many = axis.name, axis.plural
    yield _Set(f"only the last {one} is wrong", lambda s, n: range(n - 1, n))
    yield _Set(f"only {one} 0 is wrong", lambda s, n: range(min(1, n)))
    yield _Set(f"{one} 0 is right, and all other {many} are wrong", lambda s, n: range(1, n))
    yield _Set(f"the last {one} is right, and all others are wrong", lambda s, n: range(n - 1))
    yield _Set(f"only the odd {many} are wrong", lambda s, n: range(1, n, 2))
    yield _Set(f"only the even {many} are wrong", lambda s, n: range(0, n, 2))
    if axis.listed:
        return
    size = axis.size or "the size"
    for tile in tiles:
        own = partial(_size_of, tile)
        yield from _of_tile(many, size, tile, own, tile)
        yield from _above(_of_tile(many, size, tile, own, tile), own)
    for other in axes:
        if other.size and other.size != axis.size:
            yield _Set(
                f"only the {many} from {other.size} on are wrong",
                lambda s, n, o=other.size: range(min(n, s.get(o, n)), n),
            )
    for step in STEPS:
        same = partial(_always, step)
        yield from _of_tile(many, size, str(step), same, "")
        yield from _above(_of_tile(many, size, str(step), same, ""), same)


def _size_of(name: str, sizes: Sizes) -> int:
    return sizes[name]


def _always(number: int, sizes: Sizes) -> int:
    return number


def _above(sets: Iterator[_Set], length: Callable[[Sizes], int]) -> Iterator[_Set]:
    """Yield copies of `sets` that are empty if the axis fits into one tile. `length` returns the tile's length."""
    for each in sets:
        yield replace(each, indices=lambda s, n, of=each.indices: of(s, n) if n > length(s) else range(0))


def _of_tile(many: str, size: str, tile: str, length: Callable[[Sizes], int], key: str) -> Iterator[_Set]:
    yield _Set(
        f"only the {many} beyond the last full tile of {tile} are wrong, {size} % {tile} of them",
        lambda s, n: range(n // length(s) * length(s), n),
        key,
    )
    yield _Set(
        f"the first of each {tile} {many} is right, and all others are wrong",
        lambda s, n: [i for i in range(n) if i % length(s)],
        key,
    )
    yield _Set(
        f"only the {many} beyond the first {tile} are wrong", lambda s, n: range(min(n, length(s)), n), key
    )
    yield _Set(f"only the first {tile} {many} are wrong", lambda s, n: range(min(n, length(s))), key)
    yield _Set(
        f"only the first of the {many} beyond the last full tile of {tile} is wrong",
        lambda s, n: range(n // length(s) * length(s), min(n, n // length(s) * length(s) + 1)),
        key,
    )


def _of_pairs(seen: Sequence[Seen], axes: Sequence[Axis]) -> Iterator[str]:
    """Flatten the first two axes to one, in row-major order. Yield the first fact that holds about its indices."""
    pair = f"({axes[0].letter}, {axes[1].letter})"
    candidates = (
        _Set(f"only the last {pair} is right", lambda s, n: range(n - 1)),
        _Set(f"only the first {pair} is right", lambda s, n: range(1, n)),
        _Set(f"only the last {pair} is wrong", lambda s, n: range(n - 1, n)),
        _Set(f"only the first {pair} is wrong", lambda s, n: range(min(1, n))),
    )
    others = tuple(range(2, len(axes)))
    yield from _first(
        candidates, seen, others, lambda sizes: math.prod(sizes.get(axis.size, 1) for axis in axes[:2])
    )


# ---- the sizes for which a kernel is right


@dataclass(frozen=True)
class Condition:
    """A condition on sizes (`test`). `words` and `negated` follow "right where" and "wrong where" in a message."""

    words: str
    negated: str
    test: Callable[..., bool]


def condition(seen: Sequence[Seen], names: Sequence[str], tiles: Sequence[str]) -> str:
    """Return "right where ..., wrong where ..." on the sizes; "" for few inputs, or if no simple condition fits.

    `names` are the sizes that the condition may use, `tiles` those that are lengths of tiles.
    """
    right = [each.sizes for each in seen if each.wrong is None and not each.weak]
    wrong = [each.sizes for each in seen if each.wrong is not None]
    if len(right) < FEWEST_EACH or len(wrong) < FEWEST_EACH:
        return ""
    known = [name for name in names if all(name in sizes for sizes in (*right, *wrong))]
    for each in _conditions(known, [tile for tile in tiles if tile in known], right, wrong):
        if all(map(each.test, right)) and not any(map(each.test, wrong)):
            return f"right where {each.words}, wrong where {each.negated}"
    return ""


def _conditions(
    names: Sequence[str], tiles: Sequence[str], right: Sequence[Sizes], wrong: Sequence[Sizes]
) -> Iterator[Condition]:
    plain = [name for name in names if name not in tiles]
    for a in names:
        yield Condition(f"{a} = 0", f"{a} > 0", lambda s, a=a: s[a] == 0)
        yield Condition(f"{a} = 1", f"{a} > 1", lambda s, a=a: s[a] == 1)
    for a, t in product(plain, tiles):
        yield Condition(f"{a} is a multiple of {t}", "it is not", lambda s, a=a, t=t: s[a] % s[t] == 0)
        yield Condition(f"{t} >= {a} (one tile)", f"{t} < {a}", lambda s, a=a, t=t: s[t] >= s[a])
        either = f"{a} is a multiple of {t} or less than it"
        yield Condition(either, "it is not", lambda s, a=a, t=t: s[a] % s[t] == 0 or s[a] < s[t])
    for a in plain:
        for t in tiles:
            yield Condition(f"{a} is not a multiple of {t}", "it is", lambda s, a=a, t=t: s[a] % s[t] != 0)
        if len(tiles) > 1:
            either, both = (word.join(f"{t} >= {a}" for t in tiles) for word in (" or ", " and "))
            yield Condition(either, "neither is so", lambda s, a=a: any(s[t] >= s[a] for t in tiles))
            yield Condition(both, "they are not", lambda s, a=a: all(s[t] >= s[a] for t in tiles))
            every = f"{a} is a multiple of {' and of '.join(tiles)}"
            yield Condition(every, "it is not", lambda s, a=a: all(s[a] % s[t] == 0 for t in tiles))
    for a, b in combinations(names, 2):
        yield Condition(f"{a} = 1 and {b} = 1", f"{a} * {b} > 1", lambda s, a=a, b=b: s[a] == s[b] == 1)
        yield Condition(f"{a} = 1 or {b} = 1", "both are larger", lambda s, a=a, b=b: 1 in (s[a], s[b]))
        yield Condition(f"{a} = {b}", "they differ", lambda s, a=a, b=b: s[a] == s[b])
        yield Condition(f"{a} >= {b}", f"{a} < {b}", lambda s, a=a, b=b: s[a] >= s[b])
        yield Condition(f"{a} <= {b}", f"{a} > {b}", lambda s, a=a, b=b: s[a] <= s[b])
    if min(len(right), len(wrong)) < FEWEST_FOR_NUMBERS:
        return
    for a in names:
        # Try the largest number first: a multiple of 64 is also one of 32.
        for n in reversed(STEPS):
            yield Condition(f"{a} is a multiple of {n}", "it is not", lambda s, a=a, n=n: s[a] % n == 0)
        for n in STEPS:
            either = f"{a} is a multiple of {n} or less than it"
            yield Condition(either, "it is not", lambda s, a=a, n=n: s[a] % n == 0 or s[a] < n)
    most = {a: max(s[a] for s in right) for a in plain}
    for a in plain:
        high = min(s[a] for s in wrong)
        # Name no bound if the largest right size and the smallest wrong size are too far apart.
        if not most[a] < high or high < NEAREST * most[a]:
            yield Condition(f"{a} <= {most[a]}", f"{a} >= {high}", lambda s, a=a: s[a] <= most[a])
    for a, b in combinations(plain, 2):
        beyond = [s[a] for s in wrong if s[b] <= most[b]], [s[b] for s in wrong if s[a] <= most[a]]
        if all(some and min(some) < NEAREST * most[name] for some, name in zip(beyond, (a, b), strict=True)):
            words = f"{a} <= {most[a]} and {b} <= {most[b]}"
            yield Condition(
                words, "one of them is larger", lambda s, a=a, b=b: s[a] <= most[a] and s[b] <= most[b]
            )
