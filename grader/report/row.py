"""One student of a class, as reports show them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from grader.core.results import Score, SubmissionResult


@dataclass(frozen=True)
class Row:
    """One student. `result` is None when nothing could be judged, and `trouble` then says why, in words for people."""

    submission_id: str
    name: str
    email: str
    result: SubmissionResult | None
    score: Score | None
    trouble: str | None
    submitted_at: datetime | None = None
    late_days: int = 0
    machine: str = ""
    """Of a cluster: who judged it."""

    @property
    def total(self) -> float | None:
        """The final total, or None when there is no grade (yet): while a part waits to be judged, none."""
        return None if self.waiting or self.score is None else self.score.total

    @property
    def max_points(self) -> float | None:
        return None if self.score is None else self.score.max_points

    @property
    def waiting(self) -> tuple[str, ...]:
        """Parts that could not be judged, for want of something on the machine, and have no points by hand either."""
        return self.score.waiting if self.score else ()

    def part_points(self, part_id: str) -> float | None:
        """Points of one part; None while it waits, and where nothing was judged."""
        if self.score is None or part_id in self.waiting:
            return None
        return next((line.points for line in self.score.lines if line.id == part_id), None)
