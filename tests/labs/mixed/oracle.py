"""Expected values of the mixed lab, and a few suspects."""

from __future__ import annotations

from collections.abc import Mapping

from grader.base.arrays import Array, np
from grader.judge.comparison import UNIT_ROUNDOFF, Expected
from grader.judge.diagnosis.fitting import Situation
from grader.judge.diagnosis.suspect import Suspect, registering
from grader.judge.draws import Draws
from grader.judge.oracle import Oracle

Shape = Mapping[str, int]
Inputs = Mapping[str, Array]
KINDS = 5
MISTAKES: list[Suspect] = []
mistake = registering(MISTAKES)


def softmax(x: Array, axis: int) -> Array:
    weights = np.exp(x - x.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def make_inputs(distribution: str, shape: Shape, seed: int) -> dict[str, Array]:
    draws = Draws(seed)
    r, c = shape["R"], shape["C"]
    x = draws.uniform((r, c), -4.0, 4.0)
    if distribution == "steps":
        x = np.floor(x)
    return {
        "X": x,
        "y": draws.uniform((c,), 0.5, 1.5),
        "labels": draws.below(KINDS, (r,)).astype(np.int64),
        "places": draws.below(max(1, c), (r,)).astype(np.int32),
    }


def near(value: Array, steps: int) -> Expected:
    return Expected(value, 1e-6 + UNIT_ROUNDOFF * (10 + 4 * steps) * (1 + abs(value)))


class Softmax(Oracle):
    mistakes = MISTAKES  # type: ignore[assignment]

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        return near(softmax(inputs["X"].astype(np.float64), 1), shape["C"])


@mistake("wrong_axis", "The sum goes down the columns: each row has a sum of its own.")
def down_the_columns(s: Situation) -> Array:
    return softmax(s.inputs["X"], 0)


class Moments(Oracle):
    """Mean and variance of each row, and the number of rows of each label."""

    def expected(self, inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
        x = inputs["X"].astype(np.float64)
        return {
            "": near(x.sum(1), shape["C"]),
            "mean": near(x.mean(1), shape["C"]),
            "count": Expected(np.bincount(inputs["labels"], minlength=KINDS).astype(np.float64), 0.0),
        }


class Scale(Oracle):
    """X times y times a float, in place, with columns of zeros added on the right."""

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        return near(0.25 * inputs["X"].astype(np.float64) * inputs["y"], 2)


class Outer(Oracle):
    """X[r, c] * y[e], padded in the middle by `pad` zeros: three dimensions."""

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        product = inputs["X"].astype(np.float64)[:, :, None] * inputs["y"]
        return near(np.pad(product, ((0, 0), (0, shape["pad"]), (0, 0))), 2)


class Counts(Oracle):
    """Whole numbers: the place of each row's label after its own, by places."""

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        return Expected((inputs["labels"] * 1000 + inputs["places"]).astype(np.float64), 0.0)


ORACLES: dict[str, Oracle] = {
    "softmax": Softmax(),
    "moments": Moments(),
    "scale": Scale(),
    "outer": Outer(),
    "counts": Counts(),
}
