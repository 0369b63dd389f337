"""Formatting of sizes and of lists of names, and parsing of whole numbers in untrusted text.

Some modules write sizes in other ways on purpose. For example, the profiler's table copies the format of torch
(`grader.report.terminal`), and sizes of caches are written as on a command line, "32K" (`grader.study.helpers`).
"""

from __future__ import annotations

from collections.abc import Sequence

MIB, GIB = 1 << 20, 1 << 30
MOST_DIGITS = 19
MOST_NAMES = 5


def size_text(size_bytes: float) -> str:
    """Format a number of bytes for people: 10240 gives "10 KiB"."""
    size = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def whole(text: str) -> int | None:
    """Convert a text of ASCII digits to a number. Return None for other text and for more than MOST_DIGITS digits."""
    plain = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
    return int(text) if plain else None


def shortened(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Return the first `most` names, joined by commas. If there are more, " and N more" follows."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
