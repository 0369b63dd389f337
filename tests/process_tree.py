"""Helpers that read the processes of this machine from /proc."""

import os
import time
from collections.abc import Callable
from pathlib import Path


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on. For an ended process, return the fields of a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z", "-1", *"0" * 12]


def alive(pid: int) -> bool:
    return stat(pid)[0] not in "ZX"


def descendants(root: int) -> set[int]:
    """Return the ids of a process's living descendants. They include orphans that `root` has adopted."""
    fields = {int(pid): stat(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()}
    parents = {pid: int(values[1]) for pid, values in fields.items() if values[0] not in "ZX"}
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def cpu_s(pid: int) -> float:
    return sum(map(int, stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def wait_for(found: Callable[[], object]) -> object:
    """Call `found` until its result is true, at most for two minutes. Return the last result, true or not."""
    deadline = time.monotonic() + 120
    while not (value := found()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return value
