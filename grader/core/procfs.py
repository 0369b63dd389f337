"""Facts from /proc about a process that runs untrusted code, read within limits.

The untrusted code decides how long these files are. For example, the list of 65,530 mappings of a file whose path has
100,000 characters has gigabytes. So a file is read in pieces up to a limit. Of a long line only the beginning is kept,
and of very many threads only the first ones. An `Excess` records that a file or a list of threads was cut.

Processes whose parent dies either end with the parent (`end_with_parent`), or are adopted by this process (`adopt`) and
killed (`sweep`). Outside of Linux, these functions do nothing, and a process ends when its pipe is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from grader.core.quantities import size_text

MOST_BYTES = 4 << 20
"""Limit for one file. The mappings of a runner with torch take 60 KiB, those of a native runner 3 KiB."""
LONGEST_LINE = 16 << 10
"""Bytes of a line that are kept. The longest honest line has a path of 4096 characters, each escaped as four."""
MOST_THREADS = 1024
PIECE_BYTES = 64 << 10


@dataclass
class Excess:
    """Record of a limit that was exceeded. `what` describes the excess in words; "" if everything was read."""

    what: str = ""


def text(path: str, most_bytes: int = PIECE_BYTES) -> str:
    """Return at most `most_bytes` of a short file as text. Raises OSError if it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(_pieces(descriptor, most_bytes)).decode(errors="replace")
    finally:
        os.close(descriptor)


def lines(path: str, excess: Excess, most_bytes: int = MOST_BYTES) -> Iterator[str]:
    """Yield the lines of a file without line ends, each cut to LONGEST_LINE bytes.

    If the file is longer than `most_bytes`, reading ends there: `excess` records it, and the last, incomplete line is
    left out. Raises OSError if the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        kept, read_bytes = b"", 0
        for piece in _pieces(descriptor, most_bytes + 1):
            read_bytes += len(piece)
            first, *others = piece.split(b"\n")
            kept += first[: LONGEST_LINE - len(kept)]
            for other in others:
                yield kept.decode(errors="replace")
                kept = other[:LONGEST_LINE]
        if read_bytes > most_bytes:
            excess.what = f"more than {size_text(most_bytes)} in {os.path.basename(path)}"
        elif kept:
            yield kept.decode(errors="replace")
    finally:
        os.close(descriptor)


def threads(pid: int, excess: Excess) -> list[int]:
    """Return the sorted thread ids of a process; [] if the process cannot be read.

    If there are more than MOST_THREADS, the others are left out, and `excess` records it.
    """
    found: list[int] = []
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as listing:
        found = [int(entry.name) for entry in itertools.islice(listing, MOST_THREADS + 1)]
    if len(found) > MOST_THREADS:
        excess.what = f"more than {MOST_THREADS} threads"
    return sorted(found[:MOST_THREADS])


RAN, QUEUED = 0, 1


def schedstat_s(pid: int, field: int, excess: Excess) -> dict[int, float]:
    """Return the seconds that each thread ran (`field` RAN) or waited for a core (QUEUED), by thread id.

    Threads whose times the system does not report are left out.
    """
    found: dict[int, float] = {}
    for task in threads(pid, excess):
        with contextlib.suppress(OSError, ValueError, IndexError):
            found[task] = int(text(f"/proc/{pid}/task/{task}/schedstat").split()[field]) / 1e9
    return found


def living(pid: int) -> str:
    """Return the /proc folder of a process if its main thread lives, else the folder of its first living thread.

    The folder of a process whose main thread has ended shows neither memory nor mappings. If all threads have ended,
    return the folder of the process.
    """
    folders = (f"/proc/{pid}", *(f"/proc/{pid}/task/{thread}" for thread in threads(pid, Excess())))
    for folder in folders:
        with contextlib.suppress(OSError, IndexError):
            if text(f"{folder}/stat").rpartition(")")[2].split()[0] not in "ZX":
                return folder
    return folders[0]


def _pieces(descriptor: int, most_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of an open file in pieces of at most PIECE_BYTES, `most_bytes` in all."""
    left = most_bytes
    while left > 0 and (piece := os.read(descriptor, min(PIECE_BYTES, left))):
        left -= len(piece)
        yield piece


PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MOST_GENERATIONS = 100


def end_with_parent(number: int) -> None:
    """Make Linux send this process the signal `number` when the process's parent dies."""
    _set_option(PR_SET_PDEATHSIG, number)


def adopt() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _set_option(PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """Return the ids of this process's children, started by any of its threads."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as listing:
                found.update(map(int, listing.read().split()))
    return found


def sweep(spared: Collection[int]) -> None:
    """Kill every child of this process except those in `spared`, with all their descendants.

    The children of a killed process become children of this process (`adopt`), and are killed in the next pass of the
    loop.
    """
    for _ in range(MOST_GENERATIONS):
        strays = children().difference(spared)
        if not strays:
            return
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _set_option(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
