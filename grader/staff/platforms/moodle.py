"""Moodle's offline grading worksheet (CSV): one row for each participant of one assignment.

Moodle wants its own columns back and no other. Addresses are compared with case. It takes a grade and a feedback
comment from each row, so that both stay in the file, the comment as it was: a file without the one could erase it
there.
"""

from __future__ import annotations

import re

from grader.core.errors import UsageError
from grader.core.harmless import one_line
from grader.staff.platforms import gradebook
from grader.staff.platforms.cells import Row, Table
from grader.staff.platforms.gradebook import Asked, Gradebook, Target
from grader.staff.platforms.matching import Listed, email, folder

COLUMNS = (
    *("Identifier", "Status", "Grade", "Maximum Grade", "Grade can be changed"),
    *("Last modified (submission)", "Last modified (grade)", "Feedback comments"),
)
#: Columns that depend on the settings of an assignment or a site. Blind marking leaves out names and addresses.
#: Addresses are also missing if the user who exports may not see them.
OPTIONAL = (
    *("Full name", "Email address", "ID number", "Username", "Group"),
    *("Marker", "Marking workflow state", "Online text"),
)
_PARTICIPANT = re.compile(r"Participant (?P<number>\d{1,20})")


def read(table: Table, asked: Asked) -> list[Target]:
    """The participants of a worksheet with their cells. Raises UsageError."""
    places = gradebook.columns(table, COLUMNS, "an offline grading worksheet of Moodle in English", OPTIONAL)
    header = table.rows[0]
    if asked.column is not None:
        raise UsageError("--column is of Canvas: a worksheet of Moodle is of one assignment")
    for name in places:
        if name not in COLUMNS and name not in OPTIONAL:
            raise UsageError(
                f"{table.at(header)}: the column '{one_line(name, 60)}' is none of Moodle's, which takes a worksheet "
                "only with its own columns: take it out, or export again"
            )
    targets = []
    for row in table.rows[1:]:
        if len(row.cells) != len(header.cells):
            raise UsageError(f"{table.at(row)}: {len(row.cells)} cells under {len(header.cells)} columns")
        gradebook.same_maximum(table, row, row.text(places["Maximum Grade"]), asked, "in Moodle")
        changeable = row.text(places["Grade can be changed"]).casefold() == "yes"
        targets.append(
            Target(
                _person(table, row, places),
                gradebook.cell_of(table, row, places["Grade"]),
                "" if changeable else "its grade cannot be changed",
            )
        )
    if targets and all(target.locked for target in targets):
        raise UsageError(f"{table.path}: no grade of it can be changed: is the assignment closed?")
    return targets


def _person(table: Table, row: Row, places: dict[str, int]) -> Listed:
    participant = _PARTICIPANT.fullmatch(row.text(places["Identifier"]))
    if participant is None:
        told = one_line(row.text(places["Identifier"]), 40)
        raise UsageError(f"{table.at(row)}: an identifier is like 'Participant 123', not '{told}'")
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


MOODLE = Gradebook("Moodle", read, fold=False, most=True)
