"""Terminal output of a student's run. For each part it has the lines that the original course kit printed, and a block
with the verdict. A table of points follows at the end.

A block gives the cause, the place, source lines and the next command first, then time and memory. The block of a wrong
part should fit into SCREEN_LINES. The course kit's lines keep their wording, because students' scripts search for them.
"""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TextIO

from grader import score
from grader.assignment.records import Part
from grader.assignment.rubric import ONE_THREAD
from grader.core import harmless
from grader.core.results import CaseResult, Memory, PartResult, ProfileRow, Score, SubmissionResult, Timing
from grader.judge.events import (
    BuildStarted,
    Built,
    Corrected,
    Event,
    PartDone,
    PartStarted,
    Profiled,
    Settled,
    Timed,
)
from grader.report.machines import load_warning

if TYPE_CHECKING:
    from grader.assignment.labs import Ladder
    from grader.assignment.records import Assignment

COLUMNS = ("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU Mem", "# of Calls")
"""Columns of torch's profiler table that are printed. The mean per call and the self memory would not fit."""
ROW_LIMIT = 10


def table(rows: Sequence[ProfileRow]) -> str:
    """Return the profiler's table as text: the ten rows with the largest total time, then the sum of all self times."""
    whole_us = sum(row.self_cpu_us for row in rows) or 1.0
    shown = sorted(rows, key=lambda row: -row.cpu_total_us)[:ROW_LIMIT]
    cells = [
        (
            row.name,
            f"{100 * row.self_cpu_us / whole_us:.2f}%",
            duration(row.self_cpu_us),
            f"{100 * row.cpu_total_us / whole_us:.2f}%",
            duration(row.cpu_total_us),
            size(row.cpu_bytes),
            str(row.calls),
        )
        for row in shown
    ]
    widths = [max(len(line[k]) for line in [COLUMNS, *cells]) for k in range(len(COLUMNS))]
    widths[0] = min(widths[0], WIDTH - sum(width + 2 for width in widths[1:]))
    rule = "  ".join("-" * width for width in widths)
    lines = [rule, _line(COLUMNS, widths), rule, *(_line(line, widths) for line in cells), rule]
    return "\n".join([*lines, f"Self CPU time total: {duration(sum(row.self_cpu_us for row in rows))}"])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell[:width].rjust(width) for cell, width in zip(cells, widths, strict=True))


def duration(us: float) -> str:
    """Return a duration in microseconds as text such as 12.345us, 12.345ms or 1.234s."""
    if us >= 1e6:
        return f"{us / 1e6:.3f}s"
    return f"{us / 1e3:.3f}ms" if us >= 1e3 else f"{us:.3f}us"


#: Text for a peak of 0 bytes: the process already had enough memory from earlier calls, and did not grow.
NO_GROWTH = "no more than earlier calls"


def size(count: float) -> str:
    """Return a number of bytes as text such as 512 B or 4.50 MB (units of 1024). It may be negative."""
    for unit, scale in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if abs(count) >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"


WIDTH = 100
SCREEN_LINES = 25
LEAST_PRINTED = 4

VERDICT_WORDS = {
    "pass": "PASS",
    "wrong": "WRONG RESULT",
    "slow": "RIGHT, BUT TOO SLOW",
    "crash": "CRASHED",
    "timeout": "DID NOT END",
    "compile_error": "DOES NOT COMPILE",
    "missing": "MISSING",
    "rejected": "REJECTED",
    "unjudged": "NOT JUDGED",
}
MAP_WORDS = "blocks: · right, 1 few wrong, 9 all wrong; the slice with the most errors"
MAP_ROWS = 2
"""Number of rows to which an error map is reduced if all its cells are wrong."""
_WARNED = re.compile(r"The compiler says: (\S+?:\d+): (.*)\n.*\n?")
#: Printed in place of points that are not decided yet.
OPEN = "open"


#: Codes of the flags about threads. They are printed in a part's block.
OF_THREADS = (ONE_THREAD, "data_race", "no_data_race", "races_unseen")


class Terminal:
    """Listener for `grader.judge.evaluate`: prints each event when it arrives."""

    def __init__(
        self,
        stream: TextIO | None = None,
        ladder: Ladder | None = None,
        graded: Collection[str] = (),
        *,
        is_checked: bool = False,
    ) -> None:
        """Create a listener that prints to `stream`.

        `ladder` compares a kernel's speed with the lab's known kernels. `graded` are the ids of parts whose points
        depend on their time. `is_checked`: True for a run with sanitizers, which gives no points.
        """
        self.is_checked, self.graded = is_checked, graded
        self.settled: PartResult | None = None
        """Result that was printed before its profile arrived, so that it is not printed twice."""
        self.stream = harmless.guarded(stream or sys.stdout)
        self.colourful = self.stream.isatty()
        self.ladder = ladder
        self.build_fault_shown = ""
        self.faults_shown: dict[tuple[str, str, str], str] = {}
        """Id of the part whose message was printed, by (function, verdict, diagnosis code), so as not to repeat it."""
        self.function = ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, BuildStarted):
            self.say(f"Compiling {event.source} ...", end=" ")
        elif isinstance(event, Built):
            self.say(build_line(event))
        elif isinstance(event, PartStarted):
            self.function = event.part.function
            self.say(f"\nRunning {name_of(event.part)} Test: {event.part.title}")
        elif isinstance(event, Corrected):
            self.say(correctness_line(event))
        elif isinstance(event, Timed):
            self.say(f"Time: {time_text(event.time).splitlines()[0]}")
        elif isinstance(event, Profiled):
            self.say(profiled_lines(event))
        elif isinstance(event, (Settled, PartDone)):
            result, settled = event.result, self.settled
            self.settled = result if isinstance(event, Settled) else None
            if settled is None or (settled.id, settled.verdict) != (result.id, result.verdict):
                points, _ = score.part_points(event.part, result)
                self.verdict(result, points)

    def say(self, text: str, end: str = "\n") -> None:
        if text:
            print(text, file=self.stream, flush=True, end=end)

    def paint(self, text: str, colour: str) -> None:
        """Print a text without a line end, on a terminal in a colour. `colour` is a key of `harmless.CONTROLS`."""
        if self.colourful:
            harmless.control(self.stream, colour)
        self.say(text, end="")
        if self.colourful:
            harmless.control(self.stream, "plain")

    def verdict(self, result: PartResult, points: float) -> None:
        """Print a part's block: text that its code printed, compiler warnings, verdict, points, times and memory."""
        warned, results = self._results(result)
        map_rows = self._map(result)
        findings = self._findings(result)
        sanitized = result.diagnosis is not None and result.diagnosis.code == "sanitizer"
        printed: list[str] = []
        if result.output and not sanitized:
            # 5 lines about the build and the start of the part are already on the screen, above the block.
            taken = len(warned) + len(results) + len(map_rows) + len(findings) + 5
            printed = field(
                "printed", printed_text(result.output, max(LEAST_PRINTED, SCREEN_LINES - taken), once=True)
            )
        self.say("\n" + "".join(f"{line}\n" for line in (*printed, *warned)), end="")
        colour = {"pass": "good", "slow": "warn", "unjudged": "warn"}.get(result.verdict, "bad")
        worth = (
            f"  {self.points(result, points)} of {result.max_points:g} points" if result.max_points else ""
        )
        if self.is_checked:
            # A run with sanitizers has higher limits of memory and time, so its results earn no points.
            worth = "  (a checked run gives no points)"
        elif is_untimed(result, self.graded):
            worth = f"{worth} (not timed)"
        head = f"{result.id}: {result.title} "
        self.say(f"{head}{'.' * max(2, 64 - len(head))}", end=" ")
        self.paint(VERDICT_WORDS[result.verdict], colour)
        self.say("\n".join([worth, *results]))
        self._print_map(map_rows)
        self.say("\n".join(findings))

    def points(self, result: PartResult, points: float) -> str:
        return points_text(result, points, is_untimed=is_untimed(result, self.graded))

    def _map(self, result: PartResult) -> list[str]:
        """Return the rows of one case's error map, then its legend; [] without a map or without colours."""
        mapped = [case for case in result.cases if case.error_map and not case.hidden]
        same = [case for case in mapped if case.diagnosis and case.diagnosis == result.diagnosis]
        if not self.colourful or not mapped:
            return []
        case = (same or mapped)[0]
        rows = list(case.error_map)
        if "0" not in "".join(rows):
            step = -(-len(rows) // MAP_ROWS)
            rows = [
                "".join(map(max, zip(*rows[k : k + step], strict=False))) for k in range(0, len(rows), step)
            ]
        return [*rows, f"{MAP_WORDS} (on '{case.name}')"]

    def _print_map(self, rows: Sequence[str]) -> None:
        for k, row in enumerate(rows[:-1]):
            self.say(f"  {'where' if k == 0 else '':<9}", end="")
            for digit in row:
                cell = f" {digit} " if digit != "0" else " · "
                colour = {"0": "plain", "1": "few", "2": "few", "3": "few"}.get(
                    digit, "many" if digit < "7" else "most"
                )
                self.paint(cell, colour)
            self.say(" ")
        self.say("\n".join(field("", rows[-1]) if rows else []))

    def _results(self, result: PartResult) -> tuple[list[str], list[str]]:
        """Return (lines with the compiler's warnings, lines with the results and the wrong inputs)."""
        text = results_text(result)
        if result.diagnosis is not None and self.function and result.verdict in ("wrong", "crash", "timeout"):
            # Two parts may call the same function with different numbers of threads: print the fault's message once.
            fault = (self.function, result.verdict, result.diagnosis.code)
            if (earlier := self.faults_shown.setdefault(fault, result.id)) != result.id:
                return [], field(
                    "results", f"the same fault as in {earlier}, which calls the same function: see above"
                )
        if result.verdict not in ("compile_error", "unjudged"):
            warned = [f"{where}: warning: {words}" for where, words in _WARNED.findall(text)]
            lines = field("results", _WARNED.sub("", text).rstrip())
            if result.verdict == "wrong":
                lines += field("inputs", inputs_text(result))
            return warned, lines
        # Parts of one file share a build message: print it once. Parts of another file may have another message.
        repeated, self.build_fault_shown = text == self.build_fault_shown, text
        return [], field("results", "as above" if repeated else text)

    def _findings(self, result: PartResult) -> list[str]:
        lines: list[str] = []
        if result.time:
            lines += field("time", time_text(result.time))
        for flag in result.flags:
            if flag.code in OF_THREADS:
                lines += field("threads", flag.message)
            elif flag.code == "not_timed":
                lines += field("time", flag.message)
        if result.frontier and self.ladder:
            lines += field("frontier", self.ladder.line(result.frontier))
        if result.memory and result.verdict != "wrong":
            lines += field("memory", memory_text(result.memory))
        return lines

    def scoreboard(self, result: SubmissionResult, scored: Score) -> None:
        """Print one table with all parts and the total, and a warning if the machine was busy."""
        rows = [("part", "verdict", "time / reference", "allowed", "peak memory", "points")]
        earned = {line.id: line.points for line in scored.lines}
        points = [self.points(part, earned.get(part.id, 0.0)) for part in result.parts]
        rows += [score_row(part, each) for part, each in zip(result.parts, points, strict=True)]
        total = math.fsum(float(each) for each in points if each != OPEN)
        of_all = f"{total:g} / {result.max_points:g}" + (", not final" if OPEN in points else "")
        rows.append(("total", "", "", "", "", of_all))
        lines = ["  ".join(row) for row in padded(rows, range(2, 6))]
        rule = "-" * len(lines[0])
        self.say("\n" + "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]]))
        self.say(load_warning(result))


def padded(rows: Sequence[Sequence[str]], right: Collection[int]) -> list[list[str]]:
    """Return the rows with the cells of each column padded to the same width. `right`: columns aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [
            cell.rjust(width) if k in right else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]


# ---- lines of the original course kit


def name_of(part: Part) -> str:
    number = re.fullmatch(r"part(\d+)", part.id)
    return f"Part {number[1]}" if number else part.command


def build_line(event: Built) -> str:
    build = event.build
    notes = "".join(f"\nnote: {note}" for note in build.notes)
    if build.waits_for:
        return f"not possible: this machine has no {build.waits_for} that works"
    if not build.ok:
        return f"failed after {build.wall_s:.1f} s{notes}"
    return ("unchanged" if build.cached else f"{build.wall_s:.1f} s") + notes


def correctness_line(event: Corrected) -> str:
    total, wrong = len(event.cases), [case for case in event.cases if not case.ok]
    if event.verdict == "pass":
        return f"Correctness: right on {total} of {total} inputs"
    if wrong:
        return f"Correctness: WRONG on {len(wrong)} of {total} inputs, first on '{wrong[0].name}' (see below)"
    return f"Correctness: no result, {VERDICT_WORDS[event.verdict].lower()} (see the verdict below)"


def profiled_lines(event: Profiled) -> str:
    """Return the profiler's figures for student or reference, in the wording of the original course kit."""
    label = f"{event.side} - {event.part.label}"
    lines = [f"\n-----RUNNING {event.side} IMPLEMENTATION-----\n"]
    if event.example:
        index, expected, actual = event.example
        lines += [
            f"Tensor of the last case, index {list(index)}",
            f"Expected: {expected:g}",
            f"Result: {actual:g}",
        ]
    else:
        lines.append(f"{event.claim} {event.ok}")
        if not event.ok:
            lines.append(event.denial)
    lines.append(f"Manual Execution Time:  {event.wall_s:.4f}\n")
    lines.append(table(event.rows))
    scope = next((row for row in event.rows if row.name == label[:60]), None)
    if scope:
        lines += [
            f"{label} statistics",
            f"cpu time:  {scope.cpu_total_us / 1e3:.3f}ms",
            f"mem usage:  {scope.cpu_bytes} bytes",
        ]
    return "\n".join(lines)


# ---- the scoreboard and the verdict block


def graded_ids(assignment: Assignment) -> frozenset[str]:
    """Return the ids of parts whose points depend on their time."""
    return frozenset(part.id for part in assignment.parts if part.time and part.time.graded)


def is_untimed(part: PartResult, graded: Collection[str]) -> bool:
    """Return True if the part's results are right, but its points are open because its time was not judged."""
    return part.verdict == "pass" and part.time is None and part.id in graded


def score_row(part: PartResult, points: str) -> tuple[str, ...]:
    peak_bytes = part.memory.peak_bytes if part.memory else None
    return (
        f"{part.id}  {part.title}",
        VERDICT_WORDS[part.verdict].lower(),
        f"{part.time.ratio:.2f}" if part.time else "",
        f"{part.time.allowance:.2f}" if part.time and "not_graded" not in part.time.flags else "",
        size(peak_bytes) if peak_bytes else "",
        f"{points} / {part.max_points:g}",
    )


def points_text(part: PartResult, points: float, *, is_untimed: bool = False) -> str:
    """Return a part's points as text, or OPEN if the part is unjudged or its time is missing (`is_untimed`)."""
    return OPEN if part.verdict == "unjudged" or is_untimed else f"{points:g}"


def field(name: str, text: str) -> list[str]:
    """Return the lines of a paragraph, with the label `name` before the first. Long lines are wrapped and indented."""
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        # Do not wrap prototypes and compiler output: carets in compiler output must stay below the code that they mark.
        keep = line.startswith((" ", "|")) or "(" in line.split(" ")[-1:] or len(line) <= WIDTH
        lines += [line] if keep else textwrap.wrap(line, WIDTH, break_long_words=False)
    return [f"  {name if k == 0 else '':<9}{line}" for k, line in enumerate(lines)]


def results_text(result: PartResult) -> str:
    total = len(result.cases)
    if result.verdict in ("pass", "slow"):
        worst = max((case.max_error or 0.0 for case in result.cases), default=0.0)
        through = f"; not exported: judged through {result.judged_through}" if result.judged_through else ""
        return f"right on {total} of {total} inputs, largest error {worst:.1e}{through}"
    return result.diagnosis.message if result.diagnosis else ""


def inputs_text(result: PartResult) -> str:
    """Return a text with the names of the wrong inputs, and details of the input to which the diagnosis refers."""
    wrong = [case for case in result.cases if not case.ok]
    if not wrong:
        return f"right on all {len(result.cases)} inputs"
    names = ", ".join(f"'{case.name}'" for case in wrong)
    source = [case_line(case) for case in wrong if case.diagnosis and case.diagnosis == result.diagnosis]
    return " ".join([f"wrong on {len(wrong)} of {len(result.cases)} inputs: {names}", *source[:1]])


def case_line(case: CaseResult) -> str:
    shape = " ".join(f"{name}={value}" for name, value in case.shape.items())
    error = f"; largest error {case.max_error:.2g}" if case.max_error is not None else ""
    return f"(numbers from input '{case.name}', {shape}{error})"


def time_text(time: Timing) -> str:
    low, high = time.ratio_interval
    sure = f"{'surely' if time.ratio_confidence > 0.9 else 'probably'} {low:.2f} to {high:.2f}"
    clock = "CPU time" if time.clock == "cpu" else "elapsed time"
    graded = "not graded" if "not_graded" in time.flags else f"up to {time.allowance:.2f} is allowed"
    lines = [
        f"{time.ratio:.2f} x the reference ({sure}); {graded}",
        f"{time.student_ms:.1f} ms against {time.reference_ms:.1f} ms, {clock}, measured in turn {time.rounds} times",
    ]
    if "undecided" in time.flags:
        lines.append("too close to the limit for a decision: counted as a pass")
    if not time.fit:
        lines.append(
            f"this machine was too unsteady to judge the time (reference against itself: {time.self_ratio:.2f}); "
            "close other programs and run again"
        )
    if "wall_ceiling" in time.flags:
        lines.append(
            "the CPU time is within the allowance, but the elapsed time is not: does the code sleep or wait?"
        )
    return "\n".join(lines)


def memory_text(memory: Memory) -> str:
    def pair(mine: str | None, theirs: int | None) -> str:
        if mine is None:
            return "not measured on this system"
        return mine + (f" (reference {theirs})" if theirs is not None else "")

    profiler_bytes, peak_bytes = memory.profiler_bytes, memory.peak_bytes
    profiler = None if profiler_bytes is None else f"{profiler_bytes} bytes"
    peak = None if peak_bytes is None else f"{peak_bytes} bytes" if peak_bytes else NO_GROWTH
    lines = [f"profiler: {pair(profiler, memory.reference_profiler_bytes)}"] if profiler else []
    return "\n".join([*lines, f"true peak of the call: {pair(peak, memory.reference_peak_bytes or None)}"])


def printed_text(output: str, lines: int = 40, *, once: bool = False) -> str:
    """Return the first `lines` lines of a part's output. `once`: leave out repeated lines."""
    every = output.splitlines()
    kept = list(dict.fromkeys(every)) if once else every
    text = [line[: WIDTH - 4] for line in kept[:lines]]
    if len(kept) > lines:
        text.append(f"... {len(kept) - lines} more lines" + (" (--json FILE keeps all)" if once else ""))
    return "\n".join(text)
