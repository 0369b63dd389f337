"""`waves`: throughput of the student's product for many sizes, with marks where one more wave of tiles begins.

Theory of operation. A product of S x S numbers in tiles of r x c has ceil(S/r) ceil(S/c) tiles. The tiles that the GPU
computes at the same time are a wave. This is one tile on each multiprocessor, if a tile fills its registers or shared
memory. The last wave takes as long as the others, even with few tiles, so time grows in steps. Throughput drops (a
cliff) where a slightly larger product needs another wave. For example, 1792 x 1792 in tiles of 256 x 128 is 98 tiles,
one wave on 108 multiprocessors; 1793 x 1793 is 120 tiles, two waves.

The model of the time has one free parameter, the time of a wave: the median of time / waves over all sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from grader.core.errors import UsageError
from grader.core.results import EXIT_PASS
from grader.study import options, outcome
from grader.study.figure import Figure, Plot, Series
from grader.study.table import Table

from .asking import about, measured

INNER = 4096
SIDES = tuple(range(1024, 5633, 128))


def tiles(side: int, tile: tuple[int, int]) -> int:
    """Return the number of tiles of a product of `side` x `side` numbers."""
    return -(-side // tile[0]) * -(-side // tile[1])


def waves(side: int, tile: tuple[int, int], at_once: int) -> int:
    """Return the number of waves of a product of `side` x `side` numbers, if a wave has `at_once` tiles."""
    return -(-tiles(side, tile) // at_once)


def filled(side: int, tile: tuple[int, int], at_once: int) -> float:
    """Return the number of the product's elements, divided by the number that its waves could compute if full."""
    return side * side / (waves(side, tile, at_once) * at_once * tile[0] * tile[1])


def cliffs(sides: Sequence[int], tile: tuple[int, int], at_once: int) -> tuple[int, ...]:
    """Return those of `sides` that need more waves than the side before. `sides` is in ascending order."""
    found = [waves(side, tile, at_once) for side in sides]
    return tuple(side for side, now, before in zip(sides[1:], found[1:], found, strict=False) if now > before)


@dataclass(frozen=True)
class WavesStudy:
    """Result of the study. `times` are pairs (side, ms), the smallest side first; `tile` is (rows, columns)."""

    times: tuple[tuple[int, float], ...]
    inner: int
    tile: tuple[int, int]
    multiprocessors: int
    about: str

    @property
    def sides(self) -> tuple[int, ...]:
        return tuple(side for side, _ in self.times)

    @property
    def wave_ms(self) -> float:
        """The time of one wave in the model, in ms."""
        return median(ms / self._waves(side) for side, ms in self.times)

    def _waves(self, side: int) -> int:
        return waves(side, self.tile, self.multiprocessors)

    def rate(self, side: int, ms: float) -> float:
        """Return the throughput in TFLOP/s."""
        return 2 * side * side * self.inner / ms / 1e9

    def table(self) -> Table:
        marked = set(cliffs(self.sides, self.tile, self.multiprocessors))
        rows = tuple(
            (
                side,
                tiles(side, self.tile),
                self._waves(side),
                100 * filled(side, self.tile, self.multiprocessors),
                ms,
                self.rate(side, ms),
                self.rate(side, self.wave_ms * self._waves(side)),
                "cliff" if side in marked else "",
            )
            for side, ms in self.times
        )
        columns = ("size", "tiles", "waves", "filled, %", "ms", "TFLOP/s", "by waves", "")
        return Table(
            "waves", f"Products of S x {self.inner} by {self.inner} x S", columns, rows, self.caption()
        )

    def caption(self) -> str:
        return (
            f"{self.about}. float16. Tiles of {self.tile[0]} x {self.tile[1]}, {self.multiprocessors} "
            "multiprocessors, one tile on each at a time: a wave. The last wave takes as long as a full "
            'one, so throughput drops where another wave begins (cliff). Column "filled": the share of all '
            f'waves\' work that computes numbers of the product. Column "by waves": TFLOP/s if each wave takes '
            f"{self.wave_ms:.3g} ms."
        )

    def figures(self) -> tuple[Figure, ...]:
        marked = cliffs(self.sides, self.tile, self.multiprocessors)
        by_side = dict(self.times)
        x = tuple(map(float, self.sides))
        cliff = Series(
            "one more wave begins",
            tuple(map(float, marked)),
            tuple(self.rate(side, by_side[side]) for side in marked),
            style="points",
            notes=tuple(f"{self._waves(side)} waves" for side in marked),
        )
        model = tuple(self.rate(side, self.wave_ms * self._waves(side)) for side in self.sides)
        drawn = [
            Series("measured", x, tuple(self.rate(*one) for one in self.times)),
            Series("by waves", x, model, style="line"),
        ]
        return (
            Plot(
                "waves",
                "Throughput of a product, and the waves of its tiles",
                self.about,
                "size S",
                "TFLOP/s",
                (*drawn, cliff) if marked else tuple(drawn),
            ),
        )


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py lab gpu waves` and return the exit code."""
    parse = options.parser(
        arguments, "waves", "Throughput of your matmul over its size, and where another wave begins."
    )
    parse.value("--sizes", "n,n,...", "sizes of the square products (default: 1024,1152,...,5632)")
    parse.value("--tile", "r,c", "rows and columns of your tiles (default: %(default)s)", default="128,256")
    given = parse.parse_args(arguments)
    settings = options.settings(given)
    sides = SIDES if given.sizes is None else options.numbers(given.sizes, "--sizes", 16, 16384)
    tile = tuple(int(side) if side.strip().isdigit() else 0 for side in given.tile.split(","))
    if len(tile) != 2 or min(tile) < 1:
        raise UsageError("--tile takes rows and columns, such as 128,256")
    outcome.prepare(settings, "waves")
    found = measured("waves", settings.source, sides=list(sides), inner=INNER)
    times = tuple((int(side), float(ms)) for side, ms in found["points"])
    outcome.deliver(
        WavesStudy(times, INNER, (tile[0], tile[1]), found["multiprocessors"], about(found)), settings
    )
    return EXIT_PASS
