"""`accuracy`: the size of logits at which each part overflows, and the error of its results compared with float64.

The study has two sweeps. In the first ("size"), logits are around +size and -size, with sizes from 0 to ten thousand.
In the second ("columns"), each row of C elements has a tail: C - 2 elements that are far below the first one. Adding
exp() of one of them does not change a float sum, although their total does. `merge` gets the partial results of both
halves of the columns.

Errors are in units in the last place of the correct float32: 0.5 is the best that rounding allows. For `merge` the
largest error of m, l and o is reported. For o, the unit belongs to the larger one of |o1| and |o2|.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grader.assignment.records import Part
from grader.backends import binding, faults
from grader.backends.kinds import kind_of
from grader.backends.native import crashes
from grader.core.arrays import Array, np
from grader.core.draws import Draws
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, UsageError
from grader.explain.case_run import RESULT, outputs_of
from grader.runner.session import Session
from grader.study import options, outcome
from grader.study.figure import Figure, Plot, Series
from grader.study.laboratory import BuildFlags, Laboratory, Variant, first_line, set_up, show_progress, words
from grader.study.table import Cell, Table

from ..inputs import make_inputs
from ..oracle import merged, softmax

SIZES = (0, 20, 40, 60, 80, 90, 110, 1000, 10_000)
COLUMNS = (16, 256, 4096, 16_384, 65_536, 100_000)
ROWS, USUAL_COLUMNS = 8, 1024
SMALLEST = 1e-30
"""Smaller results are ignored, because near the smallest float32 a unit in the last place is relatively large."""
NO_NUMBER = "inf or NaN"
MERGE = "merge"


@dataclass(frozen=True)
class Point:
    """Result of one part for one input. `value` is the size or the number of columns, as `sweep` says.

    `error` is in units in the last place; infinite if a result is NaN or infinite. If None, `trouble` says why.
    """

    part: str
    sweep: str
    value: int
    error: float | None
    trouble: str = ""

    def cell(self) -> Cell:
        if self.error is None:
            return self.trouble or None
        return self.error if np.isfinite(self.error) else NO_NUMBER


@dataclass(frozen=True)
class AccuracyStudy:
    """All points of the study, part by part."""

    points: tuple[Point, ...]
    about: str

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(point.part for point in self.points))

    def table(self) -> Table:
        inputs = dict.fromkeys((point.sweep, point.value) for point in self.points)
        cells = {(point.part, (point.sweep, point.value)): point.cell() for point in self.points}
        rows = [(_input(*one), *(cells[part, one] for part in self.parts)) for one in inputs]
        return Table(
            "accuracy",
            "Largest error of each part, in units in the last place of float32",
            ("input", *self.parts),
            tuple(rows),
            f"{self.about}. Compared with float64 on the same float32 inputs; rounding alone gives up to 0.5. "
            f"Logits around +-size: {ROWS} rows of {USUAL_COLUMNS}, within 4 of +size or -size. A row with a "
            "tail: all elements but two are about 17 below the first one. merge gets partial results of both "
            "halves of the columns.",
        )

    def figures(self) -> tuple[Figure, ...]:
        return (
            self._figure("size", "Error over the size of the logits", "logits around +-size (0 shown as 1)"),
            self._figure("columns", "Error over the number of columns, rows with a tail", "columns"),
        )

    def _figure(self, sweep: str, title: str, x_label: str) -> Plot:
        drawn = []
        for part in self.parts:
            points = [point for point in self.points if (point.part, point.sweep) == (part, sweep)]
            known = [p for p in points if p.error is not None and np.isfinite(p.error)]
            lost = [p.value for p in points if p.error is not None and not np.isfinite(p.error)]
            label = f"{part} ({NO_NUMBER} from {min(lost)} on)" if lost else part
            if known:
                x = tuple(float(max(p.value, 1)) for p in known)
                # A logarithmic scale cannot show an error of 0.
                drawn.append(Series(label, x, tuple(max(p.error or 0.0, 0.05) for p in known)))
        name = "accuracy" if sweep == "size" else "accuracy-columns"
        return Plot(
            name, title, self.about, x_label, "units in the last place", tuple(drawn), log_x=True, log_y=True
        )


def _input(sweep: str, value: int) -> str:
    return f"logits around +-{value}" if sweep == "size" else f"a tail, C={value}"


# ---- inputs


def logits_around(size: int, seed: int) -> Array:
    """Draw logits within +-4 of +size in even rows and of -size in odd rows, float32 (ROWS, USUAL_COLUMNS)."""
    x = Draws(seed).uniform((ROWS, USUAL_COLUMNS), -4.0, 4.0) + np.float32(size)
    x[1::2] -= np.float32(2 * size)
    return x


def with_tail(columns: int, seed: int) -> Array:
    """Draw one row of the distribution `tail`, float32 (1, columns). A float sum of exp(x) loses its small terms."""
    return make_inputs("tail", {"R": 1, "C": columns}, seed)["X"]


def halves(x: Array, seed: int) -> dict[str, Array]:
    """Return inputs of `merge` by name, float32: the partial results of the two halves of x's columns.

    The means o1 and o2 (R, 1) are taken of random values within +-1, one for each column.
    """
    values = Draws(seed).uniform((x.shape[1], 1), -1.0, 1.0).astype(np.float64)
    found: dict[str, Array] = {}
    cut = max(1, x.shape[1] // 2)
    for side, part in (("1", slice(0, cut)), ("2", slice(cut, None))):
        given = x[:, part].astype(np.float64)
        m = given.max(1)
        weights = np.exp(given - m[:, None])
        sums = weights.sum(1)
        found |= {
            f"m{side}": m.astype(np.float32),
            f"l{side}": sums.astype(np.float32),
            f"o{side}": (weights @ values[part] / sums[:, None]).astype(np.float32),
        }
    return found


# ---- errors


def units_off(actual: Array, right: Array, scale: Array | None = None) -> float:
    """Return the largest error of an element, in units in the last place of its `scale` (by default |right|). Ignore
    elements with a `scale` below SMALLEST. Return infinity if any result is NaN or infinite."""
    if not np.isfinite(actual).all():
        return float("inf")
    scale = abs(right) if scale is None else scale
    counted = scale >= SMALLEST
    unit = np.spacing(np.maximum(scale, SMALLEST).astype(np.float32)).astype(np.float64)
    errors = abs(actual.astype(np.float64) - right) / unit
    return float(errors[counted].max(initial=0.0))


def error_of(part: Part, inputs: dict[str, Array], found: dict[str, Array]) -> float:
    """Return the largest error of a part's results `found`, compared with float64, in units in the last place."""
    if part.oracle != MERGE:
        return units_off(found[RESULT], softmax(inputs["X"].astype(np.float64)))
    right = merged(inputs)
    largest = np.maximum(abs(inputs["o1"]), abs(inputs["o2"])).astype(np.float64)
    return max(
        units_off(found["m"], right["m"]),
        units_off(found["l"], right["l"]),
        units_off(found["o"], right["o"], largest),
    )


# ---- measuring


def measure(laboratory: Laboratory, sizes: Sequence[int], columns: Sequence[int], seed: int) -> AccuracyStudy:
    """Call every part of the student's file for every input. Return an AccuracyStudy with all errors."""
    laboratory.prepare([BuildFlags()])
    inputs = [("size", size, logits_around(size, seed)) for size in sizes]
    inputs += [("columns", count, with_tail(count, seed)) for count in columns]
    parts = [part for part in laboratory.assignment.parts if kind_of(part).is_students]
    points = tuple(point for part in parts for point in _points(laboratory, part, inputs, seed))
    show_progress("")
    return AccuracyStudy(points, options.about({}))


def _points(
    laboratory: Laboratory, part: Part, inputs: Sequence[tuple[str, int, Array]], seed: int
) -> list[Point]:
    found: list[Point] = []
    session: Session | None = None
    for sweep, value, x in inputs:
        show_progress(f"{part.id}: {_input(sweep, value)}")
        given = halves(x, seed + 1) if part.oracle == MERGE else {"X": x}
        shape = {**laboratory.settings.sizes, "R": x.shape[0], "C": x.shape[1], "d": 1, "threads": 1}
        try:
            bench = laboratory.bench(Variant(part.id, part, shape))
            if not bench.build.ok:
                raise UsageError(f"it does not compile: {first_line(bench.build.diagnostics)}")
            if session is None or session.death is not None:
                session = bench.student(part, threads=1)
            unbound = binding.mismatch(part, session.functions)
            if unbound is not None:
                raise faults.Faulty("missing", unbound)
            call = session.call(binding.request(part, shape, given), echo_inputs=True)
            if call.status != "ok":
                raise crashes.call_fault(faults.Broken(part, call, _input(sweep, value)))
        except faults.Faulty as fault:
            found.append(Point(part.id, sweep, value, None, words(fault.verdict, fault.diagnosis)[:60]))
            continue
        answered, misfit = outputs_of(part, shape, given, call)
        if answered is None:
            found.append(Point(part.id, sweep, value, None, misfit.code if misfit else "no answer"))
        elif all(not answer.any() for answer in answered.values()):
            found.append(Point(part.id, sweep, value, None, "all zeros"))
        else:
            found.append(Point(part.id, sweep, value, error_of(part, given, answered)))
    return found


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py lab softmax accuracy`. Return 1 if a call failed, else 0."""
    parse = options.parser(
        arguments, "accuracy", "The logits at which your parts overflow, and the errors of their results."
    )
    parse.value("--sizes", "n,n,...", f"logits' sizes (default: {','.join(map(str, SIZES))})")
    parse.value(
        "--columns", "n,n,...", f"lengths of the rows with a tail (default: {','.join(map(str, COLUMNS))})"
    )
    given = parse.parse_args(arguments)
    settings = options.settings(given)
    most = settings.assignment.maxima["C"]
    sizes = SIZES if given.sizes is None else options.numbers(given.sizes, "--sizes", 0, 10_000)
    columns = COLUMNS if given.columns is None else options.numbers(given.columns, "--columns", 2, most)
    outcome.prepare(settings, "accuracy")
    with set_up(settings) as laboratory:
        finding = measure(laboratory, sizes, columns, settings.seed or 1)
    outcome.deliver(finding, settings)
    return EXIT_SUBMISSION if any(point.error is None for point in finding.points) else EXIT_PASS
