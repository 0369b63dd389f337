"""`ladder PART`: a part's kernel between the course's reference, fast C++, PyTorch's operator and the machine's limit.

Theory of operation. All of them are called by the same protocol, with the same sizes and threads, each in a process of
its own: the student's file, reference.cpp and fast.cpp as programs without torch, PyTorch in a process that has it. A
rung is measured only when it is right: on every case of the part as any submission, and in every timed answer. In each
round all are called twice, in an order and then in its reverse (`grader.study.laboratory`). What a call takes that
computes nothing is taken off, one with torch and one without: of a short kernel it is the larger part. With a wall
clock a call is the best of three.

The limit is the longer of two times (`labs.operators.studies.limits`): that of the part's operations at the measured
peak of multiply-adds, and that of its bytes. The latter is a copy of as many bytes, measured in the same rounds with
the same threads: what fits into a cache is copied there, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles

from grader.assignment.records import Part
from grader.base import machine
from grader.base.errors import EXIT_PASS, EXIT_SUBMISSION, KitError, UsageError
from grader.base.seeds import derive
from grader.build import nativebuild, torchbuild
from grader.build.nativebuild import NativeBuild
from grader.build.toolchain import ABSENT, torch_version
from grader.judge import binding
from grader.judge.bench import Bench
from grader.judge.marking import Marker
from grader.judge.timing.measure import SHORTEST_S, Clock, Sample
from grader.judge.timing.rounds import TimedInputs
from grader.run.calls import Request
from grader.run.session import Session
from grader.study import facts, options, outcome
from grader.study.facts import Speed
from grader.study.figure import Figure, Plot, Series
from grader.study.laboratory import (
    WALL_TRIES,
    Laboratory,
    Variant,
    by_wall_clock,
    one_round,
    set_up,
    steadied,
    tell,
    trouble_of,
)
from grader.study.table import Cell, Table, shown
from labs.operators.studies import fast, limits, sources
from labs.operators.studies.limits import Work

REFERENCE, YOURS, PYTORCH, FAST = "course reference", "yours", "PyTorch", "fast C++"
COLUMNS = ("kernel", "ms", "ms q1", "ms q3", "time / yours", "q1", "q3", "% of the limit", "note")
BUILD_TIMEOUT_S = 600.0
"""PyTorch's headers take a minute where the machine is busy."""
COPIED_BYTES = 1 << 26
"""About as much is copied in one call: far more than the call itself costs."""
MOST_COPIES = 10000
SHORTEST_SHARE = 0.2
"""What a kernel's own time must be of that of a call that does nothing: two near equals' difference says little."""


@dataclass(frozen=True)
class Rung:
    """One kernel. `net_ms` has a time for each round, without that of handing over tensors; () where there is
    `trouble`, why it was not measured."""

    name: str
    net_ms: tuple[float, ...] = ()
    trouble: str = ""
    note: str = ""


@dataclass(frozen=True)
class Limit:
    """What the machine could do at the best: the time of the operations at the peak, and of a copy in each round."""

    work: Work
    peak_flops_per_s: float
    copy_ms: tuple[float, ...]

    @property
    def operations_ms(self) -> float:
        return 1e3 * self.work.operations / self.peak_flops_per_s

    @property
    def binds(self) -> str:
        """ "operations" or "bytes": which of the two takes longer."""
        return "operations" if self.operations_ms >= median(self.copy_ms) else "bytes"

    def rung(self) -> Rung:
        if self.binds == "operations":
            return Rung("limit: multiply-adds", tuple(self.operations_ms for _ in self.copy_ms))
        return Rung("limit: a copy", self.copy_ms)

    def words(self) -> str:
        work = self.work
        return (
            f"The limit: {work.operations} operations at {self.peak_flops_per_s / 1e9:.3g} GFLOP/s take "
            f"{shown(self.operations_ms)} ms, {work.moved_bytes} bytes at a copy's speed "
            f"{shown(median(self.copy_ms))} ms; the {self.binds} bind."
        )


@dataclass(frozen=True)
class Ladder:
    """All rungs of one part. `nothing_ms` is what handing over its tensors took."""

    part: Part
    rungs: tuple[Rung, ...]
    limit: Limit | None
    clock: Clock
    threads: int
    nothing_ms: float
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
            f"{self.part.title}: who takes how long",
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
            f"{self.about}. Medians and quartiles over {rounds} interleaved rounds, {clock}, on {self.threads} "
            f"thread{'s' if self.threads > 1 else ''}, without the {shown(self.nothing_ms)} ms that handing over the "
            "tensors takes."
        ]
        if self.limit is not None:
            sentences.append(self.limit.words())
        if self.yours.trouble:
            sentences.append("Yours was not measured, since it is not right; so there are no ratios to it.")
        return " ".join(sentences)

    def figures(self) -> tuple[Figure, ...]:
        known = [rung for rung in self.all_rungs if rung.net_ms]
        middles = [quartiles(rung.net_ms) for rung in known]
        return (
            Plot(
                f"ladder-{self.part.id}",
                f"{self.part.title}: who takes how long",
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
    """The median, and the first and third quartile, of at least one value."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return middle, low, high


# ---- what is measured


@dataclass(frozen=True)
class Candidate:
    """A kernel before it was measured: its bench and part, or `trouble`, why there is none."""

    name: str
    part: Part
    bench: Bench | None = None
    trouble: str = ""
    note: str = ""

    @property
    def with_torch(self) -> bool:
        return self.bench is not None and self.bench.host is None


def candidates(laboratory: Laboratory, part: Part, speed: Speed) -> list[Candidate]:
    """All kernels of a part, each on a bench of the evaluator's."""
    mine = laboratory.bench(Variant(YOURS, part, laboratory.settings.sizes))
    folder = laboratory.assignment.lab_folder
    reference = replace(part, function=part.reference or part.function)
    level = fast.widest(speed.levels)

    def course() -> tuple[Bench, str]:
        if part.reference is None:
            raise KitError("the course has none, since this part is not timed")
        return _of_program(laboratory, mine, laboratory.assignment.lab.reference().program()), ""

    def faster() -> tuple[Bench, str]:
        program = fast.kernels(folder, level).program()
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
    """The student's bench with another program on it."""
    build = NativeBuild(
        ok=True, object_path=None, cached=True, diagnostics="", notes=(), wall_s=0.0, cpu_s=0.0, key="",
        program=program, linkage="", refused=None,
    )  # fmt: skip
    return replace(mine, build=build, host=laboratory.host, with_torch=None)


def _of_torch(mine: Bench) -> tuple[Bench, str]:
    if torch_version() == ABSENT:
        raise KitError("this Python has no torch")
    tell("Building the calls of PyTorch, which takes a minute the first time")
    source = sources.written("pytorch", sources.PYTORCH)
    build = torchbuild.build(source, timeout_s=BUILD_TIMEOUT_S)
    if not build.ok:
        raise KitError(f"the calls of PyTorch do not compile: {build.diagnostics.splitlines()[0]}")
    return replace(mine, build=build, host=None, with_torch=None), f"torch {torch_version()}"


def measure(laboratory: Laboratory, part: Part) -> Ladder:
    """Check all kernels of the part, and time the right ones beside the machine's copy.

    Raises KitError where this machine cannot build or run what the kit itself needs.
    """
    settings = laboratory.settings
    speed = facts.measure()
    tell("Building and checking the kernels")
    found = candidates(laboratory, part, speed)
    # The student's cases are judged at the assignment's own sizes, as in every study; the others' with them.
    usual = {
        **settings.sizes,
        **{name: min(size, settings.assignment.defaults[name]) for name, size in settings.sizes.items()},
    }
    checked = []
    for one in found:
        if one.bench is not None:
            smaller = replace(one.bench, options=replace(one.bench.options, shape=usual))
            one = replace(one, trouble=trouble_of(smaller, one.part))
        checked.append(one)
    rounds = _Rounds(laboratory, part, [one for one in checked if not one.trouble])
    times = rounds.measured(settings.rounds)
    again = facts.measure()
    level = speed.levels[-1]
    work = limits.work(part, settings.sizes)
    # A busy neighbour can only make a peak smaller.
    peak = max(each.peak(level, rounds.threads) for each in (speed, again))
    rungs = tuple(
        Rung(one.name, trouble=one.trouble)
        if one.trouble
        else Rung(one.name, times[one.name], note=rounds.doubt(times[one.name]) or one.note)
        for one in checked
    )
    return Ladder(
        part,
        rungs,
        Limit(work, peak, rounds.copy_ms) if rounds.copy_ms else None,
        rounds.clock,
        rounds.threads,
        rounds.nothing_ms,
        options.about(binding.used_sizes({**settings.sizes, "threads": rounds.threads}, part)),
    )


class _Rounds:
    """Calls all kernels in turn, and beside them what only hands over tensors, and what copies."""

    def __init__(self, laboratory: Laboratory, part: Part, kernels: list[Candidate]) -> None:
        self.laboratory, self.part, self.kernels = laboratory, part, kernels
        rule, cores = part.time, len(machine.usable_cpus()) or 1
        wanted = (rule.threads if rule else None) or laboratory.settings.sizes["threads"]
        # More threads than cores would measure how these are shared.
        self.threads = max(1, min(wanted, cores))
        self.cpus = machine.timing_cpus(rule.threads if rule else None)
        self.clock: Clock = "wall" if by_wall_clock(part) else "cpu"
        self.copy_ms: tuple[float, ...] = ()
        self.nothing_ms = 0.0

    def measured(self, rounds: int) -> dict[str, tuple[float, ...]]:
        """Net milliseconds of each kernel, by name, one a round. Raises KitError where a kernel of the kit's fails."""
        callers = self._callers()
        names = list(callers)
        by_number = {k: callers[name] for k, name in enumerate(names)}
        found: dict[str, list[float]] = {name: [] for name in names}
        for number in range(-1, rounds):
            tell(f"Timing, round {number + 1} of {rounds}" if number >= 0 else "Warming up")
            samples, broken = one_round(by_number, max(number, 0), once=number < 0)
            if broken:
                (k, why), *_ = broken.items()
                raise UsageError(f"{names[k]} was right on every case, and not in a timed call: {why}")
            for k, name in enumerate(names):
                if number >= 0:
                    found[name].append(self._middle_ms(samples[k]))
        tell("")
        self.nothing_ms = median(found[sources.NOTHING])
        copies = self._copies()
        self.copy_ms = tuple(time / copies for time in found[sources.COPY])
        return {
            kernel.name: tuple(
                max(time - nothing, 1e3 * SHORTEST_S)
                for time, nothing in zip(found[kernel.name], found[self._empty(kernel)], strict=True)
            )
            for kernel in self.kernels
        }

    def doubt(self, net_ms: tuple[float, ...]) -> str:
        """Why a time says little, "" where it does not."""
        if median(net_ms) < SHORTEST_SHARE * self.nothing_ms:
            return "nearly all of a call is handing over tensors: choose larger sizes"
        return ""

    def _empty(self, kernel: Candidate) -> str:
        return f"{sources.NOTHING} with torch" if kernel.with_torch else sources.NOTHING

    def _middle_ms(self, samples: list[Sample]) -> float:
        times = [sample.wall_s if self.clock == "wall" else sample.cpu_s or 0.0 for sample in samples]
        return 1e3 * math.sqrt(math.prod(max(time, SHORTEST_S) for time in times))

    def _callers(self) -> dict[str, Callable[[], Sample]]:
        settings = self.laboratory.settings
        seed = settings.seed if settings.seed is not None else 1
        made: dict[str, Callable[[], Sample]] = {}
        mine = self.laboratory.bench(Variant(YOURS, self.part, settings.sizes))
        source = sources.written("machine", sources.MACHINE)
        build = nativebuild.build(source)
        if build.program is None:
            raise KitError(f"the ladder's own program does not compile: {build.diagnostics.splitlines()[0]}")
        bare = self._session(_of_program(self.laboratory, mine, build.program))
        inputs = settings.assignment.typical_inputs(self.part, settings.sizes, derive(seed, "nothing"))
        empty = binding.request(self.part, settings.sizes, inputs)
        made[sources.NOTHING] = self._steady(lambda: _call(bare, _nothing(empty)))
        made[sources.COPY] = self._steady(lambda: self._copied(bare))
        for number, kernel in enumerate(self.kernels):
            assert kernel.bench is not None
            session = self._session(kernel.bench)
            drawn = TimedInputs(Marker(kernel.bench, kernel.part), derive(seed, "ladder", number))
            made[kernel.name] = self._steady(
                lambda drawn=drawn, session=session: drawn.sample(session, is_reference=False)
            )  # type: ignore[misc]
            if kernel.with_torch:
                made[self._empty(kernel)] = self._steady(
                    lambda session=session: _call(session, _nothing(empty))
                )  # type: ignore[misc]
        return made

    def _session(self, bench: Bench) -> Session:
        session = bench.student(self.part, threads=self.threads, cpus=self.cpus)
        session.call_timeout_s = bench.call_timeout_s(bench.shape)
        return session

    def _steady(self, call: Callable[[], Sample]) -> Callable[[], Sample]:
        return steadied(self.part, call)

    def _copies(self) -> int:
        moved = limits.work(self.part, self.laboratory.settings.sizes).moved_bytes
        return max(1, min(MOST_COPIES, COPIED_BYTES // moved))

    def _copied(self, session: Session) -> Sample:
        """The copies of one call, without the call."""
        moved = limits.work(self.part, self.laboratory.settings.sizes).moved_bytes
        floats = max(1, moved // 2 // limits.FLOAT_BYTES)

        def call(times: int) -> Sample:
            return _call(session, Request(sources.COPY, [{"value": floats}, {"value": times}], [], (1,)))

        none, all_of = call(0), call(self._copies())
        cpu_s = None if none.cpu_s is None or all_of.cpu_s is None else all_of.cpu_s - none.cpu_s
        return Sample(all_of.wall_s - none.wall_s, cpu_s)


def _nothing(asked: Request) -> Request:
    """The same tensors handed over, and as many numbers given back, without computing any."""
    elements: Mapping[str, int] = {"value": math.prod(asked.output_shape)}
    return replace(asked, function=sources.NOTHING, arguments=[elements])


def _call(session: Session, request: Request) -> Sample:
    answer = session.call(request)
    if answer.status != "ok":
        raise KitError(f"{request.function} failed ({answer.status}): {answer.message or answer.signal_name}")
    return Sample(answer.wall_s, answer.cpu_s)


def main(arguments: list[str]) -> int:
    """`python gpt149.py lab operators ladder PART ...`; returns 1 when the part was wrong."""
    parse = options.parser(
        arguments,
        "ladder",
        "A part's kernel between the course's reference, fast C++, PyTorch's operator and the machine's limit.",
    )
    parse.add_argument("part", metavar="PART", help="any part, as matmul or conv2d_backward_threads")
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
