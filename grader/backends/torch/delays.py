"""Delays of threads at random moments of a call, which reveal data races, for runners with torch.

inside/delays.h does the same in native runners. This file imports nothing of the kit, like all files beside untrusted
code (`grader.runner.runner`).
"""

from __future__ import annotations

import ctypes


class Delays:
    """Context manager that delays the running thread many times in a call, for about 0.1 ms each.

    A race shows if threads are interrupted in the middle of their work. On few or busy cores each thread may finish its
    share without an interruption: on one core, a kernel whose threads share one row sum was always right at N = 256.
    Delays at random moments reveal the race (Edelstein et al., "Multithreaded Java program test generation", 2002). A
    timer interrupts the thread that is on the core (before Linux 6.4: the first thread), and the signal's handler
    sleeps. The timer is made before the sandbox is locked, because a student's code must not make timers.
    """

    INTERVAL_S = 200e-6
    #: The signal's handler is the C library's usleep, as Python code cannot run in the middle of a thread. Its argument
    #: is the signal's number, so it sleeps 27 us; Linux adds 50 us or more to wake it up.
    SIGNAL = 27  # SIGPROF
    CLOCK_MONOTONIC, SIGEV_SIGNAL = 1, 0

    def __init__(self) -> None:
        self.libc, self.timer = ctypes.CDLL(None), ctypes.c_void_p()
        # struct sigevent: a value of 8 bytes, the signal, the kind of notification, padding up to 64 bytes.
        event = (ctypes.c_int * 16)(0, 0, self.SIGNAL, self.SIGEV_SIGNAL)
        try:
            failed = self.libc.timer_create(
                self.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self.timer)
            )
            self.libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
            self.libc.signal(self.SIGNAL, ctypes.cast(self.libc.usleep, ctypes.c_void_p))
        except AttributeError:  # macOS has no such timers; before glibc 2.34 they are in another library
            failed = -1
        self.possible = failed == 0

    def __enter__(self) -> None:
        self.repeat(self.INTERVAL_S)

    def __exit__(self, *_: object) -> None:
        self.repeat(0.0)

    def repeat(self, interval_s: float) -> None:
        """Interrupt a thread every `interval_s` seconds from now on; stop interrupting for 0."""
        if self.possible:
            nanoseconds = round(interval_s * 1e9)
            times = (ctypes.c_long * 4)(0, nanoseconds, 0, nanoseconds)
            self.libc.timer_settime(self.timer, 0, ctypes.byref(times), None)
