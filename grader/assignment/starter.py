"""A student's folder outside of the kit: the starter, the assignment's file and a write-up to fill in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grader.assignment import labs
from grader.assignment.loading import load
from grader.assignment.records import Assignment
from grader.assignment.regions import strip_solution
from grader.core.commandline import Parser, read_text
from grader.core.errors import EXIT_PASS, KitError, UsageError, explained
from grader.core.places import (
    GRADER_COMMAND,
    HANDOUT_COMMAND,
    INSTALLED,
    ROOT,
    STUDENT_COMMAND,
    WRITEUP_TEMPLATE,
)

LARGEST_MASTER = 1 << 20
WRITEUP = "writeup.md"


def main(arguments: Sequence[str]) -> int:
    """Run `gpt149 init DIR`. Raises UsageError if the folder already holds one of the files."""
    parse = Parser(
        prog=f"{STUDENT_COMMAND} init",
        description="Make a folder to work in, with the starter, the assignment file and the write-up template.",
    )
    parse.path("folder", "folder to make or to fill; it must not hold any of these files yet", "DIR")
    parse.add_argument(
        "--lab",
        metavar="NAME",
        default=labs.main(),
        help="make the files of this lab, in place of the main assignment",
    )
    parse.path("--labs", "look for the lab in DIR as well", "DIR")
    given = parse.parse_args(arguments)
    config = labs.assignment_file(labs.named(given.lab, given.labs))
    assignment = load(config)
    # The printed command must work in the new folder, which has no gpt149.py.
    program = STUDENT_COMMAND if INSTALLED else f"python {ROOT / 'gpt149.py'}"
    command = labs.command(assignment.lab_folder, program)
    files = contents(assignment, config, command)
    write(given.folder, files)
    part = next(part.command for part in assignment.parts if part.points > 0)
    print(f"wrote {', '.join(files)} into {given.folder}\n")
    print(f"  cd {given.folder}")
    print(f"  {command} {part}        judges one part; `all` judges every part, `--help` lists options")
    return EXIT_PASS


def contents(assignment: Assignment, config: Path, command: str) -> dict[str, str]:
    """Return {file name: text} for a student's folder, the starter first. The write-up names `command`."""
    files = {}
    for name in assignment.sources:
        path = labs.master(assignment.lab_folder, name)
        files[name] = strip_solution(read_text(path, LARGEST_MASTER, no="source", advice="save it as UTF-8"))
    files[f"{assignment.id}.yaml"] = config.read_text(encoding="utf-8")
    template = labs.beside(assignment.lab_folder, "writeup_template.md", WRITEUP_TEMPLATE)
    if template.is_file():
        text = template.read_text(encoding="utf-8").replace(
            "make writeup", f"{GRADER_COMMAND} writeup {WRITEUP}"
        )
        # A template has the command of a handout, with or without `lab NAME`: replace both forms.
        text = text.replace(f"{HANDOUT_COMMAND} lab {assignment.lab_folder.name}", HANDOUT_COMMAND)
        files[WRITEUP] = text.replace(HANDOUT_COMMAND, command)
    return files


def write(folder: Path, files: dict[str, str]) -> None:
    """Write new files. Raises UsageError, before anything is written, if one of them exists."""
    there = [name for name in files if (folder / name).exists() or (folder / name).is_symlink()]
    if there:
        raise UsageError(f"{folder} already holds {', '.join(there)}: move this away, or name another folder")
    with explained(f"cannot write into {folder}", KitError, "name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
