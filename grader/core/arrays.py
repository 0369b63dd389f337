"""NumPy with one BLAS thread, and conversions between arrays and the bytes in a runner's pipe.

Every module that computes imports `np` from here and not from NumPy: the BLAS library reads its number of threads when
it is loaded. More BLAS threads would spin for milliseconds after each matrix product and disturb the timing of a
kernel. A process with threads also cannot be forked safely. For work that is faster on several threads, the judge
starts threads and waits for their end. If NumPy was imported before this module, the number of threads is not limited.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

#: Environment variables for the number of threads of OpenBLAS, MKL and Accelerate, one of which NumPy uses.
_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the `with` block and restore them afterwards."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay signal handlers until the end of the `with` block, which imports NumPy.

    Otherwise an exception that a handler raises during the import (KeyboardInterrupt, say) might be lost: some code of
    `numpy.random` catches every exception.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers never run in this thread: Python runs them in the main thread
        return
    came: list[int] = []
    handlers = {number: handler for number in _HANDLED if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for late in came:
        signal.raise_signal(late)


with _environment(dict.fromkeys(_THREADS, "1")), _uninterrupted():
    import numpy as np

    # Newer versions of NumPy import numpy.random only on first use: import it here, with the settings above.
    import numpy.random

# Allocate and free an array, without touching its memory. When it is freed, glibc raises the size up to which it keeps
# freed memory. Otherwise each large array would get new pages from the system. For inputs of 1.5 MB this takes 1 ms,
# longer than computing with them.
np.empty(31 << 20, np.uint8)

__all__ = ["Array", "array_bytes", "as_array", "first_of", "item_bytes", "np"]

Array = np.ndarray[Any, Any]

#: Bytes per element of the element types that a runner may send and NumPy lacks.
_WITHOUT_NUMPY = {"bfloat16": 2}


def item_bytes(name: str) -> int | None:
    """Return the bytes per element of an element type ("float32", "bfloat16"); None for an unknown type."""
    if name in _WITHOUT_NUMPY:
        return _WITHOUT_NUMPY[name]
    try:
        return np.dtype(name).itemsize
    except TypeError:
        return None


def as_array(payload: bytearray, name: str, shape: tuple[int, ...], start: int = 0) -> Array | None:
    """Return bytes of a runner's reply, from byte `start` on, as an array of type `name` that shares their memory.

    Returns None for the element type bfloat16, which NumPy lacks.
    """
    if name in _WITHOUT_NUMPY:
        return None
    count = 1
    for size in shape:
        count *= size
    return np.frombuffer(payload, np.dtype(name), count, start).reshape(shape)


def array_bytes(array: Array) -> memoryview:
    """Return a view of a C-contiguous array's memory as bytes."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def first_of(mask: Array) -> tuple[int, ...]:
    """Return the index, one number for each axis, of the first True in a bool array. The array must hold a True."""
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))
