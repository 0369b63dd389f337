"""`open_archive`, which chooses an archive's reader by the content, and the reader of tar archives, also compressed.

Formats of tar: POSIX ustar and pax, and GNU's long names. A tar archive consists of 512-byte blocks: for each file one
block with a header, then the content, padded to whole blocks.
"""

from __future__ import annotations

import bz2
import errno
import lzma
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

from grader.core.errors import KitError, explained
from grader.core.quantities import size_text
from grader.submission.archive.records import (
    PIECE_BYTES,
    Archive,
    ArchiveLimits,
    Kind,
    Member,
    Unreadable,
    split_name,
)
from grader.submission.archive.zip import ZipArchive, is_zip

#: Suffixes of files that are treated as archives. Some have formats that are not supported: `open_archive` refuses
#: these by their content (FOREIGN).
ARCHIVE_SUFFIXES = (
    ".zip", ".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".gz", ".bz2", ".xz",
    ".7z", ".rar", ".zst", ".zipx", ".lz", ".lzma", ".z", ".cab", ".dmg", ".iso",
)  # fmt: skip
FOREIGN = (
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"\x1f\x9d", "compressed with compress"),
    (b"LZIP", "compressed with lzip"),
    (b"MSCF", "a CAB archive"),
    (b"<", "a web page"),
)
USUAL = "hand in a zip or a tar.gz"
#: Limit on the memory for unpacking an xz file. A file made by `xz -9` needs 65 MiB, but a header may ask for 4 GiB.
XZ_MEMORY_BYTES = 128 << 20
#: Limit on the compressed streams that follow one another in a file, because millions of empty streams would take long
#: to read. Parallel packers such as pigz write one stream per 64 KiB or more.
MAX_STREAMS = 10_000


class NoRoom(KitError):
    """Raised if the disk has no room to unpack a submission. Smaller submissions may still fit, so the run goes on."""


def is_archive_name(name: str) -> bool:
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def archive_stem(name: str) -> str:
    """Return a name without its archive suffixes: alice.tar.gz gives alice."""
    while is_archive_name(name) and not name.startswith("."):
        name = name[: name.rindex(".")]
    return name


def open_archive(file: BinaryIO, limits: ArchiveLimits, scratch: Path) -> Archive:
    """Open an archive and list its entries. The format is recognised by the content, not by the name.

    `file` must be seekable; closing the archive closes it. A compressed tar is unpacked once, within `limits`, into an
    unnamed file under `scratch`. Raises Unreadable, with a line for the student, if the archive cannot be listed.
    """
    with explained("cannot be read", Unreadable):
        size_bytes = file.seek(0, 2)
        file.seek(0)
        head = file.read(BLOCK_BYTES)
    if not head:
        raise Unreadable("is an empty file: hand it in again")
    if is_tar_header(head):
        return TarArchive(file, size_bytes, limits)
    compression = next((item for item in _COMPRESSIONS if head.startswith(item.magic)), None)
    if compression is not None:
        return _compressed_tar(file, size_bytes, compression, limits, scratch)
    if is_zip(head):
        return ZipArchive(file, size_bytes, limits)
    for magic, what in FOREIGN:
        if head.startswith(magic):
            raise Unreadable(f"is {what}, which is not opened here: {USUAL}")
    if len(set(head)) == 1:
        raise Unreadable("holds nothing but one repeated byte: hand it in again")
    raise Unreadable(f"is not an archive, or its beginning is damaged: {USUAL}")


# ---- compressed tar


class _Gzip:
    """Decompressor of gzip with the interface of `bz2.BZ2Decompressor`."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        out = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = len(out) < max_length and not self._inner.unconsumed_tail
        return out


class _Compression(NamedTuple):
    """A compression format. `magic` are the first bytes of a stream; `fresh()` returns a decoder for one stream."""

    name: str
    magic: bytes
    fresh: Callable[[], Any]


_COMPRESSIONS = (
    _Compression("gzip", b"\x1f\x8b", _Gzip),
    _Compression("bzip2", b"BZh", bz2.BZ2Decompressor),
    _Compression("xz", b"\xfd7zXZ\x00", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY_BYTES)),
)


def _compressed_tar(
    file: BinaryIO, size_bytes: int, compression: _Compression, limits: ArchiveLimits, scratch: Path
) -> TarArchive:
    def within_limits() -> Iterator[bytes]:
        total_bytes = 0
        for piece in _decoded(file, compression):
            if total_bytes == 0 and not is_tar_header(piece):
                raise Unreadable(f"is compressed with {compression.name} but holds no tar archive: {USUAL}")
            total_bytes += len(piece)
            limits.check_unpacked(total_bytes, size_bytes)
            yield piece
        if total_bytes == 0:
            raise Unreadable("holds nothing: hand it in again")

    unpacked = spool(within_limits(), scratch)
    try:
        return TarArchive(unpacked, unpacked.seek(0, 2), limits)
    except BaseException:
        unpacked.close()
        raise


def spool(pieces: Iterator[bytes], scratch: Path) -> BinaryIO:
    """Write pieces to an unnamed file under `scratch` and return the file, open for reading and writing.

    The system removes the file when it is closed or when this process ends, even if the process is killed.

    Raises NoRoom if the disk is full, KitError if the file cannot be written, and any error that `pieces` raises.
    """
    with explained(f"cannot make a file in {scratch}", KitError):
        # If a write to a buffered file failed, close() would write the buffer again and raise a second error.
        file = tempfile.TemporaryFile(dir=scratch, buffering=0)  # noqa: SIM115
    try:
        for piece in pieces:
            _write(file, piece, scratch)
        return file  # type: ignore[return-value]
    except BaseException:
        file.close()
        raise


def _write(file: IO[bytes], piece: bytes, scratch: Path) -> None:
    rest = memoryview(piece)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise disk_error(error, scratch) from error


def disk_error(error: OSError, folder: Path) -> KitError:
    """Return the exception for an error in writing a submission to `folder`: NoRoom for a full disk, else KitError."""
    kind = NoRoom if error.errno in (errno.ENOSPC, errno.EDQUOT) else KitError
    return kind(
        f"cannot write to {folder}: {error.strerror}; delete files or set TMPDIR to another disk, and start again"
    )


def _decoded(file: BinaryIO, compression: _Compression) -> Iterator[bytes]:
    """Yield the decoded bytes of consecutive streams in a file. Other data after the last stream is ignored."""
    file.seek(0)
    decoder = compression.fresh()
    data, streams = b"", 1
    try:
        while True:
            if decoder.eof:
                rest = decoder.unused_data
                if len(rest) < len(compression.magic):
                    rest += file.read(PIECE_BYTES)
                if not rest.startswith(compression.magic):
                    return
                streams += 1
                if streams > MAX_STREAMS:
                    raise Unreadable(f"is made of more than {MAX_STREAMS} streams: pack it again")
                decoder, data = compression.fresh(), rest
            elif decoder.needs_input:
                data = file.read(PIECE_BYTES)
                if not data:
                    raise Unreadable("is cut off: hand it in again")
            piece = decoder.decompress(data, PIECE_BYTES)
            data = b""
            if piece:
                yield piece
    except (zlib.error, lzma.LZMAError, EOFError, OSError, ValueError) as error:
        if isinstance(error, lzma.LZMAError) and "emory" in str(error):
            limit = size_text(XZ_MEMORY_BYTES)
            raise Unreadable(f"needs more than {limit} of memory to unpack: {USUAL}") from error
        raise Unreadable("is damaged: hand it in again") from error


BLOCK_BYTES = 512
#: Limit on the bytes of a long name (GNU), or of all attributes in one extended header (pax).
MAX_META_BYTES = 64 << 10
#: Limit on the attributes in one extended header. Common archivers write about twelve.
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
                # Like the program `tar`, accept a block of zeros or the end of the file as the archive's end.
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
        """Yield the member's content. Raises Unreadable if the file ends too early."""
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
        """Return the offset of a sparse file's content, which follows the blocks that list the file's holes.

        `at` is the offset after the file's header. `more`: True if a block of the list follows there.
        """
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
    """Parse a tar header's number: octal digits or GNU's base 256. Raises Unreadable for negative or other values."""
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
    """Return (path, size in bytes) from a pax header, which has records of the form `length key=value`.

    Without a record for the path, return `name` as the path; without one for the size, None as the size. Raises
    Unreadable if the header is malformed.
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
