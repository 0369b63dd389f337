"""What is not the export of this class is refused in one line, and nothing is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from platform_exports import TITLE, canvas_with, graded_class, moodle_with, report

from grader.base.errors import UsageError


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graded_class(tmp_path_factory.mktemp("gradebooks"))


REFUSED: dict[str, tuple[str, str, str]] = {
    "another course": (
        "canvas",
        canvas_with("example.edu", "other.edu")
        .replace("login", "x")
        .replace(",90", ",80")
        .replace(",5", ",6"),
        "none of the 25 submissions is of one of its 25 students: is it the export of another course",
    ),
    "another course's worksheet": (
        "moodle",
        moodle_with("example.edu", "other.edu")
        .replace("Participant 7", "Participant 8")
        .replace(",login", ",x")
        .replace(",90", ",80"),
        "is it the export of another course",
    ),
    "one id": (
        "canvas",
        canvas_with("9003", "9001"),
        ":6: two students with one id: '9001' stands in .*:4 too",
    ),
    "one address": (
        "moodle",
        moodle_with("Student4@", "Student5@"),
        ":7: two students with one id: 'Student5@exam",
    ),
    "no column": ("canvas", canvas_with("SIS Login ID", "Login"), ":1: there is no column 'SIS Login ID'"),
    "no column of Moodle's": (
        "moodle",
        moodle_with("Feedback comments", "Remarks"),
        ":1: there is no column 'Feedback",
    ),
    "a column too many": (
        "moodle",
        moodle_with("ID number", "My notes"),
        ":1: the column 'My notes' is none of Moodle",
    ),
    "a column twice": (
        "canvas",
        canvas_with("Section", "ID"),
        ":1: the column 'ID' stands there twice|no column 'Sec",
    ),
    "a column of Moodle's twice": (
        "moodle",
        moodle_with("ID number", "Group,Group"),
        ":1: the column 'Group' stands there twice",
    ),
    "closed": (
        "canvas",
        canvas_with(",100,", ",100 (read only),"),
        ":2: 'Attention .* is the assignment closed",
    ),
    "a closed worksheet": (
        "moodle",
        moodle_with(",Yes,", ",No,"),
        "no grade of it can be changed: is the assign",
    ),
    "no such assignment": (
        "canvas",
        canvas_with("Attention kernels", "Quiz"),
        ":1: no column is called 'Attention",
    ),
    "two such assignments": (
        "canvas",
        canvas_with("Final Score", f"{TITLE} (4712)"),
        ":1: several columns are called .*choose one with --column",
    ),
    "another maximum": (
        "canvas",
        canvas_with(",100,", ",50,"),
        ":2: the assignment is out of 50 points there and out",
    ),
    "another maximum in Moodle": (
        "moodle",
        moodle_with("100.00", "10.00", 1),
        ":2: the assignment is out of 10 poin",
    ),
    "no points possible": (
        "canvas",
        canvas_with("Points Possible", "x"),
        "there is no row 'Points Possible'",
    ),
    "a short row": ("canvas", canvas_with("A,,0", "A", 1), ":3: 5 cells under 7 columns"),
    "semicolons": ("canvas", canvas_with(",", ";"), "should be separated by commas"),
    "nothing": ("moodle", "", "nothing is in it"),
    "an open quotation": (
        "canvas",
        canvas_with('"Last3', '"""Last3').replace('First",503', "First,503"),
        "CSV",
    ),
    "an identifier": (
        "moodle",
        moodle_with("Participant 701", "701"),
        ":3: an identifier is like 'Participant 123'",
    ),
    "not UTF-8": ("canvas", "\udcff", "not UTF-8 text"),
    "one submission of two": (
        "canvas",
        canvas_with(",,STUDENT0@", ",9001,STUDENT0@").replace("501,9001", "501,"),
        "is two submissions",
    ),
}


def written(out: Path) -> dict[Path, int]:
    """When each file was written, but for the lock, which whoever holds the folder writes its name into."""
    return {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != "lock"}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_this_classs_export_is_refused_in_one_line(
    case: str, graded: Path, tmp_path: Path
) -> None:
    platform, text, told = REFUSED[case]
    export, before = tmp_path / "export.csv", written(graded)
    export.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as refused:
        report(graded, **{platform: export})
    assert re.search(told, str(refused.value)) and "\n" not in str(refused.value)
    assert written(graded) == before, "something was written"
