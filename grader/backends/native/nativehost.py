"""Host of native runners: it starts programs (`native.nativebuild`) under limits and locks, and ends them.

Theory of operation. A small launcher (inside/launch.cpp) opens the program's file and applies the judge's limits and
locks to itself. Then it becomes the program. So even static initialisers of the student's object run under all locks.
Without Python a runner starts in milliseconds, and its process holds only the student's code, the C and C++ libraries
and OpenMP. Layers in each tier of the sandbox (A to D):

    limits      memory, CPU and wall time, file sizes, processes                                          A B C D
    filter      some forty system calls; no file by name, no process, no network, no signal to others,
                no memory that becomes executable                                                         A B C D
    uid         a user id that no other process has, if the judge is root                                 A B C
    root        an empty folder as root folder, if the judge may set one                                  A B C
    files       Landlock: no files                                                                        A B
    namespaces  an empty file system, no /proc, no other process, no network                              A

The filter needs no privileges, so tier D has it too if Linux supports it. A program that needs shared libraries
(`nativebuild.LINKAGES`) must open them: its filter allows that (`opens_libraries`), and it sees the system's folders.

A program with sanitizers also opens files: libraries at its start, and for a report its own debug information and
/proc/self/maps. So in every tier Landlock lets it open these files only. Without Landlock no such program is started.

A runner is a child of the judge, even in its own process namespace, so the judge gets its exit status. It is killed
when the *thread* that started it ends (PR_SET_PDEATHSIG), so that thread must live as long as its runners.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import platform
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.backends.native import nativebuild, sanitize
from grader.core import machine
from grader.core.errors import KitError
from grader.core.harmless import one_line
from grader.runner.calls import Call, native_header
from grader.runner.frames import LARGEST_BYTES, Payloads
from grader.runner.session import Pipes, PipeSession, cpu_clock_s, how_it_ended
from grader.runner.watch import Watch
from grader.sandbox import OPEN, Limits, Sandbox, leftovers, lock, process_limit, seccomp
from grader.sandbox.view import LIBRARIES

START_TIMEOUT_S = 20.0
#: Beginning of the launcher's error message if Linux refuses to start the program.
PROGRAM = "program: "
_REFUSALS = "ENOEXEC ENOENT EACCES EINVAL ENOTDIR EISDIR ELOOP ENAMETOOLONG ELIBBAD"
REFUSALS = tuple(os.strerror(getattr(errno, name, errno.ENOEXEC)) for name in _REFUSALS.split())
"""Linux's error messages for programs that it refuses because of their content. Other errors (no memory, too many
processes) are the machine's fault."""
#: Bytes of address space for the program itself, its libraries and its first stack, in addition to the memory limit.
PROGRAM_BYTES = 32 << 20


@dataclass(frozen=True)
class Started:
    """Process ids of one runner. `init` is the first process of its namespace; 0 without a namespace."""

    pid: int
    init: int


class NotStarted(Exception):
    """Raised if the program did not start, with the launcher's reason."""


class ProgramRefused(Exception):
    """Raised if Linux refuses to start an existing program because of its content. The message is Linux's reason."""


class NativeHost(contextlib.AbstractContextManager["NativeHost"]):
    """Starts and ends native runners in one sandbox."""

    def __init__(
        self, sandbox: Sandbox = OPEN, cache: Path | None = None, *, checks: Mapping[str, str] | None = None
    ) -> None:
        """Compile the kit's programs, and try them in the sandbox if they are not static.

        `checks` are the environment variables for programs with sanitizers, None for other programs. Raises KitError if
        the kit's programs cannot be compiled or do not start in the sandbox, or if Landlock is needed but missing. On
        Linux, programs with sanitizers need Landlock, and so do programs with shared libraries in tier A.
        """
        self.sandbox, self._checks = sandbox, checks
        self._landlock = sandbox.landlock
        if checks is not None and sys.platform == "linux":
            self._landlock = lock.landlock_version()
            if not self._landlock:
                raise KitError(
                    "memory checks need Landlock (Linux 5.13 or newer, switched on): otherwise a program with "
                    "sanitizers could open any file. Leave out --sanitize here"
                )
        self._kit = nativebuild.kit(cache)
        self._is_static = checks is None and self._kit.linkage.startswith("static")
        if sandbox.bwrap and not (self._is_static or self._landlock):
            raise KitError("tier A needs static libraries or Landlock, and both are missing: try tier C")
        self._living: dict[int, Started] = {}
        self._numbers = itertools.count()
        self._stack = contextlib.ExitStack()
        self._uids = self._stack.enter_context(sandbox.claimed_uids())
        # The name holds this process's id, so that the folder can be removed later if this process is killed.
        folder = tempfile.TemporaryDirectory(prefix=f"gpt149-root-{os.getpid()}-")
        self._root = self._stack.enter_context(folder)
        os.chmod(self._root, 0o555)
        self._processes = process_limit(sandbox.own_uid)
        self._filter = self._chosen_filter()
        if not self._is_static and checks is None:
            self._try()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def applied(self) -> tuple[str, ...]:
        """Return the names of the layers that are in force, for `result.json`."""
        words = {
            "namespaces": self.sandbox.bwrap is not None,
            "empty root": bool(self._roots()),
            "no files": self._is_static and (self._filter is not None or self.sandbox.hides_files),
            "landlock": self._landlock > 0,
            "seccomp": self._filter is not None,
            "no network": self._filter is not None,
            "own uid": self.sandbox.own_uid,
            "rlimits": True,
            "wall limit": True,
        }
        return tuple(word for word, holds in words.items() if holds)

    def spawn(
        self,
        program: Path,
        *,
        threads: int,
        cpus: Sequence[int] | None = None,
        limits: Limits | None = None,
        call_timeout_s: float = 20.0,
        freeze: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> PipeSession:
        """Start a program of `native.nativebuild` as a runner, and wait for its first message.

        The runner may die before this message (`Session.death`). It gets the variables in `environment`, and `threads`
        as its number of OpenMP threads. `freeze`: True to stop the runner between calls, which timing needs. Raises
        ProgramRefused if Linux refuses the program, KitError if no process can be started.
        """
        limits = limits or Limits()
        if not program.exists():
            raise KitError(f"no native runner could be started: there is no file {program}")
        pipes = Pipes.made()
        # The shared memory must not exceed the limit on file sizes: a runner that writes beyond it is killed (SIGXFSZ).
        memory = Payloads.made(min(LARGEST_BYTES, limits.file_bytes or LARGEST_BYTES))
        try:
            words = self._words(
                program, limits, threads, cpus, {**(self._checks or {}), **(environment or {})}
            )
            started = self._started(words, pipes, memory)
        except BaseException:
            pipes.close_ours()
            if memory is not None:
                memory.close()
            raise
        finally:
            pipes.close_theirs()
        self._living[started.pid] = started
        # The runner cannot write files: pass an empty folder.
        scratch = leftovers.Scratch(Path(self._root), limits)
        own_code = [os.path.realpath(program)] if self._is_static else None
        watch = Watch(started.pid, cpus, cpu_clock_s, own_code)
        return PipeSession(
            self.reap,
            started.pid,
            pipes.ours,
            call_timeout_s,
            watch,
            scratch,
            freeze,
            memory,
            encoded=native_header,
        )

    def reap(self, pid: int) -> Call:
        """Kill a runner. Return a Call that describes how it ended."""
        started = self._living.pop(pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        return how_it_ended(_end(started))

    def close(self) -> None:
        """Kill all runners that are left."""
        for pid in list(self._living):
            self.reap(pid)
        self._stack.close()

    # ---- starting one

    def _try(self) -> None:
        """Raise KitError unless the kit's own program starts in the sandbox with shared libraries.

        A library may need more than the sandbox allows (shared memory for OpenMP, say). A student's program must not be
        blamed for that.
        """
        with self.spawn(self._kit.folder / nativebuild.TRIAL, threads=2) as session:
            if session.death is None and not session.functions:
                return
            said = one_line(session.printed.strip() or str(session.death and session.death.status), 200)
        self.close()
        raise KitError(f"programs built by this compiler do not start in the sandbox ({said}): try CXX=g++")

    def _chosen_filter(self) -> seccomp.Filter | None:
        """Return the filter of system calls for runners; None if this system does not support filters."""
        if sys.platform != "linux" or (self.sandbox.locks and not self.sandbox.seccomp):
            return None
        return seccomp.native_filter(platform.machine(), opens_libraries=not self._is_static)

    def _roots(self) -> list[str]:
        """Return ["root=FOLDER"] for the launcher; [] if the judge may set no root folder, or programs open files."""
        may = self.sandbox.bwrap is not None or (self.sandbox.locks and os.geteuid() == 0)
        return [f"root={self._root}"] if may and self._is_static else []

    def _readable(self) -> list[str]:
        """Return the files and folders that a runner may open besides its program."""
        if self._is_static:
            return []
        return [*LIBRARIES, *(sanitize.readable() if self._checks is not None else ())]

    def _words(
        self,
        program: Path,
        limits: Limits,
        threads: int,
        cpus: Sequence[int] | None,
        environment: Mapping[str, str],
    ) -> list[str]:
        """Return the launcher's arguments, which inside/launch.cpp describes, except those for descriptors."""
        memory_bytes = limits.memory_bytes + PROGRAM_BYTES if limits.memory_bytes is not None else 0
        words = [
            f"program={program}",
            f"memory={memory_bytes}",
            f"file={limits.file_bytes}",
            f"files={limits.open_files}",
            f"cpu_s={limits.cpu_s}",
            f"processes={self._processes or 0}",
            *(f"environment={name}={value}" for name, value in environment.items()),
            f"environment=OMP_NUM_THREADS={threads}",
            f"environment=GPT149_CACHE_FILES={machine.cache_files()}",
            *self._roots(),
        ]
        if cpus:
            words.append("cpus=" + ",".join(map(str, cpus)))
        if self.sandbox.bwrap:
            words.append(f"namespaces={2 if self.sandbox.own_user_namespace else 1}")
        if self._uids is not None:
            words.append(f"uid={self._uids[next(self._numbers) % len(self._uids)]}")
        if self._landlock:
            words.append("landlock=1")
            words += [f"read={path}" for path in self._readable()]
        if self._filter is not None:
            words.append(f"filter={self._filter.program.hex()}")
            words.append("pids=" + ",".join(map(str, self._filter.pid_places)))
            words.append("token=" + ",".join(map(str, self._filter.token_places)))
        return words

    def _started(self, words: list[str], pipes: Pipes, memory: Payloads | None) -> Started:
        try:
            return _launch(self._kit.launch, words, pipes, memory)
        except NotStarted as reason:
            if str(reason).startswith(PROGRAM) and str(reason).endswith(REFUSALS):
                raise ProgramRefused(str(reason).removeprefix(PROGRAM)) from reason
            if self.sandbox.locks or "seccomp" not in str(reason):
                raise KitError(f"no native runner could be started: {reason}") from reason
        # In tier D, start without a filter if Linux does not support it.
        self._filter = None
        try:
            words = [word for word in words if not word.startswith("filter=")]
            return _launch(self._kit.launch, words, pipes, memory)
        except NotStarted as reason:
            raise KitError(f"no native runner could be started: {reason}") from reason


def _launch(launcher: Path, words: Sequence[str], pipes: Pipes, memory: Payloads | None) -> Started:
    """Start the launcher and wait until it has become the program. Raises NotStarted if it does not."""
    status_read, status_write = os.pipe()
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            request, reply, output = pipes.theirs
            fds = {
                "request": request,
                "reply": reply,
                "output": output,
                "input": null,
                "status": status_write,
            }
            if memory is not None:
                fds["payloads"] = memory.fd
            pid = os.posix_spawn(
                str(launcher),
                [str(launcher), *words, *(f"{name}={fd}" for name, fd in fds.items())],
                {},
                # Duplicating a descriptor onto itself keeps it open in the new process.
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds.values()],
            )
        except OSError as error:
            raise NotStarted(str(error)) from error
        finally:
            os.close(null)
            os.close(status_write)
        said = _read_all(status_read, time.monotonic() + START_TIMEOUT_S)
    finally:
        os.close(status_read)
    started = Started(pid, 0)
    for line in ("E it does not answer" if said is None else said).splitlines():
        kind, *rest = line.split()
        if kind == "P":
            # The launcher has started the two processes that this line names, and has ended.
            os.waitpid(pid, 0)
            started = Started(int(rest[1]), int(rest[0]))
        elif kind == "E":
            _end(started)
            raise NotStarted(" ".join(rest))
    return started


def _end(started: Started) -> int:
    """Kill a runner and the first process of its namespace. Return the runner's wait status.

    The runner is reaped first: the first process of a namespace ends only after all others were reaped.
    """
    for left in (started.pid, started.init):
        if left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
    _, status = os.waitpid(started.pid, 0)
    if started.init:
        os.waitpid(started.init, 0)
    return status


def _read_all(fd: int, deadline: float) -> str | None:
    """Read a pipe to its end. Return None if the end does not come before the deadline."""
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            chunk = os.read(fd, 4096)
            if not chunk:
                return said.decode(errors="replace")
            said += chunk
    return None
