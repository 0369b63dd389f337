"""Formats of gradebooks: Canvas's export and Moodle's worksheet, both CSV.

Canvas: each student has a row and each assignment a column, `NAME (id)`. Above the students is the row `Points
Possible`. Some exports have another row above it, about manual posting. Canvas ignores read-only columns, such as
assignments in a closed grading period.

Moodle: the offline grading worksheet has a row for each participant of one assignment. Moodle refuses files with other
columns than its own, and compares e-mail addresses with case. It imports the grade and the feedback comment of each
row, so a file without comments could erase the comments in Moodle.
"""

from __future__ import annotations

import re

from grader.core.errors import UsageError
from grader.core.harmless import one_line
from grader.staff.platforms import gradebook
from grader.staff.platforms.cells import Row, Table
from grader.staff.platforms.gradebook import Asked, Gradebook, Target
from grader.staff.platforms.matching import Listed, email, folder

CANVAS_COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
POINTS_ROW = "Points Possible"
READ_ONLY = "(read only)"
MOST_LISTED = 6
_ASSIGNMENT = re.compile(r"(?P<name>.*\S)\s+\((?P<id>\d{1,20})\)")


def read_canvas(table: Table, asked: Asked) -> list[Target]:
    """Return the students in a Canvas export, each with the cell of the assignment's grade. Raises UsageError."""
    places = gradebook.columns(table, CANVAS_COLUMNS, "a gradebook export of Canvas in English")
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
        raise UsageError(f"{table.at(possible)}: '{name}' is read-only: is the assignment closed in Canvas?")
    gradebook.same_maximum(table, possible, possible.text(column), asked, "in Canvas")
    return [
        Target(_person(table, row, places), gradebook.cell_of(table, row, column))
        for row in table.rows[above + 1 :]
    ]


def chosen(table: Table, asked: Asked) -> int:
    """Return the index of the assignment's column: that of `--column`, else the column with the assignment's title."""
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
    listed = ", ".join(names[:MOST_LISTED]) + (
        f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    )
    what = "several columns are" if fitting else "no column is"
    raise UsageError(
        f"{table.at(header)}: {what} called '{one_line(asked.column or asked.title, 60)}': choose one with --column "
        f"({listed or 'the file has no assignment'})"
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


CANVAS = Gradebook("Canvas", read_canvas, fold=True)


MOODLE_COLUMNS = (
    *("Identifier", "Status", "Grade", "Maximum Grade", "Grade can be changed"),
    *("Last modified (submission)", "Last modified (grade)", "Feedback comments"),
)
#: Columns that depend on the settings of the assignment or site. Blind marking leaves out names and addresses.
#: Addresses are also missing if the user who exports may not see them.
OPTIONAL = (
    *("Full name", "Email address", "ID number", "Username", "Group"),
    *("Marker", "Marking workflow state", "Online text"),
)
_PARTICIPANT = re.compile(r"Participant (?P<number>\d{1,20})")


def read_moodle(table: Table, asked: Asked) -> list[Target]:
    """Return the participants in a Moodle worksheet, each with the cell of the grade. Raises UsageError."""
    places = gradebook.columns(
        table, MOODLE_COLUMNS, "an offline grading worksheet of Moodle in English", OPTIONAL
    )
    header = table.rows[0]
    if asked.column is not None:
        raise UsageError("--column is only for Canvas: a Moodle worksheet has one assignment")
    for name in places:
        if name not in MOODLE_COLUMNS and name not in OPTIONAL:
            raise UsageError(
                f"{table.at(header)}: Moodle does not know the column '{one_line(name, 60)}' and would refuse the "
                "file: remove the column, or export again"
            )
    targets = []
    for row in table.rows[1:]:
        if len(row.cells) != len(header.cells):
            raise UsageError(f"{table.at(row)}: {len(row.cells)} cells, but {len(header.cells)} columns")
        gradebook.same_maximum(table, row, row.text(places["Maximum Grade"]), asked, "in Moodle")
        changeable = row.text(places["Grade can be changed"]).casefold() == "yes"
        targets.append(
            Target(
                _participant(table, row, places),
                gradebook.cell_of(table, row, places["Grade"]),
                "" if changeable else "locked in Moodle",
            )
        )
    if targets and all(target.locked for target in targets):
        raise UsageError(f"{table.path}: every grade is locked: is the assignment closed in Moodle?")
    return targets


def _participant(table: Table, row: Row, places: dict[str, int]) -> Listed:
    participant = _PARTICIPANT.fullmatch(row.text(places["Identifier"]))
    if participant is None:
        identifier = one_line(row.text(places["Identifier"]), 40)
        raise UsageError(
            f"{table.at(row)}: expected an identifier like 'Participant 123', not '{identifier}'"
        )
    known = [f"moodle:{participant['number']}"]

    def cell(name: str) -> str:
        return row.text(places[name]) if name in places else ""

    if address := cell("Email address"):
        known += [email(address, fold=False), folder(address)]
    if number := cell("ID number"):
        known += [f"sis:{number}", folder(number)]
    if name := cell("Username"):
        known += [f"login:{name.casefold()}", folder(name)]
    return Listed(cell("Full name") or participant[0], table.at(row), tuple(dict.fromkeys(known)))


MOODLE = Gradebook("Moodle", read_moodle, fold=False, most=True)
