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

Numbers of unknown origin that enter by other ways are counted (`Origins.entered`): loaded by kernels, used as indices
and masks, given to launches and operators as Python scalars. Loaded values are compared with the record after the load,
so no earlier look has to be trusted. A mask or a range says little, so a content counts by its `information`. Each
count has a digest of the content that it came from: content that is equal in calls on different inputs is a constant
of the file.

Imports nothing of the kit, as all files beside untrusted code. That code can find and forge these records; a file that
does so names things that no kernel needs (`grader.build.readpython`).
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import dis
import functools
import hashlib
import importlib
import itertools
import struct
import sys
import types
import zlib
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

#: CONSTANT is 0, so that operators that fill with zeros (tril, pad) do the same to labels.
CONSTANT, UNKNOWN, COMPUTED, INPUT, KERNEL = 0, 1, 2, 4, 8
PROVED = COMPUTED | INPUT | KERNEL
PATTERN = {1: 0x01, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}
MOST_BYTES = 512 << 20
"""Bytes of all recorded storages; beyond it the oldest records are dropped."""
POISON = 0xFF
"""Value of each byte of an empty tensor: NaN. It hides what lay there before, and on a GPU a store shows."""
MOST_NAMES = 900
FREE_SCALARS = 256
"""Python scalars that a call may give to launches and operators without notice: sizes, strides, factors."""
CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, frozenset, type(None))
"""Types whose length and place are scalars as well: a result can be spelt by empty tuples."""
MOST_SOURCES = 64
"""Contents that a call's entered numbers are reported by; the numbers of others are reported without a digest."""
MOST_SCALARS, DEEPEST = 1 << 20, 8
BYTES_OF_A_NUMBER = 2
"""Compressed bytes that count as a number: a result of 16 bits is a number in a wider type, too."""
MOST_COMPRESSED = 64 << 20
"""Bytes of a content that is compressed; a larger one counts in full."""
MOST_NUMBERS = 1 << 30
"""Most scalars that are counted."""
ANY_NUMBERS = 1 << 20
"""Numbers that code among a launch's arguments may stand for: a kernel may call it."""
MOST_OF_CONSTANTS = 16
"""Numbers that an output's constants may say."""
NUMBERS = (int, float)
FLAGS_OFFSET = 168
"""Of a class's flags in CPython's structure PyTypeObject, on machines of 64 bits."""
HEAP_TYPE, IMMUTABLE_TYPE = 1 << 9, 1 << 8
"""Flags of classes in CPython: made by a statement `class`; closed to changes."""
#: Python's own functions that a kernel may call; any other could bring it numbers.
HARMLESS = frozenset(
    (
        "abs", "bool", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min", "pow", "print", "range",
        "reversed", "round", "str", "sum", "tuple", "zip", "Exception", "ValueError", "AssertionError",
    )
)  # fmt: skip
#: Builtin types of scalars, with a C function that reduces a subclass's value to the type itself.
EXACT: dict[type, Callable[[Any], Any]] = {
    bool: bool,
    int: lambda value: int.__add__(value, 0),
    float: lambda value: float.__add__(value, 0.0),
    complex: lambda value: complex.__add__(value, 0j),
    str: lambda value: str.__add__(value, ""),
    bytes: lambda value: bytes.__add__(value, b""),
}
#: Operators that make a tensor out of nothing but their arguments. The numbers of no other are constants.
MADE = frozenset(
    (
        "arange", "eye", "full", "full_like", "linspace", "new_full", "new_ones", "new_zeros", "ones", "ones_like",
        "tril_indices", "triu_indices", "zero_", "zeros", "zeros_like", "zero",
    )
)  # fmt: skip
#: Registrations of an operator that torch adds when it needs them. They compute nothing.
LATE_KEYS = ("Meta", "SparseMeta", "FakeTensor", "debug:", "alias analysis")
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
        self.seen_label: Any = self.label.numpy() if self.on_cpu else None
        self.seen_content: Any = self.content.numpy() if self.on_cpu else None
        self.source: Source | None = None
        """Numbers of unknown origin that kernels have loaded from here in this call, if any."""


class Source:
    """One content of unknown origin, as it was when its first number was loaded in the present call."""

    def __init__(self, content: bytes, np: Any = None) -> None:
        self.digest, self.numbers = hashlib.sha256(content).hexdigest()[:16], 0
        if np is not None:
            self.first = np.frombuffer(content, np.uint8)
            self.last, self.counted = self.first.copy(), np.zeros(len(content), dtype=bool)
        self.width = 1
        """Bytes of the widest number that was loaded."""


class Origins:
    """All records of a process, and what was seen in the present call."""

    #: None of its methods can be hidden by an attribute of the object's.
    __slots__ = (
        "bytes",
        "depth",
        "followers",
        "following",
        "given",
        "latest",
        "launches",
        "mode",
        "names_only",
        "np",
        "operators",
        "records",
        "scalars",
        "seen",
        "sites",
        "sources",
        "starts",
        "storages",
        "unnamed",
        "unrecorded",
    )

    def __init__(self) -> None:
        # A runner without NumPy has no interpreter either.
        self.np: Any = None
        with contextlib.suppress(ImportError):
            self.np = importlib.import_module("numpy")
        self.records: dict[int, Record] = {}
        self.starts: list[int] = []
        self.bytes = 0
        self.sources: list[Source] = []
        self.given: dict[str, int] = {}
        """Numbers of unknown origin in tensors that are not loaded one by one, by the digest of their bytes."""
        self.unnamed, self.scalars = 0, 0
        """Numbers of unknown origin without a content: from changed or unrecorded memory; from Python scalars."""
        self.unrecorded: set[tuple[int, Any]] = set()
        self.sites: dict[str, dict[Any, tuple[Any, Any]]] = {}
        """Scalars that each kernel and operator was last given, with the step from the ones before."""
        self.followers: dict[str, str] = {}
        self.latest = ""
        """The kernel that was launched after each kernel the last time, and the latest one."""
        self.launches, self.depth = 0, 0
        self.following = False
        self.mode: Any = None
        """The dispatch mode of the present call, to be set up again within operators of the file's."""
        self.operators = operators()
        self.storages: dict[int, int] = {}
        """Number of each storage that operators and launches of the present call were given, in their order."""
        self.names_only = False
        """True where nobody asks who wrote an output: operators are named then, and nothing is labelled."""
        self.seen: dict[str, int] = {}
        """Operators and launched kernels of the present call, and how often."""

    # ---- records

    def record(self, tensor: Any) -> Record:
        """The record of a tensor's storage, a new one without labels where there is none."""
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
        found = self.records.get(start)
        if found is not None and found.size == size and found.on_cpu == (storage.device.type == "cpu"):
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
    def launch(self, name: str, arguments: Sequence[Any]) -> Iterator[None]:
        """A launch in the interpreter with these arguments."""
        self.depth += 1
        try:
            for tensor in tensors_in(arguments):
                self.record(tensor)
            self.take_scalars(f"launch {name}", arguments)
            self.take_choice(name, arguments)
            self.launches += 1
            yield
            # A function that chooses the grid may have changed a list meanwhile.
            self.take_scalars(f"launch {name}", arguments)
        finally:
            self.depth -= 1

    def memory(self, record: Record) -> Any:
        """The bytes of a storage of the CPU's that is alive, as an array."""
        return self.np.frombuffer((ctypes.c_char * record.size).from_address(record.start), self.np.uint8)

    def stored(self, addresses: Any, mask: Any, size: int) -> None:
        """Label what active lanes of a kernel have just stored at these addresses."""
        for record, lanes, _ in self.by_storage(addresses, mask, size):
            if record is None:
                continue
            memory, label, content = self.memory(record), record.seen_label, record.seen_content
            if size in PATTERN and not (lanes % size).any():
                kind, end = f"u{size}", record.size // size * size
                at = lanes // size
                label[:end].view(kind)[at] = KERNEL * PATTERN[size]
                content[:end].view(kind)[at] = memory[:end].view(kind)[at]
            else:
                at = lanes[:, None] + self.np.arange(size)
                label[at], content[at] = KERNEL, memory[at]

    def loaded(self, addresses: Any, mask: Any, values: Any) -> None:
        """Count what active lanes of a kernel have loaded and is of unknown origin."""
        np, size = self.np, values.itemsize
        values = values[mask]
        for record, lanes, mine in self.by_storage(addresses, mask, size):
            raw = values[mine]
            if record is None:
                pairs = zip(lanes.tolist(), raw.tolist(), strict=True)
                self.unrecorded.update(pair for pair in pairs if len(self.unrecorded) < MOST_SCALARS)
                continue
            if size in PATTERN and not (lanes % size).any():
                kind, end, at = f"u{size}", record.size // size * size, lanes // size
                raw = raw.view(kind)
                # Constants, too: they say what is left of them when they are compressed.
                unknown = record.seen_content[:end].view(kind)[at] != raw
                unknown |= record.seen_label[:end].view(kind)[at] & (PROVED * PATTERN[size]) == 0
                unknown |= record.seen_label[:end].view(kind)[at] & (UNKNOWN * PATTERN[size]) != 0
            else:
                at, bytes_of = lanes[:, None] + np.arange(size), raw.view("u1").reshape(-1, size)
                unknown = ((record.seen_content[at] != bytes_of) | (record.seen_label[at] <= UNKNOWN)).any(1)
            if unknown.any():
                self.enter(record, lanes[unknown], raw[unknown].view("u1").reshape(-1, size))

    def enter(self, record: Record, lanes: Any, raw: Any) -> None:
        """Count numbers of unknown origin, the bytes `raw`, loaded from a storage: each once while it is the same."""
        np = self.np
        if record.source is None:
            record.source = Source(bytes(self.memory(record)), np)
            self.sources.append(record.source)
        source = record.source
        lanes, chosen = np.unique(lanes, return_index=True)
        at, raw = lanes[:, None] + np.arange(raw.shape[1]), raw[chosen]
        new = ~source.counted[at].any(1) | (source.last[at] != raw).any(1)
        at, raw = at[new], raw[new]
        changed = (source.first[at] != raw).any(1)
        self.unnamed += information(raw[changed])
        source.numbers += len(at) - int(changed.sum())
        source.width = max(source.width, raw.shape[1])
        source.counted[at], source.last[at] = True, raw

    def by_storage(self, addresses: Any, mask: Any, size: int) -> Iterator[tuple[Record | None, Any, Any]]:
        """Offsets of active lanes in each storage that has a record, addresses of those in none; and which they are."""
        lanes = addresses[mask]
        mine: Any = slice(None)
        while lanes.size:
            low, high = int(lanes.min()), int(lanes.max())
            record = self.around(low, high + size)
            if record is not None:
                yield record, (lanes - self.np.uint64(record.start)).astype(self.np.int64), mine
                return
            record = self.around(low, low + size)
            inside = lanes < (self.next_start(low) if record is None else record.end)
            places = self.np.arange(len(lanes)) if isinstance(mine, slice) else mine
            start = self.np.uint64(record.start if record is not None else 0)
            yield record, (lanes[inside] - start).astype(self.np.int64), places[inside]
            lanes, mine = lanes[~inside], places[~inside]

    def next_start(self, address: int) -> int:
        """Where the first recorded storage behind an address begins."""
        k = bisect_right(self.starts, address)
        return self.starts[k] if k < len(self.starts) else 1 << 62

    # ---- scalars

    def take_scalars(self, site: str, values: Iterable[Any]) -> None:
        """Count Python scalars that do not continue what a kernel or an operator was given before at their places:
        neither equal to the last one nor one step further."""
        last = self.sites.setdefault(site, {})
        for place, value in itertools.islice(scalars_in(values), MOST_SCALARS):
            before, step = last.get(place, (None, None))
            if value is before or (type(value) in EXACT and same(value, before)):
                continue
            now = value - before if type(value) is type(before) and isinstance(value, NUMBERS) else None
            if now is None or now != step:
                self.scalars = min(self.scalars + weight(value), MOST_NUMBERS)
            last[place] = value, now

    def take_code(self, name: str, kernel: Any) -> None:
        """Count what a kernel's code names in its file, as values that it was given: a name may stand for another
        function by now than when the file was read."""
        self.take_scalars(f"code {name}", named_by(kernel))

    def take_choice(self, name: str, arguments: Sequence[Any]) -> None:
        """Count which kernel is launched where another one followed the last time, and where its tensors begin: a
        result can be spelt by launches of kernels that each store a digit."""
        if self.followers.get(self.latest) not in (None, name):
            self.scalars = min(self.scalars + 1, MOST_NUMBERS)
        self.followers[self.latest], self.latest = name, name
        self.take_places(name, arguments)

    def take_places(self, site: str, values: Iterable[Any]) -> None:
        """Count where tensors begin, and in which storage: which one is chosen among many can spell a result.

        The pieces of a list follow each other at one place, so that a tensor that is put together again counts little.
        """
        for k, value in enumerate(values):
            pieces = value if isinstance(value, (list, tuple)) else [value]
            for tensor in tensors_in(pieces):
                storage = tensor.untyped_storage().data_ptr()
                number = self.storages.setdefault(storage, len(self.storages))
                self.take_scalars(f"place {k} of {site}", [number, int(tensor.storage_offset())])

    def take_tensor(self, tensor: Any) -> None:
        """Count the numbers of unknown origin in a tensor of indices or of a mask."""
        if self.has(tensor, UNKNOWN):
            self.give(tensor)

    def take_single(self, name: str, tensor: Any) -> None:
        """Count a tensor of one number, whose label an operator drops, as the scalar that it is."""
        if self.has(tensor, UNKNOWN):
            self.take_scalars(f"one {name}", [tensor.item()])

    def has(self, tensor: Any, label: int) -> bool:
        return bool((self.labels(tensor) == label).any())

    def give(self, tensor: Any) -> None:
        """Count what a tensor with numbers of unknown origin says, by its content."""
        import torch

        content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        digest = Source(content.tobytes()).digest
        numbers = information(content.reshape(-1, tensor.element_size()))
        self.given[digest] = max(numbers, self.given.get(digest, 0))

    def entered(self) -> list[list[Any]]:
        """Numbers of unknown origin that entered the present call: [count, digest of their content], "" for none."""
        found = dict(self.given)
        for source in self.sources:
            if source.numbers:
                loaded = source.first[source.counted]
                said = information(
                    loaded[: len(loaded) // source.width * source.width].reshape(-1, source.width)
                )
                found[source.digest] = found.get(source.digest, 0) + said
        most = sorted(found.items(), key=lambda item: -item[1])
        unnamed = self.unnamed + len(self.unrecorded) + max(0, self.scalars - FREE_SCALARS)
        unnamed += sum(numbers for _, numbers in most[MOST_SOURCES:])
        return [[unnamed, ""], *([numbers, digest] for digest, numbers in most[:MOST_SOURCES])]

    @contextlib.contextmanager
    def launch_on_device(self, name: str, arguments: Sequence[Any]) -> Iterator[None]:
        """Label what differs in the storages of a launch's arguments after it, on a GPU."""
        import torch

        if not self.following:
            yield
            return
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            given = {
                tensor.untyped_storage().data_ptr(): whole(tensor, tensor.element_size())
                for tensor in tensors_in(arguments)
            }
            self.take_scalars(f"launch {name.partition(' ')[0]}", arguments)
            self.take_choice(name.partition(" ")[0], arguments)
            before = [(tensor, tensor.clone()) for tensor in given.values()]
            for tensor in given.values():
                # What a kernel loads is not seen here: it may load all that it is given.
                self.take_tensor(tensor)
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

    def count(self, name: str, number: int = 1) -> None:
        if name in self.seen or len(self.seen) < MOST_NAMES:
            self.seen[name] = self.seen.get(name, 0) + number
        else:
            self.seen["op more"] = 1

    def run(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call an operator and label its results. What goes wrong with labels leaves them unknown."""
        known = self.operators.get(id(function))
        if known is None or registered(known.full_name) != known.registered:
            return self.run_own(function, arguments, keywords)
        name, schema = known.name, known.schema
        given = by_name(schema, arguments, keywords)
        sums = given.get("accumulate") or given.get("reduce")
        self.count(f"op accumulating {name}" if sums else f"op {name}")
        aliases = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
        if self.names_only:
            return known.call(*arguments, **keywords)
        if self.depth:
            # Within a launch the interpreter arranges its arguments; the kernel stores by `stored` alone.
            return known.call(*arguments, **keywords)
        made: Any = None
        # Another size or storage moves nothing: bytes keep their labels.
        moves = aliases or name.startswith(("set_", "resize", "_resize"))
        if not moves:
            with contextlib.suppress(Exception):
                made = self.result_labels(known, given)
        if made is not UNKNOWN:
            with contextlib.suppress(Exception):
                self.take_scalars(f"op {name}", [*arguments, *keywords.values()])
                if not aliases:
                    self.take_places(f"op {name}", given.values())
        result = known.call(*arguments, **keywords)
        if not moves:
            with contextlib.suppress(Exception):
                self.label_results(name, schema, made, given, result)
            if isinstance(made, int) and made != CONSTANT and name not in MOVES:
                self.count("numbers computed", sum(tensor.numel() for tensor in tensors_in([result])))
        return result

    def run_own(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call an operator that the file defines. What it launches and the operators within label its results."""
        import torch

        held = tensors_in([*arguments, *keywords.values()])
        # The storage says so: a tensor without a card answers as one on it.
        place = next((tensor.untyped_storage().device.type for tensor in held), "cpu")
        below = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, place.upper()))
        with self.mode():
            # Not from the top: that would lead here again.
            return function.redispatch(below, *arguments, **keywords)

    def result_labels(self, known: Operator, given: dict[str, Any]) -> Any:
        """Labels of what an operator is about to make: of each number, or one of all."""
        name = known.name
        if known.draws:
            return UNKNOWN  # the file may have set the generator's state
        if name in MOVES and not (given.get("accumulate") or given.get("reduce")):
            places = [
                tensor
                for key, value in given.items()
                if key not in (*MOVES[name], "value", "out")
                for tensor in tensors_in([value])
            ]
            for tensor in places:
                self.take_tensor(tensor)
            labels = self.moved(known, given)
            chosen = any(t.element_size() > 1 and self.has(t, COMPUTED) for t in places)
            return labels.masked_fill(labels == KERNEL, COMPUTED) if chosen else labels
        operands = tensors_in(value for key, value in given.items() if key != "out")
        made = name in MADE or name in EMPTY or name in ("fill_", "fill", "scalar_tensor")
        if made and (
            numbers := tensors_in(value for key, value in given.items() if key not in ("self", "out"))
        ):
            # The number is a tensor's: an operand like any other.
            operands, made = numbers, False
        if made and ("fill" in name or name.endswith("full") or name == "scalar_tensor"):
            # Single numbers may come from anywhere, as those of a list of Python's do.
            sizes = [tensor.numel() for tensor in operands] or [count_of(given.get("size", ()))]
            return UNKNOWN if sizes[0] == 1 else CONSTANT
        if made:
            return CONSTANT
        found: set[int] = set()
        singles: set[int] = set()
        for tensor in operands:
            labels = set(self.labels(tensor).unique().tolist())
            if tensor.numel() == 1 and labels != {KERNEL}:
                self.take_single(name, tensor)
                singles |= labels
                continue
            found |= labels
        for label in (UNKNOWN, COMPUTED, KERNEL):
            if label in (found or singles):
                return label
        if INPUT in (found or singles):
            return COMPUTED
        # Nothing comes of nothing, but for the operators that are known to.
        return CONSTANT if found or singles else UNKNOWN

    def moved(self, known: Operator, given: dict[str, Any]) -> Any:
        """The labels of numbers that an operator moves: the same operator on the labels of its operands."""
        name = known.name
        if name in ("clone", "_to_copy"):
            return self.labels(given["self"])
        if name == "copy_":
            source = given["src"]
            if source.numel() == 1 < given["self"].numel():
                self.take_single(name, source)
                return CONSTANT
            return self.labels(source).expand(given["self"].size()).clone()

        def of(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [of(each) for each in value]
            single = value.numel() == 1 and name == "where"
            if single:
                self.take_single(name, value)
            return self.labels(value) & 0 if single else self.labels(value)

        changed = {key: of(given[key]) for key in MOVES[name] if tensors_in([given.get(key)])}
        if "value" in given:
            for tensor in tensors_in([given["value"]]):
                self.take_single(name, tensor)
            changed["value"] = given["value"] * 0 if tensors_in([given["value"]]) else 0
        return known.call(**{**given, **changed})

    def label_results(
        self,
        name: str,
        schema: Any,
        made: Any,
        given: dict[str, Any],
        result: Any,
    ) -> None:
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
            for tensor in written or fresh:
                whole(tensor).fill_(POISON)
        for tensor in written or fresh:
            self.put(tensor, UNKNOWN if made is None else made)

    # ---- a call

    @contextlib.contextmanager
    def follow(self, inputs: Iterable[Any] = (), outputs: Iterable[Any] = ()) -> Iterator[None]:
        """Label what torch and kernels write meanwhile."""
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        run, count = self.run, self.count

        class Following(TorchDispatchMode):
            @classmethod
            def _should_skip_dynamo(cls) -> bool:
                """Torch would import its compiler for this, which takes seconds in each runner."""
                return False

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return run(func, args, kwargs or {})

        class Naming(TorchFunctionMode):
            """Counts attention, which comes apart into other operators before it is dispatched."""

            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                name = getattr(func, "__name__", "")
                if "attention" in name:
                    count(f"op {name}")
                return func(*args, **(kwargs or {}))

        self.mode = Following
        self.sources, self.given, self.unnamed, self.scalars = [], {}, 0, 0
        self.unrecorded, self.sites, self.storages = set(), {}, {}
        self.launches, self.seen = 0, {}
        for record in self.records.values():
            record.source = None
        for label, tensors in ((INPUT, inputs), (CONSTANT, outputs)):
            for tensor in tensors:
                self.put_storage(tensor, label)
        self.following = True
        try:
            with Following(), Naming():
                yield
        finally:
            self.following = False

    def verdict(self, outputs: Iterable[Any]) -> list[list[int]]:
        """Return for each output: numbers of unknown origin, numbers that torch computed or copied, all numbers.

        Zeros need no origin: a right zero may be what a buffer was filled with. Nor do constants that say little, as
        those of a softmax over rows of one number.
        """
        found = []
        for tensor in outputs:
            numbers = tensor[tensor != 0]
            labels = self.labels(tensor)[tensor != 0]
            constants = numbers[labels == CONSTANT].detach().cpu().contiguous()
            raw = constants.view(integers(1)).numpy().reshape(-1, tensor.element_size())
            proved = labels == KERNEL
            if len(raw) and information(raw) <= MOST_OF_CONSTANTS:
                proved |= labels == CONSTANT
            unknown = int((labels == UNKNOWN).sum())
            found.append([unknown, int((~proved).sum()) - unknown, tensor.numel()])
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


def information(raw: Any) -> int:
    """Return the numbers that a content says, of its rows of bytes `raw`: half of its bytes when it is compressed, or
    its steps are.

    A mask or a range says few. Results say all, in whichever pieces and types they are kept: their bits stay.
    """
    rows, width = raw.shape
    most = int(rows) * -(-width // BYTES_OF_A_NUMBER)
    if not 0 < raw.size <= MOST_COMPRESSED:
        return most
    forms = [raw.tobytes()]
    if width in PATTERN:
        numbers = raw.view(f"u{width}").ravel()
        steps = numbers[1:] - numbers[:-1]
        if (steps == steps[:1]).all():
            return min(most, 2)
        forms.append(numbers[:1].tobytes() + steps.tobytes())
    return min(most, *(-(-compressed_bytes(form) // BYTES_OF_A_NUMBER) for form in forms))


def compressed_bytes(content: bytes) -> int:
    """Return the length of a content when it is compressed, without header and checksum."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return len(packer.compress(content)) + len(packer.flush())


def scalars_in(values: Iterable[Any], place: Any = (), depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Python scalars and texts among values, and in what they hold, each with its place.

    A scalar of a subclass is reduced to the builtin type, whose comparison the file has not written.
    """
    for k, value in enumerate(values):
        here = (*place, k)
        exact = next((kind for kind in EXACT if issubclass(type(value), kind)), None)
        if exact is not None:
            yield here, EXACT[exact](value)
        if issubclass(type(value), CONTAINERS):
            sort = next(at for at, each in enumerate(CONTAINERS) if issubclass(type(value), each))
            yield (*here, "length"), sort + len(CONTAINERS) * (0 if value is None else len(value))
        if is_code(value) or (depth == DEEPEST and type(value) is not exact and value is not None):
            yield (*here, "code"), value
        elif value is not None and type(value) is not exact:
            yield from scalars_in(held_by(value), here, depth + 1)


def named_by(kernel: Any) -> list[Any]:
    """Return the values that a kernel's code names outside of itself, in its order. Of Triton's and Python's own
    modules only what the code may name in them; of other kernels what they name in turn."""
    found: list[Any] = []
    kernels, seen = [kernel], {id(kernel)}
    for one in kernels:
        codes = [one.__code__]
        for code in codes:
            codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        names = dict.fromkeys(name for code in codes for name in code.co_names)
        values = [one.__globals__[name] for name in names if name in one.__globals__]
        others = set().union(*map(global_names, codes)) - set(one.__globals__) - HARMLESS
        values += [getattr(builtins, name, None) for name in sorted(others)]
        if one.__builtins__ is not vars(builtins):
            found.append(builtins)
        values += [cell.cell_contents for cell in one.__closure__ or () if cell != types.CellType()]
        for value in values:
            inner = getattr(value, "fn", None)
            if isinstance(value, types.FunctionType):
                # The interpreter wraps what it finds, a file's function as well, and keeps it in a default.
                wrapped = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
                wrapped = [each for each in wrapped if isinstance(each, types.FunctionType)]
                values += [each for each in wrapped if id(each) not in seen]
                seen.update(map(id, wrapped))
            if isinstance(value, types.ModuleType) and is_librarys(value):
                members = [vars(value)[name] for name in names if name in vars(value)]
                if isinstance(tensor := vars(value).get("tensor"), type):
                    # Methods of what a kernel computes with, which the interpreter itself changes.
                    members += [vars(tensor)[name] for name in names if name in vars(tensor)]
                members = [each for each in members if not isinstance(each, types.BuiltinFunctionType)]
                values += [each for each in members if id(each) not in seen]
                seen.update(map(id, members))
            elif not (is_installed(type(value)) and isinstance(inner, types.FunctionType)):
                found.append(value)
            elif id(inner) not in seen:
                seen.add(id(inner))
                kernels.append(inner)
    return found


@functools.lru_cache(maxsize=1000)
def global_names(code: types.CodeType) -> frozenset[str]:
    """Return the names that code looks up outside of itself, without those of attributes."""
    found = dis.get_instructions(code)
    return frozenset(str(each.argval) for each in found if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


def is_librarys(module: types.ModuleType) -> bool:
    """Return True for a module of Triton's or torch's, and for Python's `math`."""
    name = module.__name__
    return name.partition(".")[0] in ("triton", "torch", "math") and sys.modules.get(name) is module


def same(value: Any, other: Any) -> bool:
    """Return True for equal values of one builtin type. 0.0 and -0.0 differ, and so do two NaNs of other bits."""
    if type(value) is not type(other):
        return False
    return struct.pack("d", value) == struct.pack("d", other) if type(value) is float else value == other


def is_code(value: Any) -> bool:
    """Return True for what a kernel could get any number from without a change of a value: a function or an iterator
    that is not Triton's, a module, and an object whose class has methods of the file's."""
    kind = type(value)
    if kind in EXACT or kind in (list, tuple, dict, set, frozenset, type(None)):
        return False
    if kind is types.FunctionType:
        return not is_within(value, ("torch", "triton"))
    if is_installed(value if isinstance(value, type) else kind):
        return False
    if isinstance(value, (type, types.ModuleType)) or callable(value) or hasattr(kind, "__next__"):
        return True
    own = [each for each in kind.__mro__ if each.__flags__ & HEAP_TYPE]
    parts = [part for each in own for part in vars(each).values()]
    parts += [part.fget for part in parts if isinstance(part, property)]
    parts += [part.__func__ for part in parts if isinstance(part, (staticmethod, classmethod))]
    methods = [part for part in parts if isinstance(part, types.FunctionType)]
    # Generated methods of data classes are of a file "<string>"; `os` stands for Python's own library.
    if any(not is_within(each, ("torch", "numpy", "os", "<string>")) for each in methods):
        return True
    # Callables that are no functions of a file: partial(iter, ()), list.__len__.
    return any(
        callable(part) and not isinstance(part, (types.FunctionType, type, staticmethod)) for part in parts
    )


def is_installed(kind: type) -> bool:
    """Return True for a class of torch, Triton or NumPy."""
    return kind.__module__.partition(".")[0] in ("torch", "triton", "numpy") and is_its_modules(kind)


def is_pythons(kind: type) -> bool:
    """Return True for a class of Python's own library."""
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names and is_its_modules(kind)


def is_its_modules(kind: type) -> bool:
    """Return True for a class that its module knows by its name."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def is_within(function: types.FunctionType, packages: Iterable[str]) -> bool:
    """Return True for a function of these packages' folders, or of a file with such a name."""
    file = function.__code__.co_filename
    made_in = [getattr(sys.modules.get(each), "__file__", None) for each in packages]
    return file in packages or any(file.startswith(each.rpartition("/")[0] + "/") for each in made_in if each)


def held_by(value: Any) -> Iterable[Any]:
    """Return the values in a list, a table, an array or an object, by methods that the file has not written."""
    kind = type(value)
    if hasattr(value, "data_ptr") or isinstance(value, (type, types.ModuleType, types.FunctionType)):
        return ()
    for builtin in (list, tuple, set, frozenset):
        if issubclass(kind, builtin):
            return [*builtin.__iter__(value), *own_values(value)]
    if issubclass(kind, dict):
        return [*dict.keys(value), *dict.values(value), *own_values(value)]
    if hasattr(value, "tolist"):
        return [value.tolist()]
    with contextlib.suppress(TypeError):
        return [memoryview(value).tolist()]
    if hasattr(kind, "__iter__") and (not kind.__flags__ & HEAP_TYPE or is_pythons(kind)):
        return [*value, *(value.values() if hasattr(kind, "values") else ())]
    if is_installed(kind) and isinstance(getattr(value, "fn", None), types.FunctionType):
        return ()  # a kernel, which keeps what it compiles
    return own_values(value)


def own_values(value: Any) -> list[Any]:
    """Return the values of an object's attributes and slots, and of its class's if that is the file's."""
    held = list(vars(value).values()) if hasattr(value, "__dict__") else []
    for kind in type(value).__mro__[:-1]:
        if is_pythons(kind):
            continue
        for name, part in vars(kind).items():
            if isinstance(part, types.MemberDescriptorType):
                held.append(getattr(value, name, None))
            elif kind.__flags__ & HEAP_TYPE and not (name.startswith("_") or is_installed(kind)):
                held += [] if isinstance(part, (types.FunctionType, type(value))) else [part]
    return held


def weight(value: Any) -> int:
    """Numbers that a scalar may stand for: one for each 16 bits; the largest integer stands for an open end."""
    if type(value) not in EXACT:
        return ANY_NUMBERS
    if isinstance(value, (str, bytes)):
        return 1 + len(value) // 2
    if isinstance(value, int):
        return 1 if value == sys.maxsize else 1 + value.bit_length() // 16
    return 4


class Operator(NamedTuple):
    """One of torch's operators as it was before the file, which may change the objects that stand for it."""

    known_by: Any
    """torch's object for it, kept alive: its identity is looked up."""
    full_name: str
    name: str
    schema: Any
    call: Callable[..., Any]
    draws: bool
    """True if its result depends on the generator of random numbers."""
    registered: tuple[str, ...]


def close(*kinds: type) -> None:
    """Close classes to changes, where this Python lets it: methods that the record relies on stay what they are."""
    for kind in kinds:
        flags = ctypes.c_ulong.from_address(id(kind) + FLAGS_OFFSET)
        if sys.implementation.name == "cpython" and flags.value == kind.__flags__:
            flags.value |= IMMUTABLE_TYPE


@functools.cache
def operators() -> dict[int, Operator]:
    """Return torch's own operators by the identity of the object that stands for each."""
    import torch

    found = {}
    for full_name in torch._C._dispatch_get_all_op_names():
        space, _, rest = full_name.partition("::")
        name, _, overload = rest.partition(".")
        if space == "aten":
            one = getattr(getattr(torch.ops.aten, name), overload or "default")
            draws = torch.Tag.nondeterministic_seeded in one.tags
            how = registered(full_name)
            found[id(one)] = Operator(one, full_name, name, one._schema, one._op, draws, how)
    return found


def registered(name: str) -> tuple[str, ...]:
    """Return how torch's dispatcher runs an operator: a line for each kernel that computes."""
    import torch

    return tuple(
        line for line in torch._C._dispatch_dump(name).splitlines() if not line.startswith(LATE_KEYS)
    )


def count_of(sizes: Iterable[int]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def watch_launches(origins: Origins) -> None:
    """Follow launches of Triton's compiled kernels in this process, on a GPU. Raises ImportError or AttributeError
    where this Triton is built in another way."""
    kernel: Any = importlib.import_module("triton.runtime.jit").JITFunction
    run: Callable[..., Any] = kernel.run

    def followed(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        if warmup or not origins.following:
            return run(self, *arguments, grid=grid, warmup=warmup, **named)
        sizes = "x".join(map(str, grid)) if isinstance(grid, (tuple, list)) else "by a function"
        name = f"{getattr(self, '__name__', 'kernel')} {sizes}"
        with origins.launch_on_device(name, [*arguments, *named.values()]):
            return run(self, *arguments, grid=grid, warmup=warmup, **named)

    kernel.run = followed
