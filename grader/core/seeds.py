"""Seeds from one secret number: repeatable with it, unpredictable without it even if some of them are known."""

from __future__ import annotations

import hashlib


def derive(master: int, *labels: object) -> int:
    """Derive a seed of 63 bits from a master seed and labels. Equal arguments give the same seed.

    Torch's CPU generator can be run backwards from its numbers to its seed. The seed is therefore a hash (SHA-256). A
    kernel that knows one call's inputs can compute neither the next call's nor the rows of its answer that are checked.
    """
    text = "\x00".join([str(master), *map(str, labels)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
