"""`ladder PART`: compares a part's kernel with the reference, fast C++, PyTorch's operator and the machine's limit.

Theory of operation. All kernels are called with the same protocol, sizes and threads, each in its own process. The
student's file, reference.cpp and fast.cpp are programs without torch; PyTorch's operator runs in a process with torch.
A kernel is timed only if it is right in every case of the part. Before each timing it is checked again, with fresh
inputs.

In each round all kernels are measured twice, in some order and then in the reverse order (`grader.study.laboratory`).
Sending the tensors takes longer than many kernels. So two requests are timed, one with a single call and one with many
calls on the same tensors. The time of a call is their difference divided by the number of additional calls, minus the
time of a call that computes nothing. Because of the repeated calls, data that fits into a cache is cached. Parts are
timed by CPU time or, if they use threads, by elapsed time; then the best of three measurements counts.

The limit is the longer of two times (`labs.operators.studies.sources`): the time of the part's operations at the
measured peak of multiply-adds, and the time to move its bytes. A loop that moves as many bytes and computes almost
nothing measures the second, in the same rounds and in the same way. The loop is a copy, or a += b for a part that only
adds to its input.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from grader.assignment.records import Part
from grader.backends import binding
from grader.backends.native import nativebuild
from grader.backends.native.nativebuild import NativeBuild
from grader.backends.native.toolchain import ABSENT, torch_version
from grader.backends.selection import Made
from grader.backends.torch import torchbuild
from grader.core import machine
from grader.core.draws import derive
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, KitError, UsageError
from grader.judge.bench import Bench
from grader.judge.marker import Marker
from grader.judge.timing.measure import SHORTEST_S, Clock
from grader.judge.timing.rounds import TimedInputs
from grader.runner.calls import Request, Sample
from grader.runner.session import Session
from grader.study import facts, options, outcome
from grader.study.facts import Speed
from grader.study.figure import Figure, Plot, Series
from grader.study.laboratory import (
    WALL_TRIES,
    Laboratory,
    Variant,
    one_round,
    set_up,
    show_progress,
    trouble_of,
)
from grader.study.options import Settings
from grader.study.table import Cell, Table, shown

from . import sources
from .sources import Work

REFERENCE, YOURS, PYTORCH, FAST = "course reference", "yours", "PyTorch", "fast C++"
COLUMNS = ("kernel", "ms", "ms q1", "ms q3", "time / yours", "q1", "q3", "% of the limit", "note")
BUILD_TIMEOUT_S = 600.0
"""Time limit for a build. PyTorch's headers take a minute on a busy machine."""
LONG_ENOUGH_S, MOST_REPEATS = 0.01, 1 << 14
"""Minimum time of a series of calls in seconds, and limit on the number of its calls."""
MOST_REPEATED_S = 30.0
SHORTEST_SHARE = 0.2
"""Minimum time of a kernel, as a share of an empty call's time, which is subtracted. A shorter time is mostly noise."""
MOVING = "moving"
NOTHING_WITH_TORCH = f"{sources.NOTHING} with torch"


@dataclass(frozen=True)
class Rung:
    """One kernel. `net_ms` has the time of a call in each round, in ms. If it is (), `trouble` is the reason."""

    name: str
    net_ms: tuple[float, ...] = ()
    trouble: str = ""
    note: str = ""


@dataclass(frozen=True)
class Limit:
    """Shortest possible times of a part on this machine: for its operations at the peak, and for its bytes. `moved_ms`
    has the times of a loop that moves as many bytes, one for each round."""

    work: Work
    peak_flops_per_s: float
    moved_ms: tuple[float, ...]

    @property
    def operations_ms(self) -> float:
        return 1e3 * self.work.operations / self.peak_flops_per_s

    @property
    def binds(self) -> str:
        """Return "operations" if they take longer than moving the bytes, so that they limit the part; else "bytes"."""
        return "operations" if self.operations_ms >= median(self.moved_ms) else "bytes"

    @property
    def loop(self) -> str:
        """Return the name of the loop that moves the bytes, for captions."""
        return "a += b" if self.work.in_place else "a copy"

    def rung(self) -> Rung:
        if self.binds == "operations":
            return Rung("limit: multiply-adds", tuple(self.operations_ms for _ in self.moved_ms))
        return Rung(f"limit: {self.loop}", self.moved_ms)

    def words(self) -> str:
        work = self.work
        return (
            f"The limit is the longer of two times, here that of the {self.binds}: {work.operations} operations at "
            f"{self.peak_flops_per_s / 1e9:.3g} GFLOP/s take {shown(self.operations_ms)} ms, and {work.moved_bytes} "
            f"bytes at the speed of {self.loop} take {shown(median(self.moved_ms))} ms."
        )


@dataclass(frozen=True)
class Ladder:
    """Result of the study for one part: all kernels, from the reference to the fast one, and the limit."""

    part: Part
    rungs: tuple[Rung, ...]
    limit: Limit | None
    clock: Clock
    threads: int
    about: str

    @property
    def all_rungs(self) -> tuple[Rung, ...]:
        return (*self.rungs, *([self.limit.rung()] if self.limit else []))

    @property
    def yours(self) -> Rung:
        return next(rung for rung in self.rungs if rung.name == YOURS)

    def table(self) -> Table:
        return Table(
            f"ladder-{self.part.id}",
            f"{self.part.title}: time of each kernel",
            COLUMNS,
            tuple(self._row(rung) for rung in self.all_rungs),
            self.caption(),
        )

    def _row(self, rung: Rung) -> tuple[Cell, ...]:
        if not rung.net_ms:
            return (rung.name, *[None] * 7, rung.trouble)
        ratios: tuple[float | None, ...] = (None, None, None)
        if mine := self.yours.net_ms:
            ratios = quartiles(tuple(a / b for a, b in zip(rung.net_ms, mine, strict=True)))
        share = None
        if self.limit is not None:
            least = self.limit.rung().net_ms
            share = 100 * median(a / b for a, b in zip(least, rung.net_ms, strict=True))
        return (rung.name, *quartiles(rung.net_ms), *ratios, share, rung.note)

    def caption(self) -> str:
        rounds = max((len(rung.net_ms) for rung in self.rungs), default=0)
        clock = "CPU time" if self.clock == "cpu" else f"wall-clock time, best of {WALL_TRIES} calls"
        sentences = [
            f"{self.about}. Times of one call, from many in a row on the same tensors: medians and quartiles over "
            f"{rounds} interleaved rounds, {clock}, {self.threads} thread{'s' if self.threads > 1 else ''}."
        ]
        if self.limit is not None:
            sentences.append(self.limit.words())
        if self.yours.trouble:
            sentences.append("Yours was not measured, because it is not right, so ratios to it are missing.")
        return " ".join(sentences)

    def figures(self) -> tuple[Figure, ...]:
        known = [rung for rung in self.all_rungs if rung.net_ms]
        middles = [quartiles(rung.net_ms) for rung in known]
        return (
            Plot(
                f"ladder-{self.part.id}",
                f"{self.part.title}: time of each kernel",
                self.about,
                "",
                f"{'CPU' if self.clock == 'cpu' else 'wall-clock'} time, ms",
                (
                    Series(
                        "median and quartiles",
                        tuple(float(k) for k in range(len(known))),
                        tuple(middle for middle, _, _ in middles),
                        tuple(low for _, low, _ in middles),
                        tuple(high for _, _, high in middles),
                        style="bars",
                    ),
                ),
                log_y=True,
                x_names=tuple(rung.name for rung in known),
            ),
        )


def quartiles(values: tuple[float, ...]) -> tuple[float, float, float]:
    """Return the median, and the first and third quartile, of at least one value."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return middle, low, high


# ---- measurements


@dataclass(frozen=True)
class Candidate:
    """A kernel before its measurement. `bench` builds and calls it; if it is None, `trouble` is the reason."""

    name: str
    part: Part
    bench: Bench | None = None
    trouble: str = ""
    note: str = ""

    @property
    def with_torch(self) -> bool:
        return self.bench is not None and not self.bench.of_file().kind.is_program

    @property
    def nothing(self) -> str:
        """Return the name of the empty function, in the same kind of process, whose time is subtracted."""
        return NOTHING_WITH_TORCH if self.with_torch else sources.NOTHING


def candidates(laboratory: Laboratory, part: Part, speed: Speed) -> list[Candidate]:
    """Return all kernels of a part, each with a bench that builds and calls it as the evaluator does."""
    mine = laboratory.bench(Variant(YOURS, part, laboratory.settings.sizes))
    folder = laboratory.assignment.lab_folder
    reference = replace(part, function=part.reference or part.function)
    level = sources.widest(speed.levels)

    def course() -> tuple[Bench, str]:
        if part.reference is None:
            raise KitError("this part is not timed, so the course has no reference for it")
        return _of_program(laboratory, mine, laboratory.assignment.lab.reference().program()), ""

    def faster() -> tuple[Bench, str]:
        program = sources.fast_kernels(folder, level).program()
        return _of_program(laboratory, mine, program), f"built for {level}" if level else ""

    makers = {REFERENCE: (reference, course), PYTORCH: (part, lambda: _of_torch(mine)), FAST: (part, faster)}
    found = {name: _made(name, asked, make) for name, (asked, make) in makers.items()}
    return [found[REFERENCE], Candidate(YOURS, part, mine), found[PYTORCH], found[FAST]]


def _made(name: str, part: Part, make: Callable[[], tuple[Bench, str]]) -> Candidate:
    try:
        bench, note = make()
    except KitError as error:
        return Candidate(name, part, trouble=f"not here: {error}")
    return Candidate(name, part, bench, note=note)


def _of_program(laboratory: Laboratory, mine: Bench, program: Path) -> Bench:
    """Return a copy of the student's bench that runs another program."""
    build = NativeBuild(
        ok=True, object_path=None, cached=True, diagnostics="", notes=(), wall_s=0.0, cpu_s=0.0, key="",
        program=program, linkage="", refused=None,
    )  # fmt: skip
    return replace(mine, made=Made.of(build), host=laboratory.host)


def _of_torch(mine: Bench) -> tuple[Bench, str]:
    if torch_version() == ABSENT:
        raise KitError("this Python has no torch")
    show_progress("Building the calls of PyTorch, which takes a minute the first time")
    source = sources.written("pytorch", sources.PYTORCH)
    build = torchbuild.build(source, timeout_s=BUILD_TIMEOUT_S)
    if not build.ok:
        raise KitError(f"the calls of PyTorch do not compile: {build.diagnostics.splitlines()[0]}")
    return replace(mine, made=Made.of(build), host=None), f"torch {torch_version()}"


def measure(laboratory: Laboratory, part: Part) -> Ladder:
    """Check all kernels of the part, and time the right ones beside the machine's limit.

    Raises KitError if this machine cannot build or run the kit's own programs.
    """
    settings = laboratory.settings
    speed = facts.measure()
    show_progress("Building and checking the kernels")
    found = candidates(laboratory, part, speed)
    # As in every study, cases use at most the assignment's default sizes. The timed sizes are checked later.
    defaults = settings.assignment.defaults
    usual = {name: min(size, defaults[name]) for name, size in settings.sizes.items()}
    checked = []
    for one in found:
        if one.bench is not None:
            smaller = replace(one.bench, options=replace(one.bench.options, shape=usual))
            one = replace(one, trouble=trouble_of(smaller, one.part))
        checked.append(one)
    rounds = _Rounds(
        laboratory, part, [one for one in checked if not one.trouble], sources.widest(speed.levels)
    )
    times = rounds.measured(settings.rounds)
    again = facts.measure()
    # Other load on the machine only lowers a measured peak, so take the larger of the two.
    peak = max(each.peak(speed.levels[-1], rounds.threads) for each in (speed, again))

    def rung(one: Candidate) -> Rung:
        if one.trouble:
            return Rung(one.name, trouble=one.trouble)
        is_short = median(times[one.name]) < SHORTEST_SHARE * rounds.call_ms[one.nothing]
        doubt = "calling it takes longer than its work: choose larger sizes"
        return Rung(one.name, times[one.name], note=doubt if is_short else one.note)

    return Ladder(
        part,
        tuple(map(rung, checked)),
        Limit(sources.work(part, settings.sizes), peak, rounds.moved_ms) if rounds.moved_ms else None,
        rounds.clock,
        rounds.threads,
        options.about(binding.used_sizes({**settings.sizes, "threads": rounds.threads}, part)),
    )


class _Rounds:
    """Calls of all kernels in turn, together with an empty call and a loop that moves the bytes."""

    def __init__(self, laboratory: Laboratory, part: Part, kernels: list[Candidate], level: str) -> None:
        self.laboratory, self.part, self.kernels, self.level = laboratory, part, kernels, level
        self.settings = laboratory.settings
        self.clock, self.threads = judged_by(part, self.settings)
        self.cpus = machine.timing_cpus(1 if self.clock == "cpu" else None)
        self.moved_ms: tuple[float, ...] = ()
        self.call_ms: dict[str, float] = {}

    def measured(self, rounds: int) -> dict[str, tuple[float, ...]]:
        """Return the times in ms of each kernel by name, one for each round. Raises KitError if a kernel of the kit
        fails, and UsageError if the student's kernel is wrong only at the timed sizes."""
        callers = self._callers()
        names = list(callers)
        by_number = {k: callers[name] for k, name in enumerate(names)}
        found: dict[str, list[float]] = {name: [] for name in names}
        for number in range(-1, rounds):
            show_progress(f"Timing, round {number + 1} of {rounds}" if number >= 0 else "Warming up")
            samples, broken = one_round(by_number, max(number, 0), once=number < 0)
            if broken:
                (k, why), *_ = broken.items()
                raise UsageError(f"{names[k]} was right on every case, but wrong in a timed call: {why}")
            for k, name in enumerate(names):
                if number >= 0:
                    found[name].append(1e3 * math.sqrt(math.prod(self._seconds(each) for each in samples[k])))
        show_progress("")
        self.call_ms = {
            name: median(found[name]) for name in (sources.NOTHING, NOTHING_WITH_TORCH) if name in found
        }
        self.moved_ms = tuple(
            max(time - nothing, 1e3 * SHORTEST_S)
            for time, nothing in zip(found[MOVING], found[sources.NOTHING], strict=True)
        )
        return {
            kernel.name: tuple(
                max(time - nothing, 1e3 * SHORTEST_S)
                for time, nothing in zip(found[kernel.name], found[kernel.nothing], strict=True)
            )
            for kernel in self.kernels
        }

    def _seconds(self, sample: Sample) -> float:
        return max(sample.wall_s if self.clock == "wall" else sample.cpu_s or 0.0, SHORTEST_S)

    def _callers(self) -> dict[str, Callable[[], Sample]]:
        """Return by name functions that time a call: of each kernel, an empty function and the loop moving bytes."""
        settings = self.settings
        seed = secrets.randbits(60) if settings.seed is None else settings.seed
        mine = self.laboratory.bench(Variant(YOURS, self.part, settings.sizes))
        build = nativebuild.build(
            sources.written("machine", sources.MACHINE), flags=sources.LEVELS.get(self.level, ())
        )
        if build.program is None:
            raise KitError(f"the ladder's own program does not compile: {build.diagnostics.splitlines()[0]}")
        bare = self._session(_of_program(self.laboratory, mine, build.program))
        work = sources.work(self.part, settings.sizes)
        loop, numbers = (sources.UPDATE, 3) if work.in_place else (sources.COPY, 2)
        moving = Request(loop, [{"value": max(1, work.moved_bytes // numbers // sources.FLOAT_BYTES)}], [])
        nothing = Request(sources.NOTHING, [{"value": 1}], [])
        made = {sources.NOTHING: self._repeated(bare, nothing), MOVING: self._repeated(bare, moving)}
        for number, kernel in enumerate(self.kernels):
            assert kernel.bench is not None
            session = self._session(kernel.bench)
            drawn = TimedInputs(Marker(kernel.bench, kernel.part), derive(seed, "ladder", number))
            inputs = settings.assignment.typical_inputs(self.part, settings.sizes, derive(seed, "repeated"))
            asked = binding.request(kernel.part, settings.sizes, inputs)
            check = partial(drawn.sample, session, is_reference=False)
            made[kernel.name] = self._repeated(session, asked, check)
            if kernel.with_torch:
                made[kernel.nothing] = self._repeated(session, nothing)
        return made

    def _session(self, bench: Bench) -> Session:
        session = bench.student(self.part, threads=self.threads, cpus=self.cpus)
        session.call_timeout_s = bench.call_timeout_s(bench.shape) + MOST_REPEATED_S
        return session

    def _repeated(
        self, session: Session, asked: Request, check: Callable[[], object] = lambda: None
    ) -> Callable[[], Sample]:
        """Return a function that measures a call's time, from a request with one call and a request with many calls.

        The function calls `check` first. Timed calls add to gradients repeatedly, so their results cannot be checked.
        """
        repeats = 0

        def once() -> Sample:
            one, more = _calls(session, asked, 1), _calls(session, asked, 1 + repeats)
            cpu_s = None if one.cpu_s is None or more.cpu_s is None else (more.cpu_s - one.cpu_s) / repeats
            return Sample((more.wall_s - one.wall_s) / repeats, cpu_s)

        def call() -> Sample:
            nonlocal repeats
            check()
            if repeats == 0:
                # The first round warms up: find the number of calls that take LONG_ENOUGH_S.
                repeats = 1
                while repeats < MOST_REPEATS and repeats * self._seconds(once()) < LONG_ENOUGH_S:
                    repeats *= 4
            tries = WALL_TRIES if self.clock == "wall" else 1
            return min((once() for _ in range(tries)), key=lambda sample: sample.wall_s)

        return call


def judged_by(part: Part, settings: Settings) -> tuple[Clock, int]:
    """Return the clock and the number of threads for timing a part, as in its judging, but at most one thread per core.

    A part that is not judged by time is measured on one thread by CPU time, unless the command line sets threads.
    """
    cores = len(machine.usable_cpus()) or 1
    rule = part.time
    if rule is None:
        wanted = settings.shape.get("threads", 1)
        return ("cpu" if wanted == 1 else "wall"), min(wanted, cores)
    return rule.clock, max(1, min(rule.threads or settings.sizes["threads"], cores))


def _calls(session: Session, asked: Request, times: int) -> Sample:
    """Make `times` calls with the same tensors in one request, and return the total time. Results are ignored."""
    # The request is a table with a row for each call.
    from grader.core.arrays import np

    rows = np.zeros((times, 1))
    answer = session.call(replace(asked, op="table", inputs=[*asked.inputs, rows], output_shape=(times,)))
    if answer.status != "ok":
        raise KitError(f"{asked.function} failed ({answer.status}): {answer.message or answer.signal_name}")
    return Sample(answer.wall_s, answer.cpu_s)


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py lab operators ladder PART`. Return 1 if the part was wrong, else 0."""
    parse = options.parser(
        arguments,
        "ladder",
        "Time of a part's kernel beside the course's reference, fast C++, PyTorch's operator and the machine's limit.",
    )
    parse.add_argument("part", metavar="PART", help="any part, such as matmul or conv2d_backward_threads")
    given = parse.parse_args(arguments)
    settings = options.settings(given)
    parts = {part.id: part for part in settings.assignment.parts}
    if given.part not in parts:
        raise UsageError(f"no part '{given.part}': choose {', '.join(parts)}")
    part = parts[given.part]
    outcome.prepare(settings, f"ladder-{part.id}")
    with set_up(settings) as laboratory:
        finding = measure(laboratory, part)
    outcome.deliver(finding, settings)
    return EXIT_SUBMISSION if finding.yours.trouble else EXIT_PASS
