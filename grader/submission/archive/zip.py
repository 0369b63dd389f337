"""Reader of zip archives (PKWARE APPNOTE 6.3), with members that are stored or deflated.

Names and sizes come from the listing at the archive's end (the central directory) alone. The header before each member
is used only to find the member's bytes. So an archive cannot be read in two different ways.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from grader.submission.archive.records import PIECE_BYTES, ArchiveLimits, Kind, Member, Unreadable, split_name

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_MAX_COMMENT_BYTES = 0xFFFF
_STORED, _DEFLATED = 0, 8
_ENCRYPTED, _UTF8 = 0x0001, 0x0800
_DOS_FOLDER = 0x10

CUT_OFF = "is cut off, its listing is missing: hand it in again"
DAMAGED = "is damaged: hand it in again"


class _Where(NamedTuple):
    flags: int
    method: int
    crc: int
    packed_bytes: int
    offset: int


class _Listing(NamedTuple):
    start: int
    size_bytes: int
    shift: int
    """Bytes to add to all offsets in the archive: the size of a program (a self-extractor) in front of it."""


def is_zip(head: bytes) -> bool:
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08", b"MZ"))


class ZipArchive:
    def __init__(self, file: BinaryIO, size_bytes: int, limits: ArchiveLimits) -> None:
        """List the archive. Raises Unreadable if it is damaged or exceeds the limits."""
        self._file, self._size_bytes = file, size_bytes
        try:
            listing = self._find_listing()
            self.members = list(self._entries(listing, limits))
        except (OSError, struct.error, ValueError, OverflowError) as error:
            raise Unreadable(DAMAGED) from error
        if limits.claims:
            limits.check_unpacked(sum(member.size_bytes for member in self.members), size_bytes)
        _refuse_overlap(self.members, listing.start)

    def close(self) -> None:
        self._file.close()

    # ---- the listing

    def _find_listing(self) -> _Listing:
        tail_bytes = min(self._size_bytes, _END.size + _MAX_COMMENT_BYTES)
        tail_start = self._size_bytes - tail_bytes
        self._file.seek(tail_start)
        tail = self._file.read(tail_bytes)
        at = tail.rfind(b"PK\x05\x06")
        # The archive's comment may contain the signature of the end record, too. So prefer an end record whose comment
        # ends where the file ends.
        candidate = at
        while candidate >= 0:
            if candidate + _END.size + _comment_bytes(tail, candidate) == len(tail):
                at = candidate
                break
            candidate = tail.rfind(b"PK\x05\x06", 0, candidate)
        if at < 0 or at + _END.size > len(tail):
            raise Unreadable(CUT_OFF)
        _, disk, first_disk, _, count, size_bytes, offset, _ = _END.unpack_from(tail, at)
        end = tail_start + at
        if 0xFFFF in (disk, first_disk, count) or 0xFFFFFFFF in (size_bytes, offset):
            found = self._find_end64(end)
            if found is not None:
                disk, first_disk, size_bytes, offset, end = found
        if disk or first_disk:
            raise Unreadable("is one piece of a split archive: hand it in as a single file")
        start = end - size_bytes
        if start < offset:
            raise Unreadable(DAMAGED)
        return _Listing(start, size_bytes, start - offset)

    def _find_end64(self, end: int) -> tuple[int, int, int, int, int] | None:
        """Read the zip64 end record, which precedes the ordinary end record at the offset `end`; None if missing.

        Returns (number of this disk, number of the listing's first disk, size of the listing, offset of the listing,
        offset of the record itself). Raises Unreadable if the record is damaged.
        """
        if end < _LOCATOR64.size:
            return None
        self._file.seek(end - _LOCATOR64.size)
        signature, _, offset, _ = _LOCATOR64.unpack(self._file.read(_LOCATOR64.size))
        if signature != b"PK\x06\x07":
            return None
        for place in (offset, end - _LOCATOR64.size - _END64.size):
            if not 0 <= place <= self._size_bytes - _END64.size:
                continue
            self._file.seek(place)
            fields = _END64.unpack(self._file.read(_END64.size))
            if fields[0] == b"PK\x06\x06":
                _, _, _, _, disk, first_disk, _, _, size_bytes, listing_offset = fields
                return disk, first_disk, size_bytes, listing_offset, place
        raise Unreadable(DAMAGED)

    def _entries(self, listing: _Listing, limits: ArchiveLimits) -> Iterator[Member]:
        self._file.seek(listing.start)
        remaining, count = listing.size_bytes, 0
        while remaining > 0:
            count += 1
            limits.check_members(count)
            fields = _ENTRY.unpack(self._file.read(_ENTRY.size))
            signature, made_by, _, flags, method, _, _, crc, packed_bytes, size_bytes = fields[:10]
            name_bytes, extra_bytes, comment_bytes, _, _, attributes, offset = fields[10:]
            if signature != b"PK\x01\x02":
                raise Unreadable(DAMAGED)
            variable_bytes = name_bytes + extra_bytes + comment_bytes
            variable = self._file.read(variable_bytes)
            remaining -= _ENTRY.size + variable_bytes
            if len(variable) < variable_bytes or remaining < 0:
                raise Unreadable(DAMAGED)
            name, extra = variable[:name_bytes], variable[name_bytes : name_bytes + extra_bytes]
            if 0xFFFFFFFF in (size_bytes, packed_bytes, offset):
                size_bytes, packed_bytes, offset = _wide(extra, size_bytes, packed_bytes, offset)
            parts, trouble = split_name(name, _encoding(name, flags))
            where = _Where(flags, method, crc, packed_bytes, offset + listing.shift)
            if parts or trouble:
                yield Member(parts, _kind(name, made_by, attributes), size_bytes, trouble, where)

    # ---- content

    def pieces(self, member: Member) -> Iterator[bytes]:
        """Yield the member's content. Raises Unreadable if it is encrypted, damaged or compressed by another method."""
        where = member.where
        assert isinstance(where, _Where)
        if where.flags & _ENCRYPTED:
            raise Unreadable("is encrypted: hand it in without a password")
        if where.method not in (_STORED, _DEFLATED):
            raise Unreadable("is compressed in an unusual way: zip it with the ordinary settings (deflate)")
        size_bytes, crc = 0, 0
        try:
            packed = self._packed(where)
            for piece in packed if where.method == _STORED else _inflated(packed):
                size_bytes += len(piece)
                crc = zlib.crc32(piece, crc)
                if size_bytes > member.size_bytes:
                    raise Unreadable(DAMAGED)
                yield piece
        except (OSError, struct.error, ValueError, OverflowError, zlib.error) as error:
            raise Unreadable(DAMAGED) from error
        if size_bytes != member.size_bytes or crc != where.crc:
            raise Unreadable(DAMAGED)

    def _packed(self, where: _Where) -> Iterator[bytes]:
        self._file.seek(where.offset)
        header = _LOCAL.unpack(self._file.read(_LOCAL.size))
        if header[0] != b"PK\x03\x04":
            raise Unreadable(DAMAGED)
        at, remaining = where.offset + _LOCAL.size + header[-2] + header[-1], where.packed_bytes
        while remaining > 0:
            # Between two pieces the caller may have read another member, which moves the file's position.
            self._file.seek(at)
            piece = self._file.read(min(remaining, PIECE_BYTES))
            if not piece:
                raise Unreadable("is cut off: hand it in again")
            at, remaining = at + len(piece), remaining - len(piece)
            yield piece


def _inflated(packed: Iterator[bytes]) -> Iterator[bytes]:
    decoder = zlib.decompressobj(wbits=-15)
    for data in packed:
        while True:
            piece = decoder.decompress(data, PIECE_BYTES)
            if piece:
                yield piece
            data = decoder.unconsumed_tail
            if decoder.eof or (not data and len(piece) < PIECE_BYTES):
                break
        if decoder.eof:
            return
    raise Unreadable("is cut off: hand it in again")


def _comment_bytes(tail: bytes, at: int) -> int:
    field = tail[at + _END.size - 2 : at + _END.size]
    return int.from_bytes(field, "little") if len(field) == 2 else -_END.size - 1


def _encoding(name: bytes, flags: int) -> str:
    """Return a name's encoding: "utf-8" if flagged or if the name is valid UTF-8 (Apple sets no flag), else "cp437"."""
    if flags & _UTF8:
        return "utf-8"
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        return "cp437"
    return "utf-8"


def _kind(name: bytes, made_by: int, attributes: int) -> Kind:
    mode = attributes >> 16
    kind = stat.S_IFMT(mode)
    if stat.S_ISLNK(mode):
        return "link"
    if kind and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return "special"
    made_on_dos = made_by >> 8 == 0
    if name.endswith((b"/", b"\\")) or stat.S_ISDIR(mode) or (made_on_dos and attributes & _DOS_FOLDER):
        return "folder"
    return "file"


def _wide(extra: bytes, *values: int) -> tuple[int, int, int]:
    """Return (size, packed size, offset) of an entry. `values` are these three numbers in the archive's listing.

    For a number that does not fit into 32 bits, the listing has 0xFFFFFFFF and the zip64 field in `extra` the number.
    Raises ValueError if this field is missing.
    """
    at = 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack_from("<HH", extra, at)
        if tag == 1:
            field = extra[at + 4 : at + 4 + length]
            result = []
            for value in values:
                if value == 0xFFFFFFFF:
                    (value,) = struct.unpack_from("<Q", field)
                    field = field[8:]
                result.append(value)
            size_bytes, packed_bytes, offset = result
            return size_bytes, packed_bytes, offset
        at += 4 + length
    raise ValueError("no zip64 field")


def _refuse_overlap(members: list[Member], listing_start: int) -> None:
    """Raise Unreadable if entries share bytes: 46 MB could unpack to petabytes (D. Fifield, "A better zip bomb")."""
    spans = sorted(
        (member.where.offset, member.where.offset + _LOCAL.size + member.where.packed_bytes)
        for member in members
        if isinstance(member.where, _Where)
    )
    if any(after[0] < before[1] for before, after in pairwise(spans)):
        raise Unreadable("holds entries that overlap, as no honest archive does: pack it again")
    if spans and spans[-1][1] > listing_start:
        raise Unreadable(DAMAGED)
