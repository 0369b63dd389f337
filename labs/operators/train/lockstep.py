"""Comparison of the first training steps with PyTorch, call by call.

`Watch` receives every call (`operations.Made`) in order and computes it again from the same inputs (`expected`). The
first answer beyond its budget is a deviation, with its step, layer and tensor. All calls before it were right, so
this function is at fault. Besides, it compares the losses of the student's network with those of PyTorch's own, which
started from the same weights and sees the same batches.

PyTorch's results for the calls of the student's functions, and the error that float32 may have in them.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from grader.core.arrays import Array, first_of, np

from .networks import LOSS, Network
from .operations import RESULT, Made, Place

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


LOSS_LIMIT = 1e-4
"""Limit of the relative difference of the two losses. Roundings differ, and training amplifies them with every step;
measured over 200 steps: below 1e-5."""
MOST_TOLD = 1e9
"""Ratios to the budget beyond this mean only that the budget was nearly 0."""
SAME_FACTOR = 1e-3
"""A spread of ratios, relative to their median, below which all elements are wrong by one factor."""


@dataclass(frozen=True)
class Deviation:
    """The first answer beyond its budget. `tensors` lists all wrong tensors of this call in words; the other fields
    are about the first of them. `wrong` of `total` elements are beyond their budgets, by a factor of at most `worst`.
    `factor` is set if each element is that many times PyTorch's."""

    step: int
    place: Place
    function: str
    tensors: tuple[str, ...]
    index: tuple[int, ...]
    got: float
    wanted: float
    wrong: int
    total: int
    worst: float
    factor: float | None

    def line(self) -> str:
        """Return the whole deviation as a sentence for people."""
        also = f" (and {', '.join(self.tensors[1:])})" if self.tensors[1:] else ""
        beyond = f", {self.worst:.2g} times what float32 explains" if self.worst < MOST_TOLD else ""
        text = (
            f"step {self.step}, {self.place}, {self.tensors[0]}{also}: {self.function} left PyTorch. "
            f"Element {_shown(self.index)} is {self.got:.6g}, PyTorch's is {self.wanted:.6g}; "
            f"{self.wrong} of {self.total} elements are off{beyond}"
        )
        return f"{text}; each is {self.factor:.4g} times PyTorch's" if self.factor is not None else text


@dataclass(frozen=True)
class Agreement:
    """Result of the comparison of `steps` steps: the number of compared calls, and the largest share of its budget
    that an error took. `loss_apart` is the largest difference of the losses relative to PyTorch's, in step
    `loss_step` (0: they were always equal)."""

    steps: int
    calls: int
    largest_share: float
    loss_apart: float
    loss_step: int
    deviation: Deviation | None = None

    @property
    def is_close(self) -> bool:
        return self.deviation is None and self.loss_apart <= LOSS_LIMIT

    def line(self) -> str:
        """Return the result in a sentence or two."""
        if self.deviation is not None:
            return self.deviation.line()
        if self.steps == 0:
            return "no step was compared with PyTorch's"
        rounding = f"at most {self.largest_share:.2g} of what rounding may take"
        calls = f"all {self.calls} calls agree with PyTorch ({rounding})"
        losses = f"losses lie within {self.loss_apart:.1e} of PyTorch's"
        if self.is_close:
            return f"{self.steps} steps in lockstep: {calls}, and {losses}"
        return (
            f"{self.steps} steps in lockstep: {calls}, but {losses}, beyond {LOSS_LIMIT:.0e}, first in step "
            f"{self.loss_step}: roundings have grown; a smaller --rate keeps them down"
        )


class Watch:
    """Compares calls and losses until the first deviation. `step` is the step of the next calls, from 1."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.step = 1
        self.deviation: Deviation | None = None
        self.calls = 0
        self.largest_share = 0.0
        self.losses: list[tuple[float, float]] = []

    def __call__(self, made: Made) -> None:
        """Compare one call with PyTorch: the callback of `StudentOperators`."""
        # A function is not at fault for results from inputs that are NaN or infinite.
        if self.deviation is not None or not all(np.isfinite(each).all() for each in made.tensors.values()):
            return
        self.calls += 1
        wanted = expected(made)
        wrong = {}
        for name, answer in made.answers.items():
            share = _shares(answer, wanted[name])
            if not share.size:
                continue
            if (largest := float(share.max())) <= 1:
                self.largest_share = max(self.largest_share, largest)
            else:
                wrong[name] = share
        if wrong:
            self.deviation = self._deviation(made, wanted, wrong)

    def compared(self, loss: float, torch_loss: float) -> None:
        """Record the losses of the last step."""
        self.losses.append((loss, torch_loss))
        self.step += 1

    def agreement(self) -> Agreement:
        apart = [abs(mine - other) / max(abs(other), 1e-30) for mine, other in self.losses]
        largest = max(apart, default=0.0)
        first = next((k + 1 for k, each in enumerate(apart) if each > LOSS_LIMIT), 0)
        step = first or (apart.index(largest) + 1 if largest else 0)
        return Agreement(len(self.losses), self.calls, self.largest_share, largest, step, self.deviation)

    def _deviation(self, made: Made, wanted: dict[str, Expected], wrong: dict[str, Array]) -> Deviation:
        name, share = next(iter(wrong.items()))
        beyond = share > 1
        index = first_of(beyond)
        got, value = made.answers[name], wanted[name].value
        words = [self._words(made, each, first_of(wrong[each] > 1)) for each in wrong]
        if name == "P":
            index = self.network.owner(index[0])[2]
        return Deviation(
            self.step,
            made.place,
            made.operation.function,
            tuple(words),
            index,
            float(got[first_of(beyond)]),
            float(value[first_of(beyond)]),
            int(beyond.sum()),
            got.size,
            float(share.max()),
            _factor(got, value),
        )

    def _words(self, made: Made, name: str, index: tuple[int, ...]) -> str:
        """Return the name of a call's tensor in words."""
        if name == RESULT:
            return "the loss" if made.place == LOSS else "forward output"
        if name == "P":
            place, parameter, _ = self.network.owner(index[0])
            return f"parameter {parameter} of {place}"
        if name == "index":
            return "index of the maxima"
        return "gradient of the logits" if made.place == LOSS else f"gradient of {name.removeprefix('d')}"


def _shares(answer: Array, wanted: Expected) -> Array:
    """Return each element's error over its budget. It is infinite if the element has to be exact and is not, or is
    NaN. It is 0 if the expected value exceeds float32."""
    value = wanted.value
    error = np.abs(answer.reshape(value.shape).astype(np.float64) - value)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(error == 0, 0.0, error / np.broadcast_to(wanted.budget, error.shape))
    share[np.isnan(error)] = np.inf
    share[~(np.abs(value) <= np.finfo(np.float32).max) | np.isinf(wanted.budget)] = 0.0
    return share.reshape(answer.shape)


def _factor(got: Array, wanted: Array) -> float | None:
    """Return the factor between `got` and `wanted` that all elements share; None if they share none or it is 1."""
    flat, other = got.reshape(-1).astype(np.float64), wanted.reshape(-1).astype(np.float64)
    large = np.abs(other) > 1e-3 * np.abs(other).max(initial=0.0)
    if large.sum() < 2:
        return None
    ratios = flat[large] / other[large]
    middle = float(np.median(ratios))
    if not np.isfinite(ratios).all() or abs(middle - 1) < SAME_FACTOR:
        return None
    if float(np.abs(ratios - middle).max()) > SAME_FACTOR * abs(middle):
        return None
    # Elements near 0 in PyTorch must be near 0 here, too.
    apart = np.abs(flat - middle * other)[~large]
    limit = SAME_FACTOR * abs(middle) * np.abs(other).max()
    return middle if bool((apart <= limit).all()) else None


def _shown(index: Sequence[int]) -> str:
    return f"({', '.join(map(str, index))})"
