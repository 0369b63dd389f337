"""`attention-memory`: memory that naive and flash attention allocate besides their inputs, for several N.

Naive attention stores scores and weights, B N^2 numbers each: if N doubles, it needs four times the memory. Flash
attention stores its output and one number for each row: if N doubles, it needs twice the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from grader.core.results import EXIT_PASS
from grader.study import options, outcome
from grader.study.figure import Figure, Plot, Series
from grader.study.table import Table

from .asking import about, measured

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
HEADS, D = 8, 64
MIB = 1 << 20


@dataclass(frozen=True)
class Peak:
    """Peak bytes of both kernels besides the inputs, for N = `length`; None if the GPU's memory was too small."""

    length: int
    naive: int | None
    flash: int | None


def growth(points: tuple[tuple[int, int | None], ...]) -> float | None:
    """Return p such that memory grows as N^p between the last two known points (N, bytes); None with fewer points."""
    known = [(n, size) for n, size in points if size]
    if len(known) < 2:
        return None
    (n, size), (m, more) = known[-2:]
    return log2(more / size) / log2(m / n)


@dataclass(frozen=True)
class MemoryStudy:
    peaks: tuple[Peak, ...]
    about: str

    def table(self) -> Table:
        rows = tuple(
            (
                peak.length,
                None if peak.naive is None else peak.naive / MIB,
                None if peak.flash is None else peak.flash / MIB,
                peak.naive / peak.flash if peak.naive and peak.flash else None,
            )
            for peak in self.peaks
        )
        powers = [
            growth(tuple((peak.length, getattr(peak, name)) for peak in self.peaks))
            for name in ("naive", "flash")
        ]
        limits = [
            f"{name} N^{power:.2f}" for name, power in zip(("naive", "flash"), powers, strict=True) if power
        ]
        return Table(
            "attention-memory",
            f"Memory of attention beside its inputs, {HEADS} heads of d = {D}, float16",
            ("N", "naive, MiB", "flash, MiB", "naive / flash"),
            rows,
            f"{self.about}. The largest amount that torch allocated during a call. Growth between the last two N: "
            f"{', '.join(limits) or 'not known'}. Empty: more memory than the GPU has.",
        )

    def figures(self) -> tuple[Figure, ...]:
        drawn = []
        for name in ("naive", "flash"):
            known = [(float(p.length), getattr(p, name) / MIB) for p in self.peaks if getattr(p, name)]
            if known:
                x, y = zip(*known, strict=True)
                drawn.append(Series(name, tuple(x), tuple(y)))
        title = "Memory of attention over N"
        return (
            Plot(
                "attention-memory",
                title,
                self.about,
                "N",
                "MiB",
                tuple(drawn),
                log_x=True,
                log_y=True,
                x_ticks=tuple(map(float, LENGTHS)),
            ),
        )


def peaks_of(points: list[list[int | None]]) -> tuple[Peak, ...]:
    return tuple(Peak(int(n or 0), naive, flash) for n, naive, flash in points)


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py lab gpu attention-memory` and return the exit code."""
    parse = options.parser(arguments, "attention-memory", "Memory of naive and of flash attention over N.")
    parse.add_argument("--lengths", metavar="n,n,...", help=f"values of N ({','.join(map(str, LENGTHS))})")
    given = parse.parse_args(arguments)
    settings = options.settings(given)
    lengths = LENGTHS if given.lengths is None else options.numbers(given.lengths, "--lengths", 16, 65536)
    outcome.prepare(settings, "attention-memory")
    found = measured("memory", settings.source, lengths=list(lengths), heads=HEADS, d=D)
    outcome.deliver(MemoryStudy(peaks_of(found["points"]), about(found)), settings)
    return EXIT_PASS
