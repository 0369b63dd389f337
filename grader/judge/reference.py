"""What the engine asks of a lab's reference: the same kernels for either kind of runner."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol


class Reference(Protocol):
    """Kernels that a student's are measured against, each under the name that a part's `reference` gives.

    Both raise KitError when they cannot be built.
    """

    def program(self) -> Path:
        """They as a program of the native runner, from the cache where it is known."""

    def for_torch(self) -> tuple[Literal["raw", "student"], Path]:
        """What a process with torch is to load, and how: a library with a C ABI ("raw") or an object as a student's."""
