"""Tables of studies. Terminal, write-up and CSV file show the same cells."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from grader.report.grades_csv import csv_line, safe_text
from grader.report.terminal import padded

Cell = str | int | float | None

DIGITS = 4
"""Number of significant digits of a measured number. More digits would be noise."""
NOTHING = "-"
CAPTION_LETTERS = 100


@dataclass(frozen=True)
class Table:
    """Table of a study. `name`, such as "sweep-part2", names the CSV file and the table's region in the write-up.

    The headings in `columns` include units. A cell with None is a missing number. `caption` describes the measurement
    and the result in whole sentences.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        if wrong := [row for row in self.rows if len(row) != len(self.columns)]:
            raise ValueError(
                f"table {self.name}: {len(self.columns)} columns, but {len(wrong[0])} cells in the row {wrong[0]}"
            )

    def cells(self) -> list[list[str]]:
        """Return the cells of each row as text; "" for None."""
        return [[shown(cell) for cell in row] for row in self.rows]

    def text(self) -> str:
        """Return the table as text for a terminal: title, aligned columns, caption."""
        caption = ["", textwrap.fill(self.caption, CAPTION_LETTERS)] if self.caption else []
        return "\n".join([self.title, "", *self._grid(), *caption])

    def markdown(self) -> str:
        """Return the table as Markdown, aligned so that it is also readable as plain text, with the caption below."""
        header, *rows = self._padded(_plain)
        right = self._numeric()
        rule = [
            "-" * (len(cell) - 1) + (":" if k in right else "-") if len(cell) > 1 else "-"
            for k, cell in enumerate(header)
        ]
        lines = ["| " + " | ".join(line) + " |" for line in [header, rule, *rows]]
        return "\n".join(
            [f"**{_plain(self.title)}**", "", *lines, *(["", self.caption] if self.caption else [])]
        )

    def csv(self) -> str:
        """Return the table as CSV with a header line. A cell with None is empty."""
        lines = [csv_line(map(safe_text, self.columns))]
        for row, line in zip(self.rows, self.cells(), strict=True):
            cells = zip(row, line, strict=True)
            lines.append(csv_line(safe_text(text) if isinstance(cell, str) else text for cell, text in cells))
        return "".join(lines)

    # ---- layout

    def _numeric(self) -> set[int]:
        """Return the indices of the columns that have only numbers and None. They are aligned to the right."""
        columns = range(len(self.columns))
        return {k for k in columns if self.rows and not any(isinstance(row[k], str) for row in self.rows)}

    def _padded(self, escaped: Callable[[str], str] = str) -> list[list[str]]:
        """Return header and rows as text: `escaped` is applied, then each column is padded to one width."""
        lines = [[escaped(cell) or NOTHING for cell in line] for line in self.cells()]
        return padded([[escaped(name) for name in self.columns], *lines], self._numeric())

    def _grid(self) -> list[str]:
        header, *rows = self._padded()
        return ["  ".join(line).rstrip() for line in [header, ["-" * len(cell) for cell in header], *rows]]


def shown(cell: Cell) -> str:
    """Return a cell as text: integers in full, other numbers with at least four significant digits.

    None and numbers that are not finite give "".
    """
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return str(cell)
    if not math.isfinite(cell):
        return ""
    if cell == 0:
        return "0"
    decimals = DIGITS - 1 - math.floor(math.log10(abs(cell)))
    return f"{cell:.{decimals}f}" if decimals > 0 else str(round(cell))


def _plain(text: str) -> str:
    """Return a cell's text on one line, escaped so that it can neither end its cell nor be a write-up's marker."""
    one_line = " ".join(text.split())
    return one_line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
