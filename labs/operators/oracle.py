"""Expected results of each operator, in float64 with an error budget, and its known mistakes.

An operator that is linear in each operand is a sum of products. A float32 kernel adds n of them. Its error is at most
n roundings of the sum of their magnitudes, in any order (Higham 2002). Roundings that do not all go one way amount to
a multiple of sqrt(n) of them (Higham and Mary 2019).

Each rounding is relative to the sum so far. Most of the numbers are drawn at random, and the order of additions does
not depend on them. So the sum so far hardly exceeds the whole sum by more than a few times the root of the terms'
squares. A gradient that is added to counts its old value as one more term.

Sources: Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1. Higham and Mary, A new approach to
probabilistic rounding error analysis, 2019.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

from grader.core.arrays import Array, np
from grader.judge.comparison import UNIT_ROUNDOFF, Expected
from grader.judge.diagnosis import relations as simple
from grader.judge.diagnosis.deviation import Axis, Deviation
from grader.judge.diagnosis.inquiry import Inquiry
from grader.judge.diagnosis.suspect import Suspect
from grader.judge.oracle import Inputs, Oracle, Shape

from . import arithmetic, differences
from .suspects import elements, filters, gradients, layers, losses, pictures, windows

Values = dict[str, Array]
RESULT = ""

_TINY = 1e-30
#: Sizes at which a wrong kernel is called again.
_TRIED = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 31, 32, 33)
#: Roundings beside those of the sum: of the products, and of what a kernel may keep in between.
_MORE = 8
#: Multiple of sqrt(n) that n roundings come to with a chance below 2 n exp(-32).
_LAMBDA = 8
#: How far sums of numbers drawn at random spread on their way, in roots of the sum of their squares.
_SPREAD = 6
#: What the axes of pictures and filters are called.
_PICTURES = (
    Axis("image", "images", "n", listed=True),
    Axis("channel", "channels", "c", listed=True),
    Axis("row", "rows", "h"),
    Axis("column", "columns", "w"),
)


def imprecise(seen: Deviation) -> simple.Found | None:
    """Small errors in a few places only are a step that was left out there."""
    return simple.imprecise(seen) if seen.wrong.mean() > 0.5 else None


class Operator(Oracle):
    """An operator's forward function, or its backward function where `of` says how to find differences."""

    #: Sizes of which no other depends.
    probes: ClassVar = dict.fromkeys(
        ("n", "M", "K", "N", "batch", "I", "O", "classes", "images", "channels", "filters", "maps", "planes"),
        _TRIED,
    )
    clues: ClassVar = {"wrong_values": ("skips", "loops", "store", "?call:exp", "?sums")}
    relations = (simple.not_written,)
    weak_relations = (
        *(simple.partly_not_written, simple.transposed, simple.moved),
        *(simple.constant_factor, imprecise),
    )
    race_advice = (
        "Do several threads add to the same element? Share out what is written, not what is read, or give each thread "
        "a buffer of its own and add these up (critical, atomic, reduction). A variable of the loop's body has to be "
        "declared in it."
    )
    of: differences.Slopes | None = None

    def __init__(self, output: str = "the output", mistakes: tuple[Suspect, ...] = ()) -> None:
        self.output, self.mistakes = output, mistakes

    @abstractmethod
    def values(self, x: Inputs, s: Shape) -> Values:
        """Return the output, and gradients without their old content, by name, in the type of the inputs."""

    @abstractmethod
    def terms(self, s: Shape) -> Mapping[str, int]:
        """Return the number of terms that each output sums."""

    def expected(self, inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
        x = in_double(inputs)
        value, terms = self._sums(x, shape), self.terms(shape)
        magnitude, squares = self._sums(_each(np.abs, x), shape), self._sums(_each(np.square, x), shape)
        found = {}
        for name, sums in value.items():
            largest = np.minimum(magnitude[name], abs(sums) + _SPREAD * np.sqrt(squares[name]))
            found[name] = Expected(sums, _TINY + UNIT_ROUNDOFF * roundings(terms[name]) * largest)
        return found

    def _sums(self, x: Inputs, s: Shape) -> Values:
        return {name: added + x.get(name, 0.0) for name, added in self.values(x, s).items()}

    def inquiry(
        self, inputs: Inputs, shape: Shape, expected: Mapping[str, Expected], actual: Mapping[str, Array]
    ) -> Inquiry | None:
        if self.of is None:
            return None
        forward = ORACLES[self.of.forward]
        return self.of.inquiry(
            inputs, expected, actual, lambda x: forward.values(in_double(x), shape)[RESULT]
        )


def roundings(terms: int) -> float:
    """Return the number of roundings by which a sum of `terms` terms may be off."""
    return min(terms, _LAMBDA * terms**0.5) + _MORE


def _each(function: Callable[[Array], Array], x: Inputs) -> Values:
    return {name: function(t) if t.dtype.kind == "f" else t for name, t in x.items()}


def in_double(inputs: Inputs) -> Values:
    return {name: t.astype(np.float64) if t.dtype.kind == "f" else t for name, t in inputs.items()}


# ---- element by element


class Add(Operator):
    def values(self, x: Inputs, s: Shape) -> Values:
        return {RESULT: x["A"] + x["B"]}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {RESULT: 1}


class AddBackward(Operator):
    of = differences.Slopes("add", {"dA": "A", "dB": "B"}, "dO")

    def values(self, x: Inputs, s: Shape) -> Values:
        return {"dA": x["dO"], "dB": arithmetic.summed_to(x["dO"], s["RB"], s["CB"])}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {"dA": 1, "dB": s["R"] * s["C"] // (s["RB"] * s["CB"])}


class Mul(Add):
    def values(self, x: Inputs, s: Shape) -> Values:
        return {RESULT: x["A"] * x["B"]}


class MulBackward(AddBackward):
    of = differences.Slopes("mul", {"dA": "A", "dB": "B"}, "dO")

    def values(self, x: Inputs, s: Shape) -> Values:
        return {
            "dA": x["dO"] * x["B"],
            "dB": arithmetic.summed_to(x["dO"] * x["A"], s["RB"], s["CB"]),
        }


class Relu(Operator):
    """Exact: nothing is rounded."""

    def values(self, x: Inputs, s: Shape) -> Values:
        return {RESULT: np.maximum(x["X"], 0)}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {RESULT: 0}


class ReluBackward(Operator):
    of = differences.Slopes("relu", {"dX": "X"}, "dO", step=2.0**-7)

    def values(self, x: Inputs, s: Shape) -> Values:
        return {"dX": x["dO"] * (x["X"] > 0)}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {"dX": 1}

    def expected(self, inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
        x = in_double(inputs)
        value = x["dX"] + self.values(x, shape)["dX"]
        return {"dX": Expected(value, _TINY + 2 * UNIT_ROUNDOFF * abs(value))}


# ---- matrix products


class Matmul(Operator):
    def values(self, x: Inputs, s: Shape) -> Values:
        return {RESULT: x["A"] @ x["B"]}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {RESULT: s["K"]}

    def flops(self, shape: Shape) -> int:
        return 2 * shape["M"] * shape["K"] * shape["N"]


class MatmulBackward(Operator):
    of = differences.Slopes("matmul", {"dA": "A", "dB": "B"}, "dO")

    def values(self, x: Inputs, s: Shape) -> Values:
        return {"dA": x["dO"] @ x["B"].T, "dB": x["A"].T @ x["dO"]}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {"dA": s["N"], "dB": s["M"]}

    def flops(self, shape: Shape) -> int:
        return 4 * shape["M"] * shape["K"] * shape["N"]


class Linear(Operator):
    def values(self, x: Inputs, s: Shape) -> Values:
        return {RESULT: x["X"] @ x["W"] + x["b"]}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {RESULT: s["I"] + 1}

    def flops(self, shape: Shape) -> int:
        return 2 * shape["batch"] * shape["I"] * shape["O"]


class LinearBackward(Operator):
    of = differences.Slopes("linear", {"dX": "X", "dW": "W", "db": "b"}, "dY")

    def values(self, x: Inputs, s: Shape) -> Values:
        return {"dX": x["dY"] @ x["W"].T, "dW": x["X"].T @ x["dY"], "db": x["dY"].sum(0)}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {"dX": s["O"], "dW": s["batch"], "db": s["batch"]}

    def flops(self, shape: Shape) -> int:
        return 4 * shape["batch"] * shape["I"] * shape["O"]


# ---- pictures


class Conv2d(Operator):
    axes = _PICTURES

    def values(self, x: Inputs, s: Shape) -> Values:
        made = arithmetic.convolved(x["X"], x["W"], arithmetic.usual_taps(s))
        return {RESULT: made + x["b"][:, None, None]}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {RESULT: s["channels"] * s["kernel"] ** 2 + 1}


class Conv2dBackward(Operator):
    of = differences.Slopes("conv2d", {"dX": "X", "dW": "W", "db": "b"}, "dY")

    def values(self, x: Inputs, s: Shape) -> Values:
        t = arithmetic.usual_taps(s)
        return {
            "dX": arithmetic.image_gradient(x["dY"], x["W"], t, s["height"], s["width"]),
            "dW": arithmetic.filter_gradient(x["dY"], x["X"], t),
            "db": x["dY"].sum((0, 2, 3)),
        }

    def terms(self, s: Shape) -> Mapping[str, int]:
        rows, columns = arithmetic.out_size(s)
        places = s["images"] * rows * columns
        return {"dX": s["filters"] * s["kernel"] ** 2, "dW": places, "db": places}


class Maxpool2d(Operator):
    """Exact, and so is where each maximum is."""

    axes = _PICTURES

    def values(self, x: Inputs, s: Shape) -> Values:
        made, index = arithmetic.pooled(x["X"], s)
        return {RESULT: made, "index": index.astype(np.float64)}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {RESULT: 0, "index": 0}

    def expected(self, inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
        return {name: Expected(value, _TINY) for name, value in self.values(in_double(inputs), shape).items()}


class Maxpool2dBackward(Operator):
    axes = _PICTURES
    of = differences.Slopes("maxpool2d", {"dX": "X"}, "dY", step=2.0**-7)

    def values(self, x: Inputs, s: Shape) -> Values:
        return {"dX": arithmetic.scattered(x["dY"], x["indices"], x["dX"].shape)}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {"dX": s["side"] ** 2}


# ---- losses and the step


class OfLogits(Operator):
    def not_finite(self, seen: Deviation, amount: str) -> tuple[str, str]:
        # No number in the advice: where hidden tests follow, sentences with numbers are kept from the student.
        return "not_finite", (
            f"NaN or infinity in {amount}. exp() of a large logit is infinite as a float, and log() of 0 is too: take "
            "each row's maximum away before the exponential, and use log(exp(x) / sum) = x - log(sum)."
        )


class Mse(Operator):
    def values(self, x: Inputs, s: Shape) -> Values:
        return {RESULT: np.square(x["X"] - x["T"]).mean(keepdims=True)}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {RESULT: s["n"] + 4}

    def expected(self, inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
        value = self.values(in_double(inputs), shape)[RESULT]
        # A difference is rounded once, relative to itself.
        return {RESULT: Expected(value, _TINY + UNIT_ROUNDOFF * roundings(self.terms(shape)[RESULT]) * value)}


class MseBackward(Operator):
    of = differences.Slopes("mse", {"dX": "X"}, "")

    def values(self, x: Inputs, s: Shape) -> Values:
        return {"dX": 2 * (x["X"] - x["T"]) / s["n"]}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {"dX": 1}

    def expected(self, inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
        x = in_double(inputs)
        change = self.values(x, shape)["dX"]
        return {
            "dX": Expected(x["dX"] + change, _TINY + UNIT_ROUNDOFF * _MORE * (abs(change) + abs(x["dX"])))
        }


class CrossEntropy(OfLogits):
    def values(self, x: Inputs, s: Shape) -> Values:
        rows = np.arange(s["batch"])
        return {RESULT: -arithmetic.log_softmax(x["X"])[rows, x["labels"]].mean(keepdims=True)}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {RESULT: s["batch"] + s["classes"]}

    def expected(self, inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
        value = self.values(in_double(inputs), shape)[RESULT]
        # A row's loss is a difference of numbers as large as its logits, or a logarithm. The argument of the
        # logarithm has the relative error of the exponentials' arguments.
        size = 1 + 4 * float(abs(inputs["X"]).max()) + float(value[0])
        return {RESULT: Expected(value, UNIT_ROUNDOFF * roundings(self.terms(shape)[RESULT]) * size)}


class CrossEntropyBackward(OfLogits):
    of = differences.Slopes("cross_entropy", {"dX": "X"}, "", step=0.25)

    def values(self, x: Inputs, s: Shape) -> Values:
        chances = np.exp(arithmetic.log_softmax(x["X"]))
        return {"dX": (chances - arithmetic.one_hot(x["labels"], s["classes"])) / s["batch"]}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {"dX": s["classes"]}

    def expected(self, inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
        x = in_double(inputs)
        change = self.values(x, shape)["dX"]
        chances = change + arithmetic.one_hot(x["labels"], shape["classes"]) / shape["batch"]
        # An error of the exponential's argument is a relative one of p, and p - 1 is rounded as 1 is.
        steps = shape["classes"] + _MORE + 4 * abs(x["X"]).max(1, keepdims=True)
        size = chances * steps + _MORE / shape["batch"] + 2 * abs(x["dX"])
        return {"dX": Expected(x["dX"] + change, _TINY + UNIT_ROUNDOFF * size)}


class Sgd(Operator):
    rate = 0.05

    def values(self, x: Inputs, s: Shape) -> Values:
        return {"P": -self.rate * x["G"]}

    def terms(self, s: Shape) -> Mapping[str, int]:
        return {"P": 1}

    def expected(self, inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
        x = in_double(inputs)
        change = self.values(x, shape)["P"]
        return {"P": Expected(x["P"] + change, _TINY + UNIT_ROUNDOFF * _MORE * (abs(change) + abs(x["P"])))}


ORACLES: dict[str, Operator] = {
    "add": Add("O", elements.ADD),
    "add_backward": AddBackward(mistakes=elements.ADD_BACKWARD),
    "mul": Mul("O", elements.MUL),
    "mul_backward": MulBackward(mistakes=elements.MUL_BACKWARD),
    "relu": Relu("O", elements.RELU),
    "relu_backward": ReluBackward(mistakes=elements.RELU_BACKWARD),
    "matmul": Matmul("O", layers.MATMUL),
    "matmul_backward": MatmulBackward(mistakes=layers.MATMUL_BACKWARD),
    "linear": Linear("Y", layers.LINEAR),
    "linear_backward": LinearBackward(mistakes=layers.LINEAR_BACKWARD),
    "conv2d": Conv2d("Y", pictures.CONV2D),
    "conv2d_backward": Conv2dBackward(mistakes=filters.CONV2D_BACKWARD),
    "maxpool2d": Maxpool2d("Y", windows.MAXPOOL2D),
    "maxpool2d_backward": Maxpool2dBackward(mistakes=windows.MAXPOOL2D_BACKWARD),
    "mse": Mse("the loss", losses.MSE),
    "mse_backward": MseBackward(mistakes=losses.MSE_BACKWARD),
    "cross_entropy": CrossEntropy("the loss", losses.CROSS_ENTROPY),
    "cross_entropy_backward": CrossEntropyBackward(mistakes=losses.CROSS_ENTROPY_BACKWARD),
    "sgd": Sgd(mistakes=gradients.SGD),
}
