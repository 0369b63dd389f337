"""Grading of a class: every submission gets a verdict, and a resumed run repeats no finished work.

Theory of operation. The judge is one small process without torch. It finds the submissions, and compares the
fingerprints of each with those in the submission's last record. New and outdated submissions go to an executor. A
submission is finished once its result is in the ledger (`classroom.ledger`). If its worker dies, the submission returns
to the queue once; if a second worker dies, the kit is recorded as the cause. A submission that was timed on an unsteady
machine is judged again after all others, at most twice. The reports are written at the end and when the judge is
interrupted. The ledger is enough to continue, even after a `kill -9`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from grader import submission
from grader.assignment import labs, prints
from grader.assignment.records import Assignment
from grader.core import machine, plainfile, version
from grader.core.commandline import EXIT_INTERRUPTED
from grader.core.errors import EXIT_KIT, EXIT_PASS, UsageError
from grader.core.quantities import shortened
from grader.report import words
from grader.report.progress import Progress, counted
from grader.sandbox import Sandbox
from grader.staff.classroom import byhand, changes, fingerprints, gradebook, ledger, planning
from grader.staff.classroom.executor import LocalExecutor, silence_limits
from grader.staff.classroom.grading import Grading, Interruption
from grader.staff.classroom.ledger import Entry, History, Run, now
from grader.staff.classroom.planning import COMMIT_TIMES, FILE_TIMES, RunOptions
from grader.staff.classroom.worker import Settings
from grader.staff.platforms import github
from grader.submission import Submission
from grader.submission.ids import no_such_submission

if TYPE_CHECKING:
    from grader.staff.cluster.executor import ClusterExecutor


def run(wanted: RunOptions, command: Sequence[str] = ()) -> int:
    """Grade a class. Return the exit code. `command` replaces the command that starts a worker.

    Raises UsageError for mistakes in the options or files, KitError if this machine cannot grade anything.
    """
    refuse_mixing(wanted)
    if wanted.cluster is not None:
        from grader.staff.cluster.local import parse

        parse(wanted.cluster)
    # `settle` is called again below. This call reports mistakes in the assignment or in the options before the results
    # folder is created.
    planning.settle(wanted, ledger.read(wanted.out))
    with ledger.hold(wanted.out) as book, Interruption() as interruption:
        history = ledger.read(wanted.out)
        if history.records and not wanted.resume:
            raise UsageError(
                f"{wanted.out} holds {words.plural(len(history.records), 'result')} already: continue with --resume, "
                "or choose another --out"
            )
        wanted, assignment, seed = planning.settle(wanted, history)
        box = planning.sandbox_for(wanted, history)
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
        jobs = planning.workers(assignment.parts) if wanted.workers is None else wanted.workers
        start = Run(
            at=now(),
            config=str(wanted.config.resolve()),
            assignment=assignment.id,
            assignment_fingerprint=assignment.fingerprint,
            kit=fingerprints.of_kit(),
            seed=seed,
            timing=wanted.timing,
            sandbox=box.tier,
            workers=jobs,
            manual=by_hand.source,
            submitted=planning.source_of_times(wanted, history),
            judging=prints.of_parts(assignment),
            judged_by=words.judged_by(version.describe(), machine.describe()),
        )
        plan = planning.plan(wanted, start, assignment, submissions, history)
        print(
            f"{words.plural(len(submissions), 'submission')}, sandbox tier {box.tier}, seed {assignment.seed}",
            flush=True,
        )
        for note in (*roster_notes, *assignment.warnings):
            print(f"note: {note}", flush=True)
        for line in planning.lines(wanted, submissions, plan, history):
            print(line, flush=True)
        roster = [entry_of(item) for item in submissions]
        untimed = gradebook.untimed(assignment, roster)
        if untimed:
            print(f"note: {untimed}", flush=True)
        touched = [item.submission.id for item in plan.todo] + [
            record.submission_id for record, _ in plan.scored
        ]
        before = changes.before(wanted.out, touched)
        book.open_run(start, roster)
        if plan.scored:
            book.finish_scored(plan.scored)
        if not any(item.submission.source for item in plan.todo):
            # Without a submission to judge, do not connect to a cluster.
            wanted = replace(wanted, cluster=None)
        executor = executor_for(wanted, start, assignment, box, book.scratch, command)
        with closing(executor), Progress(len(plan.todo)) as progress:
            if wanted.cluster is not None and (page := getattr(executor, "dashboard", "")):
                progress.say(f"dask's page about its workers: {page}")
            Grading(book, progress, plan.todo, assignment).drive(executor, interruption)
        history = ledger.read(wanted.out)
        for line in gradebook.write_reports(book, assignment, history, by_hand, before):
            if line != f"note: {untimed}":
                print(line, flush=True)
        return conclude(wanted, history, bool(interruption.asked))


# ---- before


def refuse_mixing(wanted: RunOptions) -> None:
    """Raise UsageError if --out lies in the folder of submissions: the next run would take results for submissions."""
    if wanted.out.resolve().is_relative_to(wanted.submissions.resolve()):
        raise UsageError(
            f"--out {wanted.out} is inside the folder of submissions: choose one outside of {wanted.submissions}"
        )


def found(wanted: RunOptions, assignment: Assignment, scratch: Path) -> list[Submission]:
    """Return all submissions, copied into `scratch`. Raises UsageError for an empty class or an unknown --only id."""
    # Mode 711: workers and runners with other user ids can open their own folders in `scratch`, but not list it.
    scratch.chmod(0o711)
    submissions = submission.find(wanted.submissions, assignment.source, scratch / "submissions")
    ids = [item.id for item in submissions]
    for name in wanted.only:
        if name not in ids:
            raise UsageError("--only: " + no_such_submission(name, sorted(ids)))
    return submissions


def refuse_places(out: Path, ids: Sequence[str]) -> None:
    """Raise UsageError if a report or a result cannot be written, for example because a link has its name.

    `ids` are the ids of the submissions.
    """
    places = [(out / name, False) for name in ("grades.csv", "report.html")]
    for name in ids:
        places.append((out / name, True))
        places += [(out / name / file, False) for file in (ledger.RESULT, "feedback.txt")]
    for place, wants_folder in places:
        if trouble := plainfile.trouble_with(place, wants_folder=wants_folder):
            raise UsageError(f"cannot write {place}: {trouble}")


def timed(
    wanted: RunOptions, history: History, assignment: Assignment, submissions: list[Submission], scratch: Path
) -> list[Submission]:
    """Return the submissions with their submission times.

    Times come from a table, the files or the commits, as `wanted` (or the resumed run) says, else from the platform's
    export. Raises UsageError for a mistake in the table, or if files or commits give no time at all.
    """
    source = planning.source_of_times(wanted, history)
    if source == FILE_TIMES:
        if wanted.file_times and not any(item.submitted_at or item.modified_at for item in submissions):
            raise UsageError(
                f"--file-times: no submission in {wanted.submissions} has a file with a time; use --submitted FILE"
            )
        return [replace(item, submitted_at=item.submitted_at or item.modified_at) for item in submissions]
    if source == COMMIT_TIMES:
        return github.with_commit_times(submissions, scratch)
    if source is None:
        return submissions
    due = assignment.late.due if assignment.late else None
    given = byhand.read_times(Path(source), [item.id for item in submissions], due.tzinfo if due else None)
    return [replace(item, submitted_at=given.get(item.id, item.submitted_at)) for item in submissions]


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


# ---- during


def executor_for(
    wanted: RunOptions,
    start: Run,
    assignment: Assignment,
    box: Sandbox,
    scratch: Path,
    command: Sequence[str],
) -> LocalExecutor | ClusterExecutor:
    """Return an executor for this machine or, with --cluster, for the cluster.

    `start` holds the settings of the run, `box` the sandbox. `command` replaces the command that starts a worker, for
    tests. Raises UsageError if the cluster cannot be reached.
    """
    if wanted.cluster is not None:
        from grader.staff.cluster import proof
        from grader.staff.cluster.executor import ClusterExecutor
        from grader.staff.cluster.local import parse

        kit = proof.kit_here(
            Path(start.config),
            assignment,
            start.sandbox,
            seed=start.seed,
            timing=start.timing,
            timings_alone=wanted.timings_alone,
            trust=wanted.trust,
        )
        master = labs.master(assignment.lab_folder, assignment.source)
        calibration = wanted.calibration or (master if master.is_file() else None)
        return ClusterExecutor(
            parse(wanted.cluster), kit, scratch, calibration=calibration, command=command[1:]
        )
    slot = scratch / "slot"
    slot.mkdir(mode=0o700)
    settings = Settings(
        config=start.config,
        assignment_fingerprint=start.assignment_fingerprint,
        seed=start.seed,
        timing=start.timing,
        sandbox=asdict(box),
        slot=str(slot),
        timings_alone=wanted.timings_alone,
    )
    return LocalExecutor(
        settings,
        scratch,
        workers=start.workers,
        silence_s=silence_limits(assignment.limits),
        **({"command": command} if command else {}),
    )


# ---- after


def conclude(wanted: RunOptions, history: History, interrupted: bool) -> int:
    """Print a run's last lines. Return exit code 130 if it was `interrupted`, 0 if all have verdicts, else 3."""
    asked = [e.submission_id for e in history.roster if not wanted.only or e.submission_id in wanted.only]
    records = [history.records[name] for name in asked if name in history.records]
    verdicts = Counter(verdict for record in records for verdict in record.verdicts.values())
    unreadable = sum(record.fault == "submission" for record in records)
    failed = [record.submission_id for record in records if record.fault == "kit"]
    waits = {record.submission_id: record.waits_for for record in records if record.waits_for}
    graded = len(records) - len(failed) - len(waits)
    lines = [f"{graded} of {len(asked)} graded: {counted(verdicts) or 'no part'}"]
    if unreadable:
        lines.append(f"{unreadable} could not be read; the reports give the reasons")
    lines.append(f"grades: {wanted.out / 'grades.csv'}   report: {wanted.out / 'report.html'}")
    if failed:
        lines.append(
            f"{words.plural(len(failed), 'has', 'have')} no verdict because the kit or the machine failed: "
            f"{shortened(failed)}; try again: {wanted.to_resume}"
        )
    lines += planning.missing_tools(waits, f"go on with: {wanted.to_resume}")
    if interrupted:
        lines.append(f"interrupted; go on with: {wanted.to_resume}")
    print("\n".join(lines), flush=True)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_PASS if graded == len(asked) else EXIT_KIT
