"""The write-up: what of it is still empty, and for those who grade, what there is to read.

A write-up is a Markdown text with marked regions (`regions`), made from writeup_template.md. For its student `checking`
says what is missing. For a class `staff` lays the answers to each question side by side, with the key beside them, and
keeps the table of points that people give. A handout has no `staff`.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from grader.errors import UsageError
from grader.results import EXIT_PASS, EXIT_SUBMISSION

NAME = "writeup.md"
TEMPLATE = Path(__file__).resolve().parents[2] / "writeup_template.md"
FORMATS = ("html", "pdf")


def main(arguments: Sequence[str]) -> int:
    """`python -m grader writeup`: exit code 0 when nothing is empty, 1 when something is; of a class always 0."""
    for_staff = importlib.util.find_spec("grader.writeup.staff") is not None
    given = _parser(for_staff).parse_args(arguments)
    _refuse_absent(given.paths)
    staff_wishes = for_staff and (given.read or given.sheet or given.results or given.key)
    if for_staff and (staff_wishes or len(given.paths) > 1 or given.paths[0].is_dir()):
        from grader.writeup import staff

        return staff.run(
            staff.Wanted(
                tuple(given.paths),
                given.read,
                given.sheet,
                given.results,
                given.key,
                given.item,
                given.export,
            )
        )
    complete = [check(path, given.export) for path in given.paths]
    return EXIT_PASS if all(complete) else EXIT_SUBMISSION


def check(path: Path, export: str | None) -> bool:
    """Say what of one write-up is still empty, and export it if asked to; whether nothing is.

    Raises UsageError where it cannot be read, or its markers are broken.
    """
    from grader.writeup import checking, exporting

    state = checking.state_of(checking.text_of(path), str(path), checking.template(TEMPLATE))
    print("\n".join(checking.told(path, state)))
    if export:
        print(exporting.export(path, export))
    return not state.missing


def _parser(for_staff: bool) -> argparse.ArgumentParser:
    from grader.commandline import Parser

    parse = Parser(prog="python -m grader writeup", description=(__doc__ or "").splitlines()[0])
    parse.add_argument(
        "paths",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="a write-up" + (", several, or a folder or an archive of a class" if for_staff else ""),
    )
    parse.add_argument("--export", choices=FORMATS, help="also write it as this beside the file, with pandoc")
    if for_staff:
        parse.add_argument(
            "--read", metavar="FILE", type=Path, help="write all answers, question by question, for reading"
        )
        parse.add_argument(
            "--sheet", metavar="FILE", type=Path, help="make or update this table of points (manual.csv)"
        )
        parse.add_argument(
            "--results", metavar="DIR", type=Path, help="the class's results: whose ids the table has"
        )
        parse.add_argument(
            "--key",
            metavar="FILE",
            type=Path,
            help="right answers (default: configs/hidden/writeup_key.yaml)",
        )
        parse.add_argument(
            "--item", metavar="ID", default="writeup", help="the column of the points (writeup)"
        )
    return parse


def _refuse_absent(paths: Sequence[Path]) -> None:
    for path in paths:
        if not path.exists():
            hint = f"; begin with `cp {TEMPLATE.name} {path}`" if path.name == NAME else ""
            raise UsageError(f"no such file: {path}{hint}")
