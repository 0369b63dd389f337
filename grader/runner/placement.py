"""Placement of the threads of a timed OpenMP call on cores, chosen by the judge in the same way for both sides.

Left to the system, the threads of a short parallel region pile up. They are woken in a chain, each mostly where it or
its waker ran last; a core without work fetches some only after a while, and the region is over by then. Their cores
stay the same from call to call, so a process may be slow or fast for its whole life: identical kernels of 2 to 3 ms, 8
threads on 2 cores, took 2.4 to 10.2 ms (medians of one process each). Pinned, one thread to a core in turn, they took
2.1 to 4.0 ms in the same minutes. Stopping a runner between its calls is not the cause: without it they pile up alike.

Only threads that work are pinned, since torch keeps idle ones in every process, and only if the same threads work in
every call. New threads of a call would all inherit one core.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from grader.core import procfs
from grader.core.procfs import Excess

if TYPE_CHECKING:
    from grader.runner.session import Session

IDLE_SHARE = 0.1
"""A thread that used less than this share of the busiest one's CPU time is idle. Threads that have ended may have used
this share of the process's time."""
SHORT_CALL_S, SETTLING_CALLS = 0.02, 3
"""A call shorter than this still suffers from the first pinning, so it is repeated this many times more. A longer call
is repeated, too, while fresh memory takes a good part of its time.
"""
FAULT_S, FRESH_SHARE, STEADY_SHARE = 1.7e-6, 0.03, 0.75
"""Seconds that a page costs when it is first touched (3.5 ms for an output of 8 MiB). Then the largest share of a
call's time that fresh pages may take: with more, the second of two calls in a row is the faster one. And the share of
the call before from which on it does not fall any more."""


class Timed(Protocol):
    """A call's times."""

    @property
    def wall_s(self) -> float: ...


Sample = TypeVar("Sample", bound=Timed)


def warm_up(session: Session, call: Callable[[], Sample], *, pin_to: Sequence[int] = ()) -> Sample:
    """Make a first call, so that threads start and memory is touched, and pin the threads that worked in it.

    The first thread is pinned to the first core of `pin_to`, and so on; without cores nothing is pinned. Returns the
    last call's sample, raises what `call` raises.
    """
    before = _thread_times_s(session.pid)
    process_before, faults_before = session.cpu_clock_s(), page_faults(session.pid)
    sample = call()
    process_after = session.cpu_clock_s()
    if len(pin_to) > 1 and process_before is not None and process_after is not None:
        _pin(_working(session.pid, before, process_after - process_before), pin_to)
    earlier_s = math.inf
    for _ in range(SETTLING_CALLS):
        faults = page_faults(session.pid)
        fresh_s = (faults - faults_before) * FAULT_S
        # A kernel that allocates fresh memory in every call will not settle further.
        is_settled = fresh_s <= FRESH_SHARE * sample.wall_s or fresh_s > STEADY_SHARE * earlier_s
        if sample.wall_s >= SHORT_CALL_S and is_settled:
            break
        faults_before, earlier_s = faults, fresh_s
        sample = call()
    return sample


def spread(pid: int, cores: Sequence[int]) -> None:
    """Pin all threads but the first to the `cores`, one each in turn, so that they run side by side.

    The first stays free: threads that it starts would inherit its core.
    """
    threads = procfs.threads(pid, Excess()) if cores else []
    _pin([thread for thread in threads if thread != pid], [*cores[1:], *cores[:1]])


def page_faults(pid: int) -> int:
    """Return the number of pages that a process has touched so far; 0 if the system does not report it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The second field is the program's name in parentheses, which may hold any characters.
        return int(procfs.text(f"/proc/{pid}/stat").rpartition(")")[2].split()[7])
    return 0


def _pin(threads: Sequence[int], cores: Sequence[int]) -> None:
    """Pin each of the threads to one of the `cores`, in turn."""
    for k, thread in enumerate(threads):
        with contextlib.suppress(OSError):  # ended, or another user's: then it stays where the system puts it
            os.sched_setaffinity(thread, {cores[k % len(cores)]})


def _working(pid: int, before: Mapping[int, float], process_s: float) -> list[int]:
    """Return the threads whose CPU time grew since `before`; none if only one did, or if others ended.

    `process_s` is the CPU time of the whole process meanwhile, ended threads included.
    """
    used = {thread: after - before.get(thread, 0.0) for thread, after in _thread_times_s(pid).items()}
    if not used or process_s - sum(used.values()) > IDLE_SHARE * process_s:
        return []
    working = [thread for thread in sorted(used) if used[thread] > IDLE_SHARE * max(used.values())]
    return working if len(working) > 1 else []


def _thread_times_s(pid: int) -> dict[int, float]:
    """Return the CPU seconds of each living thread by its number, the oldest first.

    Empty if the system does not report them, or there are too many threads.
    """
    times: dict[int, float] = {}
    excess = Excess()
    for task in procfs.threads(pid, excess):
        with contextlib.suppress(OSError, ValueError, IndexError):
            times[task] = int(procfs.text(f"/proc/{pid}/task/{task}/schedstat").split()[0]) / 1e9
    return {} if excess.what else times
