"""The card of this machine on which kernels are judged, if there is one."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grader.backends.gpu.card.arena import Card

#: What a submission waits for whose time only a card can tell.
GPU = "GPU"
INTERPRETED = "TRITON_INTERPRET"


@functools.cache
def card() -> Card | None:
    """The judge's context on the first card, one for each process; None where there is no card, or the environment asks
    for Triton's interpreter."""
    if os.environ.get(INTERPRETED, "0") not in ("", "0"):
        return None
    from grader.backends.gpu.card.arena import Card
    from grader.backends.gpu.card.driver import CudaError

    try:
        return Card()
    except (OSError, CudaError):
        return None


def architecture() -> str:
    """The card's, as nvcc calls it ("sm_90"); "" where there is none."""
    from grader.backends.gpu.card.driver import MAJOR, MINOR

    found = card()
    if found is None:
        return ""
    return f"sm_{found.driver.attribute(MAJOR)}{found.driver.attribute(MINOR)}"


def is_here() -> bool:
    return card() is not None
