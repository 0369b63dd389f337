"""The leaderboard as one page of HTML (`board.html`): a style sheet named by its digest, no script, no network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from html import escape
from pathlib import Path

from grader.assignment.records import Assignment
from grader.report import words
from grader.report.html import environment, policy
from grader.staff.board.standings import Board, PartBoard

MOST_LINES = 60
"""Most students in a chart of histories: with more lines it could not be read."""
CLOSE = 1.25
"""Two ratios that differ by less than this factor do not both get a label at the axis."""
WIDTH, HEIGHT, MARGIN = 640, 240, 34
FOLDER = Path(__file__).parent


def page(assignment: Assignment, board: Board, called: Mapping[str, str]) -> Iterator[str]:
    """Yield the page's HTML in pieces. `called` maps each student's id to the name that is shown."""
    from markupsafe import Markup

    pages = environment(None, FOLDER)
    pages.globals.update(day=_day, chart=lambda *of: Markup(_chart(*of)))
    style = Markup((FOLDER / "board.css").read_text(encoding="utf-8"))
    yield from pages.get_template("board.html").generate(
        assignment=assignment, board=board, called=called, style=style, policy=policy(style, "")
    )


def _chart(part: PartBoard, board: Board, called: Mapping[str, str]) -> str:
    """Draw the ratio over the runs: a line for each of the fastest students, on a logarithmic axis.

    Return "" if no student has two results.
    """
    if all(len(points) < 2 for points in part.history.values()):
        return ""
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
