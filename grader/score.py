"""Points for verdicts, computed from the assignment's rubric alone. The same arguments always give the same score.

A part that passes earns its points. For slow parts the rubric has fixed points, or time bands (each has a largest ratio
and a share of the points). The first band that includes the part's ratio is used. This ratio is the lower bound of the
measured interval, so doubt favours the student. A part that must be parallel but runs on one thread earns at most the
points of the slowest band. A part that is right on some cases only earns up to the share `case_credit` of its points:

    points x case_credit x (weight of the right cases / weight of all cases)

The fraction is computed for the public and for the hidden cases, and the smaller one is used. So a kernel that is right
only on published inputs earns nothing. The hidden fraction is rounded down to 0, 1/2 or 1. Otherwise students could
learn secret sizes from it, with kernels that are wrong on purpose. If there is only one public (or hidden) case, the
fraction is computed as if a second case of the same weight were right.

Crashes, hangs and missing functions earn nothing. A kernel whose result changed from call to call earns nothing either,
because its right results are luck. Points are rounded to hundredths.

A part that this machine could not judge (`unjudged`) has no points yet: it is pending, and so is the total.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

from grader.assignment.records import Assignment, Part
from grader.assignment.rubric import ONE_THREAD, LateRule
from grader.core.results import CaseResult, Diagnosis, PartResult, Score, ScoreLine, SubmissionResult, Timing

DAY_S = 86_400.0
CALLED_AGAIN_WEIGHT = 1.0
"""Weight of an imaginary wrong public case, added if all cases are right but a repeated (timed) call is wrong."""
HIDDEN_STEPS = 2
"""The fraction for hidden cases is rounded down to a multiple of 1/2, so that a grade reveals little about them."""
UNSTEADY = frozenset({"race", "unsteady"})
"""Diagnosis codes of kernels that return different results for the same inputs (`grader.explain.diagnose`)."""
REASONS = {
    "crash": "crashed",
    "timeout": "did not end",
    "compile_error": "does not compile",
    "missing": "missing, or cannot be called with the assignment's arguments",
    "rejected": "rejected",
    "unjudged": "not judged: the machine lacks a tool or device for it; the points stay open",
}


def part_points(part: Part, result: PartResult) -> tuple[float, str]:
    """Return (points of a part, the reason for them in one line)."""
    verdict, timing = result.verdict, result.time
    if verdict in ("pass", "slow"):
        points, reason = part.points, "right on every input" + _ratio_text(part, timing)
        if verdict == "slow":
            points, reason = _slow_points(part, timing)
        is_alone = any(flag.code == ONE_THREAD and flag.level != "note" for flag in result.flags)
        if not (is_alone and part.time and part.time.parallel == "required"):
            return points, reason
        slowest = part.time_bands[-1].share * part.points if part.time_bands else part.points_if_slow
        points = min(points, _rounded(slowest))
        return points, f"right, but it runs on one thread{_of(points, part)}"
    if verdict == "wrong":
        if result.diagnosis is not None and result.diagnosis.code == "race":
            return 0.0, "its threads race, so a right result is luck"
        return _wrong_points(part, result.cases)
    return 0.0, REASONS[verdict]


def _ratio_text(part: Part, timing: Timing | None) -> str:
    if timing is None or not (part.time and part.time.graded):
        return ""
    return f", {timing.ratio:.2f} x the reference's time"


def _slow_points(part: Part, timing: Timing | None) -> tuple[float, str]:
    points = part.points_if_slow
    if part.time_bands:
        ratio = timing.ratio_interval[0] if timing else math.inf
        shares = (band.share for band in part.time_bands if band.up_to is None or ratio <= band.up_to)
        points = part.points * next(shares, 0.0)
    allowed = f" ({timing.allowance:.2f} is allowed)" if timing else ""
    return _rounded(points), f"right, but slow{_ratio_text(part, timing)}{allowed}{_of(points, part)}"


def _wrong_points(part: Part, cases: Sequence[CaseResult]) -> tuple[float, str]:
    if part.case_credit and any(case.diagnosis and case.diagnosis.code in UNSTEADY for case in cases):
        return 0.0, "the result changes from call to call, so a right result is luck"
    right = {case.name for case in cases if case.ok}
    own = {case.name for case in part.cases}
    fractions = []
    for hidden in (False, True):
        weights = {case.name: case.weight for case in part.cases if case.hidden == hidden}
        total = sum(weights.values())
        earned = sum(weight for name, weight in weights.items() if name in right)
        if own <= right and not hidden:
            total += CALLED_AGAIN_WEIGHT
        elif part.lone_case(hidden=hidden) is not None:
            total, earned = 2 * total, earned + total
        if total > 0:
            fraction = earned / total
            fractions.append(math.floor(HIDDEN_STEPS * fraction) / HIDDEN_STEPS if hidden else fraction)
    if not any(case.weight > 0 and case.name in right for case in part.cases):
        fractions = []
    points = part.points * part.case_credit * min(fractions, default=0.0)
    wrong = sum(not case.ok for case in cases)
    reason = f"wrong on {wrong} of {len(cases)} inputs" if wrong else "wrong"
    return _rounded(points), reason + _of(points, part)


def _of(points: float, part: Part) -> str:
    return f": {_rounded(points):g} of {part.points:g} points" if part.points else ""


def _rounded(points: float) -> float:
    return round(points + 1e-9, 2)


def score(
    assignment: Assignment,
    result: SubmissionResult,
    manual: Mapping[str, float] | None = None,
    late_s: float | None = None,
) -> Score:
    """Return the score of one submission.

    Args:
        manual: points given by people, by the id of the item. An entry for a part's id replaces the part's points.
        late_s: lateness in seconds. If it is None (unknown), no points are deducted.
    """
    manual = manual or {}
    results = {part.id: part for part in result.parts}
    lines: list[ScoreLine] = []
    pending: list[str] = []
    waiting: list[str] = []
    for part in assignment.parts:
        if part.points <= 0:
            continue
        lines.append(_part_line(part, results.get(part.id), manual.get(part.id)))
        if part.id in manual:
            continue
        if part.id not in results or results[part.id].verdict == "unjudged":
            pending.append(part.id)
        if part.id in results and results[part.id].verdict == "unjudged":
            waiting.append(part.id)
    for item in assignment.manual:
        given = manual.get(item.id)
        reason = "not given" if item.extra else "not graded yet"
        lines.append(
            ScoreLine(item.id, item.title, given or 0.0, item.points, reason if given is None else "by hand")
        )
        if given is None and not item.extra:
            pending.append(item.id)
    extra = {item.id for item in assignment.manual if item.extra}
    earned = _rounded(math.fsum(line.points for line in lines))
    days = late_days(assignment.late, late_s)
    penalty = _penalty(assignment.late, earned, days)
    return Score(
        lines=tuple(lines),
        earned=earned,
        late_days=days,
        penalty=penalty,
        total=_rounded(earned - penalty),
        max_points=_rounded(math.fsum(line.max_points for line in lines if line.id not in extra)),
        pending=tuple(pending),
        waiting=tuple(waiting),
    )


def _part_line(part: Part, result: PartResult | None, given: float | None) -> ScoreLine:
    points, reason = 0.0, "not judged"
    if result is not None:
        points, reason = part_points(part, result)
    if result is not None and result.waits_for:
        reason = f"not judged: the machine has no {result.waits_for}, and the points are open"
    if given is not None:
        points, reason = given, f"by hand (the judge gave {points:g}: {reason})"
    return ScoreLine(part.id, part.title, points, part.points, reason)


def unreadable(assignment: Assignment, name: str, why: str) -> SubmissionResult:
    """Build the result of a submission that cannot be read: every part is `missing`, for the reason `why`."""
    parts = tuple(
        PartResult(part.id, part.title, "missing", part.points, diagnosis=Diagnosis("unreadable", why))
        for part in assignment.select("all")
    )
    most = sum(part.max_points for part in parts)
    return SubmissionResult(
        name,
        "",
        assignment.id,
        {},
        {},
        {},
        parts,
        max_points=most,
        inputs_version=assignment.lab.inputs_version,
    )


# ---- lateness


def lateness_s(assignment: Assignment, submitted_at: datetime) -> float | None:
    """Return the submission's lateness in seconds: 0 if it is in time, None without a due date.

    If `submitted_at` has no time zone, the due date's zone is assumed.
    """
    if assignment.late is None or assignment.late.due is None:
        return None
    due = assignment.late.due
    if submitted_at.tzinfo is None:
        submitted_at = submitted_at.replace(tzinfo=due.tzinfo)
    return max(0.0, (submitted_at - due).total_seconds())


def late_days(rule: LateRule | None, late_s: float | None) -> int:
    """Return the number of late days: every day that has begun since the grace time ended counts as a whole day."""
    if rule is None or late_s is None:
        return 0
    return max(0, math.ceil((late_s - rule.grace_s) / DAY_S))


def _penalty(rule: LateRule | None, earned: float, days: int) -> float:
    if rule is None or days == 0:
        return 0.0
    charged = days
    if rule.cap_days is not None and days > rule.cap_days:
        if rule.after_cap == "zero":
            return earned
        charged = rule.cap_days
    per_day = earned * (rule.share_per_day or 0.0) + (rule.points_per_day or 0.0)
    return _rounded(min(earned, charged * per_day))
