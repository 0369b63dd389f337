"""Interface of a lab's reference: the kernels that the runners load, and the files that a handout holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

#: Suffixes of a reference's source files, which no handout may hold.
SOURCE_SUFFIXES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".ispc", ".ptx", ".s")
Platform = tuple[str, str]
"""A platform, as `platform.system()` and `platform.machine()` name it."""


class Reference(Protocol):
    """Kernels that a student's are compared with, each under the name that a part's `reference` gives.

    All methods raise KitError if something cannot be built, or if a handout holds nothing for this platform.
    """

    def program(self) -> Path:
        """Return the kernels as a program of the native runner, from the cache if it is there."""

    def for_torch(self) -> tuple[Literal["raw", "student"], Path] | None:
        """Return the kind and path of the file that a process with torch loads.

        "raw" is a library with a C ABI; "student" is an object like a student's. None without such a file, for example
        in a handout without sources.
        """

    def sources(self) -> list[Path]:
        """List the source files that a handout leaves out; empty in a handout."""

    def compiled(self, folder: Path, compilers: Mapping[Platform, str]) -> dict[str, Path]:
        """Compile objects for a handout into `folder`. Return them by their path in the kit.

        `compilers` maps each platform, this one included, to a compiler for it.
        """
