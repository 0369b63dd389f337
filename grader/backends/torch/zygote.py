"""The judge's end of the zygote, from which runners with torch are forked.

The zygote is a Python process with torch imported (`torch.forkserver`), in a sandbox if there is one. `Zygote.spawn`
forks a runner from it in milliseconds and returns a `PipeSession`. Each runner gets a new working folder and access to
its object until the object is loaded. In a sandbox it also gets its own user id and a lock.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grader.backends.gpu import (
    cardlike,
    devicerunner,
    kernelfiles,
    replay,
    tensormemory,
    torchwork,
    tracing,
)
from grader.backends.gpu.compiled import Caches
from grader.backends.torch import forkserver
from grader.core import filebundle, removal
from grader.core.errors import KitError
from grader.runner import runner
from grader.runner.calls import Call
from grader.runner.session import OWN_FAULTS, Pipes, PipeSession, cpu_clock_s, has_ended, how_it_ended
from grader.runner.watch import Watch
from grader.sandbox import INSIDE, OPEN, Limits, Sandbox, leftovers, lock, process_limit

START_TIMEOUT_S, ANSWER_TIMEOUT_S = 120.0, 30.0
OF_GPU = (devicerunner, kernelfiles, tensormemory, tracing, replay, torchwork, cardlike)
#: The kit's files that a zygote needs: its program FORK_SERVER, and the FILES that this program loads.
FORK_SERVER, *FILES = (
    Path(str(module.__file__)) for module in (forkserver, runner, lock, removal, filebundle, *OF_GPU)
)
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/nonexistent",
    "KINETO_LOG_LEVEL": "99",
    # Without this, a torch with CUDA would look for a GPU, and print an error into the student's output.
    "CUDA_VISIBLE_DEVICES": "",
}


class Lost(Exception):
    """Raised if the zygote process has ended or does not answer."""


@dataclass(frozen=True)
class Runner:
    """One forked runner. `pid` is its process id for the judge, `inside_pid` its id inside the zygote's namespace.

    `scratch` is the path of its working folder as the zygote sees it.
    """

    pid: int
    inside_pid: int
    kind: str
    scratch: str


class Zygote(contextlib.AbstractContextManager["Zygote"]):
    """The judge's handle of a zygote process, which forks runners. It imports torch while the judge does other work."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        sandbox: Sandbox = OPEN,
        *,
        at_once: bool = True,
        modules: Sequence[str] = (),
        card: bool = False,
    ) -> None:
        """Start the zygote without waiting for it.

        `at_once`: False to start it later, in `start` or the first `spawn`. `environment` is added to ENVIRONMENT.
        `modules` are imported besides torch. `card`: True if the zygote's runners may use a GPU.
        """
        self._modules, self._card = tuple(modules), card
        self.sandbox = sandbox
        self.blind = False
        """True if GPU runners cannot observe kernel launches, because this Triton has an unexpected structure."""
        self.sabotaged = False
        """True if processes were killed that only a student's code could have killed (in sandbox tier D)."""
        self._environment = {**ENVIRONMENT, **(environment or {})}
        self._living: dict[int, Runner] = {}
        # Several threads of the judge use the zygote: this lock lets one request at a time change `_living`.
        self._turn = threading.RLock()
        self._numbers = itertools.count()
        self._stack = contextlib.ExitStack()
        self._uids = self._stack.enter_context(sandbox.claimed_uids())
        self._folder = Path(
            self._stack.enter_context(
                tempfile.TemporaryDirectory(prefix="gpt149-", ignore_cleanup_errors=True)
            )
        )
        self._objects, self._scratch = self._folder / "objects", self._folder / "scratch"
        self._caches = self._folder / "compiled"
        self.caches = Caches(self._caches, f"{INSIDE}/compiled" if sandbox.bwrap else str(self._caches))
        for folder in (self._folder, self._objects, self._scratch, self._caches):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o711)
        # Remove the runners' folders first, because TemporaryDirectory fails on deeply nested folders.
        self._stack.callback(removal.remove, self._scratch)
        try:
            sandbox.check_within_reach(self._folder)
        except KitError:
            self._stack.close()
            raise
        self._started = False
        if at_once:
            self.start()
        self._processes = process_limit(sandbox.own_uid)

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Unless it was started before, start the zygote's process, which then imports torch."""
        if not self._started:
            self._started = True
            self._start()

    # ---- runners

    def spawn(
        self,
        kind: str,
        object_path: Path | str,
        *,
        shared_fd: int | None = None,
        cache: str = "",
        builds: bool = False,
        is_kits: bool = False,
        threads: int,
        cpus: Sequence[int] | None = None,
        limits: Limits | None = None,
        call_timeout_s: float = 20.0,
        freeze: bool = True,
    ) -> PipeSession:
        """Fork a runner and let it load the object. The runner may die while it loads (`Session.death`).

        Args:
            kind: "student", "raw" or "torch" (`runner.runner.load`), or a kind of `gpu.devicerunner`.
            shared_fd: for a GPU runner, the descriptor of memory that it shares with the judge.
            cache: for a GPU runner, the folder of compiled kernels (of `caches`) that it reads.
            builds: True if the runner compiles kernels into `cache`. Then it gets a compiler's permissions.
            is_kits: True if the object is a file of the kit.
            freeze: True to stop the runner between calls, which is needed to judge time.

        If a kernel has killed the zygote, it is started again. Raises KitError if no runner can be started.
        """
        limits = limits or Limits()
        with self._turn, self._lent(object_path) as path:
            self.start()
            spec = {
                "op": "spawn",
                "kind": kind,
                "object": path,
                "threads": threads,
                "cpus": list(cpus) if cpus else None,
                "limits": {**asdict(limits), "processes": self._processes},
                **self._surroundings(path, cache, builds),
            }
            try:
                runner, pipes = self._fork(spec, shared_fd, is_kits)
            except Lost:
                self._clear_up()
                self._start()
                try:
                    runner, pipes = self._fork(spec, shared_fd, is_kits)
                except Lost as error:
                    raise KitError(f"the runners' parent process does not start: {error}") from error
            self._living[runner.pid] = runner
            watch = Watch(runner.pid, cpus, cpu_clock_s)
            scratch = leftovers.Scratch(self._seen_from_outside(runner), limits, runner.pid)
            return PipeSession(
                self.reap, runner.pid, pipes, call_timeout_s, watch, scratch, freeze, prepares=True
            )

    def reap(self, pid: int) -> Call:
        """Kill a runner and its descendants, and remove its files. Return a Call that describes how it ended."""
        with self._turn:
            return self._reaped(pid)

    def _reaped(self, pid: int) -> Call:
        """Do the work of `reap`. Raises KitError if the zygote was lost and a student's code cannot be the cause."""
        runner = self._living.pop(pid)
        was_killed = has_ended(pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        request = {
            "op": "reap",
            "pid": runner.inside_pid,
            "living": [other.inside_pid for other in self._living.values()],
            "scratch": runner.scratch,
            "shared": ["/tmp", "/dev/shm"] if self.sandbox.bwrap else [],
            "kept": [other.scratch for other in self._living.values()],
        }
        try:
            ended = how_it_ended(int(self._ask(request)[0]["status"]))
            if not self.sandbox.hides_files:
                leftovers.remove_files_of(self._uids)
        except Lost as error:
            kinds = {runner.kind, *(other.kind for other in self._living.values())}
            if self.sandbox.locks or "student" not in kinds:
                raise KitError(
                    f"the process that starts runners was lost ({error}; {self._last_words()}); run the command again"
                ) from error
            self.sabotaged = True
            self._clear_up()
            return Call("crash", message="the grader's process that had started it was killed, too")
        was_killed &= bool(ended.signal_name) and ended.signal_name not in OWN_FAULTS
        if was_killed and runner.kind != "student" and not self.sandbox.locks:
            self.sabotaged |= any(other.kind == "student" for other in self._living.values())
        return ended

    def close(self) -> None:
        """End the zygote with all its runners, and remove their files."""
        if self._started:
            self._end()
        self._stack.close()

    def _end(self) -> None:
        """End the zygote and its runners."""
        if not self._ready and not self.sandbox.bwrap:
            # The zygote may still import torch, and has no runners: kill it at once. With bubblewrap, `_process` is
            # bwrap, which would leave the zygote behind if killed.
            self._process.kill()
        self._control.close()
        self._kill_runners()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._clear_up()
        if self._process.stderr:
            self._process.stderr.close()

    @contextlib.contextmanager
    def _lent(self, object_path: Path | str) -> Iterator[str]:
        """Yield a path by which a runner can open the object. In a sandbox it leads to a temporary copy."""
        if not self.sandbox.locks or not str(object_path):
            yield str(object_path)
            return
        folder = self._objects / secrets.token_hex(8)
        folder.mkdir()
        folder.chmod(0o711)
        try:
            copy = shutil.copyfile(object_path, folder / Path(object_path).name)
            copy.chmod(0o444)
            inside = Path(INSIDE, "objects") if self.sandbox.bwrap else self._objects
            yield str(inside / folder.name / copy.name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _surroundings(self, object_path: str, cache: str, builds: bool) -> dict[str, Any]:
        """Return the next runner's folder, user id, lock (restrictions of its process) and environment variables.

        `builds`: True if the runner compiles kernels: it may run programs and write into the folder `cache`.
        """
        number = next(self._numbers)
        root = "/tmp" if self.sandbox.bwrap else str(self._scratch)
        scratch = f"{root}/{number}"
        uid = None if self._uids is None else self._uids[number % len(self._uids)]
        read, write, environment = [object_path] if object_path else [], [scratch], {"TMPDIR": scratch}
        if cache:
            environment["TRITON_CACHE_DIR"] = self.caches.path(cache)
            (write if builds else read).append(self.caches.path(cache))
        if builds:
            self.caches.lend(cache, uid)
            lock = (
                self.sandbox.compiler_lock(uid, read, write, card=self._card) if self.sandbox.locks else None
            )
        else:
            lock = self.sandbox.runner_lock(uid, read, write, card=self._card)
        return {"scratch": scratch, "uid": uid, "lock": lock, "environment": environment}

    def _seen_from_outside(self, runner: Runner) -> Path:
        if self.sandbox.bwrap:
            return Path(f"/proc/{runner.pid}/root{runner.scratch}")
        return Path(runner.scratch)

    def _fork(
        self, spec: Mapping[str, Any], shared_fd: int | None, is_kits: bool
    ) -> tuple[Runner, tuple[int, int, int]]:
        """Let the zygote fork a runner. Return (runner, judge's ends of its pipes for requests, replies and output).

        `is_kits`: True if the runner loads a file of the kit. Raises Lost if the zygote does not answer.
        """
        self._wait_ready()
        pipes = Pipes.made()
        try:
            answer, sender = self._ask(spec, (*pipes.theirs, *(() if shared_fd is None else (shared_fd,))))
        except Lost:
            pipes.close_ours()
            raise
        finally:
            pipes.close_theirs()
        if "pid" not in answer:
            raise KitError(f"no runner could be started: {answer.get('error')}")
        of_kernels = spec["kind"].partition("-")[0] in devicerunner.KINDS
        kind = "student" if of_kernels and not is_kits else spec["kind"]
        runner = Runner(sender or answer["pid"], answer["pid"], kind, spec["scratch"])
        return runner, pipes.ours

    # ---- the process

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        if hasattr(socket, "SO_PASSCRED"):
            # Linux then reports who sent each message, by the process id that the sender has outside of namespaces.
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with theirs:
            self._process = subprocess.Popen(
                self._command(theirs.fileno()),
                env=self._environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        self._control = ours
        self._ready = False

    def _command(self, fd: int) -> list[str]:
        places = {path: f"{INSIDE}/{path.name}" for path in (FORK_SERVER, *FILES)}
        forkserver, *others = (places[path] if self.sandbox.bwrap else str(path) for path in places)
        return self.sandbox.enclosed(
            [
                sys.executable,
                "-I",
                forkserver,
                str(fd),
                *others,
                ",".join(self._modules),
                "" if self.sandbox.bwrap else str(self._scratch),
            ],
            places={**places, self._objects: f"{INSIDE}/objects"},
            changing={self._caches: f"{INSIDE}/compiled"} if self._modules else {},
            card=self._card,
        )

    def _wait_ready(self) -> None:
        if self._ready:
            return
        self._control.settimeout(START_TIMEOUT_S)
        try:
            reply, _ = self._receive()
        except (OSError, ValueError) as error:
            self._process.kill()
            raise KitError(
                f"the runner process could not import the modules that kernels need: {self._last_words()}"
            ) from error
        self._control.settimeout(ANSWER_TIMEOUT_S)
        self.blind = bool(reply.get("blind"))
        self._ready = True

    def _last_words(self) -> str:
        """Return the last line that the zygote printed, and the signal that ended it, for messages."""
        try:
            status = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "it is still running"
        said = self._process.stderr.read().decode(errors="replace") if self._process.stderr else ""
        last = (said.strip().splitlines() or ["it ended without a message"])[-1]
        return f"{last}, {signal.Signals(-status).name}" if status < 0 else last

    def _ask(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> tuple[dict[str, Any], int | None]:
        """Send the zygote a message. Return (answer, process id of the answer's sender, or None if it is unknown).

        Raises Lost if the zygote does not answer.
        """
        try:
            # In tier D a kernel can stop the zygote: resume it. SIGCONT has no effect on bwrap.
            self._process.send_signal(signal.SIGCONT)
            line = json.dumps(message).encode() + b"\n"
            sent = socket.send_fds(self._control, [line], fds)
            self._control.sendall(line[sent:])
            return self._receive()
        except (OSError, ValueError) as error:
            raise Lost(str(error)) from error

    def _receive(self) -> tuple[dict[str, Any], int | None]:
        line, sender = b"", None
        while not line.endswith(b"\n"):
            chunk, ancillary, _, _ = self._control.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
            if not chunk:
                raise ValueError("it closed its socket")
            line += chunk
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == getattr(socket, "SCM_CREDENTIALS", None):
                    sender = _CREDENTIALS.unpack(data)[0]
        return json.loads(line), sender

    def _kill_runners(self) -> None:
        for pid in self._living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _clear_up(self) -> None:
        """Kill a broken zygote and all of its runners."""
        # Kill the zygote before its socket is closed. Otherwise it would notice the end of the socket, and would remove
        # files that the next zygote needs.
        self._process.kill()
        self._process.wait()
        self._control.close()
        if self._process.stderr:
            self._process.stderr.close()
        self._kill_runners()
        leftovers.kill_processes_in(self._scratch)


#: struct ucred: pid, uid, gid.
_CREDENTIALS = struct.Struct("=iII")
