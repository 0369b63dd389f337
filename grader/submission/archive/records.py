"""Shared parts of the archive readers: limits, the record of a member, and the exception for a broken archive."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from grader.core.harmless import harmless
from grader.core.quantities import MIB, size_text

Kind = Literal["file", "folder", "link", "special"]

#: Largest piece of content that a reader yields at once.
PIECE_BYTES = 64 << 10
#: Limits on a name: far above any honest name, and too low to exhaust memory.
MAX_NAME_BYTES = 1024
MAX_NAME_PARTS = 32


class Unreadable(Exception):
    """Raised for a submission that cannot be read.

    In messages the error's text follows the file's name: "alice.zip" + " " + "is cut off: hand it in again".
    """


@dataclass(frozen=True)
class ArchiveLimits:
    """Limits on an archive: `members` is the number of entries, `archive_bytes` the size of the archive file.

    `ratio` limits unpacked bytes / packed bytes. It is checked only above `ratio_from_bytes` unpacked bytes. `claims`:
    check the sizes that a zip's listing claims. This is not needed if each member is read with a limit.
    """

    members: int
    unpacked_bytes: int
    archive_bytes: int
    claims: bool = True
    ratio: int = 250
    ratio_from_bytes: int = 16 * MIB

    def check_unpacked(self, unpacked_bytes: int, packed_bytes: int) -> None:
        """Raise Unreadable if the unpacked bytes exceed a limit: the total, or the ratio to the packed bytes."""
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
    """One entry of an archive. `parts` are the parts of its path, which are only compared, never used as a path.

    `size_bytes` is the unpacked size. `trouble` is the reason to refuse an archive with this entry, or "". `where` is
    the entry's position in the archive, in a form that only the reader of the format knows.
    """

    parts: tuple[str, ...]
    kind: Kind
    size_bytes: int
    trouble: str
    where: object


class Archive(Protocol):
    members: list[Member]

    def pieces(self, member: Member) -> Iterator[bytes]:
        """Yield the member's content in pieces of at most PIECE_BYTES.

        Raises Unreadable if the member is damaged, at the latest after the last piece.
        """
        ...

    def close(self) -> None: ...


def split_name(raw: bytes, encoding: str) -> tuple[tuple[str, ...], str]:
    """Split the stored name of an archive's entry. Return (its parts, the reason to refuse the name or "").

    A backslash is a separator, too, because some programs for Windows write it. `.` and empty parts are dropped. Names
    with `..`, a root or a drive letter are refused. The parts of a refused name show to which student it belongs.
    """
    if len(raw) > MAX_NAME_BYTES:
        return _parts(
            raw[:64].decode(encoding, "replace")
        ), f"holds a name of {len(raw)} bytes: shorten it, and pack it again"
    name = raw.decode(encoding, "surrogateescape" if encoding == "utf-8" else "replace")
    parts = _parts(name)
    if "\0" in name:
        return parts, f"holds a name with a zero byte in it, '{shown(name)}': pack it again"
    if name.startswith(("/", "\\")) or ".." in parts or re.match(r"[A-Za-z]:", name):
        return parts, f"holds a name that leads outside of it, '{shown(name)}': pack it again"
    if len(parts) > MAX_NAME_PARTS:
        return parts[
            :MAX_NAME_PARTS
        ], f"holds folders more than {MAX_NAME_PARTS} deep: pack only the files that are needed"
    return parts, ""


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))


def shown(name: str, limit: int = 80) -> str:
    """Return an untrusted name for display: one line of at most `limit` characters, without control characters."""
    # Lone surrogates from U+DC80 to U+DCFF stand for bytes that were not UTF-8 (Python's `surrogateescape`).
    is_escaped = all(0xDC80 <= ord(char) <= 0xDCFF for char in name if 0xD800 <= ord(char) <= 0xDFFF)
    text = name[: limit + 1].encode("utf-8", "surrogateescape" if is_escaped else "replace")
    clean = harmless(text.decode("utf-8", "replace"), "\ufffd").translate({9: "\ufffd", 10: "\ufffd"})
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
