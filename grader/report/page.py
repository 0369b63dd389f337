"""HTML page about one submission's verdicts (`--html FILE`). It needs no network and has no scripts.

All untrusted text is escaped. The page's Content-Security-Policy allows only its style sheet, by digest. Pictures are
inline SVG. Their text comes only from the kit and the assignment, and is escaped, too.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.core.errors import UsageError
from grader.core.harmless import harmless
from grader.core.pythontree import whole
from grader.core.results import PartResult, Score, SubmissionResult
from grader.judge.events import Deviated, Event, PartStarted
from grader.report import charts, words
from grader.report.charts import Picture
from grader.report.html import document

LEGEND = ("right", "to 10 x", "to 100 x", "to 1000 x", "to 10 000 x", "more", "no number")
"""Meaning of a cell's colour in an error map: its error as a multiple of the allowed error."""
_SOURCE = re.compile(r"( *\d* \|)(.*)")
"""Line of a compiler's message: a quoted source line, or the line below it with the mark (^)."""


@dataclass
class Collector:
    """Listener that keeps an error map of each wrong public output, and passes every event on to `listener`."""

    listener: Callable[[Event], None] = lambda event: None
    pictures: dict[str, dict[str, Picture]] = field(default_factory=dict)
    """Pictures by part id, then by case name."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, PartStarted):
            self.pictures.pop(event.part.id, None)
        elif isinstance(event, Deviated) and not event.hidden:
            self.pictures.setdefault(event.part.id, {})[event.case] = charts.reduced(event)
        self.listener(event)

    def of(self, part: PartResult) -> Picture | None:
        """Return the picture of the case with the part's diagnosis. Without one, return the picture with the largest
        share of wrong elements; None without pictures."""
        known = self.pictures.get(part.id, {})
        names = [case.name for case in part.cases if case.diagnosis and case.diagnosis == part.diagnosis]
        named = [known[name] for name in names if name in known]
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
    """Write the page about `result`, the verdicts on the file `source`. Raises OSError if it cannot be written."""
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
    plainfile.write(path, [text])


def _text(source: Path, sha256: str) -> str:
    """Return the source's text, or "" if the file cannot be read or has changed, so that its digest is not `sha256`."""
    try:
        text = source.read_bytes()
        return text.decode(errors="replace") if hashlib.sha256(whole(source)).hexdigest() == sha256 else ""
    except (OSError, UsageError):
        return ""


def _view(part: PartResult, seen: Picture | None, ladder: Any, code: str, name: str) -> dict[str, Any]:
    from markupsafe import Markup

    place, bars = part.frontier, ""
    if place:
        own = charts.Dot(place.peak_percent, False, "", "this kernel")
        bars = charts.ladder([own], ladder.shares(place) if ladder else {})
    return {
        "part": part,
        "pieces": message_pieces(words.block(part.diagnosis.message, 4000, 60)) if part.diagnosis else [],
        "code": Markup(rows(code, name, part.diagnosis.message)) if part.diagnosis else "",
        "map": Markup(charts.map_svg(seen)) if seen else "",
        "caption": charts.caption(seen) if seen else [],
        "rounds": Markup(charts.rounds(part.time)) if part.time else "",
        "ladder": Markup(bars),
    }


def message_pieces(message: str) -> list[tuple[bool, str]]:
    """Split a message into pieces: (True, quoted source lines, which must not be wrapped) and (False, other text)."""
    pieces: list[tuple[bool, list[str]]] = []
    for line in message.split("\n"):
        is_source = _SOURCE.fullmatch(line) is not None
        if not pieces or pieces[-1][0] != is_source:
            pieces.append((is_source, []))
        pieces[-1][1].append(line)
    return [(is_source, "\n".join(_moved_left(lines) if is_source else lines)) for is_source, lines in pieces]


def _moved_left(lines: list[str]) -> list[str]:
    """Return quoted source lines without their common indentation, so that they fit into a narrow window."""
    split = [match.groups() for line in lines if (match := _SOURCE.fullmatch(line))]
    shared = min((len(text) - len(text.lstrip()) for _, text in split if text.strip()), default=0)
    return [f"{gutter} {text[shared:]}".rstrip() for gutter, text in split]


AROUND = 2
"""Number of source lines shown before and after a line that a message names."""
MOST_LINES = 60
MOST_CHARACTERS = 1 << 17
"""Maximum length of a source with coloured syntax. Pygments takes 0.1 s for this length."""
MOST_COLUMNS = 200
#: (Name of a pygments token, class in the page's style sheet).
CLASSES = (("Comment", "kc"), ("Keyword", "kw"), ("Literal.String", "ks"), ("Literal.Number", "kn"))


def rows(text: str, name: str, message: str) -> str:
    """Return HTML with the lines that `message` names in the source `text`, and the lines around them.

    Each line is a `<span>`. Named lines are marked. Returns "" if the message names no line of the file `name`.
    """
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
    """Yield each source line as escaped HTML with coloured syntax."""
    lines = [harmless(line)[:MOST_COLUMNS] for line in text.splitlines()]
    if len(text) > MOST_CHARACTERS:
        yield from map(escape, lines)
        return
    # pygments is installed, because rich depends on it.
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
