"""Rows of a class report: one for each student, one for each machine of a cluster; and warnings on busy machines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from grader.core.results import Score, SubmissionResult


@dataclass(frozen=True)
class Row:
    """One student's row. `result` is None if the submission could not be judged; `trouble` then gives the reason."""

    submission_id: str
    name: str
    email: str
    result: SubmissionResult | None
    score: Score | None
    trouble: str | None
    submitted_at: datetime | None = None
    late_days: int = 0
    extension_days: int = 0
    slip_days: int = 0
    """Number of slip days (free late days) that the student has spent."""
    machine: str = ""
    """Name of the cluster machine that judged the submission; "" without a cluster."""

    @property
    def total(self) -> float | None:
        """Total points, or None if the row has no score or a part still waits to be judged."""
        return None if self.waiting or self.score is None else self.score.total

    @property
    def max_points(self) -> float | None:
        return None if self.score is None else self.score.max_points

    @property
    def waiting(self) -> tuple[str, ...]:
        """Ids of parts without points because the machine lacked a program to judge them."""
        return self.score.waiting if self.score else ()

    @property
    def extended(self) -> str:
        """Text on the extension and the spent slip days, such as "2 days of extension", or ""."""
        found = [(self.extension_days, "{} of extension"), (self.slip_days, "{} of slip spent")]
        return ", ".join(text.format(f"{n} day{'' if n == 1 else 's'}") for n, text in found if n)

    def part_points(self, part_id: str) -> float | None:
        """Return the points of one part, or None if the part waits to be judged or the row has no score."""
        if self.score is None or part_id in self.waiting:
            return None
        return next((line.points for line in self.score.lines if line.id == part_id), None)


APART = 0.05
"""A machine differs if its ratio's whole interval is above median * (1 + APART) or below median / (1 + APART)."""


@dataclass(frozen=True)
class Machine:
    """One machine of a cluster, at its last test (`at`, in UTC). `refused` is the reason why it may not judge, or "".

    `ratios` holds, by part id, the time ratio of the calibration submission and the ends of its interval. Every machine
    judges this submission first.
    """

    name: str
    at: str = ""
    host: str = ""
    processor: str = ""
    cores: int = 0
    refused: str = ""
    notes: tuple[str, ...] = ()
    ratios: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Spread:
    """Time ratios of one part of the calibration submission. `machines` is the number of machines with a ratio."""

    part_id: str
    machines: int
    lowest: float
    middle: float
    highest: float


def compared(machines: Iterable[Machine]) -> tuple[dict[str, list[str]], list[Spread]]:
    """Return ({machine: ids of the parts whose ratio differs from the median}, [the spread of each part]).

    APART defines a difference. Machines that may not judge are left out.
    """
    fit = [row for row in machines if not row.refused]
    spreads = []
    for part_id in dict.fromkeys(part_id for row in fit for part_id in row.ratios):
        ratios = [row.ratios[part_id][0] for row in fit if part_id in row.ratios]
        ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
        if ratios:
            spreads.append(Spread(part_id, len(ratios), min(ratios), median(ratios), max(ratios)))
    apart: dict[str, list[str]] = {}
    for row in fit:
        for spread in spreads:
            _, low, high = row.ratios.get(spread.part_id, (0.0, 0.0, math.inf))
            if low > spread.middle * (1 + APART) or high < spread.middle / (1 + APART):
                apart.setdefault(row.name, []).append(spread.part_id)
    return apart, spreads


# ---- load


def load_of(result: SubmissionResult) -> float | None:
    """Return the machine's 1-minute load average during judging, or None if it was not recorded."""
    loads = result.machine.get("load_average")
    first = loads[0] if isinstance(loads, (list, tuple)) and loads else None
    return float(first) if isinstance(first, (int, float)) else None


def load_text(result: SubmissionResult) -> str:
    """Return a text such as "load 3.5 on 2 cores", or "" if the load was not recorded."""
    load, cores = load_of(result), result.machine.get("cores")
    return (
        "" if load is None else f"load {load:.1f}" + (f" on {cores} cores" if isinstance(cores, int) else "")
    )


def load_warning(result: SubmissionResult) -> str:
    """Return a warning that other programs disturbed the times, or "".

    A time counts as disturbed if the load exceeded the number of cores, and the time is undecided or was not fit.
    """
    load, cores = load_of(result), result.machine.get("cores")
    if load is None or not isinstance(cores, int) or load <= cores:
        return ""
    disturbed = [
        part.id
        for part in result.parts
        if part.time and (not part.time.fit or "undecided" in part.time.flags)
    ]
    if not disturbed:
        return ""
    return f"The machine was busy ({load_text(result)}), which disturbed the times of {', '.join(disturbed)}."
