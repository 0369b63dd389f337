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

    def part_points(self, part_id: str) -> float | None:
        """Return the points of one part; None while it waits, and if nothing was judged."""
        if self.score is None or part_id in self.waiting:
            return None
        return next((line.points for line in self.score.lines if line.id == part_id), None)
