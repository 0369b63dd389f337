"""Facts about the machine: sizes of caches and cache lines from the system, peak speed and bandwidth by measurement.

An instruction set level is, for example, SSE2 or AVX2. Its peak is the speed in FLOP/s of a block of assembly
(native/probe.cpp). Memory bandwidth is measured by a triad a = b + 3c and by a sum, over arrays that together exceed
the last-level cache. Each figure is the best of several tries, because other processes can only make a try slower. The
triad counts as 12 bytes per element: reads of b and c, and the write of a. As in the STREAM benchmark, the CPU's read
of each cache line of `a` before the write is not counted.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.core import machine
from grader.core.quantities import whole
from grader.study import helpers
from grader.study.standalone import NATIVE

PROBE_TIMEOUT_S = 60.0
DEFAULT_LINE_BYTES = 64
#: Common cache sizes of recent processors in bytes, used if the system does not report the cache sizes.
DEFAULT_CACHES = {"L1": 32 << 10, "L2": 512 << 10, "L3": 8 << 20}
CPU_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Cache:
    """One data cache, such as "L2". `ways` is its associativity, `shared_by` the number of CPUs; None if unknown."""

    name: str
    size_bytes: int
    ways: int | None = None
    shared_by: int | None = None


@dataclass(frozen=True)
class Machine:
    """The machine's cache line size and its data caches, L1 first. `is_reported`: False if these are DEFAULT_CACHES."""

    line_bytes: int
    caches: tuple[Cache, ...]
    is_reported: bool

    @property
    def last(self) -> Cache:
        return self.caches[-1]


@dataclass(frozen=True)
class Speed:
    """Measured speeds.

    `peaks` maps (instruction set level, number of threads) to FLOP/s. `triad` and `read` (a sum) map the number of
    threads to bytes/s. The numbers of threads are 1 and `cores`.
    """

    cores: int
    peaks: Mapping[tuple[str, int], float]
    triad: Mapping[int, float]
    read: Mapping[int, float]

    @property
    def levels(self) -> tuple[str, ...]:
        """Instruction set levels of this processor, from narrow to wide."""
        return tuple(dict.fromkeys(level for level, _ in self.peaks))

    def bandwidth(self, threads: int) -> float:
        """Return the larger of the bandwidths of triad and sum, in bytes/s."""
        return max(_of(self.triad, threads), _of(self.read, threads))

    def peak(self, level: str, threads: int) -> float:
        """Return the peak of an instruction set level in FLOP/s on `threads` threads."""
        return _of({count: peak for (name, count), peak in self.peaks.items() if name == level}, threads)


def _of(by_threads: Mapping[int, float], threads: int) -> float:
    """Return the largest value for at most `threads` threads: a busy machine may be slower on all its cores."""
    return max(value for count, value in by_threads.items() if count <= max(threads, min(by_threads)))


def describe() -> Machine:
    """Return cache and line sizes as Linux or macOS reports them, else DEFAULT_CACHES and DEFAULT_LINE_BYTES."""
    caches = _linux_caches() if sys.platform == "linux" else _mac_caches() if sys.platform == "darwin" else ()
    is_reported = bool(caches)
    if not is_reported:
        caches = tuple(Cache(name, size) for name, size in DEFAULT_CACHES.items())
    return Machine(_line_bytes() or DEFAULT_LINE_BYTES, caches, is_reported)


def measure() -> Speed:
    """Measure peak speeds and bandwidth in about 1 s. Raises KitError if native/probe.cpp cannot be built or run."""
    cores = len(machine.usable_cpus()) or os.cpu_count() or 1
    return parse(
        helpers.output_of(NATIVE / "probe.cpp", [cores, describe().last.size_bytes], PROBE_TIMEOUT_S), cores
    )


def parse(text: str, cores: int) -> Speed:
    """Return the speeds in the output of native/probe.cpp. `cores` is the number of usable cores."""
    peaks: dict[tuple[str, int], float] = {}
    bandwidths: dict[str, dict[int, float]] = {"triad": {}, "read": {}}
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["peak"]:
            peaks[words[1], int(words[2])] = float(words[3])
        elif words and words[0] in bandwidths:
            bandwidths[words[0]][int(words[1])] = float(words[2])
    return Speed(cores, peaks, bandwidths["triad"], bandwidths["read"])


# ---- facts from the system


def _linux_caches() -> tuple[Cache, ...]:
    found = []
    for folder in sorted(CPU_FOLDER.glob("index*")):
        try:
            facts = {
                name: (folder / name).read_text().strip()
                for name in ("type", "level", "size", "ways_of_associativity", "shared_cpu_list")
            }
        except OSError:
            continue
        if facts["type"] == "Instruction":
            continue
        size = helpers.byte_sizes(facts["size"], "size")[0]
        ways = whole(facts["ways_of_associativity"])
        found.append(Cache(f"L{facts['level']}", size, ways or None, _count(facts["shared_cpu_list"])))
    return tuple(sorted(found, key=lambda cache: cache.name))


def _count(cpu_list: str) -> int:
    """Return the number of CPUs in a list in Linux's format: 5 for "0-3,8"."""
    total = 0
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", cpu_list):
        total += int(last or first) - int(first) + 1
    return total


def _mac_caches() -> tuple[Cache, ...]:
    names = {"L1": "hw.l1dcachesize", "L2": "hw.l2cachesize", "L3": "hw.l3cachesize"}
    sizes = {name: _sysctl(key) for name, key in names.items()}
    return tuple(Cache(name, size) for name, size in sizes.items() if size)


def _line_bytes() -> int:
    if sys.platform == "darwin":
        return _sysctl("hw.cachelinesize")
    try:
        return int((CPU_FOLDER / "index0" / "coherency_line_size").read_text())
    except (OSError, ValueError):
        return 0


def _sysctl(key: str) -> int:
    return whole(machine.answer(["sysctl", "-n", key], 5.0).strip()) or 0
