"""Preparation of a platform's container image before the first submission.

    python -m grader.staff.platforms.preparing [--torch]

builds the reference of the kit's own assignment, for any lab, and the kit's own programs and headers. `setup.sh`
calls it, in the archive that `grader.staff.release.contents.autograder` makes.
"""

from __future__ import annotations

from grader.backends.kinds import all_on_card
from grader.core import commandline
from grader.core.commandline import Parser
from grader.core.errors import EXIT_PASS


def run(arguments: list[str]) -> int:
    from grader.backends.native import nativebuild
    from grader.backends.torch import torchbuild
    from grader.staff.platforms.container import kits_assignment

    parse = Parser(
        prog="python -m grader.staff.platforms.preparing",
        description="Build ahead what every submission needs.",
    )
    parse.add_argument("--torch", action="store_true", help="what a process with torch needs as well")
    torch = parse.parse_args(arguments).torch
    assignment = kits_assignment()
    if all_on_card(assignment.parts):
        # Kernels for a GPU are compiled for the present GPU, when they are first called.
        return EXIT_PASS
    reference = assignment.lab.reference()
    reference.program()
    nativebuild.precompile()
    if torch:
        reference.for_torch()
        torchbuild.precompile()
    return EXIT_PASS


if __name__ == "__main__":
    commandline.main("preparing", run)
