"""Observations of a runner's process from outside. The runner cannot falsify them.

/proc lists the files that a process has mapped as code, the cores of its threads and its children. The CPU clock of a
stopped process must not advance. If the system reports nothing (macOS, a sandbox that hides the process), the judge has
no evidence and raises no flag.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from grader.core import machine, procfs
from grader.core.procfs import Excess

#: Library by which the judge recognises a zygote: the process that forks runners with torch.
TORCH_LIBRARY = "libtorch_cpu"
STOP_WITHIN_S, PATIENCE_S = 0.05, 5.0
"""Seconds that the judge waits for a stop. On a busy machine a thread may get no core in STOP_WITHIN_S. So a runner
that has not yet used much CPU time since the signal gets more time, at most PATIENCE_S in all its stops together."""
LATE_CPU_S, LATE_CPU_SHARE = 0.002, 0.02
"""CPU seconds that a runner may use between the stop signal and its stop: the larger one of LATE_CPU_S and
LATE_CPU_SHARE of the call's CPU time. Freeing memory may delay a stop. Measured: 0.02 to 0.15 ms in the median."""
_CLOCK_MONOTONIC_COARSE = 6
TICK_S = time.clock_getres(_CLOCK_MONOTONIC_COARSE) if sys.platform == "linux" else 0.0
"""Seconds by which another process's CPU clock may lag for each running thread. Linux updates it at the scheduler's
ticks (every 4 ms at 250 Hz) and when a thread leaves its core. The clock of a stopped process is exact."""
#: Share of a runner's CPU time that threads other than the first must have used if its work is to count as parallel.
SHARED_WORK = 0.2


@dataclass(frozen=True)
class Evidence:
    """Observations of one runner.

    - `new_code`: files mapped as code since the fork, the student's object included. In a native runner: all files
      mapped as code except its program.
    - `frozen_cpu_s`: CPU seconds that the runner used while it was stopped; `frozen_wall_s`: wall seconds during which
      it was stopped.
    - `stops`: number of stop signals. `unstopped`: signals after which some thread did not stop in time. `late`:
      signals after which the runner used more CPU time than stopping takes.
    - `extra_cpus`: cores that the runner's threads may run on, beyond the cores that it was given.
    - `children`: number of the runner's living child processes.
    - `unseen`: the reason why some of this could not be observed (too much to read, or the runner's first thread has
      ended); normally "".
    """

    new_code: tuple[str, ...] = ()
    frozen_cpu_s: float = 0.0
    frozen_wall_s: float = 0.0
    stops: int = 0
    unstopped: int = 0
    late: int = 0
    extra_cpus: tuple[int, ...] = ()
    children: int = 0
    unseen: str = ""


class Watch:
    """Observer of one runner: of its threads and CPU clock at each stop, and of its other evidence at the end."""

    def __init__(
        self,
        pid: int,
        cpus: Sequence[int] | None,
        cpu_clock_s: Callable[[int], float | None],
        own_code: Collection[str] | None = None,
    ) -> None:
        """Record which files the runner may have mapped as code.

        `cpus` are the runner's cores, None if it may use all of the judge's cores. `own_code` are the files of a native
        runner's program. It is None for a forked runner, which may have mapped the same files as its zygote.
        """
        self._pid, self._cpu_clock_s = pid, cpu_clock_s
        self._cpus = frozenset(cpus if cpus is not None else machine.usable_cpus())
        self._known_code = frozenset(own_code) if own_code is not None else _torchs_code(_parent(pid))
        self._threads_are_the_kernels, self._threads = own_code is not None, 1
        self._loading_s = (0.0, 0.0)
        self._stopped_at: tuple[float, float] | None = None
        self._frozen_cpu_s = self._frozen_wall_s = 0.0
        self._stops = self._unstopped = self._late = 0
        self._patience_s = PATIENCE_S
        self._queued: dict[int, float] = {}
        self._queued_before: dict[int, float] = {}
        self._excess = Excess()
        self.evidence = Evidence()

    def stopped(self, call_cpu_s: float | None = None) -> float | None:
        """Wait until the runner has stopped, and record how. The caller has just sent the stop signal.

        A stop is late if the runner uses more CPU time than stopping takes. After a call of many CPU seconds
        (`call_cpu_s`) more is allowed: threads may spin at the end of a parallel region or free memory. A runner that
        often stops late does so on purpose.

        Returns:
            The runner's CPU clock in seconds. None if it did not stop in time, or if the system does not report it.
        """
        before_s, started = self._cpu_clock_s(self._pid), time.monotonic()
        self._stops += 1
        while True:
            states = _thread_states(self._pid, self._excess)
            stands = set(states) <= set("TtZX")  # true, too, if no thread can be observed
            cpu_s, waited_s = self._cpu_clock_s(self._pid), time.monotonic() - started
            allowed_s = max(LATE_CPU_S, LATE_CPU_SHARE * (call_cpu_s or 0.0))
            allowed_s += TICK_S * min(len(states), len(self._cpus))
            is_late = before_s is not None and cpu_s is not None and cpu_s - before_s > allowed_s
            more_s = waited_s - STOP_WITHIN_S
            if stands or (more_s > 0 and is_late) or more_s > self._patience_s:
                break
            time.sleep(0.0002 if more_s < 0 else 0.005)
        self._patience_s -= max(0.0, more_s)
        self._threads = len(states)
        self._unstopped += not stands
        self._late += is_late
        self._stopped_at = None if cpu_s is None else (cpu_s, time.monotonic())
        self._queued = procfs.schedstat_s(self._pid, procfs.QUEUED, self._excess)
        return cpu_s if stands else None

    def waits(self, wall_s: float, cpu_s: float | None) -> tuple[float | None, float | None]:
        """Return (idle seconds, own seconds) of the last call; None for both if the system does not report them.

        `wall_s` and `cpu_s` are the call's times. Idle seconds are those in which no thread ran or waited for a core.
        Own seconds are the time that the call would have taken without other programs: idle seconds + cpu_s / min(n,
        k). Here n is the average number of threads that ran or waited for a core, k the number of cores. If threads
        have ended, their waits for a core are unknown, so both results are too large.
        """
        if cpu_s is None or not self._queued or wall_s <= 0:
            return None, None
        queued_s = sum(s - self._queued_before.get(thread, 0.0) for thread, s in self._queued.items())
        idle_s = max(0.0, wall_s - cpu_s - queued_s)
        wanted = min(max(1.0, (cpu_s + queued_s) / wall_s), max(1, len(self._cpus)))
        return idle_s, min(wall_s, idle_s + cpu_s / wanted)

    def loaded(self) -> None:
        """Record the CPU time used for loading, in which torch's idle threads spin: `shares_work` leaves it out."""
        self._loading_s = self._used_s() or (0.0, 0.0)

    def shares_work(self) -> bool:
        """Return True if threads besides the first have worked since the object was loaded, or if this is unknown.

        In a native runner every further thread was started by the student's code, so its existence is enough. A runner
        with torch always has idle threads: there SHARED_WORK of the CPU time must come from further threads.
        """
        if self._threads_are_the_kernels and self._threads > 1:
            return True
        if (used_s := self._used_s()) is None:
            return True
        whole_s, first_s = (now - at_loading for now, at_loading in zip(used_s, self._loading_s, strict=True))
        return whole_s - first_s > SHARED_WORK * whole_s

    def _used_s(self) -> tuple[float, float] | None:
        """Return CPU seconds (of all threads, of the first thread); None if the system does not report them."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            first_s = int(procfs.text(f"/proc/{self._pid}/schedstat").split()[0]) / 1e9
            if (cpu_s := self._cpu_clock_s(self._pid)) is not None:
                return cpu_s, first_s
        return None

    def resuming(self) -> None:
        """Record the CPU time that the runner used while it was stopped; call this before it resumes."""
        self._queued_before = self._queued
        cpu_s = self._cpu_clock_s(self._pid)
        if self._stopped_at is not None and cpu_s is not None:
            self._frozen_cpu_s += cpu_s - self._stopped_at[0]
            self._frozen_wall_s += time.monotonic() - self._stopped_at[1]
        self._stopped_at = None

    def ending(self) -> None:
        """Record the final evidence; call this while the runner is alive, before it is ended."""
        self.resuming()
        known, excess = self._known_code, self._excess
        if procfs.living(self._pid) != f"/proc/{self._pid}":
            excess.what = "its first thread has ended"
        self.evidence = Evidence(
            new_code=tuple(sorted(_code_of(self._pid, excess) - known)) if known is not None else (),
            frozen_cpu_s=self._frozen_cpu_s,
            frozen_wall_s=self._frozen_wall_s,
            stops=self._stops,
            unstopped=self._unstopped,
            late=self._late,
            extra_cpus=tuple(sorted(_cpus_of(self._pid, excess) - self._cpus)),
            children=_children_of(self._pid, excess),
        )
        self.evidence = replace(self.evidence, unseen=excess.what)


def _thread_states(pid: int, excess: Excess) -> list[str]:
    """Return the state letter of each thread (see proc(5)). T and t mean stopped, Z and X ended."""
    states: list[str] = []
    for task in procfs.threads(pid, excess):
        with contextlib.suppress(OSError, IndexError):
            states.append(procfs.text(f"/proc/{pid}/task/{task}/stat").rpartition(")")[2].split()[0])
    return states


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(procfs.text(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
    return 0


def _torchs_code(pid: int) -> frozenset[str] | None:
    """Return the files that a zygote has mapped as code; None if the process is not a zygote or hides them."""
    found = _code_of(pid, Excess())
    return found if any(TORCH_LIBRARY in path for path in found) else None


def _code_of(pid: int, excess: Excess) -> frozenset[str]:
    """Return the paths of all files that a process has mapped as code; empty if they cannot be read."""
    found = set()
    with contextlib.suppress(OSError):
        for line in procfs.lines(f"{procfs.living(pid)}/maps", excess):
            fields = line.split(maxsplit=5)
            # Mappings such as [vdso] are not files.
            if len(fields) == 6 and "x" in fields[1] and fields[5].startswith("/"):
                # A program is still the same after its file was removed from the cache.
                found.add(fields[5].removesuffix(" (deleted)"))
    return frozenset(found)


def _cpus_of(pid: int, excess: Excess) -> set[int]:
    """Return the cores on which any thread of a process may run."""
    found: set[int] = set()
    for task in procfs.threads(pid, excess):
        # A thread may have ended since the listing.
        with contextlib.suppress(OSError):
            found |= os.sched_getaffinity(task)
    return found


def _children_of(pid: int, excess: Excess) -> int:
    count = 0
    for task in procfs.threads(pid, excess):
        with contextlib.suppress(OSError):
            count += len(procfs.text(f"/proc/{pid}/task/{task}/children").split())
    return count
