"""Row of a class report: one student."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

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
    """Slip days that were spent, of those the student has."""
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
        """The days beyond the due date in words; "" without any."""
        found = [(self.extension_days, "{} of extension"), (self.slip_days, "{} of slip spent")]
        return ", ".join(text.format(f"{n} day{'' if n == 1 else 's'}") for n, text in found if n)

    def part_points(self, part_id: str) -> float | None:
        """Return the points of one part; None while it waits, and if nothing was judged."""
        if self.score is None or part_id in self.waiting:
            return None
        return next((line.points for line in self.score.lines if line.id == part_id), None)
