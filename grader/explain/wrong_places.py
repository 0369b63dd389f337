"""Description of the wrong elements of an output in words: the pattern of their indices along each axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grader.core.arrays import Array, np
from grader.explain.deviation import Axis

#: Tile lengths that kernels commonly use.
USUAL_TILES = (*range(2, 65), 80, 96, 100, 112, 120, 128, 192, 256, 512)


def likely_tiles(cut: int, size: int, own_tiles: Iterable[int] = ()) -> list[int]:
    """Return tile lengths for which the last full tile of an axis of length `size` ends at `cut`, the likeliest first.

    The assignment's own lengths come first, then powers of two, then others; at most four are returned.
    """
    fits = [t for t in dict.fromkeys((*own_tiles, *USUAL_TILES)) if t > 1 and size // t * t == cut]
    usual = [*own_tiles, 16, 32, 8, 64, 4, 128, 256, 512, 2]
    return sorted(fits, key=lambda t: (usual.index(t) if t in usual else len(usual), t))[:4]


@dataclass(frozen=True)
class Place:
    """A pattern of the wrong elements. `code` is "" if wrong elements are everywhere or form no simple pattern."""

    code: str
    words: str


EVERYWHERE = Place("", "")


def find_place(
    wrong: Array, axes: Sequence[Axis], shape: Mapping[str, int], tiles: Sequence[int] = ()
) -> Place:
    """Return the simplest description of the wrong elements: for each axis the indices that are affected.

    `wrong` is a bool mask, `shape` the call's sizes by name, `tiles` the assignment's own tile lengths.
    """
    if wrong.mean() > 0.995:
        return EVERYWHERE
    every = range(wrong.ndim)
    touched = [np.asarray(wrong.any(axis=tuple(a for a in every if a != axis))) for axis in every]
    box = np.ones_like(wrong)
    for axis, hit in enumerate(touched):
        box &= hit.reshape([-1 if a == axis else 1 for a in every])
    # The affected indices span a box. If over half of the box is right, the indices do not describe the wrong elements.
    if wrong.sum() < 0.5 * box.sum():
        return EVERYWHERE
    found = [
        (_described(axis, hit, axes, shape, tiles), axis) for axis, hit in enumerate(touched) if not hit.all()
    ]
    if not found:
        return EVERYWHERE
    # Order of the axes: first those whose last, partial tile is wrong; then listed axes, last to first; then the rest.
    found.sort(key=lambda item: (item[0].code != "remainder_tile", not axes[item[1]].listed,
                                 -item[1] if axes[item[1]].listed else item[1]))  # fmt: skip
    return Place(found[0][0].code, "; ".join(place.words for place, _ in found))


def _described(
    axis: int, hit: Array, axes: Sequence[Axis], shape: Mapping[str, int], tiles: Sequence[int]
) -> Place:
    """Describe the wrong indices of one axis. `hit` is a bool array over its indices: True for a wrong index."""
    of, size = axes[axis], len(hit)
    name, indices = of.name, np.flatnonzero(hit).tolist()
    first, last, count = indices[0], indices[-1], len(indices)
    if of.listed:
        (code,) = of.codes
        if count == size - 1 and not hit[0]:
            return Place(code, f"every {name} but {name} 0 is wrong")
        return Place(code, f"only {_list(of, indices)} wrong")
    code, periodic = of.codes
    contiguous = count == last - first + 1
    if contiguous and last == size - 1:
        fitting = likely_tiles(first, size, tiles)
        if tiles:
            # Of lengths that the assignment does not name, only powers of two are likely.
            fitting = [tile for tile in fitting if tile in tiles or tile.bit_count() == 1]
        # If the assignment has no tiles, a single wrong index at the end more likely means a loop that ends too soon.
        if fitting and (count > 1 or tiles):
            which = (
                f"only the {name}s {first} to {last} are wrong: all are"
                if count > 1
                else f"only the last {name} ({last}) is wrong: it is"
            )
            return Place(
                "remainder_tile",
                f"{which} beyond the last full tile (tiles of {fitting[0]} would end there)",
            )
        if count == 1:
            return Place(code, f"only the last {name} ({last}) is wrong")
        return Place(code, f"only the {name}s from {first} to the end ({last}) are wrong")
    if count == 1:
        return Place(code, f"only {name} {first} is wrong")
    if contiguous:
        # OpenMP's static schedule gives each thread one range. The last axis (columns) is usually not divided.
        threads = shape.get("threads", 1)
        chunk, shared_out = -(-size // max(1, threads)), len(axes) == 1 or axis < len(axes) - 1
        is_share = shared_out and threads > 1 and count == chunk and first % chunk == 0
        share = f", the share of one of {threads} threads" if is_share else ""
        return Place(code, f"only the {name}s {first} to {last} are wrong{share}")
    step = _period(indices)
    if step is not None:
        period, rest = step
        if period == 2:
            return Place(periodic, f"only the {'odd' if rest[0] else 'even'} {name}s are wrong")
        which = ", ".join(str(r) for r in rest[:4]) + (" ..." if len(rest) > 4 else "")
        return Place(periodic, f"the wrong {name}s repeat every {period}: those at {which} of each {period}")
    return Place(
        code, f"{count} of {size} {name}s are wrong, the first ones {', '.join(map(str, indices[:4]))}"
    )


def _list(axis: Axis, indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"{axis.name} {indices[0]} is"
    shown = ", ".join(map(str, indices[:6])) + (" ..." if len(indices) > 6 else "")
    return f"{axis.plural} {shown} are"


def _period(indices: Sequence[int]) -> tuple[int, list[int]] | None:
    """Return (shortest period of `indices` from 2 to 64, their remainders when divided by it); None without a period.
    At most half of all remainders may occur, and the indices must span two periods."""
    low, high = indices[0], indices[-1]
    for period in range(2, 65):
        rest = sorted({i % period for i in indices})
        if len(rest) <= period // 2 and high - low >= 2 * period:
            # All of them are there if they are as many as the numbers from low to high with these remainders.
            wanted = sum((high - one) // period - (low - 1 - one) // period for one in rest)
            if wanted == len(set(indices)):
                return period, rest
    return None
