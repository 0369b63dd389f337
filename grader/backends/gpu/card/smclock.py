"""The card's clock and the driver's reasons for slowing it, from NVIDIA's management library (package nvidia-ml-py).

The package is optional: without it, or where the library does not answer, nothing is read and every round counts.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grader.backends.gpu.card.driver import CudaError, Driver

#: Name in `waits_for` of a submission on a card whose clock changes within each round.
STEADY_CLOCK = "steady-clock"
STEADY = 0.03
"""Largest relative difference of the clocks at which calls of one kernel can be compared."""
POWER_LIMIT = "power limit"
#: nvmlClocksEventReason*: reasons for a slow clock on a busy card.
SLOWED_BY = {0x04: POWER_LIMIT, 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}


@dataclass(frozen=True)
class Reading:
    """The clock of the multiprocessors at one moment, and the reasons that slow it."""

    mhz: int
    slowed_by: frozenset[str] = frozenset()


class SmClock:
    """Reader for the multiprocessor clock of one GPU."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def read(self) -> Reading | None:
        """Return the clock now; None if the library does not report it."""
        library = self._library
        try:
            mhz = library.nvmlDeviceGetClockInfo(self._handle, library.NVML_CLOCK_SM)
            reasons = library.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except library.NVMLError:
            return None
        return Reading(int(mhz), frozenset(name for bit, name in SLOWED_BY.items() if reasons & bit))


def of(driver: Driver) -> SmClock | None:
    """Return the clock of the driver's card; None if it cannot be read."""
    try:
        # Imported by name: most copies of the kit do not need it.
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
    """Return True if calls of one kernel ran at about one clock, or nothing was read.

    Under the power limit alone the driver moves the clock within each call: readings were 8 % apart where the times of
    the calls were 0.6 % apart (a product of matrices on an H100). They say nothing, and are not compared.
    """
    if any(reading.slowed_by == {POWER_LIMIT} for reading in readings):
        return True
    clocks = [reading.mhz for reading in readings]
    return not clocks or max(clocks) <= (1 + STEADY) * min(clocks)
