"""Processes whose parent dies: they either end with the parent, or are adopted by this process and killed.

Linux only. Elsewhere these calls do nothing, and a process ends when its pipe is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MOST_GENERATIONS = 100


def end_with_parent(number: int) -> None:
    """Have the kernel send this process the signal `number` when its parent dies."""
    _set_option(PR_SET_PDEATHSIG, number)


def adopt() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _set_option(PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """Return the ids of this process's children, started by any of its threads."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as listing:
                found.update(map(int, listing.read().split()))
    return found


def sweep(spared: Collection[int]) -> None:
    """Kill every child except those in `spared`, then the orphans that they leave to this process, and so on."""
    for _ in range(MOST_GENERATIONS):
        strays = children().difference(spared)
        if not strays:
            return
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _set_option(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
