"""`grades.csv`: one row per student, for spreadsheets and for import elsewhere.

Columns: id, name, email, submitted_at (in the due date's zone); the points of each part; the points of each item that
people grade (extra credit, write-up); late_days, late_penalty, total, max_points; the verdict of each part; flags (for
review), pending (ids without points yet), trouble (the reason for a missing verdict). If the class has extensions,
extension_days and slip_days follow late_days. An empty cell is a missing number (not judged, not given yet), never 0.

The encoding is UTF-8 with a byte order mark ("utf-8-sig" in Python). Without the mark, spreadsheets assume a local
encoding. Text that a spreadsheet would take for a formula gets an apostrophe, even in the middle of a cell: many
spreadsheets start a new cell at a semicolon. Numbers stay numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.report import words
from grader.report.tally import flags_of

if TYPE_CHECKING:
    from grader.report.machines import Row

Cell = str | int | float | None

#: First characters of a formula, in Western and East Asian spreadsheets.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
#: Start of a formula within a text: after a separator (; tab |), and perhaps blanks and quotation marks.
_FORMULA_WITHIN = re.compile(r"""([;\t|][\s"]*)(?=[=+\-@＝＋－＠])""")

_TO_QUOTE = re.compile(r"""[,;\t|"\r\n]""")


def safe_text(text: str) -> str:
    """Return the text as one line, with an apostrophe before each place that a spreadsheet takes for a formula.

    This also covers spreadsheets that split cells at a comma, semicolon, tab or bar.
    """
    kept = _FORMULA_WITHIN.sub(r"\1'", words.line(text, 1000))
    return "'" + kept if text.startswith(_FORMULA_STARTS) or kept.startswith(_FORMULA_STARTS) else kept


class GradesCsv:
    """Collector of rows. It writes them at the end, because even the last row may add a column."""

    def __init__(self, assignment: Assignment) -> None:
        self.part_ids = [part.id for part in assignment.parts if part.points > 0]
        self.item_ids: list[str] = []
        self.zone = words.zone_of(assignment)
        self.is_extended = False
        self._rows: list[tuple[list[Cell], dict[str, float], list[Cell], list[Cell]]] = []
        """For each student: cells before the items, points by item, late, extension and slip days, other cells."""

    def add(self, row: Row) -> None:
        lines = row.score.lines if row.score else ()
        items = {line.id: line.points for line in lines if line.id not in self.part_ids}
        pending = row.score.pending if row.score else ()
        self.item_ids += [item for item in items if item not in self.item_ids]
        parts = {part.id: part for part in row.result.parts} if row.result else {}
        self.is_extended |= bool(row.extended)
        first = [row.submission_id, row.name, row.email, self._moment(row)]
        last = [
            *(row.score.penalty if row.score else None, row.total, row.max_points),
            *(parts[part_id].verdict if part_id in parts else "" for part_id in self.part_ids),
            *(_flags(row), " ".join(pending), row.trouble or ""),
        ]
        given = {item: points for item, points in items.items() if item not in pending}
        points = [row.part_points(part_id) for part_id in self.part_ids]
        self._rows.append(
            ([*first, *points], given, [row.late_days, row.extension_days, row.slip_days], last)
        )

    def _moment(self, row: Row) -> str:
        at = row.submitted_at
        if at is not None and at.tzinfo is not None and self.zone is not None:
            at = at.astimezone(self.zone)
        return at.isoformat() if at else ""

    def columns(self) -> list[str]:
        return [
            *("id", "name", "email", "submitted_at"),
            *self.part_ids,
            *self.item_ids,
            "late_days",
            *(("extension_days", "slip_days") if self.is_extended else ()),
            *("late_penalty", "total", "max_points"),
            *(f"{part_id}_verdict" for part_id in self.part_ids),
            *("flags", "pending", "trouble"),
        ]

    def write(self, path: Path) -> None:
        """Write all rows that were added, in their order. Raises OSError if the file cannot be written."""
        plainfile.write(path, self._lines(), encoding="utf-8-sig")

    def _lines(self) -> Iterator[str]:
        names = self.columns()
        yield csv_line(names)
        for first, given, days, last in self._rows:
            items = [given.get(item) for item in self.item_ids]
            cells = [*first, *items, *(days if self.is_extended else days[:1]), *last]
            assert len(cells) == len(names), "a missing value would shift all values after it"
            yield csv_line(map(_cell, cells))


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
