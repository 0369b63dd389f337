"""What the engine asks of a lab's reference: the same kernels for either kind of runner, and what is handed out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

#: What can be built of a reference, and read by nobody who is handed the rest.
SOURCE_SUFFIXES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".ispc", ".ptx", ".s")
Platform = tuple[str, str]
"""Names of the platform by `platform.system()` and `platform.machine()`."""


class Reference(Protocol):
    """Kernels that a student's are measured against, each under the name that a part's `reference` gives.

    All raise KitError when something cannot be built, and in a handout when it holds nothing for this platform.
    """

    def program(self) -> Path:
        """They as a program of the native runner, from the cache where it is known."""

    def for_torch(self) -> tuple[Literal["raw", "student"], Path] | None:
        """What a process with torch is to load, and how: a library with a C ABI ("raw") or an object as a student's.
        None where there is none, in a handout without sources say."""

    def sources(self) -> list[Path]:
        """What nobody who is handed the rest may read; empty in a handout."""

    def compiled(self, folder: Path, compilers: Mapping[Platform, str]) -> dict[str, Path]:
        """Objects for a handout, made in `folder`, by their path in the kit. `compilers` make code for a platform
        each, this one's among them."""
