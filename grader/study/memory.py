"""Study `memory`: bytes of memory that a call of each part needs, for several values of one size, such as N.

The study compares a formula with two measurements, torch's profiler and the true peak. The profiler's "mem usage"
counts the tensors that are made inside the profiled scope. It misses workspaces (tensors for intermediate results) that
the assignment makes outside the scope, and memory that torch did not allocate, such as a std::vector. The true peak
covers all memory except for the inputs. It is the growth of peak resident memory during the first large call in a fresh
runner, a process that calls the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median

from grader.assignment.expressions import call_of, evaluate_int
from grader.assignment.options import chosen_lab, chosen_options
from grader.assignment.records import Part
from grader.backends import binding, faults
from grader.core.commandline import SizeOption
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION
from grader.core.quantities import MIB
from grader.judge import case_order
from grader.judge.marker import Marker
from grader.runner.calls import Call
from grader.runner.session import Session
from grader.study import options, outcome
from grader.study.figure import Figure, Plot, Series
from grader.study.laboratory import BuildFlags, Laboratory, Variant, set_up, show_progress, words
from grader.study.table import Cell, Table

FLOAT_BYTES = 4
FRESH_RUNNERS = 3
"""Number of runners whose peaks are measured; the true peak is their median. One runner's peak may include pages that a
library touches only once."""
#: {field of `Row`: heading of the table's column that shows this field}.
COLUMNS = {
    "formula": "formula (bytes)",
    "profiler": "profiler (bytes)",
    "all_formula": "formula with workspaces",
    "all_profiler": "profiler with workspaces",
    "peak": "true peak (bytes)",
    "reference_peak": "reference peak (bytes)",
    "trouble": "note",
}


@dataclass(frozen=True)
class Row:
    """Memory of one part in bytes, with the studied size (such as N) set to `size`.

    `formula` and `profiler` cover only the profiled scope; `all_formula` and `all_profiler` include all workspaces.
    `peak` is the median true peak of several runners, and `peak_range` the lowest and the highest. `reference_peak` is
    that of the reference. Values are None if a call failed (`trouble` is the reason) or the system reports no peak.
    """

    part: Part
    size: int
    formula: int
    all_formula: int
    profiler: int | None = None
    all_profiler: int | None = None
    peak: int | None = None
    peak_range: tuple[int, int] | None = None
    reference_peak: int | None = None
    trouble: str = ""


@dataclass(frozen=True)
class MemoryStudy:
    """Memory of all parts, sorted by part, at all values of the size `over`, such as "N". `axis` is its label."""

    rows: tuple[Row, ...]
    over: str
    axis: str
    about: str

    def table(self) -> Table:
        rows: list[tuple[Cell, ...]] = [
            (row.part.id, row.size, *(getattr(row, name) for name in COLUMNS)) for row in self.rows
        ]
        columns = ("part", self.over, *COLUMNS.values())
        return Table("memory", "Memory of the parts", columns, tuple(rows), f"{self.about}. {self.how()}")

    def how(self) -> str:
        """Return sentences for the caption: on the columns, and on the workspaces that the profiler does not see."""
        ranges = [(row.peak, row.peak_range) for row in self.rows if row.peak and row.peak_range]
        widths = [(high - low) / peak for peak, (low, high) in ranges]
        spread = f" (they differ by at most {100 * max(widths):.1f} %)" if widths else ""
        sentences = [
            "The formula is 4 bytes for each element of the result and of the workspaces in the profiled scope.",
            f"True peaks are medians of {FRESH_RUNNERS} fresh runners{spread}; they include std::vectors.",
        ]
        sentences += [
            f"The workspaces of {row.part.id}, {row.all_formula - row.formula} bytes at {self.over}={self.largest}, "
            "are made outside the profiled scope: its profiler bytes leave them out, its true peak does not."
            for row in self.rows
            if row.formula != row.all_formula and row.size == self.largest
        ]
        return " ".join(sentences)

    @property
    def largest(self) -> int:
        return max(row.size for row in self.rows)

    def figures(self) -> tuple[Figure, ...]:
        rows = [row for row in self.rows if row.size == self.largest]
        shown = (
            ("profiler", "profiler"),
            ("profiler, with workspaces", "all_profiler"),
            ("true peak", "peak"),
        )
        bars = [
            Series(
                label,
                tuple(float(k) for k, row in enumerate(rows) if getattr(row, name) is not None),
                tuple(getattr(row, name) / MIB for row in rows if getattr(row, name) is not None),
                style="bars",
            )
            for label, name in shown
        ]
        return (
            Plot(
                "memory",
                f"Memory of the parts at {self.over}={self.largest}",
                self.about,
                "",
                "MiB",
                tuple(bars),
                x_names=tuple(row.part.id for row in rows),
            ),
            Plot(
                f"memory-over-{self.over.lower()}",
                f"True peak of a call over {self.over}",
                self.about,
                self.axis,
                "MiB",
                tuple(self._growth()),
                log_x=True,
                log_y=True,
                x_ticks=tuple(sorted({float(row.size) for row in self.rows})),
            ),
        )

    def _growth(self) -> list[Series]:
        peaks: dict[str, list[tuple[float, float]]] = {}
        for row in self.rows:
            if row.peak:
                peaks.setdefault(row.part.id, []).append((float(row.size), row.peak / MIB))
        return [Series(name, *zip(*points, strict=True)) for name, points in peaks.items()]


# ---- formulas


def workspace_bytes(part: Part, shape: Mapping[str, int]) -> int:
    """Return the bytes of a call's workspaces (float32 arguments made by `zeros(...)`). `shape` has all sizes."""
    workspaces = [dims for argument in part.arguments if (dims := call_of(argument, "zeros")) is not None]
    return sum(FLOAT_BYTES * prod(evaluate_int(dim, shape) for dim in dims) for dims in workspaces)


def output_bytes(part: Part, shape: Mapping[str, int]) -> int:
    """Return the bytes of the part's returned float32 tensor; 0 if it returns no tensor."""
    if part.returns != "tensor":
        return 0
    return FLOAT_BYTES * prod(binding.output_shape(part, shape))


# ---- measuring


def measure(
    laboratory: Laboratory, parts: Sequence[Part], over: SizeOption, sizes: Sequence[int]
) -> MemoryStudy:
    """Measure each part with the size `over` set to each of `sizes`. Raises KitError if the reference fails."""
    laboratory.prepare([BuildFlags()])
    rows = [_row(laboratory, part, over.name, size) for part in parts for size in sizes]
    shape = {name: size for name, size in laboratory.settings.sizes.items() if name != over.name}
    what = re.sub(r" \([^()]*\)$", "", over.what)
    axis = f"{over.name}, {what}" if what else over.name
    return MemoryStudy(tuple(rows), over.name, axis, options.about(binding.used_sizes(shape, *parts)))


def _row(laboratory: Laboratory, part: Part, over: str, size: int) -> Row:
    """Measure a part with the size named `over` set to `size`. Return the table's row."""
    show_progress(f"Memory of {part.id} at {over}={size}")
    shape = {**laboratory.settings.sizes, over: size}
    binding.refuse_oversize(part, shape, laboratory.assignment.limits.memory_gib)
    variant = Variant(part.id, part, shape)
    output, workspaces = output_bytes(part, shape), workspace_bytes(part, shape)
    row = Row(part, size, output + (workspaces if part.workspace_in_scope else 0), output + workspaces)
    trouble = laboratory.trouble(variant)
    bench = laboratory.bench(variant)
    marker = Marker(bench, part)
    theirs = []
    for _ in range(FRESH_RUNNERS):
        with bench.reference(threads=marker.shape["threads"]) as session:
            theirs.append(_first_call(marker, session, reference=True).peak_bytes)
    row = replace(row, reference_peak=_median(theirs), trouble=trouble)
    if not bench.build.ok:
        return row
    try:
        looked = [_look(marker) for _ in range(FRESH_RUNNERS)]
    except faults.Faulty as fault:
        return replace(row, trouble=trouble or words(fault.verdict, fault.diagnosis))
    finally:
        show_progress("")
    peaks = [peak for _, _, peak in looked if peak is not None]
    return replace(
        row,
        profiler=looked[0][0],
        all_profiler=looked[0][1],
        peak=_median(peaks),
        peak_range=(min(peaks), max(peaks)) if peaks else None,
    )


def _median(values: Iterable[int | None]) -> int | None:
    """Return the median of the values that are not None, rounded to a whole number; None if all are None."""
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None


def _look(marker: Marker) -> tuple[int | None, int | None, int | None]:
    """Measure the student's kernel once by the profiler and once for the true peak.

    Returns bytes: (by the profiler, by the profiler with all workspaces in its scope, true peak). A value is None if it
    is not reported. Raises Faulty if a call fails.
    """
    part = marker.part
    threads = marker.shape["threads"]
    with marker.bench.student(part, threads=threads) as session:
        peak_bytes = _first_call(marker, session, reference=False).peak_bytes
    with marker.bench.student(part, threads=threads, with_torch=True) as session:
        inputs = marker.bench.assignment.typical_inputs(marker.part, marker.shape, 1)

        def profiler_bytes(*, workspace_in_scope: bool) -> int | None:
            call = session.call(
                binding.request(part, marker.shape, inputs),
                profile_label=case_order.scope(part, "STUDENT"),
                workspace_in_scope=workspace_in_scope,
            )
            marker.refuse_broken(call, session, "profiled call")
            return case_order.profiler_bytes(part, "STUDENT", call)

        published = profiler_bytes(workspace_in_scope=part.workspace_in_scope)
        whole = published if part.workspace_in_scope else profiler_bytes(workspace_in_scope=True)
        return published, whole, peak_bytes


def _first_call(marker: Marker, session: Session, *, reference: bool) -> Call:
    """Make one call with the sizes `marker.shape` in the fresh runner `session`. Return the call with its peak memory.

    A small call comes first, so that memory for loading the code does not count. `reference`: call the reference in
    place of the student's kernel. Raises Faulty or KitError if a call fails.
    """
    small = marker.inputs_of(case_order.smallest(marker.part))
    sized = marker.bench.assignment.typical_inputs(marker.part, marker.shape, 1)
    for inputs, measured in ((small, False), (sized, True)):
        request = binding.request(marker.part, inputs.shape, inputs, reference=reference)
        call = session.call(request, measure_peak=measured)
        if reference:
            marker.refuse_failed_reference(call)
        else:
            marker.refuse_broken(
                call, session, "call of " + " ".join(f"{name}={size}" for name, size in inputs.shape.items())
            )
    return call


# ---- command line


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py memory [PART ...]`. Return exit code 1 if a part is wrong, else 0."""
    lab, size_options = chosen_lab(arguments), chosen_options(arguments)
    named, values = lab.growth
    over = next((option for option in size_options if option.name == named), size_options[0])
    parse = options.parser(
        arguments,
        "memory",
        "Memory of a call over one size: profiler, true peak and formula.",
        lists=(over.name,),
    )
    parse.add_argument("parts", metavar="PART", nargs="*", help="parts to measure (default: all)")
    given = parse.parse_args(arguments)
    settings = options.settings(given)
    assignment = settings.assignment
    names = given.parts or [part.id for part in assignment.parts if part.reference]
    parts = [options.part(settings, name) for name in names]
    usual = values if over.name == named else (assignment.defaults[over.name],)
    listed = getattr(given, over.name) or ",".join(map(str, usual))
    lowest, highest = assignment.minima.get(over.name, 1), assignment.maxima.get(over.name, 1 << 20)
    sizes = options.numbers(listed, over.flag, lowest, highest)
    outcome.prepare(settings, "memory")
    with set_up(settings) as laboratory:
        finding = measure(laboratory, parts, over, sizes)
    outcome.deliver(finding, settings)
    return EXIT_SUBMISSION if any(row.trouble for row in finding.rows) else EXIT_PASS
