"""Classroom 50's `result.json` (classroom50/result/v1) and the text of the GitHub release that Classroom 50 makes.

Classroom 50 accepts only whole numbers as scores. So points are multiplied by `scale`: 1, 2, 4 or 10 if that makes the
points of all parts whole, else 100. It is also 100 if a wrong part can earn a share of its points, because shares are
rounded to hundredths. The release's text and the key `points` of each test give the points without the factor.

Names and addresses come from environment variables that Classroom 50's runner sets. (Classroom 50 overwrites `owner`
and `assignment_type` afterwards.) They are not read from files of the repository, which a student could change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.core.errors import UsageError, explained
from grader.core.results import Score, SubmissionResult
from grader.report import feedback, github, student, words

SCHEMA = "classroom50/result/v1"
LARGEST_BYTES = 1_000_000
RESULT, BODY = "result.json", "release-body.md"
SCALES = (1, 2, 4, 10)
HUNDREDTHS = 100
#: Keys of result.json, each with the environment variable that holds its value.
VARIABLES = {
    "classroom": "CLASSROOM",
    "assignment": "ASSIGNMENT",
    "submission": "SUBMISSION_TAG",
    "commit": "COMMIT_URL",
    "release": "RELEASE_URL",
    "review": "REVIEW_URL",
}
TYPES = ("individual", "group")


def named(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of result.json that come from the environment. Raises UsageError for a missing variable."""
    found = {key: environment.get(variable, "") for key, variable in VARIABLES.items()}
    found["owner"] = environment.get("OWNER") or environment.get("USERNAME", "")
    missing = [VARIABLES.get(key, "OWNER") for key, value in found.items() if not value]
    if missing:
        raise UsageError(f"--classroom50: {', '.join(missing)} not set: they come from Classroom 50's runner")
    if not found["submission"].startswith("submit/"):
        raise UsageError("--classroom50: SUBMISSION_TAG should begin with submit/, as in submit/1")
    kind = environment.get("ASSIGNMENT_TYPE", TYPES[0])
    return {**found, "assignment_type": kind if kind in TYPES else TYPES[0]}


def scale(assignment: Assignment) -> int:
    """Return the first of SCALES that makes all attainable points whole; 100 if none does, or with `case_credit`."""
    parts = [part for part in assignment.parts if part.points > 0]
    attainable = [float(points) for part in parts for points in (part.points, part.points_if_slow)]
    attainable += [round(part.points * band.share, 2) for part in parts for band in part.time_bands]
    fitting = (k for k in SCALES if all((points * k).is_integer() for points in attainable))
    return HUNDREDTHS if any(part.case_credit for part in parts) else next(fitting, HUNDREDTHS)


def results(
    assignment: Assignment,
    result: SubmissionResult,
    score: Score,
    environment: Mapping[str, str],
    at: datetime,
) -> dict[str, Any]:
    """Return the content of result.json. `at` is the time of grading."""
    factor = scale(assignment)
    moment = at.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    views = [view for view in student.views(assignment, result) if view.part.max_points > 0]

    def test(view: student.StudentView, characters: int) -> dict[str, Any]:
        part, line = view.part, feedback.score_line(score, view.part)
        most = _whole(part.max_points, factor)
        return {
            "test-name": words.name(f"{part.id}: {part.title}", characters),
            "passed": view.all_passed,
            "score": min(most, _whole(line.points, factor)),
            "max-score": most,
            "points": words.finite(line.points),
            "verdict": words.verdict_words(part.verdict),
            "message": words.text(feedback.part_text(view, line), characters),
        }

    def whole(characters: int) -> dict[str, Any]:
        tests = [test(view, characters) for view in views]
        return {
            "schema": SCHEMA,
            **named(environment),
            "datetime": moment,
            "graded_at": moment,
            "score": sum(each["score"] for each in tests),
            "max-score": sum(each["max-score"] for each in tests),
            "tests": tests,
        }

    return words.fitted(whole, LARGEST_BYTES)


def body(assignment: Assignment, result: SubmissionResult, score: Score) -> str:
    """Return the text of the release in Markdown: the result, a table of the parts, and the factor of the scores."""
    factor = scale(assignment)
    unit = "points" if factor == 1 else f"points times {factor}"
    views = student.views(assignment, result)
    return (
        f"**{github.outputs(views, score)['summary']}**\n\n{github.summary(assignment, views, score)}"
        f"Classroom 50 accepts only whole numbers, so its scores are {unit}.\n"
        f"{re.sub(r'([*_<>&`])', r' ', words.judged_by(result.kit, result.machine))}\n"
    )


def write(
    folder: Path,
    assignment: Assignment,
    result: SubmissionResult,
    score: Score,
    environment: Mapping[str, str],
    at: datetime,
) -> None:
    """Write RESULT and BODY into a folder. Raises UsageError for a missing variable, or if writing fails."""
    made = {
        RESULT: words.encoded(results(assignment, result, score, environment, at)),
        BODY: body(assignment, result, score).encode(),
    }
    with explained(f"--classroom50: cannot write into {folder}"):
        for name, content in made.items():
            plainfile.write_bytes(folder / name, [content], mode=0o644)


def _whole(points: float, factor: int) -> int:
    return max(0, round(words.finite(points) * factor))
