"""Locks that the workers on a machine share, so that each timing has a core or the machine to itself.

The clock of a part decides what its timing needs (`need_of`). A serial part is timed by the CPU time of a pinned core,
which work on other cores hardly affects. Such a timing holds one core (`core-K`), while timings on other cores, builds
and checks of results continue. A part with threads or on a GPU is timed by wall time. Such a timing holds the machine,
and nothing else of the class runs. (Beside other work on one GPU, calls of one reference took 4 to 18 ms.)

There are three kinds of lock files. Workers hold `room` shared; a timing that needs the machine holds it exclusively.
A worker must lock `gate` for a moment before it can share the room. A timing that needs the machine holds the gate
while it waits and while it has the room. So several such timings follow one another, and other work stops only once for
all of them. A worker must share the room again before its next such timing. Other work therefore waits for at most as
many timings as there are workers. A worker also releases the room before it starts a runner (`give_way`): the results
of one file take up to minutes, and all timings would wait for the slowest. The locks are made by flock: the kernel
releases those of a killed process.

With `alone` every timing holds the machine, one at a time, and other work may run between two timings. Use it if
timings beside other work are not trusted.
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
from grader.backends.kinds import kind_of
from grader.core import machine

Need = Literal["core", "machine"]
LOOK_S = 0.02
"""Seconds after which a waiting timing looks again for a free core. A timing takes a second or more."""


def need_of(part: Part) -> Need:
    """Return "core" for a serial part timed by CPU time, else "machine": what a timing of the part has to itself."""
    rule = part.time
    serial = rule is not None and rule.clock == "cpu" and rule.threads == 1
    return "core" if serial and not kind_of(part).on_card else "machine"


@dataclass(frozen=True)
class Held:
    """Resource held by one timing: its name, and the cores of the timed runner (None: the machine's default)."""

    resource: str
    cpus: list[int] | None


class Slot:
    """One process's access to the locks. It is not thread-safe: the locks belong to the whole process."""

    def __init__(self, folder: Path, cores: Sequence[int] | None = None, *, alone: bool = False) -> None:
        """Open the lock files in `folder`, which all workers of the machine share. `cores` are those on which serial
        timings may run side by side (by default `machine.timing_cores()`)."""
        self.folder, self.alone = folder, alone
        self.cores = machine.timing_cores() if cores is None else list(cores)
        self._times = False
        self._gate = _open(folder / "gate")
        self._room = _open(folder / "room")

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the room shared, for building and for checking results beside other workers."""
        self._enter()
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    def give_way(self) -> None:
        """Let waiting timings have the machine first. Used inside `shared`, while no runner of this process lives."""
        if not self._times:
            fcntl.flock(self._room, fcntl.LOCK_UN)
            self._enter()

    @contextmanager
    def hold(self, need: Need) -> Iterator[Held]:
        """Hold the resource that a timing needs. Call it inside `shared`."""
        self._times = True
        try:
            if need == "machine" or self.alone or (need == "core" and not self.cores):
                with self.exclusive():
                    yield Held("machine", None)
            else:
                with self._core() as core:
                    yield Held(f"core {core}", [core])
        finally:
            self._times = False

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the machine exclusively. Call it inside `shared`, whose lock is released meanwhile and taken again."""
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
        """Release all locks."""
        os.close(self._gate)
        os.close(self._room)

    @contextmanager
    def _core(self) -> Iterator[int]:
        """Hold the first free core; wait for one if none is free."""
        while True:
            for number in self.cores:
                lock = _open(self.folder / f"core-{number}")
                try:
                    with suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        yield number
                        return
                finally:
                    os.close(lock)
            time.sleep(LOOK_S)

    def _enter(self) -> None:
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
