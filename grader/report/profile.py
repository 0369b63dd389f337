"""The familiar torch.profiler table, at most WIDTH columns wide, laid out here from rows that the runner sends."""

from __future__ import annotations

from collections.abc import Sequence

from grader.core.results import ProfileRow

COLUMNS = (
    "Name",
    "Self CPU %",
    "Self CPU",
    "CPU total %",
    "CPU total",
    "CPU Mem",
    "# of Calls",
)
"""Columns of torch's own table that fit. The mean is the total over the calls, and few rows take memory themselves."""
WIDTH = 100
ROW_LIMIT = 10


def table(rows: Sequence[ProfileRow]) -> str:
    """Format at most ten rows by falling total time, with the total of self time below."""
    whole_us = sum(row.self_cpu_us for row in rows) or 1.0
    shown = sorted(rows, key=lambda row: -row.cpu_total_us)[:ROW_LIMIT]
    cells = [
        (
            row.name,
            f"{100 * row.self_cpu_us / whole_us:.2f}%",
            duration(row.self_cpu_us),
            f"{100 * row.cpu_total_us / whole_us:.2f}%",
            duration(row.cpu_total_us),
            size(row.cpu_bytes),
            str(row.calls),
        )
        for row in shown
    ]
    widths = [max(len(line[k]) for line in [COLUMNS, *cells]) for k in range(len(COLUMNS))]
    widths[0] = min(widths[0], WIDTH - sum(width + 2 for width in widths[1:]))
    rule = "  ".join("-" * width for width in widths)
    lines = [rule, _line(COLUMNS, widths), rule, *(_line(line, widths) for line in cells), rule]
    return "\n".join([*lines, f"Self CPU time total: {duration(sum(row.self_cpu_us for row in rows))}"])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell[:width].rjust(width) for cell, width in zip(cells, widths, strict=True))


def duration(us: float) -> str:
    """Format microseconds for people: 12.345us, 12.345ms, 1.234s."""
    if us >= 1e6:
        return f"{us / 1e6:.3f}s"
    return f"{us / 1e3:.3f}ms" if us >= 1e3 else f"{us:.3f}us"


#: Words for a peak of 0 bytes: the process did not grow, since memory kept from earlier calls was enough.
NO_GROWTH = "none above that of earlier calls"


def size(count: float) -> str:
    """Format bytes for people: 512 B, 4.50 MB (of 1024 x 1024). Negative if more was freed than taken."""
    for unit, scale in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if abs(count) >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"
