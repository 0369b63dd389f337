"""From logits to tokens: the inverse of the cumulative distribution, with one random source for each text.

`torch.multinomial` gives other tokens for a batch of four than for the same texts one by one. Here a text's tokens
depend on its own seed and logits alone, and the same draw can be applied to two sets of logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grader.core.seeds import derive


@dataclass(frozen=True)
class Choice:
    """Tokens (B,) and their margins: the distance to choosing another token. For the best token it is the gap between
    the two best logits; else the distance of the draw from the nearer end of its token's interval."""

    tokens: Tensor
    margins: Tensor


class Sampler:
    """`temperature` 0 takes the best token; `top_k` leaves out all but the k best (0: none)."""

    def __init__(self, texts: int, seed: int, temperature: float, top_k: int = 0) -> None:
        self.temperature, self.top_k = temperature, top_k
        self._sources = [torch.Generator().manual_seed(derive(seed, "text", k)) for k in range(texts)]

    def draw(self) -> Tensor:
        """Draw one number in [0, 1) for each text, (B,)."""
        return torch.stack(
            [torch.rand((), generator=source, dtype=torch.float64) for source in self._sources]
        )

    def choose(self, logits: Tensor, draw: Tensor) -> Choice:
        """The tokens that these draws (B,) pick from logits (B, V)."""
        if self.temperature == 0.0:
            best = logits.topk(2, dim=1)
            return Choice(best.indices[:, 0], best.values[:, 0] - best.values[:, 1])
        scaled = logits.double() / self.temperature
        if 0 < self.top_k < logits.shape[1]:
            least = scaled.topk(self.top_k, dim=1).values[:, -1:]
            scaled = scaled.masked_fill(scaled < least, float("-inf"))
        ends = scaled.softmax(dim=1).cumsum(dim=1)
        # Logits of a broken kernel may be NaN, and then no interval holds the draw.
        tokens = torch.searchsorted(ends, draw[:, None], right=True)[:, 0].clamp_(max=logits.shape[1] - 1)
        upper = ends.gather(1, tokens[:, None])[:, 0]
        lower = ends.gather(1, (tokens[:, None] - 1).clamp_(min=0))[:, 0] * (tokens > 0)
        return Choice(tokens, torch.minimum(draw - lower, upper - draw))
