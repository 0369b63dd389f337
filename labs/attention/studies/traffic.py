"""Cache-line traffic of the course's loops, simulated, and the formulas of a write-up beside it.

Theory of operation. native/cachesim.cpp walks the loops of a part as the assignment describes them and makes every
access of theirs to a tensor in a model of one cache: least recently used lines leave, written lines are fetched first
and written back when they leave. By default it is fully associative: the formulas assume that, and it leaves one thing
that matters, the size. With `ways`, addresses choose a set as in a real cache, and rows that lie a power of two apart
get into each other's way. There is one level and no prefetching, which changes when a line comes, not whether.

The formulas count lines of L floats for Q * transpose(K) of one head, where rows are far larger than the cache:

    part 1            2 N^2 d / L       each of the N^2 scores brings a row of Q and one of K
    part 2            2 N^2 d / (L T)   a T x T tile of scores brings T rows of each
    part 2, rewritten 3 N^2 d / (L T)   the same, but all of S is read and written again for every tile of d

so the ratio to part 1 is 1 / T, and 3 / (2 T). Where a head's K fits, each line comes once and the ratio is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from grader.core import machine
from grader.study import helpers

SIMULATOR = Path(__file__).resolve().parent / "native" / "cachesim.cpp"
SIMULATION_TIMEOUT_S = 600.0
FLOAT_BYTES = 4
#: The walks of native/cachesim.cpp by name.
KERNELS = ("part1", "part2", "part2-rewritten", "part3", "part4")


@dataclass(frozen=True)
class Shape:
    """One head. `tile` is part 2's T; `Br` and `Bc` are part 4's."""

    N: int
    d: int
    tile: int = 16
    Br: int = 256
    Bc: int = 256

    @property
    def row_bytes(self) -> int:
        """A row of Q, K, V or O."""
        return self.d * FLOAT_BYTES


@dataclass(frozen=True)
class Model:
    """The simulated cache; `ways` 0 is fully associative."""

    size_bytes: int
    ways: int = 0
    line_bytes: int = 64


Walk = tuple[str, Model, Shape]
"""A kernel in a cache on a shape."""


@dataclass(frozen=True)
class Traffic:
    """Lines of one head between the cache and memory, and the accesses that caused them."""

    accesses: int
    fetched: int
    written: int

    @property
    def lines(self) -> int:
        return self.fetched + self.written


def simulate(kernel: str, shape: Shape, model: Model, *, scores_only: bool) -> Traffic:
    """Walk one of KERNELS, whole or its Q * transpose(K) alone. Raises KitError where the simulator does not build."""
    name = f"{kernel}-scores" if scores_only else kernel
    text = helpers.output_of(SIMULATOR, [name, *_arguments(shape, model)], SIMULATION_TIMEOUT_S)
    return Traffic(*map(int, text.split()))


def simulate_all(
    walks: Sequence[tuple[str, Model, Shape]], *, scores_only: bool
) -> dict[tuple[str, Model, Shape], Traffic]:
    """Several walks, as many at a time as there are cores."""
    helpers.program(SIMULATOR)
    with ThreadPoolExecutor(max(1, len(machine.usable_cpus()))) as pool:
        found = pool.map(lambda walk: simulate(walk[0], walk[2], walk[1], scores_only=scores_only), walks)
        return dict(zip(walks, found, strict=True))


def _arguments(shape: Shape, model: Model) -> list[object]:
    return [
        *(shape.N, shape.d, shape.tile, shape.Br, shape.Bc),
        *(model.size_bytes, model.ways, model.line_bytes),
    ]


def formula(kernel: str, shape: Shape, line_bytes: int) -> float | None:
    """The lines that the module's text gives; None where it gives none (parts 3 and 4)."""
    per_line = line_bytes / FLOAT_BYTES
    whole = shape.N**2 * shape.d / per_line
    return {
        "part1": 2 * whole,
        "part2": 2 * whole / shape.tile,
        "part2-rewritten": 3 * whole / shape.tile,
    }.get(kernel)


def compulsory_bytes(shape: Shape, line_bytes: int) -> int:
    """What no kernel can do without: Q, K and V of a head read once, O written once."""
    lines = -(-shape.N * shape.d * FLOAT_BYTES // line_bytes)
    return 4 * lines * line_bytes
