"""What a runner loads of a GPU assignment: a Python file with Triton kernels, or a library of CUDA's.

Each offers `functions` as what `grader.run.loaded` has, and operations of its own:

    call     one call on tensors that came as bytes and go back as bytes
    attach   maps the judge's device memory and lays tensors in it: sets of inputs and outputs
    go       calls the function once for each set and answers when the device has finished; it has no payload

Tensors come as bytes (op `call`) and are put where the kernel is to find them: on the card if there is one, else on the
CPU for Triton's interpreter, with the strides that the request asks for. What the function returns is copied into the
outputs. Imports nothing of the kit, as all that stands beside a stranger's code; nothing it says is believed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import inspect
import mmap
import os
import sys
from collections.abc import Callable
from typing import Any

#: The languages that it loads. A kind is one of them, with "-cpu" behind it where there is no card.
KINDS = ("triton", "cuda")
KIND_VOID = 0
ANSWERED = {"status": "ok", "kind": KIND_VOID, "dtype": 0, "shape": []}
GAP_ELEMENTS = 8
#: Compute capabilities of cards, as Triton numbers them.
ARCHITECTURES = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
LONGEST_MESSAGE = 1000


class Failed(Exception):
    """The file has no such function, or what it gave is no answer; the text is for the student."""


def prepare() -> None:
    """In the process that runners are forked from: what Triton asks other programs, which it remembers. A runner may
    start none."""
    from triton.backends.nvidia import compiler, driver
    from triton.runtime import build

    for ask in (
        driver.libcuda_dirs,
        driver.library_dirs,
        getattr(build, "platform_key", driver.libcuda_dirs),
    ):
        with contextlib.suppress(Exception):
            ask()
    for architecture in ARCHITECTURES:
        with contextlib.suppress(Exception):
            compiler.get_ptxas_version(architecture)


# ---- tensors


def laid_out(tensor: Any, layout: int, device: str) -> Any:
    """The same numbers on `device`: contiguous (0), with the two axes before the last swapped in memory (1; of a matrix
    both axes, of a vector every second element), or with gaps behind its rows and before it (2). Gaps hold NaN."""
    import torch

    if layout == 0 or tensor.dim() == 0:
        return tensor.to(device)
    sizes, gap = list(tensor.shape), float("nan") if tensor.is_floating_point() else 0
    if layout == 1 and tensor.dim() >= 2:
        a, b = (-3, -2) if tensor.dim() >= 3 else (-2, -1)
        return tensor.to(device).transpose(a, b).contiguous().transpose(a, b)
    if layout == 1:
        wide = torch.full((sizes[0], 2), gap, dtype=tensor.dtype, device=device)
        wide[:, 0] = tensor.to(device)
        return wide[:, 0]
    wide = torch.full((*sizes[:-1], sizes[-1] + 2 * GAP_ELEMENTS), gap, dtype=tensor.dtype, device=device)
    view = wide[..., GAP_ELEMENTS : GAP_ELEMENTS + sizes[-1]]
    view.copy_(tensor)
    return view


def flattened(value: Any) -> Any:
    """A tensor with all axes before its last two as one, which the autograd form expects."""
    import torch

    if isinstance(value, torch.Tensor) and value.dim() > 3:
        return value.reshape(-1, *value.shape[-2:])
    return value


def copied(value: Any, output: Any, name: str) -> None:
    """Put what a function returned where its output belongs. Raises Failed for what does not fit."""
    import torch

    if value is None or value is output:
        return
    if not isinstance(value, torch.Tensor):
        raise Failed(f"{name} should be a tensor and is {type(value).__name__}")
    if value.numel() != output.numel() or list(value.shape)[-1:] != list(output.shape)[-1:]:
        raise Failed(f"{name} should have the shape {list(output.shape)} and has {list(value.shape)}")
    if value.dtype != output.dtype:
        raise Failed(f"{name} should be {output.dtype} and is {value.dtype}")
    output.copy_(value.detach().reshape(output.shape))


# ---- what is loaded


class PythonFile:
    """A student's Python file: plain functions, or a subclass of torch.autograd.Function."""

    def __init__(self, path: str) -> None:
        import torch

        spec = importlib.util.spec_from_file_location("kernels", path)
        assert spec is not None and spec.loader is not None
        self.module = importlib.util.module_from_spec(spec)
        sys.modules["kernels"] = self.module
        spec.loader.exec_module(self.module)
        self.autograd = autograd_class(self.module, torch.autograd.Function)
        names = [
            name
            for name, value in vars(self.module).items()
            if callable(value) and not inspect.isclass(value)
        ]
        self.functions = [[name, "function"] for name in names if len(name) < 200][:900]
        if self.autograd is not None:
            self.functions.append(["apply", "autograd"])

    def bound(self, request: dict[str, Any], values: list[Any], outputs: list[Any]) -> Callable[[], None]:
        """What calls the function with these values once, and puts what it returns into the outputs."""
        function = getattr(self.module, request["function"], None)
        names = request["outputs"]
        form = request.get("autograd")
        if request.get("as_autograd") and form:
            if self.autograd is None:
                raise Failed("there is no subclass of torch.autograd.Function in the file")
            return self.by_autograd(form, values, outputs, names)
        if not callable(function):
            raise Failed(f"there is no function {request['function']} in the file")
        returned = request.get("returned", [])
        if not returned:
            return lambda: function(*values)

        def call() -> None:
            found = function(*values)
            several = list(found) if isinstance(found, (tuple, list)) else [found]
            if found is not None and len(several) != len(returned):
                raise Failed(f"{len(returned)} tensors should be returned, and {len(several)} are")
            for value, k in zip(several, returned, strict=False):
                copied(value, outputs[k], names[k])

        return call

    def by_autograd(
        self, form: dict[str, Any], values: list[Any], outputs: list[Any], names: list[str]
    ) -> Callable[[], None]:
        import torch

        apply = self.autograd.apply
        given = [flattened(values[k]) for k in form["arguments"]]
        tensors = [k for k, value in enumerate(given) if isinstance(value, torch.Tensor)]
        gradient = flattened(values[form["gradient"]]) if form.get("gradient") is not None else None

        def call() -> None:
            taken = [v.detach().requires_grad_(True) if k in tensors else v for k, v in enumerate(given)]
            found = apply(*taken)
            first = found[0] if isinstance(found, (tuple, list)) else found
            if gradient is not None:
                first.backward(gradient)
                for k, output, name in zip(tensors, outputs, names, strict=False):
                    copied(taken[k].grad, output, name)
                return
            copied(first, outputs[0], names[0])
            saved = getattr(first.grad_fn, "saved_tensors", ()) if first.grad_fn is not None else ()
            for output, name in zip(outputs[1:], names[1:], strict=False):
                fitting = [
                    t
                    for t in saved
                    if t is not None and t.numel() == output.numel() and t.dtype == output.dtype
                ]
                if not fitting:
                    raise Failed(f"no saved tensor has as many elements as {name}")
                copied(fitting[-1].reshape(output.shape), output, name)

        return call


def autograd_class(module: Any, base: type) -> Any:
    """The file's own subclass of torch.autograd.Function: of several the last with "triton" in its name, else the
    last."""
    found = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, base) and value.__module__ == module.__name__
    ]
    named = [value for value in found if "triton" in value.__name__.lower()]
    return (named or found)[-1] if found else None


class CudaLibrary:
    """A library of C functions: pointers, ints, floats, and the stream last; each returns 0 or CUDA's error."""

    autograd = None

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self.functions: list[list[str]] = []

    def bound(self, request: dict[str, Any], values: list[Any], outputs: list[Any]) -> Callable[[], None]:
        import torch

        try:
            function = getattr(self.library, request["function"])
        except AttributeError:
            raise Failed(f"there is no function {request['function']} in the library") from None
        function.restype = ctypes.c_int
        cells = [_cell(value) for value in values]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

        def call() -> None:
            if code := function(*cells, stream):
                raise Failed(f"it returned CUDA's error {code}")

        return call


def _cell(value: Any) -> Any:
    if hasattr(value, "data_ptr"):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int(int(value))


# ---- serving


class Kernels:
    """One loaded file with the tensors that it works on."""

    failures = (Failed,)

    def __init__(self, loaded: Any, device: str, shared_fd: int | None = None) -> None:
        self.loaded, self.device, self.shared_fd = loaded, device, shared_fd
        self.functions = loaded.functions
        self.sets: list[Callable[[], None]] = []
        self.operations = {"call": self.call, "attach": self.attach, "go": self.go}
        self._memory: Any = None

    def call(self, request: dict[str, Any], tensors: list[Any]) -> dict[str, Any]:
        """One call on tensors that came as bytes. `names` are theirs, `layouts` those of inputs that are not
        contiguous, `outputs` are written: these tensors hold afterwards what the kernel left in its own."""
        names, layouts, written = request["names"], request.get("layouts", {}), request["outputs"]
        placed = {
            name: laid_out(tensor, layouts.get(name, 0), self.device)
            for name, tensor in zip(names, tensors, strict=True)
        }
        arguments = [placed[names[a["input"]]] if "input" in a else a["value"] for a in request["arguments"]]

        def work() -> None:
            self.loaded.bound(request, arguments, [placed[name] for name in written])()
            self.synchronize()

        guarded(work)
        for name, tensor in zip(names, tensors, strict=True):
            if placed[name] is not tensor:
                tensor.copy_(placed[name])
        return ANSWERED

    def attach(self, request: dict[str, Any], _: list[Any]) -> dict[str, Any]:
        """Lay the tensors of each set in the judge's memory: {"bytes", "sets": [{name: [offset, shape, dtype]}]}."""
        import torch

        if self._memory is None:
            assert self.shared_fd is not None
            size = request["bytes"]
            if self.device == "cpu":
                self._memory = torch.frombuffer(mmap.mmap(self.shared_fd, size), dtype=torch.uint8)
            else:
                self._memory = mapped_memory(self.shared_fd, size)
        self.sets = []
        for one in request["sets"]:
            placed = {}
            for name, (offset, shape, dtype) in one.items():
                kind = getattr(torch, dtype)
                count = 1
                for size in shape:
                    count *= size
                width = torch.empty((), dtype=kind).element_size()
                placed[name] = self._memory[offset : offset + count * width].view(kind).view(shape)
            arguments = [
                placed[request["names"][a["input"]]] if "input" in a else a["value"]
                for a in request["arguments"]
            ]
            outputs = [placed[name] for name in request["outputs"]]
            self.sets.append(self.loaded.bound(request, arguments, outputs))
        self.synchronize()
        return ANSWERED

    def go(self, request: dict[str, Any], _: list[Any]) -> dict[str, Any]:
        """Call the function on the first so many sets; 0 calls it on none."""

        def work() -> None:
            for call in self.sets[: request["sets"]]:
                call()
            self.synchronize()

        guarded(work)
        return ANSWERED

    def synchronize(self) -> None:
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()


def guarded(work: Callable[[], None]) -> None:
    """Run a student's function. Raises Failed with what it raised in one line, whatever that was."""
    try:
        work()
    except NotImplementedError:
        return  # An unfinished starter: nothing is written, which the judge says.
    except Failed:
        raise
    except Exception as error:
        raise Failed(described(error)) from error


def described(error: BaseException) -> str:
    """The innermost line of the student's file and what was raised."""
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    lines = []
    for link in (error, root):
        trace = link.__traceback__
        while trace is not None:
            if trace.tb_frame.f_globals.get("__name__") == "kernels":
                lines.append(trace.tb_lineno)
            trace = trace.tb_next
    where = f"line {lines[-1]}: " if lines else ""
    return f"{where}{type(root).__name__}: {root}"[:LONGEST_MESSAGE]


# ---- the judge's device memory


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def mapped_memory(fd: int, size: int) -> Any:
    """A tensor of bytes over device memory that another process shares by this descriptor."""
    import torch

    torch.zeros(1, device="cuda")
    cuda = ctypes.CDLL("libcuda.so.1")
    device = torch.cuda.current_device()

    def check(code: int, what: str) -> None:
        if code:
            raise OSError(f"{what}: CUDA error {code}")

    handle, address = ctypes.c_uint64(), ctypes.c_uint64()
    wide, zero = ctypes.c_size_t(size), ctypes.c_size_t(0)
    none = ctypes.c_uint64(0)
    check(
        cuda.cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(fd), 1),
        "cuMemImportFromShareableHandle",
    )
    check(cuda.cuMemAddressReserve(ctypes.byref(address), wide, zero, none, none), "cuMemAddressReserve")
    check(cuda.cuMemMap(address, wide, zero, handle, none), "cuMemMap")
    access = _Access(_Location(1, device), 3)
    check(cuda.cuMemSetAccess(address, wide, ctypes.byref(access), ctypes.c_size_t(1)), "cuMemSetAccess")
    described = {
        "shape": (size,),
        "typestr": "|u1",
        "data": (address.value, False),
        "version": 3,
        "strides": None,
    }
    return torch.as_tensor(type("Memory", (), {"__cuda_array_interface__": described})(), device="cuda")


def load(kind: str, path: str, shared_fd: int | None = None) -> Kernels:
    """The file of this kind ("triton", "cuda", with "-cpu" behind it for the interpreter). Raises OSError or
    AttributeError when it cannot be loaded, whatever it raised."""
    language, _, device = kind.partition("-")
    try:
        loaded = CudaLibrary(path) if language == "cuda" else PythonFile(path)
    except (OSError, AttributeError):
        raise
    except BaseException as error:
        raise OSError(described(error)) from error
    return Kernels(loaded, device or "cuda", shared_fd)
