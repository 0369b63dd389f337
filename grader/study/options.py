"""Command-line options that all studies share, checks of their values, and the line that describes a measurement."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grader.assignment.options import chosen_options
from grader.core.commandline import Parser, add_sizes, sizes, source_file, whole_number
from grader.core.errors import UsageError
from grader.core.places import PUBLIC_CONFIG, STUDENT_PROGRAM

if TYPE_CHECKING:
    from grader.assignment.records import Assignment, Part

DEFAULT_OUT = Path("study")
DEFAULT_ROUNDS, MOST_ROUNDS = 8, 1000
LARGEST_SEED = (1 << 60) - 1


@dataclass(frozen=True)
class Settings:
    """Checked options of a study. `source` is the student's file.

    `shape` has only the sizes given on the command line; `sizes` adds the assignment's defaults. Each variant is timed
    twice in each of `rounds` rounds. `seed` makes the inputs repeatable; None: random inputs. `out` is the folder for
    CSV and PNG files, `writeup` the Markdown file whose tables are filled in. `show`: draw figures on the terminal.
    """

    assignment: Assignment
    source: Path
    out: Path
    shape: Mapping[str, int]
    rounds: int = DEFAULT_ROUNDS
    seed: int | None = None
    show: bool = False
    writeup: Path | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """All sizes by name: the values of the command line, and the assignment's defaults for the other sizes."""
        return {**self.assignment.defaults, **self.shape}


def parser(arguments: list[str], command: str, description: str, *, lists: tuple[str, ...] = ()) -> Parser:
    """Return a parser with the common options for `python gpt149.py COMMAND`. The caller adds the study's options.

    `arguments` choose the assignment, whose sizes become options. For the sizes in `lists`, the option's value is a
    list such as "2,4,8", which the caller parses with `numbers`.
    """
    parse = Parser(prog=f"{STUDENT_PROGRAM} {command}", description=description)
    parse.path("--module", "the file to study, or its folder", "PATH")
    parse.path("--out", "folder for CSV and PNG (default: %(default)s/)", "DIR", default=DEFAULT_OUT)
    parse.path("--writeup", "fill the table in this write-up, too; the rest of the file stays")
    parse.path("--config", "another assignment", default=PUBLIC_CONFIG)
    add_sizes(parse, chosen_options(arguments), lists)
    rounds = "number of rounds; each times every variant twice (default: %(default)s)"
    parse.value("--rounds", "n", rounds, default=str(DEFAULT_ROUNDS))
    parse.value("--seed", "n", "seed of the random inputs, to repeat a run")
    parse.flag("--show", "draw the figure in the terminal, too")
    return parse


def settings(given: argparse.Namespace) -> Settings:
    """Check the parsed common options and return them as Settings. Raises UsageError if a value is invalid."""
    from grader.assignment.loading import load

    assignment = load(given.config)
    shape = sizes(given, assignment.size_options, assignment.minima, assignment.maxima)
    if given.out.exists() and not given.out.is_dir():
        raise UsageError(f"--out takes a folder, and {given.out} is a file")
    if given.writeup is not None and not given.writeup.is_file():
        raise UsageError(
            f"--writeup: {given.writeup} does not exist: start from a copy of writeup_template.md"
        )
    return Settings(
        assignment=assignment,
        source=source_file(given.module, assignment.source, assignment.path.parent),
        out=given.out,
        shape=shape,
        rounds=whole_number(given.rounds, "--rounds", 1, MOST_ROUNDS),
        seed=None if given.seed is None else whole_number(given.seed, "--seed", 0, LARGEST_SEED),
        show=given.show,
        writeup=given.writeup,
    )


def part(settings: Settings, part_id: str) -> Part:
    """Return the part with this id. Raises UsageError if the part does not exist or has no reference kernel."""
    studied = {part.id: part for part in settings.assignment.parts if part.reference}
    if part_id not in studied:
        raise UsageError(f"no part '{part_id}' to study: choose {', '.join(studied)}")
    return studied[part_id]


def shared_part(assignment: Assignment) -> Part | None:
    """Return the first part that is timed on several threads and has a reference, or None."""
    for part in assignment.parts:
        if part.time is not None and part.time.threads != 1 and part.reference:
            return part
    return None


def openmp_part(settings: Settings, part_id: str | None) -> Part:
    """Return the part with this id or, if the id is None, the part of `shared_part`. Raises UsageError if missing."""
    found = part(settings, part_id) if part_id else shared_part(settings.assignment)
    if found is None:
        raise UsageError("no part of this assignment is timed on several threads: name a part")
    return found


def numbers(text: str, flag: str, low: int, high: int) -> tuple[int, ...]:
    """Return the numbers of a list like "2,4,8", sorted and distinct. Raises UsageError unless all are in low..high."""
    return tuple(sorted({whole_number(item.strip(), flag, low, high) for item in text.split(",")}))


def about(shape: Mapping[str, int], *more: str) -> str:
    """Return the line below a figure's title: machine, date, sizes, compiler flags, and the items of `more`."""
    from grader.backends.native.toolchain import default_flags, toolchain
    from grader.core import machine

    facts = machine.describe()
    size_text = " ".join(f"{name}={size}" for name, size in shape.items())
    flags = " ".join([*default_flags(toolchain().machine), "-fopenmp"])
    return " · ".join(
        [
            f"{facts['processor']}, {facts['cores']} cores",
            datetime.date.today().isoformat(),
            *([size_text] if size_text else []),
            flags,
            *more,
        ]
    )
