"""A wrong output with the expected one, and the names of its axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from grader.core.arrays import Array, np


@dataclass(frozen=True)
class Axis:
    """One axis of an output: what an index along it is called, and which of the assignment's sizes is its length.

    Indices of a `listed` axis have no order that matters: they are listed one by one, not as ranges.
    """

    name: str
    plural: str
    letter: str
    size: str = ""
    listed: bool = False

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of diagnoses that say where along it an output is wrong, and not why."""
        if self.listed:
            return (self.plural.replace(" ", "_"),)
        return (f"{self.name}_range", f"periodic_{self.name}s")


_LAST = (Axis("row", "rows", "i"), Axis("column", "columns", "j"))


def usual_axes(dimensions: int) -> tuple[Axis, ...]:
    """Return names for the axes of an output that its oracle does not name."""
    if dimensions == 1:
        return (Axis("element", "elements", "i"),)
    first = [
        Axis(f"index {k}", f"indices {k}", chr(ord("a") + k % 8), listed=True) for k in range(dimensions - 2)
    ]
    return (*first, *_LAST)


@dataclass(frozen=True)
class Deviation:
    """An output of the right shape that is wrong. `expected`, `actual` and `tolerance` are float64 and `wrong` bool,
    all of one shape. `sizes` and `inputs` are the call's, by name; `tiles` are the sizes that are lengths of tiles."""

    expected: Array
    actual: Array
    tolerance: Array
    wrong: Array
    sizes: Mapping[str, int]
    inputs: Mapping[str, Array]
    axes: tuple[Axis, ...]
    tiles: tuple[str, ...] = ()
    output: str = "the output"
    """Name of the output in words."""

    @cached_property
    def slack(self) -> Array:
        """Largest allowed distance of a prediction from the output: rounding, and some more."""
        return 8 * self.tolerance

    @property
    def tile_lengths(self) -> list[int]:
        return [self.sizes[name] for name in self.tiles if name in self.sizes]

    def agrees(
        self, wanted: Array, got: Array, slack: Array | None = None, wrong: Array | None = None
    ) -> bool:
        """Return True if nearly all elements of `got` equal the wanted ones, also among the elements where the output
        is wrong.
        """
        slack, wrong = self.slack if slack is None else slack, self.wrong if wrong is None else wrong
        close = abs(got - wanted) <= slack
        return bool(wrong.any()) and bool(close.mean() > 0.97) and bool(close[wrong].mean() > 0.97)

    def finite(self) -> bool:
        """Return True if everything that is wrong is a number."""
        return bool(np.isfinite(self.actual[self.wrong]).all())
