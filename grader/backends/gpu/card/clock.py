"""A timed call on a GPU: new inputs, "go", and a clock that stops when the judge's copy of the outputs is done.

The inputs are filled after the clock has started, and then the runner gets "go". So a kernel that the student left
running cannot work on the inputs before the clock starts. If it works afterwards, the measured time grows, because
processes take turns on a GPU.

The clock also covers overhead: filling the inputs, waking the runner, two switches between processes, and copying the
outputs. To measure the overhead, some calls compute one set only, but fill and copy as many sets as the timed call.
Their median time is subtracted, and the rest is divided by the number of sets that only the timed call computes. The
reference makes these calls for both sides: a student's process could slow down its own calls, so that too much would be
subtracted. A "go" covers so many sets that it lasts at least GO_S, because shorter times are mostly noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from grader.backends.gpu.card.arena import Arena, Tensor
from grader.runner.calls import Call
from grader.runner.session import PipeSession

GO_S = 0.05
"""Least seconds of a timed "go". Measured: times of 1 ms vary by 30 %, times of 25 ms by 2 to 5 %."""
WARM_UP_S = 0.02
"""Seconds of untimed warm-up before each call: an idle GPU takes some milliseconds to reach its full clock."""
BASE_CALLS, WARM_UP_CALLS = 5, 1
MOST_SETS = 2048
MEMORY_SHARE = 0.4
"""Share of the free memory that the sets of one side (student or reference) may take."""


class TimedRunner:
    """The session of a runner that maps an arena's memory. `failure` is the call by which mapping failed, or None."""

    def __init__(self, session: PipeSession, arena: Arena, request: Mapping[str, Any]) -> None:
        """Make the runner map the memory. `request` comes from `Arena.attach_request`."""
        self.session, self.arena = session, arena
        self.failure = _failed(session.command(dict(request)))
        self.base_sets = 1 if arena.sets > 1 else 0
        """Number of sets that the calls for measuring the overhead compute."""
        self.base_s = 0.0
        self.warm_up_s = 0.0
        """Seconds of the last warm-up call, including overhead."""
        self.tuned = ""
        """The choices of the runner's autotuners, for the next runner of this file (`devicerunner.tuned`)."""

    def warm_up(self, seed: int) -> Call | None:
        """Make an untimed call, so that the runner loads everything. Return the call if it failed; else None."""
        for k in range(WARM_UP_CALLS):
            call = self.raw(seed + k, self.arena.sets)
            if ended := _failed(call):
                return ended
            self.warm_up_s, self.tuned = call.wall_s, call.message
        return None

    def calibrate(self, seed: int, laid: int | None = None) -> float | Call:
        """Return the overhead in s of a call that fills and copies `laid` sets (None: all); or the call that failed."""
        times = []
        for k in range(BASE_CALLS):
            call = self.raw(seed + 100 + k, self.base_sets, laid)
            if ended := _failed(call):
                return ended
            times.append(call.wall_s)
        return median(times)

    def raw(self, seed: int, sets: int, laid: int | None = None) -> Call:
        """Make one call on `sets` sets, timed with its overhead. Fill and copy `laid` sets (None: all sets)."""
        header = {"op": "go", "inputs": [], "sets": sets}
        self.arena.warm_up(WARM_UP_S)
        self.arena.poison()
        return self.session.command(
            header, begin=lambda: self.arena.fill(seed, laid), finish=lambda: self.arena.take(laid)
        )

    def seconds(self, call: Call) -> float:
        """Return the seconds per set of a call on all sets, without overhead."""
        return max(call.wall_s - self.base_s, 0.0) / (self.arena.sets - self.base_sets)


def _failed(call: Call) -> Call | None:
    """Return the call if it failed, else None."""
    return None if call.status == "ok" else call


def sets_for(tensors: Sequence[Tensor], set_s: float, free_bytes: int) -> int:
    """Return the number of sets with which a call lasts GO_S, if one set takes `set_s`; fewer if memory is short."""
    most = int(MEMORY_SHARE * free_bytes / Arena.bytes_for(tensors))
    return max(1, min(MOST_SETS, most, -int(-GO_S // max(set_s, 1e-7))))


def judges_bytes(free_bytes: int, kernel_bytes: int) -> int:
    """Return the bytes of GPU memory that the judge may take: all that a kernel does not need, at least half."""
    return max(free_bytes // 2, free_bytes - kernel_bytes)
