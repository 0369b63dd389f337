"""Files of a class: `grades.csv`, `report.html` and `<id>/feedback.txt`, written in one pass over the rows.

Only one row's results are in memory at a time. So a class of 300 needs hardly more memory than one submission. Each
file is written atomically: a reader sees the old or the new content.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.core.errors import UsageError, explained
from grader.report.machines import Machine, Row


def write(
    out_dir: Path,
    assignment: Assignment,
    rows: Iterable[Row],
    *,
    made_at: datetime | None = None,
    machines: Collection[Machine] = (),
) -> tuple[str, ...]:
    """Write all files of a class into `out_dir`. Return notes to print, such as a missing library.

    A student's folder is `out_dir/<submission_id>`, created if needed. `made_at` is the report's date (default: now).
    `machines` are the computers of a cluster. Raises UsageError if a table cannot be written.
    """
    from grader.report.grades_csv import GradesCsv
    from grader.report.html import Report, missing_library

    notes: list[str] = []
    missing = missing_library()
    if missing:
        notes.append(f"report.html is not written, because {missing} is not installed: pip install {missing}")
    with explained(f"cannot write the reports in {out_dir}"), ExitStack() as stack:
        grades = GradesCsv(assignment)
        report = (
            None if missing else stack.enter_context(Report(assignment, made_at or datetime.now(), machines))
        )
        for row in rows:
            grades.add(row)
            if report:
                report.add(row)
            notes += _give_feedback(assignment, row, out_dir)
        _put(grades.write, out_dir / "grades.csv")
        if report:
            _put(report.write, out_dir / "report.html")
    return tuple(notes)


def _put(write: Callable[[Path], None], path: Path) -> None:
    try:
        write(path)
    except OSError as error:
        why = plainfile.trouble_with(path, wants_folder=False) or error.strerror or error
        raise UsageError(f"cannot write {path}: {why}") from error


def _give_feedback(assignment: Assignment, row: Row, out_dir: Path) -> list[str]:
    """Write one student's feedback file. Return [], or a list of one note if it cannot be written."""
    from grader.report import feedback, words

    if Path(row.submission_id).name != row.submission_id:
        return [f"no feedback for {words.line(row.submission_id, 60)!r}: it cannot be the name of a folder"]
    try:
        feedback.write(assignment, row, out_dir / row.submission_id)
    except OSError as error:
        return [f"no feedback for {words.line(row.submission_id, 60)!r}: {error.strerror}"]
    return []
