"""The student's attention as the model calls it: in its runner process, through the judge's pipe.

The kernel knows no mask: it computes softmax(Q transpose(K)) V for as many queries as there are keys. While a text is
decoded there is one new query, and of full attention over the rows so far the row of the newest token *is* causal
attention. So the newest query is put into *every* row of Q: all rows of the answer have to be the same, and which one
is read is drawn after the kernel has answered. A kernel that gets one row right and not the others is found out.

Many keys are cut into chunks that lie side by side in the batch: see `textgen.chunks`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from grader import binding, faults
from grader.assignment import Part
from grader.session import Request, Session
from textgen import chunks

AGREEMENT_LIMIT = 1e-4
"""Of the answer's largest element, or of 1: how far rows that should be equal may lie apart. Measured: below 1e-6."""
MASKED = -1e4
"""A score that exp() turns into exactly 0, with and without subtracting the row's maximum."""

Prefill = Literal["prefix", "mask"]
#: (layer, position of the first query, Q (B, H, T, d), K, V (B, H, n, d)) to (B, H, T, d); the last T keys are the
#: queries' own tokens. Each query sees itself and at most window - 1 keys before it.
Attend = Callable[[int, int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Fault:
    """The first thing that was wrong, counted from 0. `head` and `sample` are None where there is no answer at all.

    `broken` says that the kernel gives no answers any more, so that nothing can go on.
    """

    message: str
    token: int
    layer: int
    head: int | None = None
    sample: int | None = None
    broken: bool = False

    def where(self, samples: int = 1) -> str:
        """The place in words."""
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
        """`shape` has the sizes that are no property of the model: threads, Br, Bc. `chunk` is the most keys that are
        not cut up, 0 for any number."""
        self.session, self.part, self.shape = session, part, shape
        self.window, self.prefill, self.chunk = window, prefill, chunk
        self.calls, self.wall_s = 0, 0.0
        self.disagreement: Fault | None = None
        self._random = random.SystemRandom()
        self._last: tuple[dict[str, int], Request] | None = None

    def __call__(self, layer: int, start: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`Attend` by the kernel. Raises Broken when it gives no answer."""
        T, n = q.shape[2], k.shape[2]
        if self.prefill == "mask" and T == n > 1:
            return self._masked(layer, start, q, k, v)
        rows = []
        for t in range(T):
            end = n - T + t + 1
            near = slice(max(0, end - self.window), end)
            rows.append(self._row(layer, start + t, q[:, :, t : t + 1], k[:, :, near], v[:, :, near]))
        return rows[0] if T == 1 else torch.cat(rows, dim=2)

    def _row(self, layer: int, token: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One query (B, H, 1, d) against keys and values (B, H, n, d)."""
        n = k.shape[2]
        if 0 < self.chunk < n:
            plan = chunks.plan(n, self.chunk)
            answers = self._one_of_equals(layer, token, *chunks.split(plan, q, k, v), plan.chunks)
            if chunks.mergeable(answers):
                return chunks.merge(plan, answers)
            # A kernel that is wrong, or scores that are further apart than float32 can tell: ask for all at once.
        return self._one_of_equals(layer, token, q.expand_as(k), k, v)

    def _one_of_equals(
        self, layer: int, token: int, q: Tensor, k: Tensor, v: Tensor, entries_per_text: int = 1
    ) -> Tensor:
        """One row of the kernel's answer to (B, H, N, d) tensors, where all rows of each head of q are the same."""
        output = self.answer(layer, token, q, k, v)
        chosen = self._random.randrange(output.shape[2])
        row = output[:, :, chosen : chosen + 1]
        known = self.disagreement
        # Nearly always the rows are equal to the bit, which is seen at once (NaN never is).
        if not torch.equal(output, row.expand_as(output)) and (
            known is None or (token, layer) < (known.token, known.layer)
        ):
            self._hold_together(layer, token, output, row, chosen, entries_per_text)
        return row

    def _hold_together(
        self, layer: int, token: int, output: Tensor, row: Tensor, chosen: int, entries_per_text: int
    ) -> None:
        apart = (output - row).abs().amax(dim=3)  # (B, H, n)
        limit = AGREEMENT_LIMIT * max(1.0, float(row.abs().max()))
        # Written so that NaN counts as apart: of two NaNs, none is right.
        wrong = ~(apart <= limit)
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
            token, layer, head, entry // entries_per_text,
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
        """One call on (B, H, N, d) tensors. Raises Broken."""
        B, H, N, d = q.shape
        shape = {**self.shape, "B": B, "H": H, "N": N, "d": d}
        inputs = {"Q": q.contiguous(), "K": k.contiguous(), "V": v.contiguous()}
        call = self.session.call(self._request(shape, inputs))
        self.calls += 1
        self.wall_s += call.wall_s
        output: Any = None
        if call.status != "ok":
            message = faults.call_fault(call, self.part, f"N={N} d={d}").diagnosis.message
        else:
            output, misfit = faults.fitting_output(self.part, shape, inputs, call)
            message = misfit.message if misfit else ""
        if output is None:
            raise Broken(Fault(message, token, layer, broken=True))
        return output

    def _request(self, shape: dict[str, int], inputs: dict[str, Tensor]) -> Request:
        """`binding.request`, whose expressions are the same for all layers of a token."""
        if self._last is None or self._last[0] != shape:
            self._last = shape, binding.request(self.part, shape, inputs)
        return replace(
            self._last[1],
            inputs=[inputs[name] for name in dict.fromkeys(self.part.arguments) if name in inputs],
        )


class TorchAttention:
    """Causal attention by PyTorch over the same kind of cache: what the kernel is held against, token by token.

    `largest_score` is the greatest q·k so far: a kernel that takes exp() without subtracting the row's maximum
    overflows from 88 on.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.largest_score = 0.0

    def __call__(self, layer: int, start: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`Attend`."""
        T, n = q.shape[2], k.shape[2]
        scores = q @ k.transpose(2, 3)  # (B, H, T, n)
        if T > 1 or n > self.window:
            seen = torch.ones(T, n, dtype=torch.bool).tril(n - T).triu(n - T + 1 - self.window)
            scores = scores.masked_fill(~seen, float("-inf"))
        self.largest_score = max(self.largest_score, float(scores.max()))
        return scores.softmax(dim=3) @ v
