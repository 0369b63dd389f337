"""Finds the GPU of this machine on which kernels are judged."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grader.backends.gpu.card.arena import Card

#: Entry in `waits_for` if a submission can be judged or timed only on a machine with a GPU.
GPU = "GPU"
INTERPRETED = "TRITON_INTERPRET"


@functools.cache
def card() -> Card | None:
    """Return the judge's context on the first GPU; None without a GPU, or if TRITON_INTERPRET is set."""
    if os.environ.get(INTERPRETED, "0") not in ("", "0"):
        return None
    from grader.backends.gpu.card.arena import Card
    from grader.backends.gpu.card.driver import CudaError

    try:
        return Card()
    except (OSError, CudaError):
        return None


def architecture() -> str:
    """Return the GPU's architecture as nvcc names it ("sm_90"); "" without a GPU."""
    from grader.backends.gpu.card.driver import MAJOR, MINOR

    found = card()
    if found is None:
        return ""
    return f"sm_{found.driver.attribute(MAJOR)}{found.driver.attribute(MINOR)}"


def is_here() -> bool:
    return card() is not None
