"""Limits on the size and content of reports that other programs read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from grader.core.errors import KitError
from grader.core.quantities import size_text
from grader.report import words

#: Maximum lengths of each text in a report, in characters. `fitted` tries them in this order.
TEXT_LIMITS = (6000, 3000, 1500, 700, 300, 120, 50, 20)
#: Starts of commands to a GitHub runner in a step's output: "::" at the start of a line, "##[" anywhere.
_COMMAND = re.compile(r"(?m)^([^\S\n]*):(?=:)|#(?=#\[)")


def encoded(value: Any) -> bytes:
    """Return a value as JSON in ASCII. Raises ValueError for NaN and infinities."""
    return json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"


def fitted(make: Callable[[int], dict[str, Any]], most_bytes: int) -> dict[str, Any]:
    """Call `make` with each limit of TEXT_LIMITS. Return the first result that fits into `most_bytes` as JSON.

    Raises KitError if even the result with the shortest texts is too large.
    """
    for characters in TEXT_LIMITS:
        made = make(characters)
        if len(encoded(made)) <= most_bytes:
            return made
    raise KitError(f"the results are larger than {size_text(most_bytes)}: the assignment has too many parts")


def text(value: str, characters: int) -> str:
    """Return untrusted text, cut at `characters`, without sequences that control a terminal or a GitHub runner."""
    return _COMMAND.sub(_apart, words.block(value, characters, lines=200))


def name(value: str, characters: int = 150) -> str:
    """Return untrusted text as one line of at most 150 characters, made harmless as by `text`."""
    return _COMMAND.sub(_apart, words.line(value, max(8, min(150, characters))))


def _apart(found: re.Match[str]) -> str:
    return "# " if found[0] == "#" else f"{found[1]}: "


def finite(value: float) -> float:
    return round(float(value), 4) if math.isfinite(value) else 0.0
