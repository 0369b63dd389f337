"""Runner with torch: an untrusted process that loads one shared object and answers calls over a pipe.

Theory of operation. A runner is forked from a process that has imported torch (`grader.backends.torch.forkserver`). It
inherits its ends of three pipes to the judge, and enters its limits and its sandbox before this code runs. It loads the
object, then answers each request with one reply until its pipe closes. The judge stops it (SIGSTOP) between calls. The
judge believes only the output's bytes in a reply. So this file needs no defence against the code that it loads, and
can be small.

A message in either direction is a frame. It has the lengths of header (u32) and payload (u64), little endian, then a
JSON header and the payload. The runner sends two frames first: "ready", then the functions of the object. Requests:

    call     function, arguments, inputs -> kind, dtype, shape + output bytes, then the inputs if ECHOES is set
    table    call the function once for each row of a table (accessors) -> one number a row, then the tensors
    reserve  a number of bytes, which are allocated, written and freed -> no result

Bits of a request's payload length: ECHOES requests the inputs' values after the call. DELAYS delays threads. INPUTS
requests the current values of the last call's inputs, without a new call. A request with an empty header repeats the
last call, whose header must have had "keep", with new values of its inputs.

A loaded object has `functions`, the list that the runner reports to the judge, and `prepared(request, values)`, which
returns a function that makes the call. This function returns the reply's header, the output's bytes and a function that
frees the output. GPU files (`grader.backends.gpu.devicerunner`) have `operations` instead.

Imports nothing of the kit, so that a sandbox has to show few files.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import struct
import time
from collections.abc import Callable
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
    """Write all parts. If they fit into the pipe, one system call writes them, so that the reader wakes only once."""
    missing = [memoryview(part) for part in parts if part]
    while missing:
        drop(missing, os.writev(fd, missing))


def drop(views: list[memoryview], count: int) -> None:
    """Remove the first `count` bytes from a list of views."""
    while views and count >= len(views[0]):
        count -= len(views.pop(0))
    if count:
        views[0] = views[0][count:]


#: DTYPES: numbers of element types (c10::ScalarType) by name. WIDTHS: bytes per element by number.
DTYPES = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "bool": 11,
    "bfloat16": 15,
}
WIDTHS = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1, 15: 2}
KIND_VOID, KIND_NUMBER, KIND_TENSOR, KIND_VECTOR, KIND_UNDEFINED = range(5)

Header = dict[str, Any]
Answer = tuple[Header, memoryview, Callable[[], Any]]


# ---- memory


def tensor_bytes(tensor: Any) -> memoryview:
    """Return a writable view of a contiguous tensor's memory. Works without NumPy, which may be missing."""
    size = tensor.numel() * tensor.element_size()
    return memory_at(tensor.data_ptr(), size)


def memory_at(address: int, size: int) -> memoryview:
    if size == 0:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


# ---- calls of an object that was built with the shim (shim/gpt149_abi.h)


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
    """Raised if the function threw a C++ exception (the message is its text) or takes another number of arguments."""


class StudentObject:
    """A student's object that was built with the shim. Tensors are passed to its functions by pointer."""

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

    def prepared(self, request: dict[str, Any], values: list[Any]) -> Callable[[], Answer]:
        invocation = self.prepare(request["function"], values)
        return lambda: (*_describe(invocation()), invocation.release)


class Invocation:
    """A function with its arguments as C objects. It can be called several times."""

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
    """Return the C object for one argument. `code` is the argument's letter in the function's signature.

    The object keeps references to the tensor and to the sizes to which it points.
    """
    if code == "T":
        sizes = (ctypes.c_int64 * max(1, value.dim()))(*value.shape)
        cell = AbiTensor(value.data_ptr(), value.dim(), sizes, _number_of(value))
        cell.keep = (value, sizes)
        return cell
    if code in "VW":
        vector = AbiVector(value.data_ptr(), value.numel())
        vector.keep = value
        return vector
    return ctypes.c_double(value) if code in "fd" else ctypes.c_int64(value)


def _number_of(tensor: Any) -> int:
    """Return the number of a tensor's element type; -1, which the judge refuses, for a type not in DTYPES."""
    return DTYPES.get(str(tensor.dtype).removeprefix("torch."), -1)


def _describe(result: AbiResult) -> tuple[Header, memoryview]:
    """Return the reply's header and the output's bytes for the result of a student's function."""
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
    return header, memory_at(result.data, math.prod(shape) * WIDTHS.get(result.dtype, 0))


# ---- functions that take torch tensors


class RawLibrary:
    """The reference as a library of C functions, which take float pointers and ints, the output last."""

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

    def prepared(self, request: dict[str, Any], values: list[Any]) -> Callable[[], Answer]:
        return lambda: _plain(self.call(request["function"], values, request["output_shape"]))


class TorchFunction:
    """Caller of public torch functions by dotted name, for parts that measure torch itself (key `torch_function`)."""

    functions: tuple[()] = ()

    def call(self, name: str, values: list[Any], keywords: dict[str, Any]) -> Any:
        import torch

        function: Any = torch
        for step in name.split(".")[1:]:
            function = getattr(function, step)
        return function(*values, **keywords).contiguous()

    def prepared(self, request: dict[str, Any], values: list[Any]) -> Callable[[], Answer]:
        return lambda: _plain(self.call(request["function"], values, request.get("keywords", {})))


def _plain(output: Any) -> Answer:
    """Return the answer for the torch tensor `output`: the reply's header, the bytes, and a function that frees it."""
    header = {"status": "ok", "kind": KIND_TENSOR, "dtype": _number_of(output), "shape": list(output.shape)}
    return header, tensor_bytes(output), lambda: output


def load(kind: str, path: str) -> Any:
    """Load the object at `path` for a runner of this kind. Raises OSError or AttributeError if it cannot be loaded."""
    return {"student": StudentObject, "raw": RawLibrary, "torch": lambda _: TorchFunction()}[kind](path)


# ---- delays


class Delays:
    """Context manager that delays the running thread many times in a call, for about 0.1 ms each.

    A race shows if threads are interrupted in the middle of their work. On few or busy cores each thread may finish its
    share without an interruption: on one core, a kernel whose threads share one row sum was always right at N = 256.
    Delays at random moments reveal the race (Edelstein et al., "Multithreaded Java program test generation", 2002). A
    timer interrupts the thread that is on the core (before Linux 6.4: the first thread), and the signal's handler
    sleeps. The timer is made before the sandbox is locked, because a student's code must not make timers.
    """

    INTERVAL_S = 200e-6
    #: The signal's handler is the C library's usleep, because Python code cannot interrupt a C thread. Its argument is
    #: the number of the signal, so usleep sleeps 27 us. Linux adds 50 us or more to wake the thread.
    SIGNAL = 27  # SIGPROF
    CLOCK_MONOTONIC, SIGEV_SIGNAL = 1, 0

    def __init__(self) -> None:
        self.libc, self.timer = ctypes.CDLL(None), ctypes.c_void_p()
        # struct sigevent: a value of 8 bytes, the signal, the kind of notification, padding up to 64 bytes.
        event = (ctypes.c_int * 16)(0, 0, self.SIGNAL, self.SIGEV_SIGNAL)
        try:
            failed = self.libc.timer_create(
                self.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self.timer)
            )
            self.libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
            self.libc.signal(self.SIGNAL, ctypes.cast(self.libc.usleep, ctypes.c_void_p))
        except AttributeError:  # macOS has no such timers; before glibc 2.34 they are in another library
            failed = -1
        self.possible = failed == 0

    def __enter__(self) -> None:
        self.repeat(self.INTERVAL_S)

    def __exit__(self, *_: object) -> None:
        self.repeat(0.0)

    def repeat(self, interval_s: float) -> None:
        """Interrupt a thread every `interval_s` seconds from now on; 0 ends the interruptions."""
        if self.possible:
            nanoseconds = round(interval_s * 1e9)
            times = (ctypes.c_long * 4)(0, nanoseconds, 0, nanoseconds)
            self.libc.timer_settime(self.timer, 0, ctypes.byref(times), None)


# ---- serving requests


class Served:
    """State of a runner: the loaded object, its pipes, and the tensors of the last call."""

    def __init__(self, request_fd: int, reply_fd: int, delays: Delays) -> None:
        self.request_fd, self.reply_fd, self.delays = request_fd, reply_fd, delays
        self.loaded: Any = None
        self.echoes = self.delayed = False
        self.last: list[Any] = []
        self.kept: tuple[dict[str, Any], list[Any], list[Any], Any] | None = None

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
                self.reply(header, *map(tensor_bytes, self.last))
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
                        self.reply(own(request, inputs), *self.echoed(inputs))
                    else:
                        {"call": self.call, "table": self.table, "reserve": self.reserve}[request["op"]](
                            request, inputs
                        )
            except (CallFailed, *getattr(self.loaded, "failures", ())) as failure:
                is_missing = bool(getattr(failure, "is_missing", False))
                self.reply({"status": "exception", "message": str(failure), "is_missing": is_missing})
            # Flush the student's printf now: the runner may be killed in its next call.
            self.delays.libc.fflush(None)

    def read_inputs(self, specs: list[dict[str, Any]]) -> list[Any]:
        """Read the inputs into tensors that torch allocates: aligned, and guarded by AddressSanitizer if it is on."""
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
        run = self.loaded.prepared(request, values)
        self.kept = (request, inputs, values, run) if request.get("keep") else None
        self.answer(request, inputs, *self.run_delayed(run))

    def run_delayed(self, run: Any) -> Any:
        """Call a prepared function, with delays if the request wants them."""
        with self.delays if self.delayed else nullcontext():
            return run()

    def reserve(self, request: dict[str, Any], inputs: list[Any]) -> None:
        """Write and free memory. If the C library keeps the memory, the next call gets it without page faults."""
        import torch

        torch.zeros(request["reserved_bytes"], dtype=torch.uint8)
        self.reply({"status": "ok", "kind": 0, "dtype": 0, "shape": []})

    def call_again(self) -> None:
        """Repeat the last call in the same memory, with new bytes in the inputs and zeros in the workspace."""
        assert self.kept is not None
        request, inputs, values, run = self.kept
        if not read_exactly(self.request_fd, *(tensor_bytes(tensor) for tensor in inputs)):
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
        return [tensor_bytes(tensor) for tensor in inputs] if self.echoes else []

    def arguments(self, request: dict[str, Any], inputs: list[Any]) -> list[Any]:
        import torch

        values: list[Any] = []
        for argument in request["arguments"]:
            if "input" in argument:
                values.append(inputs[argument["input"]])
            elif "zeros" in argument:
                values.append(torch.zeros(argument["zeros"]))
            else:
                values.append(argument.get("value", 0))  # 0 for a column: `table` sets the value of each row
        return values

    def run_profiled(self, request: dict[str, Any], inputs: list[Any], label: str) -> Any:
        """Make the call under torch's profiler. With "workspace_in_scope" the table counts the workspace's memory."""
        prepared = None if request["workspace_in_scope"] else self.arguments(request, inputs)

        def call() -> Any:
            values = self.arguments(request, inputs) if prepared is None else prepared
            # Return the workspace, so that it is freed after the scope: the profiler subtracts memory that is freed
            # inside the scope.
            return *self.loaded.prepared(request, values)(), values

        (header, payload, release, _workspace), figures = profiled(label, call)
        return header | figures, payload, release

    def table(self, request: dict[str, Any], inputs: list[Any]) -> None:
        """Call the function once for each row of the last input, a float64 table whose columns are scalar arguments.

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

        kind, dtype = KIND_NUMBER, DTYPES["float64"]
        header = {"status": "ok", "kind": kind, "dtype": dtype, "shape": [rows.shape[0]]}
        if request.get("profile") is None:
            visit_rows()
        else:
            _, figures = profiled(request["profile"], visit_rows)
            header |= figures
        self.reply(header, *map(tensor_bytes, [numbers, *tensors]))


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


def run(load: Callable[[], Any], request_fd: int, reply_fd: int, delays: Delays) -> None:
    """Report "ready", call `load`, report the loaded functions, and serve requests until the pipe closes.

    If the process ends before "ready", this is not the student's fault: student code runs only after "ready".
    """
    served = Served(request_fd, reply_fd, delays)
    served.reply({"status": "ready"})
    try:
        served.loaded = load()
    except (OSError, AttributeError) as error:
        served.reply({"status": "load_error", "message": str(error)})
        return
    served.reply({"status": "loaded", "functions": list(served.loaded.functions)})
    served.serve()
