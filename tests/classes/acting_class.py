"""Helpers that grade a class with the kit and a fake evaluator (`acting_worker.py`), or make ledger entries."""

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch

from handing_in import put
from process_tree import alive, wait_for

from grader.core.errors import KitError, UsageError
from grader.staff import running
from grader.staff.classroom import executor, fingerprints, gradebook, ledger, planning

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "tests" / "classes" / "small.yaml"
ACTING = ROOT / "tests" / "classes" / "acting_worker.py"
#: Limit of each wait in seconds, tens of times longer than a wait takes. It ends a test that hangs.
HANG_S = 120.0
JUDGE = """
import json, resource, sys
from classes.acting_class import judge
code = judge(json.loads(sys.argv[1]), sys.stdout)
assert "torch" not in sys.modules
print("peak KiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
FINGERPRINTS = fingerprints.Fingerprints("s", "a", "k", "o")
AT = "2025-01-01T00:00:00+00:00"
RUN = ledger.Run(AT, "a.yaml", "a", "a", "k", 1, True, "D", 2)
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
from grader.staff.classroom.worker import Slot
slot = Slot(Path(sys.argv[1]))
with slot.shared(), slot.exclusive():
    print("alone", flush=True)
    sys.stdin.read()
"""


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment, changed so that kit and tests can be imported from any folder."""
    known = (str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(known), **more}


def judge(wanted: dict[str, Any], stream: TextIO) -> int:
    """Execute the code `wanted["prepared"]`, if any. Grade a class with the other options. Return the exit code."""
    exec(wanted.pop("prepared", ""))
    named = ("submissions", "out", "config", "manual", "submitted", "calibration")
    paths = {key: Path(path) for key in named if (path := wanted.pop(key, None)) is not None}
    silent_s = wanted.pop("inspection_s", executor.INSPECTION_SILENCE_S)
    only, command, kit = tuple(wanted.pop("only", ())), wanted.pop("command"), wanted.pop("kit")
    # `kit` replaces the digest of the kit's sources: they may be edited during a test run.
    of_kit = (lambda: kit) if kit else fingerprints.of_kit
    silence = patch.object(executor, "INSPECTION_SILENCE_S", silent_s)
    with silence, patch.object(fingerprints, "of_kit", of_kit):
        asked = planning.RunOptions(**paths, only=only, trust=True, **wanted)
        with redirect_stdout(stream):
            return running.run(asked, [sys.executable, *command])


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until the condition holds. Fail if the process ends before, or if the wait exceeds HANG_S."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert process is None or process.poll() is None or condition(), process.communicate()
        assert time.monotonic() < deadline, "hangs"
        time.sleep(0.005)


class Class:
    """A folder of submissions with directives for the fake evaluator. `start` and `run` let a judge grade it."""

    def __init__(self, root: Path) -> None:
        self.folder, self.out, self.state = root / "class", root / "out", root / "state"
        self.temporary, self.config = root / "temporary", root / "small.yaml"
        for folder in (self.folder, self.state, self.temporary):
            folder.mkdir(parents=True)
        self.config.write_text(SMALL.read_text())

    def add(self, name: str, *directives: str) -> None:
        """Hand in a submission with these directives for the fake evaluator."""
        text = "\n".join(f"// {line}" for line in directives)
        put(self.folder, {f"{name}/module.cpp": f"{text}\nPYBIND11_MODULE\n".encode()})

    def add_all(self, directives: dict[str, str]) -> None:
        for name, lines in directives.items():
            self.add(name, *lines.splitlines())

    def asked(self, wanted: dict[str, object]) -> tuple[dict[str, object], dict[str, str]]:
        """Return the arguments of `judge` (defaults, and `wanted`), and its process's environment variables."""
        asked = {"workers": 1, "resume": True, "command": [str(ACTING)], "kit": "1", "tier": "D", **wanted}
        paths = {"submissions": str(self.folder), "out": str(self.out), "config": str(self.config)}
        # Real runners have other user ids, so they could not open temporary files in pytest's folders.
        place = {} if "command" in wanted else {"TMPDIR": str(self.temporary)}
        return {**paths, **asked}, environment(ACTING_STATE=str(self.state), **place)

    def start(self, **wanted: object) -> subprocess.Popen[str]:
        """Start a judge in a process of its own."""
        (asked, environ), pipe = self.asked(wanted), subprocess.PIPE
        command = [sys.executable, "-c", JUDGE, json.dumps(asked)]
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=environ)

    def run(self, *, apart: bool = False, **wanted: object) -> tuple[int, str]:
        """Run a judge to its end. Return its exit code and output. `apart`: True for a separate process."""
        if apart or "prepared" in wanted:
            process = self.start(**wanted)
            said = "".join(process.communicate(timeout=HANG_S))
            return process.returncode, said
        (asked, environ), stream = self.asked(wanted), io.StringIO()
        with patch.dict(os.environ, environ), patch.object(tempfile, "tempdir", environ.get("TMPDIR")):
            try:
                return judge(asked, stream), stream.getvalue()
            except (KitError, UsageError) as error:
                return 1, f"{stream.getvalue()}{type(error).__name__}: {error}"

    def grade(self, exit_code: int = 0, **wanted: Any) -> str:
        code, said = self.run(**wanted)
        assert code == exit_code, said
        return said

    def report(self, manual: Path | None = None) -> str:
        """Write the reports anew, in this process. Return what is printed. Raises UsageError."""
        with redirect_stdout(io.StringIO()) as said:
            gradebook.report(self.out, manual)
        return said.getvalue()

    def show(self, name: str) -> str:
        with redirect_stdout(io.StringIO()) as said:
            gradebook.show(self.out, name, None)
        return said.getvalue()

    def kill(self, judge: subprocess.Popen[str]) -> None:
        judge.kill()
        judge.communicate()
        assert gone(self.state), "workers must end with their judge"

    def graded(self) -> list[str]:
        """Return the submission ids of the finished evaluations, in order. Repeated evaluations repeat an id."""
        log = self.state / "log"
        return log.read_text().split() if log.exists() else []

    def grades(self) -> dict[str, dict[str, str]]:
        return rows_of(self.out)

    def totals(self) -> dict[str, str]:
        return {name: row["total"] for name, row in self.grades().items()}

    def result(self, name: str) -> dict[str, Any]:
        return json.loads((self.out / name / ledger.RESULT).read_text())  # type: ignore[no-any-return]

    def recorded(self) -> Counter[str]:
        """Count the complete result lines of each submission in the ledger."""
        path = self.out / ledger.LEDGER
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        items = map(json.loads, whole.splitlines())
        return Counter(item["submission_id"] for item in items if item["kind"] == "result")

    def allow_turns(self, count: int) -> None:
        """From now on, let only this many further submissions with the directive `turn` be evaluated."""
        for ticket in self.state.glob("turn-*"):
            ticket.unlink(missing_ok=True)
        for k in range(count):
            (self.state / f"turn-{k}").touch()


def rows_of(out: Path, key: str = "id") -> dict[str, dict[str, str]]:
    """Return the rows of grades.csv, each under its value in the column `key`."""
    text = (out / "grades.csv").read_text(encoding="utf-8-sig")
    return {row[key]: row for row in csv.DictReader(io.StringIO(text))}


def processes_of(state: Path) -> Iterator[int]:
    """Yield the ids of a class's processes, whose environment contains the name of the class's state folder `state`."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(state).encode() in (folder / "environ").read_bytes() and alive(int(folder.name)):
                yield int(folder.name)


def gone(state: Path) -> bool:
    """Wait up to two minutes until all processes of the class have ended. Return True if they have."""
    return bool(wait_for(lambda: not any(processes_of(state))))


def record(name: str, points: float = 1.0) -> ledger.Record:
    return ledger.Record(name, FINGERPRINTS, AT, {"building": 1.0}, 1, points=points, max_points=10.0)


@contextmanager
def holding(script: str, *given: object, folder: Path = ROOT) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a script that prints a line and then waits. Yield the process and the line. At the end kill the process."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", script, *map(str, given)]
    with subprocess.Popen(command, cwd=folder, **pipes) as holder:  # type: ignore[call-overload]
        try:
            yield holder, holder.stdout.readline().strip()
        finally:
            holder.kill()
