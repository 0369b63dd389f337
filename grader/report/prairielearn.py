"""PrairieLearn's `results.json`: one test for each part, and the score as a share of the possible points.

A part that fails only hidden cases is described as in feedback.txt. Students see everything in this file, so flags for
review and the causes of kit failures are left out.

A submission that does not compile or has no source file gets `gradable: false`, which costs the student no attempt. The
same holds if the kit or the machine prevents grading, for example if the container lacks a program. The score covers
only the parts, not points given by people.

The format, as PrairieLearn reads it: `gradable`, `score` (0 to 1; mandatory unless `gradable` is false), `message`,
`output`, `images` (`{label, url}`), `format_errors` (texts), `tests` (`name`, `description`, `points`, `max_points`,
`message`, `output`, `images`); at most LARGEST_BYTES.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import Any

from grader.assignment.records import Assignment
from grader.core.results import MAP_CELLS, Score, SubmissionResult
from grader.report import feedback, student, words
from grader.report.gradescope import KIT_FAULT
from grader.report.student import StudentView

LARGEST_BYTES = 1_000_000
CELL = 22
"""Side of a cell of the error map, in units of the picture. A map has at most 8 x 8 cells."""
NOT_STARTED = "The grader could not be started, and no attempt is lost. Please write to the course staff."


def results(
    assignment: Assignment, result: SubmissionResult, score: Score, *, seconds: float
) -> dict[str, Any]:
    """Return the content of results.json. `seconds` is ignored, because PrairieLearn measures the duration itself."""
    views = student.views(assignment, result)
    if score.waiting:
        return ungradable(feedback.not_judged(result, score.waiting))
    if views and all(view.part.verdict == "compile_error" for view in views):
        message = next((view.part.diagnosis.message for view in views if view.part.diagnosis), "")
        return ungradable(message or "Your file does not compile.")
    return words.fitted(lambda characters: _graded(views, score, characters), LARGEST_BYTES)


def refused(assignment: Assignment, why: str, *, seconds: float) -> dict[str, Any]:
    """Return the content of results.json for a submission that cannot be judged, such as a broken archive."""
    return ungradable(why)


def kit_fault(details: str, *, seconds: float, max_points: float = 0.0) -> dict[str, Any]:
    """Return the content of results.json if grading failed: the student loses no attempt. `details` are ignored."""
    return ungradable(KIT_FAULT.replace(", and the 0 is not a grade", ", and no attempt is lost"))


def ungradable(why: str) -> dict[str, Any]:
    return {"gradable": False, "format_errors": [words.text(why, 6000)]}


# ---- pieces


def _graded(views: tuple[StudentView, ...], score: Score, characters: int) -> dict[str, Any]:
    tests = [_test(view, score, characters) for view in views if view.part.max_points > 0]
    earned, most = (sum(test[key] for test in tests) for key in ("points", "max_points"))
    # The late penalty reduces the whole score. PrairieLearn's own late rules, if set, reduce it further.
    left = 1.0 - score.penalty / score.earned if score.earned > 0 else 1.0
    share = words.finite(earned * left / most) if most > 0 else 0.0
    return {
        "gradable": True,
        "score": min(1.0, max(0.0, share)),
        "message": words.text(_summary(views, score), characters),
        "output": "",
        "images": [],
        "tests": tests,
    }


def _test(view: StudentView, score: Score, characters: int) -> dict[str, Any]:
    part = view.part
    line = feedback.score_line(score, part)
    return {
        "name": words.name(f"{part.id}: {part.title}", characters),
        "description": words.name(part.title, characters),
        "points": max(0.0, words.finite(line.points)),
        "max_points": max(0.0, words.finite(line.max_points)),
        "message": words.verdict_words(part.verdict),
        "output": words.text(feedback.part_text(view, line), characters),
        "images": images(view),
    }


def images(view: StudentView) -> list[dict[str, str]]:
    """Return [{label, url}]: the error map of the diagnosed case, or of the first wrong case; [] without a map."""
    wrong = [case for case in view.part.cases if case.error_map]
    case = next((case for case in wrong if case.diagnosis == view.part.diagnosis), next(iter(wrong), None))
    if case is None:
        return []
    label = f"where '{words.line(case.name, 60)}' is wrong (rows down, columns across)"
    picture = base64.b64encode(svg(case.error_map, label).encode()).decode()
    return [{"label": words.name(label), "url": f"data:image/svg+xml;base64,{picture}"}] if picture else []


def svg(rows: Sequence[str], title: str) -> str:
    """Return `CaseResult.error_map` as SVG: one square for each cell, from white (right) to red (nearly all wrong).

    The title is the only text in the picture. Returns "" if `rows` are not an error map.
    """
    rows = [row[:MAP_CELLS] for row in rows[:MAP_CELLS]]
    is_map = all(len(row) == len(rows[0]) and set("0123456789").issuperset(row) for row in rows)
    if not rows or not rows[0] or not is_map:
        return ""
    width, height = CELL * len(rows[0]) + 2, CELL * len(rows) + 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<title>{escape(title)}</title><rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for y, row in enumerate(rows):
        for x, digit in enumerate(row):
            fill = f'fill="#b91c1c" fill-opacity="{int(digit) / 9:.2f}"'
            place = f'x="{1 + x * CELL}" y="{1 + y * CELL}" width="{CELL}" height="{CELL}"'
            parts.append(f'<rect {place} {fill} stroke="#cbd5e1"/>')
    return "".join([*parts, "</svg>"])


def _summary(views: tuple[StudentView, ...], score: Score) -> str:
    by_people = (
        f"Graded by people, and not in this score: {', '.join(score.pending)}." if score.pending else ""
    )
    return "\n".join(filter(None, (feedback.passed_text(views), feedback.hidden_failed(views), by_people)))
