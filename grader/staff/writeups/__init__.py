"""A class's write-ups: the answers to each question side by side with the key, and the table of points people give.

`staff` reads write-ups and the key of right answers, `sheet` keeps the table. `grader.study.writeup` knows what a
write-up is, and what of one is still empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grader.core.commandline import Parser
from grader.study import writeup


def main(arguments: Sequence[str]) -> int:
    """`python -m grader writeup`: of one write-up as for its student; of a class the exit code is always 0."""
    given = _parser().parse_args(arguments)
    writeup.refuse_absent(given.paths)
    staff_options = given.read or given.sheet or given.results or given.key
    if not (staff_options or len(given.paths) > 1 or given.paths[0].is_dir()):
        return writeup.check_all(given.paths, given.export, writeup.template_of(given.config))
    from grader.staff.writeups import staff

    return staff.run(
        staff.WriteupOptions(
            *(tuple(given.paths), given.read, given.sheet, given.results, given.key, given.item),
            *(given.export, given.config),
        )
    )


def _parser() -> Parser:
    parse = writeup.parser("a write-up, several, or a folder or an archive of a class")
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
        "--key", metavar="FILE", type=Path, help="right answers (default: configs/hidden/writeup_key.yaml)"
    )
    parse.add_argument("--item", metavar="ID", default="writeup", help="the column of the points (writeup)")
    return parse
