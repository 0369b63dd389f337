"""Entries of a ledger, and processes that hold one or the machine, shared by tests of classrooms."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import ROOT

from grader.staff.classroom.fingerprints import Fingerprints
from grader.staff.classroom.ledger import Record, Run

FINGERPRINTS = Fingerprints("s", "a", "k", "o")
AT = "2025-01-01T00:00:00+00:00"
HOLDS_LEDGER = """
import sys
from pathlib import Path
from grader.staff.classroom import ledger
with ledger.hold(Path(sys.argv[1])) as book:
    (book.scratch / "file").write_text("x")
    print(book.scratch, flush=True)
    sys.stdin.read()
"""
HOLDS_MACHINE = """
import sys
from pathlib import Path
from grader.staff.classroom.slot import Slot
slot = Slot(Path(sys.argv[1]))
with slot.shared(), slot.exclusive():
    print("alone", flush=True)
    sys.stdin.read()
"""


def record(name: str, points: float = 1.0) -> Record:
    return Record(name, FINGERPRINTS, AT, {"building": 1.0}, 1, points=points, max_points=10.0)


def some_run() -> Run:
    return Run(AT, "a.yaml", "a", "a", "k", 1, True, "D", 2)


@contextmanager
def holding(script: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process that holds something in `folder` until it is killed. Yield it and the line that it prints."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, **pipes) as holder:  # type: ignore[call-overload]
        try:
            yield holder, holder.stdout.readline().strip()
        finally:
            holder.kill()
