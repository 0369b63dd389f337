"""A class's totals put into the export of a platform's gradebook: its own cells filled, every other byte as it was.

What the formats share is here; `canvas` and `moodle` say which columns theirs has, which rows are people and what may
be written where. Nothing that a student wrote reaches the file: only numbers do.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.core.errors import UsageError
from grader.core.harmless import one_line
from grader.staff.platforms import cells, matching
from grader.staff.platforms.cells import Cell, Row, Table
from grader.staff.platforms.matching import Listed, Student

_NUMBER = re.compile(r"[-+]?(\d{1,12}(\.\d{0,12})?|\.\d{1,12})")


@dataclass(frozen=True)
class Target:
    """One person's row of an export: who it is, the cell of the grade, and why it cannot be changed, or ""."""

    person: Listed
    cell: Cell
    locked: str = ""


@dataclass(frozen=True)
class Filled:
    """The whole file as the platform is to get it back, and lines for the person who asked."""

    content: bytes
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """What is wanted of an export: the assignment's title and maximum, and the column that was named, if one was."""

    title: str
    max_points: float
    column: str | None = None


#: (the export, what is asked) -> the rows of people, in order. Raises UsageError for an export that is none.
Reader = Callable[[Table, Asked], Sequence[Target]]


@dataclass(frozen=True)
class Gradebook:
    """How a platform's gradebook is read and filled. `fold`: e-mail addresses are compared without capitals. `most`: a
    total above the maximum is not imported, so that the maximum is written in its place."""

    title: str
    read: Reader
    fold: bool
    most: bool = False


def fill(book: Gradebook, path: Path, students: Sequence[Student], asked: Asked) -> Filled:
    """The export at `path` with each student's total in it. A person without a total keeps what stands there.

    Raises UsageError, in one line with the file and its line, for what cannot be filled; nothing is written here.
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
        told = f"{names[row]} {points(student.total)}"
        if target.locked:
            locked.append(f"{told} ({target.locked})")
            continue
        if total < student.total:
            capped.append(told)
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
            f"in {path.name} without a submission, left as they were",
            [names[k] for k in matched.only_listed],
        ),
        _list(
            f"submissions of nobody in {path.name}",
            [_unknown(students[k], targets, book) for k in matched.only_graded],
        ),
    ]
    return Filled(table.replaced(values), tuple(filter(None, notes)))


def _names(targets: Sequence[Target]) -> list[str]:
    """What each person is called in a message: the name, with the line of the file where several bear it."""
    told = [one_line(target.person.name, 40) for target in targets]
    borne = Counter(told)
    return [
        f"{name} (line {target.person.at.rpartition(':')[2]})" if borne[name] > 1 else name
        for name, target in zip(told, targets, strict=True)
    ]


def _list(what: str, names: Sequence[str]) -> str:
    return f"{what} ({len(names)}): {matching.shown(names)}" if names else ""


def _not_final(students: Sequence[Student]) -> str:
    """Those with a total that may still change; without their names where all wait for the same."""
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


# ---- what formats are read with


def columns(table: Table, required: Sequence[str], what: str, optional: Sequence[str] = ()) -> dict[str, int]:
    """The place of each column by its name, that of the first where several bear one; those that are asked for in
    whatever capitals (Moodle's "Maximum Grade" has become "Maximum grade"). Raises UsageError where one of the required
    is missing, or one that is read stands there twice."""
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


def cell_of(table: Table, row: Row, column: int) -> Cell:
    """A cell that is to be filled. Raises UsageError where the row ends before it."""
    if column >= len(row.cells):
        raise UsageError(f"{table.at(row)}: {len(row.cells)} cells under {len(table.rows[0].cells)} columns")
    return row.cells[column]


def number(text: str) -> float | None:
    """The number that a cell holds; None where it is empty or says something else."""
    return float(text) if _NUMBER.fullmatch(text := text.strip()) else None


def points(value: float) -> str:
    """Points as every gradebook reads them: 12.5, 40; hundredths at the finest."""
    if not math.isfinite(value):
        raise ValueError("no number of points")
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def same_maximum(table: Table, row: Row, text: str, asked: Asked, where: str) -> None:
    """Raises UsageError where the platform's maximum is another than the assignment's: a total would say another
    share of it there."""
    there = number(text)
    if there is None or abs(there - asked.max_points) > 0.005:
        told = f"out of {points(there)} points" if there is not None else f"'{one_line(text, 20)}'"
        raise UsageError(
            f"{table.at(row)}: the assignment is {told} there and out of {points(asked.max_points)} here: make them "
            f"equal {where}, and export again"
        )
