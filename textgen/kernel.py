"""The student's attention as the model calls it: in its runner process, through the judge's pipe.

The kernel has no mask: it computes softmax(Q transpose(K)) V for as many queries as there are keys. Decoding has one
new query. In full attention over the rows so far, the newest token's row *is* causal attention. So the newest query
is put into *every* row of Q, and all rows of the output must be equal. The row to read is drawn at random after the
kernel has answered, so a kernel that gets only one row right is detected.

Chunks. Many keys are cut into chunks that lie side by side in the batch. A kernel computes as many rows as there are
keys, but decoding needs one: over t keys its work is t x t. Over C chunks of t / C keys each, as further entries of
the batch, it is t x t / C.

To merge the chunks' outputs, each chunk's weight must be known, but a softmax has divided it out. So every chunk gets
a copy of the newest key. The copy's value is 0 except for a 1 in an extra channel. In that channel the kernel returns
exp(s) / Z, with the newest key's score s and the chunk's sum Z. The newest key is the same in all chunks, so each Z
is known in the same unit, exp(s), which never has to be computed. The sum over all keys contains exp(s) itself.
Subtracting the copies therefore costs a few bits at most, for any scores.

In real arithmetic the result is the softmax over all keys. The merge follows Dao et al. 2022 (FlashAttention).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from grader.assignment.records import Part
from grader.backends import binding, faults
from grader.backends.native import crashes
from grader.core.arrays import Array
from grader.explain.case_run import RESULT, outputs_of
from grader.runner.calls import Request
from grader.runner.session import Session
from textgen.model import GPT

LEAST_SHARE = 1e-30
"""Least usable weight of the newest key in a chunk: below it float32 loses digits, and the inverse soon overflows."""


class _Views:
    """Views of the chunks in use, (C, B, H, most + 1, d + 1): tensors to send, and the parts that a token writes."""

    def __init__(self, queries: Tensor, keys: Tensor, values: Tensor) -> None:
        self.sent = queries.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1)
        self.queries = queries[..., :-1]
        self.copies = keys[..., -1:, :-1]  # (C, B, H, 1, d), of the newest key


class Chunks:
    """Keys and values of one layer in chunks of `most` keys. Each chunk has one more row at its end, a copy of the
    newest key. Unfilled rows are copies of it as well, with a value of 0.

    The chunks are kept from token to token, so that a token writes its own row only: position p lies in slot p %
    window, where it replaces the key that has just left the window. Entry c * B + b of the kernel's batch is chunk c
    of text b.
    """

    def __init__(self, batch: int, heads: int, channels: int, window: int, most: int) -> None:
        self.window, self.most, self.channels = window, most, channels
        self._shape = (batch, heads, most + 1, channels + 1)
        self._views: dict[int, _Views] = {}
        self._all: tuple[Tensor, ...] = ()  # queries, keys and values of all chunks
        self._chunks: list[tuple[Tensor, Tensor]] = []
        self.end = 0

    def follow(self, q: Tensor, k: Tensor, v: Tensor, end: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return Q, K, V (C * B, H, most + 1, d + 1) for one kernel call. The query q (B, H, 1, d) is at position end
        - 1.

        k and v (B, H, n, d) are the keys and values of its window. If the previous call was for the previous
        position, only the newest of them is read.
        """
        if self.end != end - 1 or not self._all:
            self._begin(k, v, end)
        self.end = end
        count, filled = self._filled()
        chunk, row = divmod((end - 1) % self.window, self.most)
        key = k.narrow(2, k.shape[2] - 1, 1)  # (B, H, 1, d)
        keys, values = self._chunks[chunk]
        if self.end <= self.window:
            # Place of the newest key: it fills the rest of its chunk, too.
            keys.narrow(2, row, self.most + 1 - row).copy_(key)
        else:
            keys.narrow(2, row, 1).copy_(key)
            if filled < self.most:
                self._chunks[count - 1][0].narrow(2, filled, self.most - filled).copy_(key)
        values.narrow(2, row, 1).copy_(v.narrow(2, v.shape[2] - 1, 1))
        views = self._views.get(count)
        if views is None:
            views = self._views[count] = _Views(*(tensor[:count] for tensor in self._all))
        views.queries.copy_(q)
        views.copies.copy_(key)
        return views.sent

    def _begin(self, k: Tensor, v: Tensor, end: int) -> None:
        """Copy the keys and values before the newest into chunks."""
        if not self._all:
            size = (-(-self.window // self.most), *self._shape)
            self._all = torch.zeros(size), torch.zeros(size), torch.zeros(size)
            self._chunks = list(zip(self._all[1][..., :-1], self._all[2][..., :-1], strict=True))
        values = self._all[2]
        values.zero_()
        values[..., -1, -1] = 1.0  # the value of the newest key's copy
        for back in range(k.shape[2], 1, -1):
            chunk, row = divmod((end - back) % self.window, self.most)
            for chunks, new in zip(self._chunks[chunk], (k, v), strict=True):
                chunks[:, :, row] = new[:, :, -back]

    def _filled(self) -> tuple[int, int]:
        """Return the number of chunks that hold a key, and the number of keys in the last of them."""
        live = min(self.end, self.window)
        count = -(-live // self.most)
        return count, live - (count - 1) * self.most

    def merge(self, answers: Tensor) -> Tensor | None:
        """Merge one row of each chunk's output, (C * B, H, 1, d + 1), into the attention over all keys (B, H, 1, d).

        Return None if a chunk's share of the newest key is too small to divide by. Then the kernel is wrong, or the
        scores lie further apart than float32 can represent.
        """
        count, filled = self._filled()
        batch, d = self._shape[0], self.channels
        parts = answers.view(count, batch, *answers.shape[1:])  # (C, B, H, 1, d + 1)
        shares = parts.narrow(4, d, 1)  # (C, B, H, 1, 1)
        if not shares.min().item() >= LEAST_SHARE:  # which NaN is not, either
            return None
        # Each chunk's sum of exp(score), in units of the newest key's exp(score).
        sums = shares.reciprocal()
        copies = count + self.most - filled
        return (sums * parts.narrow(4, 0, d)).sum(dim=0).div_(sums.sum(dim=0).sub_(copies))


AGREEMENT_LIMIT = 1e-4
"""Limit of the difference between rows that should be equal, relative to the answer's largest element, or to 1.
Measured: below 1e-6."""
MASKED = -1e4
"""A score that exp() turns into exactly 0, with and without subtracting the row's maximum."""

Prefill = Literal["prefix", "mask"]


class Attention(Protocol):
    """Attention that a decoder calls. `chunk` is the number of keys it takes uncut, 0 for any number."""

    @property
    def chunk(self) -> int: ...

    def __call__(
        self, layer: int, start: int, q: Tensor, k: Tensor, v: Tensor, cut: Chunks | None = None
    ) -> Tensor:
        """Return the attention (B, H, T, d) of q (B, H, T, d), from position `start` on, over k and v (B, H, n, d).

        The last T keys are the queries' own tokens. Each query sees itself and at most window - 1 keys before it. `cut`
        holds the layer's keys in chunks, as earlier calls for the same texts left them."""
        ...


@dataclass(frozen=True)
class Fault:
    """The first fault found, counted from 0. `head` and `sample` are None if the kernel returned no output.

    `broken` is True if the kernel no longer answers, so that generation cannot continue.
    """

    message: str
    token: int
    layer: int
    head: int | None = None
    sample: int | None = None
    broken: bool = False

    def where(self, samples: int = 1) -> str:
        """Return the place in words."""
        place = f"token {self.token}, layer {self.layer}"
        if self.head is not None:
            place += f", head {self.head}"
        return place + (f" of sample {self.sample}" if self.sample is not None and samples > 1 else "")


class Broken(Exception):
    """The kernel crashed, hung, threw or returned something else than the output; only this package sees it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class StudentKernel:
    """Calls one part's function in its session. `calls` and `wall_s` say how often and how long, pipe included."""

    def __init__(
        self,
        session: Session,
        part: Part,
        shape: Mapping[str, int],
        window: int,
        prefill: Prefill,
        chunk: int = 0,
    ) -> None:
        """Prepare calls of one part. `shape` has the sizes that the model does not set: threads, Br, Bc. `chunk` is
        the largest number of keys that are not cut up, 0 for any number."""
        self.session, self.part, self.shape = session, part, shape
        self.window, self.prefill, self.chunk = window, prefill, chunk
        self.calls, self.wall_s = 0, 0.0
        self.disagreement: Fault | None = None
        self._random = random.SystemRandom()
        self._names = [name for name in dict.fromkeys(part.arguments) if name in ("Q", "K", "V")]
        self._requests: dict[tuple[int, ...], Request] = {}

    def __call__(
        self, layer: int, start: int, q: Tensor, k: Tensor, v: Tensor, cut: Chunks | None = None
    ) -> Tensor:
        """Return attention as the protocol `Attention` says, by the kernel. Raises Broken when it gives no answer."""
        T, n = q.shape[2], k.shape[2]
        if T == 1 and n <= self.window:
            return self._row(layer, start, q, k, v, cut)
        if self.prefill == "mask" and n == T:
            return self._masked(layer, start, q, k, v)
        rows = []
        for t in range(T):
            end = n - T + t + 1
            near = slice(max(0, end - self.window), end)
            rows.append(self._row(layer, start + t, q[:, :, t : t + 1], k[:, :, near], v[:, :, near], cut))
        return torch.cat(rows, dim=2)

    def _row(self, layer: int, token: int, q: Tensor, k: Tensor, v: Tensor, cut: Chunks | None) -> Tensor:
        """Return attention of one query (B, H, 1, d) over keys and values (B, H, n, d)."""
        if cut is not None and k.shape[2] > cut.most:
            merged = cut.merge(self._one_of_equals(layer, token, *cut.follow(q, k, v, token + 1), q.shape[0]))
            if merged is not None:
                return merged
            # The kernel is wrong, or the scores are too far apart for float32: use all keys at once.
        return self._one_of_equals(layer, token, q.expand_as(k), k, v, q.shape[0])

    def _one_of_equals(self, layer: int, token: int, q: Tensor, k: Tensor, v: Tensor, texts: int) -> Tensor:
        """Call the kernel on (B, H, N, d) tensors. All rows of each head of q are equal. Return one row of the
        output. Entry e of the batch B belongs to text e % texts."""
        output = self.answer(layer, token, q, k, v)
        chosen = self._random.randrange(output.shape[2])
        row = output.narrow(2, chosen, 1)
        known = self.disagreement
        # The rows are nearly always equal to the bit. One dot product checks that (NaN != 0).
        apart = (output - row).view(-1)
        if torch.dot(apart, apart).item() != 0.0 and (
            known is None or (token, layer) < (known.token, known.layer)
        ):
            self._hold_together(layer, token, output, row, chosen, texts)
        return row

    def _hold_together(
        self, layer: int, token: int, output: Tensor, row: Tensor, chosen: int, texts: int
    ) -> None:
        apart = (output - row).abs().amax(dim=3)  # (B, H, n)
        limit = AGREEMENT_LIMIT * max(1.0, float(row.abs().max()))
        # Written so that NaN counts as apart: of two NaNs, none is right.
        wrong = ~((apart <= limit) | (output == row).all(dim=3))
        if not bool(wrong.any()):
            return
        # The first head of the first entry, and the first of its rows that is not like the one that was read.
        entry, head = (int(x) for x in wrong.any(dim=2).nonzero()[0])
        odd = wrong[entry, head].nonzero().flatten().tolist()
        n = output.shape[2]
        other = next((k for k in odd if k != chosen), chosen)
        self.disagreement = Fault(
            f"rows of the output differ although all {n} rows of Q were the same: row {other} against row {chosen} "
            f"(of N={n}; {len(odd)} rows differ from it)",
            token, layer, head, entry % texts,
        )  # fmt: skip

    def _masked(self, layer: int, start: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Send a whole prompt in one call: the causal mask is passed as n more channels of Q and K.

        Row i of Q carries -10000 at the channels of keys that it must not see, key j a 1 at channel j.
        """
        B, H, n, d = q.shape
        seen = torch.ones(n, n, dtype=torch.bool).tril().triu(1 - self.window)
        mask = torch.where(seen, 0.0, MASKED).expand(B, H, n, n)
        wide_q = torch.cat((q, mask), dim=3)
        wide_k = torch.cat((k, torch.eye(n).expand(B, H, n, n)), dim=3)
        wide_v = torch.cat((v, torch.zeros(B, H, n, n)), dim=3)
        return self.answer(layer, start, wide_q, wide_k, wide_v)[..., :d]

    def answer(self, layer: int, token: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Call the kernel once on (B, H, N, d) tensors. Raises Broken."""
        B, H, N, d = q.shape
        shape = {**self.shape, "B": B, "H": H, "N": N, "d": d}
        inputs = {name: each.contiguous().numpy() for name, each in (("Q", q), ("K", k), ("V", v))}
        call = self.session.call(self._request(shape, inputs))
        self.calls += 1
        self.wall_s += call.wall_s
        output: Any = None
        if call.status != "ok":
            message = crashes.call_fault(faults.Broken(self.part, call, f"N={N} d={d}")).diagnosis.message
        else:
            found, misfit = outputs_of(self.part, shape, inputs, call)
            output = found[RESULT] if found else None
            message = misfit.message if misfit else ""
        if output is None:
            raise Broken(Fault(message, token, layer, broken=True))
        return torch.from_numpy(output)

    def _request(self, shape: dict[str, int], inputs: dict[str, Array]) -> Request:
        """Return the call's request. It is kept for each shape, since all layers and most tokens share it."""
        sizes = (shape["B"], shape["H"], shape["N"], shape["d"])
        known = self._requests.get(sizes)
        if known is None:
            known = replace(binding.request(self.part, shape, inputs), inputs=())
            self._requests[sizes] = known
        sent = [inputs[name] for name in self._names]
        return Request(known.function, known.arguments, sent, known.output_shape, known.keywords)


class TorchAttention:
    """Causal attention by PyTorch over the same kind of cache. The kernel is compared with it token by token.

    `largest_score` is the greatest q·k so far: a kernel that takes exp() without subtracting the row's maximum
    overflows from 88 on.
    """

    chunk = 0

    def __init__(self, window: int) -> None:
        self.window = window
        self.largest_score = 0.0

    def __call__(
        self, layer: int, start: int, q: Tensor, k: Tensor, v: Tensor, cut: Chunks | None = None
    ) -> Tensor:
        """Return attention as the protocol `Attention` says."""
        T, n = q.shape[2], k.shape[2]
        scores = q @ k.transpose(2, 3)  # (B, H, T, n)
        if T > 1 or n > self.window:
            seen = torch.ones(T, n, dtype=torch.bool).tril(n - T).triu(n - T + 1 - self.window)
            scores = scores.masked_fill(~seen, float("-inf"))
        self.largest_score = max(self.largest_score, float(scores.max()))
        return scores.softmax(dim=3) @ v


# ---- decoding with a key/value cache around an attention that the caller supplies


class Decoder:
    """A model with its cache in the middle of `batch` texts of at most `length` tokens.

    `answers` are the attention outputs of the last `extend`, (B, H, T, d) for each layer. `streams` (B, length, C) is
    the input of `GPT.logits` at each position so far.
    """

    def __init__(self, model: GPT, attend: Attention, batch: int, length: int, window: int) -> None:
        config = model.config
        self.model, self.attend, self.window = model, attend, window
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
        x = self.model.embed(tokens, start)
        self.answers = []
        for layer, block in enumerate(self.model.blocks):
            past = self._by_layer[layer]  # (B, 2, H, length, d)
            q, past[:, 0, :, start:end], past[:, 1, :, start:end] = block.project(x, start)
            k, v = past.narrow(3, first, end - first).unbind(1)
            y = self.attend(layer, start, q, k, v, self._chunks[layer])
            self.answers.append(y)
            x = block.after(x, y)
        self.position = end
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
