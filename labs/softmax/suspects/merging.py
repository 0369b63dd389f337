"""Mistakes of the merge of two partial results (m1, l1, o1) and (m2, l2, o2). A prediction holds m, l and o by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from grader.core.arrays import Array, np
from grader.explain.suspect import Suspect, registering, row

MISTAKES: list[Suspect] = []
mistake = registering(MISTAKES)
Inputs = Mapping[str, Array]
Outputs = dict[str, Array]
ZERO = np.float32(0)


@dataclass(frozen=True)
class Sides:
    """Both sides, float32: maxima and sums (R), means (R, d)."""

    inputs: Inputs

    @property
    def both_empty(self) -> Array:
        return np.isneginf(self.m)

    @cached_property
    def m(self) -> Array:
        return np.maximum(self.inputs["m1"], self.inputs["m2"])

    def factor(self, side: int, m: Array | None = None) -> Array:
        """exp(m of the side - m), 0 where both sides are empty."""
        m = self.m if m is None else m
        return np.where(self.both_empty, ZERO, np.exp(self.inputs[f"m{side}"] - m))

    def sum(self, side: int) -> Array:
        return self.inputs[f"l{side}"]

    def mean(self, side: int) -> Array:
        return self.inputs[f"o{side}"]

    def merged(self, a: Array, b: Array, m: Array | None = None) -> Outputs:
        """m, a + b and (a o1 + b o2) / (a + b), which is 0 where both sides are empty."""
        both = a + b
        o = (a[:, None] * self.mean(1) + b[:, None] * self.mean(2)) / both[:, None]
        o = np.where(self.both_empty[:, None], ZERO, o)
        return {"m": self.m if m is None else m, "l": both, "o": o}

    def weighted(self) -> tuple[Array, Array]:
        """Return the correct weights of both sides."""
        return self.sum(1) * self.factor(1), self.sum(2) * self.factor(2)


def _one_side(inputs: Inputs, rescaled: tuple[bool, bool]) -> Outputs:
    s = Sides(inputs)
    a, b = (s.sum(k) * (s.factor(k) if rescaled[k - 1] else np.float32(1)) for k in (1, 2))
    return s.merged(a, b)


MISTAKES += [
    row("left_forgotten", "left_not_rescaled",
        "The left side is not rescaled: it counts l1 * exp(m1 - m), with the new maximum m.",
        lambda inputs: _one_side(inputs, (False, True))),
    row("right_forgotten", "right_not_rescaled",
        "The right side is not rescaled: it counts l2 * exp(m2 - m), with the new maximum m.",
        lambda inputs: _one_side(inputs, (True, False))),
    row("plain_sum", "sums_not_rescaled",
        "l1 and l2 are added as they are: each side's has to be rescaled, by exp(m1 - m) and exp(m2 - m).",
        lambda inputs: _one_side(inputs, (False, False))),
]  # fmt: skip


def _with_maximum(inputs: Inputs, m: Array) -> Outputs:
    s = Sides(inputs)
    return s.merged(s.sum(1) * s.factor(1, m), s.sum(2) * s.factor(2, m), m)


MISTAKES += [
    row("left_maximum", "maximum_of_one_side",
        "m is the maximum of the left side alone: the new one is the larger of m1 and m2.",
        lambda inputs: _with_maximum(inputs, inputs["m1"])),
    row("right_maximum", "maximum_of_one_side",
        "m is the maximum of the right side alone: the new one is the larger of m1 and m2.",
        lambda inputs: _with_maximum(inputs, inputs["m2"])),
    row("smaller", "minimum_taken", "m is the smaller of m1 and m2, and not the larger one.",
        lambda inputs: _with_maximum(inputs, np.minimum(inputs["m1"], inputs["m2"]))),
    row("added_maxima", "maxima_added", "m is m1 + m2: it is the larger one of both.",
        lambda inputs: {"m": inputs["m1"] + inputs["m2"]}),
    row("not_below_zero", "maximum_start",
        "m is never below 0: the larger of m1 and m2 alone counts, and -inf where both sides are empty.",
        lambda inputs: _with_maximum(inputs, np.maximum(Sides(inputs).m, ZERO))),
]  # fmt: skip


@mistake(
    "rescaled_upside_down",
    "The factors are upside down: a side counts exp(m1 - m), which is at most 1, and not exp(m - m1).",
)
def upside_down(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    return s.merged(*(s.sum(k) * np.exp(s.m - inputs[f"m{k}"]) for k in (1, 2)))


@mistake(
    "factors_exchanged",
    "Each side is rescaled by the other one's factor: exp(m1 - m) belongs to l1 and o1, exp(m2 - m) to l2 and o2.",
)
def exchanged(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    return s.merged(s.sum(1) * s.factor(2), s.sum(2) * s.factor(1))


@mistake(
    "wrong_base",
    "The factors are powers of 2 and not of e: exp2(x) is exp(x) only where x was multiplied by log2(e) before.",
)
def base_two(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    return s.merged(*(s.sum(k) * np.exp2(inputs[f"m{k}"] - s.m) for k in (1, 2)))


@mistake(
    "no_maximum",
    "The maximum is not taken off: exp(m1) and exp(m2) are infinite above 88.7, and l is no longer relative to m.",
)
def no_maximum(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    return s.merged(*(s.sum(k) * np.exp(inputs[f"m{k}"]) for k in (1, 2)))


@mistake(
    "empty_sides",
    "Where both sides are empty, m1 - m is -inf - -inf, and exp() of it NaN: nothing merged with "
    "nothing is m = -inf, l = 0, "
    "o = 0.",
)
def minus_infinity_less_itself(inputs: Inputs) -> Outputs:
    s, nan = Sides(inputs), np.float32(np.nan)
    right = s.merged(*s.weighted())
    empty = s.both_empty
    return {**right, "l": np.where(empty, nan, right["l"]), "o": np.where(empty[:, None], nan, right["o"])}


@mistake(
    "empty_sides",
    "Where both sides are empty, o is 0 / 0: nothing merged with nothing is m = -inf, l = 0, o = 0.",
)
def divided_by_nothing(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    right = s.merged(*s.weighted())
    return {**right, "o": np.where(s.both_empty[:, None], np.float32(np.nan), right["o"])}


@mistake(
    "empty_sides",
    "Where one side is empty, the output is not the other side: a side with m = -inf and l = 0 "
    "counts nothing, and no more.",
)
def empty_where_one_is(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    right = s.merged(*s.weighted())
    one = np.isneginf(inputs["m1"]) | np.isneginf(inputs["m2"])
    return {
        "m": np.where(one, np.float32(-np.inf), right["m"]),
        "l": np.where(one, ZERO, right["l"]),
        "o": np.where(one[:, None], ZERO, right["o"]),
    }


# ---- o alone: m and l are right


def _means(inputs: Inputs, o: Array) -> Outputs:
    s = Sides(inputs)
    return {"o": np.where(s.both_empty[:, None], ZERO, o)}


@mistake(
    "not_normalised",
    "o is not divided by the new sum: o1 and o2 are means, and a o1 + b o2 is one only when it is "
    "divided by l = a + b.",
)
def not_divided(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    a, b = s.weighted()
    return _means(inputs, a[:, None] * s.mean(1) + b[:, None] * s.mean(2))


@mistake(
    "sums_forgotten_in_o",
    "o takes o1 and o2 for sums and not for means: each counts l1 exp(m1 - m) or l2 exp(m2 - m) "
    "times, not exp(m1 - m) or "
    "exp(m2 - m) alone, before the division by l.",
)
def taken_for_sums(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    a, b = s.weighted()
    found = s.factor(1)[:, None] * s.mean(1) + s.factor(2)[:, None] * s.mean(2)
    return _means(inputs, found / (a + b)[:, None])


@mistake(
    "o_not_rescaled",
    "o is weighted with l1 and l2 as they are: the sides count l1 exp(m1 - m) and l2 exp(m2 - m), as in l.",
)
def sums_alone(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    found = s.sum(1)[:, None] * s.mean(1) + s.sum(2)[:, None] * s.mean(2)
    return _means(inputs, found / (s.sum(1) + s.sum(2))[:, None])


@mistake(
    "o_not_rescaled",
    "o is weighted with l1 and l2 as they are, and divided by the new l, in which they are rescaled.",
)
def sums_over_new(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    a, b = s.weighted()
    return _means(inputs, (s.sum(1)[:, None] * s.mean(1) + s.sum(2)[:, None] * s.mean(2)) / (a + b)[:, None])


@mistake("left_not_rescaled", "In o the left side is not rescaled: o1 counts l1 * exp(m1 - m).")
def left_mean_forgotten(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    a, b = s.weighted()
    return _means(inputs, (s.sum(1)[:, None] * s.mean(1) + b[:, None] * s.mean(2)) / (a + b)[:, None])


@mistake("right_not_rescaled", "In o the right side is not rescaled: o2 counts l2 * exp(m2 - m).")
def right_mean_forgotten(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    a, b = s.weighted()
    return _means(inputs, (a[:, None] * s.mean(1) + s.sum(2)[:, None] * s.mean(2)) / (a + b)[:, None])


@mistake(
    "reads_what_it_wrote",
    "o1 counts the new l and not l1: the sum was overwritten before o was made. Keep l1 until both are done.",
)
def new_sum_for_left(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    a, b = s.weighted()
    both = a + b
    left = both * s.factor(1)
    return _means(inputs, (left[:, None] * s.mean(1) + b[:, None] * s.mean(2)) / both[:, None])


@mistake(
    "o_not_merged",
    "o is the mean of o1 and o2, each of which counts the same: they count a and b of l = a + b.",
)
def halves(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    return _means(inputs, (s.mean(1) + s.mean(2)) / np.float32(2))


@mistake("o_not_merged", "o is o1 + o2: they are means, and count a and b of l = a + b.")
def added(inputs: Inputs) -> Outputs:
    s = Sides(inputs)
    return _means(inputs, s.mean(1) + s.mean(2))


MISTAKES += [
    row("left_alone", "o_not_merged", "o is that of the left side alone.",
        lambda inputs: _means(inputs, inputs["o1"])),
    row("right_alone", "o_not_merged", "o is that of the right side alone.",
        lambda inputs: _means(inputs, inputs["o2"])),
]  # fmt: skip
