"""Runner with torch: an untrusted process that loads one shared object and answers calls over a pipe.

Theory of operation. A runner is forked from a process that has imported torch (`torch.forkserver`), with pipe ends from
the judge. The runner limits and locks itself before this code runs. It loads the object, then answers each request with
one reply until its pipe closes. The judge stops it (SIGSTOP) between calls. The judge believes only the output's bytes
in a reply. So this file needs no defence against the code that it loads, and can be small.

A message in either direction is a frame: header length (u32) and payload length (u64), little endian, a JSON
header, the payload. The runner sends two frames first: "ready", then the functions of the object. Requests:

    call     function, arguments, inputs -> kind, dtype, shape + output bytes, then the inputs if ECHOES is set
    table    call the function once for each row of a table (accessors) -> one number a row, then the tensors
    reserve  a number of bytes -> these were allocated, written and freed

Bits of a request's payload length: ECHOES requests the inputs' values after the call, DELAYS delays threads. INPUTS
makes no call and returns the current values of the last call's inputs. A request without a header repeats the last call
with new values of its inputs; the header of that call had "keep".

Imports nothing of the kit, so that a sandbox holds few files. The forkserver passes the modules `loaded` and `delays`.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import time
from contextlib import nullcontext
from typing import Any

FRAME = struct.Struct("<IQ")
ECHOES, DELAYS, INPUTS = 1 << 62, 1 << 61, 1 << 60


# ---- frames


def read_exactly(fd: int, *views: memoryview) -> bool:
    """Fill the views from the pipe. Return False if the other side closed the pipe before they were full."""
    missing = [view for view in views if view]
    while missing:
        count = os.readv(fd, missing)
        if count == 0:
            return False
        drop(missing, count)
    return True


def write_all(fd: int, *parts: bytes | memoryview) -> None:
    """Write all parts, by one system call if the pipe has room: each call would wake the reader."""
    missing = [memoryview(part) for part in parts if part]
    while missing:
        drop(missing, os.writev(fd, missing))


def drop(views: list[memoryview], count: int) -> None:
    """Remove the first `count` bytes from a list of views."""
    while views and count >= len(views[0]):
        count -= len(views.pop(0))
    if count:
        views[0] = views[0][count:]


# ---- serving requests


class Served:
    """State of a runner: the loaded object, its pipes, and the tensors of the last call."""

    def __init__(self, loading: Any, loaded: Any, request_fd: int, reply_fd: int, delays: Any) -> None:
        self.loading, self.loaded, self.delays, self.libc = loading, loaded, delays, delays.libc
        self.request_fd, self.reply_fd = request_fd, reply_fd
        self.echoes = self.delayed = False
        self.last: list[Any] = []
        self.kept: tuple[dict[str, Any], list[Any], list[Any], Any] | None = None
        self.failures = getattr(loaded, "failures", ())

    def reply(self, header: dict[str, Any], *payload: memoryview) -> None:
        text = json.dumps(header).encode()
        size = sum(len(part) for part in payload)
        write_all(self.reply_fd, FRAME.pack(len(text), size) + text, *payload)

    def serve(self) -> None:
        frame = bytearray(FRAME.size)
        while read_exactly(self.request_fd, memoryview(frame)):
            header_bytes, payload_bytes = FRAME.unpack(frame)
            self.echoes, self.delayed = bool(payload_bytes & ECHOES), bool(payload_bytes & DELAYS)
            if payload_bytes & INPUTS:
                header = {"status": "ok", "kind": 0, "dtype": 0, "shape": []}
                self.reply(header, *map(self.loading.tensor_bytes, self.last))
                continue
            self.last = []
            text = bytearray(header_bytes)
            if not read_exactly(self.request_fd, memoryview(text)):
                return
            try:
                if not text:
                    self.call_again()
                else:
                    request = json.loads(text)
                    inputs = self.read_inputs(request["inputs"])
                    own = getattr(self.loaded, "operations", {}).get(request["op"])
                    if own is not None:
                        self.reply_with(own(request, inputs), request, inputs)
                    else:
                        {"call": self.call, "table": self.table, "reserve": self.reserve}[request["op"]](
                            request, inputs
                        )
            except (self.loading.CallFailed, *self.failures) as failure:
                is_missing = bool(getattr(failure, "is_missing", False))
                self.reply({"status": "exception", "message": str(failure), "is_missing": is_missing})
            # Flush the student's printf now: the runner may be killed in its next call.
            self.libc.fflush(None)

    def read_inputs(self, specs: list[dict[str, Any]]) -> list[Any]:
        """Read the inputs into tensors that torch allocates: aligned, and guarded by AddressSanitizer if it is on."""
        import torch

        inputs = []
        for spec in specs:
            tensor = torch.empty(spec["shape"], dtype=getattr(torch, spec["dtype"]))
            if not read_exactly(self.request_fd, self.loading.tensor_bytes(tensor)):
                os._exit(0)
            inputs.append(tensor)
        return inputs

    def call(self, request: dict[str, Any], inputs: list[Any]) -> None:
        label = request.get("profile")
        if label is not None:
            self.answer(request, inputs, *self.run_profiled(request, inputs, label))
            return
        values = self.arguments(request, inputs)
        run = self.loaded.prepared(request, values)
        self.kept = (request, inputs, values, run) if request.get("keep") else None
        self.answer(request, inputs, *self.run_delayed(run))

    def run_delayed(self, run: Any) -> Any:
        """Call a prepared function, with delays if the request wants them."""
        with self.delays if self.delayed else nullcontext():
            return run()

    def reserve(self, request: dict[str, Any], inputs: list[Any]) -> None:
        """Write and free memory. If the C library keeps it, the next call gets it without page faults."""
        import torch

        torch.zeros(request["reserved_bytes"], dtype=torch.uint8)
        self.reply({"status": "ok", "kind": 0, "dtype": 0, "shape": []})

    def call_again(self) -> None:
        """Repeat the kept call in the same memory, with new bytes in the inputs and zeros in the workspace."""
        assert self.kept is not None
        request, inputs, values, run = self.kept
        if not read_exactly(self.request_fd, *(self.loading.tensor_bytes(tensor) for tensor in inputs)):
            os._exit(0)
        for argument, value in zip(request["arguments"], values, strict=True):
            if "zeros" in argument:
                value.zero_()
        self.answer(request, inputs, *self.run_delayed(run))

    def answer(
        self,
        request: dict[str, Any],
        inputs: list[Any],
        header: dict[str, Any],
        payload: memoryview,
        free: Any,
    ) -> None:
        if len(payload) > request["max_output_bytes"]:
            header["withheld"], payload = True, memoryview(b"")
        self.last = inputs
        self.reply(header, payload, *self.echoed(inputs))
        free()

    def echoed(self, inputs: list[Any]) -> list[memoryview]:
        """Return the bytes of the inputs after the call if the request wants them, else []."""
        return [self.loading.tensor_bytes(tensor) for tensor in inputs] if self.echoes else []

    def reply_with(self, header: dict[str, Any], request: dict[str, Any], inputs: list[Any]) -> None:
        """Reply to an operation that the loaded object defines (`operations`). The inputs follow if requested."""
        self.reply(header, *self.echoed(inputs))

    def arguments(self, request: dict[str, Any], inputs: list[Any]) -> list[Any]:
        import torch

        values: list[Any] = []
        for argument in request["arguments"]:
            if "input" in argument:
                values.append(inputs[argument["input"]])
            elif "zeros" in argument:
                values.append(torch.zeros(argument["zeros"]))
            else:
                values.append(argument.get("value", 0))  # a column of a table gets its values row by row
        return values

    def run_profiled(self, request: dict[str, Any], inputs: list[Any], label: str) -> Any:
        """Make the call under torch's profiler. With "workspace_in_scope" the table counts the workspace's memory."""
        prepared = None if request["workspace_in_scope"] else self.arguments(request, inputs)

        def call() -> Any:
            values = self.arguments(request, inputs) if prepared is None else prepared
            # The profiler subtracts freed memory: return the workspace, so that it is freed after the scope.
            return *self.loaded.prepared(request, values)(), values

        (header, payload, release, _workspace), figures = profiled(label, call)
        return header | figures, payload, release

    def table(self, request: dict[str, Any], inputs: list[Any]) -> None:
        """Call an accessor once for each row of the last input, a float64 table whose columns are scalar arguments.

        All calls get the same tensors, so a call may read values that an earlier call wrote. The reply holds one number
        for each row, then the tensors.
        """
        import torch

        *tensors, rows = inputs
        invocation = self.loaded.prepare(request["function"], self.arguments(request, tensors))
        columns = [
            (invocation.cells[k], argument["column"])
            for k, argument in enumerate(request["arguments"])
            if "column" in argument
        ]
        numbers = torch.zeros(rows.shape[0], dtype=torch.float64)

        def visit_rows() -> None:
            for r, row in enumerate(rows.tolist()):
                for cell, column in columns:
                    cell.value = row[column] if isinstance(cell, ctypes.c_double) else int(row[column])
                numbers[r] = invocation().number
                invocation.release()

        kind, dtype = self.loading.KIND_NUMBER, self.loading.DTYPES["float64"]
        header = {"status": "ok", "kind": kind, "dtype": dtype, "shape": [rows.shape[0]]}
        if request.get("profile") is None:
            visit_rows()
        else:
            _, figures = profiled(request["profile"], visit_rows)
            header |= figures
        self.reply(header, *map(self.loading.tensor_bytes, [numbers, *tensors]))


def profiled(label: str, action: Any) -> tuple[Any, dict[str, Any]]:
    """Run an action under torch's profiler, in a scope named `label`. Return its result and the profiler's figures."""
    # torch.profiler.profile would take 1 s to import; this one gives the same events and figures.
    from torch.autograd.profiler import profile, record_function

    profiler = profile(use_kineto=True, profile_memory=True)
    with profiler, record_function("model_inference"), record_function(label):
        started = time.perf_counter()
        result = action()
        wall_s = time.perf_counter() - started
    rows = [
        [e.key, e.self_cpu_time_total, e.cpu_time_total, e.count, e.cpu_memory_usage, e.self_cpu_memory_usage]
        for e in profiler.key_averages()
    ]
    return result, {"profile": rows, "profiled_wall_s": wall_s}


def run(
    loading: Any,
    kind: str,
    path: str,
    request_fd: int,
    reply_fd: int,
    delays: Any,
    own: Any = None,
    shared_fd: int | None = None,
) -> None:
    """Report "ready", load the object at `path`, report its functions, and serve requests until the pipe closes.

    `loading` is the module loaded.py, whose `load` knows each `kind`; `delays` is a Delays. For a GPU file `own` is
    devicerunner.py, and `shared_fd` the judge's device memory. If the process ends before "ready", this is not the
    student's fault: student code runs only after "ready".
    """
    empty = Served(loading, None, request_fd, reply_fd, delays)
    empty.reply({"status": "ready"})
    try:
        loaded = own.load(kind, path, shared_fd) if own is not None else loading.load(kind, path)
    except (OSError, AttributeError) as error:
        empty.reply({"status": "load_error", "message": str(error)})
        return
    served = Served(loading, loaded, request_fd, reply_fd, delays)
    served.reply({"status": "loaded", "functions": list(loaded.functions)})
    served.serve()
