"""Decoding with a key/value cache around an attention that the caller supplies."""

from __future__ import annotations

import torch
from torch import Tensor

from textgen.chunks import Chunks
from textgen.kernel import Attention
from textgen.model import GPT
from textgen.onerow import OneRow


class Decoder:
    """A model with its cache in the middle of `batch` texts of at most `length` tokens.

    `answers` are the attention outputs of the last `extend`, (B, H, T, d) for each layer. `streams` (B, length, C) is
    the input of `GPT.logits` at each position so far.
    """

    def __init__(self, model: GPT, attend: Attention, batch: int, length: int, window: int) -> None:
        config = model.config
        self.model, self.attend, self.window = model, attend, window
        self._one_row = OneRow(model)
        # Keys and values of every layer.
        self._past = torch.empty(config.n_layer, batch, 2, config.n_head, length, config.head_size)
        self._by_layer = list(self._past)
        self._chunks: list[Chunks | None] = [None] * config.n_layer
        self._forget_chunks()
        self.position = 0
        self.answers: list[Tensor] = []
        self.streams = torch.empty(batch, length, config.n_embd)

    @torch.inference_mode()
    def extend(self, tokens: Tensor) -> Tensor:
        """Append tokens (B, T), a prompt or one for each text. Return the logits after the last, (B, V).

        The linear maps process all T tokens at once, layer after layer. Attention uses the cache: each token's query
        meets the keys of its window, for any T.
        """
        start, end = self.position, self.position + tokens.shape[1]
        first = max(0, start - self.window + 1)
        one = tokens.shape[1] == 1
        x = self._one_row.embed(tokens, start) if one else self.model.embed(tokens, start)
        self.answers = []
        for layer, block in enumerate(self._one_row.layers if one else self.model.blocks):
            past = self._by_layer[layer]  # (B, 2, H, length, d)
            if one:
                q, new = block.project(x, start)
                past.narrow(3, start, 1).copy_(new)
            else:
                q, past[:, 0, :, start:end], past[:, 1, :, start:end] = block.project(x, start)
            k, v = past.narrow(3, first, end - first).unbind(1)
            y = self.attend(layer, start, q, k, v, self._chunks[layer])
            self.answers.append(y)
            x = block.after(x, y)
        self.position = end
        if one:
            self.streams.select(1, start).copy_(x)
            return self._one_row.logits(x)
        self.streams[:, start:end] = x
        return self.model.logits(x[:, -1])

    def fill(self, generator: torch.Generator, length: int) -> None:
        """Put random keys and values in the cache, as if `length` tokens had been read: for measurements of time."""
        self._past.normal_(generator=generator)
        self._forget_chunks()
        self.position = length

    def _forget_chunks(self) -> None:
        layers, batch, _, heads, length, d = self._past.shape
        if self.attend.chunk:
            window = min(self.window, length)
            self._chunks = [Chunks(batch, heads, d, window, self.attend.chunk) for _ in range(layers)]
