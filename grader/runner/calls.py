"""One call to a runner: the request, and the checks of its reply.

A reply is untrusted: all its fields are checked, and a malformed reply is treated like a missing reply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grader.core.harmless import harmless
from grader.core.results import ProfileRow
from grader.runner.frames import RunnerDied
from grader.runner.runner import DTYPES

#: Limit on times and bytes in a profile. float64 holds all smaller whole numbers exactly.
LARGEST_FIGURE = 1 << 53
#: Limits on a reply: characters of a message, characters of a function's name or signature, number of functions, rows
#: of a profile; then the number of source lines in `outside`, and characters of a trace.
LONGEST_WORDS, LONGEST_SIGNATURE, MOST_FUNCTIONS, MOST_PROFILE_ROWS = 1000, 200, 1000, 1000
MOST_LINES, MOST_TRACE = 20, 800_000

DTYPE_NAMES = {number: name for name, number in DTYPES.items()}
KIND_NAMES = {0: "nothing", 1: "a number", 2: "a tensor", 3: "a std::vector<float>", 4: "an undefined tensor"}


@dataclass(frozen=True)
class Call:
    """Result of one request.

    `status`: "ok", "exception" (the function threw; see `message`), "crash" (see `signal_name`, `exit_code` or
    `message`), "timeout", or "protocol" (the reply was malformed). `output` is a contiguous NumPy array in the judge's
    memory. It is None if the function did not return a tensor, vector or table. It is also None if the result is empty,
    too large or of a type that NumPy lacks. `echoes` are the inputs' values after the call, if they were requested.
    `changed_inputs` are the indices of the inputs that the call changed; () without `echoes`.
    """

    status: Literal["ok", "exception", "crash", "timeout", "protocol"]
    wall_s: float = 0.0
    cpu_s: float | None = None
    kind: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    output: Any = None
    message: str = ""
    is_missing: bool = False
    """True if the status is "exception" because the function is not written yet."""
    has_waited: bool = False
    """True for a "timeout" at the wall-clock limit, before the CPU limit: the call waited for something."""
    signal_name: str = ""
    exit_code: int | None = None
    changed_inputs: tuple[int, ...] = ()
    echoes: tuple[Any, ...] = ()
    profile: tuple[ProfileRow, ...] = ()
    profiled_wall_s: float | None = None
    peak_bytes: int | None = None
    """Peak of the process's resident memory, minus its resident memory before the call, minus the inputs."""
    held_bytes: int | None = None
    """Peak of the process's resident memory, minus its resident memory before the student's code was loaded, minus the
    inputs."""
    outside: tuple[int, ...] = ()
    """Lines of a student's GPU file that read outside of all tensors, as far as the runner noticed."""
    trace: str = ""
    """Torch operators and kernel launches of a call on a GPU, recorded by its runner (`gpu.tracing`)."""
    idle_s: float | None = None
    """Wall seconds in which no thread ran or waited for a core; None if unknown, or if the runner is never stopped."""
    own_s: float | None = None
    """Wall seconds without the time lost to other programs; None unless `idle_s` is known (`Watch.waits`)."""


@dataclass(frozen=True)
class Request:
    """One call: the function, its arguments in order, and the inputs (NumPy arrays) that arguments refer to.

    An argument is {"input": k}, {"zeros": [n, ...]} (a float32 workspace of this shape) or {"value": x} (a number).
    If `op` is "table", it may also be {"column": k}, the number in column k of the table's current row.
    """

    function: str
    arguments: Sequence[Mapping[str, Any]]
    inputs: Sequence[Any]
    output_shape: tuple[int, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    op: Literal["call", "table", "reserve"] = "call"
    reserved_bytes: int = 0
    """Bytes that the operation "reserve" allocates, writes and frees, so that the next call reuses these pages."""
    echo: bool = False
    """True if the reply includes the inputs with their values after the call, because some are outputs as well."""

    dtypes: tuple[str, ...] = ()
    """Element types of the inputs if some differ from their NumPy types (bfloat16 is stored as uint16); else ()."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields of the request's header, which only some kinds of runners read."""

    def payload(self) -> list[memoryview]:
        """Return the bytes of the inputs, which follow the header."""
        # Import NumPy late: a judge that makes no calls does not need it. Other judges import it while the zygote
        # imports torch.
        from grader.core.arrays import array_bytes, np

        return [array_bytes(np.asarray(array, order="C")) for array in self.inputs]

    def described(self) -> dict[str, Any]:
        """Return the header fields that describe the call."""
        return {
            "op": self.op,
            "function": self.function,
            "arguments": list(self.arguments),
            "inputs": [
                {"shape": list(array.shape), "dtype": self.dtypes[k] if self.dtypes else array.dtype.name}
                for k, array in enumerate(self.inputs)
            ],
            "output_shape": list(self.output_shape),
            "keywords": dict(self.keywords),
            "reserved_bytes": self.reserved_bytes,
        }

    def tensor_bytes(self) -> int:
        """Return the size in bytes of the call's tensors: its inputs, its workspace and one output of float32."""
        zeros = (item["zeros"] for item in self.arguments if "zeros" in item)
        floats = sum(math.prod(sizes) for sizes in (*zeros, self.output_shape))
        return 4 * floats + sum(array.nbytes for array in self.inputs)


_NATIVE_FIELDS = "op function output_shape max_output_bytes keep without_the_call reserved_bytes"
NATIVE_FIELDS = tuple(_NATIVE_FIELDS.split())
"""Fields of a request's header that a native runner reads, besides its inputs and arguments."""


def native_header(header: Mapping[str, Any]) -> bytes:
    """Encode a request's header for a native runner: lines NAME=VALUE, with spaces between the words of a value."""

    def words(value: Any) -> str:
        if isinstance(value, str):
            return value
        return " ".join(map(str, value)) if isinstance(value, Sequence) else str(+value)

    lines = [f"{name}={words(header[name])}" for name in NATIVE_FIELDS if name in header]
    lines += [f"input={item['dtype']} {words(item['shape'])}" for item in header["inputs"]]
    lines += [
        f"argument={kind} {words(value)}" for item in header["arguments"] for kind, value in item.items()
    ]
    return "\n".join(lines).encode()


def offered(header: Mapping[str, Any]) -> dict[str, str]:
    """Return {name: signature's code} for the functions that a runner's greeting (its second frame) lists.

    Names and codes longer than LONGEST_SIGNATURE are left out. Raises RunnerDied if the greeting is malformed.
    """
    functions = header.get("functions")
    if not isinstance(functions, list) or len(functions) > MOST_FUNCTIONS:
        raise RunnerDied(nonsense="greeting")
    found = {}
    for item in functions:
        if not (isinstance(item, list) and len(item) == 2 and all(isinstance(text, str) for text in item)):
            raise RunnerDied(nonsense="greeting")
        name, code = item
        if max(len(name), len(code)) <= LONGEST_SIGNATURE:
            found[harmless(name)] = harmless(code)
    return found


def understood(
    header: Mapping[str, Any],
    payload: bytearray,
    request: Request,
    wall_s: float,
    cpu_s: float | None,
    *,
    echo: bool = False,
) -> Call:
    """Return the Call that a reply's header and payload describe. `echo`: True if the request asked for the inputs.

    Raises RunnerDied if the reply is malformed or lacks inputs that it should include. Also raises it if the numbers of
    a "table" request are not float64 or do not have the requested shape.
    """
    from grader.core.arrays import as_array, item_bytes

    if header.get("status") == "exception":
        message, is_missing = words(header.get("message")), header.get("is_missing") is True
        return Call("exception", wall_s, cpu_s, message=message, is_missing=is_missing)
    try:
        # Replace all errors by RunnerDied, because their messages quote the runner's untrusted text.
        kind, type_code = _whole(header["kind"]), _whole(header["dtype"])
        shape = tuple(_whole(size) for size in _listed(header["shape"], 8))
        rows = tuple(_profile_row(row) for row in _listed(header.get("profile", []), MOST_PROFILE_ROWS))
        outside = tuple(_whole(line) for line in _listed(header.get("outside", []), MOST_LINES))
        trace = header.get("trace", "")
        if not isinstance(trace, str) or len(trace) > MOST_TRACE or not trace.isascii():
            raise RunnerDied(nonsense="reply header")
        profiled_wall_s = _figure(header["profiled_wall_s"]) if "profiled_wall_s" in header else None
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise RunnerDied(nonsense="reply header") from error
    dtype = DTYPE_NAMES.get(type_code, f"type {type_code}")
    element_bytes = item_bytes(dtype)
    output, used = None, 0
    is_table = request.op == "table"
    # A result that is a single number is in the header, not in the payload.
    if (is_table or kind in (2, 3)) and element_bytes is not None and not header.get("withheld"):
        used = math.prod(shape) * element_bytes
        if 0 < used <= len(payload):
            output = as_array(payload, dtype, shape)
    if is_table and (output is None or (dtype, shape) != ("float64", request.output_shape)):
        raise RunnerDied(nonsense="reply header")
    echoes = _split_echoes(payload, used, request.inputs)
    # The last input of a table request is the table itself, which the reply does not include.
    if (is_table or echo) and len(echoes) < len(request.inputs) - is_table:
        raise RunnerDied(nonsense="reply")
    changed = tuple(k for k, echo in enumerate(echoes) if not _same_bytes(echo, request.inputs[k]))
    return Call(
        "ok", wall_s, cpu_s, KIND_NAMES.get(kind, "?"), dtype, shape, output,
        changed_inputs=changed, echoes=echoes, profile=rows, profiled_wall_s=profiled_wall_s,
        outside=outside,
        trace=trace,
    )  # fmt: skip


def words(value: Any) -> str:
    """Return a text from a runner without harmful characters; "" if the value is not a text."""
    return harmless(value[:LONGEST_WORDS]) if isinstance(value, str) else ""


def _whole(value: Any) -> int:
    """Return `value`, a size or a code. Raises ValueError unless it is an int from 0 to 2^31 - 1."""
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError("not a size")
    return value


def _listed(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"not a list of at most {most} entries")
    return value


def _profile_row(fields: Any) -> ProfileRow:
    """Parse a row of the profiler's table. Raises IndexError, KeyError or an error of `_figure` if it is malformed."""
    self_us, total_us, count, net_bytes, own_bytes = (_figure(fields[k]) for k in range(1, 6))
    return ProfileRow(words(fields[0])[:60], self_us, total_us, int(count), int(net_bytes), int(own_bytes))


def _figure(value: Any) -> float:
    """Return a number as a float. Raises TypeError, ValueError or OverflowError unless |number| < LARGEST_FIGURE."""
    if type(value) not in (int, float):
        raise TypeError("not a number")
    number = float(value)
    if not abs(number) < LARGEST_FIGURE:
        raise ValueError(f"a number in a profile should be below {LARGEST_FIGURE:g}, not {number}")
    return number


def _split_echoes(payload: bytearray, start: int, inputs: Sequence[Any]) -> tuple[Any, ...]:
    from grader.core.arrays import as_array

    echoes = []
    for array in inputs:
        if start + array.nbytes > len(payload):
            break
        echoes.append(
            as_array(payload, array.dtype.name, array.shape, start) if array.nbytes else array.copy()
        )
        start += array.nbytes
    return tuple(echoes)


def _same_bytes(a: Any, b: Any) -> bool:
    from grader.core.arrays import array_bytes, np

    # NumPy takes 0.03 ms for half a megabyte; Python compares memoryviews byte by byte and takes 0.9 ms.
    one, other = (np.frombuffer(array_bytes(np.ascontiguousarray(each)), np.uint8) for each in (a, b))
    return np.array_equal(one, other)


# ---- the time of all calls of a part

MOST_CALLS, MOST_IDLE_CALLS = 15, 2
"""Limits for all calls of a part together, in multiples of one call's time limit: MOST_CALLS for their time,
MOST_IDLE_CALLS for the time in which no thread runs or waits for a core. Honest kernels are far below: they wait for
milliseconds only, and a kernel 30 times slower than the reference uses about a third of MOST_CALLS.
"""


class Budget:
    """Time that all calls of one part have used, in one or several runners.

    Each call has a limit of its own. But a part has about sixty calls, and a slow kernel could use up the limit of
    each. Time spent waiting for a busy core is left out, if the system reports it.
    """

    def __init__(self, call_s: float) -> None:
        self.call_s = call_s
        self.used_s = self.idle_s = 0.0

    def spend(self, call: Call) -> None:
        self.used_s += call.wall_s if call.own_s is None else call.own_s
        self.idle_s += call.idle_s or 0.0

    def excess(self) -> str:
        """Return the reason why no further call may be made; "" while the budget lasts."""
        if self.idle_s > MOST_IDLE_CALLS * self.call_s:
            return (
                f"earlier calls waited for {self.idle_s:.0f} s without computing, and all calls of a part together may "
                f"wait for {MOST_IDLE_CALLS * self.call_s:.0f} s. Remove code that sleeps or waits"
            )
        if self.used_s > MOST_CALLS * self.call_s:
            return (
                f"earlier calls took {self.used_s:.0f} s, and all calls of a part together may take "
                f"{MOST_CALLS * self.call_s:.0f} s. Make the function faster, first on its largest input"
            )
        return ""


@dataclass(frozen=True)
class Sample:
    """Times of one call: wall seconds by the judge's clock, and CPU seconds of the runner (None if unknown)."""

    wall_s: float
    cpu_s: float | None
    own_s: float | None = None
    """Wall seconds without the time spent waiting for a core; None if unknown."""


@dataclass(frozen=True)
class Round:
    """Times of a round: two calls of the reference and two of the student, each in the order of the calls."""

    reference: tuple[Sample, Sample]
    student: tuple[Sample, Sample]

    @property
    def wall_s(self) -> float:
        """Sum of the wall seconds of the four calls."""
        return sum(sample.wall_s for sample in (*self.reference, *self.student))
