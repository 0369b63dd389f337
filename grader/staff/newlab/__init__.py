"""`python -m grader new NAME`, which makes a new lab: a folder whose tests pass from the start (see docs/labs.md)."""

from __future__ import annotations

import secrets
from pathlib import Path

from grader.assignment.labs import LABS, known
from grader.core.commandline import Parser
from grader.core.errors import EXIT_PASS, KitError, UsageError, explained
from grader.core.places import GRADER_COMMAND, INSTALLED, STUDENT_COMMAND

TEMPLATE = Path(__file__).resolve().parent / "template"
COMMON = "common"
#: {backend: (module, class) of the lab's reference}.
REFERENCES = {
    "cpp": ("grader.backends.torch.labreference", "SourceReference"),
    **dict.fromkeys(
        ("triton", "cuda", "pytorch"), ("grader.backends.gpu.kernelreference", "KernelReference")
    ),
}
MARK, SUFFIX = "@LAB@", ".txt"
"""Placeholder for the lab's name, and suffix of template files, which hides them from searches for sources."""


def main(arguments: list[str]) -> int:
    """Run `python -m grader new NAME`. Return exit code 0. Raises UsageError for an invalid or existing name."""
    parse = Parser(
        prog=f"{GRADER_COMMAND} new",
        description="Make a lab whose tests pass from the start: a vector addition.",
    )
    parse.add_argument("name", metavar="NAME", help="name of the lab: a Python identifier in small letters")
    parse.path(
        "--labs",
        "folder in which to make the lab (default: labs/ of the checkout, else labs/ here)",
        "DIR",
        default=Path("labs") if INSTALLED else LABS,
    )
    parse.add_argument(
        "--backend", choices=tuple(REFERENCES), default="cpp", help="language of the kernels (default: cpp)"
    )
    given = parse.parse_args(arguments)
    folder = write(given.name, given.labs, given.backend)
    elsewhere = "" if folder.parent == LABS else f" --labs {given.labs}"
    print(f"made {folder}\n")
    print(f"  {STUDENT_COMMAND} lab{elsewhere} {given.name} all        judge its solution")
    print(f"  python -m pytest {folder / f'test_{given.name}.py'}        test its kernels")
    print(
        f"  {GRADER_COMMAND} release --lab {given.name}{elsewhere} --out DIR    make handout and autograder"
    )
    return EXIT_PASS


def write(name: str, labs: Path, backend: str = "cpp") -> Path:
    """Make the lab `name` in the folder `labs` and return its folder. Raises UsageError for a bad or used name."""
    if not (name.isidentifier() and name.isascii() and name.islower()):
        raise UsageError(f"'{name}' is not a name for a lab: use small letters, digits and _, a letter first")
    if name in known():
        raise UsageError(f"the kit already has a lab '{name}': choose another name")
    folder = labs.absolute() / name
    if folder.exists():
        raise UsageError(f"{folder} exists already")
    module, reference = REFERENCES[backend]
    marks = {MARK: name, "SEED": str(secrets.randbits(62)), "@MODULE@": module, "@REFERENCE@": reference}
    with explained(f"cannot write {folder}", KitError):
        for top in (TEMPLATE / COMMON, TEMPLATE / backend):
            for path in sorted(top.rglob(f"*{SUFFIX}")):
                there = path.relative_to(top).as_posix().removesuffix(SUFFIX).replace(MARK, name)
                text = path.read_text(encoding="utf-8")
                for mark, value in marks.items():
                    text = text.replace(mark, value)
                (folder / there).parent.mkdir(parents=True, exist_ok=True)
                (folder / there).write_text(text, encoding="utf-8")
    return folder
