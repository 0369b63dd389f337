"""Facts about the machine a verdict was reached on, for the result file, and which cores a timed runner gets."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path


def describe() -> dict[str, object]:
    """Processor, cores, memory, system and load; whatever this system does not tell is left out."""
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


def usable_cpus() -> list[int]:
    """The cores this process may use, in order; empty where the system has no notion of it (macOS)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def timing_cpus(threads: int | None, cores: int | None = None) -> list[int] | None:
    """Cores for a timed runner of so many `threads` that may use so many `cores`; None of either means all.

    A serial part gets the last of ours, so that the judge keeps the others. None (no limit) for a part that uses all of
    them, or where the system cannot limit it.
    """
    most = min((n for n in (threads, cores) if n is not None), default=None)
    order = core_order()
    if most is None or len(order) <= most:
        return None
    return order[:most] if threads is None else usable_cpus()[-most:]


def timing_cores(cpus: Sequence[int] | None = None) -> list[int]:
    """The cores on which serial timings may run side by side, of all that this process may use or of these, the last
    first. The rest is for the judges of these timings and for whatever is built meanwhile; () where no core can be
    held.

    How many there are is measured (docs/measurements.md, "Whether time is judged fairly").
    """
    order = core_order() if cpus is None else list(cpus)
    return list(reversed(order))[: timings_at_once(len(order))]


def timings_at_once(cores: int) -> int:
    """Return the number of serial timings that may run side by side on so many cores: half of them.
    A judge works beside each of them, makes inputs and compares outputs."""
    return cores // 2


def core_order() -> list[int]:
    """The cores this process may use, one hardware thread of each physical core before the second ones."""
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
