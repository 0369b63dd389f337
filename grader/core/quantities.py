"""Sizes in bytes as people read them, and whole numbers as others wrote them.

Two sizes are worded elsewhere on purpose: the profiler's table has the words of torch's own (`grader.report.profile`),
and caches are named as on a command line, "32K" (`grader.study.helpers`).
"""

from __future__ import annotations

MIB, GIB = 1 << 20, 1 << 30
MOST_DIGITS = 19


def size_text(size_bytes: float) -> str:
    """10240 -> "10 KiB", for people."""
    size = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def whole(text: str) -> int | None:
    """The number that these ASCII digits write; None for anything else, and for more than MOST_DIGITS of them."""
    plain = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
    return int(text) if plain else None
