"""Laboratory of the studies: it builds one source in several variants, checks them, and times them in turn.

Theory of operation. In each round all variants are called twice: in one order, then in the reverse order (A B C C B A;
in the next round B C A A C B). So a drift of the machine's speed affects all variants alike. A variant's time in a
round is the geometric mean of its two calls' times. Two variants are compared by the ratio of their times in each
round: the result is the median of the ratios, with a confidence interval from order statistics
(`grader.judge.timing`).

Other programs make all times longer, but hardly change these ratios. If each variant were timed in one block, the
ratios would change, too (docs/study.md shows the difference). A call of an OpenMP part is as slow as its slowest
thread. So the part is called three times in a row, and only the fastest call is used.

A variant is timed only if it is right on its part's public cases. The result of each timed call is checked on random
rows that are chosen after the call. A wrong variant keeps its row in the table, with the reason in place of a time.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import sqrt

from grader.assignment.records import Part
from grader.backends import binding, faults
from grader.backends.kinds import kind_of
from grader.backends.native.nativehost import NativeHost
from grader.backends.selection import Made, make
from grader.backends.torch.zygote import Zygote
from grader.core import harmless, machine
from grader.core.errors import KitError
from grader.core.results import Diagnosis
from grader.judge.bench import Bench, Options
from grader.judge.timing import intervals, measure
from grader.judge.timing.intervals import Estimate
from grader.judge.timing.measure import Clock
from grader.runner.calls import Sample
from grader.runner.session import Session
from grader.sandbox import of_file
from grader.study.figure import Series
from grader.study.options import Settings
from grader.study.table import Cell

#: Number of calls in a row of which only the fastest is used, for parts timed by wall clock.
WALL_TRIES = 3


@dataclass(frozen=True)
class BuildFlags:
    """Build options of a variant: macros as (name, value), and compiler flags that follow the kit's flags."""

    defines: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A kernel to be timed, with its build options and sizes.

    `label` is the variant's name in tables. `shape` has all sizes by name, such as N. `recipe` are the build options of
    the student's file. `reference`: True for the part's reference kernel, False for the student's kernel.
    """

    label: str
    part: Part
    shape: Mapping[str, int]
    recipe: BuildFlags = field(default_factory=BuildFlags)
    reference: bool = False

    @property
    def threads(self) -> int:
        """OpenMP threads of a timed call."""
        rule = self.part.time
        return (rule.threads if rule else None) or self.shape["threads"]


@dataclass(frozen=True)
class Outcome:
    """Result of timing a variant. `calls` has two calls per round; () if it was not timed because of `trouble`."""

    variant: Variant
    calls: tuple[tuple[Sample, Sample], ...] = ()
    trouble: str = ""


class Laboratory:
    """The builds of one source, and their runners (processes that call kernels). `set_up` makes a laboratory."""

    def __init__(self, settings: Settings, host: NativeHost, zygote: Zygote, stack: ExitStack) -> None:
        self.settings, self.host, self.zygote, self.stack = settings, host, zygote, stack
        self.assignment = settings.assignment
        self._builds: dict[BuildFlags, Made] = {}
        self._troubles: dict[tuple[str, BuildFlags], str] = {}
        self._sessions: dict[tuple[object, ...], Session] = {}
        self._seed = secrets.randbits(60) if settings.seed is None else settings.seed

    # ---- builds

    def prepare(self, recipes: Sequence[BuildFlags]) -> None:
        """Build the source with each of `recipes` that is not built yet, in parallel on all cores."""
        wanted = [recipe for recipe in dict.fromkeys(recipes) if recipe not in self._builds]
        if not wanted:
            return
        show_progress(f"Building {self.settings.source.name}, {len(wanted)} variants")
        # The first build runs alone, because it makes the precompiled header for all builds.
        self._builds[wanted[0]] = self._build(wanted[0])
        with ThreadPoolExecutor(max(1, len(machine.usable_cpus()))) as pool:
            self._builds.update(zip(wanted[1:], pool.map(self._build, wanted[1:]), strict=True))

    def made(self, recipe: BuildFlags) -> Made:
        """Return the build, made if needed; not `ok` if the source does not compile. Raises KitError without a tool."""
        self.prepare([recipe])
        return self._builds[recipe]

    def _build(self, recipe: BuildFlags) -> Made:
        options = Options(defines=dict(recipe.defines))
        made = make(self.assignment, self.settings.source, options, flags=recipe.flags)
        if made.judged.waits_for:
            raise KitError(first_line(made.judged.diagnostics))
        return made

    def bench(self, variant: Variant) -> Bench:
        """Return a `Bench`, the context in which the judge evaluates a build, for this variant's build and sizes."""
        made = self.made(variant.recipe)
        return Bench(
            self.assignment,
            self.settings.source,
            Options(variant.shape, dict(variant.recipe.defines), self.settings.seed, profile=False),
            lambda event: None,
            made,
            self.zygote,
            self.stack,
            host=self.host if made.native else None,
        )

    # ---- right or wrong

    def trouble(self, variant: Variant) -> str:
        """Return why a variant cannot be timed, or "". A student's kernel must be right on its part's public cases."""
        if variant.reference or not kind_of(variant.part).is_students:
            return ""
        key = (variant.part.id, variant.recipe)
        if key not in self._troubles:
            self._troubles[key] = self._judged(variant)
        return self._troubles[key]

    def _judged(self, variant: Variant) -> str:
        # To save time, no size is larger than the assignment's default. Results at larger sizes are checked in the
        # timed calls.
        defaults = self.assignment.defaults
        shape = {name: min(size, defaults.get(name, size)) for name, size in variant.shape.items()}
        bench = self.bench(replace(variant, shape=shape))
        return trouble_of(bench, variant.part)

    # ---- timing

    def timed(self, variants: Sequence[Variant], rounds: int) -> list[Outcome]:
        """Time the variants in turn as the module's docstring describes: one warm-up round, then `rounds` rounds.

        Returns the outcomes in the order of `variants`; wrong variants are not timed. Raises KitError if the reference
        fails, and UsageError for sizes that need more memory than a runner may use.
        """
        limits = self.assignment.limits
        for one in variants:
            binding.refuse_oversize(one.part, one.shape, limits.memory_gib)
        self.prepare([variant.recipe for variant in variants])
        troubles = {k: self.trouble(variant) for k, variant in enumerate(variants)}
        callers = {k: self._caller(variants[k], k) for k, trouble in troubles.items() if not trouble}
        calls: dict[int, list[tuple[Sample, Sample]]] = {k: [] for k in callers}
        for number in range(-1, rounds):
            show_progress(
                f"Timing {len(callers)} variants, round {number + 1} of {rounds}"
                if number >= 0
                else "Warming up"
            )
            samples, broken = one_round(callers, max(number, 0), once=number < 0)
            for k, why in broken.items():
                troubles[k] = why
                del callers[k], calls[k]
            for k in callers:
                if number >= 0:
                    calls[k].append((samples[k][0], samples[k][1]))
        show_progress("")
        return [Outcome(one, tuple(calls.get(k, ())), troubles[k]) for k, one in enumerate(variants)]

    def _caller(self, variant: Variant, number: int) -> Callable[[], Sample]:
        from grader.core.draws import derive
        from grader.judge.marker import Marker
        from grader.judge.timing.rounds import TimedInputs

        inputs = TimedInputs(Marker(self.bench(variant), variant.part), derive(self._seed, "study", number))
        return steadied(
            variant.part, lambda: inputs.sample(self._session(variant), is_reference=variant.reference)
        )

    def _session(self, variant: Variant) -> Session:
        """Return the runner for a variant's build and number of threads. Start it if none is running."""
        key = (variant.reference, kind_of(variant.part), variant.recipe, variant.threads)
        bench, session = self.bench(variant), self._sessions.get(key)
        if session is None or session.death is not None:
            rule = variant.part.time
            cpus = machine.timing_cpus(rule.threads if rule else None)
            if variant.reference:
                session = bench.reference(threads=variant.threads, cpus=cpus)
            else:
                session = bench.student(variant.part, threads=variant.threads, cpus=cpus)
            self._sessions[key] = session
        # Variants of different sizes share this runner, so set the time limit for this variant's sizes.
        session.call_timeout_s = bench.call_timeout_s(variant.shape)
        return session


@contextmanager
def set_up(settings: Settings) -> Iterator[Laboratory]:
    """Yield a laboratory for one command. End all its runners afterwards."""
    with ExitStack() as stack:
        # The zygote is the process from which runners with torch are forked. It imports torch when a runner needs it.
        sandbox = of_file(settings.source)
        zygote = stack.enter_context(Zygote(sandbox=sandbox, at_once=False))
        host = stack.enter_context(NativeHost(sandbox))
        yield Laboratory(settings, host, zygote, stack.enter_context(ExitStack()))


def trouble_of(bench: Bench, part: Part) -> str:
    """Check the bench's build on the part's public cases. Return "" if it is right, else the reason not to time it."""
    from grader.judge.correctness import Correctness

    if not bench.build.ok:
        return f"does not compile: {first_line(bench.build.diagnostics)}"
    results = Correctness(bench, part, look=False)
    try:
        results.check()
    except faults.Faulty as fault:
        return words(fault.verdict, fault.diagnosis)
    return words("wrong", results.diagnosis) if results.diagnosis is not None else ""


def steadied(part: Part, call: Callable[[], Sample]) -> Callable[[], Sample]:
    """Return `call`, or for a part timed by wall clock a function that returns the fastest of WALL_TRIES calls."""
    if not by_wall_clock(part):
        return call
    return lambda: min((call() for _ in range(WALL_TRIES)), key=lambda sample: sample.wall_s)


def by_wall_clock(part: Part) -> bool:
    """Return True if a part is timed by wall clock: an OpenMP part, or a part without `time` in the assignment."""
    return part.time is None or part.time.clock == "wall"


def one_round(
    callers: Mapping[int, Callable[[], Sample]], number: int, *, once: bool = False
) -> tuple[dict[int, list[Sample]], dict[int, str]]:
    """Make one round: call all callers in turn, and then again in reverse order.

    Args:
        callers: functions that make one timed call of a variant, by the variant's index.
        number: number of the round. The first caller is the one at position `number` modulo the number of callers.
        once: leave out the calls in reverse order.

    Returns (each caller's samples in order, error message of each caller that failed), both by the variant's index. A
    failed caller is not called again.
    """
    order = list(callers)
    start = number % max(1, len(order))
    order = order[start:] + order[:start]
    samples: dict[int, list[Sample]] = {k: [] for k in order}
    broken: dict[int, str] = {}
    for k in order if once else [*order, *reversed(order)]:
        if k in broken:
            continue
        try:
            samples[k].append(callers[k]())
        except faults.Faulty as fault:
            broken[k] = words(fault.verdict, fault.diagnosis)
    return samples, broken


def words(verdict: str, diagnosis: Diagnosis | None) -> str:
    """Return one line of text with a verdict and, if there is a diagnosis, the first line of its message."""
    reason = f": {first_line(diagnosis.message)}" if diagnosis else ""
    return f"{'wrong result' if verdict == 'wrong' else verdict.replace('_', ' ')}{reason}"


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def show_progress(text: str) -> None:
    """Replace the progress line on standard error by `text`. Print nothing if standard error is not a terminal."""
    if sys.stderr.isatty():
        harmless.control(sys.stderr, "rewrite")
        print(text, end="", file=sys.stderr, flush=True)


# ---- comparison: medians with intervals, ratios to a base variant, and the fastest variant

TIME_COLUMNS = ("ms", "ms from", "ms to", "to reference", "ratio from", "ratio to", "note")


@dataclass(frozen=True)
class Line:
    """One variant in a comparison. `ratio` is the variant's time divided by the base variant's time.

    `round_ms` are the variant's times, one per round. `behind` is the variant's time divided by the time of the fastest
    rival (see `compared`); it is None for the fastest rival and for variants that are not rivals. `time_ms` and `ratio`
    are None if the variant was not timed; `trouble` is then the reason.
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
        """Remark in the table: the reason why the variant was not timed, "fastest", "may equal the fastest", or ""."""
        if self.trouble:
            return self.trouble
        if self.is_fastest:
            return "fastest"
        return "may equal the fastest" if self.behind is not None and self.behind.low <= 1 else ""


@dataclass(frozen=True)
class Comparison:
    """Times of variants, and their ratios to the time of one variant, the base.

    `confidence` is the confidence level of all intervals, from 0 to 1. `fit`: False if the machine was unsteady, as
    shown by the base's two calls in a round, whose times differed too much.
    """

    clock: Clock
    rounds: int
    confidence: float
    fit: bool
    lines: tuple[Line, ...]

    def how(self) -> str:
        """Return one or two sentences on the measurement, for a caption."""
        if not self.rounds:
            return "No variant was right, so none was timed."
        clock = "CPU time" if self.clock == "cpu" else f"wall-clock time, best of {WALL_TRIES} calls"
        rounds = f"{self.rounds} interleaved rounds" if self.rounds > 1 else "one round"
        unfit = " The times of one variant differed too much: other programs disturbed the machine, measure again."
        return (
            f"Medians over {rounds}, {clock}, with {100 * self.confidence:.0f} % intervals."
            f"{'' if self.fit else unfit}"
        )


def compared(outcomes: Sequence[Outcome], rivals: Sequence[int] | None = None) -> Comparison:
    """Compare the outcomes of `Laboratory.timed`. The base is the first variant that was timed.

    `rivals` are the indices of the variants among which the fastest is found (default: all). All timed outcomes must
    have the same number of rounds. If no variant was timed, the comparison's lines contain only the reasons
    (`trouble`).
    """
    timed = [k for k, one in enumerate(outcomes) if one.calls]
    if not timed:
        lines = tuple(Line(one.variant, None, None, trouble=one.trouble) for one in outcomes)
        return Comparison("wall", 0, 0.0, True, lines)
    base = timed[0]
    clock = clock_of(outcomes, timed)
    # One time per round in milliseconds: the geometric mean of the round's two calls.
    times = {
        k: tuple(1e3 * sqrt(seconds(a, clock) * seconds(b, clock)) for a, b in outcomes[k].calls)
        for k in timed
    }
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
        measure.is_fit(own),
        tuple(line(k, one) for k, one in enumerate(outcomes)),
    )


def clock_of(outcomes: Sequence[Outcome], timed: Sequence[int]) -> Clock:
    """Return the clock by which all outcomes can be compared. `timed` are the indices of the timed outcomes.

    It is "cpu" if the assignment times all their parts by CPU time and every call has a CPU time, else "wall".
    """
    if any(by_wall_clock(outcomes[k].variant.part) for k in timed):
        return "wall"
    samples = [sample for k in timed for pair in outcomes[k].calls for sample in pair]
    return "cpu" if all(sample.cpu_s is not None for sample in samples) else "wall"


def seconds(sample: Sample, clock: Clock) -> float:
    """Return a call's time by `clock` in seconds, at least SHORTEST_S, so that ratios of times are finite."""
    return max(sample.wall_s if clock == "wall" else sample.cpu_s or 0.0, measure.SHORTEST_S)


def over(these: Sequence[float], those: Sequence[float]) -> Estimate:
    """Return the median, with its interval, of the ratios of `these` to `those`, which have one time per round each."""
    return intervals.median_estimate([a / b for a, b in zip(these, those, strict=True)])


# ---- tables and figures


def time_cells(line: Line) -> tuple[Cell, ...]:
    """Return a line's cells for the table columns TIME_COLUMNS."""
    return (*bounds(line.time_ms), *bounds(line.ratio), line.note)


def bounds(estimate: Estimate | None) -> tuple[float | None, ...]:
    """Return (middle, low, high) of an estimate, or (None, None, None) without one."""
    return (estimate.middle, estimate.low, estimate.high) if estimate else (None, None, None)


def clock_label(comparison: Comparison) -> str:
    """Return the label of an axis that shows times."""
    return f"{'CPU' if comparison.clock == 'cpu' else 'wall-clock'} time, ms"


def curve(label: str, points: Iterable[tuple[float, Line]]) -> Series:
    """Return a series of times with their intervals. Lines without a time are left out."""
    return estimated(label, ((x, line.time_ms) for x, line in points))


def estimated(label: str, points: Iterable[tuple[float, Estimate | None]]) -> Series:
    """Return a series of estimates with their intervals. `points` are (x, estimate); those with None are left out."""
    found = [(float(x), *bounds(one)) for x, one in points if one is not None]
    x, middle, low, high = (tuple(column) for column in zip(*found, strict=True)) if found else ((),) * 4
    return Series(label, x, middle, low, high)
