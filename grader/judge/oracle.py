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
import os
from collections.abc import Mapping
from dataclasses import dataclass

from grader.base import machine
from grader.base.arrays import Array, np

Shape = Mapping[str, int]
Inputs = Mapping[str, Array]

#: Unit roundoff of float32: the largest relative error of one correctly rounded operation.
UNIT_ROUNDOFF = 2.0**-24

ABSOLUTE = 1e-7
CONSTANT = 40.0
PER_KEY = 2.5
PER_SCORE = 5.0

#: Scores that a thread holds at once: 512 KiB, so that they stay in its core's cache from the product with K to that
#: with V.
_CHUNK_SCORES = 1 << 16
#: Scores of a call for which other threads are started; below it takes a few milliseconds.
_SHARED_SCORES = 1 << 20
#: More threads than this wait for each other's Python.
_MOST_THREADS = 8


@dataclass(frozen=True)
class Expected:
    """What a kernel should return: `value` float64, and the largest |actual - value| accepted per element."""

    value: Array
    tolerance: Array | float


@dataclass(frozen=True)
class Comparison:
    """`wrong` is a bool array of the output's shape. `max_error` is max |actual - expected|, inf when an
    element is not finite. `budget_used` is the largest error as a fraction of what its element is allowed."""

    ok: bool
    max_error: float
    wrong: Array
    budget_used: float = 0.0


class Attention:
    """softmax(Q K^T) V for each batch and head; no scaling by 1/sqrt(d), no mask. Q, K, V: (B, H, N, d)."""

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        """The whole output, float64 (B, H, N, d)."""
        return self._for_queries(inputs, inputs["Q"])

    def expected_rows(self, inputs: Inputs, shape: Shape, rows: Array) -> Expected:
        """Only rows `rows` (int64, R of them, each below N) of every batch and head: float64 (B, H, R, d)."""
        return self._for_queries(inputs, inputs["Q"][:, :, rows])

    def flops(self, shape: Shape) -> int:
        """Operations of the two matrix products: what no way of computing it exactly can leave out."""
        return 4 * shape["B"] * shape["H"] * shape["N"] ** 2 * shape["d"]

    def _for_queries(self, inputs: Inputs, queries: Array) -> Expected:
        q, k, v = queries.astype(np.float64), inputs["K"].astype(np.float64), inputs["V"]
        keys, d = k.shape[2:]
        v_and_size = np.empty((*v.shape[:3], 2 * d))
        v_and_size[..., :d] = v
        np.abs(v, out=v_and_size[..., d:])
        both = _weighted(q, k, v_and_size)
        score_bound = _norms(q) * _norms(k).max(2, keepdims=True)
        growth = CONSTANT + PER_KEY * keys + PER_SCORE * math.sqrt(d) * score_bound
        return Expected(both[..., :d].copy(), ABSOLUTE + UNIT_ROUNDOFF * both[..., d:] * growth[..., None])


def _norms(rows: Array) -> Array:
    return np.sqrt(np.einsum("...k,...k->...", rows, rows))


def _weighted(q: Array, k: Array, values: Array) -> Array:
    """softmax(Q K^T) times `values`: float64 (B, H, R, D) of q (B, H, R, d), k (B, H, N, d), values (B, H, N, D).

    Where there is much to do, threads share it: NumPy computes without holding Python's lock.
    """
    b, h, rows, d = q.shape
    keys, width = values.shape[2:]
    q, k_transposed = q.reshape(b * h, rows, d), k.reshape(b * h, keys, d).mT
    values = values.reshape(b * h, keys, width)
    out = np.empty((b * h, rows, width))
    chunks = iter(_chunks(b * h, rows, keys))

    def work() -> None:
        # An input may be anything that a distribution makes; what is no number shows in the output.
        with np.errstate(all="ignore"):
            for heads, some in chunks:
                scores = q[heads, some] @ k_transposed[heads]
                scores -= scores.max(2, keepdims=True)
                np.exp(scores, out=scores)
                np.matmul(scores, values[heads], out=out[heads, some])
                out[heads, some] /= scores.sum(2, keepdims=True)

    threads = _threads() if b * h * rows * keys >= _SHARED_SCORES else 1
    if threads == 1:
        work()
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(work) for _ in range(threads)]:
                done.result()
    return out.reshape(b, h, rows, width)


def _chunks(heads: int, rows: int, keys: int) -> list[tuple[slice, slice]]:
    """Heads and rows of pieces of work of at most `_CHUNK_SCORES` scores, one row at the least."""
    some_heads = max(1, _CHUNK_SCORES // max(1, rows * keys))
    some_rows = max(1, _CHUNK_SCORES // max(1, keys))
    return [
        (slice(g, g + some_heads), slice(i, i + some_rows))
        for g in range(0, heads, some_heads)
        for i in range(0, rows, some_rows)
    ]


def _threads() -> int:
    """As many as a worker of a class is told to use, else as there are cores."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    cores = int(told) if told.isdecimal() else len(machine.usable_cpus()) or os.cpu_count() or 1
    return max(1, min(cores, _MOST_THREADS))


class Read4D:
    """What fourDimRead returns for each row of `index`: float64 (M,), exact."""

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        flat = inputs["tensor"].reshape(-1).astype(np.float64)
        return Expected(flat[flat_offsets(inputs["index"], shape)], 0.0)


class Write4D:
    """The whole tensor after writing `values[m]` at each row of `index`: float64 (B, H, N, d), exact.

    A write to a wrong or to an additional place shows: elements that no index names must keep their value.
    """

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        after = inputs["tensor"].reshape(-1).astype(np.float64)
        after[flat_offsets(inputs["index"], shape)] = inputs["values"]
        return Expected(after.reshape(inputs["tensor"].shape), 0.0)


ORACLES: dict[str, Attention | Read4D | Write4D] = {
    "attention": Attention(),
    "read4d": Read4D(),
    "write4d": Write4D(),
}


def flat_offsets(index: Array, shape: Shape) -> Array:
    """Row-major offsets int64 (M,) of the rows (x, y, z, b) of `index`, in a tensor of shape (B, H, N, d).

    The published convention: x * sizeX sizeY sizeZ + y * sizeY sizeZ + z * sizeZ + b, with sizes H, N and d.
    """
    x, y, z, b = index.T
    return ((x * shape["H"] + y) * shape["N"] + z) * shape["d"] + b


def compare(expected: Expected, actual: Array) -> Comparison:
    """Compare an output of the right shape, of any floating type. An element that is not finite is wrong."""
    with np.errstate(all="ignore"):
        error = np.subtract(actual, expected.value, dtype=np.float64)
        np.abs(error, out=error)
        right = error <= expected.tolerance
        if error.size == 0:
            return Comparison(True, 0.0, ~right, 0.0)
        max_error = float(error.max())
        error /= np.maximum(expected.tolerance, 1e-300)
        budget_used = float(error.max())
    return Comparison(
        ok=bool(right.all()),
        max_error=max_error if math.isfinite(max_error) else math.inf,
        wrong=np.logical_not(right, out=right),
        budget_used=budget_used if math.isfinite(budget_used) else math.inf,
    )
