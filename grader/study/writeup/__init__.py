"""Check of a student's write-up: it lists the regions that are still empty, and exports the text as HTML or PDF.

A write-up is a Markdown text with marked regions (`regions`), made from writeup_template.md. `checking` finds the empty
regions. `grader.staff.writeups` collects the answers of a class.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from grader.core.commandline import Parser, add_lab
from grader.core.errors import EXIT_PASS, EXIT_SUBMISSION, KitError, UsageError
from grader.core.harmless import one_line
from grader.core.places import GRADER_COMMAND, WRITEUP_TEMPLATE

NAME = "writeup.md"
FORMATS = ("html", "pdf")
TIMEOUT_S = 120.0
#: GitHub's Markdown without raw HTML, so that untrusted text cannot run code in a browser.
FROM = "gfm-raw_html"


def main(arguments: Sequence[str]) -> int:
    """Run `python -m grader writeup`. Return exit code 0 if no region is empty, else 1."""
    given = parser("a write-up").parse_args(arguments)
    return check_all(given.paths, given.export, template_of(given.config))


def template_of(config: Path | None) -> Path:
    """Return the path of an assignment's write-up template (None: the main one's). The file may be missing."""
    if config is None:
        return WRITEUP_TEMPLATE
    from grader.assignment import labs
    from grader.assignment.loading import load

    return labs.beside(load(config).lab_folder, WRITEUP_TEMPLATE.name, WRITEUP_TEMPLATE)


def check_all(paths: Sequence[Path], export: str | None, template: Path = WRITEUP_TEMPLATE) -> int:
    """Print the state of each write-up. Return exit code 0 if no region is empty, else 1.

    Raises UsageError if a write-up is missing or cannot be read.
    """
    refuse_absent(paths)
    complete = [check(path, export, template) for path in paths]
    return EXIT_PASS if all(complete) else EXIT_SUBMISSION


def check(path: Path, export: str | None, template: Path) -> bool:
    """Print the state of each region of one write-up, and export it to the format `export` if given.

    Returns True if no region is empty. Raises UsageError if the file cannot be read, or its markers are broken.
    """
    from grader.study.writeup import checking

    state = checking.state_of(checking.text_of(path), str(path), checking.template(template))
    print("\n".join(checking.state_lines(path, state)))
    if export:
        print(exported(path, export))
    return not state.missing


def exported(path: Path, kind: str) -> str:
    """Convert `path` to a file of the kind "html" or "pdf" beside it. Return a message on the new file.

    If pandoc is missing, the message says so. Raises KitError if pandoc fails.
    """
    program = shutil.which("pandoc")
    if program is None:
        return f"no {kind.upper()} was written: pandoc is not installed (apt install pandoc); you can hand in the text"
    target = path.with_suffix(f".{kind}")
    title = path.stem.replace("_", " ")
    command = [program, f"--from={FROM}", "--standalone", f"--metadata=pagetitle:{title}", "--output"]
    try:
        ended = subprocess.run(
            [*command, str(target.absolute()), str(path.absolute())],
            cwd=path.absolute().parent,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise KitError(f"pandoc did not end within {TIMEOUT_S:.0f} s on {path}") from error
    if ended.returncode != 0:
        first = one_line((ended.stderr.strip().splitlines() or ["it printed no reason"])[0], 300)
        hint = "; a PDF needs LaTeX as well: try --export html" if kind == "pdf" else ""
        raise KitError(f"pandoc cannot export {path}: {first}{hint}")
    return f"wrote {target}"


def parser(what: str) -> Parser:
    """Return the parser of the command line. `what` describes the files in its help text."""
    parse = Parser(
        prog=f"{GRADER_COMMAND} writeup", description="List the regions of a write-up that are empty."
    )
    parse.add_argument("paths", metavar="FILE", type=Path, nargs="+", help=what)
    parse.add_argument("--config", metavar="FILE", type=Path, help="the write-up's assignment")
    add_lab(parse)
    parse.add_argument(
        "--export", choices=FORMATS, help="write this format beside the file, too (needs pandoc)"
    )
    return parse


def refuse_absent(paths: Sequence[Path]) -> None:
    """Raise UsageError for a path that does not exist."""
    for path in paths:
        if not path.exists():
            hint = f"; begin with `cp {WRITEUP_TEMPLATE.name} {path}`" if path.name == NAME else ""
            raise UsageError(f"no such file: {path}{hint}")
