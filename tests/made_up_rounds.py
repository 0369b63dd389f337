"""Generated rounds of a measurement: exact, or with noise of a known kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from math import exp

from grader.judge.timing.measure import Pairs, Round, Sample, TimePolicy

CPU = TimePolicy("cpu", allowance_ms=0.0)
WALL = TimePolicy("wall", allowance_ms=0.0)


def steady(ms: float, wall_per_cpu: float = 1.0) -> Sample:
    return Sample(ms * wall_per_cpu / 1e3, ms / 1e3)


def rounds_of(ratios: Sequence[float], ms: float = 100.0) -> list[Round]:
    """Noiseless reference calls, and student calls that give just these round ratios."""
    return [Round((steady(ms), steady(ms)), (steady(ms * r), steady(ms * r))) for r in ratios]


def one_pair(reference: Callable[[], Sample], student: Callable[[], Sample]) -> Pairs:
    """The same two callables for every round."""
    return lambda: nullcontext((reference, student))


def noisy_rounds(
    rng: random.Random, noise: Callable[[random.Random], float], ratio: float = 1.0
) -> Iterator[Round]:
    while True:
        a1, a2, b1, b2 = (0.1 * noise(rng) for _ in range(4))
        yield Round(
            (Sample(a1, a1), Sample(a2, a2)), (Sample(ratio * b1, ratio * b1), Sample(ratio * b2, ratio * b2))
        )


def quiet(rng: random.Random) -> float:
    return exp(rng.gauss(0, 0.01))


def bursty(rng: random.Random) -> float:
    """One call in ten shares its core and takes up to three times as long."""
    return quiet(rng) * (rng.uniform(1.3, 3.0) if rng.random() < 0.1 else 1.0)
