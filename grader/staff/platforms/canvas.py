"""Canvas's gradebook export (CSV): one column for each assignment, `NAME (assignment id)`, one row for each student.

Above the students stands the row `Points Possible` (and above that, in some exports, one on manual posting). Canvas
ignores columns that it calls read-only; an assignment in a closed grading period is one of them.
"""

from __future__ import annotations

import re

from grader.core.errors import UsageError
from grader.core.harmless import one_line
from grader.staff.platforms import gradebook
from grader.staff.platforms.cells import Row, Table
from grader.staff.platforms.gradebook import Asked, Gradebook, Target
from grader.staff.platforms.matching import Listed, email, folder

COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
POINTS_ROW = "Points Possible"
READ_ONLY = "(read only)"
MOST_TOLD = 6
_ASSIGNMENT = re.compile(r"(?P<name>.*\S)\s+\((?P<id>\d{1,20})\)")


def read(table: Table, asked: Asked) -> list[Target]:
    """The students of an export with their cells of the assignment. Raises UsageError."""
    places = gradebook.columns(table, COLUMNS, "a gradebook export of Canvas in English")
    above = next(
        (k for k, row in enumerate(table.rows[:4]) if row.text(places["Student"]) == POINTS_ROW), None
    )
    if above is None:
        raise UsageError(
            f"{table.path}: there is no row '{POINTS_ROW}': this is not a gradebook export of Canvas"
        )
    column = chosen(table, asked)
    possible = table.rows[above]
    if READ_ONLY in possible.text(column).casefold():
        name = one_line(table.rows[0].text(column), 60)
        raise UsageError(f"{table.at(possible)}: '{name}' is read-only there: is the assignment closed?")
    gradebook.same_maximum(table, possible, possible.text(column), asked, "in Canvas")
    return [
        Target(_person(table, row, places), gradebook.cell_of(table, row, column))
        for row in table.rows[above + 1 :]
    ]


def chosen(table: Table, asked: Asked) -> int:
    """The assignment's column: the one that was named, else the one with the assignment's title."""
    header = table.rows[0]
    found = {
        k: match for k, cell in enumerate(header.cells) if (match := _ASSIGNMENT.fullmatch(cell.text.strip()))
    }
    wanted = _plain(asked.column if asked.column is not None else asked.title)
    fitting = [
        k for k, match in found.items() if wanted in (_plain(match["name"]), _plain(match[0]), match["id"])
    ]
    if len(fitting) == 1:
        return fitting[0]
    names = [one_line(match[0], 60) for match in found.values()]
    told = ", ".join(names[:MOST_TOLD]) + (
        f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
    )
    what = "several columns are" if fitting else "no column is"
    raise UsageError(
        f"{table.at(header)}: {what} called '{one_line(asked.column or asked.title, 60)}': choose one with --column "
        f"({told or 'there is no assignment in it'})"
    )


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _person(table: Table, row: Row, places: dict[str, int]) -> Listed:
    canvas_id, sis, login = (row.text(places[name]) for name in ("ID", "SIS User ID", "SIS Login ID"))
    known = [f"canvas:{canvas_id}"] if canvas_id else []
    known += [f"sis:{sis}", folder(sis)] if sis else []
    known += (
        [email(login, fold=True) if "@" in login else f"login:{login.casefold()}", folder(login)]
        if login
        else []
    )
    return Listed(row.text(places["Student"]), table.at(row), tuple(dict.fromkeys(known)))


CANVAS = Gradebook("Canvas", read, fold=True)
