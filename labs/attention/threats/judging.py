"""Judging one of the files: written to a folder, built and run as any submission is, with short limits."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from grader import score
from grader.assignment import loading
from grader.assignment.records import Assignment, Part
from grader.backends.torch.zygote import Zygote
from grader.core.places import PUBLIC_CONFIG
from grader.core.results import PartResult, SubmissionResult
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate

from .sources import Submission, Threat, function

SECRET = "SEEN-the-hidden-answers"
SHAPE = {"B": 1, "H": 2, "N": 128, "d": 32, "Br": 32, "Bc": 32}
#: Long enough for a kernel of this size on a busy machine, short enough for rows that use them up.
CALL_S, MEMORY_GIB = 3.0, 1.0
TIME_BUDGET_S = 10.0
CASES = 3
"""The ramp, random values, and a ragged shape with several batches: no cheat needs more to be found out."""


def places(folder: Path) -> dict[str, str]:
    """What rows name: the reference library, a file of the judge's, and a folder that must stay empty."""
    from module_ref_stub import library_path

    secret = folder / "secret" / "hidden.txt"
    secret.parent.mkdir(mode=0o700, exist_ok=True)
    secret.write_text(SECRET)
    secret.chmod(0o600)
    return {
        "reference": str(library_path()),
        "symbol": "gpt149_ref_naive",
        "secret": str(secret),
        "marker": f"gpt149-threat-{folder.parent.name}-{folder.name}",
    }


def filled(text: str, named: Mapping[str, str]) -> str:
    """The text with `{name}` replaced, also `{name:hidden}`: the same as numbers, so that no text gives it away."""
    for name, value in named.items():
        text = text.replace(f"{{{name}}}", value)
        hidden = ", ".join(str(byte ^ 0x55) for byte in [*value.encode(), 0])
        text = text.replace(f"{{{name}:hidden}}", hidden)
    return text


@functools.cache
def course() -> Assignment:
    return loading.load(PUBLIC_CONFIG)


def asked(threat: Threat, part_id: str) -> Part:
    """The part that a threat attacks, under the id that it has in its file."""
    part = course().part(threat.part)
    return replace(part, id=part_id, function=function(part_id), cases=part.cases[:CASES])


def judge(
    submission: Submission,
    folder: Path,
    named: Mapping[str, str],
    zygote: Zygote,
    *,
    table: bool = True,
    **confinement: object,
) -> SubmissionResult:
    """Judge a file. With `table` as a student's run does, which profiles right kernels in a process with torch;
    without it as a class's run does. `confinement` is what `evaluate` takes for the sandbox of the zygote."""
    first = submission.first
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "module.cpp"
    source.write_text(filled(submission.text, named))
    for name, text in first.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    limits = replace(course().limits, call_s=CALL_S, build_s=first.build_s, memory_gib=MEMORY_GIB)
    options = Options(
        shape=SHAPE,
        timing=first.timed,
        profile=table,
        seed=149,
        time_budget_s=TIME_BUDGET_S,
    )
    parts = [asked(threat, part_id) for part_id, threat in submission.threats.items()]
    if first.beside:
        part = course().part(first.beside)
        parts.insert(0, replace(part, cases=part.cases[:CASES]))
    limited = replace(course(), limits=limits)
    result = evaluate(limited, source, tuple(parts), options, zygote=zygote, **confinement)  # type: ignore[arg-type]
    return replace(result, parts=tuple(part for part in result.parts if part.id in submission.threats))


# ---- check that a row ended as it must

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
