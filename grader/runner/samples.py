"""Times of single calls, and of the four calls of one round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """One call: wall seconds by the judge's clock and, where it can be read, CPU seconds of the runner."""

    wall_s: float
    cpu_s: float | None
    own_s: float | None = None
    """Wall seconds without the time spent waiting for a core."""


@dataclass(frozen=True)
class Round:
    """Two calls of each side, each pair in the order of the calls."""

    reference: tuple[Sample, Sample]
    student: tuple[Sample, Sample]

    @property
    def wall_s(self) -> float:
        """Wall seconds of the four calls together."""
        return sum(sample.wall_s for sample in (*self.reference, *self.student))
