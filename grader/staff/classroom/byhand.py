"""Values that the staff enters by hand: points (`manual.csv`), submission times, and days beyond the due date.

    id,name,writeup,part1_extra,comment             id,time
    ada,Ada Lovelace,6.5,,see the margin            ada,2026-11-14 22:10
    grace_hopper,,7,3,                              grace_hopper,2026-11-15T07:03:00Z

`id` is the id in grades.csv. A column of points is named after an item in the assignment's `manual`, or after a part,
whose points it replaces. An empty cell means: not given yet. The columns name, email and comment are ignored. A time
without a zone is in the zone of the due date.

The kit reads one table of points. It takes the first of these: the table on the command line; the table used last,
whose path is in the ledger; `DIR/manual.csv`. A path inside DIR is stored relative to DIR, so DIR can be moved.

Days are in `DIR/extensions.yaml`, written by `grader extend` or by hand: `ada: {extension: 2, reason: illness}`,
`bob: {slip: 3}`. An extension moves the student's due date. Slip days are spent only for late days that remain after
the extension. The assignment sets the grace period, the time zone and the penalty for a late day.
"""

from __future__ import annotations

import csv
import io
import json
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone, tzinfo
from pathlib import Path

from grader.assignment import yamlnode
from grader.assignment.records import Assignment
from grader.assignment.rubric import DESCRIPTIVE_COLUMNS, LateRule
from grader.assignment.yamlnode import Keys, compose
from grader.core import plainfile
from grader.core.commandline import read_text
from grader.core.errors import UsageError, explained
from grader.core.harmless import one_line
from grader.score import DAY_S, late_days
from grader.staff.classroom.ledger import History
from grader.submission.exports import moment
from grader.submission.ids import no_such_submission

FILE = "extensions.yaml"
HEADER = "# Days beyond the due date, by id. `grader extend` rewrites this file: keep notes in `reason`.\n"
KEYS = Keys("days of a student", (), ("extension", "slip", "reason"))
MOST_DAYS = 366


@dataclass(frozen=True)
class Days:
    """Days that one student got. `extension` days move the due date; `slip` late days cost no points."""

    extension: int = 0
    slip: int = 0
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.extension or self.slip)

    def late_s(self, late_s: float) -> float:
        """Subtract extension and slip days from a lateness in seconds. Return the rest, at least 0."""
        return max(0.0, late_s - (self.extension + self.slip) * DAY_S)

    def slip_used(self, rule: LateRule | None, late_s: float | None) -> int:
        """Return the number of slip days, at most `slip`, that a submission uses up. `late_s` is its lateness in
        seconds; None: unknown."""
        left = late_days(rule, None if late_s is None else max(0.0, late_s - self.extension * DAY_S))
        return min(self.slip, left)

    def text(self) -> str:
        pieces = [
            f"extension {self.extension}" if self.extension else "",
            f"slip {self.slip}" if self.slip else "",
        ]
        reason = f" ({one_line(self.reason, 80)})" if self.reason else ""
        return ", ".join(filter(None, pieces)) + reason


def read_days(folder: Path, ids: Collection[str]) -> tuple[dict[str, Days], list[str]]:
    """Read extensions.yaml in `folder`. Return (days by student id, a remark for each id that is not in `ids`).

    Such an id may be misspelt. Raises UsageError with file and line for a mistake in the file.
    """
    path = folder / FILE
    try:
        data = plainfile.read(path, yamlnode.MOST_BYTES)
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if not data.removeprefix(HEADER.encode()).strip():
        return {}, []
    found, notes = {}, []
    for name, (key, value) in compose(data, path).entries("the extensions").items():
        if name not in ids:
            notes.append(str(key.fail(f"{no_such_submission(name, ids)} (the file keeps this entry)")))
        given = value.mapping(KEYS)
        found[name] = Days(
            given["extension"].whole("extension", 0, MOST_DAYS) if "extension" in given else 0,
            given["slip"].whole("slip", 0, MOST_DAYS) if "slip" in given else 0,
            given["reason"].text("reason") if "reason" in given else "",
        )
    return found, notes


def write_days(folder: Path, days: Mapping[str, Days]) -> None:
    """Write extensions.yaml. Raises UsageError if it cannot be written."""
    # A JSON string is also a valid YAML string, so json.dumps can quote ids and reasons.
    lines = [
        f"{json.dumps(name, ensure_ascii=False)}: {{extension: {each.extension}, slip: {each.slip}"
        + (f", reason: {json.dumps(each.reason, ensure_ascii=False)}" if each.reason else "")
        + "}\n"
        for name, each in sorted(days.items())
        if each
    ]
    with explained(f"cannot write {folder / FILE}"), plainfile.folder(folder) as place:
        plainfile.replace(place, FILE, ["".join([HEADER, *lines]).encode()])


MOST_BYTES, MOST_ROWS, MOST_COLUMNS = 16 << 20, 100_000, 1000
LONGEST_CELL = 20_000
"""Maximum number of characters in a cell: enough for a very long comment."""
_POINTS = re.compile(r"\d{1,6}(\.\d{0,6})?|\.\d{1,6}")


def read_manual(
    path: Path, assignment: Assignment | None = None, ids: Collection[str] | None = None
) -> dict[str, dict[str, float]]:
    """Read a table of points. Return {submission id: {item: points}}.

    If `assignment` is given, check the names of the items and their maximum points. If `ids` are given, each row with
    points must have one of these ids; a row with another id but no points is skipped. Raises UsageError with file and
    line.
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
                f"{at}: the id '{one_line(submission_id)}' is already in line {lines[submission_id]}: delete one"
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
            raise UsageError(f"{at}: {no_such_submission(submission_id, ids)}")
        given[submission_id] = points
    return given


def table(
    path: Path, items: Collection[str] | None = None
) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Open a CSV table. Return (names of the columns, iterator over the rows that are not empty).

    The iterator yields (number of the row's first line, {column: cell without surrounding blanks}). If `items` are
    given, all columns but `id` must be in `items` or in DESCRIPTIVE_COLUMNS. Raises UsageError with file and line; for
    a mistake in a row, the iterator raises the error.
    """
    rows = _rows(path)
    line, header = next(rows, (1, []))
    return _columns(header, items, f"{path}:{line}"), _by_column(rows, header, path)


def _by_column(
    rows: Iterator[tuple[int, list[str]]], columns: list[str], path: Path
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, {column: cell}) of nonempty rows. Raises UsageError if a row has extra or missing cells."""
    for line, cells in rows:
        if not any(cells):
            continue
        if len(cells) != len(columns):
            raise UsageError(
                f"{path}:{line}: the row has {len(cells)} cells, but the table has {len(columns)} columns"
            )
        yield line, dict(zip(columns, cells, strict=True))


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the row's first line, cells without surrounding blanks) for each row."""
    advice = "save the table as 'CSV UTF-8'"
    text = read_text(path, MOST_BYTES, no="table of points", advice=advice).removeprefix("\ufeff")
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise UsageError(f"{path}:{line}: a NUL character: this is not text; {advice}")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    start = 1
    try:
        for count, cells in enumerate(reader):
            if count > MOST_ROWS:
                raise UsageError(f"{path}:{start}: more than {MOST_ROWS} rows: this is not a table of points")
            if any(len(cell) > LONGEST_CELL for cell in cells):
                raise UsageError(f"{path}:{start}: a cell has more than {LONGEST_CELL} characters")
            yield start, [cell.strip() for cell in cells]
            start = reader.line_num + 1
    except csv.Error as error:
        raise UsageError(f"{path}:{start}: not a row of CSV: {error}") from error


def _columns(header: list[str], items: Collection[str] | None, at: str) -> list[str]:
    if len(header) > MOST_COLUMNS:
        raise UsageError(f"{at}: {len(header)} columns; a table may have at most {MOST_COLUMNS}")
    if "id" not in header:
        if len(header) == 1 and re.search(r"[;\t]", header[0]):
            raise UsageError(f"{at}: columns should be separated by commas")
        raise UsageError(f"{at}: the first row should name the columns: 'id', then one column for each item")
    for number, column in enumerate(header):
        if column in header[:number]:
            raise UsageError(f"{at}: two columns are called '{one_line(column)}'")
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
        raise UsageError(f"{at}: {item}: {points:g} points are too many; at most {most[item]:g} can be given")
    return points


def read_times(path: Path, ids: Collection[str], zone: tzinfo | None) -> dict[str, datetime]:
    """Read a table of submission times. Return {submission id: time in UTC}.

    A time without a time zone is in `zone`; if `zone` is None, it is a mistake. Raises UsageError with file and line
    for a mistake and for an id that is not in `ids`.
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
            raise UsageError(
                f"{at}: the id '{one_line(name)}' is in an earlier line, too: delete one of them"
            )
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


MANUAL = "manual.csv"
NONE = Path("no table at all")
"""Value in place of a table's path: use no points by hand, and do not read the table used last."""
Points = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class ByHand:
    """Values that the staff entered by hand: `points` by submission id and item, `days` by submission id.

    `source` is the path of the table of points for the ledger; None if the table is a pipe or missing. `note` holds
    remarks on the choice of the table and on unknown ids in extensions.yaml, or "".
    """

    points: Points = field(default_factory=dict)
    days: Mapping[str, Days] = field(default_factory=dict)
    source: str | None = None
    note: str = ""


def read(
    folder: Path, given: Path | None, history: History, assignment: Assignment, ids: Collection[str]
) -> ByHand:
    """Read the points and days by hand for the results folder `folder`, whose submissions are `ids`.

    `given` is the path of the table of points. If it is None, the table used last is read, else DIR/manual.csv. If it
    is NONE, no table is read. Raises UsageError for a mistake, and if the table used last no longer exists.
    """
    days, notes = read_days(folder, ids)
    if given == NONE:
        return ByHand(days=days, note="; ".join(notes))
    own = folder / MANUAL
    path = given
    if path is None and history.manual is not None:
        path = folder / history.manual
        _require_there(path)
        if path != own and own.exists():
            notes.append(f"points by hand come from {path}, as in the last report; {own} is not read")
    if path is None and _is_there(own):
        path = own
    note = "; ".join(notes)
    if path is None:
        return ByHand(days=days, note=note)
    return ByHand(read_manual(path, assignment, ids), days, _remembered(path, folder), note)


def _is_there(own: Path) -> bool:
    """Return True if the file `own` (DIR/manual.csv) exists. Raises UsageError if it is a link, folder or device."""
    try:
        mode = own.lstat().st_mode
    except OSError:
        return False
    if not stat.S_ISREG(mode):
        raise UsageError(
            f"{own} is not a regular file: name the table with points given by hand as --manual FILE"
        )
    return True


def _require_there(path: Path) -> None:
    try:
        there = path.is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        raise UsageError(
            f"{path}, the table of points by hand, no longer exists: name a table with --manual FILE, or leave points "
            "by hand out with --no-manual"
        )


def _remembered(path: Path, folder: Path) -> str | None:
    """Return the table's path as the ledger stores it: relative to the results folder if the table lies in it.

    Return None for a pipe, as in `--manual <(command)`: it cannot be read again later.
    """
    if not path.is_file():
        return None
    place, home = path.resolve(), folder.resolve()
    return str(place.relative_to(home) if place.is_relative_to(home) else place)
