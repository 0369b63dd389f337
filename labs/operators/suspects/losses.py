"""Suspects of the two losses and of their gradients."""

from __future__ import annotations

from grader.core.arrays import Array, np
from grader.explain.suspect import Situation

from .. import arithmetic
from .gradients import Mistakes, added, common

# ---- mean squared error

MSE = Mistakes()


def _difference(s: Situation) -> Array:
    return s.inputs["X"] - s.inputs["T"]


MSE.gives_each(
    ("sum_of_squares", "mean_missing", "The sum of the squares is returned: divide it by n.",
     lambda s: s.expected * s.sizes["n"] if s.sizes["n"] > 1 else None),
    ("divided_twice", "mean_twice", "The mean is taken twice: divide the sum by n once.",
     lambda s: s.expected / s.sizes["n"] if s.sizes["n"] > 1 else None),
    ("divided_by_fewer", "mean_of_others", "The sum is divided by n - 1: divide it by n.",
     lambda s: s.expected * s.sizes["n"] / (s.sizes["n"] - 1) if s.sizes["n"] > 1 else None),
    ("root", "root_taken", "The square root of the mean is returned: return the mean itself.",
     lambda s: np.sqrt(s.expected)),
    ("half", "half_of_loss", "Half of the mean is returned: return the mean.", lambda s: s.expected / 2),
    ("absolute", "not_squared", "The mean of |X - T| is returned: square the differences.",
     lambda s: abs(_difference(s)).mean(keepdims=True)),
    ("signed", "not_squared", "The mean of X - T is returned: square each difference.",
     lambda s: _difference(s).mean(keepdims=True)),
    ("of_squares", "squares_subtracted", "The mean of X^2 - T^2 is returned: square the difference.",
     lambda s: (np.square(s.inputs["X"]) - np.square(s.inputs["T"])).mean(keepdims=True)),
    ("without_target", "target_ignored", "The mean of X^2 is returned: T is left out.",
     lambda s: np.square(s.inputs["X"]).mean(keepdims=True)),
    ("without_last", "term_missing", "The last number is left out.",
     lambda s: np.square(_difference(s)[:-1]).sum(keepdims=True) / s.sizes["n"] if s.sizes["n"] > 1 else None),
)  # fmt: skip


MSE_BACKWARD = Mistakes()


MSE_BACKWARD.adds_each("dX",
    ("negated", "gradient_negated", "The gradient has the wrong sign: it should be 2 (X - T) / n, not 2 (T - X) / n.",
     lambda s: -added(s)),
    ("without_factor", "factor_missing", "The factor 2 is missing: the square's slope is 2 (X - T).",
     lambda s: added(s) / 2),
    ("of_sum", "mean_missing", "The gradient of the sum is added: divide it by n to get the gradient of the mean.",
     lambda s: added(s) * s.sizes["n"] if s.sizes["n"] > 1 else None),
    ("of_mean_twice", "mean_twice", "The mean is taken twice: divide the gradient by n once.",
     lambda s: added(s) / s.sizes["n"] if s.sizes["n"] > 1 else None),
    ("of_x_alone", "target_ignored", "2 X / n is added: T is left out.", lambda s: 2 * s.inputs["X"] / s.sizes["n"]),
    ("of_squares_again", "squared_again", "The squares of the differences are added: their slope is 2 (X - T).",
     lambda s: np.square(_difference(s)) / s.sizes["n"]),
)  # fmt: skip


common(MSE_BACKWARD, "dX")

# ---- cross entropy

CROSS_ENTROPY = Mistakes()


def _of_labels(s: Situation, logs: Array, shift: int = 0) -> Array | None:
    """Return the mean of -logs, read in memory `shift` elements after each row's label.

    Return None if there is only one class, or if an index is outside of the array.
    """
    labels = s.inputs["labels"] + shift
    rows, classes = np.arange(s.sizes["batch"]), s.sizes["classes"]
    if classes == 1:
        return None
    places = rows * classes + labels  # In memory the next row begins after the last class.
    inside = (places >= 0) & (places < logs.size)
    return -logs.ravel()[places].mean(keepdims=True) if inside.all() else None


def _of_labels_around(s: Situation, shift: int) -> Array | None:
    """Return the mean of -log(p) of the class `shift` classes after each label; class 0 follows the last class.

    Return None if there is only one class.
    """
    rows, classes = np.arange(s.sizes["batch"]), s.sizes["classes"]
    if classes == 1:
        return None
    return -_logs(s)[rows, (s.inputs["labels"] + shift) % classes].mean(keepdims=True)


def _logs(s: Situation) -> Array:
    return arithmetic.log_softmax(s.inputs["X"])


CROSS_ENTROPY.gives_each(
    ("sum_of_losses", "mean_missing", "The sum over the batch is returned: divide it by N.",
     lambda s: s.expected * s.sizes["batch"] if s.sizes["batch"] > 1 else None),
    ("losses_divided_twice", "mean_twice", "The mean is taken twice: divide the sum by N once.",
     lambda s: s.expected / s.sizes["batch"] if s.sizes["batch"] > 1 else None),
    ("losses_over_classes", "mean_over_classes", "The sum is divided by N * C: the mean is over the batch alone.",
     lambda s: s.expected / s.sizes["classes"] if s.sizes["classes"] > 1 else None),
    ("divided_by_classes", "mean_over_classes", "The sum is divided by C: the mean is over the batch, N.",
     lambda s: s.expected * s.sizes["batch"] / s.sizes["classes"]),
    ("negated_loss", "loss_negated", "The loss has the wrong sign: it should be -log(p).", lambda s: -s.expected),
    ("label_behind", "label_off_by_one", "The class after each label is used: labels count from 0.",
     lambda s: _of_labels(s, _logs(s), 1)),
    ("label_before", "label_off_by_one", "The class before each label is used: labels count from 0.",
     lambda s: _of_labels(s, _logs(s), -1)),
    ("label_behind_or_first", "label_off_by_one",
     "The class after each label is used: labels count from 0.",
     lambda s: _of_labels_around(s, 1)),
    ("label_before_or_last", "label_off_by_one", "The class before each label is used: labels count from 0.",
     lambda s: _of_labels_around(s, -1)),
    ("first_class", "label_ignored", "Class 0 is used as the label of every row.",
     lambda s: -_logs(s)[:, 0].mean(keepdims=True) if s.sizes["classes"] > 1 else None),
    ("best_class", "label_ignored", "-log of the largest p is used: use the p at the label.",
     lambda s: -_logs(s).max(1).mean(keepdims=True)),
    ("of_chance", "log_missing", "The mean of 1 - p or of p is returned: the loss should be -log(p).",
     lambda s: np.exp(_logs(s))[np.arange(s.sizes["batch"]), s.inputs["labels"]].mean(keepdims=True)),
    ("base_two", "wrong_base", "The logarithm has the base 2: use std::log, the natural logarithm.",
     lambda s: s.expected / np.log(2)),
    ("base_ten", "wrong_base", "The logarithm has the base 10: use std::log, the natural logarithm.",
     lambda s: s.expected / np.log(10)),
    ("without_most", "maximum_not_taken_back",
     "The maximum is subtracted in the sum, but not at the label: the loss is log(sum exp(x - most)) + most - "
     "x[label].",
     lambda s: (np.log(_shifted(s).sum(1))
                - s.inputs["X"][np.arange(s.sizes["batch"]), s.inputs["labels"]]).mean(keepdims=True)),
    ("logit_alone", "sum_missing", "The mean of -x[label] is returned: the logarithm of the sum is left out.",
     lambda s: -s.inputs["X"][np.arange(s.sizes["batch"]), s.inputs["labels"]].mean(keepdims=True)),
    ("down_columns", "wrong_axis", "The softmax goes down the columns: compute it for each row.",
     lambda s: _of_labels(s, arithmetic.log_softmax(s.inputs["X"].T).T) if s.sizes["batch"] > 1 else None),
)  # fmt: skip


CROSS_ENTROPY_BACKWARD = Mistakes()


def _chances(s: Situation) -> Array:
    return np.exp(_logs(s))


def _shifted(s: Situation) -> Array:
    return np.exp(s.inputs["X"] - s.inputs["X"].max(1, keepdims=True))


def _hot(s: Situation, shift: int = 0) -> Array:
    """Return a one-hot array (batch, classes): for each row a 1, in memory `shift` elements after the label's element.

    A 1 outside of the array is left out.
    """
    batch, classes = s.sizes["batch"], s.sizes["classes"]
    hot = np.zeros(batch * classes)
    places = np.arange(batch) * classes + s.inputs["labels"] + shift
    np.add.at(hot, places[(places >= 0) & (places < hot.size)], 1)
    return hot.reshape(batch, classes)


CROSS_ENTROPY_BACKWARD.adds_each("dX",
    ("chances_alone", "one_hot_missing", "p / N is added: at the label it should be (p - 1) / N.",
     lambda s: _chances(s) / s.sizes["batch"]),
    ("hot_alone", "softmax_missing", "-1 / N is added at the label and nothing elsewhere: p is left out.",
     lambda s: -_hot(s) / s.sizes["batch"]),
    ("logits_less_hot", "softmax_missing", "(x - 1 at the label) / N is added: use the softmax p in place of x.",
     lambda s: (s.inputs["X"] - _hot(s)) / s.sizes["batch"]),
    ("of_sum_of_losses", "mean_missing", "The gradient of the sum over the batch is added: divide it by N.",
     lambda s: added(s) * s.sizes["batch"] if s.sizes["batch"] > 1 else None),
    ("half_divided", "mean_missing",
     "p - 1 / N is added at the label, and p elsewhere: divide both p and 1 by N.",
     lambda s: _chances(s) - _hot(s) / s.sizes["batch"] if s.sizes["batch"] > 1 else None),
    ("hot_not_divided", "mean_missing", "p / N - 1 is added at the label: it has to be (p - 1) / N.",
     lambda s: _chances(s) / s.sizes["batch"] - _hot(s) if s.sizes["batch"] > 1 else None),
    ("of_losses_divided_twice", "mean_twice", "The mean is taken twice: divide the gradient by N once.",
     lambda s: added(s) / s.sizes["batch"] if s.sizes["batch"] > 1 else None),
    ("of_losses_over_classes", "mean_over_classes", "The gradient is divided by N * C: divide it by N.",
     lambda s: added(s) / s.sizes["classes"] if s.sizes["classes"] > 1 else None),
    ("of_losses_by_classes", "mean_over_classes", "The gradient is divided by C: divide it by N.",
     lambda s: added(s) * s.sizes["batch"] / s.sizes["classes"]),
    ("hot_behind", "label_off_by_one", "1 is subtracted one class after the label: labels count from 0.",
     lambda s: (_chances(s) - _hot(s, 1)) / s.sizes["batch"]),
    ("hot_before", "label_off_by_one", "1 is subtracted one class before the label: labels count from 0.",
     lambda s: (_chances(s) - _hot(s, -1)) / s.sizes["batch"]),
    ("hot_behind_in_row", "label_off_by_one", "1 is subtracted one class after the label: labels count from 0.",
     lambda s: (_chances(s) - arithmetic.one_hot(s.inputs["labels"] + 1, s.sizes["classes"])) / s.sizes["batch"]),
    ("hot_before_in_row", "label_off_by_one", "1 is subtracted one class before the label: labels count from 0.",
     lambda s: (_chances(s) - arithmetic.one_hot(s.inputs["labels"] - 1, s.sizes["classes"])) / s.sizes["batch"]),
    ("not_normalised", "not_normalised", "exp(x - most) is used for p: divide it by the row's sum.",
     lambda s: (_shifted(s) - _hot(s)) / s.sizes["batch"]),
    ("label_divided", "label_divided",
     "The 1 at the label is divided by the sum, too: (exp(x - most) - 1) / sum should be exp(x - most) / sum - 1.",
     lambda s: (_shifted(s) - _hot(s)) / _shifted(s).sum(1, keepdims=True) / s.sizes["batch"]),
    ("chances_down_columns", "wrong_axis", "The softmax goes down the columns: compute it for each row.",
     lambda s: (np.exp(arithmetic.log_softmax(s.inputs["X"].T).T) - _hot(s)) / s.sizes["batch"]
         if s.sizes["batch"] > 1 else None),
    ("sum_of_rows_before", "sum_not_reset",
     "The sum of a row also contains the sums of earlier rows: set it to 0 at the beginning of each row.",
     lambda s: (_shifted(s) / _shifted(s).sum(1, keepdims=True).cumsum(0) - _hot(s)) / s.sizes["batch"]
         if s.sizes["batch"] > 1 else None),
    ("gradient_negated", "gradient_negated", "The gradient has the wrong sign: it should be p - 1 at the label.",
     lambda s: -added(s)),
)  # fmt: skip


common(CROSS_ENTROPY_BACKWARD, "dX")
