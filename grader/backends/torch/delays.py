"""Delays at random moments of a call, under which a race shows, in a runner with torch (inside/delays.h for others).

Imports nothing of the kit, as all files beside untrusted code (`grader.runner.runner`).
"""

from __future__ import annotations

import ctypes


class Delays:
    """Delays the running thread again and again during a call, for about a tenth of a millisecond.

    A race shows when threads take turns in the middle of their work. On few or busy cores each may finish its share
    within one time slice, and the race passes: on one core, a shared row sum passed at N = 256 every time. Delays at
    random moments reveal it, as noise makers do (Edelstein et al., "Multithreaded Java program test generation", 2002).
    A timer interrupts the thread that it finds on the core (Linux from 6.4 on; the first thread before), and the
    signal's handler sleeps. The timer is made before the sandbox is locked: a student's code can make none.
    """

    INTERVAL_S = 200e-6
    #: The handler is the C library's usleep, which takes the signal's number as its argument: 27 us. The kernel adds
    #: its wake-up time (50 us and more). Python code cannot run in the middle of any thread.
    SIGNAL = 27  # SIGPROF
    CLOCK_MONOTONIC, SIGEV_SIGNAL = 1, 0

    def __init__(self) -> None:
        self.libc, self.timer = ctypes.CDLL(None), ctypes.c_void_p()
        # struct sigevent: eight bytes of a value, the signal, the way of notification, padded to 64 bytes.
        event = (ctypes.c_int * 16)(0, 0, self.SIGNAL, self.SIGEV_SIGNAL)
        try:
            failed = self.libc.timer_create(
                self.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self.timer)
            )
            self.libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
            self.libc.signal(self.SIGNAL, ctypes.cast(self.libc.usleep, ctypes.c_void_p))
        except AttributeError:  # macOS has no such timers, glibc before 2.34 has them elsewhere
            failed = -1
        self.possible = failed == 0

    def __enter__(self) -> None:
        self.repeat(self.INTERVAL_S)

    def __exit__(self, *_: object) -> None:
        self.repeat(0.0)

    def repeat(self, interval_s: float) -> None:
        """Interrupt every `interval_s`, or no more for zero."""
        if self.possible:
            nanoseconds = round(interval_s * 1e9)
            times = (ctypes.c_long * 4)(0, nanoseconds, 0, nanoseconds)
            self.libc.timer_settime(self.timer, 0, ctypes.byref(times), None)
