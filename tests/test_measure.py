"""grader.measure: its intervals and error rates exactly, its decisions on made-up noise. No clock is read."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.measure import (
    Round,
    Sample,
    TimePolicy,
    compare,
    confidence_of,
    coverage,
    enough,
    false_fail_chance,
    interval_rank,
    is_fit,
    judge,
    looks,
    median_estimate,
    sequential,
)

CPU = TimePolicy("cpu", allowance_ms=0.0)
WALL = TimePolicy("wall", allowance_ms=0.0)


def steady(ms: float, wall_per_cpu: float = 1.0) -> Sample:
    return Sample(ms * wall_per_cpu / 1e3, ms / 1e3)


def rounds_of(ratios: Sequence[float], ms: float = 100.0) -> list[Round]:
    """Noiseless reference calls, and student calls that give just these round ratios."""
    return [Round((steady(ms), steady(ms)), (steady(ms * r), steady(ms * r))) for r in ratios]


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


# --- the interval


@pytest.mark.parametrize(
    ("n", "rank", "percent"),
    # From the cumulative binomial table for p = 1/2.
    [
        (7, 1, 98.44),
        (8, 1, 99.22),
        (10, 1, 99.80),
        (11, 2, 98.83),
        (12, 2, 99.37),
        (14, 3, 98.71),
        (17, 4, 98.73),
        (18, 4, 99.25),
        (19, 5, 98.08),
        (20, 5, 98.82),
        (22, 6, 98.31),
        (24, 6, 99.34),
    ],
)
def test_interval_agrees_with_the_binomial_table(n: int, rank: int, percent: float) -> None:
    assert interval_rank(n) == rank
    assert coverage(n, rank) * 100 == pytest.approx(percent, abs=0.006)


@pytest.mark.parametrize("n", range(7, 61))
def test_the_rank_is_the_tightest_that_covers(n: int) -> None:
    assert coverage(n, interval_rank(n)) >= 0.98 > coverage(n, interval_rank(n) + 1)


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


@pytest.mark.parametrize("noise", [quiet, bursty])
def test_a_student_at_the_allowance_fails_as_rarely_as_computed(
    noise: Callable[[random.Random], float],
) -> None:
    rng = random.Random(1)
    slow = sum(sequential(noisy_rounds(rng, noise, 1.10), CPU).verdict == "slow" for _ in range(1200))
    assert slow / 1200 < 0.0185, "0.99 % expected, 3 standard errors allowed"


@pytest.mark.parametrize("noise", [quiet, bursty])
def test_an_identical_kernel_passes_and_a_slower_one_does_not(
    noise: Callable[[random.Random], float],
) -> None:
    rng = random.Random(2)
    same = [sequential(noisy_rounds(rng, noise), CPU) for _ in range(300)]
    slower = [sequential(noisy_rounds(rng, noise, 1.3), CPU) for _ in range(300)]
    assert all(timing.verdict == "pass" for timing in same)
    caught = sum(timing.verdict == "slow" for timing in slower) / len(slower)
    assert caught >= (0.99 if noise is quiet else 0.75), "noise costs power, never a false fail"


# --- decisions on given rounds


def test_pass_slow_and_undecided() -> None:
    fast, slow, torn = (judge(rounds_of([r] * 8), CPU) for r in (1.0, 1.2, 1.1))
    assert (fast.verdict, fast.flags) == ("pass", ())
    assert (slow.verdict, slow.flags) == ("slow", ())
    assert (torn.verdict, torn.flags) == ("pass", ("undecided",))
    assert slow.ratio == pytest.approx(1.2)
    assert slow.student_ms == pytest.approx(120)
    assert slow.allowance == CPU.allowance_ratio


def test_one_fast_round_in_eight_keeps_a_slow_student_from_failing_yet() -> None:
    ratios = [1.3] * 7 + [1.05]
    assert judge(rounds_of(ratios), CPU).flags == ("undecided",)
    assert not enough(rounds_of(ratios), CPU)
    assert judge(rounds_of([*ratios, 1.3, 1.3, 1.3, 1.3]), CPU).verdict == "slow"


def test_the_allowance_in_milliseconds_helps_short_kernels() -> None:
    policy = TimePolicy("cpu")
    assert judge(rounds_of([1.25] * 8, ms=50), policy).verdict == "pass"
    assert judge(rounds_of([1.25] * 8, ms=50), policy).allowance == pytest.approx(1.3)
    assert judge(rounds_of([1.25] * 8, ms=500), policy).verdict == "slow"


def test_a_steady_drift_of_the_machine_cancels() -> None:
    times = iter(0.1 * 1.01**i for i in range(1000))

    def call() -> Sample:
        now = next(times)
        return Sample(now, now)

    timing = compare(call, call, CPU)
    assert timing.ratio == pytest.approx(1.0)
    assert timing.verdict == "pass"


@given(
    st.lists(st.floats(0.5, 3.0), min_size=8, max_size=24),
    st.floats(1.0, 3.0),
    st.floats(1e-5, 1e3),
    st.sampled_from(["cpu", "wall"]),
)
def test_a_slower_student_is_never_better_off(
    ratios: list[float], factor: float, ms: float, clock: str
) -> None:
    policy = TimePolicy(clock)
    before = judge(rounds_of(ratios, ms), policy)
    after = judge(rounds_of([r * factor for r in ratios], ms), policy)
    assert after.ratio >= before.ratio * (1 - 1e-9)
    if before.verdict == "slow":
        assert after.verdict == "slow"


@given(st.lists(st.floats(0.01, 100), min_size=4, max_size=24), st.sampled_from(["cpu", "wall"]))
@settings(max_examples=200)
def test_a_verdict_is_what_its_own_figures_say(ratios: list[float], clock: str) -> None:
    timing = judge(rounds_of(ratios), TimePolicy(clock, allowance_ms=0.0))
    low, high = timing.ratio_interval
    assert low <= timing.ratio <= high
    assert timing.rounds == len(ratios)
    assert len(timing.student_wall_ms) == len(timing.reference_cpu_ms) == 2 * len(ratios)
    if timing.verdict == "slow":
        assert low > timing.allowance
    elif "undecided" not in timing.flags:
        assert high < timing.allowance


# --- fitness of the machine


def self_timed(self_ratios: Sequence[float], student: float = 100.0) -> list[Round]:
    return [Round((steady(100 * r), steady(100)), (steady(student), steady(student))) for r in self_ratios]


def test_noise_without_bias_is_not_unfitness() -> None:
    assert is_fit([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 5.0], CPU), "one wild round"
    assert is_fit([1.5, 0.6, 1.4, 1.3, 0.7, 1.6, 1.2, 0.5], CPU), "all wild, no direction"
    assert is_fit([1.03] * 8, CPU), "a bias within the bounds"


@pytest.mark.parametrize("bias", [1.06, 1 / 1.06])
def test_a_quiet_bias_is_seen(bias: float) -> None:
    wobble = [1.0, 1.004, 0.996, 1.01, 0.99, 1.0, 1.002, 0.998]
    assert not is_fit([bias * w for w in wobble], CPU)
    one_opposite = [bias * w for w in wobble * 3]
    one_opposite[5] = 1 / bias
    assert not is_fit(one_opposite, CPU)


def test_an_unfit_machine_fails_nobody() -> None:
    timing = judge(self_timed([1.2] * 8, student=300), CPU)
    assert (timing.verdict, timing.fit) == ("pass", False)
    assert "machine_unfit" in timing.flags
    assert timing.self_ratio == pytest.approx(1.2)
    assert judge(self_timed([1.0] * 8, student=300), CPU).verdict == "slow", (
        "the same student on a fit machine"
    )


# --- clocks


def serial(wall_per_cpu_a: float, wall_per_cpu_b: float, ratio: float = 1.0) -> list[Round]:
    a, b = steady(100, wall_per_cpu_a), steady(100 * ratio, wall_per_cpu_b)
    return [Round((a, a), (b, b))] * 8


def test_a_busy_neighbour_does_not_touch_a_serial_part() -> None:
    timing = judge(serial(1.9, 2.1), CPU)
    assert (timing.verdict, timing.clock, timing.flags) == ("pass", "cpu", ())
    assert judge(serial(1.9, 1.0, ratio=1.2), CPU).verdict == "slow", "nor does its luck excuse a slow kernel"


def test_a_sleeping_kernel_meets_the_wall_ceiling() -> None:
    timing = judge(serial(1.0, 3.0), CPU)
    assert (timing.verdict, timing.clock) == ("slow", "wall")
    assert timing.flags == ("wall_ceiling",)
    assert timing.allowance == pytest.approx(2.2)
    assert judge(serial(1.0, 2.0), CPU).verdict == "pass", "below the ceiling"
    assert judge(serial(1.6, 4.0), CPU).verdict == "pass", (
        "the reference had no core of its own: wall proves nothing"
    )


def test_the_wall_clock_decides_openmp_parts() -> None:
    assert judge(serial(0.25, 0.25, ratio=1.2), WALL).verdict == "slow"
    timing = judge(serial(0.5, 0.25, ratio=1.9), WALL)
    assert (timing.verdict, timing.clock) == ("pass", "wall"), "more CPU time, less wall time"
    assert timing.ratio == pytest.approx(0.95)
    assert timing.student_cpu_ms[0] == pytest.approx(190)


def test_without_a_cpu_clock_the_wall_decides_and_says_so() -> None:
    blind = [Round(one.reference, (Sample(0.12, None), one.student[1])) for one in rounds_of([1.2] * 8)]
    timing = judge(blind, CPU)
    assert (timing.verdict, timing.clock, timing.flags) == ("slow", "wall", ("no_cpu_clock",))
    assert timing.student_cpu_ms == timing.reference_cpu_ms == ()


def test_times_below_the_clock_still_have_a_ratio() -> None:
    nothing = Sample(0.0, 0.0)
    assert judge([Round((nothing, nothing), (nothing, nothing))] * 8, TimePolicy("cpu")).verdict == "pass"


# --- stopping, and the loop itself


class Kernel:
    """A callable of known duration that notes its calls in a log shared with the other side."""

    def __init__(self, name: str, ms: float, log: list[str]) -> None:
        self.name, self.ms, self.log = name, ms, log

    def __call__(self) -> Sample:
        self.log.append(self.name)
        return steady(self.ms)


def played(ratio: float, policy: TimePolicy, ms: float = 100.0, warmup: int = 1):
    log: list[str] = []
    timing = compare(Kernel("A", ms, log), Kernel("B", ratio * ms, log), policy, warmup)
    return timing, "".join(log)


def test_calls_alternate_after_the_warmup() -> None:
    timing, calls = played(1.5, CPU, warmup=2)
    assert calls == "ABAB" + "ABBABAAB" * 4
    assert (timing.rounds, timing.verdict) == (8, "slow")


def test_three_rounds_within_the_allowance_are_an_early_pass() -> None:
    timing, _ = played(1.0, CPU)
    assert (timing.rounds, timing.verdict, timing.flags) == (3, "pass", ())
    assert timing.ratio_confidence == coverage(3, 1) == 0.75


def test_an_early_pass_forgives_one_round_of_six() -> None:
    def ends(ratios: list[float]) -> int | None:
        return next((n for n in range(1, 8) if enough(rounds_of(ratios)[:n], CPU)), None)

    assert ends([1.0, 1.2, 1.0, 1.0, 1.0, 1.0, 1.0]) == 6
    assert ends([1.2, 1.2, 1.0, 1.0, 1.0, 1.0, 1.0]) is None
    assert ends([1.0, 1.0, 1.0, 1.2, 1.2, 1.2, 1.2]) == 3


def test_how_often_a_student_at_the_allowance_passes_early() -> None:
    passed = 0
    for outcome in itertools.product((0.9, 1.2), repeat=7):
        rounds = rounds_of(list(outcome))
        passed += any(enough(rounds[:n], CPU) for n in range(1, 8))
    assert passed / 2**7 == 11 / 64


def test_no_early_pass_for_a_kernel_that_sleeps() -> None:
    busy, sleeping = Sample(0.1, 0.1), Sample(0.5, 0.1)
    rounds = [Round((busy, busy), (sleeping, sleeping))] * 8
    assert not any(enough(rounds[:n], CPU) for n in range(1, 8))
    assert judge(rounds, CPU).flags == ("wall_ceiling",)
    unsteady = [*rounds[:1], *[Round((busy, busy), (busy, busy))] * 7]
    assert not any(enough(unsteady[:n], CPU) for n in range(1, 6))


def test_an_early_end_is_never_a_fail_within_budget() -> None:
    rng = random.Random(11)
    timings = [sequential(noisy_rounds(rng, lambda r: exp(r.gauss(0, 0.05)), 1.15), CPU) for _ in range(300)]
    assert {timing.verdict for timing in timings} == {"pass", "slow"}
    assert all(timing.rounds >= CPU.min_rounds for timing in timings if timing.verdict == "slow")


def test_an_undecided_student_gets_every_round() -> None:
    timing, calls = played(1.1, replace(CPU, budget_s=None))
    assert (timing.rounds, timing.flags) == (24, ("undecided",))
    assert len(calls) == 2 + 4 * 24


def test_what_is_not_graded_is_measured_in_three_rounds() -> None:
    assert all(played(ratio, replace(CPU, graded=False))[0].rounds == 3 for ratio in (0.5, 1.1, 30.0))


def test_an_early_fail_needs_a_tight_budget() -> None:
    # A round of a 30 times slower kernel takes 6.2 s: eight take 49.6 s.
    assert played(30.0, replace(CPU, budget_s=40))[0].rounds == 4
    assert played(30.0, replace(CPU, budget_s=60))[0].rounds == 8
    assert played(30.0, replace(CPU, budget_s=None))[0].rounds == 8
    assert all(played(30.0, replace(CPU, budget_s=b))[0].verdict == "slow" for b in (1, 40, 60))


def test_below_the_margin_no_budget_cuts_the_first_look_short() -> None:
    timing, _ = played(2.0, replace(CPU, budget_s=0.1))
    assert (timing.rounds, timing.verdict) == (8, "slow")
    assert played(0.4, replace(CPU, budget_s=0.1))[0].rounds == 3


def test_early_verdicts_do_not_rest_on_the_interval() -> None:
    timing = judge(rounds_of([1.5] * 4), CPU)
    assert (timing.verdict, timing.flags) == ("pass", ("undecided",))


def test_out_of_budget_stops_at_a_look_without_a_fail() -> None:
    timing, _ = played(1.1, replace(CPU, budget_s=4.0))
    assert (timing.rounds, timing.verdict, timing.flags) == (8, "pass", ("undecided",))


def test_an_alternating_kernel_cannot_hide_behind_the_budget() -> None:
    ratios = [1.0, 40.0, 40.0, 40.0] * 2
    rounds = rounds_of(ratios)
    policy = replace(CPU, budget_s=1.0)
    assert not any(enough(rounds[:n], policy) for n in range(1, 8))


def test_what_a_call_raises_is_the_callers() -> None:
    def crash() -> Sample:
        raise RuntimeError("the runner died")

    with pytest.raises(RuntimeError, match="the runner died"):
        compare(Kernel("A", 1.0, []), crash, CPU)


def test_a_source_that_ends_gives_no_verdict() -> None:
    with pytest.raises(ValueError, match="after 5 rounds"):
        sequential(rounds_of([1.5] * 5), CPU)
    with pytest.raises(ValueError, match="without a round"):
        judge([], CPU)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clock": "sun"},
        {"min_rounds": 6},
        {"max_rounds": 7},
        {"allowance_ratio": 0.9},
        {"allowance_ms": -1.0},
        {"wall_ceiling": 0.5},
        {"fit_low": 1.1},
        {"fit_high": 0.9},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        TimePolicy(**{"clock": "cpu", **wrong})
