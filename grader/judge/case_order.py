"""Order in which a part's cases are called, and the choice of the calls that are measured or profiled.

Hidden cases are called after all public calls of all parts, in other runners (`grader.judge.evaluate`). So no output
that a student sees can depend on them.

Cases with their own shape come first. They are small, so a crash shows early, and they warm up code pages. Peak memory
is measured in the first call with the run's shape, because later calls can reuse memory that this call left in the
heap. After the verdict on results, the last call is repeated under torch's profiler, which makes a table of operators
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
    """One call of a case, and what to do with it.

    `peak`: measure its peak memory. `shown`: repeat it later under the profiler. `held_up`: delay its threads at random
    moments, if several threads work.
    """

    case: Case
    peak: bool = False
    shown: bool = False
    held_up: bool = True


@dataclass(frozen=True)
class Shown:
    """Record of the student's call `run`, which is repeated later under the profiler. `ok`: its outputs were right.
    `peak_bytes` is the peak memory of the call with `Step.peak`, which is `run` or an earlier call."""

    peak_bytes: int | None
    run: CaseRun
    ok: bool
    held_bytes: int | None = None
    """Memory held in the measured call (see `grader.runner.calls.Call.held_bytes`)."""


def profiled(part: Part, side: Side) -> dict[str, Any]:
    """Return the keyword arguments of `Session.call` that run a call under the profiler."""
    return {"profile_label": scope(part, side), "workspace_in_scope": part.workspace_in_scope}


def profiler_bytes(part: Part, side: Side, call: Call) -> int | None:
    """Return the bytes of memory in the profiler's row for the part (its `scope`); None without this row."""
    rows = [row for row in call.profile if row.name == scope(part, side)[:60]]
    return rows[0].cpu_bytes if rows else None


def scope(part: Part, side: Side) -> str:
    return f"{side} - {part.label}"


def steps(part: Part, *, look: bool) -> list[Step]:
    """Return the calls of a part's public cases in order. `look`: mark one to measure memory, and one to profile."""
    public = [case for case in part.cases if not case.hidden]
    sized = [case for case in public if not case.shape]
    fixed = [case for case in public if case.shape]
    if not sized:
        fixed, sized = fixed[:-2], fixed[-2:]
    # Put random inputs first, so that the last call, which the profiler's table shows, has the published inputs.
    sized.sort(key=lambda case: case.distribution != "random")
    if not look or not sized:
        return [Step(case) for case in (*fixed, *sized)]
    first, *rest = sized
    if not rest:
        return [*map(Step, fixed), Step(first, peak=True, shown=True)]
    return [*map(Step, fixed), Step(first, peak=True), *map(Step, rest[:-1]), Step(rest[-1], shown=True)]


def by_threads(steps: Iterable[Step], usual: int) -> dict[int, list[Step]]:
    """Return the steps by number of threads, because each number needs its own runner.

    A case without its own number has the run's `usual` number, which comes first.
    """
    found: dict[int, list[Step]] = {usual: []}
    for step in steps:
        found.setdefault(step.case.shape.get("threads", usual), []).append(step)
    return found


def reference_steps(part: Part) -> list[Step]:
    """Return the calls of cases with their own shape, and the call whose memory is measured. The reference makes only
    these. So both processes have allocated the same sizes before memory is measured."""
    return [step for step in steps(part, look=True) if step.peak or step.case.shape]


def smallest(part: Part) -> Case:
    """Return the public case with the smallest sizes. Cases with their own shape are preferred."""
    public = [case for case in part.cases if not case.hidden]
    return min(public, key=lambda case: (not case.shape, math.prod(case.shape.values())))
