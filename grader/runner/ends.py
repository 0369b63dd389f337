"""Pipes and exit status of a runner, for runners that were forked and for those that were started as programs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from dataclasses import dataclass

from grader.runner.calls import Call
from grader.runner.session import PIPE_BYTES

F_SETPIPE_SZ = 1031
#: Signals that a process causes by its own fault. Any other signal was sent by another process.
OWN_FAULTS = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGSYS", "SIGXCPU", "SIGXFSZ"})


@dataclass(frozen=True)
class Pipes:
    """Three pipes to a runner: requests, replies, printed text. `ours` are the judge's ends, which never block."""

    ours: tuple[int, int, int]
    theirs: tuple[int, int, int]

    @classmethod
    def made(cls) -> Pipes:
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        output_read, output_write = os.pipe()
        made = cls((request_write, reply_read, output_read), (request_read, reply_write, output_write))
        for fd in made.ours:
            os.set_blocking(fd, False)
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)
        return made

    def close_ours(self) -> None:
        for fd in self.ours:
            os.close(fd)

    def close_theirs(self) -> None:
        for fd in self.theirs:
            os.close(fd)


def how_it_ended(status: int) -> Call:
    """Convert a wait status to a Call with the status "crash"."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = number in set(signal.Signals)
        return Call("crash", signal_name=signal.Signals(number).name if known else str(number))
    code = os.WEXITSTATUS(status)
    return Call("crash", message=f"exit({code})", exit_code=code)
