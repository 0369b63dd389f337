"""Block lengths by which a kernel divides its output, found from sizes of the call and macros of its source."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from grader.source.cpptext import blanked, definition

if TYPE_CHECKING:
    from grader.explain.deviation import Axis

LONGEST_SOURCE = 1 << 20
"""Longest source that is examined, in characters."""


def blocks(
    axes: tuple[Axis, ...],
    cuts: Mapping[str, tuple[str, ...]],
    sizes: Mapping[str, int],
    source: str,
    function: str,
    defines: Mapping[str, str],
) -> tuple[tuple[str, int] | None, ...]:
    """Return for each axis the name and the length of its blocks; None if they are unknown.

    `cuts` holds candidate names by the axis's letter (`grader.explain.oracle.Oracle.cuts`). A name is that of a size,
    or of a macro in the function's body, whose value is in `defines` or in the source. Takes linear time.
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
    """Return the words in the function's body. Cached, since it takes 10 ms for a 30 KB file."""
    code = blanked(source)
    found = definition(code, function)
    return frozenset(re.findall(r"\w+", code[found.body : found.end])) if found else frozenset()


def _macro(name: str, source: str, defines: Mapping[str, str]) -> int | None:
    """Return the value of a macro; None unless it is a plain number."""
    text = defines.get(name)
    if text is None:
        found = re.search(
            rf"^[ \t]*#[ \t]*define[ \t]+{re.escape(name)}[ \t]+(\d{{1,7}})\b", source, re.MULTILINE
        )
        text = found[1] if found else ""
    return int(text) if re.fullmatch(r"\d{1,7}", text) else None
