"""Mistakes in the formula: what is put into exp(), and what it is divided by."""

from __future__ import annotations

from grader.core.arrays import Array, np
from grader.judge.diagnosis.suspect import Suspect, registering

from ..scene import Scene, normalised, row, total

MISTAKES: list[Suspect] = []
mistake = registering(MISTAKES)

#: Those that can be seen only where no maximum is taken off.
NAIVE: list[Suspect] = []
naive = registering(NAIVE)

LOG2_E = np.float32(1.4426950408889634)


@mistake("not_normalised", "The rows do not sum to 1: they are never divided by the sum of exp(x - m).")
def not_divided(s: Scene) -> Array:
    return s.weights


NAIVE += [
    row("plain_not_divided", "not_normalised",
        "The rows do not sum to 1: they are never divided by the sum of exp(x).",
        lambda s: s.plain),
    row("divided_by_largest", "divided_by_largest",
        "Each row is divided by its largest exp(x), and not by the sum of exp(x).",
        lambda s: s.weights),
]  # fmt: skip


MISTAKES += [
    row("base_two", "wrong_base",
        "The powers are of 2 and not of e: exp2(x) is exp(x) only where x was multiplied by log2(e) = 1.442695 "
        "before.",
        lambda s: normalised(np.exp2(s.x - s.most))),
    row("scaled_for_nothing", "wrong_base",
        "log2(e) is multiplied in where exp() is taken, and not exp2(): the powers are of e^1.4427. exp2(x * "
        "log2(e)) is exp(x).",
        lambda s: normalised(np.exp((s.x - s.most) * LOG2_E))),
    row("logarithm", "log_taken",
        "The output is the logarithm of the softmax, x - m - log(sum), and not the softmax.",
        lambda s: s.x - s.most - np.log(total(s.weights))),
    row("no_exponential", "no_exponential",
        "Each element is divided by the sum of its row as it is: exp() is missing.",
        lambda s: s.x / total(s.x)),
    row("sum_of_elements", "exponential_missing_in_sum",
        "The sum is that of the elements of the row, and not that of their exp().",
        lambda s: s.weights / total(s.x)),
]  # fmt: skip


@naive(
    "exponential_missing_in_sum", "The sum is that of the elements of the row, and not that of their exp()."
)
def plain_sum_of_elements(s: Scene) -> Array:
    return s.plain / total(s.x)


MISTAKES += [
    row("turned_round", "wrong_sign",
        "The smallest element of a row has the largest share: exp(-x) is taken, or exp(m - x).",
        lambda s: normalised(np.exp(s.x.min(1, keepdims=True) - s.x))),
    row("exponential_of_output", "reads_what_it_wrote",
        "exp() is taken twice of each element: the last pass reads from O, where an earlier one has put exp(x - m) "
        "already, in the place of x.",
        lambda s: np.exp(s.weights) / total(s.weights)),
    row("shifted_exponential_of_output", "reads_what_it_wrote",
        "The last pass takes exp(o - m) of what an earlier one has put into O already, in the place of exp(x - m).",
        lambda s: np.exp(s.weights - s.most) / total(s.weights)),
]  # fmt: skip


NAIVE += [
    row("plain_exponential_of_output", "reads_what_it_wrote",
        "exp() is taken twice of each element: the last pass reads from O, where an earlier one has put exp(x) "
        "already, in the place of x.",
        lambda s: np.exp(s.plain) / total(s.plain)),
]  # fmt: skip


@mistake(
    "wrong_stride",
    "Row i is read from X[i * R + j]: each row has C elements, so that it begins at i * C.",
)
def rows_of_another_length(s: Scene) -> Array | None:
    rows, columns = s.whole.shape
    if rows >= columns:
        return None
    at = np.arange(s.first, s.first + len(s.x))[:, None] * rows + np.arange(columns)
    x = s.whole.reshape(-1)[at]
    return normalised(np.exp(x - x.max(1, keepdims=True)))
