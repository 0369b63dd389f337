"""From a ledger to what people read: rows for the reports, and one student's result on the terminal.

Nothing is graded here. Results are read one at a time, so that a class of any size needs the memory of one.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TextIO

from grader import ledger, manual, score
from grader.assignment import Assignment, load
from grader.errors import KitError, UsageError
from grader.harmless import one_line
from grader.ledger import Entry, History, Record
from grader.report import classbook, result_json
from grader.report.classbook import Row
from grader.report.terminal import OPEN, Terminal
from grader.results import Score, SubmissionResult

MANUAL = "manual.csv"
NOT_YET = "not graded yet"
Manual = Mapping[str, Mapping[str, float]]


def read_manual(folder: Path, given: Path | None, assignment: Assignment, ids: Collection[str]) -> Manual:
    """Points that people give, by submission and item: from `given`, else from manual.csv in the folder if it is there.

    Raises UsageError with file and line for what is wrong in it, such as an id that is not among `ids`.
    """
    path = given or folder / MANUAL
    return manual.read_manual(path, assignment, ids) if given or path.is_file() else {}


def write_reports(folder: Path, assignment: Assignment, history: History, points: Manual) -> tuple[str, ...]:
    """grades.csv, report.html and the feedback files, for all who are on the roster; returns notes for the caller."""
    return classbook.write(folder, assignment, rows(folder, assignment, history, points))


def rows(folder: Path, assignment: Assignment, history: History, points: Manual) -> Iterator[Row]:
    """One row for each on the roster, in its order, graded or not."""
    for entry in history.roster:
        result, trouble = result_of(folder, entry, history.records.get(entry.submission_id))
        scored = score_of(assignment, entry, result, points)
        yield Row(
            submission_id=entry.submission_id,
            name=entry.name,
            email=", ".join(entry.emails),
            result=result,
            score=scored,
            trouble=trouble,
            submitted_at=submitted_at(entry),
            late_days=scored.late_days if scored else 0,
        )


def result_of(
    folder: Path, entry: Entry, record: Record | None
) -> tuple[SubmissionResult | None, str | None]:
    """The result that counts, or why there is none."""
    if record is None:
        return None, entry.error or NOT_YET
    if record.trouble:
        mine = record.fault == "submission"
        return None, record.trouble if mine else f"not graded, by the kit's fault: {record.trouble}"
    try:
        return result_json.read(folder / entry.submission_id / ledger.RESULT), None
    except (UsageError, KitError) as error:
        return None, f"its result cannot be read ({error}); run again with --resume"


def score_of(
    assignment: Assignment, entry: Entry, result: SubmissionResult | None, points: Manual
) -> Score | None:
    """Points by the rubric and by hand, less late days where the time of submission is known."""
    if result is None:
        return None
    at = submitted_at(entry)
    late_s = score.lateness_s(assignment, at) if at else None
    return score.score(assignment, result, points.get(entry.submission_id), late_s)


def submitted_at(entry: Entry) -> datetime | None:
    return datetime.fromisoformat(entry.submitted_at) if entry.submitted_at else None


# ---- report DIR, show DIR ID


def open_book(folder: Path) -> tuple[Assignment, History]:
    """A class that was graded in this folder, with the assignment as it is now. Raises UsageError if there is none."""
    history = ledger.read(folder)
    if not history.runs:
        raise UsageError(f"{folder} holds no {ledger.LEDGER}: name the folder that was --out of a run")
    return load(Path(history.runs[-1].config), history.runs[-1].seed), history


def ids_of(history: History) -> list[str]:
    return [entry.submission_id for entry in history.roster]


def report(folder: Path, by_hand: Path | None, stream: TextIO = sys.stdout) -> int:
    """Write the reports anew. Raises UsageError while a run holds the folder."""
    assignment, history = open_book(folder)
    points = read_manual(folder, by_hand, assignment, ids_of(history))
    with ledger.hold(folder):
        history = ledger.read(folder)
        notes = write_reports(folder, assignment, history, points)
    for note in notes:
        print(f"note: {note}", file=stream)
    stale = [r for r in history.records.values() if r.fingerprints.assignment != assignment.fingerprint]
    if stale:
        print(
            f"note: {len(stale)} results are of {assignment.path} as it was before its last change; "
            "`run ... --resume` grades them again",
            file=stream,
        )
    print(f"wrote {folder / 'grades.csv'} and {folder / 'report.html'}", file=stream)
    return 0


def show(folder: Path, submission_id: str, by_hand: Path | None, stream: TextIO = sys.stdout) -> int:
    """One student's result as the terminal report shows it. Raises UsageError when nobody is called so."""
    assignment, history = open_book(folder)
    entry = next((entry for entry in history.roster if entry.submission_id == submission_id), None)
    if entry is None:
        raise UsageError(no_such_submission(submission_id, ids_of(history)))
    result, trouble = result_of(folder, entry, history.records.get(submission_id))
    terminal = Terminal(stream)
    known_as = f" ({one_line(entry.name)})" if entry.name != entry.submission_id else ""
    terminal.say(f"{entry.submission_id}{known_as}")
    if result is None:
        terminal.say(trouble or "")
        return 0
    for part in result.parts:
        terminal.verdict(part)
    terminal.scoreboard(result)
    points = read_manual(folder, by_hand, assignment, ids_of(history))
    scored = score_of(assignment, entry, result, points)
    if scored is not None:
        terminal.say(score_text(scored))
    return 0


def score_text(scored: Score) -> str:
    """What the rubric makes of the verdicts: late days, points by hand, the total."""
    lines = []
    for line in scored.lines:
        points = OPEN if line.id in scored.waiting else f"{line.points:g}"
        lines.append(f"{line.title}: {points} of {line.max_points:g}; {line.reason}")
    if scored.penalty:
        lines.append(f"{scored.late_days} late days: -{scored.penalty:g}")
    total = OPEN if scored.waiting else f"{scored.total:g}"
    lines.append(f"total: {total} of {scored.max_points:g}")
    if scored.pending:
        lines.append(f"not final: {', '.join(scored.pending)}")
    return "\n" + "\n".join(lines)


def no_such_submission(wanted: str, known: list[str]) -> str:
    """The mistake and what may have been meant."""
    close = get_close_matches(wanted, known, 3, 0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {len(known)}, such as {known[:1]}"
    return f"no submission is called '{wanted}': {hint}"
