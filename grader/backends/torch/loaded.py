"""Code that a runner with torch can load: a student's compiled object, the reference, or torch's own functions.

Each class has `functions`, the list that the runner reports to the judge, and `prepared(request, values)`. `prepared`
returns a function that makes the call. This function returns the reply's header, the output's bytes and a function that
frees the output.

Like all files beside untrusted code, this file imports nothing of the kit (`grader.runner.runner`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

#: Numbers of element types (c10::ScalarType) by name, and bytes per element by number.
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
    """Raised if the function threw a C++ exception, with the first line of its text."""


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
    """Return the C object for one argument. It keeps references to the objects to which it points."""
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
    """Return the header and the output's bytes for the result of a student's function."""
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
    return header, memory_at(result.data, elements * WIDTHS.get(result.dtype, 0))


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
    """Public functions of torch by dotted name, so that PyTorch is measured like a student's code (part 0)."""

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
    """Return the reply's header, the bytes and the function that frees the output, for a torch tensor as output."""
    header = {"status": "ok", "kind": KIND_TENSOR, "dtype": _number_of(output), "shape": list(output.shape)}
    return header, tensor_bytes(output), lambda: output


def load(kind: str, path: str) -> Any:
    """Load the object at `path` for a runner of this kind. Raises OSError or AttributeError if it cannot be loaded."""
    return {"student": StudentObject, "raw": RawLibrary, "torch": lambda _: TorchFunction()}[kind](path)
