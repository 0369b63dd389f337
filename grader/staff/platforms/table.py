"""Table of the supported course platforms, with one row each, for `grader platforms`, `grader report` and tests.

The formats of the gradebooks are here, too: Canvas's export and Moodle's worksheet, both CSV.

Canvas: each student has a row and each assignment a column, `NAME (id)`. Above the students is the row `Points
Possible`. Some exports have another row above it, about manual posting. Canvas ignores read-only columns, such as
assignments in a closed grading period.

Moodle: the offline grading worksheet has a row for each participant of one assignment. Moodle refuses files with
additional columns, and distinguishes capitals in e-mail addresses. It imports the grade and the feedback comment of
each row, so a file without comments could erase the comments in Moodle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from grader.core.errors import UsageError
from grader.core.harmless import one_line
from grader.core.quantities import shortened
from grader.report.classroom50 import LARGEST_BYTES as LARGEST_CLASSROOM50_BYTES
from grader.report.prairielearn import LARGEST_BYTES
from grader.staff.platforms import gradebook, prairielearn
from grader.staff.platforms.cells import Row, Table
from grader.staff.platforms.gradebook import Asked, Gradebook, Target
from grader.staff.platforms.matching import Listed, email, folder

CANVAS_COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
POINTS_ROW = "Points Possible"
READ_ONLY = "(read only)"
MOST_LISTED = 6
_ASSIGNMENT = re.compile(r"(?P<name>.*\S)\s+\((?P<id>\d{1,20})\)")


def read_canvas(table: Table, asked: Asked) -> list[Target]:
    """Return the students in a Canvas export, each with the cell of the grade. Raises UsageError for other files."""
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
    """Return the index of the column that `--column` names or, without this option, that has the assignment's title.

    Raises UsageError if the column is missing or occurs more than once.
    """
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
    what = "several columns are" if fitting else "no column is"
    raise UsageError(
        f"{table.at(header)}: {what} called '{one_line(asked.column or asked.title, 60)}': choose one with --column "
        f"({shortened(names, MOST_LISTED) or 'the file has no assignment'})"
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
#: Columns of a worksheet that depend on the settings of the assignment or site. Blind marking leaves out names and
#: addresses. Addresses are also missing if the person who exports may not see them.
OPTIONAL = (
    *("Full name", "Email address", "ID number", "Username", "Group"),
    *("Marker", "Marking workflow state", "Online text"),
)
_PARTICIPANT = re.compile(r"Participant (?P<number>\d{1,20})")


def read_moodle(table: Table, asked: Asked) -> list[Target]:
    """Return the participants in a Moodle worksheet, each with the cell of the grade.

    Raises UsageError for other files, and if every grade is locked.
    """
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
            raise UsageError(f"{table.at(row)}: {len(row.cells)} cells for {len(header.cells)} columns")
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
    """Return a row's participant with all identities. Raises UsageError unless its id is like "Participant 123"."""
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


@dataclass(frozen=True)
class Platform:
    """One platform. `grader platforms NAME` prints the texts in these fields (see `whole`).

    `gradebook` is the format of the platform's gradebook, or None. `release` describes the files that
    `release --platform NAME` writes. `seconds` limits the time of grading, and `bytes_back` the size of the results
    file; None: no limit is known.
    """

    name: str
    title: str
    hands_in: str
    wants_back: str
    matched_by: str
    shown: str
    command: str
    cpus: str = ""
    seconds: float | None = None
    bytes_back: int | None = None
    gradebook: Gradebook | None = None
    release: str = ""


AS_FEEDBACK = "the text of feedback.txt: public cases in full; of hidden cases only whether one failed"

PLATFORMS = (
    Platform(
        name="gradescope",
        title="Gradescope",
        hands_in="submission/ in a container; an export of the class",
        wants_back="results/results.json from its container",
        matched_by="Gradescope itself",
        shown=AS_FEEDBACK + "; only the staff see hidden cases in full, and flags",
        cpus="CPUs and memory as configured in Gradescope",
        seconds=600,
        command="release --out DIST; in the container: gradescope",
        release="handout.zip and autograder.zip",
    ),
    Platform(
        name="github",
        title="GitHub Actions",
        hands_in="one checkout in a workflow; for a class, a folder of clones",
        wants_back="annotations, a summary and outputs of the workflow",
        matched_by="the clone's folder",
        shown=AS_FEEDBACK + "; the run in a student's repository has only public cases and is not a grade",
        cpus="CPUs of GitHub's runner",
        command="release --platform github; one PATH --github; run CLONES --commit-times",
        release="handout.zip with a workflow in it",
    ),
    Platform(
        name="classroom50",
        title="Classroom 50",
        hands_in="a folder of clones with roster.csv; one checkout, in which GitHub's runner calls autograder.py",
        wants_back="result.json, release-body.md, verdict.html",
        matched_by="clone CLASSROOM-ASSIGNMENT-USERNAME, roster.csv's username, github_id and email",
        shown=AS_FEEDBACK + "; the run of a submission has only public cases and is not a grade",
        cpus="CPUs of GitHub's runner",
        bytes_back=LARGEST_CLASSROOM50_BYTES,
        command="release --platform classroom50; run CLONES --commit-times",
        release="handout.zip and a folder with the bundle of autograder.py",
    ),
    Platform(
        name="prairielearn",
        title="PrairieLearn",
        hands_in="student/ in PrairieLearn's container, beside tests/ with the question's files",
        wants_back="results/results.json from its container",
        matched_by="PrairieLearn itself",
        shown=AS_FEEDBACK + "; pictures of where public cases are wrong",
        cpus="CPUs as configured in PrairieLearn",
        seconds=prairielearn.TIMEOUT_S,
        bytes_back=LARGEST_BYTES,
        command="release --platform prairielearn; in the container: prairielearn",
        release="handout.zip and a folder with a question and its image",
    ),
    Platform(
        name="canvas",
        title="Canvas",
        hands_in="a download of submissions; the gradebook's export",
        wants_back="the gradebook's export with the totals in one column",
        matched_by="SIS User ID, SIS Login ID (as an e-mail address), ID; else the folder's name",
        shown="the total; you send feedback.txt yourself",
        command="report DIR --canvas EXPORT.csv",
        gradebook=CANVAS,
    ),
    Platform(
        name="moodle",
        title="Moodle",
        hands_in="a download of submissions; the offline grading worksheet",
        wants_back="the offline grading worksheet with the totals in the column Grade",
        matched_by="the participant's number, the e-mail address with its case; else the folder's name",
        shown="the total; you send feedback.txt yourself",
        command="report DIR --moodle WORKSHEET.csv",
        gradebook=MOODLE,
    ),
)


def gradebooks() -> dict[str, Gradebook]:
    """Return the gradebook formats by platform name."""
    return {row.name: row.gradebook for row in PLATFORMS if row.gradebook is not None}


def line(row: Platform) -> str:
    """Return a platform's name, the results that the kit writes for it, and the commands for it, in one line."""
    return f"{row.name:13} {row.wants_back} (commands: {row.command})"


def whole(row: Platform) -> str:
    """Return all facts about a platform as text, one fact per line."""
    limits = [f"{row.seconds:g} s"] if row.seconds else []
    limits += [f"results of at most {row.bytes_back} bytes"] if row.bytes_back else []
    facts = {
        "submissions": row.hands_in,
        "results": row.wants_back,
        "matched by": row.matched_by,
        "students see": row.shown,
        "limits": ", ".join(filter(None, [*limits, row.cpus])) or "none",
        "commands": row.command,
        "release": row.release or "none: use the release of any other platform",
    }
    return "\n".join([row.title, *(f"  {name:13} {text}" for name, text in facts.items())])
