"""Decoding with a key/value cache around an attention that is somebody else's."""

from __future__ import annotations

import torch
from torch import Tensor

from textgen.kernel import Attend
from textgen.model import GPT


class Decoder:
    """A model with its cache in the middle of `batch` texts of at most `length` tokens.

    `answers` are the attention's answers of the last `extend`, (B, H, T, d) for each layer; `streams` (B, length, C)
    is what `GPT.logits` was applied to at each position so far.
    """

    def __init__(self, model: GPT, attend: Attend, batch: int, length: int, window: int) -> None:
        config = model.config
        self.model, self.attend, self.window = model, attend, window
        shape = (config.n_layer, batch, config.n_head, length, config.head_size)
        self._keys, self._values = torch.empty(shape), torch.empty(shape)
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
        self.answers = []
        for layer, block in enumerate(self.model.blocks):
            q, k, v = block.attn.project(block.ln_1(x), start)
            self._keys[layer, :, :, start:end] = k
            self._values[layer, :, :, start:end] = v
            rows = (layer, slice(None), slice(None), slice(first, end))
            y = self.attend(layer, start, q, self._keys[rows], self._values[rows])
            self.answers.append(y)
            x = x + block.attn.merge(y)
            x = x + block.mlp(block.ln_2(x))
        self.streams[:, start:end] = x
        self.position = end
        return self.model.logits(x[:, -1])

    def fill(self, generator: torch.Generator, length: int) -> None:
        """Put random keys and values in the cache, as if `length` tokens had been read: for measurements of time."""
        self._keys.normal_(generator=generator)
        self._values.normal_(generator=generator)
        self.position = length
