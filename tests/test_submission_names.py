"""Whose a submission is: what course sites tell, and ids that are readable, unique and the same in each run."""

import os
import unicodedata
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import python, refused
from handing_in import SOURCE, found, put, sources, zipped
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.core.harmless import one_line
from grader.submission import find
from grader.submission.exports import canvas_name, gradescope_entries
from grader.submission.ids import identify, safe_name


def test_a_gradescope_export(tmp_path: Path, scratch: Path) -> None:
    metadata = """---
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
    files = {
        **{f"submission_{k}/module.cpp": b"%d" % (k % 10) for k in (101, 103, 999)},
        "submission_metadata.yml": metadata.encode(), "submission_102/hw.zip": zipped({"module.cpp": b"2"}),
    }  # fmt: skip
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
        assert "does not hold it" in str(submissions["Lost_Soul_104"].error)
        assert submissions["submission_999"].error is None


UNREADABLE = (b"a: [", b"- a\n- b\n", b"\xff\xfe\0", b"a: 2023-99-99\n", b"", b"[" * 5000)


@pytest.mark.parametrize("content", UNREADABLE)
def test_gradescope_metadata_that_cannot_be_read(content: bytes, tmp_path: Path, scratch: Path) -> None:
    put(tmp_path, {"submission_metadata.yml": content, "submission_1/module.cpp": SOURCE})
    refused(r"submission_metadata\.yml", find, tmp_path, "module.cpp", scratch)


def test_yaml_that_names_itself_does_no_harm_and_its_scalars_are_texts() -> None:
    laughs = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for below, name in pairwise("abcdefghi"):
        laughs += f"{name}: &{name} [" + ", ".join([f"*{below}"] * 10) + "]\n"
    text = laughs + "s:\n  :submitters: [{':name': *i, ':email': {x: *i}}, *i, 3]\n  :created_at: *i\n"
    [entry] = gradescope_entries(text.encode(), "metadata")
    assert [person.name for person in entry.people] == [""] and entry.submitted_at is None
    laughs = "b0: &b0 {x: 1}\n"
    for below, k in pairwise(range(61)):
        laughs += f"b{k}: &b{k}\n  <<: [*b{below}, *b{below}]\n"
    text = laughs + f"s:\n  :submitters:\n  - :name: yes\n    :sid: {'9' * 5000}\n    :email: 2001-01-01\n"
    text += "  - &me\n    :name: 0x10\n  - *me\n  :created_at: 0001-01-01 00:00:00 +14:00\n"
    *_, entry = gradescope_entries(text.encode(), "metadata")
    named = [(person.name, person.email) for person in entry.people]
    assert named == [("yes", "2001-01-01"), ("0x10", ""), ("0x10", "")]
    assert len(entry.people[0].sid) <= 200 and entry.submitted_at is None
    group = "s:\n  :submitters: [" + "{name: x}, " * 10_000 + "]\n"
    assert len(gradescope_entries(group.encode(), "metadata")[0].people) <= 64


#: Reads contents that have the shape of no export, each of which has to be refused.
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
    """In a process of its own, which a stack that overflows would end."""
    ended = python("-c", STRANGE)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
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


def test_a_canvas_export_by_its_own_part_of_each_name(tmp_path: Path, scratch: Path) -> None:
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
        assert results.pop("poe_25") == "no module.cpp; it holds text.html"
        assert results.pop("tim_28") == "no module.cpp, but several archives, a.zip, b.zip: hand in one"
        people = ("doejane_12345", "roejohn_22", "lee_ann_23", "kim_24", "sam_26", "sam_27")
        assert results == dict(zip(people, (b"1", b"new", b"2", b"3", b"4", b"5"), strict=True))
        assert (scratch / "lee_ann_23/module.ispc").read_bytes() == b"i"
    late = found(tmp_path / "export", scratch)
    assert [name for name, submission in late.items() if submission.marked_late] == ["doejane_12345"]
    assert late["doejane_12345"].name == "doejane"
    assert [*found(tmp_path / "export/doejane_LATE_12345_67890_module-1.cpp", scratch)] == ["doejane_12345"]
    for name in ("module.cpp", "alice_smith.cpp", "_1_2_module.cpp", "a_" * 400 + "module.cpp"):
        assert canvas_name(name) is None
    sent = canvas_name("doejane_123_456_roejohn_LATE_1_2_module.cpp")
    found_in = (sent.person, sent.user, sent.late, sent.file)
    assert found_in == ("doejane", "123", False, "roejohn_LATE_1_2_module.cpp")


def test_names_become_ids_and_nobody_takes_another_s_place(tmp_path: Path, scratch: Path) -> None:
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
        # A joiner may stay, nothing that moves a cursor.
        assert submission.name == one_line(submission.name, 1000)
    again = {name: each.sha256 for name, each in found(tmp_path, scratch).items()}
    assert again == {name: each.sha256 for name, each in submissions.items()}
    assert safe_name("") == safe_name("..") == safe_name("\udcff") == "submission"
    one = dict(zip("ab", identify([("Alice", "a"), ("bob", "b")]), strict=True))
    more = identify([("alice", "0"), ("Alice", "a"), ("bob", "b"), (f"alice-{'0' * 6}", "x")])
    assert one == {"a": "Alice", "b": "bob"}
    assert more[2] == "bob" and not {"Alice", "alice"} & set(more)
    assert len(set(identify([("alice", "0"), ("Alice", "a"), (more[0], "x")]))) == 3


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.text(max_size=60), max_size=8), st.randoms(use_true_random=False))
def test_ids_are_unique_safe_and_know_no_order(titles: list[str], random: object) -> None:
    titled = [(title, f"{title} {k}") for k, title in enumerate(titles)]
    ids = dict(zip(titled, identify(titled), strict=True))
    assert len({unicodedata.normalize("NFKC", name.casefold()) for name in ids.values()}) == len(titles)
    for name in ids.values():
        assert 0 < len(name.encode()) <= 200 and name[0] not in "-_"
        assert all(char.isalnum() or char in "-_" for char in name)
    random.shuffle(titled)  # type: ignore[attr-defined]
    assert dict(zip(titled, identify(titled), strict=True)) == ids
