"""NumPy version of `fill_sets` (gpu/card/kernels.cu), which fills the inputs of a timed call on the GPU."""

from grader.core.arrays import Array, np
from grader.core.precision import encoded, widened


def mixed(h: Array) -> Array:
    """Return MurmurHash3's finalizer (Austin Appleby, public domain) of each uint32 value."""
    h = h ^ (h >> np.uint32(16))
    h = h * np.uint32(0x85EBCA6B)
    h = h ^ (h >> np.uint32(13))
    h = h * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def uniform(count: int, seed: int, low: float, span: float, dtype: str) -> Array:
    """Return the first `count` elements of the tensor that the GPU fills with this seed, as float32; count < 2**32."""
    with np.errstate(over="ignore"):
        h = mixed(mixed(np.arange(count, dtype=np.uint32) ^ np.uint32(seed)) + np.uint32(seed))
        unit = (h >> np.uint32(8)).astype(np.float32) * np.float32(1 / 16777216)
        x = np.float32(low) + np.float32(span) * unit
    return widened(encoded(x.astype(np.float32), dtype), dtype)
