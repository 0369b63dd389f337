"""What stands on the terminal for each save: findings as they are made, the verdict, and the history below it."""

from __future__ import annotations

from typing import TextIO

from grader.assignment.labs import Ladder
from grader.judge.events import Event, RoundTimed, Timed
from grader.report.terminal import Terminal
from grader.study.watching.history import History, Judged, beside_last_good

WIDTH = 78


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
        """A rule with the time of day, and why the file is judged."""
        self.build_fault_shown = ""
        self.say(f"\n-- {clock}  {what} ".ljust(WIDTH, "-"))

    def again(self, known: Judged) -> None:
        """A verdict of before once more."""
        points = {line.id: line.points for line in known.score.lines}
        for part in known.result.parts:
            self.verdict(part, points.get(part.id, 0.0))

    def lines(self) -> None:
        """The history, the last save at its end."""
        self.say("\n" + "\n".join(f"  {line}" for line in self.history.lines))
