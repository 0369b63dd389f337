"""Main loop of a run: it writes the executor's results into the ledger, and submits failed jobs again."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from grader import score
from grader.assignment.records import Assignment
from grader.core import typedjson
from grader.core.errors import KitError
from grader.core.places import GRADER_COMMAND
from grader.judge.regrade import Rest
from grader.report import result_json
from grader.report.progress import Progress
from grader.staff.classroom.executor import Done, Event, Executor, Failed, Job, MachineMet, Phase
from grader.staff.classroom.fingerprints import Fingerprints
from grader.staff.classroom.ledger import HeldTiming, Ledger, Record, now
from grader.submission import Submission

MOST_UNFIT, MOST_FAILED = 2, 1
"""Limits on how often one submission returns to the queue: after unsteady timings, and after failures of the kit."""
MOST_ALIKE = 3
"""If this many submissions fail with the same message and none has a verdict yet, the run ends."""


@dataclass(frozen=True)
class Planned:
    """One submission to grade. `reason` says why it is graded again; "" if it is graded for the first time.

    `left` and `before` limit the parts and cases to judge, as in `Job`.
    """

    submission: Submission
    fingerprints: Fingerprints
    reason: str
    left: Rest | None = None
    before: Path | None = None


Fault = Literal["", "submission", "kit"]


class Grading:
    """State of one run: the submissions to grade, their attempts, and the ledger."""

    def __init__(
        self, book: Ledger, progress: Progress, todo: Sequence[Planned], assignment: Assignment
    ) -> None:
        self.book, self.progress, self.assignment = book, progress, assignment
        self.planned = {item.submission.id: item for item in todo}
        self.jobs = {
            item.submission.id: Job(item.submission.id, item.submission.source, item.left, item.before)
            for item in todo
            if item.submission.source is not None
        }
        self.unfit: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.any_verdict = False

    def record_unreadable(self) -> None:
        """Record submissions without readable source: `fault` is "kit" if the disk was full, else "submission"."""
        for name, item in self.planned.items():
            if name not in self.jobs:
                why = item.submission.error or "no source file"
                self.finish(name, trouble=why, fault=item.submission.fault or "submission")

    def drive(self, executor: Executor, interruption: Interruption) -> None:
        """Grade and record every planned submission, unless interrupted. Raises KitError if nothing can be graded."""
        self.record_unreadable()
        for job in self.jobs.values():
            executor.submit(job)
        for event in executor.results():
            if event is not None:
                self.take(event, executor)
            if interruption.asked:
                return

    def take(self, event: Event, executor: Executor) -> None:
        """Handle an event of the executor: print it, submit the job again, or finish the submission."""
        if isinstance(event, MachineMet):
            if not event.lost:
                self.book.met(event.machine)
            self.progress.machine(event.machine.name, event.machine.refused, event.lost)
            return
        name = event.submission_id
        if isinstance(event, Phase):
            self.progress.phase(name, event.text, event.machine)
        elif isinstance(event, Failed):
            self.failed[name] += 1
            if self.failed[name] <= MOST_FAILED and not event.final:
                self.progress.again(name, event.why)
                executor.submit(self.jobs[name])
            else:
                self.finish(name, trouble=event.why, fault="kit")
                self.give_up_if_hopeless(event)
        elif event.unfit and self.unfit[name] < MOST_UNFIT:
            self.unfit[name] += 1
            self.progress.again(name, "the machine was too unsteady to time it")
            executor.submit(self.jobs[name])
        else:
            self.finish(name, event)
            self.any_verdict = True

    def give_up_if_hopeless(self, failed: Failed) -> None:
        """Raise KitError if MOST_ALIKE submissions failed for the same reason and none has a verdict in this run.

        The machine is the likely cause. Deaths of workers do not count: the submission may have caused them.
        """
        self.faults[failed.why] += not failed.died
        if not self.any_verdict and self.faults[failed.why] >= MOST_ALIKE:
            raise KitError(
                f"nothing can be graded here: {failed.why}; run `{GRADER_COMMAND} doctor` for causes"
            )

    def finish(self, name: str, done: Done | None = None, *, trouble: str = "", fault: Fault = "") -> None:
        """Record and print a submission's result. Without a verdict, `trouble` is the reason and `fault` the cause."""
        item, result = self.planned[name], done.result if done else None
        if fault == "submission":
            nothing = score.unreadable(self.assignment, name, trouble)
            result = result_json.to_dict(nothing, score.score(self.assignment, nothing))
        record = Record(
            submission_id=name,
            fingerprints=item.fingerprints,
            at=now(),
            seconds=done.seconds if done else {},
            attempt=1 + self.unfit[name] + min(self.failed[name], MOST_FAILED),
            trouble=trouble,
            fault=fault,
            reason=item.reason,
            machine=done.machine if done else "",
            timings=tuple(typedjson.record(HeldTiming, held) for held in done.timings) if done else (),
            **(light(done.result) if done else {}),
        )
        self.book.finish(record, result, item.submission.path)
        points = f"{record.points:g} of {record.max_points:g} points"
        if record.waits_for:
            points = f"no points yet: judging waits for {record.waits_for}"
        self.progress.finished(name, record.verdicts, points, trouble, record.machine)


def light(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `ledger.Record` that are copied from a result, the parsed content of result.json."""
    return {
        "sha256": result["submission"]["sha256"],
        "verdicts": {part["id"]: part["verdict"] for part in result["parts"]},
        "points": result["points"],
        "max_points": result["max_points"],
        "waits_for": " ".join(sorted({part["waits_for"] for part in result["parts"]} - {""})),
        "flagged": _flagged(result),
        "ratios": {
            part["id"]: (part["time"]["ratio"], *part["time"]["ratio_interval"])
            for part in result["parts"]
            if part["time"] and part["verdict"] in ("pass", "slow")
        },
    }


def _flagged(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of parts with a flag that a person must review; all ids if a flag concerns the whole file."""
    grave = {
        part["id"]: [flag for flag in part["flags"] if flag["level"] != "note"] for part in result["parts"]
    }
    of_parts = [flag for flags in grave.values() for flag in flags]
    of_file = any(flag["level"] != "note" and flag not in of_parts for flag in result["flags"])
    return tuple(part_id for part_id, flags in grave.items() if flags or of_file)


class Interruption:
    """Handler of SIGINT (Ctrl-C), SIGHUP and SIGTERM inside a `with` block.

    The first signal ends the run after the current event. The second raises KeyboardInterrupt at once.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.asked = 0
        self._before: list[Any] = []

    def __enter__(self) -> Interruption:
        self._before = [signal.signal(number, self._hear) for number in self.SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(self.SIGNALS, self._before, strict=True):
            signal.signal(number, handler)

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self.asked += 1
        if self.asked > 1:
            raise KeyboardInterrupt
