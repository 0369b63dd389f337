"""A timed call on a card: fresh inputs, "go", and a clock that stops when the judge's own copy of the outputs is done.

Inputs are filled after the clock has started, and the runner is told to go when they are there: before that moment a
kernel that a student left on the card has nothing to work on, and from then on whatever it does delays the judge, since
contexts share a card by turns.

What the clock shows besides the kernels (fill, waking the runner, giving the card from one context to the other and
back, copying the outputs) is in a call on one set as well: the median of such calls is taken off, and the rest divided
by the sets besides that one. As many sets are filled and copied in it as in the call that it is taken off of: with
large sets that is most of what the clock shows. These calls are the reference's on both sides: a student's process
could make its own longer and so take more off. One "go" covers so many sets that it lasts GO_S or more; short ones are
noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from grader.backends.gpu.card.arena import Arena, Tensor
from grader.runner.calls import Call
from grader.runner.session import Session

GO_S = 0.05
"""Measured on one card: calls of 1 ms spread by 30 %, those of 25 ms by 2 to 5 %."""
WARM_UP_S = 0.02
"""Before each call, outside of the clock: a card that was idle takes some milliseconds to come to its full clock."""
BASE_CALLS, WARM_UP_CALLS = 5, 1
MOST_SETS = 2048
MEMORY_SHARE = 0.4
"""Of the memory that is free before any is taken, what the sets of one side of two may take."""


class TimedRunner:
    """A session of a runner that has an arena's memory, attached."""

    def __init__(self, session: Session, arena: Arena, request: Mapping[str, Any]) -> None:
        """`request` as `Arena.attach_request` makes it. `failure` is how attaching ended, if not well."""
        self.session, self.arena = session, arena
        self.failure = _failed(session.command(dict(request)))
        self.base_sets = 1 if arena.sets > 1 else 0
        """Of the call that is taken off."""
        self.base_s = 0.0
        self.warm_up_s = 0.0
        """Time of the last warm-up call, with all that its clock shows."""

    def warm_up(self, seed: int) -> Call | None:
        """Make the runner load what its first call needs. Returns how it ended where it did, or raised."""
        for k in range(WARM_UP_CALLS):
            call = self.raw(seed + k, self.arena.sets)
            if ended := _failed(call):
                return ended
            self.warm_up_s = call.wall_s
        return None

    def calibrate(self, seed: int, laid: int | None = None) -> float | Call:
        """What a call on one set takes that fills and copies `laid` sets, all where none are given: what is taken off
        of a call with so many. Returns how a call ended where it did, or raised."""
        times = []
        for k in range(BASE_CALLS):
            call = self.raw(seed + 100 + k, self.base_sets, laid)
            if ended := _failed(call):
                return ended
            times.append(call.wall_s)
        return median(times)

    def raw(self, seed: int, sets: int, laid: int | None = None) -> Call:
        """One call on so many sets, with all that its clock shows; `laid` sets are filled and copied, or all."""
        header = {"op": "go", "inputs": [], "sets": sets}
        self.arena.warm_up(WARM_UP_S)
        self.arena.poison()
        return self.session.command(
            header, begin=lambda: self.arena.fill(seed, laid), finish=lambda: self.arena.take(laid)
        )

    def seconds(self, call: Call) -> float:
        """Return the kernel's share of the time of a call on all sets, per set."""
        return max(call.wall_s - self.base_s, 0.0) / (self.arena.sets - self.base_sets)


def _failed(call: Call) -> Call | None:
    return None if call.status == "ok" else call


def sets_for(tensors: Sequence[Tensor], set_s: float, free_bytes: int) -> int:
    """Sets that make a call last GO_S, as far as memory goes."""
    most = int(MEMORY_SHARE * free_bytes / Arena.bytes_for(tensors))
    return max(1, min(MOST_SETS, most, -int(-GO_S // max(set_s, 1e-7))))


def judges_bytes(free_bytes: int, kernel_bytes: int) -> int:
    """Of the memory that is free, what is not kept for a kernel that may take `kernel_bytes`; half at least."""
    return max(free_bytes // 2, free_bytes - kernel_bytes)
