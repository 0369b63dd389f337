"""Course platforms, such as Gradescope or Canvas: the kit reads their hand-ins, and returns grades and feedback.

`table` has a row for each platform. `container` grades one submission inside a container that a platform starts
(`gradescope`, `prairielearn`). `gradebook` writes a class's totals into a file that a platform exported (Canvas,
Moodle). `github` finds the student to whom a cloned repository belongs. Elsewhere, `grader.report` writes results in
each platform's format, and `grader.staff.release.products` makes the files that set up a platform.
"""

from __future__ import annotations

from collections.abc import Sequence

from grader.core.commandline import Parser
from grader.core.errors import EXIT_PASS, UsageError
from grader.core.places import GRADER_COMMAND


def main(arguments: Sequence[str]) -> int:
    """Run `python -m grader platforms [NAME]`: list or describe platforms. Raises UsageError for an unknown NAME."""
    from grader.staff.platforms import table

    parse = Parser(
        prog=f"{GRADER_COMMAND} platforms",
        description="List the supported course platforms, or describe one.",
    )
    parse.add_argument("name", metavar="NAME", nargs="?", help="platform to describe")
    given = parse.parse_args(arguments)
    rows = {row.name: row for row in table.PLATFORMS}
    if given.name is not None and given.name not in rows:
        raise UsageError(f"no platform '{given.name}': choose one of {', '.join(rows)}")
    print(table.whole(rows[given.name]) if given.name else "\n".join(map(table.line, rows.values())))
    return EXIT_PASS
