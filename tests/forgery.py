"""Archives made byte by byte, for what no honest program would write."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from dataclasses import dataclass


@dataclass
class Entry:
    """One zip entry. Fields that are None are what they should be."""

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
    local_name: bytes | None = None


def zip_bytes(
    *entries: Entry,
    prefix: bytes = b"",
    comment: bytes = b"",
    count: int | None = None,
    listing_lies: int = 0,
) -> bytes:
    """A zip of these entries; `listing_lies` is added to the listing's size in the end record."""
    body, listing = bytearray(prefix), bytearray()
    for entry in entries:
        packed = _deflated(entry.content) if entry.deflate else entry.content
        method = entry.method if entry.method is not None else 8 * entry.deflate
        crc = entry.crc if entry.crc is not None else zlib.crc32(entry.content)
        packed_bytes = entry.packed_bytes if entry.packed_bytes is not None else len(packed)
        size_bytes = entry.size_bytes if entry.size_bytes is not None else len(entry.content)
        offset = entry.offset if entry.offset is not None else len(body) - len(prefix)
        local_name = entry.local_name if entry.local_name is not None else entry.name
        sizes = (crc, packed_bytes, size_bytes)
        body += struct.pack("<4s5H3L2H", b"PK\3\4", 20, entry.flags, method, 0, 0, *sizes, len(local_name), 0)
        body += local_name + packed
        listing += struct.pack("<4s6H3L", b"PK\1\2", 0x0314, 20, entry.flags, method, 0, 0, *sizes)
        listing += struct.pack("<5H2L", len(entry.name), 0, 0, 0, 0, entry.mode << 16, offset) + entry.name
    end = struct.pack(
        "<4s4H2LH",
        b"PK\5\6",
        0,
        0,
        len(entries) if count is None else count,
        len(entries) if count is None else count,
        len(listing) + listing_lies,
        len(body) - len(prefix),
        len(comment),
    )
    return bytes(body + listing + end + comment)


def _deflated(content: bytes) -> bytes:
    encoder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return encoder.compress(content) + encoder.flush()


def quoted_overlap(depth: int, kernel: bytes) -> bytes:
    """A bomb of one compressed kernel that many entries share (after D. Fifield's first, plainly overlapping kind)."""
    packed = _deflated(kernel)
    names = [b"%d.bin" % k for k in range(depth)]
    local = struct.pack(
        "<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 0, zlib.crc32(kernel), len(packed), len(kernel), len(names[0]), 0
    )
    body = local + names[0] + packed
    listing = b"".join(
        struct.pack(
            "<4s6H3L", b"PK\1\2", 0x0314, 20, 0, 8, 0, 0, zlib.crc32(kernel), len(packed), len(kernel)
        )
        + struct.pack("<5H2L", len(name), 0, 0, 0, 0, 0o100644 << 16, 0)
        + name
        for name in names
    )
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, depth, depth, len(listing), len(body), 0)
    return body + listing + end


def zip64_bytes(name: bytes, content: bytes, *, listing_bytes: int | None = None) -> bytes:
    """A zip of one entry with every size and offset in zip64 fields."""
    big = 0xFFFFFFFF
    crc = zlib.crc32(content)
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 45, 0, 0, 0, 0, crc, big, big, len(name), 20)
    local += name + struct.pack("<HHQQ", 1, 16, len(content), len(content)) + content
    extra = struct.pack("<HHQQQ", 1, 24, len(content), len(content), 0)
    listing = struct.pack("<4s6H3L", b"PK\1\2", 0x032D, 45, 0, 0, 0, 0, crc, big, big)
    listing += struct.pack("<5H2L", len(name), len(extra), 0, 0, 0, 0o100644 << 16, big) + name + extra
    size = len(listing) if listing_bytes is None else listing_bytes
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, len(local))
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(local) + len(listing), 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, big, big, 0)
    return local + listing + end64 + locator + end


def tar_header(
    name: bytes,
    size: bytes = b"00000000000\0",
    kind: bytes = b"0",
    link: bytes = b"",
    checksum: int | None = None,
) -> bytes:
    """A ustar header block with a right checksum, unless one is given."""
    block = bytearray(512)
    block[0 : len(name)] = name
    block[100:108], block[124:136], block[156:157] = b"0000644\0", size, kind
    block[157 : 157 + len(link)] = link
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    total = sum(block) if checksum is None else checksum
    block[148:156] = b"%06o\0 " % total
    return bytes(block)


def tar_file(name: bytes, content: bytes, kind: bytes = b"0") -> bytes:
    return tar_header(name, b"%011o\0" % len(content), kind) + content + bytes(-len(content) % 512)


def tar_bytes(files: dict[str, bytes], mode: str = "w", **options: object) -> bytes:
    """What Python's tarfile makes of these files."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode, **options) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()
