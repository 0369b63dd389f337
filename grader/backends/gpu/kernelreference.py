"""A reference for a GPU: `reference.py` with Triton's kernels and `reference.cu` in a lab's folder.

A handout holds neither, since they are solutions: there results are judged and times are not.
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
        """Return the file of one language; None if this copy of the kit has none."""
        path = self.folder / SOURCES[language]
        return path if path.is_file() else None

    def program(self) -> Path:
        raise KitError(
            f"the reference in {self.folder} is made of kernels for a GPU: there is no program of it"
        )

    def for_torch(self) -> tuple[Literal["raw", "student"], Path] | None:
        return None

    def sources(self) -> list[Path]:
        return [path for language in SOURCES if (path := self.source(language)) is not None]

    def compiled(self, folder: Path, compilers: Mapping[Platform, str]) -> dict[str, Path]:
        return {}
