"""Seeds from one secret number: repeatable for whoever knows it, of no use to whoever has seen some of them."""

from __future__ import annotations

import hashlib


def derive(master: int, *labels: object) -> int:
    """A seed of 63 bits for what the labels name. The same master and labels give the same seed.

    Torch's CPU generator can be turned back from its numbers to its seed. A hash stands between, so that a kernel that
    knows one call's inputs still cannot tell the next call's, nor which rows of its answer will be looked at.
    """
    text = "\x00".join([str(master), *map(str, labels)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
