"""Page of an appeal, for the student: every repeated verdict and time beside the recorded one and the calibration's.

It shows no more of hidden cases than `feedback.txt` does (`grader.report.student`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grader.assignment.records import Assignment
from grader.core.results import PartResult, SubmissionResult
from grader.report import student, words
from grader.report.html import document
from grader.report.page import rounds
from grader.report.student import StudentView


@dataclass(frozen=True)
class Round:
    """One repetition: the submission, then the calibration file. `load` is the machine's 1-minute load average before
    and after. `trouble` is the reason that the round does not count."""

    at: str
    load: tuple[float, float]
    result: SubmissionResult
    calibration: SubmissionResult
    points: float
    trouble: str = ""


@dataclass(frozen=True)
class Appeal:
    """All rounds of one appeal. `chosen` is the position of the round in the middle by points; None if none counts.
    `threads` are those of a timed call, by part."""

    submission_id: str
    name: str
    at: str
    rounds: tuple[Round, ...]
    recorded: SubmissionResult
    recorded_points: float
    chosen: int | None
    accepted: bool
    threads: Mapping[str, int]
    calibration: str
    kit: str


def html(assignment: Assignment, appeal: Appeal) -> str:
    """Return the page."""
    shown = appeal.rounds[appeal.chosen or 0].result
    views = {view.part.id: view for view in student.views(assignment, shown)}
    return document(
        "appeal.html",
        None,
        assignment=assignment,
        appeal=appeal,
        shown=shown,
        parts=[_part(appeal, views[part.id]) for part in shown.parts],
        outcome=outcome(appeal),
        facts=facts(appeal),
    )


def outcome(appeal: Appeal) -> str:
    """Return the outcome as one or two sentences."""
    before = words.number(appeal.recorded_points)
    if appeal.chosen is None:
        return f"No round counts, because the machine was not fit. The recorded {before} points stay."
    round_ = appeal.rounds[appeal.chosen]
    points = f"{words.number(round_.points)} points (round {appeal.chosen + 1}, the middle one by points)"
    if appeal.accepted:
        return f"The recorded result is now that of this appeal: {points}, {before} before."
    return (
        f"This appeal measured {points}. The recorded result has {before} points, and has not been changed."
    )


def facts(appeal: Appeal) -> list[tuple[str, str]]:
    """Return the conditions of the measurement: the machine, its load, versions."""
    shown = appeal.rounds[0].result
    machine, tools = shown.machine, shown.toolchain
    loads = ", ".join(
        f"{before:.1f} to {after:.1f}" for before, after in (each.load for each in appeal.rounds)
    )
    found = [
        ("Machine", f"{machine.get('processor')}, {machine.get('cores')} cores, {machine.get('system')}"),
        ("Load average, each round", loads),
        ("Versions", f"{tools.get('compiler')}; Python {tools.get('python')}; torch {tools.get('torch')}"),
        ("Kit", appeal.kit[:12]),
        ("Sandbox", f"tier {shown.sandbox.get('tier')}"),
        ("Calibration file", appeal.calibration),
    ]
    return [(label, words.line(text, 200)) for label, text in found]


def _part(appeal: Appeal, view: StudentView) -> dict[str, Any]:
    from markupsafe import Markup

    part_id = view.part.id
    rows = [("recorded", _of(appeal.recorded, part_id), None)]
    for k, each in enumerate(appeal.rounds):
        rows.append((f"round {k + 1}", _of(each.result, part_id), _of(each.calibration, part_id)))
    drawn = [part.time for _, part, _ in rows[1:] if part and part.time]
    return {
        "view": view,
        "rows": [row for row in rows if row[1]],
        "threads": appeal.threads.get(part_id),
        "rounds": [Markup(rounds(time)) for time in drawn],
    }


def _of(result: SubmissionResult, part_id: str) -> PartResult | None:
    return next((part for part in result.parts if part.id == part_id), None)
