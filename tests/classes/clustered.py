"""Faults for a class in a cluster of processes, and checks of its ledger. Shared with benchmarks/cluster_faults.py."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from itertools import combinations
from pathlib import Path

from classes.acting_class import Class, processes_of

from grader.staff.classroom import ledger

SILENT_S = 4.0
KILLS = ("kill a machine", "kill a node", "kill the scheduler", "kill the judge")
FAULTS = (*KILLS, "stop a machine", "interrupt the judge")
LOCAL = "cluster.local"
MARKS = {"machine": (LOCAL, "worker"), "node": ("cluster.node",), "scheduler": (LOCAL, "scheduler")}


def running(state: Path, what: str) -> list[int]:
    """Return the processes of this kind that belong to the class with this state folder."""
    found = []
    for pid in processes_of(state):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if all(mark in line for mark in MARKS[what]):
                found.append(pid)
    return found


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
    with suppress(ProcessLookupError):
        if fault.startswith("kill"):
            os.kill(victim, signal.SIGKILL)
        else:
            os.kill(victim, signal.SIGSTOP)
            time.sleep(SILENT_S + 2)
            os.kill(victim, signal.SIGCONT)
    return True


def overlaps(out: Path) -> tuple[int, int]:
    """Count the timings in the ledger, and the pairs of them that held one resource of one machine at once."""
    timings = [timing for record in ledger.read(out).records.values() for timing in record.timings]
    count = 0
    for one, other in combinations(timings, 2):
        same = one.resource == other.resource or "machine" in (one.resource, other.resource)
        at_once = one.began_s < other.ended_s and other.began_s < one.ended_s
        count += one.machine == other.machine and same and at_once
    return len(timings), count


def make_class(acting: Class, count: int) -> None:
    for k in range(count):
        verdict, more = ("pass", "slow", "wrong")[k % 3], ["die 1"] if k % 15 == 7 else []
        acting.add(f"student{k:03}", f"sleep {0.1 + 0.1 * (k % 5):.1f}", verdict, *more)
