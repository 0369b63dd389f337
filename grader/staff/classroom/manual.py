"""Tables that the staff fills in, one row per submission: points (`manual.csv`), and times of submission.

    id,name,writeup,part1_extra,comment
    ada,Ada Lovelace,6.5,,see the margin of question 3
    grace_hopper,,7,3,

`id` comes from grades.csv. Other columns are items of the assignment's `manual`, or parts, whose points they replace.
An empty cell gives nothing yet. `name`, `email` and `comment` are for the reader of the table.

    id,time
    ada,2026-11-14 22:10
    grace_hopper,2026-11-15T07:03:00Z

A time without a zone is in that of the due date. Other columns are for the reader of the table.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timezone, tzinfo
from pathlib import Path

from grader.assignment.records import Assignment
from grader.assignment.rubric import DESCRIPTIVE_COLUMNS
from grader.core import textfile
from grader.core.errors import UsageError
from grader.core.harmless import one_line
from grader.submission.ids import no_such_submission
from grader.submission.moments import moment

MOST_BYTES, MOST_ROWS, MOST_COLUMNS = 16 << 20, 100_000, 1000
LONGEST_CELL = 20_000
"""Length limit of a cell in characters: that of a very long comment."""
NEAR = 0.75
"""An id this much like another (`difflib`'s ratio) is taken for a misspelt one."""
_POINTS = re.compile(r"\d{1,6}(\.\d{0,6})?|\.\d{1,6}")


def read_manual(
    path: Path, assignment: Assignment | None = None, ids: Collection[str] | None = None
) -> dict[str, dict[str, float]]:
    """Points by submission id and item.

    With `assignment`, items and their ranges are checked against it. With `ids`, each row that gives points must belong
    to one of them, and rows of others that give none are left out. Raises UsageError with file and line.
    """
    most = None
    if assignment is not None:
        most = {part.id: part.points for part in assignment.parts if part.points > 0}
        most |= {item.id: item.points for item in assignment.manual}
    _, rows = table(path, most)
    given: dict[str, dict[str, float]] = {}
    lines: dict[str, int] = {}
    for line, row in rows:
        at = f"{path}:{line}"
        submission_id = row["id"]
        if not submission_id:
            raise UsageError(f"{at}: the row has no id")
        if submission_id in lines:
            raise UsageError(
                f"{at}: '{one_line(submission_id)}' already stands in line {lines[submission_id]}"
            )
        points = {
            item: _points(text, item, most, at)
            for item, text in row.items()
            if text and item != "id" and item not in DESCRIPTIVE_COLUMNS
        }
        lines[submission_id] = line
        if ids is not None and submission_id not in ids:
            if not points:
                continue
            raise UsageError(
                f"{at}: no submission is called '{one_line(submission_id)}'{_near(submission_id, ids)}"
            )
        given[submission_id] = points
    return given


def table(
    path: Path, items: Collection[str] | None = None
) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """The columns, and every row that is not empty: the line it starts on and its cells by column, without surrounding
    blanks. With `items` a column has to be one of them or DESCRIPTIVE_COLUMNS.

    Raises UsageError with file and line; for a row's fault, when the iterator reaches it.
    """
    rows = _rows(path)
    line, header = next(rows, (1, []))
    return _columns(header, items, f"{path}:{line}"), _by_column(rows, header, path)


def _by_column(
    rows: Iterator[tuple[int, list[str]]], columns: list[str], path: Path
) -> Iterator[tuple[int, dict[str, str]]]:
    for line, cells in rows:
        if not any(cells):
            continue
        if len(cells) != len(columns):
            raise UsageError(f"{path}:{line}: {len(cells)} cells under {len(columns)} columns")
        yield line, dict(zip(columns, cells, strict=True))


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line each row starts on, and its cells without surrounding blanks."""
    advice = "save the table as 'CSV UTF-8'"
    text = textfile.read(path, MOST_BYTES, no="table of points", advice=advice).removeprefix("\ufeff")
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise UsageError(f"{path}:{line}: a NUL character: this is no text; {advice}")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    start = 1
    try:
        for count, cells in enumerate(reader):
            if count > MOST_ROWS:
                raise UsageError(f"{path}:{start}: more than {MOST_ROWS} rows: this is no table of points")
            if any(len(cell) > LONGEST_CELL for cell in cells):
                raise UsageError(f"{path}:{start}: a cell of more than {LONGEST_CELL} characters")
            yield start, [cell.strip() for cell in cells]
            start = reader.line_num + 1
    except csv.Error as error:
        raise UsageError(f"{path}:{start}: not a row of CSV: {error}") from error


def _columns(header: list[str], items: Collection[str] | None, at: str) -> list[str]:
    if len(header) > MOST_COLUMNS:
        raise UsageError(f"{at}: {len(header)} columns; more than {MOST_COLUMNS} cannot be items")
    if "id" not in header:
        if len(header) == 1 and re.search(r"[;\t]", header[0]):
            raise UsageError(f"{at}: columns should be separated by commas")
        raise UsageError(f"{at}: the first row should name the columns: 'id', and an item in each other one")
    for number, column in enumerate(header):
        if column in header[:number]:
            raise UsageError(f"{at}: the column '{one_line(column)}' stands there twice")
        if column == "id" or column in DESCRIPTIVE_COLUMNS:
            continue
        if not column or (items is not None and column not in items):
            known = [*(items or ()), *DESCRIPTIVE_COLUMNS]
            raise UsageError(f"{at}: no item is called '{one_line(column)}'; known: {', '.join(known)}")
    return header


def _points(text: str, item: str, most: dict[str, float] | None, at: str) -> float:
    if not _POINTS.fullmatch(text):
        raise UsageError(
            f"{at}: {one_line(item)}: points should be a number such as 6.5, not '{one_line(text, 40)}'"
        )
    points = float(text)
    if most is not None and points > most[item]:
        raise UsageError(f"{at}: {item}: {points:g} points, and at most {most[item]:g} can be given")
    return points


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), 1, NEAR)
    return f"; did you mean '{near[0]}'?" if near else ""


def read_times(path: Path, ids: Collection[str], zone: tzinfo | None) -> dict[str, datetime]:
    """Read when submissions were handed in: UTC by submission id.

    `zone` applies to times that name none. Raises UsageError with file and line.
    """
    columns, rows = table(path)
    if "time" not in columns:
        raise UsageError(f"{path}:1: the first row should name the columns 'id' and 'time'")
    times: dict[str, datetime] = {}
    for line, row in rows:
        at, name = f"{path}:{line}", row["id"]
        if name not in ids:
            raise UsageError(f"{at}: {no_such_submission(name, ids)}")
        if name in times:
            raise UsageError(f"{at}: '{one_line(name)}' stands there twice")
        if row["time"]:
            times[name] = _in_utc(row["time"], zone, at)
    return times


def _in_utc(text: str, zone: tzinfo | None, at: str) -> datetime:
    found = moment(text)
    if found is not None and found.tzinfo is None:
        found = found.replace(tzinfo=zone) if zone else None
    if found is None:
        raise UsageError(f"{at}: a time should be like 2026-11-14T23:59:00-08:00, not '{one_line(text, 40)}'")
    return found.astimezone(timezone.utc)
