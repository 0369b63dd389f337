"""An appeal: one student judged and timed again on this machine, several times, beside the calibration file.

Each appeal leaves a dated record and a page for the student in the student's folder. The recorded result changes only
if the staff accepts the appeal. Then the round in the middle by points counts; of two in the middle, the better one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grader import score, submission
from grader.assignment import labs
from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.core.errors import EXIT_KIT, EXIT_PASS, UsageError
from grader.core.results import SubmissionResult
from grader.judge.evaluate import evaluate
from grader.report import appeal as report
from grader.report import result_json
from grader.report.appeal import Appeal, Round
from grader.sandbox import Sandbox, choose
from grader.staff.classroom import byhand, changes, fingerprints, gradebook, ledger
from grader.staff.classroom.fingerprints import Fingerprints
from grader.staff.classroom.grading import light
from grader.staff.classroom.ledger import Entry, History, Ledger, Record
from grader.staff.classroom.worker import bounded, calibrated, is_unfit, options

MOST_ROUNDS = 50


@dataclass(frozen=True)
class Request:
    """Arguments of the command line. `calibration` is by default the assignment's master."""

    folder: Path
    submission_id: str
    rounds: int
    calibration: Path | None = None
    timing: bool = True
    tier: str | None = None
    trust: bool = False
    accept: bool = False


@dataclass(frozen=True)
class Judge:
    """Settings that all rounds share, and the two files that are judged."""

    assignment: Assignment
    source: Path
    calibration: Path
    beside: str
    """Name of the calibration file as it was given."""
    timing: bool
    box: Sandbox

    def round(self, submission_id: str) -> Round:
        at, before = ledger.now(), os.getloadavg()[0]
        result = bounded(self._judged(self.source), submission_id)
        beside = self._judged(self.calibration)
        values = result_json.to_dict(beside, score.score(self.assignment, beside))
        trouble = calibrated(values, is_unfit(beside))
        if is_unfit(result) and not trouble:
            trouble = "the reference differs from itself beside this submission: the machine was too unsteady"
        load = round(before, 2), round(os.getloadavg()[0], 2)
        return Round(at, load, result, beside, score.score(self.assignment, result).earned, trouble)

    def _judged(self, source: Path) -> SubmissionResult:
        wanted = options(self.assignment, self.timing)
        return evaluate(self.assignment, source, self.assignment.select("all"), wanted, sandbox=self.box)


def run(wanted: Request) -> int:
    """Judge again, write the record and the page; return the exit code.

    Raises UsageError for an unknown student, a submission without a source, or a result that cannot be replaced.
    """
    gradebook.open_book(wanted.folder)
    with ledger.hold(wanted.folder) as book:
        assignment, history = gradebook.open_book(wanted.folder)
        entry = gradebook.entry_named(history, wanted.submission_id)
        recorded = ledger.result(wanted.folder, entry.submission_id)
        record = history.records.get(entry.submission_id)
        if recorded is None or record is None or record.fault:
            raise UsageError(
                f"{entry.submission_id} has no result to appeal: {entry.error or gradebook.NOT_YET}"
            )
        timing = history.runs[-1].timing and wanted.timing
        if wanted.accept:
            _refuse_mixing(wanted, assignment, history, record)
        judge = _judge(wanted, assignment, entry, book.scratch, timing=timing)
        print(f"appeal of {entry.submission_id}: {wanted.rounds} rounds beside {judge.beside}")
        rounds = []
        for k in range(wanted.rounds):
            rounds.append(judge.round(entry.submission_id))
            print(line(k, rounds[-1]), flush=True)
        points = score.score(assignment, recorded).earned
        chosen = middle(rounds)
        appeal = Appeal(
            submission_id=entry.submission_id,
            name=entry.name,
            at=ledger.now(),
            rounds=tuple(rounds),
            recorded=recorded,
            recorded_points=points,
            chosen=chosen,
            accepted=wanted.accept and chosen is not None,
            threads=threads(assignment),
            calibration=judge.beside,
            kit=fingerprints.of_kit(),
        )
        if appeal.accepted:
            _accept(book, assignment, history, record, appeal)
        for name, text in files(assignment, appeal).items():
            with plainfile.folder(wanted.folder / entry.submission_id) as place:
                plainfile.replace(place, name, [text.encode()])
            print(f"wrote {wanted.folder / entry.submission_id / name}")
    print(report.outcome(appeal))
    return EXIT_PASS if chosen is not None else EXIT_KIT


def _refuse_mixing(wanted: Request, assignment: Assignment, history: History, record: Record) -> None:
    if not wanted.timing and history.runs[-1].timing:
        raise UsageError("--accept with --no-time would replace a result with times: leave out one of them")
    if record.fingerprints.assignment != assignment.fingerprint:
        raise UsageError(f"{assignment.path} has changed since: go on with `run ... --resume`, then --accept")


def _judge(wanted: Request, assignment: Assignment, entry: Entry, scratch: Path, *, timing: bool) -> Judge:
    box = choose(wanted.tier, wanted.trust)
    box.protect(wanted.folder)
    scratch.chmod(0o711)
    master = wanted.calibration or labs.master(assignment.lab_folder, assignment.source)
    if not master.is_file():
        raise UsageError(f"there is no calibration file {master}: name one with --calibration FILE")
    sources = []
    for name, place in (("student", wanted.folder / entry.submission_id), ("calibration", master)):
        one = submission.find_one(place, assignment.source, scratch / name)
        if one.source is None:
            raise UsageError(f"{place}: {one.error or f'there is no {assignment.source} in it'}")
        sources.append(one.source)
    return Judge(assignment, sources[0], sources[1], master.name, timing, box)


def threads(assignment: Assignment) -> dict[str, int]:
    """Return the threads of a timed call, by part."""
    usual = assignment.defaults.get("threads", 1)
    return {part.id: part.time.threads or usual for part in assignment.parts if part.time}


def middle(rounds: Sequence[Round]) -> int | None:
    """Return the position of the round in the middle by points among those that count."""
    ranked = sorted((each.points, k) for k, each in enumerate(rounds) if not each.trouble)
    return ranked[len(ranked) // 2][1] if ranked else None


def line(k: int, each: Round) -> str:
    """Return one line on a round: points, then each timed part beside the calibration file's."""
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
    """Replace the recorded result, and write the reports with the table of what changed."""
    assert appeal.chosen is not None
    by_hand = byhand.read(book.folder, None, history, assignment, gradebook.ids_of(history))
    before = changes.before(book.folder, [record.submission_id])
    result = appeal.rounds[appeal.chosen].result
    values = result_json.to_dict(result, score.score(assignment, result))
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
    written = gradebook.write_reports(book, assignment, ledger.read(book.folder), by_hand, before)
    for text in (*(f"note: {note}" for note in written.notes), *written.changed):
        print(text)


def files(assignment: Assignment, appeal: Appeal) -> dict[str, str]:
    """Return the dated files of an appeal: the record for the staff, the page for the student."""
    name = f"appeal-{''.join(filter(str.isalnum, appeal.at.removesuffix('+00:00')))}Z"
    rounds = [
        {
            "at": each.at,
            "load": list(each.load),
            "points": each.points,
            "trouble": each.trouble,
            "result": _plain(assignment, each.result),
            "calibration": _plain(assignment, each.calibration),
        }
        for each in appeal.rounds
    ]
    record = {
        "schema_version": 1,
        "submission_id": appeal.submission_id,
        "at": appeal.at,
        "assignment_fingerprint": assignment.fingerprint,
        "kit": appeal.kit,
        "threads": dict(appeal.threads),
        "calibration": appeal.calibration,
        "recorded_points": appeal.recorded_points,
        "chosen": appeal.chosen,
        "accepted": appeal.accepted,
        "rounds": rounds,
    }
    page = report.html(assignment, appeal)
    record["page_sha256"] = hashlib.sha256(page.encode()).hexdigest()
    return {f"{name}.json": json.dumps(record, indent=1) + "\n", f"{name}.html": page}


def _plain(assignment: Assignment, result: SubmissionResult) -> object:
    return result_json.to_dict(result, score.score(assignment, result))
