"""Search for the submissions in a file, folder or archive. Each is copied into a small folder of its own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from grader.assignment.records import SUFFIXES, file_of
from grader.core import removal
from grader.core.errors import KitError, UsageError, explained
from grader.submission.archive.opening import NoRoom, disk_error
from grader.submission.archive.records import Unreadable, shown
from grader.submission.ids import identify
from grader.submission.nodes import STUDENT, DiskNode, bounded
from grader.submission.roster import Unit, single, students
from grader.submission.search import Chosen, Names, chosen, disk_folder, modified_at

MAX_SOURCE_BYTES = 1 << 20
COMPANIONS = ("module.ispc",)
"""Files that may be handed in beside any source."""


def companions_of(source_name: str) -> tuple[str, ...]:
    """Return the names of files that may be handed in beside a source, such as GPU kernels in other languages."""
    if not source_name.endswith(tuple(SUFFIXES.values())):
        return COMPANIONS
    others = dict.fromkeys(file_of(source_name, language) for language in SUFFIXES)
    return (*COMPANIONS, *(name for name in others if name != source_name))


@dataclass(frozen=True)
class Submission:
    """One submission. `path` is the folder with `source` and companions only; both are None if there is an `error`.

    `id` is unique among the submissions of one run, the same in each run, and safe as a file name on any system. `name`
    is for people. `origin` is the place where the source was found. `sha256` covers the source and its companions.
    `submitted_at` is in UTC, None if the export does not contain it. `marked_late` is True if Canvas marks the file as
    late; it does not say by how many days.
    """

    id: str
    name: str
    path: Path | None
    source: Path | None
    error: str | None = None
    submitted_at: datetime | None = None
    emails: tuple[str, ...] = ()
    marked_late: bool = False
    origin: str = ""
    sha256: str | None = None
    fault: Literal["", "submission", "kit"] = ""
    """Cause of the `error`: "kit" if the disk was too full to unpack the submission, else "submission"; "" if none."""
    identities: tuple[str, ...] = ()
    """Ids of the submitters on course platforms, besides `emails`: "sis:100234", "canvas:4711", "moodle:123"."""
    folder: Path | None = None
    """The submission's own folder on disk, with links in its path resolved; None for any other form."""
    modified_at: datetime | None = None
    """Modification time (UTC) of the file on disk that was handed in; None inside an archive of a class."""


def find(
    path: Path,
    source_name: str,
    scratch: Path,
    companions: Sequence[str] | None = None,
    *,
    of_class: str = "",
) -> list[Submission]:
    """Copy every submission in `path` into a folder of `scratch`. Return them in the order of their ids.

    `of_class` is the assignment's source if `source_name` names another file, such as a write-up. Students and ids are
    then the same as in a search for the sources, even if the sources are missing.

    Raises UsageError if `path` is missing or holds no submission, KitError if `scratch` cannot be written.
    """
    beside = companions_of(source_name) if companions is None else tuple(companions)
    names = Names(source_name, beside, Names(of_class, companions_of(of_class)) if of_class else None)
    with ExitStack() as stack:
        units = students(_root(path), names, _private(scratch), stack)
        if not units:
            raise UsageError(
                f"{path} holds no submission: name a {source_name}, a folder or an archive that holds one, "
                "or a folder or an archive of these, one per student"
            )
        return _taken(units, names, scratch)


def find_one(
    path: Path, source_name: str, scratch: Path, companions: Sequence[str] | None = None
) -> Submission:
    """Return the one submission in `path`, which is a file, a folder or an archive. Raises as `find` does.

    A Python file is copied with the files that it imports from its own folders.
    """
    names = Names(source_name, companions_of(source_name) if companions is None else tuple(companions))
    one = _taken(
        [replace(single(_root(path)), with_imports=source_name.endswith(".py"))], names, _private(scratch)
    )[0]
    if one.fault == "kit":
        raise KitError(f"{path}: {one.error}")
    return one


def _root(path: Path) -> DiskNode:
    try:
        return DiskNode.at(path)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise UsageError(f"cannot read {shown(str(path), 300)}: {reason}") from error


def _private(scratch: Path) -> Path:
    with explained(f"cannot make the folder {scratch}", KitError):
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    return scratch


def _taken(units: Sequence[Unit], names: Names, scratch: Path) -> list[Submission]:
    ids = identify([(unit.title, unit.key) for unit in units])
    return sorted(
        (_take(unit, unit_id, names, scratch) for unit, unit_id in zip(units, ids, strict=True)),
        key=lambda submission: submission.id,
    )


def _take(unit: Unit, unit_id: str, names: Names, scratch: Path) -> Submission:
    """Copy one submission, or record the reason why it cannot be copied."""
    folder, sha256, error, fault = scratch / unit_id, None, None, ""
    taken = Chosen({}, "")
    try:
        with ExitStack() as stack:
            taken = chosen(unit, names, STUDENT, scratch, stack)
            sha256 = _copy(taken.files, names, folder)
    except Unreadable as broken:
        error, fault = str(broken), "submission"
    except NoRoom as full:
        error, fault = str(full), "kit"
    if error:
        removal.remove(folder)
    return Submission(
        id=unit_id,
        name=unit.name,
        path=None if error else folder,
        source=None if error else folder / names.source,
        error=error,
        submitted_at=unit.submitted_at,
        emails=unit.emails,
        marked_late=unit.marked_late,
        origin=taken.origin,
        sha256=sha256 if not error else None,
        fault=fault,  # type: ignore[arg-type]
        identities=unit.identities,
        folder=disk_folder(unit),
        modified_at=taken.modified_at or modified_at(unit),
    )


def _copy(files: dict[str, Iterator[bytes]], names: Names, folder: Path) -> str:
    """Write the files under the assignment's names into `folder`. Return one SHA-256 over all of them."""
    # All files are read completely before any is written.
    contents = {name: _content(name, pieces) for name, pieces in files.items()}
    if not contents[names.source]:
        raise Unreadable(f"{names.source} is empty: hand it in again")
    try:
        removal.remove(folder)
        folder.mkdir(mode=0o700)
        for name, content in contents.items():
            _write(folder / name, content)
    except OSError as error:
        raise disk_error(error, folder) from error
    if len(contents) == 1:
        return hashlib.sha256(contents[names.source]).hexdigest()
    digests = [
        f"{name} {hashlib.sha256(content).hexdigest()}\n" for name, content in sorted(contents.items())
    ]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _content(name: str, pieces: Iterator[bytes]) -> bytes:
    try:
        return b"".join(bounded(pieces, MAX_SOURCE_BYTES, "hand in the source alone"))
    except Unreadable as error:
        raise Unreadable(f"{name} {error}") from error


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
