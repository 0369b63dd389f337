"""Page of one verdict (`--html FILE`): no network, no script, and all untrusted text escaped.

The page's policy allows its one style sheet, by digest, and nothing else. Pictures are inline SVG. Their only text is
the kit's and names of the assignment's, escaped as well.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from grader.assignment.records import Assignment
from grader.core import wholefile
from grader.core.errors import UsageError
from grader.core.harmless import harmless
from grader.core.pythontree import whole
from grader.core.results import PartResult, Score, SubmissionResult, Timing
from grader.judge.events import Deviated, Event, PartStarted
from grader.report import charts, words
from grader.report.charts import Picture
from grader.report.html import document, missing_library

__all__ = ["Collector", "missing_library", "write"]

LEGEND = ("right", "to 10 x", "to 100 x", "to 1000 x", "to 10 000 x", "more", "no number")
"""Meaning of a cell's level: the error as a multiple of the allowed error."""
_SOURCE = re.compile(r"( *\d* \|)(.*)")
"""A line of a compiler's message that shows a source line, or a mark below it."""


@dataclass
class Collector:
    """A listener that keeps a small picture of each wrong output, and passes every event on."""

    listener: Callable[[Event], None] = lambda event: None
    pictures: dict[str, dict[str, Picture]] = field(default_factory=dict)
    """Pictures by the part's id, then by the case."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, PartStarted):
            self.pictures.pop(event.part.id, None)
        elif isinstance(event, Deviated) and not event.hidden:
            self.pictures.setdefault(event.part.id, {})[event.case] = charts.reduced(event)
        self.listener(event)

    def of(self, part: PartResult) -> Picture | None:
        """Return the picture of the case that the part's diagnosis comes from, else of the case with the most wrong
        elements."""
        known = self.pictures.get(part.id, {})
        told = [case.name for case in part.cases if case.diagnosis and case.diagnosis == part.diagnosis]
        named = [known[name] for name in told if name in known]
        return (named or sorted(known.values(), key=lambda one: -one.wrong / one.total) or [None])[0]


def write(
    path: Path,
    assignment: Assignment,
    result: SubmissionResult,
    score: Score,
    pictures: Collector,
    made_at: datetime,
    source: Path,
) -> None:
    """Write the page. Raises OSError."""
    ladder = assignment.lab.ladder()
    code = _text(source, result.sha256)
    views = [_view(part, pictures.of(part), ladder, code, source.name) for part in result.parts]
    text = document(
        "page.html",
        ladder,
        assignment=assignment,
        result=result,
        file_name=source.name,
        views=views,
        earned={line.id: line for line in score.lines},
        total=math.fsum(line.points for line in score.lines if line.id in {part.id for part in result.parts}),
        waiting=score.waiting,
        made_at=made_at,
        judged_by=words.judged_by(result.kit, result.machine),
        legend=list(enumerate(LEGEND)),
    )
    wholefile.write(path, [text])


def _text(source: Path, sha256: str) -> str:
    """Return the judged text; "" if the file has been saved again since, or removed."""
    try:
        text = source.read_bytes()
        return text.decode(errors="replace") if hashlib.sha256(whole(source)).hexdigest() == sha256 else ""
    except (OSError, UsageError):
        return ""


def _view(part: PartResult, seen: Picture | None, ladder: Any, code: str, name: str) -> dict[str, Any]:
    from markupsafe import Markup

    place = part.frontier
    rungs = dict(ladder.shares(place)) if ladder and place else {}
    return {
        "part": part,
        "told": told(words.block(part.diagnosis.message, 4000, 60)) if part.diagnosis else [],
        "code": Markup(rows(code, name, part.diagnosis.message)) if part.diagnosis else "",
        "map": Markup(charts.svg(seen)) if seen else "",
        "caption": charts.caption(seen) if seen else [],
        "rounds": Markup(rounds(part.time)) if part.time else "",
        "ladder": Markup(_ladder(place.peak_percent, rungs)) if place else "",
    }


def told(message: str) -> list[tuple[bool, str]]:
    """Split a message into pieces: (True, source lines with marks below them), which must not be wrapped; (False,
    text)."""
    pieces: list[tuple[bool, list[str]]] = []
    for line in message.split("\n"):
        is_source = _SOURCE.fullmatch(line) is not None
        if not pieces or pieces[-1][0] != is_source:
            pieces.append((is_source, []))
        pieces[-1][1].append(line)
    return [(is_source, "\n".join(_moved_left(lines) if is_source else lines)) for is_source, lines in pieces]


def _moved_left(lines: list[str]) -> list[str]:
    """Remove the indentation that source lines share, so that they fit into a narrow window."""
    split = [match.groups() for line in lines if (match := _SOURCE.fullmatch(line))]
    shared = min((len(text) - len(text.lstrip()) for _, text in split if text.strip()), default=0)
    return [f"{gutter} {text[shared:]}".rstrip() for gutter, text in split]


def _ladder(share_percent: float, rungs: dict[str, float]) -> str:
    return charts.ladder([charts.Dot(share_percent, False, "", "this kernel")], rungs)


def rounds(time: Timing) -> str:
    """Draw each timed call as a dot over the rounds, in milliseconds: the reference's hollow, the student's filled."""
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
    # The limit's label stands at the right, beyond the last call.
    last = right - 48 if allowed else right

    def y(ms: float) -> float:
        return base - (base - top) * ms / highest

    parts = [
        f'<svg class="chart" viewBox="0 0 360 182" role="img" aria-label="'
        f'{escape(f"Times of {time.rounds} rounds, milliseconds")}">'
    ]
    parts += [
        f'<path class="rule" d="M{left} {_n(y(tick))}h{right - left}"/>'
        f'<text x="{left - 5}" y="{_n(y(tick) + 4)}" text-anchor="end">{tick:g}</text>'
        for tick in _ticks(highest)
    ]
    if allowed:
        parts.append(
            f'<path class="limit" d="M{left} {_n(y(allowed))}h{right - left}"/>'
            f'<text class="strong" x="{right}" y="{_n(y(allowed) - 4)}" text-anchor="end">allowed</text>'
        )
    for side, calls in sides.items():
        for k, ms in enumerate(calls):
            x = left + (last - left) * (k // 2 + 0.5 + (0.07 if k % 2 else -0.07)) / count
            parts.append(
                f'<circle class="{side}" cx="{_n(x)}" cy="{_n(y(ms))}" r="3.6"><title>{ms:.3g} ms</title></circle>'
            )
    parts.append(f'<path class="axis" d="M{left} {base}h{right - left}"/>')
    parts.append(f'<text x="{left}" y="{base + 15}">round 1</text>')
    parts.append(f'<text x="{last}" y="{base + 15}" text-anchor="end">{time.rounds}</text>')
    parts.append(f'<text x="{left - 5}" y="11" text-anchor="end">ms</text>')
    return "".join([*parts, "</svg>"])


def _ticks(highest: float) -> Sequence[float]:
    """Return round values up to this one: four to eight of them."""
    power = 10.0 ** math.floor(math.log10(highest))
    step = next(power * k for k in (0.1, 0.2, 0.5, 1, 2) if highest / (power * k) <= 8)
    return [step * k for k in range(int(highest / step) + 1)]


def _n(value: float) -> str:
    return f"{round(value, 1):g}"


AROUND = 2
"""Lines shown on either side of a named one."""
MOST_LINES = 60
MOST_CHARACTERS = 1 << 17
"""Longest source that is highlighted: pygments takes 0.1 s for so many characters."""
MOST_COLUMNS = 200
#: Classes of the page's style sheet, by the name of a pygments token.
CLASSES = (("Comment", "kc"), ("Keyword", "kw"), ("Literal.String", "ks"), ("Literal.Number", "kn"))


def rows(text: str, name: str, message: str) -> str:
    """Return a block `<span>` for each shown line, with a mark on named ones; "" if the message names none."""
    lines = text.splitlines()
    named = {int(found) for found in re.findall(rf"(?<![\w./-]){re.escape(name)}:(\d{{1,7}})\b", message)}
    named &= set(range(1, len(lines) + 1))
    shown = sorted(
        {k for line in named for k in range(line - AROUND, line + AROUND + 1)} & set(range(1, len(lines) + 1))
    )
    if not shown:
        return ""
    coloured = list(_coloured(text, name))
    parts, before = [], shown[0] - 1
    for k in shown[:MOST_LINES]:
        if k != before + 1:
            parts.append('<span class="gap">⋮</span>')
        kind = "row named" if k in named else "row"
        parts.append(f'<span class="{kind}"><i>{k}</i>{coloured[k - 1]}</span>')
        before = k
    return "".join(parts)


def _coloured(text: str, name: str) -> Iterator[str]:
    """Yield each line as escaped HTML."""
    lines = [harmless(line)[:MOST_COLUMNS] for line in text.splitlines()]
    if len(text) > MOST_CHARACTERS:
        yield from map(escape, lines)
        return
    # It comes with rich.
    from pygments.lexers import CppLexer, PythonLexer

    lexer = (PythonLexer if Path(name).suffix == ".py" else CppLexer)(stripnl=False, ensurenl=True)
    row: list[str] = []
    for token, value in lexer.get_tokens("\n".join(lines)):
        kind = next((kind for prefix, kind in CLASSES if str(token).startswith(f"Token.{prefix}")), "")
        for k, piece in enumerate(value.split("\n")):
            if k:
                yield "".join(row)
                row = []
            if piece:
                row.append(f'<span class="{kind}">{escape(piece)}</span>' if kind else escape(piece))
