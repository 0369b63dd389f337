"""Limits for the two untrusted things a submission is: text for a compiler, and native code in a runner.

Theory of operation. A compiler is started by the judge through `run_limited`: own session, resource limits set
between fork and exec, output read through a pipe up to a bound, the whole process group killed at the end. A runner
is forked by the zygote (`grader.runner`), which applies the `Limits` it is sent before it loads the student's object.
This is tier D of the design: resource limits and wall time. Stronger tiers belong in this room, behind these two
calls, and name themselves in `describe`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

GIB = 1 << 30


@dataclass(frozen=True)
class Limits:
    """What a runner may use. `memory_bytes` is address space beyond what the zygote has mapped at the fork; None
    lifts it (AddressSanitizer reserves terabytes). `cpu_s` is a backstop behind the judge's own wall limit."""

    memory_bytes: int | None = 4 * GIB
    file_bytes: int = 64 << 20
    open_files: int = 64
    cpu_s: int = 1800


@dataclass(frozen=True)
class Finished:
    """A command that ended. `returncode` is negative for a signal; `output` is stdout and stderr, cut at the bound."""

    returncode: int
    output: bytes
    wall_s: float
    cpu_s: float
    timed_out: bool


def describe() -> dict[str, object]:
    """The tier in force and the limits that were really applied, for the result file."""
    return {"tier": "D", "applied": ["rlimits", "wall limit"], "limits": asdict(Limits())}


def run_limited(
    command: Sequence[str],
    *,
    cwd: Path,
    timeout_s: float,
    memory_bytes: int = 4 * GIB,
    output_bytes: int = 1 << 20,
    file_bytes: int = GIB,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """Run a command under limits and return its bounded output; nothing of its process group outlives the call.

    Raises FileNotFoundError when the program does not exist.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        # macOS refuses RLIMIT_AS; there the wall limit alone stands.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))

    started = time.monotonic()
    process = subprocess.Popen(
        list(command),
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=limit,
    )
    assert process.stdout is not None
    try:
        output, timed_out = _read_bounded(process.stdout.fileno(), output_bytes, started + timeout_s)
        if not timed_out:
            timed_out = not _wait_until(process.pid, started + timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
    return Finished(
        returncode=process.returncode,
        output=output,
        wall_s=time.monotonic() - started,
        cpu_s=usage.ru_utime + usage.ru_stime,
        timed_out=timed_out,
    )


def _read_bounded(fd: int, output_bytes: int, deadline: float) -> tuple[bytes, bool]:
    """Read to the end of the pipe, keeping the first `output_bytes`; True when the deadline came first."""
    kept = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or not selector.select(remaining_s):
                return bytes(kept), True
            chunk = os.read(fd, 1 << 16)
            if not chunk:
                return bytes(kept), False
            kept += chunk[: output_bytes - len(kept)]


def _wait_until(pid: int, deadline: float) -> bool:
    """Whether the process ended before the deadline (it may close its output and live on). Leaves it unreaped."""
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return True
        time.sleep(0.002)
    return False
