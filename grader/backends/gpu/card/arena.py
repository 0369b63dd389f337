"""Device memory for the timed calls of one runner: sets of inputs and outputs that the judge fills, poisons and copies.

The memory belongs to the judge and is mapped into one runner by a file descriptor. Before each call, while the runner
waits, the judge fills the inputs of every set with new numbers and poisons the outputs: a special value marks them as
never written. The runner gets "go", calls the function once for each set and replies. Then the judge copies the outputs
into memory that the runner cannot access, and its clock stops when the copy is done. If the runner replies too early,
the copy still contains poison. Only the copy is compared afterwards.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float, c_int, c_uint, c_uint64, c_ulonglong
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from grader.backends.gpu.card.driver import MULTIPROCESSORS, Driver
from grader.core.arrays import Array, np
from grader.core.precision import ITEM_BYTES, POISON, widened

#: Numbers by which kernels.cu distinguishes element types.
KINDS = {"float32": 0, "float16": 1, "bfloat16": 2}
ALIGNMENT_BYTES = 512
THREADS, BLOCKS_EACH = 256, 32
SEED_STEP = 0x85EBCA77
"""Difference between the seeds of two consecutive sets."""
FEW_SETS = 32
"""Up to this number of sets, the driver is called once for each set. For more sets, one strided call handles all."""
MOST_PITCH = (1 << 31) - 1
"""Limit on the bytes from one row to the next in the driver's two-dimensional copies."""
FEW_ROWS = 4
"""If at most 1 / FEW_ROWS of a tensor's rows are used, only these rows are copied, one by one."""
MODULE = Path(__file__).with_name("kernels.ptx")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a set: an output (`is_output`), or an input, filled with uniform numbers from `low` to `high`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    low: float = -1.0
    high: float = 1.0
    is_output: bool = False

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def size(self) -> int:
        """Size of the tensor in bytes, in one set."""
        return self.count * ITEM_BYTES[self.dtype]

    @property
    def room(self) -> int:
        """Number of bytes from this tensor to the next one in a set."""
        return -(-self.size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Card:
    """The judge's CUDA context on one GPU, and its kernels (kernels.cu). Raises OSError or CudaError without a GPU."""

    def __init__(self) -> None:
        self.driver = Driver()
        module = self.driver.load(MODULE.read_bytes() + b"\0")
        self._fill = self.driver.function(module, "fill_sets")
        self._count_changed = self.driver.function(module, "count_changed")
        self._count = self.driver.function(module, "count_differing")
        self._blocks = BLOCKS_EACH * self.driver.attribute(MULTIPROCESSORS)
        self._counter = self.driver.allocate(8)

    def _grid(self, count: int, sets: int) -> tuple[int, int]:
        """Return a launch's grid: (number of blocks for a tensor's elements, number of blocks for the sets)."""
        across = max(1, min(self._blocks, -(-count // THREADS)))
        return across, max(1, min(sets, 65_535, -(-self._blocks // across)))

    def fill(self, address: int, tensor: Tensor, seed: int, sets: int = 1, stride: int = 0) -> None:
        """Start to fill a tensor with uniform random numbers, in sets that lie `stride` bytes apart.

        `tests/test_card.py` computes the same numbers.
        """
        arguments = _filling(address, tensor, seed, sets, stride)
        self.driver.launch(self._fill, self._grid(tensor.count, sets), THREADS, *arguments)

    def changed(self, address: int, tensor: Tensor, seed: int, sets: int, stride: int) -> int:
        """Return the number of elements that differ from the numbers that `fill` writes for the same arguments."""
        arguments = _filling(address, tensor, seed, sets, stride)
        return self._counted(self._count_changed, tensor, sets, *arguments)

    def _counted(self, kernel: Any, tensor: Tensor, sets: int, *arguments: Any) -> int:
        """Launch a kernel that adds to a counter in GPU memory. Wait for it and return the count."""
        self.driver.set_words(self._counter, 0, 4, 2)
        grid, counter = self._grid(tensor.count, sets), c_uint64(self._counter)
        self.driver.launch(kernel, grid, THREADS, *arguments, counter)
        return int.from_bytes(self.driver.copy_out(self._counter, 8), "little")

    def poison(self, address: int, tensor: Tensor, sets: int = 1, stride: int = 0) -> None:
        """Start to mark the elements of a tensor as never written, in sets that lie `stride` bytes apart."""
        pattern, width = POISON[tensor.dtype], ITEM_BYTES[tensor.dtype]
        if sets <= FEW_SETS or stride > MOST_PITCH:
            for number in range(sets):
                self.driver.set_words(address + number * stride, pattern, width, tensor.count)
            return
        self.driver.set_rows(address, stride, pattern, width, tensor.count, sets)

    def copy(self, to: int, to_stride: int, source: int, stride: int, size: int, sets: int) -> None:
        """Start to copy `size` bytes of each set. The sets are `stride` bytes apart, their copies `to_stride` bytes."""
        if sets <= FEW_SETS or max(to_stride, stride) > MOST_PITCH:
            for number in range(sets):
                self.driver.copy(to + number * to_stride, source + number * stride, size)
            return
        self.driver.copy_rows(to, to_stride, source, stride, size, sets)

    def differing(
        self,
        a: tuple[int, int],
        b: tuple[int, int],
        tensor: Tensor,
        sets: int,
        absolute: float,
        relative: float,
    ) -> int:
        """Return the number of elements of `a` that are not finite, or differ from `b` by more than absolute + relative
        |b|. `a` and `b` are (address of the first set, bytes from one set to the next)."""
        arguments = (
            *(c_uint64(a[0]), c_ulonglong(a[1]), c_uint64(b[0]), c_ulonglong(b[1]), c_uint(sets)),
            *(c_ulonglong(tensor.count), c_float(absolute), c_float(relative), c_int(KINDS[tensor.dtype])),
        )
        return self._counted(self._count, tensor, sets, *arguments)

    def read(self, address: int, tensor: Tensor) -> Array:
        """Return a tensor's numbers, copied to the CPU; 16-bit types as float32."""
        return np.asarray(self.seen(address, tensor))

    def seen(self, address: int, tensor: Tensor) -> OnCard:
        """Return a tensor as an array whose numbers are copied to the CPU only when they are used."""

        def read(offset: int, size: int) -> bytearray:
            return self.driver.copy_out(address + offset, size)

        return OnCard(read, tensor.shape, tensor.dtype)

    def close(self) -> None:
        self.driver.close()


def _filling(address: int, tensor: Tensor, seed: int, sets: int, stride: int) -> tuple[Any, ...]:
    """Return the arguments of the kernel `fill_sets`. `count_changed` takes the same arguments and a counter."""
    return (
        *(c_uint64(address), c_ulonglong(stride), c_uint(sets), c_ulonglong(tensor.count)),
        *(c_uint(seed & 0xFFFFFFFF), c_uint(SEED_STEP), c_float(tensor.low)),
        *(c_float(tensor.high - tensor.low), c_int(KINDS[tensor.dtype])),
    )


class Arena:
    """Sets of tensors in GPU memory that is shared with one runner, and the judge's private copy of the outputs."""

    def __init__(self, card: Card, tensors: Sequence[Tensor], sets: int) -> None:
        """Allocate the memory. Raises CudaError if the GPU has not enough free memory."""
        self.card, self.tensors, self.sets = card, tuple(tensors), sets
        self.outputs = [tensor for tensor in tensors if tensor.is_output]
        self.inputs = [tensor for tensor in tensors if not tensor.is_output]
        self._offsets, at = {}, 0
        for tensor in tensors:
            self._offsets[tensor.name] = at
            at += tensor.room
        self._set_bytes = at
        self._kept_bytes = sum(tensor.room for tensor in self.outputs)
        driver = card.driver
        self.address, self.size, self._handle, self.fd = driver.create_shared(at * sets)
        os.set_inheritable(self.fd, False)
        try:
            self._kept = driver.allocate(max(1, self._kept_bytes * sets))
            self._scratch = driver.allocate(max(1, sum(tensor.room for tensor in self.inputs)))
        except BaseException:
            self._release()
            raise

    @staticmethod
    def bytes_for(tensors: Sequence[Tensor]) -> int:
        """Return the bytes of GPU memory that one set takes: the shared tensors and the private copy of outputs."""
        return sum(tensor.room * (2 if tensor.is_output else 1) for tensor in tensors)

    def place(self, number: int, tensor: Tensor) -> int:
        """Return the address of a tensor of set `number`, in the shared memory."""
        return self.address + number * self._set_bytes + self._offsets[tensor.name]

    def kept(self, number: int, tensor: Tensor) -> int:
        """Return the address of the private copy of an output of set `number`."""
        at = self._kept + number * self._kept_bytes
        for other in self.outputs:
            if other is tensor:
                return at
            at += other.room
        raise KeyError(tensor.name)

    def seed_of(self, seed: int, number: int, tensor: Tensor) -> int:
        """Return the seed for the values of one input in set `number`, derived from a call's `seed`."""
        k = self.inputs.index(tensor)
        return (seed * 0x9E3779B1 + number * SEED_STEP + k * 0xC2B2AE3D) & 0xFFFFFFFF

    def attach_request(
        self, arguments: Sequence[Mapping[str, Any]], function: str, **more: Any
    ) -> dict[str, Any]:
        """Return the request that makes a runner map this memory and prepare to call `function` on its sets.

        `arguments` have the form of `grader.runner.calls.Request`. A tensor is given as its index in `self.tensors`.
        `more` are further fields of the request.
        """
        return {
            "op": "attach",
            "inputs": [],
            "bytes": self.size,
            "function": function,
            "names": [tensor.name for tensor in self.tensors],
            "arguments": list(arguments),
            "outputs": [tensor.name for tensor in self.outputs],
            "sets": [
                {
                    tensor.name: [
                        number * self._set_bytes + self._offsets[tensor.name],
                        list(tensor.shape),
                        tensor.dtype,
                    ]
                    for tensor in self.tensors
                }
                for number in range(self.sets)
            ],
            **more,
        }

    def poison(self) -> None:
        """Mark outputs and their copies as never written, and release L2 cache lines that a kernel reserved.

        Wait until this is done.
        """
        for tensor in self.outputs:
            self.card.poison(self.place(0, tensor), tensor, self.sets, self._set_bytes)
            self.card.poison(self.kept(0, tensor), tensor, self.sets, self._kept_bytes)
        self.card.driver.reset_l2()
        self.card.driver.synchronize()

    def fill(self, seed: int, sets: int | None = None) -> None:
        """Fill all inputs with new numbers, or only those of the first `sets` sets. Wait until this is done."""
        for tensor in self.inputs:
            self.card.fill(
                *(self.place(0, tensor), tensor, self.seed_of(seed, 0, tensor)),
                *(self.sets if sets is None else sets, self._set_bytes),
            )
        self.card.driver.synchronize()

    def warm_up(self, seconds: float) -> None:
        """Keep the GPU busy for `seconds`: an idle GPU has a slow clock."""
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            self.fill(0)

    def take(self, sets: int | None = None) -> None:
        """Copy all outputs, or only those of the first `sets` sets, into private memory. Wait until this is done."""
        for tensor in self.outputs:
            self.card.copy(
                *(self.kept(0, tensor), self._kept_bytes, self.place(0, tensor), self._set_bytes),
                *(tensor.size, self.sets if sets is None else sets),
            )
        self.card.driver.synchronize()

    # ---- after a call

    def inputs_changed(self, seed: int) -> list[str]:
        """Return the names of inputs that have changed in any set since `fill(seed)`."""
        return [
            tensor.name
            for tensor in self.inputs
            if self.card.changed(
                *(self.place(0, tensor), tensor, self.seed_of(seed, 0, tensor), self.sets, self._set_bytes)
            )
        ]

    def input_values(self, seed: int, number: int) -> dict[str, OnCard]:
        """Return the inputs of one set as `fill(seed)` sets them. They are valid until the next call of this method."""
        found, at = {}, self._scratch
        for tensor in self.inputs:
            self.card.fill(at, tensor, self.seed_of(seed, number, tensor))
            found[tensor.name] = self.card.seen(at, tensor)
            at += tensor.room
        self.card.driver.synchronize()
        return found

    def output_values(self, number: int) -> dict[str, OnCard]:
        """Return the private copy of one set's outputs. It is valid until the next `poison` or `take`."""
        return {tensor.name: self.card.seen(self.kept(number, tensor), tensor) for tensor in self.outputs}

    def differing(self, other: Arena, tolerances: Mapping[str, tuple[float, float]]) -> dict[str, int]:
        """Compare the private copies of outputs with those of `other`, for the sets that both arenas have.

        Return {output's name: number of elements that are not finite or differ too much}. `tolerances` maps an
        output's name to (absolute, relative) tolerance.
        """
        return {
            tensor.name: self.card.differing(
                (self.kept(0, tensor), self._kept_bytes),
                (other.kept(0, other.outputs[k]), other._kept_bytes),
                *(tensor, min(self.sets, other.sets), *tolerances[tensor.name]),
            )
            for k, tensor in enumerate(self.outputs)
        }

    def _release(self) -> None:
        os.close(self.fd)
        self.card.driver.free_shared(self.address, self.size, self._handle)

    def close(self) -> None:
        self.card.driver.synchronize()
        self.card.driver.free(self._kept)
        self.card.driver.free(self._scratch)
        self._release()


# ---- arrays in GPU memory


class OnCard(np.lib.mixins.NDArrayOperatorsMixin):
    """Tensor in GPU memory, usable like a NumPy array; 16-bit floats appear as float32.

    Only the used rows are copied to the CPU if they are few. For example, a timed call checks only 16 rows of a tensor
    of 67 million numbers. Copying and widening the whole tensor took longer than all other work. `read(offset, size)`
    returns bytes of the tensor, whose content must not change.
    """

    def __init__(self, read: Callable[[int, int], bytearray], shape: tuple[int, ...], dtype: str) -> None:
        self._read, self.shape, self._dtype = read, shape, dtype
        self.ndim = len(shape)
        self._kind = np.dtype(np.uint16) if dtype == "bfloat16" else np.dtype(dtype)
        self._stored: Array | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        first, *rest = index if isinstance(index, tuple) and index else (index,)
        if isinstance(first, np.ndarray) and first.dtype.kind in "iu":
            rows, places = np.unique(first, return_inverse=True)
            if 0 < len(rows) <= len(self) // FEW_ROWS and rows[0] >= 0:
                found = np.stack([self._row(int(row)) for row in rows])
                return widened(found[(places.reshape(first.shape), *rest)], self._dtype)
        return widened(self._all()[index], self._dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        whole = widened(self._all(), self._dtype)
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **how: Any) -> Any:
        given = [np.asarray(each) if isinstance(each, OnCard) else each for each in inputs]
        return getattr(ufunc, method)(*given, **how)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the whole array, copied to the CPU."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def _row(self, row: int) -> Array:
        if row >= len(self):
            raise IndexError(f"row {row} of {len(self)}")
        size = prod(self.shape[1:]) * ITEM_BYTES[self._dtype]
        return np.frombuffer(self._read(row * size, size), self._kind).reshape(self.shape[1:])

    def _all(self) -> Array:
        if self._stored is None:
            data = self._read(0, prod(self.shape) * ITEM_BYTES[self._dtype])
            self._stored = np.frombuffer(data, self._kind).reshape(self.shape)
        return self._stored
