"""A small GPT, with nanoGPT's shapes and names, so that nanoGPT's checkpoints can be loaded.

The model multiplies queries by 1/sqrt(d), because the kernels of the assignment do not scale. Training uses
`GPT.forward`, plain causal PyTorch. `textgen.kernel` runs the same layers token by token with another attention. In
shapes, B is the batch, T time (tokens), C channels, H heads, and d = C / H. "Stream" is the residual stream: the sum of
the embedding and the outputs of the layers so far.

Sources: Radford et al. 2019 (GPT-2); Su et al. 2021 (rotary positions); github.com/karpathy/nanoGPT (shapes).
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
    """Sizes and variants of a model. `block_size` is the context length in tokens with which the model was trained.

    `positions`: with "rotary", queries and keys are rotated, so that only distances count and a window can slide along
    a text of any length. With "learned", a vector is added for each of `block_size` positions, as in GPT-2. `gelu` is
    "exact" or "tanh". `scale` multiplies the queries; None means 1/sqrt(d). `bias`: True if linear maps add a vector.
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


class Weights(nn.Module):
    """A weight and an optional bias of a linear map or a normalisation.

    A matrix gets its values later, from a file or by `GPT.initialise`. On the device "meta", drawing random values here
    would make torch import modules for a second.
    """

    def __init__(self, *shape: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape) if len(shape) == 1 else torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(shape[0])) if bias else None


def _linear(x: Tensor, to: Weights) -> Tensor:
    return F.linear(x, to.weight, to.bias)


def _norm(x: Tensor, by: Weights) -> Tensor:
    return F.layer_norm(x, by.weight.shape, by.weight, by.bias, 1e-5)


class Rotary:
    """Rotates channel pairs (i, i + d/2) by position times frequency, so that q·k depends only on the distance of the
    two tokens.

    This is not a torch module: it has no weights, and its table needs memory even if the weights are on "meta".
    """

    def __init__(self, head_size: int) -> None:
        half = torch.arange(0, head_size, 2, device="cpu") / head_size
        self._frequencies = ROTARY_BASE**-half  # (d/2,)
        self._turns = torch.empty(0, head_size // 2, device="cpu", dtype=torch.complex64)

    def __call__(self, x: Tensor, start: int) -> Tensor:
        """Return x (B, T, heads, d) rotated. Its first token is at position `start`."""
        end = start + x.shape[1]
        if end > len(self._turns):
            # Make the table twice as long as needed, so that a growing text does not need a new table for each token.
            angle = torch.arange(2 * end, device="cpu")[:, None] * self._frequencies
            self._turns = torch.polar(torch.ones_like(angle), angle)  # (2 end, d/2)
        turned = torch.complex(*x.chunk(2, dim=-1)) * self._turns[start:end, None]  # (B, T, heads, d/2)
        return torch.cat((turned.real, turned.imag), dim=-1)


class Block(nn.Module):
    """One layer, except for the attention itself: the linear maps before and after it. The caller computes attention.

    The maps are computed by functions, because calling torch modules would double the time for a single row.
    """

    def __init__(self, config: Config, rotary: Rotary | None) -> None:
        super().__init__()
        self.config, self.rotary = config, rotary
        self.scale = 1.0 / math.sqrt(config.head_size) if config.scale is None else config.scale
        self.approximate = "tanh" if config.gelu == "tanh" else "none"
        C, bias = config.n_embd, config.bias
        self.ln_1, self.ln_2 = Weights(C, bias=bias), Weights(C, bias=bias)
        self.attn = nn.ModuleDict(
            {"c_attn": Weights(3 * C, C, bias=bias), "c_proj": Weights(C, C, bias=bias)}
        )
        self.mlp = nn.ModuleDict(
            {"c_fc": Weights(4 * C, C, bias=bias), "c_proj": Weights(C, 4 * C, bias=bias)}
        )

    def project(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return scaled queries, keys and values, each (B, H, T, d), of the stream x (B, T, C).

        The first of the T tokens is at position `start`.
        """
        B, T, _ = x.shape
        H, d = self.config.n_head, self.config.head_size
        qkv = _linear(_norm(x, self.ln_1), self.attn["c_attn"])
        qk, v = qkv.view(B, T, 3 * H, d).split((2 * H, H), dim=2)
        if self.rotary is not None:
            qk = self.rotary(qk, start)
        q, k = qk.transpose(1, 2).chunk(2, dim=1)
        return q * self.scale, k, v.transpose(1, 2)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the stream (B, T, C) after this layer. x is the stream before, y (B, H, T, d) the attention output."""
        x = x + _linear(y.transpose(1, 2).reshape(x.shape), self.attn["c_proj"])
        wide = F.gelu(_linear(_norm(x, self.ln_2), self.mlp["c_fc"]), approximate=self.approximate)
        return x + _linear(wide, self.mlp["c_proj"])


class GPT(nn.Module):
    """The model: maps tokens (B, T) to logits (B, T, vocab_size)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict({"wte": Weights(config.vocab_size, config.n_embd)})
        if config.positions == "learned":
            self.transformer["wpe"] = Weights(config.block_size, config.n_embd)
        rotary = Rotary(config.head_size) if config.positions == "rotary" else None
        self.transformer["h"] = nn.ModuleList(Block(config, rotary) for _ in range(config.n_layer))
        self.transformer["ln_f"] = Weights(config.n_embd, bias=config.bias)

    def initialise(self) -> None:
        """Draw random weights as in GPT-2, by torch's current seed. Maps that add to the stream get smaller weights."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = name.endswith("c_proj.weight")
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * self.config.n_layer) if deep else 1.0))

    @property
    def blocks(self) -> nn.ModuleList:
        return self.transformer["h"]

    def embed(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Return the stream (B, T, C) before the first layer. The first of the tokens (B, T) is at position `start`."""
        x = F.embedding(tokens, self.transformer["wte"].weight)
        if self.config.positions == "learned":
            x = x + self.transformer["wpe"].weight[start : start + tokens.shape[1]]
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Return logits (B, T, vocab_size) of the stream x (B, T, C). The output map is the embedding's transpose."""
        return F.linear(_norm(x, self.transformer["ln_f"]), self.transformer["wte"].weight)

    def forward(self, tokens: Tensor, window: int | None = None) -> Tensor:
        """Return the logits at every position. Each token attends to itself and up to `window` - 1 earlier tokens."""
        return self.logits(self.stream(tokens, window))

    def stream(self, tokens: Tensor, window: int | None = None) -> Tensor:
        """Return the stream (B, T, C) after all layers, the input of `logits`."""
        T = tokens.shape[1]
        near = None
        if window is not None and window < T:
            # (T, T), True for tokens that a token may attend to
            near = torch.ones(T, T, dtype=torch.bool).tril().triu(1 - window)
        x = self.embed(tokens)
        for block in self.blocks:
            q, k, v = block.project(x, 0)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=near, is_causal=near is None, scale=1.0)
            x = block.after(x, y)
        return x
