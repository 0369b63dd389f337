"""Parser of ThreadSanitizer's reports. It finds the variable and the student's lines of each data race, and describes
the race in lines for the student."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.assignment.records import Part
from grader.backends.native.sanitize import Frame, element
from grader.core.harmless import harmless
from grader.source.cpptext import blanked
from grader.source.dataflow import expanded
from grader.study.figure import Figure
from grader.study.table import Cell, Table

STUDENT_FILE = "module.cpp"
MOST_RACES = 8

REPORT = re.compile(r"^WARNING: ThreadSanitizer: (?:data race|heap-use-after-free)", re.MULTILINE)
ACCESS = re.compile(
    r"^  (?P<earlier>Previous )?(?P<atomic>atomic )?(?P<what>read|write) of size \d+ at \S+ by (?P<who>[^:(]+)",
    re.MULTILINE | re.IGNORECASE,
)
LOCATION = re.compile(
    r"^  Location is (?:(?P<heap>heap block of size (?P<bytes>\d{1,9}))|(?P<stack>stack)|global '(?P<name>[^']+)'|TLS)",
    re.MULTILINE,
)
FRAME = re.compile(r"^    #\d+ (?P<function>.+) (?P<file>\S+?):(?P<line>\d{1,9})(?::\d+)? \(", re.MULTILINE)

#: Matches an assignment such as `sum += x`, `row[j] = x` or `(*count)++`, with the name of the variable that it writes.
#: It also matches declarations, which `_written_name` excludes: threads do not share a variable declared on this line.
WRITTEN = re.compile(
    r"(?<![\w.>])(?P<name>[A-Za-z_]\w*)\s*(?:\)\s*)?(?P<index>(?:\[(?:[^][]|\[[^\]]*\])*\]\s*)*)(?:[-+*/%|&^]?=(?!=)|\+\+|--)"
    r"|(?:\+\+|--)\s*(?P<prefixed>[A-Za-z_]\w*)"
)
#: {operator of an OpenMP reduction: pattern of the statements that the reduction can replace}. {0} is the variable.
REDUCTIONS = {
    "+": r"\b{0}\s*\+=",
    "max": r"\b{0}\s*=\s*[\w:]*max\w*\s*\(",
    "min": r"\b{0}\s*=\s*[\w:]*min\w*\s*\(",
}
DECLARED = re.compile(r"(?:[\w>]\s+|[\w>]\s*[*&]+\s*)\Z")
NO_TYPES = re.compile(r"\b(?:else|do|return)\s+\Z")
MADE = re.compile(
    r"(?P<grown>[A-Za-z_]\w*)\s*\.\s*(?:resize|assign|reserve|push_back|emplace_back|insert)\s*\("
    r"|(?P<name>[A-Za-z_]\w*)\s*(?:=(?!=)|\(|\{|;|\[)"
)


@dataclass(frozen=True)
class Access:
    """One of a race's two memory accesses. `frames`: its stack frames in the student's file, innermost first."""

    is_write: bool
    frames: tuple[Frame, ...]

    @property
    def shown_frame(self) -> Frame | None:
        """The outermost frame in the student's file, or None.

        For an access in a small function such as `at()`, it is the line that calls the function: a line in the function
        would not show which call is meant.
        """
        return self.frames[-1] if self.frames else None


@dataclass(frozen=True)
class Race:
    """Data race: two threads access one variable without synchronisation, and at least one of them writes.

    `variable` is the variable's name, "" if unknown. `place` describes its memory, such as "a global variable". `now`
    and `before` are the later and the earlier access. `made` is the line that allocated memory on the heap, else None.
    `is_static`: True for a static variable of a function.
    """

    variable: str
    place: str
    now: Access
    before: Access
    made: Frame | None = None
    is_static: bool = False

    @property
    def kind(self) -> str:
        if self.now.is_write and self.before.is_write:
            return "two threads write it"
        return "one thread writes it while another reads it"

    @property
    def lines(self) -> tuple[int, ...]:
        frames = (access.shown_frame for access in (self.now, self.before))
        return tuple(sorted({frame.line for frame in frames if frame is not None}))


def races(output: str, source_text: str) -> tuple[Race, ...]:
    """Return the races that `output` reports, in order. Those with equal variable and lines are returned once."""
    rows, plain = source_text.split("\n"), expanded(tuple(blanked(source_text).split("\n")))
    starts = [match.start() for match in REPORT.finditer(output)]
    found: dict[tuple[str, tuple[int, ...]], Race] = {}
    for start, end in zip(starts, [*starts, len(output)][1:], strict=True):
        race = _race(output[start:end], rows, plain)
        if race is not None:
            found.setdefault((race.variable, race.lines), race)
    return tuple(found.values())


def _race(text: str, rows: Sequence[str], plain: Sequence[str]) -> Race | None:
    """Parse one report of ThreadSanitizer. Return None if it lacks two accesses, or if none is in the student's file.

    `rows` are the lines of the student's file, `plain` those without comments and with macros expanded.
    """
    accesses = list(ACCESS.finditer(text))
    if len(accesses) < 2:
        return None
    sides = [
        Access(match["what"].lower() == "write", _own_frames(_stack_after(text, match.end()), rows, plain))
        for match in accesses[:2]
    ]
    if not any(side.frames for side in sides):
        return None
    location = LOCATION.search(text)
    made, place = None, "memory"
    if location is not None and location["heap"]:
        own = _own_frames(_stack_after(text, location.end()), rows, plain)
        made = own[-1] if own else None
        kind, size = element(made.text if made is not None else "")
        place = f"{int(location['bytes']) // size} {kind}" if int(location["bytes"]) % size == 0 else "memory"
    elif location is not None:
        place = "a local variable" if location["stack"] else "a global variable"
    variable, is_static = _global_name((location["name"] or "") if location is not None else "")
    variable = variable or (_made_name(made.text, sides) if made is not None else "")
    return Race(variable or _written_name(sides), place, sides[0], sides[1], made, is_static)


def _made_name(text: str, sides: Sequence[Access]) -> str:
    """Return the name of an array that the line `text` allocates, preferably one in the lines of `sides`, or ""."""
    names = [one["grown"] or one["name"] for one in MADE.finditer(text)]
    used = re.findall(r"\w+", " ".join(frame.text for side in sides for frame in side.frames))
    return next((name for name in names if name in used), next(iter(names), ""))


def _global_name(name: str) -> tuple[str, bool]:
    """Return (variable, is_static) for a global name: `f(int)::sum`, a function's static variable, is ("sum", True)."""
    name = name.replace("(anonymous namespace)::", "")
    inside, bracket, rest = name.rpartition(")")
    return (rest.rpartition("::")[2], True) if inside and bracket and "::" in rest else (name, False)


def _stack_after(text: str, start: int) -> str:
    return re.split(r"\n\s*\n", text[start:], maxsplit=1)[0]


def _own_frames(stack: str, rows: Sequence[str], plain: Sequence[str]) -> tuple[Frame, ...]:
    """Return the frames of a call stack that are in the student's file, innermost first and each once."""
    return tuple(
        dict.fromkeys(
            Frame(line, _row(rows, line), _short(match["function"]), _row(plain, line))
            for match in FRAME.finditer(stack)
            for line in (int(match["line"]),)
            if match["file"].rpartition("/")[2] == STUDENT_FILE
        )
    )


def _row(rows: Sequence[str], line: int) -> str:
    return harmless(rows[line - 1].strip())[:160] if 1 <= line <= len(rows) else ""


def _short(function: str) -> str:
    """Return a demangled function name without parameters, template arguments and suffixes such as [clone ...]."""
    return harmless(re.split(r"[(<]| \[", function, maxsplit=1)[0])


def _written_name(sides: Iterable[Access]) -> str:
    """Return the name of a variable to which the source line of one of the accesses assigns, or "".

    An access in a helper function is skipped, because its line names a parameter of the helper.
    """
    for side in sides:
        if side.is_write and len(side.frames) == 1:
            text = side.frames[0].plain
            found = [(match, match["name"] or match["prefixed"]) for match in WRITTEN.finditer(text)]
            declared = {
                name
                for match, name in found
                if DECLARED.search(before := text[: match.start()]) and not NO_TYPES.search(before)
            }
            names = [(bool(match["index"]), name) for match, name in found if name not in declared]
            if names:
                # Prefer a variable without an index. Indexed variables are mostly on the heap; for these the message
                # shows the line of the allocation.
                return min(names, key=lambda found: found[0])[1]
    return ""


def words(race: Race, file_name: str) -> list[str]:
    """Return lines on a race for the student: the variable, both accesses, and advice. `file_name` is the student's."""
    name = race.variable or f"{race.place[0].upper()}{race.place[1:]}"
    lines = [f"{name}: {race.kind}, without synchronisation"]
    if race.before.shown_frame == race.now.shown_frame and race.now.shown_frame is not None:
        lines.append(f"  both in {_where(race.now, file_name)}")
    else:
        for access, when in ((race.before, "first"), (race.now, "then")):
            does = "writes" if access.is_write else "reads"
            lines.append(f"  {when} a thread {does} it in {_where(access, file_name)}")
    if race.made is not None:
        lines.append(f"  allocated ({race.place}) in {file_name}:{race.made.line}: {race.made.text}")
    return [*lines, *textwrap.wrap(_advice(race), 100, initial_indent="  ", subsequent_indent="  ")]


def _where(access: Access, file_name: str) -> str:
    frame = access.shown_frame
    if frame is None:
        return "code outside of your file"
    through = f"   (through {access.frames[0].function})" if len(access.frames) > 1 else ""
    return f"{file_name}:{frame.line}: {frame.text}{through}"


def _advice(race: Race) -> str:
    """Return advice on how to declare or index the variable of a race."""
    if race.made is not None:
        return (
            "Give each thread its own: declare it inside the region, or name it in firstprivate(...). If it has a part "
            "for each thread, index it by omp_get_thread_num()."
        )
    if race.is_static:
        return "A static variable is shared by all threads and calls: declare it without 'static'."
    rows = [access.shown_frame.plain for access in (race.before, race.now) if access.shown_frame is not None]
    name = re.escape(race.variable)
    if name and all(re.search(rf"\b{name}\s*\[", row) for row in rows):
        return (
            f"Threads write the same element of {race.variable}: make the loop over its index the parallel one, or "
            "give each thread its own array and add these arrays up, under omp critical."
        )
    alone = "Declare it inside the parallel region (or name it in private(...))"
    for operation, pattern in REDUCTIONS.items():
        if name and all(re.search(pattern.format(name), row) for row in rows):
            return f"{alone}; if all threads compute one result together: reduction({operation}: {race.variable})."
    return f"{alone}."


@dataclass(frozen=True)
class RaceResult:
    """Result of the search for data races in one part.

    `method` describes the search. `trouble` is the end of a sentence on a failure or a wrong result, or "". `regions`
    is the number of parallel regions that ran on more than one thread (None: unknown), `alone` the number of those that
    ran on one thread. `wall_s` is the duration of the search in seconds.
    """

    part: Part
    source: Path
    shape: Mapping[str, int]
    method: str
    races: tuple[Race, ...] = ()
    trouble: str = ""
    regions: int | None = None
    alone: int = 0
    wall_s: float = 0.0

    def table(self) -> Table:
        rows: list[tuple[Cell, ...]] = []
        for race in self.races[:MOST_RACES]:
            frames = [access.shown_frame for access in (race.before, race.now)]
            cells = [
                cell for frame in frames for cell in ((frame.line, frame.text) if frame else (None, None))
            ]
            rows.append((race.variable or race.place, race.kind, *cells))
        if not rows:
            rows.append(("none", "no data race found" if self.is_clean else self.trouble, *[None] * 4))
        return Table(
            name="race",
            title=f"Data races in {self.part.function}",
            columns=("variable", "what", "line", "source", "other line", "other source"),
            rows=tuple(rows),
            caption=self.summary(),
        )

    def figures(self) -> tuple[Figure, ...]:
        return ()

    def summary(self) -> str:
        """Return one or two sentences with the result and the method."""
        sizes = " ".join(f"{name}={self.shape[name]}" for name in self.shape)
        how = f"({self.method}, {sizes}, {self.wall_s:.1f} s)"
        if self.races:
            count = "1 data race" if len(self.races) == 1 else f"{len(self.races)} data races"
            return f"{self.part.function} has {count} {how}."
        if self.trouble:
            return f"{self.part.function} {self.trouble} {how}."
        if self.regions == 0:
            return (
                f"No data race in {self.part.function}, but it entered no parallel region with more than one thread: "
                f"is there a #pragma omp parallel? {how}"
            )
        if self.alone:
            return (
                f"No data race in {self.part.function}, but not all of its parallel regions had more than one thread: "
                f"is there an if clause? Choose larger sizes. {how}"
            )
        return f"No data race in {self.part.function} {how}."

    @property
    def is_clean(self) -> bool:
        return not self.races and not self.trouble
