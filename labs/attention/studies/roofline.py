"""`roofline`: the speed of the parts, the reference and PyTorch, compared with this machine's limits.

A kernel with I operations per byte moved cannot be faster than the smaller of two limits: the peak, and I times the
bandwidth. Peak and bandwidth are measured (`grader.study.facts`), for one thread and for all cores. The operations of
every kernel are counted as 4 N^2 d per head: the two matrix products alone.

Bytes are counted in two ways. Every kernel moves the compulsory bytes: Q, K and V are read once, O is written once.
Simulated bytes are those that the part's loops move in a simulator (`labs.attention.studies.cache`). Its cache is as
large as this machine's last-level cache, and serves one head. The figure uses compulsory bytes for PyTorch, whose loops
are unknown, and simulated bytes for all other kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grader.assignment.records import Part
from grader.backends.kinds import kind_of
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION
from grader.judge.timing.intervals import Estimate
from grader.judge.timing.measure import Clock
from grader.study import facts, helpers, options, outcome
from grader.study.facts import Machine, Speed
from grader.study.figure import Figure, Plot, Series
from grader.study.laboratory import Laboratory, Line, Variant, bounds, compared, set_up, show_progress
from grader.study.table import Cell, Table

from . import cache
from .cache import KERNELS, Model, Shape

TILE = 16
COLUMNS = (
    "kernel",
    "threads",
    "clock",
    "ms",
    "ms from",
    "ms to",
    "GFLOP/s",
    "FLOP per compulsory byte",
    "FLOP per simulated byte",
    "roof, GFLOP/s",
    "share of the roof",
    "note",
)


@dataclass(frozen=True)
class Point:
    """One kernel in the figure. `flops` and both numbers of bytes are for a whole call. `simulated_bytes` is None if
    the kernel's loops are unknown.
    """

    name: str
    threads: int
    clock: Clock
    line: Line
    flops: float
    compulsory_bytes: float
    simulated_bytes: float | None

    @property
    def time_ms(self) -> Estimate | None:
        return self.line.time_ms

    @property
    def flops_per_s(self) -> float | None:
        return None if self.time_ms is None else self.flops / (self.time_ms.middle / 1e3)

    @property
    def intensity(self) -> float:
        """FLOP per byte, with the bytes that the figure uses."""
        return self.flops / (self.simulated_bytes or self.compulsory_bytes)


@dataclass(frozen=True)
class Roofline:
    """All kernels and the machine's measured limits. `level` is the machine's widest instruction set, `flag_level` the
    widest that the assignment's compiler flags allow."""

    points: tuple[Point, ...]
    machine: Machine
    speed: Speed
    level: str
    flag_level: str
    about: str
    rounds: int

    def roof(self, intensity: float, threads: int, level: str | None = None) -> float:
        """Return the largest possible FLOP/s at an intensity (FLOP per byte). `level`: by default `self.level`."""
        return min(self.speed.peak(level or self.level, threads), intensity * self.speed.bandwidth(threads))

    def table(self) -> Table:
        return Table(
            "roofline",
            "The parts on this machine's roofline",
            COLUMNS,
            tuple(self._row(point) for point in self.points),
            self.caption(),
        )

    def _row(self, point: Point) -> tuple[Cell, ...]:
        cores = 1 if point.threads == 1 else self.speed.cores
        speed, roof = point.flops_per_s, self.roof(point.intensity, cores)
        return (
            point.name,
            point.threads,
            point.clock,
            *bounds(point.time_ms),
            None if speed is None else speed / 1e9,
            point.flops / point.compulsory_bytes,
            None if point.simulated_bytes is None else point.flops / point.simulated_bytes,
            roof / 1e9,
            None if speed is None else speed / roof,
            point.line.trouble,
        )

    def caption(self) -> str:
        """Return sentences on the measured limits and on how bytes were counted."""
        speed, last = self.speed, self.machine.last
        limits = " and ".join(
            f"{speed.peak(self.level, count) / 1e9:.3g} GFLOP/s and {speed.bandwidth(count) / 1e9:.3g} GB/s on "
            f"{count} thread{'s' if count > 1 else ''}"
            for count in dict.fromkeys((1, speed.cores))
        )
        return (
            f"{self.about}. Medians over {self.rounds} interleaved rounds. Measured roof, {self.level}: {limits}. "
            f"The build's flags allow no fused multiply-add: with them, {self.flag_level}, the roof of one thread is "
            f"{speed.peak(self.flag_level, 1) / 1e9:.3g} GFLOP/s. "
            f"Simulated bytes pass between memory and a cache of {helpers.size_text(last.size_bytes)}, which is empty "
            "at the start of each head. Compulsory bytes are those of Q, K, V and O, once each."
        )

    def figures(self) -> tuple[Figure, ...]:
        known = [point for point in self.points if point.flops_per_s is not None]
        xs = [point.intensity for point in known] or [1.0]
        # A roof's ridge is the intensity at which both of its limits are equal. The x axis begins below all ridges and
        # points, and ends above them.
        ridges = [self.speed.peak(self.level, n) / self.speed.bandwidth(n) for n in (1, self.speed.cores)]
        low, high = min([*xs, *ridges]) / 8, max([*xs, *ridges]) * 4
        roofs = [
            self._roof_line(threads, level, low, high)
            for threads, level in ((self.speed.cores, self.level), (1, self.level), (1, self.flag_level))
        ]
        groups = (
            ("your kernels", lambda name: not name.startswith(("reference", "PyTorch"))),
            ("the reference", lambda name: name.startswith("reference")),
            ("PyTorch's attention", lambda name: name.startswith("PyTorch")),
        )
        points = [
            _points(label, [point for point in known if belongs(point.name)]) for label, belongs in groups
        ]
        return (
            Plot(
                "roofline",
                "The parts on this machine's roofline",
                self.about,
                "arithmetic intensity, FLOP per byte moved",
                "GFLOP/s",
                (*roofs, *(one for one in points if one.x)),
                log_x=True,
                log_y=True,
            ),
        )

    def _roof_line(self, threads: int, level: str, low: float, high: float) -> Series:
        label = f"roof, {'one thread' if threads == 1 else f'{threads} threads'}, {level}"
        ridge = self.speed.peak(level, threads) / self.speed.bandwidth(threads)
        xs = (low, ridge, high)
        return Series(label, xs, tuple(self.roof(x, threads, level) / 1e9 for x in xs), style="line")


def _points(label: str, points: Sequence[Point]) -> Series:
    return Series(
        label,
        tuple(point.intensity for point in points),
        tuple((point.flops_per_s or 0.0) / 1e9 for point in points),
        style="points",
        # The reference's points lie near the student's for the same parts, so only the student's points get names.
        notes=() if label == "the reference" else tuple(point.name for point in points),
    )


def measure(laboratory: Laboratory, parts: Sequence[Part]) -> Roofline:
    """Measure the machine, simulate the parts' traffic, and time all kernels in interleaved rounds."""
    sizes = laboratory.settings.sizes
    machine = facts.describe()
    show_progress("Measuring peak and bandwidth")
    speed = facts.measure()
    heads = sizes["B"] * sizes["H"]
    one_head = Shape(sizes["N"], sizes["d"], TILE, sizes["Br"], sizes["Bc"])
    model = Model(machine.last.size_bytes, line_bytes=machine.line_bytes)
    show_progress("Simulating the traffic of each part")
    walks = [(part.id, model, one_head) for part in parts if part.id in KERNELS]
    lines = cache.simulate(walks, scores_only=False)
    variants, names = [], []
    for part in parts:
        variants.append(Variant(part.id, part, sizes))
        names.append(part.id if kind_of(part).is_students else "PyTorch")
        if part.reference:
            variants.append(Variant(f"reference {part.id}", part, sizes, reference=True))
            names.append(f"reference {part.id}")
    outcomes = laboratory.timed(variants, laboratory.settings.rounds)
    points = []
    for name, variant, one in zip(names, variants, outcomes, strict=True):
        # Compared alone, each variant is reported by the clock (CPU or wall) by which its part is judged.
        alone = compared([one], rivals=())
        moved = lines.get((variant.part.id, model, one_head))
        points.append(
            Point(
                name,
                variant.threads,
                alone.clock,
                alone.lines[0],
                float(laboratory.assignment.lab.oracle(variant.part.oracle).flops(sizes)),
                float(heads * cache.compulsory_bytes(one_head, model.line_bytes)),
                None if moved is None else float(heads * moved.lines * model.line_bytes),
            )
        )
    level = speed.levels[-1]
    flag_level = "avx" if "avx" in speed.levels else level
    return Roofline(
        tuple(points), machine, speed, level, flag_level, options.about(sizes), laboratory.settings.rounds
    )


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py roofline`. Return 1 if a part was wrong or failed, else 0."""
    parse = options.parser(
        arguments, "roofline", "Every part, the reference and PyTorch on this machine's measured roofline."
    )
    settings = options.settings(parse.parse_args(arguments))
    assignment = settings.assignment
    parts = [part for part in assignment.parts if part.reference or not kind_of(part).is_students]
    outcome.prepare(settings, "roofline")
    with set_up(settings) as laboratory:
        finding = measure(laboratory, parts)
    outcome.deliver(finding, settings)
    return EXIT_SUBMISSION if any(point.line.trouble for point in finding.points) else EXIT_PASS
