"""Suspects that any gradient can have, suspects of the update step, and a class with which to register suspects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from grader.core.arrays import Array, np
from grader.explain.suspect import Situation, Suspect

Predictor = Callable[[Situation], "Array | None"]


class Mistakes(list[Suspect]):
    """List of the suspects of one function, in the order in which they are tried."""

    def gives_each(
        self, *rows: tuple[str, str, str, Predictor], output: str = "", adds: bool = False
    ) -> None:
        """Add a suspect for each row: (name, code, words, function that predicts the output called `output`).

        `output` is "" for the returned tensor. `adds`: True if the function predicts the numbers that are added
        to the gradient `output`.
        """
        for name, code, words, predict in rows:

            def of_output(s: Situation, predict: Predictor = predict) -> Array | None:
                made = predict(s) if not output or s.output == output else None
                return s.inputs[output] + made if adds and made is not None else made

            self.append(Suspect(code, words, of_output, (f"{name} {output}",)))

    def adds_each(self, output: str, *rows: tuple[str, str, str, Predictor]) -> None:
        self.gives_each(*rows, output=output, adds=True)

    def gives(
        self, code: str, words: str, output: str = "", adds: bool = False
    ) -> Callable[[Predictor], Predictor]:
        """Return a decorator that calls `gives_each` with the function, whose name becomes the suspect's name."""

        def register(predict: Predictor) -> Predictor:
            self.gives_each((predict.__name__, code, words, predict), output=output, adds=adds)
            return predict

        return register

    def adds(self, output: str, code: str, words: str) -> Callable[[Predictor], Predictor]:
        return self.gives(code, words, output, adds=True)


def added(s: Situation) -> Array:
    """Return the right numbers to add to the gradient `s.output`."""
    return s.expected - s.inputs[s.output]


def beyond(values: Array, count: int, behind: float = np.nan) -> Array:
    """Return the first `count` of `values`. If there are fewer, the rest is `behind`, by default NaN (unknown)."""
    return np.concatenate([values, np.full(max(0, count - len(values)), behind)])[:count]


def only(x: Array, *at: slice | int) -> Array:
    """Return x with zeros everywhere except at index `at`."""
    kept = np.zeros_like(x)
    kept[at] = x[at]
    return kept


def without(x: Array, *at: slice | int) -> Array:
    """Return x with zeros at index `at`."""
    left = x.copy()
    left[at] = 0
    return left


def _with_size(size: str, combine: Callable[[Array, int], Array]) -> Predictor:
    """Return a function that predicts combine(right gradient, n), where n is the size called `size`; None if n is 1."""
    return lambda s: combine(added(s), s.sizes[size]) if s.sizes[size] > 1 else None


def _kept(axis: int | None) -> Predictor:
    """Return a function that predicts sums of the right gradient along an axis; None stands for the order in memory."""
    return lambda s: added(s).cumsum(axis).reshape(s.expected.shape) if added(s).size > 1 else None


def common(mistakes: Mistakes, *names: str, loops: Sequence[str] = ()) -> None:
    """Register mistakes that are possible in each function that adds to the gradients `names`.

    `loops` names the sizes over which such a function has loops.
    """
    for name in names:
        for size in loops:
            words = f"{name} gets {size} times its gradient: each step of a loop over {size} adds it again."
            often = _with_size(size, np.multiply)
            mistakes.adds_each(name, (f"times_{size}", "gradient_added_often", words, often))
        words = (
            f"{name} contains only this operator's gradient: it is written with = in place of +=. The gradients of the "
            "operand's other uses are lost."
        )
        mistakes.gives_each(("overwritten", "gradient_overwritten", words, added), output=name)
        words = f"The gradient is subtracted from {name}, or has the wrong sign."
        mistakes.adds_each(name, ("negated", "gradient_negated", words, lambda s: -added(s)))
        words = f"{name} gets twice its gradient: it is added twice, or multiplied by 2."
        mistakes.adds_each(name, ("doubled", "gradient_added_twice", words, lambda s: 2 * added(s)))
        words = (
            f"Each element of {name} also gets the gradients of earlier ones, as if they were added up: a sum or "
            "buffer is not set to 0 for each of them."
        )
        for axis in (0, -1, None):
            mistakes.adds_each(name, (f"kept_along_{axis}", "sum_not_reset", words, _kept(axis)))
        words = f"The old value of {name} counts twice: the sum begins with it and is then added to it."
        mistakes.adds_each(name, ("held_twice", "gradient_added_twice", words, lambda s: s.expected))


def other_rows(mistakes: Mistakes, name: str, length: str, others: Mapping[str, str]) -> None:
    """Add mistakes in which the gradient `name` is stored as if its rows had another length than `length`.

    Numbers that are stored at the same index are added up. `length` is the right length's name in messages. `others`
    has the wrong lengths: it maps the name in messages to the name in the case's sizes.
    """
    for letter, other in others.items():

        def of_other_rows(s: Situation, other: str = other) -> Array | None:
            made = added(s)
            at = np.arange(len(made))[:, None] * s.sizes[other] + np.arange(made.shape[1])
            if s.sizes[other] == made.shape[1] or at.max() >= made.size:
                return None
            return np.bincount(at.ravel(), made.ravel(), made.size).reshape(made.shape)

        words = (
            f"{name} is stored with rows of {letter} numbers, not of {length}: row r begins at r * {length}."
        )
        mistakes.adds_each(name, (f"rows_of_{letter}", "wrong_stride", words, of_other_rows))


def divided(mistakes: Mistakes, name: str, size: str, what: str) -> None:
    """Add the mistake that a gradient is divided by `size`, as in a mean. `what` is the name of the size in words."""
    words = (
        f"{name} gets 1/{what} of its gradient: the mean over the {what} is taken in place of the sum. Only the loss "
        "divides by the batch."
    )
    mistakes.adds_each(name, ("mean", "gradient_mean", words, _with_size(size, np.divide)))


def exchanged(
    mistakes: Mistakes, first: str, second: str, gradient: Callable[[Situation, str], Array]
) -> None:
    """Add mistakes in which two outputs get each other's gradient, number by number in memory order.

    `gradient` returns the right gradient for a name. If one output is shorter, it gets only the start of
    the longer gradient. Then nothing is added to the end of the longer output.
    """
    for name, other in ((first, second), (second, first)):

        def others(s: Situation, other: str = other) -> Array | None:
            made = gradient(s, other).ravel()[: s.expected.size]
            if s.expected.size == 1:
                return None
            return np.concatenate([made, np.zeros(s.expected.size - len(made))]).reshape(s.expected.shape)

        words = f"{name} gets the gradient of {other}: check to which tensor each result is added."
        mistakes.adds_each(name, ("others", "gradients_swapped", words, others))


SGD = Mistakes()


SGD.gives_each(
    ("uphill", "step_uphill", "The step goes uphill: rate * G is added to P, but has to be subtracted.",
     lambda s: 2 * s.inputs["P"] - s.expected),
    ("without_rate", "rate_ignored", "P - G is stored: the rate is not used.",
     lambda s: s.inputs["P"] - s.inputs["G"]),
    ("rate_twice", "rate_ignored", "The step is multiplied by the rate twice.",
     lambda s: s.inputs["P"] + (s.expected - s.inputs["P"]) * _rate(s)),
    ("step_alone", "step_replaces",
     "P contains only -rate * G: the step replaces the parameters. Subtract it from them.",
     lambda s: s.expected - s.inputs["P"]),
    ("decayed", "rate_of_parameters", "The rate multiplies the parameters: it has to multiply G.",
     lambda s: s.inputs["P"] * _rate(s) - s.inputs["G"]),
    ("mean_step", "step_divided", "The step is divided by n: subtract rate * G without a division.",
     lambda s: s.inputs["P"] + (s.expected - s.inputs["P"]) / s.sizes["n"] if s.sizes["n"] > 1 else None),
)  # fmt: skip


def _rate(s: Situation) -> float:
    """Return the learning rate of the call, computed from the right result."""
    change, gradient = s.inputs["P"] - s.expected, s.inputs["G"]
    largest = abs(gradient).argmax()
    return float(change[largest] / gradient[largest])
