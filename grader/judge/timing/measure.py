"""The verdict on time: the student compared with the reference in paired rounds, with a confidence interval.

Theory of operation. A round is four calls: A B B A (A: reference, B: student), or, in every second round, B A A B. So a
drift of the machine slows A and B alike. A round's ratio is the geometric mean of the two student times divided by the
geometric mean of the two reference times. On CPU cores each round has two new processes (GPUs differ:
`backends.gpu.timing`). A process may have an advantage for its whole life (its cores, its pages). With new processes
this is noise between rounds, which the interval covers, not a bias of all rounds. "Slow" needs many rounds that agree.

The statistic is the median of the round ratios and its 98 % interval from order statistics: the number of rounds below
the true median is binomial(n, 1/2) for any noise. So the interval is exact and assumes only that rounds are
independent. "Slow" needs the lower bound above the allowance (and more, see "The faster calls"). "Pass" needs the upper
bound below it. If neither holds after the last round, the student passes with the flag "undecided".

Looks. Checking the interval after every round, and stopping at the first decisive one, would raise the error: a student
exactly at the allowance would fail 1.95 % of the time over 8 to 24 rounds; 1 % is intended. So the interval is checked
only after 8, 12, 18 and 24 rounds (LOOKS), which gives 0.99 %. The 1.95 % and the 0.99 % are exact for any distribution
of the noise, not simulated (`false_fail_chance`). Noise that lasts longer than a round makes rounds dependent, which no
formula covers. So rounds were resampled from recordings of a crowded two-core machine (docs/measurements.md,
`verdicts.py`). There a student exactly at the allowance failed 0 to 7 % of the time, a copy of the reference never.

Early ends. A pass may come after three to seven rounds if all of them are below the allowance (and below the ceiling,
see "Clocks"). With six or seven rounds one may be above it. An error there favours the student, so it cannot add a
false "slow". A student exactly at the allowance passes early with probability 11/64. If a student is so slow that only
one round in a hundred is below the allowance, the probability is 10^-6. "Slow" before the first look needs a fit
machine. It also needs two rounds with ratios above 3 times the allowance, or four above 1.5 times. In addition, the
lowest ratio divided by the allowance must exceed the highest ratio divided by the lowest: widely scattered rounds prove
nothing. No single round of the recordings was off by a factor of 3. These margins (`Kind.early_slow`) are measured, not
exact. The factor 1.5 was tried on recordings of identical kernels on busy machines, with single rounds from 0.41 to
2.90. It added no false "slow" to 3,600 resampled verdicts of a student at the allowance. A kernel that is twice too
slow needs 4 to 8 rounds in place of 8 to 10 (docs/measurements.md, `verdicts.py`). On a GPU, which a timing has to
itself, the factors 2 and 1.15 are enough. If the next look would exceed the budget, the measurement stops, undecided.

Futility. A measurement that can no longer end as "slow" stops. The last look (at 24) allows five rounds below the
allowance. With six of them the student passes in any case: more rounds could only remove the flag "undecided".

The faster calls. Other programs on the machine only add time. So "slow" also needs that the faster calls exceed the
allowance: the 1/8 quantile of the student's times, divided by the reference's. Without this condition, noise that lasts
longer than a round could make rounds agree by accident. On virtual cores that share their hardware with other tenants,
medians of ten rounds of identical kernels ranged from 0.4 to 1.6. A slow kernel is slow in its faster calls as well.

Fitness. The two reference calls of every round are the same program on inputs of the same sizes. So their ratio (first
over second) should be 1. The machine is unfit if the median of these ratios is outside 0.95 to 1.05 *and* their 98 %
interval excludes 1. The first condition ignores a bias that is too small to matter, the second a few noisy rounds.
Noise without bias does not make a machine unfit; it widens the interval, and the verdict may be "undecided".

Clocks. A serial part is decided by CPU time, which leaves out waiting for a busy core. Its wall time has a wide
ceiling, against kernels that sleep, or work where the CPU clock does not see it. The ceiling uses wall time less the
time of waiting for a core, if the system reports that. Otherwise it uses all wall time, and the ceiling applies only if
the reference's wall time shows that it had its core to itself. An OpenMP part is decided by wall time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from math import sqrt
from statistics import median
from typing import Any, Literal

from grader.backends.kinds import CPP
from grader.core.results import Timing
from grader.judge.timing.intervals import CONFIDENCE, Estimate, coverage, interval_rank, median_estimate
from grader.runner.calls import Round, Sample

Clock = Literal["cpu", "wall"]

LOOKS = (8, 12, 18, 24)
"""Numbers of rounds after which the interval is checked."""
MIN_ROUNDS, MAX_ROUNDS = LOOKS[0], LOOKS[-1]
WALL_CEILING = 2.0
"""Wall times of a serial part may have a ratio up to this multiple of the allowed ratio."""
FIT_LOW, FIT_HIGH = 0.95, 1.05
"""A machine is fit in any case if the median ratio of the reference to itself is in this range."""
EARLY_PASS_ROUNDS, EARLY_SLOW_ROUNDS, GROSS_ROUNDS = 3, 4, 2
EARLY_OUTLIER_ROUNDS = 6
"""With this many rounds or more, an early pass allows one round above the allowance."""
FAST_SHARE = 1 / 8
"""Quantile of call times that represents the faster calls."""
CORE_SHARE_LIMIT = 1.25
"""Largest wall time / CPU time of a reference that had its core to itself."""
SHORTEST_S = 1e-9
"""Least time that is used for a call, because a clock may report 0 and a ratio must exist."""


@dataclass(frozen=True)
class TimePolicy:
    """Settings for the timing of one part.

    The allowed ratio student / reference is `max(allowance_ratio, 1 + allowance_ms / reference_ms)`. `budget_s` limits
    the wall time of the measured calls from the first look on; None for no limit. If the time is not graded, at most
    EARLY_PASS_ROUNDS rounds are made. `early_slow` comes from `grader.backends.kinds.Kind`.
    """

    clock: Clock
    allowance_ratio: float = 1.10
    allowance_ms: float = 15.0
    budget_s: float | None = 60.0
    graded: bool = True
    early_slow: tuple[float, float] = CPP.early_slow


# --- the verdict, by pure functions of rounds


@dataclass(frozen=True)
class _View:
    """The times of all rounds by one clock, and the allowed ratio for this clock."""

    clock: Clock
    allowance: float
    early_slow: tuple[float, float]
    reference_s: tuple[float, ...]
    student_s: tuple[float, ...]

    def ratios(self) -> list[float]:
        """Return one ratio student / reference per round."""
        a, b = self.reference_s, self.student_s
        return [sqrt(b[i] * b[i + 1]) / sqrt(a[i] * a[i + 1]) for i in range(0, len(a), 2)]

    def self_ratios(self) -> list[float]:
        """Return one ratio per round: the reference's first call / its second call."""
        a = self.reference_s
        return [a[i] / a[i + 1] for i in range(0, len(a), 2)]

    def fast_ratio(self) -> float:
        """Return the ratio student / reference of the faster calls (see "The faster calls")."""
        return _fast_s(self.student_s) / _fast_s(self.reference_s)

    def estimate(self) -> Estimate:
        """Return the median of the ratios and its interval."""
        return median_estimate(self.ratios())

    def verdict(self, *, early: bool) -> Literal["pass", "slow"] | None:
        """Return the verdict that the ratios prove, or None. `early` applies the rules under "Early ends"."""
        if early:
            ordered = sorted(self.ratios())
            margin = self.early_slow[len(ordered) >= EARLY_SLOW_ROUNDS]
            low = ordered[0] / max(margin, ordered[-1] / ordered[0])
            high = ordered[-2 if len(ordered) >= EARLY_OUTLIER_ROUNDS else -1]
        else:
            estimate = self.estimate()
            low, high = estimate.low, estimate.high
        if low > self.allowance:
            return "slow" if self.fast_ratio() > self.allowance else None
        return "pass" if high < self.allowance else None


def _seconds(rounds: Sequence[Round], side: str, clock: Clock, *, own: bool = False) -> tuple[float, ...]:
    """Return the seconds of the calls of one side. `own`: True for wall seconds without waits for a core."""
    samples = [sample for one in rounds for sample in getattr(one, side)]
    if own:
        return tuple(max(s.own_s or 0.0, SHORTEST_S) for s in samples)
    return tuple(max(s.wall_s if clock == "wall" else s.cpu_s or 0.0, SHORTEST_S) for s in samples)


def _view(
    rounds: Sequence[Round], policy: TimePolicy, clock: Clock, ceiling: float = 1.0, *, own: bool = False
) -> _View:
    """Return the times of rounds by one clock. `ceiling`: factor on the allowance. `own`: without waits for a core."""
    reference_s, student_s = (_seconds(rounds, side, clock, own=own) for side in ("reference", "student"))
    allowance = max(policy.allowance_ratio, 1 + policy.allowance_ms / (1e3 * median(reference_s)))
    return _View(clock, ceiling * allowance, policy.early_slow, reference_s, student_s)


def _fast_s(calls_s: Sequence[float]) -> float:
    return sorted(calls_s)[int(FAST_SHARE * len(calls_s))]


def _has_cpu(rounds: Sequence[Round]) -> bool:
    return all(sample.cpu_s is not None for one in rounds for sample in (*one.reference, *one.student))


def _had_its_core(rounds: Sequence[Round]) -> bool:
    wall_s, cpu_s = _seconds(rounds, "reference", "wall"), _seconds(rounds, "reference", "cpu")
    return median(w / c for w, c in zip(wall_s, cpu_s, strict=True)) <= CORE_SHARE_LIMIT


def _views(rounds: Sequence[Round], policy: TimePolicy) -> tuple[_View, _View | None]:
    """Return (view by the deciding clock, view for the ceiling). The second one is None if wall time decides, or if
    the reference shared its core and waits for a core are unknown."""
    if policy.clock == "wall" or not _has_cpu(rounds):
        return _view(rounds, policy, "wall"), None
    own = all(s.own_s is not None for one in rounds for s in (*one.reference, *one.student))
    main = _view(rounds, policy, "cpu")
    if not own and not _had_its_core(rounds):
        return main, None
    return main, _view(rounds, policy, "wall", WALL_CEILING, own=own)


def _decide(
    rounds: Sequence[Round], policy: TimePolicy, *, early: bool
) -> tuple[Literal["pass", "slow"] | None, _View]:
    """Return (verdict or None if the rounds prove none, view of the rounds by the clock that decided).

    `early`: True to apply the rules under "Early ends" in the module's docstring, False for the median's interval.
    """
    main, ceiling = _views(rounds, policy)
    verdict = main.verdict(early=early)
    limit = ceiling.verdict(early=early) if ceiling is not None else "pass"
    if verdict != "slow" and limit == "slow":
        return "slow", ceiling or main
    if early and verdict == "pass" and limit is None:
        return None, main
    return verdict, main


def ratio_of(one: Round, policy: TimePolicy) -> float:
    """Return the ratio student / reference of a single round, by the clock that decides."""
    return _views([one], policy)[0].ratios()[0]


def is_fit(self_ratios: Sequence[float]) -> bool:
    """Return True if the machine is fit (see "Fitness" above). `self_ratios` has one ratio per round."""
    own = median_estimate(self_ratios)
    biased = not own.low <= 1 <= own.high
    return not (biased and not FIT_LOW <= own.middle <= FIT_HIGH)


def judge(rounds: Sequence[Round], policy: TimePolicy) -> Timing:
    """Return the verdict on one or more recorded rounds.

    Fewer than MIN_ROUNDS are judged by the rules under "Early ends". Flags: "undecided" (the rounds prove neither
    verdict); "machine_unfit" (the verdict is "pass" then); "no_cpu_clock" (wall time decides, because a call had no
    CPU time); "wall_ceiling" (a serial part within its CPU allowance, but slow by the wall clock).
    """
    if not rounds:
        raise ValueError("a verdict needs at least one round")
    proved, view = _decide(rounds, policy, early=len(rounds) < MIN_ROUNDS)
    estimate = view.estimate()
    fit = is_fit(view.self_ratios())
    flags = {
        "undecided": proved is None,
        "machine_unfit": not fit,
        "no_cpu_clock": policy.clock == "cpu" and not _has_cpu(rounds),
        "wall_ceiling": policy.clock == "cpu" and view.clock == "wall" and _has_cpu(rounds),
    }
    recorded: dict[str, Any] = {
        f"{side}_{clock}_ms": tuple(1e3 * s for s in _seconds(rounds, side, clock))
        for side in ("reference", "student")
        for clock in ("wall", "cpu")
        if clock == "wall" or _has_cpu(rounds)
    }
    return Timing(
        reference_ms=1e3 * median(view.reference_s),
        student_ms=1e3 * median(view.student_s),
        ratio=estimate.middle,
        ratio_interval=(estimate.low, estimate.high),
        ratio_confidence=min(CONFIDENCE, coverage(len(rounds), interval_rank(len(rounds)))),
        rounds=len(rounds),
        clock=view.clock,
        allowance=view.allowance,
        verdict="slow" if proved == "slow" and fit else "pass",
        self_ratio=median(view.self_ratios()),
        fit=fit,
        flags=tuple(name for name, is_set in flags.items() if is_set),
        **recorded,
    )


def enough(rounds: Sequence[Round], policy: TimePolicy) -> bool:
    """Return True if the measurement can stop: the verdict is certain, or the rounds or the budget are used up."""
    n = len(rounds)
    if n >= (MAX_ROUNDS if policy.graded else EARLY_PASS_ROUNDS):
        return True
    next_look = next(look for look in LOOKS if look > n)
    spent_s = sum(one.wall_s for one in rounds)
    over_budget = policy.budget_s is not None and n > 0 and spent_s / n * next_look > policy.budget_s
    if n in LOOKS:
        return (
            over_budget
            or _decide(rounds, policy, early=False)[0] is not None
            or not can_be_slow(rounds, policy)
        )
    if n < MIN_ROUNDS:
        verdict, view = _decide(rounds, policy, early=True)
        # Few rounds cannot prove that the machine is unfit. If they suggest it, take more rounds.
        decided = n >= (EARLY_PASS_ROUNDS if verdict == "pass" else GROSS_ROUNDS) and verdict is not None
        return decided and is_fit(view.self_ratios())
    return n > MIN_ROUNDS and not can_be_slow(rounds, policy)


def can_be_slow(rounds: Sequence[Round], policy: TimePolicy) -> bool:
    """Return True if further rounds could still prove that the student is slow, by either clock."""
    rank = interval_rank(MAX_ROUNDS)
    views = [view for view in _views(rounds, policy) if view is not None]
    return any(sum(ratio < view.allowance for ratio in view.ratios()) < rank for view in views)


def sequential(source: Iterable[Round], policy: TimePolicy) -> Timing:
    """Take rounds from `source` until `enough` is True, and judge them. Raises ValueError if `source` ends earlier."""
    rounds: list[Round] = []
    for one in source:
        rounds.append(one)
        if enough(rounds, policy):
            return judge(rounds, policy)
    raise ValueError(f"{len(rounds)} rounds are too few for a verdict")


# --- measuring, by calls

PairOf = Callable[[], AbstractContextManager[tuple[Callable[[], Sample], Callable[[], Sample]]]]
"""Function that starts and warms up the pair of runners for a round. Its context yields two functions: one makes a call
of the reference, the other a call of the student.
"""


def play(pairs: PairOf) -> Iterator[Round]:
    """Yield rounds without end, each with a new pair of runners: A B B A, B A A B, A B B A, ... (A: reference)."""
    for i in count():
        with pairs() as (reference, student):
            if i % 2 == 0:
                a1, b1, b2, a2 = reference(), student(), student(), reference()
            else:
                b1, a1, a2, b2 = student(), reference(), reference(), student()
        yield Round((a1, a2), (b1, b2))


def compare(pairs: PairOf, policy: TimePolicy) -> Timing:
    """Time student and reference in as many rounds as needed. An exception of a call (a crash, say) passes through."""
    return sequential(play(pairs), policy)
