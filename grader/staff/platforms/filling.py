"""Gradebook exports that `grader report` receives, filled with a class's totals and written beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.core.errors import UsageError
from grader.report.row import Row
from grader.staff.classroom.ledger import Entry
from grader.staff.platforms import gradebook, matching
from grader.staff.platforms.gradebook import Asked, Filled, Gradebook
from grader.staff.platforms.matching import Student


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
        name: gradebook.fill(
            books[name], path, [_student(*each, fold=books[name].fold) for each in graded], asked
        )
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
    try:
        with plainfile.folder(folder.resolve()) as descriptor:
            plainfile.replace(descriptor, place.name, [found.content])
    except OSError as error:
        raise UsageError(f"cannot write {place}: {error.strerror or error}") from error
    return place
