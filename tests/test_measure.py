"""Verdicts on time for given or generated rounds, without a clock; comparison with kernels of known speed."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from itertools import cycle, product
from math import exp
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import ASSIGNMENT, refused
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grader import score
from grader.backends.kinds import KERNELS
from grader.backends.torch.zygote import Zygote
from grader.core import commandline, errors
from grader.core.results import PartResult, SubmissionResult, Timing
from grader.judge.timing import intervals, measure
from grader.judge.timing.intervals import coverage, false_fail_chance, interval_rank, median_estimate
from grader.judge.timing.measure import TimePolicy, compare, enough, judge, sequential
from grader.report import html, machines, result_json
from grader.runner.calls import Round, Sample
from labs.attention import ladder
from module_ref_stub import library

Noise = Callable[[random.Random], float]

CPU = TimePolicy("cpu", allowance_ms=0.0)
WALL = TimePolicy("wall", allowance_ms=0.0)
CLOCKS = st.sampled_from(["cpu", "wall"])


def steady(ms: float, wall_per_cpu: float = 1.0) -> Sample:
    return Sample(ms * wall_per_cpu / 1e3, ms / 1e3)


def rounds_of(ratios: Sequence[float], ms: float = 100.0) -> list[Round]:
    """Return a round without noise for each ratio of the student's time to the reference's, which is `ms`."""
    return [Round((steady(ms), steady(ms)), (steady(ms * r), steady(ms * r))) for r in ratios]


def noisy_rounds(rng: random.Random, noise: Noise, ratio: float) -> Iterator[Round]:
    while True:
        a1, a2, b1, b2 = (steady(100 * times * noise(rng)) for times in (1, 1, ratio, ratio))
        yield Round((a1, a2), (b1, b2))


def quiet(rng: random.Random) -> float:
    return exp(rng.gauss(0, 0.01))


def bursty(rng: random.Random) -> float:
    """Return a factor for one call's time: one call in ten shares its core and takes up to three times as long."""
    return quiet(rng) * (rng.uniform(1.3, 3.0) if rng.random() < 0.1 else 1.0)


def self_timed(self_ratios: Sequence[float], student: float = 100.0) -> list[Round]:
    return [Round((steady(100 * r), steady(100)), (steady(student), steady(student))) for r in self_ratios]


def early_end(rounds: Sequence[Round], policy: TimePolicy = CPU, most: int = 7) -> int | None:
    """Return the number of rounds after which a measurement ends before its first look (a planned check), else None."""
    return next((n for n in range(1, most + 1) if enough(rounds[:n], policy)), None)


def serial(wall_per_cpu_a: float, wall_per_cpu_b: float, ratio: float = 1.0) -> list[Round]:
    a, b = steady(100, wall_per_cpu_a), steady(100 * ratio, wall_per_cpu_b)
    return [Round((a, a), (b, b))] * 8


def crowded(own_a: float, own_b: float) -> list[Round]:
    """Return eight rounds of calls of 0.4 s that wait for a core, except for `own_a` (reference) or `own_b` ms."""
    a, b = Sample(0.4, 0.1, own_a / 1e3), Sample(0.4, 0.1, own_b / 1e3)
    return [Round((a, a), (b, b))] * 8


NOTHING = Sample(0.0, 0.0)
NO_CPU_CLOCK = [Round(one.reference, (Sample(0.12, None), one.student[1])) for one in rounds_of([1.2] * 8)]
ONE_FAST = [1.3] * 7 + [1.05]
SLOW, PASS = ("slow", "cpu"), ("pass", "cpu")
BY_WALL, CEILING, UNDECIDED = ("slow", "wall"), ("slow", "wall", "wall_ceiling"), ("pass", "cpu", "undecided")
#: Rows: the rounds, the policy, and the expected (verdict, clock, flags...).
VERDICTS = [
    *((rounds_of([ratio] * 8), CPU, end) for ratio, end in ((1.0, PASS), (1.2, SLOW), (1.1, UNDECIDED))),
    # After eight rounds, a single fast round prevents "slow"; more rounds decide.
    (rounds_of(ONE_FAST), CPU, UNDECIDED),
    (rounds_of([*ONE_FAST, 1.3, 1.3, 1.3, 1.3]), CPU, SLOW),
    # Four rounds are too few for an interval of the promised confidence, even if they agree.
    (rounds_of([1.5] * 4), CPU, UNDECIDED),
    # A short kernel may exceed the allowed ratio within the allowance in milliseconds.
    (rounds_of([1.25] * 8, ms=50), TimePolicy("cpu"), PASS),
    (rounds_of([1.25] * 8, ms=500), TimePolicy("cpu"), SLOW),
    ([Round((NOTHING, NOTHING), (NOTHING, NOTHING))] * 8, TimePolicy("cpu"), PASS),
    # On an unfit machine no part is slow. With these times, the part would be slow on a fit machine.
    (self_timed([1.2] * 8, student=300), CPU, (*PASS, "machine_unfit")),
    (self_timed([1.0] * 8, student=300), CPU, SLOW),
    # CPU time decides serial parts: load neither makes a part slow nor hides a slow part.
    (serial(1.9, 2.1), CPU, PASS),
    (serial(1.9, 1.0, ratio=1.2), CPU, SLOW),
    # A kernel that sleeps exceeds the limit on wall time. If the reference waits, too, the machine may be busy.
    *((serial(1, wall), CPU, end) for wall, end in ((3, CEILING), (2, PASS))),
    (serial(1.6, 4.0), CPU, PASS),
    # If the time of waiting for a core is known, the limit on wall time holds on a busy machine, too.
    (crowded(100, 300), CPU, CEILING),
    (crowded(100, 150), CPU, PASS),
    # The wall clock decides OpenMP parts, even if CPU time gives another verdict.
    (serial(0.25, 0.25, ratio=1.2), WALL, BY_WALL),
    (serial(0.5, 0.25, ratio=1.9), WALL, ("pass", "wall")),
    (NO_CPU_CLOCK, CPU, (*BY_WALL, "no_cpu_clock")),
]


@pytest.mark.parametrize(("rounds", "policy", "end"), VERDICTS)
def test_rounds_give_the_verdict(rounds: list[Round], policy: TimePolicy, end: tuple[str, ...]) -> None:
    timing, (verdict, clock, *flags) = judge(rounds, policy), end
    assert (timing.verdict, timing.clock, set(flags) - set(timing.flags)) == (verdict, clock, set())
    assert "machine_unfit" in flags or set(timing.flags) == set(flags)
    assert timing.fit is ("machine_unfit" not in flags)


def test_a_verdict_has_the_right_ratio_times_and_allowance() -> None:
    slow = judge(rounds_of([1.2] * 8), CPU)
    assert slow.ratio == pytest.approx(1.2) and slow.student_ms == pytest.approx(120)
    assert slow.allowance == CPU.allowance_ratio and not enough(rounds_of(ONE_FAST), CPU)
    assert judge(rounds_of([1.25] * 8, ms=50), TimePolicy("cpu")).allowance == pytest.approx(1.3)
    assert judge(serial(1.0, 3.0), CPU).allowance == pytest.approx(2.2)
    assert judge(self_timed([1.2] * 8, student=300), CPU).self_ratio == pytest.approx(1.2)
    openmp = judge(serial(0.5, 0.25, ratio=1.9), WALL)
    assert openmp.ratio == pytest.approx(0.95) and openmp.student_cpu_ms[0] == pytest.approx(190)
    assert judge(NO_CPU_CLOCK, CPU).student_cpu_ms == judge(NO_CPU_CLOCK, CPU).reference_cpu_ms == ()
    # A steady drift of the machine's speed does not change the ratio.
    calls = (steady(100 * 1.01**k) for k in range(1000))
    timing = compare(lambda: nullcontext((calls.__next__, calls.__next__)), CPU)
    assert (timing.ratio, timing.verdict) == (pytest.approx(1.0), "pass")


@given(st.lists(st.floats(0.5, 3), min_size=8, max_size=24), st.floats(1, 3), st.floats(1e-5, 1e3), CLOCKS)
def test_a_slower_student_is_never_better_off(ratios: list[float], by: float, ms: float, clock: str) -> None:
    before, after = (judge(rounds_of([r * k for r in ratios], ms), TimePolicy(clock)) for k in (1, by))
    assert after.ratio >= before.ratio * (1 - 1e-9)
    assert after.verdict == "slow" or before.verdict != "slow"


@given(st.lists(st.floats(0.01, 100), min_size=4, max_size=24), CLOCKS)
@example([1.0, 1.0, 1.0, 1.0, 1.0, 2.0], "cpu")
@settings(max_examples=200)
def test_a_verdict_agrees_with_its_interval(ratios: list[float], clock: str) -> None:
    timing = judge(rounds_of(ratios), TimePolicy(clock, allowance_ms=0.0))
    low, high = timing.ratio_interval
    assert low <= timing.ratio <= high and timing.rounds == len(ratios)
    assert len(timing.student_wall_ms) == len(timing.reference_cpu_ms) == 2 * len(ratios)
    if timing.verdict == "slow":
        assert low > timing.allowance
    elif "undecided" not in timing.flags:
        # With six or seven rounds, a pass may have one at or above the allowance, which its interval then includes.
        outliers = sum(ratio >= timing.allowance for ratio in ratios)
        assert high < timing.allowance or (outliers == 1 and timing.rounds in (6, 7))


def test_only_a_bias_makes_a_machine_unfit_not_noise() -> None:
    assert measure.is_fit([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 5.0]), "one outlier is allowed"
    assert measure.is_fit([1.5, 0.6, 1.4, 1.3, 0.7, 1.6, 1.2, 0.5]), "noise has no bias"
    assert measure.is_fit([1.03] * 8), "a bias within the bounds"
    for bias in (1.06, 1 / 1.06):
        biased = [bias * w for w in (1.0, 1.004, 0.996, 1.01, 0.99, 1.0, 1.002, 0.998)]
        assert not measure.is_fit(biased)
        assert not measure.is_fit([*biased[:5], 1 / bias, *biased[6:], *biased, *biased]), "still biased"


def test_the_interval_rank_is_the_largest_with_98_percent_coverage() -> None:
    for n in range(7, 61):
        assert coverage(n, interval_rank(n)) >= 0.98 > coverage(n, interval_rank(n) + 1), n
    # The values for 24 rounds are from a binomial table for p = 1/2. The interval of four values is their range.
    assert (interval_rank(24), round(coverage(24, 6), 4), interval_rank(4)) == (6, 0.9934, 1)
    estimate = median_estimate([3.0, 1.0, 2.0, 9.0])
    assert (estimate.low, estimate.middle, estimate.high) == (1.0, 2.5, 9.0)
    # Try all 2^12 ways in which 12 values can lie below or above the true median, which is 0 here.
    estimates = [median_estimate(signs) for signs in product((-1.0, 1.0), repeat=12)]
    held = sum(estimate.low <= 0 <= estimate.high for estimate in estimates)
    assert held / 2**12 == coverage(12, interval_rank(12))


@given(st.lists(st.floats(0.1, 10), min_size=8, max_size=24), st.randoms(use_true_random=False))
def test_the_estimate_contains_the_median_in_any_order(values: list[float], rng: random.Random) -> None:
    estimate = median_estimate(values)
    assert min(values) <= estimate.low <= estimate.middle <= estimate.high <= max(values)
    assert median_estimate(rng.sample(values, len(values))) == estimate


def test_the_chance_of_a_false_fail_counts_every_course_of_events() -> None:
    """Try all 2^12 sequences of twelve rounds below or above the allowance, with checks after 8 and 12 rounds."""
    slow = 0
    for above in product((False, True), repeat=12):
        first, last = median_estimate(above[:8], 0.98), median_estimate(above, 0.98)
        slow += bool(first.low) or (first.high and last.low)
    assert false_fail_chance((8, 12), 0.98) == slow / 2**12 > false_fail_chance((12,), 0.98)
    # A student exactly at the allowance fails with at most the promised probability.
    assert measure.LOOKS == (8, 12, 18, 24) and intervals.CONFIDENCE == 0.98
    assert 0.01 > false_fail_chance(measure.LOOKS, 0.98) == pytest.approx(0.0099, abs=5e-5)
    assert false_fail_chance(range(8, 25), 0.98) == pytest.approx(0.0195, abs=5e-5), "a look after each round"


@pytest.mark.parametrize(("noise", "caught"), [(quiet, 0.99), (bursty, 0.75)])
def test_noise_makes_no_false_fail_and_slow_kernels_are_found(noise: Noise, caught: float) -> None:
    def slow(seed: int, ratio: float, students: int) -> float:
        rng = random.Random(seed)
        timings = [sequential(noisy_rounds(rng, noise, ratio), CPU) for _ in range(students)]
        return sum(timing.verdict == "slow" for timing in timings) / students

    assert slow(2, 1.0, 200) == 0.0
    assert slow(1, 1.10, 600) < 0.0221, "at the allowance: 0.99 % expected, 3 standard errors allowed"
    assert slow(2, 1.3, 200) >= caught


def played(log: list[str], student: Callable[[], Sample], policy: TimePolicy = CPU) -> Timing:
    """Measure with a reference of 100 ms. Append calls to `log`: "A" (reference) or "B", each round in brackets."""

    def call(name: str, kernel: Callable[[], Sample]) -> Sample:
        log.append(name)
        return kernel()

    @contextmanager
    def pair() -> Iterator[tuple[Callable[[], Sample], Callable[[], Sample]]]:
        log.append("(")
        try:
            yield partial(call, "A", partial(steady, 100.0)), partial(call, "B", student)
        finally:
            log.append(")")

    return compare(pair, policy)


def test_calls_alternate_and_each_round_has_its_own_pair_which_ends_when_a_call_raises() -> None:
    calls: list[str] = []
    timing = played(calls, partial(steady, 150.0))
    assert ("".join(calls), timing.rounds, timing.verdict) == ("(ABBA)(BAAB)" * 4, 8, "slow")
    dies = Mock(side_effect=RuntimeError("the runner died"))
    refused("the runner died", played, calls, dies, of=RuntimeError)
    assert "".join(calls).endswith("(ABBA)(BAAB)(AB)")


def test_three_rounds_within_the_allowance_or_five_of_six_are_an_early_pass() -> None:
    timing = played([], partial(steady, 100.0))
    assert (timing.rounds, timing.verdict, timing.flags) == (3, "pass", ())
    assert timing.ratio_confidence == coverage(3, 1) == 0.75
    assert early_end(rounds_of([1.0, 1.2, 1.0, 1.0, 1.0, 1.0, 1.0])) == 6
    assert early_end(rounds_of([1.2, 1.2, 1.0, 1.0, 1.0, 1.0, 1.0])) is None
    assert early_end(rounds_of([1.0, 1.0, 1.0, 1.2, 1.2, 1.2, 1.2])) == 3
    passed = [outcome for outcome in product((0.9, 1.2), repeat=7) if early_end(rounds_of(outcome))]
    assert len(passed) / 2**7 == 11 / 64, "the chance of a student at the allowance"
    # The measurement of a kernel that sleeps, or whose times alternate, does not end early.
    rounds = serial(1.0, 2.5)
    assert early_end(rounds) is None and judge(rounds, CPU).flags == ("wall_ceiling",)
    assert early_end([rounds[0], *rounds_of([1.0] * 7)], most=5) is None
    assert early_end(rounds_of([1.0, 40.0, 40.0, 40.0] * 2), replace(CPU, budget_s=1.0)) is None


def test_four_rounds_beyond_doubt_are_an_early_slow() -> None:
    """A measurement ends early if its ratios agree, far above the allowance of 1.1, and the reference is steady."""
    end_early, go_on = ([1.7] * 7, [*[1.9] * 3, 3.0, *[1.9] * 3]), ([1.6] * 7, [*[1.9] * 3, 3.5, *[1.9] * 3])
    assert [early_end(rounds_of(ratios)) for ratios in end_early] == [4, 4]
    gross = ([3.4] * 7, [3.2, *[3.4] * 6], [20.0, 90.0, *[20.0] * 5], [4.0, 40.0, *[4.0] * 5])
    assert [early_end(rounds_of(ratios)) for ratios in gross] == [2, 4, 2, None]
    assert [early_end(rounds_of(ratios)) for ratios in (*go_on, [1.0, *[40.0] * 6])] == [None] * 3
    slept = serial(1.0, 5.0)
    assert early_end(slept) == 4 and early_end(serial(1.0, 7.0)) == 2
    assert judge(slept[:4], CPU).flags == ("wall_ceiling",)
    assert early_end([Round((steady(100), steady(120)), one.student) for one in rounds_of([3.0] * 7)]) is None


@pytest.mark.full
def test_a_measurement_ends_when_it_cannot_end_as_slow_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    torn, policy = [*[1.3, 1.0] * 6, *[1.3] * 12], replace(CPU, budget_s=None)
    timing = sequential(rounds_of(torn), policy)
    assert (timing.rounds, timing.verdict, timing.flags) == (12, "pass", ("undecided",))
    # If only five rounds are below the allowance, with slow calls of the reference, the final verdict is still "slow".
    torn[11] = 1.3
    rounds = [one for ratio in torn for one in rounds_of([ratio], 130.0 if ratio == 1.0 else 100.0)]
    timing = sequential(rounds, policy)
    assert (timing.rounds, timing.verdict, timing.flags) == (24, "slow", ())
    # If the rounds leave doubt, "slow" needs at least MIN_ROUNDS rounds.
    rng = random.Random(11)
    timings = [sequential(noisy_rounds(rng, lambda r: exp(r.gauss(0, 0.05)), 1.15), CPU) for _ in range(300)]
    assert {timing.verdict for timing in timings} == {"pass", "slow"}
    assert all(timing.rounds >= measure.MIN_ROUNDS for timing in timings if timing.verdict == "slow")
    # A measurement ends when the part can no longer become slow. This early end changes no verdict.
    rng = random.Random(17)
    outcomes = [[rng.choice((1.0, 1.2, 1.2, 1.2)) for _ in range(24)] for _ in range(600)]
    shortened = [sequential(rounds_of(ratios), policy) for ratios in outcomes]
    monkeypatch.setattr("grader.judge.timing.measure.can_be_slow", lambda rounds, policy: True)
    whole = [sequential(rounds_of(ratios), policy) for ratios in outcomes]
    assert [one.verdict for one in shortened] == [one.verdict for one in whole]
    assert {one.verdict for one in whole} == {"pass", "slow"}
    assert sum(one.rounds for one in shortened) < 0.9 * sum(one.rounds for one in whole)


def test_slow_rounds_are_no_proof_if_the_fastest_calls_are_fast() -> None:
    """Noise lasts longer than a round: it slows three of the student's four calls in two rounds."""
    disturbed = [Round((steady(100.0),) * 2, (steady(100.0), steady(300.0))), *rounds_of([1.4])]
    timing = sequential(cycle(disturbed), replace(CPU, budget_s=None))
    assert (timing.verdict, timing.flags) == ("pass", ("undecided",))
    assert timing.ratio_interval[0] > timing.allowance
    assert sequential(cycle(rounds_of([1.4])), CPU).verdict == "slow"
    # A few processes that are slow in all their calls by chance do not make a part slow.
    rng = random.Random(5)
    timing = sequential(rounds_of([10.0 if rng.random() < 0.2 else 1.0 for _ in range(24)]), CPU)
    assert (timing.verdict, timing.ratio) == ("pass", 1.0)


def test_the_number_of_rounds_depends_on_ratio_and_budget() -> None:
    for ratio, policy, rounds, verdict, flags in (
        *((ratio, {"graded": False}, 3, None, None) for ratio in (0.5, 1.1, 3.2)),
        # These kernels are so slow that four rounds, or two, decide.
        *((ratio, {"budget_s": None}, 4, "slow", ()) for ratio in (3.2, 1.8)),
        *((30.0, {"budget_s": None, "graded": graded}, 2, "slow", ()) for graded in (True, False)),
        # Times on a GPU are steadier than on cores, so smaller ratios are enough for an early "slow".
        (2.4, {"early_slow": KERNELS.early_slow}, 2, "slow", ()),
        (1.4, {"early_slow": KERNELS.early_slow}, 4, "slow", ()),
        # A ratio that is not far above the allowance needs eight rounds, even if they exceed the time budget.
        (1.6, {"budget_s": 0.1}, 8, "slow", ()),
        (0.4, {"budget_s": 0.1}, 3, "pass", ()),
        # At the end of the time budget the measurement stops, and the part passes.
        (1.1, {"budget_s": 4.0}, 8, "pass", ("undecided",)),
        (1.1, {"budget_s": None}, 24, "pass", ("undecided",)),
    ):
        calls: list[str] = []
        timing = played(calls, partial(steady, ratio * 100), replace(CPU, **policy))
        assert timing.rounds == rounds and len(calls) == (4 + 2) * rounds, (ratio, policy)
        assert verdict is None or (timing.verdict, timing.flags) == (verdict, flags), (ratio, policy)


def test_rounds_that_end_without_a_verdict_are_refused() -> None:
    refused("5 rounds are too few", sequential, rounds_of([1.5] * 5), CPU, of=ValueError)
    refused("needs at least one round", judge, [], CPU, of=ValueError)


PART = ASSIGNMENT.part("part4")
TIMES = {"naive": 6.0, "reference": 1.0, "rows": 0.6, "plain": 0.25, "pytorch": 0.2, "expert": 0.08}
KNOWN = ladder.Yardsticks(TIMES, 0.07, cores=1)
SHAPE = {"B": 1, "H": 2, "N": 48, "d": 16, "Br": 16, "Bc": 16, "threads": 2}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("grader.backends.native.toolchain.cache_root", lambda: tmp_path)
    return tmp_path


def passed(ratio: float, id: str = "part4", is_placed: bool = True) -> PartResult:
    measured = (100.0, 100 * ratio, ratio, (ratio, ratio), 0.98, 8, "cpu", 1.1, "pass")
    frontier = ladder.stand(ratio, KNOWN) if is_placed else None
    time = Timing(*measured, self_ratio=1.0, fit=True)
    return PartResult(id, "Flash", "pass", 1, time=time, frontier=frontier)


def result_of(name: str, *parts: PartResult) -> SubmissionResult:
    return SubmissionResult(name, "0", "gpt149", {}, {}, {}, parts)


def test_the_line_has_ratios_to_each_rung_and_the_table_is_sorted() -> None:
    line = ladder.line(ladder.stand(0.5, KNOWN))
    assert line == "12.0× naive · 2.0× reference · 0.4× PyTorch · 0.16× expert · 14 % of one core's peak"
    assert ladder.line(ladder.stand(0.05, replace(KNOWN, cores=8))).startswith("120× naive")
    rows = ladder.table(ladder.stand(0.1, KNOWN), "yours").splitlines()[1:]
    names = [row.split("  ")[-1].strip() for row in rows]
    rungs = ["PyTorch", "plain best C++", "fused, V row by row", "reference", "naive"]
    assert names == ["nothing but one core's multiply-adds", "expert", "<---", *rungs]
    assert rows[0].split()[:2] == ["0.7", "100"], "70 % of the peak: the peak takes 0.7 of its time"


def test_a_stored_measurement_is_used_only_for_its_shape(cache: Path) -> None:
    three = ASSIGNMENT.part("part3")
    assert ladder.kept(PART, SHAPE) is None
    ladder.keep(PART, SHAPE, KNOWN)
    ladder.keep(three, SHAPE, KNOWN)
    assert ladder.kept(PART, SHAPE) == KNOWN
    assert ladder.kept(PART, {**SHAPE, "threads": 5}) == KNOWN, "part 4 is serial"
    assert ladder.kept(three, {**SHAPE, "threads": 5}) is None, "part 3 is not"
    assert ladder.kept(PART, {**SHAPE, "N": 49}) is None
    for other in ("part1", "4Dread"):
        assert ladder.kept(ASSIGNMENT.part(other), SHAPE) is None


def test_a_damaged_record_is_ignored_and_a_cache_that_cannot_be_written_is_named(cache: Path) -> None:
    ladder.keep(PART, SHAPE, KNOWN)
    (record,) = (cache / "frontier").iterdir()
    no_peak = json.dumps({**asdict(KNOWN), "peak_against_reference": 0})
    for text in ("", "{}", "[]", '{"against_reference": {"naive": 1}}', '{"cores": null}', no_peak):
        record.write_text(text)
        assert ladder.kept(PART, SHAPE) is None, text
    record.unlink()
    record.parent.rmdir()
    record.parent.write_text("a file where the folder should be")
    refused("GPT149_CACHE", ladder.keep, PART, SHAPE, KNOWN, of=errors.KitError)


def test_result_json_has_the_rank_and_older_files_are_read() -> None:
    result = result_of("a", passed(0.5))
    values = json.loads(json.dumps(result_json.to_dict(result, score.score(ASSIGNMENT, result))))
    assert result_json.from_dict(values) == result
    del values["parts"][0]["frontier"]
    assert result_json.from_dict(values).parts[0].frontier is None


def test_the_class_report_draws_every_right_kernel(tmp_path: Path) -> None:
    parts = {"ada": passed(0.5), "grace": passed(2.0), "alan": passed(1.0, is_placed=False)}
    with html.Report(ASSIGNMENT, datetime(2026, 1, 1)) as report:
        for name, part in parts.items():
            report.add(machines.Row(name, name, "", result_of(name, part), None, None))
        report.write(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "of 2 students and 6 other kernels" in page
    assert "expert 88 %" in page and "naive 1.2 %" in page
    assert page.count("Frontier: ") == 2
    assert "12.0× naive · 2.0× reference" in page and "0.5× reference" in page


def test_a_hint_is_printed_only_without_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(part: PartResult, sizes: Sequence[str] = ()) -> str:
        return ladder.hint(ASSIGNMENT, result_of("a", part), sizes)

    timed = passed(1.0, "part3", is_placed=False)
    assert "`python gpt149.py frontier part3`" in of(timed)
    chosen = commandline.size_options({"Bc": 64, "N": 256}, ASSIGNMENT.size_options)
    assert "`python gpt149.py frontier part3 -N 256 -bc 64`" in of(timed, sizes=chosen)
    for change in ({"frontier": ladder.stand(1.0, KNOWN)}, {"time": None}, {"id": "4Dread"}):
        assert not of(replace(timed, **change)), change
    for name in ("SOURCE_DIR", "PREBUILT"):
        monkeypatch.setattr(library, name, tmp_path)
    assert not of(timed), "a handout without the expert library cannot measure"


def test_all_rungs_are_measured(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test does not check ratios of times, because they depend on how busy the machine is."""
    concluded: list[Any] = []
    monkeypatch.setattr(ladder, "_conclude", lambda *arguments: concluded.extend(arguments) or KNOWN)
    assert ladder.measure(ASSIGNMENT, PART, SHAPE, zygote, rounds=2) is KNOWN
    rounds, flops, shape, cores = concluded
    assert len(rounds) == 2
    for times in rounds:
        assert times.keys() == {*ladder.RUNGS, "nothing", "peak"} and min(times.values()) > 0
    assert (flops, shape, cores) == (4 * 2 * 48**2 * 16, SHAPE, 1)


def test_rounds_become_ratios_and_times_too_short_and_other_parts_are_refused() -> None:
    flops = 4 * 2 * 2000**2 * 32
    limit = flops / 1e11

    def concluded(nothing: float, expert: float) -> ladder.Yardsticks:
        """Return ratios of three equal rounds. An empty call takes `nothing` s, the expert kernel `expert` s more."""
        calls = dict.fromkeys(ladder.RUNGS, nothing + 0.1)
        calls |= {"expert": nothing + expert, "nothing": nothing, "peak": 1e11}
        return ladder._conclude([calls] * 3, flops, {**SHAPE, "N": 2000, "d": 32}, 1)

    known = concluded(0.001, 1.25 * limit)
    assert known.against_reference.keys() == set(ladder.RUNGS) and known.cores == 1
    assert known.against_reference["reference"] == 1.0
    assert known.peak_against_reference / known.against_reference["expert"] == pytest.approx(0.8)
    refused("N = 2000 is too small", concluded, 10 * limit, 1.25 * limit)
    refused("faster than multiply-adds", concluded, 0.001, 0.9 * limit, of=errors.KitError)
    refused("choose part1, part2, part3, part4", ladder.main, ["4Dread"])
