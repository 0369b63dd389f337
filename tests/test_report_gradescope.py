"""Gradescope's results.json: always valid, honest to the student, and out of the submission's reach."""

import json
import math
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from classrows import PARTS, SECRET_NAME, absurd_rows, assignment, hidden_failure, part, result, score
from conftest import COURSE, write_files
from ispc_stand_in import BROKEN, INCLUDE, PROGRAM, on_the_path
from platform_schemas import FORGING, require_valid

from grader.core.errors import UsageError
from grader.core.results import Flag, Score, ScoreLine, SubmissionResult
from grader.report import gradescope as report
from grader.staff.platforms import container, gradescope


def shown(judged: SubmissionResult, scored: Score | None = None, **options: str) -> dict[str, Any]:
    scored = scored or score(judged)
    return require_valid("gradescope", report.results(assignment(), judged, scored, seconds=3.0, **options))


def visible(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    tests = [test for test in found["tests"] if test["visibility"] == "visible"]
    return {test["name"].partition(":")[0]: test for test in tests}


def seen_by_student(found: dict[str, Any]) -> str:
    tests = [test for test in found["tests"] if test["visibility"] != "hidden"]
    return json.dumps([found["output"], tests], ensure_ascii=False)


def test_parts_carry_the_points_and_the_total_what_is_left() -> None:
    judged = result(tuple(part(i, title, points, "slow") for i, title, points in PARTS))
    scored = score(judged, late_days=1, write_up=None)
    found = shown(judged, scored)
    tests = [(name, test["score"], test["max_score"]) for name, test in visible(found).items()]
    assert tests == [(name, points / 2, points) for name, _, points in PARTS]
    assert found["score"] == scored.total == 93 / 2 - 10
    assert "Late by 1 day" in found["output"] and "graded by people: writeup" in found["output"]


def test_a_hidden_failure_never_looks_like_a_pass() -> None:
    found = shown(result((part(*PARTS[2]), hidden_failure())))
    tests = visible(found)
    assert tests["part1"]["status"] == "passed" and tests["part2"]["status"] == "failed"
    assert "hidden test failed" in tests["part2"]["output"]
    assert "1 of 2 parts passed" in found["output"] and "Hidden tests failed in: part2" in found["output"]


@pytest.mark.parametrize("visibility", ["hidden", "after_published"])
def test_hidden_cases_have_a_visibility_of_their_own(visibility: str) -> None:
    found = shown(result((hidden_failure(),)), hidden_visibility=visibility)
    hidden = next(test for test in found["tests"] if "hidden tests" in test["name"])
    assert hidden["visibility"] == visibility and hidden["status"] == "failed"
    assert SECRET_NAME in hidden["output"] and "N=7919" in hidden["output"]


def test_suspicions_are_for_the_staff_and_no_flagged_part_is_on_the_leaderboard() -> None:
    flagged = replace(part(*PARTS[2]), flags=(Flag("library_call", "It calls at::matmul.", "review"),))
    judged = result((flagged,))
    found = shown(judged, score(judged, extra=3.0))
    assert "matmul" in json.dumps(found) and "matmul" not in seen_by_student(found)
    extra = visible(found)["Extra credit, part 3"]
    assert (extra["score"], extra["max_score"]) == (3.0, 0.0)
    suspect = Flag("odd", "look", "review")
    right, other = part(*PARTS[2], ratio=0.8), part(*PARTS[3], ratio=0.5)
    rest = (part(*PARTS[4], "slow", ratio=2.0), part(*PARTS[5], "wrong"))
    both = shown(result((right, other, *rest)))["leaderboard"]
    assert [entry["name"].partition(":")[0] for entry in both] == ["part1", "part2"]
    judged = result((right, replace(other, flags=(suspect,)), *rest))
    assert shown(judged)["leaderboard"] == [{"name": "part1: time / reference", "value": 0.8, "order": "asc"}]
    assert not shown(replace(judged, flags=(Flag("whole", "file", "review"),))).get("leaderboard")


def test_absurd_numbers_and_names_stay_valid() -> None:
    hostile = replace(part(*PARTS[2]), title="\x1b[1m" + "x" * 5000, output="\x1b[2J" * 100_000)
    judged = result((hostile, *absurd_rows()[1].result.parts[3:]))
    scored = replace(score(judged), total=math.nan, lines=(ScoreLine("part1", "x", math.inf, math.nan),))
    found = report.results(assignment(), judged, scored, seconds=math.inf)
    assert require_valid("gradescope", found)["score"] == 0.0


CONFIG = COURSE.read_text()


def laid_out(folder: Path, source: str | None, config: str | None = None) -> Path:
    for name in ("submission", "results"):
        (folder / name).mkdir(parents=True)
    due = {"due_date": "2025-11-01T23:00:00.000000-07:00", "title": "Attention"}
    users = [{"email": "ada@example.edu", "name": "Ada", "id": 7}]
    metadata = {"id": 1, "created_at": "2025-11-02T00:30:00.000000-07:00", "assignment": due, "users": users}
    files = {"source/configs/gpt149.yaml": config or CONFIG, "submission_metadata.json": json.dumps(metadata)}
    files |= {} if source is None else {"submission/module.cpp": source}
    return write_files(folder, files)


def results_of(root: Path) -> dict[str, Any]:
    return require_valid("gradescope", json.loads((root / "results" / "results.json").read_text()))


FAULTS = {"a broken config": "gpt149.yaml", "no end": "did not end", "no submission": "there is no folder"}


@pytest.mark.parametrize("kind", [*FAULTS, "no more processes"])
def test_a_fault_of_the_kit_is_named_as_one_and_shows_no_traceback(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if kind == "no more processes":
        monkeypatch.setattr(container, "run", Mock(side_effect=RuntimeError(kind)))
    if kind != "no submission":
        laid_out(tmp_path, "int x;", config="id: [broken" if kind == "a broken config" else None)
    # Nothing is compiled in 10 ms.
    assert gradescope.main(tmp_path, **{"limit_s": 0.01} if kind == "no end" else {}) == 3
    found, seen = results_of(tmp_path), seen_by_student(results_of(tmp_path))
    assert found["score"] == 0.0 and "not your code's fault" in seen
    assert "Traceback" not in seen and "gpt149.yaml" not in seen
    assert FAULTS.get(kind, kind) in json.dumps(found) + capfd.readouterr().err


def test_nothing_handed_in_is_the_students_own_fault(tmp_path: Path) -> None:
    write_files(laid_out(tmp_path, None), {"submission/readme.txt": "sorry"})
    assert gradescope.main([str(tmp_path)]) == 0
    found = results_of(tmp_path)
    assert found["score"] == 0.0 and "module.cpp" in found["output"] and len(found["tests"]) == 1


@pytest.mark.parametrize("words", ["absent", "--root absent", "--help"])
def test_nothing_is_made_elsewhere(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UsageError, SystemExit)):
        gradescope.main(words.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_stands_in_the_place_of_results_is_replaced_and_not_followed(kind: str, tmp_path: Path) -> None:
    root = laid_out(tmp_path, None)
    target, place = tmp_path / "grades", root / "results" / "results.json"
    target.write_text("precious")
    if kind == "link":
        place.symlink_to(target)
    else:
        (place / "deep").mkdir(parents=True)
    gradescope.main(root, limit_s=0.01)
    assert target.read_text() == "precious" and not place.is_symlink()
    results_of(root)


def test_a_forged_results_json_gains_nothing(tmp_path: Path, master: str) -> None:
    """A results file that is handed in, written while loading or at exit, or printed does not count."""
    head, _, parts = CONFIG.partition("\nparts:\n")
    first = parts.partition("  - id: 4Dread")[2].partition("  - id: 4Dwrite")[0]
    root = laid_out(tmp_path, None, f"{head}\nparts:\n  - id: 4Dread{first}")
    place = root / "results" / "results.json"
    (root / "submission" / "module.cpp").write_text(FORGING.replace("RESULTS", str(place)) + master)
    (root / "submission" / "results.json").write_text('{"score": 1000}')
    mode = stat.S_IMODE(os.stat(root / "results").st_mode)
    assert gradescope.main(root) == 0
    found = results_of(root)
    assert found["score"] <= 1.5
    (only,) = visible(found).values()
    assert (only["name"], only["max_score"]) == ("4Dread: 4-D Read", 1.5)
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


def handed_in(at: str, *own_dates: str) -> str:
    due = {"due_date": "2025-11-01T12:00:00+00:00"}
    users = [{"name": "x", "assignment": {"due_date": each}} for each in own_dates] or [{"name": "Ada"}]
    return json.dumps({"created_at": at, "assignment": due, "users": users})


OWN_DATES = ("2025-11-02T12:00:00+00:00", "2025-11-03T11:59:00.5+00:00")
LATE_S = {
    "the assignment's": (handed_in("2025-11-03T12:00:00Z"), 2 * 86400),
    "a user's": (handed_in("2025-11-03T12:00:00Z", *OWN_DATES), 59.5),
    "in time": (handed_in("2025-11-01T00:00:00+02:00", *OWN_DATES), 0.0),
    **{f"nothing, as {text!r}": (text, None) for text in ("", "{", "[]", "null", None)},
    "other types": ('{"created_at": 7, "users": {"a": 1}, "assignment": []}', None),
    "no time": ('{"created_at": "yesterday", "users": [1, null, {"assignment": "x"}]}', None),
    "no zone": (handed_in("2025-11-01T12:00:00"), None),
}


@pytest.mark.parametrize("kind", LATE_S)
def test_the_due_date_of_a_user_counts_first_and_none_charges_nothing(kind: str, tmp_path: Path) -> None:
    (text, late_s), path = LATE_S[kind], tmp_path / "submission_metadata.json"
    if text is not None:
        path.write_text(text)
    assert gradescope.read_metadata(path).late_s == late_s
