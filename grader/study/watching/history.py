"""Results of each save: a line of history, the changes to the source, the last good time, and the terminal."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from difflib import SequenceMatcher
from typing import TextIO

from grader.assignment.labs import Ladder
from grader.core.harmless import one_line
from grader.core.results import PartResult, Score, SubmissionResult, Timing
from grader.judge.events import Event, RoundTimed, Timed
from grader.report.terminal import VERDICT_WORDS, Terminal, points_text
from grader.source.cpptext import without_layout

KEPT = 32
"""Verdicts that are kept, each with its source."""
SHOWN = 6
MOST_LINES = 20_000
"""Longest source whose changed lines are searched."""
MOST_COMPARED = 400
"""Most lines that are compared one by one."""
LONGEST_LINE = 300
WIDTH = 78
_DEFINITION = re.compile(r"^[A-Za-z_][\w:<>*&, ]{0,100} [*&]?(\w{1,60}) ?\([^;]*$")


@dataclass(frozen=True)
class Judged:
    """One source with its verdict, reached `at` that time.

    `object_sha256` names all objects compiled from it, "" without any. `others` are the other files that were compiled.
    """

    at: datetime
    text: str
    object_sha256: str
    result: SubmissionResult
    score: Score
    others: tuple[bytes | None, ...] = ()

    @property
    def clock(self) -> str:
        return f"{self.at:%H:%M:%S}"


@dataclass(frozen=True)
class GoodTime:
    """A part's time when it was last right."""

    clock: str
    time: Timing


@dataclass
class History:
    """All saves of one session that ended in a verdict; the last ones are kept with their results."""

    judged: deque[Judged] = field(default_factory=lambda: deque(maxlen=KEPT))
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN))
    good: dict[str, GoodTime] = field(default_factory=dict)
    """Good times by the part's id."""
    verdicts: int = 0

    @property
    def last(self) -> Judged | None:
        return self.judged[-1] if self.judged else None

    def of_object(self, sha256: str) -> Judged | None:
        """Return the last verdict on this object, or None."""
        return next((one for one in reversed(self.judged) if one.object_sha256 == sha256), None)

    def alike(self, text: str, others: tuple[bytes | None, ...] = ()) -> Judged | None:
        """Return the last verdict if this text differs from its source only in comments and layout, else None."""
        last = self.last
        if last is None or last.others != others or without_layout(last.text) != without_layout(text):
            return None
        return last

    def change(self, text: str, others: tuple[bytes | None, ...] = ()) -> str:
        """Describe the difference from the source of the last verdict."""
        if self.last is None:
            return "first look"
        beside = "; a file beside it changed" if self.last.others != others else ""
        return changed(self.last.text, text) + beside

    def add(self, one: Judged, saved_at: datetime | None = None) -> None:
        """Add a verdict and its line. `saved_at` is set if the verdict is an earlier one, on an equal object."""
        self.verdicts += 1
        words = [f"{saved_at or one.at:%H:%M:%S}  {summary(one)}"]
        words += [f"as {one.clock}, equal object"] if saved_at else self._ratios(one)
        self.lines.append("  ".join([*words, self.change(one.text, one.others)]))
        self.judged.append(one)
        if saved_at is None:
            for part in one.result.parts:
                if part.time is not None and part.time.fit and part.verdict in ("pass", "slow"):
                    self.good[part.id] = GoodTime(one.clock, part.time)

    def _ratios(self, one: Judged) -> list[str]:
        if len(one.result.parts) != 1 or (time := one.result.parts[0].time) is None:
            return []
        known = self.good.get(one.result.parts[0].id)
        before = f", {time.ratio / known.time.ratio:.2f} x last good" if known is not None else ""
        return [f"{time.ratio:.2f} x reference{before}"]


def summary(one: Judged) -> str:
    """Return the verdict of one part with its points, or the number of passed ones among several."""
    parts, points = one.result.parts, {line.id: line.points for line in one.score.lines}
    if len(parts) == 1:
        return f"{VERDICT_WORDS[parts[0].verdict]} {_points(parts[0], points)}".rstrip()
    passed = sum(part.verdict == "pass" for part in parts)
    wrong = ", ".join(part.id for part in parts if part.verdict != "pass")
    total = sum(points.get(part.id, 0.0) for part in parts)
    told = f"{passed} of {len(parts)} pass, {total:g} / {one.result.max_points:g}"
    return f"{told} (not {wrong})" if wrong else told


def _points(part: PartResult, points: dict[str, float]) -> str:
    if not part.max_points:
        return ""
    return f"{points_text(part, points.get(part.id, 0.0))} / {part.max_points:g}"


def beside_last_good(known: GoodTime | None, time: Timing) -> str:
    """Compare a time with that of the part when it was last right.

    Both are ratios to the reference measured with them.
    """
    if known is None:
        return ""
    (low, high), (known_low, known_high) = time.ratio_interval, known.time.ratio_interval
    told = f"{time.ratio / known.time.ratio:.2f} x the last good time ({known.clock})"
    if low <= known_high and known_low <= high:
        return f"{told}: no difference to be sure of"
    return told + (": faster" if time.ratio < known.time.ratio else ": slower")


def changed(before: str, after: str) -> str:
    """Describe the changed lines and the functions that contain them."""
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return "nothing changed"
    if max(len(old), len(new)) > MOST_LINES:
        return "changed"
    begin = 0
    while begin < min(len(old), len(new)) and old[begin] == new[begin]:
        begin += 1
    end = 0
    while end < min(len(old), len(new)) - begin and old[-1 - end] == new[-1 - end]:
        end += 1
    spans = _spans(old[begin : len(old) - end], new[begin : len(new) - end])
    added, removed = (sum(span[k] for span in spans) for k in (1, 2))
    first, last = begin + spans[0][0] + 1, begin + spans[-1][0] + max(1, spans[-1][1])
    where = f"line {first}" if first == last else f"lines {first} to {last}"
    within = list(dict.fromkeys(filter(None, (_function(new, begin + span[0]) for span in spans))))
    named = f" of {', '.join(within[:2])}{' ...' if len(within) > 2 else ''}" if within else ""
    return f"{where}{named} (+{added} -{removed})"


def _spans(old: list[str], new: list[str]) -> list[tuple[int, int, int]]:
    """Return the changed spans: (first line in `new`, lines added, lines removed).

    Returns one span if the texts are long, since the comparison takes quadratic time.
    """
    if not old or not new or max(len(old), len(new)) > MOST_COMPARED:
        return [(0, len(new), len(old))]
    matched = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(j, m - j, k - i) for tag, i, k, j, m in matched if tag != "equal"]


def _function(lines: list[str], at: int) -> str:
    """Return the name of the definition that contains this line, or ""."""
    for k in range(min(at, len(lines) - 1), -1, -1):
        if found := _DEFINITION.match(lines[k][:LONGEST_LINE]):
            return one_line(found[1], 40)
        if k < at and lines[k].startswith("}"):
            return ""
    return ""


class Screen(Terminal):
    """The terminal of a single run, with the last good time beside each time."""

    def __init__(self, history: History, stream: TextIO | None = None, ladder: Ladder | None = None) -> None:
        super().__init__(stream, ladder)
        self.history = history

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, RoundTimed) and event.rounds == 1:
            self.say(f"Time so far: {event.ratio:.2f} x the reference, in the first round")
        elif isinstance(event, Timed):
            beside = beside_last_good(self.history.good.get(event.part.id), event.time)
            self.say(f"      {beside}" if beside else "")

    def begin(self, clock: str, what: str) -> None:
        """Print a rule with the time of day and the reason for judging."""
        self.build_fault_shown = ""
        self.say(f"\n-- {clock}  {what} ".ljust(WIDTH, "-"))

    def again(self, known: Judged) -> None:
        """Print an earlier verdict again."""
        points = {line.id: line.points for line in known.score.lines}
        for part in known.result.parts:
            self.verdict(part, points.get(part.id, 0.0))

    def lines(self) -> None:
        """Print the history, with the last save at its end."""
        self.say("\n" + "\n".join(f"  {line}" for line in self.history.lines))
