"""Timed rounds of one part: fresh inputs for each call, and a check of each output on rows drawn afterwards.

Compared calls differ from timed ones in sizes, cores and number. A kernel of several threads that raced only in timed
calls would see no delays. So each of the first rounds has one more call, with delays and compared as a whole. It has
the runner, the sizes and the cores of the timed calls. Whether it comes before, between or after them is drawn.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Literal

from grader.assignment.rubric import TimeRule
from grader.backends import faults
from grader.backends.protocol import TimedPart
from grader.core.errors import KitError
from grader.core.results import Diagnosis, Timing
from grader.core.seeds import derive
from grader.explain.case_run import CaseRun, expectations
from grader.judge import case_order
from grader.judge.events import RoundTimed
from grader.judge.marker import Marker
from grader.runner.calls import Round, Sample
from grader.runner.session import Session

SAMPLED_ROWS, SAMPLED_REFERENCE_ROWS = 24, 4
"""Rows of each timed output that are compared with the oracle: drawn after the kernel has answered."""
PLACES = 3
"""Places that a delayed call may have in a round (`grader.backends.pairs`)."""

WRONG_WHEN_TIMED = Diagnosis("wrong", "wrong in a timed call, right before")


def measured(
    marker: Marker, student: Callable[..., Session], *, attempt: int, cpus: list[int] | None = None
) -> Timing:
    """Measure paired rounds on fresh inputs, each in a fresh pair of runners with a timed call's threads and cores.

    `student(threads=, cpus=)` starts a runner of the student's; each `attempt` (1, 2) draws other inputs; `cpus` are
    the cores for the runners of both sides, by default those of the machine's own rule. Raises Faulty when the
    student's kernel breaks or answers wrongly, KitError when the reference does.
    """
    return marker.backend.measure(timed_part(marker, student, attempt=attempt, cpus=cpus))


def timed_part(
    marker: Marker, student: Callable[..., Session], *, attempt: int, cpus: list[int] | None = None
) -> TimedPart:
    """Return the data that a backend needs for `measured`."""
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
        )

        def emitting() -> Iterator[Round]:
            for count, one in enumerate(rounds, 1):
                marker.bench.emit(RoundTimed(marker.part, count, measure.ratio_of(one, policy)))
                yield one

        return measure.sequential(emitting(), policy)

    given = marker.bench.assignment.seed if options.seed is None else options.seed
    seed = derive(secrets.randbits(60) if given is None else given, marker.part.id, attempt)
    return TimedPart(
        checks=marker,
        calls=TimedInputs(marker, seed),
        rule=rule,
        student=student,
        reference=marker.bench.reference,
        seed=seed,
        budget_s=options.time_budget_s,
        decide=decide,
        cpus=cpus,
    )


def settled(time: Timing, rule: TimeRule) -> Timing:
    """Return a measurement under the part's rule: no verdict where the part's time is not graded."""
    if rule.graded:
        return time
    # Nothing was to be decided, so the flag "undecided" does not apply.
    flags = [flag for flag in time.flags if flag != "undecided"]
    return replace(time, verdict="pass", flags=(*flags, "not_graded"))


class TimedInputs:
    """Fresh inputs for every timed call, and the check of every timed output on rows the kernel cannot foresee."""

    def __init__(self, marker: Marker, seed: int) -> None:
        self.marker, self.seed = marker, seed
        self.calls = 0
        self.tensor_bytes = 0
        """Bytes of the tensors of one call."""

    def sample(self, session: Session, *, is_reference: bool) -> Sample:
        """Make one timed call of either side. Raises Faulty when the student's output is wrong or missing."""
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
        self.tensor_bytes = self.tensor_bytes or marker.backend.request(part, shape, inputs).tensor_bytes()
        run = marker.call(session, "timed call", shape, inputs, reference=is_reference, delays=delays)
        if is_reference:
            marker.refuse_failed_reference(run.call)
        marker.refuse_broken(run.call, session, "timed call")
        if run.outputs is None:
            raise faults.Faulty("wrong", run.misfit or Diagnosis("wrong", "wrong in a timed call"))
        return run

    def small_call(self, session: Session, *, is_reference: bool) -> None:
        """Make a call of the smallest sizes, before anything is timed."""
        marker = self.marker
        shape, inputs = marker.inputs_of(case_order.smallest(marker.part))
        call = marker.call(session, "warm-up", shape, inputs, reference=is_reference).call
        if is_reference:
            marker.refuse_failed_reference(call)
        marker.refuse_broken(call, session, "warm-up")

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
        # Call again with the same inputs and without delays: a different result proves a race.
        again = self.marker.again(session, run).outputs
        marked = self.marker.mark(run, again=[again] if again is not None else [])
        raise faults.Faulty("wrong", marked.diagnosis or WRONG_WHEN_TIMED, marked)

    def is_right(self, run: CaseRun, sampled_rows: int) -> bool:
        """Return True if the outputs are finite, and right on `sampled_rows` random rows that are chosen only now."""
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
