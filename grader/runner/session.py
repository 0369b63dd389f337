"""The judge's side of a runner's pipes: it sends inputs, measures times and stops the runner between calls.

`grader.backends.native.nativehost` starts a runner, or `grader.backends.torch.zygote` forks one. Either returns a
`PipeSession`. Each call of a session returns a `Call`: an output, an exception, a crash, a time-out or a malformed
reply. The wall clock starts before the runner can see the request. It stops when the output's last byte is in the
judge's own memory. CPU time is read from the process clock of the runner. The judge reads both clocks, so code in the
runner cannot falsify them.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import math
import os
import platform
import selectors
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from grader.core import procfs
from grader.core.errors import KitError
from grader.core.harmless import harmless, one_line
from grader.runner.calls import Budget, Call, Request, offered, understood, words
from grader.runner.frames import IN_MEMORY, Incoming, Payloads, RunnerDied
from grader.runner.runner import DELAYS, ECHOES, FRAME, INPUTS, drop
from grader.runner.watch import TICK_S, Evidence, Watch
from grader.sandbox.leftovers import Scratch

OUTPUT_LIMIT_BYTES = 64 << 10
LOAD_TIMEOUT_S = 5.0
PIPE_BYTES = 1 << 20
F_SETPIPE_SZ = 1031
#: Signals that end a process because of its own error. Any other signal is assumed to come from another process.
OWN_FAULTS = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGSYS", "SIGXCPU", "SIGXFSZ"})
#: Interval at which the size of the runner's working directory is checked during a long call.
SCRATCH_LOOK_S = 0.25
#: System-call number of tgkill(2), for which Python has no function, by instruction set.
_TGKILL = {"x86_64": 234, "aarch64": 131}
_LIBC = ctypes.CDLL(None)
Own = TypeVar("Own", bound="Session")


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


def json_header(header: dict[str, Any]) -> bytes:
    """Encode a request's header as JSON, for a runner that is a Python process."""
    return json.dumps(header).encode()


def how_it_ended(status: int) -> Call:
    """Convert the status from waitpid() to a Call with the status "crash"."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = number in set(signal.Signals)
        return Call("crash", signal_name=signal.Signals(number).name if known else str(number))
    code = os.WEXITSTATUS(status)
    return Call("crash", message=f"exit({code})", exit_code=code)


class Session(ABC):
    """The judge's end of one runner with one loaded object.

    After a crash, a time-out or a malformed reply no further call is possible: `call` then returns `death`.
    """

    call_timeout_s: float
    call_cpu_s: float | None = None
    """Limit on a call's CPU seconds. If it is set, the wall-clock limit only ends calls that wait."""
    budget: Budget | None = None
    """Limit on the time of all calls of a part, which may use several runners."""
    before_timeout: Callable[[int], None] | None = None
    """Function that is called with the runner's process id after a time-out, before the runner is killed."""
    death: Call | None = None
    load_error: str | None = None
    functions: Mapping[str, str] = MappingProxyType({})
    """{name: signature's code} of the functions in the loaded object."""
    pid = 0
    """Process id of the runner; 0 if it has no process of its own."""

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cpu_clock_s(self) -> float | None:
        """Return the CPU seconds of the runner so far; None if the system does not report them."""
        return None

    @property
    def shares_work(self) -> bool:
        """True if several threads may have worked in the calls so far. Only then do the `delays` of `call` work."""
        return False

    @property
    def printed(self) -> str:
        """Return the text printed so far (stdout and stderr): its first 64 KiB, harmful characters replaced."""
        return ""

    @property
    def evidence(self) -> Evidence:
        """Return the judge's observations of the runner's process. They are complete once the session is closed."""
        return Evidence()

    @abstractmethod
    def call(
        self,
        request: Request,
        *,
        echo_inputs: bool = False,
        profile_label: str | None = None,
        workspace_in_scope: bool = True,
        measure_peak: bool = False,
        delays: bool = False,
        timeout_s: float | None = None,
    ) -> Call:
        """Send one request and wait for its reply, at most `timeout_s` (the session's own limit by default).

        `echo_inputs`: True to get the inputs' values after the call. `delays`: True to interrupt threads at random
        moments, which shows data races but falsifies the time. `measure_peak`: True to measure memory. `profile_label`
        names a scope in torch's profiler. `workspace_in_scope`: True to count the workspace's memory in this scope.
        """

    @abstractmethod
    def close(self) -> None:
        """Read the rest of the runner's printed text, then end the runner and all processes that it started."""


class PipeSession(Session):
    """Session with a runner process that gets requests and sends replies through pipes."""

    def __init__(
        self,
        reap: Callable[[int], Call],
        pid: int,
        pipes: tuple[int, int, int],
        call_timeout_s: float,
        watch: Watch,
        scratch: Scratch,
        freeze: bool = True,
        memory: Payloads | None = None,
        prepares: bool = False,
        encoded: Callable[[dict[str, Any]], bytes] = json_header,
    ) -> None:
        """Wait until the runner has loaded its object, and read the list of the object's functions.

        Args:
            reap: function that kills the runner with this process id and returns a Call that describes its end.
            pid: process id of the runner.
            pipes: the judge's ends of the pipes: requests, replies, printed text.
            call_timeout_s: limit on the wall-clock time of a call.
            watch: observer of the runner's process.
            scratch: the runner's working directory and the limits on its files.
            freeze: True to stop the runner between calls, which is only needed if time is judged.
            memory: payload memory that the runner shares. The session closes it.
            prepares: True for a runner that reports "ready" before it loads the object.
            encoded: function that encodes a request's header for this kind of runner.

        Raises KitError if a runner with `prepares` ends before it is ready: no student code has run yet.
        """
        self._reap, self.pid, self._scratch = reap, pid, scratch
        self._memory, self._encode = memory, encoded
        self._is_stopped = False
        self._begin: Callable[[], None] | None = None
        self._finish: Callable[[], None] | None = None
        self._request_fd, self._reply_fd, self._output_fd = pipes
        self._open_fds = list(pipes)
        self._output_open = True
        self._captured = bytearray()
        self.call_timeout_s = call_timeout_s
        self._watch, self._freezes = watch, freeze
        self._kept_header: dict[str, Any] | None = None
        self._scratch_seen_s = 0.0
        self._own_bytes = 0
        """Resident bytes of a forked runner before it loads the object."""
        if prepares:
            self._await_ready()
            self._own_bytes = self._status_bytes("VmRSS") or 0
        self._greet()
        self._watch.loaded()

    def cpu_clock_s(self) -> float | None:
        return cpu_clock_s(self.pid)

    @property
    def shares_work(self) -> bool:
        return self._watch.shares_work()

    @property
    def printed(self) -> str:
        return harmless(self._captured.decode(errors="replace"))

    @property
    def evidence(self) -> Evidence:
        return self._watch.evidence

    def call(
        self,
        request: Request,
        *,
        echo_inputs: bool = False,
        profile_label: str | None = None,
        workspace_in_scope: bool = True,
        measure_peak: bool = False,
        delays: bool = False,
        timeout_s: float | None = None,
    ) -> Call:
        if self.death is not None:
            return self.death
        if self.budget is not None and (excess := self.budget.excess()):
            self.death = replace(self._end(RunnerDied(timed_out=True)), message=excess)
            return self.death
        # Ask for the inputs' new values only after the call. A kernel that knew of this could behave differently.
        asks_after = echo_inputs and not request.echo and request.op == "call"
        sent = request.payload()
        input_bytes = sum(map(len, sent))
        wanted_bytes = 8 * math.prod(request.output_shape)
        header = {
            **request.described(),
            "profile": profile_label,
            "workspace_in_scope": workspace_in_scope,
            # 8 bytes per element: an output of a wrong type may be wider than float32. The runner withholds a larger
            # output.
            "max_output_bytes": max(wanted_bytes, 1 << 20),
            "keep": not (self._freezes or profile_label or request.more),
            **request.more,
        }
        marks = ECHOES * request.echo | DELAYS * (delays and self.shares_work)
        text = self._encoded(header)
        incoming = Incoming(
            header["max_output_bytes"] + input_bytes,
            likely_bytes=wanted_bytes // 2 + (input_bytes if request.echo else 0),
        )
        resident_before = self._reset_peak() if measure_peak else None
        try:
            timeout_s = timeout_s or self.call_timeout_s
            wall_s, cpu_s = self._exchange(text, sent, timeout_s, incoming, marks)
            idle_s, own_s = self._watch.waits(wall_s, cpu_s) if self._freezes else (None, None)
            payload = incoming.payload
            if asks_after and incoming.header.get("status") == "ok":
                now = Incoming(input_bytes, likely_bytes=input_bytes)
                self._exchange(b"", [], timeout_s, now, INPUTS)
                payload = payload + now.payload
            call = understood(
                incoming.header, payload, request, wall_s, cpu_s, echo=request.echo or asks_after
            )
            call = replace(call, idle_s=idle_s, own_s=own_s)
            if call.status != "ok":
                self._kept_header = None
        except RunnerDied as end:
            self.death = self._end(end)
            return self.death
        if self.budget is not None:
            self.budget.spend(call)
        if resident_before is not None:
            highest = self._status_bytes("VmHWM")
            if highest is not None:
                # Add the part of the payload memory that was used as workspace: VmHWM does not contain it.
                own = highest - input_bytes + (self._memory.excess_bytes() if self._memory else 0)
                peak_bytes, held_bytes = max(0, own - resident_before), max(0, own - self._own_bytes)
                call = replace(call, peak_bytes=peak_bytes, held_bytes=held_bytes)
        return call

    def command(
        self,
        header: dict[str, Any],
        *,
        begin: Callable[[], None] | None = None,
        finish: Callable[[], None] | None = None,
        timeout_s: float | None = None,
    ) -> Call:
        """Send a request without tensors and wait for its reply, which has no payload.

        `begin` is called after the clock has started and before the runner resumes. `finish` is called when the reply
        has arrived, before the clock and the runner stop.
        """
        if self.death is not None:
            return self.death
        self._kept_header, self._begin, self._finish = None, begin, finish
        incoming = Incoming(0)
        try:
            timeout_s = timeout_s or self.call_timeout_s
            wall_s, cpu_s = self._exchange(json_header(header), [], timeout_s, incoming)
        except RunnerDied as end:
            self.death = self._end(end)
            return self.death
        finally:
            self._begin = self._finish = None
        if incoming.header.get("status") == "exception":
            return Call("exception", wall_s, cpu_s, message=words(incoming.header.get("message")))
        return Call("ok", wall_s, cpu_s, message=words(incoming.header.get("message")))

    def close(self) -> None:
        if self.death is None:
            self._watch.ending()
            self._resume()
            os.close(self._request_fd)
            self._open_fds.remove(self._request_fd)
            self._drain_until_closed(time.monotonic() + 1.0)
            self.death = Call("crash", message="the session was closed")
            self._reap(self.pid)
        for fd in self._open_fds:
            os.close(fd)
        self._open_fds = []
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    # ---- one exchange

    def _encoded(self, header: dict[str, Any]) -> bytes:
        """Return the encoded header; b"" if the header equals the last call's: the runner then repeats that call."""
        if header == self._kept_header:
            return b""
        self._kept_header = header if header["keep"] and header["op"] == "call" else None
        return self._encode(header)

    def _await_ready(self) -> None:
        freezes, self._freezes = self._freezes, False
        try:
            self._exchange(None, [], LOAD_TIMEOUT_S, Incoming(0))
        except RunnerDied as end:
            self.death = ended = self._end(end)
            self.close()
            said = one_line(self.printed.strip() or ended.message or ended.signal_name or ended.status, 300)
            raise KitError(
                f"a runner did not become ready: {said}; run `python -m grader doctor` to check this machine"
            ) from end
        self._freezes = freezes

    def _greet(self) -> None:
        """Read the list of the object's functions, or the reason why the object was not loaded."""
        try:
            # The object may call exit(0) while it is loaded. Torch then takes seconds to shut down. Wait for that,
            # because an earlier time-out would blame an endless loop.
            self._exchange(None, [], max(self.call_timeout_s, LOAD_TIMEOUT_S), incoming := Incoming(0))
        except RunnerDied as end:
            self.death = self._end(end)
            return
        if incoming.header.get("status") == "load_error":
            self.load_error = words(incoming.header.get("message"))
            return
        try:
            self.functions = offered(incoming.header)
        except RunnerDied as nonsense:
            self.death = self._end(nonsense)

    def _exchange(
        self,
        text: bytes | None,
        inputs: list[memoryview],
        timeout_s: float,
        incoming: Incoming,
        marks: int = 0,
    ) -> tuple[float, float | None]:
        """Write a request (none if `text` is None) and read one reply into `incoming`.

        `text` is the encoded header. `marks` are option bits of the payload length (`grader.runner.runner`). Return the
        wall seconds until the reply's last byte, and the runner's CPU seconds (None if unknown). Raises RunnerDied.
        """
        # A stopped runner cannot read the payload memory, so the judge fills it before the clock starts.
        ready = self._laid_out(text, inputs, incoming.limit_bytes, marks) if self._is_stopped else None
        if self._freezes:
            self._watch.resuming()
        cpu_started = cpu_clock_s(self.pid)
        started = time.perf_counter()
        if self._begin is not None:
            self._begin()
        if self._freezes:
            self._resume()
        deadline = time.monotonic() + timeout_s
        buffers, incoming.memory = ready or self._laid_out(text, inputs, incoming.limit_bytes, marks)
        with selectors.PollSelector() as selector:
            if buffers and self._send_some(buffers):
                selector.register(self._request_fd, selectors.EVENT_WRITE)
            selector.register(self._reply_fd, selectors.EVENT_READ)
            if self._output_open:
                selector.register(self._output_fd, selectors.EVENT_READ)
            while not incoming.complete:
                remaining_s = deadline - time.monotonic()
                if (has_spent := self._has_spent(cpu_started)) or remaining_s <= 0:
                    raise RunnerDied(timed_out=True, waited=not has_spent)
                events = selector.select(min(remaining_s, SCRATCH_LOOK_S, self.call_cpu_s or SCRATCH_LOOK_S))
                if not events:
                    self._refuse_excess()
                for key, _ in events:
                    if key.fd == self._request_fd:
                        if not self._send_some(buffers):
                            selector.unregister(self._request_fd)
                    elif key.fd == self._reply_fd:
                        incoming.read_some(self._reply_fd)
                    else:
                        self._capture_some(selector)
        if self._finish is not None:
            self._finish()
        wall_s = time.perf_counter() - started
        if self._has_spent(cpu_started):
            raise RunnerDied(timed_out=True, waited=False)
        cpu_ended = cpu_clock_s(self.pid)
        cpu_s = cpu_ended - cpu_started if cpu_started is not None and cpu_ended is not None else None
        if self._freezes:
            with contextlib.suppress(ProcessLookupError):
                stop_threads(self.pid)
            stood_s = self._watch.stopped(cpu_s)
            self._is_stopped = stood_s is not None
            if cpu_s is not None and cpu_started is not None and stood_s is not None:
                # The clock of a running thread may lag by a tick. Correct it by the exact clock of the stopped runner.
                cpu_s = min(stood_s - cpu_started, cpu_s + TICK_S)
            self._refuse_excess()
        elif started > self._scratch_seen_s + SCRATCH_LOOK_S:
            self._scratch_seen_s = started
            self._refuse_excess()
        return wall_s, cpu_s

    def _has_spent(self, cpu_started: float | None) -> bool:
        """Return True if the current call has used more CPU time than `call_cpu_s`."""
        now = None if self.call_cpu_s is None else cpu_clock_s(self.pid)
        return now is not None and cpu_started is not None and now - cpu_started > (self.call_cpu_s or 0.0)

    def _refuse_excess(self) -> None:
        if excess := self._scratch.excess():
            raise RunnerDied(excess=excess)

    def _laid_out(
        self, text: bytes | None, inputs: list[memoryview], limit_bytes: int, marks: int
    ) -> tuple[list[memoryview], Payloads | None]:
        """Return the bytes to write to the pipe, and the payload memory if it holds the inputs, else None.

        The inputs are written to the payload memory if both they and the largest possible reply fit into it.
        """
        if text is None:
            return [], None
        memory, input_bytes = self._memory, sum(map(len, inputs))
        if memory is not None and limit_bytes <= memory.size and memory.put(inputs):
            return [memoryview(FRAME.pack(len(text), input_bytes | marks | IN_MEMORY) + text)], memory
        return [memoryview(FRAME.pack(len(text), input_bytes | marks) + text), *inputs], None

    def _send_some(self, buffers: list[memoryview]) -> bool:
        """Write bytes of the request until the pipe is full. Return True if bytes remain to be sent."""
        try:
            # One system call for all buffers: each separate write would wake the runner.
            written = os.writev(self._request_fd, buffers)
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        drop(buffers, written)
        return bool(buffers)

    def _capture_some(self, selector: selectors.BaseSelector | None) -> None:
        try:
            chunk = os.read(self._output_fd, PIPE_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self._output_open = False
            if selector:
                selector.unregister(self._output_fd)
        self._captured += chunk[: max(0, OUTPUT_LIMIT_BYTES - len(self._captured))]

    def _drain_until_closed(self, deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            if self._output_open:
                selector.register(self._output_fd, selectors.EVENT_READ)
            while (
                self._output_open
                and (remaining_s := deadline - time.monotonic()) > 0
                and selector.select(remaining_s)
            ):
                self._capture_some(selector)

    # ---- the runner's process

    def _end(self, end: RunnerDied) -> Call:
        """End the runner after a failed exchange. Return a Call that describes the failure."""
        if not end.timed_out:
            self._resume()
            self._drain_until_closed(time.monotonic() + 0.2)
            if not end.nonsense and not end.excess:
                _wait_for_exit(self.pid)
        elif self.before_timeout is not None:
            self.before_timeout(self.pid)
        ended = self._reap(self.pid)
        if end.timed_out:
            return Call("timeout", wall_s=self.call_timeout_s, cpu_s=self.call_cpu_s, has_waited=end.waited)
        if end.nonsense:
            return Call("protocol", message=end.nonsense)
        if end.excess:
            return Call("crash", message=end.excess)
        return ended

    def _resume(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def _reset_peak(self) -> int | None:
        """Reset the peak of the runner's resident memory. Return its resident bytes; None if this is not possible."""
        try:
            Path(f"{procfs.living(self.pid)}/clear_refs").write_text("5")
        except OSError:
            return None
        return self._status_bytes("VmRSS")

    def _status_bytes(self, field_name: str) -> int | None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in procfs.text(f"{procfs.living(self.pid)}/status").splitlines():
                if line.startswith(field_name + ":"):
                    return int(line.split()[1]) * 1024
        return None


def cpu_clock_s(pid: int) -> float | None:
    """Return the CPU seconds of a process from its process clock (CPUCLOCK_SCHED); None if it cannot be read."""
    if sys.platform != "linux":
        return None
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def has_ended(pid: int) -> bool:
    """Return True if a process has ended and only waits to be reaped; False if the system does not show it."""
    try:
        return procfs.text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return False


def _wait_for_exit(pid: int) -> None:
    """Wait up to 1 s for the exit of a process that has closed its pipe. A kill before that would change its status."""
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline and os.path.exists(f"/proc/{pid}") and not has_ended(pid):
        time.sleep(0.001)


def stop_threads(pid: int) -> None:
    """Send SIGSTOP to a process and to each of its threads. Raises ProcessLookupError if the process is gone.

    A signal to the process reaches its first thread, and the others stop only when that thread gets a core. Meanwhile,
    on a busy machine, threads that spin at the end of a parallel region run on for milliseconds. If each thread gets a
    signal, a running one receives it at once and stops all others. SIGCONT cancels the signals that are still pending.
    """
    os.kill(pid, signal.SIGSTOP)
    number = _TGKILL.get(platform.machine())
    if sys.platform == "linux" and number is not None:
        for thread in procfs.threads(pid, procfs.Excess()):
            _LIBC.syscall(number, pid, thread, int(signal.SIGSTOP))
