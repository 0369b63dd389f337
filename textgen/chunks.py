"""One query's attention over many keys, cut into chunks that a kernel without a mask answers side by side.

A kernel computes as many rows as there are keys, and one is wanted: over t keys its work is t x t. Over C chunks of
t / C keys each, as further entries of the batch, it is t x t / C. To put the chunks' answers together one has to know
how much weight each stands for, which a softmax has divided out. So every chunk gets the newest key once more, with a
value that is 0 but for a 1 in a channel of its own: in that channel the kernel returns exp(s) / Z, of the newest key's
score s and the chunk's sum Z. The newest key is the same in all chunks, so these tell each Z in the same unit, exp(s),
which nobody has to compute. The sum over all keys holds exp(s) itself, so that taking the copies out of it again costs
a few bits at most, whatever the scores are.

In real arithmetic the result is softmax over all keys; the merge is the one of Dao et al. 2022 (FlashAttention).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

LEAST_SHARE = 1e-30
"""Of the newest key in a chunk: below it float32 loses digits, and its inverse overflows soon."""


@dataclass(frozen=True)
class Plan:
    """Where the keys go: C chunks of N rows each, every one with a copy of the newest key at its end or more."""

    rows: Tensor
    """(C, N) int64: the key in each row."""
    copies: Tensor
    """(C, N) float32: 1 where the row is a copy of the newest key, 0 where it is a key in its own right."""

    @property
    def chunks(self) -> int:
        return self.rows.shape[0]


@lru_cache(maxsize=64)
def plan(keys: int, most: int) -> Plan:
    """As few chunks as `most` keys in each allow, and equally long. Copies of the newest key fill the last one up."""
    chunks = -(-keys // most)
    each = -(-keys // chunks)
    rows = torch.full((chunks, each + 1), keys)
    rows[:, :each] = torch.arange(chunks * each).view(chunks, each)
    copies = rows >= keys
    return Plan(rows.clamp_(max=keys - 1), copies.float())


def split(plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A query (B, H, 1, d) and its keys and values (B, H, keys, d) as Q, K, V (B * C, H, N, d + 1) for one call."""
    B, H, _, d = k.shape
    C, N = plan.rows.shape
    wide = torch.zeros(3, B, C, H, N, d + 1)
    flat = plan.rows.flatten()
    wide[0, ..., :d] = q[:, None]
    wide[1, ..., :d] = k.index_select(2, flat).view(B, H, C, N, d).transpose(1, 2)
    wide[2, ..., :d] = v.index_select(2, flat).view(B, H, C, N, d).transpose(1, 2)
    copies = plan.copies[:, None, :, None]  # (C, 1, N, 1)
    wide[2, ..., :d] *= 1.0 - copies
    wide[2, ..., d:] = copies
    Q, K, V = wide.view(3, B * C, H, N, d + 1)
    return Q, K, V


def mergeable(answers: Tensor) -> bool:
    """Whether the newest key's share, in the last channel of (B * C, H, 1, d + 1) answers, can be divided by."""
    return bool((answers[..., -1] >= LEAST_SHARE).all())


def merge(plan: Plan, answers: Tensor) -> Tensor:
    """One row of each chunk's answer, (B * C, H, 1, d + 1), to the attention over all keys (B, H, 1, d)."""
    _, H, _, wide = answers.shape
    parts = answers.view(-1, plan.chunks, H, 1, wide)
    copies = plan.copies.sum(dim=1)  # (C,)
    sums = (
        copies[:, None, None, None] / parts[..., -1:]
    )  # (B, C, H, 1, 1): each chunk's sum in units of exp(s)
    return (sums * parts[..., :-1]).sum(dim=1) / (sums.sum(dim=1) - copies.sum())
