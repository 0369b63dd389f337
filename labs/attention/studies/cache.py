"""`cache`: how many lines the parts move between a cache and memory, over the size of that cache.

The numbers are simulated (`labs.attention.studies.traffic`); with --cachegrind the student's own kernels are counted
beside them (`labs.attention.studies.cachegrind`).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from grader.core.commandline import whole_number
from grader.core.errors import EXIT_PASS, UsageError
from grader.study import facts, helpers, options, outcome
from grader.study.figure import Figure, Plot, Series
from grader.study.table import Cell, Table

from . import cachegrind, traffic
from .traffic import KERNELS, Model, Shape, Traffic, Walk

PARTS = ("part1", "part2")
LADDER = (16 << 10, 128 << 10, 512 << 10, 4 << 20)
#: Rows of 16 KB, as long as a small cache: what the formulas speak of. No machine's cache holds two of the first few.
FAR_LARGER = (192, 4096)
LARGEST_SIDE = 1 << 14
MOST_ACCESSES = 1 << 37


@dataclass(frozen=True)
class CacheStudy:
    """Traffic of some kernels (of traffic.KERNELS) in some caches, for some shapes. `counted` are lines that cachegrind
    saw the student's own kernels fetch, None for what is no kernel of theirs."""

    kernels: tuple[str, ...]
    models: tuple[Model, ...]
    shapes: tuple[Shape, ...]
    scores_only: bool
    found: Mapping[Walk, Traffic]
    about: str
    counted: Mapping[Walk, int | None] = field(default_factory=dict)

    def walks(self) -> list[Walk]:
        """In the order of the table."""
        return [
            (kernel, model, shape)
            for shape in self.shapes
            for model in self.models
            for kernel in self.kernels
        ]

    def ratio(self, walk: Walk) -> float:
        """Lines of this kernel over those of the first one, in the same cache."""
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
            ours, theirs = (traffic.formula(name, shape, model.line_bytes) for name in (kernel, base[0]))
            row.append(None if ours is None else round(ours))
            row.append(ours / theirs if ours is not None and theirs is not None else None)
        if self.counted:
            own, first = self.counted[walk], self.counted[base]
            row += [own, own / first if own is not None and first else None]
        return tuple(row)

    def caption(self) -> str:
        """What was simulated, and where the formula applies."""
        model, shape = self.models[0], self.shapes[0]
        ways = "fully associative" if model.ways == 0 else f"of {model.ways} ways"
        tiles = f"T={shape.tile}" + (f" Br={shape.Br} Bc={shape.Bc}" if "part4" in self.kernels else "")
        rows = " ".join(
            f"For d={one.d}, two rows have {helpers.size_text(2 * one.row_bytes)} bytes and all of K has "
            f"{helpers.size_text(one.N * one.row_bytes)}."
            for one in self.shapes
        )
        formulas = "The formulas are for a cache that cannot hold two rows. " if self.scores_only else ""
        counted = (
            " cachegrind counts what the student's own kernels fetch, in one cache of that size."
            if self.counted
            else ""
        )
        return (
            f"{self.about}. Simulated with {tiles}: one level, {ways}, lines of {model.line_bytes} bytes, the least "
            f"recently used out first. {formulas}{rows}{counted}"
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
    """Simulate every kernel in every cache. Raises KitError where the simulator cannot be built."""
    study = CacheStudy(tuple(kernels), tuple(models), tuple(shapes), scores_only, {}, about)
    return replace(study, found=traffic.simulate_all(study.walks(), scores_only=scores_only))


def main(arguments: list[str]) -> int:
    """`python gpt149.py cache PART... ...`."""
    parse = options.parser(
        arguments, "cache", "Cache lines that the parts' loops move, simulated over the size of the cache."
    )
    parse.add_argument(
        "kernels", metavar="PART", nargs="*", default=[], help=f"of {', '.join(KERNELS)} (part1 part2)"
    )
    parse.add_argument(
        "--cache", metavar="SIZE,...", help="sizes of the cache, as 16K,512K (some, and this machine's own)"
    )
    parse.add_argument(
        "--ways", metavar="n", default="0", help="associativity, 0 for full (%(default)s): see docs/study.md"
    )
    parse.add_argument("--tile", metavar="n", default="16", help="T of part 2 (%(default)s)")
    parse.add_argument("--br", metavar="n", default="256", help="Br of part 4 (%(default)s)")
    parse.add_argument("--bc", metavar="n", default="256", help="Bc of part 4 (%(default)s)")
    parse.add_argument(
        "--whole", action="store_true", help="the whole kernel, not its Q * transpose(K) alone"
    )
    parse.add_argument(
        "--cachegrind",
        action="store_true",
        help="also count the student's own kernels, with valgrind; whole ones, so implies --whole. Slow",
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
    models = caches(given.cache, whole_number(given.ways, "--ways", 0, 1 << 20))
    refuse_endless(shapes, kernels, models)
    outcome.prepare(settings, "cache")
    whole = given.whole or given.cachegrind
    study = measure(kernels, models, shapes, scores_only=not whole, about=options.about({}))
    if given.cachegrind:
        study = replace(study, counted=cachegrind.counts(study.walks(), settings))
    outcome.deliver(study, settings)
    return EXIT_PASS


def caches(text: str | None, ways: int) -> tuple[Model, ...]:
    """The caches of `--cache`, else a ladder with this machine's own among it. Raises UsageError."""
    found = facts.describe()
    own = {cache.size_bytes for cache in found.caches if cache.size_bytes <= max(LADDER)}
    sizes = tuple(sorted({*LADDER, *own})) if text is None else helpers.byte_sizes(text, "--cache")
    least = found.line_bytes * max(ways, 2)
    if sizes[0] < least:
        raise UsageError(
            f"--cache: a cache of {max(ways, 2)} ways has at least {helpers.size_text(least)} bytes"
        )
    return tuple(Model(size, ways, found.line_bytes) for size in sizes)


def sides(given: argparse.Namespace, settings: options.Settings) -> list[tuple[int, int]]:
    """N and d as given. Without either: a shape far larger than a cache, and the assignment's own."""
    chosen = {
        name: whole_number(text, f"-{name}", 1, LARGEST_SIDE)
        for name in ("N", "d")
        if (text := getattr(given, f"size_{name}")) is not None
    }
    sizes = {**settings.sizes, **chosen}
    own = (sizes["N"], sizes["d"])
    return [own] if chosen else [FAR_LARGER, own]


def refuse_endless(shapes: Sequence[Shape], kernels: Sequence[str], models: Sequence[Model]) -> None:
    """Raise UsageError for what would take many minutes rather than seconds."""
    accesses = sum(4 * shape.N**2 * shape.d for shape in shapes) * len(kernels) * len(models)
    if accesses > MOST_ACCESSES:
        raise UsageError(
            f"this makes about {accesses:.1g} accesses in {len(models)} caches: choose a smaller -N or -d, or fewer "
            "sizes with --cache"
        )
