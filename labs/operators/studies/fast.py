"""Builds of fast.cpp, one for each instruction set, and the choice of the widest one that a processor supports."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

from grader.backends.native.toolchain import X86
from grader.backends.torch.labreference import SourceReference

SOURCE = "fast.cpp"
_AVX2 = ("-mavx2", "-mfma")
#: Compiler flags to add to the assignment's own, by the instruction set's name in `grader.study.facts`; the widest
#: last.
LEVELS = {"avx2": _AVX2, "avx512": (*_AVX2, "-mavx512f", "-mprefer-vector-width=512")}


def kernels(folder: Path, level: str = "") -> SourceReference:
    """Return the fast kernels, built for one of LEVELS, or with only the assignment's flags for ""."""
    return SourceReference(folder, SOURCE, level=level, flags=flags(level))


def flags(level: str) -> tuple[str, ...]:
    """Return the compiler flags for one of LEVELS; () for ""."""
    return LEVELS.get(level, ())


def all_levels(folder: Path) -> tuple[SourceReference, ...]:
    """Return the builds that a handout contains: one for each of LEVELS; on processors other than x86-64 only one."""
    levels = LEVELS if platform.machine().lower() in X86 else ("",)
    return tuple(kernels(folder, level) for level in levels)


def widest(levels: Iterable[str]) -> str:
    """Return the widest of LEVELS that is in `levels`, the processor's instruction sets, or ""."""
    return next((level for level in reversed(LEVELS) if level in levels), "")
