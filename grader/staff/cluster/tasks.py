"""Tasks that dask workers run: they pass jobs to a node (a child process), and report the jobs' progress.

Dask pickles these functions by name, so only a worker with the kit can run them. Arguments and results are JSON values.
A task passes on the files and results in these values without reading them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from grader.core.harmless import one_line
from grader.core.places import ROOT

ALIVE_S = 2.0
"""Interval in seconds at which a task reports that it is alive."""
STALL_S = 6.0
"""If a task's loop pauses for longer than this, in seconds, the machine was stopped: the job's result is discarded."""
CLOSE_WITHIN_S = 10.0
NODE_SILENT_S = 30.0
"""A node without a message for this time, in seconds, is stuck: it is killed, and its jobs go to other machines."""


class NodeProcess:
    """Node of one judge's run, a child process of this dask worker. `facts` is None until the node sends it."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self.inboxes: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}
        self.lock = threading.Lock()
        self.ended = False
        self.facts: dict[str, Any] | None = None
        self.heard_s = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._there = threading.Event()
        # The kernel kills the node when the thread that started it ends (PR_SET_PDEATHSIG). So the node is started by
        # the thread that reads its messages.
        self._reader = threading.Thread(target=self._read, args=(dict(start),), daemon=True)
        self._reader.start()

    def wait_facts(self) -> dict[str, Any]:
        """Return the node's description of the machine when it arrives, or {"lost": why} if the node ends before."""
        self._there.wait()
        return self.facts or {"lost": "its node ended while the node checked the machine"}

    def begin(self, request: Mapping[str, Any]) -> queue.SimpleQueue[dict[str, Any]]:
        """Send a job to the node. Return the queue of the node's messages on the job."""
        inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self.lock:
            self.inboxes[request["job"]] = inbox
            lost = self.ended
        if lost:
            inbox.put(_LOST)
        self._write(request)
        return inbox

    def forget(self, job: str) -> None:
        with self.lock:
            self.inboxes.pop(job, None)
        self._write({"stop": job})

    def is_silent(self) -> bool:
        """Return True if the node sent no message for NODE_SILENT_S seconds."""
        return time.monotonic() - self.heard_s > NODE_SILENT_S

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(CLOSE_WITHIN_S)
        process.kill()

    def _write(self, message: Mapping[str, Any]) -> None:
        with self.lock, contextlib.suppress(OSError, ValueError):
            if self._process is None or self._process.stdin is None:
                return  # The node could not be started.
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self, start: dict[str, Any]) -> None:
        """Start the node and read its messages until it ends. Then, or after an error, wake all waiting threads."""
        said: deque[bytes] = deque(maxlen=1)
        try:
            self._talk(start, said)
        except Exception as error:  # The node did not start, or it was killed while it wrote a message.
            said.append(f"{type(error).__name__}: {error}".encode())
            self.kill()
        if self._process is not None:
            self._process.wait()
            if self.facts is None and said:
                why = one_line(said[-1].decode(errors="replace"), 200)
                self.facts = {"refused": f"its node ended: {why}"}
        with self.lock:
            self.ended = True
            for inbox in self.inboxes.values():
                inbox.put(_LOST)
        self._there.set()

    def _talk(self, start: dict[str, Any], said: deque[bytes]) -> None:
        """Start the node and pass on its messages until it ends. `said` gets the last line of its stderr."""
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "grader.staff.cluster.node"],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._write(start)
        assert process.stdout is not None and process.stderr is not None
        threading.Thread(target=said.extend, args=(process.stderr,), daemon=True).start()
        for line in process.stdout:
            message = json.loads(line)
            self.heard_s = time.monotonic()
            if "facts" in message:
                self.facts = message["facts"]
                self._there.set()
                continue
            with self.lock:
                inbox = self.inboxes.get(message.get("job", ""))
            if inbox is not None:
                inbox.put(message)


_LOST: dict[str, Any] = {"lost": "its node ended"}
_nodes: dict[str, NodeProcess] = {}
_lock = threading.Lock()


def _environment() -> dict[str, str]:
    """Return the environment of the node: this process's, without dask's settings, which name files with keys."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DASK_")}


def node_of(run: str, start: Mapping[str, Any]) -> NodeProcess:
    """Return the node of the judge's run with the id `run`. Start a node if none is running."""
    with _lock:
        for other in [other for other, node in _nodes.items() if node.ended]:
            del _nodes[other]
        node = _nodes.get(run)
        if node is None or node.ended:
            node = _nodes[run] = NodeProcess(start)
        return node


def prove(run: str, start: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node's description of this machine, or {"lost": why}. See `NodeProcess.wait_facts`."""
    return node_of(run, start).wait_facts()


def judge(run: str, start: Mapping[str, Any], request: Mapping[str, Any], topic: str) -> dict[str, Any]:
    """Let the node judge a job. Report phases under dask's `topic`. Return the last message, or {"lost": why}."""
    from distributed import get_worker

    worker, job = get_worker(), request["job"]
    key = worker.get_current_task()
    node = node_of(run, start)
    node.wait_facts()
    inbox = node.begin(request)
    ticked_s = logged_s = time.monotonic()
    stalled = False
    try:
        worker.log_event(topic, {"job": job, "phase": "waiting"})
        while True:
            try:
                message = inbox.get(timeout=ALIVE_S / 2)
            except queue.Empty:
                message = {}
            now_s = time.monotonic()
            stalled = stalled or now_s - ticked_s > STALL_S
            ticked_s = now_s
            if message and "phase" not in message:
                return {"lost": "it was stopped for a while"} if stalled else message
            if node.is_silent():
                node.kill()
                return {"lost": "its node stopped answering"}
            if not _is_wanted(worker, key):
                return {"lost": "nobody waits for it"}
            if message or now_s - logged_s > ALIVE_S:
                worker.log_event(topic, {"job": job, "phase": message.get("phase", "")})
                logged_s = now_s
    finally:
        node.forget(job)


def _is_wanted(worker: Any, key: str) -> bool:
    """Return True if a client still waits for this task. If not, the task must end itself: dask cannot end it."""
    task = worker.state.tasks.get(key)
    return task is not None and task.state in ("executing", "long-running")


def close(run: str) -> None:
    """End the node of a run."""
    with _lock:
        node = _nodes.pop(run, None)
    if node is not None:
        node.close()
