"""Floating types of 16 bits beside float32, by the bits of their significand: stored form and conversion to float32.

NumPy has no bfloat16. Such an array is stored as the upper halves of float32 bit patterns (uint16). Computations use
float32, which holds every number of either type exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grader.core.arrays import Array

#: Names of types by `precision`, the bits of the significand with its hidden bit. Half a unit in the last place of 1 is
#: 2**-precision.
DTYPES = {24: "float32", 11: "float16", 8: "bfloat16"}
FLOATING = tuple(DTYPES.values())
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int32": 4, "int64": 8}
#: A NaN pattern that no arithmetic gives, as an unsigned integer: it marks an element as not written.
POISON = {"float32": 0x7FC14914, "float64": 0x7FF8149149149149, "float16": 0x7E49, "bfloat16": 0x7FC9}


def encoded(array: Array, dtype: str) -> Array:
    """Round numbers to nearest even, into their stored form: float16 as such, bfloat16 as uint16."""
    from grader.core.arrays import np

    if dtype != "bfloat16":
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, np.dtype(dtype))
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded_up = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    # Rounding could turn a NaN into an infinity or change its sign.
    kept = np.where(np.isnan(array), bits | np.uint32(0x400000), rounded_up)
    return (kept >> np.uint32(16)).astype(np.uint16)


def widened(array: Array, dtype: str) -> Array:
    """Convert the result of `encoded` to float32, exactly. Whole numbers and float64 stay as they are."""
    from grader.core.arrays import np

    if dtype == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32) if dtype == "float16" else array


def rounded(array: Any, precision: int) -> Array:
    """Round an array to a type with `precision` bits of significand; the result is float32."""
    dtype = DTYPES[precision]
    return widened(encoded(array, dtype), dtype)


def unwritten(sizes: tuple[int, ...], dtype: str) -> Array:
    """Return a tensor in stored form, filled with the mark "not written": POISON, or the smallest whole number."""
    from grader.core.arrays import np

    if dtype not in POISON:
        kind = np.dtype(dtype)
        return np.full(sizes, np.iinfo(kind).min, kind)
    filled = np.full(sizes, POISON[dtype], f"u{ITEM_BYTES[dtype]}")
    return filled if dtype == "bfloat16" else filled.view(dtype)
