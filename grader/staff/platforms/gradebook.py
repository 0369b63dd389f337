"""A class's totals in the export of a platform's gradebook: only the cells of grades change, every other byte is kept.

This module has the shared part of the formats. `canvas` and `moodle` define their columns, the rows of people, and
the permitted values. Only numbers are written to the file, never a student's text.
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
from grader.staff.classroom.ledger import Entry
from grader.staff.platforms import cells, matching
from grader.staff.platforms.cells import Cell, Table
from grader.staff.platforms.matching import Listed, Student

_NUMBER = re.compile(r"[-+]?(\d{1,12}(\.\d{0,12})?|\.\d{1,12})")


@dataclass(frozen=True)
class Target:
    """One person's row of an export: the person, the cell of the grade, and the reason why it cannot be changed, or
    ""."""

    person: Listed
    cell: Cell
    locked: str = ""


@dataclass(frozen=True)
class Filled:
    """The complete file for the platform, and lines for the user."""

    content: bytes
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """The assignment to find in an export: its title and maximum, and the column named on the command line, if any."""

    title: str
    max_points: float
    column: str | None = None


#: Function (export, assignment to find) -> rows of people, in order. Raises UsageError for any other file.
Reader = Callable[[Table, Asked], Sequence[Target]]


@dataclass(frozen=True)
class Gradebook:
    """Reader and rules of a platform's gradebook. `fold`: capitals are ignored in e-mail addresses. `most`: the
    platform refuses a total above the maximum, so the maximum is written instead."""

    title: str
    read: Reader
    fold: bool
    most: bool = False


def fill(book: Gradebook, path: Path, students: Sequence[Student], asked: Asked) -> Filled:
    """Return the export at `path` with each student's total in it. A person without a total keeps the old value.

    Raises UsageError, in one line with the file and its line, for a cell that cannot be filled; nothing is written
    here.
    """
    table = cells.read(path)
    targets = book.read(table, asked)
    matched = matching.match([target.person for target in targets], students)
    names = _names(targets)
    if students and not matched.pairs:
        raise UsageError(
            f"{path}: none of the {len(students)} submissions is of one of its {len(targets)} students: is it the "
            "export of another course?"
        )
    values: dict[Cell, str] = {}
    changed, capped, locked = [], [], []
    for row, k in matched.pairs:
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
    pairs = [(targets[row], students[k]) for row, k in matched.pairs]
    notes = [
        f"grades filled in: {len(values)}; left as they were: {sum(t.cell not in values for t, _ in pairs)}",
        _list("another grade stood there and is replaced", changed),
        _list("cannot be changed and are left", locked),
        _list(f"above the maximum of {points(asked.max_points)}, which is filled in", capped),
        _list("no grade yet, left as they were", [s.submission_id for _, s in pairs if s.total is None]),
        _not_final([s for _, s in pairs if s.total is not None]),
        _list(
            f"in {path.name} without a submission, left as they were", [names[k] for k in matched.only_listed]
        ),
        _list(
            f"submissions of nobody in {path.name}",
            [_unknown(students[k], targets, book) for k in matched.only_graded],
        ),
    ]
    return Filled(table.replaced(values), tuple(filter(None, notes)))


def _names(targets: Sequence[Target]) -> list[str]:
    """Return each person's name for a message, with the line of the file if several share the name."""
    shown = [one_line(target.person.name, 40) for target in targets]
    borne = Counter(shown)
    return [
        f"{name} (line {target.person.at.rpartition(':')[2]})" if borne[name] > 1 else name
        for name, target in zip(shown, targets, strict=True)
    ]


def _list(what: str, names: Sequence[str]) -> str:
    return f"{what} ({len(names)}): {matching.shown(names)}" if names else ""


def _not_final(students: Sequence[Student]) -> str:
    """List students whose total may still change; without their names if all wait for the same."""
    waiting = [student for student in students if student.pending]
    if len(waiting) == len(students) > 1 and len({student.pending for student in waiting}) == 1:
        return f"not final: all {len(waiting)} ({', '.join(waiting[0].pending)})"
    return _list("not final", [f"{s.submission_id} ({', '.join(s.pending)})" for s in waiting])


def _unknown(student: Student, targets: Sequence[Target], book: Gradebook) -> str:
    if not book.fold:
        for target in targets:
            if near := matching.differing_in_capitals(target.person, [student]):
                own = [
                    each.partition(":")[2] for each in target.person.identities if each.startswith("email:")
                ]
                return f"{student.submission_id} ({near}: {own[0]} differs in capitals, which {book.title} compares)"
    return student.submission_id


# ---- readers of the formats


def columns(table: Table, required: Sequence[str], what: str, optional: Sequence[str] = ()) -> dict[str, int]:
    """Return the position of each column by its name, the first of equal names. Case is ignored in requested names
    (Moodle's "Maximum Grade" has become "Maximum grade"). Raises UsageError if a required column is missing, or if a
    column to be read occurs twice."""
    if not table.rows:
        raise UsageError(f"{table.path}: nothing is in it: this is not {what}")
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
            raise UsageError(f"{table.at(header)}: the column '{name}' stands there twice")
    return {name: k for k, name in reversed(list(enumerate(names)))}


def cell_of(table: Table, row: cells.Row, column: int) -> Cell:
    """Return a cell to be filled. Raises UsageError if the row ends before it."""
    if column >= len(row.cells):
        raise UsageError(f"{table.at(row)}: {len(row.cells)} cells under {len(table.rows[0].cells)} columns")
    return row.cells[column]


def number(text: str) -> float | None:
    """Return the number in a cell; None if it is empty or holds another text."""
    return float(text) if _NUMBER.fullmatch(text := text.strip()) else None


def points(value: float) -> str:
    """Format points so that every gradebook reads them: at most two decimals, such as 12.5 or 40."""
    if not math.isfinite(value):
        raise ValueError("no number of points")
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def same_maximum(table: Table, row: cells.Row, text: str, asked: Asked, where: str) -> None:
    """Raise UsageError if the platform's maximum differs from the assignment's: the same total would then be another
    share."""
    there = number(text)
    if there is None or abs(there - asked.max_points) > 0.005:
        maximum = f"out of {points(there)} points" if there is not None else f"'{one_line(text, 20)}'"
        raise UsageError(
            f"{table.at(row)}: the assignment is {maximum} there and out of {points(asked.max_points)} here: make them "
            f"equal {where}, and export again"
        )


def filled(
    exports: Mapping[str, Path],
    books: Mapping[str, Gradebook],
    assignment: Assignment,
    rows: Iterable[Row],
    roster: Sequence[Entry],
    column: str | None = None,
) -> dict[str, Filled]:
    """Fill each export; return them by their platform's name. `rows` are those of the roster, in its order; `column`
    names the assignment in an export that has several. Raises UsageError, in one line; nothing is written here."""
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
    """Return the maximum of a total: parts and items by hand, without extra credit."""
    given = [item.points for item in assignment.manual if not item.extra]
    return math.fsum([*(part.points for part in assignment.parts if part.points > 0), *given])


def _student(entry: Entry, total: float | None, pending: tuple[str, ...], *, fold: bool) -> Student:
    known = matching.identities(entry.submission_id, entry.emails, entry.identities, fold=fold)
    numbers = sum(identity.startswith("sis:") for identity in entry.identities)
    finite = total if total is not None and math.isfinite(total) else None
    return Student(
        entry.submission_id, entry.name, known, finite, tuple(pending), max(1, len(entry.emails), numbers)
    )


def place_of(folder: Path, name: str) -> Path:
    """Return the path of a platform's filled export. Raises UsageError if it cannot be written."""
    place = folder / f"{name}.csv"
    if trouble := plainfile.trouble_with(place, wants_folder=False):
        raise UsageError(f"cannot write {place}: {trouble}")
    return place


def write(folder: Path, name: str, found: Filled) -> Path:
    """Write a filled export into the folder of a class, whole or not at all. Raises UsageError."""
    place = place_of(folder, name)
    with explained(f"cannot write {place}"), plainfile.folder(folder.resolve()) as descriptor:
        plainfile.replace(descriptor, place.name, [found.content])
    return place
