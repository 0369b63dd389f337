"""A class graded unattended: every submission gets a verdict, nothing that is finished is done twice.

Theory of operation. The judge is one small process without torch. It finds the submissions, compares the fingerprints
of each with those of its last record, hands what is new or out of date to an executor, and keeps every answer in the
ledger (`grader.staff.classroom.ledger`) before it counts. A submission whose worker died goes back into the queue once,
and then on record as the kit's fault; one that was timed on an unsteady machine goes to the end of the queue, twice at
most. The reports are written at the end and when the judge is interrupted; after a `kill -9` the ledger alone is enough
to go on.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

from grader import submission
from grader.assignment.records import Assignment, RunLimits
from grader.base import plainfile
from grader.base.commandline import EXIT_INTERRUPTED
from grader.base.errors import EXIT_KIT, EXIT_PASS, UsageError
from grader.build.compilers import HEADER_TIMEOUT_S
from grader.judge.integrity import inspection
from grader.report import result_json
from grader.report.progress import Progress, counted, shortened
from grader.sandbox import Sandbox
from grader.staff.classroom import byhand, fingerprints, gradebook, ledger, resuming, times, waiting
from grader.staff.classroom.executor import LocalExecutor
from grader.staff.classroom.fingerprints import Fingerprints
from grader.staff.classroom.grading import Grading, Interruption, Planned
from grader.staff.classroom.ledger import Entry, History, Record, Run, now
from grader.staff.classroom.resuming import COMMIT_TIMES, FILE_TIMES
from grader.staff.classroom.worker import Settings
from grader.staff.platforms import github
from grader.submission import Submission
from grader.submission.ids import no_such_submission

CALLS_OF_A_STEP = 200
"""No step of the work makes more calls of the longest duration than this: two measurements, each of eight rounds of
four calls and two to warm up, after which the measurement's own budget of time ends it, and the cases."""
INSPECTION_SILENCE_S = inspection.TIMEOUT_S + 10
SLACK_S = 60.0
"""For what a step does besides, on a busy machine."""


@dataclass(frozen=True)
class RunOptions:
    """What the command line asks for, and how it asks when it goes on with what is left.

    What is None was not said: with `resume` it is as in the run before (`grader.staff.classroom.resuming`), else it has
    its default. `manual` may be byhand.NONE.
    """

    submissions: Path
    out: Path
    workers: int
    config: Path | None = None
    resume: bool = False
    again: bool = False
    regrade: bool = False
    only: tuple[str, ...] = ()
    seed: int | None = None
    timing: bool = True
    trust: bool = False
    tier: str | None = None
    manual: Path | None = None
    submitted: Path | None = None
    file_times: bool = False
    commit_times: bool = False
    to_resume: str = "the same command and --resume"


def run(wanted: RunOptions, stream: TextIO = sys.stdout, command: Sequence[str] = ()) -> int:
    """Grade a class; returns the exit code. `command` starts another kind of worker.

    Raises UsageError for what the caller can mend, KitError when nothing can be graded on this machine.
    """
    refuse_mixing(wanted)
    # Mistakes in the assignment, or in what is asked of an earlier run, are told before anything is made.
    resuming.settle(wanted, ledger.read(wanted.out))
    with ledger.hold(wanted.out) as book, Interruption() as interruption:
        history = ledger.read(wanted.out)
        if history.records and not wanted.resume:
            raise UsageError(
                f"{wanted.out} holds {len(history.records)} results already: continue with --resume, "
                "or choose another --out"
            )
        wanted, assignment, seed = resuming.settle(wanted, history)
        box = resuming.sandbox_for(wanted, history, stream)
        box.protect(wanted.out, wanted.submissions)
        submissions = found(wanted, assignment, book.scratch)
        roster_file = github.find_roster(wanted.submissions)
        roster_notes: list[str] = []
        if roster_file is not None:
            submissions, roster_notes = github.named(submissions, github.read_roster(roster_file))
        submissions = timed(wanted, history, assignment, submissions, book.scratch)
        ids = [item.id for item in submissions]
        refuse_places(wanted.out, ids)
        by_hand = byhand.read(wanted.out, wanted.manual, history, assignment, ids)
        assert wanted.config is not None
        start = Run(
            at=now(),
            config=str(wanted.config.resolve()),
            assignment=assignment.id,
            assignment_fingerprint=assignment.fingerprint,
            kit=fingerprints.of_kit(),
            seed=seed,
            timing=wanted.timing,
            sandbox=box.tier,
            workers=wanted.workers,
            manual=by_hand.source,
            submitted=resuming.source_of_times(wanted, history),
        )
        todo = plan(wanted, start, submissions, history)
        tell(f"{len(submissions)} submissions, sandbox tier {box.tier}, seed {assignment.seed}", stream)
        for note in roster_notes:
            tell(f"note: {note}", stream)
        tell_plan(wanted, submissions, todo, history, stream)
        roster = [entry_of(item) for item in submissions]
        untimed = gradebook.untimed(assignment, roster)
        if untimed:
            tell(f"note: {untimed}", stream)
        book.open_run(start, roster)
        executor = executor_for(wanted, start, assignment, box, book.scratch, command)
        with closing(executor), Progress(len(todo), stream) as progress:
            Grading(book, progress, todo, assignment).drive(executor, interruption)
        history = ledger.read(wanted.out)
        for note in gradebook.write_reports(book, assignment, history, by_hand):
            if note != untimed:
                tell(f"note: {note}", stream)
        return conclude(wanted, history, bool(interruption.asked), stream)


# ---- before


def refuse_mixing(wanted: RunOptions) -> None:
    """Results among submissions would be submissions the next time, and lie in the students' own folders."""
    if wanted.out.resolve().is_relative_to(wanted.submissions.resolve()):
        raise UsageError(
            f"--out {wanted.out} lies among the submissions: choose a folder outside of {wanted.submissions}"
        )


def found(wanted: RunOptions, assignment: Assignment, scratch: Path) -> list[Submission]:
    """All submissions, in a private place. Raises UsageError when there are none, or not those that --only names."""
    # Workers and runners under other users pass through to their own folders, and cannot list it.
    scratch.chmod(0o711)
    submissions = submission.find(wanted.submissions, assignment.source, scratch / "submissions")
    ids = [item.id for item in submissions]
    for name in wanted.only:
        if name not in ids:
            raise UsageError("--only: " + no_such_submission(name, sorted(ids)))
    return submissions


def refuse_places(out: Path, ids: Sequence[str]) -> None:
    """What stands in the way of a file that will be written, told before anybody is graded: a link where somebody's
    folder belongs would lead the files elsewhere. Raises UsageError."""
    places = [(out / name, False) for name in ("grades.csv", "report.html")]
    for name in ids:
        places.append((out / name, True))
        places += [(out / name / file, False) for file in (ledger.RESULT, "feedback.txt")]
    for place, wants_folder in places:
        if trouble := plainfile.trouble_with(place, wants_folder=wants_folder):
            raise UsageError(f"cannot write {place}: {trouble}")


def timed(
    wanted: RunOptions,
    history: History,
    assignment: Assignment,
    submissions: list[Submission],
    scratch: Path,
) -> list[Submission]:
    """The submissions with the times that a table, their files or their commits give them, where one is asked for."""
    source = resuming.source_of_times(wanted, history)
    if source == FILE_TIMES:
        return [replace(item, submitted_at=item.submitted_at or item.modified_at) for item in submissions]
    if source == COMMIT_TIMES:
        return github.with_commit_times(submissions, scratch)
    if source is None:
        return submissions
    due = assignment.late.due if assignment.late else None
    given = times.read_times(Path(source), [item.id for item in submissions], due.tzinfo if due else None)
    return [replace(item, submitted_at=given.get(item.id, item.submitted_at)) for item in submissions]


def plan(wanted: RunOptions, start: Run, submissions: list[Submission], history: History) -> list[Planned]:
    """What has to be graded now, in the order of the submissions."""
    settings = fingerprints.of_text(f"timing {start.timing}")
    planned = []
    for item in submissions:
        if wanted.only and item.id not in wanted.only:
            continue
        source = item.sha256 or fingerprints.of_text(item.error or "")
        prints = Fingerprints(source, start.assignment_fingerprint, start.kit, settings)
        record = history.records.get(item.id)
        reason = out_of_date(wanted, record, prints)
        if record is None or reason:
            planned.append(Planned(item, prints, reason))
    return planned


def out_of_date(wanted: RunOptions, record: Record | None, prints: Fingerprints) -> str:
    """Why a finished submission has to be graded again; empty when it has not, or was never finished."""
    if record is None:
        return ""
    if record.fault == "kit":
        return "the kit failed last time"
    if changes := record.fingerprints.changes(prints):
        return ", ".join(changes)
    if is_here := waiting.is_over(record.waits_for):
        return is_here
    if not is_readable(wanted.out / record.submission_id / ledger.RESULT):
        return f"its {ledger.RESULT} cannot be read"
    return "asked for" if wanted.again else ""


def is_readable(result: Path) -> bool:
    try:
        with plainfile.folder(result.parent) as place:
            result_json.read(result, inside=place)
    except (OSError, UsageError):
        return False
    return True


def entry_of(item: Submission) -> Entry:
    return Entry(
        submission_id=item.id,
        name=item.name,
        emails=tuple(item.emails),
        submitted_at=item.submitted_at.isoformat() if item.submitted_at else None,
        marked_late=item.marked_late,
        error=item.error,
        identities=tuple(item.identities),
    )


def tell(text: str, stream: TextIO) -> None:
    print(text, file=stream, flush=True)


def tell_plan(
    wanted: RunOptions, submissions: list[Submission], todo: list[Planned], history: History, stream: TextIO
) -> None:
    """Say what was finished before, and why some of it is graded again."""
    finished = sum(item.id in history.records for item in submissions)
    again = [item for item in todo if item.reason]
    lines = [f"{finished - len(again)} were finished before and stay as they are"] if finished else []
    for reason in dict.fromkeys(item.reason for item in again):
        names = [item.submission.id for item in again if item.reason == reason]
        lines.append(f"{len(names)} are graded again ({reason}): {shortened(names)}")
    gone = sorted(history.records.keys() - {item.id for item in submissions})
    if gone:
        lines.append(
            f"{len(gone)} earlier results are of nobody in {wanted.submissions}: {shortened(gone)}; "
            "they are kept, but not in the reports"
        )
    planned = [item.submission for item in todo]
    left = {item.id for item in submissions} - {item.id for item in planned}
    waits = {name: known.waits_for for name, known in history.records.items() if name in left}
    waits = {name: tool for name, tool in waits.items() if tool} | waiting.expected(planned)
    lines += waiting.lines(waits, "--resume judges them")
    late = [item.id for item in submissions if item.marked_late]
    if late:
        lines.append(f"{len(late)} are marked late, but not by how much (no penalty): {shortened(late)}")
    if lines:
        tell("\n".join(lines), stream)


# ---- during


def executor_for(
    wanted: RunOptions,
    start: Run,
    assignment: Assignment,
    box: Sandbox,
    scratch: Path,
    command: Sequence[str],
) -> LocalExecutor:
    """Workers on this machine, none of them started yet."""
    slot = scratch / "slot"
    slot.mkdir(mode=0o700)
    settings = Settings(
        config=start.config,
        assignment_fingerprint=start.assignment_fingerprint,
        seed=start.seed,
        timing=start.timing,
        sandbox=asdict(box),
        slot=str(slot),
    )
    return LocalExecutor(
        settings,
        scratch,
        workers=wanted.workers,
        silence_s=silence_limits(assignment.limits),
        **({"command": command} if command else {}),
    )


def silence_limits(limits: RunLimits) -> dict[str, float | None]:
    """How long a worker may say nothing in each kind of its phases. Where it reads what a stranger wrote, seconds: one
    that is stuck there costs its own submission the verdict, and the others half a minute."""
    calls_s = CALLS_OF_A_STEP * limits.call_s + SLACK_S
    return {
        "waiting": None,  # for others to finish
        "headers": HEADER_TIMEOUT_S + SLACK_S,
        "building": limits.build_s + SLACK_S,
        "inspection": INSPECTION_SILENCE_S,
        "results": calls_s,
        "timing": calls_s,
    }


# ---- after


def conclude(wanted: RunOptions, history: History, interrupted: bool, stream: TextIO) -> int:
    """The last lines and the exit code: 0 when everybody who was to be graded has a verdict."""
    asked = [e.submission_id for e in history.roster if not wanted.only or e.submission_id in wanted.only]
    records = [history.records[name] for name in asked if name in history.records]
    verdicts = Counter(verdict for record in records for verdict in record.verdicts.values())
    unreadable = sum(record.fault == "submission" for record in records)
    failed = [record.submission_id for record in records if record.fault == "kit"]
    waits = {record.submission_id: record.waits_for for record in records if record.waits_for}
    graded = len(records) - len(failed) - len(waits)
    lines = [f"{graded} of {len(asked)} graded: {counted(verdicts) or 'no part'}"]
    if unreadable:
        lines.append(f"{unreadable} could not be read, and say why in the reports")
    lines.append(f"grades: {wanted.out / 'grades.csv'}   report: {wanted.out / 'report.html'}")
    if failed:
        lines.append(
            f"{len(failed)} have no verdict by the kit's fault: {shortened(failed)}; try again: {wanted.to_resume}"
        )
    lines += waiting.lines(waits, f"go on with: {wanted.to_resume}")
    if interrupted:
        lines.append(f"interrupted; go on with: {wanted.to_resume}")
    tell("\n".join(lines), stream)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_PASS if graded == len(asked) else EXIT_KIT
