"""`attention-memory`: memory that naive and flash attention allocate besides their inputs, for several N.

Naive attention stores scores and weights, B N^2 numbers each: if N doubles, it needs four times the memory. Flash
attention stores its output and one number for each row: if N doubles, it needs twice the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log2

from grader.core.results import EXIT_PASS
from grader.study import options, outcome
from grader.study.figure import Figure, Plot, Series
from grader.study.table import Table

from .asking import about, measured

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
HEADS, D = 8, 64
KERNELS = ("naive", "flash")
MIB = 1 << 20


def growth(points: Iterable[tuple[int, int | None]]) -> float | None:
    """Return p such that memory grows as N^p between the last two known points (N, bytes); None with fewer points."""
    known = [(n, size) for n, size in points if size]
    if len(known) < 2:
        return None
    (n, size), (m, more) = known[-2:]
    return log2(more / size) / log2(m / n)


@dataclass(frozen=True)
class MemoryStudy:
    """Result of the study. `peaks` has rows (N, naive, flash): the peak bytes of both kernels besides their inputs.

    None in place of a number: the GPU's memory was too small.
    """

    peaks: Sequence[tuple[int, int | None, int | None]]
    about: str

    def of(self, kernel: str) -> list[tuple[int, int | None]]:
        """Return the points (N, bytes) of a kernel."""
        return [(peak[0], peak[1 + KERNELS.index(kernel)]) for peak in self.peaks]

    def table(self) -> Table:
        rows = tuple(
            (n, *(size and size / MIB for size in sizes), sizes[0] / sizes[1] if all(sizes) else None)
            for n, *sizes in self.peaks
        )
        limits = [f"{name} N^{power:.2f}" for name in KERNELS if (power := growth(self.of(name)))]
        return Table(
            "attention-memory",
            f"Memory of attention beside its inputs, {HEADS} heads of d = {D}, float16",
            ("N", "naive, MiB", "flash, MiB", "naive / flash"),
            rows,
            f"{self.about}. The largest amount that torch allocated during a call. Growth between the last two N: "
            f"{', '.join(limits) or 'not known'}. Empty: more memory than the GPU has.",
        )

    def figures(self) -> tuple[Figure, ...]:
        known = {name: [(float(n), size / MIB) for n, size in self.of(name) if size] for name in KERNELS}
        drawn = tuple(Series(name, *zip(*points, strict=True)) for name, points in known.items() if points)
        return (
            Plot(
                "attention-memory",
                "Memory of attention over N",
                self.about,
                "N",
                "MiB",
                drawn,
                log_x=True,
                log_y=True,
                x_ticks=tuple(map(float, LENGTHS)),
            ),
        )


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py lab gpu attention-memory` and return the exit code."""
    parse = options.parser(arguments, "attention-memory", "Memory of naive and of flash attention over N.")
    parse.value("--lengths", "n,n,...", f"values of N (default: {','.join(map(str, LENGTHS))})")
    given = parse.parse_args(arguments)
    settings = options.settings(given)
    lengths = LENGTHS if given.lengths is None else options.numbers(given.lengths, "--lengths", 16, 65536)
    outcome.prepare(settings, "attention-memory")
    found = measured("memory", settings.source, lengths=list(lengths), heads=HEADS, d=D)
    outcome.deliver(MemoryStudy(found["points"], about(found)), settings)
    return EXIT_PASS
