"""Suspected bugs of the formula softmax(Q K^T) V, and of its operands: another function, matrix, axis or layout."""

from __future__ import annotations

from grader.core.arrays import Array, np
from grader.explain.suspect import Suspect, registering, row

from ..scene import Scene

SUSPECTS: list[Suspect] = []
suspect = registering(SUSPECTS)
#: For scores up to this number, exp(exp(score)) is finite in float32.
_TWICE = 4.48


SUSPECTS += [
    row("copies_q", "copied_input", "The output is a copy of Q: the part is not written yet.",
        lambda s: s.q[:, s.rows]),
    row("scaled_by_root_d", "scaled",
        "The scores are divided by sqrt(d). This assignment's softmax(Q K^T) V has no such factor.",
        lambda s: s.attend(s.scores / s.d**0.5) if s.d > 1 else None),
    row("scaled_up_by_root_d", "scaled",
        "The scores are multiplied by sqrt(d). This assignment's softmax(Q K^T) V has no such factor.",
        lambda s: s.attend(s.scores * s.d**0.5) if s.d > 1 else None),
    row("scaled_by_d", "scaled",
        "The scores are divided by d. This assignment's softmax(Q K^T) V has no such factor.",
        lambda s: s.attend(s.scores / s.d) if s.d > 1 else None),
    row("mean_of_values", "uniform_softmax",
        "Every row is the plain mean of V's rows, as if all weights were equal. Are the scores computed at all, does "
        "the score of key j use row j of K, and is exp() called with the scores?",
        lambda s: np.broadcast_to(s.v.mean(1, keepdims=True), s.truth.shape)),
]  # fmt: skip


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


SUSPECTS += [
    row("no_exp", "exp_missing", "The weights are the scores themselves, divided by their sum: exp() is missing.",
        lambda s: s.scores / s.scores.sum(2, keepdims=True) @ s.v),
    row("exp_in_sum_only", "exp_missing",
        "Each row is divided by the sum of its exp(score), but in the product with V its weights are the scores "
        "themselves: exp() is missing there.",
        lambda s: s.scores / s.row_sum @ s.v),
    row("exp_twice", "exp_twice",
        "exp() is applied twice to the scores, but each row is divided by the sum of one exp(score): leave out one "
        "exp() of the weights.",
        lambda s: np.exp(s.weights) / s.row_sum @ s.v if s.scores.max() < _TWICE else None),
    row("exp2", "wrong_base", "The weights are 2^x in place of exp(x).", lambda s: s.attend(s.scores * np.log(2.0))),
    row("no_softmax", "softmax_missing",
        "The output is Q K^T V: the softmax between the two products is missing or has no effect.",
        lambda s: s.scores @ s.v),
    row("not_normalised", "not_normalised",
        "The rows of the softmax do not sum to 1: each row of the output is multiplied by the sum of its "
        "exp(score). Divide by that sum.",
        lambda s: s.weights @ s.v),
    row("divided_by_maximum", "not_normalised",
        "The rows of the softmax do not sum to 1: the output is that of a division by each row's largest weight, not "
        "by the sum of its weights.",
        lambda s: s.weights / s.weights.max(2, keepdims=True) @ s.v),
    row("divided_twice", "normalised_twice", "Each row is divided by the sum of its weights twice.",
        lambda s: s.truth / s.row_sum),
    row("divided_on_the_way", "normalised_twice",
        "The output is divided by the row sum at each key, so that the earlier keys are divided again and again: "
        "divide once, after the loop over keys, or divide each weight.",
        lambda s: s.weights * s.row_sum ** (np.arange(s.keys) - float(s.keys)) @ s.v),
    row("divided_while_summing", "divided_early",
        "Each weight is divided by the sum of the weights up to its own: the division is in the loop that still adds "
        "up. Divide after that loop.",
        lambda s: s.weights / s.weights.cumsum(2) @ s.v),
    row("first_key_twice", "key_twice",
        "The product with V counts key 0 twice, and every other key once: if the sum begins with key 0, the loop has "
        "to begin at key 1.",
        lambda s: s.truth + s.probabilities[:, :, :1] * s.v[:, :1]),
    row("last_key_twice", "key_twice", "The product with V counts the last key twice, and every other key once.",
        lambda s: s.truth + s.probabilities[:, :, -1:] * s.v[:, -1:]),
    row("maximum_only_above", "maximum_only_above",
        "The maximum is subtracted in the numerator, not in the sum: exp(x - m) / sum exp(x).",
        lambda s: np.exp(s.scores - s.scores.max(2, keepdims=True)) / s.row_sum @ s.v),
    row("maximum_only_in_sum", "maximum_only_in_sum",
        "The maximum is subtracted in the sum, not in the numerator: exp(x) / sum exp(x - m).",
        lambda s: s.truth * np.exp(s.scores.max(2, keepdims=True))),
    row("whole_sum", "whole_sum",
        "The row sum is a whole number: each exp(score) loses its fraction as it is added. Make the sum a float.",
        lambda s: s.weights @ s.v / np.floor(s.weights).sum(2, keepdims=True)),
    row("double_softmax", "double_softmax",
        "The softmax is applied twice: its weights go through exp() and the division once more.",
        lambda s: s.attend(s.probabilities)),
    row("best_key_alone", "hard_maximum",
        "Each row is the value of the key with the largest score: that is a maximum, not a softmax.",
        lambda s: np.take_along_axis(s.v, s.scores.argmax(2)[:, :, None], 1)),
    row("negated_scores", "negated", "The scores have the wrong sign: softmax(-Q K^T) V.",
        lambda s: s.attend(-s.scores)),
    row("negated_output", "negated", "The output has the wrong sign.", lambda s: -s.truth),
    row("magnitude", "exp_of_magnitude", "exp() gets the absolute value of the scores.",
        lambda s: s.attend(abs(s.scores))),
]  # fmt: skip


# ---- suspected bugs of operands: a wrong matrix, a wrong axis or a wrong layout

SUSPECTS += [
    row("softmax_over_columns", "wrong_axis",
        "The softmax is normalised over the columns of Q K^T; each of its rows must sum to 1.",
        lambda s: None if s.all_weights is None else s.weights / s.all_weights.sum(1, keepdims=True) @ s.v),
    row("divided_by_column", "wrong_axis",
        "Each weight (i, j) is divided by the sum of row j, not of its own row i: the division goes down a column.",
        lambda s: None if s.all_sums is None else s.weights / s.all_sums[:, None] @ s.v),
    row("columns_divided_on_the_way", "wrong_axis",
        "The sum of row i divides column i, not row i: look at the order of the indices in the division.",
        lambda s: None if s.all_sums is None else
            s.weights / np.where(np.arange(s.keys) >= s.rows[:, None], s.all_sums[:, None], 1.0) @ s.v),
    row("q_and_k_swapped", "q_k_swapped",
        "Q and K are swapped: the scores are K Q^T, the transpose of what they should be.",
        lambda s: s.attend(s.k[:, s.rows] @ s.q.mT)),
    row("k_for_q", "wrong_operand", "K is used in the place of Q: the scores are K K^T.",
        lambda s: s.attend(s.k[:, s.rows] @ s.k.mT)),
    row("q_for_k", "wrong_operand", "Q is used in the place of K: the scores are Q Q^T.",
        lambda s: s.attend(s.q[:, s.rows] @ s.q.mT)),
    row("k_for_v", "wrong_operand", "K is used in the place of V.", lambda s: s.attend(s.scores, s.k)),
    row("q_for_v", "wrong_operand", "Q is used in the place of V.", lambda s: s.attend(s.scores, s.q)),
    row("copies_v", "wrong_operand",
        "The output is a copy of V: row i is row i of V alone, not the weighted sum of all rows of V.",
        lambda s: s.v[:, s.rows]),
    row("probabilities_returned", "scores_returned",
        "The output holds softmax(Q K^T): the product with V is missing.",
        lambda s: s.probabilities[:, :, : s.d] if s.keys >= s.d else None),
    row("scores_returned", "scores_returned", "The output holds Q K^T: softmax and the product with V are missing.",
        lambda s: s.scores[:, :, : s.d] if s.keys >= s.d else None),
]  # fmt: skip


def _other_layout(matrix: Array) -> Array:
    """Return a matrix (G, N, d) as read with a wrong layout: element (i, j) at offset j * N + i of its head."""
    return matrix.reshape(matrix.shape[0], matrix.shape[2], matrix.shape[1]).mT


SUSPECTS += [
    row("k_read_transposed", "k_transposed",
        "K is read as if it were stored transposed, (d, N): element (j, k) lies at j * d + k.",
        lambda s: s.attend(s.q[:, s.rows] @ _other_layout(s.k).mT)),
    row("v_read_transposed", "v_transposed",
        "V is read as if it were stored transposed, (d, N): element (j, k) lies at j * d + k.",
        lambda s: s.attend(s.scores, _other_layout(s.v))),
    row("q_read_transposed", "q_transposed",
        "Q is read as if it were stored transposed, (d, N): element (i, k) lies at i * d + k.",
        lambda s: s.attend(_other_layout(s.q)[:, s.rows] @ s.k.mT)),
    row("weights_read_transposed", "scores_transposed",
        "The product with V reads the weights transposed: (j, i) in the place of (i, j).",
        lambda s:
            None if s.all_weights is None else
            (s.all_weights / s.all_weights.sum(2, keepdims=True)).mT[:, s.rows] @ s.v),
    row("v_reversed", "v_reversed", "The values are taken in reverse order: key j gets the value of key N - 1 - j.",
        lambda s: s.attend(s.scores, s.v[:, ::-1])),
]  # fmt: skip
