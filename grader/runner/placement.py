"""Pinning of the threads of a timed OpenMP call to cores, by the same rule for student and reference.

Without pinning, Linux places the threads of a short parallel region badly. Each thread wakes the next one, mostly on
the core where one of the two ran last, so several threads share a core. An idle core takes over a thread only later,
when the region is already over. The placement stays the same from call to call, so a process may be slow or fast for
its whole life. Equal kernels of 2 to 3 ms with 8 threads on 2 cores took 2.4 to 10.2 ms (medians of one process each).
With each thread pinned to one core, they took 2.1 to 4.0 ms, measured in the same minutes. Stopping the runner between
calls is not the cause: without stops the placement is as bad.

Only working threads are pinned, because torch keeps idle threads in every process. Nothing is pinned if calls start new
threads, because all new threads would inherit the core of the thread that starts them.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from grader.core import procfs
from grader.core.procfs import Excess
from grader.runner.calls import Sample

if TYPE_CHECKING:
    from grader.runner.session import Session

IDLE_SHARE = 0.1
"""A thread is idle if it used less than this share of the busiest thread's CPU time. If threads that have ended used
more than this share of the process's CPU time, nothing is pinned."""
SHORT_CALL_S, SETTLING_CALLS = 0.02, 3
"""The first call after pinning is slower. If it is shorter than SHORT_CALL_S, it is repeated SETTLING_CALLS times. A
longer call is repeated only while the first touch of new memory takes a good part of its time."""
FAULT_S, FRESH_SHARE, STEADY_SHARE = 1.7e-6, 0.03, 0.75
"""FAULT_S: seconds for the first touch of a page (3.5 ms for 8 MiB). A long call is not repeated if first touches take
at most FRESH_SHARE of its time. If they take more than STEADY_SHARE of their time in the previous call, every call
touches new memory, and the call is not repeated either."""


def warm_up(session: Session, call: Callable[[], Sample], *, pin_to: Sequence[int] = ()) -> Sample:
    """Make untimed calls, so that threads start and memory is touched. Pin the threads that worked in the first call.

    The k-th thread is pinned to the k-th core of `pin_to`, and after the last core the first core is used again. If
    `pin_to` has fewer than two cores, nothing is pinned. Return the times of the last call. Exceptions of `call` are
    not caught.
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
        # If first touches of memory take about as long as in the previous call, every call allocates new memory. Then
        # further calls would not be faster.
        is_settled = fresh_s <= FRESH_SHARE * sample.wall_s or fresh_s > STEADY_SHARE * earlier_s
        if sample.wall_s >= SHORT_CALL_S and is_settled:
            break
        faults_before, earlier_s = faults, fresh_s
        sample = call()
    return sample


def spread(pid: int, cores: Sequence[int]) -> None:
    """Distribute all threads except the first over the `cores`, so that they run at the same time.

    The first thread is not pinned: threads that it starts would inherit its core.
    """
    threads = procfs.threads(pid, Excess()) if cores else []
    _pin([thread for thread in threads if thread != pid], [*cores[1:], *cores[:1]])


def page_faults(pid: int) -> int:
    """Return a process's minor page faults so far (first touches of pages); 0 if the system does not report them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The second field is the program's name in parentheses, which may hold any characters.
        return int(procfs.text(f"/proc/{pid}/stat").rpartition(")")[2].split()[7])
    return 0


def _pin(threads: Sequence[int], cores: Sequence[int]) -> None:
    """Pin each of the threads to one of the `cores`, in turn."""
    for k, thread in enumerate(threads):
        with contextlib.suppress(OSError):  # the thread has ended, or belongs to another user
            os.sched_setaffinity(thread, {cores[k % len(cores)]})


def _working(pid: int, before: Mapping[int, float], process_s: float) -> list[int]:
    """Return the ids of the threads that have worked since `before`; [] if only one has, or if working threads ended.

    `before` holds CPU seconds by thread. `process_s` are the CPU seconds of the whole process since then, including
    threads that have ended.
    """
    used = {thread: after - before.get(thread, 0.0) for thread, after in _thread_times_s(pid).items()}
    if not used or process_s - sum(used.values()) > IDLE_SHARE * process_s:
        return []
    working = [thread for thread in sorted(used) if used[thread] > IDLE_SHARE * max(used.values())]
    return working if len(working) > 1 else []


def _thread_times_s(pid: int) -> dict[int, float]:
    """Return the CPU seconds of each living thread by its id; {} if unknown, or if there are too many threads."""
    excess = Excess()
    times = procfs.schedstat_s(pid, procfs.RAN, excess)
    return {} if excess.what else times
