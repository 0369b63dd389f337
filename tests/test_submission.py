"""Submissions and archives in every form, also odd and hostile ones: finding, naming, reading and refusing them."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import random
import shutil
import socket
import stat
import struct
import tarfile
import tracemalloc
import unicodedata
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path

import handing_in
import pytest
from conftest import put, python, refused
from handing_in import SOURCE, Entry, found, sources, tar_bytes, tar_file, tar_header, zip_bytes, zipped
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.core.errors import KitError
from grader.core.harmless import one_line
from grader.core.quantities import MIB
from grader.submission import MAX_SOURCE_BYTES, exports, find, find_one, finding
from grader.submission.archive.opening import archive_stem, open_archive
from grader.submission.archive.records import ArchiveLimits, Unreadable, shown
from grader.submission.ids import identify, safe_name


def test_one_submission_is_found_in_each_form(tmp_path: Path, scratch: Path) -> None:
    nested = {"hw4/module.cpp": SOURCE, "__MACOSX/hw4/._module.cpp": b"junk", "hw4/.DS_Store": b"junk"}
    packed = tar_bytes({"hw4/module.cpp": SOURCE}, "w:gz")
    forms = {
        **dict.fromkeys(("module.cpp", "mine.cpp"), SOURCE), "plain.zip": zipped({"module.cpp": SOURCE}),
        "nested.zip": zipped(nested), "deep.zip": zipped({"a/b/c/module.cpp": SOURCE}),
        "plain.tar": tar_bytes({"./module.cpp": SOURCE}),
        **dict.fromkeys(("packed.tar.gz", "packed.tgz", "misnamed.zip"), packed),
        "packed.tar.bz2": tar_bytes({"hw4/module.cpp": SOURCE}, "w:bz2"),
        "packed.tar.xz": tar_bytes({"hw4/module.cpp": SOURCE}, "w:xz"),
        "twice.zip": zipped({"twice/hw4.zip": zipped(nested)}),
        "thrice.zip": zipped({"a.zip": zipped({"b.tgz": packed})}),
    }  # fmt: skip
    put(tmp_path, forms)
    for form in forms:
        one = find_one(tmp_path / form, "module.cpp", scratch / ("one-" + form))
        for submission in (*find(tmp_path / form, "module.cpp", scratch / form), one):
            assert submission.error is None, (form, submission.error)
            assert submission.id == submission.name == form.split(".")[0]
            assert submission.source is not None and submission.source.read_bytes() == SOURCE
            assert submission.sha256 == hashlib.sha256(SOURCE).hexdigest()


def test_ids_are_folder_names_also_in_a_class_of_one(tmp_path: Path, scratch: Path) -> None:
    put(tmp_path, {"class/alice/hw4/module.cpp": SOURCE})
    assert list(found(tmp_path / "class/alice/hw4", scratch)) == ["hw4"]
    assert list(found(tmp_path / "class", scratch)) == ["alice"]
    put(tmp_path, {"class/bob.zip": zipped({"module.cpp": SOURCE})})
    assert list(found(tmp_path / "class", scratch)) == ["alice", "bob"]


@pytest.mark.parametrize(("name", "id_"), [("ada", "ada"), ("Ada Lo_7_assignsubmission_file_", "Ada_Lo_7")])
def test_a_folder_of_one_student_is_never_divided(name: str, id_: str, tmp_path: Path, scratch: Path) -> None:
    files = {f"{name}/{other}/module.cpp": SOURCE for other in ("bob", "x")}
    put(tmp_path / "class", files)
    put(tmp_path, {"class.zip": zipped(files)})
    for form in ("class", "class.zip")[: 2 if name != id_ else 1]:
        (one,) = found(tmp_path / form, scratch).items()
        assert one[0] == id_ and "several files could be module.cpp" in (one[1].error or "")


def test_only_named_files_are_copied_privately(tmp_path: Path, scratch: Path) -> None:
    files = {"module.cpp": SOURCE, "module.ispc": b"export", "sub/module.ispc": b"other"}
    files |= dict.fromkeys(("conftest.py", "sitecustomize.py", "torch.py", "module_ref.so"), b"import os")
    with_mode = zip_bytes(*(Entry(name.encode(), content, mode=0o106777) for name, content in files.items()))
    put(tmp_path, {"all.zip": with_mode})
    [submission] = find(tmp_path / "all.zip", "module.cpp", scratch)
    assert submission.path is not None and submission.path.parent == scratch
    copied = {path.name: path.read_bytes() for path in submission.path.iterdir()}
    assert copied == {"module.cpp": SOURCE, "module.ispc": b"export"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in submission.path.iterdir()} == {0o600}
    assert stat.S_IMODE(submission.path.stat().st_mode) == 0o700
    assert submission.sha256 != hashlib.sha256(SOURCE).hexdigest()
    alone = find_one(tmp_path / "all.zip", "module.cpp", scratch, ())
    assert [path.name for path in alone.path.iterdir()] == ["module.cpp"]


@pytest.mark.parametrize(("files", "outcome"), [
    ({"module.cpp": b"1", "old/module.cpp": b"2", "module-1.cpp": b"3", "more.zip": b"4"}, b"1"),
    ({"module.cpp": b"\xff\xfe//\r\n\0\x1b[31m caf\xe9"}, b"\xff\xfe//\r\n\0\x1b[31m caf\xe9"),
    ({"Module.CPP": b"1", "module (1).cpp": b"2"}, b"1"),
    ({"x/module-2.cpp": b"1"}, b"1"),
    ({"a/b/module.cpp": b"1", "notes.txt": b""}, b"1"),
    ({"a/module.cpp": b"1", "hw.zip": b"no archive at all"}, b"1"),
    ({"a/module.cpp": b"1", "b/module.cpp": b"2"}, "several files could be module.cpp (a/module.cpp, b/mod"),
    ({"module-1.cpp": b"1", "module-2.cpp": b"2"}, "several files could be module.cpp"),
    ({"MODULE.cpp": b"1", "Module.cpp": b"2"}, "several files could be module.cpp"),
    ({"a.zip": b"1", "b.zip": b"2"}, "several archives (a.zip, b.zip)"),
    ({"kernel.cpp": b"1"}, "no module.cpp found, only kernel.cpp"),
    ({"module.cpp/readme": b"1"}, "module.cpp is a folder"),
    ({"module.cpp/module.cpp": b"1"}, b"1"),
    ({".hidden/module.cpp": b"1", "__MACOSX/module.cpp": b"1"}, "nothing was handed in"),
    ({"module.cpp": b""}, "module.cpp is empty"),
    ({"module.cpp": b"x" * MAX_SOURCE_BYTES}, b"x" * MAX_SOURCE_BYTES),
    ({"module.cpp": b"x" * (MAX_SOURCE_BYTES + 1)}, "module.cpp is larger than 1 MiB"),
    ({"module.cpp": b"1", "module.ispc": b"x" * (MAX_SOURCE_BYTES + 1)}, "module.ispc is larger than 1 MiB"),
    ({"d/" * 9 + "module.cpp": b"1"}, "no module.cpp"),
])  # fmt: skip
def test_right_file_is_taken(files: dict[str, bytes], outcome: object, tmp_path: Path, scratch: Path) -> None:
    put(tmp_path / "class/folder", files)
    put(tmp_path / "class", {"zip.zip": zipped(files), "other/module.cpp": b"0"})
    results = sources(tmp_path / "class", scratch)
    for found_as in (results["folder"], results["zip"]):
        assert found_as == outcome if isinstance(outcome, bytes) else outcome in str(found_as)
    assert results["other"] == b"0"


def test_a_class_in_all_forms_is_found_in_a_folder_and_in_an_archive(tmp_path: Path, scratch: Path) -> None:
    files = {
        "alice/module.cpp": b"1", "bob/hw4/module.cpp": b"2", "carol.zip": zipped({"x/module.cpp": b"3"}),
        "dave.cpp": b"4", "erin.cpp": b"5", "erin.ispc": b"6", "frank.rar": b"Rar!\x1a\x07\0", "grace.txt": b"hi",
        "heidi/notes.txt": b"", "roster.csv": b"a,b", "README.md": b"", ".DS_Store": b"", "ivan.zip": b"broken",
    }  # fmt: skip
    expected: dict[str, bytes | str] = {"alice": b"1", "bob": b"2", "carol": b"3", "dave": b"4", "erin": b"5"}
    whys = {"frank": "RAR", "grace": "grace.txt is another", "heidi": "notes.txt", "ivan": "not an archive"}
    wrapped = {"hw4/" + name: content for name, content in files.items()}
    put(tmp_path / "class", files)
    put(tmp_path, {"flat.zip": zipped(files), "wrapped.zip": zipped(wrapped)})
    put(tmp_path, {"flat.tar.gz": tar_bytes(files, "w:gz"), "holder/hw4.zip": zipped(files)})
    for form in ("class", "flat.zip", "wrapped.zip", "flat.tar.gz"):
        results = sources(tmp_path / form, scratch)
        assert {name: results[name] for name in expected} == expected
        assert set(results) == set(expected) | set(whys)
        assert all(reason in str(results[name]) for name, reason in whys.items())
        assert (scratch / "erin/module.ispc").read_bytes() == b"6"
    assert {path.name for path in scratch.iterdir()} == set(expected)


def test_a_folder_without_submissions_is_reported(tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "absent", tmp_path / "nul\0"):
        refused("", find, path, "module.cpp", scratch)
    put(tmp_path, {"broken.zip": b"PK\3\4", "empty.zip": zipped({})})
    assert "is cut off" in sources(tmp_path / "broken.zip", scratch)["broken"]
    assert "nothing was handed in" in sources(tmp_path / "empty.zip", scratch)["empty"]
    # If the scratch folder cannot be made, this is a fault of the kit, not of the submission.
    put(tmp_path, {"module.cpp": SOURCE, "file": b""})
    refused("", find, tmp_path / "module.cpp", "module.cpp", tmp_path / "file" / "scratch", of=KitError)


DENIED = (13, "Permission denied")
QUINE = zipped({"module.txt": b""})
for _ in range(5):
    QUINE = zipped({"r/r.zip": QUINE})
HOSTILE = {
    "absolute": (zip_bytes(Entry(b"/tmp/escaped"), Entry(b"module.cpp")), "leads outside"),
    "bomb": (zip_bytes(Entry(b"module.cpp", bytes(40 << 20), deflate=True)), "250 times"),
    "cut": (zipped({"module.cpp": SOURCE})[:-20], "is cut off"),
    "drive": (zip_bytes(Entry(b"C:\\module.cpp")), "leads outside"),
    "encrypted": (zip_bytes(Entry(b"module.cpp", flags=1)), "module.cpp is encrypted"),
    "fifo": (tar_header(b"module.cpp", kind=b"6"), "not an ordinary file"),
    "hardlink": (tar_header(b"module.cpp", kind=b"1", link=b"/etc/passwd"), "is a link"),
    "liar": (zip_bytes(Entry(b"module.cpp", bytes(3 << 20), deflate=True, size_bytes=9)), "is damaged"),
    "link": (zip_bytes(Entry(b"module.cpp", b"/etc/passwd", mode=0o120777)), "is a link"),
    "link-folder": (zip_bytes(Entry(b"d", b"/etc", mode=0o120777), Entry(b"d/module.cpp")), "both as a link"),
    "file-folder": (zip_bytes(Entry(b"d/x/module.cpp"), Entry(b"d/x")), "both as a folder and as a file"),
    "zero": (zip_bytes(Entry(b"module.cpp\0.png")), "zero byte"),
    "parent": (zip_bytes(Entry(b"a/../../module.cpp")), "leads outside"),
    "backslash": (zip_bytes(Entry(b"..\\..\\module.cpp")), "leads outside"),
    "quine": (QUINE, "more than 3 archives"),
    "spelled-twice": (zip_bytes(Entry(b"module.cpp", b"1"), Entry(b"./module.cpp", b"2")), "is in the archive twice"),
    "tar-parent": (tar_file(b"../../module.cpp", SOURCE), "leads outside"),
    "wide": (zip_bytes(*(Entry(b"%d/%d" % (k, k), b"") for k in range(10_001))), "more than 20000"),
}  # fmt: skip
UNREADABLE = (b"a: [", b"- a\n- b\n", b"\xff\xfe\0", b"a: 2023-99-99\n", b"", b"[" * 5000)


def test_hostile_archives_and_names_in_one_cost_only_their_owners(tmp_path: Path, scratch: Path) -> None:
    home = tmp_path / "a/b/c/class"
    put(home, {f"{name}.zip": content for name, (content, _) in HOSTILE.items()})
    put(home, {"zoe.zip": zipped({"module.cpp": SOURCE})})
    before = sorted(tmp_path.rglob("*"))
    results = sources(home, scratch)
    for name, (_, reason) in HOSTILE.items():
        assert reason in str(results[name]), name
        assert f"{name}.zip" in str(results[name]) or "module.cpp" in str(results[name])
    assert results["zoe"] == SOURCE and sorted(tmp_path.rglob("*")) == before
    assert [path.name for path in scratch.iterdir()] == ["zoe"]
    content = zip_bytes(
        Entry(b"alice/module.cpp", SOURCE), Entry(b"mallory/..\\..\\alice/module.cpp"), Entry(b"mallory/module.cpp"),
        Entry(b"../../escape/module.cpp"), Entry(b"oscar", b"alice", mode=0o120777),
    )  # fmt: skip
    put(tmp_path, {"class.zip": content})
    results = sources(tmp_path / "class.zip", scratch)
    assert results.pop("alice") == SOURCE and sorted(results) == ["mallory", "oscar", "submission"]
    assert all("leads outside" in str(results[name]) for name in ("mallory", "submission"))
    assert "is a link" in str(results["oscar"])


def test_an_archive_counts_only_for_the_student_who_packed_it(tmp_path: Path, scratch: Path) -> None:
    content = zip_bytes(
        Entry(b"alice/module.cpp", SOURCE),
        Entry(b"bob/module.cpp", bytes(40 << 20), deflate=True),
        *(Entry(b"mallory/%d/%d" % (k % 9, k), b"") for k in range(20_100)),
        Entry(b"oscar/module.cpp", size_bytes=0xFFFFFFFE),
        Entry(b"oscar/more", size_bytes=0xFFFFFFFE),
    )
    put(tmp_path, {"class.zip": content})
    results = sources(tmp_path / "class.zip", scratch)
    assert results["alice"] == SOURCE and "is larger than 1 MiB" in str(results["bob"])
    assert "more than 20000" in str(results["mallory"])
    assert "is damaged" in str(results["oscar"]) or "is larger than" in str(results["oscar"])


def test_no_link_on_disk_is_followed(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {"secret/module.cpp": b"secret", "class/good/module.cpp": SOURCE})
    home = tmp_path / "class"
    secret, links = tmp_path / "secret/module.cpp", {"folder-link/hw4": tmp_path / "secret", "loop": home}
    links |= dict.fromkeys(("file-link/module.cpp", "linked.zip", "companion/module.ispc"), secret)
    put(home, {"companion/module.cpp": SOURCE})
    for name in ("fifo", "socket"):
        (home / name).mkdir()
    for name, target in {**links, "dangling/module.cpp": "nowhere"}.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).symlink_to(target)
    os.mkfifo(home / "fifo/module.cpp")
    with socket.socket(socket.AF_UNIX) as listener:
        with monkeypatch.context() as inside:  # a socket's path may have only about 100 bytes
            inside.chdir(home / "socket")
            listener.bind("module.cpp")
        results = sources(home, scratch)
    assert results.pop("good") == SOURCE
    assert "no module.cpp found, only hw4" in str(results.pop("folder-link"))
    assert "module.ispc is a link" in str(results["companion"])
    assert all("is not an ordinary file" in str(results.pop(name)) for name in ("fifo", "socket"))
    assert sorted(results) == ["companion", "dangling", "file-link", "linked", "loop"]
    assert all("is a link" in str(error) for error in results.values())


def test_a_swapped_link_is_not_read(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {"secret/module.cpp": b"secret"})
    put(tmp_path / "class", {"m/hw4/module.cpp": b"1", "z/module.cpp": SOURCE})
    copy, folder = finding._copy, tmp_path / "class/m/hw4"

    def swap(*arguments: object) -> str:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.is_symlink():
            folder.symlink_to(tmp_path / "secret")
        return copy(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(finding, "_copy", swap)
    results = sources(tmp_path / "class", scratch)
    assert "cannot be read" in str(results["m"]) and results["z"] == SOURCE


def test_unreadable_files_are_errors(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {f"class/{name}/module.cpp": b"1" for name in ("a/private", "b", "c")})
    scandir, opened = os.scandir, os.open

    def refuse_listing(descriptor: int) -> object:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("private"):
            raise PermissionError(*DENIED)
        return scandir(descriptor)

    def refuse_reading(path: object, *arguments: object, **options: object) -> int:
        if path == "module.cpp" and os.readlink(f"/proc/self/fd/{options['dir_fd']}").endswith("/b"):
            raise PermissionError(*DENIED)
        return opened(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "scandir", refuse_listing)
    monkeypatch.setattr(os, "open", refuse_reading)
    reasons = {"a": f"private cannot be listed: {DENIED[1]}", "b": f"module.cpp cannot be read: {DENIED[1]}"}
    assert sources(tmp_path / "class", scratch) == {**reasons, "c": b"1"}
    refused("private cannot be listed", find, tmp_path / "class/a/private", "module.cpp", scratch)


def test_archives_leave_no_open_files_and_little_scratch(tmp_path: Path, scratch: Path) -> None:
    for k in range(40):
        packed = tar_bytes({"module.cpp": b"%d" % k, "big": bytes(1 << 20)}, "w:gz")
        put(tmp_path / "class", {f"s{k}.tgz": packed})
    before = set(os.listdir("/proc/self/fd"))
    results = sources(tmp_path / "class", scratch)
    assert set(os.listdir("/proc/self/fd")) <= before and results == {f"s{k}": b"%d" % k for k in range(40)}
    assert sum(path.stat().st_size for path in scratch.rglob("*") if path.is_file()) < 1000
    with tarfile.open(tmp_path / "class.tar", "w") as archive:
        archive.add(tmp_path / "class", "class")
    assert sources(tmp_path / "class.tar", scratch) == results


def test_a_gradescope_export_is_read_with_names_and_times(tmp_path: Path, scratch: Path) -> None:
    files = {
        **{f"submission_{k}/module.cpp": b"%d" % (k % 10) for k in (101, 103, 999)},
        "submission_metadata.yml": handing_in.GRADESCOPE.encode(),
        "submission_102/hw.zip": zipped({"module.cpp": b"2"}),
    }
    put(tmp_path / "export", files)
    put(tmp_path, {"export.zip": zipped({"assignment_4_export/" + k: v for k, v in files.items()})})
    for form in ("export", "export.zip"):
        submissions = found(tmp_path / form, scratch)
        unnamed = {"submission_103", "submission_999"}
        assert set(submissions) == {"Jane_Doe_101", "Lost_Soul_104", "李雷_102", *unnamed}
        jane = submissions["Jane_Doe_101"]
        assert jane.name == "Jane Doe, Zoë <script>"
        assert jane.emails == ("jane@example.edu", "zoe@example.edu")
        assert jane.submitted_at == datetime(2023, 11, 2, 7, 10, 22, 340000, tzinfo=timezone.utc)
        li = submissions["李雷_102"]
        assert (li.source or tmp_path).read_bytes() == b"2"
        assert li.submitted_at == datetime(2023, 11, 2, 1, 0, 0, 123456, tzinfo=timezone.utc)
        assert submissions["submission_103"].submitted_at is None
        assert "has no such folder" in str(submissions["Lost_Soul_104"].error)
        assert submissions["submission_999"].error is None


@pytest.mark.parametrize("content", UNREADABLE)
def test_unreadable_gradescope_metadata_is_refused(content: bytes, tmp_path: Path, scratch: Path) -> None:
    put(tmp_path, {"submission_metadata.yml": content, "submission_1/module.cpp": SOURCE})
    refused(r"submission_metadata\.yml", find, tmp_path, "module.cpp", scratch)


def test_yaml_that_names_itself_does_no_harm_and_its_scalars_are_texts() -> None:
    laughs = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for below, name in pairwise("abcdefghi"):
        laughs += f"{name}: &{name} [" + ", ".join([f"*{below}"] * 10) + "]\n"
    text = laughs + "s:\n  :submitters: [{':name': *i, ':email': {x: *i}}, *i, 3]\n  :created_at: *i\n"
    [entry] = exports.gradescope_entries(text.encode(), "metadata")
    assert [person.name for person in entry.people] == [""] and entry.submitted_at is None
    laughs = "b0: &b0 {x: 1}\n"
    for below, k in pairwise(range(61)):
        laughs += f"b{k}: &b{k}\n  <<: [*b{below}, *b{below}]\n"
    text = laughs + f"s:\n  :submitters:\n  - :name: yes\n    :sid: {'9' * 5000}\n    :email: 2001-01-01\n"
    text += "  - &me\n    :name: 0x10\n  - *me\n  :created_at: 0001-01-01 00:00:00 +14:00\n"
    *_, entry = exports.gradescope_entries(text.encode(), "metadata")
    named = [(person.name, person.email) for person in entry.people]
    assert named == [("yes", "2001-01-01"), ("0x10", ""), ("0x10", "")]
    assert len(entry.people[0].sid) <= 200 and entry.submitted_at is None
    group = "s:\n  :submitters: [" + "{name: x}, " * 10_000 + "]\n"
    assert len(exports.gradescope_entries(group.encode(), "metadata")[0].people) <= 64


#: Program that reads metadata which no real export contains. It prints a message for each refused text.
STRANGE = """
from grader.core.errors import UsageError
from grader.submission.exports import gradescope_entries
for content in (
    b"[" * 100_000, b"{a: " * 100_000, b"- " * 100_000, b"? " * 100_000, b"s:\\n" + b" [" * 100_000,
    b"".join(b"%%TAG !a%d! tag:x\\n" % k for k in range(20_000)) + b"---\\ns: {}\\n", b"--- {s: {}}\\n--- {}\\n",
):
    try:
        gradescope_entries(content, "metadata")
        print("accepted", content[:20])
    except UsageError as error:
        print(error)
"""


def test_metadata_of_no_export_s_shape_is_reported_and_not_recursed_into() -> None:
    """The metadata is read in a separate process, because a stack overflow would end the tests."""
    lines = python("-c", STRANGE, code=0).stdout.splitlines()
    assert len(lines) == 7 and all(line.startswith("metadata") for line in lines)


def test_a_student_s_own_file_is_not_the_class_s_metadata(tmp_path: Path, scratch: Path) -> None:
    forged = b"submission_1:\n  :submitters:\n  - :name: Another\n  :created_at: 2020-01-01 00:00:00 Z\n"
    metadata = {"submission_metadata.yml": forged, "submission_metadata.yaml": b""}
    own = {**metadata, "submission_1/module.cpp": b"1"}
    put(tmp_path / "folder/mallory/hw", own)
    put(tmp_path / "beside/mallory", {"submission_metadata.yml": forged, "src/module.cpp": b"1"})
    put(tmp_path, {"class/mallory.zip": zipped({f"hw/{name}": text for name, text in own.items()})})
    for form in ("folder", "beside", "class"):
        found_there = found(tmp_path / form, scratch / form)
        assert [item.name for item in found_there.values()] == ["mallory"], form
        assert all(item.submitted_at is None for item in found_there.values())


def test_ids_in_a_canvas_export_come_from_file_names(tmp_path: Path, scratch: Path) -> None:
    files = {
        "doejane_LATE_12345_67890_module-1.cpp": b"1",
        "roejohn_22_333_module-2.cpp": b"old", "roejohn_22_334_module-10.cpp": b"new",
        "lee_ann_23_400_module.cpp": b"2", "lee_ann_23_401_module.ispc": b"i",
        "kim_24_500_hw4-1.zip": zipped({"hw4/module.cpp": b"3"}), "kim_24_501_hw4.zip": b"an older one",
        "poe_25_600_text.html": b"<p>hi</p>",
        "sam_26_700_module.cpp": b"4", "sam_27_701_module.cpp": b"5",
        "tim_28_800_a.zip": b"", "tim_28_801_b.zip": b"",
    }  # fmt: skip
    put(tmp_path / "export", files)
    put(tmp_path, {"submissions.zip": zipped(files)})
    for form in ("export", "submissions.zip"):
        results = sources(tmp_path / form, scratch)
        assert results.pop("poe_25") == "no module.cpp found, only text.html"
        assert results.pop("tim_28") == "no module.cpp, but several archives (a.zip, b.zip): hand in only one"
        people = ("doejane_12345", "roejohn_22", "lee_ann_23", "kim_24", "sam_26", "sam_27")
        assert results == dict(zip(people, (b"1", b"new", b"2", b"3", b"4", b"5"), strict=True))
        assert (scratch / "lee_ann_23/module.ispc").read_bytes() == b"i"
    late = found(tmp_path / "export", scratch)
    assert [name for name, submission in late.items() if submission.marked_late] == ["doejane_12345"]
    assert late["doejane_12345"].name == "doejane"
    assert [*found(tmp_path / "export/doejane_LATE_12345_67890_module-1.cpp", scratch)] == ["doejane_12345"]
    for name in ("module.cpp", "alice_smith.cpp", "_1_2_module.cpp", "a_" * 400 + "module.cpp"):
        assert exports.CANVAS.fullmatch(name) is None
    sent = exports.CANVAS.fullmatch("doejane_123_456_roejohn_LATE_1_2_module.cpp")
    found_in = sent.group("person", "user", "late", "file")
    assert found_in == ("doejane", "123", None, "roejohn_LATE_1_2_module.cpp")


def test_names_become_unique_safe_ids(tmp_path: Path, scratch: Path) -> None:
    nfc, nfd = unicodedata.normalize("NFC", "José"), unicodedata.normalize("NFD", "José")
    names = [
        "Jane Doe", "alice", "Alice", nfc, nfd, "con", "aux.old", "grades.csv", "=1+2", "-rf", "x" * 200,
        "<script>", "a\nb", "👩‍💻", "x....", "日本語" * 28,
    ]  # fmt: skip
    for name in names:
        put(tmp_path, {f"{name}/module.cpp": name.encode()})
    os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")
    put(tmp_path, {"alice.zip": zipped({"module.cpp": b"zip"}), "alice.cpp": b"file"})
    submissions = found(tmp_path, scratch)
    assert len({name.casefold() for name in submissions}) == len(submissions) == len(names) + 3
    expected = {"Jane_Doe", "con_", "aux_old", "1_2", "rf", "script", "a_b", "grades_csv", "x" * 48}
    assert expected <= set(submissions)
    for name, submission in submissions.items():
        assert len(name.encode()) <= 200 and not set(name) & set("./\\ \n<>:\"'|?*=+@")
        submission.name.encode()
        # The name may contain a zero-width joiner, but no characters that move the cursor.
        assert submission.name == one_line(submission.name, 1000)
    assert safe_name("") == safe_name("..") == safe_name("\udcff") == "submission"
    one = dict(zip("ab", identify([("Alice", "a"), ("bob", "b")]), strict=True))
    more = identify([("alice", "0"), ("Alice", "a"), ("bob", "b"), (f"alice-{'0' * 6}", "x")])
    assert one == {"a": "Alice", "b": "bob"}
    assert more[2] == "bob" and not {"Alice", "alice"} & set(more)
    assert len(set(identify([("alice", "0"), ("Alice", "a"), (more[0], "x")]))) == 3


@settings(max_examples=100, derandomize=True)
@given(st.lists(st.text(max_size=60), max_size=8), st.randoms(use_true_random=False))
def test_ids_are_unique_safe_and_independent_of_order(titles: list[str], random: object) -> None:
    titled = [(title, f"{title} {k}") for k, title in enumerate(titles)]
    ids = dict(zip(titled, identify(titled), strict=True))
    assert len({unicodedata.normalize("NFKC", name.casefold()) for name in ids.values()}) == len(titles)
    for name in ids.values():
        assert 0 < len(name.encode()) <= 200 and name[0] not in "-_"
        assert all(char.isalnum() or char in "-_" for char in name)
    random.shuffle(titled)  # type: ignore[attr-defined]
    assert dict(zip(titled, identify(titled), strict=True)) == ids


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
    """A stream that does not know its position, so that zipfile writes sizes after the content (data descriptors)."""

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
    assert read(content, tmp_path) == FILES and list(tmp_path.iterdir()) == []


def test_zip64_comments_old_names_and_long_ones_are_read(tmp_path: Path) -> None:
    assert read(handing_in.zip64_bytes(b"module.cpp", b"int a;"), tmp_path) == {"module.cpp": b"int a;"}
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


@pytest.mark.parametrize("name", [
    b"../x", b"a/../../x", b"/etc/passwd", b"\\\\server\\share", b"..\\..\\x", b"C:\\x", b"c:x", b"a/b/..",
    b"module.cpp\0.txt", b"/", b"..", b"n" * 1025, b"d/" * 33 + b"x",
])  # fmt: skip
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
    # The block header, from byte 12: its size, flags, filter, size of the filter's properties, dictionary size.
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
        zip_bytes(Entry(b"a"), Entry(b"b"), listing_lie=-10), handing_in.zip64_bytes(b"a", b"x", listing_bytes=1 << 63),
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
    "overlap": [zip_bytes(Entry(b"a"), Entry(b"b", offset=0)), handing_in.quoted_overlap(7, bytes(MIB // 8))],
    "unpacks to more than": [handing_in.quoted_overlap(40, bytes(MIB // 8))],
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
    assert (shown("caf\udce9"), shown("\ud800")) == ("caf\ufffd", "?") and len(shown("x" * 500)) == 80
