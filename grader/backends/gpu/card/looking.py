"""A tensor on the card as an array, of which only what is looked at comes to the judge's memory.

Sixteen rows of a tensor of 67 million numbers are checked in a timed call: to copy and widen all of them took longer
than everything else in a round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grader.core.arrays import Array, np
from grader.core.precision import ITEM_BYTES, widened

FEW_ROWS = 4
"""Rows are copied one by one if less than one in so many is asked for."""


class OnCard(np.lib.mixins.NDArrayOperatorsMixin):
    """Reads as an array does, 16-bit types as float32. `read(offset, size)` gives bytes of the tensor, which has to
    stay as it is for as long as this is used."""

    def __init__(self, read: Callable[[int, int], bytearray], shape: tuple[int, ...], dtype: str) -> None:
        self._read, self.shape, self._dtype = read, shape, dtype
        self.ndim = len(shape)
        self._kind = np.dtype(np.uint16) if dtype == "bfloat16" else np.dtype(dtype)
        self._stored: Array | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        first, *rest = index if isinstance(index, tuple) and index else (index,)
        if isinstance(first, np.ndarray) and first.dtype.kind in "iu":
            rows, places = np.unique(first, return_inverse=True)
            if 0 < len(rows) <= len(self) // FEW_ROWS and rows[0] >= 0:
                found = np.stack([self._row(int(row)) for row in rows])
                return widened(found[(places.reshape(first.shape), *rest)], self._dtype)
        return widened(self._all()[index], self._dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        whole = widened(self._all(), self._dtype)
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **how: Any) -> Any:
        given = [np.asarray(each) if isinstance(each, OnCard) else each for each in inputs]
        return getattr(ufunc, method)(*given, **how)

    def __getattr__(self, name: str) -> Any:
        """What else an array has, from all of it."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def _row(self, row: int) -> Array:
        if row >= len(self):
            raise IndexError(f"row {row} of {len(self)}")
        count = 1
        for length in self.shape[1:]:
            count *= length
        size = count * ITEM_BYTES[self._dtype]
        return np.frombuffer(self._read(row * size, size), self._kind).reshape(self.shape[1:])

    def _all(self) -> Array:
        if self._stored is None:
            count = 1
            for length in self.shape:
                count *= length
            data = self._read(0, count * ITEM_BYTES[self._dtype])
            self._stored = np.frombuffer(data, self._kind).reshape(self.shape)
        return self._stored
