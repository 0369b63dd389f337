"""Small C++ programs of studies, such as native/probe.cpp. They are compiled on first use and cached.

The programs may include the headers in native/. If a program's source contains loops of the solution, the handout for
students lacks the source. It has the compiled program instead, in the subfolder `prebuilt` of the source's folder
(`grader.core.objectcache`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from grader.backends.native.toolchain import cache_root, toolchain
from grader.core import machine, objectcache
from grader.core.commandline import whole_number
from grader.core.errors import KitError, UsageError
from grader.sandbox import run_limited

PREBUILT = "prebuilt"
NATIVE = Path(__file__).resolve().parent / "native"
FLAGS = ("-std=c++17", "-O3", "-pthread")
COMPILE_TIMEOUT_S = 120.0
SIMULATION_TIMEOUT_S = 600.0
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
LARGEST_BYTES = 1 << 32


def program(source: Path) -> Path:
    """Return the path of the program compiled from `source`, or of the prebuilt program if the source is missing.

    Raises KitError if the source does not compile, or if the cache cannot be written. Also raises it if both the source
    and a prebuilt program for this platform are missing.
    """
    name = source.stem
    if not source.is_file():
        return _executable(objectcache.prebuilt(source.parent / PREBUILT, name, f"{name} program"))
    tools = toolchain()
    recipe = repr((str(tools.compiler), tools.compiler_version, FLAGS)).encode()
    recipe += b"".join(header.read_bytes() for header in sorted(NATIVE.glob("*.h")))
    entry = _entry(recipe + source.read_bytes(), name)
    return objectcache.kept(
        cache_root(), entry, lambda place: _compile(str(tools.compiler), source, place / name)
    )


def _executable(program: Path) -> Path:
    """Return `program`, or an executable copy in the cache if unpacking the handout has lost the file's mode."""
    if os.access(program, os.X_OK):
        return program

    def copy(place: Path) -> Path:
        made = Path(shutil.copyfile(program, place / program.name))
        made.chmod(0o755)
        return made

    return objectcache.kept(cache_root(), _entry(program.read_bytes(), program.name), copy)


def _entry(recipe: bytes, name: str) -> Path:
    """Return the cache's path for the file `name`. `recipe` are the bytes that determine the file's content."""
    return cache_root() / "objects" / f"{hashlib.sha256(recipe).hexdigest()[:32]}.{name}"


def build_prebuilt(folder: Path, system: str, machine: str, compiler: str, source: Path) -> Path:
    """Compile a study's program for a platform. Return its path in `folder`. Raises KitError if `compiler` fails."""
    made = folder / objectcache.prebuilt_name(source.stem, system, machine)
    bare = () if system == "Darwin" else ("-s", "-Wl,--build-id=none")
    return _compile(compiler, source, made, *bare)


def _compile(compiler: str, source: Path, made: Path, *flags: str) -> Path:
    command = [compiler, *FLAGS, "-I", str(NATIVE), str(source), *flags, "-o", str(made)]
    _checked(command, made.parent, COMPILE_TIMEOUT_S, f"compile {source.name}")
    return made


def output_of(source: Path, arguments: Sequence[object], timeout_s: float) -> str:
    """Run a source's program and return its output. Raises KitError if it fails or takes longer than `timeout_s`."""
    path = program(source)
    return _checked([str(path), *map(str, arguments)], path.parent, timeout_s, f"run {source.stem}")


def _checked(command: Sequence[str], cwd: Path, timeout_s: float, what: str) -> str:
    finished = run_limited(command, cwd=cwd, timeout_s=timeout_s)
    text = finished.output.decode(errors="replace")
    if finished.timed_out:
        raise KitError(f"cannot {what}: it takes longer than {timeout_s:.0f} s; choose smaller sizes")
    if finished.returncode != 0:
        lines = [line for line in text.splitlines() if "error" in line] or text.splitlines() or ["no message"]
        raise KitError(f"cannot {what} (exit {finished.returncode}): {lines[0].strip()[:200]}")
    return text


# ---- simulated caches


@dataclass(frozen=True)
class CacheModel:
    """A cache to simulate (native/cachemodel.h). `ways` is its associativity; 0 means fully associative."""

    size_bytes: int
    ways: int = 0
    line_bytes: int = 64

    @property
    def kind(self) -> str:
        """The cache's associativity as text."""
        return "fully associative" if self.ways == 0 else f"of {self.ways} ways"


def cache_models(
    sizes: str | None, ways: str, line_bytes: int, usual: Sequence[int]
) -> tuple[CacheModel, ...]:
    """Return the caches to simulate, the smallest first. `sizes` and `ways` are the values of `--cache` and `--ways`.

    If `sizes` is None, the caches have the `usual` sizes in bytes. Raises UsageError for invalid values.
    """
    count = whole_number(ways, "--ways", 0, 1 << 20)
    chosen = tuple(usual) if sizes is None else byte_sizes(sizes, "--cache")
    least = line_bytes * max(count, 2)
    if chosen[0] < least:
        raise UsageError(f"--cache: the smallest cache has {max(count, 2)} lines ({size_text(least)} bytes)")
    return tuple(CacheModel(size, count, line_bytes) for size in chosen)


class Traffic(NamedTuple):
    """Counts of a cache simulation: accesses (`loads`, `stores`), cache lines `fetched` from or `written` to memory."""

    loads: int
    stores: int
    fetched: int
    written: int

    @property
    def lines(self) -> int:
        return self.fetched + self.written


def simulated(simulator: Path, walks: Sequence[tuple[Sequence[object], CacheModel]]) -> list[Traffic]:
    """Run a simulator program once for each of `walks`, in parallel. Return the traffic in the order of `walks`.

    A walk is (the program's arguments: a kernel and its sizes, the cache to simulate). `simulator` is the program's
    source. Raises KitError if the program fails."""
    program(simulator)

    def count(walk: tuple[Sequence[object], CacheModel]) -> Traffic:
        arguments, cache = walk
        words = [*arguments, cache.size_bytes, cache.ways, cache.line_bytes]
        return Traffic(*map(int, output_of(simulator, words, SIMULATION_TIMEOUT_S).split()))

    with ThreadPoolExecutor(max(1, len(machine.usable_cpus()))) as pool:
        return list(pool.map(count, walks))


# ---- sizes in bytes


def byte_sizes(text: str, flag: str) -> tuple[int, ...]:
    """Return sorted distinct sizes in bytes from a list like "16K,512K,2M". Raises UsageError, which names `flag`."""
    return tuple(sorted({_byte_size(item.strip(), flag) for item in text.split(",")}))


def _byte_size(text: str, flag: str) -> int:
    match = re.fullmatch(r"(\d{1,12})([kmg]?)(?:i?b)?", text.lower())
    size = int(match[1]) * UNITS[match[2]] if match else 0
    if not 0 < size <= LARGEST_BYTES:
        raise UsageError(f"{flag} takes sizes like 32K or 2M, up to 4G, not '{text}'")
    return size


def size_text(size: int) -> str:
    """Return a number of bytes as text such as 32K, 512K or 35.8M (units of 1024)."""
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.4g}{unit}"
    return str(size)
