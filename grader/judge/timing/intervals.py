"""Medians and their exact order-statistic intervals: pure functions of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import comb
from statistics import median

CONFIDENCE = 0.98


@dataclass(frozen=True)
class Estimate:
    """A median and its order-statistic interval."""

    middle: float
    low: float
    high: float


def interval_rank(n: int, confidence: float = CONFIDENCE) -> int:
    """Return the largest k such that the k-th smallest and k-th largest of n values hold the median between them.

    With probability `confidence` or more, exactly: they miss it with 2 P(Bin(n, 1/2) < k). At least 1: if n is too
    small for the confidence (n < 7 at 98 %), the interval is smallest..largest and covers less than requested; see
    `coverage`.
    """
    missed, k = 0, 0
    while k < n:
        missed += comb(n, k)
        if 2 * missed > (1 - confidence) * 2**n:
            break
        k += 1
    return max(k, 1)


def coverage(n: int, rank: int) -> float:
    """Return the probability that the `rank`-th smallest and `rank`-th largest of n values enclose the median."""
    return 1 - 2 * sum(comb(n, below) for below in range(rank)) / 2**n


def median_estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Median and order-statistic interval of at least one value."""
    ordered = sorted(values)
    rank = interval_rank(len(ordered), confidence)
    return Estimate(median(ordered), ordered[rank - 1], ordered[-rank])


def false_fail_chance(schedule: Sequence[int], confidence: float) -> float:
    """Return the exact probability that a student just at the allowance is called slow at one of these looks.

    Only the number of rounds below the allowance matters, so the measurement is a fair walk that ends at
    the first decisive look. By symmetry also the probability that such a student is called clearly fast.
    """
    alive, slow, n = {0: 1.0}, 0.0, 0
    for look in schedule:
        for _ in range(look - n):
            alive = {b: (alive.get(b, 0.0) + alive.get(b - 1, 0.0)) / 2 for b in range(max(alive) + 2)}
        n, rank = look, interval_rank(look, confidence)
        slow += sum(p for below, p in alive.items() if below < rank)
        alive = {below: p for below, p in alive.items() if rank <= below <= look - rank}
    return slow


@cache
def confidence_of(schedule: tuple[int, ...]) -> float:
    """Return the confidence to ask of each look's interval so that all looks together err within CONFIDENCE.

    Just CONFIDENCE for 8..24 rounds; more for schedules with more looks.
    """
    confidence, error_per_side = CONFIDENCE, (1 - CONFIDENCE) / 2
    while false_fail_chance(schedule, confidence) > error_per_side:
        confidence = 1 - 0.9 * (1 - confidence)
    return confidence
