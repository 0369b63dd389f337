"""The untrusted side where torch is needed: a process that loads one shared object and answers calls over a pipe.

Theory of operation. A runner is forked from a process that has imported torch (`grader.run.forkserver`), with the pipe
ends that the judge handed over, and limits and locks itself before it comes here. It loads the object and answers one
request with one reply until its pipe closes. The judge stops it (SIGSTOP) between calls. Nothing that a runner says is
believed beyond the bytes of its output, so this file needs no defence against the code it loads; it only has to be
small.

A message in either direction is a frame: header length (u32) and payload length (u64), little endian, a JSON
header, the payload. The first frame, from the runner, lists the functions that the object offers. Requests:

    call   function, arguments, inputs -> kind, dtype, shape + output bytes, then (echo_inputs) the inputs as they
           are now
    table  the function called once for each row of a table (accessors) -> one number a row, then the tensor

A request without a header is the last call once more, with other bytes in its inputs; that call had to say "keep".

Imports nothing of the kit: this file, the forkserver and the lock are all of it that a sandbox has to hold.
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
DTYPES = {"float32": 6, "float64": 7, "int64": 4}
KIND_VOID, KIND_NUMBER, KIND_TENSOR, KIND_VECTOR, KIND_UNDEFINED = range(5)


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
    """At once where the pipe has room: the reader wakes up for each write."""
    missing = [memoryview(part) for part in parts if part]
    while missing:
        drop(missing, os.writev(fd, missing))


def drop(views: list[memoryview], count: int) -> None:
    """Take the first `count` bytes out of a list of views."""
    while views and count >= len(views[0]):
        count -= len(views.pop(0))
    if count:
        views[0] = views[0][count:]


def tensor_bytes(tensor: Any) -> memoryview:
    """The memory of a contiguous tensor, writable, without a copy (and without NumPy, which torch may lack)."""
    size = tensor.numel() * tensor.element_size()
    return memory_at(tensor.data_ptr(), size)


def memory_at(address: int, size: int) -> memoryview:
    if size == 0:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


# ---- the objects a runner can serve: each offers `functions` and `invoke`


class AbiTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("ndim", ctypes.c_int64),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("dtype", ctypes.c_int32),
    )


class AbiVector(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_int64))


class AbiResult(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("number", ctypes.c_double),
        ("data", ctypes.c_void_p),
        ("ndim", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * 8),
        ("owner", ctypes.c_void_p),
        ("error", ctypes.c_char * 1024),
    )


class CallFailed(Exception):
    """The function threw; the text is the first line of what it said."""


class StudentObject:
    """A module built through the shim: functions by name and signature, tensors handed over by pointer."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        for symbol in ("gpt149_name", "gpt149_signature"):
            getattr(self.library, symbol).restype = ctypes.c_char_p
        count = self.library.gpt149_count()
        self.names = [self.library.gpt149_name(k).decode() for k in range(count)]
        self.signatures = [self.library.gpt149_signature(k).decode() for k in range(count)]
        self.functions = [list(pair) for pair in zip(self.names, self.signatures, strict=True)]

    def prepare(self, name: str, values: list[Any]) -> Invocation:
        index = self.names.index(name)
        codes = self.signatures[index].partition("(")[2].rstrip(")")
        if len(codes) != len(values):
            raise CallFailed(f"{name} takes {len(codes)} arguments, not {len(values)}")
        cells = [_abi_cell(code, value) for code, value in zip(codes, values, strict=True)]
        return Invocation(self.library, index, cells)


class Invocation:
    """One function with its arguments laid out for C, ready to be called once or row by row."""

    def __init__(self, library: ctypes.CDLL, index: int, cells: list[Any]) -> None:
        self.library, self.index, self.cells = library, index, cells
        self.result = AbiResult()
        self.arguments = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))

    def __call__(self) -> AbiResult:
        if self.library.gpt149_call(self.index, self.arguments, ctypes.byref(self.result)) != 0:
            raise CallFailed(self.result.error.decode(errors="replace"))
        return self.result

    def release(self) -> None:
        self.library.gpt149_release(ctypes.byref(self.result))


def _abi_cell(code: str, value: Any) -> Any:
    """The C object that one argument points to; it keeps alive what it points to in turn."""
    if code == "T":
        sizes = (ctypes.c_int64 * max(1, value.dim()))(*value.shape)
        dtype = DTYPES[str(value.dtype).removeprefix("torch.")]
        cell = AbiTensor(value.data_ptr(), value.dim(), sizes, dtype)
        cell.keep = (value, sizes)
        return cell
    if code in "VW":
        vector = AbiVector(value.data_ptr(), value.numel())
        vector.keep = value
        return vector
    return ctypes.c_double(value) if code in "fd" else ctypes.c_int64(value)


class RawLibrary:
    """The reference: plain C functions of float pointers and ints, the output as the last argument."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.functions: list[list[str]] = []

    def call(self, name: str, values: list[Any], output_shape: list[int]) -> Any:
        import torch

        output = torch.zeros(output_shape)
        plain = [
            ctypes.c_void_p(value.data_ptr()) if isinstance(value, torch.Tensor) else ctypes.c_int(value)
            for value in values
        ]
        function = getattr(self.library, name)
        function.restype = None
        function(*plain, ctypes.c_void_p(output.data_ptr()))
        return output


class TorchFunction:
    """A public function of torch by its dotted name, so that PyTorch is measured by the same protocol (part 0)."""

    functions: tuple[()] = ()

    def call(self, name: str, values: list[Any], keywords: dict[str, Any]) -> Any:
        import torch

        function: Any = torch
        for step in name.split(".")[1:]:
            function = getattr(function, step)
        return function(*values, **keywords).contiguous()


# ---- delays, under which a race shows


class Delays:
    """Holds up whichever thread is running, again and again during a call, for about a tenth of a millisecond.

    A race shows when threads take turns in the middle of their work. On few or busy cores each may finish its share
    within one time slice, and the race passes: on one core, a shared row sum passed at N = 256 every time. Delays at
    random moments bring it out, as noise makers do (Edelstein et al., "Multithreaded Java program test generation",
    2002). A timer interrupts the thread that it finds on the core (Linux from 6.4 on; the first thread before), and
    the signal's handler sleeps. The timer is made before the sandbox is locked: a student's code can make none.
    """

    INTERVAL_S = 200e-6
    #: Its handler is the C library's usleep, which gets the signal's number as its argument: 27 us, and what the
    #: kernel adds when it wakes a sleeper (50 us and more). Nothing of Python's can run in the middle of any thread.
    SIGNAL = 27  # SIGPROF
    CLOCK_MONOTONIC, SIGEV_SIGNAL = 1, 0

    def __init__(self) -> None:
        self.libc, self.timer = ctypes.CDLL(None), ctypes.c_void_p()
        # struct sigevent: eight bytes of a value, the signal, how it is told, and room up to 64 bytes.
        event = (ctypes.c_int * 16)(0, 0, self.SIGNAL, self.SIGEV_SIGNAL)
        try:
            failed = self.libc.timer_create(
                self.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self.timer)
            )
            self.libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
            self.libc.signal(self.SIGNAL, ctypes.cast(self.libc.usleep, ctypes.c_void_p))
        except AttributeError:  # macOS has no such timers, glibc before 2.34 has them elsewhere
            failed = -1
        self.possible = failed == 0

    def __enter__(self) -> None:
        self.repeat(self.INTERVAL_S)

    def __exit__(self, *_: object) -> None:
        self.repeat(0.0)

    def repeat(self, interval_s: float) -> None:
        """Interrupt every `interval_s`, or no more for zero."""
        if self.possible:
            nanoseconds = round(interval_s * 1e9)
            times = (ctypes.c_long * 4)(0, nanoseconds, 0, nanoseconds)
            self.libc.timer_settime(self.timer, 0, ctypes.byref(times), None)


# ---- serving requests


class Served:
    """One runner's state: the object, its pipes, and what the last call left alive."""

    def __init__(self, loaded: Any, request_fd: int, reply_fd: int, delays: Delays) -> None:
        self.loaded, self.request_fd, self.reply_fd, self.delays = loaded, request_fd, reply_fd, delays
        self.libc = delays.libc
        self.kept: tuple[dict[str, Any], list[Any], list[Any], Any] | None = None

    def reply(self, header: dict[str, Any], *payload: memoryview) -> None:
        text = json.dumps(header).encode()
        size = sum(len(part) for part in payload)
        write_all(self.reply_fd, FRAME.pack(len(text), size) + text, *payload)

    def serve(self) -> None:
        frame = bytearray(FRAME.size)
        while read_exactly(self.request_fd, memoryview(frame)):
            header_bytes, _ = FRAME.unpack(frame)
            text = bytearray(header_bytes)
            if not read_exactly(self.request_fd, memoryview(text)):
                return
            try:
                if not text:
                    self.call_again()
                else:
                    request = json.loads(text)
                    inputs = self.read_inputs(request["inputs"])
                    {"call": self.call, "table": self.table}[request["op"]](request, inputs)
            except CallFailed as failure:
                self.reply({"status": "exception", "message": str(failure)})
            # The student's printf must be in the capture even if the runner is killed at its next call.
            self.libc.fflush(None)

    def read_inputs(self, specs: list[dict[str, Any]]) -> list[Any]:
        """Inputs in real tensors: aligned as torch aligns them, with red zones under AddressSanitizer."""
        import torch

        inputs = []
        for spec in specs:
            tensor = torch.empty(spec["shape"], dtype=getattr(torch, spec["dtype"]))
            if not read_exactly(self.request_fd, tensor_bytes(tensor)):
                os._exit(0)
            inputs.append(tensor)
        return inputs

    def call(self, request: dict[str, Any], inputs: list[Any]) -> None:
        label = request.get("profile")
        if label is not None:
            self.answer(request, inputs, *self.run_profiled(request, inputs, label))
            return
        values = self.arguments(request, inputs)
        run = self.prepared(request, values)
        self.kept = (request, inputs, values, run) if request.get("keep") else None
        with self.delays if request.get("delays") else nullcontext():
            result = run()
        self.answer(request, inputs, *result)

    def call_again(self) -> None:
        """The kept call in its own memory: other bytes in the inputs, zeros in the workspace."""
        assert self.kept is not None
        request, inputs, values, run = self.kept
        if not read_exactly(self.request_fd, *(tensor_bytes(tensor) for tensor in inputs)):
            os._exit(0)
        for argument, value in zip(request["arguments"], values, strict=True):
            if "zeros" in argument:
                value.zero_()
        self.answer(request, inputs, *run())

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
        echoes = [tensor_bytes(tensor) for tensor in inputs] if request.get("echo_inputs") else []
        self.reply(header, payload, *echoes)
        free()

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

    def prepared(self, request: dict[str, Any], values: list[Any]) -> Any:
        """What calls the function; it returns the reply's header, the output's bytes and what frees them."""
        if isinstance(self.loaded, StudentObject):
            invocation = self.loaded.prepare(request["function"], values)
            return lambda: (*_describe(invocation()), invocation.release)
        return lambda: self.run_plain(request, values)

    def run_plain(self, request: dict[str, Any], values: list[Any]) -> tuple[dict[str, Any], memoryview, Any]:
        name = request["function"]
        if isinstance(self.loaded, RawLibrary):
            output = self.loaded.call(name, values, request["output_shape"])
        else:
            output = self.loaded.call(name, values, request.get("keywords", {}))
        header = {
            "status": "ok",
            "kind": KIND_TENSOR,
            "dtype": DTYPES["float32"],
            "shape": list(output.shape),
        }
        return header, tensor_bytes(output), lambda: output

    def run_profiled(self, request: dict[str, Any], inputs: list[Any], label: str) -> Any:
        """The same call inside torch's profiler. Workspace counts when it is allocated inside the scope."""
        prepared = None if request["workspace_in_scope"] else self.arguments(request, inputs)

        def call() -> Any:
            values = self.arguments(request, inputs) if prepared is None else prepared
            # The profiler nets allocations against frees: the workspace has to outlive the scope.
            return *self.prepared(request, values)(), values

        (header, payload, release, _workspace), figures = profiled(label, call)
        return header | figures, payload, release

    def table(self, request: dict[str, Any], inputs: list[Any]) -> None:
        """Call an accessor once for each row of the last input, a float64 table whose columns are scalar arguments.

        The vector argument is one buffer throughout, so what one row writes the next may read; it is returned after
        the numbers.
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

        header = {"status": "ok", "kind": KIND_NUMBER, "dtype": DTYPES["float64"], "shape": [rows.shape[0]]}
        if request.get("profile") is None:
            visit_rows()
        else:
            _, figures = profiled(request["profile"], visit_rows)
            header |= figures
        self.reply(header, tensor_bytes(numbers), *(tensor_bytes(tensor) for tensor in tensors))


def profiled(label: str, action: Any) -> tuple[Any, dict[str, Any]]:
    """Run an action in the scopes of the familiar table; its result, and what the profiler saw."""
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


def _describe(result: AbiResult) -> tuple[dict[str, Any], memoryview]:
    """Header and bytes of what a student's function returned."""
    shape = list(result.sizes[: max(0, min(result.ndim, 8))])
    header = {
        "status": "ok",
        "kind": result.kind,
        "dtype": result.dtype,
        "shape": shape,
        "number": result.number,
    }
    if result.kind == KIND_VECTOR:
        return header | {"shape": [result.sizes[0]]}, memory_at(result.data, 4 * result.sizes[0])
    if result.kind != KIND_TENSOR:
        return header, memoryview(b"")
    elements = 1
    for size in shape:
        elements *= size
    width = {3: 4, 4: 8, 6: 4, 7: 8}.get(result.dtype, 0)
    return header, memory_at(result.data, elements * width)


def load(kind: str, path: str) -> Any:
    """The object that a runner of this kind serves. Raises OSError or AttributeError when it cannot be loaded."""
    return {"student": StudentObject, "raw": RawLibrary, "torch": lambda _: TorchFunction()}[kind](path)


def run(kind: str, path: str, request_fd: int, reply_fd: int, delays: Delays) -> None:
    """Load the object, say what it offers and serve requests until there are no more."""
    try:
        loaded = load(kind, path)
    except (OSError, AttributeError) as error:
        Served(None, request_fd, reply_fd, delays).reply({"status": "load_error", "message": str(error)})
        return
    served = Served(loaded, request_fd, reply_fd, delays)
    served.reply({"status": "loaded", "functions": list(loaded.functions)})
    served.serve()
