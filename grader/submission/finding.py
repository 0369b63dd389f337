"""Search for the submissions in a file, folder or archive. Each is copied into a small folder of its own.

The path that the staff name is one submission if it is a source, or if it directly contains a source. An archive is
also one submission if it holds only a folder with the source, or only another archive. Any other folder or archive is a
class.

A folder on disk that holds only one folder is a class with one student. The submission's id is the inner folder's name,
so the id stays the same when a second student hands in. Hidden files and the staff's tables and notes are skipped. A
file of any other kind becomes a submission with an error.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Literal

from grader.assignment.records import SUFFIXES, file_of
from grader.core import removal
from grader.core.errors import KitError, UsageError, explained
from grader.submission.archive.opening import NoRoom, archive_stem, disk_error, is_archive_name
from grader.submission.archive.records import Unreadable, shown
from grader.submission.exports import (
    CANVAS,
    GRADESCOPE_METADATA,
    MAX_METADATA_BYTES,
    MOODLE,
    GradescopeEntry,
    gradescope_entries,
)
from grader.submission.ids import identify
from grader.submission.nodes import CLASS, KIND_TEXTS, STUDENT, DiskNode, Node, bounded, unpacked
from grader.submission.search import (
    MAX_DEPTH,
    Chosen,
    Names,
    Unit,
    chosen,
    disk_folder,
    match,
    modified_at,
    visible,
)

MAX_SOURCE_BYTES = 1 << 20
COMPANIONS = ("module.ispc",)
"""Files that may be handed in beside any source."""


def companions_of(source_name: str) -> tuple[str, ...]:
    """Return the names of files that may be handed in beside the source, such as GPU kernels in other languages."""
    if not source_name.endswith(tuple(SUFFIXES.values())):
        return COMPANIONS
    others = dict.fromkeys(file_of(source_name, language) for language in SUFFIXES)
    return (*COMPANIONS, *(name for name in others if name != source_name))


@dataclass(frozen=True)
class Submission:
    """One submission. The folder `path` holds only `source` and its companions. With an `error`, both paths are None.

    `id` is unique among the submissions of one run, the same in each run, and safe as a file name on any system. `name`
    is for people. `origin` is the place where the source was found. `sha256` covers the source and its companions.
    `submitted_at` is in UTC, None if the export does not contain it. `marked_late` is True if Canvas marks the file as
    late; Canvas does not say by how many days.
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
    """Cause of the `error`: "kit" if the disk was too full to unpack the submission, else "submission"; "" for none."""
    identities: tuple[str, ...] = ()
    """Ids of the submitters on course platforms, besides `emails`: "sis:100234", "canvas:4711", "moodle:123"."""
    folder: Path | None = None
    """The submission's own folder on disk, with links in its path resolved; None for any other form."""
    modified_at: datetime | None = None
    """Modification time (UTC) of the file on disk that was handed in; None if it came in an archive of a class."""


def find(
    path: Path,
    source_name: str,
    scratch: Path,
    companions: Sequence[str] | None = None,
    *,
    of_class: str = "",
) -> list[Submission]:
    """Copy every submission in `path` into a folder of `scratch`. Return them in the order of their ids.

    `source_name` is the file name of the files to find. If these are not the assignment's sources but, for example,
    write-ups, `of_class` is the sources' file name. Students and ids are then the same as in a search for the sources,
    even if the sources are missing.

    Raises UsageError if `path` is missing or holds no submission, KitError if `scratch` cannot be written.
    """
    beside = companions_of(source_name) if companions is None else tuple(companions)
    names = Names(source_name, beside, Names(of_class, companions_of(of_class)) if of_class else None)
    with ExitStack() as stack:
        units = students(_root(path), names, _private(scratch), stack)
        if not units:
            raise UsageError(
                f"{path} holds no submission: name a {source_name}, or a folder or archive that has one; for a class, "
                "a folder or archive of these, one per student"
            )
        return _taken(units, names, scratch)


def find_one(
    path: Path, source_name: str, scratch: Path, companions: Sequence[str] | None = None
) -> Submission:
    """Copy the one submission in `path` (a file, a folder or an archive) into a folder of `scratch`, and return it.

    The submission has an `error` if it cannot be read. A Python source is copied together with the modules that it
    imports from its own folders. Raises UsageError if `path` is missing, KitError if `scratch` is full or cannot be
    written.
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
    """Copy one submission into `scratch`. If that fails, the returned submission has the reason as `error`."""
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
    """Write the files under the assignment's names into `folder`, made anew. Return one SHA-256 over all files.

    `files` maps the assignment's file names to contents.
    """
    # Read all files first: if one is unreadable, nothing is written.
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


#: Limit on nested outer folders, each with only one folder in it, which archivers and course sites add.
MAX_WRAPPERS = 3
#: Folder names of a Gradescope export and of each submission in it.
_EXPORT, _EXPORTED = re.compile(r"assignment_[0-9]+_export"), re.compile(r"submission_[0-9]+")
#: Suffixes of files that staff keep beside submissions.
_STAFF_SUFFIXES = {".csv", ".yml", ".yaml", ".json", ".md", ".html", ".log", ".toml"}


def single(node: Node, trouble: str = "") -> Unit:
    """Return a `Unit` for a node that is one whole submission. Its title is the node's name without file suffixes.

    `trouble` is the reason why the submission cannot be graded, or "".
    """
    stem = node.name
    if node.kind != "folder":
        stem = archive_stem(node.name) if is_archive_name(node.name) else PurePosixPath(node.name).stem
    return Unit(title=stem, key=node.name, name=shown(stem), whole=node, trouble=trouble)


def students(root: DiskNode, names: Names, scratch: Path, stack: ExitStack) -> list[Unit]:
    """Return a `Unit` for each submission in `root`, the path that the staff named; [] if it contains none.

    If `root` is an archive, it stays open until `stack` is closed. Raises UsageError for a folder that cannot be listed
    and for an export with unreadable metadata.
    """
    if root.kind != "file":
        return _divided(root, names, None) if root.kind == "folder" else [single(root)]
    if CANVAS.fullmatch(root.name):
        return _class([root], names)
    if not is_archive_name(root.name):
        return [single(root)]
    try:
        archive, tree = unpacked(root.open(CLASS, scratch), CLASS, scratch)
    except Unreadable as error:
        return [single(root, f"{shown(root.name)} {error}")]
    stack.callback(archive.close)
    return _divided(tree, names, single(root)) or [single(root)]


def _divided(root: Node, names: Names, as_one: Unit | None, wrappers: int = 0) -> list[Unit]:
    """Return the units in the folder `root`, which is one submission or a class.

    `as_one`: if `root` lies in an archive, the unit to return if the archive is one submission; else None. Outer
    folders that hold only one folder are skipped, at most MAX_WRAPPERS; `wrappers` is the number skipped so far.
    """
    nodes = _listed(root)
    if _holds_source(nodes, names):
        return [as_one or single(root)]
    metadata = _listing_of_export(root, nodes, is_inner=wrappers > 0)
    if metadata is not None:
        return _gradescope(metadata, [node for node in nodes if node is not metadata], names)
    if len(nodes) == 1 and nodes[0].kind == "folder" and wrappers < MAX_WRAPPERS:
        # On disk, a single folder belongs to one student, even if it contains folders named like students. In an
        # archive it may instead be a folder that the archiver added around the whole class.
        is_students = as_one is None or MOODLE.fullmatch(nodes[0].name) is not None
        if is_students and not _listing_of_export(nodes[0], _listed_if_possible(nodes[0]), is_inner=True):
            return _class(nodes, names)
        if _is_one(nodes[0], names):
            return [as_one or single(nodes[0])]
        return _divided(nodes[0], names, as_one, wrappers + 1)
    if as_one is not None and len(nodes) == 1 and nodes[0].kind == "file" and is_archive_name(nodes[0].name):
        # An archive that holds only one archive is one submission, unless the inner name is from a Canvas export.
        return _class(nodes, names) if CANVAS.fullmatch(nodes[0].name) else [as_one]
    return _class(nodes, names)


def _listing_of_export(folder: Node, nodes: Sequence[Node], *, is_inner: bool) -> Node | None:
    """Return the metadata file if `folder` is a Gradescope export, else None. `nodes` are the folder's entries.

    A student can hand in a file of the same name, so there must also be folders named as in an export. `is_inner`: True
    if the staff did not name `folder` itself but a folder around it. Then `folder`, too, must be named as an export.
    """
    if is_inner and not _EXPORT.fullmatch(folder.name):
        return None
    if not any(node.kind == "folder" and _EXPORTED.fullmatch(node.name) for node in nodes):
        return None
    return next((node for node in nodes if node.name == GRADESCOPE_METADATA and node.kind == "file"), None)


def _listed(folder: Node) -> list[Node]:
    try:
        return visible(folder.children(CLASS.members))
    except Unreadable as error:
        raise UsageError(f"the folder {shown(folder.name)} {error}") from error


def _holds_source(nodes: Sequence[Node], names: Names) -> bool:
    if names.of_class is not None and not _holds_source(nodes, names.of_class):
        # A write-up that lies beside students' folders or sources is the staff's, such as the template.
        return not _holds_students(nodes, names.of_class) and _holds_source(nodes, Names(names.source))
    fits = [match(node.name, names.dividing.source) for node in nodes if node.kind != "folder"]
    return any(fit is not None and fit[0] < 2 for fit in fits)


def _holds_students(nodes: Sequence[Node], names: Names) -> bool:
    """Return True if any of the nodes is a folder, an archive, or a file with the source's suffix."""
    return any(
        node.kind == "folder" or is_archive_name(node.name) or _suffix(node.name) == _suffix(names.source)
        for node in nodes
    )


def _is_one(folder: Node, names: Names) -> bool:
    """Return True if a folder contains at most one submission: one source or one archive, at any depth."""
    level = [_listed_if_possible(folder)]
    if _holds_source(level[0], names):
        return True
    if _listing_of_export(folder, level[0], is_inner=True):
        return False
    count = others = seen = 0
    for _ in range(MAX_DEPTH):
        nodes = [node for inside in level for node in inside]
        suffixes = [_suffix(node.name) for node in nodes if node.kind != "folder"]
        count += suffixes.count(_suffix(names.dividing.source))
        count += sum(is_archive_name(node.name) for node in nodes if node.kind != "folder")
        others += suffixes.count(_suffix(names.source))
        seen += len(nodes)
        if count > 1 or seen > CLASS.members:
            return False
        level = [_listed_if_possible(node) for node in nodes if node.kind == "folder"]
    return (count or others) <= 1


def _listed_if_possible(folder: Node) -> list[Node]:
    # If the folder cannot be listed, the error is reported later, when the submission is copied.
    try:
        return visible(folder.children(CLASS.members))
    except Unreadable:
        return []


# ---- one entry per student


def _class(nodes: Sequence[Node], names: Names, *, beside_others: bool = False) -> list[Unit]:
    """Return a unit for each submission among `nodes`, the entries of a class's folder.

    `beside_others`: True if the class has further submissions, which are not in `nodes`. In a search for write-ups, a
    write-up is a separate submission only if the class has no source, folder or archive. Otherwise it belongs to the
    source of the same name. A write-up without a source of its name is the staff's, and is skipped.
    """
    units: list[Unit] = []
    canvas: dict[str, Unit] = {}
    dividing = names.dividing
    beside = {node.name: node for node in nodes}
    stems = {
        PurePosixPath(node.name).stem for node in nodes if _suffix(node.name) == _suffix(dividing.source)
    }
    alone = names.of_class is not None and not beside_others and not _holds_students(nodes, names.of_class)
    for node in nodes:
        sent = CANVAS.fullmatch(node.name) if node.kind != "folder" else None
        suffix = _suffix(node.name)
        if sent is not None:
            title = f"{sent['person']}_{sent['user']}"
            unit = canvas.get(title) or Unit(
                title,
                f"canvas {title}",
                shown(sent["person"]),
                numbered=True,
                identities=(f"canvas:{sent['user']}",),
            )
            canvas[title] = replace(
                unit,
                nodes=(*unit.nodes, replace(node, name=sent["file"])),  # type: ignore[type-var]
                marked_late=unit.marked_late or sent["late"] is not None,
            )
        elif node.kind == "folder" and (handed := MOODLE.fullmatch(node.name)):
            title = f"{handed['person']}_{handed['participant']}"
            identities = (f"moodle:{handed['participant']}",)
            units.append(
                replace(single(node), title=title, name=shown(handed["person"]), identities=identities)
            )
        elif node.kind == "folder" or (node.kind == "file" and is_archive_name(node.name)):
            units.append(single(node))
        elif suffix == _suffix(dividing.source):
            units.append(_named_for_student(node, beside, names))
        elif alone and suffix == _suffix(names.source):
            # With the key of the source that is missing here, the id is the same as in a search for sources.
            key = PurePosixPath(node.name).stem + _suffix(dividing.source)
            units.append(replace(single(node), key=key))
        elif _is_companion(node, stems, dividing) or (node.kind == "file" and suffix in _STAFF_SUFFIXES):
            continue
        else:
            what = KIND_TEXTS[node.kind] if node.kind != "file" else "another kind of file"
            units.append(
                single(
                    node, f"expected a {names.source}, a folder or an archive; {shown(node.name)} is {what}"
                )
            )
    return units + list(canvas.values())


def _named_for_student(node: Node, beside: Mapping[str, Node], names: Names) -> Unit:
    """Return the unit of a source named for its student, `alice.cpp`. `alice.ispc` (`beside`) becomes `module.ispc`."""
    unit, stem = single(node), PurePosixPath(node.name).stem
    wanted = names.companions if names.of_class is None else (names.source, *names.companions)
    files = [
        replace(beside[stem + _suffix(name)], name=name)  # type: ignore[type-var]
        for name in wanted
        if stem + _suffix(name) in beside
    ]
    if names.of_class is not None:
        return replace(unit, whole=None, nodes=tuple(files))
    if not files:
        return unit
    return replace(unit, whole=None, nodes=(replace(node, name=names.source), *files))  # type: ignore[type-var]


def _is_companion(node: Node, stems: set[str], names: Names) -> bool:
    return PurePosixPath(node.name).stem in stems and _suffix(node.name) in {
        _suffix(name) for name in names.companions
    }


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


# ---- Gradescope


def _gradescope(metadata: Node, others: Sequence[Node], names: Names) -> list[Unit]:
    try:
        content = b"".join(bounded(metadata.pieces(), MAX_METADATA_BYTES, "download the export again"))
    except Unreadable as error:
        raise UsageError(f"{GRADESCOPE_METADATA} {error}") from error
    entries = gradescope_entries(content, GRADESCOPE_METADATA)
    found = {node.name: node for node in others}
    units = [_of_entry(entry, found.pop(entry.folder, None)) for entry in entries]
    return units + _class(list(found.values()), names, beside_others=True)


def _of_entry(entry: GradescopeEntry, node: Node | None) -> Unit:
    people = [person.name for person in entry.people if person.name]
    folder = shown(entry.folder)
    missing = f"the export lists {folder}, but has no such folder: download the export again"
    return Unit(
        title=f"{people[0]}_{entry.folder.removeprefix('submission_')}" if people else entry.folder,
        key=entry.folder,
        name=", ".join(people) or folder,
        whole=node,
        trouble="" if node is not None else missing,
        emails=tuple(person.email for person in entry.people if person.email),
        identities=tuple(f"sis:{person.sid}" for person in entry.people if person.sid),
        submitted_at=entry.submitted_at,
    )
