"""Command `study`: runs all studies in sequence. Their results go into one folder and one write-up.

If a study fails, for example because a part is wrong, the remaining studies still run. The error is printed when it
occurs and again at the end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grader import study
from grader.assignment.labs import Step
from grader.assignment.options import chosen_options
from grader.core.commandline import Parser
from grader.core.errors import EXIT_KIT, EXIT_PASS, EXIT_SUBMISSION, KitError, UsageError
from grader.core.places import STUDENT_PROGRAM
from grader.study import options, outcome, writeup

if TYPE_CHECKING:
    from grader.assignment.records import Assignment


QUICK_ROUNDS = "5"


def parser(arguments: list[str]) -> Parser:
    parse = options.parser(
        arguments,
        "study",
        "Run all studies and fill the write-up's tables: takes minutes, or less with --quick.",
    )
    parse.flag("--quick", "small sizes and few rounds, for a first impression")
    parse.value("--only", "TABLE,...", "only the studies with these tables, such as machine,race")
    return parse


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py study ...`.

    Return the largest exit code of a study: 3 if the kit failed, 1 for a wrong part or wrong usage, 0 if all is well.
    """
    given = parser(arguments).parse_args(arguments)
    settings = options.settings(given)
    steps = chosen(settings.assignment.lab.steps() or general(settings.assignment), given.only)
    places = set(writeup.tables(outcome.read(settings.writeup))) if settings.writeup else set()
    worst, failed = EXIT_PASS, []
    for step in steps:
        extra = step.arguments(is_quick=given.quick)
        line = [*common(given, fills=step.table in places), *extra]
        print(f"\n=== {' '.join([step.command, *extra])}", flush=True)
        if settings.writeup and step.table not in places:
            print(f"({settings.writeup} has no region for the table {step.table})")
        try:
            code = study.main(settings.assignment.lab, step.command, line)
        except (UsageError, KitError) as error:
            print(f"{STUDENT_PROGRAM} {step.command}: {error}", file=sys.stderr)
            failed.append(f"{step.table}: {error}")
            code = EXIT_KIT if isinstance(error, KitError) else EXIT_SUBMISSION
        worst = max(worst, code)
    print(f"\n{len(steps) - len(failed)} of {len(steps)} studies done; results are in {settings.out}/")
    for reason in failed:
        print(f"not made: {reason}")
    return worst


def general(assignment: Assignment) -> list[Step]:
    """Return the studies to run for a lab that does not define its own steps."""
    shared = options.shared_part(assignment)
    steps = [Step("machine", "machine"), Step("memory", "memory")]
    if shared is not None:
        steps += [Step(f"threads-{shared.id}", "threads", shared.id), Step("race", "race", shared.id)]
    return steps


def chosen(steps: Sequence[Step], only: str | None) -> list[Step]:
    """Return the steps whose tables `only` names, separated by commas; all if None. Raises UsageError if unknown."""
    if only is None:
        return list(steps)
    wanted = {name.strip() for name in only.split(",")}
    if unknown := sorted(wanted - {step.table for step in steps}):
        raise UsageError(f"--only: no study '{unknown[0]}': choose {', '.join(step.table for step in steps)}")
    return [step for step in steps if step.table in wanted]


def common(given: argparse.Namespace, *, fills: bool) -> list[str]:
    """Return the command-line options that every study gets. `fills`: True if the study fills a table of --writeup."""
    rounds = QUICK_ROUNDS if given.quick and given.rounds == str(options.DEFAULT_ROUNDS) else given.rounds
    line = ["--out", str(given.out), "--config", str(given.config), "--rounds", rounds]
    for option in chosen_options(["--config", str(given.config)]):
        if (value := getattr(given, f"size_{option.name}")) is not None:
            line += [option.flag, value]
    for name, value in (("--module", given.module), ("--seed", given.seed)):
        line += [name, str(value)] if value is not None else []
    return [*line, *(["--show"] if given.show else []), *(["--writeup", str(given.writeup)] if fills else [])]
