"""Study `machine`: properties of this machine, with peak speed and bandwidth measured in about one second."""

from __future__ import annotations

from dataclasses import dataclass

from grader.core import machine as host
from grader.study import facts, figure, options, outcome
from grader.study.facts import Machine, Speed
from grader.study.figure import Figure
from grader.study.table import Cell, Table

LEVEL_WORDS = {
    "scalar": "one number at a time",
    "sse2": "4 floats at a time, no multiply-add",
    "avx": "8 floats at a time, no multiply-add: what -mavx allows",
    "avx2": "8 floats at a time, multiply-add",
    "avx512": "16 floats at a time, multiply-add",
    "portable": "4 floats at a time, compiled from C++",
}


@dataclass(frozen=True)
class MachineStudy:
    """The machine's properties and its measured speeds. `load` is the 1-minute load average before them, or None."""

    processor: str
    cores: int
    load: float | None
    machine: Machine
    speed: Speed
    about: str

    def table(self) -> Table:
        machine, speed = self.machine, self.speed
        rows: list[tuple[Cell, ...]] = [
            ("processor", self.processor, None, None),
            ("cores", self.cores, None, None),
            ("cache line, bytes", machine.line_bytes, None, f"{machine.line_bytes // 4} floats"),
        ]
        for cache in machine.caches:
            shared = _shared(cache.ways, cache.shared_by)
            rows.append((f"{cache.name} data cache, bytes", cache.size_bytes, None, shared))
        for level in speed.levels:
            peaks = (speed.peak(level, threads) / 1e9 for threads in (1, speed.cores))
            rows.append((f"peak {level}, GFLOP/s", *peaks, LEVEL_WORDS.get(level, "")))
        for name, found, meaning in (
            ("triad", speed.triad, "a = b + 3c, 12 bytes an element"),
            ("read", speed.read, "a sum over an array"),
        ):
            rows.append((f"bandwidth, {name}, GB/s", found[1] / 1e9, max(found.values()) / 1e9, meaning))
        columns = ("what", "value, or on one thread", "on all cores", "meaning")
        return Table("machine", "This machine", columns, tuple(rows), self.caption())

    def caption(self) -> str:
        """Return the table's caption, with a note if the cache sizes are guesses or the machine was busy."""
        guessed = " This system does not report its caches; the sizes shown are usual ones."
        guessed = "" if self.machine.is_reported else guessed
        busy = ""
        if self.load is not None and self.load > self.cores / 2:
            busy = (
                f" The load was {self.load:.1f} on {self.cores} cores: figures for all cores are too low, measure "
                "again when no other program runs."
            )
        return f"{self.about}. Peaks and bandwidths are the best of several tries.{guessed}{busy}"

    def figures(self) -> tuple[Figure, ...]:
        peaks = {
            "one thread" if threads == 1 else f"{threads} threads": [
                self.speed.peak(level, threads) / 1e9 for level in self.speed.levels
            ]
            for threads in dict.fromkeys((1, self.speed.cores))
        }
        title = "Peak of each instruction set level"
        names, x_label = self.speed.levels, "instruction set level"
        return (figure.bars("machine", title, self.about, "GFLOP/s", names, peaks, x_label),)


def _shared(ways: int | None, cores: int | None) -> str:
    words = [f"{ways} ways"] if ways else []
    if cores:
        words.append("of one core" if cores == 1 else f"shared by {cores} cores")
    return ", ".join(words)


def measure() -> MachineStudy:
    """Read the machine's properties and measure its speed. Raises KitError if native/probe.cpp fails."""
    known = host.describe()
    load = known.get("load_average")
    return MachineStudy(
        processor=str(known["processor"]),
        cores=int(str(known["cores"])),
        load=float(load[0]) if isinstance(load, list) else None,
        machine=facts.describe(),
        speed=facts.measure(),
        about=options.about({}),
    )


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py machine ...`. Return exit code 0."""
    about = "Caches, cores, SIMD level, and peak FLOP/s and bandwidth as measured here."
    return outcome.run(arguments, "machine", about, measure)
