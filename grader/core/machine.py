"""Facts about the machine on which a verdict was reached, and the choice of cores for a timed runner."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path


def describe() -> dict[str, object]:
    """Return system, processor, cores, Python version, memory and load by name. Facts that are unknown are left out."""
    facts: dict[str, object] = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(usable_cpus()) or os.cpu_count(),
        "python": platform.python_version(),
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        facts["memory_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if hasattr(os, "getloadavg"):
        facts["load_average"] = [round(load, 2) for load in os.getloadavg()]
    return facts


def answer(command: Sequence[str], timeout_s: float = 20.0, **variables: str) -> str:
    """Run a program of this machine. Return its standard output; "" if the program is missing, fails or is too slow.

    `variables` are added to its environment.
    """
    try:
        ended = subprocess.run(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ended.stdout if ended.returncode == 0 else ""


#: Files of /sys/devices/system/cpu/cpu0/cache/indexN that a student's code may read.
_CACHE_FILES = (
    *("level", "type", "size", "coherency_line_size", "ways_of_associativity", "number_of_sets"),
    *("physical_line_partition", "shared_cpu_list", "shared_cpu_map", "id"),
)


@functools.cache
def cache_files() -> str:
    """Return lines such as "index0/size=32K", one for each file about the caches of core 0; "" without such files."""
    lines = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        for name in _CACHE_FILES:
            with contextlib.suppress(OSError):
                lines.append(f"{folder.name}/{name}={(folder / name).read_text()[:200].strip()}\n")
    return "".join(lines)


def usable_cpus() -> list[int]:
    """Return the numbers of the cores that this process may use, sorted; empty if the system hides them (macOS)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def timing_cpus(threads: int | None, cores: int | None = None) -> list[int] | None:
    """Return the numbers of the cores on which a timed runner may run; None if it may use all.

    Args:
        threads: number of threads of the part; None if the part may use as many threads as there are cores. A part with
            a fixed number of threads gets the last cores, so that the first ones are left for the judge.
        cores: maximum number of cores that the runner may use; None for all.
    """
    most = min((n for n in (threads, cores) if n is not None), default=None)
    order = core_order()
    if most is None or len(order) <= most:
        return None
    return order[:most] if threads is None else usable_cpus()[-most:]


def timing_cores() -> list[int]:
    """Return the numbers of the cores on which single-threaded timings may run side by side, the last core first.

    The remaining cores that this process may use are for the judges of these timings and for builds. Returns [] if no
    core can be reserved. docs/measurements.md, "Whether time is judged fairly", justifies the number of cores.
    """
    order = core_order()
    return list(reversed(order))[: timings_at_once(len(order))]


def timings_at_once(cores: int) -> int:
    """Return the number of single-threaded timings that may run side by side on `cores` cores: half of them.

    Each timing needs a second core for its judge, which makes inputs and compares outputs meanwhile.
    """
    return cores // 2


def core_order() -> list[int]:
    """Return the usable cores: first one hardware thread of each physical core, then the second hardware threads."""
    taken: dict[str, int] = {}
    ranked = []
    for cpu in usable_cpus():
        place = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings = place.read_text().strip()
        except OSError:
            siblings = str(cpu)
        ranked.append((taken.setdefault(siblings, 0), cpu))
        taken[siblings] += 1
    return [cpu for _, cpu in sorted(ranked)]


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
