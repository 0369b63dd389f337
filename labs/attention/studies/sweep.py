"""`sweep`: times a part for several tile sizes of part 2, for several pairs of tiles of part 4, or for several N."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import linear_regression

from grader.assignment.records import Part
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, UsageError
from grader.judge.timing.intervals import Estimate, median_estimate
from grader.study import options, outcome
from grader.study.figure import Figure, HeatMap, Plot, Series
from grader.study.laboratory import (
    TIME_COLUMNS,
    BuildFlags,
    Comparison,
    Laboratory,
    Variant,
    bounds,
    clock_label,
    compared,
    curve,
    over,
    set_up,
    time_cells,
)
from grader.study.memory import workspace_bytes
from grader.study.options import Settings
from grader.study.table import Cell, Table, shown

ROWS = (128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Scaling:
    """Times of a part for several N.

    For each of `sizes`, `comparison` has the student's time, `reference` the reference's, `ratios` their quotient.
    `exponent` is p in time ~ N^p: the median of the fits to all rounds, and its interval; None for fewer than 2 sizes.
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
        """Return a sentence about the fitted power law."""
        if self.exponent is None:
            return "To see how time grows, give two sizes or more."
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
        """Return the fitted times in ms at each size, scaled to the same geometric mean as the measured times."""
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
    """Fit log(time) = p log(N) + c by least squares in each round, and return the p of each round.

    `rounds[k]` has the times of round k, in the order of `sizes`. `sizes` needs two different numbers at least.
    """
    logs = [math.log(n) for n in sizes]
    return [linear_regression(logs, [math.log(time) for time in times]).slope for times in rounds]


def measure_sizes(laboratory: Laboratory, part: Part, sizes: Sequence[int]) -> Scaling:
    """Time the part and its reference at all sizes (values of N), in interleaved rounds."""
    shapes = [{**laboratory.settings.sizes, "N": n} for n in sizes]
    mine = [Variant(f"N={shape['N']}", part, shape) for shape in shapes]
    theirs = [Variant(f"reference, N={shape['N']}", part, shape, reference=True) for shape in shapes]
    # At each size the student's kernel and the reference are timed one after the other, so that both see the same load.
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


TILES = "2,4,8,12,16,32,64"
BLOCKS = "16,64,256"
MACRO = "TILE_SIZE"
TILED_PART = "part2"
LARGEST_TILE = 4096


@dataclass(frozen=True)
class TileSweep:
    """Times of a part for several values of a macro. `comparison` has a line for the reference, then one for each value
    in `tiles`."""

    part: Part
    macro: str
    tiles: tuple[int, ...]
    comparison: Comparison
    about: str

    def table(self) -> Table:
        names = ["reference", *map(str, self.tiles)]
        rows = [(name, *time_cells(line)) for name, line in zip(names, self.comparison.lines, strict=True)]
        return Table(
            f"sweep-{self.part.id}",
            f"{self.part.title} over {self.macro}",
            (self.macro, *TIME_COLUMNS),
            tuple(rows),
            f"{self.about}. {self.comparison.how()}",
        )

    def figures(self) -> tuple[Figure, ...]:
        reference, *lines = self.comparison.lines
        right = [(tile, line) for tile, line in zip(self.tiles, lines, strict=True) if line.time_ms]
        series = [curve("student", right)]
        if reference.time_ms is not None and right:
            ends = (right[0][0], right[-1][0])
            series.append(
                Series("reference", tuple(map(float, ends)), (reference.time_ms.middle,) * 2, style="line")
            )
        return (
            Plot(
                f"sweep-{self.part.id}",
                f"{self.part.title}: time over {self.macro}",
                self.about,
                self.macro,
                clock_label(self.comparison),
                tuple(series),
                log_x=True,
                x_ticks=tuple(float(tile) for tile, _ in right),
            ),
        )


@dataclass(frozen=True)
class BlockSweep:
    """Times of a part for several sizes of its two tiles. `comparison` has a line for the reference with the default
    tiles, then one for each of `pairs` (Br, Bc)."""

    part: Part
    pairs: tuple[tuple[int, int], ...]
    comparison: Comparison
    about: str

    def table(self) -> Table:
        reference, *lines = self.comparison.lines
        rows = [("reference", reference.variant.shape["Br"], reference.variant.shape["Bc"], reference)]
        rows += [("student", br, bc, line) for (br, bc), line in zip(self.pairs, lines, strict=True)]
        return Table(
            f"sweep-{self.part.id}",
            f"{self.part.title} over the sizes of its tiles",
            ("kernel", "Br", "Bc", "tiles (bytes)", *TIME_COLUMNS),
            tuple(
                (who, br, bc, workspace_bytes(line.variant.part, line.variant.shape), *time_cells(line))
                for who, br, bc, line in rows
            ),
            f"{self.about}. {self.comparison.how()}",
        )

    def figures(self) -> tuple[Figure, ...]:
        times = dict(zip(self.pairs, self.comparison.lines[1:], strict=True))
        rows, columns = (sorted({pair[k] for pair in self.pairs}) for k in (0, 1))

        def value(br: int, bc: int) -> float | None:
            line = times.get((br, bc))
            return line.time_ms.middle if line is not None and line.time_ms is not None else None

        return (
            HeatMap(
                f"sweep-{self.part.id}",
                f"{self.part.title}: time over its tiles",
                self.about,
                "Bc, rows of a K and V tile",
                "Br, rows of a Q tile",
                tuple(map(str, columns)),
                tuple(map(str, rows)),
                tuple(tuple(value(br, bc) for bc in columns) for br in rows),
                clock_label(self.comparison),
            ),
        )


# ---- measuring


def measure_tiles(laboratory: Laboratory, part: Part, tiles: Sequence[int], macro: str) -> TileSweep:
    """Build the file with each tile, and time all builds in turn. Raises UsageError if all builds are the same."""
    settings, shape = laboratory.settings, laboratory.settings.sizes
    recipes = [BuildFlags(((macro, str(tile)),)) for tile in tiles]
    laboratory.prepare(recipes)
    objects = [
        path.read_bytes()
        for recipe in recipes
        if (path := laboratory.made(recipe).judged.object_path) is not None
    ]
    refuse_unchanged(macro, settings.source, objects)
    students = [Variant(str(tile), part, shape, recipe) for tile, recipe in zip(tiles, recipes, strict=True)]
    variants = [replace(students[0], label="reference", reference=True), *students]
    outcomes = laboratory.timed(variants, settings.rounds)
    return TileSweep(
        part, macro, tuple(tiles), compared(outcomes, rivals=range(1, len(variants))), options.about(shape)
    )


def measure_blocks(laboratory: Laboratory, part: Part, brs: Sequence[int], bcs: Sequence[int]) -> BlockSweep:
    """Time all pairs of tile sizes in interleaved rounds. The file is built once, because Br and Bc are arguments."""
    shape, pairs = laboratory.settings.sizes, [(br, bc) for br in brs for bc in bcs]
    students = [Variant(f"{br} x {bc}", part, {**shape, "Br": br, "Bc": bc}) for br, bc in pairs]
    variants = [Variant("reference", part, shape, reference=True), *students]
    outcomes = laboratory.timed(variants, laboratory.settings.rounds)
    return BlockSweep(
        part, tuple(pairs), compared(outcomes, rivals=range(1, len(variants))), options.about(shape)
    )


# ---- command line


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py sweep PART`. Return 1 if a variant was wrong or failed, else 0."""
    parse = options.parser(
        arguments,
        "sweep",
        "Time a part for several tiles (part2 --tile), pairs of tiles (part4 --br --bc) or numbers of rows (part3 -N).",
        lists=("N",),
    )
    parse.add_argument("part", metavar="PART", help="part1, part2, part3 or part4")
    parse.value("--tile", "n,n,...", f"tile sizes, which the macro gets (default for part2: {TILES})")
    parse.value("--macro", "NAME", f"macro of the tile size (default: {MACRO})", default=MACRO)
    parse.value("--br", "n,n,...", f"rows of a tile of Q in part4 (default: {BLOCKS})")
    parse.value("--bc", "n,n,...", f"rows of a tile of K and V in part4 (default: {BLOCKS})")
    given = parse.parse_args(arguments)
    settings, name, measure = planned(given, options.settings(given))
    outcome.prepare(settings, name)
    with set_up(settings) as laboratory:
        finding = measure(laboratory)
    outcome.deliver(finding, settings)
    return EXIT_SUBMISSION if any(line.trouble for line in finding.comparison.lines) else EXIT_PASS


Measure = Callable[[Laboratory], TileSweep | BlockSweep | Scaling]


def planned(given: argparse.Namespace, settings: Settings) -> tuple[Settings, str, Measure]:
    """Return the settings of the sweep that the command line requests, its table's name, and a function that measures.

    The default varies Br and Bc if the part has them, the tile in part 2, and N in other parts. Raises UsageError for
    options that exclude each other.
    """
    part, maxima = options.part(settings, given.part), settings.assignment.maxima
    rows = () if given.N is None else options.numbers(given.N, "-N", 1, maxima.get("N", 1 << 20))
    has_blocks = {"Br", "Bc"} <= set(part.arguments)
    asked = [name for name in ("tile", "br", "bc") if getattr(given, name) is not None]
    if not asked and len(rows) < 2:
        asked = ["br", "bc"] if has_blocks else ["tile"] if part.id == TILED_PART else []
    if not asked:
        return settings, f"scaling-{part.id}", partial(measure_sizes, part=part, sizes=rows or ROWS)
    if len(rows) > 1:
        raise UsageError(f"sweep varies one thing at a time: give either several -N or --{asked[0]}")
    if rows:
        settings = replace(settings, shape={**settings.shape, "N": rows[0]})
    name = f"sweep-{part.id}"
    if "tile" in asked:
        if len(asked) > 1:
            raise UsageError("sweep varies tiles or blocks, not both: give either --tile, or --br and --bc")
        refuse_absent(given.macro, settings)
        tiles = options.numbers(given.tile or TILES, "--tile", 1, LARGEST_TILE)
        return settings, name, partial(measure_tiles, part=part, tiles=tiles, macro=given.macro)
    if not has_blocks:
        raise UsageError(f"{part.id} takes no Br and Bc: --br and --bc are for part4")
    brs, bcs = (
        options.numbers(getattr(given, size) or BLOCKS, f"--{size}", 1, maxima.get(size.title(), 1 << 20))
        for size in ("br", "bc")
    )
    return settings, name, partial(measure_blocks, part=part, brs=brs, bcs=bcs)


def refuse_absent(macro: str, settings: Settings) -> None:
    """Raise UsageError if the source does not use the macro: all values would give the same program."""
    if not macro.isidentifier():
        raise UsageError(f"--macro takes a macro's name, not '{macro}'")
    if not re.search(rf"\b{macro}\b", settings.source.read_text(errors="replace")):
        raise UsageError(
            f"{settings.source} does not use {macro}: make the tile size a macro, with #ifndef {macro} around its "
            "#define, or name your macro with --macro"
        )


def refuse_unchanged(macro: str, source: Path, objects: Sequence[bytes]) -> None:
    """Raise UsageError if several object files, built with different values of the macro, are all the same."""
    if len(objects) > 1 and len(set(objects)) == 1:
        raise UsageError(
            f"{source} gives the same code for all values of {macro}: put #ifndef {macro} and #endif around its #define"
        )
