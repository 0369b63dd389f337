"""Reports of a class, made from its ledger: rows for the report files, and one student's result on the terminal.

This module grades nothing. It reads one result at a time, so that memory does not grow with the class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from grader import score
from grader.assignment import layers, prints
from grader.assignment.loading import load
from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.core.errors import UsageError, explained
from grader.core.harmless import one_line
from grader.core.quantities import shortened
from grader.core.results import Score, SubmissionResult
from grader.report import classbook, feedback, result_json
from grader.report.grades_csv import csv_line, safe_text
from grader.report.machines import Row, load_text
from grader.report.tally import flags_of
from grader.report.terminal import OPEN, Terminal
from grader.report.words import moment, number, plural, zone_of
from grader.staff.classroom import byhand, changes, ledger
from grader.staff.classroom.byhand import ByHand, Days
from grader.staff.classroom.changes import Graded
from grader.staff.classroom.ledger import Entry, History, Ledger, Record, Reported, Run
from grader.submission.ids import closest

NOT_YET = "not graded yet"
MAIL_MERGE = "mailmerge.csv"
LONGEST_PATH = 4096
"""Maximum number of characters of a path in a message: Linux cannot open longer paths."""
NO_TABLE = byhand.NONE


def write_reports(
    book: Ledger, assignment: Assignment, history: History, by_hand: ByHand, before: Graded | None = None
) -> list[str]:
    """Write the reports for all submissions. Return lines to print, with the points changed since `before`."""
    before = before or changes.before(book.folder)
    totals: dict[str, float] = {}
    written = classbook.write(
        book.folder,
        assignment,
        _noting_totals(rows(book.folder, assignment, history, by_hand), totals),
        machines=history.machines.values(),
    )
    book.reported(Reported(ledger.now(), by_hand.source, totals))
    notes = [by_hand.note, untimed(assignment, history.roster), *lowered(history, totals, by_hand), *written]
    return [*(f"note: {note}" for note in notes if note), *changed(book.folder, before)]


def changed(folder: Path, before: Graded | None) -> list[str]:
    """Write changes.csv with the points that differ from the state `before`. Return lines on the changes to print."""
    if before is None:
        return []
    now = changes.read(folder)
    found = changes.between(before, now)
    if not found:
        return []
    changes.write_csv(folder / changes.CHANGES, found)
    return [*changes.lines(before, now, found), f"changes: {folder / changes.CHANGES}"]


def _noting_totals(found: Iterable[Row], totals: dict[str, float]) -> Iterator[Row]:
    for row in found:
        if row.total is not None and math.isfinite(row.total):
            totals[row.submission_id] = row.total
        yield row


def lowered(history: History, totals: Mapping[str, float], by_hand: ByHand) -> list[str]:
    """Return a note, as a list of one text, on totals that are lower than in the last report; [] for none."""
    if history.reported is None:
        return []
    before, on_roster = history.reported, {entry.submission_id for entry in history.roster}
    fallen = [
        f"{name} {total:g} -> {f'{totals[name]:g}' if name in totals else 'none'}"
        for name, total in before.totals.items()
        if name in on_roster and totals.get(name, -math.inf) < total
    ]
    if not fallen:
        return []
    warning = plural(len(fallen), "total is", "totals are")
    warning += f" LOWER than in the report of {before.at}: {shortened(fallen)}"
    if before.manual != by_hand.source:
        warning += (
            f"; points by hand came from {before.manual or 'no table'} then, "
            f"and from {by_hand.source or 'no table'} now (--manual FILE)"
        )
    return [warning]


def untimed(assignment: Assignment, roster: Sequence[Entry]) -> str:
    """Return a note on submissions without a time, which count as on time; "" for none or without a due date."""
    due = assignment.late.due if assignment.late else None
    names = [entry.submission_id for entry in roster if entry.submitted_at is None]
    if due is None or not names:
        return ""
    return (
        f"{len(names)} of {plural(len(roster), 'submission')} without a submission time, counted as on time (due "
        f"{due.isoformat()}): {shortened(names)}; to add times, use `run ... --resume --submitted FILE.csv` (columns "
        "id,time) or, for a folder whose file times are right, --file-times"
    )


def rows(folder: Path, assignment: Assignment, history: History, by_hand: ByHand) -> Iterator[Row]:
    """Yield one row for each submission on the roster, in the roster's order, graded or not."""
    for entry in history.roster:
        record = history.records.get(entry.submission_id)
        result, trouble = result_of(folder, entry, record)
        scored = score_of(assignment, entry, result, by_hand) if result else None
        days = by_hand.days.get(entry.submission_id, Days())
        yield Row(
            submission_id=entry.submission_id,
            name=entry.name,
            email=", ".join(entry.emails),
            result=result,
            score=scored,
            trouble=trouble,
            submitted_at=submitted_at(entry),
            late_days=scored.late_days if scored else 0,
            extension_days=days.extension,
            slip_days=days.slip_used(assignment.late, late_s(assignment, entry)),
            machine=record.machine if record else "",
        )


def result_of(
    folder: Path, entry: Entry, record: Record | None
) -> tuple[SubmissionResult | None, str | None]:
    """Return (the submission's result, the reason why it is missing or incomplete); each may be None."""
    if record is None:
        return None, entry.error or NOT_YET
    if record.fault == "kit":
        return None, f"not graded because the kit or the machine failed: {record.trouble}"
    path = folder / entry.submission_id / ledger.RESULT
    try:
        with plainfile.folder(path.parent) as place:
            return result_json.read(path, inside=place), record.trouble or None
    except OSError as error:
        why: object = f"{path.parent}: {error.strerror}"
    except UsageError as error:
        why = error
    return None, record.trouble or f"its result cannot be read ({why}); run again with --resume"


def score_of(assignment: Assignment, entry: Entry, result: SubmissionResult, by_hand: ByHand) -> Score:
    """Return the score: points by rubric and by hand, minus the late penalty if a submission time is known."""
    late = late_s(assignment, entry)
    if late is not None:
        late = by_hand.days.get(entry.submission_id, Days()).late_s(late)
    return score.score(assignment, result, by_hand.points.get(entry.submission_id), late)


def late_s(assignment: Assignment, entry: Entry) -> float | None:
    """Return an entry's lateness in seconds: 0 if it is in time, None without a submission time or a due date."""
    at = submitted_at(entry)
    return score.lateness_s(assignment, at) if at else None


def submitted_at(entry: Entry) -> datetime | None:
    return datetime.fromisoformat(entry.submitted_at) if entry.submitted_at else None


# ---- report DIR, show DIR ID


def open_book(folder: Path) -> tuple[Assignment, History]:
    """Return (the assignment as its file is now, the history) of a folder. Raises UsageError without a ledger."""
    history = ledger.read(folder)
    if not history.runs:
        raise UsageError(f"{folder} holds no {ledger.LEDGER}: name the --out folder of a run")
    run = history.runs[-1]
    return load_recorded(folder, config_of(folder, run), run.seed), history


def load_recorded(folder: Path, config: Path, seed: int | None) -> Assignment:
    """Load the assignment file `config`, which the ledger in `folder` names.

    Raises UsageError if the file has mistakes. A forged ledger may name any file, even a secret one. So if the file is
    not an assignment, the error does not quote its content.
    """
    try:
        return load(config, seed)
    except UsageError as error:
        if layers.are_assignments(config):
            raise
        raise UsageError(
            f"{folder} was graded with {config}, which is no longer an assignment file: restore it, or name another "
            "one with `run ... --resume --config FILE`"
        ) from error


def config_of(folder: Path, run: Run) -> Path:
    """Return the path of a run's assignment file. Raises UsageError if it no longer exists or is not a file."""
    config = Path(run.config)
    try:
        there, is_file = config.exists(), config.is_file()
    except (OSError, ValueError):
        there = is_file = False
    if not is_file:
        what = "is a folder, a pipe or a device, not a regular file" if there else "no longer exists"
        raise UsageError(
            f"{folder} was graded with {one_line(str(config), LONGEST_PATH)}, which {what}: put it back, or name "
            "another with `run ... --resume --config FILE`"
        )
    return config


def config_in(folder: Path | None) -> Path | None:
    """Return the path of the assignment file with which `folder` was graded; None without folder or ledger."""
    runs = ledger.read(folder).runs if folder is not None and (folder / ledger.LEDGER).is_file() else ()
    return config_of(folder, runs[-1]) if folder is not None and runs else None


def entry_named(history: History, wanted: str) -> Entry:
    """Return the submission with the id `wanted`, or the only one whose id or name contains that text.

    Case is ignored. Raises UsageError if no submission or several match.
    """
    found = closest(wanted, {entry.submission_id: entry.name for entry in history.roster})
    return next(entry for entry in history.roster if entry.submission_id == found)


def ids_of(history: History) -> list[str]:
    return [entry.submission_id for entry in history.roster]


def report(
    folder: Path,
    manual: Path | None,
    *,
    exports: Mapping[str, Path] | None = None,
    column: str | None = None,
) -> int:
    """Write the reports again. Return exit code 0.

    `manual` is the table of points by hand (see `byhand.read`). `exports` are gradebooks to fill, by platform name;
    `column` is the assignment's column in them. Raises UsageError if a run is using the folder or an export cannot be
    filled. In both cases nothing is written.
    """
    from grader.staff.platforms import gradebook, table

    open_book(folder)
    with ledger.hold(folder) as book:
        assignment, history = open_book(folder)
        by_hand = byhand.read(folder, manual, history, assignment, ids_of(history))
        filled = {}
        if exports:
            for name in exports:
                gradebook.place_of(folder, name)  # Raises UsageError before any file is written.
            graded = rows(folder, assignment, history, by_hand)
            filled = gradebook.filled(exports, table.gradebooks(), assignment, graded, history.roster, column)
        written = write_reports(book, assignment, history, by_hand)
        places = {name: gradebook.write(folder, name, found) for name, found in filled.items()}
    print(*written, sep="\n", end="\n" if written else "")
    judging = prints.of_parts(assignment)
    stale = [
        record
        for record in history.records.values()
        if record.fingerprints.assignment != assignment.fingerprint
        and history.judging(record.fingerprints.assignment) != judging
    ]
    if stale:
        print(
            f"note: {plural(len(stale), 'result was', 'results were')} judged before the last change of "
            f"{assignment.path}; `run ... --resume` grades them again",
        )
    print(f"wrote {folder / 'grades.csv'} and {folder / 'report.html'}")
    for name, found in filled.items():
        print("\n".join(f"{name}: {note}" for note in found.notes))
        print(f"wrote {places[name]}: a copy of {exports[name] if exports else ''} with the totals")
    return 0


def give_feedback(folder: Path, to: Path, *, as_html: bool) -> int:
    """Write each student's feedback (HTML or text) and a table for a mail merge into `to`. Return exit code 0."""
    assignment, history = open_book(folder)
    by_hand = byhand.read(folder, None, history, assignment, ids_of(history))
    table = [csv_line(("email", "name", "id", "file", "total", "max_points", "final"))]
    suffix, make = ("html", feedback.html) if as_html else ("txt", feedback.feedback)
    unaddressed, pending = [], []
    with explained(f"cannot write in {to}"), plainfile.folder(to, make=True) as place:
        for entry, row in zip(history.roster, rows(folder, assignment, history, by_hand), strict=True):
            name = f"{row.submission_id}.{suffix}"
            plainfile.replace(place, name, [make(assignment, row).encode()], sync=False)
            is_final = row.total is not None and not (row.score and row.score.pending)
            ([] if is_final else pending).append(row.submission_id)
            ([] if entry.emails else unaddressed).append(row.submission_id)
            final = "yes" if is_final else "no"
            cells = (row.submission_id, name, number(row.total), number(row.max_points), final)
            addresses = map(safe_text, entry.emails or ("",))
            table += [csv_line((address, safe_text(row.name), *cells)) for address in addresses]
        plainfile.replace(place, MAIL_MERGE, ["".join(table).encode("utf-8-sig")])
    print(f"wrote {plural(len(history.roster), 'file')} and {to / MAIL_MERGE}; nothing is sent")
    if unaddressed:
        print(f"note: {plural(len(unaddressed), 'has', 'have')} no e-mail address: {shortened(unaddressed)}")
    if pending:
        print(f"note: {plural(len(pending), 'total is', 'totals are')} not final: {shortened(pending)}")
    return 0


def extend(
    folder: Path, submission_id: str | None, extension: int | None, slip: int | None, reason: str | None
) -> int:
    """Set one student's extension and slip days, and write the reports again. Return exit code 0.

    If `submission_id` is None, only print the days of all students. If `extension`, `slip` or `reason` is None, the old
    value stays; 0 removes days. Raises UsageError if both numbers of days are None, or if the assignment has no late
    rule.
    """
    assignment, history = open_book(folder)
    ids = ids_of(history)
    days, notes = byhand.read_days(folder, ids)
    if submission_id is None:
        listed = [f"{name}: {each.text()}" for name, each in sorted(days.items()) if each]
        print("\n".join([*listed, *notes]) or "no student has an extension or slip days")
        return 0
    if assignment.late is None:
        raise UsageError(
            f"{assignment.path} has no key `late`: no submission counts as late, so no days are needed"
        )
    if extension is None and slip is None:
        raise UsageError("give --days n, --slip n or both; n = 0 removes the earlier days")
    with ledger.hold(folder):
        name = entry_named(history, submission_id).submission_id
        given = {"extension": extension, "slip": slip, "reason": reason}
        now = replace(
            days.get(name, byhand.Days()), **{key: value for key, value in given.items() if value is not None}
        )
        byhand.write_days(folder, {**days, name: now})
    print(f"{name}: {now.text() or 'no days'}; written to {folder / byhand.FILE}")
    return report(folder, None)


def show(folder: Path, submission_id: str, manual: Path | None) -> int:
    """Print a student's result as `gpt149.py` does, and the score. Return 0. Raises UsageError for an unknown id."""
    assignment, history = open_book(folder)
    entry = entry_named(history, submission_id)
    submission_id = entry.submission_id
    result, trouble = result_of(folder, entry, history.records.get(submission_id))
    terminal = Terminal(ladder=assignment.lab.ladder())
    known_as = f" ({one_line(entry.name)})" if entry.name != entry.submission_id else ""
    terminal.say(f"{entry.submission_id}{known_as}")
    if trouble:
        terminal.say(trouble)
    by_hand = byhand.read(folder, manual, history, assignment, ids_of(history))
    if result is None:
        terminal.say(f"total: none yet; by hand: {sum(by_hand.points.get(submission_id, {}).values()):g}")
        return 0
    scored = score_of(assignment, entry, result, by_hand)
    if not trouble:
        earned = {line.id: line.points for line in scored.lines}
        for part in result.parts:
            terminal.verdict(part, earned.get(part.id, 0.0))
        terminal.scoreboard(result, scored)
    terminal.say(conditions_text(result))
    terminal.say(score_text(scored))
    if assignment.late is not None:
        days = by_hand.days.get(submission_id, Days())
        terminal.say(lateness_text(assignment, entry, scored) + (f"; {days.text()}" if days else ""))
    if by_hand.source:
        terminal.say(f"points by hand: {folder / by_hand.source}")
    return 0


def conditions_text(result: SubmissionResult) -> str:
    """Return a text with one line on the machine that judged and its load, then one line for each flag."""
    facts = [str(result.machine.get("processor") or ""), load_text(result)]
    lines = [f"machine: {', '.join(one_line(fact, 80) for fact in facts if fact)}"] if any(facts) else []
    for part_id, flag in flags_of(result):
        where = f"{part_id}: " if part_id else ""
        lines.append(f"flag for {flag.level}: {where}{flag.code}; {one_line(flag.message, 300)}".rstrip("; "))
    return "\n".join(lines)


def lateness_text(assignment: Assignment, entry: Entry, scored: Score) -> str:
    at = submitted_at(entry)
    if at is None:
        return untimed(assignment, [entry]) and "handed in at an unknown time: no penalty for lateness"
    days = plural(scored.late_days, "late day")
    return f"handed in {moment(at, zone_of(assignment))}: {days}, -{scored.penalty:g} points"


def score_text(scored: Score) -> str:
    """Return the score as text: one line for each rubric item, then late days, the total, and what is still open."""
    lines = []
    for line in scored.lines:
        points = OPEN if line.id in scored.waiting else f"{line.points:g}"
        lines.append(f"{line.title}: {points} of {line.max_points:g}; {line.reason}")
    if scored.penalty:
        lines.append(f"{plural(scored.late_days, 'late day')}: -{scored.penalty:g}")
    total = OPEN if scored.waiting else f"{scored.total:g}"
    lines.append(f"total: {total} of {scored.max_points:g}")
    if scored.pending:
        lines.append(f"not final: {', '.join(scored.pending)}")
    return "\n" + "\n".join(lines)
