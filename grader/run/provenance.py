"""Origin of the bytes in tensors: positive evidence that launched kernels wrote a call's outputs.

Theory of operation. Every storage has a record: a label for each byte, and a copy of the byte as it was when the label
was set. A byte that no longer equals its copy was written past the record (NumPy, ctypes, an operator that was hidden
from torch's dispatcher), and its origin is unknown. So nothing has to be noticed in order to be disbelieved.

    KERNEL    stored by a launch: in the interpreter by each store (`grader.run.tensormemory`), on a GPU a byte of a
              launch's arguments that differs after it
    INPUT     the call's inputs
    CONSTANT  made by torch out of nothing: empty, zeros, arange
    COMPUTED  made by torch's operators out of inputs
    UNKNOWN   anything else

A dispatch mode carries labels through torch's operators. Those that move numbers (`MOVES`) are repeated on the labels.
All others give one label to their whole result: UNKNOWN or COMPUTED if an operand has any, else KERNEL if one has.

Imports nothing of the kit, as all files beside untrusted code. That code can find and forge these records; a file that
does so names things that no kernel needs (`grader.build.readpython`).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Any

#: CONSTANT is 0, so that operators that fill with zeros (tril, pad) do the same to labels.
CONSTANT, UNKNOWN, COMPUTED, INPUT, KERNEL = range(5)
PATTERN = {1: 0x01, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}
MOST_BYTES = 512 << 20
"""Bytes of all recorded storages; beyond it the oldest records are dropped."""
POISON = 0xFF
"""Value of each byte of a fresh tensor on a GPU, so that a launch that stores into it changes it: NaN."""
MOST_NAMES = 900
#: Namespaces of torch's own operators.
TORCHS = frozenset(("aten", "prims", "prim", "quantized", "mkl", "mkldnn", "onednn", "inductor", "xnnpack"))
#: Operators that move numbers, and which of their arguments hold these; other arguments choose places.
MOVES = {
    **dict.fromkeys(
        (
            "clone", "_to_copy", "constant_pad_nd", "index", "index_select", "gather", "take", "masked_select", "flip",
            "roll", "repeat", "tril", "triu", "tril_", "triu_", "slice_copy", "masked_fill", "masked_fill_",
        ),
        ("self",),
    ),
    **dict.fromkeys(("copy_", "slice_scatter", "select_scatter", "scatter", "scatter_"), ("self", "src")),
    **dict.fromkeys(("index_copy", "index_copy_", "masked_scatter", "masked_scatter_"), ("self", "source")),
    **dict.fromkeys(("index_put", "index_put_", "_unsafe_index_put"), ("self", "values")),
    **dict.fromkeys(("cat", "stack"), ("tensors",)),
    "where": ("self", "other"),
}  # fmt: skip
EMPTY = frozenset(
    ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)


class Record:
    """Labels of one storage, and its bytes at the time of each label."""

    def __init__(self, tensor: Any) -> None:
        import torch

        storage = tensor.untyped_storage()
        self.start, self.size = storage.data_ptr(), storage.nbytes()
        self.end = self.start + self.size
        self.on_cpu = storage.device.type == "cpu"
        self.label = torch.full((self.size,), UNKNOWN, dtype=torch.uint8, device=storage.device)
        self.content = torch.zeros(self.size, dtype=torch.uint8, device=storage.device)
        self.foreign: Any = None
        """Bytes of unknown origin that kernels have loaded in this call, if any."""


class Origins:
    """All records of a process, and what was seen in the present call."""

    def __init__(self) -> None:
        # A runner without NumPy has no interpreter either.
        self.np: Any = None
        with contextlib.suppress(ImportError):
            self.np = importlib.import_module("numpy")
        self.records: dict[int, Record] = {}
        self.starts: list[int] = []
        self.bytes = 0
        self.suspects: list[Record] = []
        """Storages given to the present launch that have bytes of unknown origin."""
        self.foreign = 0
        """Numbers of unknown origin that the present call's kernels have loaded."""
        self.foreign_addresses: set[int] = set()
        """Of them, those that lie in no recorded storage."""
        self.given: dict[int, int] = {}
        """Numbers of unknown origin in each storage that launches on a GPU were given."""
        self.launches, self.depth = 0, 0
        self.following, self.poisons = False, False
        """Whether a call is followed. Whether fresh tensors are poisoned: a launch is seen by what it changes."""
        self.seen: dict[str, int] = {}
        """Operators and launched kernels of the present call, and how often."""

    # ---- records

    def record(self, tensor: Any) -> Record:
        """The record of a tensor's storage, a new one without labels where there is none."""
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
        found = self.records.get(start)
        if found is not None and found.size == size and found.label.device == storage.device:
            return found
        # What overlaps with it has been freed since.
        k = max(0, bisect_right(self.starts, start) - 1)
        while k < len(self.starts) and self.starts[k] < start + size:
            if self.records[self.starts[k]].end > start:
                self.drop(self.starts[k])
            else:
                k += 1
        made = Record(tensor)
        if size:
            self.records[start] = made
            insort(self.starts, start)
            self.bytes += size
            while self.bytes > MOST_BYTES and len(self.records) > 1:
                self.drop(next(iter(self.records)))
        return made

    def drop(self, start: int) -> None:
        self.bytes -= self.records.pop(start).size
        self.starts.remove(start)

    def around(self, low: int, end: int) -> Record | None:
        """The record of the storage that holds these addresses of the CPU's memory."""
        k = bisect_right(self.starts, low) - 1
        found = self.records[self.starts[k]] if k >= 0 else None
        return found if found is not None and end <= found.end and found.on_cpu else None

    def views(self, tensor: Any) -> tuple[Any, Any, Any]:
        """Labels, kept numbers and present numbers of a tensor's elements, as integers of their size."""
        import torch

        record, width = self.record(tensor), tensor.element_size()
        kind = integers(width)
        whole = record.size // width * width
        place = tensor.size(), tensor.stride(), tensor.storage_offset()
        label, kept = (each[:whole].view(kind).as_strided(*place) for each in (record.label, record.content))
        now = torch.empty(0, dtype=kind, device=tensor.device)
        return label, kept, now.set_(tensor.untyped_storage(), place[2], place[0], place[1])

    def labels(self, tensor: Any) -> Any:
        """The label of each element."""
        import torch

        label, kept, now = self.views(tensor)
        first = label & 0xFF
        valid = (kept == now) & (label == first * PATTERN[tensor.element_size()])
        return torch.where(valid, first, UNKNOWN).to(torch.uint8)

    def put(self, tensor: Any, labels: Any) -> None:
        """Label the elements of a tensor as they are now, with one label or one each."""
        label, kept, now = self.views(tensor)
        pattern = PATTERN[tensor.element_size()]
        if isinstance(labels, int):
            label.fill_(labels * pattern)
        else:
            label.copy_(labels.to(label.dtype) * pattern)
        kept.copy_(now)

    def put_storage(self, tensor: Any, label: int) -> None:
        """Label all bytes of a tensor's storage, gaps between its elements too."""
        self.put(whole(tensor), label)

    # ---- launches

    @contextlib.contextmanager
    def launch(self, arguments: Iterable[Any]) -> Iterator[None]:
        """A launch in the interpreter with these arguments."""
        records = {
            record.start: record for record in map(self.record, tensors_in(arguments)) if record.on_cpu
        }
        self.suspects = [record for record in records.values() if self.unknown(record).any()]
        self.launches += 1
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def memory(self, record: Record) -> Any:
        """The bytes of a storage of the CPU's that is alive, as an array."""
        return self.np.frombuffer((ctypes.c_char * record.size).from_address(record.start), self.np.uint8)

    def unknown(self, record: Record) -> Any:
        """Which bytes are of unknown origin and not zero."""
        now = self.memory(record)
        return ((record.label.numpy() == UNKNOWN) | (record.content.numpy() != now)) & (now != 0)

    def stored(self, addresses: Any, mask: Any, size: int) -> None:
        """Label what active lanes of a kernel have just stored at these addresses."""
        for record, lanes in self.by_storage(addresses, mask, size):
            if record is None:
                continue
            memory, label, content = self.memory(record), record.label.numpy(), record.content.numpy()
            if size in PATTERN and not (lanes % size).any():
                kind, end = f"u{size}", record.size // size * size
                at = lanes // size
                label[:end].view(kind)[at] = KERNEL * PATTERN[size]
                content[:end].view(kind)[at] = memory[:end].view(kind)[at]
            else:
                at = lanes[:, None] + self.np.arange(size)
                label[at], content[at] = KERNEL, memory[at]

    def loaded(self, addresses: Any, mask: Any, size: int) -> None:
        """Count what active lanes of a kernel load and is of unknown origin, each number once."""
        for record, lanes in self.by_storage(addresses, mask, size):
            if record is None:
                found = set(lanes.tolist()) - self.foreign_addresses
                self.foreign_addresses |= found
                self.foreign += len(found)
                continue
            unknown = self.unknown(record)
            if record.foreign is None:
                record.foreign = self.np.zeros(record.size, dtype=bool)
            bytes_of = self.np.unique(lanes)[:, None] + self.np.arange(size)
            new = unknown[bytes_of].any(1) & ~record.foreign[bytes_of].any(1)
            self.foreign += int(new.sum())
            record.foreign[bytes_of[new]] = True

    def by_storage(self, addresses: Any, mask: Any, size: int) -> Iterator[tuple[Record | None, Any]]:
        """Offsets of active lanes in each storage that has a record; addresses of those in none."""
        lanes = addresses[mask]
        while lanes.size:
            low, high = int(lanes.min()), int(lanes.max())
            record = self.around(low, high + size)
            if record is None:
                record = self.around(low, low + size)
                inside = lanes < (self.next_start(low) if record is None else record.end)
                mine, lanes = lanes[inside], lanes[~inside]
            else:
                mine, lanes = lanes, lanes[:0]
            start = self.np.uint64(record.start if record is not None else 0)
            yield record, (mine - start).astype(self.np.int64)

    def next_start(self, address: int) -> int:
        """Where the first recorded storage behind an address begins."""
        k = bisect_right(self.starts, address)
        return self.starts[k] if k < len(self.starts) else 1 << 62

    @contextlib.contextmanager
    def launch_on_device(self, name: str, tensors: Iterable[Any]) -> Iterator[None]:
        """Label what differs in the storages of a launch's arguments after it, on a GPU."""
        import torch

        if not self.following:
            yield
            return
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            given = {
                tensor.untyped_storage().data_ptr(): whole(tensor, tensor.element_size())
                for tensor in tensors
            }
            before = [(tensor, tensor.clone()) for tensor in given.values()]
            for start, tensor in given.items():
                # What a kernel loads is not seen here: it may load all that it is given.
                unknown = int(((self.labels(tensor) == UNKNOWN) & (tensor != 0)).sum())
                self.given[start] = max(unknown, self.given.get(start, 0))
            self.foreign = sum(self.given.values())
            yield
            self.launches += 1
            self.count(f"launch {name}")
            for tensor, earlier in before:
                if tensor.is_cuda:
                    torch.cuda.synchronize()
                labels = self.labels(tensor)
                changed = tensor != earlier
                self.put(tensor, torch.where(changed, KERNEL, labels))

    # ---- torch's operators

    def count(self, name: str) -> None:
        if name in self.seen or len(self.seen) < MOST_NAMES:
            self.seen[name] = self.seen.get(name, 0) + 1
        else:
            self.seen["op more"] = 1

    def run(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call an operator and label its results. What goes wrong with labels leaves them unknown."""
        name = function.overloadpacket.__name__
        if function.namespace not in TORCHS:
            # An operator that the file defines: what it launches labels its results, and nothing else does.
            return function(*arguments, **keywords)
        self.count(f"op {name}")
        schema = function._schema
        aliases = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
        if aliases or self.depth or name.startswith("set_"):
            # Within a launch the interpreter arranges its arguments; the kernel stores by `stored` alone.
            return function(*arguments, **keywords)
        made: Any = None
        with contextlib.suppress(Exception):
            made = self.result_labels(name, function, arguments, keywords)
        result = function(*arguments, **keywords)
        with contextlib.suppress(Exception):
            self.label_results(name, schema, made, arguments, keywords, result)
        return result

    def result_labels(
        self, name: str, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Labels of what an operator is about to make: of each number, or one of all."""
        given = by_name(function._schema, arguments, keywords)
        if name in MOVES and not given.get("accumulate"):
            return self.moved(name, function, given)
        operands = tensors_in(value for key, value in given.items() if key != "out")
        if name in ("zero_", "uniform_", "normal_", "random_"):
            return CONSTANT
        if name in ("fill_", "full", "scalar_tensor", "fill"):
            # Single numbers may come from anywhere, as those of a list of Python's do.
            sizes = [tensor.numel() for tensor in operands] or [count_of(given.get("size", ()))]
            return UNKNOWN if sizes[0] == 1 else CONSTANT
        found: set[int] = set()
        for tensor in operands:
            labels = set(self.labels(tensor).unique().tolist())
            found |= labels if tensor.numel() > 1 else labels & {KERNEL}
        for label in (UNKNOWN, COMPUTED, KERNEL):
            if label in found:
                return label
        return COMPUTED if INPUT in found else CONSTANT

    def moved(self, name: str, function: Any, given: dict[str, Any]) -> Any:
        """The labels of numbers that an operator moves: the same operator on the labels of its operands."""
        if name in ("clone", "_to_copy"):
            return self.labels(given["self"])
        if name == "copy_":
            source = given["src"]
            if source.numel() == 1 < given["self"].numel():
                return CONSTANT
            return self.labels(source).expand(given["self"].size()).clone()

        def of(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [of(each) for each in value]
            single = value.numel() == 1 and name == "where"
            return self.labels(value) & 0 if single else self.labels(value)

        changed = {key: of(given[key]) for key in MOVES[name] if tensors_in([given.get(key)])}
        if "value" in given:
            changed["value"] = given["value"] * 0 if tensors_in([given["value"]]) else 0
        return function(**{**given, **changed})

    def label_results(
        self,
        name: str,
        schema: Any,
        made: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        result: Any,
    ) -> None:
        given = by_name(schema, arguments, keywords)
        written = [
            value
            for argument in schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
            for value in tensors_in([given.get(argument.name)])
        ]
        held = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(given.values())}
        # A view that the schema does not call one keeps its labels.
        fresh = [t for t in tensors_in([result]) if t.untyped_storage().data_ptr() not in held]
        if name in EMPTY:
            for tensor in fresh:
                if self.poisons:
                    whole(tensor).fill_(POISON)
        for tensor in written or fresh:
            self.put(tensor, UNKNOWN if made is None else made)

    # ---- a call

    @contextlib.contextmanager
    def follow(self, inputs: Iterable[Any] = (), outputs: Iterable[Any] = ()) -> Iterator[None]:
        """Label what torch and kernels write meanwhile."""
        from torch.utils._python_dispatch import TorchDispatchMode

        run = self.run

        class Following(TorchDispatchMode):
            @classmethod
            def _should_skip_dynamo(cls) -> bool:
                """Torch would import its compiler for this, which takes seconds in each runner."""
                return False

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return run(func, args, kwargs or {})

        self.foreign, self.foreign_addresses, self.given = 0, set(), {}
        self.launches, self.seen = 0, {}
        for record in self.records.values():
            record.foreign = None
        for label, tensors in ((INPUT, inputs), (CONSTANT, outputs)):
            for tensor in tensors:
                self.put_storage(tensor, label)
        self.following = True
        try:
            with Following():
                yield
        finally:
            self.following = False

    def verdict(self, outputs: Iterable[Any]) -> list[list[int]]:
        """For each output: numbers of unknown origin, numbers that torch computed or copied, all numbers.

        Zeros need no origin: a right zero may be what a buffer was filled with.
        """
        found = []
        for tensor in outputs:
            labels = self.labels(tensor)[tensor != 0]
            unknown = int((labels == UNKNOWN).sum())
            found.append([unknown, int((labels != KERNEL).sum()) - unknown, tensor.numel()])
        return found


def whole(tensor: Any, width: int = 1) -> Any:
    """All bytes of a tensor's storage, as integers of so many bytes."""
    import torch

    storage, kind = tensor.untyped_storage(), integers(width)
    return torch.empty(0, dtype=kind, device=tensor.device).set_(
        storage, 0, (storage.nbytes() // width,), (1,)
    )


def integers(width: int) -> Any:
    """The type of integers of so many bytes."""
    import torch

    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]


def by_name(schema: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """An operator's arguments by the names of its schema."""
    names = [argument.name for argument in schema.arguments]
    return {**dict(zip(names, arguments, strict=False)), **keywords}


def tensors_in(values: Iterable[Any]) -> list[Any]:
    """Tensors among values, in lists and tuples of them too."""
    import torch

    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
        elif hasattr(getattr(value, "base", None), "untyped_storage"):
            found.append(value.base)  # a descriptor
    return found


def count_of(sizes: Iterable[int]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def watch_launches(origins: Origins) -> None:
    """Follow launches of Triton's compiled kernels in this process, on a GPU. Raises ImportError or AttributeError
    where this Triton is built in another way."""
    origins.poisons = True
    kernel: Any = importlib.import_module("triton.runtime.jit").JITFunction
    run: Callable[..., Any] = kernel.run

    def followed(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        if warmup or not origins.following:
            return run(self, *arguments, grid=grid, warmup=warmup, **named)
        sizes = "x".join(map(str, grid)) if isinstance(grid, (tuple, list)) else "by a function"
        name = f"{getattr(self, '__name__', 'kernel')} {sizes}"
        with origins.launch_on_device(name, tensors_in([*arguments, *named.values()])):
            return run(self, *arguments, grid=grid, warmup=warmup, **named)

    kernel.run = followed
