"""A timed call on a card: fresh inputs, "go", and a clock that stops when the judge's own copy of the outputs is done.

Inputs are filled after the clock has started, and the runner is told to go when they are there: before that moment a
kernel that a student left on the card has nothing to work on, and from then on whatever it does delays the judge, since
contexts share a card by turns. What the clock shows besides the kernel is the same for an empty call, which is told
"go" for no set and has inputs filled and outputs copied as well: its median is taken off. One "go" covers so many sets
that it lasts GO_S or more; short ones are noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from grader.run.calls import Call
from grader.run.card.arena import Arena, Tensor
from grader.run.session import Session

GO_S = 0.05
"""Measured on one card: calls of 1 ms spread by 30 %, those of 25 ms by 2 to 5 %."""
WARM_UP_S = 0.02
"""Before each call, outside of the clock: a card that was idle takes some milliseconds to come to its full clock."""
EMPTY_CALLS, WARM_UP_CALLS = 5, 1
MOST_SETS = 2048
MEMORY_SHARE = 0.4
"""Of the memory that is free before any is taken, what the sets of one side of two may take."""


class TimedRunner:
    """A session of a runner that has an arena's memory, attached."""

    def __init__(
        self, session: Session, arena: Arena, request: Mapping[str, Any], *, fill_in_clock: bool = True
    ) -> None:
        """`request` as `Arena.attach_request` makes it. `failure` is how attaching ended, if not well."""
        self.session, self.arena, self._fill_in_clock = session, arena, fill_in_clock
        self.failure = _failed(session.command(dict(request)))
        self.empty_s = 0.0

    def calibrate(self, seed: int) -> Call | None:
        """Warm the runner up and measure its empty call. Returns how it ended where it did, or raised."""
        for k in range(WARM_UP_CALLS):
            if ended := _failed(self.raw(seed + k, self.arena.sets)):
                return ended
        empty = []
        for k in range(EMPTY_CALLS):
            call = self.raw(seed + 100 + k, 0)
            if ended := _failed(call):
                return ended
            empty.append(call.wall_s)
        self.empty_s = median(empty)
        return None

    def raw(self, seed: int, sets: int) -> Call:
        """One call on so many sets, with all that its clock shows."""
        header = {"op": "go", "inputs": [], "sets": sets}
        self.arena.warm_up(WARM_UP_S)
        self.arena.poison()
        if self._fill_in_clock:
            return self.session.command(header, begin=lambda: self.arena.fill(seed), finish=self.arena.take)
        self.arena.fill(seed)
        return self.session.command(header, finish=self.arena.take)

    def seconds(self, call: Call) -> float:
        """What of a call on all sets was the kernel's, per set."""
        return max(call.wall_s - self.empty_s, 0.0) / self.arena.sets


def _failed(call: Call) -> Call | None:
    return None if call.status == "ok" else call


def sets_for(tensors: Sequence[Tensor], set_s: float, free_bytes: int) -> int:
    """Sets that make a call last GO_S, as far as memory goes."""
    most = int(MEMORY_SHARE * free_bytes / Arena.bytes_for(tensors))
    return max(1, min(MOST_SETS, most, -int(-GO_S // max(set_s, 1e-7))))
