"""Expected outputs of this lab in float64, each with its tolerance.

The tolerance (error budget) counts the rounding errors of a right kernel, in units of the roundoff u = 2^-24, relative
to each element:

- exp(x - m): the difference has an error of u |x - m|, which is a relative error of exp(). |x - m| is limited to 110,
  beyond which exp() is 0. Kernels that use exp2() scale by log2(e) first and so round x and m themselves: their errors
  are u |x| log2(e) and u |m| log2(e).
- The sum of C numbers. A plain float sum may have an error of u C (Higham, Accuracy and Stability of Numerical
  Algorithms, section 4.2). This is allowed in `naive`. In `safe` and `online` the sum must not lose many small numbers,
  so the budget grows with sqrt(C). A sum in double, by blocks, in pairs or compensated stays within it. A plain float
  sum exceeds it only if one number is far larger than all others.
- exp(), products and the division: each may have an error of some units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from grader.core.arrays import Array, np
from grader.core.draws import Draws
from grader.explain.comparison import UNIT_ROUNDOFF, Expected
from grader.explain.deviation import Axis, Deviation
from grader.explain.oracle import Inputs, Oracle, Shape
from grader.explain.relations import (
    Found,
    constant_factor,
    imprecise,
    moved,
    partly_not_written,
    row_factors,
    transposed,
)
from grader.explain.suspect import Suspect

from . import suspects
from .scene import agreement, fitting, scene_of

#: Terms of the allowed relative error, in units of the roundoff. STEPS is allowed for each input. PER_ROOT * sqrt(C) is
#: allowed for the sum of C terms where it must not lose small terms (`safe`, `online`).
STEPS, PER_ROOT = 64, 8
OUTPUTS = ("m", "l", "o")
"""Outputs of `merge`, in the order of the assignment."""
DEEPEST = 110.0
"""Distance from the maximum beyond which exp() is 0 in float32."""
SMALLEST = 1e-36
"""Absolute error that is always allowed: float32 has fewer digits below 1.2e-38."""


def softmax(x: Array) -> Array:
    """Return the softmax of each row of x (R, C), float64; NaN for a row of only -inf."""
    weights = np.exp(x - x.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def merged(inputs: Inputs) -> dict[str, Array]:
    """Merge the partial results of both sides. Return m (R), l (R) and o (R, d) by name, float64.

    With a = l1 exp(m1 - m) and b = l2 exp(m2 - m): m = max(m1, m2), l = a + b, o = (a o1 + b o2) / l. If both sides
    are empty, these are -inf, 0 and 0. Sources: Milakov and Gimelshein, Online normalizer calculation for softmax,
    2018; Dao et al., FlashAttention, 2022.
    """
    m1, l1, o1, m2, l2, o2 = (
        inputs[name].astype(np.float64) for name in ("m1", "l1", "o1", "m2", "l2", "o2")
    )
    m = np.maximum(m1, m2)
    finite = np.where(np.isneginf(m), 0.0, m)
    a, b = l1 * np.exp(m1 - finite), l2 * np.exp(m2 - finite)
    both = a + b
    o = (a[:, None] * o1 + b[:, None] * o2) / np.where(both > 0, both, 1.0)[:, None]
    return {"m": m, "l": both, "o": o}


def all_zero(seen: Deviation) -> Found | None:
    """Return (diagnosis code, message) for an output that is 0 everywhere; None for any other output."""
    if seen.actual.any():
        return None
    return (
        "not_written",
        f"The output is all zeros: the part is not written yet, its result is never stored in {seen.output}, or it is "
        "divided by an infinite sum (exp(x - m) while m is still -inf?).",
    )


def lost_tail(seen: Deviation) -> Found | None:
    """Return (diagnosis code, message) if a float sum in SIMD lanes, which loses small terms, explains the output; else
    None."""
    scene, cut = scene_of(seen)
    for suspect in suspects.LANES:
        predicted = suspect.predicted(scene)
        if predicted is not None and agreement(cut, predicted, cut.tolerance)[0]:
            return suspect.code, suspect.words
    return None


CLUES: Mapping[str, tuple[str, ...]] = {
    "columns_left_out": ("loops", "steps"),
    "sum_misses_columns": ("loops", "steps", "sums"),
    "maximum_misses_columns": ("loops", "steps", "maximum"),
    "not_finite": ("bare", "fresh", "maximum", "maxima", "divide", "skips"),
    "not_normalised": ("sums", "exponentials", "divide"),
    "maximum_start": ("maxima",),
    "maximum_position": ("line:\\bmax_?element\\b|\\bargmax", "maxima"),
    "new_maximum_left_out": ("sums", "line:\\*=.*exp|\\*\\s*\\w*(?:::)?exp"),
    "whole_sum": ("whole_sums", "divide"),
    "maximum_of_absolutes": ("line:\\bf?abs[fl]?\\s*\\(", "maxima"),
    "ties_left_out": ("line:\\belse\\s+if\\b", "guards", "sums"),
    # The pattern matches declarations of variables that are neither const nor pointers: the state that a kernel forgets
    # to reset.
    "state_not_reset": (
        "line:^\\s*(?!return\\b|const\\b|else\\b|using\\b|torch\\b)[\\w:]+ \\w+(?:\\s*[={,][^;]*)?;",
    ),
    # The pattern matches additions of a variable, an element or a member: `sum += part[t].sum;`, `s = a[0] + a[1];`.
    "lanes_not_rescaled": ("line:\\+=?\\s*[A-Za-z_]\\w*(?:\\[\\w+\\])?(?:\\.\\w+)?\\s*;", "?sums"),
    "float_sum": ("sums", "store"),
    "rounded": ("casts", "call:round", "call:floor"),
    "not_rescaled": ("call:exp", "sums"),
    "empty_so_far": ("line:=[^;]*exp\\w*\\s*\\([^;]*-", "maximum"),
    "row_range": ("loops",),
    "column_range": ("loops",),
}


class Rows(Oracle):
    """Oracle of the softmax of each row. The predictions of its `mistakes` take a Scene.

    `keeps_tail`: True if the sum must keep many small terms. Then the output's tolerance is lower, and `lost_tail`
    explains outputs whose sum has lost such terms.
    """

    probes: ClassVar = {
        "R": (1, 2, 3, 5, 8),
        "C": (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 31, 32, 33, 48, 64, 65),
    }
    trivial: ClassVar = {"C": 1}
    clues = CLUES
    sized_codes = frozenset({"columns_left_out", "sum_misses_columns"})

    axes = (Axis("row", "rows", "i", "R"), Axis("column", "columns", "j", "C"))
    output = "O"
    refutes = True
    explains_not_finite = True
    relations = (all_zero, partly_not_written, transposed, moved)
    weak_relations = (constant_factor, row_factors, imprecise)

    def __init__(self, mistakes: tuple[Suspect, ...], *, keeps_tail: bool) -> None:
        self.mistakes = mistakes
        self.keeps_tail = keeps_tail
        if keeps_tail:
            self.weak_relations = (lost_tail, *self.weak_relations)

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        return self._of(inputs["X"])

    def sample(self, inputs: Inputs, shape: Shape, draws: Draws, rows: int) -> tuple[Array, Expected]:
        chosen = draws.permutation(shape["R"], rows)
        return chosen, self._of(inputs["X"][chosen])

    def flops(self, shape: Shape) -> int:
        """Return the number of operations: an exponential, an addition and a division for each element."""
        return 3 * shape["R"] * shape["C"]

    def suspects(self, seen: Deviation, likely: frozenset[str]) -> list[Suspect]:
        scene, cut = scene_of(seen)
        return fitting(
            [*self.mistakes, *suspects.by_columns(scene.columns, self.mistakes)], scene, cut, likely
        )

    def not_finite(self, seen: Deviation, amount: str) -> tuple[str, str]:
        masked = np.isneginf(seen.inputs["X"]).sum(1)
        is_bad = ~np.isfinite(seen.actual).all(1)
        if 0 < is_bad.sum() < is_bad.size and (fewest := masked[is_bad].min()) > np.median(masked[~is_bad]):
            return "not_finite", (
                f"NaN or infinity in {amount}, and only in rows with {fewest} or more logits of -inf. Where "
                "two maxima are subtracted, both may be -inf, and -inf minus -inf is NaN."
            )
        return "not_finite", (
            f"NaN or infinity in {amount}. Does exp() overflow (above 88.7 in float), is a number divided by a sum "
            "of 0, or is -inf subtracted from -inf?"
        )

    def _of(self, logits: Array) -> Expected:
        x = logits.astype(np.float64)
        value, columns = softmax(x), x.shape[1]
        depth = np.minimum(x.max(1, keepdims=True) - x, DEEPEST)
        size = abs(np.where(np.isfinite(x), x, 0.0)).max(1, keepdims=True)
        summed = PER_ROOT * columns**0.5 if self.keeps_tail else 2 * columns
        return Expected(value, SMALLEST + UNIT_ROUNDOFF * value * (STEPS + summed + 4 * depth + 4 * size))


class Merge(Oracle):
    """Oracle of `merge`: expects the m, l and o of two merged partial results."""

    output = "m, l and o"
    refutes = True
    explains_not_finite = True
    relations = ()
    weak_relations = (partly_not_written, imprecise)
    clues: ClassVar = {
        "maximum_of_one_side": ("input:m1", "input:m2"),
        "left_empty": ("input:l1", "store"),
        "right_empty": ("input:l2", "store"),
        "both_empty": ("skips", "store"),
    }
    mistakes = suspects.MERGE

    def expected(self, inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
        value = merged(inputs)
        finite = np.where(np.isneginf(value["m"]), 0.0, value["m"])
        # A kernel may compute exp(m1 - m) as exp2() of numbers multiplied by log2(e). If it multiplies m1 and m, both
        # products are rounded: 4 |m| units of the roundoff are allowed. If it multiplies m1 - m, the difference is
        # rounded: 4 `apart` units are allowed.
        apart = [
            np.minimum(finite - np.where(np.isneginf(m), finite, m), DEEPEST)
            for m in (inputs["m1"], inputs["m2"])
        ]
        steps = STEPS + 4 * abs(finite) + 4 * np.maximum(*apart)
        largest = np.maximum(abs(inputs["o1"]), abs(inputs["o2"])).astype(np.float64)
        return {
            "m": Expected(value["m"], 0.0),
            "l": Expected(value["l"], SMALLEST + UNIT_ROUNDOFF * steps * value["l"]),
            "o": Expected(value["o"], SMALLEST + 2 * UNIT_ROUNDOFF * steps[:, None] * largest),
        }

    def sample(
        self, inputs: Inputs, shape: Shape, draws: Draws, rows: int
    ) -> tuple[Array, Mapping[str, Expected]]:
        chosen = draws.permutation(shape["R"], rows)
        return chosen, self.expected({name: array[chosen] for name, array in inputs.items()}, shape)

    def flops(self, shape: Shape) -> int:
        return 4 * shape["R"] * shape["d"]

    def suspects(self, seen: Deviation, likely: frozenset[str]) -> list[Suspect]:
        # This is the first wrong output, so outputs before it are right. Drop suspects that predict errors in these.
        value = merged(seen.inputs)
        before = OUTPUTS[: OUTPUTS.index(seen.output)]
        return fitting(self.mistakes, seen.inputs, seen, likely, {name: value[name] for name in before})

    def never_written(self, seen: Deviation) -> Found | None:
        rows = seen.wrong.reshape(len(seen.wrong), -1).any(1)
        left, right = (seen.inputs[name] > 0 for name in ("l1", "l2"))
        for code, empty, words in (
            ("left_empty", right & ~left, "only the left side is empty: copy the other side's"),
            ("right_empty", left & ~right, "only the right side is empty: copy the other side's"),
            ("both_empty", ~left & ~right, "both sides are empty: store 0"),
        ):
            if np.array_equal(rows, empty):
                return code, f"{seen.output} is not written if {words}."
        return None

    def not_finite(self, seen: Deviation, amount: str) -> tuple[str, str]:
        return "not_finite", (
            f"NaN or infinity in {amount} of {seen.output}. Is -inf subtracted from -inf if both sides are empty, or "
            "is a number divided by a sum of 0?"
        )


ORACLES: dict[str, Oracle] = {
    "naive": Rows(suspects.NAIVE, keeps_tail=False),
    "safe": Rows(suspects.SAFE, keeps_tail=True),
    "online": Rows(suspects.ONLINE, keeps_tail=True),
    "merge": Merge(),
}
