"""A class of twenty-five as a run leaves it, and exports of its students as Canvas and Moodle write them."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from classrows import ABSURD_NAMES, student
from conftest import ROOT

from grader import score as rubric
from grader.assignment.loading import load
from grader.report import result_json
from grader.staff.classroom import gradebook as classbook
from grader.staff.classroom import ledger
from grader.staff.classroom.fingerprints import Fingerprints
from grader.staff.classroom.ledger import Entry, Record, Run

TITLE = "Attention kernels on a multi-core CPU"
CANVAS_HEADER = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", f"{TITLE} (4711)", "Final Score"]
MOODLE_HEADER = [
    *("Identifier", "Full name", "Email address", "Status", "Grade", "Maximum Grade", "Grade can be changed"),
    *("Last modified (submission)", "Last modified (grade)", "Feedback comments"),
]


def known_by(k: int) -> dict[str, tuple[str, ...]]:
    """Return what is known of student k besides the submission's name."""
    if k % 5 == 1:
        return {"identities": (f"sis:{9000 + k}",)}
    if k % 5 == 2:
        return {"identities": (f"canvas:{500 + k}", f"moodle:{700 + k}")}
    return {} if k % 5 == 3 else {"emails": (f"Student{k}@example.edu",)}


def graded_class(root: Path) -> Path:
    """Write the results of a class of 25 as a run does: late ones, one that was never judged, points by hand."""
    config = root / "late.yaml"
    config.write_text(
        f"extends: {ROOT / 'configs' / 'gpt149.yaml'}\n"
        "late: {due: 2025-11-03T13:00:00+00:00, per_day: {share: 0.1}}\n"
    )
    out, assignment, draw = root / "out", load(config), random.Random(25)
    rows = [student(k, draw) for k in range(25)]
    entries = [
        Entry(
            f"login{k}" if k % 5 == 3 else row.submission_id,
            ABSURD_NAMES[k % 18],
            submitted_at=f"2025-11-0{3 + k % 3}T12:00:00+00:00",
            **known_by(k),
        )
        for k, row in enumerate(rows)
    ]
    at = "2025-11-09T00:00:00+00:00"
    fingerprints = Fingerprints("s", assignment.fingerprint, "k", "t")
    with ledger.hold(out) as book:
        book.open_run(
            Run(at, str(config), assignment.id, assignment.fingerprint, "k", None, True, "A", 1),
            entries,
        )
        for k, (row, entry) in enumerate(zip(rows, entries, strict=True)):
            assert row.result is not None
            if k == 7:
                continue
            judged = replace(row.result, submission_id=entry.submission_id)
            found = result_json.to_dict(judged, rubric.score(assignment, row.result))
            book.finish(Record(entry.submission_id, fingerprints, at, {}, 1), found)
    table_of_points = "id,writeup\n" + "".join(
        f"{entry.submission_id},{k % 8}\n" for k, entry in enumerate(entries[:20])
    )
    (out / "manual.csv").write_text(table_of_points)
    return out


def canvas(k: int) -> list[str]:
    """Student k's row of Canvas. Some have numbers of SIS, some a login only."""
    login = f"login{k}" if k % 5 == 3 else f"STUDENT{k}@example.edu"
    number = str(9000 + k) if k % 2 or k % 5 == 1 else ""
    return [f"Last{k}, First", str(500 + k), number, login, "A", "", "0"]


def moodle(k: int) -> list[str]:
    number = [f"{9000 + k}"] if k % 5 == 1 else [f"login{k}"] if k % 5 == 3 else [""]
    return [
        *(f"Participant {700 + k}", f"First Last{k}", f"Student{k}@example.edu", "Submitted for grading", ""),
        *("100.00", "Yes", "-", "-", "keep <b>this</b>, please"),
        *number,
    ]


def text_of(header: list[str], rows: list[list[str]]) -> str:
    target = io.StringIO()
    csv.writer(target, lineterminator="\r\n").writerows([header, *rows])
    return target.getvalue()


def canvas_export(students: int = 25, header: list[str] | None = None) -> str:
    possible = ["    Points Possible", "", "", "", "", "100", "(read only)"]
    return text_of(header or CANVAS_HEADER, [possible, *(canvas(k) for k in range(students))])


def moodle_export(students: int = 25, header: list[str] | None = None) -> str:
    return "\ufeff" + text_of(header or [*MOODLE_HEADER, "ID number"], [moodle(k) for k in range(students)])


def moodle_with(old: str, new: str, count: int = -1) -> str:
    return moodle_export().replace(old, new, count)


def canvas_with(old: str, new: str, count: int = -1) -> str:
    return canvas_export().replace(old, new, count)


EXPORTS: dict[str, tuple[Callable[[], str], str]] = {
    "canvas": (canvas_export, f"{TITLE} (4711)"),
    "moodle": (moodle_export, "Grade"),
}


def report(out: Path, **exports: Path) -> str:
    stream = io.StringIO()
    column = exports.pop("column", None)
    assert classbook.report(out, None, stream, exports=exports, column=column) == 0
    return stream.getvalue()
