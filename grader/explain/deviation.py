"""Wrong output of a kernel, with the expected output, the names of the axes, and the blocks along each axis."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from grader.core.arrays import Array, np
from grader.source.cpptext import blanked, definition

LONGEST_SOURCE = 1 << 20
"""Longest source that is examined, in characters."""


@dataclass(frozen=True)
class Axis:
    """One axis of an output: words for its indices ("row", "rows", "i"), and the name of the size that is its length.

    The order of a `listed` axis has no meaning (heads, say): messages list its indices one by one, not as ranges.
    """

    name: str
    plural: str
    letter: str
    size: str = ""
    listed: bool = False

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of diagnoses that name the wrong indices along this axis, but not the cause."""
        if self.listed:
            return (self.plural.replace(" ", "_"),)
        return (f"{self.name}_range", f"periodic_{self.name}s")


_LAST = (Axis("row", "rows", "i"), Axis("column", "columns", "j"))


def usual_axes(dimensions: int) -> tuple[Axis, ...]:
    """Return default names for the axes of an output whose oracle does not name them."""
    if dimensions < len(_LAST):
        return (Axis("element", "elements", "i"),)[:dimensions]
    first = [
        Axis(f"index {k}", f"indices {k}", chr(ord("a") + k % 8), listed=True) for k in range(dimensions - 2)
    ]
    return (*first, *_LAST)


@dataclass(frozen=True)
class Deviation:
    """An output, usually a wrong one. `expected`, `actual`, `tolerance` (float64) and `wrong` (bool) have one shape.

    `sizes` and `inputs` are those of the call, by name. `tiles` names the sizes that are lengths of tiles.
    """

    expected: Array
    actual: Array
    tolerance: Array
    wrong: Array
    sizes: Mapping[str, int]
    inputs: Mapping[str, Array]
    axes: tuple[Axis, ...]
    tiles: tuple[str, ...] = ()
    output: str = "the output"
    """Name of the output in messages."""

    @cached_property
    def slack(self) -> Array:
        """Largest difference, per element, at which a predicted output counts as equal to the actual one."""
        return 8 * self.tolerance

    @property
    def tile_lengths(self) -> list[int]:
        return [self.sizes[name] for name in self.tiles if name in self.sizes]

    def agrees(
        self, wanted: Array, got: Array, slack: Array | None = None, wrong: Array | None = None
    ) -> bool:
        """Return True if `got` is within `slack` of `wanted` in over 97 % of all elements and of those in `wrong`.

        `slack` and `wrong` are by default those of this output. Returns False if no element is in `wrong`.
        """
        slack, wrong = self.slack if slack is None else slack, self.wrong if wrong is None else wrong
        close = abs(got - wanted) <= slack
        return bool(wrong.any()) and bool(close.mean() > 0.97) and bool(close[wrong].mean() > 0.97)

    def finite(self) -> bool:
        """Return True if all wrong elements are finite numbers."""
        return bool(np.isfinite(self.actual[self.wrong]).all())


def blocks(
    axes: tuple[Axis, ...],
    cuts: Mapping[str, tuple[str, ...]],
    sizes: Mapping[str, int],
    source: str,
    function: str,
    defines: Mapping[str, str],
) -> tuple[tuple[str, int] | None, ...]:
    """Return, for each axis, the name and the length of the blocks along it; None for an axis without known blocks.

    `cuts` holds candidate names by the axis's letter (`grader.explain.oracle.Oracle.cuts`). A candidate is a size, or
    a macro in the function's body. The macro's value comes from `defines` or the source. Takes linear time.
    """
    wanted = {name for names in cuts.values() for name in names}
    known = {name: value for name, value in sizes.items() if name in wanted}
    if wanted - set(known):
        used = (wanted - set(known)) & _words(source[:LONGEST_SOURCE], function)
        known |= {name: value for name in used if (value := _macro(name, source, defines)) is not None}
    found = []
    for axis in axes:
        name = next((name for name in cuts.get(axis.letter, ()) if known.get(name, 0) > 0), None)
        found.append((name, known[name]) if name is not None else None)
    return tuple(found)


@functools.lru_cache(maxsize=1)
def _words(source: str, function: str) -> frozenset[str]:
    """Return the words in the function's body. Cached, because it takes 10 ms for a 30 KB file."""
    code = blanked(source)
    found = definition(code, function)
    return frozenset(re.findall(r"\w+", code[found.body : found.end])) if found else frozenset()


def _macro(name: str, source: str, defines: Mapping[str, str]) -> int | None:
    """Return the value of a macro; None unless it is a plain number of at most 7 digits."""
    text = defines.get(name)
    if text is None:
        found = re.search(
            rf"^[ \t]*#[ \t]*define[ \t]+{re.escape(name)}[ \t]+(\d{{1,7}})\b", source, re.MULTILINE
        )
        text = found[1] if found else ""
    return int(text) if re.fullmatch(r"\d{1,7}", text) else None
