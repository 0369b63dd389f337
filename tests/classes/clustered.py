"""Faults for a class in a cluster of processes, and checks of its ledger. Shared with benchmarks/cluster_faults.py."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from classes.acting_class import Class, processes_of

from grader.staff.classroom import ledger
from grader.staff.classroom.recorded import HeldTiming

SILENT_S = 4.0
FAULTS = (
    *(f"kill {what}" for what in ("a machine", "a node", "the scheduler", "the judge")),
    "stop a machine",
    "interrupt the judge",
)
MARKS = {
    "machine": ("cluster.local", "worker"),
    "node": ("cluster.node",),
    "scheduler": ("cluster.local", "scheduler"),
}


def running(state: Path, what: str) -> list[int]:
    """Return the processes of this kind that belong to the class with this state folder."""
    found = []
    for pid in processes_of(state):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if all(mark in line for mark in MARKS[what]):
                found.append(pid)
    return found


def send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def inflict(fault: str, acting: Class, judge: subprocess.Popen[str], moments: random.Random) -> bool:
    """Inflict a fault. Return False if there is nothing for it to happen to."""
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
    """Count the timings in the ledger, and the pairs of them that held one resource of one machine at once."""
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
