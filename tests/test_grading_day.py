"""What a class must not lose or take for granted on the day of grading: points by hand, times of submission, and what
it was graded with."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import forgery
import pytest
from conftest import ROOT
from handing_in import SOURCE, put, zipped
from test_classroom import ACTING, Class, acting, grader

from grader.base.errors import KitError, UsageError
from grader.staff.classroom import ledger, running, times
from grader.submission import find, find_one
from grader.submission.archive import opening
from grader.submission.ids import no_such_submission
from grader.submission.moments import moment

__all__ = ["acting"]

LATE = """
late:
  due: 2026-11-14T23:59:00-08:00
  per_day: {points: 5}
"""


def totals(graded: Class) -> dict[str, str]:
    return {name: row["total"] for name, row in graded.grades().items()}


# ---- points by hand


def test_points_by_hand_stay_in_every_later_report(acting: Class, tmp_path: Path) -> None:
    acting.add("ada", "wrong")
    acting.add("bob")
    table = tmp_path / "points.csv"
    table.write_text("id,part1,comment\nada,7.5,a good idea\n")
    code, said = acting.run(manual=str(table))
    assert code == 0 and totals(acting) == {"ada": "7.5", "bob": "30"}, said
    told = grader("report", acting.out)
    assert told.returncode == 0 and "LOWER" not in told.stdout
    assert totals(acting)["ada"] == "7.5"
    code, said = acting.run()
    assert code == 0 and totals(acting)["ada"] == "7.5", said
    shown = grader("show", acting.out, "ada")
    assert "by hand (0 by the grader" in shown.stdout and "total: 7.5 of 30" in shown.stdout
    assert f"points by hand: {table}" in shown.stdout

    table.write_text("id,part1\nada,5\n")
    told = grader("report", acting.out)
    assert "1 totals are LOWER than in the report of" in told.stdout and "ada 7.5 -> 5" in told.stdout
    table.rename(tmp_path / "moved.csv")
    for command in (["report", acting.out], ["show", acting.out, "ada"]):
        told = grader(*command)
        assert told.returncode == 2 and f"came from {table}, which is not there" in told.stderr
    assert totals(acting)["ada"] == "5", "a report that was refused has written something"

    told = grader("report", acting.out, "--no-manual")
    assert "ada 5 -> 0" in told.stdout and "from no table now" in told.stdout
    assert grader("report", acting.out).stdout.count("LOWER") == 0
    told = grader("report", acting.out, "--manual", tmp_path / "moved.csv")
    assert told.returncode == 0 and totals(acting)["ada"] == "5"


def test_a_table_in_the_folder_moves_with_it(acting: Class, tmp_path: Path) -> None:
    acting.add("ada", "wrong")
    code, said = acting.run()
    assert code == 0, said
    (acting.out / "manual.csv").write_text("id,part1\nada,4\n")
    assert grader("report", acting.out).returncode == 0
    acting.out = acting.out.rename(tmp_path / "elsewhere")
    told = grader("report", acting.out)
    assert told.returncode == 0 and totals(acting)["ada"] == "4", told.stderr


def test_a_table_by_a_pipe_cannot_be_remembered_and_is_missed(acting: Class, tmp_path: Path) -> None:
    acting.add("ada", "wrong")
    code, said = acting.run()
    assert code == 0, said
    (tmp_path / "manual.csv").symlink_to(put(tmp_path, {"t.csv": b"id,part1\nada,4\n"}) / "t.csv")
    told = grader("report", acting.out, "--manual", tmp_path / "manual.csv")
    assert told.returncode == 0 and totals(acting)["ada"] == "4", told.stderr
    assert ledger.read(acting.out).manual == str(tmp_path / "t.csv")


# ---- times


def with_due_date(graded: Class) -> None:
    graded.config.write_text(graded.config.read_text() + LATE)


def test_submissions_without_a_time_are_counted_and_a_table_gives_them_one(
    acting: Class, tmp_path: Path
) -> None:
    with_due_date(acting)
    for name in ("ada", "bob", "eve"):
        acting.add(name)
    code, said = acting.run()
    assert code == 0, said
    assert "3 of 3 submissions carry no time" in said and "ada, bob, eve" in said and "--submitted" in said
    assert said.count("carry no time") == 1
    assert "3 of 3 submissions carry no time" in grader("report", acting.out).stdout

    table = tmp_path / "times.csv"
    # Without a zone it is the due date's: bob is a minute late, ada in time to the second.
    table.write_text("id,time,who\nada,2026-11-14 23:59:00,A\nbob,2026-11-15T08:00:00Z,B\n")
    code, said = acting.run(submitted=str(table))
    assert code == 0 and len(acting.graded()) == 3, "a time puts no verdict out of date"
    assert "1 of 3 submissions carry no time" in said and "eve" in said
    assert totals(acting) == {"ada": "30", "bob": "25", "eve": "30"}
    assert "1 totals are LOWER" in said and "bob 30 -> 25" in said
    code, said = acting.run()
    assert code == 0 and totals(acting)["bob"] == "25", "the table of times is remembered"
    shown = grader("show", acting.out, "bob")
    assert "1 late day, -5 points" in shown.stdout and "total: 25 of 30" in shown.stdout
    table.unlink()
    code, said = acting.run()
    assert code != 0 and "times of submission came from" in said and str(table) in said


def test_file_times_count_where_they_are_asked_for(acting: Class) -> None:
    with_due_date(acting)
    for name in ("ada", "bob"):
        acting.add(name)
    put(acting.folder, {"zip.zip": zipped({"module.cpp": b"// slow\n"})})
    late = datetime(2026, 11, 15, 12, tzinfo=timezone.utc).timestamp()
    in_time = datetime(2026, 11, 14, 12, tzinfo=timezone.utc).timestamp()
    for path, at in (("ada/module.cpp", in_time), ("bob/module.cpp", late), ("zip.zip", late)):
        os.utime(acting.folder / path, (at, at))
    code, said = acting.run(file_times=True)
    assert code == 0 and "carry no time" not in said, said
    assert totals(acting) == {"ada": "30", "bob": "25", "zip": "13"}
    code, said = acting.run()
    assert code == 0 and totals(acting)["bob"] == "25", said


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id,when\nada,2026-11-14\n", "columns 'id' and 'time'"),
        ("id,time,id\n", "stands there twice"),
        ("", "should name the columns"),
        ("id,time\nadda,2026-11-14 10:00\n", "no submission is called 'adda'; did you mean 'ada'?"),
        ("id,time\nnobody,2026-11-14 10:00\n", "no submission is called 'nobody'"),
        ("id,time\nada,yesterday\n", "a time should be like"),
        ("id,time\nada,0001-01-01 00:00+14:00\n", "a time should be like"),
        ("id,time\nada,2026-11-14 10:00\n", "a time should be like"),
        ("id,time\nada,2026-11-14 10:00Z\nada,2026-11-14 10:00Z\n", "twice"),
        ("id,time\nada\n", "1 cells under 2 columns"),
        ("id,time\nada,\x1b[2J\n", "a time should be like"),
    ],
)
def test_a_table_of_times_is_read_with_care(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UsageError) as caught:
        times.read_times(tmp_path / "t.csv", ["ada", "bob"], None)
    assert str(caught.value).startswith(f"{tmp_path / 't.csv'}:") and reason in str(caught.value)


def test_moments_as_they_are_written_about() -> None:
    utc = datetime(2023, 11, 2, 7, 10, 22, 340000, tzinfo=timezone.utc)
    for text in (
        "2023-11-02 07:10:22.340000000 Z",
        "2023-11-02T07:10:22.34Z",
        "2023-11-02 00:10:22.34 -0700",
        "2023-11-02t08:10:22.34+01:00",
        "2023-11-2 7:10:22.34 UTC",
    ):
        assert moment(text) == utc, text
    assert moment("2023-11-02 07:10") == datetime(2023, 11, 2, 7, 10)
    for text in (
        "", "2023-11-02", "2023-13-02 07:10", "0001-01-01 00:00 +14:00", "9999-12-31 23:59 -14:00",
        "2023-11-02 07:10+99:00", "2023-11-02 07:10 " * 9999, "٢٠٢٣-11-02 07:10",
    ):  # fmt: skip
        assert moment(text) is None, text


# ---- what a class was graded with


def test_a_resumed_run_goes_on_with_what_the_first_one_asked_for(acting: Class, tmp_path: Path) -> None:
    for name in ("ada", "bob"):
        acting.add(name)
    code, said = acting.run(seed=7, timing=False)
    assert code == 0, said
    acting.add("eve")
    bare = {"config": None, "tier": None}
    code, said = acting.run(**bare)
    assert code == 0 and "sandbox tier D, seed 7" in said, said
    assert Counter(acting.graded()) == {"ada": 1, "bob": 1, "eve": 1}
    runs = ledger.read(acting.out).runs
    assert (runs[-1].config, runs[-1].seed, runs[-1].timing) == (str(acting.config), 7, False)
    assert runs[-1].assignment_fingerprint == runs[0].assignment_fingerprint

    other = tmp_path / "other.yaml"
    other.write_text(acting.config.read_text().replace("points: 10", "points: 11"))
    for change in ({"config": str(other)}, {**bare, "seed": 8}):
        code, said = acting.run(**change)
        assert code != 0 and "UsageError" in said and "add --regrade" in said and len(acting.graded()) == 3
    code, said = acting.run(config=str(other), regrade=True)
    assert code == 0 and "3 are graded again (assignment changed, settings changed)" in said
    assert ledger.read(acting.out).runs[-1].timing

    # Moved, it is the same; gone, it is told.
    moved = other.rename(tmp_path / "moved.yaml")
    code, said = acting.run(**bare)
    assert code != 0 and f"was graded with {other}, which is not there any more" in said
    code, said = acting.run(config=str(moved))
    assert code == 0 and len(acting.graded()) == 6, said


def test_regrading_is_for_a_run_that_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    told = grader("run", tmp_path / "class", "--out", tmp_path / "out", "--regrade")
    assert told.returncode == 2 and "--resume" in told.stderr


# ---- everybody has an entry


def test_what_cannot_be_read_has_a_result_and_a_total(acting: Class) -> None:
    acting.add("ada")
    put(acting.folder, {"broken.zip": b"PK\3\4 no more", "empty/notes.txt": b"hi"})
    code, said = acting.run()
    assert code == 0 and "2 could not be read" in said, said
    for name in ("broken", "empty"):
        result = json.loads((acting.out / name / ledger.RESULT).read_text())
        assert (result["submission"]["id"], result["points"], result["max_points"]) == (name, 0, 30)
        assert {part["diagnosis"]["code"] for part in result["parts"]} == {"unreadable"}
        row = acting.grades()[name]
        assert (row["total"], row["max_points"], bool(row["trouble"])) == ("0", "30", True)
        feedback = (acting.out / name / "feedback.txt").read_text()
        assert row["trouble"] in feedback
        shown = grader("show", acting.out, name)
        assert shown.returncode == 0 and "total: 0 of 30" in shown.stdout and row["trouble"] in shown.stdout
    (acting.out / "broken" / ledger.RESULT).unlink()
    code, said = acting.run()
    assert code == 0 and (acting.out / "broken" / ledger.RESULT).exists()


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ('"eve\n12 of 12 graded\x1b[2K",2026-01-01\n', "no submission is called 'eve 12 of 12"),
        ('"a\nb",2026-01-01T00:00:00Z\n"a\nb",2026-01-01T00:00:00Z\n', "'a b' stands there twice"),
        ('ada,"2\n12 of 12"\n', "not '2 12 of 12'"),
    ],
)
def test_a_table_of_times_prints_no_line_of_its_own(rows: str, told: str, tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    table.write_text(f"id,time\n{rows}")
    with pytest.raises(UsageError) as caught:
        times.read_times(table, ["ada", "a\nb"], None)
    assert told in str(caught.value) and not re.search("[\x00-\x1f]", str(caught.value))


def test_only_names_that_are_near_are_offered() -> None:
    assert no_such_submission("nobody", ["good", "bad"]) == "no submission is called 'nobody'"
    assert no_such_submission("god", ["good", "bad"]) == "no submission is called 'god'; did you mean 'good'?"
    assert len(no_such_submission("x" * 1_000_000, ["x" * 40] * 300)) < 200


def test_a_student_named_lock_is_known_by_the_id_that_the_reports_use(acting: Class) -> None:
    for name in ("lock", "lock-2", "ada"):
        acting.add(name)
    code, said = acting.run()
    assert code == 0 and set(acting.grades()) == {"lock_", "lock-2", "ada"}, said
    code, said = acting.run(only=["lock_"], again=True)
    assert code == 0 and Counter(acting.graded())["lock_"] == 2, said
    code, said = acting.run(only=["lock"])
    assert code != 0 and "no submission is called 'lock'; did you mean" in said


# ---- a small disk for temporary files


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full is Linux's")
def test_a_full_disk_costs_one_archive_and_nobody_else(
    acting: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting.add("ada")
    packed = {"big.tar.gz": forgery.tar_bytes({"module.cpp": SOURCE}, "w:gz")}
    put(acting.folder, {**packed, "zoe.zip": zipped({"module.cpp": SOURCE})})
    for name, value in {"ACTING_STATE": str(acting.state), "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    wanted = running.RunOptions(
        acting.folder, acting.out, workers=1, config=acting.config, resume=True, trust=True, tier="D"
    )

    def full(**options: Any) -> Any:
        return open("/dev/full", "w+b", buffering=options.get("buffering", -1))

    with monkeypatch.context() as small:
        small.setattr(opening.tempfile, "TemporaryFile", full)
        with pytest.raises(KitError, match=r"cannot write to .*No space left.*make room"):
            find_one(acting.folder / "big.tar.gz", "module.cpp", acting.state / "one")
        found = {item.id: item for item in find(acting.folder, "module.cpp", acting.state / "all")}
    assert {name: item.fault for name, item in found.items()} == {"ada": "", "big": "kit", "zoe": ""}

    with monkeypatch.context() as small:
        small.setattr("grader.submission.nodes.open_archive", opened_with(full, small))
        assert running.run(wanted, io.StringIO(), [sys.executable, str(ACTING)]) == 3
    assert totals(acting) == {"ada": "30", "big": "", "zoe": "30"}
    assert "the kit's fault" in acting.grades()["big"]["trouble"]
    said = io.StringIO()
    assert running.run(wanted, said, [sys.executable, str(ACTING)]) == 0
    assert totals(acting)["big"] == "30" and "the kit failed last time" in said.getvalue()


def opened_with(temporary_file: Any, patch: pytest.MonkeyPatch) -> Any:
    """`open_archive` with this in place of a temporary file, which others go on using."""

    def opened(*arguments: Any) -> Any:
        with patch.context() as inner:
            inner.setattr(opening.tempfile, "TemporaryFile", temporary_file)
            return opening.open_archive(*arguments)

    return opened
