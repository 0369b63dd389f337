"""The record of a class: an append-only file of JSON lines that survives the death of its writer at any moment.

Theory of operation. `DIR/ledger.jsonl` holds three kinds of lines: `run` (one per start of the judge: assignment,
seed, sandbox tier), `roster` (who handed in) and `result` (one finished submission, light). What counts as finished is
what has a `result` line, and the last one of a submission counts. A line is written in one go and synced to the disk
*after* the submission's `result.json`, which appears by rename; so a judge killed in between has at worst written a
result that nobody counts. A line that was torn by such a death is the last one: readers ignore it, and the next writer
cuts it off. Whoever writes holds `DIR/lock` (flock), which the kernel releases when its holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from grader.errors import KitError, UsageError
from grader.fingerprints import Fingerprints

LEDGER, LOCK, RESULT = "ledger.jsonl", "lock", "result.json"
SCHEMA_VERSION = 1
SCRATCH_PREFIX = "gpt149-class-"
T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One start of the judge in this folder. `config` is the assignment's file and `seed` what took the place of its
    own, if anything did; `at` and all times are UTC, ISO 8601."""

    at: str
    config: str
    assignment: str
    assignment_fingerprint: str
    kit: str
    seed: int | None
    timing: bool
    sandbox: str
    workers: int
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Entry:
    """One who handed in. `marked_late`: the platform says so, not by how much. `error`: why nothing can be graded."""

    submission_id: str
    name: str
    emails: tuple[str, ...] = ()
    submitted_at: str | None = None
    marked_late: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Record:
    """One finished submission. `seconds` are wall time by kind of phase, `verdicts` by part id; points are the
    evaluator's, before late days and hand-given ones. `trouble` says why there is no result; `fault` whose it is: the
    kit's is no verdict and is tried again. `waits_for`: what the machine lacked, names with blanks between them."""

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
    """Why it was graded again, if it was."""
    waits_for: str = ""


@dataclass(frozen=True)
class History:
    """What a ledger says: the runs in order, the latest roster, and the last record of each submission."""

    runs: tuple[Run, ...] = ()
    roster: tuple[Entry, ...] = ()
    records: Mapping[str, Record] = field(default_factory=dict)


def read(folder: Path) -> History:
    """The history in this folder; empty when there is none yet. Raises KitError for a line that nobody wrote so."""
    path = folder / LEDGER
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return History()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    runs: list[Run] = []
    roster: tuple[Entry, ...] = ()
    records: dict[str, Record] = {}
    # After the last newline stands nothing, or a line that its writer did not live to end.
    for number, line in enumerate(lines[:-1], 1):
        item = _item(line, f"{path}:{number}")
        if isinstance(item, Run):
            runs.append(item)
        elif isinstance(item, Record):
            records[item.submission_id] = item
        else:
            roster = item
    if runs and runs[-1].schema_version != SCHEMA_VERSION:
        raise KitError(f"{path} was written by another version of the kit; choose another --out")
    return History(tuple(runs), roster, records)


def _item(line: bytes, place: str) -> Run | Record | tuple[Entry, ...]:
    try:
        item = json.loads(line)
        if item["kind"] == "run":
            return _read(Run, item)
        if item["kind"] == "roster":
            return tuple(
                _read(Entry, {**entry, "emails": tuple(entry["emails"])}) for entry in item["submissions"]
            )
        return _read(Record, {**item, "fingerprints": _read(Fingerprints, item["fingerprints"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KitError(
            f"{place}: not a line of a ledger ({error}); remove it to grade that submission again"
        ) from error


def _read(cls: type[T], item: Mapping[str, Any]) -> T:
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    return cls(**{key: value for key, value in item.items() if key in known})


# ---- writing


class Ledger:
    """The one writer of a folder; made by `hold`. All of its methods raise KitError when the disk takes no more."""

    def __init__(self, folder: Path, fd: int, scratch: Path) -> None:
        self.folder, self.scratch = folder, scratch
        self._fd = fd

    def open_run(self, run: Run, roster: Sequence[Entry]) -> None:
        with self._told():
            self._append({"kind": "run", **asdict(run)})
            self._append({"kind": "roster", "submissions": [asdict(entry) for entry in roster]})

    def finish(self, record: Record, result: Mapping[str, Any] | None, graded: Path | None = None) -> None:
        """Keep a result: first its own file beside a copy of what was `graded`, then the line that makes it count."""
        place = self.folder / record.submission_id / RESULT
        with self._told():
            if result is not None:
                for path in sorted(graded.iterdir()) if graded else ():
                    write_whole(place.with_name(path.name), path.read_bytes())
                write_whole(place, json.dumps(result, indent=2, allow_nan=False).encode() + b"\n")
            elif record.fault == "submission":
                # What an earlier version of the submission earned must not be taken for this one's.
                place.unlink(missing_ok=True)
            self._append({"kind": "result", **asdict(record)})

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise KitError(
                f"cannot write in {self.folder}: {error.strerror}; what is finished is kept: go on with --resume"
            ) from error

    def _append(self, item: Mapping[str, Any]) -> None:
        data = memoryview(json.dumps(item, allow_nan=False).encode() + b"\n")
        while data:
            data = data[os.write(self._fd, data) :]
        os.fsync(self._fd)


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[Ledger]:
    """Be the one writer of `folder`, which is made if need be, with a scratch folder of one's own.

    What a killed holder left is cleared away first: its torn last line and its scratch folder. Raises UsageError when
    another process holds it or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"cannot write in {folder}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = _note(lock).get("pid", "unknown")
            raise UsageError(
                f"{folder} is in use by another run (process {pid}): wait for it, or choose another --out"
            ) from error
        _clear_scratch(_note(lock).get("scratch"))
        scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
        try:
            _leave_note(lock, {"pid": os.getpid(), "scratch": str(scratch)})
            fd = os.open(folder / LEDGER, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                _cut_torn_line(fd)
                _sync_folder(folder)
                yield Ledger(folder, fd, scratch)
            finally:
                os.close(fd)
        finally:
            _clear_scratch(str(scratch))
    finally:
        os.close(lock)


def write_whole(path: Path, content: bytes) -> None:
    """Put a file in place whole or not at all, and on the disk before this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _cut_torn_line(fd: int) -> None:
    size = os.fstat(fd).st_size
    whole = os.pread(fd, size, 0).rfind(b"\n") + 1
    if whole < size:
        os.ftruncate(fd, whole)


def _note(lock: int) -> dict[str, Any]:
    """What the last holder wrote into the lock file; empty when it was killed while it did."""
    try:
        note = json.loads(os.pread(lock, 4096, 0))
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def _leave_note(lock: int, note: Mapping[str, Any]) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(note).encode(), 0)


def _clear_scratch(path: str | None) -> None:
    # The name comes from a file that a person may have edited: remove nothing but what this room makes.
    if path and Path(path).name.startswith(SCRATCH_PREFIX) and not Path(path).is_symlink():
        shutil.rmtree(path, ignore_errors=True)
