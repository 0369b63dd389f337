"""Nodes: one interface to files and folders, on disk or in archives. No path can lead out of the staff's folder.

On a shared disk, a student may change a folder while it is graded. So each folder below the path that the staff named
is opened with `openat` and O_NOFOLLOW. A folder that has been replaced by a symbolic link is an error.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, Protocol

from grader.core.errors import explained
from grader.core.quantities import MIB, size_text
from grader.submission.archive.opening import open_archive, spool
from grader.submission.archive.records import (
    PIECE_BYTES,
    Archive,
    ArchiveLimits,
    Kind,
    Member,
    Unreadable,
    shown,
)

#: Limits for one student's archive. A tar.gz is unpacked as a whole, so `unpacked_bytes` counts all its members.
STUDENT = ArchiveLimits(members=20_000, unpacked_bytes=256 * MIB, archive_bytes=256 * MIB)
#: Limits for an archive of a whole class. The students' archives in it have the limits STUDENT.
CLASS = ArchiveLimits(members=1_000_000, unpacked_bytes=4096 * MIB, archive_bytes=8192 * MIB, claims=False)
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class Node(Protocol):
    """A file, a folder or an entry of another kind that was handed in. `trouble` is the reason to refuse it, or ""."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def trouble(self) -> str: ...

    def children(self, limit: int) -> list[Node]:
        """Return a folder's entries in a stable order; [] for other nodes. Raises Unreadable beyond `limit` entries."""
        ...

    def pieces(self) -> Iterator[bytes]:
        """Yield a file's content in pieces. Raises Unreadable if it is not a file or is damaged."""
        ...

    def modified_at(self) -> datetime | None:
        """Return the time of a disk file's last change, in UTC; None for other nodes and for an unreadable file."""
        ...

    def open(self, limits: ArchiveLimits, scratch: Path) -> BinaryIO:
        """Open a file for random access. Raises Unreadable for other nodes and beyond `limits.archive_bytes`."""
        ...


# ---- on disk


@dataclass(frozen=True)
class DiskNode:
    """A node on disk.

    `base` is the path that the staff named, with its symbolic links resolved. `steps` is the path from `base` to this
    node, split into names. A symbolic link in `steps` is refused.
    """

    base: Path
    steps: tuple[str, ...]
    name: str
    kind: Kind
    trouble: str = ""

    @classmethod
    def at(cls, path: Path) -> DiskNode:
        """Return the node of a path. Symbolic links in this path are followed. Raises OSError if it does not exist."""
        real = path.resolve(strict=True)
        kind = _kind(real.stat().st_mode)
        if kind == "folder":
            return cls(real, (), real.name, kind)
        return cls(real.parent, (real.name,), real.name, kind)

    def children(self, limit: int) -> list[Node]:
        if self.kind != "folder":
            return []
        found: list[Node] = []
        descriptor = self._descend(os.O_DIRECTORY)
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if len(found) >= limit:
                        raise Unreadable(f"holds more than {limit} entries: hand in the source alone")
                    kind = _kind(entry.stat(follow_symlinks=False).st_mode)
                    found.append(DiskNode(self.base, (*self.steps, entry.name), entry.name, kind))
        except OSError as error:
            raise Unreadable(f"cannot be listed: {error.strerror}") from error
        finally:
            os.close(descriptor)
        return sorted(found, key=lambda node: os.fsencode(node.name))

    def pieces(self) -> Iterator[bytes]:
        with self._file() as file, explained("cannot be read", Unreadable):
            while piece := file.read(PIECE_BYTES):
                yield piece

    def modified_at(self) -> datetime | None:
        try:
            with self._file() as file:
                return datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, timezone.utc)
        except (Unreadable, OSError, OverflowError, ValueError):
            return None

    def open(self, limits: ArchiveLimits, scratch: Path) -> BinaryIO:
        file = self._file()
        if os.fstat(file.fileno()).st_size > limits.archive_bytes:
            file.close()
            raise Unreadable(f"is larger than {size_text(limits.archive_bytes)}: hand in the source alone")
        return file

    def _file(self) -> BinaryIO:
        if self.kind != "file":
            raise Unreadable(f"is {KIND_TEXTS[self.kind]}: hand in the file itself")
        # If the file was replaced by a named pipe meanwhile, open() would block without O_NONBLOCK.
        descriptor = self._descend(os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Unreadable("is no longer a file: hand it in again")
        return os.fdopen(descriptor, "rb")

    def _descend(self, flags: int) -> int:
        with explained("cannot be read", Unreadable):
            descriptor = os.open(self.base, _OPEN | (os.O_DIRECTORY if self.steps else flags))
            for number, step in enumerate(self.steps, start=1):
                outer = descriptor
                try:
                    last = number == len(self.steps)
                    descriptor = os.open(step, _OPEN | (flags if last else os.O_DIRECTORY), dir_fd=outer)
                finally:
                    os.close(outer)
        return descriptor


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "special"


KIND_TEXTS: dict[Kind, str] = {
    "file": "a file",
    "folder": "a folder",
    "link": "a link, and links are not followed",
    "special": "not an ordinary file",
}


# ---- in an archive


@dataclass
class ArchiveNode:
    """A node in an archive. `inside` are a folder's entries by name.

    `trouble` is the reason to refuse the node, or "". If an entry is refused, all folders around it are refused for the
    same reason. The exception is a file that is in the archive twice: only the file itself is refused.
    """

    name: str
    kind: Kind = "folder"
    trouble: str = ""
    archive: Archive | None = None
    member: Member | None = None
    inside: dict[str, ArchiveNode] = field(default_factory=dict)

    def children(self, limit: int) -> list[Node]:
        if len(self.inside) > limit:
            raise Unreadable(f"holds more than {limit} entries: hand in the source alone")
        return sorted(self.inside.values(), key=lambda node: node.name.encode("utf-8", "surrogatepass"))

    def pieces(self) -> Iterator[bytes]:
        if self.kind != "file" or self.archive is None or self.member is None:
            raise Unreadable(f"is {KIND_TEXTS[self.kind]}: hand in the file itself")
        return self.archive.pieces(self.member)

    def modified_at(self) -> datetime | None:
        return None

    def open(self, limits: ArchiveLimits, scratch: Path) -> BinaryIO:
        return spool(bounded(self.pieces(), limits.archive_bytes, "hand in the source alone"), scratch)


def bounded(pieces: Iterator[bytes], limit_bytes: int, remedy: str) -> Iterator[bytes]:
    """Yield the bytes of `pieces` unchanged. Raises Unreadable once they exceed `limit_bytes` in total."""
    total_bytes = 0
    for piece in pieces:
        total_bytes += len(piece)
        if total_bytes > limit_bytes:
            raise Unreadable(f"is larger than {size_text(limit_bytes)}: {remedy}")
        yield piece


def unpacked(file: BinaryIO, limits: ArchiveLimits, scratch: Path) -> tuple[Archive, ArchiveNode]:
    """Return (archive, root folder). Closing the archive closes `file`. Raises Unreadable if damaged or too large."""
    try:
        archive = open_archive(file, limits, scratch)
    except BaseException:
        file.close()
        raise
    try:
        return archive, _tree(archive, limits)
    except BaseException:
        archive.close()
        raise


def _tree(archive: Archive, limits: ArchiveLimits) -> ArchiveNode:
    """Return the root of an archive's tree of nodes. A member's `trouble` is copied to all folders on its path."""
    root, count = ArchiveNode(""), 0
    for member in archive.members:
        line = [root]
        for part in member.parts:
            node = line[-1].inside.get(part)
            if node is None:
                count += 1
                limits.check_members(count)
                node = line[-1].inside[part] = ArchiveNode(part)
            line.append(node)
        trouble = member.trouble or _place(line, member, archive)
        if trouble:
            for node in line:
                node.trouble = node.trouble or trouble
    return root


def _place(line: list[ArchiveNode], member: Member, archive: Archive) -> str:
    """Store a member in its node. `line` are the nodes on its path, from the root to the member's own node.

    Returns "", or the reason to refuse the archive if the path is both a folder and a file.
    """
    for node in line[:-1]:
        if node.member is not None and node.kind != "folder":
            return f"holds '{shown(node.name)}' both as {KIND_TEXTS[node.kind]} and as a folder"
    last = line[-1]
    if member.kind == "folder":
        if last.member is None or last.kind == "folder":
            last.member = member
            return ""
        return f"holds '{shown(last.name)}' both as {KIND_TEXTS[last.kind]} and as a folder"
    if last.inside or (last.member is not None and last.kind == "folder"):
        return f"holds '{shown(last.name)}' both as a folder and as {KIND_TEXTS[member.kind]}"
    if last.member is not None:
        last.trouble = "is in the archive twice: pack it again"
        return ""
    last.kind, last.archive, last.member = member.kind, archive, member
    return ""
