"""The untrusted side: a process that loads one shared object and answers calls over a pipe.

Theory of operation. The judge starts this file as a script, isolated from the user's environment: it imports
torch once and becomes the *zygote*, which holds no student code and no secret. On a `spawn` message it forks a
*runner* with the pipe ends it was handed; the runner limits itself, loads the object and answers one request with
one reply until its pipe closes. The judge stops it (SIGSTOP) between calls. Nothing that a runner says is believed
beyond the bytes of its output, so this file needs no defence against the code it loads; it only has to be small.

A message in either direction is a frame: header length (u32) and payload length (u64), little endian, a JSON
header, the payload. The first frame, from the runner, lists the functions that the object offers. Requests:

    call   function, arguments, inputs -> kind, dtype, shape + output bytes, then (echo_inputs) the inputs as they
           are now
    table  the function called once for each row of a table (accessors) -> one number a row, then the tensor

Imports nothing of the kit: it is all that a sandbox has to hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
import warnings
from typing import Any

FRAME = struct.Struct("<IQ")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
DTYPES = {"float32": 6, "float64": 7, "int64": 4}
KIND_VOID, KIND_NUMBER, KIND_TENSOR, KIND_VECTOR, KIND_UNDEFINED = range(5)


# ---- frames


def read_exactly(fd: int, view: memoryview) -> bool:
    """Fill `view` from the pipe; False when the other side closed it first."""
    done = 0
    while done < len(view):
        count = os.readv(fd, [view[done:]])
        if count == 0:
            return False
        done += count
    return True


def write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


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
        cell = AbiVector(value.data_ptr(), value.numel())
        cell.keep = value
        return cell
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


# ---- serving requests


class Served:
    """One runner's state: the object, its pipes, and what the last call left alive."""

    def __init__(self, loaded: Any, request_fd: int, reply_fd: int) -> None:
        self.loaded, self.request_fd, self.reply_fd = loaded, request_fd, reply_fd
        self.libc = ctypes.CDLL(None)

    def reply(self, header: dict[str, Any], *payload: memoryview) -> None:
        text = json.dumps(header).encode()
        size = sum(len(part) for part in payload)
        write_all(self.reply_fd, FRAME.pack(len(text), size) + text)
        for part in payload:
            write_all(self.reply_fd, part)

    def serve(self) -> None:
        frame = bytearray(FRAME.size)
        while read_exactly(self.request_fd, memoryview(frame)):
            header_bytes, _ = FRAME.unpack(frame)
            text = bytearray(header_bytes)
            if not read_exactly(self.request_fd, memoryview(text)):
                return
            request = json.loads(text)
            inputs = self.read_inputs(request["inputs"])
            try:
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
        if label is None:
            header, payload, release = self.run_once(request, self.arguments(request, inputs))
        else:
            header, payload, release = self.run_profiled(request, inputs, label)
        if len(payload) > request["max_output_bytes"]:
            header["withheld"], payload = True, memoryview(b"")
        echoes = [tensor_bytes(tensor) for tensor in inputs] if request.get("echo_inputs") else []
        self.reply(header, payload, *echoes)
        release()

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

    def run_once(self, request: dict[str, Any], values: list[Any]) -> tuple[dict[str, Any], memoryview, Any]:
        """Call the function; returns the reply's header, the output's bytes and what frees them."""
        name = request["function"]
        if isinstance(self.loaded, StudentObject):
            invocation = self.loaded.prepare(name, values)
            return *_describe(invocation()), invocation.release
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
            return *self.run_once(request, values), values

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
    width = {4: 8, 6: 4, 7: 8}.get(result.dtype, 0)
    return header, memory_at(result.data, elements * width)


# ---- becoming a runner


def limit_self(limits: dict[str, Any]) -> None:
    """Resource limits, applied after the torch import and before the student's object is loaded."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits["open_files"],) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"],) * 2)
    if limits["memory_bytes"] is not None:
        ceiling = mapped_bytes() + limits["memory_bytes"]
        with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
            resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))


def mapped_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def become_runner(spec: dict[str, Any], request_fd: int, reply_fd: int, output_fd: int) -> None:
    """Everything between the fork and the first request. Never returns."""
    os.setsid()
    set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.chdir(spec.get("cwd", "/"))
    # Both spellings: torch and the student's object may share one OpenMP runtime or have one each.
    os.environ["OMP_NUM_THREADS"] = str(spec["threads"])
    import torch

    torch.set_num_threads(spec["threads"])
    if spec["cpus"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, spec["cpus"])
    limit_self(spec["limits"])
    try:
        loaded = {"student": StudentObject, "raw": RawLibrary, "torch": lambda _: TorchFunction()}[
            spec["kind"]
        ](spec["object"])
    except (OSError, AttributeError) as error:
        Served(None, request_fd, reply_fd).reply({"status": "load_error", "message": str(error)})
        os._exit(0)
    served = Served(loaded, request_fd, reply_fd)
    served.reply({"status": "loaded", "functions": list(loaded.functions)})
    served.serve()
    os._exit(0)


def set_process_option(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


# ---- the zygote


def zygote(control: socket.socket) -> None:
    """Fork a runner for each `spawn`, reap and sweep up for each `reap`; when the judge ends, end all of them."""
    # No death signal for the zygote itself: when the judge is killed it reads the end of `control`, and still sweeps.
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # A tenth of the import, and a collection in a fork would copy every page.
    sys.modules["numpy"] = None  # type: ignore[assignment]  # No runner needs it, and torch does without.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import torch.autograd.profiler
    gc.freeze()
    gc.enable()

    control.sendall(json.dumps({"ready": torch.__version__}).encode() + b"\n")
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1 << 16, 3)
        if not message:
            break
        request = json.loads(message)
        if request["op"] == "spawn":
            pid = os.fork()
            if pid == 0:
                control.close()
                try:
                    become_runner(request, *fds)
                finally:
                    os._exit(70)
            for fd in fds:
                os.close(fd)
            control.sendall(json.dumps({"pid": pid}).encode() + b"\n")
        else:
            _, status = os.waitpid(request["pid"], 0)
            sweep(request["living"])
            control.sendall(json.dumps({"status": status}).encode() + b"\n")
    sweep([])
    os._exit(0)  # tearing torch down takes longer than many a run


def sweep(living: list[int]) -> None:
    """Kill what a dead runner left behind: its orphans are the zygote's children now (subreaper)."""
    for _ in range(100):
        strays = [pid for pid in children() if pid not in living]
        if not strays:
            return
        for pid in strays:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as listing:
            return [int(pid) for pid in listing.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    zygote(socket.socket(fileno=int(sys.argv[1])))
