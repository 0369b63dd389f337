"""Choice of the files to grade among a student's files, by the rules in the docstring of `grader.submission`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from grader.core import pythontree
from grader.submission.archive.opening import is_archive_name
from grader.submission.archive.records import ArchiveLimits, Unreadable, shown
from grader.submission.nodes import KIND_TEXTS, DiskNode, Node, bounded, unpacked

MAX_DEPTH = 8
#: Limit on archives inside one another: course sites and operating systems may each add one.
MAX_NESTING = 3
MAX_LISTED = 3
_JUNK = {"__macosx", "thumbs.db", "desktop.ini", "ehthumbs.db", "$recycle.bin"}


@dataclass(frozen=True)
class Names:
    """Names of the files to find in each submission: the source and files that may accompany it (companions).

    In a search for other files, such as write-ups, `of_class` holds the names of the assignment's sources. The sources
    decide which files belong to one student, so that students and ids are the same as in a search for the sources.
    """

    source: str
    companions: tuple[str, ...] = ()
    of_class: Names | None = None

    @property
    def dividing(self) -> Names:
        return self.of_class or self


@dataclass(frozen=True)
class Unit:
    """One submission that was found: one node (`whole`), or several files of one folder (`nodes`).

    `title` and `key` determine the submission's id (`grader.submission.ids`). `marked_late`: True if Canvas marks the
    submission as late. `numbered`: True if numbers in file names count attempts. `trouble` is the reason why the
    submission cannot be graded, or "". `identities` are the students' ids on platforms. `with_imports`: True if a
    Python file on disk is copied with the modules that it imports from its own folders.
    """

    title: str
    key: str
    name: str
    whole: Node | None = None
    nodes: tuple[Node, ...] = ()
    trouble: str = ""
    emails: tuple[str, ...] = ()
    submitted_at: datetime | None = None
    marked_late: bool = False
    numbered: bool = False
    identities: tuple[str, ...] = ()
    with_imports: bool = False


@dataclass(frozen=True)
class Chosen:
    """Files chosen from a submission.

    `files` maps the assignment's file names to contents. `origin` is the path of the chosen source, as text for people.
    `modified_at` is the modification time (UTC) of the file on disk, None if it came in an archive of a class.
    """

    files: dict[str, Iterator[bytes]]
    origin: str
    modified_at: datetime | None = None


def match(name: str, wanted: str) -> tuple[int, int] | None:
    """Compare a file name with the wanted one. Return (rank, number in the name or 0), or None if they do not match.

    The rank is 0 for equal names, 1 for names that differ in capitals only, 2 for a numbered name ("module-2.cpp").
    """
    if name == wanted:
        return 0, 0
    if name.casefold() == wanted.casefold():
        return 1, 0
    stem, suffix = PurePosixPath(wanted).stem, PurePosixPath(wanted).suffix
    found = re.fullmatch(
        rf"{re.escape(stem)}(?:-([0-9]{{1,6}})| ?\(([0-9]{{1,6}})\)){re.escape(suffix)}", name, re.IGNORECASE
    )
    return (2, int(found[1] or found[2])) if found else None


def visible(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes without hidden files and leftovers of operating systems."""
    hidden = {node.name for node in nodes if node.name.startswith(".") and node.name != ".."}
    return [node for node in nodes if node.name not in hidden and node.name.casefold() not in _JUNK]


@dataclass(frozen=True)
class _Folder:
    """A folder of the search. `place` is its path for messages; `nodes` are its entries without hidden files."""

    place: str
    nodes: list[Node]


@dataclass
class _Search:
    names: Names
    limits: ArchiveLimits
    scratch: Path
    stack: ExitStack
    latest: bool
    """True if numbers in names count attempts: choose the highest. False inside a student's archive."""

    within: str = ""
    """Names of the archives that were opened so far, as the beginning of `origin`."""
    modified_at: datetime | None = None

    def run(self, top: list[Node], nesting: int) -> Chosen:
        level, seen = [_Folder("", visible(top))], 0
        read = _reader(level[0].nodes, self.limits) if self.names.source.endswith(".py") else None
        adapters: list[tuple[_Folder, Node]] = []
        archives: list[tuple[str, Node]] = []
        others: list[str] = []
        for _ in range(MAX_DEPTH):
            sources = [(folder, node) for folder in level for node in self.best(folder, self.names.source)]
            if sources:
                return self.files(sources, read)
            adapters += [(f, node) for f in level for node in f.nodes if node.name == "adapters.py"]
            archives = archives or [
                (folder.place, node) for folder in level for node in self.archives(folder.nodes)
            ]
            others += [f"{folder.place}{node.name}" for folder in level for node in folder.nodes][
                : MAX_LISTED + 1
            ]
            deeper = []
            for folder in level:
                for node in folder.nodes:
                    if node.kind == "folder":
                        inside = _inside(node, folder.place, self.limits)
                        seen += len(inside)
                        self.limits.check_members(seen)
                        deeper.append(_Folder(f"{folder.place}{node.name}/", visible(inside)))
            level = deeper
        for folder, node in adapters[:MAX_LISTED] if read is not None else ():
            if pythontree.ASKED in (read(f"{folder.place}{node.name}") or b""):
                return self.files([(folder, node)], read)
        if len(archives) > 1:
            listed = _listed([f"{where}{node.name}" for where, node in archives])
            raise Unreadable(f"no {self.names.source}, but several archives ({listed}): hand in only one")
        if not archives:
            raise Unreadable(_nothing(self.names.source, others))
        where, node = archives[0]
        if nesting == 0:
            raise Unreadable(
                f"more than {MAX_NESTING} archives inside one another: hand in {self.names.source} itself"
            )
        return self.opened(node, f"{where}{node.name}", nesting - 1)

    def opened(self, node: Node, place: str, nesting: int) -> Chosen:
        self.modified_at = self.modified_at or node.modified_at()
        try:
            if node.trouble:
                raise Unreadable(node.trouble)
            archive, root = unpacked(node.open(self.limits, self.scratch), self.limits, self.scratch)
            self.stack.callback(archive.close)
            if root.trouble:
                raise Unreadable(root.trouble)
        except Unreadable as error:
            raise Unreadable(f"{shown(node.name)} {error}") from error
        self.latest, self.within = False, f"{self.within}{place}: "
        return self.run(root.children(self.limits.members), nesting)

    def best(self, folder: _Folder, wanted: str) -> list[Node]:
        """Return the files of one folder whose names match `wanted` best: several if they match equally well."""
        found = [(match(node.name, wanted), node) for node in folder.nodes if node.kind != "folder"]
        ranked = [((-fit[1], fit[0]) if self.latest else (fit[0], 0), node) for fit, node in found if fit]
        first = min((rank for rank, _ in ranked), default=None)
        return [node for rank, node in ranked if rank == first]

    def archives(self, nodes: Sequence[Node]) -> list[Node]:
        found = [node for node in nodes if node.kind == "file" and is_archive_name(node.name)]
        if not self.latest or len(found) < 2:
            return found
        attempts = [
            re.fullmatch(r"(.+?)(?:-([0-9]{1,6}))?(\.[^.]+|\.tar\.[^.]+)", node.name) for node in found
        ]
        if len({(attempt[1], attempt[3]) for attempt in attempts if attempt}) > 1:
            return found
        return [
            max(zip(found, attempts, strict=True), key=lambda pair: int(pair[1][2] or 0) if pair[1] else 0)[0]
        ]

    def files(self, sources: list[tuple[_Folder, Node]], read: pythontree.Read | None) -> Chosen:
        """Return the source, if `sources` has only one, with its companions. Raises Unreadable for several sources.

        If `read` is given, the source is a Python file, which is bundled with the modules that it imports.
        """
        if len(sources) > 1:
            listed = _listed([f"{folder.place}{node.name}" for folder, node in sources])
            raise Unreadable(
                f"several files could be {self.names.source} ({listed}): hand in only one of them"
            )
        folder, node = sources[0]
        files = {self.names.source: _content(node, self.names.source)}
        if read is not None:
            name = node.name if node.name == "adapters.py" else self.names.source
            files[self.names.source] = _bundle(files[self.names.source], f"{folder.place}{name}", read)
        for companion in self.names.companions:
            beside = self.best(folder, companion)
            if len(beside) > 1:
                listed = _listed([each.name for each in beside])
                raise Unreadable(f"several files could be {companion} ({listed}): hand in only one of them")
            if beside:
                files[companion] = _content(beside[0], companion)
        origin = shown(f"{self.within}{folder.place}{node.name}", 300)
        return Chosen(files, origin, self.modified_at or node.modified_at())


def chosen(unit: Unit, names: Names, limits: ArchiveLimits, scratch: Path, stack: ExitStack) -> Chosen:
    """Choose the files of a submission that are copied. Archives in it stay open until `stack` is closed.

    Raises Unreadable if no source is found, or if several fit equally well.
    """
    search = _Search(names, limits, scratch, stack, unit.numbered)
    if unit.trouble:
        raise Unreadable(unit.trouble)
    if unit.whole is None:
        return search.run(list(unit.nodes), MAX_NESTING)
    node = unit.whole
    if node.trouble:
        raise Unreadable(f"{shown(node.name)} {node.trouble}")
    if node.kind == "folder":
        return search.run(_inside(node, "", limits), MAX_NESTING)
    if node.kind == "file" and is_archive_name(node.name):
        return search.opened(node, node.name, MAX_NESTING - 1)
    content = _content(node, names.source)
    if unit.with_imports and isinstance(node, DiskNode) and node.name.endswith(".py"):
        content = _bundle(content, (node.base / node.name).as_posix(), pythontree.on_disk)
    return Chosen({names.source: content}, shown(node.name, 300), node.modified_at())


def modified_at(unit: Unit) -> datetime | None:
    """Return the latest modification time (UTC) of a unit's files; None for a folder, and for files in an archive."""
    files = [node for node in (unit.whole, *unit.nodes) if node is not None and node.kind == "file"]
    return max((at for node in files if (at := node.modified_at())), default=None)


def disk_folder(unit: Unit) -> Path | None:
    """Return the path of the unit's folder if the unit is one folder on disk, else None."""
    node = unit.whole
    if not isinstance(node, DiskNode) or node.kind != "folder":
        return None
    return node.base.joinpath(*node.steps)


def _inside(folder: Node, place: str, limits: ArchiveLimits) -> list[Node]:
    try:
        return folder.children(limits.members)
    except Unreadable as error:
        raise Unreadable(f"{shown(place + folder.name)} {error}") from error


def _content(node: Node, wanted: str) -> Iterator[bytes]:
    if node.trouble:
        raise Unreadable(f"{wanted} {node.trouble}")
    if node.kind != "file":
        raise Unreadable(f"{wanted} is {KIND_TEXTS[node.kind]}: hand in the file itself")
    return node.pieces()


def _bundle(pieces: Iterator[bytes], place: str, read: pythontree.Read) -> Iterator[bytes]:
    content = b"".join(bounded(pieces, pythontree.MOST_BYTES, "hand in the source alone"))
    try:
        yield pythontree.bundled(place, content, read)
    except pythontree.TooMany as error:
        raise Unreadable(str(error)) from error


def _reader(top: list[Node], limits: ArchiveLimits) -> pythontree.Read:
    """Return a function read(path) for files below the nodes `top`. It returns None if the file is missing."""
    folders = {"": {node.name: node for node in top}}

    def inside(folder: str) -> dict[str, Node]:
        if folder not in folders:
            outer, _, last = folder.rpartition("/")
            node = inside(outer).get(last)
            listed = node.children(limits.members) if node is not None and node.kind == "folder" else []
            folders[folder] = {each.name: each for each in listed}
        return folders[folder]

    def read(path: str) -> bytes | None:
        folder, _, last = path.rpartition("/")
        node = inside(folder).get(last)
        if node is None or node.kind != "file" or node.trouble:
            return None
        return b"".join(bounded(node.pieces(), pythontree.MOST_BYTES, "hand in what is needed"))

    return read


def _nothing(wanted: str, others: list[str]) -> str:
    """Return the message that the source `wanted` is missing. `others` are the paths of files that were handed in."""
    if not others:
        return f"no {wanted}: nothing was handed in"
    folder = next((name for name in others if PurePosixPath(name).name.casefold() == wanted.casefold()), None)
    if folder is not None:
        return f"{shown(folder)} is a folder without a {wanted} in it: hand in the file itself"
    return f"no {wanted} found, only {_listed(others)}"


def _listed(names: Sequence[str]) -> str:
    listed = ", ".join(shown(name) for name in names[:MAX_LISTED])
    return listed + (", …" if len(names) > MAX_LISTED else "")
