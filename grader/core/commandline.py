"""Shared code of the two command lines: one-line errors, exit codes, checks of numbers and files. Imports no torch."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from grader.core.errors import EXIT_KIT, EXIT_USAGE, KitError, UsageError
from grader.core.harmless import guard_standard_streams
from grader.core.places import HIDDEN_CONFIG, PUBLIC_CONFIG, ROOT
from grader.core.quantities import size_text, whole

EXIT_INTERRUPTED = 130
EXIT_NO_READER = 141
LONGEST_MESSAGE = 4000
"""Maximum number of printed characters of an error message. A message may quote long untrusted text."""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake as one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ({self.prog} --help lists all options)")

    def flag(self, name: str, help: str) -> None:
        """Add an option without a value, which is True if it is given."""
        self.add_argument(name, action="store_true", help=help)

    def value(self, flag: str, metavar: str, help: str, **more: Any) -> None:
        """Add an option whose value is a text. `more` is passed on to `add_argument`."""
        self.add_argument(flag, metavar=metavar, help=help, **more)

    def path(self, flag: str, help: str, metavar: str = "FILE", **more: Any) -> None:
        """Add an option or an argument whose value is a path. `more` is passed on to `add_argument`."""
        self.add_argument(flag, metavar=metavar, type=Path, help=help, **more)


class _Version(argparse.Action):
    """Action of --version: print version and commit. The slow look-up of the commit happens only if it is used."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from grader.core import version

        print(version.line())
        parser.exit()


def add_version(parse: argparse.ArgumentParser) -> None:
    """Add the option --version to the parser."""
    parse.add_argument("--version", nargs=0, action=_Version, help="print version and commit of the kit")


@dataclass(frozen=True)
class SizeOption:
    """An option that sets one size of a run: its flag ("-N"), the name of the size ("N") and the help text `what`."""

    flag: str
    name: str
    what: str = ""


LARGEST_SIZE = 1 << 20


def add_sizes(
    parse: argparse.ArgumentParser, options: Iterable[SizeOption], lists: Collection[str] = ()
) -> None:
    """Add an option for each size to the parser. The options of sizes in `lists` take several values ("2,4,8")."""
    sizes = parse.add_argument_group("shape (defaults: the assignment's)")
    for option in options:
        dest, values, what = f"size_{option.name}", "n", option.what
        if option.name in lists:
            dest, values, what = option.name, "n,n,...", f"values to measure: {option.what}"
        sizes.add_argument(option.flag, dest=dest, metavar=values, help=what)


def sizes(
    given: argparse.Namespace,
    options: Iterable[SizeOption],
    minima: Mapping[str, int],
    maxima: Mapping[str, int],
) -> dict[str, int]:
    """Return the sizes that were given on the command line, by name.

    `minima` and `maxima` hold the smallest and largest allowed size by name (default: 1 and LARGEST_SIZE). Raises
    UsageError for a size outside of these bounds.
    """
    return {
        option.name: whole_number(
            text, option.flag, minima.get(option.name, 1), maxima.get(option.name, LARGEST_SIZE)
        )
        for option in options
        if (text := getattr(given, f"size_{option.name}", None)) is not None
    }


def size_options(chosen: Mapping[str, int], options: Iterable[SizeOption]) -> list[str]:
    """Return the command-line words that set the chosen sizes: ["-N", "64", ...]."""
    return [
        word
        for option in options
        if option.name in chosen
        for word in (option.flag, str(chosen[option.name]))
    ]


def add_defines(parse: argparse.ArgumentParser, example: str = "NAME=8") -> None:
    """Add the option -D for macros to the parser; `macros` parses the option's values."""
    parse.add_argument(
        "-D",
        dest="defines",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help=f"define a macro, as in -D {example}",
    )


def macros(given: Iterable[str]) -> dict[str, str]:
    """Return the macros' values by name, from texts NAME=VALUE or NAME (value "1"). Other texts raise UsageError."""
    pairs = {}
    for item in given:
        name, _, value = item.partition("=")
        if not name.isidentifier() or "\n" in value:
            raise UsageError(f"-D takes NAME or NAME=VALUE, not '{item}'")
        pairs[name] = value or "1"
    return pairs


def whole_number(text: str, flag: str, low: int, high: int) -> int:
    """Convert `text` to a whole number from `low` to `high`. Raises UsageError, which names `flag`, for other text."""
    number = whole(text)
    if number is None or not low <= number <= high:
        raise UsageError(f"{flag} takes a whole number from {low} to {high}, not '{text}'")
    return number


def positive_number(text: str, flag: str, high: float, *, zero: bool = False) -> float:
    """Convert `text` to a number above 0 and up to `high`. `zero`: True if 0 is allowed, too.

    Raises UsageError, which names `flag`, for other text.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= high or (number == 0 and not zero):
        bounds = f"from 0 to {high:g}" if zero else f"above 0, up to {high:g}"
        raise UsageError(f"{flag} takes a number {bounds}, not '{text}'")
    return number


def add_lab(parse: argparse.ArgumentParser) -> None:
    """Add --lab and --labs to the parser's --help. `lab_as_config` replaces both options before the parser runs."""
    parse.add_argument("--lab", metavar="NAME", help="the assignment of this lab, in place of --config FILE")
    parse.add_argument("--labs", metavar="DIR", type=Path, help="look for the lab in DIR as well")


def assignment_file(given: Path | None) -> Path:
    """Return the assignment file for a staff command: the file `given`, else HIDDEN_CONFIG, else PUBLIC_CONFIG."""
    return given or (HIDDEN_CONFIG if HIDDEN_CONFIG.is_file() else PUBLIC_CONFIG)


def source_file(given: Path | None, name: str, beside: Path = ROOT, *, must_exist: bool = True) -> Path:
    """Return the file to judge: `given` or, if `given` is a folder, the file `name` in it.

    If `given` is None, look for `name` in the working directory, in the folder `beside` and in the kit's folder.
    Raises UsageError if `must_exist` is set and the file does not exist.
    """
    places = (Path(), beside, ROOT)
    path = given or next((place / name for place in places if (place / name).exists()), ROOT / name)
    if given and path.is_dir():
        path /= name
    if not path.is_file() and must_exist:
        if os.path.lexists(path):
            raise UsageError(
                f"{path} is not a file: it is a folder, a pipe, a device or a link that leads nowhere"
            )
        raise UsageError(f"no such file: {path} (name it with --module PATH)")
    return path


def main(name: str, run: Callable[[list[str]], int]) -> NoReturn:
    """Call `run` with the process's arguments, and exit with the code that it returns.

    UsageError and KitError are printed as one line that begins with `name`, the command's name.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            os._exit(EXIT_USAGE)  # The caller has closed this stream: an error cannot be printed.
    guard_standard_streams()
    try:
        code = run(sys.argv[1:])
    except UsageError as error:
        print(f"{name}: {_bounded(error)}", file=sys.stderr)
        code = EXIT_USAGE
    except KitError as error:
        print(f"{name}: {_bounded(error)}", file=sys.stderr)
        code = EXIT_KIT
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except OSError as error:
        # The reader of a pipe has ended (| head), or the disk is full. Nobody saw the verdict, so do not return the
        # verdict's exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):
            print(f"{name}: {error}", file=sys.stderr)
        code = EXIT_NO_READER if isinstance(error, BrokenPipeError) else EXIT_KIT
    except Exception:
        traceback.print_exc()
        print(f"{name}: this is a fault of the kit: please report it with the lines above", file=sys.stderr)
        code = EXIT_KIT
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # A normal exit unloads all modules first (torch in the demo), which takes time and is of no use.
    os._exit(code)


def _bounded(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]} ... (cut here)"


def read_text(path: Path, most_bytes: int, *, no: str, advice: str) -> str:
    """Read a UTF-8 text file. A byte order mark stays in the text.

    Raises UsageError if the path is not a file, or if the file is larger than `most_bytes` or not UTF-8. The message
    about a file that is too large says "this is not a NO", where NO is the argument `no`, such as "gradebook". The
    message about the encoding ends with `advice`.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"cannot read {path}: not a file")
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > most_bytes:
        raise UsageError(f"{path}: larger than {size_text(most_bytes)}: this is not a {no}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: not UTF-8 text; {advice}") from error
