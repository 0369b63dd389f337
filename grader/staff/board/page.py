"""The leaderboard as one page of HTML: a style sheet named by its digest, no script, no network.

Names are the only untrusted text in it; they are made harmless and escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from html import escape
from pathlib import Path

from grader.assignment.records import Assignment
from grader.report import words
from grader.report.html import policy
from grader.staff.board.standings import Board, PartBoard, Place

MOST_LINES = 60
"""Most students in a chart of histories: with more lines it could not be read."""
CLOSE = 1.25
"""Two ratios that differ by less than this factor do not both get a label at the axis."""
WIDTH, HEIGHT, MARGIN = 640, 240, 34
STYLE = Path(__file__).with_name("board.css").read_text(encoding="utf-8")


def page(assignment: Assignment, board: Board, called: Mapping[str, str]) -> Iterator[str]:
    """Yield the page's HTML in pieces. `called` maps each student's id to the name that is shown."""
    title = f"{_text(assignment.title)}: leaderboard"
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy(STYLE, ""))}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="robots" content="noindex">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    )
    last = _day(board.runs[-1]) if board.runs else ""
    yield (
        f"<p>As of {last}. Time divided by the reference’s, measured side by side on one machine: smaller is faster. "
        "Only kernels that are right on every input and have no flag are listed. "
        "Students whose intervals overlap, directly or through others, share a place. "
        f"{_text(board.judged_by, 400)}</p>\n"
    )
    if len(board.parts) > 1:
        links = (f'<a href="#{escape(part.id)}">{_text(part.id)}</a>' for part in board.parts)
        yield f"<nav>{''.join(links)}</nav>\n"
    for part in board.parts:
        yield from _part(part, board, called)
    yield "</body>\n</html>\n"


def _part(part: PartBoard, board: Board, called: Mapping[str, str]) -> Iterator[str]:
    most = max(place.high for place in part.places)
    yield f'<section id="{escape(part.id)}">\n<h2>{_text(part.title)}</h2>\n'
    yield f"<p>{words.plural(len(part.places), 'student')}</p>\n<table>\n"
    yield (
        '<thead><tr><th class="rank">Place</th><th>Who</th><th class="n">Time ÷ reference</th><th class="bar">0 to '
        f"{most:.2f}</th></tr></thead>\n<tbody>\n"
    )
    for place in part.places:
        yield _row(place, most, called[place.student])
    yield "</tbody>\n</table>\n"
    if any(len(points) > 1 for points in part.history.values()):
        yield _chart(part, board, called)
    yield "</section>\n"


def _row(place: Place, most: float, name: str) -> str:
    first = ' class="first"' if place.rank == 1 else ""
    tie = "=" if place.is_tied else ""
    x, low, high = (100 * value / most for value in (place.ratio, place.low, place.high))
    bar = (
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="band" x="{low:.2f}" y="1" width="{max(0.4, high - low):.2f}" height="6"/>'
        f'<rect class="one" x="{max(0.0, x - 0.4):.2f}" y="0" width=".8" height="8"/></svg>'
    )
    return (
        f'<tr{first}><td class="rank">{tie}{place.rank}</td><td class="who"><bdi>{_text(name)}</bdi></td>'
        f'<td class="n">{place.ratio:.2f} <small>{place.low:.2f} to {place.high:.2f}</small></td>'
        f'<td class="bar">{bar}</td></tr>\n'
    )


def _chart(part: PartBoard, board: Board, called: Mapping[str, str]) -> str:
    """Draw the ratio over the runs: a line for each of the fastest students, on a logarithmic axis."""
    shown = part.places[:MOST_LINES]
    ratios = [point.ratio for place in shown for point in part.history[place.student]]
    low, high = math.log(min(ratios) * 0.95), math.log(max(ratios) * 1.05)
    steps = max(1, len(board.runs) - 1)

    def at(run: int, ratio: float) -> tuple[float, float]:
        x = MARGIN + (WIDTH - 2 * MARGIN) * run / steps
        y = MARGIN / 2 + (HEIGHT - 1.5 * MARGIN) * (high - math.log(ratio)) / (high - low)
        return round(x, 1), round(y, 1)

    lines = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_text(part.id)} over the runs: a line a student">'
    ]
    for ratio in sorted({min(ratios), 1.0, max(ratios)}):
        is_end = ratio in (min(ratios), max(ratios))
        if is_end or min(ratios) * CLOSE < ratio < max(ratios) / CLOSE:
            _, y = at(0, ratio)
            lines.append(f'<line class="axis" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y}" y2="{y}"/>')
            lines.append(f'<text x="2" y="{y + 4}">{ratio:.2f}</text>')
    for run in sorted({0, len(board.runs) - 1}):
        x, _ = at(run, min(ratios))
        anchor = "start" if run == 0 else "end"
        lines.append(f'<text x="{x}" y="{HEIGHT - 6}" text-anchor="{anchor}">{_day(board.runs[run])}</text>')
    for place in reversed(shown):
        points = [at(point.run, point.ratio) for point in part.history[place.student]]
        kind = "line lead" if place.rank == 1 else "line"
        title = f"<title>{_text(called[place.student])}: {place.ratio:.2f}</title>"
        path = " ".join(f"{x},{y}" for x, y in points)
        lines.append(f'<g><polyline class="{kind}" points="{path}">{title}</polyline>')
        lines += [f'<circle class="dot" cx="{x}" cy="{y}" r="2.5"/>' for x, y in points]
        lines.append("</g>")
    lines.append("</svg>\n")
    return "".join(lines)


def _day(at: str) -> str:
    try:
        return words.moment(datetime.fromisoformat(at))
    except ValueError:
        return ""


def _text(value: str, characters: int = 80) -> str:
    return escape(words.line(value, characters))
