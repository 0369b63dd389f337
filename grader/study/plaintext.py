"""Figures in letters, for a terminal: the output of `--show`. The data are the PNG's, as exact as letters can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from grader.study.figure import Figure, HeatMap, Plot, Series, brief
from grader.study.table import shown

MARKS = "o*+x#@%"
LINES = ".:'~"
SHADES = " ░▒▓█"
BAR = "█"
WIDTH, HEIGHT = 72, 18
NAME_WIDTH = 28


def text(figure: Figure, width: int = WIDTH, height: int = HEIGHT) -> str:
    """Return the figure as text, at most `width` columns (at least 40) wide; a plot's frame is `height` lines high."""
    if isinstance(figure, HeatMap):
        body = _map(figure)
    elif figure.x_names:
        body = _bars(figure, width)
    else:
        body = _plot(figure, width, height)
    return "\n".join([figure.title, figure.about, "", *body])


# ---- plots


def _scale(values: Sequence[float], *, log: bool, from_zero: bool) -> Callable[[float], float]:
    """Return a function from a value to its position, 0..1 from the lowest to the highest of `values`."""
    project: Callable[[float], float] = math.log if log else float
    low, high = min(values), max(values)
    bottom = project(low) if log or not from_zero else min(0.0, low)
    extent = (project(high) - bottom) or 1.0
    return lambda value: (project(value) - bottom) / extent


def _plot(figure: Plot, width: int, height: int) -> list[str]:
    xs = [x for one in figure.series for x in one.x]
    ys = [y for one in figure.series for y in (*one.y, *one.low, *one.high)]
    if not xs:
        return ["(nothing to draw)"]
    place_x = _scale(xs, log=figure.log_x, from_zero=False)
    place_y = _scale(ys, log=figure.log_y, from_zero=True)
    bottom = min(ys) if figure.log_y else min(0.0, *ys)
    margin = max(len(brief(bottom)), len(brief(max(ys)))) + 1
    columns = width - margin - 2
    grid = [[" "] * columns for _ in range(height)]

    def put(x: float, y: float, mark: str) -> None:
        grid[height - 1 - round(place_y(y) * (height - 1))][round(place_x(x) * (columns - 1))] = mark

    for k, one in enumerate(figure.series):
        if one.style != "points":
            for x, y in _joined(one, columns, figure):
                put(x, y, LINES[k % len(LINES)])
    for one in figure.series:
        if one.style != "line":
            for x, low, high in zip(one.x, one.low, one.high, strict=False):
                put(x, low, "-")
                put(x, high, "-")
    for k, one in enumerate(figure.series):
        if one.style != "line":
            for x, y in zip(one.x, one.y, strict=True):
                put(x, y, MARKS[k % len(MARKS)])
    labels = {0: brief(max(ys)), height - 1: brief(bottom)}
    lines = [f"{labels.get(row, ''):>{margin}} |{''.join(line).rstrip()}" for row, line in enumerate(grid)]
    ends = f"{brief(min(xs))}{brief(max(xs)):>{columns - len(brief(min(xs)))}}"
    return [
        f"{figure.y_label}{' (logarithmic)' if figure.log_y else ''}",
        *lines,
        " " * margin + " +" + "-" * columns,
        " " * (margin + 2) + ends,
        f"{figure.x_label}{' (logarithmic)' if figure.log_x else ''}".rjust(width),
        *_legend(figure.series),
    ]


def _joined(one: Series, columns: int, figure: Plot) -> list[tuple[float, float]]:
    """Return points on the segments between a series' points, straight on the axes as shown."""
    points = list(zip(one.x, one.y, strict=True))
    found = []
    for (x0, y0), (x1, y1) in pairwise(points):
        for step in range(columns):
            share = step / columns
            x = x0 * (x1 / x0) ** share if figure.log_x else x0 + (x1 - x0) * share
            y = y0 * (y1 / y0) ** share if figure.log_y else y0 + (y1 - y0) * share
            found.append((x, y))
    return found


def _legend(series: Sequence[Series]) -> list[str]:
    lines = []
    for k, one in enumerate(series):
        mark = LINES[k % len(LINES)] if one.style == "line" else MARKS[k % len(MARKS)]
        notes = [
            f"{note} ({shown(x)}, {shown(y)})" for x, y, note in zip(one.x, one.y, one.notes, strict=False)
        ]
        lines.append(f"  {mark}  {one.label}{': ' if notes else ''}{', '.join(notes)}")
    return lines


# ---- bars and maps


def _bars(figure: Plot, width: int) -> list[str]:
    """Draw named positions one below the other, with a horizontal bar for every series."""
    labels = [one.label for one in figure.series]
    names = min(NAME_WIDTH, max(len(label) for label in labels))
    largest = max((y for one in figure.series for y in one.y), default=0.0) or 1.0
    room = width - names - 14
    lines = [figure.y_label]
    for place, name in enumerate(figure.x_names):
        lines.append(f"{figure.x_label}: {name}" if figure.x_label else name)
        for one in figure.series:
            for x, y in zip(one.x, one.y, strict=True):
                if x == place:
                    lines.append(
                        f"  {one.label[:names]:<{names}} {BAR * round(room * y / largest)} {shown(y)}"
                    )
    return lines


def _map(figure: HeatMap) -> list[str]:
    """Draw numbers, each with a shade behind it: the larger the number, the darker."""
    known = [value for row in figure.values for value in row if value is not None]
    low, extent = (min(known), (max(known) - min(known)) or 1.0) if known else (0.0, 1.0)

    def cell(value: float | None) -> str:
        if value is None:
            return "none"
        return f"{shown(value)} {SHADES[round((value - low) / extent * (len(SHADES) - 1))] * 2}"

    rows = [[cell(value) for value in row] for row in figure.values]
    wide = max(len(text) for text in [*figure.x_names, *(cell for row in rows for cell in row)]) + 2
    left = max(len(name) for name in figure.y_names) + 1
    head = " " * left + "".join(name.rjust(wide) for name in figure.x_names)
    body = [
        name.rjust(left) + "".join(text.rjust(wide) for text in row)
        for name, row in zip(figure.y_names, rows, strict=True)
    ]
    return [f"{figure.unit}: {figure.y_label} (down), {figure.x_label} (across)", head, *body]
