"""Running a compiler under limits, in a sandbox if there is one, with its output read up to a bound."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from grader.core.errors import KitError
from grader.sandbox.limits import GIB, Limits, process_limit
from grader.sandbox.lock import ENTERED, EXIT_FAILED
from grader.sandbox.tiers import INSIDE, LOCK, OPEN, Sandbox


@dataclass(frozen=True)
class Finished:
    """A command that ended. `returncode` is negative for a signal; `output` is stdout and stderr, cut at the bound."""

    returncode: int
    output: bytes
    wall_s: float
    cpu_s: float
    timed_out: bool


def run_limited(
    command: Sequence[str],
    *,
    cwd: Path,
    timeout_s: float,
    memory_bytes: int | None = 4 * GIB,
    output_bytes: int = 1 << 20,
    file_bytes: int = GIB,
    env: Mapping[str, str] | None = None,
    sandbox: Sandbox = OPEN,
    read: Sequence[Path] = (),
    system: Sequence[Path] | None = None,
    uid: int | None = None,
) -> Finished:
    """Run a command under limits and return its bounded output; nothing of its process group outlives the call.

    In a `sandbox` it may write to `cwd` alone and see `read` besides `system` (None: the system and Python); `uid` is
    its user, where the sandbox gives it one. Raises FileNotFoundError when the program does not exist (without
    a sandbox), KitError when the sandbox does not start.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        # macOS refuses RLIMIT_AS; there the wall limit alone stands.
        if memory_bytes is not None:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))

    line, entered = list(command), None
    if sandbox.locks:
        entered = _Entered()
        limits = Limits(memory_bytes, file_bytes, cpu_s=int(timeout_s) + 60)
        line = _sandboxed(line, cwd, sandbox, limits, read, system, uid, entered.write_fd)
    started = time.monotonic()
    process = subprocess.Popen(
        line,
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=[entered.write_fd] if entered else [],
        # A sandboxed command limits itself on the way in: less is done between the fork and the exec of a judge.
        preexec_fn=None if entered else limit,
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
        has_entered = entered.close() if entered else True
    if process.returncode > 0 and (not has_entered or (entered and process.returncode == EXIT_FAILED)):
        said = output.decode(errors="replace").strip()[:200]
        raise KitError(
            f"tier {sandbox.tier} does not start: {said}{_closed(command[0]) if sandbox.own_uid else ''}"
        )
    return Finished(
        returncode=process.returncode,
        output=output,
        wall_s=time.monotonic() - started,
        cpu_s=usage.ru_utime + usage.ru_stime,
        timed_out=timed_out,
    )


def _closed(program: str) -> str:
    """Say which folder keeps other users from a program, "" where none does."""
    found = shutil.which(program)
    for name in dict.fromkeys((found, os.path.realpath(found)) if found else ()):
        for folder in reversed(Path(name).parents):
            if not folder.stat().st_mode & stat.S_IXOTH:
                return (
                    f". {folder} is closed to other users, and {name} lies below it: install it elsewhere, or "
                    "choose another --tier"
                )
    return ""


class _Entered:
    """True if a sandbox was entered, by a pipe that only its script writes to (`grader.sandbox.lock`). What the command
    prints cannot tell: it is a stranger's text, and may say that the sandbox has failed."""

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()

    def close(self) -> bool:
        os.close(self.write_fd)
        os.set_blocking(self._read_fd, False)
        with open(self._read_fd, "rb", buffering=0) as mark:
            return mark.read(1) == ENTERED


def _sandboxed(
    command: list[str],
    cwd: Path,
    sandbox: Sandbox,
    limits: Limits,
    read: Sequence[Path],
    system: Sequence[Path] | None,
    uid: int | None,
    entered_fd: int,
) -> list[str]:
    """The command behind the script that locks itself and becomes the command, behind bubblewrap in tier A."""
    spec = {
        "lock": sandbox.compiler_lock(
            uid,
            [str(path) for path in read],
            [str(cwd)],
            system=None if system is None else [str(path) for path in system],
        ),
        "limits": {**asdict(limits), "open_files": 1024, "processes": process_limit(uid is not None)},
        "entered_fd": entered_fd,
    }
    script = f"{INSIDE}/lock.py" if sandbox.bwrap else str(LOCK)
    return sandbox.enclosed(
        [sys.executable, "-I", "-S", script, json.dumps(spec), *command],
        read=read,
        write=[cwd],
        places={LOCK: f"{INSIDE}/lock.py"},
        own_processes=False,
        cwd=str(cwd),
        system=system,
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
    """Return True if the process ended before the deadline (it may close its output and live on). Leaves it
    unreaped."""
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return True
        time.sleep(0.002)
    return False
