"""`sweep part3 -N 128,256,...`: how a part's time grows with the number of rows, as a power of N."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grader.assignment.records import Part
from grader.judge.timing.intervals import Estimate, median_estimate
from grader.study import options
from grader.study.comparison import Comparison, bounds, clock_label, compared, curve, over
from grader.study.figure import Figure, Plot, Series
from grader.study.laboratory import Laboratory, Variant
from grader.study.table import Cell, Table, shown

SIZES = (128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Scaling:
    """A part over N. `comparison` holds the student's lines, `reference` the reference's, each in the order of `sizes`.

    `exponent` is p in time ~ N^p, fitted to each round on its own, then the median over the rounds with its interval;
    None with fewer than two sizes.
    """

    part: Part
    sizes: tuple[int, ...]
    comparison: Comparison
    reference: Comparison
    ratios: tuple[Estimate | None, ...]
    exponent: Estimate | None
    about: str

    def table(self) -> Table:
        rows: list[tuple[Cell, ...]] = []
        for n, mine, theirs, ratio in zip(
            self.sizes, self.comparison.lines, self.reference.lines, self.ratios, strict=True
        ):
            cells = [value for one in (mine.time_ms, ratio) for value in bounds(one)]
            rows.append((n, *cells, theirs.time_ms.middle if theirs.time_ms else None, mine.trouble))
        columns = (
            "N",
            "ms",
            "ms from",
            "ms to",
            "to reference",
            "ratio from",
            "ratio to",
            "reference ms",
            "note",
        )
        return Table(
            f"scaling-{self.part.id}",
            f"{self.part.title} over N",
            columns,
            tuple(rows),
            f"{self.about}. {self.comparison.how()} {self.law()}",
        )

    def law(self) -> str:
        """The fit, in words."""
        if self.exponent is None:
            return "Two sizes or more would show how time grows."
        fit = self.exponent
        return f"Time grows as N^{shown(fit.middle)} (fitted round by round: {shown(fit.low)} to {shown(fit.high)})."

    def figures(self) -> tuple[Figure, ...]:
        series = [curve("student", zip(self.sizes, self.comparison.lines, strict=True))]
        series.append(curve("reference", zip(self.sizes, self.reference.lines, strict=True)))
        if self.exponent is not None and (model := self.model()):
            label = f"fit: N^{shown(self.exponent.middle)}"
            series.append(Series(label, tuple(map(float, self.sizes)), model, style="line"))
        return (
            Plot(
                f"scaling-{self.part.id}",
                f"{self.part.title}: time over N",
                self.about,
                "N, rows of Q, K and V",
                clock_label(self.comparison),
                tuple(series),
                log_x=True,
                log_y=True,
                x_ticks=tuple(map(float, self.sizes)),
            ),
        )

    def model(self) -> tuple[float, ...]:
        """The fitted power law at each size, through the middle of the measured times."""
        known = [
            (math.log(n), math.log(line.time_ms.middle))
            for n, line in zip(self.sizes, self.comparison.lines, strict=True)
            if line.time_ms is not None
        ]
        if self.exponent is None or not known:
            return ()
        p = self.exponent.middle
        level = sum(log_ms - p * log_n for log_n, log_ms in known) / len(known)
        return tuple(math.exp(level + p * math.log(n)) for n in self.sizes)


def exponents(sizes: Sequence[int], rounds: Sequence[Sequence[float]]) -> list[float]:
    """For each round the slope of log time over log N by least squares; `rounds[k]` are the times at `sizes`, two or
    more and not all the same."""
    logs = [math.log(n) for n in sizes]
    mean_x = sum(logs) / len(logs)
    below = sum((x - mean_x) ** 2 for x in logs)
    found = []
    for times in rounds:
        heights = [math.log(time) for time in times]
        mean_y = sum(heights) / len(heights)
        found.append(sum((x - mean_x) * (y - mean_y) for x, y in zip(logs, heights, strict=True)) / below)
    return found


def measure(laboratory: Laboratory, part: Part, sizes: Sequence[int]) -> Scaling:
    """Time the part and its reference at all sizes in turn."""
    shapes = [{**laboratory.settings.sizes, "N": n} for n in sizes]
    mine = [Variant(f"N={shape['N']}", part, shape) for shape in shapes]
    theirs = [Variant(f"reference, N={shape['N']}", part, shape, reference=True) for shape in shapes]
    # A size's two sides stand together, so that their ratio is that of neighbouring calls.
    outcomes = laboratory.timed(
        [one for pair in zip(mine, theirs, strict=True) for one in pair], laboratory.settings.rounds
    )
    comparison, reference = compared(outcomes[0::2], rivals=()), compared(outcomes[1::2], rivals=())
    known = [(n, line.round_ms) for n, line in zip(sizes, comparison.lines, strict=True) if line.round_ms]
    exponent = None
    if len(known) > 1:
        rounds = list(zip(*(times for _, times in known), strict=True))
        exponent = median_estimate(exponents([n for n, _ in known], rounds))
    ratios = [
        over(one.round_ms, other.round_ms) if one.round_ms and other.round_ms else None
        for one, other in zip(comparison.lines, reference.lines, strict=True)
    ]
    shape = {name: size for name, size in laboratory.settings.sizes.items() if name != "N"}
    return Scaling(part, tuple(sizes), comparison, reference, tuple(ratios), exponent, options.about(shape))
