"""Where an output is wrong, as a small picture: a square for each cell of `CaseResult.error_map`."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from grader.base.results import MAP_CELLS

CELL = 22
"""Units of the picture, its side 8 of them at the most."""
_DIGITS = frozenset("0123456789")


def svg(rows: Sequence[str], title: str) -> str:
    """The picture as SVG: white where nothing is wrong, dark red where nearly everything is. Nothing in it is anybody's
    text but the title. "" for what is no error map."""
    rows = [row[:MAP_CELLS] for row in rows[:MAP_CELLS]]
    if (
        not rows
        or not rows[0]
        or any(len(row) != len(rows[0]) or not _DIGITS.issuperset(row) for row in rows)
    ):
        return ""
    width, height = CELL * len(rows[0]) + 2, CELL * len(rows) + 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<title>{escape(title)}</title><rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for y, row in enumerate(rows):
        for x, digit in enumerate(row):
            fill = f'fill="#b91c1c" fill-opacity="{int(digit) / 9:.2f}"'
            place = f'x="{1 + x * CELL}" y="{1 + y * CELL}" width="{CELL}" height="{CELL}"'
            parts.append(f'<rect {place} {fill} stroke="#cbd5e1"/>')
    return "".join([*parts, "</svg>"])


def data_url(rows: Sequence[str], title: str) -> str:
    """The picture as the address of an image; "" for what is no error map."""
    picture = svg(rows, title)
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}" if picture else ""
