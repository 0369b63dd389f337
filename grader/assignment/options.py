"""The command line's options for sizes, which follow from the assignment that it names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grader.assignment import labs
from grader.base.commandline import Parser, SizeOption
from grader.base.places import PUBLIC_CONFIG


def chosen_options(arguments: list[str]) -> list[SizeOption]:
    """Those of the assignment that `--config` names, else of the main lab. Raises UsageError for a bad assignment."""
    config = _config(arguments)
    if config is None and (options := _main_lab().options):
        # Reading YAML takes time, and --help should not.
        return labs.size_options(_main_lab(), options)
    from grader.assignment.loading import load

    return load(config or PUBLIC_CONFIG).size_options


def chosen_lab(arguments: Sequence[str]) -> labs.Lab:
    """That of the assignment that `--config` names, else the main one. Raises UsageError for a bad assignment."""
    config = _config(arguments)
    if config is None:
        return _main_lab()
    from grader.assignment.loading import load

    return load(config).lab


def _config(arguments: Sequence[str]) -> Path | None:
    early = Parser(add_help=False)
    early.add_argument("--config", type=Path)
    return early.parse_known_args(arguments)[0].config


def _main_lab() -> labs.Lab:
    return labs.load(labs.find(labs.main()))


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
