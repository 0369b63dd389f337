"""The student's attention as the model calls it: in its runner process, through the judge's pipe.

The kernel has no mask: it computes softmax(Q transpose(K)) V for as many queries as there are keys. Decoding has one
new query. In full attention over the rows so far, the newest token's row *is* causal attention. So the newest query
is put into *every* row of Q, and all rows of the output must be equal. The row to read is drawn at random after the
kernel has answered, so a kernel that gets only one row right is detected.

Many keys are cut into chunks that lie side by side in the batch: see `textgen.chunks`.
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
from grader.judge.case_run import RESULT, outputs_of
from grader.runner.calls import Request
from grader.runner.session import Session
from textgen.chunks import Chunks

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
        """(layer, position of the first query, Q (B, H, T, d), K, V (B, H, n, d)) to (B, H, T, d); the last T keys
        are the queries' own tokens. Each query sees itself and at most window - 1 keys before it. `cut` is the
        layer's keys in chunks, of earlier calls for the same texts."""
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
        """`Attention` by the kernel. Raises Broken when it gives no answer."""
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
        """A whole prompt in one call: the causal mask rides along as n further channels of Q and K.

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
        """`binding.request`, whose expressions are the same for all layers and most tokens."""
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
        """`Attention`."""
        T, n = q.shape[2], k.shape[2]
        scores = q @ k.transpose(2, 3)  # (B, H, T, n)
        if T > 1 or n > self.window:
            seen = torch.ones(T, n, dtype=torch.bool).tril(n - T).triu(n - T + 1 - self.window)
            scores = scores.masked_fill(~seen, float("-inf"))
        self.largest_score = max(self.largest_score, float(scores.max()))
        return scores.softmax(dim=3) @ v
