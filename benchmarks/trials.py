"""Shared parts of the benchmarks: child processes with their times, and small tables.

Every figure here is a ratio of two things measured in turn in one run, because the machines that these
scripts run on are shared; no absolute time is a target.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
# As on a student's machine: without bytecode every process compiles the kit's modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

PUBLISHED_FLAGS = ("-mavx", "-O3", "-fopenmp")


@dataclass(frozen=True)
class Trial:
    """One child process: wall seconds, CPU seconds with all descendants it waited for, and when the line
    appeared.
    """

    wall_s: float
    cpu_s: float
    returncode: int
    line_s: float | None
    output: str


def run_child(
    command: Sequence[str], *, until: str | None = None, environment: Mapping[str, str] | None = None
) -> Trial:
    """Run `command` in the project's folder; `line_s` is when the first line beginning with `until`
    arrived.
    """
    started = time.perf_counter()
    child = subprocess.Popen(
        list(command),
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines, line_s = [], None
    with child.stdout:
        for line in child.stdout:
            if line_s is None and until is not None and line.strip().startswith(until):
                line_s = time.perf_counter() - started
            lines.append(line)
    _, status, usage = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    return Trial(wall_s, usage.ru_utime + usage.ru_stime, child.returncode, line_s, "".join(lines))


def checked(trial: Trial, command: Sequence[str]) -> Trial:
    """The trial, or the end of the benchmark: a figure of a command that failed means nothing."""
    if trial.returncode != 0:
        tail = "\n".join(trial.output.splitlines()[-12:])
        sys.exit(f"{' '.join(command)} ended with {trial.returncode}:\n{tail}")
    return trial


def spread(values: Sequence[float]) -> str:
    """Median and range, in seconds."""
    return f"{median(values):.3f} s ({min(values):.3f}-{max(values):.3f}, n={len(values)})"


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Columns padded to their widest cell, under a ruled header."""
    widths = [max(len(row[k]) for row in (header, *rows)) for k in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    head = "  ".join(cell.ljust(width) for cell, width in zip(header, widths, strict=True)).rstrip()
    return "\n".join([head, "-" * len(head), *lines])


def against(name: str, ours: Sequence[float], theirs: Sequence[float], target: float | None) -> list[str]:
    """One row: both sides, the ratio of their medians, and whether it meets the target."""
    ratio = median(ours) / median(theirs)
    wanted = "" if target is None else f"<= {target:g}"
    met = "" if target is None else ("met" if ratio <= target else "MISSED")
    return [name, spread(ours), spread(theirs), f"{ratio:.3f}", wanted, met]


AGAINST_HEADER = ("what", "ours", "against", "ratio", "target", "")
