"""Interface for grading submissions (`Executor`), and its implementation on this machine.

`submit` queues a job; `results` yields events until all jobs have ended. A job ends in `Done` or `Failed`; the caller
decides whether to retry. `LocalExecutor` keeps worker processes (`grader.staff.classroom.worker`), which import NumPy
only once, and gives each worker one job at a time. If a worker dies, its job fails and another worker is started. A
worker that sends no message for too long is killed, and its job fails, too. Each kind of phase (building, timing, ...)
has its own limit: a phase that normally takes seconds must not block the judge for an hour.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from grader.assignment.records import RunLimits
from grader.backends.native.compilers import HEADER_TIMEOUT_S
from grader.core import procfs, removal
from grader.core.errors import KitError
from grader.core.places import ROOT, SHARED_TRIALS
from grader.core.quantities import size_text
from grader.integrity import inspection
from grader.judge.regrade import Rest
from grader.report.machines import Machine
from grader.sandbox import patience_s
from grader.staff.classroom.worker import END_WITHIN_S, Settings

CALLS_OF_A_STEP = 200
"""A phase that calls the kernel may last as long as this number of calls at their time limit. The phase has one call
for each case, or the calls of up to 24 timed rounds. A time budget usually ends these rounds earlier."""
INSPECTION_SILENCE_S = inspection.TIMEOUT_S + 10
SLACK_S = 60.0
"""Seconds added to each limit for a busy machine and for work other than calls."""
TICK_S = 0.5
START_WITHIN_S = 300.0
MOST_FAILED_STARTS = 3
LOG_TAIL_BYTES = 4096
MOST_WORKER_BYTES = 8 << 30
"""Limit of one worker's resident memory in bytes, without its runners and compilers. Inputs, outputs and NumPy need a
small fraction of it. A worker above the limit is killed before the machine runs out of memory."""


@dataclass(frozen=True)
class Job:
    """A submission to be judged.

    If `left` is given, only its parts and cases are judged. All other results are copied from the file `before`.
    """

    submission_id: str
    source: Path
    left: Rest | None = None
    before: Path | None = None
    known_as: str = ""
    """The submission's id in its result, if it differs from `submission_id`."""

    def to_json(self) -> str:
        """Return the job as one line of JSON for a worker."""
        rest = {"left": dict(self.left.parts), "before": str(self.before)} if self.left else {}
        name = self.known_as or self.submission_id
        return json.dumps({"submission_id": name, "source": str(self.source), **rest})


@dataclass(frozen=True)
class Phase:
    """Event: a submission has entered a phase of grading. `text` names the phase."""

    submission_id: str
    text: str
    machine: str = ""


@dataclass(frozen=True)
class Done:
    """Event: a job has a verdict. `result` is the content of result.json.

    `unfit`: True if the machine was too unsteady to measure a time. `seconds` maps kinds of phases (waiting, building,
    headers, inspection, results, timing) to wall time. `timings` has the fields of `ledger.HeldTiming` for each timing.
    `machine` is the cluster machine that judged, or "".
    """

    submission_id: str
    result: Mapping[str, Any]
    unfit: bool
    seconds: Mapping[str, float]
    timings: tuple[Mapping[str, Any], ...] = ()
    machine: str = ""


@dataclass(frozen=True)
class Failed:
    """Event: a job ended without a verdict because of `why`. `died`: its worker died. `final`: do not try it again."""

    submission_id: str
    why: str
    died: bool = False
    final: bool = False


@dataclass(frozen=True)
class MachineMet:
    """Event: a machine of a cluster passed its test, was refused, or was lost. `lost` is the reason for the loss."""

    machine: Machine
    lost: str = ""


Event = Phase | Done | Failed | MachineMet


class Executor(Protocol):
    """Interface of an executor. It starts jobs in the order of `submit`, which may be called while `results` runs."""

    def submit(self, job: Job) -> None: ...

    def results(self) -> Iterator[Event | None]:
        """Yield events until every job has ended. Also yield None regularly, so that the caller can do other work."""
        ...

    def close(self) -> None:
        """End all workers at once, even if jobs are unfinished."""
        ...


@dataclass
class _Worker:
    """The judge's record of one worker process.

    `place` is the worker's folder. `ready`: True once it can judge. `outgrown`: True if it used too much memory.
    `unread` is an incomplete line of its output. If it sends no message until `silent_until` (`time.monotonic`), it is
    killed.
    """

    process: subprocess.Popen[bytes]
    place: Path
    job: Job | None = None
    ready: bool = False
    unread: bytes = b""
    phase: str = ""
    silent_until: float | None = None
    outgrown: bool = False

    @property
    def log(self) -> str:
        """The last line that the worker wrote to its standard error."""
        with contextlib.suppress(OSError), (self.place / "log").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""


class LocalExecutor:
    """Executor that runs up to `workers` worker processes on this machine.

    `silence_s` is the longest time without a message from a worker, in seconds, by kind of phase; None means no limit.
    A kind that is not listed gets the longest of these limits. `command` starts a worker, which may use `most_bytes`
    of resident memory (Linux only).
    """

    def __init__(
        self,
        settings: Settings,
        scratch: Path,
        *,
        workers: int,
        silence_s: Mapping[str, float | None],
        command: Sequence[str] = (sys.executable, "-m", "grader.staff.classroom.worker"),
        most_bytes: int = MOST_WORKER_BYTES,
    ) -> None:
        self._settings, self._scratch, self._command = settings, scratch, list(command)
        self._most, self._silence_s, self._most_bytes = workers, silence_s, most_bytes
        self._queue: deque[Job] = deque()
        self._workers: list[_Worker] = []
        self._started = self._failed_starts = 0
        self._selector = selectors.DefaultSelector()
        # Adopt the child processes of a dead worker, such as compilers, so that `_end` can kill them.
        procfs.adopt()
        self._not_ours = procfs.children()

    def submit(self, job: Job) -> None:
        self._queue.append(job)

    def results(self) -> Iterator[Event | None]:
        """Yield events until every job has ended, and None at least every TICK_S seconds.

        Raises KitError if MOST_FAILED_STARTS workers in a row die before they are ready.
        """
        while True:
            self._assign()
            if not self._queue and not any(worker.job for worker in self._workers):
                return
            for key, _ in self._selector.select(TICK_S):
                if key.data is not None:
                    yield from self._read(key.data)
            for worker in self._workers:
                worker.outgrown = worker.outgrown or _resident_bytes(worker.process.pid) > self._most_bytes
                is_silent = worker.silent_until is not None and time.monotonic() > worker.silent_until
                if is_silent or worker.outgrown:
                    worker.process.kill()
            yield None

    def wake_by(self, descriptor: int) -> None:
        """Make `results` yield None as soon as this file descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, None)

    def drop(self, submission_id: str) -> None:
        """Forget the job of a submission, and kill the worker that judges it. No further events of the job follow."""
        self._queue = deque(job for job in self._queue if job.submission_id != submission_id)
        for worker in [
            worker for worker in self._workers if worker.job and worker.job.submission_id == submission_id
        ]:
            worker.job = None
            self._end(worker)

    def close(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        deadline = time.monotonic() + END_WITHIN_S + 1
        for worker in list(self._workers):
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            self._end(worker)
        self._selector.close()

    # ---- workers

    def _assign(self) -> None:
        """Give jobs to idle workers. If jobs are left, start more workers, up to the limit."""
        while self._queue:
            worker = next((w for w in self._workers if w.job is None), None)
            if worker is None and len(self._workers) < self._most:
                worker = self._start()
            if worker is None:
                return
            worker.job = self._queue.popleft()
            self._heard_of(worker, "")
            self._tell(worker, worker.job.to_json())

    def _start(self) -> _Worker:
        place = self._scratch / f"worker-{self._started}"
        self._started += 1
        # Mode 711: runners with another user id can open their own folders in this folder, but not list it.
        place.mkdir(mode=0o711)
        threads = max(1, (os.cpu_count() or 1) // self._most)
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                [*self._command, str(os.getpid())],
                cwd=ROOT,
                env={
                    **os.environ,
                    "TMPDIR": str(place),
                    "OMP_NUM_THREADS": str(threads),
                    SHARED_TRIALS: str(self._scratch),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C in the terminal must not reach the workers. The judge handles it, and ends the workers itself.
                start_new_session=True,
            )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        worker = _Worker(process, place)
        self._workers.append(worker)
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        self._tell(worker, self._settings.to_json())
        return worker

    def _tell(self, worker: _Worker, line: str) -> None:
        assert worker.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # The worker is dead. `_read` will notice this, too.
            worker.process.stdin.write(line.encode() + b"\n")
            worker.process.stdin.flush()

    def _heard_of(self, worker: _Worker, kind: str) -> None:
        """Restart the time limit on the worker's silence, with the limit for phases of this kind."""
        longest_s = max(
            (limit_s for limit_s in self._silence_s.values() if limit_s is not None), default=None
        )
        allowed_s = self._silence_s.get(kind, longest_s) if worker.ready else START_WITHIN_S
        worker.phase = kind
        worker.silent_until = (
            None if allowed_s is None or worker.job is None else time.monotonic() + allowed_s
        )

    def _read(self, worker: _Worker) -> Iterator[Event]:
        assert worker.process.stdout is not None
        chunk = worker.process.stdout.read(1 << 20)
        if chunk is None:
            return
        if not chunk:
            yield from self._died(worker)
            return
        *lines, worker.unread = (worker.unread + chunk).split(b"\n")
        for line in lines:
            yield from self._understand(worker, json.loads(line))

    def _understand(self, worker: _Worker, message: Mapping[str, Any]) -> Iterator[Event]:
        """Update the worker's record from a message of the worker, and yield the event that it reports, if any."""
        job = worker.job
        if "ready" in message:
            worker.ready, self._failed_starts = True, 0
        elif job is not None and "phase" in message:
            yield Phase(job.submission_id, message["phase"])
        elif job is not None:
            worker.job = None
            if "done" in message:
                timings = tuple(message.get("timings", ()))
                yield Done(job.submission_id, message["done"], message["unfit"], message["seconds"], timings)
            else:
                yield Failed(job.submission_id, message["failed"])
        self._heard_of(worker, message.get("kind", ""))

    def _died(self, worker: _Worker) -> Iterator[Event]:
        """Remove a dead worker. If it was ready, yield a failure of its job; else put the job back into the queue.

        Raises KitError if MOST_FAILED_STARTS workers in a row have died before they were ready.
        """
        was_silent = worker.silent_until is not None and time.monotonic() > worker.silent_until
        said = worker.log
        code = self._end(worker)
        how = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
        why = f"it was stuck in {worker.phase}" if was_silent and worker.phase else how
        why = f"it needed more than {size_text(self._most_bytes)} of memory" if worker.outgrown else why
        if worker.ready:
            if worker.job is not None:
                yield Failed(worker.job.submission_id, f"the worker that graded it died ({why})", True)
            return
        if worker.job is not None:
            self._queue.appendleft(worker.job)
        self._failed_starts += 1
        if self._failed_starts >= MOST_FAILED_STARTS:
            raise KitError(f"workers cannot start ({why}): {said or 'they print no message'}")

    def _end(self, worker: _Worker) -> int:
        """Kill a worker and its child processes, and remove its files. Return its exit status."""
        process = worker.process
        assert process.stdin is not None and process.stdout is not None
        self._selector.unregister(process.stdout)
        process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self._workers.remove(worker)
        procfs.sweep([*self._not_ours, *(other.process.pid for other in self._workers)])
        removal.remove(worker.place)
        return code


def _resident_bytes(pid: int) -> int:
    """Return a process's resident memory in bytes; 0 if the system does not report it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(procfs.text(f"/proc/{pid}/statm").split()[1]) * resource.getpagesize()
    return 0


def silence_limits(limits: RunLimits) -> dict[str, float | None]:
    """Return the longest silence of a worker, in seconds, by kind of phase; None means no limit.

    `inspection`, which reads untrusted files, has the shortest limit, because a hanging inspection delays other jobs.
    """
    calls_s = CALLS_OF_A_STEP * limits.call_s + SLACK_S
    return {
        "waiting": None,  # A worker may have to wait long for the timings of other workers.
        "headers": patience_s(HEADER_TIMEOUT_S) + SLACK_S,
        "building": patience_s(limits.build_s) + SLACK_S,
        "inspection": INSPECTION_SILENCE_S,
        "results": calls_s,
        "timing": calls_s,
    }
