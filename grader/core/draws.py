"""Random numbers for the inputs of a case. A seed gives the same numbers on every machine and with every NumPy version.

The numbers equal those of `torch.Generator` on a CPU bit for bit (`tests/test_oracle.py`). So cases whose inputs were
once drawn by torch keep their inputs. Both generators start from the 32-bit words of the Mersenne twister (Matsumoto
and Nishimura, 1998). This module takes the words from NumPy and converts them to numbers as torch does. NumPy's own
conversions (`RandomState.random_sample`, `Generator.integers`) would give other numbers.
"""

from __future__ import annotations

import hashlib
import math

from grader.core.arrays import Array, np

_WORDS = 1 << 32
#: Number of low bits of a word from which a float32 between 0 and 1 is made: the precision of a float32.
_BITS = 24


class Draws:
    """A stream of random numbers. Streams with equal seeds give equal numbers for the same sequence of calls."""

    def __init__(self, seed: int) -> None:
        """Use the low 32 bits of `seed`; the others have no effect."""
        self._twister = np.random.RandomState(seed % _WORDS)

    def words(self, count: int) -> Array:
        """Return the next `count` words of the Mersenne twister, uint32."""
        return self._twister.randint(0, _WORDS, count, dtype=np.uint32)

    def uniform(self, size: tuple[int, ...], low: float = 0.0, high: float = 1.0) -> Array:
        """Return float32 numbers of shape `size`, uniform from `low` to `high` in steps of (high - low) / 2^24."""
        words = self.words(math.prod(size))
        words &= (1 << _BITS) - 1
        # View the words as signed integers: converting these to floats takes one instruction each, unsigned ones more.
        values = words.view(np.int32).astype(np.float32)
        values *= np.float32(high - low) * np.float32(2.0**-_BITS)
        if low:
            values += np.float32(low)
        return values.reshape(size)

    def below(self, limit: int, size: tuple[int, ...]) -> Array:
        """Return int64 numbers of shape `size` from 0 to limit - 1. `limit` is at most 2^28."""
        return (self.words(math.prod(size)) % np.uint32(limit)).astype(np.int64).reshape(size)

    def permutation(self, count: int, first: int | None = None) -> Array:
        """Return 0 ... count - 1 (below 2^27) in random order as int64, or only the first `first` of these numbers."""
        wanted = count if first is None else min(first, count)
        jumps = self.words(max(0, count - 1)) % np.arange(count, 1, -1, dtype=np.uint32)
        order = list(range(count))
        for k, jump in enumerate(jumps[:wanted].tolist()):
            order[k], order[k + jump] = order[k + jump], order[k]
        return np.array(order[:wanted], dtype=np.int64)


def derive(master: int, *labels: object) -> int:
    """Return a seed of 63 bits, derived from a master seed and labels. Equal arguments give the same seed.

    A kernel may be able to find the seed of its inputs. Seeds are hashes (SHA-256), so it cannot derive other seeds:
    those of the next inputs, or of the output rows that will be checked.
    """
    text = "\x00".join([str(master), *map(str, labels)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
