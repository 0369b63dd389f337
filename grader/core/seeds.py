"""Seeds derived from one secret number. Without it they cannot be predicted, even from other seeds that are known."""

from __future__ import annotations

import hashlib


def derive(master: int, *labels: object) -> int:
    """Derive a seed of 63 bits from a master seed and labels. Equal arguments give the same seed.

    The seed is a hash (SHA-256) because a kernel can compute the seed of torch's generator from its inputs. Thanks to
    the hash, that seed gives away neither the inputs of the next call nor the output rows that will be checked.
    """
    text = "\x00".join([str(master), *map(str, labels)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
