"""Inputs of a test case, made from distribution, shape and seed alone: the same three give the same bits.

What graded inputs must be, and why:

- independent for each batch and head, so that one head computed and copied is wrong;
- |Q.K| <= 60, because course-style softmax takes exp(Q.K) in float32 without subtracting the row's maximum
  and float32's exp overflows at 88.7; N terms of exp(60) still sum far below float32's largest number;
- spread: max - min of Q.K in each head is at least 10 where N > 1, so that a uniform softmax, or 1 + x in
  place of exp(x), is far off;
- outputs of order one, so that the error budget is about relative accuracy and zeros can never pass.

"random", "onehot", "permuted_keys" and "rising" are all of that. "constant_rows", "dominant" and "offset" are
probes: each gives up the spread for one thing that it shows well, so none of them may stand alone. The
published inputs have only the bound on |Q.K|; they live on as "ramp" because students know their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from grader.errors import UsageError

Shape = Mapping[str, int]
Inputs = dict[str, Tensor]

MAX_ABS_SCORE = 60.0
#: Standard deviation of Q.K in the random distributions: N = 1024 keys then spread over about 35.
SCORE_SD = 3.3
#: Heads up to this N are rescaled exactly; larger ones have scores enough to be wide by themselves.
_EXACT_SPREAD_N = 96

_Maker = Callable[[Shape, torch.Generator], Inputs]


def make_inputs(distribution: str, shape: Shape, seed: int) -> Inputs:
    """The inputs of one case, by name.

    Attention distributions give float32 Q, K and V of shape (B, H, N, d), contiguous. "indices" and
    "some_indices" give what the accessors are tried on: see `_indices`. `shape` needs B, H, N and d, each at
    least 1; other keys (Br, Bc, threads) do not matter here.
    Raises UsageError for an unknown distribution or a shape without these.
    """
    maker = DISTRIBUTIONS.get(distribution)
    if maker is None:
        raise UsageError(f"unknown distribution '{distribution}'; choose one of {', '.join(DISTRIBUTIONS)}")
    missing = [key for key in "BHNd" if shape.get(key, 0) < 1]
    if missing:
        raise UsageError(f"a case's shape needs B, H, N and d of at least 1; check {', '.join(missing)}")
    generator = torch.Generator().manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)
    return {name: value.contiguous() for name, value in maker(shape, generator).items()}


def describe(distribution: str) -> str:
    """One line for people about a distribution: the first line of its maker's docstring."""
    return (DISTRIBUTIONS[distribution].__doc__ or "").strip().splitlines()[0]


def _ramp(shape: Shape, generator: torch.Generator) -> Inputs:
    """The published ramp: the same small slope over row and column in every head, Q.K of rank 2.

    A re-creation from its description. It is weak on purpose: near-uniform softmax for small N, equal heads.
    """
    b, h, n, d = _sizes(shape)
    rows = torch.arange(n, dtype=torch.float32).unsqueeze(1)
    columns = torch.arange(d, dtype=torch.float32)
    head = 2e-4 * rows + 1e-4 * columns
    every_head = head.expand(b, h, n, d)
    return {"Q": every_head.clone(), "K": every_head.clone(), "V": every_head.clone()}


def _random(shape: Shape, generator: torch.Generator) -> Inputs:
    """Independent uniform numbers in every batch and head, scores with a standard deviation of about 3."""
    q, k = _random_qk(shape, generator, SCORE_SD)
    return {"Q": q, "K": k, "V": _random_values(shape, generator)}


def _onehot(shape: Shape, generator: torch.Generator) -> Inputs:
    """Random Q and K; each row of V is a single 1, so the output shows the softmax weights themselves."""
    b, h, n, d = _sizes(shape)
    q, k = _random_qk(shape, generator, SCORE_SD)
    # Every column is hit equally often, in an order of each head's own.
    column = torch.argsort(torch.rand(b, h, n, generator=generator), dim=-1) % d
    return {"Q": q, "K": k, "V": torch.zeros(b, h, n, d).scatter_(3, column.unsqueeze(3), 1.0)}


def _constant_rows(shape: Shape, generator: torch.Generator) -> Inputs:
    """All keys of a head are equal, so that every row of the output is the mean of V's rows of that head.

    Scores are constant along a row but differ widely between rows: a row that is not normalised shows.
    """
    b, h, n, d = _sizes(shape)
    key = _uniform((b, h, 1, d), generator, 1.0)
    level = _uniform((b, h, n, 1), generator, 30.0)
    q = level * key / key.square().sum(-1, keepdim=True)
    return {"Q": q, "K": key.expand(b, h, n, d).clone(), "V": _random_values(shape, generator)}


def _permuted_keys(shape: Shape, generator: torch.Generator) -> Inputs:
    """Keys of smoothly rising weight, shuffled with their values: the order of the keys must not matter."""
    inputs = _rising(shape, generator)
    b, h, n, d = _sizes(shape)
    order = torch.argsort(torch.rand(b, h, n, generator=generator), dim=-1).unsqueeze(3).expand(b, h, n, d)
    return {"Q": inputs["Q"], "K": inputs["K"].gather(2, order), "V": inputs["V"].gather(2, order)}


def _rising(shape: Shape, generator: torch.Generator) -> Inputs:
    """Scores rise from the first key to the last in half of the rows and fall in the others.

    Each block of keys then changes the running sums of a blocked softmax by orders of magnitude.
    """
    b, h, n, d = _sizes(shape)
    direction = torch.nn.functional.normalize(_uniform((b, h, 1, d), generator, 1.0), dim=-1)
    position = torch.linspace(-1.0, 1.0, n).reshape(1, 1, n, 1) if n > 1 else torch.ones(1, 1, 1, 1)
    sign = torch.randint(0, 2, (b, h, n, 1), generator=generator) * 2.0 - 1.0
    steepness = 8.0 + 8.0 * torch.rand(b, h, n, 1, generator=generator)
    # Both parts of a score stay bounded: |slope| <= 16 and |noise| <= 4 * 2.
    noise_q, noise_k = _bounded_noise(shape, generator, 4.0), _bounded_noise(shape, generator, 1.0)
    q = sign * steepness * direction + noise_q
    k = position * direction + noise_k / 4.0
    return {"Q": q, "K": k, "V": _random_values(shape, generator)}


def _dominant(shape: Shape, generator: torch.Generator) -> Inputs:
    """Each row has one key, drawn at random, that takes nearly all of its weight."""
    b, h, n, d = _sizes(shape)
    k = torch.nn.functional.normalize(_uniform((b, h, n, d), generator, 1.0), dim=-1)
    chosen = torch.randint(0, n, (b, h, n, 1), generator=generator)
    return {"Q": 30.0 * k.gather(2, chosen.expand(b, h, n, d)), "K": k, "V": _random_values(shape, generator)}


def _offset(shape: Shape, generator: torch.Generator) -> Inputs:
    """Random scores around a large offset of each head's own, up to 40 above or below zero.

    The answer is that of the scores without their offset; float32 has fewer digits left for them.
    """
    b, h, n, d = _sizes(shape)
    q, k = _random_qk({**shape, "d": max(d - 1, 1)}, generator, 2.0)
    offset = (_uniform((b, h, 1, 1), generator, 1.0).sign() * 30.0) + _uniform((b, h, 1, 1), generator, 10.0)
    common_q = (offset / 6.0).expand(b, h, n, 1)
    common_k = 6.0 + _uniform((b, h, n, 1), generator, 0.5)
    if d == 1:
        return {"Q": common_q.clone(), "K": common_k, "V": _random_values(shape, generator)}
    return {
        "Q": torch.cat([common_q, q], dim=3),
        "K": torch.cat([common_k, k], dim=3),
        "V": _random_values(shape, generator),
    }


def _indices(shape: Shape, generator: torch.Generator) -> Inputs:
    """Every index of a 4-D tensor, in random order, for the accessors.

    `tensor` float32 (B, H, N, d): the numbers 1 ... size shuffled, so that a value tells which offset was
    read. `index` int64 (M, 4): rows (x, y, z, b) into the four dimensions in order. `values` float32 (M,):
    what a write test writes there, each distinct and none of them in `tensor`. The accessor's sizeX, sizeY
    and sizeZ are H, N and d.
    """
    return _index_table(shape, generator, keep=1.0)


def _some_indices(shape: Shape, generator: torch.Generator) -> Inputs:
    """Half of the indices of a 4-D tensor, in random order: a write must leave the others alone."""
    return _index_table(shape, generator, keep=0.5)


def _index_table(shape: Shape, generator: torch.Generator, keep: float) -> Inputs:
    sizes = _sizes(shape)
    count = math.prod(sizes)
    offsets = torch.randperm(count, generator=generator)[: math.ceil(keep * count)]
    return {
        "tensor": (torch.randperm(count, generator=generator) + 1).to(torch.float32).reshape(sizes),
        "index": torch.stack(torch.unravel_index(offsets, sizes), dim=1),
        "values": (count + 1 + torch.randperm(count, generator=generator)[: len(offsets)]).to(torch.float32),
    }


def _sizes(shape: Shape) -> tuple[int, int, int, int]:
    return shape["B"], shape["H"], shape["N"], shape["d"]


def _uniform(size: tuple[int, ...], generator: torch.Generator, bound: float) -> Tensor:
    return torch.rand(size, generator=generator).mul_(2.0 * bound).sub_(bound)


def _bounded_noise(shape: Shape, generator: torch.Generator, bound: float) -> Tensor:
    """Uniform rows (B, H, N, d) of Euclidean norm at most `bound`."""
    return _uniform(_sizes(shape), generator, bound / math.sqrt(shape["d"]))


def _random_values(shape: Shape, generator: torch.Generator) -> Tensor:
    """V: uniform in [-1, 1] around a centre of each head's own, so that averages are not near zero either."""
    b, h, n, d = _sizes(shape)
    return _uniform((b, h, n, d), generator, 1.0) + _uniform((b, h, 1, d), generator, 0.5)


def _random_qk(shape: Shape, generator: torch.Generator, score_sd: float) -> tuple[Tensor, Tensor]:
    """Q and K of uniform entries; no score passes 60, and they spread over at least 10 where N > 1."""
    b, h, n, d = _sizes(shape)
    # A product of two uniform numbers in [-a, a] has standard deviation a^2 / 3, and d of them add.
    bound = math.sqrt(3.0 * score_sd / math.sqrt(d))
    q, k = _uniform((b, h, n, d), generator, bound), _uniform((b, h, n, d), generator, bound)
    if 1 < n <= _EXACT_SPREAD_N:
        scores = q @ k.transpose(2, 3)
        low, high = scores.amin((2, 3), keepdim=True), scores.amax((2, 3), keepdim=True)
        widen = (4.0 * score_sd / (high - low)).clamp(min=1.0)
        limit = 0.75 * MAX_ABS_SCORE / torch.maximum(high.abs(), low.abs())
        q = q * torch.minimum(widen, limit)
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
ATTENTION_DISTRIBUTIONS = tuple(name for name in DISTRIBUTIONS if not name.endswith("indices"))
