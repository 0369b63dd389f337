"""Progress of a training: a bar on a terminal, nothing elsewhere; lines that stay, above it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from grader.report.progress import Harmless, console


class Progress:
    """A bar for `total` steps, on standard error. `say` prints a line of the result, on standard output."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("steps,"),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=console(sys.stderr),
                transient=True,
                refresh_per_second=4,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._bar.add_task(self.title, total=None)
            self._bar.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, done: int, total: int) -> None:
        """Show that `done` of `total` steps are finished."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def say(self, line: str) -> None:
        """Print one line."""
        if self._bar is not None and sys.stdout.isatty():
            from rich.text import Text

            self._bar.console.print(Harmless(Text(line)))
        else:
            print(line, flush=True)
