"""`ladder PART`: compares the student's kernel with other kernels and with the limit of the GPU.

The other kernels, usually from slow to fast: plain PyTorch operations ("by hand"), the same operations compiled
(torch.compile), the reference and the staff's tuned kernel if present, and PyTorch's best. The limit is the longer of
two times: the bytes to move divided by the bandwidth of a copy, and the FLOPs divided by the speed of PyTorch's matrix
product. All are measured with CUDA events, one after the other in one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grader.core.errors import UsageError
from grader.core.results import EXIT_PASS, EXIT_SUBMISSION
from grader.study import figure, options, outcome
from grader.study.figure import Figure
from grader.study.table import Cell, Table

from .. import Gpu
from .asking import about, measured

PARTS = tuple(Gpu.oracles)
LIMIT = "the GPU's limit"


@dataclass(frozen=True)
class LadderStudy:
    """Result of the study. `times` has each kernel's time in ms, or the reason why it was not measured. `limits` has
    the least possible time in ms by resource ("memory", "arithmetic")."""

    part: str
    times: Mapping[str, float | str]
    limits: Mapping[str, float]
    about: str

    @property
    def limit(self) -> tuple[str, float]:
        """Return the resource that limits the part on this GPU, and its time in ms."""
        name = max(self.limits, key=lambda one: self.limits[one])
        return name, self.limits[name]

    def table(self) -> Table:
        what, limit_ms = self.limit
        yours = self.times.get("yours")
        rows: list[tuple[Cell, ...]] = []
        for rung in sorted(self.times, key=self._order):
            ms = self.times[rung]
            if isinstance(ms, str):
                rows.append((rung, None, None, None, ms))
                continue
            beside = ms / yours if isinstance(yours, float) else None
            rows.append((rung, ms, beside, 100 * limit_ms / ms, ""))
        beside = limit_ms / yours if isinstance(yours, float) else None
        rows.append((f"{LIMIT}: {what}", limit_ms, beside, 100.0, ""))
        return Table(
            "ladder",
            f"{self.part}: your kernel beside others",
            ("kernel", "ms", "time / yours", "% of the limit", ""),
            tuple(rows),
            f"{self.about}. Medians of times by CUDA events. The limit is the longer of two times: the bytes to move "
            "divided by the bandwidth of a copy, and the FLOPs divided by the speed of PyTorch's matrix product.",
        )

    def _order(self, rung: str) -> tuple[bool, float]:
        ms = self.times[rung]
        return (True, -ms) if isinstance(ms, float) else (False, 0.0)

    def figures(self) -> tuple[Figure, ...]:
        rungs = sorted(self.times, key=self._order)
        known = {rung: ms for rung in rungs if isinstance(ms := self.times[rung], float)}
        known[LIMIT] = self.limit[1]
        title = f"{self.part}: from the naive kernel to the limit"
        return (figure.bars("ladder", title, self.about, "ms", tuple(known), {"ms": tuple(known.values())}),)


def limits_of(part: str, shape: Mapping[str, int], bytes_s: float, flops_s: float) -> dict[str, float]:
    """Return the shortest possible times in ms for memory and arithmetic, from the GPU's bytes/s and FLOP/s."""
    from ..oracle import ORACLES

    oracle = ORACLES[part]
    moved, work = oracle.bytes(shape), oracle.flops(shape)  # type: ignore[attr-defined]
    return {"memory": 1e3 * moved / bytes_s, "arithmetic": 1e3 * work / flops_s}


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py lab gpu ladder PART`. Return 1 if the student's kernel could not be measured, else 0."""
    parse = options.parser(
        arguments, "ladder", "Compare your kernel with the naive one and with the GPU's limit."
    )
    parse.add_argument("part", help=", ".join(PARTS))
    given = parse.parse_args(arguments)
    if given.part not in PARTS:
        raise UsageError(f"there is no ladder for the part '{given.part}': choose {', '.join(PARTS)}")
    settings = options.settings(given)
    outcome.prepare(settings, "ladder")
    folder = settings.assignment.lab_folder
    others = {"reference": folder / "reference.py", "tuned": folder / "tuned.py"}
    shape = {name: int(size) for name, size in settings.sizes.items()}
    found = measured(
        "ladder",
        settings.source,
        part=given.part,
        shape=shape,
        others={name: str(path) for name, path in others.items() if path.is_file()},
    )
    limits = limits_of(given.part, shape, found["bytes_s"], found["flops_s"])
    study = LadderStudy(given.part, found["ms"], limits, about(found))
    outcome.deliver(study, settings)
    return EXIT_PASS if isinstance(study.times.get("yours"), float) else EXIT_SUBMISSION
