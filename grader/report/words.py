"""Text of strangers made fit for a page, and numbers as people read them: shared by every report of a class.

Names, file names and printed output come from students. Each report has an escaping of its own for its own format
(CSV, HTML); what they share is here: nothing that a terminal would obey, that turns the direction of the text around
it, that cannot be encoded, or that does not end.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, tzinfo

from grader.assignment.records import Assignment
from grader.core.harmless import harmless, one_line
from grader.core.results import Verdict
from grader.report import profile
from grader.report.terminal import VERDICT_WORDS

#: A mark beside the colour of each verdict, for those who do not see the colour.
VERDICT_MARKS: dict[str, str] = {
    "pass": "✓",
    "wrong": "✗",
    "slow": "≫",
    "crash": "!",
    "timeout": "∞",
    "compile_error": "#",
    "missing": "–",
    "rejected": "⊘",
    "unjudged": "?",
}

#: What a terminal obeys: CSI sequences (colours, cursor), OSC sequences (titles, links), two-byte escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
#: More combining marks than any script needs: they climb over the lines above.
_PILES = re.compile(f"([{_MARKS}]{{4}})[{_MARKS}]+")


def verdict_words(verdict: Verdict) -> str:
    """The verdict as the student's own run words it, in small letters: "right, but too slow"."""
    return VERDICT_WORDS[verdict].lower()


def block(text: str, limit: int = 4000, lines: int = 200) -> str:
    """Several lines of a stranger's text, cut at `limit` characters and `lines` lines, with a word on what was cut."""
    # Cleaning costs time per character, and what is printed can be long: cut first, with room for what is removed.
    kept = _clean(text[: 4 * limit])
    short = "\n".join(kept[:limit].split("\n")[:lines])
    return (
        short if len(short) == len(kept) and len(text) <= 4 * limit else short.rstrip() + "\n... (cut here)"
    )


def line(text: str, limit: int = 200) -> str:
    """One line of a stranger's text: as `block`, with white space run together."""
    return one_line(text, limit, _clean)


def _clean(text: str) -> str:
    """Without colours and cursor movements, and with U+FFFD for what is harmful and still there."""
    if text.isascii() and text.isprintable():
        return text
    return _PILES.sub(r"\1", harmless(_ESCAPES.sub("", text), "\ufffd"))


def number(value: float | None) -> str:
    """Points and counts without trailing zeros: 12.5, 40; a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{round(value, 2):g}"


def plural(count: int, one: str, many: str = "") -> str:
    """1 student, 3 students."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def ratio(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) and abs(value) < 1000 else "–"


def milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 10 else f"{value:.1f} ms"


def size(count: int | None) -> str:
    """Bytes for people; a dash where nothing was measured."""
    return "–" if count is None else profile.size(count)


def error(value: float | None) -> str:
    """A largest absolute error: 3.1e-06, 0.4; nothing where there was none to take."""
    return "" if value is None or not math.isfinite(value) else f"{value:.2g}"


def peak(count: int | None) -> str:
    """The peak of a call in bytes, for people; a dash when there is none."""
    return profile.NO_GROWTH if count == 0 else size(count)


def shape(sizes: dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items())


def moment(when: datetime | None, zone: tzinfo | None = None) -> str:
    """A time to the minute, in `zone` if one is given, with the name of its zone where it has one: a time that is held
    against a due date means nothing without."""
    if when is None:
        return ""
    if zone is not None and when.tzinfo is not None:
        when = when.astimezone(zone)
    return when.strftime("%Y-%m-%d %H:%M %Z").strip()


def zone_of(assignment: Assignment) -> tzinfo | None:
    """The zone in which times of submission are shown: the due date's."""
    return (
        assignment.late.due.tzinfo
        if assignment.late is not None and assignment.late.due is not None
        else None
    )
