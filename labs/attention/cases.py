"""Inputs of a test case, made from distribution, shape and seed alone: the same three give the same bits.

Requirements on graded inputs, with reasons. Q.K stands for any score, the product of a row of Q and a row of K.

- Independent for each batch and head: a kernel that computes one head and copies its output is wrong.
- |Q.K| <= 60: the course's softmax takes exp(Q.K) in float32 without subtracting the row's maximum, and float32's exp
  overflows at 88.7. N terms of exp(60) still sum far below float32's largest number.
- Spread: max - min of Q.K in each head is at least 10 if N > 1. Then the output of a uniform softmax, or of 1 + x in
  place of exp(x), is far from the right one.
- Outputs of order one: the error budget then limits the relative error, and an output of zeros never passes.

"random", "onehot", "permuted_keys" and "rising" meet all requirements. "constant_rows", "dominant" and "offset" each
show one kind of mistake well but lack the spread, so a part also needs other inputs. "ramp" has the inputs of the
published assignment, which students know. It meets only the bound on |Q.K|.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from grader.core.arrays import Array, np
from grader.core.draws import Draws
from grader.core.errors import UsageError

Shape = Mapping[str, int]
Inputs = dict[str, Array]

MAX_ABS_SCORE = 60.0
#: Standard deviation of Q.K in the random distributions. In a head with N = 1024, max - min of Q.K is then about 35.
SCORE_SD = 3.3
#: In heads of at most this many rows, Q is rescaled so that the scores have the standard deviation SCORE_SD. In larger
#: heads they have it without rescaling.
_EXACT_SPREAD_N = 96

_Maker = Callable[[Shape, Draws], Inputs]


def make_inputs(distribution: str, shape: Shape, seed: int) -> Inputs:
    """Return the inputs of one case, by name.

    Attention distributions give float32 Q, K and V of shape (B, H, N, d), contiguous. "indices" and "some_indices" give
    the inputs for the accessors: see `_indices`. "random*8" gives 8 times the scores of "random". `shape` needs B, H, N
    and d, each at least 1; its other keys (Br, Bc, threads) are ignored. Raises UsageError for an unknown distribution,
    or if one of the four sizes is missing.
    """
    name, _, factor = distribution.partition("*")
    maker = DISTRIBUTIONS.get(name)
    if maker is None:
        raise UsageError(f"unknown distribution '{distribution}'; choose one of {', '.join(DISTRIBUTIONS)}")
    missing = [key for key in "BHNd" if shape.get(key, 0) < 1]
    if missing:
        raise UsageError(f"a case's shape needs B, H, N and d of at least 1; check {', '.join(missing)}")
    made = maker(shape, Draws(seed))
    if factor:
        made["Q"] = made["Q"] * np.float32(factor)
    return {name: np.ascontiguousarray(value) for name, value in made.items()}


def _ramp(shape: Shape, draws: Draws) -> Inputs:
    """Return the published ramp: in every head, numbers rise by the same small steps over rows and columns.

    These are the published assignment's inputs, with their weaknesses: all heads are equal, and for small N the softmax
    is nearly uniform.
    """
    b, h, n, d = _sizes(shape)
    rows = np.arange(n, dtype=np.float32)[:, None]
    columns = np.arange(d, dtype=np.float32)
    head = np.float32(2e-4) * rows + np.float32(1e-4) * columns
    return {name: _expanded(head, (b, h, n, d)) for name in "QKV"}


def _random(shape: Shape, draws: Draws) -> Inputs:
    """Return independent uniform numbers for every batch and head. Scores have a standard deviation of about 3."""
    q, k = _random_qk(shape, draws, SCORE_SD)
    return {"Q": q, "K": k, "V": _random_values(shape, draws)}


def _onehot(shape: Shape, draws: Draws) -> Inputs:
    """Return random Q and K, and V whose rows are one-hot. So each output is a softmax weight or, if N > d, a sum of
    weights.
    """
    q, k = _random_qk(shape, draws, SCORE_SD)
    # Each column of V gets the same number of ones, or one more. The order of the rows differs from head to head.
    column = _orders(shape, draws) % shape["d"]
    v = np.zeros(_sizes(shape), np.float32)
    np.put_along_axis(v, column[..., None], 1.0, 3)
    return {"Q": q, "K": k, "V": v}


def _constant_rows(shape: Shape, draws: Draws) -> Inputs:
    """Return heads in which all keys are equal. So every row of the output is the mean of the head's rows of V.

    Scores are constant along a row but differ widely between rows. So a row that is not normalised is far off.
    """
    b, h, n, d = _sizes(shape)
    key = _uniform((b, h, 1, d), draws, 1.0)
    level = _uniform((b, h, n, 1), draws, 30.0)
    q = level * key / _squares(key)
    return {"Q": q, "K": _expanded(key, (b, h, n, d)), "V": _random_values(shape, draws)}


def _permuted_keys(shape: Shape, draws: Draws) -> Inputs:
    """Return the inputs of `_rising`, with keys and values shuffled alike: the order of keys must not matter."""
    inputs = _rising(shape, draws)
    order = _orders(shape, draws)[..., None]
    return {"Q": inputs["Q"], **{name: np.take_along_axis(inputs[name], order, 2) for name in "KV"}}


def _rising(shape: Shape, draws: Draws) -> Inputs:
    """Return inputs whose scores rise from the first key to the last in about half of the rows and fall in the others.

    Each block of keys then changes the running sums of a blocked softmax by orders of magnitude.
    """
    b, h, n, d = _sizes(shape)
    direction = _normalized(_uniform((b, h, 1, d), draws, 1.0))
    position = np.linspace(-1.0, 1.0, n, dtype=np.float32)[:, None] if n > 1 else np.float32(1.0)
    sign = draws.below(2, (b, h, n, 1)).astype(np.float32) * 2 - 1
    steepness = 8 + 8 * draws.uniform((b, h, n, 1))
    # A score is a slope of at most 16 plus three terms with noise, of at most 4, 4 and 1. So |Q.K| is at most 25.
    noise_q, noise_k = _bounded_noise(shape, draws, 4.0), _bounded_noise(shape, draws, 1.0)
    q = sign * steepness * direction + noise_q
    k = position * direction + noise_k / 4
    return {"Q": q, "K": k, "V": _random_values(shape, draws)}


def _dominant(shape: Shape, draws: Draws) -> Inputs:
    """Return inputs in which one key of each row, drawn at random, has nearly all of the weight."""
    b, h, n, d = _sizes(shape)
    k = _normalized(_uniform((b, h, n, d), draws, 1.0))
    chosen = draws.below(n, (b, h, n, 1))
    return {"Q": 30 * np.take_along_axis(k, chosen, 2), "K": k, "V": _random_values(shape, draws)}


def _offset(shape: Shape, draws: Draws) -> Inputs:
    """Return inputs whose scores lie around a large offset for each head, up to 40 above or below zero.

    The offset does not change the right output, but float32 has fewer digits left for the differences of the scores.
    """
    b, h, n, d = _sizes(shape)
    q, k = _random_qk({**shape, "d": max(d - 1, 1)}, draws, 2.0)
    offset = np.sign(_uniform((b, h, 1, 1), draws, 1.0)) * 30 + _uniform((b, h, 1, 1), draws, 10.0)
    common_q = _expanded(offset / 6, (b, h, n, 1))
    common_k = 6 + _uniform((b, h, n, 1), draws, 0.5)
    if d > 1:
        common_q, common_k = np.concatenate([common_q, q], 3), np.concatenate([common_k, k], 3)
    return {"Q": common_q, "K": common_k, "V": _random_values(shape, draws)}


def _indices(shape: Shape, draws: Draws) -> Inputs:
    """Return the accessors' inputs: a 4-D tensor, all of its indices in random order, and values to write.

    `tensor` float32 (B, H, N, d): the numbers 1 ... size shuffled, so that a value identifies the offset that was read.
    `index` int64 (M, 4): each row (x, y, z, b) has one index for each dimension of `tensor`. `values` float32 (M,):
    distinct values to write, none of them in `tensor`. The accessor's sizeX, sizeY and sizeZ are H, N and d.
    """
    return _index_table(shape, draws, keep=1.0)


def _some_indices(shape: Shape, draws: Draws) -> Inputs:
    """Return the inputs of `_indices` with half of the indices: a write must leave all other elements alone."""
    return _index_table(shape, draws, keep=0.5)


def _index_table(shape: Shape, draws: Draws, keep: float) -> Inputs:
    sizes = _sizes(shape)
    count = math.prod(sizes)
    kept = math.ceil(keep * count)
    offsets = draws.permutation(count, kept)
    tensor = (draws.permutation(count) + 1).astype(np.float32).reshape(sizes)
    values = (count + 1 + draws.permutation(count, kept)).astype(np.float32)
    return {"tensor": tensor, "index": np.stack(np.unravel_index(offsets, sizes), 1), "values": values}


def _sizes(shape: Shape) -> tuple[int, int, int, int]:
    return shape["B"], shape["H"], shape["N"], shape["d"]


def _expanded(values: Array, size: tuple[int, ...]) -> Array:
    return np.broadcast_to(values, size).copy()


def _uniform(size: tuple[int, ...], draws: Draws, bound: float) -> Array:
    return draws.uniform(size, -bound, bound)


def _orders(shape: Shape, draws: Draws) -> Array:
    """Return a random order for each head: int64 (B, H, N), each row a permutation of 0 ... N - 1."""
    return np.argsort(draws.uniform((shape["B"], shape["H"], shape["N"])), -1, kind="stable")


def _squares(rows: Array) -> Array:
    """Return the sum of the squares of each row, (..., 1), as float32 numbers that are the same on any machine."""
    return np.square(rows, dtype=np.float64).sum(-1, keepdims=True).astype(np.float32)


def _normalized(rows: Array) -> Array:
    """Return the rows scaled to Euclidean norm 1. Rows of zeros stay zeros."""
    norm = np.sqrt(np.square(rows, dtype=np.float64).sum(-1, keepdims=True)).astype(np.float32)
    return rows / np.maximum(norm, np.float32(1e-12))


def _bounded_noise(shape: Shape, draws: Draws, bound: float) -> Array:
    """Return uniform random rows (B, H, N, d) of Euclidean norm at most `bound`."""
    return _uniform(_sizes(shape), draws, bound / math.sqrt(shape["d"]))


def _random_values(shape: Shape, draws: Draws) -> Array:
    """Return V: each head and column has a centre within +-0.5, and its numbers are uniform within 1 of the centre.

    So means over many rows are not all near 0.
    """
    b, h, n, d = _sizes(shape)
    return _uniform((b, h, n, d), draws, 1.0) + _uniform((b, h, 1, d), draws, 0.5)


def _random_qk(shape: Shape, draws: Draws, score_sd: float) -> tuple[Array, Array]:
    """Return Q and K with uniform random entries. All |Q.K| are at most 60; if N > 1, max - min is at least 10."""
    b, h, n, d = _sizes(shape)
    # If all numbers are uniform in [-a, a], the sum of d products has standard deviation sqrt(d) a^2 / 3.
    bound = math.sqrt(3.0 * score_sd / math.sqrt(d))
    q, k = _uniform((b, h, n, d), draws, bound), _uniform((b, h, n, d), draws, bound)
    if 1 < n <= _EXACT_SPREAD_N:
        # Compute in float64, so that a machine's order of summation does not change the inputs.
        scores = q.astype(np.float64) @ k.astype(np.float64).mT
        low, high = scores.min((2, 3), keepdims=True), scores.max((2, 3), keepdims=True)
        with np.errstate(divide="ignore"):
            widen = np.maximum(4.0 * score_sd / (high - low), 1.0)
        limit = 0.75 * MAX_ABS_SCORE / np.maximum(abs(high), abs(low))
        q *= np.minimum(widen, limit).astype(np.float32)
    return q, k


DISTRIBUTIONS: dict[str, _Maker] = {
    "ramp": _ramp,
    "random": _random,
    "onehot": _onehot,
    "constant_rows": _constant_rows,
    "permuted_keys": _permuted_keys,
    "rising": _rising,
    "dominant": _dominant,
    "offset": _offset,
    "indices": _indices,
    "some_indices": _some_indices,
}
