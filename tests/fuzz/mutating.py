"""Helpers that make mutated and hostile inputs for a reader under test. They raise AssertionError for its faults."""

from __future__ import annotations

import gc
import math
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

SEED = int(os.environ.get("FUZZ_SEED", "149"))
#: Largest size of a mutated input. Hostile patterns make longer inputs.
LARGEST_BYTES = 1 << 16
#: CPU time for any single input, far above what a linear reader needs.
SLOWEST_S = 20.0
#: An input of 4 times the size may take at most MOST_GROWTH times as long; a quadratic reader takes 16 times. Times
#: below NOISE_S do not count, and growth is measured up to MOST_ROUNDS times.
MOST_GROWTH, NOISE_S, MOST_ROUNDS = 10.0, 0.05, 8
PREFIX = "gpt149-fuzz-"

NUMBERS = (0, 1, -1, 127, 128, 255, 65279, 65280, 65535, 1 << 31, 2**32 - 1, 1 << 53, 1 << 63, 2**64 - 1)
KINDS = ("bits", "cut", "remove", "splice", "repeat", "digits", "bytes", "nest", "word", "word")
BRACKETS = (b"[", b"{", b"(", b"<", b'{"a":', b"/*", b'R"(', b"I", b"N")
Patterns = dict[str, Callable[[int], bytes]]


@dataclass(frozen=True)
class Reader:
    """A function that reads bytes, and the inputs with which it is tested."""

    name: str
    read: Callable[[bytes], object]
    examples: Sequence[bytes]
    allowed: tuple[type[Exception], ...] = ()  # errors that it may raise for malformed inputs
    words: Sequence[bytes] = ()  # tokens of the format, so that mutated inputs pass the first checks
    patterns: Mapping[str, Callable[[int], bytes]] = field(default_factory=dict)  # from size to hostile input
    cost: int = 1  # the number of mutated inputs is divided by this
    pattern_bytes: int = 1 << 16  # size of a pattern's small input; the large one is 4 times as large


def repeats(*middles: bytes, head: bytes = b"", tail: bytes = b"") -> Patterns:
    """Return, for each middle, a function from a size to bytes: the head, repeats of the middle, and the tail."""

    def filled(middle: bytes) -> Callable[[int], bytes]:
        return lambda size: head + middle * ((size - len(head) - len(tail)) // len(middle)) + tail

    return {repr(head[-30:] + 2 * middle[:30] + b"..." + tail[:20]): filled(middle) for middle in middles}


def in_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """Return a reader of bytes that writes them to a file of this name and then reads the file."""

    def of_bytes(data: bytes) -> object:
        with TemporaryDirectory(prefix=PREFIX) as folder:
            path = Path(folder) / name
            path.write_bytes(data)
            return read(path)

    return of_bytes


def _mutate(data: bytearray, draw: random.Random, other: bytes, words: Sequence[bytes]) -> None:
    """Change `data` once at random. The change may insert a piece of the example `other`, or one of `words`."""
    at = draw.randint(0, len(data))
    kind = draw.choice(KINDS)
    if kind == "bits":
        for _ in range(draw.randint(1, 8) if data else 0):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "remove":
        del data[at : at + draw.randint(1, 64)]
    elif kind == "splice":
        start = draw.randint(0, len(other))
        data[at:at] = other[start : start + draw.randint(1, 256)]
    elif kind == "repeat":
        data[at:at] = data[at : at + draw.randint(1, 40)] * draw.randint(2, 200)
    elif kind == "digits":
        places = [k for k, byte in enumerate(data[:4096]) if 48 <= byte <= 57]
        at = draw.choice(places) if places else at
        long = b"9" * draw.choice((3, 20, 310, 5000))
        data[at : at + 1] = long if draw.random() < 0.5 else b"%d" % draw.choice(NUMBERS)
    elif kind == "bytes":
        size = draw.choice((1, 2, 4, 8))
        at = draw.randint(0, max(0, len(data) - size))
        data[at : at + size] = (draw.choice(NUMBERS) % (1 << 8 * size)).to_bytes(size, "little")
    elif kind == "nest":
        data[at:at] = draw.choice(BRACKETS) * draw.choice((10, 300, 5000))
    else:
        data[at:at] = draw.choice(words) if words else draw.randbytes(4)


def mutated(reader: Reader, count: int) -> Iterator[bytes]:
    """Yield mutated examples of the reader, always the same inputs for the same seed."""
    # Use the text itself as the seed: unlike its hash(), it gives the same inputs in every process.
    draw = random.Random(f"{SEED} {reader.name}")
    for _ in range(count):
        data = bytearray(draw.choice(reader.examples))
        for _ in range(draw.randint(1, 4)):
            _mutate(data, draw, draw.choice(reader.examples), reader.words)
            del data[LARGEST_BYTES:]
        yield bytes(data)


def fuzz(reader: Reader, count: int) -> list[bool]:
    """Return True for each refused mutated input. Raise AssertionError for other errors or a slow reader."""
    inputs = enumerate(mutated(reader, count // reader.cost))
    return [_read(reader, data, f"input {number} of seed {SEED}")[1] for number, data in inputs]


def growth(reader: Reader, pattern: str) -> None:
    """Read a hostile pattern in two sizes. Raises AssertionError if the best time grows much faster than the size."""
    make = reader.patterns[pattern]
    small, large = make(reader.pattern_bytes), make(4 * reader.pattern_bytes)
    first_s = second_s = math.inf
    # Disable garbage collection, which would visit all objects of the whole test run.
    gc.disable()
    try:
        for _ in range(MOST_ROUNDS):
            for _ in range(3):
                first_s = min(first_s, _read(reader, small, pattern)[0])
            second_s = min(second_s, _read(reader, large, pattern)[0])
            if second_s <= MOST_GROWTH * first_s + NOISE_S:
                return
    finally:
        gc.enable()
    found = f"{first_s:.3f} s for {len(small)} bytes, but {second_s:.3f} s for {len(large)}"
    raise AssertionError(f"{reader.name}: {pattern}: {found}")


def _read(reader: Reader, data: bytes, what: str) -> tuple[float, bool]:
    """Read data, described by `what`. Return CPU seconds and True if refused. Raise AssertionError as `fuzz` does."""
    started_s, refused = _cpu_s(), False
    # The timer counts CPU time, so that other programs do not disturb it.
    before = signal.signal(signal.SIGVTALRM, _too_slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, SLOWEST_S)
    try:
        reader.read(data)
    except reader.allowed:
        refused = True
    except TooSlow as error:
        raise AssertionError(f"{reader.name}: {what}: over {SLOWEST_S:g} s for {len(data)} bytes") from error
    except Exception as error:
        found = f"{type(error).__name__}: {str(error)[:200]}; begins {data[:60]!r}"
        raise AssertionError(f"{reader.name}: {what}: {found}") from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return _cpu_s() - started_s, refused


class TooSlow(BaseException):
    """Raised if a reading takes too long. A reader's `except Exception` does not catch it."""


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise TooSlow


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
