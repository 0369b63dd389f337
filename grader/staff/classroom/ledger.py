"""The ledger of a class: an append-only file of JSON lines that stays readable if its writer is killed at any moment.

Theory of operation. `DIR/ledger.jsonl` holds five kinds of lines:

- `run`: one start of the judge, with assignment, seed and sandbox tier.
- `roster`: the list of submissions.
- `result`: one finished submission, in short.
- `machine`: the test result of a machine of a cluster.
- `report`: the totals in the reports that were written, and the path of the table of points given by hand.

A submission is finished if it has a `result` line; if it has several, the last counts. The judge first renames the new
`result.json` into place, and then writes the line and syncs it to the disk. If the judge is killed in between, the
submission is judged again. If the judge is killed while it writes the line, only this last line can be incomplete.
Readers ignore an incomplete line, and the next writer removes it.

The writer holds `DIR/lock` (flock), which the kernel releases when the writer dies. A note in the lock file names the
writer's scratch folder, so that the next writer can remove it. The note also has the device and inode of the lock file.
In a copy of the results folder these differ from the lock file's, and the note is ignored. The writer also locks the
scratch folder.

The folder may have been prepared by an attacker: no link in it is followed, and lines are read within limits of size,
depth and type (`plainfile`, `typedjson`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from grader.assignment.prints import PartPrints
from grader.core import plainfile, removal, typedjson
from grader.core.errors import KitError, UsageError, explained
from grader.core.quantities import size_text
from grader.core.results import SubmissionResult
from grader.report import result_json
from grader.report.machines import Machine
from grader.staff.classroom.fingerprints import Fingerprints
from grader.submission.ids import is_id

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Run:
    """One start of the judge in this folder, at the time `at` (UTC in ISO 8601).

    `config` is the path of the assignment's file; if `seed` is set, it replaces the file's seed. `timing`: True if
    times were measured. `sandbox` is the sandbox tier. `manual` is the path of the table of points given by hand.
    `submitted` is the path of the table of submission times. It may also be a constant of `planning`: FILE_TIMES (the
    files' dates) or COMMIT_TIMES (the last commits).
    """

    at: str
    config: str
    assignment: str
    assignment_fingerprint: str
    kit: str
    seed: int | None
    timing: bool
    sandbox: str
    workers: int
    manual: str | None = None
    submitted: str | None = None
    schema_version: int = SCHEMA_VERSION
    judging: Mapping[str, PartPrints] = field(default_factory=dict)
    """Digests of the assignment's settings that decide verdicts, by part; {} in older runs."""
    judged_by: str = ""
    """Sentence on the kit, this machine and its load at the start; "" in older runs."""


@dataclass(frozen=True)
class Entry:
    """One submission on the roster. `submitted_at` is UTC in ISO 8601, None if unknown.

    `marked_late`: True if the platform marks the submission as late. `error` is the reason why it cannot be graded.
    `identities` are the students' ids on platforms (`grader.staff.platforms.matching`).
    """

    submission_id: str
    name: str
    emails: tuple[str, ...] = ()
    submitted_at: str | None = None
    marked_late: bool = False
    error: str | None = None
    identities: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """One finished submission. `seconds` maps kinds of phases to wall time, `verdicts` maps part ids to verdicts.

    `points` are the points by the rubric, without the late penalty and points by hand. `trouble` is the reason for a
    missing verdict. `fault` is "submission" if the submission cannot be read. It is "kit" if the kit or the machine
    failed: the submission then has no verdict, and --resume tries it again. `waits_for` lists the programs that the
    machine lacked, separated by blanks.
    """

    submission_id: str
    fingerprints: Fingerprints
    at: str
    seconds: Mapping[str, float]
    attempt: int
    sha256: str = ""
    verdicts: Mapping[str, str] = field(default_factory=dict)
    points: float = 0.0
    max_points: float = 0.0
    trouble: str = ""
    fault: Literal["", "submission", "kit"] = ""
    reason: str = ""
    """The reason why the submission was graded again; "" the first time."""
    waits_for: str = ""
    machine: str = ""
    """The machine of a cluster that judged the submission; "" without a cluster."""
    timings: tuple[HeldTiming, ...] = ()
    ratios: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """For each correct, timed part: (time / reference time, low and high end of this ratio's interval)."""
    flagged: tuple[str, ...] = ()
    """Ids of parts with a flag that a person must review; all parts if the flag concerns the whole file."""


@dataclass(frozen=True)
class HeldTiming:
    """Time for which one timing had a resource to itself: the whole machine, or one core.

    `machine` is the machine's name, and `resource` is "machine" or, for one core, "core 3". `began_s` and `ended_s` are
    seconds since 1970 by that machine's clock.
    """

    part: str
    machine: str
    resource: str
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class Reported:
    """Totals by submission id in the reports written at the time `at`, and the path of the table of points by hand."""

    at: str
    manual: str | None
    totals: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """Content of a ledger: the runs in order, the latest roster, and the facts on the last reports.

    `records` has the last record of each submission by id, `machines` the last of each cluster machine by name.
    `manual` is the path of the table of points by hand that was used last.
    """

    runs: tuple[Run, ...] = ()
    roster: tuple[Entry, ...] = ()
    records: Mapping[str, Record] = field(default_factory=dict)
    reported: Reported | None = None
    manual: str | None = None
    machines: Mapping[str, Machine] = field(default_factory=dict)

    def judging(self, assignment_fingerprint: str) -> Mapping[str, PartPrints]:
        """Return `Run.judging` of the last run with this assignment that recorded one; {} if none has."""
        found = (
            run.judging for run in reversed(self.runs) if run.assignment_fingerprint == assignment_fingerprint
        )
        return next(filter(None, found), {})


KINDS: Mapping[str, Any] = {"run": Run, "result": Record, "report": Reported, "machine": Machine}
LEDGER, LOCK, RESULT = "ledger.jsonl", "lock", "result.json"
SCRATCH_PREFIX = "gpt149-class-"
MOST_LINE_BYTES = 16 << 20
"""Maximum length of a line of the ledger: enough for a roster of fifty thousand submissions."""
MOST_BYTES = 512 << 20


def read(folder: Path) -> History:
    """Return the folder's history, empty without ledger. Raises KitError for a bad line, UsageError if unreadable."""
    path = folder / LEDGER
    runs: list[Run] = []
    roster: tuple[Entry, ...] = ()
    records: dict[str, Record] = {}
    machines: dict[str, Machine] = {}
    reported: Reported | None = None
    manual: str | None = None
    for item in _items(path):
        if isinstance(item, Run):
            runs.append(item)
            manual = item.manual or manual
        elif isinstance(item, Record):
            records[item.submission_id] = item
        elif isinstance(item, Machine):
            machines[item.name] = item
        elif isinstance(item, Reported):
            reported, manual = item, item.manual
        else:
            roster = item
    if runs and runs[-1].schema_version != SCHEMA_VERSION:
        raise KitError(f"{path} was written by another version of the kit; choose another --out")
    return History(tuple(runs), roster, records, reported, manual, machines)


def results(folder: Path) -> Iterator[Record]:
    """Yield all results in order, even replaced ones. Raises KitError for an invalid line, UsageError if unreadable."""
    yield from (item for item in _items(folder / LEDGER) if isinstance(item, Record))


def result(folder: Path, submission_id: str) -> SubmissionResult | None:
    """Return a submission's result from its result.json; None if the file cannot be read."""
    path = folder / submission_id / RESULT
    try:
        with plainfile.folder(path.parent) as place:
            return result_json.read(path, inside=place)
    except (OSError, UsageError):
        return None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line) for each complete line. Text after the last newline is incomplete and skipped."""
    try:
        with os.fdopen(plainfile.open_file(path), "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise KitError(
                    f"{path}: larger than {size_text(MOST_BYTES)}, so it is not a ledger; choose another --out"
                )
            number = 0
            while (line := file.readline(MOST_LINE_BYTES + 1)).endswith(b"\n"):
                number += 1
                yield number, line
            if len(line) > MOST_LINE_BYTES:
                raise KitError(
                    f"{path}:{number + 1}: this line is longer than {size_text(MOST_LINE_BYTES)}: delete it"
                )
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _items(path: Path) -> Iterator[Run | Record | Reported | Machine | tuple[Entry, ...]]:
    place = str(path)
    try:
        for number, line in _lines(path):
            place = f"{path}:{number}"
            yield _item(line)
    except ValueError as error:
        raise KitError(
            f"{place}: not a line of a ledger ({error}); delete it (if it held a result, that is graded again)"
        ) from error


def _item(line: bytes) -> Any:
    item = typedjson.parse(line)
    kind = item.get("kind") if isinstance(item, dict) else None
    if kind == "roster":
        return _roster(item.get("submissions"))
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError("its kind is unknown")
    record: Any = typedjson.record(KINDS[kind], item)
    if isinstance(record, Record):
        _require_id(record.submission_id)
    return record


def _roster(listed: object) -> tuple[Entry, ...]:
    if not isinstance(listed, list):
        raise ValueError("submissions should be a list")
    roster = tuple(typedjson.record(Entry, entry, f"submissions[{k}]") for k, entry in enumerate(listed))
    for entry in roster:
        _require_id(entry.submission_id)
        if entry.submitted_at is not None:
            datetime.fromisoformat(entry.submitted_at)
    if len({entry.submission_id for entry in roster}) < len(roster):
        raise ValueError("two submissions have the same id")
    return roster


def _require_id(name: str) -> None:
    """Raise ValueError unless the text is a valid submission id. The id becomes part of a path."""
    if not is_id(name):
        raise ValueError(f"{name[:40]!r} is not a submission's id")


def now() -> str:
    """Return the current time in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# ---- writing


class Ledger:
    """Writer of a results folder, made by `hold`. All methods raise KitError if the folder cannot be written."""

    def __init__(self, folder: Path, fd: int, scratch: Path) -> None:
        self.folder, self.scratch = folder, scratch
        self._fd = fd

    def open_run(self, run: Run, roster: Sequence[Entry]) -> None:
        with self._write_errors():
            self._append({"kind": "run", **asdict(run)})
            self._append({"kind": "roster", "submissions": [asdict(entry) for entry in roster]})

    def finish(self, record: Record, result: Mapping[str, Any] | None, graded: Path | None = None) -> None:
        """Write the result, if any, with copies of the files in `graded`. Then append the record to the ledger."""
        with self._write_errors():
            if result is not None:
                text = json.dumps(result, indent=2, allow_nan=False) + "\n"
                self._keep(record, text, graded)
            self._append({"kind": "result", **asdict(record)})

    def finish_scored(self, scored: Iterable[tuple[Record, str]]) -> None:
        """Write the files of newly scored results, given as (record, text of result.json), then the ledger's lines."""
        lines = []
        with self._write_errors():
            for record, text in scored:
                self._keep(record, text, None, sync=False)
                lines.append({"kind": "result", **asdict(record)})
            os.sync()
            self._append(*lines)

    def _keep(self, record: Record, result: str, graded: Path | None, *, sync: bool = True) -> None:
        """Store result.json and copies of the files in `graded`. `sync`: wait until the files are on the disk."""
        with plainfile.folder(self.folder / record.submission_id, make=True) as descriptor:
            for path in sorted(filter(Path.is_file, graded.iterdir())) if graded else ():
                plainfile.replace(descriptor, path.name, [path.read_bytes()], sync=sync)
            plainfile.replace(descriptor, RESULT, [result.encode()], sync=sync)

    def met(self, machine: Machine) -> None:
        """Record the test result of a cluster machine."""
        with self._write_errors():
            self._append({"kind": "machine", **asdict(machine)})

    def reported(self, reported: Reported) -> None:
        """Record the totals in the reports that were just written."""
        with self._write_errors():
            self._append({"kind": "report", **asdict(reported)})

    def _write_errors(self) -> contextlib.AbstractContextManager[None]:
        advice = "finished results are kept: continue with --resume"
        return explained(f"cannot write in {self.folder}", KitError, advice)

    def _append(self, *items: Mapping[str, Any]) -> None:
        data = memoryview(b"".join(json.dumps(item, allow_nan=False).encode() + b"\n" for item in items))
        while data:
            data = data[os.write(self._fd, data) :]
        os.fsync(self._fd)


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[Ledger]:
    """Create `folder` if needed, lock it, make a scratch folder, and yield the ledger for writing.

    First removes what a killed writer has left: an incomplete last line and a scratch folder. Raises UsageError if
    another process holds the lock or the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with explained(f"cannot write in {folder}"):
            book = _taken(folder, stack)
        yield book


def _taken(folder: Path, stack: contextlib.ExitStack) -> Ledger:
    """Lock `folder` and return its ledger. Closing `stack` releases the lock and removes the scratch folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = _open_own(folder / LOCK, os.O_RDWR, 0o600)
    stack.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"{folder} is in use by another run (process {_note(lock).pid or 'unknown'}): wait for it, "
            "or choose another --out"
        ) from error
    note = _note(lock)
    if note.lock == _identity(lock):
        _clear_scratch(note.scratch)
    fd = _open_own(folder / LEDGER, os.O_RDWR | os.O_APPEND, 0o644)
    stack.callback(os.close, fd)
    scratch = Path(tempfile.gettempdir(), SCRATCH_PREFIX + secrets.token_hex(8))
    # Write the note before making the scratch folder. Then the next writer can remove the folder if this process dies.
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(asdict(_Note(_identity(lock), str(scratch), os.getpid()))).encode(), 0)
    stack.callback(removal.remove, scratch)
    with explained(f"cannot make the folder {scratch}", KitError):
        scratch.mkdir(mode=0o700)
    stack.enter_context(_claimed(scratch))
    _cut_torn_line(fd)
    with plainfile.folder(folder.resolve()) as descriptor:
        os.fsync(descriptor)
    return Ledger(folder, fd, scratch)


def _open_own(path: Path, flags: int, mode: int) -> int:
    """Open a file of the ledger, creating it if needed. Raises UsageError for a link, a folder or a device."""
    with explained(f"cannot write {path}"):
        return plainfile.open_file(path, flags | os.O_CREAT, mode=mode)


def _cut_torn_line(fd: int) -> None:
    whole = size = os.fstat(fd).st_size
    while whole > 0:
        start = max(0, whole - (1 << 20))
        end = os.pread(fd, whole - start, start).rfind(b"\n")
        whole = start + end + 1
        if end >= 0:
            break
    if whole < size:
        os.ftruncate(fd, whole)


# ---- the lock's note, and the scratch folder that it names


@dataclass(frozen=True)
class _Note:
    """The writer's note in the lock file: the lock file's `_identity`, and the writer's scratch folder and process."""

    lock: str = ""
    scratch: str = ""
    pid: int = 0


def _note(lock: int) -> _Note:
    """Return the last writer's note from the lock file; an empty note if the text is incomplete or invalid."""
    try:
        return typedjson.record(_Note, typedjson.parse(os.pread(lock, 4096, 0)))
    except ValueError:
        return _Note()


def _identity(lock: int) -> str:
    """Return the lock file's device and inode as text. A copy of the file has another inode."""
    status = os.fstat(lock)
    return f"{status.st_dev}:{status.st_ino}"


@contextlib.contextmanager
def _claimed(scratch: Path) -> Iterator[None]:
    """Lock the scratch folder during the `with` block. The lock shows other writers that this process still runs."""
    with plainfile.folder(scratch) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def _clear_scratch(path: str) -> None:
    """Remove the scratch folder of a killed writer.

    The path comes from a note that may be forged. So keep the folder if its name does not begin with SCRATCH_PREFIX, if
    another user owns it, or if a process has locked it.
    """
    if not Path(path).name.startswith(SCRATCH_PREFIX):
        return
    with contextlib.suppress(OSError, ValueError), plainfile.folder(Path(path)) as descriptor:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            removal.remove(path)
