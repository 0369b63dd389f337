"""NumPy as the judge uses it: one thread for BLAS, and the types and bytes of what goes through a runner's pipe.

Every module that computes imports `np` from here and not from NumPy: the BLAS library reads its number of threads when
it is loaded. BLAS threads would spin for milliseconds after a product, beside a kernel that is being timed. A process
with threads also cannot be forked safely. Where several threads pay, the judge starts them itself and waits for their
end. This has no effect if NumPy was imported before this module.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

#: Environment variables for the number of threads of OpenBLAS, MKL and Accelerate, with which NumPy is built.
_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the `with` block; they are restored afterwards."""
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
    """Delay signal handlers until the end of the `with` block, an import of NumPy.

    An exception raised by a handler during that import may be lost, Ctrl-C too: NumPy's generators, compiled by Cython,
    take any exception at one place for a failed registration.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
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

    # Import now, or it would be imported when the first inputs are drawn.
    import numpy.random

# Freeing this array raises glibc's threshold for returning memory to the system. Otherwise fresh memory costs more than
# the work on it: 1 ms for inputs of 1.5 MB. The array is never touched.
np.empty(31 << 20, np.uint8)

__all__ = ["Array", "array_bytes", "as_array", "first_of", "item_bytes", "np"]

Array = np.ndarray[Any, Any]

#: Bytes per element of the protocol's types that NumPy lacks.
_WITHOUT_NUMPY = {"bfloat16": 2}


def item_bytes(name: str) -> int | None:
    """Return the bytes per element of a type of the protocol ("float32", "bfloat16"); None for an unknown one.

    Only types that `np.dtype(name)` knows can be read as an array; see `as_array`.
    """
    if name in _WITHOUT_NUMPY:
        return _WITHOUT_NUMPY[name]
    try:
        return np.dtype(name).itemsize
    except TypeError:
        return None


def as_array(payload: bytearray, name: str, shape: tuple[int, ...], start: int = 0) -> Array | None:
    """Return the bytes of a reply, from `start` on, as an array without a copy; None for a type that NumPy lacks."""
    if name in _WITHOUT_NUMPY:
        return None
    count = 1
    for size in shape:
        count *= size
    return np.frombuffer(payload, np.dtype(name), count, start).reshape(shape)


def array_bytes(array: Array) -> memoryview:
    """Return the memory of a C-contiguous array as bytes, without a copy."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def first_of(mask: Array) -> tuple[int, ...]:
    """Return the indices of the first true element of a bool array that has one."""
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))
