"""The machine as a room that many evaluations may share, or one may have to itself while it is timed.

A fair readers-writer lock of two files. Whoever wants in, as one of many or alone, first takes the turnstile, then the
room in its mode, then gives the turnstile back. Somebody who waits for the room to empty holds the turnstile
meanwhile, so newcomers queue behind and nobody starves. The locks are flock's: the kernel drops those of a process that
was killed, so nothing has to be cleaned up.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Slot:
    """One process's key to the room. Not for threads: a process has one place in it at most."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds the two lock files and is the same for all who share the machine."""
        self._turnstile = _open(folder / "turnstile")
        self._room = _open(folder / "room")

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Be one of many: building, checking results."""
        self._enter(fcntl.LOCK_SH)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Be alone. Used inside `shared`, whose share is given up meanwhile and taken again at the end."""
        self._leave()
        self._enter(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self._leave()
            self._enter(fcntl.LOCK_SH)

    def close(self) -> None:
        """Give back the key, and with it the place in the room."""
        os.close(self._turnstile)
        os.close(self._room)

    def _enter(self, mode: int) -> None:
        fcntl.flock(self._turnstile, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, mode)
        finally:
            fcntl.flock(self._turnstile, fcntl.LOCK_UN)

    def _leave(self) -> None:
        fcntl.flock(self._room, fcntl.LOCK_UN)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
