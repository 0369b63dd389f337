"""Plan of a run, by submission: nothing, score it anew, judge some of it again, or all of it.

A verdict holds for fingerprints (`grader.staff.classroom.fingerprints`). If only the assignment has changed, the
digests of its parts (`grader.assignment.prints`) show which of them are out of date. A change of points is computed
from the results on record, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from grader import score
from grader.assignment.records import Assignment, Part
from grader.backends.kinds import kind_of
from grader.core import machine
from grader.judge import regrade
from grader.judge.regrade import Rest
from grader.report import result_json
from grader.report.progress import shortened
from grader.staff.classroom import fingerprints, ledger, waiting
from grader.staff.classroom.fingerprints import Fingerprints
from grader.staff.classroom.grading import Planned, light
from grader.staff.classroom.recorded import History, Record, Run
from grader.submission import Submission

WORKER_BYTES = 2 << 30
"""A worker with its runners and a compiler needs this much; more workers than fit would push each other into swap."""
CARD = Path("/dev/nvidia0")
ASSIGNMENT_CHANGED = "assignment changed"
WORTH_CHANGED = "what verdicts are worth changed"


@dataclass(frozen=True)
class RunOptions:
    """Options of the command line, also for continuing an earlier run.

    None means not given: with `resume` the value of the run before counts (`grader.staff.classroom.resuming`), else
    the default. `manual` may be byhand.NONE.
    """

    submissions: Path
    out: Path
    workers: int | None
    config: Path | None = None
    resume: bool = False
    again: bool = False
    regrade: bool = False
    only: tuple[str, ...] = ()
    seed: int | None = None
    timing: bool = True
    timings_alone: bool = False
    trust: bool = False
    tier: str | None = None
    manual: Path | None = None
    submitted: Path | None = None
    file_times: bool = False
    commit_times: bool = False
    cluster: str | None = None
    calibration: Path | None = None
    to_resume: str = "the same command and --resume"


@dataclass(frozen=True)
class Plan:
    """Work of a run. `todo` is judged, in the order of the submissions. `scored` is only scored anew: its results are
    on record, and it holds the new record and the new text of result.json."""

    todo: list[Planned] = field(default_factory=list)
    scored: list[tuple[Record, str]] = field(default_factory=list)


def workers(parts: Sequence[Part]) -> int:
    """Return one for each core, as far as they fit into memory; half as many if they share the memory of a GPU."""
    facts = machine.describe()
    fitting = int(str(facts.get("memory_bytes", WORKER_BYTES << 10))) // WORKER_BYTES
    cores = int(str(facts["cores"] or 1))
    shares_card = CARD.exists() and any(kind_of(part).on_card for part in parts)
    return max(1, min(cores // 2 if shares_card else cores, fitting))


def plan(
    wanted: RunOptions,
    start: Run,
    assignment: Assignment,
    submissions: Sequence[Submission],
    history: History,
) -> Plan:
    """Return the work that has to be done now."""
    settings = fingerprints.of_text(f"timing {start.timing}")
    found = Plan()
    for item in submissions:
        if wanted.only and item.id not in wanted.only:
            continue
        source = item.sha256 or fingerprints.of_text(item.error or "")
        prints = Fingerprints(source, start.assignment_fingerprint, start.kit, settings)
        record = history.records.get(item.id)
        reason = out_of_date(wanted, record, prints)
        if record is not None and not reason:
            continue
        before = None
        if reason == ASSIGNMENT_CHANGED and item.source is not None and not wanted.again:
            before = ledger.result(wanted.out, item.id)
        known = history.judging(record.fingerprints.assignment) if record and before else {}
        left = regrade.rest(known, start.judging, before) if before and known else None
        if record is None or before is None or left is None:
            found.todo.append(Planned(item, prints, reason))
        elif left:
            place = wanted.out / item.id / ledger.RESULT
            found.todo.append(Planned(item, prints, f"{reason}: {_cases_text(left)}", left, place))
        else:
            now = regrade.joined(assignment, before, None, left)
            values, text = result_json.dumped(now, score.score(assignment, now))
            scored = {"fingerprints": prints, "at": ledger.now(), "reason": WORTH_CHANGED, **light(values)}
            found.scored.append((replace(record, **scored), text))
    return found


def _cases_text(left: Rest) -> str:
    """Return 'part2 whole', or the cases that are called: the same text for all submissions that lack the same."""
    named = dict.fromkeys(name for names in left.parts.values() for name in names)
    whole = [part_id for part_id, names in left.parts.items() if not names]
    told = [f"{', '.join(whole)} as a whole"] if whole else []
    return "; ".join([*told, *([f"only the cases {', '.join(named)}"] if named else [])])


def out_of_date(wanted: RunOptions, record: Record | None, prints: Fingerprints) -> str:
    """Return the reason that a finished submission has to be graded again; "" for all others."""
    if record is None:
        return ""
    if record.fault == "kit":
        return "the kit failed last time"
    if changes := record.fingerprints.changes(prints):
        return ", ".join(changes)
    if is_here := waiting.is_over(record.waits_for):
        return is_here
    if ledger.result(wanted.out, record.submission_id) is None:
        return f"its {ledger.RESULT} cannot be read"
    return "asked for" if wanted.again else ""


def lines(wanted: RunOptions, submissions: Sequence[Submission], plan: Plan, history: History) -> list[str]:
    """Return lines on finished submissions, those scored anew, and the reasons for grading some again."""
    todo = plan.todo
    finished = sum(item.id in history.records for item in submissions)
    again = [item for item in todo if item.reason]
    stay = finished - len(again) - len(plan.scored)
    told = finished and (stay or not plan.scored)
    lines = [f"{stay} were finished before and stay as they are"] if told else []
    if plan.scored:
        names = [record.submission_id for record, _ in plan.scored]
        lines.append(
            f"{len(names)} are scored anew, and nothing is run ({WORTH_CHANGED}): {shortened(names)}"
        )
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
    return lines
