"""Steps that extend a part's diagnosis for the student. They do not change verdicts, points or codes."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from grader.assignment.records import Part
from grader.backends import faults
from grader.backends.native import crashes
from grader.core.results import Diagnosis, Verdict
from grader.explain import clues
from grader.explain.closer_look import Closer
from grader.explain.explanation_errors import attempt
from grader.explain.judged_part import JudgedPart
from grader.judge.bench import Bench, Watched
from grader.judge.correctness import Correctness, Runners
from grader.judge.regrade import BROKEN_OFF
from grader.judge.second_build import SecondBuild
from grader.source import landmarks

Refinement = Callable[[Diagnosis], Diagnosis]
#: Calls in the student's source that open a file.
OPENS = r"\b(?:f?re|f)?open\b|\bifstream\b"
MOST_FILES = 3


def refinements(
    results: Correctness, verdict: Verdict, diagnosis: Diagnosis, stack: ExitStack
) -> list[Refinement]:
    """Return the steps that extend a part's diagnosis, in order. `stack` ends the processes that they start."""
    steps = [] if _is_plain(results) else _closer_look(results, verdict, diagnosis, stack)
    if not diagnosis.hidden and results.refused_files and verdict in ("wrong", *BROKEN_OFF):
        steps.append(lambda known: _with_files(known, results))
    return steps


def _is_plain(results: Correctness) -> bool:
    """Return True if a diagnosis is not extended: for torch's own function, under sanitizers, or for a part that was
    judged through another part."""
    is_students = results.backend.kind.is_students
    return not is_students or results.bench.options.sanitize or bool(results.judged_through)


def _closer_look(
    results: Correctness, verdict: Verdict, diagnosis: Diagnosis, stack: ExitStack
) -> list[Refinement]:
    part, bench = results.part, results.bench
    if part.table:
        bench.helpers[part.id] = verdict in ("wrong", *BROKEN_OFF)
    elif not diagnosis.hidden and (helper := attempt(lambda: failing_helper(results), None)) is not None:
        return [lambda known: _helper_first(known, helper, verdict, results)]
    options = bench.options
    judged = JudgedPart(
        results.marker,
        bench.source,
        options.defines,
        results.cases,
        results.broken,
        results.runners.fresh,
        bench.command,
        _races_in(bench) if options.second_look else None,
    )
    closer = Closer(judged, SecondBuild(bench, stack) if options.second_look else None)
    if verdict in ("crash", "timeout"):
        return [closer.crash]
    is_public = any(case.diagnosis is diagnosis and not case.hidden for case in results.cases)
    return [closer.wrong] if verdict == "wrong" and is_public else []


def _races_in(bench: Bench) -> Callable[[Part], str]:
    return lambda part: (bench.watched(part) or Watched()).races


def _helper_first(known: Diagnosis, helper: Part, verdict: Verdict, results: Correctness) -> Diagnosis:
    first = (
        f"Your {helper.function} fails its own test ({results.bench.command} {helper.command}): fix it first."
    )
    # The failing helper explains a crash: leave out the details of the crash.
    rest = known.message if verdict == "wrong" else f"{known.message.partition(': ')[0]}."
    body = landmarks.function(results.marker.source, helper.function)
    places = [clues.Shown(place, "") for place in body.find(r"\w")] if body is not None else []
    shown = (
        [clues.in_words(places[: clues.MOST_LINES], body, results.bench.source.name)]
        if body and places
        else []
    )
    return replace(known, message="\n".join([f"{first} {rest}", *shown]))


def failing_helper(results: Correctness) -> Part | None:
    """Return the part of the first function that this part calls and that fails its own test; None if none fails."""
    bench, body = results.bench, results.marker.body
    for part in bench.assignment.parts:
        if not part.table or body is None or not body.find(rf"\b{part.function}\s*\("):
            continue
        if part.id not in bench.helpers:
            alone = replace(part, stands_in=None)
            found = Correctness(bench, alone, Runners(bench, alone), look=False)
            try:
                found.check()
                bench.helpers[part.id] = found.diagnosis is not None
            except faults.Faulty as fault:
                bench.helpers[part.id] = fault.verdict in BROKEN_OFF
        if bench.helpers[part.id]:
            return part
    return None


def _with_files(known: Diagnosis, results: Correctness) -> Diagnosis:
    """Add the files that the kernel could not open, with the source lines that open them."""
    body, name = results.marker.body, results.bench.source.name
    rows, code = (body.rows, body.code) if body is not None else ((), ())
    lines = [known.message.replace(crashes.ADVICE, "").rstrip()]
    for call, path in results.refused_files[:MOST_FILES]:
        at = [n for n, row in enumerate(rows) if path and path in row]
        at += [n for n, row in enumerate(code) if re.search(OPENS, row)]
        place = f"{name}:{at[0] + 1}: " if at else ""
        lines.append(
            f'{place}{call}("{path}") failed: kernels cannot open files, except the files about caches in '
            "/sys/devices/system/cpu/cpu0/cache"
        )
    return replace(known, message="\n".join(lines))
