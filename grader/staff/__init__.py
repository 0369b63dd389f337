"""Commands for the staff: classes, platforms, similarity, write-ups, the self-test, and releases.

No handout contains this package. It may import every other package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grader.assignment.records import Assignment
    from grader.judge.bench import Options


def options(assignment: Assignment, timing: bool) -> Options:
    """Return the judge's options for grading a submission. `timing`: True to time the parts whose time gives points."""
    from grader.core.places import HANDOUT_COMMAND
    from grader.judge.bench import Options
    from grader.study import watch_races

    return Options(
        seed=assignment.seed,
        timing=timing,
        time_ungraded=False,
        profile=assignment.profiler_table,
        watch_races=watch_races,
        command=HANDOUT_COMMAND,
    )
