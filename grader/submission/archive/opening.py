"""Choice of the reader for an archive, by its content; and tar archives that are compressed."""

from __future__ import annotations

import bz2
import errno
import lzma
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from grader.core.errors import KitError, explained
from grader.core.quantities import size_text
from grader.submission.archive.records import PIECE_BYTES, Archive, ArchiveLimits, Unreadable
from grader.submission.archive.tar import BLOCK_BYTES, TarArchive, is_tar_header
from grader.submission.archive.zip import ZipArchive, is_zip

#: Suffixes of files that are treated as archives. Files in unsupported formats are refused by their content (FOREIGN).
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
#: `xz -9` needs 65 MiB to unpack; a header may ask for 4 GiB.
XZ_MEMORY_BYTES = 128 << 20
#: Parallel packers write a stream per block of 64 KiB or more. Even an empty stream costs time.
MAX_STREAMS = 10_000


class NoRoom(KitError):
    """Error for a disk without room for temporary files. It is not the submission's fault, and others may still fit."""


def is_archive_name(name: str) -> bool:
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def archive_stem(name: str) -> str:
    """Return a name without its archive suffixes: alice.tar.gz gives alice."""
    while is_archive_name(name) and not name.startswith("."):
        name = name[: name.rindex(".")]
    return name


def open_archive(file: BinaryIO, limits: ArchiveLimits, scratch: Path) -> Archive:
    """Open an archive and list its entries. The format is recognised by the content, not by the name.

    `file` is seekable and is closed with the archive. A compressed tar is unpacked once, within `limits`, into an
    unnamed file under `scratch`. Raises Unreadable, with one line for the student, for a file that is broken, too large
    or not an archive.
    """
    with explained("cannot be read", Unreadable):
        size_bytes = file.seek(0, 2)
        file.seek(0)
        head = file.read(BLOCK_BYTES)
    if not head:
        raise Unreadable("is an empty file: hand it in again")
    if is_tar_header(head):
        return TarArchive(file, size_bytes, limits)
    decoder = _decoder(head)
    if decoder is not None:
        return _compressed_tar(file, size_bytes, decoder, limits, scratch)
    if is_zip(head):
        return ZipArchive(file, size_bytes, limits)
    for magic, what in FOREIGN:
        if head.startswith(magic):
            raise Unreadable(f"is {what}, which is not opened here: {USUAL}")
    if len(set(head)) == 1:
        raise Unreadable("holds nothing but one repeated byte: hand it in again")
    raise Unreadable(f"is not an archive, or its beginning is damaged: {USUAL}")


# ---- compressed tar


class _Decoder(Protocol):
    """Interface of Python's decompressors for bzip2 and xz; `_Gzip` adapts zlib's to it. `eof`: the stream is over."""

    eof: bool
    unused_data: bytes

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
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


class _Compression:
    """One compression format: the first bytes of its streams, and a new decoder for each stream."""

    def __init__(self, name: str, magic: bytes) -> None:
        self.name, self.magic = name, magic

    def fresh(self) -> _Decoder:
        if self.name == "gzip":
            return _Gzip()
        if self.name == "bzip2":
            return bz2.BZ2Decompressor()
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)


_COMPRESSIONS = (
    _Compression("gzip", b"\x1f\x8b"),
    _Compression("bzip2", b"BZh"),
    _Compression("xz", b"\xfd7zXZ\x00"),
)


def _decoder(head: bytes) -> _Compression | None:
    return next((item for item in _COMPRESSIONS if head.startswith(item.magic)), None)


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
    """Write pieces to an unnamed file under `scratch`. The system removes it when this process ends, even if killed.

    Raises NoRoom if the disk is full, KitError if the file cannot be written, and the errors of `pieces`.
    """
    with explained(f"cannot make a file in {scratch}", KitError):
        # Unbuffered: closing would write the rest of a failed buffer again and raise another error.
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
    """Yield the decoded bytes in pieces. Consecutive streams are joined; other data after them is ignored."""
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
