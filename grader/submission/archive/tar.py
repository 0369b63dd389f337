"""Reader of tar archives: POSIX ustar and pax, and GNU's long names.

A tar consists of 512-byte blocks: for each file a header, then the content.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from grader.core.errors import explained
from grader.submission.archive.records import PIECE_BYTES, ArchiveLimits, Kind, Member, Unreadable, split_name

BLOCK_BYTES = 512
#: Limit on a long name or list of attributes in one header.
MAX_META_BYTES = 64 << 10
#: Limit on the attributes of one file; usual archivers write a dozen.
MAX_RECORDS = 256
_KINDS: dict[bytes, Kind] = {
    b"0": "file", b"\0": "file", b"7": "file", b"5": "folder", b"1": "link", b"2": "link",
}  # fmt: skip
_NO_CONTENT = (b"1", b"2", b"3", b"4", b"5", b"6")

CUT_OFF = "is cut off: hand it in again"
DAMAGED = "is damaged: hand it in again"


def is_tar_header(block: bytes) -> bool:
    """Return True if these bytes begin with a tar header that has a correct checksum."""
    if len(block) < BLOCK_BYTES or not any(block[:BLOCK_BYTES]):
        return False
    try:
        claimed = _number(block[148:156])
    except Unreadable:
        return False
    return claimed == sum(block[:148]) + 8 * 0x20 + sum(block[156:BLOCK_BYTES])


class TarArchive:
    def __init__(self, file: BinaryIO, size_bytes: int, limits: ArchiveLimits) -> None:
        """List the archive, a file of `size_bytes`. Raises Unreadable if it is damaged or exceeds the limits."""
        self._file, self._size_bytes = file, size_bytes
        with explained("cannot be read", Unreadable):
            self.members = list(self._entries(limits))

    def close(self) -> None:
        self._file.close()

    def _entries(self, limits: ArchiveLimits) -> Iterator[Member]:
        at, count = 0, 0
        long_name: bytes | None = None
        long_size: int | None = None
        while True:
            header = self._read(at, BLOCK_BYTES)
            if not any(header):
                # Like `tar`, accept two ends of an archive: a block of zeros, or the file's end between two members.
                return
            if not is_tar_header(header):
                raise Unreadable(CUT_OFF if len(header) < BLOCK_BYTES else DAMAGED)
            count += 1
            limits.check_members(count)
            typeflag, content_at = header[156:157], at + BLOCK_BYTES
            size_bytes = _number(header[124:136])
            if typeflag in (b"L", b"K", b"x", b"g", b"X"):
                meta = self._meta(content_at, size_bytes)
                if typeflag == b"L":
                    long_name = meta.rstrip(b"\0")
                elif typeflag in (b"x", b"X"):
                    long_name, long_size = _attributes(meta, long_name)
                at = content_at + _blocks(size_bytes)
                continue
            if long_size is not None:
                size_bytes = long_size
            name = long_name if long_name is not None else _name(header)
            long_name = long_size = None
            if typeflag == b"S":
                content_at = self._after_sparse_map(content_at, more=header[482] != 0)
            stored_bytes = 0 if typeflag in _NO_CONTENT else size_bytes
            if content_at + stored_bytes > self._size_bytes:
                raise Unreadable(CUT_OFF)
            parts, trouble = split_name(name, "utf-8")
            if parts or trouble:
                kind = _KINDS.get(typeflag, "special")
                if kind == "file" and name.endswith(b"/"):
                    kind = "folder"
                yield Member(parts, kind, stored_bytes, trouble, content_at)
            at = content_at + _blocks(stored_bytes)

    def pieces(self, member: Member) -> Iterator[bytes]:
        """Yield the member's content. Raises Unreadable if the file ends before."""
        assert isinstance(member.where, int)
        at, remaining = member.where, member.size_bytes
        while remaining > 0:
            with explained("cannot be read", Unreadable):
                piece = self._read(at, min(remaining, PIECE_BYTES))
            if not piece:
                raise Unreadable(CUT_OFF)
            at, remaining = at + len(piece), remaining - len(piece)
            yield piece

    def _after_sparse_map(self, at: int, more: bool) -> int:
        """Return the offset of a file's content after its map of holes. `more`: True if a block of the map follows."""
        while more:
            block = self._read(at, BLOCK_BYTES)
            if len(block) < BLOCK_BYTES:
                raise Unreadable(CUT_OFF)
            at, more = at + BLOCK_BYTES, block[504] != 0
        return at

    def _meta(self, at: int, size_bytes: int) -> bytes:
        if size_bytes > MAX_META_BYTES:
            raise Unreadable(DAMAGED)
        meta = self._read(at, size_bytes)
        if len(meta) < size_bytes:
            raise Unreadable(CUT_OFF)
        return meta

    def _read(self, at: int, size_bytes: int) -> bytes:
        self._file.seek(at)
        return self._file.read(size_bytes)


def _blocks(size_bytes: int) -> int:
    """Round a size up to a multiple of BLOCK_BYTES."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _number(field: bytes) -> int:
    """Parse octal digits, or GNU's base 256 for large values. Raises Unreadable for any other field and negatives."""
    if field[0] & 0x80:
        if field[0] != 0x80:
            raise Unreadable(DAMAGED)
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if any(digit not in b"01234567" for digit in digits):
        raise Unreadable(DAMAGED)
    return int(digits or b"0", 8)


def _name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0]
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name


def _attributes(meta: bytes, name: bytes | None) -> tuple[bytes | None, int | None]:
    """Return path and size from a pax header, records of the form `length key=value`.

    A header without a path gives `name`, one without a size gives None. Raises Unreadable for other records.
    """
    size_bytes, at, count = None, 0, 0
    while at < len(meta) and meta[at] != 0:
        count += 1
        if count > MAX_RECORDS:
            raise Unreadable(DAMAGED)
        digits = meta[at : at + 7].split(b" ", 1)[0]
        length = int(digits) if digits.isdigit() and len(digits) < 7 else 0
        if not len(digits) + 3 < length <= len(meta) - at:
            raise Unreadable(DAMAGED)
        record, at = meta[at + len(digits) + 1 : at + length], at + length
        key, equals, value = record.removesuffix(b"\n").partition(b"=")
        if not equals:
            raise Unreadable(DAMAGED)
        if key == b"path":
            name = value
        elif key == b"size":
            if not value.isdigit() or len(value) > 15:
                raise Unreadable(DAMAGED)
            size_bytes = int(value)
    return name, size_bytes
