"""Timed rounds on CPU cores. Each round starts and warms up a new pair of runners: reference (A) and student (B).

Then they are called in the order A B B A, in every second round B A A B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count

from grader.backends.protocol import TimedPart
from grader.core import machine
from grader.runner import placement
from grader.runner.calls import Request, Round, Sample
from grader.runner.session import Session

FULL_WARM_UP_S = 0.05
"""If a call of the reference takes longer than this, a part judged by CPU time is warmed up by small calls only."""
RESERVED_COPIES, MOST_RESERVED_BYTES = 2, 128 << 20
"""Memory that a warm-up reserves: two copies of a call's tensors (kernels copy them into vectors), up to a limit."""
DELAYED_ROUNDS = 3
"""Number of first rounds with an untimed call whose threads are delayed. A pass takes at least as many rounds."""

PairOf = Callable[[], AbstractContextManager[tuple[Callable[[], Sample], Callable[[], Sample]]]]
"""Function that starts and warms up the pair of runners for a round. Its context yields two functions: one makes a call
of the reference, the other a call of the student.
"""


def play(pairs: PairOf) -> Iterator[Round]:
    """Yield rounds without end, each with a new pair of runners: A B B A, B A A B, A B B A, ... (A: reference)."""
    for i in count():
        with pairs() as (reference, student):
            if i % 2 == 0:
                a1, b1, b2, a2 = reference(), student(), student(), reference()
            else:
                b1, a1, a2, b2 = student(), reference(), reference(), student()
        yield Round((a1, a2), (b1, b2))


class Pairs:
    """Starter of the pair of runners for a round. Both are warmed up alike, and ended after the round."""

    def __init__(self, timed: TimedPart) -> None:
        self.timed, self.calls = timed, timed.calls
        self.rounds = 0
        self.longest_s = 0.0
        """Wall seconds of the reference's slowest warm-up call so far."""

    @contextmanager
    def __call__(self) -> Iterator[tuple[Callable[[], Sample], Callable[[], Sample]]]:
        timed, rule = self.timed, self.timed.rule
        by_wall = rule.clock == "wall"
        threads = rule.threads or timed.checks.shape["threads"]
        cpus = timed.cpus or machine.timing_cpus(rule.threads, rule.cores)
        cores = cpus or machine.core_order() if by_wall else ()
        with (
            timed.reference(threads=threads, cpus=cpus) as theirs,
            timed.student(threads=threads, cpus=cpus) as mine,
        ):
            if by_wall or self.longest_s < FULL_WARM_UP_S:
                # Warm up with full calls: starting threads and touching memory would dominate a short call's time.
                sample = placement.warm_up(theirs, partial(self.reference_call, theirs), pin_to=cores)
                self.longest_s = max(self.longest_s, sample.wall_s)
                placement.warm_up(mine, partial(self.student_call, mine), pin_to=cores)
            else:
                self.small_calls(theirs, mine)
            if not by_wall or self.rounds >= DELAYED_ROUNDS or not mine.shares_work:
                yield partial(self.reference_call, theirs), partial(self.student_call, mine)
                return
            # Both runners make the delayed call at the same place among their timed calls, so that it favours neither.
            place = self.calls.place(self.rounds)
            self.rounds += 1
            calls = [
                self.calls.beside_delayed(session, place, theirs is session) for session in (theirs, mine)
            ]
            yield partial(next, calls[0]), partial(next, calls[1])
            for each in calls:
                next(each, None)

    def reference_call(self, session: Session) -> Sample:
        return self.calls.sample(session, is_reference=True)

    def student_call(self, session: Session) -> Sample:
        return self.calls.sample(session, is_reference=False)

    def small_calls(self, theirs: Session, mine: Session) -> None:
        """Warm up both runners with a call at the smallest sizes, and by writing memory for a call at the run's sizes.

        This touches code pages and the heap. The first touch of a page costs 1.7 us. Without this warm-up the reference
        of part 2 took up to 7 % longer in its first call than in its second.
        """
        self.calls.small_call(theirs, is_reference=True)
        self.calls.small_call(mine, is_reference=False)
        reserved_bytes = min(MOST_RESERVED_BYTES, RESERVED_COPIES * self.calls.tensor_bytes)
        for session in (theirs, mine):
            session.call(Request("", (), (), op="reserve", reserved_bytes=reserved_bytes))
