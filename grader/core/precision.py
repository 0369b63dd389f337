"""The floating types float16 and bfloat16: their stored form in NumPy arrays, and conversion to and from float32.

NumPy has no bfloat16, so such an array is stored as uint16: the upper halves of float32 bit patterns. Computations use
float32, which holds every float16 and bfloat16 number exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grader.core.arrays import Array

#: Names of floating types by their precision: the number of bits of the significand, including the hidden bit. Rounding
#: to a type changes a number between 1 and 2 by at most 2**-precision.
DTYPES = {24: "float32", 11: "float16", 8: "bfloat16"}
FLOATING = tuple(DTYPES.values())
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int32": 4, "int64": 8}
#: Bits of an unusual NaN, which no arithmetic produces: an output element that still holds it was not written.
POISON = {"float32": 0x7FC14914, "float64": 0x7FF8149149149149, "float16": 0x7E49, "bfloat16": 0x7FC9}


def encoded(array: Array, dtype: str) -> Array:
    """Round an array to `dtype` (to nearest, ties to even). Return its stored form: uint16 for bfloat16."""
    from grader.core.arrays import np

    if dtype != "bfloat16":
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, np.dtype(dtype))
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded_up = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    # Adding to the bits of a NaN could make it an infinity or change its sign: set its quiet bit instead.
    kept = np.where(np.isnan(array), bits | np.uint32(0x400000), rounded_up)
    return (kept >> np.uint32(16)).astype(np.uint16)


def widened(array: Array, dtype: str) -> Array:
    """Convert a stored form (see `encoded`) to float32 exactly. Arrays of integers and of float64 stay as they are."""
    from grader.core.arrays import np

    if dtype == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32) if dtype == "float16" else array


def rounded(array: Any, precision: int) -> Array:
    """Round an array to the type with `precision` bits of significand (see DTYPES). Return float32."""
    dtype = DTYPES[precision]
    return widened(encoded(array, dtype), dtype)


def unwritten(sizes: tuple[int, ...], dtype: str) -> Array:
    """Return an array in stored form, filled with the mark for "not written".

    The mark is the NaN of POISON, or the smallest number of an integer type.
    """
    from grader.core.arrays import np

    if dtype not in POISON:
        kind = np.dtype(dtype)
        return np.full(sizes, np.iinfo(kind).min, kind)
    filled = np.full(sizes, POISON[dtype], f"u{ITEM_BYTES[dtype]}")
    return filled if dtype == "bfloat16" else filled.view(dtype)
