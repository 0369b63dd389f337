"""Suspected bugs of the formula: another function than softmax(Q K^T) V."""

from __future__ import annotations

from grader.core.arrays import Array, np
from grader.judge.diagnosis.suspect import Suspect, registering

from ..scene import Scene

SUSPECTS: list[Suspect] = []
suspect = registering(SUSPECTS)


@suspect("copied_input", "The output is a copy of Q: the part is not written yet.")
def copies_q(s: Scene) -> Array:
    return s.q[:, s.rows]


@suspect(
    "scaled", "The scores are divided by sqrt(d). This assignment's softmax(Q K^T) V has no such factor."
)
def scaled_by_root_d(s: Scene) -> Array | None:
    return s.attend(s.scores / s.d**0.5) if s.d > 1 else None


@suspect(
    "scaled", "The scores are multiplied by sqrt(d). This assignment's softmax(Q K^T) V has no such factor."
)
def scaled_up_by_root_d(s: Scene) -> Array | None:
    return s.attend(s.scores * s.d**0.5) if s.d > 1 else None


@suspect("scaled", "The scores are divided by d. This assignment's softmax(Q K^T) V has no such factor.")
def scaled_by_d(s: Scene) -> Array | None:
    return s.attend(s.scores / s.d) if s.d > 1 else None


@suspect(
    "uniform_softmax",
    "Every row is the plain mean of V's rows, as if all weights were equal. Are the scores computed at all, and does "
    "exp() get them?",
)
def mean_of_values(s: Scene) -> Array:
    return np.broadcast_to(s.v.mean(1, keepdims=True), s.truth.shape)


@suspect("linear_exp", "The weights are 1 + x in place of exp(x), which is close for tiny scores only.")
def one_plus_x(s: Scene) -> Array:
    weights = 1 + s.scores
    return weights / weights.sum(2, keepdims=True) @ s.v


@suspect(
    "linear_exp", "The weights are 1 + x + x*x/2 in place of exp(x), which is close for tiny scores only."
)
def second_order_exp(s: Scene) -> Array:
    weights = 1 + s.scores + s.scores**2 / 2
    return weights / weights.sum(2, keepdims=True) @ s.v


@suspect("exp_missing", "The weights are the scores themselves, divided by their sum: exp() is missing.")
def no_exp(s: Scene) -> Array:
    return s.scores / s.scores.sum(2, keepdims=True) @ s.v


@suspect(
    "exp_missing",
    "Each row is divided by the sum of its exp(score), but in the product with V its weights are the scores "
    "themselves: exp() is missing there.",
)
def exp_in_sum_only(s: Scene) -> Array:
    return s.scores / s.row_sum @ s.v


@suspect("wrong_base", "The weights are 2^x in place of exp(x).")
def exp2(s: Scene) -> Array:
    return s.attend(s.scores * np.log(2.0))


@suspect("softmax_missing", "The output is Q K^T V: the softmax between the two products is missing.")
def no_softmax(s: Scene) -> Array:
    return s.scores @ s.v


@suspect(
    "not_normalised",
    "The rows of the softmax do not sum to 1: each row of the output is as many times too large as the sum of "
    "its exp(score). Divide by that sum.",
)
def not_normalised(s: Scene) -> Array:
    return s.weights @ s.v


@suspect(
    "not_normalised",
    "The rows of the softmax do not sum to 1: each row is divided by its largest weight, not by their sum.",
)
def divided_by_maximum(s: Scene) -> Array:
    return s.weights / s.weights.max(2, keepdims=True) @ s.v


@suspect("normalised_twice", "Each row is divided by the sum of its weights twice.")
def divided_twice(s: Scene) -> Array:
    return s.truth / s.row_sum


@suspect(
    "double_softmax", "The softmax is applied twice: its weights go through exp() and the division once more."
)
def double_softmax(s: Scene) -> Array:
    return s.attend(s.probabilities)


@suspect("hard_maximum", "Each row takes the value of its best key alone: that is a maximum, not a softmax.")
def best_key_alone(s: Scene) -> Array:
    best = s.scores.argmax(2)[:, :, None]
    return np.take_along_axis(s.v, best, 1)


@suspect("negated", "The scores have the wrong sign: softmax(-Q K^T) V.")
def negated_scores(s: Scene) -> Array:
    return s.attend(-s.scores)


@suspect("negated", "The output has the wrong sign.")
def negated_output(s: Scene) -> Array:
    return -s.truth


@suspect("exp_of_magnitude", "exp() gets the absolute value of the scores.")
def magnitude(s: Scene) -> Array:
    return s.attend(abs(s.scores))
