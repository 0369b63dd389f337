"""The trusted side of a runner's pipe: it sends fresh inputs, holds the clock and freezes the runner between calls.

`grader.nativehost` starts a runner, or `grader.zygote` forks one, and returns a `Session`. Every `Session.call` ends
in a `Call`, whatever the student's code did: an answer, an exception, a crash, a time-out or nonsense on the pipe. The
wall clock runs from the first byte of the request to the last byte of the output; CPU time is read from the runner's
process clock by this side, so nothing inside the runner can touch either.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import grader.runner
from grader import procfs
from grader.frames import FRAME, Incoming, RunnerDied
from grader.harmless import harmless
from grader.results import ProfileRow
from grader.sandbox.leftovers import Scratch
from grader.watch import Evidence, Watch

OUTPUT_LIMIT_BYTES = 64 << 10
LOAD_TIMEOUT_S = 5.0
PIPE_BYTES = 1 << 20
#: Times and bytes of a profile stay below it, and are exact as float64.
LARGEST_FIGURE = 1 << 53
#: Of what a runner says: characters of a message and of a function's name or signature, functions, rows of a profile.
LONGEST_WORDS, LONGEST_SIGNATURE, MOST_FUNCTIONS, MOST_PROFILE_ROWS = 1000, 200, 1000, 1000
#: How often a long call's working directory is looked at.
SCRATCH_LOOK_S = 0.25

DTYPE_NAMES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    11: "bool",
    15: "bfloat16",
}
KIND_NAMES = {0: "nothing", 1: "a number", 2: "a tensor", 3: "a std::vector<float>", 4: "an undefined tensor"}


@dataclass(frozen=True)
class Call:
    """What one request came to.

    `status`: "ok", "exception" (the function threw; `message`), "crash" (`signal_name` or `message` say how),
    "timeout", or "protocol" (the reply made no sense). `output` is a contiguous NumPy array in the judge's own memory,
    None when the function returned no tensor, one of a type that NumPy lacks, or one whose bytes were withheld for
    their size. `changed_inputs` are the positions of inputs that came back different, known only when the echo was
    asked for.
    """

    status: Literal["ok", "exception", "crash", "timeout", "protocol"]
    wall_s: float = 0.0
    cpu_s: float | None = None
    kind: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    output: Any = None
    message: str = ""
    signal_name: str = ""
    changed_inputs: tuple[int, ...] = ()
    echoes: tuple[Any, ...] = ()
    profile: tuple[ProfileRow, ...] = ()
    profiled_wall_s: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Request:
    """One call: the function, its arguments in order and the inputs, NumPy arrays, that they refer to.

    An argument is {"input": k}, {"zeros": [n, ...]}, {"value": x} or, in a table, {"column": k}.
    """

    function: str
    arguments: Sequence[Mapping[str, Any]]
    inputs: Sequence[Any]
    output_shape: tuple[int, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    op: Literal["call", "table"] = "call"


class Session:
    """One runner with one object loaded. Not reusable after a crash or time-out: `death` then says what happened."""

    def __init__(
        self,
        reap: Callable[[int], Call],
        pid: int,
        pipes: tuple[int, int, int],
        call_timeout_s: float,
        watch: Watch,
        scratch: Scratch,
        freeze: bool = True,
    ) -> None:
        """`pipes` are our ends of the runner's: requests, replies, what it prints. `reap` kills it and says how it
        had ended. `freeze` stops it between calls; where no time is judged, that only takes time."""
        self._reap, self._pid, self._scratch = reap, pid, scratch
        self._request_fd, self._reply_fd, self._output_fd = pipes
        self._open_fds = list(pipes)
        self._output_open = True
        self._captured = bytearray()
        self.output_total_bytes = 0
        self.call_timeout_s = call_timeout_s
        self._watch, self._freezes = watch, freeze
        self._kept_header: dict[str, Any] | None = None
        self._scratch_seen_s = 0.0
        self.death: Call | None = None
        self.functions: dict[str, str] = {}
        self.load_error: str | None = None
        self._greet()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The runner's process."""
        return self._pid

    def cpu_clock_s(self) -> float | None:
        """CPU seconds of the runner so far; None where the system does not tell."""
        return cpu_clock_s(self._pid)

    @property
    def printed(self) -> str:
        """What the object wrote to stdout and stderr so far: the first 64 KiB, control characters made visible."""
        return harmless(self._captured.decode(errors="replace"))

    @property
    def evidence(self) -> Evidence:
        """What was seen of the runner from outside; complete once the session has been closed."""
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
        """Send one request and wait for its reply, at most `timeout_s` (the session's own limit by default).

        `delays` holds up the runner's threads at random moments if they have shared work so far, so that a race shows;
        what the call then takes is no time to judge by.
        """
        if self.death is not None:
            return self.death
        # Late: NumPy is imported beside the zygote's torch, and not by those who only read what a session is.
        from grader.arrays import array_bytes, np

        inputs = [np.asarray(array, order="C") for array in request.inputs]
        input_bytes = sum(array.nbytes for array in inputs)
        wanted_bytes = 8 * math.prod(request.output_shape)
        header = {
            "op": request.op,
            "function": request.function,
            "arguments": list(request.arguments),
            "inputs": [{"shape": list(array.shape), "dtype": array.dtype.name} for array in inputs],
            "output_shape": list(request.output_shape),
            "keywords": dict(request.keywords),
            "echo_inputs": echo_inputs,
            "profile": profile_label,
            "workspace_in_scope": workspace_in_scope,
            # A wrong shape needs no bytes; a wrong dtype may take twice the bytes.
            "max_output_bytes": max(wanted_bytes, 1 << 20),
            "delays": delays and self._watch.shares_work(),
            "keep": not (self._freezes or profile_label),
        }
        text = self._encoded(header)
        limit_bytes = header["max_output_bytes"] + input_bytes
        buffers = [memoryview(FRAME.pack(len(text), input_bytes) + text), *map(array_bytes, inputs)]
        resident_before = self._reset_peak() if measure_peak else None
        try:
            timeout_s = timeout_s or self.call_timeout_s
            reply, payload, wall_s, cpu_s = self._exchange(buffers, timeout_s, limit_bytes)
            call = understood(reply, payload, request, wall_s, cpu_s)
            if call.status != "ok":
                self._kept_header = None
        except RunnerDied as end:
            self.death = self._bury(end)
            return self.death
        if resident_before is not None:
            highest = self._status_bytes("VmHWM")
            if highest is not None:
                call = replace(call, peak_bytes=max(0, highest - resident_before - input_bytes))
        return call

    def close(self) -> None:
        """End the runner (with the output it still holds drained) and everything it started."""
        if self.death is None:
            self._watch.ending()
            self._resume()
            os.close(self._request_fd)
            self._open_fds.remove(self._request_fd)
            self._drain_until_closed(time.monotonic() + 1.0)
            self.death = Call("crash", message="the session was closed")
            self._reap(self._pid)
        for fd in self._open_fds:
            os.close(fd)
        self._open_fds = []

    # ---- one exchange

    def _encoded(self, header: dict[str, Any]) -> bytes:
        """Empty for the kept call once more (grader/runner.py): where no time is judged, all may be laid out."""
        if header == self._kept_header:
            return b""
        self._kept_header = header if header["keep"] and header["op"] == "call" else None
        return json.dumps(header).encode()

    def _greet(self) -> None:
        try:
            # Loading includes leaving: exit(0) in an initialiser takes torch down, which is no endless loop.
            header, _, _, _ = self._exchange([], max(self.call_timeout_s, LOAD_TIMEOUT_S), 0)
        except RunnerDied as end:
            self.death = self._bury(end)
            return
        if header.get("status") == "load_error":
            self.load_error = _words(header.get("message"))
            return
        try:
            self.functions = offered(header)
        except RunnerDied as nonsense:
            self.death = self._bury(nonsense)

    def _exchange(
        self, buffers: list[memoryview], timeout_s: float, limit_bytes: int
    ) -> tuple[dict[str, Any], bytearray, float, float | None]:
        """Write the request, read a reply of at most `limit_bytes`; wall and CPU seconds to the output's last byte."""
        if self._freezes:
            self._watch.resuming()
            self._resume()
        cpu_started = cpu_clock_s(self._pid)
        started = time.perf_counter()
        deadline = time.monotonic() + timeout_s
        with selectors.PollSelector() as selector:
            if buffers and self._send_some(buffers):
                selector.register(self._request_fd, selectors.EVENT_WRITE)
            selector.register(self._reply_fd, selectors.EVENT_READ)
            if self._output_open:
                selector.register(self._output_fd, selectors.EVENT_READ)
            incoming = Incoming(limit_bytes)
            while not incoming.complete:
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    raise RunnerDied(timed_out=True)
                events = selector.select(min(remaining_s, SCRATCH_LOOK_S))
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
        wall_s = time.perf_counter() - started
        cpu_ended = cpu_clock_s(self._pid)
        cpu_s = cpu_ended - cpu_started if cpu_started is not None and cpu_ended is not None else None
        if self._freezes:
            self._freeze()
            self._watch.stopped(cpu_s)
            self._refuse_excess()
        elif started > self._scratch_seen_s + SCRATCH_LOOK_S:
            self._scratch_seen_s = started
            self._refuse_excess()
        return incoming.header, incoming.payload, wall_s, cpu_s

    def _refuse_excess(self) -> None:
        if excess := self._scratch.excess():
            raise RunnerDied(excess=excess)

    def _send_some(self, buffers: list[memoryview]) -> bool:
        """Whether there is more to send."""
        try:
            # All at once: each write of its own would wake the runner for a part of the request.
            written = os.writev(self._request_fd, buffers)
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        grader.runner.drop(buffers, written)
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
        self.output_total_bytes += len(chunk)
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

    def _bury(self, end: RunnerDied) -> Call:
        if not end.timed_out:
            self._resume()
            self._drain_until_closed(time.monotonic() + 0.2)
            if not end.nonsense and not end.excess:
                _wait_for_exit(self._pid)
        ended = self._reap(self._pid)
        if end.timed_out:
            return Call("timeout", wall_s=self.call_timeout_s)
        if end.nonsense:
            return Call("protocol", message=end.nonsense)
        if end.excess:
            return Call("crash", message=end.excess)
        return ended

    def _resume(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGCONT)

    def _freeze(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGSTOP)

    def _reset_peak(self) -> int | None:
        """Reset the resident high-water mark of the stopped runner; returns its resident bytes (Linux only)."""
        try:
            Path(f"/proc/{self._pid}/clear_refs").write_text("5")
        except OSError:
            return None
        return self._status_bytes("VmRSS")

    def _status_bytes(self, field_name: str) -> int | None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in procfs.text(f"/proc/{self._pid}/status").splitlines():
                if line.startswith(field_name + ":"):
                    return int(line.split()[1]) * 1024
        return None


def cpu_clock_s(pid: int) -> float | None:
    """CPU seconds of a whole process from its own clock (Linux: CPUCLOCK_SCHED of the thread group); None elsewhere."""
    if sys.platform != "linux":
        return None
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def has_ended(pid: int) -> bool:
    """Whether a child of the zygote's is dead and only waits to be reaped. False where the system does not tell."""
    try:
        return procfs.text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return False


def _wait_for_exit(pid: int, timeout_s: float = 1.0) -> None:
    """Let a process that closed its pipe finish dying by itself, so that its own signal is seen and not our SIGKILL."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and os.path.exists(f"/proc/{pid}") and not has_ended(pid):
        time.sleep(0.001)


def offered(header: Mapping[str, Any]) -> dict[str, str]:
    """The functions that a greeting offers, and their signatures' codes. Raises RunnerDied for what is no greeting.

    A name that is longer than any that an assignment asks for is left out.
    """
    functions = header.get("functions")
    if not isinstance(functions, list) or len(functions) > MOST_FUNCTIONS:
        raise RunnerDied(nonsense="greeting")
    found = {}
    for item in functions:
        if not (isinstance(item, list) and len(item) == 2 and all(isinstance(text, str) for text in item)):
            raise RunnerDied(nonsense="greeting")
        name, code = item
        if max(len(name), len(code)) <= LONGEST_SIGNATURE:
            found[harmless(name)] = harmless(code)
    return found


def understood(
    header: Mapping[str, Any], payload: bytearray, request: Request, wall_s: float, cpu_s: float | None
) -> Call:
    """Turn a reply into a Call, trusting nothing in it beyond its own sizes. Raises RunnerDied for what is no reply."""
    from grader.arrays import as_array, item_bytes

    if header.get("status") == "exception":
        return Call("exception", wall_s, cpu_s, message=_words(header.get("message")))
    try:
        # Numbers before they are anything else: what a text says would be told to people.
        kind, type_code = _whole(header["kind"]), _whole(header["dtype"])
        shape = tuple(_whole(size) for size in _listed(header["shape"], 8))
        rows = tuple(_profile_row(row) for row in _listed(header.get("profile", []), MOST_PROFILE_ROWS))
        profiled_wall_s = _figure(header["profiled_wall_s"]) if "profiled_wall_s" in header else None
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise RunnerDied(nonsense="reply header") from error
    dtype = DTYPE_NAMES.get(type_code, f"type {type_code}")
    element_bytes = item_bytes(dtype)
    output, used = None, 0
    if kind in (1, 2, 3) and element_bytes is not None and not header.get("withheld"):
        used = math.prod(shape) * element_bytes
        if 0 < used <= len(payload):
            output = as_array(payload, dtype, shape)
    echoes = _split_echoes(payload, used, request.inputs)
    changed = tuple(k for k, echo in enumerate(echoes) if not _same_bytes(echo, request.inputs[k]))
    return Call(
        "ok", wall_s, cpu_s, KIND_NAMES.get(kind, "?"), dtype, shape, output,
        changed_inputs=changed, echoes=echoes, profile=rows, profiled_wall_s=profiled_wall_s,
    )  # fmt: skip


def _words(value: Any) -> str:
    """What a runner says in words. Anything but a text is none: turning a deep list into one may overflow the stack."""
    return harmless(value[:LONGEST_WORDS]) if isinstance(value, str) else ""


def _whole(value: Any) -> int:
    """A size or a code. Raises ValueError for what is none: a bool, a text, a fraction, a number out of range."""
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError("no size")
    return value


def _listed(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError("no list, or one that is too long")
    return value


def _profile_row(fields: Any) -> ProfileRow:
    """A row of the profiler's table. Raises an error of `_figure`'s, IndexError or KeyError for anything else."""
    self_us, total_us, count, net_bytes, own_bytes = (_figure(fields[k]) for k in range(1, 6))
    return ProfileRow(_words(fields[0])[:60], self_us, total_us, int(count), int(net_bytes), int(own_bytes))


def _figure(value: Any) -> float:
    """A number that any report can show. Raises ValueError, TypeError or OverflowError for what is none."""
    if type(value) not in (int, float):
        raise TypeError("no number")
    number = float(value)
    if not abs(number) < LARGEST_FIGURE:
        raise ValueError(f"{number} is no figure of a profile")
    return number


def _split_echoes(payload: bytearray, start: int, inputs: Sequence[Any]) -> tuple[Any, ...]:
    from grader.arrays import as_array

    echoes = []
    for array in inputs:
        if array.nbytes == 0 or start + array.nbytes > len(payload):
            break
        echoes.append(as_array(payload, array.dtype.name, array.shape, start))
        start += array.nbytes
    return tuple(echoes)


def _same_bytes(a: Any, b: Any) -> bool:
    from grader.arrays import array_bytes, np

    # Python compares views one byte after the other: 0.9 ms for half a megabyte, where this takes 0.03 ms.
    both = [np.frombuffer(array_bytes(np.ascontiguousarray(each)), np.uint8) for each in (a, b)]
    return np.array_equal(*both)
