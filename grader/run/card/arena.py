"""Device memory for the timed calls of one runner: sets of inputs and outputs that the judge fills, poisons and copies.

Theory of operation. The memory belongs to the judge and is mapped into one runner by a file descriptor. Before each
call the judge fills every set with fresh numbers and poisons the outputs, while the runner stands still. The runner is
told to go, calls its function once for each set and answers; then the judge copies the outputs into memory that the
runner cannot see, and its clock stops when that copy is done. So an answer that comes early is a copy of poison. What
is looked at afterwards is the copy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from grader.base.arrays import Array, np
from grader.base.precision import ITEM_BYTES, POISON, widened
from grader.run.card.driver import MULTIPROCESSORS, Driver, differing_arguments, uniform_arguments

#: Types that the card's own kernels know, by their numbers there.
KINDS = {"float32": 0, "float16": 1, "bfloat16": 2}
ALIGNMENT_BYTES = 512
THREADS, BLOCKS_EACH = 256, 32
MODULE = Path(__file__).with_name("kernels.ptx")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a set. `low` and `high` bound an input's uniform numbers; an output has none."""

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
        """Bytes."""
        return self.count * ITEM_BYTES[self.dtype]

    @property
    def room(self) -> int:
        """Bytes up to where the next tensor may begin."""
        return -(-self.size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Card:
    """The judge's context on one device, with its own small kernels. Raises OSError or CudaError without a device."""

    def __init__(self, ordinal: int = 0) -> None:
        self.driver = Driver(ordinal)
        module = self.driver.load(MODULE.read_bytes() + b"\0")
        self._fill = self.driver.function(module, "fill_uniform")
        self._count = self.driver.function(module, "count_differing")
        self._blocks = BLOCKS_EACH * self.driver.attribute(MULTIPROCESSORS)
        self._counter = self.driver.allocate(8)

    def fill(self, address: int, tensor: Tensor, seed: int) -> None:
        """Uniform numbers that `grader.run.card.numbers` can tell; returns before it is done."""
        kind = KINDS[tensor.dtype]
        arguments = uniform_arguments(
            address, tensor.count, seed & 0xFFFFFFFF, tensor.low, tensor.high - tensor.low, kind
        )
        self.driver.launch(self._fill, self._blocks, THREADS, *arguments)

    def poison(self, address: int, tensor: Tensor) -> None:
        pattern, width = POISON[tensor.dtype], ITEM_BYTES[tensor.dtype]
        self.driver.set_words(address, pattern, width, tensor.count)

    def differing(self, a: int, b: int, tensor: Tensor, absolute: float, relative: float) -> int:
        """How many elements of `a` are further from `b` than absolute + relative |b|, or not finite."""
        self.driver.set_words(self._counter, 0, 4, 2)
        arguments = differing_arguments(
            a, b, tensor.count, absolute, relative, KINDS[tensor.dtype], self._counter
        )
        self.driver.launch(self._count, self._blocks, THREADS, *arguments)
        return int.from_bytes(self.driver.copy_out(self._counter, 8), "little")

    def read(self, address: int, tensor: Tensor) -> Array:
        """A tensor's numbers in the judge's own memory, 16-bit types as float32."""
        data = self.driver.copy_out(address, tensor.size)
        kind = np.uint16 if tensor.dtype == "bfloat16" else np.dtype(tensor.dtype)
        return widened(np.frombuffer(data, kind).reshape(tensor.shape), tensor.dtype)

    def close(self) -> None:
        self.driver.close()


class Arena:
    """So many sets of these tensors in memory that is shared with one runner, and a private copy of the outputs."""

    def __init__(self, card: Card, tensors: Sequence[Tensor], sets: int) -> None:
        """Raises CudaError where the device has not so much memory left."""
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
            self._scratch = driver.allocate(max(tensor.room for tensor in tensors))
        except BaseException:
            self._release()
            raise

    @staticmethod
    def bytes_for(tensors: Sequence[Tensor]) -> int:
        """Device memory that one set takes, shared and private."""
        return sum(tensor.room * (2 if tensor.is_output else 1) for tensor in tensors)

    def place(self, number: int, tensor: Tensor) -> int:
        """The address of a tensor in the shared memory."""
        return self.address + number * self._set_bytes + self._offsets[tensor.name]

    def kept(self, number: int, tensor: Tensor) -> int:
        """The address of the private copy of an output."""
        at = self._kept + number * self._kept_bytes
        for other in self.outputs:
            if other is tensor:
                return at
            at += other.room
        raise KeyError(tensor.name)

    def seed_of(self, seed: int, number: int, tensor: Tensor) -> int:
        """Of one input's numbers in one set."""
        k = self.inputs.index(tensor)
        return (seed * 0x9E3779B1 + number * 0x85EBCA77 + k * 0xC2B2AE3D) & 0xFFFFFFFF

    def attach_request(
        self, arguments: Sequence[Mapping[str, Any]], function: str, **more: Any
    ) -> dict[str, Any]:
        """What the runner is told of its memory; `arguments` as in `grader.run.calls.Request`, with inputs by their
        place in `tensors`."""
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
        """Make all outputs, and the copies of the call before, what nobody has written; done when it returns."""
        for number in range(self.sets):
            for tensor in self.outputs:
                self.card.poison(self.place(number, tensor), tensor)
                self.card.poison(self.kept(number, tensor), tensor)
        self.card.driver.synchronize()

    def fill(self, seed: int) -> None:
        """Draw all inputs afresh; done when it returns."""
        for number in range(self.sets):
            for tensor in self.inputs:
                self.card.fill(self.place(number, tensor), tensor, self.seed_of(seed, number, tensor))
        self.card.driver.synchronize()

    def take(self) -> None:
        """Copy all outputs to where only the judge can write; done when it returns."""
        driver = self.card.driver
        for number in range(self.sets):
            for tensor in self.outputs:
                driver.copy(self.kept(number, tensor), self.place(number, tensor), tensor.size)
        driver.synchronize()

    # ---- after a call

    def inputs_changed(self, seed: int) -> list[str]:
        """Names of inputs that are not as they were filled, in any set."""
        changed = []
        for tensor in self.inputs:
            for number in range(self.sets):
                self.card.fill(self._scratch, tensor, self.seed_of(seed, number, tensor))
                if self.card.differing(self.place(number, tensor), self._scratch, tensor, 0.0, 0.0):
                    changed.append(tensor.name)
                    break
        return changed

    def input_values(self, seed: int, number: int) -> dict[str, Array]:
        """The inputs of one set as they were filled, whatever has become of them."""
        found = {}
        for tensor in self.inputs:
            self.card.fill(self._scratch, tensor, self.seed_of(seed, number, tensor))
            self.card.driver.synchronize()
            found[tensor.name] = self.card.read(self._scratch, tensor)
        return found

    def output_values(self, number: int) -> dict[str, Array]:
        """The judge's copy of one set's outputs."""
        return {tensor.name: self.card.read(self.kept(number, tensor), tensor) for tensor in self.outputs}

    def differing(self, other: Arena, tolerances: Mapping[str, tuple[float, float]]) -> dict[str, int]:
        """By output, elements of all sets that are further from another arena's of the same inputs than (absolute,
        relative)."""
        return {
            tensor.name: sum(
                self.card.differing(
                    self.kept(number, tensor),
                    other.kept(number, other.outputs[k]),
                    tensor,
                    *tolerances[tensor.name],
                )
                for number in range(min(self.sets, other.sets))
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
