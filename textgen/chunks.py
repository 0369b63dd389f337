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
from torch.nn import functional as F

LEAST_SHARE = 1e-30
"""Of the newest key in a chunk: below it float32 loses digits, and its inverse overflows soon."""


@dataclass(frozen=True)
class Plan:
    """Where the keys go: C chunks of N rows each, every one with a copy of the newest key at its end or more."""

    key_rows: Tensor
    """(C * N,) int64: the key in each row, chunk after chunk."""
    value_rows: Tensor
    """(C * N,) int64: the same, but one past the last key where the row is a copy of the newest."""
    copies: Tensor
    """(C,) float32: how many copies each chunk holds."""

    @property
    def chunks(self) -> int:
        return len(self.copies)


@lru_cache(maxsize=64)
def plan(keys: int, most: int) -> Plan:
    """As few chunks as `most` keys in each allow, and equally long. Copies of the newest key fill the last one up."""
    chunks = -(-keys // most)
    each = -(-keys // chunks)
    rows = torch.full((chunks, each + 1), keys)
    rows[:, :each] = torch.arange(chunks * each).view(chunks, each).clamp_(max=keys)
    return Plan(
        key_rows=rows.clamp(max=keys - 1).flatten(),
        value_rows=rows.flatten(),
        copies=(rows == keys).sum(dim=1).float(),
    )


def split(plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A query (B, H, 1, d) and its keys and values (B, H, keys, d) as Q, K, V (B * C, H, N, d + 1) for one call."""
    B, H, _, d = k.shape
    C, rows = plan.chunks, len(plan.key_rows)
    values = F.pad(v, (0, 1, 0, 1))
    values[:, :, -1, -1] = 1.0  # what a copy of the newest key has for a value
    parts = (
        F.pad(q, (0, 1)).expand(B, H, rows, d + 1),
        F.pad(k, (0, 1)).index_select(2, plan.key_rows),
        values.index_select(2, plan.value_rows),
    )
    Q, K, V = (part.unflatten(2, (C, -1)).transpose(1, 2).flatten(0, 1) for part in parts)
    return Q, K, V


def mergeable(answers: Tensor) -> bool:
    """Whether the newest key's share, in the last channel of (B * C, H, 1, d + 1) answers, can be divided by."""
    return float(answers[..., -1].min()) >= LEAST_SHARE  # which NaN is not, either


def merge(plan: Plan, answers: Tensor) -> Tensor:
    """One row of each chunk's answer, (B * C, H, 1, d + 1), to the attention over all keys (B, H, 1, d)."""
    parts = answers.unflatten(0, (-1, plan.chunks))  # (B, C, H, 1, d + 1)
    # Each chunk's sum of exp(score), in units of the newest key's exp(score).
    sums = plan.copies[:, None, None, None] / parts[..., -1:]  # (B, C, H, 1, 1)
    return (sums * parts[..., :-1]).sum(dim=1) / (sums.sum(dim=1) - plan.copies.sum())
