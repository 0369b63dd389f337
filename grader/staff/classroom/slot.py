"""A machine as a room that many evaluations share, and in which each timing has what it needs to itself.

What a timing needs depends on the clock that decides it (`need_of`). A serial part is decided by the CPU time of a
pinned core, which work on other cores hardly moves: it holds one core (`core-K`), and timings on other cores, builds
and results go on beside it. A part with threads is decided by wall time: it holds the machine, and nothing else of
the class runs. A part on a graphics card holds the card.

Three kinds of locks. `room` is held shared by whoever works, and alone by a timing that holds the machine. Whoever
wants to share it passes the `gate`: those who want the machine keep the gate shut while they wait and while they have
it. So they follow one another without the others in between, which would have to leave again each time; and as each
of them has to pass the gate before it can want the machine again, those who share it wait for as many timings as
there are workers at most. The locks are flock's: the kernel drops those of a process that was killed, so nothing has
to be cleaned up.

With `alone` every timing holds the machine, one at a time, and the gate lets those who share it in between: how it was
when no timing was believed beside another.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grader.assignment.records import Part
from grader.core import machine

Need = Literal["core", "machine", "card"]
LOOK_S = 0.02
"""How often a timing that waits for a core looks for one that is free: a timing takes a second or more."""


def need_of(part: Part) -> Need:
    """Return the resource that a timing of this part needs to itself."""
    if part.device is not None:
        return "card"
    rule = part.time
    return "core" if rule is not None and rule.clock == "cpu" and rule.threads == 1 else "machine"


@dataclass(frozen=True)
class Held:
    """What somebody has to himself: its name, and the cores that a timed runner gets (None: as the machine says)."""

    resource: str
    cpus: list[int] | None


class Slot:
    """One process's key to the room. Not for threads: a process has one place in it at most."""

    def __init__(self, folder: Path, cores: Sequence[int] | None = None, *, alone: bool = False) -> None:
        """`folder` holds the lock files and is the same for all who share the machine. `cores` are those on which
        serial timings may run side by side (by default `machine.timing_cores()`)."""
        self.folder, self.alone = folder, alone
        self.cores = machine.timing_cores() if cores is None else list(cores)
        self._gate = _open(folder / "gate")
        self._room = _open(folder / "room")

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Be one of many: building, checking results."""
        self._enter()
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    @contextmanager
    def hold(self, need: Need) -> Iterator[Held]:
        """Have what a timing needs; used inside `shared`."""
        if need == "machine" or self.alone or (need == "core" and not self.cores):
            with self.exclusive():
                yield Held("machine", None)
        elif need == "card":
            with _one_of(self.folder, "card", (0,)) as card:
                yield Held(f"card {card}", None)
        else:
            with _one_of(self.folder, "core", self.cores) as core:
                yield Held(f"core {core}", [core])

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Be alone. Used inside `shared`, whose share is given up meanwhile and taken again at the end."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        fcntl.flock(self._gate, fcntl.LOCK_EX if self.alone else fcntl.LOCK_SH)
        try:
            fcntl.flock(self._room, fcntl.LOCK_EX)
            if self.alone:
                fcntl.flock(self._gate, fcntl.LOCK_UN)
            try:
                yield
            finally:
                fcntl.flock(self._room, fcntl.LOCK_UN)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
            self._enter()

    def close(self) -> None:
        """Give back the key, and with it the place in the room."""
        os.close(self._gate)
        os.close(self._room)

    def _enter(self) -> None:
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)


@contextmanager
def _one_of(folder: Path, kind: str, numbers: Sequence[int]) -> Iterator[int]:
    """Hold the first of these resources that is free, after waiting for one if need be."""
    while True:
        for number in numbers:
            lock = _open(folder / f"{kind}-{number}")
            try:
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield number
                    return
            finally:
                os.close(lock)
        time.sleep(LOOK_S)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
