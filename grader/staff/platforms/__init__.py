"""Course platforms: their hand-ins, the results that they want, and the texts for students.

`table` has a row for each platform. `container` grades in a container that a platform starts (`gradescope`,
`prairielearn`). `gradebook` fills the export of a platform that keeps grades (`canvas`, `moodle`). `github` names the
owner of a clone. `grader.report` renders the results for a platform; `grader.staff.release.products` writes a release
for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from grader.core.commandline import Parser
from grader.core.errors import EXIT_PASS, UsageError
from grader.core.places import GRADER_COMMAND


def main(arguments: Sequence[str]) -> int:
    """`python -m grader platforms [NAME]`: a line for each, or all about one."""
    from grader.staff.platforms import table

    parse = Parser(
        prog=f"{GRADER_COMMAND} platforms", description="Where courses live, a line for each platform."
    )
    parse.add_argument("name", metavar="NAME", nargs="?", help="all about this one")
    given = parse.parse_args(arguments)
    rows = {row.name: row for row in table.PLATFORMS}
    if given.name is not None and given.name not in rows:
        raise UsageError(f"no platform '{given.name}': there are {', '.join(rows)}")
    print(table.whole(rows[given.name]) if given.name else "\n".join(map(table.line, rows.values())))
    return EXIT_PASS
