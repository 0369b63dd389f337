"""Expected values in float64, how far a float32 kernel may be from them, and the comparison itself.

Theory of the error budget. For one head, O[i, c] = sum_j P[i, j] V[j, c] with P = softmax(Q K^T). Every way
of computing it in float32 (u = 2^-24) makes three kinds of error, and none of them is proportional to |O|:

- A score is a sum of d products; its rounding error is up to d u |q||k| and typically sqrt(d) u |q||k|. An
  error e in a score is a relative error e in its weight exp(score), and so is the rounding of score -
  maximum.
- A sum over N keys rounds N times. Errors of random sign grow as sqrt(N), but equal addends round the same
  way for thousands of steps, so the growth may be linear. The published flash update also rounds O in each
  block.
- A constant number of roundings: exp, products, the division.

Relative errors of the weights and of the products P V change O[i, c] by at most that much of A[i, c] = sum_j
P[i, j] |V[j, c]|. Where values of both signs cancel, |O| is far smaller than A and no float32 kernel keeps
its relative accuracy; where they do not, A = |O|. So the budget scales with A:

    tolerance = ABSOLUTE + u A (CONSTANT + PER_KEY N + PER_SCORE sqrt(d) |q_i| max_j |k_j|)

The factors are those of honest kernels, measured, with ten times to spare (`tests/test_oracle.py` repeats the
measurement). On random inputs at N = 1024, d = 32 the budget is 1.9e-4 A; rounding the inputs to float16
costs ten times that, to bfloat16 seventy times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Shape = Mapping[str, int]
Inputs = Mapping[str, Tensor]

#: Unit roundoff of float32: the largest relative error of one correctly rounded operation.
UNIT_ROUNDOFF = 2.0**-24

ABSOLUTE = 1e-7
CONSTANT = 40.0
PER_KEY = 2.5
PER_SCORE = 5.0

#: Scores held at once (8 MiB): bounds the memory of a large N.
_CHUNK_SCORES = 1 << 20


@dataclass(frozen=True)
class Expected:
    """What a kernel should return: `value` float64, and the largest |actual - value| accepted per element."""

    value: Tensor
    tolerance: Tensor | float


@dataclass(frozen=True)
class Comparison:
    """`wrong` is a bool tensor of the output's shape. `max_error` is max |actual - expected|, inf when an
    element is not finite. `budget_used` is the largest error as a fraction of what its element is allowed."""

    ok: bool
    max_error: float
    wrong: Tensor
    budget_used: float = 0.0


class Oracle(Protocol):
    def expected(self, inputs: Inputs, shape: Shape) -> Expected: ...


class Attention:
    """softmax(Q K^T) V for each batch and head; no scaling by 1/sqrt(d), no mask. Q, K, V: (B, H, N, d)."""

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        """The whole output, float64 (B, H, N, d)."""
        return self._for_queries(inputs, inputs["Q"])

    def expected_rows(self, inputs: Inputs, shape: Shape, rows: Tensor) -> Expected:
        """Only rows `rows` (int64, R of them, each below N) of every batch and head: float64 (B, H, R, d)."""
        return self._for_queries(inputs, inputs["Q"].index_select(2, rows))

    def flops(self, shape: Shape) -> int:
        """Operations of the two matrix products: what no way of computing it exactly can leave out."""
        return 4 * shape["B"] * shape["H"] * shape["N"] ** 2 * shape["d"]

    def _for_queries(self, inputs: Inputs, queries: Tensor) -> Expected:
        q, k, v = queries.double(), inputs["K"].double(), inputs["V"].double()
        keys, d = k.shape[2], k.shape[3]
        k_transposed, v_and_size = k.transpose(2, 3), torch.cat([v, v.abs()], dim=3)
        rows_at_once = max(1, _CHUNK_SCORES // max(1, k.shape[0] * k.shape[1] * keys))
        parts = [
            torch.softmax(chunk @ k_transposed, dim=3) @ v_and_size for chunk in q.split(rows_at_once, dim=2)
        ]
        value, size = torch.cat(parts, dim=2).split(d, dim=3)
        score_bound = q.norm(dim=3) * k.norm(dim=3).amax(2, keepdim=True)
        growth = CONSTANT + PER_KEY * keys + PER_SCORE * math.sqrt(d) * score_bound
        return Expected(value, ABSOLUTE + UNIT_ROUNDOFF * size * growth.unsqueeze(3))


class Read4D:
    """What fourDimRead returns for each row of `index`: float64 (M,), exact."""

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        flat = inputs["tensor"].reshape(-1).double()
        return Expected(flat[flat_offsets(inputs["index"], shape)], 0.0)


class Write4D:
    """The whole tensor after writing `values[m]` at each row of `index`: float64 (B, H, N, d), exact.

    A write to a wrong or to an additional place shows: elements that no index names must keep their value.
    """

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        after = inputs["tensor"].double().reshape(-1).clone()
        after[flat_offsets(inputs["index"], shape)] = inputs["values"].double()
        return Expected(after.reshape(inputs["tensor"].shape), 0.0)


ORACLES: dict[str, Attention | Read4D | Write4D] = {
    "attention": Attention(),
    "read4d": Read4D(),
    "write4d": Write4D(),
}


def flat_offsets(index: Tensor, shape: Shape) -> Tensor:
    """Row-major offsets int64 (M,) of the rows (x, y, z, b) of `index`, in a tensor of shape (B, H, N, d).

    The published convention: x * sizeX sizeY sizeZ + y * sizeY sizeZ + z * sizeZ + b, with sizes H, N and d.
    """
    x, y, z, b = index.unbind(1)
    return ((x * shape["H"] + y) * shape["N"] + z) * shape["d"] + b


def compare(expected: Expected, actual: Tensor) -> Comparison:
    """Compare an output of the right shape, of any floating type. An element that is not finite is wrong."""
    error = (actual.double() - expected.value).abs_()
    right = error <= expected.tolerance
    if error.numel() == 0:
        return Comparison(True, 0.0, ~right, 0.0)
    max_error = error.max().item()
    allowed = torch.as_tensor(expected.tolerance, dtype=torch.float64).clamp(min=1e-300)
    return Comparison(
        ok=bool(right.all()),
        max_error=max_error if math.isfinite(max_error) else math.inf,
        wrong=right.logical_not_(),
        budget_used=torch.nan_to_num((error / allowed).max(), nan=math.inf, posinf=math.inf).item(),
    )
