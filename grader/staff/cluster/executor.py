"""`Executor` that sends a class's jobs to the workers of a dask scheduler: see `grader.staff.cluster`.

Only the thread that runs `results` changes the state of the run. Dask's messages from other threads go through a queue.
"""

from __future__ import annotations

import base64
import hashlib
import queue
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from grader.core import plainfile
from grader.core.errors import KitError, UsageError
from grader.core.harmless import one_line
from grader.core.quantities import shortened
from grader.report.machines import Machine
from grader.staff.classroom.executor import Done, Event, Failed, Job, MachineMet, Phase
from grader.staff.classroom.grading import light
from grader.staff.classroom.ledger import now
from grader.staff.classroom.worker import calibrated
from grader.staff.cluster import tasks
from grader.staff.cluster.local import Address, LocalMachines, connect
from grader.staff.cluster.proof import Kit

TICK_S = 0.5
WORKERS_WITHIN_S = 60.0
"""Seconds to wait for the first worker, or for another if all are gone. A batch system may start workers slowly."""
RECONNECT_S = 120.0
MOST_DEATHS = 2
"""If this many machines are lost while they judge one submission alone, the submission counts as the cause."""
MOST_UNSTEADY = 3
"""Number of unsteady timings in a row after which a machine is tested again."""
MOST_PROOFS = 5
"""A machine is refused if it is lost in this many of its tests."""
CALIBRATION = "calibration"

SILENT_S = 20.0
"""Seconds without a message after which a machine with jobs counts as lost. Its tasks report every two seconds."""

PROVE_WITHIN_S = 600.0
"""Time limit of a machine's test, in seconds. The test may compile the reference and the headers."""

MOST_NAME = 56
"""Maximum number of characters of a machine's name, without the suffix that makes it unique."""

State = Literal["new", "proving", "calibrating", "fit", "refused"]


@dataclass
class Attempt:
    """One attempt to judge a job on a machine (`node`). `key` is the name of dask's task, `future` the task's future.

    `alone`: True if the machine may run no other job meanwhile. `heard_s` is the time of the last message.
    """

    key: str
    job: Job
    node: Node
    alone: bool
    future: Any = None
    phase: str = ""
    """Phase of grading; "" while the job waits for a free worker on its machine."""
    heard_s: float = field(default_factory=time.monotonic)


@dataclass
class Node:
    """One machine: the dask worker at `address`.

    `most` is the number of jobs that it runs at once. `why` is the reason why it was refused or lost, or "". `attempts`
    are its jobs by key. `facts` describe the machine. `unsteady` counts unsteady timings in a row, `tries` counts the
    starts of its test. `future` is dask's future of the last test, which started at `since_s`.
    """

    address: str
    name: str
    most: int
    state: State = "new"
    why: str = ""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    unsteady: int = 0
    tries: int = 0
    future: Any = None
    since_s: float = field(default_factory=time.monotonic)

    def has_room(self, *, alone: bool, ahead: int = 0) -> bool:
        """Return True if the machine can take one more job.

        `alone`: the job needs an idle machine. `ahead` is the number of jobs that may wait on the machine in addition
        to those that run.
        """
        if self.state != "fit" or any(attempt.alone for attempt in self.attempts.values()):
            return False
        return not self.attempts if alone else len(self.attempts) < self.most + ahead

    def may_judge(self) -> bool:
        """Return True if the machine may judge, or if its test still runs."""
        if self.state == "fit":
            return True
        return self.state != "refused" and time.monotonic() - self.since_s < PROVE_WITHIN_S

    def is_silent(self) -> bool:
        """Return True if the machine has jobs, but sent no message on any of them for SILENT_S seconds."""
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


class ClusterExecutor:
    """Executor for many machines, the workers of a dask scheduler.

    `calibration` is the source that each machine judges first, or None. `command` replaces the command by which a
    machine starts its workers, for tests; [] keeps it.
    """

    def __init__(
        self,
        address: Address,
        kit: Kit,
        scratch: Path,
        *,
        calibration: Path | None,
        command: Sequence[str],
    ) -> None:
        self._kit, self._calibration, self._command = kit, calibration, list(command)
        self._run = secrets.token_hex(6)
        self._topic = f"gpt149-{self._run}"
        self._queue: deque[Job] = deque()
        self._inbox: queue.SimpleQueue[Callable[[], Iterator[Event]]] = queue.SimpleQueue()
        self._nodes: dict[str, Node] = {}
        self._attempts: dict[str, Attempt] = {}
        self._suspects: set[str] = set()
        self._deaths: Counter[str] = Counter()
        self._avoid: dict[str, str] = {}
        """Name of the machine that should not judge a submission again, by the submission's id."""
        self._slow_once: set[str] = set()
        self._count = 0
        self._lonely_since_s = time.monotonic()
        self._local = LocalMachines(address.machines, scratch) if address.machines else None
        self._scheduler = self._local.address if self._local else address.scheduler
        self._security = self._local.security if self._local else None
        try:
            self._client = self._local.connect() if self._local else connect(self._scheduler)
        except BaseException:
            if self._local:
                self._local.close()
            raise
        self._listen()

    @property
    def dashboard(self) -> str:
        """Address of dask's dashboard, or "" if it has none."""
        with suppress(Exception):
            return str(self._client.dashboard_link)
        return ""

    def submit(self, job: Job) -> None:
        self._queue.append(job)

    def results(self) -> Iterator[Event | None]:
        """Yield events until every job has ended, and None regularly, so that the caller can do other work.

        Raises UsageError if the scheduler has no worker. Raises KitError if all machines are refused or lost.
        """
        while self._queue or any(
            attempt.job.submission_id != CALIBRATION for attempt in self._attempts.values()
        ):
            yield from self._look_around()
            self._assign()
            with suppress(queue.Empty):
                yield from self._inbox.get(timeout=TICK_S)()
                while True:
                    yield from self._inbox.get_nowait()()
            yield None

    def close(self) -> None:
        for attempt in self._attempts.values():
            with suppress(Exception):
                attempt.future.cancel()
        if self._client.status == "running":
            with suppress(Exception):
                self._client.run(tasks.close, self._run, wait=False)
        with suppress(Exception):
            self._client.close(timeout=5)
        if self._local:
            self._local.close()

    # ---- the scheduler and its workers

    def _listen(self) -> None:
        self._client.subscribe_topic(self._topic, self._hear)

    def _hear(self, event: Any) -> None:
        message = event[1] if isinstance(event, (tuple, list)) else event
        self._inbox.put(lambda: self._heard(message))

    def _heard(self, message: Mapping[str, Any]) -> Iterator[Event]:
        """Note that a job's worker is alive, and yield the phase that it reports."""
        attempt = self._attempts.get(str(message.get("job")))
        if attempt is None:
            return
        attempt.heard_s = time.monotonic()
        if phase := str(message.get("phase") or ""):
            attempt.phase = phase
            if attempt.job.submission_id != CALIBRATION:
                yield Phase(attempt.job.submission_id, phase, attempt.node.name)

    def _look_around(self) -> Iterator[Event | None]:
        """Test new machines and requeue jobs of lost ones. Yield events, and None while waiting for the scheduler."""
        if self._local:
            self._local.tend()
        if self._client.status != "running":
            yield from self._reconnect()
        there: Mapping[str, Any] = self._client.scheduler_info(n_workers=-1).get("workers", {})
        for address in [address for address in self._nodes if address not in there]:
            yield from self._lost(self._nodes.pop(address), "it is gone")
        for node in [node for node in self._nodes.values() if node.is_silent()]:
            yield from self._lost(node, "it no longer answers")
            # If the machine answers again, it is tested like a new one before it judges.
            node.state, node.future = "new", None
        for address, worker in there.items():
            if address not in self._nodes:
                most, why = room_of(worker, card=self._kit.card)
                taken = {node.name for node in self._nodes.values()}
                self._nodes[address] = Node(address, named(address, worker, taken), most)
                if why:
                    yield from self._refuse(self._nodes[address], why)
        for node in self._nodes.values():
            if node.state == "new":
                self._prove(node)
        self._despair()

    def _despair(self) -> None:
        """Raise an error if no machine can judge, and none has become able to for some time.

        Raises UsageError if the scheduler never had a worker, KitError if all machines were refused or lost.
        """
        if any(node.may_judge() for node in self._nodes.values()):
            self._lonely_since_s = time.monotonic()
        elif time.monotonic() - self._lonely_since_s > WORKERS_WITHIN_S and not self._nodes:
            if self._count:
                raise KitError(
                    "all machines of the cluster are gone; finished results are kept: go on with --resume"
                )
            raise UsageError(
                f"--cluster {self._scheduler}: the scheduler has no workers: start one on each machine with "
                f"`dask worker {self._scheduler} --nthreads N --resources 'cores=N machine=1'`"
            )
        elif self._nodes and time.monotonic() - self._lonely_since_s > 5.0:
            reasons = shortened(
                [f"{node.name}: {node.why or 'it does not answer'}" for node in self._nodes.values()]
            )
            raise KitError(f"no machine of the cluster may judge: {one_line(reasons, 600)}")

    def _reconnect(self) -> Iterator[Event | None]:
        """Connect again after the scheduler was lost. Jobs in progress return to the queue and do not count as lost.

        Yields None while it waits. Raises KitError if the scheduler is not back within RECONNECT_S seconds.
        """
        for node in self._nodes.values():
            for attempt in node.attempts.values():
                self._requeue(attempt)
        self._nodes, self._attempts = {}, {}
        with suppress(Exception):
            self._client.close(timeout=1)
        ends_s = time.monotonic() + RECONNECT_S
        while True:
            if self._local:
                self._local.tend()
            try:
                self._client = connect(self._scheduler, self._security, 5.0)
                break
            except UsageError as error:
                if time.monotonic() > ends_s:
                    raise KitError(f"{error}; finished results are kept: go on with --resume") from error
            yield None
        self._listen()
        self._lonely_since_s = time.monotonic()

    # ---- the test of a machine

    def _start(self, node: Node) -> dict[str, Any]:
        return {"kit": asdict(self._kit), "name": node.name, "workers": node.most, "command": self._command}

    def _submit(self, node: Node, function: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
        """Submit a task that only this machine may run, without retries. Return dask's future."""
        return self._client.submit(
            function,
            self._run,
            self._start(node),
            *arguments,
            workers=[node.address],
            allow_other_workers=False,
            pure=False,
            retries=0,
            **how,
        )

    def _prove(self, node: Node) -> None:
        node.state, node.since_s = "proving", time.monotonic()
        node.tries += 1
        future = node.future = self._submit(node, tasks.prove, resources={"machine": 1})

        def proved(done: Any) -> None:
            found = fetched(done)
            self._inbox.put(lambda: self._proved(node, future, found))

        future.add_done_callback(proved)

    def _proved(self, node: Node, future: Any, found: Mapping[str, Any]) -> Iterator[Event]:
        """Continue a machine's test after its checks, whose result is `found`.

        Start the calibration, admit or refuse the machine, or repeat the checks if the worker was lost meanwhile.
        """
        if node.future is not future or node.state != "proving" or self._nodes.get(node.address) is not node:
            return
        if "lost" in found and node.tries < MOST_PROOFS:
            node.state = "new"
            return
        node.facts = dict(found)
        if found.get("refused") or found.get("lost"):
            yield from self._refuse(node, str(found.get("refused") or found["lost"]))
        elif self._calibration is not None:
            node.state = "calibrating"
            self._begin(node, Job(CALIBRATION, self._calibration), alone=False)
        else:
            yield from self._admit(node)

    def _admit(self, node: Node) -> Iterator[Event]:
        node.state, node.why, node.unsteady, node.tries = "fit", "", 0, 0
        yield MachineMet(node.recorded())

    def _refuse(self, node: Node, why: str) -> Iterator[Event]:
        node.state, node.why = "refused", one_line(why, 300)
        yield MachineMet(node.recorded())

    def _calibrated(self, node: Node, found: Mapping[str, Any]) -> Iterator[Event]:
        """Admit or refuse a machine after the calibration, whose result is `found`. Repeat an unsteady one once."""
        if "done" not in found:
            yield from self._refuse(
                node, f"it could not judge the calibration submission: {found.get('failed')}"
            )
            return
        node.facts["ratios"] = light(found["done"])["ratios"]
        why = calibrated(found["done"], found["unfit"])
        if found["unfit"] and not node.unsteady:
            node.unsteady = 1
            self._begin(node, Job(CALIBRATION, self._calibration or Path()), alone=False)
        elif why:
            yield from self._refuse(node, why)
        else:
            yield from self._admit(node)

    # ---- jobs

    def _assign(self) -> None:
        """Send queued jobs to machines that can take one more, each job to the least busy machine."""
        left: deque[Job] = deque()
        while self._queue:
            job = self._queue.popleft()
            alone = job.submission_id in self._suspects
            free = [node for node in self._nodes.values() if node.has_room(alone=alone)]
            if not free and not alone and len(self._queue) > sum(node.most for node in self._nodes.values()):
                # Queue one job on each busy machine, so that the machine never waits for the judge. Near the end of a
                # run do not: a job queued there might wait while another machine is idle.
                free = [node for node in self._nodes.values() if node.has_room(alone=alone, ahead=1)]
            if not free:
                left.append(job)
                if not alone:
                    break
                continue
            others = [node for node in free if node.name != self._avoid.get(job.submission_id)]
            node = min(others or free, key=lambda node: len(node.attempts) / node.most)
            self._begin(node, job, alone=alone)
        left.extend(self._queue)
        self._queue = left

    def _begin(self, node: Node, job: Job, *, alone: bool) -> None:
        """Send a job to a machine. `alone`: the machine gets no other job until this one has ended."""
        self._count += 1
        message = request(job, only_source=job.submission_id == CALIBRATION)
        digest = hashlib.sha256(repr(sorted(message.items())).encode()).hexdigest()[:24]
        # The key begins with the job's digest, which identifies the job on dask's dashboard. The run's id and the
        # attempt's number make the key unique.
        key = f"judge-{digest}-{self._run}-{self._count}"
        attempt = Attempt(key, job, node, alone)
        self._attempts[key] = node.attempts[key] = attempt
        held = needs(card=self._kit.card)
        attempt.future = self._submit(
            node, tasks.judge, {**message, "job": key}, self._topic, key=key, resources=held
        )

        def ended(done: Any) -> None:
            found = fetched(done)
            self._inbox.put(lambda: self._ended(key, found))

        attempt.future.add_done_callback(ended)

    def _ended(self, key: str, found: Mapping[str, Any]) -> Iterator[Event]:
        """Handle the end of the attempt `key`. `found` has the result, a failure, or the reason why it was lost."""
        attempt = self._attempts.pop(key, None)
        if attempt is None:
            return
        node, job = attempt.node, attempt.job
        node.attempts.pop(key, None)
        if job.submission_id == CALIBRATION and "lost" in found:
            node.state = "new"
        elif job.submission_id == CALIBRATION:
            yield from self._calibrated(node, found)
        elif "lost" in found:
            yield from self._blame(attempt)
            if node.address in self._nodes and node.state == "fit":
                node.state = "new"
        elif "failed" in found:
            self._avoid[job.submission_id] = node.name
            yield Failed(job.submission_id, f"{found['failed']} (on {node.name})", bool(found.get("died")))
        elif self._is_doubtful(node, job, found):
            self._requeue(attempt)
        else:
            yield Done(
                job.submission_id,
                found["done"],
                found["unfit"],
                found["seconds"],
                tuple(found.get("timings", ())),
                node.name,
            )

    def _is_doubtful(self, node: Node, job: Job, found: Mapping[str, Any]) -> bool:
        """Return True if the machine may be the cause of a verdict, so that another machine should judge it again.

        Update the machine's state, too: it is tested again if its compiler or its timings have become doubtful.
        """
        result, name = found["done"], job.submission_id
        self._avoid[name] = node.name
        if result.get("toolchain", {}).get("compiler", self._kit.compiler) != self._kit.compiler:
            node.state = "new"  # The machine's compiler has changed, so the machine is tested again.
            return True
        node.unsteady = node.unsteady + 1 if found["unfit"] else 0
        if node.unsteady >= MOST_UNSTEADY and self._calibration is not None:
            node.state = "new"
        timed_out = any(part["verdict"] == "timeout" for part in result["parts"])
        others = [other for other in self._nodes.values() if other.state == "fit" and other is not node]
        if timed_out and others and name not in self._slow_once:
            # On a slow or busy machine, a correct kernel may exceed the time limit. Let another machine judge it once.
            self._slow_once.add(name)
            return True
        return False

    # ---- losses

    def _lost(self, node: Node, why: str) -> Iterator[Event]:
        """Put the jobs of a lost machine back into the queue, and report the loss."""
        attempts = list(node.attempts.values())
        node.attempts = {}
        for attempt in attempts:
            self._attempts.pop(attempt.key, None)
            with suppress(Exception):
                attempt.future.cancel()
            if attempt.job.submission_id != CALIBRATION:
                yield from self._blame(attempt)
        node.why = why
        yield MachineMet(node.recorded(), lost=why)

    def _blame(self, attempt: Attempt) -> Iterator[Event]:
        """Put the submission of a lost machine back into the queue.

        If its judging had begun, it is judged on a machine without other jobs next time. If MOST_DEATHS machines were
        lost while they judged it alone, yield its failure instead.
        """
        name = attempt.job.submission_id
        if not attempt.phase:
            # The submission was not judged yet, so it cannot be the cause of the loss.
            self._requeue(attempt)
            return
        self._deaths[name] += attempt.alone
        if self._deaths[name] >= MOST_DEATHS:
            why = f"{self._deaths[name]} machines were lost while they judged only this submission"
            yield Failed(name, why, died=True, final=True)
            return
        self._suspects.add(name)
        self._avoid[name] = attempt.node.name
        self._requeue(attempt)

    def _requeue(self, attempt: Attempt) -> None:
        self._attempts.pop(attempt.key, None)
        if attempt.job.submission_id != CALIBRATION:
            self._queue.appendleft(attempt.job)


# ---- data of machines, jobs and results


def named(address: str, worker: Mapping[str, Any], taken: set[str]) -> str:
    """Return a machine's name for messages: the dask worker's name, with a number if the name is in `taken`."""
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
    """Return (number of jobs that a worker may run at once, the reason if 0, else ""). `card`: jobs need a GPU."""
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
    """Return a job as JSON values, with files in base64 (`only_source`: only the source) and any earlier result."""
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
    """Return a task's result, {"lost": why} for a lost worker, or {"failed": why, "refused": why} for an exception."""
    try:
        if future.status == "finished":
            return dict(future.result(timeout=FETCH_WITHIN_S))
        if future.status == "error":
            error = future.exception(timeout=FETCH_WITHIN_S)
            lost = type(error).__name__ in ("KilledWorker", "NoValidWorkerError")
            reason = one_line(f"{type(error).__name__}: {error}", 200)
            return {"lost": reason} if lost else {"failed": f"it cannot judge: {reason}", "refused": reason}
    except Exception as error:  # If the worker is lost at this moment, dask may raise any exception.
        return {"lost": one_line(f"{type(error).__name__}: {error}", 200)}
    return {"lost": f"its task was {future.status}"}
