"""Restricts loads, stores and atomic operations of Triton's interpreter to the memory of tensors.

The interpreter itself accesses any address. Outside of tensors the bytes differ from run to run, so a kernel that lacks
a mask would get a different verdict each time. Here each storage (memory of tensors) that is passed to a kernel gets
artificial addresses. They are far from all real addresses and from those of other storages. So an access beyond the
storage's end is always noticed. Just before an access, artificial addresses are converted to real addresses.

    a store outside         raises IndexError, and nothing is written
    a load outside          gives NaN, or the largest signed integer of its size: results that depend on the load are
                            wrong, all others are as on a GPU

A kernel may also take addresses from a tensor of pointers. Such addresses are real, and must lie in a living tensor. In
a replay (`gpu.replay`) they are invalid, and so is a pointer that an earlier launch stored.

This file imports nothing of the kit, like all files that run beside untrusted code. The interpreter imports NumPy.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import types
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Artificial addresses begin at FIRST. Each storage has a range of 2^SPAN_BITS addresses, and lies in its middle.
FIRST, SPAN_BITS = 1 << 62, 44
PAGE = 4096
MOST_STORAGES = 10_000
MOST_LINES = 20
HINT = "check the mask, the strides and the number of programs"


class Region:
    """A storage of `size` bytes at the real address `start`, with its artificial addresses."""

    def __init__(self, number: int, start: int, size: int) -> None:
        self.start, self.size = start, size
        # The artificial address has the same alignment as the real one.
        self.first = FIRST + (number << SPAN_BITS) + (1 << (SPAN_BITS - 1)) + start % PAGE
        self.end = self.first + size
        self.away = self.first - start
        self.launch, self.named, self.name = 0, 0, ""
        """Number of the last launch that got the storage, of the last launch that named it, and the argument's name."""


class Memory:
    """The memory functions that the interpreter calls, and all storages that were passed to kernels.

    `native` is the interpreter's object with these functions, and `builder` knows which program of the grid runs.
    `students` maps a module of the student to its file's number << FILE_BITS (`gpu.kernelfiles`).
    """

    def __init__(self, native: Any, builder: Any, students: Mapping[str, int]) -> None:
        self.native, self.builder, self.students = native, builder, students
        self.np: Any = importlib.import_module("numpy")
        self.regions: list[Region] = []
        self.known: dict[tuple[int, int], Region] = {}
        self.launches, self.depth = 0, 0
        self.trace: Any = None
        """A `gpu.tracing.Trace` that records launches."""
        self.from_arguments = False
        """True if a kernel may only access the arguments of its own launch."""
        self.alive: tuple[list[int], list[int]] | None = None
        """Result of `storages` for the current launch; None until it is needed."""
        self.lines: set[int] = set()
        """Lines of the student's files that loaded from outside of tensors. The upper bits are the file's number."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    # ---- memory of a launch

    @contextlib.contextmanager
    def launch(self) -> Iterator[None]:
        if self.depth == 0 and len(self.regions) > MOST_STORAGES:
            self.regions, self.known = [], {}
        self.launches, self.alive = self.launches + 1, None
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def region_of(self, tensor: Any) -> Region:
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
        region = self.known.get((start, size))
        if region is None:
            region = self.known[start, size] = Region(len(self.regions), start, size)
            self.regions.append(region)
        return region

    def placed(self, tensor: Any) -> int:
        """Return a tensor's artificial address, and allow this launch to access it."""
        region = self.region_of(tensor)
        region.launch = self.launches
        return int(tensor.data_ptr()) + region.away

    def named(self, name: str, argument: Any) -> None:
        """Remember the name of a kernel's argument with its storage, for messages."""
        base = getattr(argument, "base", None)  # the tensor behind a descriptor or a view of another type
        tensor = argument if hasattr(argument, "untyped_storage") else base
        if hasattr(tensor, "untyped_storage"):
            region = self.region_of(tensor)
            region.name = f"{region.name} and {name}" if region.named == self.launches else name
            region.named = self.launches

    def at(self, address: int) -> Region | None:
        """Return the storage in whose range an artificial address lies; None if this launch may not access it."""
        number = (address - FIRST) >> SPAN_BITS
        if not 0 <= number < len(self.regions):
            return None
        region = self.regions[number]
        if region.launch != self.launches:
            # An earlier launch stored this pointer in memory. Since then, the storage may have been freed.
            starts, ends = self.living()
            k = bisect_right(starts, region.start) - 1
            if k < 0 or region.start + region.size > ends[k]:
                return None
            region.launch = self.launches
        return region

    def living(self) -> tuple[list[int], list[int]]:
        if self.alive is None:
            self.alive = ([], []) if self.from_arguments else storages()
        return self.alive

    def distance(self, low: int, high: int, size: int) -> int | None:
        """Return the difference between artificial and real addresses for accesses of `size` bytes at `low` to `high`.

        The difference is 0 for real addresses. Returns None if the accesses do not all lie in one storage.
        """
        if low >= FIRST:
            region = self.at(low)
            inside = region is not None and region.first <= low and high + size <= region.end
            return region.away if region is not None and inside else None
        if high >= FIRST:
            return None
        starts, ends = self.living()
        k = bisect_right(starts, low) - 1
        return 0 if k >= 0 and high + size <= ends[k] else None

    def reached(self, addresses: Any, mask: Any, size: int) -> tuple[Any, Any]:
        """Convert the addresses of one access, an array with an element for each lane, to real addresses.

        `mask` is True for active lanes. Return (real addresses, mask of the active lanes that lie outside of every
        tensor). The second value is None if all active lanes lie in tensors.
        """
        away = self.distance(int(addresses.min()), int(addresses.max()), size)
        if away is None:
            active = addresses[mask]
            if active.size == 0:
                return addresses, None
            away = self.distance(int(active.min()), int(active.max()), size)
        if away is not None:
            return addresses - self.np.uint64(away) if away else addresses, None
        return self.reached_apart(addresses, mask, size)

    def reached_apart(self, addresses: Any, mask: Any, size: int) -> tuple[Any, Any]:
        """Do the work of `reached` if the lanes lie in several storages, or some lie outside of all storages."""
        np = self.np
        real, outside = addresses.copy(), mask.copy()
        own = addresses >= np.uint64(FIRST)
        for number in np.unique(addresses[mask & own] >> np.uint64(SPAN_BITS)).tolist():
            region = self.at(number << SPAN_BITS)
            if region is not None and region.size >= size:
                inside = outside & (addresses >= np.uint64(region.first))
                inside &= addresses <= np.uint64(region.end - size)
                real[inside] -= np.uint64(region.away)
                outside &= ~inside
        if (outside & ~own).any():
            starts, ends = (np.array(each, dtype=np.uint64) for each in self.living())
            k = np.searchsorted(starts, addresses, "right")
            behind = np.concatenate([np.zeros(1, np.uint64), ends])[k]
            # `behind` is, for each address, the end of the last storage that starts at or before it, or 0.
            outside &= own | (addresses > behind) | (behind - addresses < np.uint64(size))
        return real, outside if outside.any() else None

    # ---- calls of the interpreter

    def load(self, addresses: Any, mask: Any, other: Any, kind: Any) -> Any:
        addresses, mask = self.shaped(addresses, mask)
        real, outside = self.reached(addresses, mask, kind.itemsize)
        inside = mask if outside is None else mask & ~outside
        loaded = self.native.load(real, inside, other, kind)
        if outside is not None:
            self.note()
            loaded[outside] = self.junk(kind)
        return loaded

    def store(self, addresses: Any, value: Any, mask: Any) -> Any:
        addresses, mask = self.shaped(addresses, mask)
        size = self.np.asarray(value).itemsize
        real = self.checked("a store", addresses, mask, size)
        self.native.store(real, value, mask)

    def atomic_rmw(self, operation: Any, addresses: Any, value: Any, mask: Any, order: Any) -> Any:
        addresses, mask = self.shaped(addresses, mask)
        size = self.np.asarray(value).itemsize
        real = self.checked("an atomic operation", addresses, mask, size)
        return self.native.atomic_rmw(operation, real, value, mask, order)

    def atomic_cas(self, addresses: Any, compared: Any, value: Any, order: Any) -> Any:
        addresses, mask = self.shaped(addresses, True)
        size = max(self.np.asarray(each).itemsize for each in (compared, value))
        real = self.checked("an atomic operation", addresses, mask, size)
        return self.native.atomic_cas(real, compared, value, order)

    def shaped(self, addresses: Any, mask: Any) -> tuple[Any, Any]:
        np = self.np
        addresses, mask = np.asarray(addresses, dtype=np.uint64), np.asarray(mask, dtype=bool)
        if mask.shape != addresses.shape:
            mask = np.broadcast_to(mask, addresses.shape)
        return addresses, mask

    def junk(self, kind: Any) -> Any:
        """Return the result of a load from outside: NaN, the largest signed integer of this size, or True."""
        if kind.kind == "f":
            return float("nan")
        return True if kind.kind == "b" else (1 << (8 * kind.itemsize - 1)) - 1

    def checked(self, what: str, addresses: Any, mask: Any, size: int) -> Any:
        real, outside = self.reached(addresses, mask, size)
        if outside is not None:
            raise IndexError(self.outside_message(what, addresses[outside], size))
        return real

    def outside_message(self, what: str, addresses: Any, size: int) -> str:
        """Return the message for accesses outside of every tensor. It names the tensor of the first access."""
        program = ", ".join(map(str, self.builder.grid_idx))
        begun, first = f"{what} outside of every tensor, by program ({program})", int(addresses[0])
        region = self.at(first) if first >= FIRST else None
        if region is None:
            return f"{begun}, through a pointer into no tensor: check where the pointer comes from"
        around = addresses[addresses >> self.np.uint64(SPAN_BITS) == first >> SPAN_BITS]
        behind, before = int(around.max()) + size - region.end, region.first - int(around.min())
        far = f"{behind} bytes beyond the end" if behind > 0 else f"{before} bytes before the beginning"
        return f"{begun}: up to {far} of {region.name or 'a tensor'} ({region.size} bytes): {HINT}"

    def note(self) -> None:
        """Remember the student's line that called the current load."""
        frame = sys._getframe(1).f_back
        while frame is not None and frame.f_globals.get("__name__") not in self.students:
            frame = frame.f_back
        if frame is not None and len(self.lines) < MOST_LINES:
            self.lines.add(self.students[frame.f_globals["__name__"]] + frame.f_lineno)

    def lines_outside(self) -> list[int]:
        """Return `lines`, sorted, and start a new set: the lines that loaded from outside since the last call."""
        lines, self.lines = sorted(self.lines), set()
        return lines


class ByName:
    """Context in which Triton's functions among a kernel's global names can be replaced by the interpreter's versions.

    The interpreter itself replaces them in Triton's modules, but not where a file imported them (`from … import load`).
    `patch` replaces them, and the end of the context restores them.
    """

    def __init__(self, kernel: Any) -> None:
        self.names: dict[str, Any] = kernel.__globals__
        self.before: dict[str, Any] = {}
        self.language: Any = importlib.import_module("triton.language")

    def __enter__(self) -> ByName:
        # The interpreter looks for triton.language among the file's names.
        if not any(value is self.language for value in self.names.values()):
            self.names["triton.language"] = self.language
        return self

    def patch(self) -> None:
        for name, value in [*self.names.items()]:
            module = str(getattr(value, "__module__", None))
            if isinstance(value, (types.FunctionType, type)) and module.startswith("triton.language"):
                for place in (self.language, sys.modules.get(module)):
                    now = getattr(place, value.__name__, value)
                    if now is not value:
                        self.before[name], self.names[name] = value, now
                        break

    def __exit__(self, *_: object) -> None:
        self.names.pop("triton.language", None)
        self.names.update(self.before)


def storages() -> tuple[list[int], list[int]]:
    """Return (start addresses, end addresses) of the storages of all living CPU tensors, sorted.

    Overlapping storages count as one.
    """
    import torch

    found = set()
    for each in gc.get_objects():
        if not issubclass(type(each), torch.Tensor):
            continue
        with contextlib.suppress(RuntimeError):  # raised by sparse tensors and tensors without memory
            storage = each.untyped_storage()
            if storage.device.type == "cpu":
                found.add((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted(found):
        if starts and start < ends[-1]:
            ends[-1] = max(ends[-1], end)
        elif end > start:
            starts.append(start)
            ends.append(end)
    return starts, ends


def guard(students: Mapping[str, int]) -> Memory | None:
    """Make Triton's interpreter in this process use a `Memory`, and return it. `Memory` describes `students`.

    If this version of Triton has a different interpreter, change nothing and return None.
    """
    import torch

    with contextlib.suppress(ImportError, AttributeError):
        interpreter: Any = importlib.import_module("triton.runtime.interpreter")
        native, executor = interpreter._interpreter, interpreter.GridExecutor
        memory = Memory(native, interpreter.interpreter_builder, students)
        convert: Callable[[Any], Any] = interpreter._implicit_cvt
        run: Callable[..., Any] = executor.__call__
        for name in ("load", "store", "atomic_rmw", "atomic_cas"):
            getattr(native, name)
        # Stop here (AttributeError) if something that is used or replaced below does not exist.
        convert(torch.zeros(1)).handle.data.dtype  # noqa: B018

        def converted(argument: Any) -> Any:
            value = convert(argument)
            # Tensors in tuples and descriptors arrive here one by one.
            if hasattr(argument, "data_ptr"):
                tensor = argument if hasattr(argument, "untyped_storage") else argument.base
                value.handle.data = memory.np.array([memory.placed(tensor)], dtype=memory.np.uint64)
            return value

        def launched(self: Any, *arguments: Any, **named: Any) -> Any:
            grid = self.grid
            if memory.trace:
                # The interpreter itself only recognizes the annotation `tl.constexpr`.
                self.constexprs = [*memory.trace.constants(self.fn)]
            traced = (
                memory.trace.launch(self.fn, arguments, named) if memory.trace else contextlib.nullcontext()
            )

            def last(given: Any) -> tuple[int, ...]:
                """Return the grid. Patch the kernel's global names only after the student's `grid` function has run."""
                # The `grid` function gets a new dict, so that it cannot change the arguments of the kernel.
                raw = {**given, **dict(zip(self.arg_names, arguments, strict=False)), **named}
                chosen = tuple(map(int, grid(raw) if callable(grid) else grid))
                names.patch()
                if take_grid is not None:
                    take_grid(chosen)
                return chosen

            with traced as take_grid, memory.launch(), ByName(self.fn) as names:
                for name, argument in (*zip(self.arg_names, arguments, strict=False), *named.items()):
                    memory.named(name, argument)
                self.grid = last
                try:
                    return run(self, *arguments, **named)
                finally:
                    self.grid = grid

        interpreter._implicit_cvt, interpreter._interpreter = converted, memory
        executor.__call__ = launched
        return memory
    return None
