"""NumPy as the judge uses it: one thread for BLAS, and the types and bytes of what goes through a runner's pipe.

Every module that computes takes `np` from here and not from NumPy itself: the BLAS library reads how many threads to
start when it is loaded. Threads of its own would go on spinning for milliseconds after a product, beside a kernel that
is being timed, and a process that has threads cannot safely be forked. Where several threads pay, the judge starts them
itself and waits for their end. Only what NumPy starts in a process that had imported it before is out of reach.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

#: Of the BLAS libraries that NumPy is built with: OpenBLAS, MKL, Accelerate.
_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """These environment variables for a while: processes that are started later get those of before."""
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
    """Signals are handled afterwards. What a handler raises while a module is imported may be lost: NumPy's generators,
    which Cython compiled, take any exception at one place for a registration that is not possible, and Ctrl-C too."""
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

    # Else imported when the first inputs are drawn.
    import numpy.random

# glibc gives freed memory back to the system from a size on that grows with the largest array freed so far, and getting
# it again takes longer than what is done in it: a thousandth of a second for inputs of 1.5 MB. This one is not touched.
np.empty(31 << 20, np.uint8)

__all__ = ["Array", "array_bytes", "as_array", "first_of", "item_bytes", "np"]

Array = np.ndarray[Any, Any]

#: Types of the protocol that NumPy lacks, with the bytes of an element.
_WITHOUT_NUMPY = {"bfloat16": 2}


def item_bytes(name: str) -> int | None:
    """Bytes of an element of the type that the protocol calls `name` ("float32", "bfloat16"); None for an unknown one.

    Only what `np.dtype(name)` has besides can be read as an array; see `as_array`.
    """
    if name in _WITHOUT_NUMPY:
        return _WITHOUT_NUMPY[name]
    try:
        return np.dtype(name).itemsize
    except TypeError:
        return None


def as_array(payload: bytearray, name: str, shape: tuple[int, ...], start: int = 0) -> Array | None:
    """Bytes of a reply from `start` on as an array (not a copy of them), None for a type that NumPy lacks."""
    if name in _WITHOUT_NUMPY:
        return None
    count = 1
    for size in shape:
        count *= size
    return np.frombuffer(payload, np.dtype(name), count, start).reshape(shape)


def array_bytes(array: Array) -> memoryview:
    """The memory of a C-contiguous array as bytes, without a copy."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def first_of(mask: Array) -> tuple[int, ...]:
    """The indices of the first true element of a bool array that has one."""
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))
