"""Shared parts of the readers of archives: limits, the record of a member, and the exception for a broken archive."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from grader.core.harmless import harmless
from grader.core.quantities import MIB, size_text

Kind = Literal["file", "folder", "link", "special"]

#: Content is handed on in pieces of at most this size.
PIECE_BYTES = 64 << 10
#: Far above what a person would make, far below what would hurt.
MAX_NAME_BYTES = 1024
MAX_NAME_PARTS = 32


class Unreadable(Exception):
    """What was handed in cannot be read: a predicate in one line ("is cut off: hand it in again"), for its owner."""


@dataclass(frozen=True)
class ArchiveLimits:
    """What an archive may cost. Ratio: unpacked to packed bytes, looked at once `ratio_from_bytes` came out."""

    members: int
    unpacked_bytes: int
    archive_bytes: int
    ratio: int = 250
    ratio_from_bytes: int = 16 * MIB

    def check_unpacked(self, unpacked_bytes: int, packed_bytes: int) -> None:
        """Raises Unreadable when this much has come, or claims to come, out of that much."""
        if unpacked_bytes > self.unpacked_bytes:
            raise Unreadable(
                f"unpacks to more than {size_text(self.unpacked_bytes)}, the limit: hand in the source alone"
            )
        if unpacked_bytes > self.ratio_from_bytes and unpacked_bytes > self.ratio * max(packed_bytes, 1):
            raise Unreadable(
                f"unpacks to more than {self.ratio} times its size, as no honest archive does: "
                "hand in the source alone"
            )

    def check_members(self, count: int) -> None:
        if count > self.members:
            raise Unreadable(
                f"holds more than {self.members} files and folders, the limit: hand in the source alone"
            )


class Member(NamedTuple):
    """One entry. `parts` are the pieces of its name, as they stand: only ever compared, never used as a path.

    `trouble` is why an archive with such an entry is refused, or "". `where` belongs to the reader.
    """

    parts: tuple[str, ...]
    kind: Kind
    size_bytes: int
    trouble: str
    where: object


class Archive(Protocol):
    members: list[Member]

    def pieces(self, member: Member) -> Iterator[bytes]:
        """The member's content. Raises Unreadable at the latest with the last piece if it is not what was promised."""
        ...

    def close(self) -> None: ...


def split_name(raw: bytes, encoding: str) -> tuple[tuple[str, ...], str]:
    """The parts of a stored name, and the trouble with it ("" if none).

    A backslash separates too, since some programs for Windows write it. `.` and empty parts mean nothing and are
    dropped; `..`, a root and a drive letter are trouble, and stay among the parts so that one can see whose they are.
    """
    if len(raw) > MAX_NAME_BYTES:
        return _parts(raw[:64].decode(encoding, "replace")), f"holds a name of {len(raw)} bytes"
    name = raw.decode(encoding, "surrogateescape" if encoding == "utf-8" else "replace")
    parts = _parts(name)
    if "\0" in name:
        return parts, f"holds a name with a zero byte in it, '{shown(name)}'"
    if name.startswith(("/", "\\")) or ".." in parts or re.match(r"[A-Za-z]:", name):
        return parts, f"holds a name that leads outside, '{shown(name)}'"
    if len(parts) > MAX_NAME_PARTS:
        return parts[:MAX_NAME_PARTS], f"holds folders more than {MAX_NAME_PARTS} deep"
    return parts, ""


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))


def shown(name: str, limit: int = 80) -> str:
    """A stranger's name made fit for a line of text: valid UTF-8, nothing that moves a cursor, not endless."""
    text = name[: limit + 1].encode("utf-8", "surrogateescape" if _escaped(name) else "replace")
    clean = harmless(text.decode("utf-8", "replace"), "\ufffd").translate({9: "\ufffd", 10: "\ufffd"})
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _escaped(name: str) -> bool:
    """Return True if every lone surrogate in the name stands for a byte that was not UTF-8."""
    return all(0xDC80 <= ord(char) <= 0xDCFF for char in name if 0xD800 <= ord(char) <= 0xDFFF)
