"""Random numbers of a test case: those of a seed, the same on every machine, with every NumPy and at any time.

They equal those of `torch.Generator` on a CPU bit for bit, which `tests/test_oracle.py` checks:
cases whose inputs were drawn by torch until version 1 of the inputs keep their seeds and their meaning. Both are made
from the 32-bit words of the Mersenne twister (Matsumoto and Nishimura, 1998); only what is done with the words is
written down here. NumPy's own ways from words to numbers (`RandomState.random_sample`, `Generator.integers`) are
others.
"""

from __future__ import annotations

import math

from grader.core.arrays import Array, np

_WORDS = 1 << 32
#: Low bits of a word that make a float32 between 0 and 1: as many as its mantissa holds.
_BITS = 24


class Draws:
    """A stream of random numbers. Two of the same seed give the same numbers in the same order of calls."""

    def __init__(self, seed: int) -> None:
        """Only the low 32 bits of `seed` matter."""
        self._twister = np.random.RandomState(seed % _WORDS)

    def words(self, count: int) -> Array:
        """Return the next `count` words, uint32."""
        return self._twister.randint(0, _WORDS, count, dtype=np.uint32)

    def uniform(self, size: tuple[int, ...], low: float = 0.0, high: float = 1.0) -> Array:
        """float32 of this size, uniform from `low` to before `high`, in steps of (high - low) / 2^24."""
        words = self.words(math.prod(size))
        words &= (1 << _BITS) - 1
        # Signed integers are converted by one instruction each.
        values = words.view(np.int32).astype(np.float32)
        values *= np.float32(high - low) * np.float32(2.0**-_BITS)
        if low:
            values += np.float32(low)
        return values.reshape(size)

    def below(self, limit: int, size: tuple[int, ...]) -> Array:
        """int64 of this size from 0 to before `limit`, which is at most 2^28."""
        return (self.words(math.prod(size)) % np.uint32(limit)).astype(np.int64).reshape(size)

    def permutation(self, count: int, first: int | None = None) -> Array:
        """Return the numbers 0 ... count - 1 in random order, int64, or only the `first` of them. `count` is below
        2^27."""
        wanted = count if first is None else min(first, count)
        jumps = self.words(max(0, count - 1)) % np.arange(count, 1, -1, dtype=np.uint32)
        order = list(range(count))
        for k, jump in enumerate(jumps[:wanted].tolist()):
            order[k], order[k + jump] = order[k + jump], order[k]
        return np.array(order[:wanted], dtype=np.int64)
