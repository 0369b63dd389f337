"""A GPT to be read in one sitting, with nanoGPT's shapes and names, so that its checkpoints fit as they are.

Its attention takes queries that already hold the scale 1/sqrt(d), because the kernels of the assignment divide by
nothing. Training and reference use `GPT.forward`, plain causal PyTorch; `textgen.decode` runs the same layers token by
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
