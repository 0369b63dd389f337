"""Where an output is wrong, in words: the shape that the wrong elements form in (B, H, N, d)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grader.base.arrays import Array, np
from grader.judge.diagnosis.suspects.blocks import in_words, likely_tiles

AXES = ("batch", "head", "row", "column")


@dataclass(frozen=True)
class Place:
    """What the wrong elements have in common. `code` is "" when they are everywhere or form no simple shape."""

    code: str
    words: str


EVERYWHERE = Place("", "")


def find_place(wrong: Array, shape: Mapping[str, int]) -> Place:
    """The simplest description of a bool mask (B, H, N, d): for each axis, which indices are affected."""
    if wrong.mean() > 0.995:
        return EVERYWHERE
    touched = [np.asarray(wrong.any(axis=tuple(a for a in range(4) if a != axis))) for axis in range(4)]
    box = np.ones_like(wrong)
    for axis, hit in enumerate(touched):
        box &= hit.reshape([-1 if a == axis else 1 for a in range(4)])
    # Values that happen to be right are common; a shape that is half empty explains nothing.
    if wrong.sum() < 0.5 * box.sum():
        return Place("", "")
    found = [_describe_axis(axis, hit, shape) for axis, hit in enumerate(touched) if not hit.all()]
    found.sort(key=lambda place: ("remainder_tile", "heads", "batches").index(place.code) if place.code in
               ("remainder_tile", "heads", "batches") else 3)  # fmt: skip
    if not found:
        return EVERYWHERE
    return Place(found[0].code, "; ".join(place.words for place in found))


def _describe_axis(axis: int, hit: Array, shape: Mapping[str, int]) -> Place:
    """`hit`: bool (size of the axis), not all true."""
    name, size = AXES[axis], len(hit)
    indices = np.flatnonzero(hit).tolist()
    first, last, count = indices[0], indices[-1], len(indices)
    code = {"batch": "batches", "head": "heads", "row": "row_range", "column": "column_range"}[name]
    if axis < 2:
        if count == size - 1 and not hit[0]:
            return Place(code, f"every {name} but {name} 0 is wrong")
        return Place(code, f"only {_list(name, indices)} wrong")
    contiguous = count == last - first + 1
    if contiguous and last == size - 1:
        tiles = likely_tiles(first, size, [shape[key] for key in ("Br", "Bc") if key in shape])
        if tiles and (axis == 2 or size - first < size):
            return Place(
                "remainder_tile",
                f"only the {name}s from {first} on are wrong, those beyond the last full tile of {in_words(tiles)}: "
                f"the remainder tile is left out ({'N' if axis == 2 else 'd'} / tile rounds down) or has wrong loop "
                "bounds",
            )
        if count == 1:
            return Place(code, f"only the last {name} ({last}) is wrong: look at the loop's end")
        return Place(code, f"only the {name}s from {first} to the end ({last}) are wrong")
    if count == 1:
        return Place(
            code, f"only {name} {first} is wrong" + (": look at the loop's start" if first == 0 else "")
        )
    if contiguous:
        return Place(
            code, f"only the {name}s {first} to {last} are wrong{_chunk(axis, first, count, size, shape)}"
        )
    step = _period(indices)
    if step is not None:
        period, rest = step
        if period == 2:
            return Place(f"periodic_{name}s", f"only the {'odd' if rest[0] else 'even'} {name}s are wrong")
        which = ", ".join(str(r) for r in rest[:4]) + (" ..." if len(rest) > 4 else "")
        return Place(
            f"periodic_{name}s", f"the wrong {name}s repeat every {period}: those at {which} of each {period}"
        )
    return Place(
        code, f"{count} of {size} {name}s are wrong, the first ones {', '.join(map(str, indices[:4]))}"
    )


def _list(name: str, indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"{name} {indices[0]} is"
    shown = ", ".join(map(str, indices[:6])) + (" ..." if len(indices) > 6 else "")
    return f"{name}{'es' if name == 'batch' else 's'} {shown} are"


def _chunk(axis: int, first: int, count: int, size: int, shape: Mapping[str, int]) -> str:
    """A remark when a range of rows is what one thread of a static schedule gets."""
    chunk = -(-size // max(1, shape.get("threads", 1)))
    if axis == 2 and shape.get("threads", 1) > 1 and count == chunk and first % chunk == 0:
        return f", the share of one of {shape['threads']} threads"
    return ""


def _period(indices: Sequence[int]) -> tuple[int, list[int]] | None:
    """The shortest period up to 64 with which `indices` repeat within their range, and the places within it."""
    present = set(indices)
    low, high = indices[0], indices[-1]
    for period in range(2, 65):
        rest = sorted({i % period for i in indices})
        if len(rest) <= period // 2 and high - low >= 2 * period:
            wanted = {i for i in range(low, high + 1) if i % period in set(rest)}
            if wanted == present:
                return period, rest
    return None
