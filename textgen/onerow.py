"""The model's maps for one new token of each text: `textgen.model`, made fast for a single row.

At one row nearly all the time goes into Python calls, not into arithmetic. So this file uses no modules, stores
weights in the order in which a row reads them, and merges sums into products. The results are those of the modules;
`generate` compares every text with them at its end.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from textgen.model import GPT, Block, LayerNorm, Linear, Rotary

LARGEST_COPY = 1 << 20
"""Elements of a weight that is copied: a large one takes its time for its size, however it lies."""


class OneRow:
    """Tokens' stream (B, C) through `layers`, to logits (B, vocab_size)."""

    def __init__(self, model: GPT) -> None:
        config = model.config
        turns = None
        if config.positions == "rotary":
            turns = _Turns(model.blocks[0].attn.rotary, config.n_head)
        self.layers = [OneRowLayer(block, turns) for block in model.blocks]
        self._norm = _Norm(model.transformer["ln_f"])
        self._words = model.transformer["wte"].weight
        self._places = model.transformer["wpe"].weight if config.positions == "learned" else None
        self._outputs = _turned(self._words)

    def embed(self, tokens: Tensor, start: int) -> Tensor:
        """Tokens (B, 1) at position `start` to the stream (B, C)."""
        x = torch.embedding(self._words, tokens.view(-1))
        return x if self._places is None else x + self._places[start]

    def logits(self, x: Tensor) -> Tensor:
        return torch.mm(self._norm(x), self._outputs)


class OneRowLayer:
    """Computations before and after one layer's attention."""

    def __init__(self, block: Block, turns: _Turns | None) -> None:
        attn, mlp = block.attn, block.mlp
        self._heads, self._d, self._turns = attn.config.n_head, attn.config.head_size, turns
        self._scale = attn.scale
        self._norm_1, self._norm_2 = _Norm(block.ln_1), _Norm(block.ln_2)
        self._mixed = _Map(attn.c_proj.weight, attn.c_proj.bias)
        if turns is None:
            self._inputs = _Map(attn.c_attn.weight, attn.c_attn.bias)
        else:
            self._inputs = _Map(*_with_partners(attn.c_attn, self._heads, self._scale))
        folds = mlp.approximate == "none" and mlp.c_fc.weight.numel() <= LARGEST_COPY
        self._curve = None if folds else mlp.curve
        # x / 2 * (1 + erf(x / sqrt 2)): with z = x / sqrt 2 out of the first map, it is (z + z * erf(z)) / sqrt 2.
        inner = math.sqrt(0.5) if folds else 1.0
        self._wide = _Map(mlp.c_fc.weight, mlp.c_fc.bias, inner)
        self._narrow = _Map(mlp.c_proj.weight, mlp.c_proj.bias, inner, bias_factor=1.0)

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Queries with the scale in them (B, H, 1, d), and keys and values (B, 2, H, 1, d), of the token at position
        `start`."""
        B, H, d = x.shape[0], self._heads, self._d
        row = self._inputs(self._norm_1(x))
        if self._turns is None:
            row.narrow(1, 0, H * d).mul_(self._scale)
            wanted = row
        else:
            turned, wanted, partners = self._turns.parts(row)
            cos, sin = self._turns.at(start)
            turned.mul_(cos).addcmul_(partners, sin)
        qkv = wanted.view(B, 3, H, 1, d)
        return qkv.select(1, 0), qkv.narrow(1, 1, 2)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream (B, C) after this layer, from the stream before it and attention's answer (B, H, 1, d)."""
        x = self._mixed.added(x, y.reshape(x.shape))
        z = self._wide(self._norm_2(x))
        # Composed: torch.nn.functional.gelu hands one row to a library that takes longer to call than to compute.
        z = torch.addcmul(z, z, torch.erf(z)) if self._curve is None else self._curve(z)
        return self._narrow.added(x, z)


class _Turns:
    """Rotary positions of a row that holds queries, keys, values, and for each channel of the first two its partner:
    what it is to be turned with. One table for all layers."""

    def __init__(self, rotary: Rotary, heads: int) -> None:
        self._rotary, self._heads = rotary, heads
        self._turned = 2 * heads * rotary.head_size
        self._wanted = 3 * heads * rotary.head_size
        self._table: list[tuple[Tensor, Tensor]] = []

    def parts(self, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys; these and the values; the partners."""
        return (
            row.narrow(1, 0, self._turned),
            row.narrow(1, 0, self._wanted),
            row.narrow(1, self._wanted, self._turned),
        )

    def at(self, position: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines (2 C,) of each channel's angle."""
        if position >= len(self._table):
            cos, sin = self._rotary.tables(max(64, 2 * (position + 1)))  # (positions, d/2) each
            times = 4 * self._heads  # queries and keys, both halves of each head
            self._table = list(zip(cos.repeat(1, times).unbind(), sin.repeat(1, times).unbind(), strict=True))
        return self._table[position]


def _with_partners(linear: Linear, heads: int, scale: float) -> tuple[Tensor, Tensor | None]:
    """A map (3 C, C) to queries, keys and values as one (5 C, C): the scale in the queries, and after the values, for
    each channel i of a query or key, what the turn adds to it: -x[i + d/2] in a head's first half, x[i - d/2] in its
    second."""

    def widened(rows: Tensor) -> Tensor:
        queries, keys, values = rows.chunk(3)
        turned = torch.cat((queries * scale, keys))
        left, right = turned.unflatten(0, (2 * heads, 2, -1)).unbind(1)  # (2 H, d/2, ...) each
        return torch.cat((turned, values, torch.stack((-right, left), dim=1).flatten(0, 2)))

    with torch.no_grad():
        return widened(linear.weight), None if linear.bias is None else widened(linear.bias)


class _Norm:
    def __init__(self, norm: LayerNorm) -> None:
        self._settings = (norm.weight.shape, norm.weight, norm.bias, norm.EPSILON, False)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, *self._settings)


class _Map:
    """A linear map of rows (B, inputs), times a factor, and the same added to something."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, factor: float = 1.0, bias_factor: float | None = None
    ) -> None:
        bias_factor = factor if bias_factor is None else bias_factor
        with torch.no_grad():
            self._weight = _turned(weight if factor == 1.0 else weight * factor)
            self._bias = bias if bias is None or bias_factor == 1.0 else bias * bias_factor

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
