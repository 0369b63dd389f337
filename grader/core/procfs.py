"""Facts from /proc about a process that runs untrusted code, read within limits.

That code decides how much there is to read: 65,530 mappings of a file whose path has 100,000 characters are gigabytes.
So a file is read in pieces up to a limit. Only the beginning of a long line is kept, and only the first of very many
threads. Data beyond a limit is never read; the caller is notified through `Excess`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

from grader.core.quantities import size_text

MOST_BYTES = 4 << 20
"""Limit for one file. A runner with torch in it has 60 KiB of mappings, a native one 3 KiB."""
LONGEST_LINE = 16 << 10
"""Bytes of a line that are kept: a path of 4096 characters, each written as four."""
MOST_THREADS = 1024
PIECE_BYTES = 64 << 10


@dataclass
class Excess:
    """Record of a limit that was exceeded. `what` describes it for people; "" if all was read."""

    what: str = ""


def text(path: str, most_bytes: int = PIECE_BYTES) -> str:
    """Read a file up to `most_bytes`, enough for the short ones. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(_pieces(descriptor, most_bytes)).decode(errors="replace")
    finally:
        os.close(descriptor)


def lines(path: str, excess: Excess, most_bytes: int = MOST_BYTES) -> Iterator[str]:
    """Yield the lines of a file without their ends, each cut to LONGEST_LINE bytes. At most `most_bytes` are read.

    A line that the limit cuts in two is left out, and `excess` records it. Raises OSError.
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
    """Return the thread ids of a process, the oldest first; empty if the process cannot be read.

    Beyond MOST_THREADS the rest is left out, and `excess` records it.
    """
    found: list[int] = []
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as listing:
        found = [int(entry.name) for entry in itertools.islice(listing, MOST_THREADS + 1)]
    if len(found) > MOST_THREADS:
        excess.what = f"more than {MOST_THREADS} threads"
    return sorted(found[:MOST_THREADS])


def living(pid: int) -> str:
    """Return the folder in /proc of a process, or that of its first living thread if its first thread has ended: then
    the process's own folder shows neither memory nor mappings."""
    folders = (f"/proc/{pid}", *(f"/proc/{pid}/task/{thread}" for thread in threads(pid, Excess())))
    for folder in folders:
        with contextlib.suppress(OSError, IndexError):
            if text(f"{folder}/stat").rpartition(")")[2].split()[0] not in "ZX":
                return folder
    return folders[0]


def _pieces(descriptor: int, most_bytes: int) -> Iterator[bytes]:
    """Yield a file's bytes up to a limit.

    The kernel makes the content anew for each read, one page or line at a time.
    """
    left = most_bytes
    while left > 0 and (piece := os.read(descriptor, min(PIECE_BYTES, left))):
        left -= len(piece)
        yield piece
