"""Figures of studies as data. `draw` makes a PNG of a figure, `text` draws it with characters for a terminal.

Series differ in colour, marker and line style, so that a figure is also readable without colours. The colours
are those of Okabe and Ito (2008), which people with any common form of colour blindness can distinguish. Maps use
matplotlib's "cividis_r", which is darker for larger numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grader.core.errors import KitError
from grader.study.table import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLES = ("-", "--", "-.", ":")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo")
SIZE_INCHES, DOTS_PER_INCH = (7.5, 4.8), 150
NOTE_POINTS = 45, 9
"""Width and height of a note beside a point, in typographic points (1/72 inch)."""
SUBTITLE_LETTERS, MAP_LETTERS = 105, 80


@dataclass(frozen=True)
class Series:
    """One series of points (x, y) in a plot, with an optional interval `low`..`high` around each `y`.

    `style`: "both" draws points joined by lines. "line" draws a line without points, for a model. "points" draws points
    without lines, with `notes` beside them, one per point. "bars" draws one bar in each group of bars; `x` are then the
    indices of the groups, 0, 1, 2, ..., whose names are in `Plot.x_names`.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    style: Literal["both", "line", "points", "bars"] = "both"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plot:
    """Plot of several series. `name` is the file name without suffix.

    `about` is the line below the title with machine, date, sizes and compiler flags (`options.about`). `log_x`,
    `log_y`: True for a logarithmic axis.
    """

    name: str
    title: str
    about: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    x_ticks: tuple[float, ...] = ()
    x_names: tuple[str, ...] = ()
    """Names of the positions 0, 1, 2, ... on an axis of categories."""


@dataclass(frozen=True)
class HeatMap:
    """Heat map of `values[row][column]` in `unit`. None is a missing number, for example of a wrong kernel.

    `y_names` are the names of the rows, `x_names` those of the columns.
    """

    name: str
    title: str
    about: str
    x_label: str
    y_label: str
    x_names: tuple[str, ...]
    y_names: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    unit: str


Figure = Plot | HeatMap


def bars(
    name: str,
    title: str,
    about: str,
    unit: str,
    names: Sequence[str],
    values: Mapping[str, Sequence[float]],
    x_label: str = "",
) -> Plot:
    """Return a plot with a group of bars for each name. `values` maps a series' label to its heights, one per group."""
    places = tuple(map(float, range(len(names))))
    series = tuple(Series(label, places, tuple(each), style="bars") for label, each in values.items())
    return Plot(name, title, about, x_label, unit, series, x_names=tuple(names))


def draw(figure: Figure, path: Path, kind: Literal["png", "svg"] = "png") -> None:
    """Draw a figure into a file. Raises KitError if matplotlib is missing, OSError if the file cannot be written."""
    pyplot = matplotlib_pyplot()
    frame, axes = pyplot.subplots(figsize=SIZE_INCHES, layout="constrained")
    try:
        if isinstance(figure, HeatMap):
            _map(figure, axes)
        else:
            _plot(figure, axes)
        axes.set_xlabel(figure.x_label)
        axes.set_ylabel(figure.y_label)
        _head(figure, axes)
        frame.savefig(path, dpi=DOTS_PER_INCH, format=kind)
    finally:
        pyplot.close(frame)


def _head(figure: Figure, axes: Axes) -> None:
    """Draw the figure's title, and below the title the text `about` in a small font."""
    about = _lines(figure.about, MAP_LETTERS if isinstance(figure, HeatMap) else SUBTITLE_LETTERS)
    axes.set_title(figure.title, fontsize=12, fontweight="bold", pad=8 + 10 * len(about.splitlines()))
    axes.annotate(
        about,
        (0.5, 1),
        (0, 5),
        "axes fraction",
        "offset points",
        ha="center",
        va="bottom",
        fontsize=7.5,
        color="#333333",
    )


def _lines(about: str, width: int) -> str:
    """Return `about` broken into lines of at most `width` characters, only at its separators " · "."""
    lines = [""]
    for item in about.split(" · "):
        if lines[-1] and len(lines[-1]) + len(item) > width:
            lines.append("")
        lines[-1] += f" · {item}" if lines[-1] else item
    return "\n".join(lines)


def brief(value: float) -> str:
    """Return a number as text with at most four significant digits, for an axis."""
    return f"{value:.4g}"


def matplotlib_pyplot() -> Any:
    """Import matplotlib, which takes about 1 s, and return pyplot. Raises KitError if matplotlib is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise KitError("figures need matplotlib: pip install matplotlib") from error
    # The backend "agg" needs no window. The defaults replace the user's settings, so that figures look alike.
    matplotlib.use("agg")
    matplotlib.rcdefaults()
    import matplotlib.pyplot

    return matplotlib.pyplot


# ---- plots


def _plot(figure: Plot, axes: Axes) -> None:
    if figure.log_x:
        axes.set_xscale("log", base=2)
    if figure.log_y:
        axes.set_yscale("log")
    bars = [one for one in figure.series if one.style == "bars"]
    for k, one in enumerate(figure.series):
        if one.style == "bars":
            _bars(one, k, bars.index(one), len(bars), axes)
        else:
            _curve(one, k, axes)
    ticks = list(range(len(figure.x_names))) if figure.x_names else list(figure.x_ticks)
    if ticks:
        axes.set_xticks(ticks, labels=figure.x_names or [brief(tick) for tick in ticks])
        axes.xaxis.minorticks_off()
    elif figure.log_x:
        _plain_numbers(axes.xaxis, 2, (1.0,))
    if figure.log_y:
        _plain_numbers(axes.yaxis, 10, (1.0, 2.0, 5.0))
    elif not any(value < 0 for one in figure.series for value in one.y):
        axes.set_ylim(bottom=0)
    _notes(figure, axes)
    axes.grid(True, which="major", axis="y" if bars else "both", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    if len(figure.series) > 1:
        # By default matplotlib's legend lists series with intervals last. List them in the figure's order.
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        axes.legend(
            [handles[one.label] for one in figure.series], [one.label for one in figure.series], fontsize=8
        )


def _curve(one: Series, k: int, axes: Axes) -> None:
    look = {
        "color": COLOURS[k % len(COLOURS)],
        "marker": "" if one.style == "line" else MARKERS[k % len(MARKERS)],
        "linestyle": "" if one.style == "points" else STYLES[k % len(STYLES)],
        "linewidth": 1.2 if one.style == "line" else 1.6,
        "markersize": 6,
        "label": one.label,
    }
    if one.low:
        axes.errorbar(one.x, one.y, yerr=_bounds(one), capsize=3, **look)
    else:
        axes.plot(one.x, one.y, **look)


def _notes(figure: Plot, axes: Axes) -> None:
    """Draw the series' notes beside their points, without overlaps. Call this when the axes' limits are final."""
    placed: list[tuple[float, float]] = []
    for one in figure.series:
        for x, y, note in zip(one.x, one.y, one.notes, strict=False):
            right, up = axes.transData.transform((x, y)) * 72 / axes.figure.dpi
            raised = up
            while any(
                abs(right - a) < NOTE_POINTS[0] and abs(raised - b) < NOTE_POINTS[1] for a, b in placed
            ):
                raised += NOTE_POINTS[1]
            placed.append((right, raised))
            axes.annotate(note, (x, y), (7, raised - up - 3), textcoords="offset points", fontsize=7.5)


def _bars(one: Series, k: int, place: int, count: int, axes: Axes) -> None:
    width = 0.8 / count
    axes.bar(
        [x + (place - (count - 1) / 2) * width for x in one.x],
        one.y,
        width=width * 0.92,
        yerr=_bounds(one) if one.low else None,
        capsize=3,
        color=COLOURS[k % len(COLOURS)],
        hatch=HATCHES[k % len(HATCHES)],
        edgecolor="white",
        linewidth=0.5,
        label=one.label,
    )


def _bounds(one: Series) -> list[list[float]]:
    """Return the argument `yerr` of matplotlib: [distances from each y down to `low`, distances up to `high`]."""
    return [
        [max(0.0, y - low) for y, low in zip(one.y, one.low, strict=True)],
        [max(0.0, high - y) for y, high in zip(one.y, one.high, strict=True)],
    ]


def _plain_numbers(axis: Axis, base: int, steps: tuple[float, ...]) -> None:
    """Label a logarithmic axis at `steps` times each power of `base` with plain numbers, such as 1, 2, 5, 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=base, subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: brief(value)))
    axis.set_minor_formatter(NullFormatter())


# ---- maps


def _map(figure: HeatMap, axes: Axes) -> None:
    rows = [[math.nan if value is None else value for value in row] for row in figure.values]
    image = axes.imshow(rows, cmap="cividis_r", aspect="auto")
    axes.figure.colorbar(image, label=figure.unit)
    axes.set_xticks(range(len(figure.x_names)), labels=figure.x_names)
    axes.set_yticks(range(len(figure.y_names)), labels=figure.y_names)
    known = [value for row in figure.values for value in row if value is not None]
    middle = (min(known) + max(known)) / 2 if known else 0.0
    # Font size in points: with more columns the cells are narrower.
    letters = max(5.0, min(9.0, 60.0 / max(1, len(figure.x_names))))
    for row, values in enumerate(figure.values):
        for column, value in enumerate(values):
            text = "none" if value is None else shown(value)
            colour = "white" if value is not None and value > middle else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=letters, color=colour)


# ---- figures drawn with characters in a terminal (`--show`), with the same data as the PNG

MARKS = "o*+x#@%"
LINES = ".:'~"
SHADES = " ░▒▓█"
BAR = "█"
WIDTH, HEIGHT = 72, 18
NAME_WIDTH = 28


def text(figure: Figure, width: int = WIDTH, height: int = HEIGHT) -> str:
    """Return the figure as text. Plots are `width` characters wide, at least 40; their axes are `height` lines high."""
    if isinstance(figure, HeatMap):
        body = _map_in_letters(figure)
    elif figure.x_names:
        body = _bars_in_letters(figure, width)
    else:
        body = _plot_in_letters(figure, width, height)
    return "\n".join([figure.title, figure.about, "", *body])


# ---- plots


def _scale(values: Sequence[float], *, log: bool, from_zero: bool) -> Callable[[float], float]:
    """Return a function that maps a value to its position from 0 to 1 on an axis that shows `values`.

    `log`: the axis is logarithmic. `from_zero`: a linear axis must include 0."""
    project: Callable[[float], float] = math.log if log else float
    low, high = min(values), max(values)
    bottom = project(low) if log or not from_zero else min(0.0, low)
    extent = (project(high) - bottom) or 1.0
    return lambda value: (project(value) - bottom) / extent


def _plot_in_letters(figure: Plot, width: int, height: int) -> list[str]:
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
    """Return `columns` points (x, y) for each line between the series' points, straight also on logarithmic axes."""
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


def _bars_in_letters(figure: Plot, width: int) -> list[str]:
    """Return a bar plot as lines of text: the name of each group, and below it a horizontal bar for each series."""
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


def _map_in_letters(figure: HeatMap) -> list[str]:
    """Return a heat map as lines of text. Each number is followed by a shade, which is darker for larger numbers."""
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
