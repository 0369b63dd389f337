"""Progress of a class's run: a live table on a terminal; otherwise one line for each finished submission."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from grader.core.harmless import guarded, harmless, unguarded
from grader.report import words

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

REFRESH_PER_S = 4
NAME_COLUMNS = 32
BAR_COLUMNS = 40


class Harmless:
    """Wrapper for rich that replaces harmful characters in a text, but keeps rich's own terminal sequences."""

    def __init__(self, shown: RenderableType) -> None:
        self.shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.shown, options):
            yield segment if segment.control else segment._replace(text=harmless(segment.text))


def console(stream: TextIO) -> Console:
    """Return a rich console that bypasses the stream's filter. The caller must wrap untrusted text in `Harmless`."""
    from rich.console import Console

    return Console(file=unguarded(stream))


@dataclass
class MachineShown:
    """One machine of a cluster: counts of its submissions and verdicts. `trouble` is the reason if it may not judge."""

    trouble: str = ""
    submissions: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)

    def count(self, verdicts: Mapping[str, str]) -> None:
        self.submissions += 1
        self.verdicts.update(verdicts.values())

    def text(self) -> str:
        text = f"{self.submissions} judged" + (f" ({counted(self.verdicts)})" if self.verdicts else "")
        return f"{text}; {self.trouble}" if self.trouble else text


class Progress:
    """Display of a run's events. `total` is the number of submissions to grade in this run."""

    def __init__(
        self, total: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self.stream, self.clock = total, guarded(stream or sys.stdout), clock
        self.done = self.paced = self.most_running = 0
        self.spent_s = 0.0
        """Seconds that the `paced` submissions (those that were graded) took in all."""
        self.without_result = 0
        self.verdicts: Counter[str] = Counter()
        self.running: dict[str, tuple[str, float]] = {}
        """(Phase, start time) of each submission that is being graded, by id."""
        self.places: dict[str, str] = {}
        """Name of the cluster machine that grades a submission, by submission id."""
        self.machines: dict[str, MachineShown] = {}
        self.live: Any = None

    def __enter__(self) -> Progress:
        if self.stream.isatty():
            from rich.live import Live

            self.live = Live(
                get_renderable=lambda: Harmless(self.table()),
                console=console(self.stream),
                refresh_per_second=REFRESH_PER_S,
                transient=True,
                # Do not let rich print other output: rich does not filter terminal sequences out of it.
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    # ---- events

    def phase(self, submission_id: str, text: str, machine: str = "") -> None:
        _, begun_s = self.running.get(submission_id, ("", self.clock()))
        self.running[submission_id] = (text, begun_s)
        if machine:
            self.places[submission_id] = machine

    def machine(self, name: str, refused: str, lost: str = "") -> None:
        """Print that a cluster machine passed its test, was refused or was lost. `refused` and `lost` are reasons."""
        shown = self.machines.setdefault(name, MachineShown())
        shown.trouble = f"lost: {lost}" if lost else refused
        news = f"was lost: {lost}" if lost else f"may not judge: {refused}" if refused else "passed its test"
        self.say(f"machine {name} {news}")

    def finished(
        self,
        submission_id: str,
        verdicts: Mapping[str, str],
        points: str,
        trouble: str = "",
        machine: str = "",
    ) -> None:
        """Print a finished submission. `points` is a text; `trouble` is printed in place of verdicts and points."""
        self.most_running = max(self.most_running, len(self.running))
        # A submission that is not graded (a broken archive) takes no time: the estimate of the time left ignores it.
        self.paced += submission_id in self.running
        took_s = self.clock() - self.running.pop(submission_id, ("", self.clock()))[1]
        self.spent_s += took_s
        self.done += 1
        self.places.pop(submission_id, None)
        if machine:
            self.machines.setdefault(machine, MachineShown()).count(verdicts)
        self.verdicts.update(verdicts.values())
        self.without_result += bool(trouble)
        said = words.reason(trouble) if trouble else f"{counted(Counter(verdicts.values()))}; {points}"
        left = f"; {self.time_left()} left" if self.done < self.total else ""
        self.say(
            f"[{self.done:>{len(str(self.total))}}/{self.total}] {submission_id}: {said} ({took_s:.1f} s{left})"
        )

    def again(self, submission_id: str, why: str) -> None:
        """Print that a submission returns to the queue, and why."""
        self.running.pop(submission_id, None)
        self.places.pop(submission_id, None)
        self.say(f"{submission_id}: {why}; it is graded once more")

    def say(self, line: str) -> None:
        """Print one permanent line. It stays above a live table."""
        if self.live is not None:
            from rich.text import Text

            self.live.console.print(Harmless(Text(line)))
        else:
            print(line, file=self.stream, flush=True)

    # ---- rendering

    def time_left(self) -> str:
        """Return the estimated time left as text.

        The estimate assumes that each submission takes the mean time of those graded so far. It also assumes that as
        many are graded at once as the largest number so far.
        """
        if not self.paced:
            return "unknown time"
        now_s, mean_s = self.clock(), self.spent_s / self.paced
        begun_s = sum(min(now_s - since_s, mean_s) for _, since_s in list(self.running.values()))
        return duration((mean_s * (self.total - self.done) - begun_s) / max(1, self.most_running))

    def table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        filled = BAR_COLUMNS * self.done // max(1, self.total)
        table = Table.grid(padding=(0, 2))
        table.add_row(
            Text("━" * filled, style="green") + Text("━" * (BAR_COLUMNS - filled), style="dim"),
            Text(f"{self.done} of {self.total} done, {self.time_left()} left"),
        )
        troubles = f"{self.without_result} without a result" if self.without_result else ""
        table.add_row(Text(counted(self.verdicts) or "no verdict yet"), Text(troubles))
        for name, shown in sorted(list(self.machines.items())):  # noqa: C414 - another thread may add to the dict
            table.add_row(_name(f"{name}:"), Text(shown.text()))
            self.rows(table, [one for one, place in list(self.places.items()) if place == name])
        self.rows(table, [one for one in list(self.running) if one not in self.places])
        return table

    def rows(self, table: Table, names: Sequence[str]) -> None:
        """Add a table row for each submission in `names`, with its phase and its time so far."""
        from rich.text import Text

        for submission_id in names:
            phase, begun_s = self.running.get(submission_id, ("waiting", self.clock()))
            table.add_row(_name(submission_id), Text(f"{phase}, {self.clock() - begun_s:.0f} s"))


def _name(text: str) -> Text:
    from rich.text import Text

    name = Text(text, no_wrap=True)
    name.truncate(NAME_COLUMNS, overflow="ellipsis")
    return name


def counted(verdicts: Counter[str]) -> str:
    """Return counts of verdicts as text, most frequent first, such as "5 pass, 1 slow"."""
    return ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())


def duration(seconds: float) -> str:
    """Return a number of seconds as text such as "40 s", "12 min" or "1 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
