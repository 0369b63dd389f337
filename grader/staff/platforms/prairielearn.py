"""PrairieLearn's external grader: the kit in a container.

The container has the hand-in in `/grade/student/` and the question's files for the staff in `/grade/tests/`.
PrairieLearn reads the results from `/grade/results/results.json`.

The kit is part of the image. The assignment is in the question's `tests/configs/`, so the staff can change a case
without building a new image. The kit deducts no points for lateness: PrairieLearn does this by its access rules.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from grader.report import prairielearn as renderer
from grader.staff.platforms import container
from grader.staff.platforms.container import Container

GRADE = Path("/grade")
TIMEOUT_S = 600
"""PrairieLearn's maximum time limit for a grader, in seconds; its default is 30 s."""


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
#: The command `python -m grader prairielearn [DIR]`: a function of its arguments that returns the exit code.
main = partial(container.main, CONTAINER)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
