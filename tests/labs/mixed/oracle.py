"""Expected values of the mixed lab, and a few suspects."""

from collections.abc import Callable, Mapping

from grader.core.arrays import Array, np
from grader.core.draws import Draws
from grader.explain import oracle, suspect
from grader.explain.comparison import UNIT_ROUNDOFF, Expected

Shape = Mapping[str, int]
Inputs = Mapping[str, Array]
KINDS = 5
MISTAKES: list[suspect.Suspect] = []
mistake = suspect.registering(MISTAKES)


def softmax(x: Array, axis: int) -> Array:
    weights = np.exp(x - x.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def make_inputs(distribution: str, shape: Shape, seed: int) -> dict[str, Array]:
    draws = Draws(seed)
    r, c = shape["R"], shape["C"]
    x = draws.uniform((r, c), -4.0, 4.0)
    if distribution == "steps":
        x = np.floor(x)
    y, labels = draws.uniform((c,), 0.5, 1.5), draws.below(KINDS, (r,)).astype(np.int64)
    return {"X": x, "y": y, "labels": labels, "places": draws.below(max(1, c), (r,)).astype(np.int32)}


def near(value: Array, steps: int) -> Expected:
    return Expected(value, 1e-6 + UNIT_ROUNDOFF * (10 + 4 * steps) * (1 + abs(value)))


class Formula(oracle.Oracle):
    """An oracle whose expected values are a function of the float64 inputs and the shape."""

    def __init__(self, formula: Callable[[Inputs, Shape], Expected | Mapping[str, Expected]]) -> None:
        self.formula = formula

    def expected(self, inputs: Inputs, shape: Shape) -> Expected | Mapping[str, Expected]:
        return self.formula({name: values.astype(np.float64) for name, values in inputs.items()}, shape)


class Softmax(Formula):
    mistakes = MISTAKES  # type: ignore[assignment]


@mistake("wrong_axis", "The sum goes down the columns: each row has a sum of its own.")
def down_the_columns(s: suspect.Situation) -> Array:
    return softmax(s.inputs["X"], 0)


def moments(inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
    count = np.bincount(inputs["labels"].astype(np.int64), minlength=KINDS).astype(np.float64)
    sums, means = near(inputs["X"].sum(1), shape["C"]), near(inputs["X"].mean(1), shape["C"])
    return {"": sums, "mean": means, "count": Expected(count, 0.0)}


def outer(inputs: Inputs, shape: Shape) -> Expected:
    """Return X[r, c] * y[e] with axes r, c, e, and `pad` zeros appended along c."""
    return near(np.pad(inputs["X"][:, :, None] * inputs["y"], ((0, 0), (0, shape["pad"]), (0, 0))), 2)


ORACLES: dict[str, oracle.Oracle] = {
    "softmax": Softmax(lambda inputs, shape: near(softmax(inputs["X"], 1), shape["C"])),
    "moments": Formula(moments),
    "scale": Formula(lambda inputs, shape: near(0.25 * inputs["X"] * inputs["y"], 2)),
    "outer": Formula(outer),
    "counts": Formula(lambda inputs, shape: Expected(inputs["labels"] * 1000 + inputs["places"], 0.0)),
}
