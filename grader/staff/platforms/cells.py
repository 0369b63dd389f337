"""CSV table in which single cells are replaced while all other bytes stay the same.

The `csv` module would lose quotation marks, line ends and a byte order mark. This parser, which follows the grammar of
RFC 4180, finds the position of each cell in the text. All text outside of the replaced cells is copied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.core.commandline import read_text
from grader.core.errors import UsageError
from grader.core.harmless import one_line

MOST_BYTES, MOST_ROWS, MOST_COLUMNS, MOST_CELLS = 16 << 20, 100_000, 5000, 2_000_000
LONGEST_CELL = 100_000
"""Maximum number of characters in a cell: enough for a feedback comment in HTML."""
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*"')
_PLAIN = re.compile(r"[^,\r\n]*")
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Cell:
    """One cell. `text` is its content without quotation marks; [start, end) is its range in the file, with them."""

    text: str
    start: int
    end: int
    quoted: bool


@dataclass(frozen=True)
class Row:
    """One row: its cells, and the number of the line on which it starts, from 1."""

    line: int
    cells: tuple[Cell, ...]

    def text(self, column: int) -> str:
        """Return a cell's text without surrounding blanks, or "" if the row has no such column."""
        return self.cells[column].text.strip() if column < len(self.cells) else ""


@dataclass(frozen=True)
class Table:
    """A parsed table and the file's text. `rows` has all rows, the header included, that have a non-empty cell."""

    path: Path
    text: str
    rows: tuple[Row, ...]

    def at(self, row: Row) -> str:
        return f"{self.path}:{row.line}"

    def replaced(self, values: Mapping[Cell, str]) -> bytes:
        """Return the file's bytes with the content of some cells replaced by `values`.

        A cell with quotation marks keeps them. The values must not contain quotation marks, commas or line ends.
        """
        pieces, at = [], 0
        for cell in sorted(values, key=lambda cell: cell.start):
            value = f'"{values[cell]}"' if cell.quoted else values[cell]
            pieces += [self.text[at : cell.start], value]
            at = cell.end
        return "".join([*pieces, self.text[at:]]).encode()


def read(path: Path) -> Table:
    """Read the CSV table at `path`. Raises UsageError with file and line if it is not a table."""
    text = read_text(path, MOST_BYTES, no="gradebook", advice="take the file as the platform exported it")
    return parse(path, text)


def parse(path: Path, text: str) -> Table:
    """Parse a CSV text, which may start with a byte order mark. Raises UsageError with file and line."""
    rows: list[Row] = []
    count = 0
    at, line = (1, 1) if text.startswith("\ufeff") else (0, 1)
    while at < len(text):
        cells, start = [], at
        while True:
            cell = _cell(path, text, at, line)
            cells.append(cell)
            at = cell.end
            if len(cells) > MOST_COLUMNS:
                raise UsageError(f"{path}:{line}: more than {MOST_COLUMNS} columns: this is not a gradebook")
            if text[at : at + 1] != ",":
                break
            at += 1
        if any(cell.text for cell in cells):
            rows.append(Row(line, tuple(cells)))
        count += len(cells)
        if len(rows) > MOST_ROWS or count > MOST_CELLS:
            raise UsageError(
                f"{path}:{line}: more than {MOST_ROWS} rows or {MOST_CELLS} cells: this is not a gradebook"
            )
        end = _LINE_END.match(text, at)
        at = end.end() if end else at
        line += len(_LINE_END.findall(text, start, at))
    return Table(path, text, tuple(rows))


def _cell(path: Path, text: str, at: int, line: int) -> Cell:
    """Return the cell at the offset `at`. Raises UsageError, with the row's first `line`, if it is not valid CSV."""
    quoted = text[at : at + 1] == '"'
    found = (_QUOTED if quoted else _PLAIN).match(text, at)
    if found is None:
        raise UsageError(f"{path}:{line}: not a row of CSV: a quotation mark is never closed")
    if quoted and text[found.end() : found.end() + 1] not in ("", ",", "\r", "\n"):
        after = one_line(text[found.end() : found.end() + 40], 20)
        if text[found.end()] in ";\t":
            raise UsageError(f"{path}:{line}: columns should be separated by commas")
        raise UsageError(f"{path}:{line}: not a row of CSV: '{after}' follows a closing quotation mark")
    if found.end() - at > LONGEST_CELL:
        raise UsageError(f"{path}:{line}: a cell has more than {LONGEST_CELL} characters")
    content = found[0][1:-1].replace('""', '"') if quoted else found[0]
    if "\0" in content:
        raise UsageError(f"{path}:{line}: a NUL character: this is not a gradebook")
    return Cell(content, at, found.end(), quoted)
