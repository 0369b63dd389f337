"""Timed rounds of one part: fresh inputs for each call, and a check of each output on rows drawn afterwards.

Compared calls differ from timed ones in sizes, cores and number. A kernel of several threads that raced only in timed
calls would see no delays. So each of the first rounds has one more call, with delays and compared as a whole. It has
the runner, the sizes and the cores of the timed calls. Whether it comes before, between or after them is drawn.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from grader.assignment.rubric import TimeRule
from grader.backends import binding
from grader.core import machine
from grader.core.errors import KitError
from grader.core.results import Diagnosis, Timing
from grader.core.seeds import derive
from grader.judge import faults, looks
from grader.judge.case_run import CaseRun, expectations
from grader.judge.events import RoundTimed
from grader.judge.marking import Marker
from grader.runner import placement
from grader.runner.calls import Request
from grader.runner.session import Session

if TYPE_CHECKING:
    from grader.judge.timing.measure import Sample

FULL_WARM_UP_S = 0.05
"""A reference whose calls take longer than this is warmed up by a small call, and the student's kernel beside it."""
RESERVED_COPIES, MOST_RESERVED_BYTES = 2, 128 << 20
"""Tensors of a call are counted twice: kernels copy them into vectors of their own, as the starter does."""
SAMPLED_ROWS, SAMPLED_REFERENCE_ROWS = 24, 4
"""Rows of each timed output that are compared with the oracle: drawn after the kernel has answered."""
DELAYED_ROUNDS, PLACES = 3, 3
"""Rounds with a delayed call, as many as every measurement has, and the places that it may have in a round."""

WRONG_WHEN_TIMED = Diagnosis("wrong", "wrong in a timed call, right before")


def measured(
    marker: Marker, student: Callable[..., Session], *, attempt: int, cpus: list[int] | None = None
) -> Timing:
    """Paired rounds on fresh inputs, each in a fresh pair of runners with a timed call's threads and cores.

    `student(threads=, cpus=)` starts a runner of the student's; each `attempt` (1, 2) draws other inputs; `cpus` are
    the cores for the runners of both sides, by default those of the machine's own rule. Raises Faulty when the
    student's kernel breaks or answers wrongly, KitError when the reference does.
    """
    from grader.judge.timing import measure

    rule, options = marker.part.time, marker.bench.options
    assert rule is not None
    policy = measure.TimePolicy(
        clock=rule.clock,
        allowance_ratio=rule.allowance_ratio,
        allowance_ms=rule.allowance_ms,
        budget_s=options.time_budget_s,
        graded=rule.graded,
    )
    seed = marker.bench.assignment.seed if options.seed is None else options.seed
    draw = TimedInputs(
        marker, derive(secrets.randbits(60) if seed is None else seed, marker.part.id, attempt)
    )

    def told() -> Iterator[measure.Round]:
        for count, one in enumerate(measure.play(Pairs(marker, student, draw, rule, cpus)), 1):
            marker.bench.tell(RoundTimed(marker.part, count, measure.ratio_of(one, policy)))
            yield one

    return measure.sequential(told(), policy)


class Pairs:
    """Makes a round's pair of runners: started for it, warmed up alike, ended after it."""

    def __init__(
        self,
        marker: Marker,
        student: Callable[..., Session],
        draw: TimedInputs,
        rule: TimeRule,
        cpus: list[int] | None = None,
    ) -> None:
        self.marker, self.student, self.draw, self.rule, self.cpus = marker, student, draw, rule, cpus
        self.rounds = 0
        self.longest_s = 0.0
        """Wall seconds of the reference's slowest call at the run's own sizes so far."""

    @contextmanager
    def __call__(self) -> Iterator[tuple[Callable[[], Sample], Callable[[], Sample]]]:
        marker, by_wall = self.marker, self.rule.clock == "wall"
        threads = self.rule.threads or marker.shape["threads"]
        cpus = self.cpus or machine.timing_cpus(self.rule.threads, self.rule.cores)
        cores = cpus or machine.core_order() if by_wall else ()
        with (
            marker.bench.reference(threads=threads, cpus=cpus) as theirs,
            self.student(threads=threads, cpus=cpus) as mine,
        ):
            if by_wall or self.longest_s < FULL_WARM_UP_S:
                # Threads, memory and code: in a short call they are a good part of its time.
                sample = placement.warm_up(theirs, partial(self.reference_call, theirs), pin_to=cores)
                self.longest_s = max(self.longest_s, sample.wall_s)
                placement.warm_up(mine, partial(self.student_call, mine), pin_to=cores)
            else:
                self.small_calls(theirs, mine)
            if not by_wall or self.rounds >= DELAYED_ROUNDS or not mine.shares_work:
                yield partial(self.reference_call, theirs), partial(self.student_call, mine)
                return
            # For both sides, so that a call before a timed one favours neither.
            place = self.draw.place(self.rounds)
            self.rounds += 1
            calls = [
                self.draw.beside_delayed(session, place, theirs is session) for session in (theirs, mine)
            ]
            yield partial(next, calls[0]), partial(next, calls[1])
            for each in calls:
                next(each, None)

    def reference_call(self, session: Session) -> Sample:
        return self.draw.sample(session, is_reference=True)

    def student_call(self, session: Session) -> Sample:
        return self.draw.sample(session, is_reference=False)

    def small_calls(self, theirs: Session, mine: Session) -> None:
        """A call of each at the smallest sizes, and memory for one at the run's own: code pages and the heap's are
        touched. A process's first pages cost 1.7 us each, which made the first call of part 2's reference up to 7 %
        longer than its second."""
        marker = self.marker
        shape, inputs = marker.inputs_of(looks.smallest(marker.part))
        marker.refuse_failed_reference(marker.call(theirs, "warm-up", shape, inputs, reference=True).call)
        self.small_call(mine, shape, inputs)
        reserved_bytes = min(MOST_RESERVED_BYTES, RESERVED_COPIES * self.draw.tensor_bytes)
        for session in (theirs, mine):
            session.call(Request("", (), (), op="reserve", reserved_bytes=reserved_bytes))

    def small_call(self, mine: Session, shape: Mapping[str, int], inputs: Mapping[str, Any]) -> None:
        """The student's part of `small_calls`."""
        self.marker.refuse_broken(self.marker.call(mine, "warm-up", shape, inputs).call, mine, "warm-up")


def settled(time: Timing, rule: TimeRule) -> Timing:
    """Return a measurement under the part's rule: no verdict where the part's time is not graded."""
    if rule.graded:
        return time
    # Nothing was to be decided, so nothing is undecided.
    flags = [flag for flag in time.flags if flag != "undecided"]
    return replace(time, verdict="pass", flags=(*flags, "not_graded"))


class TimedInputs:
    """Fresh inputs for every timed call, and the check of every timed output on rows the kernel cannot foresee."""

    def __init__(self, marker: Marker, seed: int) -> None:
        self.marker, self.seed = marker, seed
        self.calls = 0
        self.tensor_bytes = 0
        """Of a call."""

    def sample(self, session: Session, *, is_reference: bool) -> Sample:
        """One timed call of either side. Raises Faulty when the student's output is wrong or missing."""
        from grader.judge.timing.measure import Sample

        run = self.called(session, is_reference=is_reference)
        if self.is_right(run, SAMPLED_REFERENCE_ROWS if is_reference else SAMPLED_ROWS):
            return Sample(run.call.wall_s, run.call.cpu_s, run.call.own_s)
        if is_reference:
            raise KitError(
                f"the reference gave a wrong result on {run.part.id} while it was timed; please report this"
            )
        marked = self.marker.mark(run)
        raise faults.Faulty("wrong", marked.diagnosis or WRONG_WHEN_TIMED, marked)

    def called(self, session: Session, *, is_reference: bool, delays: bool = False) -> CaseRun:
        """Make one call on fresh inputs. Raises Faulty where it gives no outputs."""
        marker, part, shape = self.marker, self.marker.part, self.marker.shape
        self.calls += 1
        seed = derive(self.seed, "inputs", self.calls)
        inputs = marker.bench.assignment.typical_inputs(part, shape, seed)
        self.tensor_bytes = self.tensor_bytes or binding.request(part, shape, inputs).tensor_bytes()
        run = marker.call(session, "timed call", shape, inputs, reference=is_reference, delays=delays)
        if is_reference:
            marker.refuse_failed_reference(run.call)
        marker.refuse_broken(run.call, session, "timed call")
        if run.outputs is None:
            raise faults.Faulty("wrong", run.misfit or Diagnosis("wrong", "wrong in a timed call"))
        return run

    def place(self, count: int) -> int:
        """Return how many timed calls of each side precede its delayed call in this round."""
        return derive(self.seed, "place", count) % PLACES

    def beside_delayed(self, session: Session, place: int, is_reference: bool) -> Iterator[Sample]:
        """Yield the samples of a round's timed calls, with a delayed call at its place among them."""
        for number in range(PLACES):
            if number == place:
                self.check_delayed(session, is_reference=is_reference)
            if number < PLACES - 1:
                yield self.sample(session, is_reference=is_reference)

    def check_delayed(self, session: Session, *, is_reference: bool) -> None:
        """Make a call with delays. Raises Faulty if any element of the student's output is wrong."""
        run = self.called(session, is_reference=is_reference, delays=True)
        if is_reference or run.is_right:
            return
        # The same inputs without delays: a result that differs then is a race's.
        again = self.marker.again(session, run).outputs
        marked = self.marker.mark(run, again=[again] if again is not None else [])
        raise faults.Faulty("wrong", marked.diagnosis or WRONG_WHEN_TIMED, marked)

    def is_right(self, run: CaseRun, sampled_rows: int) -> bool:
        """Return True if the outputs are finite, and right on about so many rows that are drawn only now."""
        from grader.core.arrays import np
        from grader.judge.comparison import compare
        from grader.judge.draws import Draws

        draws = Draws(derive(self.seed, "rows", self.calls))
        at, expected = run.oracle.sample(run.inputs, run.shape, draws, sampled_rows)
        wanted = expectations(run.part, expected)
        return all(
            compare(wanted[name], actual[at]).ok and bool(np.isfinite(actual).all())
            for name, actual in (run.outputs or {}).items()
        )
