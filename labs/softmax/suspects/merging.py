"""Suspects of merging two partial results (m1, l1, o1) and (m2, l2, o2). They predict m, l and o by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from grader.core.arrays import Array, np
from grader.explain.suspect import Suspect, row

Inputs = Mapping[str, Array]
Outputs = dict[str, Array]
ZERO, NAN = np.float32(0), np.float32(np.nan)


@dataclass(frozen=True)
class Sides:
    """Inputs of `merge`, the partial results of both sides, float32: maxima and sums (R), means (R, d)."""

    inputs: Inputs

    @property
    def both_empty(self) -> Array:
        return np.isneginf(self.m)

    @cached_property
    def m(self) -> Array:
        return np.maximum(self.inputs["m1"], self.inputs["m2"])

    def factor(self, side: int, m: Array | None = None) -> Array:
        """Return exp(m_side - m), (R), and 0 where both sides are empty. `side` is 1 or 2.

        `m` is by default the correct maximum, max(m1, m2).
        """
        m = self.m if m is None else m
        return np.where(self.both_empty, ZERO, np.exp(self.inputs[f"m{side}"] - m))

    def sum(self, side: int) -> Array:
        return self.inputs[f"l{side}"]

    def mean(self, side: int) -> Array:
        return self.inputs[f"o{side}"]

    @cached_property
    def weights(self) -> tuple[Array, Array]:
        """The correct weights of the sides, each (R): l1 exp(m1 - m) and l2 exp(m2 - m). Their sum is the merged l."""
        return self.sum(1) * self.factor(1), self.sum(2) * self.factor(2)

    @property
    def total(self) -> Array:
        """The correct merged sum (R)."""
        return self.weights[0] + self.weights[1]

    def combined(self, a: Array, b: Array) -> Array:
        """Return a o1 + b o2 (R, d), for factors a and b (R)."""
        return a[:, None] * self.mean(1) + b[:, None] * self.mean(2)

    def merged(self, a: Array, b: Array, m: Array | None = None) -> Outputs:
        """Return m, l = a + b and o = (a o1 + b o2) / l by name. If both sides are empty, o is 0.

        a and b (R) are the weights of the sides. `m` is by default the correct maximum.
        """
        o = np.where(self.both_empty[:, None], ZERO, self.combined(a, b) / (a + b)[:, None])
        return {"m": self.m if m is None else m, "l": a + b, "o": o}

    def rescaled(self, factor: Callable[[int], Array | float]) -> Outputs:
        """Return m, l and o of a merge in which the weight of each side is its sum times `factor(side)`."""
        return self.merged(self.sum(1) * factor(1), self.sum(2) * factor(2))

    def with_maximum(self, m: Array) -> Outputs:
        return self.merged(self.sum(1) * self.factor(1, m), self.sum(2) * self.factor(2, m), m)

    def where(self, rows: Array, **values: np.float32) -> Outputs:
        """Return the correct m, l and o, except in the rows of the mask `rows`: these get `values` (by output name)."""
        right = self.merged(*self.weights)
        return right | {
            name: np.where(rows[:, None] if right[name].ndim == 2 else rows, value, right[name])
            for name, value in values.items()
        }

    def means(self, o: Array) -> Outputs:
        """Return a prediction that has only `o`. In rows in which both sides are empty, it is 0."""
        return {"o": np.where(self.both_empty[:, None], ZERO, o)}


def _mistake(name: str, code: str, words: str, predict: Callable[[Sides], Outputs]) -> Suspect:
    return row(name, code, words, lambda inputs: predict(Sides(inputs)))


MISTAKES: list[Suspect] = [
    _mistake("left_forgotten", "left_not_rescaled",
        "The left side is not rescaled: its share of l should be l1 * exp(m1 - m), with the new maximum m.",
        lambda s: s.merged(s.sum(1), s.weights[1])),
    _mistake("right_forgotten", "right_not_rescaled",
        "The right side is not rescaled: its share of l should be l2 * exp(m2 - m), with the new maximum m.",
        lambda s: s.merged(s.weights[0], s.sum(2))),
    _mistake("plain_sum", "sums_not_rescaled",
        "l1 and l2 are added as they are: first multiply them by exp(m1 - m) and exp(m2 - m).",
        lambda s: s.merged(s.sum(1), s.sum(2))),
    _mistake("left_maximum", "maximum_of_one_side",
        "m is the maximum of the left side alone: it has to be the larger of m1 and m2.",
        lambda s: s.with_maximum(s.inputs["m1"])),
    _mistake("right_maximum", "maximum_of_one_side",
        "m is the maximum of the right side alone: it has to be the larger of m1 and m2.",
        lambda s: s.with_maximum(s.inputs["m2"])),
    _mistake("smaller", "minimum_taken", "m is the smaller of m1 and m2: it has to be the larger.",
        lambda s: s.with_maximum(np.minimum(s.inputs["m1"], s.inputs["m2"]))),
    _mistake("added_maxima", "maxima_added", "m is m1 + m2: it has to be the larger of both.",
        lambda s: {"m": s.inputs["m1"] + s.inputs["m2"]}),
    _mistake("not_below_zero", "maximum_start",
        "m is never below 0: it has to be the larger of m1 and m2, and -inf if both sides are empty.",
        lambda s: s.with_maximum(np.maximum(s.m, ZERO))),
    _mistake("upside_down", "rescaled_upside_down",
        "The factors are upside down: a side's factor should be exp(m1 - m), which is at most 1, not exp(m - m1).",
        lambda s: s.rescaled(lambda side: np.exp(s.m - s.inputs[f"m{side}"]))),
    _mistake("exchanged", "factors_exchanged",
        "Each side is rescaled by the other side's factor: exp(m1 - m) belongs to l1 and o1, exp(m2 - m) to l2 and o2.",
        lambda s: s.rescaled(lambda side: s.factor(3 - side))),
    _mistake("base_two", "wrong_base",
        "The factors are powers of 2, not of e: exp2(x) equals exp(x) only if x is multiplied by log2(e) before.",
        lambda s: s.rescaled(lambda side: np.exp2(s.inputs[f"m{side}"] - s.m))),
    _mistake("no_maximum", "no_maximum",
        "The maximum is not subtracted: exp(m1) and exp(m2) are infinite above 88.7, and l is no longer relative to m.",
        lambda s: s.rescaled(lambda side: np.exp(s.inputs[f"m{side}"]))),
    _mistake("minus_infinity_less_itself", "empty_sides",
        "If both sides are empty, m1 - m is (-inf) - (-inf), and exp() of it NaN: write m = -inf, l = 0, o = 0.",
        lambda s: s.where(s.both_empty, l=NAN, o=NAN)),
    _mistake("divided_by_nothing", "empty_sides",
        "If both sides are empty, o is 0 / 0: write m = -inf, l = 0, o = 0.",
        lambda s: s.where(s.both_empty, o=NAN)),
    _mistake("empty_where_one_is", "empty_sides",
        "If one side is empty, the output is not the other side's: a side with m = -inf and l = 0 must not change it.",
        lambda s: s.where(np.isneginf(s.inputs["m1"]) | np.isneginf(s.inputs["m2"]),
                          m=np.float32(-np.inf), l=ZERO, o=ZERO)),
    _mistake("not_divided", "not_normalised",
        "o is not divided by the new sum: divide a o1 + b o2 by l = a + b, so that it is a mean like o1 and o2.",
        lambda s: s.means(s.combined(*s.weights))),
    _mistake("taken_for_sums", "sums_forgotten_in_o",
        "o1 and o2 are added as if they were sums, but they are means: multiply o1 by l1 exp(m1 - m) and o2 by "
        "l2 exp(m2 - m), then divide by l.",
        lambda s: s.means(s.combined(s.factor(1), s.factor(2)) / s.total[:, None])),
    _mistake("sums_alone", "o_not_rescaled",
        "o1 and o2 are weighted with l1 and l2: the weights should be l1 exp(m1 - m) and l2 exp(m2 - m), as in l.",
        lambda s: s.means(s.combined(s.sum(1), s.sum(2)) / (s.sum(1) + s.sum(2))[:, None])),
    _mistake("sums_over_new", "o_not_rescaled",
        "o1 and o2 are weighted with l1 and l2, but divided by the new l, in which l1 and l2 are rescaled.",
        lambda s: s.means(s.combined(s.sum(1), s.sum(2)) / s.total[:, None])),
    _mistake("left_mean_forgotten", "left_not_rescaled",
        "In o the left side is not rescaled: the weight of o1 should be l1 * exp(m1 - m).",
        lambda s: s.means(s.combined(s.sum(1), s.weights[1]) / s.total[:, None])),
    _mistake("right_mean_forgotten", "right_not_rescaled",
        "In o the right side is not rescaled: the weight of o2 should be l2 * exp(m2 - m).",
        lambda s: s.means(s.combined(s.weights[0], s.sum(2)) / s.total[:, None])),
    _mistake("new_sum_for_left", "reads_what_it_wrote",
        "The weight of o1 uses the new l, not l1: l1 was overwritten before o was computed. Keep l1 until then.",
        lambda s: s.means(s.combined(s.total * s.factor(1), s.weights[1]) / s.total[:, None])),
    _mistake("halves", "o_not_merged",
        "o is the plain mean of o1 and o2: weight o1 with l1 exp(m1 - m) / l, and o2 with l2 exp(m2 - m) / l.",
        lambda s: s.means((s.mean(1) + s.mean(2)) / np.float32(2))),
    _mistake("added", "o_not_merged",
        "o is o1 + o2: weight o1 with l1 exp(m1 - m) / l, and o2 with l2 exp(m2 - m) / l.",
        lambda s: s.means(s.mean(1) + s.mean(2))),
    _mistake("left_alone", "o_not_merged", "o is o1, that of the left side alone.", lambda s: s.means(s.mean(1))),
    _mistake("right_alone", "o_not_merged", "o is o2, that of the right side alone.", lambda s: s.means(s.mean(2))),
]  # fmt: skip
