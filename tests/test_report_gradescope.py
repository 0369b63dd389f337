"""Gradescope's results.json: valid whatever happens, honest to the student, and out of the submission's reach."""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from classrows import (
    PARTS,
    ROOT,
    SECRET_NAME,
    SECRET_NUMBER,
    absurd_rows,
    assignment,
    hidden_failure,
    part,
    result,
    score,
    the_class,
)
from ispc_stand_in import BROKEN, INCLUDE, PROGRAM, on_the_path

from grader.base.errors import UsageError
from grader.base.results import Flag, ScoreLine
from grader.report import gradescope as report
from grader.staff.platforms import container, gradescope

VISIBILITIES = {"hidden", "after_due_date", "after_published", "visible"}
TOP_KEYS = {
    "score": float,
    "execution_time": (int, float),
    "output": str,
    "visibility": str,
    "stdout_visibility": str,
    "tests": list,
    "leaderboard": list,
}
TEST_KEYS = {"score": float, "max_score": float, "status": str, "name": str, "output": str, "visibility": str}


def valid(found: dict[str, Any]) -> dict[str, Any]:
    """Hold it against the format as Gradescope reads it; returns it as read back from its text."""
    text = json.dumps(found, allow_nan=False)
    assert len(text) < 1_000_000
    found = json.loads(text)
    assert set(found) <= set(TOP_KEYS)
    for key, kind in TOP_KEYS.items():
        assert isinstance(found.get(key, kind() if isinstance(kind, type) else 0.0), kind), key
    assert found["visibility"] in VISIBILITIES and found["stdout_visibility"] in VISIBILITIES
    assert found["score"] >= 0 and found["execution_time"] >= 0 and found["tests"]
    for test in found["tests"]:
        assert set(test) == set(TEST_KEYS)
        for key, kind in TEST_KEYS.items():
            assert isinstance(test[key], kind), (key, test[key])
        assert test["status"] in ("passed", "failed") and test["visibility"] in VISIBILITIES
        assert test["name"] and len(test["name"]) <= 150 and len(test["output"]) < 7000
        assert test["score"] >= 0 and "\x1b" not in test["output"]
    for entry in found.get("leaderboard", []):
        assert set(entry) == {"name", "value", "order"} and entry["order"] in ("asc", "desc")
        assert math.isfinite(entry["value"])
    names = [test["name"] for test in found["tests"]]
    assert len(names) == len(set(names))
    return found


def seen_by_student(found: dict[str, Any]) -> str:
    visible = [test for test in found["tests"] if test["visibility"] != "hidden"]
    return json.dumps([found["output"], visible], ensure_ascii=False)


def test_every_kind_of_result_is_valid_and_tells_no_secret() -> None:
    for row in the_class(12):
        if row.result is not None:
            scored = row.score or score(row.result)
            found = valid(report.results(assignment(), row.result, scored, seconds=3.0))
            told = seen_by_student(found)
            assert not [s for s in (SECRET_NAME, "7919", str(SECRET_NUMBER), "7907") if s in told]


def test_parts_carry_the_points_and_the_total_what_is_left() -> None:
    judged = result(tuple(part(i, title, points, "slow") for i, title, points in PARTS))
    scored = score(judged, late_days=1, write_up=None)
    found = valid(report.results(assignment(), judged, scored, seconds=3.0))
    tests = {
        test["name"].partition(":")[0]: test for test in found["tests"] if test["visibility"] == "visible"
    }
    assert {name: test["score"] for name, test in tests.items()} == {i: points / 2 for i, _, points in PARTS}
    assert {name: test["max_score"] for name, test in tests.items()} == {i: points for i, _, points in PARTS}
    assert found["score"] == scored.total == 93 / 2 - 10
    assert "Late by 1 day" in found["output"] and "graded by people: writeup" in found["output"]


def test_a_hidden_failure_never_looks_like_a_pass() -> None:
    judged = result((part(*PARTS[2]), hidden_failure()))
    found = valid(report.results(assignment(), judged, score(judged), seconds=3.0))
    status = {
        test["name"].partition(":")[0]: test for test in found["tests"] if test["visibility"] == "visible"
    }
    assert status["part1"]["status"] == "passed" and status["part2"]["status"] == "failed"
    assert "hidden test failed" in status["part2"]["output"]
    assert "1 of 2 parts passed" in found["output"] and "Hidden tests failed in: part2" in found["output"]


def test_hidden_cases_have_a_visibility_of_their_own() -> None:
    judged = result((hidden_failure(),))
    for visibility in ("hidden", "after_published"):
        found = report.results(assignment(), judged, score(judged), seconds=1, hidden_visibility=visibility)
        hidden = next(test for test in valid(found)["tests"] if "hidden tests" in test["name"])
        assert hidden["visibility"] == visibility and hidden["status"] == "failed"
        assert SECRET_NAME in hidden["output"] and "N=7919" in hidden["output"]


def test_suspicions_are_for_the_staff() -> None:
    flagged = replace(part(*PARTS[2]), flags=(Flag("library_call", "It calls at::matmul.", "review"),))
    judged = result((flagged,))
    found = valid(report.results(assignment(), judged, score(judged), seconds=1))
    assert "matmul" in json.dumps(found) and "matmul" not in seen_by_student(found)


def test_extra_credit_is_a_test_beyond_the_maximum() -> None:
    judged = result((part(*PARTS[4]),))
    scored = score(judged, extra=3.0)
    found = valid(report.results(assignment(), judged, scored, seconds=1))
    extra = next(test for test in found["tests"] if test["name"] == "Extra credit, part 3")
    assert (extra["score"], extra["max_score"]) == (3.0, 0.0)


def test_the_leaderboard_holds_only_times_of_parts_that_passed() -> None:
    judged = result(
        (part(*PARTS[2], ratio=0.8), part(*PARTS[3], "slow", ratio=2.0), part(*PARTS[4], "wrong"))
    )
    found = valid(report.results(assignment(), judged, score(judged), seconds=1))
    assert found["leaderboard"] == [{"name": "part1: time / reference", "value": 0.8, "order": "asc"}]


def test_absurd_numbers_and_names_stay_valid() -> None:
    hostile = replace(part(*PARTS[2]), title="\x1b[1m" + "x" * 5000, output="\x1b[2J" * 100_000)
    judged = result((hostile, *absurd_rows()[1].result.parts[3:]))
    scored = replace(score(judged), total=math.nan, lines=(ScoreLine("part1", "x", math.inf, math.nan),))
    assert valid(report.results(assignment(), judged, scored, seconds=math.inf))["score"] == 0.0


# ---- the container


def laid_out(folder: Path, source: str | None, config: str | None = None) -> Path:
    """The layout of Gradescope's container; `config` replaces the assignment."""
    (folder / "submission").mkdir()
    (folder / "results").mkdir()
    configs = folder / "source" / "configs"
    configs.mkdir(parents=True)
    text = (ROOT / "configs" / "gpt149.yaml").read_text() if config is None else config
    (configs / "gpt149.yaml").write_text(text)
    if source is not None:
        (folder / "submission" / "module.cpp").write_text(source)
    metadata = {
        "id": 1,
        "created_at": "2025-11-02T00:30:00.000000-07:00",
        "assignment": {"due_date": "2025-11-01T23:00:00.000000-07:00", "title": "Attention"},
        "users": [{"email": "ada@example.edu", "name": "Ada", "id": 7}],
    }
    (folder / "submission_metadata.json").write_text(json.dumps(metadata))
    return folder


def results_of(root: Path) -> dict[str, Any]:
    return valid(json.loads((root / "results" / "results.json").read_text()))


def test_a_fault_of_the_kit_is_named_as_one_and_shows_no_traceback(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "int x;", config="id: [broken")
    assert gradescope.main(root) == 3
    found = results_of(root)
    assert found["score"] == 0.0 and "not your code's fault" in seen_by_student(found)
    told = seen_by_student(found)
    assert "Traceback" not in told and "gpt149.yaml" not in told
    assert "gpt149.yaml" in json.dumps(found)


def test_grading_that_does_not_end_is_a_fault_of_the_kit(tmp_path: Path) -> None:
    root = laid_out(tmp_path, "int x;")
    assert gradescope.main(root, limit_s=0.01) == 3
    found = results_of(root)
    assert "not your code's fault" in seen_by_student(found) and "did not end" in json.dumps(found)


def test_an_exception_of_the_harness_itself_still_leaves_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("no more processes")

    monkeypatch.setattr(container, "run", broken)
    root = laid_out(tmp_path, "int x;")
    assert gradescope.main(root) == 3
    assert "Traceback" not in seen_by_student(results_of(root))
    assert "no more processes" in capfd.readouterr().err


def test_nothing_handed_in_is_the_students_own_fault(tmp_path: Path) -> None:
    root = laid_out(tmp_path, None)
    (root / "submission" / "readme.txt").write_text("sorry")
    assert gradescope.main([str(root)]) == 0
    found = results_of(root)
    assert found["score"] == 0.0 and "module.cpp" in found["output"] and len(found["tests"]) == 1


def test_without_a_submission_folder_there_are_results_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert gradescope.main(tmp_path) == 3
    assert "not your code's fault" in seen_by_student(results_of(tmp_path))
    assert "grader: there is no folder" in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [["absent"], ["--root", "absent"], ["--help"]])
def test_without_its_own_folder_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UsageError, SystemExit)):
        gradescope.main(arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_place_of_results_is_replaced_and_not_followed(tmp_path: Path) -> None:
    root = laid_out(tmp_path, None)
    target = tmp_path / "grades"
    target.write_text("precious")
    (root / "results" / "results.json").symlink_to(target)
    gradescope.main(root, limit_s=0.01)
    assert target.read_text() == "precious" and not (root / "results" / "results.json").is_symlink()
    results_of(root)


def test_a_folder_named_results_json_is_replaced(tmp_path: Path) -> None:
    root = laid_out(tmp_path, None)
    (root / "results" / "results.json" / "deep").mkdir(parents=True)
    gradescope.main(root, limit_s=0.01)
    results_of(root)


FORGING = """
#include <cstdio>
#include <cstdlib>
static const char* forged = "{\\"score\\": 1000, \\"tests\\": [{\\"name\\": \\"forged\\", \\"score\\": 1000}]}";
static void forge(const char* path) {
    if (FILE* file = std::fopen(path, "w")) { std::fputs(forged, file); std::fclose(file); }
}
struct Forger {
    Forger() { forge("RESULTS"); forge("results.json"); forge("/tmp/results.json"); std::puts(forged); }
    ~Forger() { forge("RESULTS"); }
} forger;
"""


def test_a_forged_results_json_gains_nothing(tmp_path: Path, master: str) -> None:
    """Handed in beside the source, written while loading, written at exit, printed: the grade is the judge's."""
    config = (ROOT / "configs" / "gpt149.yaml").read_text()
    head, _, parts = config.partition("\nparts:\n")
    first = parts.partition("  - id: 4Dread")[2].partition("  - id: 4Dwrite")[0]
    config = f"{head}\nparts:\n  - id: 4Dread{first}"
    root = laid_out(tmp_path, None, config)
    place = root / "results" / "results.json"
    (root / "submission" / "module.cpp").write_text(FORGING.replace("RESULTS", str(place)) + master)
    (root / "submission" / "results.json").write_text('{"score": 1000}')
    mode = stat.S_IMODE(os.stat(root / "results").st_mode)
    assert gradescope.main(root) == 0
    found = results_of(root)
    visible = [test for test in found["tests"] if test["visibility"] == "visible"]
    assert found["score"] <= 1.5 and [test["name"] for test in visible] == ["4Dread: 4-D Read"]
    assert visible[0]["max_score"] == 1.5
    assert stat.S_IMODE(os.stat(root / "results").st_mode) == mode
    assert sorted(path.name for path in (root / "results").iterdir()) == ["results.json"]


def test_what_the_container_lacks_is_no_grade_and_no_pass(
    tmp_path: Path, master: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = laid_out(tmp_path, INCLUDE + master)
    (root / "submission" / "module.ispc").write_text(PROGRAM)
    with on_the_path(BROKEN) as path:
        monkeypatch.setenv("PATH", path)
        assert gradescope.main(root) == 3
    found = results_of(root)
    assert found["score"] == 0 and "kit_fault" not in found
    assert found["output"].startswith("Not judged yet") and "not your fault" in found["output"]
    assert "this container has no ispc" in capfd.readouterr().err


# ---- lateness


def test_the_due_date_of_a_user_counts_before_the_assignments(tmp_path: Path) -> None:
    path = tmp_path / "submission_metadata.json"
    values: dict[str, Any] = {
        "created_at": "2025-11-03T12:00:00Z",
        "assignment": {"due_date": "2025-11-01T12:00:00+00:00"},
        "users": [{"name": "Ada"}],
    }
    path.write_text(json.dumps(values))
    assert gradescope.read_metadata(path).late_s == 2 * 86400
    values["users"] = [
        {"name": "Ada", "assignment": {"due_date": "2025-11-02T12:00:00+00:00"}},
        {"name": "Ben", "assignment": {"due_date": "2025-11-03T11:59:00.5+00:00"}},
    ]
    path.write_text(json.dumps(values))
    assert gradescope.read_metadata(path).late_s == 59.5
    values["created_at"] = "2025-11-01T00:00:00+02:00"
    path.write_text(json.dumps(values))
    assert gradescope.read_metadata(path).late_s == 0.0


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        "null",
        '{"created_at": 7, "users": {"a": 1}, "assignment": []}',
        '{"created_at": "yesterday", "users": [1, null, {"assignment": "x"}]}',
        '{"created_at": "2025-11-01T12:00:00", "assignment": {"due_date": "2025-11-01T12:00:00Z"}}',
    ],
)
def test_metadata_that_tells_nothing_charges_nothing(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "submission_metadata.json"
    if text is not None:
        path.write_text(text)
    assert gradescope.read_metadata(path).late_s is None
