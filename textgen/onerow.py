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
    """Tokens (B,) to the stream (B, C), through `layers`, to logits (B, vocab_size)."""

    def __init__(self, model: GPT) -> None:
        self.model = model
        self.layers = [OneRowLayer(block) for block in model.blocks]
        self._norm = model.transformer["ln_f"]
        self._outputs = _turned(model.transformer["wte"].weight)

    def logits(self, x: Tensor) -> Tensor:
        return torch.mm(_normed(x, self._norm), self._outputs)


class OneRowLayer:
    """What lies before and after one layer's attention."""

    def __init__(self, block: Block) -> None:
        self._block, attn = block, block.attn
        self._heads, self._d, self._rotary = attn.config.n_head, attn.config.head_size, attn.rotary
        self._inputs = _turned(attn.c_attn.weight)
        self._mixed = _turned(attn.c_proj.weight)
        self._wide, self._narrow = _turned(block.mlp.c_fc.weight), _turned(block.mlp.c_proj.weight)

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries with the scale in them, keys and values (B, H, 1, d) of the token at position `start`."""
        block, H = self._block, self._heads
        row = _mapped(_normed(x, block.ln_1), self._inputs, block.attn.c_attn)
        qk, v = row.view(x.shape[0], 3 * H, 1, self._d).split((2 * H, H), dim=1)
        if self._rotary is not None:
            qk = self._rotary.one(qk, start)
        return qk[:, :H] * block.attn.scale, qk[:, H:], v

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream (B, C) after this layer, from the stream before it and attention's answer (B, H, 1, d)."""
        block = self._block
        x = _added(x, y.reshape(x.shape[0], -1), self._mixed, block.attn.c_proj)
        wide = _mapped(_normed(x, block.ln_2), self._wide, block.mlp.c_fc)
        return _added(x, block.mlp.curve(wide), self._narrow, block.mlp.c_proj)


def _turned(weight: Tensor) -> Tensor:
    """(outputs, inputs) to (inputs, outputs), where a row meets memory in its order."""
    return weight.t().contiguous() if weight.numel() <= LARGEST_COPY else weight.t()


def _normed(x: Tensor, norm: LayerNorm) -> Tensor:
    return torch.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.EPSILON, False)


def _mapped(row: Tensor, weight: Tensor, linear: Linear) -> Tensor:
    return torch.mm(row, weight) if linear.bias is None else torch.addmm(linear.bias, row, weight)


def _added(x: Tensor, row: Tensor, weight: Tensor, linear: Linear) -> Tensor:
    x = torch.addmm(x, row, weight)
    return x if linear.bias is None else x + linear.bias
