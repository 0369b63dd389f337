"""Command-line options for sizes, as defined by the assignment that the command line names."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grader.assignment import labs
from grader.core.commandline import Parser, SizeOption
from grader.core.errors import UsageError
from grader.core.places import PUBLIC_CONFIG

if TYPE_CHECKING:
    from grader.assignment.records import Assignment

MAIN_SOURCE = "module.cpp"


def chosen_options(arguments: list[str]) -> list[SizeOption]:
    """Return size options: those of the assignment that `--config` names, else the main lab's. May raise UsageError."""
    config = _config(arguments)
    if config is None and (options := _main_lab().options):
        # Reading YAML takes time, and --help should not.
        return labs.size_options(_main_lab(), options)
    return _read(config or PUBLIC_CONFIG).size_options


def chosen_tests(arguments: Sequence[str]) -> tuple[Sequence[str], str]:
    """Return (part names that the command line accepts for an assignment, name of the assignment's source file).

    The assignment is the one that `--config` names, else the main lab's. Raises UsageError for a bad assignment.
    """
    config = _config(arguments)
    if config is None and _main_lab().tests:
        return _main_lab().tests, MAIN_SOURCE
    assignment = _read(config or PUBLIC_CONFIG)
    return (*assignment.commands(), "all"), assignment.source


def chosen_lab(arguments: Sequence[str]) -> labs.Lab:
    """Return the lab of the assignment that `--config` names, else the main lab. Bad assignments raise UsageError."""
    config = _config(arguments)
    return _main_lab() if config is None else _read(config).lab


def _read(config: Path) -> Assignment:
    try:
        return _read_once(config, config.stat().st_mtime_ns)
    except OSError:
        # The file cannot be read. Call the function without its cache: it raises UsageError with the reason.
        return _read_once.__wrapped__(config, 0)


@functools.lru_cache(maxsize=1)
def _read_once(config: Path, modified_ns: int) -> Assignment:
    """Read an assignment file once: a command line needs it up to three times."""
    from grader.assignment.loading import load

    return load(config)


def _config(arguments: Sequence[str]) -> Path | None:
    """Return the path after `--config`; None if the option is not given."""
    early = Parser(add_help=False)
    early.add_argument("--config", type=Path)
    return early.parse_known_args(arguments)[0].config


def _main_lab() -> labs.Lab:
    return labs.load(labs.find(labs.main()))


def lab_as_config(arguments: Sequence[str]) -> list[str]:
    """Return the staff's arguments with --lab and --labs replaced by --config. Raises UsageError for an unknown lab."""
    early = Parser(add_help=False, allow_abbrev=False)
    early.add_argument("--lab")
    early.add_argument("--labs", type=Path)
    given, rest = early.parse_known_args(arguments)
    if given.lab is None and given.labs is not None:
        raise UsageError("--labs DIR is a folder of labs: choose one of them with --lab NAME")
    if given.lab is None:
        return list(arguments)
    config = labs.assignment_file(labs.named(given.lab, given.labs), staff=True)
    return [*rest, "--config", str(config)]
