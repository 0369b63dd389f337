"""Reference of a GPU lab: `reference.py` with Triton kernels, and `reference.cu`, in the lab's folder.

A handout contains neither file, because they are solutions. With a handout, results are judged but times are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from grader.assignment.labs import Platform
from grader.core.errors import KitError

SOURCES = {"triton": "reference.py", "cuda": "reference.cu"}


class KernelReference:
    """The reference of a lab in `folder`. `assignment.labs.Reference` describes its methods."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def source(self, language: str) -> Path | None:
        """Return the reference's file for a language; None if this copy of the kit has none."""
        path = self.folder / SOURCES[language]
        return path if path.is_file() else None

    def program(self) -> Path:
        raise KitError(
            f"the reference in {self.folder} consists of GPU kernels, so it cannot be built as a native program"
        )

    def for_torch(self) -> tuple[Literal["raw", "student"], Path] | None:
        return None

    def sources(self) -> list[Path]:
        return [path for language in SOURCES if (path := self.source(language)) is not None]

    def compiled(self, folder: Path, compilers: Mapping[Platform, str]) -> dict[str, Path]:
        return {}
