"""Appeals: one student's submission is judged again on this machine, in several rounds.

Each round also judges the calibration file, a correct solution. If that does not pass, or its times are unsteady, the
round does not count. An appeal writes a dated record and a page for the student into the student's folder. With
--accept, the result of the round with the median points replaces the recorded result. If the number of rounds is even,
the middle round with more points is taken.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grader import score, submission
from grader.assignment import labs
from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.core.errors import EXIT_KIT, EXIT_PASS, UsageError
from grader.core.results import PartResult, SubmissionResult
from grader.judge.evaluate import evaluate
from grader.report import result_json, student, words
from grader.report.charts import rounds
from grader.report.html import document
from grader.report.student import StudentView
from grader.sandbox import choose
from grader.staff import options
from grader.staff.classroom import byhand, changes, fingerprints, gradebook, ledger
from grader.staff.classroom.fingerprints import Fingerprints
from grader.staff.classroom.grading import light
from grader.staff.classroom.ledger import History, Ledger, Record
from grader.staff.classroom.worker import bounded, calibrated, is_unfit


@dataclass(frozen=True)
class Round:
    """Results of one round, for the submission and the calibration file.

    `at` is the round's start in UTC (ISO 8601). `load` is the 1-minute load average (before, after) the round. `points`
    are the submission's. `trouble` is the reason why the round does not count, or "".
    """

    at: str
    load: tuple[float, float]
    result: SubmissionResult
    calibration: SubmissionResult
    points: float
    trouble: str = ""


@dataclass(frozen=True)
class Appeal:
    """All rounds of one appeal, and the recorded result to which the student appeals.

    `chosen` is the index of the round with the median points; None if no round counts. `accepted`: True if this round
    replaces the recorded result. `threads` maps part ids to the number of threads of a timed call. `calibration` names
    the calibration file. `kit` is the digest of the kit's sources.
    """

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
    """Return the appeal's page for the student, as HTML."""
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
    """Return one or two sentences on the points of the appeal and of the recorded result."""
    before = words.number(appeal.recorded_points)
    if appeal.chosen is None:
        return f"No round counts, because the machine was too unsteady. The recorded {before} points stay."
    round_ = appeal.rounds[appeal.chosen]
    points = f"{words.number(round_.points)} points (the median: round {appeal.chosen + 1})"
    if appeal.accepted:
        return f"The recorded result is now this appeal's: {points}. It had {before} points before."
    return (
        f"This appeal measured {points}. The recorded result has {before} points, and has not been changed."
    )


def facts(appeal: Appeal) -> list[tuple[str, str]]:
    """Return (label, text) for each condition of the measurement, such as the machine, the load and the versions."""
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


MOST_ROUNDS = 50


def _round(
    assignment: Assignment,
    judged: Callable[[Path], SubmissionResult],
    source: Path,
    calibration: Path,
    submission_id: str,
) -> Round:
    at, before = ledger.now(), os.getloadavg()[0]
    result, beside = bounded(judged(source), submission_id), judged(calibration)
    trouble = calibrated(_plain(assignment, beside), is_unfit(beside))
    if is_unfit(result) and not trouble:
        trouble = "the machine was too unsteady: the reference differs from itself"
    load = round(before, 2), round(os.getloadavg()[0], 2)
    return Round(at, load, result, beside, score.score(assignment, result).earned, trouble)


def run(
    folder: Path,
    submission_id: str,
    *,
    rounds: int,
    calibration: Path | None = None,
    timing: bool = True,
    tier: str | None = None,
    trust: bool = False,
    accept: bool = False,
) -> int:
    """Judge one submission in `rounds` rounds, and write the record and the page. Return the exit code.

    `calibration` is by default the staff solution. `timing`: measure times. `trust`: allow a sandbox below tier C.
    `accept`: replace the recorded result. Raises UsageError for an unknown student, a missing source or result.
    """
    gradebook.open_book(folder)
    with ledger.hold(folder) as book:
        assignment, history = gradebook.open_book(folder)
        entry = gradebook.entry_named(history, submission_id)
        recorded = ledger.result(folder, entry.submission_id)
        record = history.records.get(entry.submission_id)
        if recorded is None or record is None or record.fault:
            raise UsageError(
                f"{entry.submission_id} has no result to appeal: {entry.error or gradebook.NOT_YET}"
            )
        if accept:
            _refuse_mixing(timing, assignment, history, record)
        box = choose(tier, trust)
        box.protect(folder)
        master = calibration or labs.master(assignment.lab_folder, assignment.source)
        sources = _sources(assignment, folder / entry.submission_id, master, book.scratch)
        wanted = options(assignment, history.runs[-1].timing and timing)

        def judged(source: Path) -> SubmissionResult:
            return evaluate(assignment, source, assignment.select("all"), wanted, sandbox=box)

        print(
            f"appeal of {entry.submission_id}: {rounds} rounds; each also judges the calibration file {master.name}"
        )
        made = []
        for k in range(rounds):
            made.append(_round(assignment, judged, *sources, entry.submission_id))
            print(line(k, made[-1]), flush=True)
        chosen = middle(made)
        appeal = Appeal(
            submission_id=entry.submission_id,
            name=entry.name,
            at=ledger.now(),
            rounds=tuple(made),
            recorded=recorded,
            recorded_points=score.score(assignment, recorded).earned,
            chosen=chosen,
            accepted=accept and chosen is not None,
            threads=threads(assignment),
            calibration=master.name,
            kit=fingerprints.of_kit(),
        )
        if appeal.accepted:
            _accept(book, assignment, history, record, appeal)
        for name, text in files(assignment, appeal).items():
            with plainfile.folder(folder / entry.submission_id) as place:
                plainfile.replace(place, name, [text.encode()])
            print(f"wrote {folder / entry.submission_id / name}")
    print(outcome(appeal))
    return EXIT_PASS if chosen is not None else EXIT_KIT


def _refuse_mixing(timing: bool, assignment: Assignment, history: History, record: Record) -> None:
    """Raise UsageError if the assignment has changed, or if a timed result would be replaced by one without times."""
    if not timing and history.runs[-1].timing:
        raise UsageError(
            "--accept with --no-time would replace a result that has times: leave out one of the two"
        )
    if record.fingerprints.assignment != assignment.fingerprint:
        raise UsageError(
            f"{assignment.path} has changed since the result was recorded: first judge the class again with"
            " `python -m grader run ... --resume`, then repeat this command"
        )


def _sources(assignment: Assignment, student: Path, master: Path, scratch: Path) -> list[Path]:
    """Copy the source in `student` and the file `master` into `scratch`. Return both copies, the student's first."""
    if not master.is_file():
        raise UsageError(
            f"there is no calibration file {master} (a right solution): name one with --calibration FILE"
        )
    scratch.chmod(0o711)
    sources = []
    for name, place in (("student", student), ("calibration", master)):
        one = submission.find_one(place, assignment.source, scratch / name)
        if one.source is None:
            raise UsageError(f"{place}: {one.error or f'there is no {assignment.source} in it'}")
        sources.append(one.source)
    return sources


def threads(assignment: Assignment) -> dict[str, int]:
    """Return {id of a timed part: number of threads of a timed call}."""
    usual = assignment.defaults.get("threads", 1)
    return {part.id: part.time.threads or usual for part in assignment.parts if part.time}


def middle(rounds: Sequence[Round]) -> int | None:
    """Return the index of the round with the median points among the rounds that count; None if no round counts."""
    ranked = sorted((each.points, k) for k, each in enumerate(rounds) if not each.trouble)
    return ranked[len(ranked) // 2][1] if ranked else None


def line(k: int, each: Round) -> str:
    """Return one line on round `k` (from 0): points, load, verdicts and ratios.

    Each timed part has its ratio, and that of the calibration file. An untimed part is named only if it did not pass.
    """
    beside = {part.id: part for part in each.calibration.parts}
    pieces = [f"round {k + 1}: {each.points:g} points, load {each.load[0]:.1f} to {each.load[1]:.1f}"]
    for part in each.result.parts:
        time, other = part.time, beside[part.id].time if part.id in beside else None
        if time:
            low, high = time.ratio_interval
            pieces.append(
                f"{part.id} {part.verdict} {time.ratio:.2f} ({low:.2f} to {high:.2f})"
                + (f", calibration {other.ratio:.2f}" if other else "")
            )
        elif part.verdict != "pass":
            pieces.append(f"{part.id} {part.verdict}")
    return "; ".join(pieces) + (f"; does not count: {each.trouble}" if each.trouble else "")


def _accept(book: Ledger, assignment: Assignment, history: History, record: Record, appeal: Appeal) -> None:
    """Replace the recorded result, write the reports, and print the table of changed points."""
    assert appeal.chosen is not None
    by_hand = byhand.read(book.folder, None, history, assignment, gradebook.ids_of(history))
    before = changes.before(book.folder, [record.submission_id])
    result = appeal.rounds[appeal.chosen].result
    values = _plain(assignment, result)
    prints = record.fingerprints
    now = Fingerprints(prints.source, assignment.fingerprint, appeal.kit, prints.settings)
    book.finish(
        replace(
            record,
            fingerprints=now,
            at=appeal.at,
            reason=f"appeal of {appeal.at}",
            timings=(),
            **light(values),
        ),
        values,
    )
    for text in gradebook.write_reports(book, assignment, ledger.read(book.folder), by_hand, before):
        print(text)


def files(assignment: Assignment, appeal: Appeal) -> dict[str, str]:
    """Return the appeal's files as {file name: text}: a JSON record for the staff and an HTML page for the student."""
    name = f"appeal-{''.join(filter(str.isalnum, appeal.at.removesuffix('+00:00')))}Z"
    made = [
        {
            **{key: getattr(each, key) for key in ("at", "load", "points", "trouble")},
            "result": _plain(assignment, each.result),
            "calibration": _plain(assignment, each.calibration),
        }
        for each in appeal.rounds
    ]
    kept = ("submission_id", "at", "kit", "calibration", "recorded_points", "chosen", "accepted")
    record = {
        "schema_version": 1,
        **{key: getattr(appeal, key) for key in kept},
        "assignment_fingerprint": assignment.fingerprint,
        "threads": dict(appeal.threads),
        "rounds": made,
    }
    text = html(assignment, appeal)
    record["page_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return {f"{name}.json": json.dumps(record, indent=1) + "\n", f"{name}.html": text}


def _plain(assignment: Assignment, result: SubmissionResult) -> dict[str, Any]:
    return result_json.to_dict(result, score.score(assignment, result))
