"""Writer of a class's totals into a gradebook file that a platform exported. Only the cells of grades change.

All formats share the code in this module. `grader.staff.platforms.table` defines each format: its columns, the rows of
students, and the permitted values. Only numbers are written to the file, never a student's text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.core.errors import UsageError, explained
from grader.core.harmless import one_line
from grader.report.machines import Row
from grader.staff.platforms import cells, matching
from grader.staff.platforms.cells import Cell, Table
from grader.staff.platforms.matching import Listed, Rostered, Student

_NUMBER = re.compile(r"[-+]?(\d{1,12}(\.\d{0,12})?|\.\d{1,12})")


@dataclass(frozen=True)
class Target:
    """A student's row in an export, and the cell for the grade. `locked`: why the grade cannot change, or ""."""

    person: Listed
    cell: Cell
    locked: str = ""


@dataclass(frozen=True)
class Filled:
    """An export's bytes with the grades filled in, and notes to print."""

    content: bytes
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """The assignment whose column is filled: its title, its maximum points, and the value of `--column` or None."""

    title: str
    max_points: float
    column: str | None = None


#: Function that returns the students in an export, in the file's order. Raises UsageError for another format.
Reader = Callable[[Table, Asked], Sequence[Target]]


@dataclass(frozen=True)
class Gradebook:
    """Reader and rules of one gradebook format. `title` is the platform's name.

    `fold`: ignore case in e-mail addresses. `most`: the platform refuses totals above the maximum, so the maximum is
    written in place of a larger total.
    """

    title: str
    read: Reader
    fold: bool
    most: bool = False


def fill(book: Gradebook, path: Path, students: Sequence[Student], asked: Asked) -> Filled:
    """Return the content of the export at `path` with each student's total in it. No file is written.

    A student without a total keeps the old grade. Raises UsageError, with file and line, if the file has another
    format, or if its students cannot be matched with `students` without doubt.
    """
    table = cells.read(path)
    targets = book.read(table, asked)
    matched = matching.match([target.person for target in targets], students)
    names = _names(targets)
    if students and not matched:
        raise UsageError(
            f"{path}: none of the {len(students)} submissions belongs to one of the {len(targets)} students in this "
            "file: is it the export of another course?"
        )
    values: dict[Cell, str] = {}
    changed, capped, locked = [], [], []
    for row, k in matched.items():
        target, student = targets[row], students[k]
        if student.total is None:
            continue
        total = min(student.total, asked.max_points) if book.most else student.total
        before = number(target.cell.text)
        if before is not None and round(before, 2) == round(total, 2):
            continue
        entry = f"{names[row]} {points(student.total)}"
        if target.locked:
            locked.append(f"{entry} ({target.locked})")
            continue
        if total < student.total:
            capped.append(entry)
        if target.cell.text.strip():
            changed.append(f"{names[row]} {one_line(target.cell.text, 20)} -> {points(total)}")
        values[target.cell] = points(total)
    pairs = [(targets[row], students[k]) for row, k in matched.items()]
    graded = set(matched.values())
    strangers = [student for k, student in enumerate(students) if k not in graded]
    notes = [
        f"grades filled in: {len(values)}; left as they were: {sum(t.cell not in values for t, _ in pairs)}",
        matching.listed("replaced an earlier grade", changed),
        matching.listed("not filled in, because the grade is locked", locked),
        matching.listed(f"above the maximum, so {points(asked.max_points)} is filled in", capped),
        matching.listed(
            "no grade yet, left as they were", [s.submission_id for _, s in pairs if s.total is None]
        ),
        _not_final([s for _, s in pairs if s.total is not None]),
        matching.listed(
            f"students in {path.name} without a submission, left as they were",
            [name for row, name in enumerate(names) if row not in matched],
        ),
        matching.listed(
            f"submissions whose student is not in {path.name}",
            [_unknown(student, targets, book) for student in strangers],
        ),
    ]
    return Filled(table.replaced(values), tuple(filter(None, notes)))


def _names(targets: Sequence[Target]) -> list[str]:
    """Return each student's name for a message, with the line number if several students have the same name."""
    shown = [one_line(target.person.name, 40) for target in targets]
    borne = Counter(shown)
    return [
        f"{name} (line {target.person.at.rpartition(':')[2]})" if borne[name] > 1 else name
        for name, target in zip(shown, targets, strict=True)
    ]


def _not_final(students: Sequence[Student]) -> str:
    """Return a note on students whose rubric items still lack points; "" if all have points."""
    waiting = [student for student in students if student.pending]
    if len(waiting) == len(students) > 1 and len({student.pending for student in waiting}) == 1:
        return f"not final: all {len(waiting)} students, who lack points for {', '.join(waiting[0].pending)}"
    return matching.listed("not final", [f"{s.submission_id} ({', '.join(s.pending)})" for s in waiting])


def _unknown(student: Student, targets: Sequence[Target], book: Gradebook) -> str:
    if not book.fold:
        for target in targets:
            if near := matching.differing_in_capitals(target.person, [student]):
                own = [
                    each.partition(":")[2] for each in target.person.identities if each.startswith("email:")
                ]
                return f"{student.submission_id} ({near}: {own[0]} in {book.title} has other capitals)"
    return student.submission_id


# ---- readers of the formats


def columns(table: Table, required: Sequence[str], what: str, optional: Sequence[str] = ()) -> dict[str, int]:
    """Return {name: index} of the columns in the table's header.

    Case is ignored for the names in `required` and `optional`, because Moodle's "Maximum Grade" has become "Maximum
    grade". `what` describes the expected file in messages. Raises UsageError if a required column is missing, or if a
    required or optional column occurs twice.
    """
    if not table.rows:
        raise UsageError(f"{table.path}: the file is empty: this is not {what}")
    header = table.rows[0]
    asked_for = {name.casefold(): name for name in (*required, *optional)}
    names = [asked_for.get(text.casefold(), text) for text in (cell.text.strip() for cell in header.cells)]
    for name in required:
        if name not in names:
            separated = len(names) == 1 and re.search(r"[;\t]", names[0])
            hint = "columns should be separated by commas" if separated else f"this is not {what}"
            raise UsageError(f"{table.at(header)}: there is no column '{name}': {hint}")
    for name in (*required, *optional):
        if names.count(name) > 1:
            raise UsageError(f"{table.at(header)}: the column '{name}' occurs twice")
    return {name: k for k, name in reversed(list(enumerate(names)))}


def cell_of(table: Table, row: cells.Row, column: int) -> Cell:
    """Return the row's cell in this column. Raises UsageError if the row has fewer cells."""
    if column >= len(row.cells):
        raise UsageError(f"{table.at(row)}: {len(row.cells)} cells for {len(table.rows[0].cells)} columns")
    return row.cells[column]


def number(text: str) -> float | None:
    """Return the number in a cell, or None if the cell is empty or contains another text."""
    return float(text) if _NUMBER.fullmatch(text := text.strip()) else None


def points(value: float) -> str:
    """Return points as text that every gradebook can read: at most two decimals, such as 12.5 or 40."""
    if not math.isfinite(value):
        raise ValueError("no number of points")
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def same_maximum(table: Table, row: cells.Row, text: str, asked: Asked, where: str) -> None:
    """Raise UsageError if `text`, the maximum points in the export, is not the maximum of the assignment.

    `where`, such as "in Canvas", says where to correct it.
    """
    there = number(text)
    if there is None or abs(there - asked.max_points) > 0.005:
        maximum = f"out of {points(there)} points" if there is not None else f"'{one_line(text, 20)}'"
        raise UsageError(
            f"{table.at(row)}: the assignment is {maximum} in this file, but out of {points(asked.max_points)} in the "
            f"assignment's YAML: correct the points {where}, and export again"
        )


def filled(
    exports: Mapping[str, Path],
    books: Mapping[str, Gradebook],
    assignment: Assignment,
    rows: Iterable[Row],
    roster: Sequence[Rostered],
    column: str | None = None,
) -> dict[str, Filled]:
    """Return {platform name: export with the totals filled in}. No file is written.

    `exports` are the paths of the exports and `books` their formats, by platform name. `rows` are the results of the
    submissions in `roster`, in the same order. `column` names the column to fill; None: the one with the assignment's
    title. Raises UsageError like `fill`.
    """
    graded = [
        (entry, row.total, row.score.pending if row.score else ())
        for entry, row in zip(roster, rows, strict=True)
    ]
    asked = Asked(assignment.title, max_points(assignment), column)
    return {
        name: fill(books[name], path, [_student(*each, fold=books[name].fold) for each in graded], asked)
        for name, path in exports.items()
    }


def max_points(assignment: Assignment) -> float:
    """Return the maximum total: the points of all parts and of items graded by hand, without extra credit."""
    given = [item.points for item in assignment.manual if not item.extra]
    return math.fsum([*(part.points for part in assignment.parts if part.points > 0), *given])


def _student(entry: Rostered, total: float | None, pending: tuple[str, ...], *, fold: bool) -> Student:
    """Return the `Student` for a submission on the roster. `fold`: ignore case in e-mail addresses."""
    known = matching.identities(entry.submission_id, entry.emails, entry.identities, fold=fold)
    numbers = sum(identity.startswith("sis:") for identity in entry.identities)
    finite = total if total is not None and math.isfinite(total) else None
    return Student(
        entry.submission_id, entry.name, known, finite, tuple(pending), max(1, len(entry.emails), numbers)
    )


def place_of(folder: Path, name: str) -> Path:
    """Return the path of a platform's filled export in `folder`. Raises UsageError if it cannot be written."""
    place = folder / f"{name}.csv"
    if trouble := plainfile.trouble_with(place, wants_folder=False):
        raise UsageError(f"cannot write {place}: {trouble}")
    return place


def write(folder: Path, name: str, found: Filled) -> Path:
    """Write a filled export into a class's results folder and return its path. Raises UsageError if that fails."""
    place = place_of(folder, name)
    with explained(f"cannot write {place}"), plainfile.folder(folder.resolve()) as descriptor:
        plainfile.replace(descriptor, place.name, [found.content])
    return place
