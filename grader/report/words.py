"""Cleaning of untrusted text, and formats of numbers, shared by all reports of a class.

Names, file names and printed output come from students. This module limits their length and removes characters that a
terminal obeys, that change the direction of text, or that cannot be encoded. Each report then escapes text for its own
format (CSV, HTML).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, tzinfo

from grader.assignment.records import Assignment
from grader.core.harmless import harmless, one_line
from grader.core.results import Verdict
from grader.report import terminal
from grader.report.terminal import VERDICT_WORDS

#: A mark beside the colour of each verdict, for readers who do not see the colour.
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

#: Sequences that a terminal obeys: CSI (colours, cursor), OSC (titles, links), two-byte escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
#: More than four combining marks on a letter, which no script needs and which would cover the lines above.
_PILES = re.compile(f"([{_MARKS}]{{4}})[{_MARKS}]+")


def verdict_words(verdict: Verdict) -> str:
    """Return the words for a verdict in small letters, such as "right, but too slow"."""
    return VERDICT_WORDS[verdict].lower()


def block(text: str, limit: int = 4000, lines: int = 200) -> str:
    """Return several lines of untrusted text, cut at `limit` characters and `lines` lines. A note marks the cut."""
    # Cut before cleaning, which is slow for long output. The factor 4 leaves room for characters that cleaning removes.
    kept = _clean(text[: 4 * limit])
    short = "\n".join(kept[:limit].split("\n")[:lines])
    return (
        short if len(short) == len(kept) and len(text) <= 4 * limit else short.rstrip() + "\n... (cut here)"
    )


def line(text: str, limit: int = 200) -> str:
    """Return untrusted text as one line of at most `limit` characters, cleaned, with white space collapsed."""
    return one_line(text, limit, _clean)


def _clean(text: str) -> str:
    """Remove colours and cursor movements, and replace other harmful characters with U+FFFD."""
    if text.isascii() and text.isprintable():
        return text
    return _PILES.sub(r"\1", harmless(_ESCAPES.sub("", text), "\ufffd"))


def number(value: float | None) -> str:
    """Format points and counts without trailing zeros: 12.5, 40. None and non-finite numbers become a dash."""
    return "–" if value is None or not math.isfinite(value) else f"{round(value, 2):g}"


def plural(count: int, one: str, many: str = "") -> str:
    """Format a count with its noun: 1 student, 3 students."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def ratio(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) and abs(value) < 1000 else "–"


def milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 10 else f"{value:.1f} ms"


def size(count: int | None) -> str:
    """Format bytes for people; None (not measured) becomes a dash."""
    return "–" if count is None else terminal.size(count)


def error(value: float | None) -> str:
    """Format a largest absolute error: 3.1e-06, 0.4. None and non-finite numbers become ""."""
    return "" if value is None or not math.isfinite(value) else f"{value:.2g}"


def peak(count: int | None) -> str:
    """Format the peak of a call in bytes, for people; 0 becomes NO_GROWTH, None a dash."""
    return terminal.NO_GROWTH if count == 0 else size(count)


def shape(sizes: dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items())


def kit(facts: Mapping[str, object]) -> str:
    """Return version and commit of the kit that judged; "" if they are unknown."""
    if not facts.get("version"):
        return ""
    commit = f" (commit {line(str(facts['commit']), 60)})" if facts.get("commit") else ""
    return f"gpt149 {line(str(facts['version']), 40)}{commit}"


def machine(facts: Mapping[str, object]) -> str:
    """Return processor, system and cores of a machine."""
    cores = facts.get("cores")
    known = (facts.get("processor"), facts.get("system"), f"{cores} cores" if cores else None)
    return ", ".join(line(str(fact), 80) for fact in known if fact)


def judged_by(of_kit: Mapping[str, object], of_machine: Mapping[str, object]) -> str:
    """Return one sentence on the kit, the machine and its load average; "" if all are unknown."""
    loads = of_machine.get("load_average")
    load = f", load average {line(' '.join(map(str, loads)), 40)}" if isinstance(loads, (list, tuple)) else ""
    by, on = kit(of_kit), machine(of_machine)
    return f"Judged{f' by {by}' if by else ''}{f' on {on}{load}' if on else ''}." if by or on else ""


def moment(when: datetime | None, zone: tzinfo | None = None) -> str:
    """Format a time to the minute, in `zone` if given.

    The zone's name is added if it has one: a time cannot be compared with a due date without it.
    """
    if when is None:
        return ""
    if zone is not None and when.tzinfo is not None:
        when = when.astimezone(zone)
    return when.strftime("%Y-%m-%d %H:%M %Z").strip()


def zone_of(assignment: Assignment) -> tzinfo | None:
    """Return the zone in which submission times are shown: the due date's."""
    return (
        assignment.late.due.tzinfo
        if assignment.late is not None and assignment.late.due is not None
        else None
    )
