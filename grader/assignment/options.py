"""The command line's options for sizes, which follow from the assignment that it names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grader.assignment import labs
from grader.base.commandline import Parser, SizeOption
from grader.base.places import PUBLIC_CONFIG


def chosen_options(arguments: list[str]) -> list[SizeOption]:
    """Those of the assignment that `--config` names, else of the main lab. Raises UsageError for a bad assignment."""
    early = Parser(add_help=False)
    early.add_argument("--config", type=Path)
    config = early.parse_known_args(arguments)[0].config
    if config is None and (options := labs.load(labs.find(labs.main())).options):
        # Reading YAML takes time, and --help should not.
        return labs.size_options(labs.load(labs.find(labs.main())), options)
    from grader.assignment.loading import load

    return load(config or PUBLIC_CONFIG).size_options


def lab_as_config(arguments: Sequence[str]) -> list[str]:
    """A staff's command line with `--lab NAME` (and `--labs DIR`) told as `--config FILE`. Raises UsageError."""
    early = Parser(add_help=False, allow_abbrev=False)
    early.add_argument("--lab")
    early.add_argument("--labs", type=Path)
    given, rest = early.parse_known_args(arguments)
    if given.lab is None:
        return list(arguments)
    config = labs.assignment_file(labs.named(given.lab, given.labs), staff=True)
    return [*rest, "--config", str(config)]
