"""Signs that a kernel cheats, as flags for people (`grader.core.results.Flag`).

Theory of operation. The signs come from three sources that the runner (the process that calls the kernel) does not
control. First, the undefined symbols of the built object name the functions that it calls
(`grader.integrity.inspection`). Second, the judge watches the runner from outside (`grader.runner.watch`). Third, the
judge measures times. The profiler's list of operators comes from the runner, so it can show guilt but cannot prove
innocence. The level "rejected" is used only if no innocent explanation exists. Examples are a kernel that loads the
reference, work while the process was stopped, and a time that no machine could reach. All other signs get the level
"review" (or "note", see `inspection.flags_of`). docs/decisions.md ("Known limits") lists cheats that these signs miss.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Protocol

from grader.core.results import Flag, ProfileRow, Timing
from grader.integrity import elf, inspection, symbols
from grader.integrity.inspection import LONGEST_NAME, listed
from grader.runner.watch import Evidence

if TYPE_CHECKING:
    from grader.core.arrays import Array

#: Matches names of libraries that any runner may load: runtimes of C, C++, OpenMP, sanitizers and GPUs, and libraries
#: that these or torch's profiler load.
_RUNTIME = re.compile(
    r"(?:ld-|ld64)|lib(?:c|m|mvec|gcc_s|stdc\+\+|gomp|omp|iomp5|atomic|pthread|dl|rt|util|resolv|nsl|quadmath"
    r"|asan|ubsan|tsan|lsan|tbb|tbbmalloc|numa|archer|omptarget|gomp-plugin|nss|idn2?|cupti|cuda|cudart|nv|roc|amdhip|hsa|ze_"
    r"|ittnotify)(?:[-_.]\S*)?\.so"
)
_OWN_FOLDERS = re.compile(r"/lib-dynload/|/gconv/|/nvidia/")
_REFERENCE = "gpt149_ref"

#: Float operations that one core can do per cycle: two fused multiply-adds of 16 floats each, which are 64 operations.
#: The second number is for cores with matrix units (AMX).
_FLOPS_PER_CYCLE, _FLOPS_PER_CYCLE_WITH_MATRIX_UNITS = 64, 2048
_HIGHEST_HZ = 6e9
"""Clock rate that no core exceeds. It is generous, so that an honest time is never called impossible."""

_MOST_FROZEN_CPU_S, _MOST_FROZEN_SHARE = 0.01, 0.1
_LEAST_UNSTOPPED, _LEAST_LATE = 3, 4
_MORE_CORES_FACTOR, _MORE_CORES_MS = 1.25, 2.0


# ---- the object


class Built(Protocol):
    """A build. Only the path of its object is used here."""

    @property
    def object_path(self) -> Path | None: ...


def inspect_object(build: Built) -> tuple[Flag, ...]:
    """Return flags for imported functions and machine code that no kernel needs; () if the build has no ELF object.

    A child process reads the object within a time limit (`grader.integrity.inspection`).
    """
    if build.object_path is None or not build.object_path.is_file() or not elf.is_elf(build.object_path):
        return ()
    return _flags_of_object(build.object_path)


@functools.lru_cache(maxsize=64)
def _flags_of_object(path: Path) -> tuple[Flag, ...]:
    # Cached, because the judge asks for the flags once per part. The path contains a hash of all inputs of the build,
    # so an equal path means an equal object.
    return inspection.inspect(path)


# ---- the run


def operator_flags(rows: Sequence[ProfileRow]) -> tuple[Flag, ...]:
    """Return one flag if `rows`, the profiler's table of a call, names torch operators that compute; else ()."""
    ran = [
        row.name for row in rows if row.name.startswith("aten::") and not symbols.is_plain_operator(row.name)
    ]
    if not ran:
        return ()
    return (Flag("torch_operators", f"torch operators computed during the call: {listed(ran)}", "review"),)


def evidence_flags(evidence: Evidence, *builds: Built) -> Iterator[Flag]:
    """Yield flags for suspicious observations of one runner. It may have loaded the objects of `builds`."""
    yield from _library_flags(evidence.new_code, builds)
    if evidence.unseen:
        message = f"the judge could not observe all of the kernel's process: {evidence.unseen}"
        yield Flag("hides_from_view", message, "review")
    working_s = evidence.frozen_cpu_s
    if working_s > max(_MOST_FROZEN_CPU_S, _MOST_FROZEN_SHARE * evidence.frozen_wall_s):
        message = f"the kernel's process used {1e3 * working_s:.0f} ms of CPU time between calls, while it was stopped"
        yield Flag("works_while_stopped", message, "rejected")
    if evidence.unstopped >= max(_LEAST_UNSTOPPED, evidence.stops / 2):
        # A child process can continue its stopped parent, which is cheating. Without one, the machine may be slow.
        message = (
            f"the kernel's process did not stop at {evidence.unstopped} of {evidence.stops} requests to stop"
        )
        yield Flag("works_while_stopped", message, "rejected" if evidence.children else "review")
    if evidence.children:
        yield Flag(
            "starts_processes",
            f"the kernel's process had running child processes: {evidence.children}",
            "review",
        )
    if evidence.extra_cpus:
        cores = ", ".join(str(cpu) for cpu in evidence.extra_cpus[:8])
        yield Flag("more_cores", f"a thread may run on cores that the call was not given: {cores}", "review")


def late_flags(runners: Sequence[Evidence]) -> Iterator[Flag]:
    """Yield a flag if a part's runners used CPU time after many of the judge's stop signals (`Evidence.late`).

    A few late stops may come from a slow system. Measured with ten to sixteen busy processes on two cores: 329 of 379
    stops were late for kernels with hidden threads, and none of 441 for honest kernels.
    """
    # The judge stops each runner once before the first call, so that stop says nothing about the kernel.
    late, stops = sum(one.late for one in runners), sum(max(0, one.stops - 1) for one in runners)
    if late >= max(_LEAST_LATE, stops / 6):
        message = (
            f"the kernel's process used CPU time after the judge had stopped it ({late} of {stops} stops)"
        )
        yield Flag("works_while_stopped", message, "rejected")


def _library_flags(new_code: Sequence[str], builds: Sequence[Built]) -> Iterator[Flag]:
    own = {build.object_path.name for build in builds if build.object_path}
    foreign = [path for path in new_code if _is_foreign(path, own)]
    if not foreign:
        return
    deliberate = any(
        flag.code in ("calls_the_loader", "loads_a_library")
        for build in builds
        for flag in inspect_object(build)
    )
    proved = deliberate or any(_REFERENCE in os.path.basename(path) for path in foreign)
    message = f"code of other libraries appeared in the kernel's process: {listed(map(_end_of, foreign))}"
    yield Flag("loaded_a_library", message, "rejected" if proved else "review")


def _end_of(path: str) -> str:
    """Return the path, or if it is longer than LONGEST_NAME characters, "..." and its end with the file's name."""
    return path if len(path) <= LONGEST_NAME else f"...{path[3 - LONGEST_NAME :]}"


def _is_foreign(path: str, own: set[str]) -> bool:
    name = os.path.basename(path).removesuffix(" (deleted)")
    return name not in own and not _RUNTIME.match(name) and not _OWN_FOLDERS.search(path)


# ---- the times


def time_flags(timing: Timing, *, flops: float, threads: int, cores: int) -> Iterator[Flag]:
    """Yield flags for impossible times, and for use of more cores than were given.

    Args:
        flops: the smallest number of floating-point operations that compute the timed call's result.
        threads: number of threads that the call was given.
        cores: number of cores of the machine.
    """
    cpu_ms, wall_ms = timing.student_cpu_ms, timing.student_wall_ms
    floor_ms = 1e3 * flops / (_HIGHEST_HZ * flops_per_cycle())
    for clock, taken_ms, least_ms in (("CPU", cpu_ms, floor_ms), ("wall", wall_ms, floor_ms / max(1, cores))):
        if taken_ms and median(taken_ms) < least_ms:
            message = (
                f"{median(taken_ms):.3f} ms of {clock} time for {flops / 1e6:.0f} million operations: "
                f"no machine of this kind needs less than {least_ms:.3f} ms, so the work was done elsewhere"
            )
            yield Flag("impossible_time", message, "rejected")
            break
    if cpu_ms and wall_ms:
        used = median(cpu / wall for cpu, wall in zip(cpu_ms, wall_ms, strict=True) if wall > 0)
        excess_ms = median(cpu_ms) - threads * median(wall_ms)
        if used > _MORE_CORES_FACTOR * threads and excess_ms > _MORE_CORES_MS:
            yield Flag(
                "more_cores", f"the kernel kept {used:.1f} cores busy, but was given {threads}", "review"
            )


@functools.cache
def flops_per_cycle() -> int:
    """Return the most float operations per cycle of one core. Matrix units count unless it is known to lack them."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        flags = "amx"
    plain = platform.machine() in ("x86_64", "AMD64") and "amx" not in flags
    return _FLOPS_PER_CYCLE if plain else _FLOPS_PER_CYCLE_WITH_MATRIX_UNITS


# ---- equal wrong outputs


LEAST_VALUES = 16
"""Least number of different finite values among the wrong elements for a digest: fewer may be equal by chance."""


def output_sha256(output: Array, wrong: Array) -> str | None:
    """Return a hex digest of a wrong output's shape, type and bytes. Equal digests show copies of one wrong kernel.

    `wrong`, a bool array of the output's shape, marks the wrong elements. Returns None if they have fewer than
    LEAST_VALUES different finite values, because different bugs may then give equal outputs.
    """
    from grader.core.arrays import array_bytes, np

    values = output[wrong]
    if np.unique(values[np.isfinite(values)]).size < LEAST_VALUES:
        return None
    # The prefix "torch." keeps digests comparable with stored results of earlier versions, which hashed torch tensors.
    digest = hashlib.sha256(f"{tuple(output.shape)} torch.{output.dtype.name} ".encode())
    digest.update(array_bytes(np.ascontiguousarray(output)))
    return digest.hexdigest()
