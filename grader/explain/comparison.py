"""Expected values in float64 with their tolerances, and their comparison with an output."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grader.core.arrays import Array, np
from grader.core.results import MAP_CELLS

#: Unit roundoff of float32: the largest relative error of one correctly rounded operation.
UNIT_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Expected:
    """Expected output of a kernel, float64, and the largest |actual - value| that is accepted, for each element."""

    value: Array
    tolerance: Array | float


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison. `ok`: all elements are right. `wrong` is a bool array of the output's shape.

    `max_error` is the largest |actual - expected|, inf if an element is not finite. `budget_used` is the largest
    error / tolerance.
    """

    ok: bool
    max_error: float
    wrong: Array
    budget_used: float = 0.0


def compare(expected: Expected, actual: Array) -> Comparison:
    """Compare an output of the right shape and any floating type with the expected one.

    An element that is not finite is wrong, unless the same infinity is expected.
    """
    with np.errstate(all="ignore"):
        error = np.subtract(actual, expected.value, dtype=np.float64)
        np.abs(error, out=error)
        if error.size and math.isnan(error.max()):
            error[np.isinf(expected.value) & (actual == expected.value)] = 0
        right = error <= expected.tolerance
        if error.size == 0:
            return Comparison(True, 0.0, ~right, 0.0)
        max_error = float(error.max())
        error /= np.maximum(expected.tolerance, 1e-300)
        budget_used = float(error.max())
    return Comparison(
        ok=bool(right.all()),
        max_error=max_error if math.isfinite(max_error) else math.inf,
        wrong=np.logical_not(right, out=right),
        budget_used=budget_used if math.isfinite(budget_used) else math.inf,
    )


def error_map(wrong: Array) -> tuple[str, ...]:
    """Return the rows of `CaseResult.error_map` for a mask of wrong elements; () if no element is wrong.

    The map shows the 2-D slice with the most wrong elements; a 1-D mask gives one row. A row is a text with one digit
    for each cell: the cell's share of wrong elements, from 0 to 9.
    """
    if not wrong.any():
        return ()
    planes = wrong.reshape(-1, *wrong.shape[-2:]) if wrong.ndim >= 2 else wrong.reshape(1, 1, -1)
    worst = planes[int(planes.sum(axis=(1, 2)).argmax())]
    return tuple(
        "".join(
            str(math.ceil(9 * float(cell.mean()))) for cell in np.array_split(band, _cells(band, 1), axis=1)
        )
        for band in np.array_split(worst, _cells(worst, 0), axis=0)
    )


def _cells(plane: Array, axis: int) -> int:
    return min(MAP_CELLS, plane.shape[axis])
