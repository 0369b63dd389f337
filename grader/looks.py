"""In which order a part's cases are called, and which of these calls are also looked at: for memory and the table.

Hidden cases are called last, in a runner of their own: what the kernel said before is free of what it saw in them.

Small inputs of their own shape come first: a crash shows soonest there, and they warm up code pages. The first call
of the run's own shape is measured for its peak, since memory that an earlier one of that size left in the heap would
hide it; the last one runs under the profiler. So looking costs no calls of its own, unless there is only one such case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from grader.assignment import Case, Part
from grader.session import Call

Side = Literal["REFERENCE", "STUDENT"]


@dataclass(frozen=True)
class Step:
    """One call of a case: plain, or with what `Session.call` is to find out besides the answer."""

    case: Case
    peak: bool = False
    profile: bool = False

    def wanted(self, part: Part, side: Side) -> dict[str, Any]:
        if self.peak:
            return {"measure_peak": True}
        if self.profile:
            return {"profile_label": scope(part, side), "workspace_in_scope": part.workspace_in_scope}
        return {}


@dataclass(frozen=True)
class Look:
    """What one side showed: the peak of one call, and another call under the profiler with its inputs."""

    peak_bytes: int | None
    call: Call
    shape: Mapping[str, int]
    inputs: Mapping[str, Any]
    ok: bool

    def profiler_bytes(self, part: Part, side: Side) -> int | None:
        """Bytes of the part's own scope in the table, the familiar "mem usage"."""
        rows = [row for row in self.call.profile if row.name == scope(part, side)[:60]]
        return rows[0].cpu_bytes if rows else None


def scope(part: Part, side: Side) -> str:
    return f"{side} - {part.label}"


def steps(part: Part, *, look: bool) -> list[Step]:
    """All calls of a part's public cases, in order."""
    public = [case for case in part.cases if not case.hidden]
    sized = [case for case in public if not case.shape]
    fixed = [case for case in public if case.shape]
    if not sized:
        fixed, sized = fixed[:-2], fixed[-2:]
    # Among those of one size random data first: the published ramp is what the table of the published kit shows.
    sized.sort(key=lambda case: case.distribution != "random")
    if not look:
        return [Step(case) for case in (*fixed, *sized)]
    first, *rest = sized
    last = rest.pop() if rest else first
    return [*map(Step, fixed), Step(first, peak=True), *map(Step, rest), Step(last, profile=True)]


def hidden_steps(part: Part) -> list[Step]:
    return [Step(case) for case in part.cases if case.hidden]


def reference_steps(part: Part) -> list[Step]:
    """The same calls for the reference, so that its heap has the same past; but nothing that is only to be judged."""
    return [step for step in steps(part, look=True) if step.peak or step.profile or step.case.shape]


def smallest(part: Part) -> Case:
    public = [case for case in part.cases if not case.hidden]
    return min(public, key=lambda case: case.shape.get("N", 1 << 30))
