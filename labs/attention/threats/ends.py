"""Check that a row ended as it must."""

from __future__ import annotations

import json
from dataclasses import asdict

from grader import score
from grader.core.results import PartResult, SubmissionResult

from .judging import asked
from .threat import Threat

LONGEST_FLAG = 1000
"""Characters of a flag's message: a few names, each of them short."""


def flag_codes(result: SubmissionResult, part: PartResult) -> set[str]:
    """The flags for people, the part's own and those of the file as a whole; not those of its other parts."""
    of_others = {flag for other in result.parts for flag in other.flags}
    of_file = [flag for flag in result.flags if flag not in of_others]
    return {flag.code for flag in (*of_file, *part.flags) if flag.level != "note"}


def faults(threat: Threat, tier: str, result: SubmissionResult, part: PartResult) -> list[str]:
    """Return the broken promises in words; empty when all is well."""
    end, found = threat.end_in(tier), []
    if part.verdict not in end.verdicts:
        found.append(f"ended as {part.verdict}, not {' or '.join(end.verdicts)}: {part.diagnosis}")
    if part.verdict == "rejected" and not any(flag.level == "rejected" for flag in part.flags):
        found.append("rejected without a flag that says why")
    raised = flag_codes(result, part)
    if end.flags and not raised & set(end.flags):
        found.append(f"no flag {' or '.join(end.flags)}, but {sorted(raised) or 'none'}")
    if not end.flags and not end.any_flag and raised:
        found.append(
            f"flagged though nothing is wrong with it: {[str(flag) for flag in (*result.flags, *part.flags)]}"
        )
    # A wrong or slow one may earn part of its points by the cases that are right.
    points, _ = score.part_points(asked(threat, part.id), part.verdict, part.cases, part.time)
    if points > (0 if part.verdict not in ("pass", "slow", "wrong") else part.max_points):
        found.append(f"earned {points} points with {part.verdict}")
    if part.verdict in ("slow", "wrong") and points >= part.max_points:
        found.append(f"earned all its points with {part.verdict}")
    found += [
        f"a flag of {len(flag.message)} characters: {flag.message[:80]}..."
        for flag in (*result.flags, *part.flags)
        if len(flag.message) > LONGEST_FLAG
    ]
    told = json.dumps(asdict(part), default=str, ensure_ascii=False)
    found += [f"'{text}' is in the result" for text in end.silent if text in told]
    if end.says and end.says not in told:
        found.append(f"'{end.says}' is not in the result: {part.output!r} {part.diagnosis}")
    return found
