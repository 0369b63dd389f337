"""The reference against itself, in two runners: what the timed verdicts of this machine are worth just now."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from grader.doctor.host import Finding
from grader.errors import KitError
from grader.results import Timing

SIZE = 512
"""Rows: a call takes tens of milliseconds, as in a graded run, and the whole check a few seconds."""
BUDGET_S = 6.0
APART = 0.05
"""Two copies of one program should not differ by more than this in the median."""


def findings(config: Path) -> list[Finding]:
    """One for each clock that a part of the assignment is timed by."""
    from grader.assignment import load
    from grader.zygote import Zygote

    assignment = load(config)
    found = []
    try:
        with Zygote() as zygote:
            for clock in ("cpu", "wall"):
                part = next(
                    (p for p in assignment.parts if p.time and p.time.clock == clock and p.reference), None
                )
                if part is not None:
                    found.append(judged(_against_itself(zygote, assignment, part), clock, part.title))
    except KitError as error:
        found.append(Finding("fail", f"the reference cannot be timed: {error}", "no time can be judged", ""))
    return found


def judged(timing: Timing, clock: str, title: str) -> Finding:
    """What such a measurement means."""
    low, high = timing.ratio_interval
    told = f"{title} against itself, by {clock} time: {timing.ratio:.3f} ({low:.3f} to {high:.3f})"
    if timing.verdict == "slow":
        return Finding(
            "fail",
            told,
            "two copies of one program differ by more than a student is allowed: verdicts on time would be chance",
            "end what else runs here, and see the warnings above",
        )
    apart = not low <= 1 <= high and abs(timing.ratio - 1) > APART
    if apart or not timing.fit:
        return Finding(
            "warn",
            told,
            "two copies of one program differ: submissions will be timed again, or be undecided",
            "end what else runs here, and see the warnings above",
        )
    return Finding("ok", told)


def _against_itself(zygote: Any, assignment: Any, part: Any) -> Timing:
    from grader import binding, machine, measure
    from grader.cases import make_inputs
    from module_ref_stub import library_path

    rule = part.time
    threads = rule.threads or assignment.defaults["threads"]
    shape = {**assignment.defaults, "N": min(SIZE, assignment.defaults["N"])}
    cpus = machine.timing_cpus(rule.threads)
    inputs = make_inputs("random", shape, 1)
    request = binding.request(part, shape, inputs, reference=True)

    def sample(session: Any) -> measure.Sample:
        call = session.call(request)
        if call.status != "ok":
            raise KitError(f"{part.reference}: {call.status} {call.signal_name}{call.message}")
        return measure.Sample(call.wall_s, call.cpu_s)

    policy = measure.TimePolicy(
        clock=rule.clock, allowance_ratio=rule.allowance_ratio, allowance_ms=0, budget_s=BUDGET_S
    )
    sides = [zygote.spawn("raw", library_path(), threads=threads, cpus=cpus) for _ in range(2)]
    try:
        return measure.compare(*(partial(sample, side) for side in sides), policy, 1)
    finally:
        for side in sides:
            side.close()
