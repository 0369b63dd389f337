"""Leaderboard: `python -m grader board DIR ...` writes one page that ranks correct submissions by speed.

It reads only the ledgers (`ledger.py`) of the results folders, which are named from the oldest run to the newest.
A student's history shows every result; the standings use the last one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from html import escape
from pathlib import Path

from grader.assignment.records import Assignment
from grader.core import wholefile
from grader.core.commandline import Parser
from grader.core.errors import UsageError
from grader.core.places import GRADER_COMMAND
from grader.report import words
from grader.report.html import environment, missing_library, policy
from grader.staff.board.standings import Board, PartBoard, board_of, pseudonyms
from grader.staff.classroom import gradebook

PAGE, TABLE = "board.html", "pseudonyms.csv"


def main(arguments: list[str]) -> int:
    parse = Parser(prog=f"{GRADER_COMMAND} board", description="Rank the right submissions by speed.")
    parse.path("folders", "--out folders of runs, the oldest first", "DIR", nargs="+")
    parse.add_argument("--names", action="store_true", help="show ids (default: pseudonyms)")
    parse.path("--out", f"the page (default: {PAGE} in the last DIR)")
    parse.path("--json", "write the entries of Gradescope's leaderboard by id, too")
    given = parse.parse_args(arguments)
    if missing := missing_library():
        raise UsageError(f"the page needs the package {missing}: `pip install {missing}`")
    last: Path = given.folders[-1]
    assignment, _ = gradebook.open_book(last)
    board = board_of(given.folders, assignment)
    if not board.parts:
        raise UsageError(
            f"no leaderboard was written: {last} has no submission that is timed, right and without a flag"
        )
    called = {name: name for name in board.students}
    if not given.names:
        called = pseudonyms(last, board.students)
    target = given.out or last / PAGE
    try:
        wholefile.write(target, page(assignment, board, called))
        if given.json is not None:
            wholefile.write(given.json, [json.dumps(fields(board), indent=1), "\n"])
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or target}: {error.strerror}") from error
    for part in board.parts:
        first = part.places[0]
        print(
            f"{part.id}: {len(part.places)} right and unflagged; {called[first.student]} leads with {first.ratio:.2f} x"
        )
    note = "" if given.names else f"; ids of the pseudonyms: {last / TABLE}"
    print(f"wrote {target}{note}")
    return 0


def fields(board: Board) -> dict[str, list[dict[str, object]]]:
    """Return the entries of Gradescope's `leaderboard` field by student id."""
    found: dict[str, list[dict[str, object]]] = {}
    for part in board.parts:
        for place in part.places:
            entry = {"name": f"{part.id}: time / reference", "value": round(place.ratio, 3), "order": "asc"}
            found.setdefault(place.student, []).append(entry)
    return found


# ---- the page: its policy allows the style sheet by its digest, but no script and no network

MOST_LINES = 60
"""Maximum number of students in a chart of histories; more lines would be unreadable."""
CLOSE = 1.25
"""If two ratios differ by less than this factor, the axis labels only one of them."""
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
    """Return an SVG chart: the ratio over the runs, one line for each of the fastest students, logarithmic.

    Returns "" if no student has two results.
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
