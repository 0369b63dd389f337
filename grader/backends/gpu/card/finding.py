"""Finds the GPU on which kernels are judged. Reads its clock and the reasons why the driver slows the clock.

The package nvidia-ml-py reads the clock. It is optional: if it is missing or cannot read the clock, rounds of timed
calls in which the clock changed are not noticed and not repeated.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grader.backends.gpu.card.driver import CudaError, Driver

if TYPE_CHECKING:
    from grader.backends.gpu.card.arena import Card


#: Entry in `waits_for` if a submission can be judged or timed only on a machine with a GPU.
GPU = "GPU"
INTERPRETED = "TRITON_INTERPRET"


@functools.cache
def card() -> Card | None:
    """Return the judge's context on the first GPU; None without a GPU, or if TRITON_INTERPRET is on."""
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


#: Entry in `waits_for` if the GPU's clock changed during every round of a long series of rounds.
STEADY_CLOCK = "steady-clock"
STEADY = 0.03
"""If the clocks of two calls of a kernel differ by more than this share, their times cannot be compared."""
POWER_LIMIT = "power limit"
#: Bits of NVML's constants nvmlClocksEventReason*, for reasons that slow the clock of a busy GPU.
SLOWED_BY = {0x04: POWER_LIMIT, 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}


@dataclass(frozen=True)
class Reading:
    """Clock rate of the GPU's multiprocessors at one moment, and the reasons why the rate is reduced."""

    mhz: int
    slowed_by: frozenset[str] = frozenset()


class SmClock:
    """Reader for the clock rate of one GPU's multiprocessors."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def read(self) -> Reading | None:
        """Return the current clock rate; None if the library does not report it."""
        library = self._library
        try:
            mhz = library.nvmlDeviceGetClockInfo(self._handle, library.NVML_CLOCK_SM)
            reasons = library.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except library.NVMLError:
            return None
        return Reading(int(mhz), frozenset(name for bit, name in SLOWED_BY.items() if reasons & bit))


def clock_of(driver: Driver) -> SmClock | None:
    """Return a reader for the clock rate of the driver's GPU; None if the rate cannot be read."""
    try:
        # Import by name: this package is optional.
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    bus = ctypes.create_string_buffer(32)
    try:
        driver("cuDeviceGetPCIBusId", bus, ctypes.c_int(32), ctypes.c_int(driver.device))
        library.nvmlInit()
        return SmClock(library, library.nvmlDeviceGetHandleByPciBusId(bus.value))
    except (CudaError, AttributeError, library.NVMLError):
        return None


def is_steady(readings: Sequence[Reading]) -> bool:
    """Return True if clock readings from calls of one kernel are about equal, or if they prove nothing.

    If the power limit is the only reason for a slow clock, the driver changes the clock within each call. Then a single
    reading proves nothing: on an H100, readings differed by 8 % for matrix products whose times differed by 0.6 %.
    """
    if any(reading.slowed_by == {POWER_LIMIT} for reading in readings):
        return True
    clocks = [reading.mhz for reading in readings]
    return not clocks or max(clocks) <= (1 + STEADY) * min(clocks)
