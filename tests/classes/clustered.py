"""Processes and timings of a class in a cluster."""

from contextlib import suppress
from itertools import combinations
from pathlib import Path

from classes.acting_class import processes_of

from grader.staff.classroom import ledger

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


def overlaps(out: Path) -> tuple[int, int]:
    """Count the timings in the ledger, and the pairs of them that held one resource of one machine at once."""
    timings = [timing for record in ledger.read(out).records.values() for timing in record.timings]
    count = 0
    for one, other in combinations(timings, 2):
        same = one.resource == other.resource or "machine" in (one.resource, other.resource)
        at_once = one.began_s < other.ended_s and other.began_s < one.ended_s
        count += one.machine == other.machine and same and at_once
    return len(timings), count
