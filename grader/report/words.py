"""Cleaning of untrusted text, formats of numbers and limits on size, shared by all reports.

Names, file names and printed output come from students. This module limits their length, and removes characters that
control a terminal, change the direction of text, or cannot be encoded. Each report then escapes text for its format
(CSV, HTML).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime, tzinfo
from typing import Any

from grader.assignment.records import Assignment
from grader.core.errors import KitError
from grader.core.harmless import harmless, one_line
from grader.core.quantities import size_text
from grader.core.results import Verdict
from grader.report import terminal
from grader.report.terminal import VERDICT_WORDS

#: Mark of each verdict, for readers who cannot distinguish its colour.
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

#: Sequences that control a terminal: CSI (colours, cursor), OSC (titles, links), two-byte escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
#: More than four combining marks on a letter. No script needs them, and they would cover the lines above.
_PILES = re.compile(f"([{_MARKS}]{{4}})[{_MARKS}]+")


def verdict_words(verdict: Verdict) -> str:
    """Return the text for a verdict in lower case, such as "right, but too slow"."""
    return VERDICT_WORDS[verdict].lower()


def block(text: str, limit: int = 4000, lines: int = 200) -> str:
    """Return untrusted text, cleaned, and cut at `limit` characters and `lines` lines. A note marks the cut."""
    # Cut first, because cleaning long output is slow. The factor 4 leaves room for characters that cleaning removes.
    kept = _clean(text[: 4 * limit])
    short = "\n".join(kept[:limit].split("\n")[:lines])
    return (
        short if len(short) == len(kept) and len(text) <= 4 * limit else short.rstrip() + "\n... (cut here)"
    )


def line(text: str, limit: int = 200) -> str:
    """Return untrusted text, cleaned, as one line of at most `limit` characters."""
    return one_line(text, limit, _clean)


def _clean(text: str) -> str:
    """Return the text without colours and cursor movements. Other harmful characters become U+FFFD."""
    if text.isascii() and text.isprintable():
        return text
    return _PILES.sub(r"\1", harmless(_ESCAPES.sub("", text), "\ufffd"))


def number(value: float | None) -> str:
    """Return a number as text without trailing zeros, such as 12.5 or 40; a dash if it is None or not finite."""
    return "–" if value is None or not math.isfinite(value) else f"{round(value, 2):g}"


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun, such as "1 student" or "3 students"."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def reason(trouble: str) -> str:
    """Shorten a student's message for the staff: its first line, without advice such as ": hand it in again"."""
    return line(re.split(r": hand (?:it )?in |\n", trouble, maxsplit=1)[0], 300)


def ratio(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) and abs(value) < 1000 else "–"


def milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 10 else f"{value:.1f} ms"


def size(count: int | None) -> str:
    """Return a number of bytes as text such as 4.50 MB; a dash for None (not measured)."""
    return "–" if count is None else terminal.size(count)


def error(value: float | None) -> str:
    """Return a largest absolute error as text such as 3.1e-06 or 0.4; "" if it is None or not finite."""
    return "" if value is None or not math.isfinite(value) else f"{value:.2g}"


def peak(count: int | None) -> str:
    """Return a call's peak memory in bytes as text; NO_GROWTH for 0, a dash for None."""
    return terminal.NO_GROWTH if count == 0 else size(count)


def shape(sizes: dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items())


def kit(facts: Mapping[str, object]) -> str:
    """Return version and commit of the kit that judged, or "" if they are unknown. `facts` are a result's `kit`."""
    if not facts.get("version"):
        return ""
    commit = f" (commit {line(str(facts['commit']), 60)})" if facts.get("commit") else ""
    return f"gpt149 {line(str(facts['version']), 40)}{commit}"


def machine(facts: Mapping[str, object]) -> str:
    """Return a text with processor, system and cores of a machine. `facts` are a result's `machine`."""
    cores = facts.get("cores")
    known = (facts.get("processor"), facts.get("system"), f"{cores} cores" if cores else None)
    return ", ".join(line(str(fact), 80) for fact in known if fact)


def judged_by(of_kit: Mapping[str, object], of_machine: Mapping[str, object]) -> str:
    """Return one sentence on the kit, the machine and its load average, or "" if all are unknown."""
    loads = of_machine.get("load_average")
    load = f", load average {line(' '.join(map(str, loads)), 40)}" if isinstance(loads, (list, tuple)) else ""
    by, on = kit(of_kit), machine(of_machine)
    return f"Judged{f' by {by}' if by else ''}{f' on {on}{load}' if on else ''}." if by or on else ""


def moment(when: datetime | None, zone: tzinfo | None = None) -> str:
    """Return a time as text to the minute, such as "2026-11-14 22:10 UTC", or "" for None.

    The time is given in `zone` if `when` has a zone. The zone's name follows, for comparison with a due date.
    """
    if when is None:
        return ""
    if zone is not None and when.tzinfo is not None:
        when = when.astimezone(zone)
    return when.strftime("%Y-%m-%d %H:%M %Z").strip()


def zone_of(assignment: Assignment) -> tzinfo | None:
    """Return the zone of the due date, in which submission times are shown; None without a due date."""
    return (
        assignment.late.due.tzinfo
        if assignment.late is not None and assignment.late.due is not None
        else None
    )


#: Maximum lengths of each text in a report, in characters. `fitted` tries them in this order.
TEXT_LIMITS = (6000, 3000, 1500, 700, 300, 120, 50, 20)
#: Starts of commands to a GitHub runner in a step's output: "::" at the start of a line, "##[" anywhere.
_COMMAND = re.compile(r"(?m)^([^\S\n]*):(?=:)|#(?=#\[)")


def encoded(value: Any) -> bytes:
    """Return a value as JSON in ASCII. Raises ValueError for NaN and infinities."""
    return json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"


def fitted(make: Callable[[int], dict[str, Any]], most_bytes: int) -> dict[str, Any]:
    """Call `make` with each limit of TEXT_LIMITS. Return the first result that fits into `most_bytes` as JSON.

    Raises KitError if even the result with the shortest texts is too large.
    """
    for characters in TEXT_LIMITS:
        made = make(characters)
        if len(encoded(made)) <= most_bytes:
            return made
    raise KitError(f"the results are larger than {size_text(most_bytes)}: the assignment has too many parts")


def text(value: str, characters: int) -> str:
    """Return untrusted text, cut at `characters`, without sequences that control a terminal or a GitHub runner."""
    return _COMMAND.sub(_apart, block(value, characters, lines=200))


def name(value: str, characters: int = 150) -> str:
    """Return untrusted text as one line of at most `characters` (8 to 150), cleaned as by `text`."""
    return _COMMAND.sub(_apart, line(value, max(8, min(150, characters))))


def _apart(found: re.Match[str]) -> str:
    return "# " if found[0] == "#" else f"{found[1]}: "


def finite(value: float) -> float:
    return round(float(value), 4) if math.isfinite(value) else 0.0
