"""Regrading of a submission after a change of the assignment: only verdicts that are out of date are judged again.

Digests of the assignment before and now (`grader.assignment.prints`) show the changes. The source, the kit and the
settings must be unchanged. A part is judged as a whole if its calls changed, or if it is right and its time rule
changed. If cases were added, only these are called, and a right part keeps its time. A part that did not compile keeps
its verdict. So does a part that crashed, timed out or was rejected, unless a case was deleted or changed: that case may
have caused the verdict, so the whole part is judged again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from grader.assignment.prints import PartPrints
from grader.assignment.records import Assignment, Part
from grader.core.results import CaseResult, Diagnosis, Flag, PartResult, SubmissionResult

Evaluate = Callable[[tuple[Part, ...]], SubmissionResult]

UNTOUCHED_BY_CASES = ("missing", "compile_error", "unjudged")
"""Verdicts that do not depend on cases."""
BROKEN_OFF = ("crash", "timeout", "rejected")
"""Verdicts that end the judging of a part, so that further cases are not called."""


@dataclass(frozen=True)
class Rest:
    """Parts to judge again. Maps each part's id to the names of the cases to call; () means the whole part."""

    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.parts)


def rest(
    before: Mapping[str, PartPrints], now: Mapping[str, PartPrints], result: SubmissionResult
) -> Rest | None:
    """Compare the digests `before` and `now`. Return the parts of `result` to judge again.

    Returns None if every part must be judged as a whole.
    """
    known = {part.id: part for part in result.parts}
    found: dict[str, tuple[str, ...]] = {}
    for part_id, prints in now.items():
        if part_id not in before or part_id not in known:
            found[part_id] = ()
            continue
        left = _left(before[part_id], prints, known[part_id])
        if left is not None:
            found[part_id] = left
    return None if found and not any(found.values()) and len(found) == len(now) else Rest(found)


def _left(before: PartPrints, now: PartPrints, known: PartResult) -> tuple[str, ...] | None:
    """Return the names of a part's cases to call; () to judge the whole part, None if its result stays as it is."""
    if before.calling != now.calling or (known.judged_through and before.through != now.through):
        return ()
    if known.verdict in UNTOUCHED_BY_CASES:
        return None
    gone = {name for name, print_ in before.cases.items() if now.cases.get(name) != print_}
    new = tuple(name for name, print_ in now.cases.items() if before.cases.get(name) != print_)
    if known.verdict in BROKEN_OFF:
        return () if gone else None
    if known.judged_through:
        return None  # the cases of another part decided this verdict
    if before.timing != now.timing and known.verdict != "wrong":
        return ()
    if known.verdict == "wrong" and gone:
        left = [case for case in known.cases if not case.ok and case.name not in gone]
        if not left:
            return ()  # all wrong cases were deleted: the part may be right and then needs a timing
    return new or None


def judge_rest(
    assignment: Assignment, before: SubmissionResult, left: Rest, evaluate: Evaluate
) -> SubmissionResult:
    """Judge the parts in `left` by calling `evaluate` with only the cases to call. Return the merged result."""
    wanted = _wanted(assignment, left)
    return joined(assignment, before, evaluate(wanted) if wanted else None, left)


def _wanted(assignment: Assignment, left: Rest) -> tuple[Part, ...]:
    """Return the parts to judge, in order: those of `left`, and those with which a whole part of `left` is compared."""
    whole = [part for part in assignment.parts if left.parts.get(part.id) == ()]
    compared = {name for part in whole for name in part.differs_from}
    found = []
    for part in assignment.parts:
        if part.id in left.parts:
            found.append(_reduced(part, left.parts[part.id]))
        elif part.id in compared:
            public = tuple(case for case in part.cases if not case.hidden)
            found.append(replace(part, cases=public, time=None))
    return tuple(found)


def _reduced(part: Part, names: Sequence[str]) -> Part:
    if not names:
        return part
    return replace(part, cases=tuple(case for case in part.cases if case.name in names), time=None)


def joined(
    assignment: Assignment, before: SubmissionResult, fresh: SubmissionResult | None, left: Rest
) -> SubmissionResult:
    """Merge the earlier result and the parts that were judged now into one result."""
    old = {part.id: part for part in before.parts}
    new = {part.id: part for part in fresh.parts if part.id in left.parts} if fresh else {}
    parts = []
    for part in assignment.select("all"):
        if part.id in new and not left.parts[part.id]:
            parts.append(new[part.id])
        elif part.id in new:
            parts.append(_both(assignment, part, _restated(part, old[part.id]), new[part.id]))
        else:
            parts.append(_restated(part, old[part.id]))
    # Keep the flags that do not belong to a part: they are about the file as a whole.
    of_file = [flag for result in (before, fresh) if result for flag in _of_file(result)]
    return replace(
        before,
        assignment=assignment.id,
        parts=tuple(parts),
        flags=tuple(dict.fromkeys([*of_file, *(flag for part in parts for flag in part.flags)])),
        max_points=sum(part.max_points for part in parts),
    )


def _of_file(result: SubmissionResult) -> list[Flag]:
    of_parts = {flag for part in result.parts for flag in part.flags}
    return [flag for flag in result.flags if flag not in of_parts]


def _restated(part: Part, known: PartResult) -> PartResult:
    """Return a part's earlier result with its current title and points, without deleted cases."""
    there = {case.name: case.hidden for case in part.cases}
    # "timed call" is not a case of the assignment. A part judged through another part has that part's cases.
    kept = known.cases
    if not known.judged_through:
        kept = tuple(case for case in kept if case.name in there or case.name == "timed call")
    return replace(known, title=part.title, max_points=part.points, cases=kept)


def _both(assignment: Assignment, part: Part, known: PartResult, new: PartResult) -> PartResult:
    """Merge the cases of one part that were judged before and now. New results replace old ones of the same name."""
    called = {case.name: case for case in new.cases}
    by_name = {case.name: case for case in known.cases} | called
    order = [case.name for case in part.cases if case.name in by_name]
    cases = tuple(by_name[name] for name in (*order, *(name for name in by_name if name not in order)))
    flags = tuple(dict.fromkeys([*known.flags, *new.flags]))
    if new.verdict == "pass" and known.verdict != "wrong":
        return replace(known, cases=cases, flags=flags)
    if new.verdict in ("pass", "wrong"):
        verdict, diagnosis = "wrong", _diagnosis(assignment, part, known, cases)
    else:
        verdict, diagnosis = new.verdict, new.diagnosis
    timed = set(known.time.flags) if known.time and known.verdict != "wrong" else set()
    return replace(
        known,
        verdict=verdict,  # type: ignore[arg-type]
        diagnosis=diagnosis,
        cases=cases,
        flags=tuple(flag for flag in flags if flag.code not in timed),
        time=None,
        frontier=None,
        waits_for=new.waits_for,
    )


def _diagnosis(
    assignment: Assignment, part: Part, known: PartResult, cases: Sequence[CaseResult]
) -> Diagnosis | None:
    """Return the former diagnosis if a public case was wrong before, else one from `cases`; None if all are right."""
    wrong_before = [case for case in known.cases if not case.ok]
    if known.diagnosis and any(not case.hidden for case in wrong_before):
        return known.diagnosis
    from grader.explain.diagnose import concluded

    return concluded(cases, assignment.lab.oracle(part.oracle).axes)
