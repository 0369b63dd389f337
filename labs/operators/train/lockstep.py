"""Comparison of the first training steps with the oracle, call by call.

`Watch` receives every call (`operations.Made`) in order. The part's oracle computes the result again in float64 from
the same inputs, and gives its tolerance, the error budget of float32 (`labs.operators.oracle`). If an error exceeds the
budget, the called function is wrong, not an earlier one, because the inputs were the same. The first such result is a
deviation, reported with step, layer and tensor. `Watch` also compares the losses of both networks, which start from the
same weights and get the same batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grader.core.arrays import Array, first_of, np
from grader.explain.case_run import RESULT
from grader.explain.comparison import Expected

from ..oracle import ORACLES, SGD_RATE
from .networks import LOSS, Network
from .operations import Made, Place


def expected(made: Made) -> dict[str, Expected]:
    """Return the expected results of the call by name, each in the shape of the student's result."""
    tensors = dict(made.tensors)
    if made.rate:
        # The oracle computes the step with SGD_RATE. Scale the gradient to get the step with the call's rate.
        tensors["G"] = tensors["G"].astype(np.float64) * (float(np.float32(made.rate)) / SGD_RATE)
    found = ORACLES[made.part.oracle].expected(tensors, made.sizes)
    return {
        name: Expected(
            found[name].value.reshape(answer.shape),
            np.broadcast_to(found[name].tolerance, found[name].value.shape).reshape(answer.shape),
        )
        for name, answer in made.answers.items()
    }


LOSS_LIMIT = 1e-4
"""Limit of the relative difference of the two losses. Rounding errors differ, and training amplifies them in every
step. After 200 steps a difference below 1e-5 was measured."""
MOST_SHOWN = 1e9
"""Larger ratios of an error to its budget are not shown, because they only mean that the budget was nearly 0."""
SAME_FACTOR = 1e-3
"""Elements are wrong by the same factor if their ratios differ by at most this, relative to the ratios' median."""


@dataclass(frozen=True)
class Deviation:
    """The first call with an error above its budget. `tensors` describes the call's wrong tensors in words.

    The other fields are about the first of these tensors. `index` is its first wrong element, with the values `got` and
    `wanted`. `wrong` is the number of its elements with errors above their budgets, out of `total`. `worst` is the
    largest ratio of an error to its budget. If all elements are f times the right ones, `factor` is f.
    """

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
        """Return one line of text that describes the deviation."""
        also = f" (and {', '.join(self.tensors[1:])})" if self.tensors[1:] else ""
        beyond = f", {self.worst:.2g} times what float32 explains" if self.worst < MOST_SHOWN else ""
        text = (
            f"step {self.step}, {self.place}, {self.tensors[0]}{also}: {self.function} is wrong. "
            f"Element {_shown(self.index)} is {self.got:.6g}, expected {self.wanted:.6g}; "
            f"{self.wrong} of {self.total} elements are off{beyond}"
        )
        return f"{text}; each is {self.factor:.4g} times the right value" if self.factor is not None else text


@dataclass(frozen=True)
class Agreement:
    """Result of comparing `steps` steps and `calls` calls. `largest_share` is the largest ratio of an error to its
    budget in right tensors.

    The relative difference of a step's losses is |student's - PyTorch's| / PyTorch's. `loss_apart` is the largest such
    difference. `loss_step` is the first step whose difference exceeds LOSS_LIMIT. If no step exceeds it, `loss_step` is
    the step with the largest difference; 0 if all are 0.
    """

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
            return "no call was checked"
        rounding = f"at most {self.largest_share:.2g} of the error that rounding explains"
        calls = f"all {self.calls} calls are right ({rounding})"
        if self.is_close:
            losses = f"losses lie within {self.loss_apart:.1e} of PyTorch's"
            return f"{self.steps} steps in lockstep: {calls}, and {losses}"
        return (
            f"{self.steps} steps in lockstep: {calls}, but losses differ by up to {self.loss_apart:.1e}, "
            f"more than {LOSS_LIMIT:.0e} first in step {self.loss_step}: rounding errors grew; try a smaller --rate"
        )


class Watch:
    """Compares calls until the first deviation, and losses in every step. `step` is the current step, from 1."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.step = 1
        self.deviation: Deviation | None = None
        self.calls = 0
        self.largest_share = 0.0
        self.losses: list[tuple[float, float]] = []

    def __call__(self, made: Made) -> None:
        """Compare one call with the oracle. This is the callback of `StudentOperators`."""
        # Skip calls with NaN or infinity in their inputs, because an earlier function caused these.
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
        """Record both losses of the last step, and begin the next step."""
        self.losses.append((loss, torch_loss))
        self.step += 1

    def agreement(self) -> Agreement:
        apart = [abs(mine - other) / max(abs(other), 1e-30) for mine, other in self.losses]
        largest = max(apart, default=0.0)
        first = next((k + 1 for k, each in enumerate(apart) if each > LOSS_LIMIT), 0)
        step = first or (apart.index(largest) + 1 if largest else 0)
        return Agreement(len(self.losses), self.calls, self.largest_share, largest, step, self.deviation)

    def _deviation(self, made: Made, wanted: Mapping[str, Expected], wrong: dict[str, Array]) -> Deviation:
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
            made.part.function,
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
        """Return a description of the tensor `name` of a call for a message, such as "gradient of W".

        `index` is the tensor's first wrong element. For "P", the array of all parameters, it gives the wrong parameter.
        """
        if name == RESULT:
            return "the loss" if made.place == LOSS else "forward output"
        if name == "P":
            place, parameter, _ = self.network.owner(index[0])
            return f"parameter {parameter} of {place}"
        if name == "index":
            return "index of the maxima"
        return "gradient of the logits" if made.place == LOSS else f"gradient of {name.removeprefix('d')}"


def _shares(answer: Array, wanted: Expected) -> Array:
    """Return each element's error divided by its budget: infinity where the result is NaN, and 0 where the expected
    value is too large for float32."""
    error = np.abs(answer.astype(np.float64) - wanted.value)
    with np.errstate(invalid="ignore"):
        share = error / wanted.tolerance
    share[np.isnan(error)] = np.inf
    share[~(np.abs(wanted.value) <= np.finfo(np.float32).max) | np.isinf(wanted.tolerance)] = 0.0
    return share


def _factor(got: Array, wanted: Array) -> float | None:
    """Return f if `got` is about f * `wanted` in all elements (at least two), and f is not about 1; else None."""
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
    # The ratios leave out elements that are near 0 in `wanted`. Check that these are also near 0 in `got`.
    apart = np.abs(flat - middle * other)[~large]
    limit = SAME_FACTOR * abs(middle) * np.abs(other).max()
    return middle if bool((apart <= limit).all()) else None


def _shown(index: Sequence[int]) -> str:
    return f"({', '.join(map(str, index))})"
