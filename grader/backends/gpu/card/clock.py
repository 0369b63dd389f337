"""A timed call on a card: fresh inputs, "go", and a clock that stops when the judge's own copy of the outputs is done.

Inputs are filled after the clock has started, and then the runner gets "go". Before that moment a kernel that a student
left on the card has no inputs. From then on its work delays the judge, since contexts take turns on a card.

The clock also covers the fill, waking the runner, two switches between contexts and copying the outputs. A call on one
set has the same overhead. So the median of such calls is subtracted, and the rest divided by the number of other sets.
Such a call fills and copies as many sets as the timed one: with large sets that is most of the time. These calls are
the reference's on both sides: a student's process could lengthen its own and so subtract more. One "go" covers so
many sets that it lasts GO_S or more; short ones are noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from grader.backends.gpu.card.arena import Arena, Tensor
from grader.runner.calls import Call
from grader.runner.session import PipeSession

GO_S = 0.05
"""Least seconds of a timed "go". Measured: calls of 1 ms spread by 30 %, those of 25 ms by 2 to 5 %."""
WARM_UP_S = 0.02
"""Seconds of warm-up before each call, untimed: an idle card takes some milliseconds to reach its full clock."""
BASE_CALLS, WARM_UP_CALLS = 5, 1
MOST_SETS = 2048
MEMORY_SHARE = 0.4
"""Share of the free memory that the sets of one of the two sides may take."""


class TimedRunner:
    """A session of a runner that has an arena's memory, attached."""

    def __init__(self, session: PipeSession, arena: Arena, request: Mapping[str, Any]) -> None:
        """`request` as `Arena.attach_request` makes it. `failure` is how attaching ended, if not well."""
        self.session, self.arena = session, arena
        self.failure = _failed(session.command(dict(request)))
        self.base_sets = 1 if arena.sets > 1 else 0
        """Number of sets in the call that is subtracted."""
        self.base_s = 0.0
        self.warm_up_s = 0.0
        """Seconds of the last warm-up call, with all overhead."""
        self.tuned = ""
        """The choices of the runner's autotuners, for the next runner of the file (`devicerunner.tuned`)."""

    def warm_up(self, seed: int) -> Call | None:
        """Make the runner load all that its first call needs. Returns the call if it ended the runner or raised."""
        for k in range(WARM_UP_CALLS):
            call = self.raw(seed + k, self.arena.sets)
            if ended := _failed(call):
                return ended
            self.warm_up_s, self.tuned = call.wall_s, call.message
        return None

    def calibrate(self, seed: int, laid: int | None = None) -> float | Call:
        """Return the overhead in seconds of a call that fills and copies `laid` sets, by default all, measured on one
        set.

        It is subtracted from a call with as many sets. Returns the call instead if it ended the runner or raised.
        """
        times = []
        for k in range(BASE_CALLS):
            call = self.raw(seed + 100 + k, self.base_sets, laid)
            if ended := _failed(call):
                return ended
            times.append(call.wall_s)
        return median(times)

    def raw(self, seed: int, sets: int, laid: int | None = None) -> Call:
        """Make one call on `sets` sets, timed with all overhead; `laid` sets are filled and copied, or all."""
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
    """Return the number of sets with which a call lasts GO_S, or the largest number that fits into memory."""
    most = int(MEMORY_SHARE * free_bytes / Arena.bytes_for(tensors))
    return max(1, min(MOST_SETS, most, -int(-GO_S // max(set_s, 1e-7))))


def judges_bytes(free_bytes: int, kernel_bytes: int) -> int:
    """Return the judge's share of the free bytes if a kernel may take `kernel_bytes`: at least half."""
    return max(free_bytes // 2, free_bytes - kernel_bytes)
