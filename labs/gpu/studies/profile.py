"""`profile gelu`: a table of the kernels that five versions of GELU launch, and a trace of each for a browser.

Each plain PyTorch operation ("by hand") launches a kernel that reads and writes a whole tensor. PyTorch's own GELU, the
compiled version, and the versions in Triton and in CUDA launch a single kernel each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grader.core.errors import UsageError
from grader.core.results import EXIT_PASS
from grader.study import figure, options, outcome
from grader.study.figure import Figure
from grader.study.table import Cell, Table

from .asking import about, measured
from .inside import SIDE

WAYS = ("by hand", "PyTorch", "compiled", "Triton", "CUDA")
NAME_LETTERS = 60
BYTES = 2 * 4 * SIDE * SIDE
"""Bytes that one kernel moves: SIDE x SIDE float32 numbers, read once and written once."""


@dataclass(frozen=True)
class Way:
    """One way to write GELU. `ms` is the time of a call; if it is None, `trouble` says why. `launches` has a row for
    each kernel: its name, how often it was launched, and the total time of all launches in us."""

    name: str
    ms: float | None
    launches: Sequence[tuple[str, int, float]] = ()
    trouble: str = ""

    @property
    def count(self) -> int:
        return sum(count for _, count, _ in self.launches)


@dataclass(frozen=True)
class ProfileStudy:
    ways: tuple[Way, ...]
    about: str

    def table(self) -> Table:
        rows: list[tuple[Cell, ...]] = []
        for way in self.ways:
            if way.ms is None:
                rows.append((way.name, None, None, way.trouble, None, None))
                continue
            rate = BYTES / way.ms / 1e9
            for number, (kernel, count, us) in enumerate(way.launches):
                head = (way.name, way.ms, rate) if number == 0 else ("", None, None)
                rows.append((*head, _short(kernel), count, us))
        return Table(
            "profile",
            f"Kernels that each version of GELU launches, {SIDE} x {SIDE} float32",
            ("version", "ms", "TB/s", "kernel", "times", "us"),
            tuple(rows),
            f"{self.about}. TB/s: bytes of x and y, counted once, divided by the time. By hand, each operation is a "
            "separate kernel and a pass over memory; a fused kernel makes one pass. Traces: "
            "study/profile-*.json, for ui.perfetto.dev or chrome://tracing.",
        )

    def figures(self) -> tuple[Figure, ...]:
        known = [way for way in self.ways if way.ms is not None]
        values = {"ms": [way.ms or 0.0 for way in known], "kernels": [float(way.count) for way in known]}
        names = [way.name for way in known]
        return (figure.bars("profile", "Five versions of GELU", self.about, "ms; kernels", names, values),)


def _short(name: str) -> str:
    """Return a kernel's name without C++ template arguments, cut to NAME_LETTERS."""
    plain = name.partition("<")[0].removeprefix("void ")
    return plain if len(plain) <= NAME_LETTERS else plain[: NAME_LETTERS - 1] + "…"


def ways_of(found: Mapping[str, Any]) -> tuple[Way, ...]:
    """Convert the child's reply to a `Way` for each of WAYS, in this order."""
    each = ((name, found.get(name, "not measured")) for name in WAYS)
    return tuple(
        Way(name, None, trouble=one) if isinstance(one, str) else Way(name, one["ms"], one["kernels"])
        for name, one in each
    )


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py lab gpu profile gelu` and return the exit code."""
    parse = options.parser(arguments, "profile", "The kernels that five versions of GELU launch.")
    parse.add_argument("function", nargs="?", default="gelu", help="gelu")
    given = parse.parse_args(arguments)
    if given.function != "gelu":
        raise UsageError(f"profile has no versions of '{given.function}': choose gelu")
    settings = options.settings(given)
    outcome.prepare(settings, "profile")
    found = measured("profile", settings.source, trace=str((settings.out / "profile").resolve()))
    outcome.deliver(ProfileStudy(ways_of(found["ways"]), about(found)), settings)
    return EXIT_PASS
