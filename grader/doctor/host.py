"""What the doctor looks at, gathered in one place so that every finding can be tried on a machine that is made up."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from grader.backends.native.toolchain import cache_root
from grader.core import machine
from grader.core.quantities import whole

Level = Literal["ok", "warn", "fail"]
RUN_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `what` was found, `why` it matters, and the `remedy`; the last two are empty if all is well.

    "fail": nothing can be judged here, or not safely. "warn": it works, but something is weaker than it could be.
    """

    level: Level
    what: str
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Ran:
    """A command that ended: its exit status and what it said on both streams."""

    returncode: int
    output: str


def run(command: Sequence[str]) -> Ran:
    """Run a command of the doctor's own, without a shell. One that cannot be started or does not end has status 127."""
    try:
        ended = subprocess.run(
            list(command), capture_output=True, text=True, errors="replace", timeout=RUN_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Ran(127, str(error))
    return Ran(ended.returncode, ended.stdout + ended.stderr)


def _free_bytes(place: Path) -> int | None:
    """Free space for this user in the file system of a place, or of the nearest folder above it that exists."""
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


def _landlock_version() -> int:
    from grader.sandbox import lock

    return lock.landlock_version()


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@dataclass(frozen=True)
class Host:
    """A machine, by default this one. `root` is where its /proc and /sys lie; `threads` is what the assignment uses."""

    root: Path = Path("/")
    system: str = field(default_factory=platform.system)
    euid: int = field(default_factory=lambda: os.geteuid() if hasattr(os, "geteuid") else -1)
    cpus: tuple[int, ...] = field(default_factory=lambda: tuple(machine.usable_cpus()))
    threads: int = 8
    scratch: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    cache: Path = field(default_factory=cache_root)
    which: Callable[[str], str | None] = shutil.which
    run: Callable[[Sequence[str]], Ran] = run
    has_module: Callable[[str], bool] = _has_module
    free_bytes: Callable[[Path], int | None] = _free_bytes
    landlock_version: Callable[[], int] = _landlock_version

    def read(self, path: str) -> str | None:
        """The text of a file below /proc or /sys, stripped; None where it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The whole number in a file, None where there is none."""
        text = self.read(path)
        try:
            return int(text) if text else None
        except ValueError:
            return None

    def glob(self, pattern: str) -> list[str]:
        """The texts of all files that match below the root, in order of their names."""
        names = sorted(self.root.glob(pattern.lstrip("/")))
        return [text for name in names if (text := self.read(str(name.relative_to(self.root)))) is not None]

    def fields(self, path: str) -> dict[str, int]:
        """`Name: 123 kB` lines of a file as numbers, without their unit."""
        found = {}
        for line in (self.read(path) or "").splitlines():
            name, _, rest = line.partition(":")
            words = rest.split()
            if words and (number := whole(words[0])) is not None:
                found[name.strip()] = number
        return found
