"""Function that runs a compiler under limits, usually in a sandbox, and returns the beginning of its output."""

from __future__ import annotations

import contextlib
import json
import os
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

from grader.core import procfs
from grader.core.errors import KitError
from grader.sandbox.limits import GIB, Limits, process_limit
from grader.sandbox.lock import ENTERED, EXIT_FAILED
from grader.sandbox.tiers import INSIDE, LOCK, OPEN, Sandbox

PATIENCE, LEAST_PATIENCE_S = 8, 60.0
"""Limit on wall time: this multiple of the limit on processor time, at least 60 s, because cores may be busy."""
CHECK_S = 1.0
#: Start of a command line: a shell that limits core files, files (in 512 bytes) and memory (in KiB; 0: no limit), then
#: becomes the command. macOS cannot limit memory. A `preexec_fn` would fork the judge: 40 ms of CPU time with torch.
_LIMITED = (
    "/bin/sh",
    "-c",
    '{ ulimit -c 0; ulimit -f "$1"; test "$2" = 0 || ulimit -v "$2"; } 2>/dev/null; shift 2; exec "$@"',
    "sh",
)


def patience_s(cpu_s: float) -> float:
    """Return the wall-clock limit, in seconds, of a command whose limit on processor time is `cpu_s` seconds."""
    return max(LEAST_PATIENCE_S, PATIENCE * cpu_s)


class TimeLimit:
    """Limit on the processor time of several commands together.

    All of them must also end within `patience_s` wall-clock seconds of the limit's creation.
    """

    def __init__(self, cpu_s: float) -> None:
        self.cpu_s = max(0.0, cpu_s)
        self.used_s = 0.0
        self.ends_s = time.monotonic() + patience_s(self.cpu_s)


@dataclass(frozen=True)
class Finished:
    """Result of a command. `returncode` is -N if signal N ended it. `output` is stdout and stderr, cut to the limit.

    `timed_out` is True if the command used up its processor time.
    """

    returncode: int
    output: bytes
    wall_s: float
    cpu_s: float
    timed_out: bool


def run_limited(
    command: Sequence[str],
    *,
    cwd: Path,
    timeout_s: float | TimeLimit,
    memory_bytes: int | None = 4 * GIB,
    output_bytes: int = 1 << 20,
    file_bytes: int = GIB,
    env: Mapping[str, str] | None = None,
    sandbox: Sandbox = OPEN,
    read: Sequence[Path] = (),
    system: Sequence[Path] | None = None,
    uid: int | None = None,
) -> Finished:
    """Run a command under limits. Its whole process group is killed before this function returns.

    In a `sandbox` the command may write only to `cwd`, and sees the paths `read` and `system` (None: the system and
    Python). `uid` is the command's user id in tiers that give runners user ids of their own. `timeout_s` limits the
    processor time, in seconds; several commands may share a TimeLimit.

    Raises FileNotFoundError if the program does not exist (only in tier D). Raises KitError if the sandbox does not
    start. Also raises KitError on a machine so busy that the command reaches the wall-clock limit (`patience_s`) before
    the limit on processor time.
    """
    limit_of_time = timeout_s if isinstance(timeout_s, TimeLimit) else TimeLimit(timeout_s)

    line, entered = list(command), None
    if not sandbox.locks:
        if shutil.which(cwd / command[0] if "/" in command[0] else command[0]) is None:
            raise FileNotFoundError(command[0])
        line = [*_LIMITED, str(file_bytes // 512), str((memory_bytes or 0) // 1024), *command]
    else:
        entered = _Entered()
        limits = Limits(memory_bytes, file_bytes, cpu_s=int(limit_of_time.cpu_s) + 60)
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
    )
    assert process.stdout is not None
    try:
        patience = _Patience(process.pid, limit_of_time)
        output = _read_bounded(process.stdout.fileno(), output_bytes, patience)
        _wait_for_end(process.pid, patience)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        has_entered = entered.close() if entered else True
    if process.returncode > 0 and (not has_entered or (entered and process.returncode == EXIT_FAILED)):
        # The last line of a traceback names the error.
        said = output.decode(errors="replace").strip().rpartition("\n")[2][:200]
        raise KitError(
            f"sandbox tier {sandbox.tier} does not start: {said}{_closed(command[0]) if sandbox.own_uid else ''}"
        )
    cpu_s, wall_s = usage.ru_utime + usage.ru_stime, time.monotonic() - started
    limit_of_time.used_s += max(cpu_s, patience.cpu_s)
    if patience.is_starved:
        raise KitError(
            f"{os.path.basename(command[0])} got {patience.cpu_s:.0f} s of processor time in {wall_s:.0f} s: the "
            "machine is too busy. Try again later, or with fewer --jobs"
        )
    return Finished(process.returncode, output, wall_s, cpu_s, timed_out=patience.is_over)


def _closed(program: str) -> str:
    """Return a sentence on the folder that keeps other users from running a program; "" if no folder does."""
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
    """Pipe by which the script `lock.py` reports that the lock is on and the command starts.

    The command cannot write to it. So an untrusted command cannot claim in its output that the sandbox failed.
    """

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()

    def close(self) -> bool:
        """Close the pipe. Return True if the script has reported."""
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
    """Return the command line of `lock.py`, which locks itself and becomes the command; in tier A inside bubblewrap."""
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


class _Patience:
    """Remaining time of a command.

    The command's CPU time is first read when its wall-clock time reaches the CPU limit, then every 0.02 to 1 s.
    """

    def __init__(self, pid: int, limit: TimeLimit) -> None:
        self.pid, self.limit = pid, limit
        self.cpu_s = 0.0
        self.is_over = self.is_starved = False
        self._looks_s = time.monotonic() + limit.cpu_s - limit.used_s

    def left_s(self) -> float:
        """Return the seconds until the processor time must be read again; 0.0 if a time limit was reached."""
        now_s = time.monotonic()
        if now_s >= self._looks_s:
            known_s = _cpu_s_of_tree(self.pid)
            # Without /proc the CPU time is unknown: then treat the CPU limit as a limit on wall-clock time.
            self.cpu_s = self.limit.cpu_s if known_s is None else known_s
            left_s = self.limit.cpu_s - self.limit.used_s - self.cpu_s
            self.is_over, self.is_starved = left_s <= 0, left_s > 0 and now_s >= self.limit.ends_s
            self._looks_s = now_s + min(max(left_s, 0.02), CHECK_S)
        return 0.0 if self.is_over or self.is_starved else max(0.001, self._looks_s - now_s)


def _cpu_s_of_tree(pid: int) -> float | None:
    """Return the CPU seconds of a process and its descendants, ended ones included; None if they are unknown."""
    found = dict[int, tuple[int, float]]()
    with contextlib.suppress(FileNotFoundError), os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError, ValueError):
                    words = procfs.text(f"/proc/{entry.name}/stat").rpartition(")")[2].split()
                    found[int(entry.name)] = int(words[1]), float(sum(map(int, words[11:15])))
    if pid not in found:
        return None
    family, size = {pid}, 0
    while size != len(family):
        size = len(family)
        family |= {each for each, (parent, _) in found.items() if parent in family}
    return sum(found[each][1] for each in family) / os.sysconf("SC_CLK_TCK")


def _read_bounded(fd: int, output_bytes: int, patience: _Patience) -> bytes:
    """Read a pipe until its end, or until the command's time is over. Return the first `output_bytes` bytes."""
    kept = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while left_s := patience.left_s():
            if selector.select(left_s):
                if not (chunk := os.read(fd, 1 << 16)):
                    break
                kept += chunk[: output_bytes - len(kept)]
    return bytes(kept)


def _wait_for_end(pid: int, patience: _Patience) -> None:
    """Wait until the process has ended or its time is over, without reaping it. It may have closed its output early."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and patience.left_s():
        time.sleep(0.002)
