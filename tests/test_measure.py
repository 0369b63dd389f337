"""The verdict on time for given rounds: times, the machine's fitness, clocks. No clock is read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_up_rounds import CPU, WALL, one_pair, rounds_of, steady

from grader.judge.timing.measure import Round, Sample, TimePolicy, compare, enough, is_fit, judge

# --- decisions on given rounds


def test_pass_slow_and_undecided() -> None:
    fast, slow, torn = (judge(rounds_of([r] * 8), CPU) for r in (1.0, 1.2, 1.1))
    assert (fast.verdict, fast.flags) == ("pass", ())
    assert (slow.verdict, slow.flags) == ("slow", ())
    assert (torn.verdict, torn.flags) == ("pass", ("undecided",))
    assert slow.ratio == pytest.approx(1.2)
    assert slow.student_ms == pytest.approx(120)
    assert slow.allowance == CPU.allowance_ratio

    one_fast = [1.3] * 7 + [1.05]
    assert judge(rounds_of(one_fast), CPU).flags == ("undecided",)
    assert not enough(rounds_of(one_fast), CPU)
    assert judge(rounds_of([*one_fast, 1.3, 1.3, 1.3, 1.3]), CPU).verdict == "slow"


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

    timing = compare(one_pair(call, call), CPU)
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
@example([1.0, 1.0, 1.0, 1.0, 1.0, 2.0], "cpu")
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
        # A pass may come after six or seven rounds with one outlier, which the interval of so few then holds.
        outliers = sum(ratio >= timing.allowance for ratio in ratios)
        assert high < timing.allowance or (outliers == 1 and timing.rounds in (6, 7))


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
    assert judge(self_timed([1.0] * 8, student=300), CPU).verdict == "slow", "the same student, fit machine"


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
    assert judge(serial(1.6, 4.0), CPU).verdict == "pass", "the reference had no core of its own"


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
