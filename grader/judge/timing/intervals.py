"""Medians and their exact confidence intervals from order statistics, as pure functions of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

CONFIDENCE = 0.98


@dataclass(frozen=True)
class Estimate:
    """A median and its confidence interval, from `low` to `high`."""

    middle: float
    low: float
    high: float


def interval_rank(n: int, confidence: float = CONFIDENCE) -> int:
    """Return k for an interval from the k-th smallest to the k-th largest of n values.

    k is the largest rank with which the interval contains the median with probability `confidence` or more. It misses
    the median with probability exactly 2 P(Bin(n, 1/2) < k). If n is too small for the confidence (n < 7 at 98 %),
    returns 1. The interval from smallest to largest value then covers less than requested (see `coverage`).
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
    """Return the median of one or more values and its interval."""
    ordered = sorted(values)
    rank = interval_rank(len(ordered), confidence)
    return Estimate(median(ordered), ordered[rank - 1], ordered[-rank])


def false_fail_chance(schedule: Sequence[int], confidence: float) -> float:
    """Return the exact probability that a student whose true time ratio is exactly the allowed one is judged slow.

    `schedule` holds the numbers of rounds after which the interval is checked ("looks"). Only the number of rounds
    below the allowance matters, and each round is below it with probability 1/2. By symmetry this is also the
    probability that such a student is judged clearly fast.
    """
    alive, slow, n = {0: 1.0}, 0.0, 0
    for look in schedule:
        for _ in range(look - n):
            alive = {b: (alive.get(b, 0.0) + alive.get(b - 1, 0.0)) / 2 for b in range(max(alive) + 2)}
        n, rank = look, interval_rank(look, confidence)
        slow += sum(p for below, p in alive.items() if below < rank)
        alive = {below: p for below, p in alive.items() if rank <= below <= look - rank}
    return slow
