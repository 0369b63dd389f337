"""Records of measured times: of one call, and of the four calls of a round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """Times of one call: wall seconds by the judge's clock, and CPU seconds of the runner (None if unknown)."""

    wall_s: float
    cpu_s: float | None
    own_s: float | None = None
    """Wall seconds without the time spent waiting for a core."""


@dataclass(frozen=True)
class Round:
    """Times of a round: two calls of the reference and two of the student, each in the order of the calls."""

    reference: tuple[Sample, Sample]
    student: tuple[Sample, Sample]

    @property
    def wall_s(self) -> float:
        """Sum of the wall seconds of the four calls."""
        return sum(sample.wall_s for sample in (*self.reference, *self.student))
