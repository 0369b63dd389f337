"""Timed rounds of one part: new inputs for each call, and a check of each output on rows that are drawn afterwards.

A cheating kernel could recognise timed calls by their sizes, cores and order, and skip its locks only in these calls.
So in a part with threads, each of the first rounds has one more call per runner, with delayed threads, to reveal a data
race. The whole output of this call is compared. The call has the sizes and cores of the timed calls, and a random place
among them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal

from grader.assignment.rubric import TimeRule
from grader.backends import faults
from grader.backends.protocol import TimedPart
from grader.core import machine
from grader.core.draws import derive
from grader.core.errors import KitError
from grader.core.results import Diagnosis, Timing
from grader.explain.case_run import CaseRun, expectations
from grader.judge import case_order
from grader.judge.events import RoundTimed
from grader.judge.marker import Marker
from grader.runner import placement
from grader.runner.calls import Request, Round, Sample
from grader.runner.session import Session

FULL_WARM_UP_S = 0.05
"""If a call of the reference takes longer than this, a part judged by CPU time is warmed up by small calls only."""
RESERVED_COPIES, MOST_RESERVED_BYTES = 2, 128 << 20
"""Memory that a warm-up reserves: two copies of a call's tensors (kernels copy them into vectors), up to a limit."""
DELAYED_ROUNDS = 3
"""Number of first rounds with an untimed call whose threads are delayed. A pass takes at least as many rounds."""
SAMPLED_ROWS, SAMPLED_REFERENCE_ROWS = 24, 4
"""Number of rows of each timed output that are compared with the oracle, for the student and for the reference."""
PLACES = 3
"""Number of positions for a delayed call in a round: before, between or after the two timed calls."""

WRONG_WHEN_TIMED = Diagnosis("wrong", "wrong in a timed call, though right in all earlier calls")


def measured(
    marker: Marker, student: Callable[..., Session], *, attempt: int, cpus: list[int] | None = None
) -> Timing:
    """Measure a part's time in paired rounds. Each call has new inputs; on CPU cores each round has new runners.

    Args:
        student: function that starts a runner of the student's code, with the keywords `threads` and `cpus`.
        attempt: 1 or 2; each attempt draws other inputs.
        cpus: cores for the runners; by default the cores of `machine.timing_cpus`.

    Raises Faulty if the student's kernel fails or is wrong, KitError if the reference does.
    """
    from grader.judge.timing import measure

    rule, options = marker.part.time, marker.bench.options
    assert rule is not None

    def decide(rounds: Iterable[Round], clock: Literal["cpu", "wall"], budget_s: float) -> Timing:
        policy = measure.TimePolicy(
            clock=clock,
            allowance_ratio=rule.allowance_ratio,
            allowance_ms=rule.allowance_ms,
            budget_s=budget_s,
            graded=rule.graded,
            early_slow=marker.backend.kind.early_slow,
        )

        def emitting() -> Iterator[Round]:
            for count, one in enumerate(rounds, 1):
                marker.bench.emit(RoundTimed(marker.part, count, measure.ratio_of(one, policy)))
                yield one

        return measure.sequential(emitting(), policy)

    given = marker.bench.assignment.seed if options.seed is None else options.seed
    seed = derive(secrets.randbits(60) if given is None else given, marker.part.id, attempt)
    timed = TimedPart(
        checks=marker,
        rule=rule,
        student=student,
        reference=marker.bench.reference,
        seed=seed,
        budget_s=options.time_budget_s,
        decide=decide,
        on_cores=lambda: measure.play(Pairs(TimedInputs(marker, seed), student, cpus)),
    )
    return marker.backend.measure(timed)


def settled(time: Timing, rule: TimeRule) -> Timing:
    """Return the measurement under the part's rule: if the time is not graded, "pass" with the flag "not_graded"."""
    if rule.graded:
        return time
    # "undecided" has no meaning for a time without a grade.
    flags = [flag for flag in time.flags if flag != "undecided"]
    return replace(time, verdict="pass", flags=(*flags, "not_graded"))


class TimedInputs:
    """Timed calls: each gets new inputs, and its output is checked on rows that the kernel cannot foresee.

    `is_reference` in the methods: True to call the reference, False to call the student's kernel.
    """

    def __init__(self, marker: Marker, seed: int) -> None:
        self.marker, self.seed = marker, seed
        self.calls = 0
        self.tensor_bytes = 0
        """Size in bytes of the tensors of one call."""

    def sample(self, session: Session, *, is_reference: bool) -> Sample:
        """Make one timed call of student or reference. Raises Faulty if the student's output is wrong or missing."""
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
        """Make one call on new inputs, with delayed threads if `delays`. Raises Faulty if it returns no outputs."""
        marker, part = self.marker, self.marker.part
        self.calls += 1
        seed = derive(self.seed, "inputs", self.calls)
        inputs = marker.bench.assignment.typical_inputs(part, marker.shape, seed)
        self.tensor_bytes = self.tensor_bytes or marker.backend.request(part, inputs).tensor_bytes()
        run = marker.call(session, "timed call", inputs, reference=is_reference, delays=delays)
        if is_reference:
            marker.refuse_failed_reference(run.call)
        marker.refuse_broken(run.call, session, "timed call")
        if run.outputs is None:
            raise faults.Faulty("wrong", run.misfit or Diagnosis("wrong", "wrong in a timed call"))
        return run

    def small_call(self, session: Session, *, is_reference: bool) -> None:
        """Make an untimed call with the smallest sizes, to warm up."""
        marker = self.marker
        call = marker.call_case(session, case_order.smallest(marker.part), reference=is_reference).call
        if is_reference:
            marker.refuse_failed_reference(call)
        marker.refuse_broken(call, session, "warm-up")

    def place(self, count: int) -> int:
        """Return the number of timed calls before the delayed call in round number `count`: 0, 1 or 2."""
        return derive(self.seed, "place", count) % PLACES

    def beside_delayed(self, session: Session, place: int, is_reference: bool) -> Iterator[Sample]:
        """Make two timed calls and yield their samples. After the first `place` of them, make a call with delays."""
        for number in range(PLACES):
            if number == place:
                self.check_delayed(session, is_reference=is_reference)
            if number < PLACES - 1:
                yield self.sample(session, is_reference=is_reference)

    def check_delayed(self, session: Session, *, is_reference: bool) -> None:
        """Make a call with delayed threads. Raises Faulty if any element of the student's output is wrong."""
        run = self.called(session, is_reference=is_reference, delays=True)
        if is_reference or run.is_right:
            return
        # Call again with the same inputs and without delays: a different result proves a race.
        again = self.marker.again(session, run).outputs
        marked = self.marker.mark(run, again=[again] if again is not None else [])
        raise faults.Faulty("wrong", marked.diagnosis or WRONG_WHEN_TIMED, marked)

    def is_right(self, run: CaseRun, sampled_rows: int) -> bool:
        """Return True if the outputs are finite, and right on `sampled_rows` rows that are drawn after the call."""
        from grader.core.arrays import np
        from grader.core.draws import Draws
        from grader.explain.comparison import compare

        draws = Draws(derive(self.seed, "rows", self.calls))
        at, expected = run.oracle.sample(run.inputs, run.shape, draws, sampled_rows)
        wanted = expectations(run.part, expected)
        return all(
            compare(wanted[name], actual[at]).ok and bool(np.isfinite(actual).all())
            for name, actual in (run.outputs or {}).items()
        )


class Pairs:
    """Factory of the pair of runners for a round on CPU cores. It warms both up alike and ends them after the round.

    `student` starts a runner of the student's code. `cpus` are the cores for both; None for the machine's default.
    """

    def __init__(self, calls: TimedInputs, student: Callable[..., Session], cpus: list[int] | None) -> None:
        self.calls, self.student, self.cpus = calls, student, cpus
        self.rounds = 0
        self.longest_s = 0.0
        """Wall seconds of the reference's slowest warm-up call so far."""

    @contextmanager
    def __call__(self) -> Iterator[tuple[Callable[[], Sample], Callable[[], Sample]]]:
        marker, rule = self.calls.marker, self.calls.marker.part.time
        assert rule is not None
        by_wall = rule.clock == "wall"
        threads = rule.threads or marker.shape["threads"]
        cpus = self.cpus or machine.timing_cpus(rule.threads, rule.cores)
        cores = cpus or machine.core_order() if by_wall else ()
        with (
            marker.bench.reference(threads=threads, cpus=cpus) as theirs,
            self.student(threads=threads, cpus=cpus) as mine,
        ):
            reference, student = (
                partial(self.calls.sample, session, is_reference=theirs is session)
                for session in (theirs, mine)
            )
            if by_wall or self.longest_s < FULL_WARM_UP_S:
                # Warm up with full calls: starting threads and touching memory would dominate a short call's time.
                sample = placement.warm_up(theirs, reference, pin_to=cores)
                self.longest_s = max(self.longest_s, sample.wall_s)
                placement.warm_up(mine, student, pin_to=cores)
            else:
                self.small_calls(theirs, mine)
            if not by_wall or self.rounds >= DELAYED_ROUNDS or not mine.shares_work:
                yield reference, student
                return
            # Both runners make the delayed call after the same number of timed calls, so that it favours neither.
            place = self.calls.place(self.rounds)
            self.rounds += 1
            calls = [
                self.calls.beside_delayed(session, place, theirs is session) for session in (theirs, mine)
            ]
            yield partial(next, calls[0]), partial(next, calls[1])
            for each in calls:
                next(each, None)

    def small_calls(self, theirs: Session, mine: Session) -> None:
        """Warm up both runners: make a call at the smallest sizes, then write as much memory as a timed call needs.

        This touches code pages and the heap. The first touch of a page costs 1.7 us. Without this warm-up the reference
        of the attention lab's part 2 took up to 7 % longer in its first call than in its second.
        """
        self.calls.small_call(theirs, is_reference=True)
        self.calls.small_call(mine, is_reference=False)
        reserved_bytes = min(MOST_RESERVED_BYTES, RESERVED_COPIES * self.calls.tensor_bytes)
        for session in (theirs, mine):
            session.call(Request("", (), (), op="reserve", reserved_bytes=reserved_bytes))
