"""`roofline`: compares the speed of the student's kernels with the limits of this GPU.

The limit, called roof, is the lower of two speeds. One is the memory bandwidth (bytes/s of a copy that reads and writes
128 MiB) times a kernel's intensity (necessary FLOPs per byte). The other is the FLOP/s of the tensor cores (measured
with PyTorch's product of 8192 x 8192 float16 matrices). The oracles give each kernel's FLOPs and bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grader.core.results import EXIT_PASS, EXIT_SUBMISSION
from grader.study import options, outcome
from grader.study.figure import Figure, Plot, Series
from grader.study.table import Cell, Table

from .asking import about, measured
from .inside import SIDE

#: Sizes of the calls in `inside.roofline`.
SHAPE = {
    "R": SIDE, "C": SIDE, "lines": SIDE, "width": SIDE, "rows": SIDE, "inner": SIDE, "columns": SIDE,
    "B": 64, "N": 4096, "M": 4096, "d": 64, "causal": 0, "precision": 11,
}  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """One kernel: its `work` in FLOPs, bytes `moved`, and time. If `ms` is None, `trouble` says why."""

    name: str
    work: int
    moved: int
    ms: float | None
    trouble: str = ""

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.work / self.moved

    @property
    def rate(self) -> float:
        """FLOP/s."""
        return self.work / self.ms * 1e3 if self.ms else 0.0


@dataclass(frozen=True)
class RooflineStudy:
    bytes_s: float
    flops_s: float
    kernels: tuple[Kernel, ...]
    about: str

    @property
    def ridge(self) -> float:
        """The intensity, in FLOPs per byte, above which the tensor cores and not memory limit the speed."""
        return self.flops_s / self.bytes_s

    def roof(self, intensity: float) -> float:
        """Return the largest possible FLOP/s at an intensity in FLOPs per byte."""
        return min(self.flops_s, intensity * self.bytes_s)

    def table(self) -> Table:
        columns = ("kernel", "GFLOP", "MB", "FLOP/byte", "limit", "ms", "TFLOP/s", "TB/s", "% of roof")
        return Table(
            "roofline",
            f"Under the roof of {self.bytes_s / 1e12:.2f} TB/s and {self.flops_s / 1e12:.0f} TFLOP/s",
            columns,
            tuple(self._row(kernel) for kernel in self.kernels),
            f"{self.about}. float16. The roof of memory is a copy's speed, the roof of arithmetic that of PyTorch's "
            f"matrix product. They meet at {self.ridge:.0f} FLOP/byte. MB: inputs and outputs, counted once. A softmax "
            "whose rows do not fit into a cache reads them twice, which its % of roof does not count.",
        )

    def _row(self, kernel: Kernel) -> tuple[Cell, ...]:
        limit = "memory" if kernel.intensity < self.ridge else "tensor cores"
        head = (kernel.name, kernel.work / 1e9, kernel.moved / 1e6, kernel.intensity, limit)
        if kernel.ms is None:
            return (*head, kernel.trouble or None, None, None, None)
        share = 100 * kernel.rate / self.roof(kernel.intensity)
        return (*head, kernel.ms, kernel.rate / 1e12, kernel.moved / kernel.ms / 1e9, share)

    def figures(self) -> tuple[Figure, ...]:
        known = [kernel for kernel in self.kernels if kernel.ms]
        ends = [0.25, self.ridge, max([4 * self.ridge, *(2 * kernel.intensity for kernel in known)])]
        roof = Series("roof", tuple(ends), tuple(self.roof(x) / 1e12 for x in ends), style="line")
        points = Series(
            "your kernels",
            tuple(kernel.intensity for kernel in known),
            tuple(kernel.rate / 1e12 for kernel in known),
            style="points",
            notes=tuple(kernel.name for kernel in known),
        )
        drawn = (roof, points) if known else (roof,)
        title = "Roofline of this GPU"
        return (
            Plot("roofline", title, self.about, "FLOP per byte", "TFLOP/s", drawn, log_x=True, log_y=True),
        )


def kernels_of(found: Mapping[str, float | str]) -> tuple[Kernel, ...]:
    """Return a `Kernel` for each function. `found` has each time in ms, or the reason why it was not measured."""
    from ..oracle import ORACLES

    made = []
    for name, oracle in ORACLES.items():
        time = found.get(name, "not measured")
        work, moved = oracle.flops(SHAPE), oracle.bytes(SHAPE)  # type: ignore[attr-defined]
        is_time = isinstance(time, float)
        made.append(Kernel(name, work, moved, time if is_time else None, "" if is_time else str(time)))
    return tuple(made)


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py lab gpu roofline`. Return 1 if a kernel could not be measured, else 0."""
    given = options.parser(arguments, "roofline", "Your kernels under the roofline of this GPU.").parse_args(
        arguments
    )
    settings = options.settings(given)
    outcome.prepare(settings, "roofline")
    found = measured("roofline", settings.source)
    study = RooflineStudy(found["bytes_s"], found["flops_s"], kernels_of(found["ms"]), about(found))
    outcome.deliver(study, settings)
    return EXIT_SUBMISSION if any(kernel.ms is None for kernel in study.kernels) else EXIT_PASS
