"""PyTorch's results for the calls of the student's functions, and the error that float32 may have in them.

PyTorch computes each call again in float64, from the same inputs. A deviation is therefore this function's own fault,
and not that of an earlier one. A sum of n products of float32 numbers, rounded at each step in any order, is off by
at most about

    u (LIKELY sqrt(n) + STEPS) sum |a_k b_k|,    u = 2^-24

The chance that one element exceeds it is at most 2 exp(-LIKELY^2 / 2): see Higham and Mary, A new approach to
probabilistic rounding error analysis, 2019. The bound for all orders, n in the place of sqrt(n), would hide gradients
altogether: dW of a convolution is a sum of 100,000 products of either sign. The sum of absolute values is the same
operator once more on absolute values, since all of these are linear in each argument. Functions that only choose or
compare (relu, a maximum and its place) have to be exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from grader.core.arrays import Array, np

from .operations import RESULT, Made

UNIT_ROUNDOFF = 2.0**-24
LIKELY, STEPS = 6.0, 8.0
SMALLEST = 1e-36
"""Least error budget: below it float32 loses digits, and a compiler may take it for 0."""

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Expected:
    """PyTorch's `value`, and the `budget`: the allowed error of each element, 0 where it has to be exact."""

    value: Array
    budget: Array | float = 0.0


def expected(made: Made) -> dict[str, Expected]:
    """Return the expected answers of the call, by name."""
    # A call is made inside of autograd's own forward or backward, where gradients are off.
    with torch.enable_grad():
        return _BY_FUNCTION[made.operation.function](made)


def _rounded(value: Tensor, magnitude: Tensor, terms: int) -> Expected:
    steps = LIKELY * math.sqrt(terms) + STEPS
    budget = UNIT_ROUNDOFF * steps * magnitude.double() + SMALLEST * terms
    return Expected(value.detach().numpy(), budget.detach().numpy())


def _given(made: Made) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in made.tensors.items()}


# ---- linear and conv2d: linear in each argument


def _linear(t: Inputs, sizes: Mapping[str, int]) -> Tensor:
    return t["X"] @ t["W"] + t["b"]


def _conv2d(t: Inputs, sizes: Mapping[str, int]) -> Tensor:
    return F.conv2d(t["X"], t["W"], t["b"], sizes["stride"], sizes["pad"])


def _outputs(made: Made) -> int:
    """Return the number of output elements that depend on a weight, over the whole batch."""
    s = made.sizes
    if "K" not in s:
        return s["N"]
    grown = [(s[side] + 2 * s["pad"] - s["K"]) // s["stride"] + 1 for side in ("H", "Wd")]
    return s["N"] * math.prod(grown)


def _terms(made: Made) -> dict[str, int]:
    """Return the number of products that each element of an answer sums."""
    s = made.sizes
    window = s["K"] ** 2 if "K" in s else 1
    inward, outward = (s["C"], s["F"]) if "K" in s else (s["I"], s["O"])
    weights = _outputs(made)
    return {RESULT: inward * window + 1, "dX": outward * window, "dW": weights, "db": weights}


def _forward(
    function: Callable[[Inputs, Mapping[str, int]], Tensor],
) -> Callable[[Made], dict[str, Expected]]:
    def found(made: Made) -> dict[str, Expected]:
        given = _given(made)
        value = function({name: each.double() for name, each in given.items()}, made.sizes)
        magnitude = function({name: each.abs() for name, each in given.items()}, made.sizes)
        return {RESULT: _rounded(value, magnitude, _terms(made)[RESULT])}

    return found


def _backward(
    function: Callable[[Inputs, Mapping[str, int]], Tensor],
) -> Callable[[Made], dict[str, Expected]]:
    def gradients(t: Inputs, made: Made) -> tuple[Tensor, ...]:
        b = torch.zeros(made.tensors["db"].shape, dtype=t["X"].dtype)
        of = {name: each.requires_grad_() for name, each in (("X", t["X"]), ("W", t["W"]), ("b", b))}
        return torch.autograd.grad(function(of, made.sizes), list(of.values()), t["dY"])

    def found(made: Made) -> dict[str, Expected]:
        given, terms = _given(made), _terms(made)
        values = gradients({name: each.double() for name, each in given.items()}, made)
        magnitudes = gradients({name: each.abs() for name, each in given.items()}, made)
        return {
            name: _rounded(value + given[name], magnitude + given[name].abs(), terms[name] + 1)
            for name, value, magnitude in zip(("dX", "dW", "db"), values, magnitudes, strict=True)
        }

    return found


# ---- what chooses, and the loss


def _relu(made: Made) -> dict[str, Expected]:
    return {RESULT: Expected(torch.relu(_given(made)["X"]).flatten().numpy())}


def _relu_backward(made: Made) -> dict[str, Expected]:
    given = _given(made)
    x = given["X"].clone().requires_grad_()
    (dx,) = torch.autograd.grad(torch.relu(x), x, given["dO"])
    return {"dX": Expected((given["dX"] + dx).numpy())}


def _maxpool(made: Made) -> dict[str, Expected]:
    s = made.sizes
    value, index = F.max_pool2d(_given(made)["X"], s["K"], s["stride"], return_indices=True)
    return {RESULT: Expected(value.numpy()), "index": Expected(index.numpy())}


def _maxpool_backward(made: Made) -> dict[str, Expected]:
    given, s = _given(made), made.sizes

    def scattered(dx: Tensor, dy: Tensor) -> Tensor:
        return dx.flatten(2).scatter_add(2, given["index"].flatten(2), dy.flatten(2)).view(dx.shape)

    value = scattered(given["dX"].double(), given["dY"].double())
    magnitude = scattered(given["dX"].abs(), given["dY"].abs())
    return {"dX": _rounded(value, magnitude, s["K"] ** 2)}


def _loss_steps(x: Tensor) -> float:
    """Roundings in exp(x) over the sum of a row: an absolute error in x, of u times x or its distance to the largest,
    is a relative one of exp(x)."""
    spread = (x - x.max(1, keepdim=True).values).abs().max() + x.abs().max()
    return float(STEPS + x.shape[1] + 2 * spread)


def _cross_entropy(made: Made) -> dict[str, Expected]:
    given = _given(made)
    x, labels = given["X"].double(), given["labels"]
    value = F.cross_entropy(x, labels).reshape(1)
    largest = x.abs().max(1).values + torch.logsumexp(x, 1).abs() + 1
    budget = UNIT_ROUNDOFF * (_loss_steps(x) + LIKELY * math.sqrt(len(x))) * largest.mean()
    return {RESULT: Expected(value.numpy(), float(budget))}


def _cross_entropy_backward(made: Made) -> dict[str, Expected]:
    given = _given(made)
    x = given["X"].double().requires_grad_()
    (dx,) = torch.autograd.grad(F.cross_entropy(x, given["labels"]), x)
    shares = x.detach().softmax(1) + F.one_hot(given["labels"], x.shape[1])
    budget = UNIT_ROUNDOFF * _loss_steps(x.detach()) * (shares / len(x) + given["dX"].abs()) + SMALLEST
    return {"dX": Expected((given["dX"] + dx).numpy(), budget.numpy())}


def _sgd(made: Made) -> dict[str, Expected]:
    p, g = (made.tensors[name].astype(np.float64) for name in ("P", "G"))
    move = float(np.float32(made.real)) * g
    return {"P": Expected(p - move, 4 * UNIT_ROUNDOFF * (abs(p) + abs(move)) + SMALLEST)}


_BY_FUNCTION: Mapping[str, Callable[[Made], dict[str, Expected]]] = {
    "reluForward": _relu,
    "reluBackward": _relu_backward,
    "linearForward": _forward(_linear),
    "linearBackward": _backward(_linear),
    "conv2dForward": _forward(_conv2d),
    "conv2dBackward": _backward(_conv2d),
    "maxpool2dForward": _maxpool,
    "maxpool2dBackward": _maxpool_backward,
    "crossEntropyForward": _cross_entropy,
    "crossEntropyBackward": _cross_entropy_backward,
    "sgdStep": _sgd,
}
