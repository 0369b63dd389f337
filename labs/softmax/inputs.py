"""Inputs of the cases: logits X (R, C) of several kinds, and partial results (m, l, o) of two column blocks.

All arrays are float32. The same distribution, sizes and seed give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grader.core.arrays import Array, np
from grader.core.draws import Draws

Shape = Mapping[str, int]

LARGEST = 1e4
"""All logits but -inf are within +-LARGEST."""
JUMP = 150.0
"""A difference that is too large for exp() in float32, which overflows above 88.7 and is 0 below -104."""
OFFSETS = (9000.0, 60.0, 150.0, 600.0, 3000.0)
"""Offsets of rows, used with both signs. At 60 exp() is still finite. With -3000 and -9000, a running maximum that
starts at -1000 is wrong."""
LEFT_BEHIND = (16.8, 17.2)
"""Smallest and largest distance of the many small elements, the tail, from the maximum. exp() of each is less than half
a unit in the last place of a float sum of 1 or more. So adding a single one leaves the sum unchanged."""


def make_inputs(distribution: str, shape: Shape, seed: int) -> dict[str, Array]:
    """Return the inputs of a case by name: X (R, C) for a distribution of LOGITS; m1, l1, m2, l2 (R) and o1, o2 (R, d)
    for a distribution of PARTIALS."""
    draws = Draws(seed)
    if distribution in PARTIALS:
        return _partial_results(PARTIALS[distribution], shape, draws)
    x = LOGITS[distribution](draws, shape["R"], shape["C"])
    return {"X": np.ascontiguousarray(x, np.float32)}


# ---- logits: rows differ from each other, and each has at least one finite number


def _random(draws: Draws, rows: int, columns: int) -> Array:
    """Draw a centre within +-2 for each row, and logits within +-6 of the row's centre."""
    middle = draws.uniform((rows, 1), -2.0, 2.0)
    return draws.uniform((rows, columns), -6.0, 6.0) + middle


def _equal(draws: Draws, rows: int, columns: int) -> Array:
    """Draw rows of equal elements: one number within +-20 for each row."""
    return np.repeat(draws.uniform((rows, 1), -20.0, 20.0), columns, 1)


def _dominant(draws: Draws, rows: int, columns: int) -> Array:
    """Draw rows with one element about 25 above the others."""
    x = draws.uniform((rows, columns), -4.0, 4.0)
    x[np.arange(rows), draws.below(columns, (rows,))] += np.float32(25.0)
    return x


def _masked(draws: Draws, rows: int, columns: int) -> Array:
    """Draw rows in which some elements are -inf: at the beginning, at random places, at the end, or all but one.

    The four kinds alternate from row to row.
    """
    x = _random(draws, rows, columns)
    kept = draws.below(columns, (rows,))
    here_and_there = draws.uniform((rows, columns)) < 0.4
    at = np.arange(columns)
    kinds = (at < columns // 3 + 1, here_and_there, at >= columns - columns // 2, at >= 0)
    for i in range(rows):
        kind = kinds[i % 4]
        masked = kind[i] if kind.ndim == 2 else kind.copy()
        masked[kept[i] if kind is not kinds[0] else columns - 1] = False
        x[i, masked] = -np.inf
    return x


def _masked_far(draws: Draws, rows: int, columns: int) -> Array:
    """Draw masked rows; in every fourth row the first element is finite and far below the other finite ones."""
    x = _masked(draws, rows, columns)
    if columns > 1:
        x[1::4, 0] = -JUMP
    return x


def _offset(draws: Draws, rows: int, columns: int) -> Array:
    """Draw logits within +-4 of a centre. In even rows the centre is about one of OFFSETS; in the odd row that follows,
    it is about the negated offset.
    """
    at = np.arange(rows)
    far = np.array(OFFSETS, np.float32)[at // 2 % len(OFFSETS), None]
    far[1::2] *= np.float32(-1)
    far += draws.uniform((rows, 1), -8.0, 8.0)
    return far + draws.uniform((rows, columns), -4.0, 4.0)


def _large(draws: Draws, rows: int, columns: int) -> Array:
    return draws.uniform((rows, columns), -LARGEST, LARGEST)


def _increasing(draws: Draws, rows: int, columns: int) -> Array:
    """Draw rows and sort them in ascending order, so that each element is a new maximum. In odd rows the last element
    is far larger than all others.
    """
    x = np.sort(_random(draws, rows, columns), 1)
    x[1::2, -1] += np.float32(JUMP)
    return x


def _decreasing(draws: Draws, rows: int, columns: int) -> Array:
    return _increasing(draws, rows, columns)[:, ::-1]


def _tail(draws: Draws, rows: int, columns: int) -> Array:
    """Draw rows whose first element is the maximum and whose middle element is 0.5 below it. All others are the tail:
    exp() of each is too small to change a float sum, but their total is not.
    """
    x = -draws.uniform((rows, columns), *LEFT_BEHIND)
    x[:, columns // 2] = -0.5
    x[:, 0] = 0
    return x + np.floor(draws.uniform((rows, 1), -50.0, 50.0))


def _tail_last(draws: Draws, rows: int, columns: int) -> Array:
    return _tail(draws, rows, columns)[:, ::-1]


LOGITS: dict[str, Callable[[Draws, int, int], Array]] = {
    "random": _random,
    "equal": _equal,
    "dominant": _dominant,
    "masked": _masked,
    "masked_far": _masked_far,
    "offset": _offset,
    "large": _large,
    "increasing": _increasing,
    "decreasing": _decreasing,
    "tail": _tail,
    "tail_last": _tail_last,
}


# ---- partial results


def _partial_results(
    maxima: Callable[[Draws, int], tuple[Array, Array]], shape: Shape, draws: Draws
) -> dict[str, Array]:
    """Return m1, l1, o1, m2, l2 and o2 by name: for each row the two partial results (sides) that `merge` combines.

    `maxima` draws m1 and m2. The sums l1, l2 are from 1 to 100, the means o1, o2 within +-1. A side with a maximum of
    -inf is empty: its sum and mean are 0.
    """
    rows, d = shape["R"], shape["d"]
    found: dict[str, Array] = {}
    for side, m in zip("12", maxima(draws, rows), strict=True):
        empty = np.isneginf(m)
        sums, means = draws.uniform((rows,), 1.0, 100.0), draws.uniform((rows, d), -1.0, 1.0)
        sums[empty], means[empty] = 0, 0
        found |= {f"m{side}": m.astype(np.float32), f"l{side}": sums, f"o{side}": means}
    return found


def _near(draws: Draws, rows: int) -> tuple[Array, Array]:
    """Return m1 and m2 (R), the maxima of the two partial results of each row, within +-4."""
    return draws.uniform((rows,), -4.0, 4.0), draws.uniform((rows,), -4.0, 4.0)


def _far(draws: Draws, rows: int) -> tuple[Array, Array]:
    """Return m1 and m2 (R), the maxima of the two partial results of each row.

    In every third row they differ by JUMP, and alternately m2 and m1 is the larger one. In the other rows they differ
    by at most 3.
    """
    m1, difference = draws.uniform((rows,), -LARGEST, LARGEST), draws.uniform((rows,), -3.0, 3.0)
    difference[::6], difference[3::6] = JUMP, -JUMP
    return m1, m1 + difference


def _empty(draws: Draws, rows: int) -> tuple[Array, Array]:
    """Return m1 and m2 (R), -inf for empty sides. In rows 0, 1, 2 and 3 (mod 4), m1, m2, both or none are empty."""
    m1, m2 = _near(draws, rows)
    m1[0::4], m2[1::4] = -np.inf, -np.inf
    m1[2::4], m2[2::4] = -np.inf, -np.inf
    return m1, m2


def _same_maximum(draws: Draws, rows: int) -> tuple[Array, Array]:
    m, _ = _near(draws, rows)
    return m, m.copy()


PARTIALS: dict[str, Callable[[Draws, int], tuple[Array, Array]]] = {
    "partials": _near,
    "far": _far,
    "empty": _empty,
    "same_maximum": _same_maximum,
}
