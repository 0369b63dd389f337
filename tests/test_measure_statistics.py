"""The intervals and error rates of grader.judge.timing.measure, exactly and on generated noise. No clock is read."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_rounds import CPU, bursty, noisy_rounds, quiet

from grader.judge.timing.intervals import (
    confidence_of,
    coverage,
    false_fail_chance,
    interval_rank,
    median_estimate,
)
from grader.judge.timing.measure import looks, sequential

# --- the interval


@pytest.mark.parametrize(
    ("n", "rank", "percent"),
    # From the cumulative binomial table for p = 1/2.
    [
        (7, 1, 98.44), (8, 1, 99.22), (10, 1, 99.80), (11, 2, 98.83), (12, 2, 99.37), (14, 3, 98.71),
        (17, 4, 98.73), (18, 4, 99.25), (19, 5, 98.08), (20, 5, 98.82), (22, 6, 98.31), (24, 6, 99.34),
    ],
)  # fmt: skip
def test_interval_agrees_with_the_binomial_table(n: int, rank: int, percent: float) -> None:
    assert interval_rank(n) == rank
    assert coverage(n, rank) * 100 == pytest.approx(percent, abs=0.006)


def test_the_rank_is_the_tightest_that_covers() -> None:
    for n in range(7, 61):
        assert coverage(n, interval_rank(n)) >= 0.98 > coverage(n, interval_rank(n) + 1), n


def test_too_few_values_give_their_full_range() -> None:
    assert interval_rank(4) == 1
    estimate = median_estimate([3.0, 1.0, 2.0, 9.0])
    assert (estimate.low, estimate.middle, estimate.high) == (1.0, 2.5, 9.0)


def test_coverage_counts_every_way_the_values_can_fall() -> None:
    """All 2^12 ways in which 12 values can lie below or above the true median, here 0."""
    held = 0
    for signs in product((-1.0, 1.0), repeat=12):
        estimate = median_estimate(signs)
        held += estimate.low <= 0 <= estimate.high
    assert held / 2**12 == coverage(12, interval_rank(12))


@given(st.lists(st.floats(0.1, 10), min_size=8, max_size=24), st.randoms(use_true_random=False))
def test_the_estimate_ignores_the_order_and_holds_its_median(values: list[float], rng: random.Random) -> None:
    estimate = median_estimate(values)
    assert min(values) <= estimate.low <= estimate.middle <= estimate.high <= max(values)
    shuffled = values[:]
    rng.shuffle(shuffled)
    assert median_estimate(shuffled) == estimate


# --- looking more than once


def test_the_chance_of_a_false_fail_counts_every_course_of_events() -> None:
    """All 2^12 courses of twelve rounds below or above the allowance, looked at after 8 and after 12."""
    slow = 0
    for above in product((False, True), repeat=12):
        first = median_estimate(above[:8], 0.98)
        last = median_estimate(above, 0.98)
        slow += bool(first.low) or (first.high and last.low)
    assert false_fail_chance((8, 12), 0.98) == slow / 2**12 > false_fail_chance((12,), 0.98)


def test_our_looks_keep_the_promised_error() -> None:
    assert looks(CPU) == (8, 12, 18, 24)
    assert confidence_of(looks(CPU)) == 0.98
    assert false_fail_chance(looks(CPU), 0.98) == pytest.approx(0.0099, abs=5e-5)
    every = range(8, 25)
    assert false_fail_chance(every, 0.98) == pytest.approx(0.0195, abs=5e-5), "the price of looking always"


@pytest.mark.parametrize(("least", "most"), [(7, 7), (8, 8), (8, 12), (10, 30), (12, 48), (8, 200)])
def test_other_round_limits_keep_the_error_too(least: int, most: int) -> None:
    schedule = looks(replace(CPU, min_rounds=least, max_rounds=most))
    assert (schedule[0], schedule[-1]) == (least, most)
    assert 0 < false_fail_chance(schedule, confidence_of(schedule)) <= 0.01


@pytest.mark.parametrize(("noise", "caught"), [(quiet, 0.99), (bursty, 0.75)])
def test_noise_costs_power_and_makes_no_false_fail(
    noise: Callable[[random.Random], float], caught: float
) -> None:
    def slow(seed: int, ratio: float, students: int) -> float:
        rng = random.Random(seed)
        timings = [sequential(noisy_rounds(rng, noise, ratio), CPU) for _ in range(students)]
        return sum(timing.verdict == "slow" for timing in timings) / students

    assert slow(2, 1.0, 300) == 0.0
    assert slow(1, 1.10, 1200) < 0.0185, "at the allowance: 0.99 % expected, 3 standard errors allowed"
    assert slow(2, 1.3, 300) >= caught
