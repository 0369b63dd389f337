"""Untrusted archives: archives of honest programs are read correctly, all others end in one clear line."""

import bz2
import gzip
import io
import lzma
import random
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from conftest import refused
from handing_in import Entry, quoted_overlap, tar_bytes, tar_file, tar_header, zip64_bytes, zip_bytes, zipped
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.core.quantities import MIB
from grader.submission.archive.opening import archive_stem, open_archive
from grader.submission.archive.records import ArchiveLimits, Unreadable, shown

LIMITS = ArchiveLimits(50, unpacked_bytes=4 * MIB, archive_bytes=4 * MIB, ratio=250, ratio_from_bytes=MIB)
FILES = {"module.cpp": b"int a;\n", "sub/ü.txt": b"x" * 100_000, "empty": b""}
PACKERS = (gzip.compress, bz2.compress, lzma.compress)
LETTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\:")
NAMES = st.text(LETTERS, min_size=1, max_size=40).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
ONE_FOLDER = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
TREES = st.dictionaries(PATHS, st.binary(max_size=300), max_size=6)


def read(content: bytes, scratch: Path, limits: ArchiveLimits = LIMITS) -> dict[str, bytes]:
    with closing(open_archive(io.BytesIO(content), limits, scratch)) as archive:
        files = [member for member in archive.members if member.kind == "file"]
        return {"/".join(member.parts): b"".join(archive.pieces(member)) for member in files}


def troubles(content: bytes, scratch: Path) -> list[str]:
    return [one.trouble for one in open_archive(io.BytesIO(content), LIMITS, scratch).members if one.trouble]


class _Pipe(io.BytesIO):
    """A stream without a position, so that zipfile writes sizes after the content (data descriptors)."""

    def tell(self) -> int:
        raise io.UnsupportedOperation


def in_a_row(pack: Callable[[bytes], bytes]) -> bytes:
    plain = tar_bytes(FILES)
    return pack(plain[:70_000]) + pack(plain[70_000:])


MODES = ("w", "w:gz", "w:bz2", "w:xz")
FORMATS = (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT)
ORDINARY = {
    "zip": zipped(FILES),
    "stored": zipped(FILES, zipfile.ZIP_STORED),
    "zip from a pipe": zipped(FILES, target=_Pipe()),
    "self-extracting zip": b"MZ" + bytes(500) + zipped(FILES),
    **{f"{mode} {kind}": tar_bytes(FILES, mode, format=kind) for mode in MODES for kind in FORMATS},
    **{f"{pack.__module__} streams in a row": in_a_row(pack) for pack in PACKERS},
    **{f"{pack.__module__} streams before zeros": in_a_row(pack) + bytes(1000) for pack in PACKERS},
}


@pytest.mark.parametrize("content", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_archives_are_read(content: bytes, tmp_path: Path) -> None:
    assert read(content, tmp_path) == FILES
    assert list(tmp_path.iterdir()) == []


def test_zip64_comments_old_names_and_long_ones_are_read(tmp_path: Path) -> None:
    assert read(zip64_bytes(b"module.cpp", b"int a;"), tmp_path) == {"module.cpp": b"int a;"}
    tricky = b"a comment with PK\5\6 and then some more of it in here"
    assert list(read(zip_bytes(Entry(b"module.cpp"), comment=tricky), tmp_path)) == ["module.cpp"]
    cafe = "café.cpp"
    names = {b"caf\x82.cpp": cafe, cafe.encode(): cafe, b"hw4\\module.cpp": "hw4/module.cpp"}
    for written, shown_as in names.items():
        assert list(read(zip_bytes(Entry(written)), tmp_path)) == [shown_as]
    name = "/".join(["a-folder-with-a-long-name"] * 10) + "/module.cpp"
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        assert read(tar_bytes({name: b"1"}, format=kind), tmp_path) == {name: b"1"}


def test_files_after_a_sparse_file_are_read(tmp_path: Path) -> None:
    header = bytearray(tar_header(b"holes.bin", b"00000000003\0", b"S"))
    header[482] = 1
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    more, last = bytearray(512), bytes(512)
    more[504] = 1
    content = bytes(header + more + last) + b"abc" + bytes(509) + tar_file(b"module.cpp", b"1")
    assert read(content, tmp_path) == {"module.cpp": b"1"}
    refused("is cut off", read, bytes(header + more), tmp_path, of=Unreadable)


@settings(max_examples=60, derandomize=True, suppress_health_check=ONE_FOLDER)
@given(TREES, st.sampled_from(["zip", "stored", "pax", "gnu", "gz"]))
def test_archives_written_by_python_are_read(tmp_path: Path, files: dict[str, bytes], form: str) -> None:
    files = {name: data for name, data in files.items() if not any(n.startswith(name + "/") for n in files)}
    if form in ("zip", "stored"):
        content = zipped(files, zipfile.ZIP_DEFLATED if form == "zip" else zipfile.ZIP_STORED)
    else:
        kind = tarfile.GNU_FORMAT if form == "gnu" else tarfile.PAX_FORMAT
        content = tar_bytes(files, "w:gz" if form == "gz" else "w", format=kind)
    # An empty tar contains only zeros, and is refused; a test below checks this.
    if files or form in ("zip", "stored"):
        assert read(content, tmp_path) == files


@pytest.mark.parametrize(
    "name",
    [
        b"../x", b"a/../../x", b"/etc/passwd", b"\\\\server\\share", b"..\\..\\x", b"C:\\x", b"c:x", b"a/b/..",
        b"module.cpp\0.txt", b"/", b"..", b"n" * 1025, b"d/" * 33 + b"x",
    ],
)  # fmt: skip
def test_a_path_that_leads_outside_is_reported(name: bytes, tmp_path: Path) -> None:
    assert len(troubles(zip_bytes(Entry(b"module.cpp"), Entry(name)), tmp_path)) == 1
    if b"\0" not in name:
        record = b" path=" + name + b"\n"
        record = str(len(record) + len(str(len(record) + 4))).encode() + record
        for named in (tar_file(b"././@LongLink", name + b"\0", b"L"), tar_file(b"pax", record, b"x")):
            assert len(troubles(named + tar_file(b"x", b"1"), tmp_path)) == 1


def test_links_and_devices_are_left_out(tmp_path: Path) -> None:
    for mode in (0o120777, 0o010644, 0o020644, 0o060644, 0o140644):
        assert read(zip_bytes(Entry(b"module.cpp", b"/etc/passwd", mode=mode)), tmp_path) == {}, oct(mode)
    for kind in "12346SVM":
        content = tar_header(b"module.cpp", kind=kind.encode(), link=b"/etc/passwd")
        assert read(content + tar_file(b"after", b"1"), tmp_path) == {"after": b"1"}, kind


def pax(record: bytes) -> bytes:
    return tar_file(b"a", record, b"x") + tar_file(b"b", b"")


def large_dictionary() -> bytes:
    packed = bytearray(lzma.compress(tar_bytes(FILES), preset=0))
    # The block's header begins at byte 12 with: its size, flags, filter, size of properties, size of the dictionary.
    header_bytes = (packed[12] + 1) * 4
    packed[12 + 4] = 36  # 1 GiB
    checked = bytes(packed[12 : 12 + header_bytes - 4])
    packed[12 + len(checked) : 12 + header_bytes] = struct.pack("<L", zlib.crc32(checked))
    return bytes(packed)


ZEROS = bytes(2 * MIB)
LIES = {
    "is an empty file": [b""],
    "one repeated byte": [bytes(2000)],
    "is not an archive": [b"just some text, no archive"],
    "7z": [b"7z\xbc\xaf\x27\x1c" + bytes(30)],
    "RAR": [b"Rar!\x1a\x07\x01" + bytes(30)],
    "a web page": [b"<!DOCTYPE html>"],
    "holds no tar archive": [gzip.compress(b"int main() {}")],
    "holds nothing": [gzip.compress(b"")],
    "is cut off": [
        zipped(FILES)[:-30], b"PK\3\4", gzip.compress(tar_bytes(FILES))[:-9], tar_bytes(FILES)[:1500],
        tar_file(b"a", b"1") + b"rubbish", tar_header(b"a", b"\x80" + b"\xff" * 11),
        pax(b"15 size=999999\n"),
    ],
    "is encrypted": [zip_bytes(Entry(b"a", flags=1)), zip_bytes(Entry(b"a", method=99, flags=1))],
    "unusual way": [zip_bytes(Entry(b"a", method=9))],
    "is damaged": [
        zip_bytes(Entry(b"a", crc=1)), zip_bytes(Entry(b"a", ZEROS, deflate=True, size_bytes=10)),
        zip_bytes(Entry(b"a", b"x", size_bytes=10)), zip_bytes(Entry(b"a", b"x", packed_bytes=10_000)),
        zip_bytes(Entry(b"a", b"not deflate", method=8)), zip_bytes(Entry(b"a", offset=7)),
        zip_bytes(Entry(b"a", offset=0xFFFFFFFE)), zip_bytes(Entry(b"a", offset=0xFFFFFFFF)),
        zip_bytes(Entry(b"a"), listing_lie=1), zip_bytes(Entry(b"a"), listing_lie=1 << 30),
        zip_bytes(Entry(b"a"), Entry(b"b"), listing_lie=-10), zip64_bytes(b"a", b"x", listing_bytes=1 << 63),
        gzip.compress(tar_bytes(FILES))[:-1] + b"\xff", tar_file(b"a", b"1") + b"rubbish" * 100,
        tar_file(b"a", b"1") + tar_header(b"b", checksum=7), tar_header(b"a", b"77777777777\0", b"L"),
        *(tar_header(b"a", size) for size in (b"99999999999\0", b"-0000000777\0", b"\xff" * 12)),
        *(pax(record) for record in (b"99 path=x\n", b"6 a=b\n" * 300, b"3 \n", b"11 size=-1\n")),
        b"BZh9" + bytes(1000), b"\xfd7zXZ\x00" + bytes(1000),
    ],
    "unpacks to more than 4 MiB": [zip_bytes(Entry(b"a", size_bytes=0xFFFFFFFE))],
    "more than 50 files": [
        zip_bytes(*(Entry(b"%d" % k) for k in range(51)), count=1),
        b"".join(tar_file(b"%d" % k, b"") for k in range(51)),
        b"".join(tar_file(b"a", b"n", b"L") for k in range(51)),
    ],
    "overlap": [zip_bytes(Entry(b"a"), Entry(b"b", offset=0)), quoted_overlap(7, bytes(MIB // 8))],
    "unpacks to more than": [quoted_overlap(40, bytes(MIB // 8))],
    "250 times": [
        zip_bytes(Entry(b"a", ZEROS, deflate=True)), gzip.compress(tar_bytes({"a": ZEROS})),
        bz2.compress(tar_bytes({"a": bytes(8 * MIB)})),
    ],
    "of memory": [large_dictionary()],
    "streams": [gzip.compress(tar_bytes({"a": b"1"})) + gzip.compress(b"") * 20_000],
    "split": [zipped(FILES)[:-22] + b"PK\5\6" + bytes([1, 0, 1, 0]) + bytes(14)],
    "more than 4 MiB": [gzip.compress(tar_bytes({"a": random.Random(1).randbytes(5 * MIB)}), 1)],
}  # fmt: skip
TOLD = [(content, reason) for reason, lies in LIES.items() for content in lies]


@pytest.mark.parametrize(("content", "reason"), TOLD)
def test_a_forged_archive_is_refused_in_one_line(content: bytes, reason: str, tmp_path: Path) -> None:
    refused(reason, read, content, tmp_path, of=Unreadable)
    assert list(tmp_path.iterdir()) == []


def test_archive_bombs_are_refused_in_little_memory(tmp_path: Path) -> None:
    zeros = bytes(16 * MIB)
    tar, entry = tar_bytes({"a": zeros}), partial(Entry, b"a", zeros, deflate=True)
    bombs = [zip_bytes(entry()), zip_bytes(entry(size_bytes=10)), gzip.compress(tar), bz2.compress(tar)]
    for bomb in (*bombs, lzma.compress(zeros, preset=0)):
        tracemalloc.start()
        refused(".", read, bomb, tmp_path, of=Unreadable)
        most_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most_bytes < 4 * MIB


def test_shown_names_are_harmless_and_short() -> None:
    assert (archive_stem("alice.tar.gz"), archive_stem("a.b.zip")) == ("alice", "a.b")
    assert shown("a\x1b[31m\n") == "a\ufffd[31m\ufffd"
    assert (shown("caf\udce9"), shown("\ud800")) == ("caf\ufffd", "?")
    assert len(shown("x" * 500)) == 80
