"""Facts that the doctor examines, gathered in one class so that tests can simulate any machine."""

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
from grader.core.errors import KitError
from grader.core.quantities import whole

Level = Literal["ok", "warn", "fail"]
RUN_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Finding:
    """Result of one check: the fact found (`what`), the reason `why` it matters, and the `remedy`.

    Level "fail": kernels cannot be judged safely. "warn": kernels can be judged, but times or the sandbox are less
    reliable. "ok": `why` and `remedy` are empty.
    """

    level: Level
    what: str
    why: str = ""
    remedy: str = ""


def ok(what: str) -> Finding:
    return Finding("ok", what)


def warn(what: str, why: str, remedy: str) -> Finding:
    return Finding("warn", what, why, remedy)


def fail(what: str, why: str, remedy: str = "") -> Finding:
    return Finding("fail", what, why, remedy)


def of_error(error: KitError, level: Level, why: str) -> Finding:
    """Convert an error with a text of the form "WHAT: REMEDY" to a finding."""
    what, _, remedy = str(error).partition(": ")
    return Finding(level, what, why, remedy)


@dataclass(frozen=True)
class Ran:
    """Result of a command: its exit status, and the text that it wrote to stdout, followed by that of stderr."""

    returncode: int
    output: str

    def line(self, at: int) -> str:
        """Return the first (`at` 0) or last (-1) line of the text; "status N" if the text is empty."""
        return (self.output.strip().splitlines() or [f"status {self.returncode}"])[at]


def run(command: Sequence[str]) -> Ran:
    """Run a command without a shell, for at most RUN_TIMEOUT_S seconds.

    The result has exit status 127 if the command cannot be started or does not end in time.
    """
    try:
        ended = subprocess.run(
            list(command), capture_output=True, text=True, errors="replace", timeout=RUN_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Ran(127, str(error))
    return Ran(ended.returncode, ended.stdout + ended.stderr)


def _free_bytes(place: Path) -> int | None:
    """Return the bytes that this user may still write to the file system of `place`; None if they are unknown.

    If `place` does not exist, its nearest existing parent folder is used.
    """
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


def _landlock_version() -> int:
    from grader.sandbox import lock

    return lock.landlock_version()


@dataclass(frozen=True)
class Host:
    """The machine that the doctor examines. The defaults describe this machine; tests simulate others.

    `root` is the folder that contains the machine's /proc and /sys. `threads` is the assignment's number of threads.
    `scratch` and `cache` are the folders for temporary files and builds.
    """

    root: Path = Path("/")
    system: str = field(default_factory=platform.system)
    euid: int = field(default_factory=lambda: os.geteuid() if hasattr(os, "geteuid") else -1)
    cpus: tuple[int, ...] = field(default_factory=lambda: tuple(machine.usable_cpus()))
    threads: int = 8
    scratch: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    cache: Path = field(default_factory=cache_root)
    which: Callable[[str], str | None] = shutil.which
    run: Callable[[Sequence[str]], Ran] = run
    has_module: Callable[[str], object] = importlib.util.find_spec
    free_bytes: Callable[[Path], int | None] = _free_bytes
    landlock_version: Callable[[], int] = _landlock_version

    def read(self, path: str) -> str | None:
        """Return the stripped text of a file below /proc or /sys; None if it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Return the whole number in a file; None if the file does not hold one."""
        text = self.read(path)
        try:
            return int(text) if text else None
        except ValueError:
            return None

    def glob(self, pattern: str) -> list[str]:
        """Return the texts of all files below the root that match the pattern, in the order of their names."""
        names = sorted(self.root.glob(pattern.lstrip("/")))
        return [text for name in names if (text := self.read(str(name.relative_to(self.root)))) is not None]

    def fields(self, path: str) -> dict[str, int]:
        """Parse a file of lines like `Name: 123 kB`. Return {name: number}, without units; {} for a missing file."""
        found = {}
        for line in (self.read(path) or "").splitlines():
            name, _, rest = line.partition(":")
            words = rest.split()
            if words and (number := whole(words[0])) is not None:
                found[name.strip()] = number
        return found
