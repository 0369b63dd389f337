"""The fast kernels of fast.cpp, one program for each instruction set, and the widest that a processor has."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

from grader.backends.native.toolchain import X86
from grader.backends.torch.labreference import SourceReference

SOURCE = "fast.cpp"
_AVX2 = ("-mavx2", "-mfma")
#: Compiler flags after the assignment's own, by `grader.study.facts`' name of the instruction set; wide ones last.
LEVELS = {"avx2": _AVX2, "avx512": (*_AVX2, "-mavx512f", "-mprefer-vector-width=512")}


def kernels(folder: Path, level: str = "") -> SourceReference:
    """Return the kernels in the lab's folder for one of LEVELS; "" is the assignment's own flags."""
    return SourceReference(folder, SOURCE, level=level, flags=flags(level))


def flags(level: str) -> tuple[str, ...]:
    """Return the compiler flags for one of LEVELS; () for ""."""
    return LEVELS.get(level, ())


def all_levels(folder: Path) -> tuple[SourceReference, ...]:
    """Return the objects that a handout holds compiled: one for each of LEVELS, or one for processors other than
    x86-64."""
    levels = LEVELS if platform.machine().lower() in X86 else ("",)
    return tuple(kernels(folder, level) for level in levels)


def widest(levels: Iterable[str]) -> str:
    """Return the last of LEVELS that the processor has, or ""."""
    return next((level for level in reversed(LEVELS) if level in levels), "")
