"""A class in a cluster of processes: what happens to them, and what of it the ledger shows. Shared with a benchmark."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from grader.staff.classroom import ledger
from grader.staff.classroom.recorded import HeldTiming

if TYPE_CHECKING:
    from test_classroom import Class

SILENT_S = 4.0
FAULTS = (
    "kill a machine",
    "kill a node",
    "stop a machine",
    "kill the scheduler",
    "kill the judge",
    "interrupt the judge",
)
MARKS = {
    "machine": ("cluster.local", "worker"),
    "node": ("cluster.node",),
    "scheduler": ("cluster.local", "scheduler"),
}


def running(state: Path, what: str) -> list[int]:
    """Processes of this kind that belong to the class with this state folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (place / "cmdline").read_bytes().decode(errors="replace")
            mine = str(state).encode() in (place / "environ").read_bytes()
            if mine and all(mark in line for mark in MARKS[what]):
                found.append(int(place.name))
    return found


def send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def inflict(fault: str, acting: Class, judge: subprocess.Popen[str], moments: random.Random) -> bool:
    """Whether there was something for it to happen to."""
    if fault.endswith("judge"):
        judge.send_signal(signal.SIGKILL if fault.startswith("kill") else signal.SIGINT)
        judge.communicate()
        return True
    there = running(acting.state, fault.split()[-1])
    if not there:
        return False
    victim = moments.choice(sorted(there))
    if fault.startswith("stop"):
        send(victim, signal.SIGSTOP)
        time.sleep(SILENT_S + 2)
        send(victim, signal.SIGCONT)
    else:
        send(victim, signal.SIGKILL)
    return True


def overlaps(out: Path) -> tuple[int, int]:
    """How many timings the ledger has, and how many pairs of them held one thing of one machine at once."""
    held: dict[str, list[HeldTiming]] = {}
    for record in ledger.read(out).records.values():
        for timing in record.timings:
            held.setdefault(timing.machine, []).append(timing)
    pairs = 0
    for timings in held.values():
        for k, one in enumerate(timings):
            for other in timings[:k]:
                same = one.resource == other.resource or "machine" in (one.resource, other.resource)
                pairs += same and one.began_s < other.ended_s and other.began_s < one.ended_s
    return sum(map(len, held.values())), pairs


def make_class(acting: Class, count: int) -> None:
    for k in range(count):
        more = ["die 1"] if k % 15 == 7 else []
        verdict = ("pass", "slow", "wrong")[k % 3]
        acting.add(f"student{k:03}", f"sleep {0.1 + 0.1 * (k % 5):.1f}", verdict, *more)
