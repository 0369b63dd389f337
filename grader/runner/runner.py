"""The untrusted side where torch is needed: a process that loads one shared object and answers calls over a pipe.

Theory of operation. A runner is forked from a process that has imported torch (`torch.forkserver`), with pipe ends from
the judge. It limits and locks itself before it comes here. It loads the object and answers one request with one reply
until its pipe closes. The judge stops it (SIGSTOP) between calls. Of a runner's reply only the output's bytes are
believed, so this file needs no defence against the code it loads; it only has to be small.

A message in either direction is a frame: header length (u32) and payload length (u64), little endian, a JSON
header, the payload. The first frame, from the runner, lists the functions that the object offers. Requests:

    call   function, arguments, inputs -> kind, dtype, shape + output bytes, then (echo_inputs) the inputs as they
           are now
    table  the function called once for each row of a table (accessors) -> one number a row, then the tensor

Bits of a request's payload length modify the call: ECHOES sends the inputs back, DELAYS delays threads. INPUTS makes no
call but returns the inputs of the last one as they are now.

A request without a header is the last call once more, with other bytes in its inputs; that call had to say "keep".

Imports nothing of the kit. So a sandbox holds only the forkserver and the files that it names; the forkserver passes
the loaded modules `loaded` and `delays`.
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
    """Fill the views from the pipe; False when the other side closed it first."""
    missing = [view for view in views if view]
    while missing:
        count = os.readv(fd, missing)
        if count == 0:
            return False
        drop(missing, count)
    return True


def write_all(fd: int, *parts: bytes | memoryview) -> None:
    """Write all parts, with one system call if the pipe has room: each write wakes the reader."""
    missing = [memoryview(part) for part in parts if part]
    while missing:
        drop(missing, os.writev(fd, missing))


def drop(views: list[memoryview], count: int) -> None:
    """Take the first `count` bytes out of a list of views."""
    while views and count >= len(views[0]):
        count -= len(views.pop(0))
    if count:
        views[0] = views[0][count:]


# ---- serving requests


class Served:
    """One runner's state: the object, its pipes, and the tensors that the last call left alive."""

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
            # The student's printf must be in the capture even if the runner is killed at its next call.
            self.libc.fflush(None)

    def read_inputs(self, specs: list[dict[str, Any]]) -> list[Any]:
        """Inputs in real tensors: aligned as torch aligns them, with red zones under AddressSanitizer."""
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
        """Call a prepared function, with delays where the request says so."""
        with self.delays if self.delayed else nullcontext():
            return run()

    def reserve(self, request: dict[str, Any], inputs: list[Any]) -> None:
        """Touch and free memory, so that the next call gets it without page faults if the C library keeps it."""
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
        """Return the bytes of the inputs as they are now, if the request wants them."""
        return [self.loading.tensor_bytes(tensor) for tensor in inputs] if self.echoes else []

    def reply_with(self, header: dict[str, Any], request: dict[str, Any], inputs: list[Any]) -> None:
        """Answer an operation of the loaded file's kind; the reply includes the inputs as they are now."""
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
        """Make the call inside torch's profiler. The workspace counts if it is allocated inside the scope."""
        prepared = None if request["workspace_in_scope"] else self.arguments(request, inputs)

        def call() -> Any:
            values = self.arguments(request, inputs) if prepared is None else prepared
            # The profiler nets allocations against frees: the workspace has to outlive the scope.
            return *self.loaded.prepared(request, values)(), values

        (header, payload, release, _workspace), figures = profiled(label, call)
        return header | figures, payload, release

    def table(self, request: dict[str, Any], inputs: list[Any]) -> None:
        """Call an accessor once for each row of the last input, a float64 table whose columns are scalar arguments.

        The vector argument is one buffer throughout, so a row may read values that an earlier row wrote. It is returned
        after the numbers.
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
    """Run an action in the scopes of the profiler's table. Return its result and the profiler's rows."""
    # torch.profiler.profile imports a second's worth of modules; this one gives the same events and figures.
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
    """Load the object, report its functions and serve requests until the pipe closes. `loading` is loaded.py as a
    module, `delays` a Delays of delays.py; `own` is devicerunner.py where the object is of one of its kinds,
    `shared_fd` the judge's device memory for it. It reports that it is ready before it loads the object, whose code may
    do anything. An end before that is not the object's fault."""
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
