"""From verdicts to points, by the assignment's rubric alone."""

from __future__ import annotations

from grader.assignment import Part
from grader.results import Verdict


def points(part: Part, verdict: Verdict) -> float:
    """What one part earns: all of its points when it passes, the reduced ones when it is right but slow, else none."""
    if verdict == "pass":
        return part.points
    return part.points_if_slow if verdict == "slow" else 0.0
