"""Gradescope's autograder: the kit in a container.

The container's folder `/autograder` has `source/` (the kit), `submission/`, `results/`, and `submission_metadata.json`
with the submission time and the due date.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path

from grader.assignment.records import Assignment
from grader.report import gradescope as renderer
from grader.staff.platforms import container
from grader.staff.platforms.container import Container

AUTOGRADER = Path("/autograder")


def late_s(root: Path, assignment: Assignment) -> float | None:
    """Return the seconds past Gradescope's due date, else the assignment's: 0 if in time, None if unknown."""
    from grader import score

    submitted_at, due = read_metadata(root / "submission_metadata.json")
    if submitted_at is None:
        return None
    if due is None:
        return score.lateness_s(assignment, submitted_at)
    return max(0.0, (submitted_at - due).total_seconds())


def read_metadata(path: Path) -> tuple[datetime | None, datetime | None]:
    """Return (submission time, due date) from a submission_metadata.json; None for a missing or invalid time.

    A student's own due date (an extension) replaces the assignment's. For a group, the latest due date counts.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None, None
    if not isinstance(values, dict):
        return None, None
    users = values.get("users")
    own = [_due(user) for user in users if isinstance(user, dict)] if isinstance(users, list) else []
    given = [due for due in own if due is not None] or [due for due in [_due(values)] if due is not None]
    return _moment(values.get("created_at")), max(given, default=None)


def _due(values: Mapping[str, object]) -> datetime | None:
    """Return the due date in a submission's or student's metadata; None if it is missing or invalid."""
    assignment = values.get("assignment")
    return _moment(assignment.get("due_date")) if isinstance(assignment, dict) else None


def _moment(text: object) -> datetime | None:
    """Return an ISO time with a time zone, or None for other values: a time without a zone cannot be compared."""
    if not isinstance(text, str):
        return None
    with contextlib.suppress(ValueError):
        # `fromisoformat` of Python 3.10 does not accept "Z" for UTC.
        moment = datetime.fromisoformat(text.removesuffix("Z") + ("+00:00" if text.endswith("Z") else ""))
        return moment if moment.tzinfo else None
    return None


CONTAINER = Container(
    title="Gradescope",
    module="grader.staff.platforms.gradescope",
    root=AUTOGRADER,
    submission="submission",
    results="results/results.json",
    kits=("source",),
    renderer=renderer,
    late_s=late_s,
    # By default Gradescope stops a container after 600 s. This leaves 30 s to report the failure.
    limit_s=570.0,
    limit_variable="GPT149_GRADESCOPE_LIMIT_S",
    image="setup.sh",
)
#: The command `python -m grader gradescope [DIR]`: a function of its arguments that returns the exit code.
main = partial(container.main, CONTAINER)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
