"""Comparison of variants that were timed together: medians with intervals, ratios to one of them, and the fastest
one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from grader.judge.timing import intervals, measure
from grader.judge.timing.intervals import Estimate
from grader.judge.timing.measure import Clock
from grader.runner.samples import Sample
from grader.study.figure import Series
from grader.study.laboratory import WALL_TRIES, Outcome, Variant, by_wall_clock
from grader.study.table import Cell

TIME_COLUMNS = ("ms", "ms from", "ms to", "to reference", "ratio from", "ratio to", "note")


@dataclass(frozen=True)
class Line:
    """One variant. `time_ms` and `ratio` (its time over the base's) are None if there was `trouble`.

    `round_ms` are its times, one per round. `behind` is its time over the fastest one's, None for the fastest itself.
    """

    variant: Variant
    time_ms: Estimate | None
    ratio: Estimate | None
    round_ms: tuple[float, ...] = ()
    behind: Estimate | None = None
    is_fastest: bool = False
    trouble: str = ""

    @property
    def note(self) -> str:
        """Remark for the table: the trouble, "fastest", or that the variant may equal the fastest; else ""."""
        if self.trouble:
            return self.trouble
        if self.is_fastest:
            return "fastest"
        return "not told from the fastest" if self.behind is not None and self.behind.low <= 1 else ""


@dataclass(frozen=True)
class Comparison:
    """Variants side by side. `confidence` is that of all intervals; `fit` is True if the base agreed with itself."""

    clock: Clock
    rounds: int
    confidence: float
    fit: bool
    lines: tuple[Line, ...]

    def how(self) -> str:
        """Describe the measurement in one or two sentences, for a caption."""
        if not self.rounds:
            return "Nothing was right, so nothing was timed."
        clock = "CPU time" if self.clock == "cpu" else f"wall-clock time, best of {WALL_TRIES} calls"
        rounds = f"{self.rounds} interleaved rounds" if self.rounds > 1 else "one round"
        unfit = (
            " The base did not agree with itself: something else used the machine unevenly, measure again."
        )
        return (
            f"Medians over {rounds}, {clock}, with {100 * self.confidence:.0f} % intervals."
            f"{'' if self.fit else unfit}"
        )


def compared(outcomes: Sequence[Outcome], base: int = 0, rivals: Sequence[int] | None = None) -> Comparison:
    """Compare the outcomes of `Laboratory.timed`. Ratios are to `outcomes[base]`, or to the first that was timed.

    `rivals` are the indices among which the fastest is searched (default: all). All must have the same number of
    rounds. If none was timed at all, lines hold only their troubles.
    """
    timed = [k for k, one in enumerate(outcomes) if one.calls]
    if not timed:
        lines = tuple(Line(one.variant, None, None, trouble=one.trouble) for one in outcomes)
        return Comparison("wall", 0, 0.0, True, lines)
    base = base if base in timed else timed[0]
    clock = clock_of(outcomes, timed)
    times = {k: round_times_ms(outcomes[k], clock) for k in timed}
    rounds = len(times[base])
    running = [k for k in (range(len(outcomes)) if rivals is None else rivals) if k in times]
    fastest = min(running, key=lambda k: intervals.median_estimate(times[k]).middle, default=None)

    def line(k: int, one: Outcome) -> Line:
        if k not in times:
            return Line(one.variant, None, None, trouble=one.trouble)
        return Line(
            one.variant,
            intervals.median_estimate(times[k]),
            over(times[k], times[base]),
            times[k],
            over(times[k], times[fastest]) if fastest is not None and k in running and k != fastest else None,
            is_fastest=k == fastest and len(running) > 1,
        )

    own = [seconds(first, clock) / seconds(second, clock) for first, second in outcomes[base].calls]
    return Comparison(
        clock,
        rounds,
        intervals.coverage(rounds, intervals.interval_rank(rounds)),
        measure.is_fit(own, measure.TimePolicy(clock)),
        tuple(line(k, one) for k, one in enumerate(outcomes)),
    )


def clock_of(outcomes: Sequence[Outcome], timed: Sequence[int]) -> Clock:
    """Return the clock that judges these variants in the assignment; "wall" if a call has no CPU time."""
    if any(by_wall_clock(outcomes[k].variant.part) for k in timed):
        return "wall"
    samples = [sample for k in timed for pair in outcomes[k].calls for sample in pair]
    return "cpu" if all(sample.cpu_s is not None for sample in samples) else "wall"


def seconds(sample: Sample, clock: Clock) -> float:
    """Return one call's seconds by a clock, at least the shortest time that a clock can resolve."""
    return max(sample.wall_s if clock == "wall" else sample.cpu_s or 0.0, measure.SHORTEST_S)


def round_times_ms(outcome: Outcome, clock: Clock) -> tuple[float, ...]:
    """Return one time per round: the geometric mean of its two calls, in milliseconds."""
    return tuple(1e3 * sqrt(seconds(a, clock) * seconds(b, clock)) for a, b in outcome.calls)


def over(these: Sequence[float], those: Sequence[float]) -> Estimate:
    """Return the median ratio of two variants' times, round by round, with its interval."""
    return intervals.median_estimate([a / b for a, b in zip(these, those, strict=True)])


# ---- tables and figures


def time_cells(line: Line) -> tuple[Cell, ...]:
    """Return a line's cells under TIME_COLUMNS."""
    return (*bounds(line.time_ms), *bounds(line.ratio), line.note)


def bounds(estimate: Estimate | None) -> tuple[float | None, ...]:
    """Return middle, low and high; three times None without an estimate."""
    return (estimate.middle, estimate.low, estimate.high) if estimate else (None, None, None)


def clock_label(comparison: Comparison) -> str:
    """Return the label of an axis of times."""
    return f"{'CPU' if comparison.clock == 'cpu' else 'wall-clock'} time, ms"


def curve(label: str, points: Iterable[tuple[float, Line]]) -> Series:
    """Return a series of times with their intervals. Lines without a time are left out."""
    found = [(float(x), line.time_ms) for x, line in points if line.time_ms is not None]
    return Series(
        label,
        tuple(x for x, _ in found),
        tuple(time.middle for _, time in found),
        tuple(time.low for _, time in found),
        tuple(time.high for _, time in found),
    )
