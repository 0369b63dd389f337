"""Decoding with a key/value cache around an attention that is somebody else's."""

from __future__ import annotations

import torch
from torch import Tensor

from textgen.chunks import Chunks
from textgen.kernel import Attention
from textgen.model import GPT
from textgen.onerow import OneRow


class Decoder:
    """A model with its cache in the middle of `batch` texts of at most `length` tokens.

    `answers` are the attention's answers of the last `extend`, (B, H, T, d) for each layer; `streams` (B, length, C)
    is what `GPT.logits` was applied to at each position so far.
    """

    def __init__(self, model: GPT, attend: Attention, batch: int, length: int, window: int) -> None:
        config = model.config
        self.model, self.attend, self.window = model, attend, window
        self._one_row = OneRow(model)
        shape = (config.n_layer, batch, config.n_head, length, config.head_size)
        self._keys, self._values = torch.empty(shape), torch.empty(shape)
        self._by_layer = list(zip(self._keys, self._values, strict=True))
        self._chunks: list[Chunks | None] = [None] * config.n_layer
        self._forget_chunks()
        self.position = 0
        self.answers: list[Tensor] = []
        self.streams = torch.empty(batch, length, config.n_embd)

    @torch.inference_mode()
    def extend(self, tokens: Tensor) -> Tensor:
        """Take further tokens (B, T), a prompt or one for each text; returns the logits after the last, (B, V).

        The linear maps see all T at once, layer after layer, and attention is the cache's business: each token's
        query meets the keys of its window, whatever T is.
        """
        start, end = self.position, self.position + tokens.shape[1]
        first = max(0, start - self.window + 1)
        x = self.model.embed(tokens, start)
        one = tokens.shape[1] == 1
        if one:
            x = x[:, 0]
        self.answers = []
        for layer, block in enumerate(self._one_row.layers if one else self.model.blocks):
            q, k, v = block.project(x, start)
            keys, values = self._by_layer[layer]  # (B, H, length, d)
            keys[:, :, start:end], values[:, :, start:end] = k, v
            y = self.attend(
                layer, start, q, keys[:, :, first:end], values[:, :, first:end], self._chunks[layer]
            )
            self.answers.append(y)
            x = block.after(x, y)
        self.position = end
        if one:
            self.streams[:, start] = x
            return self._one_row.logits(x)
        self.streams[:, start:end] = x
        return self.model.logits(x[:, -1])

    def fill(self, generator: torch.Generator, length: int) -> None:
        """Put random keys and values in the cache, as if `length` tokens had been read: for measurements of time."""
        self._keys.normal_(generator=generator)
        self._values.normal_(generator=generator)
        self._forget_chunks()
        self.position = length

    def _forget_chunks(self) -> None:
        layers, batch, heads, length, d = self._keys.shape
        if self.attend.chunk:
            window = min(self.window, length)
            self._chunks = [Chunks(batch, heads, d, window, self.attend.chunk) for _ in range(layers)]
