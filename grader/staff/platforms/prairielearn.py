"""PrairieLearn's external grader: its container holds the hand-in under `/grade/student/`, the question's files for
the staff under `/grade/tests/`, and takes `/grade/results/results.json` back.

The kit itself lies in the image. The question's `tests/configs/` holds the assignment, so that a case can be changed
without building an image. The platform gives no data on lateness: its access rules deduct points by themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from grader.report import prairielearn as renderer
from grader.staff.platforms import container
from grader.staff.platforms.container import Container

GRADE = Path("/grade")
TIMEOUT_S = 600
"""The longest time limit of PrairieLearn for a grader, in seconds; the default is 30 s."""


def main(where: Path | Sequence[str] = GRADE, limit_s: float | None = None) -> int:
    """`python -m grader prairielearn`: as `container.main`."""
    return container.main(CONTAINER, where, limit_s)


CONTAINER = Container(
    title="PrairieLearn",
    module="grader.staff.platforms.prairielearn",
    root=GRADE,
    submission="student",
    results="results/results.json",
    kits=("tests", "serverFilesCourse"),
    renderer=renderer,
    late_s=lambda root, assignment: None,
    limit_s=TIMEOUT_S - 30.0,
    limit_variable="GPT149_PRAIRIELEARN_LIMIT_S",
    image="image/Dockerfile",
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
