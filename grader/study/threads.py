"""Study `threads`: speed-up of an OpenMP part for several numbers of threads and without OpenMP; fit of Amdahl's law.

Amdahl's law. Let a share s of the work always run on one thread. Then the time T(t) on t threads satisfies
T(t) / T(1) = s + (1 - s) / t. This is linear in s, so least squares give s in closed form (`serial_share`). The fit
uses only thread counts up to the number of cores, because more threads than cores cannot all run at once.

"OpenMP off" is the same source compiled without OpenMP: the compiler ignores its pragmas. The functions of omp.h still
exist and report one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from grader.assignment.records import Part
from grader.backends import binding
from grader.backends.native import toolchain
from grader.core import machine
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, UsageError
from grader.core.quantities import whole
from grader.judge.timing.intervals import Estimate, median_estimate
from grader.judge.timing.measure import CORE_SHARE_LIMIT
from grader.study import options, outcome
from grader.study.figure import Figure, Plot, Series
from grader.study.laboratory import (
    BuildFlags,
    Comparison,
    Laboratory,
    Line,
    Outcome,
    Variant,
    bounds,
    compared,
    estimated,
    over,
    set_up,
)
from grader.study.table import Cell, Table, shown

COUNTS = "1,2,4,8"
COLUMNS = ("threads", "ms", "ms from", "ms to", "speed-up", "from", "to", "efficiency", "note")


@dataclass(frozen=True)
class Threads:
    """Result of the study: times of a part with each of the thread counts `counts`.

    `comparison` has a line for each count, and a last line for OpenMP off if that was timed. `speedups` are the time on
    one thread / the time of each line. `serial` is the fitted serial share s of Amdahl's law, or None with fewer than
    two counts to fit. `core_share` is CPU time / wall time of calls with one thread, or None without CPU times.
    """

    part: Part
    counts: tuple[int, ...]
    cores: int
    comparison: Comparison
    speedups: tuple[Estimate | None, ...]
    serial: Estimate | None
    core_share: float | None
    about: str

    def table(self) -> Table:
        names = [*map(str, self.counts), *(["OpenMP off"] if len(self.speedups) > len(self.counts) else [])]
        rows = [
            self._row(name, line, speedup)
            for name, line, speedup in zip(names, self.comparison.lines, self.speedups, strict=True)
        ]
        return Table(
            f"threads-{self.part.id}",
            f"{self.part.title}: time for each number of threads",
            COLUMNS,
            tuple(rows),
            f"{self.about}. {self.comparison.how()} {self.law()}",
        )

    def _row(self, name: str, line: Line, speedup: Estimate | None) -> tuple[Cell, ...]:
        count = whole(name)
        efficiency = speedup.middle / count if speedup and count else None
        crowded = f"more threads than the {self.cores} cores" if count and count > self.cores else ""
        return (name, *bounds(line.time_ms), *bounds(speedup), efficiency, line.trouble or crowded)

    def law(self) -> str:
        """Return sentences on the fit of Amdahl's law, with notes if few cores or other programs make it doubtful."""
        sentences = [self._fit()]
        if beyond := [count for count in self.counts if count > self.cores]:
            sentences.append(
                f"This machine has {self.cores} cores: times with {' and '.join(map(str, beyond))} threads do not show "
                "how the part scales."
            )
        if self.core_share is not None and self.core_share * CORE_SHARE_LIMIT < 1:
            sentences.append(
                f"One thread had only {100 * self.core_share:.0f} % of its core: other programs ran, so the measured "
                "speed-ups are too small. Measure again when they have ended."
            )
        return " ".join(sentences)

    def _fit(self) -> str:
        share = self.serial
        if share is None:
            return "Amdahl's law needs times with two thread counts up to the number of cores."
        if share.middle >= 1:
            return "No larger number of threads was faster than one thread."
        limit = (
            f", so no number of threads gives more than {shown(1 / share.middle)}" if share.middle > 0 else ""
        )
        return (
            f"Amdahl's law fits with a serial share of {shown(share.middle)} "
            f"({shown(share.low)} to {shown(share.high)}){limit}."
        )

    def figures(self) -> tuple[Figure, ...]:
        series = [estimated(self.part.id, zip(self.counts, self.speedups, strict=False))]
        counts = tuple(float(t) for t in self.counts)
        if self.serial is not None:
            model = tuple(amdahl(self.serial.middle, t) for t in self.counts)
            series.append(Series("Amdahl's law, fitted", counts, model, style="line"))
        series.append(
            Series(
                f"ideal on {self.cores} cores",
                counts,
                tuple(float(min(t, self.cores)) for t in self.counts),
                style="line",
            )
        )
        if len(self.speedups) > len(self.counts) and (off := self.speedups[-1]) is not None:
            series.append(
                Series("OpenMP off", (1.0,), (off.middle,), (off.low,), (off.high,), style="points")
            )
        return (
            Plot(
                f"threads-{self.part.id}",
                f"{self.part.title}: speed-up over threads",
                self.about,
                "OpenMP threads",
                "speed-up over one thread",
                tuple(series),
                log_x=True,
                x_ticks=counts,
            ),
        )


def amdahl(serial: float, threads: int) -> float:
    """Return the speed-up by Amdahl's law for a serial share from 0 to 1."""
    return 1 / (serial + (1 - serial) / threads)


def serial_share(counts: Sequence[int], times: Sequence[float]) -> float:
    """Return the serial share s of Amdahl's law, fitted by least squares. The first of the thread counts must be 1."""
    ys = [time / times[0] - 1 / count for count, time in zip(counts, times, strict=True)]
    xs = [1 - 1 / count for count in counts]
    return sum(x * y for x, y in zip(xs, ys, strict=True)) / sum(x * x for x in xs)


def measure(laboratory: Laboratory, part: Part, counts: Sequence[int]) -> Threads:
    """Time the part with one thread, with each number in `counts` and with OpenMP off, all in turn."""
    counts = tuple(sorted({1, *counts}))
    shape = laboratory.settings.sizes
    variants = [Variant(str(count), part, {**shape, "threads": count}) for count in counts]
    off = toolchain.openmp_off_flags()
    if off is not None:
        variants.append(Variant("OpenMP off", part, {**shape, "threads": 1}, BuildFlags(flags=off)))
    outcomes = laboratory.timed(variants, laboratory.settings.rounds)
    comparison = compared(outcomes, rivals=())
    one = comparison.lines[0]
    speedups = [over(one.round_ms, line.round_ms) if line.round_ms else None for line in comparison.lines]
    cores = len(machine.usable_cpus()) or 1
    fitted = [
        (count, line.round_ms)
        for count, line in zip(counts, comparison.lines, strict=False)
        if count <= cores and line.round_ms
    ]
    serial = None
    if len(fitted) > 1 and fitted[0][0] == 1:
        rounds = zip(*(times for _, times in fitted), strict=True)
        serial = median_estimate([serial_share([count for count, _ in fitted], times) for times in rounds])
    return Threads(
        part,
        counts,
        cores,
        comparison,
        tuple(speedups),
        serial,
        core_share(outcomes[0]),
        options.about(binding.used_sizes(shape, part)),
    )


def core_share(outcome: Outcome) -> float | None:
    """Return the median of CPU time / wall time, or None without CPU times. One thread on an idle machine gives 1."""
    shares = [call.cpu_s / call.wall_s for pair in outcome.calls for call in pair if call.cpu_s is not None]
    return median(shares) if shares else None


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py threads PART ...`. Return exit code 1 if the part is wrong for any thread count, else 0."""
    parse = options.parser(
        arguments,
        "threads",
        "Speed-up and efficiency of an OpenMP part for each number of threads, and without OpenMP.",
        lists=("threads",),
    )
    parse.value("part", "PART", "part to time (default: the first OpenMP part)", nargs="?")
    given = parse.parse_args(arguments)
    settings = options.settings(given)
    part = options.openmp_part(settings, given.part)
    if part.time is not None and part.time.threads is not None:
        raise UsageError(f"{part.id} is timed on one thread: choose a part with OpenMP")
    counts = options.numbers(given.threads or COUNTS, "--threads", 1, settings.assignment.maxima["threads"])
    outcome.prepare(settings, f"threads-{part.id}")
    with set_up(settings) as laboratory:
        finding = measure(laboratory, part, counts)
    outcome.deliver(finding, settings)
    return EXIT_SUBMISSION if any(line.trouble for line in finding.comparison.lines) else EXIT_PASS
