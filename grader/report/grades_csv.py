"""`grades.csv`: one row per student, for spreadsheets and for import elsewhere.

`GradesCsv` lists the columns. Each item that people grade (extra credit, write-up) has a column, too. Times are in the
due date's zone. `flags` are flags for review, `pending` are ids of parts and items without points so far, `trouble` is
the reason for a missing verdict. extension_days and slip_days are left out if no student has such days. An empty cell
is a missing number (not judged, not given yet), never 0.

The encoding is UTF-8 with a byte order mark ("utf-8-sig" in Python). Without the mark, spreadsheets assume a local
encoding. Text that a spreadsheet would take for a formula gets an apostrophe. This includes text after a semicolon,
because many spreadsheets start a new cell there. Numbers stay numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import compress
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING

from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.report import words
from grader.report.tally import flags_of

if TYPE_CHECKING:
    from grader.report.machines import Row

Cell = str | int | float | None
Column = tuple[str, Callable[["Row"], Cell]]

#: First characters of a formula, in Western and East Asian spreadsheets.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
#: Start of a formula within a text: after a separator (; tab |), and perhaps blanks and quotation marks.
_FORMULA_WITHIN = re.compile(r"""([;\t|][\s"]*)(?=[=+\-@＝＋－＠])""")

_TO_QUOTE = re.compile(r"""[,;\t|"\r\n]""")


def safe_text(text: str) -> str:
    """Return the text as one line, with an apostrophe before each piece that a spreadsheet may read as a formula.

    This also covers spreadsheets that split cells at a semicolon, tab or bar.
    """
    kept = _FORMULA_WITHIN.sub(r"\1'", words.line(text, 1000))
    return "'" + kept if text.startswith(_FORMULA_STARTS) or kept.startswith(_FORMULA_STARTS) else kept


class GradesCsv:
    """Collector of rows. It writes them at the end, because even the last row may add a column."""

    def __init__(self, assignment: Assignment) -> None:
        self.zone = words.zone_of(assignment)
        self.part_ids = [part.id for part in assignment.parts if part.points > 0]
        self.item_ids: list[str] = []
        #: Columns before and after those of the items that people grade.
        self.first: list[Column] = [
            ("id", lambda row: row.submission_id),
            ("name", lambda row: row.name),
            ("email", lambda row: row.email),
            ("submitted_at", self._moment),
            *((part_id, methodcaller("part_points", part_id)) for part_id in self.part_ids),
        ]
        self.last: list[Column] = [
            ("late_days", lambda row: row.late_days),
            ("extension_days", lambda row: row.extension_days),
            ("slip_days", lambda row: row.slip_days),
            ("late_penalty", lambda row: row.score.penalty if row.score else None),
            ("total", lambda row: row.total),
            ("max_points", lambda row: row.max_points),
            *((f"{part_id}_verdict", partial(_verdict, part_id)) for part_id in self.part_ids),
            ("flags", _flags),
            ("pending", lambda row: " ".join(row.score.pending) if row.score else ""),
            ("trouble", lambda row: row.trouble),
        ]
        self._rows: list[tuple[list[Cell], dict[str, Cell], list[Cell]]] = []
        self._omitted = {"extension_days", "slip_days"}

    def add(self, row: Row) -> None:
        lines = row.score.lines if row.score else ()
        pending = row.score.pending if row.score else ()
        items = {line.id: None if line.id in pending else line.points for line in lines}
        self.item_ids += [item for item in items if item not in {*self.part_ids, *self.item_ids}]
        if row.extended:
            self._omitted.clear()
        first, last = ([value(row) for _, value in part] for part in (self.first, self.last))
        self._rows.append((first, items, last))

    def _moment(self, row: Row) -> str:
        at = row.submitted_at
        if at is not None and at.tzinfo is not None and self.zone is not None:
            at = at.astimezone(self.zone)
        return at.isoformat() if at else ""

    def write(self, path: Path) -> None:
        """Write all rows that were added, in their order. Raises OSError if the file cannot be written."""
        plainfile.write(path, self._lines(), encoding="utf-8-sig")

    def _lines(self) -> Iterator[str]:
        shown = [name not in self._omitted for name, _ in self.last]
        last = [name for name, _ in compress(self.last, shown)]
        yield csv_line([*(name for name, _ in self.first), *self.item_ids, *last])
        for first, items, values in self._rows:
            cells = [*first, *map(items.get, self.item_ids), *compress(values, shown)]
            yield csv_line(map(_cell, cells))


def _verdict(part_id: str, row: Row) -> str:
    parts = row.result.parts if row.result else ()
    return next((part.verdict for part in parts if part.id == part_id), "")


def _flags(row: Row) -> str:
    """Return "part:code" for each flag that a person must review, separated by blanks. Notes are left out."""
    found = flags_of(row.result) if row.result else []
    return " ".join(
        dict.fromkeys(f"{part_id}:{flag.code}" if part_id else flag.code for part_id, flag in found)
    )


def csv_line(cells: Iterable[str | int | float]) -> str:
    """Return a row of CSV: the cells with commas between them, and a line end.

    A text with a separator (comma, semicolon, tab, bar) is quoted, so that it stays one cell.
    """
    return ",".join(_quoted(str(cell)) for cell in cells) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _TO_QUOTE.search(text) else text


def _cell(value: Cell) -> str | int | float:
    """Return the cell to write: a number rounded to 4 decimals (0.3 for 0.1 + 0.2), safe text, or ""."""
    if isinstance(value, float):
        rounded = round(value, 4)
        if rounded != rounded or rounded in (float("inf"), float("-inf")):
            return ""
        return int(rounded) if rounded == int(rounded) else rounded
    if isinstance(value, int):
        return value
    return safe_text(value) if value else ""
