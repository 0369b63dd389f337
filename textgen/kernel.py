"""Calls of the student's attention kernel by the model, in a runner process, and decoding with a cache.

The kernel has no mask: it computes softmax(Q transpose(K)) V for as many queries as there are keys. Decoding has only
one query, that of the newest token, which may attend to all keys so far. So *every* row of Q is a copy of this query,
and all rows of the output must be equal. After the kernel has returned, one row is chosen at random and used. So a
kernel that computes only one right row is detected.

Chunks. A kernel computes as many rows as there are keys, although decoding needs one row: for t keys its work is t x t.
If the keys are cut into C chunks of t / C keys, the work is t x t / C. Each chunk is another entry of the batch.

To merge the chunks' outputs, the sum Z of exp(score) in each chunk must be known, but the softmax has divided by it. So
every chunk gets a copy of the newest key. The copy's value is 0, except for a 1 in an additional channel. In this
channel the kernel returns exp(s) / Z, where s is the newest key's score. The newest key is the same in all chunks, so
all Z are known as multiples of exp(s), whose own value is not needed. The sum over all keys is at least exp(s), because
the newest key is one of them. So subtracting the copies, C times exp(s), loses only a few bits, for any scores.

In real arithmetic the result is the softmax over all keys. The merge follows Dao et al. 2022 (FlashAttention).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

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
"""Smallest usable weight of the newest key in a chunk. Smaller weights lose digits, and 1 / weight may overflow."""


def in_chunks(q: Tensor, k: Tensor, v: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q, K, V (C * B, H, most + 1, d + 1) of one kernel call.

    The query q is (B, H, 1, d), keys and values are (B, H, n, d). They are cut into C chunks of `most` keys.
    Entry c * B + b of the kernel's batch is chunk c of text b. The last row of each chunk is a copy of the newest key.
    Missing rows of the last chunk are also copies, with a value of 0.
    """
    B, H, n, d = k.shape
    count = -(-n // most)
    queries, keys, values = torch.zeros(3, count, B, H, most + 1, d + 1).unbind()
    queries[..., :-1] = q
    keys[..., :-1] = k[:, :, -1:]
    values[..., -1, -1] = 1.0
    for to, rows in ((keys, k), (values, v)):
        whole = n // most * most
        to[: n // most, ..., :-1, :-1] = rows[:, :, :whole].unflatten(2, (-1, most)).movedim(2, 0)
        to[-1, ..., : n - whole, :-1] = rows[:, :, whole:]
    return queries.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1)


def merge(answers: Tensor, n: int, most: int) -> Tensor | None:
    """Merge one row of each chunk's output, (C * B, H, 1, d + 1), into the attention over all n keys.

    The attention is (B, H, 1, d). Return None if the newest key's weight in a chunk is too small to divide by. Then the
    kernel is wrong, or the scores differ by more than float32 can represent.
    """
    count = -(-n // most)
    parts = answers.unflatten(0, (count, -1))  # (C, B, H, 1, d + 1)
    shares = parts[..., -1:]
    if not shares.min().item() >= LEAST_SHARE:  # also true if a share is NaN
        return None
    # Each chunk's sum of exp(score), divided by the newest key's exp(score).
    sums = shares.reciprocal()
    copies = count * (most + 1) - n
    return (sums * parts[..., :-1]).sum(dim=0).div_(sums.sum(dim=0).sub_(copies))


AGREEMENT_LIMIT = 1e-4
"""Tolerance for rows that should be equal, relative to the larger of 1 and the output's largest element. Differences of
less than 1e-6 were measured."""
MASKED = -1e4
"""Score of a hidden key: exp() of it is exactly 0, whether or not the row's maximum is subtracted."""

Prefill = Literal["prefix", "mask"]

Attention = Callable[[int, int, Tensor, Tensor, Tensor], Tensor]
"""Attention that a decoder calls with (layer, start, q, k, v). It returns (B, H, T, d) for q (B, H, T, d), whose first
token is at position `start`. k and v are (B, H, n, d), and their last T keys belong to q's tokens. Each query sees the
key of its token and at most window - 1 earlier keys."""


@dataclass(frozen=True)
class Fault:
    """A fault of the kernel, with its place: token, layer, head and sample (text of the batch), each counted from 0.

    `head` and `sample` are None if the kernel returned no output. `broken`: True if the kernel returned no usable
    output, so that generation cannot continue.
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
    """Raised if the kernel crashed, hung, threw or returned an invalid output. It is caught within this package."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class StudentKernel:
    """Calls one part's function in a runner.

    `calls` is the number of calls, `wall_s` their total wall-clock time in seconds, including the pipe's.
    """

    def __init__(
        self,
        session: Session,
        part: Part,
        shape: Mapping[str, int],
        window: int,
        prefill: Prefill,
        chunk: int = 0,
    ) -> None:
        """Prepare calls of one part.

        `shape` has the sizes that the model does not set: threads, Br, Bc. More than `chunk` keys are cut into chunks
        of this size, unless `chunk` is 0.
        """
        self.session, self.part, self.shape = session, part, shape
        self.window, self.prefill, self.chunk = window, prefill, chunk
        self.calls, self.wall_s = 0, 0.0
        self.disagreement: Fault | None = None
        self._random = random.SystemRandom()
        self._names = [name for name in dict.fromkeys(part.arguments) if name in ("Q", "K", "V")]
        self._requests: dict[tuple[int, ...], Request] = {}

    def __call__(self, layer: int, start: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return attention as specified at `Attention`, computed by the kernel. Raises Broken if a call fails."""
        T, n = q.shape[2], k.shape[2]
        if T == 1 and n <= self.window:
            return self._row(layer, start, q, k, v)
        if self.prefill == "mask" and n == T:
            return self._masked(layer, start, q, k, v)
        rows = []
        for t in range(T):
            end = n - T + t + 1
            near = slice(max(0, end - self.window), end)
            rows.append(self._row(layer, start + t, q[:, :, t : t + 1], k[:, :, near], v[:, :, near]))
        return torch.cat(rows, dim=2)

    def _row(self, layer: int, token: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return attention (B, H, 1, d) of one query (B, H, 1, d) over keys and values (B, H, n, d)."""
        n = k.shape[2]
        if 0 < self.chunk < n:
            sent = in_chunks(q, k, v, self.chunk)
            merged = merge(self._one_of_equals(layer, token, *sent, q.shape[0]), n, self.chunk)
            if merged is not None:
                return merged
            # The outputs of the chunks cannot be merged: make one call with all keys.
        return self._one_of_equals(layer, token, q.expand_as(k), k, v, q.shape[0])

    def _one_of_equals(self, layer: int, token: int, q: Tensor, k: Tensor, v: Tensor, texts: int) -> Tensor:
        """Call the kernel once and return a random row (B, H, 1, d) of its output.

        q, k and v are (B, H, N, d). Within each head, all rows of q are equal. Entry e of the batch belongs to text
        e % texts.
        """
        output = self.answer(layer, token, q, k, v)
        chosen = self._random.randrange(output.shape[2])
        row = output.narrow(2, chosen, 1)
        known = self.disagreement
        # A fast test: this sum of squares is 0 if all rows have equal bits, as a right kernel's rows nearly always do.
        apart = (output - row).view(-1)
        if torch.dot(apart, apart).item() != 0.0 and (
            known is None or (token, layer) < (known.token, known.layer)
        ):
            self._hold_together(layer, token, output, row, chosen, texts)
        return row

    def _hold_together(
        self, layer: int, token: int, output: Tensor, row: Tensor, chosen: int, texts: int
    ) -> None:
        """Record a fault if rows of the output differ although their queries are equal."""
        apart = (output - row).abs().amax(dim=3)  # (B, H, n)
        limit = AGREEMENT_LIMIT * max(1.0, float(row.abs().max()))
        # This condition is also true for NaN, which is always wrong.
        wrong = ~((apart <= limit) | (output == row).all(dim=3))
        if not bool(wrong.any()):
            return
        # Find the first entry and head in which rows differ from the chosen row, and the numbers of these rows.
        entry, head = (int(x) for x in wrong.any(dim=2).nonzero()[0])
        odd = wrong[entry, head].nonzero().flatten().tolist()
        n = output.shape[2]
        other = next((k for k in odd if k != chosen), chosen)
        self.disagreement = Fault(
            f"rows of the output differ although all {n} rows of Q are the same: row {other} differs from row {chosen} "
            f"(of N={n}; so do {len(odd)} rows)",
            token, layer, head, entry % texts,
        )  # fmt: skip

    def _masked(self, layer: int, start: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the attention of a whole prompt of n tokens by one call. n additional channels make the causal mask.

        In these channels, row j of K has a 1 in channel j. Row i of Q has -10000 in channel j for each key j that query
        i must not see.
        """
        B, H, n, d = q.shape
        seen = torch.ones(n, n, dtype=torch.bool).tril().triu(1 - self.window)
        mask = torch.where(seen, 0.0, MASKED).expand(B, H, n, n)
        wide_q = torch.cat((q, mask), dim=3)
        wide_k = torch.cat((k, torch.eye(n).expand(B, H, n, n)), dim=3)
        wide_v = torch.cat((v, torch.zeros(B, H, n, n)), dim=3)
        return self.answer(layer, start, wide_q, wide_k, wide_v)[..., :d]

    def answer(self, layer: int, token: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Call the kernel once with tensors (B, H, N, d) and return its output. Raises Broken if the call fails."""
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
        """Return a request with these inputs. Other fields are cached by shape: most calls have equal shapes."""
        sizes = (shape["B"], shape["H"], shape["N"], shape["d"])
        known = self._requests.get(sizes)
        if known is None:
            known = replace(binding.request(self.part, shape, inputs), inputs=())
            self._requests[sizes] = known
        sent = [inputs[name] for name in self._names]
        return Request(known.function, known.arguments, sent, known.output_shape, known.keywords)


class TorchAttention:
    """Causal attention by PyTorch, with which the kernel's outputs are compared token by token.

    `largest_score` is the largest q·k so far. Above 88, a kernel that does not subtract the row's maximum overflows.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.largest_score = 0.0

    def __call__(self, layer: int, start: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return attention as specified at `Attention`."""
        T, n = q.shape[2], k.shape[2]
        scores = q @ k.transpose(2, 3)  # (B, H, T, n)
        if T > 1 or n > self.window:
            seen = torch.ones(T, n, dtype=torch.bool).tril(n - T).triu(n - T + 1 - self.window)
            scores = scores.masked_fill(~seen, float("-inf"))
        self.largest_score = max(self.largest_score, float(scores.max()))
        return scores.softmax(dim=3) @ v


# ---- decoding with a cache of keys and values; the caller supplies the attention


class Decoder:
    """Decodes `batch` texts of at most `length` tokens, and caches the keys and values of all tokens so far.

    The function `attend` computes the attention. `answers` are its outputs in the last `extend`, (B, H, T, d) for each
    layer. `streams` (B, length, C) has the input of `GPT.logits` at each position so far.
    """

    def __init__(self, model: GPT, attend: Attention, batch: int, length: int, window: int) -> None:
        config = model.config
        self.model, self.attend, self.window = model, attend, window
        # Keys and values: (layer, batch, K or V, head, position, channel).
        self._past = torch.empty(config.n_layer, batch, 2, config.n_head, length, config.head_size)
        self.position = 0
        self.answers: list[Tensor] = []
        self.streams = torch.empty(batch, length, config.n_embd)

    @torch.inference_mode()
    def extend(self, tokens: Tensor) -> Tensor:
        """Append tokens (B, T): a prompt, or one token for each text. Return the logits (B, V) after the last token.

        In each layer, the linear maps process all T tokens at once. Attention uses the cached keys and values of each
        token's window.
        """
        start, end = self.position, self.position + tokens.shape[1]
        first = max(0, start - self.window + 1)
        x = self.model.embed(tokens, start)
        self.answers = []
        for layer, block in enumerate(self.model.blocks):
            past = self._past[layer]  # (B, 2, H, length, d)
            q, past[:, 0, :, start:end], past[:, 1, :, start:end] = block.project(x, start)
            k, v = past.narrow(3, first, end - first).unbind(1)
            y = self.attend(layer, start, q, k, v)
            self.answers.append(y)
            x = block.after(x, y)
        self.position = end
        self.streams[:, start:end] = x
        return self.model.logits(x[:, -1])

    def fill(self, generator: torch.Generator, length: int) -> None:
        """Put random keys and values into the cache, as if `length` tokens had been decoded, to measure time."""
        self._past.normal_(generator=generator)
        self.position = length
