"""Expected results of each operator in float64, the tolerance (error budget) of each, and known mistakes.

An operator that is linear in each operand is a sum of products. A float32 kernel adds n products. In any order, its
error is at most n rounding errors, each relative to the sum of the products' magnitudes (Higham 2002). If the errors
have random signs, their sum is only a multiple of sqrt(n) rounding errors (Higham and Mary 2019).

Each rounding error is relative to the partial sum. Most of the numbers are random, and the order of additions does not
depend on them. So a partial sum exceeds the whole sum at most by a few times the root of the sum of the terms' squares.
For a gradient, its value before the call is one more term.

Sources: Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1. Higham and Mary, A new approach to
probabilistic rounding error analysis, 2019.

A wrong gradient is also compared with the slope of the student's own forward function.
The loss is L = sum of dO * forward(X), or forward(X) itself if this is a loss. Its slope along one element x is
(L(x + h) - L(x - h)) / 2h, from two calls of the student's forward function. The slope is compared with the gradient
that the student's backward function added, and with the right gradient. If forward is linear or quadratic in x, the
slope is exact for any h; for other functions h is small. An element is skipped if its slope in float64 differs from the
right gradient: at a tie of maxima, or at x = 0 in ReLU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from grader.core.arrays import Array, np
from grader.explain import relations as simple
from grader.explain.comparison import UNIT_ROUNDOFF, Expected, compare
from grader.explain.deviation import Axis, Deviation
from grader.explain.oracle import Answers, Inputs, Inquiry, Oracle, Shape
from grader.explain.suspect import Suspect

from . import arithmetic
from .suspects import elements, gradients, layers, losses, pictures, windows

#: Number of elements whose slopes are computed: the elements of the gradient with the largest errors.
TRIED = 3
#: Two numbers agree if they differ by at most this share of the larger one, besides rounding.
AGREEING = 0.05
#: Relative error that a float32 forward function may have.
ROUNDING = 2.0**-20

Forward = Callable[[Inputs], Array]


@dataclass(frozen=True)
class Point:
    """An element of a gradient: its index, the number that the student's function added, and the right number."""

    at: tuple[int, ...]
    added: float
    right: float


@dataclass(frozen=True)
class Slopes:
    """Settings of the finite differences. `forward` is the part whose function is called. `operands` maps each
    gradient to its operand. `upstream` is the input with the gradient of the result ("" for a loss), and `step` is h.
    """

    forward: str
    operands: Mapping[str, str]
    upstream: str
    step: float = 1.0

    def inquiry(
        self,
        inputs: Inputs,
        expected: Mapping[str, Expected],
        actual: Mapping[str, Array],
        right_forward: Forward,
    ) -> Inquiry | None:
        """Return an Inquiry that computes slopes along a few elements of the first wrong gradient.

        The Inquiry calls the student's forward function twice for each element. Return None if no element is suitable.
        `right_forward` is the right forward function in float64.
        """
        wrong = [name for name in self.operands if not compare(expected[name], actual[name]).ok]
        if not wrong:
            return None
        name, operand = wrong[0], self.operands[wrong[0]]
        points = [
            point
            for point in _furthest(inputs[name], expected[name], actual[name])
            if self._is_smooth(inputs, operand, point, right_forward)
        ]
        calls = [
            (self.forward, moved) for point in points for moved in self._moved(inputs, operand, point.at)
        ]

        def conclude(answers: Sequence[Answers]) -> str:
            results = [np.asarray(answer[RESULT], np.float64) for answer in answers]
            slopes = [
                self._slope(inputs, self._moved(inputs, operand, point.at), operand, point.at, pair)
                for point, pair in zip(points, zip(results[::2], results[1::2], strict=True), strict=True)
            ]
            return _sentence(self._function, name, points, slopes)

        return Inquiry(calls, conclude) if calls else None

    @property
    def _function(self) -> str:
        first, *others = self.forward.split("_")
        return f"{first}{''.join(word.capitalize() for word in others)}Forward"

    def _moved(self, inputs: Inputs, operand: str, at: tuple[int, ...]) -> list[dict[str, Array]]:
        """Return two copies of the inputs: one element of `operand` is larger by h, then smaller by h."""
        moved = []
        for step in (self.step, -self.step):
            changed = inputs[operand].copy()
            changed[at] += np.float32(step)
            moved.append({**inputs, operand: changed})
        return moved

    def _slope(
        self,
        inputs: Inputs,
        moved: Sequence[Inputs],
        operand: str,
        at: tuple[int, ...],
        results: Sequence[Array],
    ) -> tuple[float, float]:
        """Return the slope along `operand[at]` and a bound on its error. `results`: forward's outputs for `moved`."""
        above, below = results
        run = float(moved[0][operand][at]) - float(moved[1][operand][at])
        weight = inputs[self.upstream].astype(np.float64) if self.upstream else np.ones(1)
        rise = weight * (above - below)
        size = abs(weight) * (abs(above) + abs(below)) * (above != below)
        return float(rise.sum()) / run, ROUNDING * float(size.sum()) / run

    def _is_smooth(self, inputs: Inputs, operand: str, point: Point, forward: Forward) -> bool:
        moved = self._moved(inputs, operand, point.at)
        slope, off = self._slope(inputs, moved, operand, point.at, [forward(x) for x in moved])
        return _agree(slope, point.right, off) and not _agree(point.added, point.right, off)


def _furthest(held: Array, expected: Expected, actual: Array) -> list[Point]:
    """Return the finite elements with the largest errors, at most TRIED. `held` is the gradient before the call."""
    error = np.where(np.isfinite(actual), abs(actual - expected.value), -1.0)
    found = []
    for place in np.argsort(error, axis=None)[::-1][:TRIED]:
        at = tuple(int(k) for k in np.unravel_index(place, error.shape))
        if error[at] > 0:
            before = float(held[at])
            found.append(Point(at, float(actual[at]) - before, float(expected.value[at]) - before))
    return found


def _agree(one: float, other: float, off: float) -> bool:
    return abs(one - other) <= AGREEING * max(abs(one), abs(other)) + off


def _sentence(
    function: str, name: str, points: Sequence[Point], slopes: Sequence[tuple[float, float]]
) -> str:
    """Return a sentence that blames the student's forward or backward function, with the first point's numbers.

    `slopes`: (finite difference of the forward `function`, its error) for each point. They are compared with the right
    gradient and with the gradient that the student added. Returns "" if points disagree or a slope is not finite.
    """
    as_right = [_agree(slope, point.right, off) for point, (slope, off) in zip(points, slopes, strict=True)]
    as_added = [_agree(slope, point.added, off) for point, (slope, off) in zip(points, slopes, strict=True)]
    point, (slope, _) = points[0], slopes[0]
    # A forward function that gives a constant is not written yet, or its own part says what is wrong.
    if not np.isfinite([slope for slope, _ in slopes]).all() or not any(slope for slope, _ in slopes):
        return ""
    place = f"{name}[{', '.join(map(str, point.at))}]"
    if all(as_right):
        return (
            f"A finite difference of your own {function} confirms this: {place} should get {slope:.4g}, and "
            f"{point.added:.4g} was added. So this backward function is wrong."
        )
    if all(as_added):
        return (
            f"A finite difference of your own {function} agrees with your gradient: {place} should get {slope:.4g} by "
            f"it, but the right gradient is {point.right:.4g}. Look at the forward function first."
        )
    if not any(as_right) and not any(as_added):
        return (
            f"By a finite difference of your own {function}, {place} should get {slope:.4g}. The right gradient is "
            f"{point.right:.4g}, and {point.added:.4g} was added. Look at the forward function as well."
        )
    return ""


Values = dict[str, Array]
Budget = Callable[[Inputs, Shape, Values], Mapping[str, Expected]]
RESULT = ""

_TINY = 1e-30
#: Sizes at which a wrong kernel is called again, to find the smallest that fails.
_TRIED = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 31, 32, 33)
#: Number of roundings of products and intermediate values that are allowed, besides the roundings of the sum.
_MORE = 8
#: The error of n roundings exceeds this multiple of sqrt(n) roundings with a probability below 2 n exp(-32).
_LAMBDA = 8
#: Allowed partial sum of random numbers, in units of the root of the sum of their squares.
_SPREAD = 6
#: Axes of images and filters.
_PICTURES = (
    Axis("image", "images", "n", listed=True),
    Axis("channel", "channels", "c", listed=True),
    Axis("row", "rows", "h"),
    Axis("column", "columns", "w"),
)


def imprecise(seen: Deviation) -> simple.Found | None:
    """Return (diagnosis code, message) if the output is imprecise in more than half of its elements; else None.

    If fewer elements are wrong, another cause is likelier.
    """
    return simple.imprecise(seen) if seen.wrong.mean() > 0.5 else None


class Operator(Oracle):
    """Oracle of a forward or backward function. `__init__` describes its settings."""

    #: Values to try for each size that can be changed alone, because no other size depends on it.
    probes: ClassVar = dict.fromkeys(
        ("n", "M", "K", "N", "batch", "I", "O", "classes", "images", "channels", "filters", "maps", "planes"),
        _TRIED,
    )
    clues: ClassVar = {
        "wrong_values": ("skips", "loops", "store", "index", "?call:exp", "?sums"),
        "maximum_from_zero": ("maxima",),
        "maximum_from_plane": ("maxima",),
        "last_of_equal": ("line:[<>]=", "maximum"),
        "sum_not_reset": ("sums", "?divide"),
        "bias_added_often": ("input:b", "store"),
        "gradient_overwritten": ("overwritten", "?store"),
        "terms_left_out": ("steps", "loops", "sums"),
        "broadcast_wrong_index": (r"line:\[[^\]]*%[^\]]*\]", "store"),
    }
    refutes = True
    relations = (simple.not_written,)
    weak_relations = (
        *(simple.partly_not_written, simple.transposed, simple.moved),
        *(simple.constant_factor, imprecise),
    )
    race_advice = (
        "Do several threads add to the same element? Let each thread write its own elements, or give each thread a "
        "buffer and add the buffers up (critical, atomic, reduction). Declare variables of the loop's body inside it."
    )

    def __init__(
        self, mistakes: Sequence[Suspect], values: Callable[[Inputs, Shape], Values], *,
        terms: Callable[[Shape], Mapping[str, int]] = lambda s: {}, output: str = "the output",
        of: Slopes | None = None, axes: tuple[Axis, ...] = (), flops: Callable[[Shape], int] | None = None,
        budget: Budget | None = None,
    ) -> None:  # fmt: skip
        """Prepare the oracle.

        Args:
            mistakes: suspects, simpler ones first.
            values: function that returns the right outputs by name; for gradients, the numbers to add.
            terms: function that returns, by output name, the number of terms in the sum of one element.
            output: name of the returned tensor in messages.
            of: settings of the finite differences that check a backward function; None without such a check.
            axes: names of the output's axes; () for the usual names.
            flops: function that returns the number of operations of a call; None if it is not needed.
            budget: function that returns expected values and tolerances, if the rule for sums does not apply.
        """
        self.mistakes, self.values, self.output, self.of = tuple(mistakes), values, output, of
        self._terms, self._flops, self._budget = terms, flops, budget
        if axes:
            self.axes = axes

    def expected(self, inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
        x = in_double(inputs)
        if self._budget is not None:
            return self._budget(x, shape, self.values(x, shape))
        value, terms = self._sums(x, shape), self._terms(shape)
        magnitude, squares = self._sums(_each(np.abs, x), shape), self._sums(_each(np.square, x), shape)
        found = {}
        for name, sums in value.items():
            largest = np.minimum(magnitude[name], abs(sums) + _SPREAD * np.sqrt(squares[name]))
            found[name] = Expected(sums, _TINY + UNIT_ROUNDOFF * roundings(terms[name]) * largest)
        return found

    def _sums(self, x: Inputs, s: Shape) -> Values:
        return {name: added + x.get(name, 0.0) for name, added in self.values(x, s).items()}

    def flops(self, shape: Shape) -> int:
        return self._flops(shape) if self._flops else 0

    def inquiry(
        self, inputs: Inputs, shape: Shape, expected: Mapping[str, Expected], actual: Mapping[str, Array]
    ) -> Inquiry | None:
        if self.of is None:
            return None
        forward = ORACLES[self.of.forward]
        return self.of.inquiry(
            inputs, expected, actual, lambda x: forward.values(in_double(x), shape)[RESULT]
        )


class OfLogits(Operator):
    clues: ClassVar = {
        **Operator.clues,
        "not_finite": ("bare", "maxima", "maximum", "call:exp", "logarithms", "divide", "skips"),
    }

    def not_finite(self, seen: Deviation, amount: str) -> tuple[str, str]:
        # Sentences with numbers are removed from messages on hidden tests, except for some fixed numbers such as 0. So
        # this advice has no other number.
        return "not_finite", (
            f"NaN or infinity in {amount}. As a float, exp() of a large logit is infinite, and so is log() of 0: "
            "subtract each row's maximum before the exponential, and use log(exp(x) / sum) = x - log(sum)."
        )


def roundings(terms: int) -> float:
    """Return the allowed error of a sum of `terms` terms, as a number of roundings."""
    return min(terms, _LAMBDA * terms**0.5) + _MORE


def _each(function: Callable[[Array], Array], x: Inputs) -> Values:
    return {name: function(t) if t.dtype.kind == "f" else t for name, t in x.items()}


def in_double(inputs: Inputs) -> Values:
    return _each(lambda t: t.astype(np.float64), inputs)


# ---- expected values and tolerances of outputs for which the rule for sums does not hold


def _relu_backward(x: Inputs, s: Shape, added: Values) -> Mapping[str, Expected]:
    value = x["dX"] + added["dX"]
    return {"dX": Expected(value, _TINY + 2 * UNIT_ROUNDOFF * abs(value))}


def _exact(x: Inputs, s: Shape, values: Values) -> Mapping[str, Expected]:
    return {name: Expected(value, _TINY) for name, value in values.items()}


def _added(x: Inputs, s: Shape, added: Values) -> Mapping[str, Expected]:
    """Return the gradients' old values plus `added`. The tolerance allows some roundings of both numbers."""
    return {
        name: Expected(x[name] + change, _TINY + UNIT_ROUNDOFF * _MORE * (abs(change) + abs(x[name])))
        for name, change in added.items()
    }


def _mse(x: Inputs, s: Shape, values: Values) -> Mapping[str, Expected]:
    value = values[RESULT]
    # Each difference X - T is rounded once, relative to itself.
    return {RESULT: Expected(value, _TINY + UNIT_ROUNDOFF * roundings(s["n"] + 4) * value)}


def _cross_entropy(x: Inputs, s: Shape, values: Values) -> Mapping[str, Expected]:
    value = values[RESULT]
    # A row's loss is the logarithm of a sum minus a logit. An absolute error of exp()'s argument is a relative error of
    # the sum, and so an absolute error of the logarithm.
    size = 1 + 4 * float(abs(x["X"]).max()) + float(value[0])
    return {RESULT: Expected(value, UNIT_ROUNDOFF * roundings(s["batch"] + s["classes"]) * size)}


def _cross_entropy_backward(x: Inputs, s: Shape, added: Values) -> Mapping[str, Expected]:
    change = added["dX"]
    chances = change + arithmetic.one_hot(x["labels"], s["classes"]) / s["batch"]
    # An absolute error of exp()'s argument is a relative error of p. At the label, p - 1 has a rounding error relative
    # to 1.
    steps = s["classes"] + _MORE + 4 * abs(x["X"]).max(1, keepdims=True)
    size = chances * steps + _MORE / s["batch"] + 2 * abs(x["dX"])
    return {"dX": Expected(x["dX"] + change, _TINY + UNIT_ROUNDOFF * size)}


# ---- the operators


def _conv2d(x: Inputs, s: Shape) -> Values:
    made = arithmetic.convolved(x["X"], x["W"], arithmetic.usual_taps(s))
    return {RESULT: made + x["b"][:, None, None]}


def _conv2d_backward(x: Inputs, s: Shape) -> Values:
    t = arithmetic.usual_taps(s)
    return {
        "dX": arithmetic.image_gradient(x["dY"], x["W"], t, s["height"], s["width"]),
        "dW": arithmetic.filter_gradient(x["dY"], x["X"], t),
        "db": x["dY"].sum((0, 2, 3)),
    }


def _conv2d_terms(s: Shape) -> Mapping[str, int]:
    rows, columns = arithmetic.out_size(s)
    places = s["images"] * rows * columns
    return {"dX": s["filters"] * s["kernel"] ** 2, "dW": places, "db": places}


def _maxpool2d(x: Inputs, s: Shape) -> Values:
    made, index = arithmetic.pooled(x["X"], s)
    return {RESULT: made, "index": index.astype(np.float64)}


def _logits_backward(x: Inputs, s: Shape) -> Values:
    chances = np.exp(arithmetic.log_softmax(x["X"]))
    return {"dX": (chances - arithmetic.one_hot(x["labels"], s["classes"])) / s["batch"]}


SGD_RATE = 0.05
_BROADCAST = {"dA": "A", "dB": "B"}
_WEIGHTS = {"dX": "X", "dW": "W", "db": "b"}
_ONE = {"dX": "X"}


def _uses(s: Shape) -> Mapping[str, int]:
    return {"dA": 1, "dB": s["R"] * s["C"] // (s["RB"] * s["CB"])}


ORACLES: dict[str, Operator] = {
    "add": Operator(elements.ADD, lambda x, s: {RESULT: x["A"] + x["B"]}, terms=lambda s: {RESULT: 1}, output="O"),
    "add_backward": Operator(
        elements.ADD_BACKWARD,
        lambda x, s: {"dA": x["dO"], "dB": arithmetic.summed_to(x["dO"], s["RB"], s["CB"])},
        terms=_uses, of=Slopes("add", _BROADCAST, "dO")),
    "mul": Operator(elements.MUL, lambda x, s: {RESULT: x["A"] * x["B"]}, terms=lambda s: {RESULT: 1}, output="O"),
    "mul_backward": Operator(
        elements.MUL_BACKWARD,
        lambda x, s: {"dA": x["dO"] * x["B"], "dB": arithmetic.summed_to(x["dO"] * x["A"], s["RB"], s["CB"])},
        terms=_uses, of=Slopes("mul", _BROADCAST, "dO")),
    # ReLU rounds nothing, so its result must be exact.
    "relu": Operator(elements.RELU, lambda x, s: {RESULT: np.maximum(x["X"], 0)},
                     terms=lambda s: {RESULT: 0}, output="O"),
    "relu_backward": Operator(elements.RELU_BACKWARD, lambda x, s: {"dX": x["dO"] * (x["X"] > 0)},
                              budget=_relu_backward, of=Slopes("relu", _ONE, "dO", step=2.0**-7)),
    "matmul": Operator(layers.MATMUL, lambda x, s: {RESULT: x["A"] @ x["B"]}, terms=lambda s: {RESULT: s["K"]},
                       output="O", flops=lambda s: 2 * s["M"] * s["K"] * s["N"]),
    "matmul_backward": Operator(
        layers.MATMUL_BACKWARD, lambda x, s: {"dA": x["dO"] @ x["B"].T, "dB": x["A"].T @ x["dO"]},
        terms=lambda s: {"dA": s["N"], "dB": s["M"]}, of=Slopes("matmul", _BROADCAST, "dO"),
        flops=lambda s: 4 * s["M"] * s["K"] * s["N"]),
    "linear": Operator(layers.LINEAR, lambda x, s: {RESULT: x["X"] @ x["W"] + x["b"]},
                       terms=lambda s: {RESULT: s["I"] + 1}, output="Y",
                       flops=lambda s: 2 * s["batch"] * s["I"] * s["O"]),
    "linear_backward": Operator(
        layers.LINEAR_BACKWARD,
        lambda x, s: {"dX": x["dY"] @ x["W"].T, "dW": x["X"].T @ x["dY"], "db": x["dY"].sum(0)},
        terms=lambda s: {"dX": s["O"], "dW": s["batch"], "db": s["batch"]},
        of=Slopes("linear", _WEIGHTS, "dY"), flops=lambda s: 4 * s["batch"] * s["I"] * s["O"]),
    "conv2d": Operator(pictures.CONV2D, _conv2d, terms=lambda s: {RESULT: s["channels"] * s["kernel"] ** 2 + 1},
                       output="Y", axes=_PICTURES),
    "conv2d_backward": Operator(pictures.CONV2D_BACKWARD, _conv2d_backward, terms=_conv2d_terms,
                                of=Slopes("conv2d", _WEIGHTS, "dY")),
    # Maxima and their indices must be exact.
    "maxpool2d": Operator(windows.MAXPOOL2D, _maxpool2d, budget=_exact, output="Y", axes=_PICTURES),
    "maxpool2d_backward": Operator(
        windows.MAXPOOL2D_BACKWARD,
        lambda x, s: {"dX": arithmetic.scattered(x["dY"], x["indices"], x["dX"].shape)},
        terms=lambda s: {"dX": s["side"] ** 2}, axes=_PICTURES, of=Slopes("maxpool2d", _ONE, "dY", step=2.0**-7)),
    "mse": Operator(losses.MSE, lambda x, s: {RESULT: np.square(x["X"] - x["T"]).mean(keepdims=True)},
                    budget=_mse, output="the loss"),
    "mse_backward": Operator(losses.MSE_BACKWARD, lambda x, s: {"dX": 2 * (x["X"] - x["T"]) / s["n"]},
                             budget=_added, of=Slopes("mse", _ONE, "")),
    "cross_entropy": OfLogits(
        losses.CROSS_ENTROPY,
        lambda x, s: {
            RESULT: -arithmetic.log_softmax(x["X"])[np.arange(s["batch"]), x["labels"]].mean(keepdims=True)
        },
        budget=_cross_entropy, output="the loss"),
    "cross_entropy_backward": OfLogits(losses.CROSS_ENTROPY_BACKWARD, _logits_backward,
                                       budget=_cross_entropy_backward,
                                       of=Slopes("cross_entropy", _ONE, "", step=0.25)),
    "sgd": Operator(gradients.SGD, lambda x, s: {"P": -SGD_RATE * x["G"]}, budget=_added),
}  # fmt: skip
