"""Gradescope's `results.json`: one visible test per part, one hidden test per part for its hidden cases.

A visible test shows only results that a student may see (`student`). If a hidden case failed, the visible test fails
and says so, even if all public cases passed. The hidden test has the details, for the staff.

The points of a part are in its visible test. The total at the top level is reduced by the late penalty. Points given by
people appear as soon as they are given, as tests whose max_score is 0. Gradescope requires a score in each test, so a
part that the machine could not judge gets 0. The test's name, its text and the text at the top say that this is not a
grade.

The format as Gradescope reads it: `tests` with `score`, `max_score`, `status` (passed or failed), `name`, `output`,
`visibility` (hidden, after_due_date, after_published, visible); at the top level `score`, `execution_time` (seconds),
`output`, `visibility`, `stdout_visibility`, and `leaderboard` entries `{name, value, order}`. All numbers are finite,
all texts bounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from grader.assignment.records import Assignment
from grader.core.results import PartResult, Score, SubmissionResult
from grader.report import feedback, student, words
from grader.report.student import StudentView
from grader.report.tally import flags_of

OUTPUT_CHARACTERS = 6000
MOST_HIDDEN_CASES = 40
#: Suffix of the test's name for a part that the machine could not judge.
NO_GRADE = " (not judged yet, this 0 is not a grade)"
HIDDEN_TESTS = "hidden tests"

KIT_FAULT = (
    "This submission could not be graded, because of a fault of the autograder or of the machine it runs on. It is not "
    "your code's fault, and the 0 is not a grade. Submit again; if this happens again, write to the course staff."
)


def results(
    assignment: Assignment,
    result: SubmissionResult,
    score: Score,
    *,
    seconds: float,
) -> dict[str, Any]:
    """Return the content of results.json for a judged submission. `seconds` is the duration of grading."""
    views = student.views(assignment, result)
    tests = [_part_test(view, score) for view in views if view.part.max_points > 0]
    parts = {part.id for part in assignment.parts}
    tests += [
        _test(line.title or line.id, "given by the course staff", line.points, passed=True)
        for line in score.lines
        if line.id not in parts and line.points and line.id not in score.pending
    ]
    tests += [_hidden_test(part) for part in result.parts if any(case.hidden for case in part.cases)]
    tests += _flag_tests(result)
    whole = _whole(_summary(result, views, score), seconds, tests, score.total)
    return {**whole, "leaderboard": _leaderboard(result)}


def refused(assignment: Assignment, why: str, *, seconds: float) -> dict[str, Any]:
    """Return the content of results.json for a submission that cannot be judged, such as a broken archive: 0 points."""
    most = sum(part.points for part in assignment.parts)
    return _whole(why, seconds, [_test("Submission", why, most=most)])


def kit_fault(details: str, *, seconds: float, max_points: float = 0.0) -> dict[str, Any]:
    """Return the content of results.json if grading failed: 0 points, a message to the student, `details` for staff."""
    own = _test("Autograder (not your fault)", KIT_FAULT, most=max_points)
    staff = _test("kit fault (for the staff)", details, visibility="hidden")
    return _whole(KIT_FAULT, seconds, [own, staff])


# ---- pieces


def _whole(text: str, seconds: float, tests: list[dict[str, Any]], score: float = 0.0) -> dict[str, Any]:
    return {
        "score": _finite(score),
        "execution_time": round(_finite(seconds), 2),
        "output": _bounded(text),
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
    }


def _test(
    name: str,
    text: str,
    points: float = 0.0,
    most: float = 0.0,
    *,
    passed: bool = False,
    visibility: Literal["hidden", "visible"] = "visible",
) -> dict[str, Any]:
    """Return one entry of `tests`. `passed`: its status is "passed", else "failed"."""
    return {
        "name": words.line(name, 150),
        "score": _finite(points),
        "max_score": _finite(most),
        "status": "passed" if passed else "failed",
        "output": _bounded(text),
        "visibility": visibility,
    }


def _part_test(view: StudentView, score: Score) -> dict[str, Any]:
    line = feedback.score_line(score, view.part)
    mark = NO_GRADE if view.part.id in score.waiting else ""
    name = words.line(f"{view.part.id}: {view.part.title}", 150 - len(mark)) + mark
    text = f"{words.verdict_words(view.part.verdict)}\n{feedback.part_text(view, line)}"
    return _test(name, text, line.points, line.max_points, passed=view.all_passed)


def _hidden_test(part: PartResult) -> dict[str, Any]:
    """Return a test without points that shows the staff the details of one part's hidden cases."""
    hidden = [case for case in part.cases if case.hidden]
    failed = [case for case in hidden if not case.ok]
    lines = [f"{len(hidden) - len(failed)} of {len(hidden)} hidden cases right"]
    for case in (failed + [case for case in hidden if case.ok])[:MOST_HIDDEN_CASES]:
        message = f": {case.diagnosis.message}" if case.diagnosis else ""
        lines.append(f"{'right' if case.ok else 'WRONG'} {case.name} ({words.shape(case.shape)}){message}")
    if part.diagnosis and part.verdict in ("crash", "timeout"):
        lines.append(part.diagnosis.message)
    right = not failed and part.verdict not in ("crash", "timeout")
    name = f"{part.id}: {HIDDEN_TESTS}"
    return _test(name, "\n".join(lines), passed=right, visibility="hidden")


def _flag_tests(result: SubmissionResult) -> list[dict[str, Any]]:
    """Return [a hidden test that lists the flags for the staff], or [] without flags."""
    flags = flags_of(result)
    if not flags:
        return []
    lines = [
        f"{part_id or 'all parts'}: {flag.code} ({flag.level}) {flag.message}" for part_id, flag in flags
    ]
    text = "\n".join(words.line(text, 500) for text in lines[:40])
    return [_test("flags for review (for the staff)", text, visibility="hidden")]


def _summary(result: SubmissionResult, views: Sequence[StudentView], score: Score) -> str:
    lines = [feedback.not_judged(result, score.waiting)] if score.waiting else []
    lines += filter(None, (feedback.passed_text(views), feedback.hidden_failed(views)))
    if score.penalty:
        days, taken = words.plural(score.late_days, "day"), words.number(score.penalty)
        lines.append(f"Late by {days}: {taken} points are taken off {words.number(score.earned)}.")
    if by_people := [item for item in score.pending if item not in score.waiting]:
        lines.append(f"Still to come, graded by people: {', '.join(by_people)}.")
    return "\n".join(lines)


def _leaderboard(result: SubmissionResult) -> list[dict[str, Any]]:
    """Return leaderboard entries for passed parts without a flag for review; [] if the whole file has such a flag."""
    of_parts = {flag for part in result.parts for flag in part.flags}
    if any(flag.level != "note" for flag in result.flags if flag not in of_parts):
        return []
    return [
        {"name": f"{part.id}: time / reference", "value": round(part.time.ratio, 3), "order": "asc"}
        for part in result.parts
        if part.verdict == "pass"
        and part.time
        and math.isfinite(part.time.ratio)
        and all(flag.level == "note" for flag in part.flags)
    ]


def _bounded(text: str) -> str:
    return words.block(text, OUTPUT_CHARACTERS, lines=200)


def _finite(value: float) -> float:
    return max(0.0, words.finite(value))
