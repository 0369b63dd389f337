"""`cache`: counts the cache lines that each part moves between a cache and memory, for several cache sizes.

Theory of operation. native/cachesim.cpp runs through the loops of a part as the assignment describes them. Each access
to a tensor goes to a model of one cache, which evicts the least recently used line. A write first fetches its line;
when the line is evicted, it is written back. By default the cache is fully associative, as the formulas assume, so only
its size matters. With `ways`, an address selects a set as in a real cache: rows that lie a power of two apart compete
for the same lines. There is one level, without prefetching. (Prefetching does not change how many lines are fetched.)

The formulas count lines of L floats for S = Q * transpose(K) of one head, if two rows do not fit into the cache:

    part 1            2 N^2 d / L       each of the N^2 scores fetches a row of Q and one of K
    part 2            2 N^2 d / (L T)   a T x T tile of scores fetches T rows of Q and T of K
    part 2, rewritten 3 N^2 d / (L T)   the same, but all of S is read and written again for every tile of d

So the ratios to part 1 are 1 / T and 3 / (2 T). If a head's K fits into the cache, the ratio is 1.

With --cachegrind, valgrind also counts the lines that the student's own kernels fetch.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from grader.assignment.records import Part
from grader.backends import binding
from grader.backends.native import nativebuild
from grader.core.commandline import whole_number
from grader.core.errors import EXIT_PASS, KitError, UsageError
from grader.study import facts, helpers, options, outcome
from grader.study.figure import Figure, Plot, Series
from grader.study.helpers import CacheModel as Model
from grader.study.helpers import Traffic
from grader.study.laboratory import show_progress
from grader.study.options import Settings
from grader.study.standalone import Kit, Unsuitable, build_program, ran
from grader.study.table import Cell, Table

SIMULATOR = Path(__file__).resolve().parent / "native" / "cachesim.cpp"
FLOAT_BYTES = 4
#: Names of the kernels whose loops native/cachesim.cpp simulates.
KERNELS = ("part1", "part2", "part2-rewritten", "part3", "part4")


@dataclass(frozen=True)
class Shape:
    """Sizes of one head, (N, d), and of the tiles: `tile` is T in part 2; part 4 uses `Br` and `Bc`."""

    N: int
    d: int
    tile: int = 16
    Br: int = 256
    Bc: int = 256

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of Q, K, V or O."""
        return self.d * FLOAT_BYTES


Walk = tuple[str, Model, Shape]
"""One simulated walk through a kernel's loops: the kernel's name, the cache and the sizes."""


def simulate(walks: Sequence[Walk], *, scores_only: bool) -> dict[Walk, Traffic]:
    """Return the traffic of each walk; one simulation runs on each core. `scores_only`: True for Q K^T alone."""
    tail = "-scores" if scores_only else ""
    found = helpers.simulated(
        SIMULATOR, [((f"{name}{tail}", s.N, s.d, s.tile, s.Br, s.Bc), model) for name, model, s in walks]
    )
    return dict(zip(walks, found, strict=True))


def formula(kernel: str, shape: Shape, line_bytes: int) -> float | None:
    """Return the number of lines by the formulas in this module's docstring; None for parts 3 and 4."""
    per_line = line_bytes / FLOAT_BYTES
    whole = shape.N**2 * shape.d / per_line
    return {
        "part1": 2 * whole,
        "part2": 2 * whole / shape.tile,
        "part2-rewritten": 3 * whole / shape.tile,
    }.get(kernel)


def compulsory_bytes(shape: Shape, line_bytes: int) -> int:
    """Return the bytes that every kernel has to move for one head, in whole cache lines: Q, K and V read, O written."""
    lines = -(-shape.N * shape.d * FLOAT_BYTES // line_bytes)
    return 4 * lines * line_bytes


PARTS = ("part1", "part2")
LADDER = (16 << 10, 128 << 10, 512 << 10, 4 << 20)
#: N and d of a shape for which the formulas hold: a row has 16 KB, like the smallest cache of LADDER.
FAR_LARGER = (192, 4096)
LARGEST_SIDE = 1 << 14
MOST_ACCESSES = 1 << 37


@dataclass(frozen=True)
class CacheStudy:
    """Result of the study: the traffic of each of `kernels` in each of the caches `models` for each of `shapes`.

    `scores_only`: True if only Q K^T is simulated. `found`: the simulated traffic. `counted`: the number of lines that
    the student's kernel fetches, as cachegrind counts them; None if the student's file lacks the kernel.
    """

    kernels: tuple[str, ...]
    models: tuple[Model, ...]
    shapes: tuple[Shape, ...]
    scores_only: bool
    found: Mapping[Walk, Traffic]
    about: str
    counted: Mapping[Walk, int | None] = field(default_factory=dict)

    def walks(self) -> list[Walk]:
        """Return all combinations of kernel, cache and shape, in the order of the table's rows."""
        return [
            (kernel, model, shape)
            for shape in self.shapes
            for model in self.models
            for kernel in self.kernels
        ]

    def ratio(self, walk: Walk) -> float:
        """Return the walk's number of lines, divided by the first kernel's number for the same cache and shape."""
        return self.found[walk].lines / self.found[(self.kernels[0], *walk[1:])].lines

    def table(self) -> Table:
        columns = ["N", "d", "cache", "kernel", "lines fetched", "lines written", "all lines", "ratio"]
        columns += ["formula", "ratio by formula"] if self.scores_only else []
        columns += ["fetched by cachegrind", "ratio by cachegrind"] if self.counted else []
        return Table(
            "cache",
            f"Lines between cache and memory for {self._what()} of one head",
            tuple(columns),
            tuple(self._row(walk) for walk in self.walks()),
            self.caption(),
        )

    def _what(self) -> str:
        return "Q * transpose(K)" if self.scores_only else "the whole kernel"

    def _row(self, walk: Walk) -> tuple[Cell, ...]:
        kernel, model, shape = walk
        lines, base = self.found[walk], (self.kernels[0], model, shape)
        row: list[Cell] = [shape.N, shape.d, helpers.size_text(model.size_bytes), kernel]
        row += [lines.fetched, lines.written, lines.lines, self.ratio(walk)]
        if self.scores_only:
            ours, theirs = (formula(name, shape, model.line_bytes) for name in (kernel, base[0]))
            row.append(None if ours is None else round(ours))
            row.append(ours / theirs if ours is not None and theirs is not None else None)
        if self.counted:
            own, first = self.counted[walk], self.counted[base]
            row += [own, own / first if own is not None and first else None]
        return tuple(row)

    def caption(self) -> str:
        """Return sentences on the simulated kernels and caches, and on when the formulas hold."""
        model, shape = self.models[0], self.shapes[0]
        tiles = f"T={shape.tile}" + (f" Br={shape.Br} Bc={shape.Bc}" if "part4" in self.kernels else "")
        rows = " ".join(
            f"For d={one.d}, two rows have {helpers.size_text(2 * one.row_bytes)} bytes and all of K has "
            f"{helpers.size_text(one.N * one.row_bytes)}."
            for one in self.shapes
        )
        formulas = "The formulas are for a cache that cannot hold two rows. " if self.scores_only else ""
        counted = (
            " cachegrind counts the lines that the student's own kernels fetch, in one cache of that size."
            if self.counted
            else ""
        )
        return (
            f"{self.about}. Simulated with {tiles}: one level, {model.kind}, lines of {model.line_bytes} bytes, "
            f"evicts the least recently used line. {formulas}{rows}{counted}"
        )

    def figures(self) -> tuple[Figure, ...]:
        sizes = tuple(model.size_bytes / 1024 for model in self.models)
        series = [
            Series(
                f"{kernel}, N={shape.N} d={shape.d}",
                sizes,
                tuple(float(self.found[kernel, model, shape].lines) for model in self.models),
            )
            for shape in self.shapes
            for kernel in self.kernels
        ]
        return (
            Plot(
                "cache",
                f"Lines between cache and memory, {self._what()} of one head",
                f"{self.about} · T={self.shapes[0].tile} · simulated",
                "size of the cache, KB",
                "lines fetched and written",
                tuple(series),
                log_x=True,
                log_y=True,
                x_ticks=sizes,
            ),
        )


def measure(
    kernels: Sequence[str], models: Sequence[Model], shapes: Sequence[Shape], *, scores_only: bool, about: str
) -> CacheStudy:
    """Simulate each kernel in each cache for each shape. `scores_only`: only Q K^T. Raises KitError on a failure."""
    study = CacheStudy(tuple(kernels), tuple(models), tuple(shapes), scores_only, {}, about)
    return replace(study, found=simulate(study.walks(), scores_only=scores_only))


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py cache PART...` and return the exit code."""
    parse = options.parser(
        arguments, "cache", "Cache lines that the parts' loops move, simulated over the size of the cache."
    )
    parse.value(
        "kernels",
        "PART",
        f"loops to simulate: {', '.join(KERNELS)} (default: part1 part2)",
        nargs="*",
        default=[],
    )
    parse.value("--cache", "SIZE,...", "sizes of the cache (default: 4 usual ones and this machine's)")
    parse.value("--ways", "n", "associativity of the cache, 0 for full (default: %(default)s)", default="0")
    parse.value("--tile", "n", "tile size of part 2 (default: %(default)s)", default="16")
    parse.value("--br", "n", "rows of a tile of Q in part 4 (default: %(default)s)", default="256")
    parse.value("--bc", "n", "rows of a tile of K and V in part 4 (default: %(default)s)", default="256")
    parse.flag("--whole", "simulate the whole kernel, not only Q * transpose(K)")
    parse.flag(
        "--cachegrind",
        "also count the lines that the student's own kernels fetch, with valgrind (slow); implies --whole",
    )
    given = parse.parse_args(arguments)
    settings = options.settings(given)
    kernels = tuple(dict.fromkeys(given.kernels)) or PARTS
    if unknown := [name for name in kernels if name not in KERNELS]:
        raise UsageError(f"no part '{unknown[0]}' to simulate: choose {', '.join(KERNELS)}")
    tiles = [whole_number(given.tile, "--tile", 1, LARGEST_SIDE)]
    tiles += [
        whole_number(text, flag, 1, LARGEST_SIDE) for text, flag in ((given.br, "--br"), (given.bc, "--bc"))
    ]
    shapes = tuple(Shape(N, d, *tiles) for N, d in sides(given, settings))
    models = caches(given.cache, given.ways)
    refuse_endless(shapes, kernels, models)
    outcome.prepare(settings, "cache")
    whole = given.whole or given.cachegrind
    study = measure(kernels, models, shapes, scores_only=not whole, about=options.about({}))
    if given.cachegrind:
        study = replace(study, counted=counts(study.walks(), settings))
    outcome.deliver(study, settings)
    return EXIT_PASS


def caches(text: str | None, ways: str) -> tuple[Model, ...]:
    """Return the caches of `--cache` (default: LADDER and this machine's own). Raises UsageError for invalid values."""
    found = facts.describe()
    own = {cache.size_bytes for cache in found.caches if cache.size_bytes <= max(LADDER)}
    return helpers.cache_models(text, ways, found.line_bytes, sorted({*LADDER, *own}))


def sides(given: argparse.Namespace, settings: options.Settings) -> list[tuple[int, int]]:
    """Return pairs (N, d): one if the command line has -N or -d, else FAR_LARGER and the assignment's default sizes.

    The formulas hold for FAR_LARGER.
    """
    chosen = {
        name: whole_number(text, f"-{name}", 1, LARGEST_SIDE)
        for name in ("N", "d")
        if (text := getattr(given, f"size_{name}")) is not None
    }
    sizes = {**settings.sizes, **chosen}
    own = (sizes["N"], sizes["d"])
    return [own] if chosen else [FAR_LARGER, own]


def refuse_endless(shapes: Sequence[Shape], kernels: Sequence[str], models: Sequence[Model]) -> None:
    """Raise UsageError if the simulation would take many minutes."""
    accesses = sum(4 * shape.N**2 * shape.d for shape in shapes) * len(kernels) * len(models)
    if accesses > MOST_ACCESSES:
        raise UsageError(
            f"this simulates about {accesses:.1g} accesses in {len(models)} caches, which takes too long: choose a "
            "smaller -N or -d, or fewer sizes with --cache"
        )


# ---- lines that a student's own kernel fetches, counted by valgrind's cachegrind.
# The kernel runs in a separate program (`grader.study.standalone`), optimised as usual, on one head and one thread.
# cachegrind simulates two levels. The first one gets the size of the simulated cache, and only its misses are used. A
# second run, without the call of the kernel, counts the misses of the rest of the program. They are subtracted.

#: Build the program with the flags of judged programs. Only a total is read, so debug information is not needed.
KIT = Kit(flags=nativebuild.OWN_FLAGS)
TIMEOUT_S = 900.0
EVENTS = re.compile(r"^events: (.*)$", re.MULTILINE)
SUMMARY = re.compile(r"^summary: (.*)$", re.MULTILINE)
#: Limit on the ways of a cache for cachegrind: with more, a simulation takes too long.
MOST_WAYS = 1 << 14


def valgrind() -> str:
    """Return the path of valgrind. If it is missing, raise UsageError that explains how to install it."""
    program = shutil.which("valgrind")
    if program is None:
        raise UsageError(
            "--cachegrind needs valgrind, which is not on the PATH: on Debian and Ubuntu 'apt install valgrind'"
        )
    return program


def counts(walks: Sequence[Walk], settings: Settings) -> dict[Walk, int | None]:
    """Return for each walk the lines that cachegrind counts; None if its kernel is not a part of the student's file."""
    program = valgrind()
    parts = {part.id: part for part in settings.assignment.parts if part.reference}
    counted: dict[Walk, int | None] = {}
    for walk in walks:
        kernel, model, shape = walk
        show_progress(f"cachegrind: {kernel}, N={shape.N} d={shape.d}, {model.size_bytes} bytes")
        part = parts.get(kernel)
        counted[walk] = None if part is None else count(program, part, shape, model, settings)
    show_progress("")
    return counted


def count(program: str, part: Part, shape: Shape, model: Model, settings: Settings) -> int:
    """Return the lines that one call fetches, as cachegrind counts them. Raises UsageError if it cannot count them."""
    try:
        built = build_program(settings.source, KIT, {"TILE_SIZE": str(shape.tile)})
    except Unsuitable as why:
        raise UsageError(f"--cachegrind cannot run {settings.source}: {why}") from why
    sizes = {**settings.sizes, "B": 1, "H": 1, "threads": 1}
    sizes |= {"N": shape.N, "d": shape.d, "Br": shape.Br, "Bc": shape.Bc}
    request = binding.request(
        part, sizes, settings.assignment.typical_inputs(part, sizes, settings.seed or 0)
    )
    ways = model.ways or model.size_bytes // model.line_bytes
    sets = model.size_bytes // (ways * model.line_bytes)
    if ways > MOST_WAYS or sets & (sets - 1) or sets * ways * model.line_bytes != model.size_bytes:
        raise UsageError(
            f"cachegrind cannot simulate {model.size_bytes} bytes in {ways} ways: choose a size that is a power of "
            "two, or --ways 16"
        )
    prefix = [
        *(program, "--tool=cachegrind", "--vgdb=no", "--cache-sim=yes", "--cachegrind-out-file=counts"),
        *(f"--D1={model.size_bytes},{ways},{model.line_bytes}", "-q"),
    ]
    misses = []
    for prepared_only in (False, True):
        with ran(
            built,
            request,
            without_the_call=prepared_only,
            prefix=prefix,
            tool_files=_tool_files(program),
            timeout_s=TIMEOUT_S,
            memory_bytes=8 << 30,
        ) as run:
            file = run.folder / "counts"
            if run.finished.timed_out:
                raise UsageError(
                    f"cachegrind did not end within {TIMEOUT_S:.0f} s: choose a smaller -N or -d"
                )
            if run.call is None or run.call.status != "ok" or not file.is_file():
                said = (
                    run.call.message if run.call else (run.output.strip().splitlines() or ["no message"])[-1]
                )
                raise UsageError(f"{part.function} fails under cachegrind: {said[:200]}")
            misses.append(data_misses(file.read_text(errors="replace")))
    return max(0, misses[0] - misses[1])


def _tool_files(program: str) -> list[Path]:
    """Return the files that valgrind needs. On Debian `valgrind` is a script that starts `valgrind.bin`."""
    folders = [Path(place, "valgrind") for place in ("/usr/libexec", "/usr/lib", "/usr/local/libexec")]
    return [Path(program), Path(f"{program}.bin"), *folders]


def data_misses(text: str) -> int:
    """Return the number of first-level data misses (reads and writes) in the text of a cachegrind file.

    Raises KitError if the text has no summary.
    """
    events, summary = EVENTS.search(text), SUMMARY.search(text)
    if events is None or summary is None:
        raise KitError("cachegrind wrote no summary: is its version older than 3.0?")
    counts = dict(zip(events[1].split(), map(int, summary[1].split()), strict=False))
    return counts.get("D1mr", 0) + counts.get("D1mw", 0)
