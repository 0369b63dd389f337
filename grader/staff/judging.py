"""Options of the judge for submissions that are graded: in a class, and in a course platform's container."""

from __future__ import annotations

from grader.assignment.records import Assignment
from grader.core.places import HANDOUT_COMMAND
from grader.judge.bench import Options
from grader.study import watch_races


def options(assignment: Assignment, timing: bool) -> Options:
    """Return the options for grading one submission. `timing`: measure the parts whose time gives points."""
    return Options(
        seed=assignment.seed,
        timing=timing,
        time_ungraded=False,
        profile=assignment.profiler_table,
        watch_races=watch_races,
        command=HANDOUT_COMMAND,
    )
