"""State of each machine of a cluster and of each attempt to judge a job, and the data of jobs and results."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from grader.core import plainfile
from grader.core.harmless import one_line
from grader.report.machines import Machine
from grader.staff.classroom.executor import Job
from grader.staff.classroom.ledger import now

SILENT_S = 20.0
"""Seconds without a message after which a machine with jobs counts as lost. Its tasks report every two seconds."""

PROVE_WITHIN_S = 600.0
"""Time limit of a machine's test, in seconds. The test may compile the reference and the headers."""

MOST_NAME = 56
"""Maximum number of characters of a machine's name, without the suffix that makes it unique."""

State = Literal["new", "proving", "calibrating", "fit", "refused"]


@dataclass
class Attempt:
    """One attempt to judge a job on a machine. `alone`: the machine runs no other job. `future`: dask's task."""

    key: str
    job: Job
    node: Node
    alone: bool
    future: Any = None
    phase: str = ""
    """Phase of grading; "" while the job waits for a free worker on its machine."""
    heard_s: float = field(default_factory=time.monotonic)
    began_s: float = field(default_factory=time.monotonic)


@dataclass
class Node:
    """One machine: a dask worker with this address. `most` is the number of jobs that it runs at once. `why` is the
    reason why it was refused or lost. `unsteady` counts unsteady timings in a row, `tries` how often its test began."""

    address: str
    name: str
    most: int
    state: State = "new"
    why: str = ""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    judged: int = 0
    unsteady: int = 0
    tries: int = 0
    future: Any = None
    since_s: float = field(default_factory=time.monotonic)

    @property
    def is_idle(self) -> bool:
        return not self.attempts

    def has_room(self, *, alone: bool, ahead: int = 0) -> bool:
        """Return True if the machine can take one more job. `alone`: the job needs an idle machine. `ahead` is the
        number of jobs that may wait on the machine besides those that run."""
        if self.state != "fit" or any(attempt.alone for attempt in self.attempts.values()):
            return False
        return self.is_idle if alone else len(self.attempts) < self.most + ahead

    def may_judge(self) -> bool:
        """Return True if the machine may judge, or if its test still runs."""
        if self.state == "fit":
            return True
        return self.state != "refused" and time.monotonic() - self.since_s < PROVE_WITHIN_S

    def is_silent(self) -> bool:
        """Return True if the machine has jobs, but sent no message on any of them for SILENT_S."""
        heard_s = [attempt.heard_s for attempt in self.attempts.values()]
        return bool(heard_s) and time.monotonic() - max(heard_s) > SILENT_S

    def recorded(self) -> Machine:
        """Return the machine's record for the ledger."""
        facts = self.facts
        return Machine(
            name=self.name,
            at=now(),
            host=str(facts.get("host", "")),
            processor=str(facts.get("processor", "")),
            cores=int(facts.get("cores", 0)),
            refused=self.why if self.state == "refused" else "",
            notes=tuple(facts.get("notes", ())),
            ratios=facts.get("ratios", {}),
        )


def named(address: str, worker: Mapping[str, Any], taken: set[str]) -> str:
    """Return a name for messages: the dask worker's name, with a number if it is in `taken`."""
    label = str(worker.get("name") or address)
    name = address.partition("://")[2] if label == address else label
    name = stem = name[:MOST_NAME]
    count = 1
    while name in taken:
        count += 1
        name = f"{stem}-{count}"
    return name


def needs(*, card: bool) -> dict[str, float]:
    """Return the dask resources that a job needs on its machine: a core, and a GPU if `card`."""
    return {"cores": 1, "card": 1} if card else {"cores": 1}


def room_of(worker: Mapping[str, Any], *, card: bool) -> tuple[int, str]:
    """Return (number of jobs that a dask worker may run at once, the reason if this is 0). `card`: jobs need a GPU."""
    resources = worker.get("resources") or {}
    cores, threads = int(resources.get("cores", 0)), int(worker.get("nthreads", 1))
    if cores < 1 or "machine" not in resources:
        return 0, "it offers no cores: start it with --resources 'cores=N machine=1' --nthreads N"
    if card:
        cards = int(resources.get("card", 0))
        if cards < 1:
            return (
                0,
                "it offers no GPU, which a part needs: start it with --resources 'cores=N machine=1 card=1'",
            )
        cores = min(cores, cards)
    return min(cores, threads), ""


FETCH_WITHIN_S = 30.0
MOST_RESULT_BYTES = 8 << 20


def request(job: Job, *, only_source: bool) -> dict[str, Any]:
    """Return a job as JSON values: the submission's files (`only_source`: its source alone), and the earlier result if
    only some parts or cases are judged."""
    files = {path.name: path for path in sorted(job.source.parent.iterdir()) if path.is_file()}
    if only_source:
        files = {job.source.name: job.source}
    found: dict[str, Any] = {
        "submission_id": job.known_as or job.submission_id,
        "source": job.source.name,
        "files": {name: base64.b64encode(path.read_bytes()).decode() for name, path in files.items()},
    }
    if job.left and job.before:
        found["left"] = {part: list(cases) for part, cases in job.left.parts.items()}
        found["before"] = plainfile.read(job.before, MOST_RESULT_BYTES).decode()
    return found


def fetched(future: Any) -> dict[str, Any]:
    """Return the result of a task's future: {"lost": why} if its worker was lost, {"failed": why, "refused": why} if
    the task raised another exception."""
    try:
        if future.status == "finished":
            return dict(future.result(timeout=FETCH_WITHIN_S))
        if future.status == "error":
            error = future.exception(timeout=FETCH_WITHIN_S)
            lost = type(error).__name__ in ("KilledWorker", "NoValidWorkerError")
            reason = one_line(f"{type(error).__name__}: {error}", 200)
            return {"lost": reason} if lost else {"failed": f"it cannot judge: {reason}", "refused": reason}
    except Exception as error:  # If a worker has just gone, dask may raise any exception.
        return {"lost": one_line(f"{type(error).__name__}: {error}", 200)}
    return {"lost": f"its task was {future.status}"}
