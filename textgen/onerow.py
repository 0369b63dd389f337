"""The model's maps for one new token of each text: `textgen.model` with what a single row makes cheap.

At one row nearly all the time goes into calling things, not into arithmetic. So there are no modules here, weights lie
the way a row reads them, and sums ride along with products. It computes what the modules compute; `generate` holds
every text against those at its end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from textgen.model import GPT, Block, LayerNorm, Linear

LARGEST_COPY = 1 << 20
"""Elements of a weight that is copied: a large one takes its time for its size, however it lies."""


class OneRow:
    """Tokens' stream (B, C) through `layers`, to logits (B, vocab_size)."""

    def __init__(self, model: GPT) -> None:
        self.layers = [OneRowLayer(block) for block in model.blocks]
        self._norm = _Norm(model.transformer["ln_f"])
        self._outputs = _turned(model.transformer["wte"].weight)

    def logits(self, x: Tensor) -> Tensor:
        return torch.mm(self._norm(x), self._outputs)


class OneRowLayer:
    """What lies before and after one layer's attention."""

    def __init__(self, block: Block) -> None:
        attn, mlp = block.attn, block.mlp
        self._heads, self._d, self._rotary = attn.config.n_head, attn.config.head_size, attn.rotary
        self._scale, self._curve = attn.scale, mlp.curve
        self._norm_1, self._norm_2 = _Norm(block.ln_1), _Norm(block.ln_2)
        self._inputs, self._mixed = _Map(attn.c_attn), _Map(attn.c_proj)
        self._wide, self._narrow = _Map(mlp.c_fc), _Map(mlp.c_proj)

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries with the scale in them, keys and values (B, H, 1, d) of the token at position `start`."""
        H = self._heads
        row = self._inputs(self._norm_1(x))
        qk, v = row.view(x.shape[0], 3 * H, 1, self._d).split((2 * H, H), dim=1)
        if self._rotary is not None:
            qk = self._rotary.one(qk, start)
        return qk[:, :H] * self._scale, qk[:, H:], v

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream (B, C) after this layer, from the stream before it and attention's answer (B, H, 1, d)."""
        x = self._mixed.added(x, y.reshape(x.shape[0], -1))
        return self._narrow.added(x, self._curve(self._wide(self._norm_2(x))))


class _Norm:
    def __init__(self, norm: LayerNorm) -> None:
        self._settings = (norm.weight.shape, norm.weight, norm.bias, norm.EPSILON, False)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, *self._settings)


class _Map:
    """A linear map of rows (B, inputs), and the same added to something."""

    def __init__(self, linear: Linear) -> None:
        self._weight, self._bias = _turned(linear.weight), linear.bias

    def __call__(self, row: Tensor) -> Tensor:
        return (
            torch.mm(row, self._weight) if self._bias is None else torch.addmm(self._bias, row, self._weight)
        )

    def added(self, x: Tensor, row: Tensor) -> Tensor:
        x = torch.addmm(x, row, self._weight)
        return x if self._bias is None else x + self._bias


def _turned(weight: Tensor) -> Tensor:
    """(outputs, inputs) to (inputs, outputs), where a row meets memory in its order."""
    return weight.t().contiguous() if weight.numel() <= LARGEST_COPY else weight.t()
