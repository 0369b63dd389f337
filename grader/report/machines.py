"""Rows of a class report, and its table of machines: machines whose times differ, and loads that disturbed times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import median

from grader.core.results import Score, SubmissionResult


@dataclass(frozen=True)
class Row:
    """One student. `result` is None if nothing could be judged; `trouble` is then the reason, for people."""

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
    """Slip days that the student has spent."""
    machine: str = ""
    """Machine of a cluster that judged the submission."""

    @property
    def total(self) -> float | None:
        """Final total; None without a score, and while a part waits to be judged."""
        return None if self.waiting or self.score is None else self.score.total

    @property
    def max_points(self) -> float | None:
        return None if self.score is None else self.score.max_points

    @property
    def waiting(self) -> tuple[str, ...]:
        """Parts that this machine could not judge for lack of a tool, and that have no points by hand."""
        return self.score.waiting if self.score else ()

    @property
    def extended(self) -> str:
        """The extension and the spent slip days in words, such as "2 days of extension"; "" without any."""
        found = [(self.extension_days, "{} of extension"), (self.slip_days, "{} of slip spent")]
        return ", ".join(text.format(f"{n} day{'' if n == 1 else 's'}") for n, text in found if n)

    def part_points(self, part_id: str) -> float | None:
        """Return the points of one part; None while it waits, and if nothing was judged."""
        if self.score is None or part_id in self.waiting:
            return None
        return next((line.points for line in self.score.lines if line.id == part_id), None)


APART = 0.05
"""Relative difference (5 %) from the median of all machines beyond which a machine's whole interval stands apart."""

Ratios = Mapping[str, tuple[float, float, float]]


@dataclass(frozen=True)
class MachineRow:
    """One machine.

    `ratios` are those of the calibration submission, by part: the ratio and its interval's ends. `apart` are the parts
    in which it differs from the other machines.
    """

    name: str
    host: str = ""
    processor: str = ""
    cores: int = 0
    refused: str = ""
    notes: tuple[str, ...] = ()
    ratios: Ratios = field(default_factory=dict)
    apart: tuple[str, ...] = ()


@dataclass(frozen=True)
class Spread:
    """Time ratios of one part of the calibration submission, over all machines that may judge."""

    part_id: str
    machines: int
    lowest: float
    middle: float
    highest: float


def compared(rows: Sequence[MachineRow]) -> tuple[list[MachineRow], list[Spread]]:
    """Return the rows with their `apart` filled in, and the spread of each part."""
    fit = [row for row in rows if not row.refused]
    spreads = []
    for part_id in dict.fromkeys(part_id for row in fit for part_id in row.ratios):
        ratios = [row.ratios[part_id][0] for row in fit if part_id in row.ratios]
        ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
        if ratios:
            spreads.append(Spread(part_id, len(ratios), min(ratios), median(ratios), max(ratios)))
    middle = {spread.part_id: spread.middle for spread in spreads}
    return [replace(row, apart=() if row.refused else _apart(row, middle)) for row in rows], spreads


def _apart(row: MachineRow, middle: Mapping[str, float]) -> tuple[str, ...]:
    """Return the parts in which this machine's whole interval is further than APART from the median of all."""
    return tuple(
        part_id
        for part_id, (_, low, high) in row.ratios.items()
        if part_id in middle and (low > middle[part_id] * (1 + APART) or high < middle[part_id] / (1 + APART))
    )


# ---- load


def load_of(result: SubmissionResult) -> float | None:
    """Return the machine's load average over 1 minute when it judged; None if it is not recorded."""
    loads = result.machine.get("load_average")
    first = loads[0] if isinstance(loads, (list, tuple)) and loads else None
    return float(first) if isinstance(first, (int, float)) else None


def load_text(result: SubmissionResult) -> str:
    """Return "load 3.5 on 2 cores"; "" if it is not recorded."""
    load, cores = load_of(result), result.machine.get("cores")
    return (
        "" if load is None else f"load {load:.1f}" + (f" on {cores} cores" if isinstance(cores, int) else "")
    )


def load_warning(result: SubmissionResult) -> str:
    """Return a warning that other programs disturbed the times; "" if they did not.

    Times count as disturbed if the load exceeded the cores, and a time is undecided or the reference differed from
    itself.
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
