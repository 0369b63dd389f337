"""Helpers that write submissions, find them, and make archives that no honest program would write."""

import io
import struct
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from grader.submission import Submission, find

SOURCE = b"int main() { return 0; }\n"
#: Metadata of an export by Gradescope.
GRADESCOPE = """---
submission_101:
  :submitters:
  - :name: Jane Doe
    :sid: '7'
    :email: jane@example.edu
  - :name: Zoë <script>
    :email: zoe@example.edu
  :created_at: 2023-11-02 07:10:22.340000000 Z
  :score: 3.5
  :results: !ruby/object:Hash
    tests: []
submission_102: !ruby/hash:ActiveSupport::HashWithIndifferentAccess
  :submitters:
  - :name: 李雷
    :email: li@example.edu
  :created_at: '2023-11-01T18:00:00.123456789-07:00'
submission_103:
  :submitters: []
submission_104:
  :submitters:
  - :name: Lost Soul
"""
Sizes = tuple[int, int, int]
FILE = 0o100644
NO_SIZE = b"00000000000\0"


def put(root: Path, files: Mapping[str, str | bytes], mode: int = 0o644) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        (root / name).chmod(mode)
    return root


def zipped(files: dict[str, bytes], method: int = ZIP_DEFLATED, target: io.BytesIO | None = None) -> bytes:
    """Return a zip of these files; equal files give equal bytes."""
    target = target or io.BytesIO()
    with ZipFile(target, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(ZipInfo(name), content, method)
    return target.getvalue()


def found(path: Path, scratch: Path) -> dict[str, Submission]:
    submissions = find(path, "module.cpp", scratch)
    for submission in submissions:
        assert (submission.source is None) == (submission.error is not None) == (submission.path is None)
        assert "\n" not in (submission.error or "")
    return {submission.id: submission for submission in submissions}


def sources(path: Path, scratch: Path) -> dict[str, bytes | str]:
    items = found(path, scratch).items()
    return {name: one.source.read_bytes() if one.source else str(one.error) for name, one in items}


@dataclass
class Entry:
    """One entry of a zip. `deflate`: True to compress it. A field that is None gets its correct value."""

    name: bytes
    content: bytes = b"int main() {}\n"
    deflate: bool = False
    method: int | None = None
    flags: int = 0
    mode: int = 0o100644
    size_bytes: int | None = None
    packed_bytes: int | None = None
    crc: int | None = None
    offset: int | None = None


def _local(name: bytes, sizes: Sizes, method: int, flags: int = 0) -> bytes:
    """Return the header before a zip entry. `sizes` are the content's checksum, compressed size and size in bytes."""
    return struct.pack("<4s5H3L2H", b"PK\3\4", 20, flags, method, 0, 0, *sizes, len(name), 0) + name


def _listed(name: bytes, sizes: Sizes, method: int, offset: int, flags: int = 0, mode: int = FILE) -> bytes:
    """Return an entry's record in the central directory, the listing at the end of a zip."""
    line = struct.pack("<4s6H3L", b"PK\1\2", 0x0314, 20, flags, method, 0, 0, *sizes)
    return line + struct.pack("<5H2L", len(name), 0, 0, 0, 0, mode << 16, offset) + name


def _end(count: int, listing_bytes: int, offset: int, comment: bytes = b"") -> bytes:
    sizes = (0, 0, count, count, listing_bytes, offset, len(comment))
    return struct.pack("<4s4H2LH", b"PK\5\6", *sizes) + comment


def zip_bytes(*entries: Entry, comment: bytes = b"", count: int | None = None, listing_lie: int = 0) -> bytes:
    """Return a zip of these entries. `count` replaces their number; `listing_lie` is added to the listing's size."""

    def given(value: int | None, otherwise: int) -> int:
        return otherwise if value is None else value

    body, listing = bytearray(), bytearray()
    for entry in entries:
        packed = _deflated(entry.content) if entry.deflate else entry.content
        method = given(entry.method, 8 * entry.deflate)
        crc = given(entry.crc, zlib.crc32(entry.content))
        sizes = (crc, given(entry.packed_bytes, len(packed)), given(entry.size_bytes, len(entry.content)))
        offset = given(entry.offset, len(body))
        body += _local(entry.name, sizes, method, entry.flags) + packed
        listing += _listed(entry.name, sizes, method, offset, entry.flags, entry.mode)
    end = _end(given(count, len(entries)), len(listing) + listing_lie, len(body), comment)
    return bytes(body + listing) + end


def _deflated(content: bytes) -> bytes:
    encoder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return encoder.compress(content) + encoder.flush()


def quoted_overlap(depth: int, kernel: bytes) -> bytes:
    """Return a zip bomb: many entries share the compressed text `kernel` (after D. Fifield's overlapping bomb)."""
    packed = _deflated(kernel)
    sizes = (zlib.crc32(kernel), len(packed), len(kernel))
    body = _local(b"0.bin", sizes, 8) + packed
    listing = b"".join(_listed(b"%d.bin" % k, sizes, 8, 0) for k in range(depth))
    return body + listing + _end(depth, len(listing), len(body))


def zip64_bytes(name: bytes, content: bytes, *, listing_bytes: int | None = None) -> bytes:
    """Return a zip of one entry with every size and offset in zip64 fields."""
    big, crc = 0xFFFFFFFF, zlib.crc32(content)
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 0, crc, big, big, len(name), 20)
    local += name + struct.pack("<HHQQ", 1, 16, len(content), len(content)) + content
    extra = struct.pack("<HHQQQ", 1, 24, len(content), len(content), 0)
    listing = struct.pack("<4s6H3L", b"PK\1\2", 0x032D, 45, 0, 0, 0, 0, crc, big, big)
    listing += struct.pack("<5H2L", len(name), len(extra), 0, 0, 0, 0o100644 << 16, big) + name + extra
    size = len(listing) if listing_bytes is None else listing_bytes
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, len(local))
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(local) + len(listing), 1)
    return local + listing + end64 + locator + _end(0xFFFF, big, big)


def tar_header(
    name: bytes, size: bytes = NO_SIZE, kind: bytes = b"0", link: bytes = b"", checksum: int = -1
) -> bytes:
    """Return a ustar header block. Its checksum is right unless `checksum` gives another one."""
    head = struct.pack("<100s8s16x12s12x", name, b"0000644\0", size)
    rest = struct.pack("<c100s8s247x", kind, link, b"ustar\x0000")
    total = sum(head) + 8 * ord(" ") + sum(rest) if checksum < 0 else checksum
    return head + b"%06o\0 " % total + rest


def tar_file(name: bytes, content: bytes, kind: bytes = b"0") -> bytes:
    return tar_header(name, b"%011o\0" % len(content), kind) + content + bytes(-len(content) % 512)


def tar_bytes(files: dict[str, bytes], mode: str = "w", **options: object) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode, **options) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()
