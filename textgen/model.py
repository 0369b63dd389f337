"""A GPT to be read in one sitting, with nanoGPT's shapes and names, so that its checkpoints fit as they are.

Its attention takes queries that already hold the scale 1/sqrt(d), because the kernels of the assignment divide by
nothing. Training and reference use `GPT.forward`, plain causal PyTorch; `textgen.kernel` runs the same layers token by
token around somebody else's attention. B batch, T time, C channels, H heads, d = C / H throughout.

Radford et al. 2019 (GPT-2); Su et al. 2021 (rotary positions); github.com/karpathy/nanoGPT (the shapes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class Config:
    """Sizes of a model. `block_size` is the context it was trained on, in tokens.

    `positions`: "rotary" turns queries and keys, so that only distances count and a window can slide along a text of
    any length; "learned" adds a vector for each of `block_size` positions, as GPT-2 does. `gelu`: "exact" or "tanh".
    `scale` multiplies the queries; None means 1/sqrt(d).
    """

    vocab_size: int
    block_size: int = 256
    n_layer: int = 3
    n_head: int = 3
    n_embd: int = 96
    bias: bool = False
    positions: Literal["rotary", "learned"] = "rotary"
    gelu: Literal["exact", "tanh"] = "exact"
    scale: float | None = None

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head


class Linear(nn.Module):
    """A linear map with weights from a file or `GPT.initialise`. They are not drawn before that: on the device "meta"
    a draw alone would import modules for a second."""

    def __init__(self, inputs: int, outputs: int, config: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if config.bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """Vectors by number, with weights as in `Linear`."""

    def __init__(self, count: int, config: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, config.n_embd))

    def forward(self, numbers: Tensor) -> Tensor:
        return F.embedding(numbers, self.weight)


class LayerNorm(nn.Module):
    """Layer norm with an optional bias."""

    EPSILON = 1e-5

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.n_embd))
        self.bias = nn.Parameter(torch.zeros(config.n_embd)) if config.bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.EPSILON)


class Rotary:
    """Turns channel pairs (i, i + d/2) by position times frequency, so that q·k depends on the distance alone.

    Not a module: it holds no weight, and its tables have to be real where weights are still to come (device "meta").
    """

    def __init__(self, head_size: int) -> None:
        self.head_size = head_size
        half = torch.arange(0, head_size, 2, device="cpu") / head_size
        self._frequencies = ROTARY_BASE**-half  # (d/2,)
        self._cos = self._sin = torch.empty(0, head_size // 2, device="cpu")

    def __call__(self, x: Tensor, start: int) -> Tensor:
        """x (B, T, heads, d), the first token at position `start`."""
        end = start + x.shape[1]
        self._reach(end)
        cos, sin = self._cos[start:end, None], self._sin[start:end, None]
        left, right = x.chunk(2, dim=-1)  # (B, T, heads, d/2) each
        return torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1)

    def tables(self, end: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines (end, d/2) of the positions before `end`."""
        self._reach(end)
        return self._cos[:end], self._sin[:end]

    def _reach(self, end: int) -> None:
        if end > len(self._cos):
            # Twice as far as needed: a text that grows token by token would make new tables each time.
            angle = torch.arange(2 * end, device="cpu")[:, None] * self._frequencies
            self._cos, self._sin = angle.cos(), angle.sin()  # (2 end, d/2)


class Attention(nn.Module):
    """The two linear maps around attention; what lies between them is the caller's."""

    def __init__(self, config: Config, rotary: Rotary | None) -> None:
        super().__init__()
        self.config, self.rotary = config, rotary
        self.scale = 1.0 / math.sqrt(config.head_size) if config.scale is None else config.scale
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd, config)
        self.c_proj = Linear(config.n_embd, config.n_embd, config)

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries with the scale in them, keys and values of the tokens from position `start` on: (B, H, T, d)."""
        B, T, _ = x.shape
        H, d = self.config.n_head, self.config.head_size
        qk, v = self.c_attn(x).view(B, T, 3 * H, d).split((2 * H, H), dim=2)
        if self.rotary is not None:
            qk = self.rotary(qk, start)
        q, k = qk.transpose(1, 2).chunk(2, dim=1)
        return q * self.scale, k, v.transpose(1, 2)

    def merge(self, y: Tensor) -> Tensor:
        """Heads side by side again, and mixed: (B, H, T, d) to (B, T, C)."""
        B, H, T, d = y.shape
        return self.c_proj(y.transpose(1, 2).reshape(B, T, H * d))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.approximate = "tanh" if config.gelu == "tanh" else "none"
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd, config)
        self.c_proj = Linear(4 * config.n_embd, config.n_embd, config)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.curve(self.c_fc(x)))

    def curve(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate=self.approximate)


class Block(nn.Module):
    def __init__(self, config: Config, rotary: Rotary | None) -> None:
        super().__init__()
        self.ln_1, self.attn = LayerNorm(config), Attention(config, rotary)
        self.ln_2, self.mlp = LayerNorm(config), MLP(config)

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Map the stream (B, T, C) to attention's inputs, as `Attention.project`."""
        return self.attn.project(self.ln_1(x), start)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """The stream after this layer, from the stream before it and attention's answer (B, H, T, d)."""
        x = x + self.attn.merge(y)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Tokens (B, T) to logits (B, T, vocab_size)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict({"wte": Embedding(config.vocab_size, config)})
        if config.positions == "learned":
            self.transformer["wpe"] = Embedding(config.block_size, config)
        rotary = Rotary(config.head_size) if config.positions == "rotary" else None
        self.transformer["h"] = nn.ModuleList(Block(config, rotary) for _ in range(config.n_layer))
        self.transformer["ln_f"] = LayerNorm(config)

    def initialise(self) -> None:
        """Random weights from torch's current seed, as GPT-2 begins: the maps back into the stream are smaller."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = name.endswith("c_proj.weight")
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * self.config.n_layer) if deep else 1.0))

    @property
    def blocks(self) -> nn.ModuleList:
        return self.transformer["h"]

    def embed(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Tokens (B, T), the first at position `start`, to the stream (B, T, C)."""
        x = self.transformer["wte"](tokens)
        if self.config.positions == "learned":
            x = x + self.transformer["wpe"].weight[start : start + tokens.shape[1]]
        return x

    def logits(self, x: Tensor) -> Tensor:
        """The stream (B, T, C) to logits (B, T, vocab_size); the output map is the embedding's transpose."""
        return F.linear(self.transformer["ln_f"](x), self.transformer["wte"].weight)

    def forward(self, tokens: Tensor, window: int | None = None) -> Tensor:
        """Logits at every position, each token attending to itself and at most `window` - 1 before it."""
        return self.logits(self.stream(tokens, window))

    def stream(self, tokens: Tensor, window: int | None = None) -> Tensor:
        """Return the input of `logits`, (B, T, C)."""
        T = tokens.shape[1]
        near = None
        if window is not None and window < T:
            near = (
                torch.ones(T, T, dtype=torch.bool).tril().triu(1 - window)
            )  # (T, T), True where it may look
        x = self.embed(tokens)
        for block in self.blocks:
            q, k, v = block.project(x, 0)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=near, is_causal=near is None, scale=1.0)
            x = block.after(x, y)
        return x


# ---- the model's maps for one new token of each text: `textgen.model`, made fast for a single row
# At one row nearly all the time goes into Python calls, not into arithmetic. So this file uses no modules, stores
# weights in the order in which a row reads them, and merges sums into products. The results are those of the modules;
# `generate` compares every text with them at its end.

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
