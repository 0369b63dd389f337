"""Output of a study's results: in the terminal, as CSV and PNG files, and in the write-up's table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from grader.core import plainfile
from grader.core.commandline import read_text
from grader.core.errors import EXIT_PASS, KitError, UsageError
from grader.study import figure as figures
from grader.study import options
from grader.study import writeup as writeups
from grader.study.figure import Figure
from grader.study.options import Settings
from grader.study.table import Table


class StudyResult(Protocol):
    """Interface of the result of a study's `measure`: methods that return the numbers as a table and as figures."""

    def table(self) -> Table: ...

    def figures(self) -> Sequence[Figure]: ...


def run(arguments: list[str], command: str, about: str, measure: Callable[[], StudyResult]) -> int:
    """Run a study that has only the common options. `about` describes the study in --help. Return exit code 0."""
    settings = options.settings(options.parser(arguments, command, about).parse_args(arguments))
    prepare(settings, command)
    deliver(measure(), settings)
    return EXIT_PASS


def prepare(settings: Settings, *names: str) -> None:
    """Create the output folder. Raises UsageError if the write-up lacks a region of `names`. Call before measuring."""
    if settings.writeup is not None:
        before = read(settings.writeup)
        for name in names:
            _filled(settings.writeup, before, Table(name, "", (), ()))
    settings.out.mkdir(parents=True, exist_ok=True)


def deliver(finding: StudyResult, settings: Settings) -> None:
    """Print the table (and, with `--show`, the figures), write the files, and fill in the write-up's table.

    Without matplotlib no PNG is written, and a line says so. Raises UsageError if the write-up has no region for the
    table, and OSError if a file cannot be written.
    """
    table, drawn = finding.table(), finding.figures()
    print(f"\n{table.text()}")
    if settings.show:
        for one in drawn:
            print(f"\n{figures.text(one)}")
    written = [settings.out / f"{table.name}.csv"]
    plainfile.write(written[0], [table.csv()])
    try:
        for one in drawn:
            figures.draw(one, settings.out / f"{one.name}.png")
            written.append(settings.out / f"{one.name}.png")
    except KitError as error:
        print(error, file=sys.stderr)
    if settings.writeup is not None:
        fill(settings.writeup, table)
        written.append(settings.writeup)
    print(f"\nwritten: {', '.join(map(str, written))}")


def fill(writeup: Path, table: Table) -> None:
    """Write the table into the region of the write-up with the table's name. The rest of the file stays unchanged.

    Raises UsageError if the file is not UTF-8 text or has no region with this name.
    """
    before = read(writeup)
    after = _filled(writeup, before, table)
    if after != before:
        plainfile.write(writeup, [after])


def read(writeup: Path) -> str:
    """Return the write-up, with its line endings unchanged. Raises UsageError if it is not UTF-8 text."""
    return read_text(writeup, writeups.MOST_BYTES, no="write-up", advice="save it as Markdown")


def _filled(path: Path, before: str, table: Table) -> str:
    try:
        return writeups.fill(before, table.name, table.markdown())
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
