"""Timing of the reference against itself, in two runners: a test of this machine's timed verdicts right now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from grader.assignment.loading import load
from grader.assignment.records import Assignment, Part
from grader.backends.native.nativehost import NativeHost
from grader.backends.pairs import PairOf
from grader.core import machine
from grader.core.errors import KitError
from grader.core.results import Timing
from grader.doctor.host import Finding
from grader.judge.timing import measure
from grader.runner import placement
from grader.runner.samples import Sample
from grader.runner.session import Session

"""Rows of the timed inputs. A call takes tens of milliseconds, as in a graded run, and the whole check a few
seconds."""
BUDGET_S = 6.0
APART = 0.05
"""Largest accepted relative difference between the medians of two copies of one program."""


def findings(config: Path) -> list[Finding]:
    """Return one finding for each clock that a part of the assignment is timed by."""
    assignment = load(config)
    found = []
    try:
        with NativeHost() as host:
            for clock in ("cpu", "wall"):
                part = next(
                    (p for p in assignment.parts if p.time and p.time.clock == clock and p.reference), None
                )
                if part is not None:
                    found.append(judged(_against_itself(host, assignment, part), clock, part.title))
    except KitError as error:
        found.append(Finding("fail", f"the reference cannot be timed: {error}", "no time can be judged", ""))
    return found


def judged(timing: Timing, clock: str, title: str) -> Finding:
    """Convert this measurement to a finding."""
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


def _against_itself(host: NativeHost, assignment: Assignment, part: Part) -> Timing:
    rule = part.time
    assert rule is not None
    policy = measure.TimePolicy(
        clock=rule.clock, allowance_ratio=rule.allowance_ratio, allowance_ms=0, budget_s=BUDGET_S
    )
    return measure.compare(reference_twice(host, assignment, part, assignment.defaults), policy)


def reference_twice(host: NativeHost, assignment: Assignment, part: Part, shape: Mapping[str, int]) -> PairOf:
    """Return pairs of runners that both hold a part's reference, with the threads, cores and placement of a graded
    timing.

    A call of a runner raises KitError if the reference fails.
    """
    from grader.backends import binding

    rule = part.time
    assert rule is not None
    threads, cpus = rule.threads or shape["threads"], machine.timing_cpus(rule.threads, rule.cores)
    cores = cpus or machine.core_order() if rule.clock == "wall" else ()
    request = binding.request(part, shape, assignment.typical_inputs(part, shape, 1), reference=True)

    program = assignment.lab.reference().program()

    def sample(session: Session) -> Sample:
        call = session.call(request)
        if call.status != "ok":
            raise KitError(f"{part.reference}: {call.status} {call.signal_name}{call.message}")
        return Sample(call.wall_s, call.cpu_s)

    @contextmanager
    def pair() -> Iterator[tuple[Callable[[], Sample], Callable[[], Sample]]]:
        with ExitStack() as stack:
            sides = [stack.enter_context(host.spawn(program, threads=threads, cpus=cpus)) for _ in range(2)]
            for side in sides:
                placement.warm_up(side, partial(sample, side), pin_to=cores)
            yield partial(sample, sides[0]), partial(sample, sides[1])

    return pair
