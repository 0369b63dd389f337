"""Stopping a runner between two calls, all of its threads at once."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys

from grader.core import procfs

#: tgkill(2), which Python does not offer: the numbers of Linux's tables for these machines.
_TGKILL = {"x86_64": 234, "aarch64": 131}


_LIBC = ctypes.CDLL(None)


def stop_threads(pid: int) -> None:
    """Send SIGSTOP to a process, and to each of its threads. Raises ProcessLookupError when it is gone.

    The process's own signal goes to its first thread, and only when that one has got a core do the others hear of it:
    beside other work, threads that spin at the end of a parallel region went on for milliseconds. The thread that runs
    takes a signal of its own at once and stops all others with it. SIGCONT takes back what has not been delivered.
    """
    os.kill(pid, signal.SIGSTOP)
    number = _TGKILL.get(platform.machine())
    if sys.platform == "linux" and number is not None:
        for thread in procfs.threads(pid, procfs.Excess()):
            _LIBC.syscall(number, pid, thread, int(signal.SIGSTOP))
