"""`grades.csv`: one row per student, for spreadsheets and for import elsewhere.

Columns: id, name, email, submitted_at; the points of each part; the points of each item that people give (extra
credit, write-up), as the score names them; late_days, late_penalty, total, max_points; the verdict of each part;
flags, pending, trouble. An empty number means that there is none (not judged, not given yet), never zero.

UTF-8 with a byte order mark, without which a spreadsheet takes it for a local encoding; read it as "utf-8-sig". Text
that a spreadsheet would take for a formula gets an apostrophe, wherever in the text a spreadsheet might begin a cell:
half of the world's split at semicolons. Numbers stay numbers.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.assignment.records import Assignment
from grader.core import wholefile
from grader.report import words

if TYPE_CHECKING:
    from grader.report.row import Row

Cell = str | int | float | None

#: First characters of a formula, here and in East Asian spreadsheets.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
#: The same within a text: after what separates cells elsewhere, blanks and quotation marks in between.
_FORMULA_WITHIN = re.compile(r"""([;\t|][\s"]*)(?=[=+\-@＝＋－＠])""")

_TO_QUOTE = re.compile(r"""[,;\t|"\r\n]""")


def safe_text(text: str, limit: int = 1000) -> str:
    """One line that no spreadsheet runs, at whichever of comma, semicolon, tab and bar it splits: a formula's first
    character gets an apostrophe before it."""
    kept = _FORMULA_WITHIN.sub(r"\1'", words.line(text, limit))
    return "'" + kept if text.startswith(_FORMULA_STARTS) or kept.startswith(_FORMULA_STARTS) else kept


class GradesCsv:
    """Takes rows one at a time and keeps them on disk: which columns there are is known only after the last one."""

    def __init__(self, assignment: Assignment) -> None:
        self.part_ids = [part.id for part in assignment.parts if part.points > 0]
        self.item_ids: list[str] = []
        # A list of plain values per line: unlike CSV, JSON gives numbers back as numbers.
        self._rows = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115

    def __enter__(self) -> GradesCsv:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()

    def add(self, row: Row) -> None:
        lines = row.score.lines if row.score else ()
        items = {line.id: line.points for line in lines if line.id not in self.part_ids}
        pending = row.score.pending if row.score else ()
        self.item_ids += [item for item in items if item not in self.item_ids]
        parts = {part.id: part for part in row.result.parts} if row.result else {}
        values = {
            "start": [
                row.submission_id,
                row.name,
                row.email,
                row.submitted_at.isoformat() if row.submitted_at else "",
            ],
            "parts": [row.part_points(part_id) for part_id in self.part_ids],
            "items": {item: points for item, points in items.items() if item not in pending},
            "late": [row.late_days, row.score.penalty if row.score else None, row.total, row.max_points],
            "verdicts": [parts[part_id].verdict if part_id in parts else "" for part_id in self.part_ids],
            "end": [_flags(row), " ".join(pending), row.trouble or ""],
        }
        json.dump(values, self._rows)
        self._rows.write("\n")

    def columns(self) -> list[str]:
        return [
            *("id", "name", "email", "submitted_at"),
            *self.part_ids,
            *self.item_ids,
            *("late_days", "late_penalty", "total", "max_points"),
            *(f"{part_id}_verdict" for part_id in self.part_ids),
            *("flags", "pending", "trouble"),
        ]

    def write(self, path: Path) -> None:
        """Write all rows that were added, in their order. Raises OSError."""
        wholefile.write(path, self._lines(), encoding="utf-8-sig")

    def _lines(self) -> Iterator[str]:
        names = self.columns()
        yield csv_line(names)
        self._rows.seek(0)
        for text in self._rows:
            cells = self._cells(json.loads(text))
            assert len(cells) == len(names), "a column without a value moves all behind it"
            yield csv_line(map(_cell, cells))

    def _cells(self, values: dict[str, Any]) -> list[Cell]:
        items = [values["items"].get(item) for item in self.item_ids]
        return [
            *values["start"],
            *values["parts"],
            *items,
            *values["late"],
            *values["verdicts"],
            *values["end"],
        ]


def _flags(row: Row) -> str:
    """Codes of the flags a person should look at, each with its part; notes about the judging are left out."""
    if row.result is None:
        return ""
    found = [
        f"{part.id}:{flag.code}"
        for part in row.result.parts
        for flag in part.flags
        if flag.level in ("review", "rejected")
    ]
    of_parts = {flag for part in row.result.parts for flag in part.flags}
    found += [
        flag.code
        for flag in row.result.flags
        if flag.level in ("review", "rejected") and flag not in of_parts
    ]
    return " ".join(dict.fromkeys(found))


def csv_line(cells: Iterable[str | int | float]) -> str:
    """A row of CSV with its line end: commas between the cells, quotation marks around a text that holds a separator of
    any spreadsheet's, so that one which splits at several keeps it whole."""
    return ",".join(_quoted(str(cell)) for cell in cells) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _TO_QUOTE.search(text) else text


def _cell(value: Cell) -> str | int | float:
    """A number without binary dust (0.1 + 0.2 is 0.3 to a person), safe text, or nothing."""
    if isinstance(value, float):
        rounded = round(value, 4)
        if rounded != rounded or rounded in (float("inf"), float("-inf")):
            return ""
        return int(rounded) if rounded == int(rounded) else rounded
    if isinstance(value, int):
        return value
    return safe_text(value) if value else ""
