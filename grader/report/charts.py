"""Charts of the reports, drawn as inline SVG without a library.

Each drawing function returns SVG text. Charts with text, except error maps, are 360 units wide, like a phone's screen.
A wider screen shows several side by side. The page's style sheet sets the colours, also for dark mode and print.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

from grader.core.results import Timing
from grader.judge.events import Deviated
from grader.report import words

Scale = Callable[[float], float]

WIDTH = 360
_LEFT, _RIGHT = 12, 348
#: Range of time ratios on the axis of the picture that `interval` draws. The text beside it gives the exact numbers.
INTERVAL_RANGE = (0.5, 2.0)
#: Maximum number of links in a chart, on the marks of slow students. Further marks are drawn without a link.
_MOST_LINKS = 60


@dataclass(frozen=True)
class Dot:
    """One student's value in a chart. `slow`: True if the kernel is too slow. `anchor`: id of the student's section."""

    ratio: float
    slow: bool
    anchor: str
    name: str


def histogram(totals: Sequence[float], max_points: float) -> str:
    """Draw a histogram of the students' points, with the median. The axis ends at `max_points` or a larger total."""
    top = max([max_points, *totals, 1.0])
    width = _bin_width(top)
    bins = [0] * max(1, math.ceil(top / width - 1e-9))
    for total in totals:
        bins[min(len(bins) - 1, max(0, int(total / width + 1e-9)))] += 1
    base, height, most = 190, 160, max(*bins, 1)
    step = (_RIGHT - _LEFT) / len(bins)

    def x(points: float) -> float:
        return _LEFT + points / width * step

    parts = [_svg(218, f"Histogram of the totals of {len(totals)} students")]
    counts: list[str] = []
    for k, count in enumerate(bins):
        if not count:
            continue
        tall = max(1.5, height * count / most)
        last = "" if k < len(bins) - 1 else ", both included"
        label = f"{_n(k * width)} to {_n((k + 1) * width)} points{last}: {count}"
        parts.append(
            f'<g><title>{label}</title><rect class="bar" x="{_n(_LEFT + k * step + 1)}" y="{_n(base - tall)}" '
            f'width="{_n(step - 2)}" height="{_n(tall)}" rx="1.5"/></g>'
        )
        counts.append(_text(_LEFT + (k + 0.5) * step, base - tall - 4, str(count)))
    parts.append(_path("axis", f"M{_LEFT} {base}H{_RIGHT}"))
    parts += [_text(x(points), base + 15, _n(points)) for points in _round_ticks(top, width)]
    if totals:
        middle = median(totals)
        parts.append(_mark(x(middle), 12, base, f"median {_n(middle)}", 14))
    # Draw the counts last, so that the median's line does not cross them.
    return "".join([*parts, *counts, "</svg>"])


def ratios(dots: Sequence[Dot], allowances: Sequence[float], limits: tuple[float, float]) -> str:
    """Draw student time divided by reference time: one dot for each student, on a logarithmic axis over `limits`.

    Ratios beyond `limits` are drawn at the ends of the axis. `allowances` holds the largest allowed ratio of each
    student, which depends a little on the measured reference time. It is empty if times are not graded.
    """
    base, height = 138, 112
    scale = _log_scale(limits)
    slow = [dot for dot in dots if dot.slow]
    # Screen readers ignore links inside the role "img", but not inside a "group".
    role = "group" if slow else "img"
    parts = [_svg(160, f"Time ratios of {len(dots)} students, {len(slow)} of them too slow", role)]
    if allowances:
        low, high = scale(min(allowances)), scale(max(allowances))
        parts.append(_rect("beyond", high, 18, _RIGHT + 6 - high, base - 18))
        if high - low > 1:
            parts.append(_rect("between", low, 18, high - low, base - 18))
        # Near the right edge, a label centred on the limit would leave the picture: align its end with the edge.
        at, anchor = (_RIGHT + 6, "end") if high > _RIGHT - 30 else (high, "middle")
        parts.append(_path("limit", f"M{_n(high)} 18V{base}"))
        parts.append(_text(at, 12, f"allowed {max(allowances):.2f}", anchor, "strong"))
    size, places = _stacked(dots, scale, height)
    parts.append(_dots(size, base, [place for place in places if not place[0].slow]))
    for k, (dot, x, y) in enumerate((dot, x, y) for dot, x, y in places if dot.slow):
        parts.append(_diamond(dot, x, base - y, max(size * 0.55, 2.4), linked=k < _MOST_LINKS))
    parts.append(_path("axis", f"M{_LEFT - 6} {base}H{_RIGHT + 6}"))
    found = [dot.ratio for dot in dots]
    beyond = {limits[0]: min(found) < limits[0], limits[1]: max(found) > limits[1]} if found else {}
    for tick in _octaves(limits):
        sign = ("≤ " if tick < 1 else "≥ ") if beyond.get(tick) else ""
        parts.append(_tick(scale(tick), base, f"{sign}{tick:g}"))
    return "".join([*parts, "</svg>"])


def ladder(dots: Sequence[Dot], rungs: Mapping[str, float]) -> str:
    """Draw shares of the machine's peak speed in per cent: one dot for each student, on a logarithmic axis up to 100 %.

    A dot's `ratio` is its share. `rungs` maps names of comparison kernels to their shares, drawn as labelled lines.
    """
    base, height, above = 138, 70, 12
    known = [value for value in (*(dot.ratio for dot in dots), *rungs.values()) if value > 0]
    limits = (2.0 ** math.floor(math.log2(min([50.0, *known]))), 100.0)
    scale = _log_scale(limits)
    parts = [
        _svg(160, f"Shares of the machine's peak of {len(dots)} students and {len(rungs)} other kernels")
    ]
    for k, (word, share_percent) in enumerate(sorted(rungs.items(), key=lambda rung: rung[1])):
        y = above + 11 * k
        parts.append(_mark(scale(share_percent), y, base, f"{word} {share_percent:.2g} %", y - 8))
    size, places = _stacked(dots, scale, height)
    parts.append(_dots(size, base, places))
    parts.append(_path("axis", f"M{_LEFT - 6} {base}H{_RIGHT + 6}"))
    ticks = [tick for tick in _octaves((limits[0], 64.0)) if tick <= 40] + [100.0]
    shown = ticks[:: 1 + len(ticks) // 9] if len(ticks) > 9 else ticks
    parts += [_tick(scale(tick), base, f"{tick:g}") for tick in shown]
    return "".join([*parts, "</svg>"])


def ratio_limits(values: Sequence[float], allowances: Sequence[float] = ()) -> tuple[float, float]:
    """Return the ends of an axis for these ratios. Both are powers of two.

    The range covers at least 1/2 to 2. It is cut at 1/4 and at 4, because most ratios of a class lie between them. Only
    an allowance above 4 extends it.
    """
    known = [value for value in (*values, *allowances) if value > 0 and math.isfinite(value)]
    low = math.floor(math.log2(min([0.6, *known])))
    high = math.ceil(math.log2(max([1.9, *known])))
    allowed = math.ceil(math.log2(max([4.0, *allowances])))
    return 2.0 ** max(-2, low), 2.0 ** min(allowed, high)


def verdict_bar(counts: Mapping[str, int]) -> str:
    """Draw one bar with a section for each verdict, in the order of `counts`. A section's width shows the count."""
    total, at = sum(counts.values()) or 1, 0.0
    parts = [
        f'<svg class="bar-of-verdicts" viewBox="0 0 {WIDTH} 10" preserveAspectRatio="none" aria-hidden="true">'
    ]
    for verdict, count in counts.items():
        wide = WIDTH * count / total
        if count:
            parts.append(_rect(f"v-{verdict}", at, 0, max(wide - 1, 0.7), 10))
        at += wide
    return "".join([*parts, "</svg>"])


def share(count: int, most: int) -> str:
    """Draw a small bar for `count`. The bar of the largest count, `most`, has the full length."""
    return (
        f'<svg class="share" viewBox="0 0 60 8" aria-hidden="true">'
        f'<rect class="bar" width="{_n(max(1.0, 60 * count / max(1, most)))}" height="8" rx="1.5"/></svg>'
    )


def interval(ratio: float, bounds: tuple[float, float], allowance: float | None) -> str:
    """Draw a time ratio, its interval `bounds` and the allowance, for a line of text. Return "" for invalid numbers."""
    scale = _log_scale(INTERVAL_RANGE, 3, 117)
    if not all(value > 0 and math.isfinite(value) for value in (ratio, *bounds)):
        return ""
    low, high = (scale(bound) for bound in bounds)
    limit = f'<path class="limit" d="M{_n(scale(allowance))} 0V14"/>' if allowance else ""
    return (
        '<svg class="interval" viewBox="0 0 120 14" aria-hidden="true">'
        f'<path class="axis" d="M0 7H120M{_n(scale(1.0))} 4v6"/>{limit}'
        f'<path class="range" d="M{_n(low)} 7H{_n(max(high, low + 0.5))}"/>'
        f'<circle cx="{_n(scale(ratio))}" cy="7" r="3.2"/></svg>'
    )


# ---- scales and elements of charts


def _svg(height: int, label: str, role: str = "img") -> str:
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="{role}" aria-label="{escape(label)}">'


def _n(value: float) -> str:
    """Return a coordinate as text, rounded to a tenth of a unit."""
    return f"{round(value, 1):g}"


def _path(kind: str, drawn: str) -> str:
    return f'<path class="{kind}" d="{drawn}"/>'


def _rect(kind: str, x: float, y: float, wide: float, tall: float) -> str:
    return f'<rect class="{kind}" x="{_n(x)}" y="{_n(y)}" width="{_n(wide)}" height="{_n(tall)}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    shown = escape(words.line(text, 80))
    return f'<text{named} x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{shown}</text>'


def _tick(x: float, base: float, text: str) -> str:
    return _path("axis", f"M{_n(x)} {base}v4") + _text(x, base + 16, text)


def _mark(x: float, y: float, base: float, text: str, top: float) -> str:
    """Draw a vertical line from `top` to `base`, with `text` beside it on the side with more room."""
    side, at = ("end", x - 4) if x > WIDTH / 2 else ("start", x + 4)
    return _path("mark", f"M{_n(x)} {_n(top)}V{base}") + _text(at, y, text, side, "strong")


def _dots(size: float, base: float, places: Sequence[tuple[Dot, float, float]]) -> str:
    drawn = "".join(f"M{_n(x)} {_n(base - y)}h.01" for _, x, y in places)
    return f'<path class="dots" stroke-width="{_n(size * 0.86)}" d="{drawn}"/>'


def _diamond(dot: Dot, x: float, y: float, r: float, *, linked: bool) -> str:
    """Draw a slow student's mark, a diamond of radius `r`. `linked`: make it a link to the student's section."""
    shape = (
        f'<path class="slow" d="M{_n(x)} {_n(y - r)}l{_n(r)} {_n(r)} {_n(-r)} {_n(r)} {_n(-r)} {_n(-r)}z">'
        f"<title>{escape(dot.name)}: {dot.ratio:.2f}</title></path>"
    )
    label = escape(f"{dot.name}: {dot.ratio:.2f}")
    return f'<a href="#{escape(dot.anchor)}" aria-label="{label}">{shape}</a>' if linked else shape


def _log_scale(limits: tuple[float, float], left: float = _LEFT, right: float = _RIGHT) -> Scale:
    low, high = math.log2(limits[0]), math.log2(limits[1])

    def scale(value: float) -> float:
        exponent = min(high, max(low, math.log2(max(value, 1e-9))))
        return left + (right - left) * (exponent - low) / (high - low)

    return scale


def _octaves(limits: tuple[float, float]) -> list[float]:
    """Return all powers of two from the lower to the upper limit. Each limit is first rounded to a power of two."""
    low, high = round(math.log2(limits[0])), round(math.log2(limits[1]))
    return [2.0**k for k in range(low, high + 1)]


def _stacked(
    dots: Sequence[Dot], scale: Scale, height: float
) -> tuple[float, list[tuple[Dot, float, float]]]:
    """Stack dots in columns above the axis. Return (diameter of a dot, [(dot, x, y above the axis)]).

    The diameter shrinks until the tallest column fits into `height`. Dots of the least diameter may overlap.
    """
    size = 6.0
    while True:
        columns: dict[int, list[Dot]] = {}
        for dot in sorted(dots, key=lambda dot: (dot.slow, dot.ratio)):
            columns.setdefault(round(scale(dot.ratio) / size), []).append(dot)
        tallest = max((len(column) for column in columns.values()), default=0)
        if tallest * size <= height or size < 1.2:
            break
        size *= 0.92
    step = min(size, height / max(1, tallest))
    return size, [
        (dot, column * size, (k + 0.5) * step)
        for column, stack in columns.items()
        for k, dot in enumerate(stack)
    ]


def _bin_width(top: float) -> float:
    """Return a round number as width of the bins, such that at most 20 bins cover 0 to `top`."""
    power = 10.0 ** math.floor(math.log10(top / 20))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if top / (power * factor) <= 20 + 1e-9)


def _round_ticks(top: float, width: float) -> list[float]:
    every = next(k for k in (1, 2, 4, 5, 10, 20) if top / (width * k) <= 7)
    return [k * width for k in range(0, int(top / width + 1e-9) + 1, every)]


MOST_CELLS = 64
"""Maximum number of cells along each side of an error map."""
MAP_WIDTH, HIGHEST, LOWEST = 1100, 420, 26
_MAP_LEFT, _TOP, _BELOW = 34, 18, 34
MOST_LINES = 64
#: Number of colours for wrong cells: one for each power of ten of error / allowed error.
DECADES = 5
NOT_FINITE = -1.0


@dataclass(frozen=True)
class Block:
    """Division of an axis into tiles of `length` elements. `name` is the size (Br) or macro that sets the length."""

    name: str
    length: int


@dataclass(frozen=True)
class Picture:
    """Error map of one slice of an output. A slice spans the last two axes; an output with one axis is one row.

    Of all slices this one has the most wrong elements; `place` gives its indices. `cells` holds rows of cells. A cell's
    value is the largest error / allowed error of its elements: at most 1 if all are right, NOT_FINITE for NaN and
    infinity. In the whole output, `wrong` of `total` elements and `wrong_slices` of `slices` slices are wrong.
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
    """Return the error map of a wrong output. It has at most MOST_CELLS rows and columns of cells."""
    from grader.core.arrays import np

    wrong = event.wrong if event.wrong.ndim >= 2 else event.wrong.reshape(1, -1)
    with np.errstate(all="ignore"):
        used = abs(event.actual - event.expected) / np.maximum(event.tolerance, 1e-300)
        # Right elements get at most 1, also where infinity is expected (inf - inf is NaN).
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
    """Return the largest value of an array (one cell's errors / allowed errors); NOT_FINITE if it is not finite."""
    from grader.core.arrays import np

    largest = float(np.max(part))
    return largest if math.isfinite(largest) else NOT_FINITE


def level(cell: float) -> int:
    """Return the number of a cell's colour: 0 if right, 1 to DECADES by the error, DECADES + 1 for NOT_FINITE."""
    if cell == NOT_FINITE:
        return DECADES + 1
    return 0 if cell <= 1 else min(DECADES, 1 + int(math.log10(cell)))


def map_svg(picture: Picture) -> str:
    """Draw an error map. The style sheet's classes `e0` to `e6` give the colours. Lines separate the tiles."""
    wide = MAP_WIDTH - _MAP_LEFT - 6
    tall = max(LOWEST, min(HIGHEST, wide * picture.rows / picture.columns))
    label = words.line(f"Where the output of case {picture.case} is wrong", 120)
    height = _n(tall + _TOP + _BELOW)
    parts = [
        f'<svg class="chart map" shape-rendering="crispEdges" viewBox="0 0 {MAP_WIDTH} {height}" role="img" '
        f'aria-label="{escape(label)}">'
    ]
    row_edges, column_edges = _edges(picture.rows), _edges(picture.columns)
    y_of, x_of = tall / picture.rows, wide / picture.columns
    for y, band in enumerate(picture.cells):
        top, bottom = row_edges[y] * y_of, row_edges[y + 1] * y_of
        for x, end, cell in _runs(band):
            left, right = column_edges[x] * x_of, column_edges[end] * x_of
            parts.append(_rect(f"e{level(cell)}", _MAP_LEFT + left, _TOP + top, right - left, bottom - top))
    parts.append(_rect("frame", _MAP_LEFT, _TOP, wide, tall))
    parts += _lines(
        picture.blocks[0], picture.rows, lambda k: f"M{_MAP_LEFT} {_n(_TOP + k * y_of)}h{_n(wide)}"
    )
    parts += _lines(
        picture.blocks[1], picture.columns, lambda k: f"M{_n(_MAP_LEFT + k * x_of)} {_TOP}v{_n(tall)}"
    )
    if picture.axes[0]:
        parts += [
            _text(_MAP_LEFT - 5, _TOP + 9, "0", "end"),
            _text(_MAP_LEFT - 5, _TOP + tall, str(picture.rows - 1), "end"),
            _text(_MAP_LEFT - 5, _TOP + tall / 2 + 4, picture.axes[0], "end", "strong"),
        ]
    under = _TOP + tall + 14
    parts += [
        _text(_MAP_LEFT, under, "0", "start"),
        _text(_MAP_LEFT + wide, under, str(picture.columns - 1), "end"),
        _text(_MAP_LEFT + wide / 2, under, picture.axes[1], "middle", "strong"),
    ]
    return "".join([*parts, "</svg>"])


def _runs(band: tuple[float, ...]) -> list[tuple[int, int, float]]:
    """Merge adjacent cells of the same colour in a row. Return [(first index, end index, value of one cell), ...]."""
    runs: list[tuple[int, int, float]] = []
    for x, cell in enumerate(band):
        if runs and level(runs[-1][2]) == level(cell):
            runs[-1] = (runs[-1][0], x + 1, cell)
        else:
            runs.append((x, x + 1, cell))
    return runs


def _edges(length: int) -> list[int]:
    """Return the bounds of the cells, at most MOST_CELLS, into which `numpy.array_split` divides `length` elements."""
    cells = min(MOST_CELLS, length)
    small, more = divmod(length, cells)
    return [k * small + min(k, more) for k in range(cells + 1)]


def _lines(block: Block | None, length: int, path: Callable[[int], str]) -> list[str]:
    if block is None or not 0 < block.length < length or length / block.length > MOST_LINES:
        return []
    drawn = "".join(path(k) for k in range(block.length, length, block.length))
    # Draw a wide light line below each thin line, so that the thin line is visible on every colour.
    return [_path("under", drawn) + _path("block", drawn)]


def caption(picture: Picture) -> list[str]:
    """Return lines of text about an error map: the case, the number of wrong elements, and the tiles."""
    several = f", in {picture.wrong_slices} of {picture.slices} slices" if picture.slices > 1 else ""
    shown = f" Shown: the slice {picture.place}." if picture.slices > 1 else ""
    lines = [
        f"On '{picture.case}' ({' '.join(f'{name}={size}' for name, size in picture.shape)}): "
        f"{picture.wrong} of {picture.total} elements are wrong{several}.{shown}"
    ]
    cuts, uncut = [], []
    lengths = (picture.rows, picture.columns)
    for axis, block, length in zip(picture.axes, picture.blocks, lengths, strict=True):
        if block is not None and block.length < length:
            cuts.append(f"{axis} every {block.length} ({block.name})")
        elif block is not None:
            uncut.append(f"{block.name} = {block.length}, which covers all of {axis}")
    if cuts or uncut:
        lines.append("; ".join([*([f"Lines: {' and '.join(cuts)}"] if cuts else []), *uncut]) + ".")
    return lines


def rounds(time: Timing) -> str:
    """Draw each timed call as a dot: rounds from left to right, ms upwards. Return "" without recorded times."""
    sides = {
        side: getattr(time, f"{side}_{time.clock}_ms") or getattr(time, f"{side}_wall_ms")
        for side in ("reference", "student")
    }
    if not all(sides.values()) or not all(math.isfinite(ms) for calls in sides.values() for ms in calls):
        return ""
    base, top, left, right = 150, 20, 40, 350
    allowed = time.allowance * time.reference_ms if "not_graded" not in time.flags else 0.0
    highest = 1.08 * max([*sides["reference"], *sides["student"], allowed, 1e-6])
    count = max(len(calls) for calls in sides.values()) / 2
    # Leave room at the right of the last call for the label of the limit.
    last = right - 48 if allowed else right

    def y(ms: float) -> float:
        return base - (base - top) * ms / highest

    parts = [_svg(182, f"Times of {time.rounds} rounds, milliseconds")]
    for tick in _ticks(highest):
        parts.append(_path("rule", f"M{left} {_n(y(tick))}h{right - left}"))
        parts.append(_text(left - 5, y(tick) + 4, f"{tick:g}", "end"))
    if allowed:
        parts.append(_path("limit", f"M{left} {_n(y(allowed))}h{right - left}"))
        parts.append(_text(right, y(allowed) - 4, "allowed", "end", "strong"))
    for side, calls in sides.items():
        for k, ms in enumerate(calls):
            x = left + (last - left) * (k // 2 + 0.5 + (0.07 if k % 2 else -0.07)) / count
            parts.append(
                f'<circle class="{side}" cx="{_n(x)}" cy="{_n(y(ms))}" r="3.6"><title>{ms:.3g} ms</title></circle>'
            )
    parts += [
        _path("axis", f"M{left} {base}h{right - left}"),
        _text(left, base + 15, "round 1", "start"),
        _text(last, base + 15, str(time.rounds), "end"),
        _text(left - 5, 11, "ms", "end"),
    ]
    return "".join([*parts, "</svg>"])


def _ticks(highest: float) -> Sequence[float]:
    """Return four to nine round values from 0 to at most `highest`, for the ticks of an axis."""
    power = 10.0 ** math.floor(math.log10(highest))
    step = next(power * k for k in (0.1, 0.2, 0.5, 1, 2) if highest / (power * k) <= 8)
    return [step * k for k in range(int(highest / step) + 1)]
