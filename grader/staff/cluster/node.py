"""A node: a child process of a dask worker. It judges the machine's jobs by a `LocalExecutor`.

    python -m grader.staff.cluster.node        reads and writes lines of JSON on standard input and output

The first line from the dask worker is `start`: the judge's `Kit`, the machine's name, and the number of jobs at once.
The node answers with `facts`: a description of this machine, with a reason if it may not judge. A job is {"job",
"submission_id", "source", "files", "left", "before"}. The node answers with {"job", "phase"} for each phase, and at
last with {"job", "done"} or {"job", "failed", "died"}. {"stop": job} ends a job at once. The node ends at the end of
its input, or when its parent dies.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import signal
import stat
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grader import sandbox
from grader.assignment.loading import load
from grader.core import machine, plainfile, procfs, removal
from grader.core.errors import KitError, UsageError
from grader.judge.regrade import Rest
from grader.staff.classroom.executor import Done, Event, Failed, Job, LocalExecutor, Phase, silence_limits
from grader.staff.classroom.worker import Say, Settings, replies
from grader.staff.cluster import proof
from grader.staff.cluster.proof import Kit
from grader.submission.ids import is_id

SLOTS = "gpt149-slots"
MACHINES_FOLDERS = ("/dev/shm", "/tmp")
"""Folders for the locks that all nodes of a machine share. The first one that is writable is used."""
SCRATCH = "gpt149-node-"
ALIVE_S = 2.0
"""Interval in seconds at which a node with jobs reports that it is alive."""
FILES_MODE = 0o644
IDLE_S = 900.0


class Node:
    """The jobs of one judge's run on this machine, and the executor that runs them. `say` sends a message."""

    def __init__(self, start: Mapping[str, Any], say: Say) -> None:
        self.kit, self.name, self.say = Kit(**start["kit"]), str(start["name"]), say
        self.workers = int(start["workers"])
        self.command: list[str] = start["command"]
        self.jobs: dict[str, str] = {}
        """The judge's key of each job, by the job's name in the local executor."""
        self.scratch, self._claim = own_scratch()
        self.started = 0
        self.executor: LocalExecutor | None = None

    def facts(self, *, thorough: bool) -> dict[str, Any]:
        """Check this machine, and start the executor if the machine may judge. Return {"facts": description}.

        The description contains "refused", the reason why the machine may not judge, or "". `thorough`: run the doctor,
        too."""
        refused = proof.refusals(self.kit)
        notes: list[str] = []
        if not refused and thorough:
            refused, notes = proof.complaints()
        if not refused:
            self.executor = self._executor()
        return {"facts": {**proof.facts(self.name), "refused": "; ".join(refused), "notes": notes}}

    def _executor(self) -> LocalExecutor:
        kit = self.kit
        config = proof.config_path(kit)
        assignment = load(config, kit.seed)
        settings = Settings(
            config=str(config),
            assignment_fingerprint=kit.assignment_fingerprint,
            seed=kit.seed,
            timing=kit.timing,
            sandbox=asdict(sandbox.choose(kit.tier, kit.trust)),
            slot=str(slot_folder()),
            timings_alone=kit.timings_alone,
            cores=tuple(machine.timing_cores()),
            machine=proof.facts(self.name)["host"],
        )
        return LocalExecutor(
            settings,
            self.scratch,
            workers=self.workers,
            silence_s=silence_limits(assignment.limits),
            **({"command": [sys.executable, *self.command]} if self.command else {}),
        )

    def take(self, request: Mapping[str, Any]) -> None:
        """Start the job that the judge sent, or stop a job."""
        if self.executor is None:
            return
        if "stop" in request:
            for name, key in list(self.jobs.items()):
                if key == request["stop"]:
                    del self.jobs[name]
                    self.executor.drop(name)
                    removal.remove(self.scratch / f"job-{name}")
            return
        try:
            self._begin(request)
        except OSError as error:
            # This machine's disk may be full. After the failure, the judge sends the job to another machine.
            removal.remove(self.scratch / f"job-{self.started - 1}")
            why = f"its files cannot be written here: {error.strerror}"
            self.say({"job": request["job"], "failed": why, "died": False})

    def _begin(self, request: Mapping[str, Any]) -> None:
        assert self.executor is not None
        # Jobs are numbered here, because a submission may arrive twice, for example after the judge has reconnected.
        name, known_as = f"{self.started}", str(request["submission_id"])
        place = self.scratch / f"job-{name}" / (known_as if is_id(known_as) else "submission")
        self.started += 1
        place.mkdir(mode=0o755, parents=True)
        for file, content in request["files"].items():
            if Path(file).name == file:
                (place / file).write_bytes(base64.b64decode(content))
                (place / file).chmod(FILES_MODE)
        left = before = None
        if request.get("left"):
            left = Rest({part: tuple(cases) for part, cases in request["left"].items()})
            before = place / "result-before.json"
            before.write_text(request["before"], encoding="utf-8")
        self.jobs[name] = request["job"]
        self.executor.submit(Job(name, place / request["source"], left, before, known_as))

    def send(self, event: Event) -> None:
        key = self.jobs.get(event.submission_id)
        if key is None:
            return
        if isinstance(event, Phase):
            self.say({"job": key, "phase": event.text})
            return
        del self.jobs[event.submission_id]
        removal.remove(self.scratch / f"job-{event.submission_id}")
        if isinstance(event, Failed):
            self.say({"job": key, "failed": event.why, "died": event.died})
        elif isinstance(event, Done):
            outcome = {"done": event.result, "unfit": event.unfit, "seconds": event.seconds}
            self.say({"job": key, **outcome, "timings": list(event.timings)})

    def close(self) -> None:
        if self.executor is not None:
            self.executor.close()
        removal.remove(self.scratch)
        os.close(self._claim)


def own_scratch() -> tuple[Path, int]:
    """Make a scratch folder. Return (its path, the descriptor that locks it).

    First remove scratch folders that killed nodes of this user have left: the kernel has released their locks. The lock
    `nodes` lets only one node at a time make and remove folders. Otherwise a node could remove another node's new
    folder, which is not locked yet.
    """
    turn = os.open(slot_folder() / "nodes", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for left in Path(tempfile.gettempdir()).glob(SCRATCH + "*"):
            with contextlib.suppress(OSError), plainfile.folder(left) as descriptor:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    removal.remove(left)
        place = Path(tempfile.mkdtemp(prefix=SCRATCH))
        place.chmod(0o711)
        claim = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(claim, fcntl.LOCK_SH)
        return place, claim
    finally:
        os.close(turn)


def slot_folder() -> Path:
    """Return the folder of this machine's locks. All nodes of this user share it, even those of different judges."""
    places = [place for place in MACHINES_FOLDERS if os.access(place, os.W_OK | os.X_OK)]
    folder = Path(*places[:1] or [tempfile.gettempdir()], f"{SLOTS}-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise KitError(f"{folder} is not a folder of this user: remove it")
    return folder


def serve() -> None:
    """Judge jobs from standard input. Returns if this machine may not judge; raises EOFError at the input's end."""
    requests = Requests(0)
    say = replies()
    node = Node(requests.wait(), say)
    try:
        say(node.facts(thorough=not node.command))
        if node.executor is None:
            return
        os.set_blocking(0, False)
        node.executor.wake_by(0)
        sent_s = time.monotonic()
        while True:
            for event in node.executor.results():
                if event is not None:
                    node.send(event)
                    continue
                if time.monotonic() - sent_s > ALIVE_S:
                    say({"alive": True})
                    sent_s = time.monotonic()
                for request in requests.there():
                    node.take(request)
            node.take(requests.wait())
    finally:
        node.close()


class Requests:
    """Reader of JSON lines from a descriptor. Its methods raise EOFError at the end of the input."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self._unread = descriptor, b""
        self._lines: deque[bytes] = deque()

    def there(self) -> list[dict[str, Any]]:
        """Return all requests that have arrived."""
        with contextlib.suppress(BlockingIOError):
            self._read()
        found = [json.loads(line) for line in self._lines]
        self._lines.clear()
        return found

    def wait(self) -> dict[str, Any]:
        """Wait for the next request and return it. Also raises EOFError after IDLE_S seconds without one."""
        while not self._lines:
            if not select.select([self.descriptor], [], [], IDLE_S)[0]:
                raise EOFError
            with contextlib.suppress(BlockingIOError):
                self._read()
        return dict(json.loads(self._lines.popleft()))

    def _read(self) -> None:
        chunk = os.read(self.descriptor, 1 << 20)
        if not chunk:
            raise EOFError
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        self._lines += lines


def _end(_signal: int, _frame: object) -> None:
    raise SystemExit(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    procfs.end_with_parent(signal.SIGTERM)
    try:
        serve()
    except (EOFError, BrokenPipeError):
        pass
    except (KitError, UsageError) as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
