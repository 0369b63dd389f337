"""Picture of an output's errors over its rows and columns: position and size, reduced from the output, then drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from grader.judge.events import Deviated
from grader.report import words

MOST_CELLS = 64
"""Limit on the cells along either side of a picture."""
WIDTH, HIGHEST, LOWEST = 1100, 420, 26
_LEFT, _TOP, _BELOW = 34, 18, 34
MOST_LINES = 64
#: Levels of a cell's colour: decades of its largest error beyond the allowed one.
DECADES = 5
NOT_FINITE = -1.0


@dataclass(frozen=True)
class Block:
    """Blocking of an axis: blocks of `length` elements, with the name of the size or macro."""

    name: str
    length: int


@dataclass(frozen=True)
class Picture:
    """The slice of an output with the most wrong elements: its last two axes, or its only axis as one row.

    `cells` are rows of cells. A cell is the largest error of its elements relative to the allowed one: at most 1 is
    right, NOT_FINITE marks a value without a finite error. `place` names the slice. `wrong` of `total` elements are
    those of the whole output.
    """

    case: str
    shape: tuple[tuple[str, int], ...]
    place: str
    rows: int
    columns: int
    axes: tuple[str, str]
    blocks: tuple[Block | None, Block | None]
    cells: tuple[tuple[float, ...], ...]
    wrong: int
    total: int
    wrong_slices: int
    slices: int


def reduced(event: Deviated) -> Picture:
    """Reduce a wrong output to a picture of at most MOST_CELLS cells either way."""
    from grader.core.arrays import np

    wrong = event.wrong if event.wrong.ndim >= 2 else event.wrong.reshape(1, -1)
    with np.errstate(all="ignore"):
        used = abs(event.actual - event.expected) / np.maximum(event.tolerance, 1e-300)
        # The expected value may be an infinity.
        used = np.where(event.wrong, used, np.minimum(np.nan_to_num(used, nan=0.0), 1.0)).reshape(wrong.shape)
    planes = wrong.reshape(-1, *wrong.shape[-2:])
    counts = planes.sum(axis=(1, 2))
    worst = int(counts.argmax())
    plane = used.reshape(planes.shape)[worst]
    rows, columns = plane.shape
    cells = [
        tuple(_cell(part) for part in np.array_split(band, min(MOST_CELLS, columns), axis=1))
        for band in np.array_split(plane, min(MOST_CELLS, rows), axis=0)
    ]
    index = np.unravel_index(worst, wrong.shape[:-2]) if wrong.ndim > 2 else ()
    names = [axis.letter for axis in event.axes]
    known = [Block(*block) if block else None for block in event.blocks]
    if event.wrong.ndim < 2:
        names, known = ["", *names], [None, *known]
    return Picture(
        case=event.case,
        shape=tuple(item for item in event.shape.items() if item[0] != "threads"),
        place=", ".join(f"{name}={int(k)}" for name, k in zip(names, index, strict=False)),
        rows=rows,
        columns=columns,
        axes=(names[-2], names[-1]),
        blocks=(known[-2], known[-1]),
        cells=tuple(cells),
        wrong=int(wrong.sum()),
        total=int(wrong.size),
        wrong_slices=int((counts > 0).sum()),
        slices=len(planes),
    )


def _cell(part: object) -> float:
    """Return the largest error of a cell, relative to the allowed one."""
    from grader.core.arrays import np

    largest = float(np.max(part))
    return largest if math.isfinite(largest) else NOT_FINITE


def level(cell: float) -> int:
    """Return a cell's level: 0 if right, 1 to DECADES by the error's size, DECADES + 1 for NOT_FINITE."""
    if cell == NOT_FINITE:
        return DECADES + 1
    return 0 if cell <= 1 else min(DECADES, 1 + int(math.log10(cell)))


def svg(picture: Picture) -> str:
    """Draw the picture as inline SVG, coloured by the page's classes `e0` to `e6`.

    Blocks are drawn into it as lines.
    """
    wide = WIDTH - _LEFT - 6
    tall = max(LOWEST, min(HIGHEST, wide * picture.rows / picture.columns))
    label = words.line(f"Where the output is wrong on {picture.case}", 120)
    height = _n(tall + _TOP + _BELOW)
    parts = [
        f'<svg class="chart map" shape-rendering="crispEdges" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(label)}">'
    ]
    row_edges, column_edges = _edges(picture.rows), _edges(picture.columns)
    y_of, x_of = tall / picture.rows, wide / picture.columns
    for y, band in enumerate(picture.cells):
        top, bottom = row_edges[y] * y_of, row_edges[y + 1] * y_of
        for x, end, cell in _runs(band):
            left, right = column_edges[x] * x_of, column_edges[end] * x_of
            parts.append(
                f'<rect class="e{level(cell)}" x="{_n(_LEFT + left)}" y="{_n(_TOP + top)}" '
                f'width="{_n(right - left)}" height="{_n(bottom - top)}"/>'
            )
    parts.append(f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{_n(wide)}" height="{_n(tall)}"/>')
    parts += _lines(picture.blocks[0], picture.rows, lambda k: f"M{_LEFT} {_n(_TOP + k * y_of)}h{_n(wide)}")
    parts += _lines(
        picture.blocks[1], picture.columns, lambda k: f"M{_n(_LEFT + k * x_of)} {_TOP}v{_n(tall)}"
    )
    if picture.axes[0]:
        parts += [
            _text(_LEFT - 5, _TOP + 9, "0", "end"),
            _text(_LEFT - 5, _TOP + tall, str(picture.rows - 1), "end"),
            _text(_LEFT - 5, _TOP + tall / 2 + 4, picture.axes[0], "end", "strong"),
        ]
    under = _TOP + tall + 14
    parts += [
        _text(_LEFT, under, "0", "start"),
        _text(_LEFT + wide, under, str(picture.columns - 1), "end"),
        _text(_LEFT + wide / 2, under, picture.axes[1], "middle", "strong"),
    ]
    return "".join([*parts, "</svg>"])


def _runs(band: tuple[float, ...]) -> list[tuple[int, int, float]]:
    """Merge adjacent cells of one level: (first, end, one of the cells)."""
    runs: list[tuple[int, int, float]] = []
    for x, cell in enumerate(band):
        if runs and level(runs[-1][2]) == level(cell):
            runs[-1] = (runs[-1][0], x + 1, cell)
        else:
            runs.append((x, x + 1, cell))
    return runs


def _edges(length: int) -> list[int]:
    """Return the edges at which `numpy.array_split` cuts so many elements into cells."""
    cells = min(MOST_CELLS, length)
    small, more = divmod(length, cells)
    edges = [0]
    for k in range(cells):
        edges.append(edges[-1] + small + (k < more))
    return edges


def _lines(block: Block | None, length: int, path: object) -> list[str]:
    if block is None or not 0 < block.length < length or length / block.length > MOST_LINES:
        return []
    assert callable(path)
    drawn = "".join(path(k) for k in range(block.length, length, block.length))
    # A wide light line below keeps the thin one visible on every colour.
    return [f'<path class="under" d="{drawn}"/><path class="block" d="{drawn}"/>']


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return (
        f'<text{named} x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(words.line(text, 40))}</text>'
    )


def _n(value: float) -> str:
    return f"{round(value, 2):g}"


def caption(picture: Picture) -> list[str]:
    """Describe the picture in lines of plain text."""
    several = f", in {picture.wrong_slices} of {picture.slices} slices" if picture.slices > 1 else ""
    shown = f" Shown: the slice {picture.place}." if picture.slices > 1 else ""
    lines = [
        f"On '{picture.case}' ({' '.join(f'{name}={size}' for name, size in picture.shape)}): "
        f"{picture.wrong} of {picture.total} elements are wrong{several}.{shown}"
    ]
    cuts = [
        f"{axis} every {block.length} ({block.name})"
        for axis, block, length in zip(
            picture.axes, picture.blocks, (picture.rows, picture.columns), strict=True
        )
        if block is not None and block.length < length
    ]
    uncut = [
        f"{block.name} = {block.length}, which covers all of {axis}"
        for axis, block, length in zip(
            picture.axes, picture.blocks, (picture.rows, picture.columns), strict=True
        )
        if block is not None and block.length >= length
    ]
    if cuts or uncut:
        lines.append("; ".join([*([f"Lines: {' and '.join(cuts)}"] if cuts else []), *uncut]) + ".")
    return lines
