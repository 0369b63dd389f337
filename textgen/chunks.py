"""Attention of one query over many keys, cut into chunks that a kernel without a mask processes as one batch.

A kernel computes as many rows as there are keys, but decoding needs one: over t keys its work is t x t. Over C chunks
of t / C keys each, as further entries of the batch, it is t x t / C.

To merge the chunks' outputs, each chunk's weight must be known, but a softmax has divided it out. So every chunk gets
a copy of the newest key. The copy's value is 0 except for a 1 in an extra channel. In that channel the kernel returns
exp(s) / Z, with the newest key's score s and the chunk's sum Z. The newest key is the same in all chunks, so each Z
is known in the same unit, exp(s), which never has to be computed. The sum over all keys contains exp(s) itself.
Subtracting the copies therefore costs a few bits at most, for any scores.

In real arithmetic the result is the softmax over all keys. The merge follows Dao et al. 2022 (FlashAttention).
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_SHARE = 1e-30
"""Least usable weight of the newest key in a chunk: below it float32 loses digits, and the inverse soon overflows."""


class _Views:
    """Views of the chunks in use, each (C, B, H, most + 1, d + 1): the tensors to send, and the parts that each token
    writes."""

    def __init__(self, queries: Tensor, keys: Tensor, values: Tensor) -> None:
        self.sent = queries.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1)
        self.queries = queries[..., :-1]
        self.copies = keys[..., -1:, :-1]  # (C, B, H, 1, d), of the newest key


class Chunks:
    """Keys and values of one layer in chunks of `most` keys. Each chunk has one more row at its end, a copy of the
    newest key. Unfilled rows are copies of it as well, with a value of 0.

    The chunks are kept from token to token, so that a token writes its own row only: position p lies in slot p %
    window, where it replaces the key that has just left the window. Entry c * B + b of the kernel's batch is chunk c
    of text b.
    """

    def __init__(self, batch: int, heads: int, channels: int, window: int, most: int) -> None:
        self.window, self.most, self.channels = window, most, channels
        self._shape = (batch, heads, most + 1, channels + 1)
        self._views: dict[int, _Views] = {}
        self._all: tuple[Tensor, ...] = ()  # queries, keys and values of all chunks
        self._chunks: list[tuple[Tensor, Tensor]] = []
        self.end = 0

    def follow(self, q: Tensor, k: Tensor, v: Tensor, end: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return Q, K, V (C * B, H, most + 1, d + 1) for one kernel call. The query q (B, H, 1, d) is at position end
        - 1.

        k and v (B, H, n, d) are the keys and values of its window. If the previous call was for the previous
        position, only the newest of them is read.
        """
        if self.end != end - 1 or not self._all:
            self._begin(k, v, end)
        self.end = end
        count, filled = self._filled()
        chunk, row = divmod((end - 1) % self.window, self.most)
        key = k.narrow(2, k.shape[2] - 1, 1)  # (B, H, 1, d)
        keys, values = self._chunks[chunk]
        if self.end <= self.window:
            # The last one's place: it has the rest of its chunk, too.
            keys.narrow(2, row, self.most + 1 - row).copy_(key)
        else:
            keys.narrow(2, row, 1).copy_(key)
            if filled < self.most:
                self._chunks[count - 1][0].narrow(2, filled, self.most - filled).copy_(key)
        values.narrow(2, row, 1).copy_(v.narrow(2, v.shape[2] - 1, 1))
        views = self._views.get(count)
        if views is None:
            views = self._views[count] = _Views(*(tensor[:count] for tensor in self._all))
        views.queries.copy_(q)
        views.copies.copy_(key)
        return views.sent

    def _begin(self, k: Tensor, v: Tensor, end: int) -> None:
        """Lay out the keys and values before the newest."""
        if not self._all:
            size = (-(-self.window // self.most), *self._shape)
            self._all = torch.zeros(size), torch.zeros(size), torch.zeros(size)
            self._chunks = list(zip(self._all[1][..., :-1], self._all[2][..., :-1], strict=True))
        values = self._all[2]
        values.zero_()
        values[..., -1, -1] = 1.0  # what the copy of the newest key has for a value
        for back in range(k.shape[2], 1, -1):
            chunk, row = divmod((end - back) % self.window, self.most)
            for chunks, new in zip(self._chunks[chunk], (k, v), strict=True):
                chunks[:, :, row] = new[:, :, -back]

    def _filled(self) -> tuple[int, int]:
        """Return the number of chunks that hold a key, and the number of keys in the last of them."""
        live = min(self.end, self.window)
        count = -(-live // self.most)
        return count, live - (count - 1) * self.most

    def merge(self, answers: Tensor) -> Tensor | None:
        """Merge one row of each chunk's output, (C * B, H, 1, d + 1), into the attention over all keys (B, H, 1, d).

        Return None if a chunk's share of the newest key is too small to divide by. Then the kernel is wrong, or the
        scores lie further apart than float32 can represent.
        """
        count, filled = self._filled()
        batch, d = self._shape[0], self.channels
        parts = answers.view(count, batch, *answers.shape[1:])  # (C, B, H, 1, d + 1)
        shares = parts.narrow(4, d, 1)  # (C, B, H, 1, 1)
        if not shares.min().item() >= LEAST_SHARE:  # which NaN is not, either
            return None
        # Each chunk's sum of exp(score), in units of the newest key's exp(score).
        sums = shares.reciprocal()
        copies = count + self.most - filled
        return (sums * parts.narrow(4, 0, d)).sum(dim=0).div_(sums.sum(dim=0).sub_(copies))
