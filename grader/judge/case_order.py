"""Order in which a part's cases are called, and the calls that also measure memory or feed the profiler's table.

Hidden cases are called after all public calls of all parts, in runners of their own
(`grader.judge.evaluate`): so no output that a student sees can depend on them.

Small inputs of their own shape come first: a crash shows soonest there, and they warm up code pages. The peak is
measured at the first call of the run's own shape: memory that an earlier call left in the heap would hide it. The last
one is repeated under torch's profiler, after the verdict on results: only the profiler's table depends on it
(`grader.judge.memory`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from grader.assignment.records import Case, Part
from grader.explain.case_run import CaseRun
from grader.runner.calls import Call

Side = Literal["REFERENCE", "STUDENT"]


@dataclass(frozen=True)
class Step:
    """One call of a case. `peak`: its memory is measured; `shown`: it is made again under the profiler; `held_up`: its
    threads are delayed at random moments, if they share work.
    """

    case: Case
    peak: bool = False
    shown: bool = False
    held_up: bool = True


@dataclass(frozen=True)
class Shown:
    """The student's plain call that the profiled one is to repeat, and the peak of an earlier call in bytes."""

    peak_bytes: int | None
    run: CaseRun
    ok: bool
    held_bytes: int | None = None
    """Bytes held by the call with that peak (`grader.runner.calls.Call`)."""


def profiled(part: Part, side: Side) -> dict[str, Any]:
    """Arguments of `Session.call` for a call under the profiler."""
    return {"profile_label": scope(part, side), "workspace_in_scope": part.workspace_in_scope}


def profiler_bytes(part: Part, side: Side, call: Call) -> int | None:
    """Bytes of the part's own scope in the table of a profiled call, the familiar "mem usage"."""
    rows = [row for row in call.profile if row.name == scope(part, side)[:60]]
    return rows[0].cpu_bytes if rows else None


def scope(part: Part, side: Side) -> str:
    return f"{side} - {part.label}"


def steps(part: Part, *, look: bool) -> list[Step]:
    """Return all calls of a part's public cases, in order."""
    public = [case for case in part.cases if not case.hidden]
    sized = [case for case in public if not case.shape]
    fixed = [case for case in public if case.shape]
    if not sized:
        fixed, sized = fixed[:-2], fixed[-2:]
    # Random data come first among cases of one size: the profiler table shows the last one, the published ramp.
    sized.sort(key=lambda case: case.distribution != "random")
    if not look or not sized:
        return [Step(case) for case in (*fixed, *sized)]
    first, *rest = sized
    if not rest:
        return [*map(Step, fixed), Step(first, peak=True, shown=True)]
    return [*map(Step, fixed), Step(first, peak=True), *map(Step, rest[:-1]), Step(rest[-1], shown=True)]


def has_hidden(part: Part) -> bool:
    return any(case.hidden for case in part.cases)


def hidden_steps(part: Part) -> list[Step]:
    return [Step(case) for case in part.cases if case.hidden]


def by_threads(steps: Iterable[Step], usual: int) -> dict[int, list[Step]]:
    """Return the steps by number of threads: a case's own, or the run's `usual` one, which comes first.

    A runner gets its number of threads when it starts.
    """
    found: dict[int, list[Step]] = {usual: []}
    for step in steps:
        found.setdefault(step.case.shape.get("threads", usual), []).append(step)
    return found


def reference_steps(part: Part) -> list[Step]:
    """Return the calls up to the measured one. The reference makes them too, so that both heaps have the same past."""
    return [step for step in steps(part, look=True) if step.peak or step.case.shape]


def smallest(part: Part) -> Case:
    """Return the public case with the smallest sizes, among those with a shape of their own if there are any."""
    public = [case for case in part.cases if not case.hidden]
    return min(public, key=lambda case: (not case.shape, math.prod(case.shape.values())))
