"""Results in the platforms' formats are valid for any text, and contain only facts that are in feedback.txt, too."""

import base64
import io
import json
import math
import os
import random
import re
import stat
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import classrows
import pytest
from classrows import PARTS, SECRETS, assignment, hidden_failure, part, result, score
from conftest import COURSE, Capture, Patch, one_of_each, put, refused
from ispc_stand_in import BROKEN, INCLUDE, PROGRAM, on_the_path
from platform_schemas import FORGING, MOST_BYTES, SCHEMAS, faults, harmless, obeyed, require_valid

from grader import score as rubric
from grader.core.arrays import np
from grader.core.errors import KitError, UsageError
from grader.core.results import CaseResult, Diagnosis, Flag, PartResult, Score, ScoreLine, SubmissionResult
from grader.explain.comparison import error_map
from grader.report import classroom50, feedback, github, gradescope, prairielearn, student
from grader.staff.platforms import container, table
from grader.staff.platforms import gradescope as job
from grader.staff.platforms import prairielearn as prairielearn_job
from grader.staff.release import products

HOSTILE = [*classrows.ABSURD_NAMES, "::error file=grader.py,line=1::forged"]
HOSTILE += ["  ::set-output name=result::forged", "../../etc/passwd:1: x"]
HOSTILE += ["##[error]forged", "</pre><script>alert(1)</script><pre>", "module.cpp:999999999: error: nowhere"]
HOSTILE += ["![x](http://x/y.png) [click](javascript:alert(1)) @everyone | a | b |\n|---|", '{"score": 1000}']
HOSTILE += ["module.cpp:2:1: error: \u2028\u202e\x1b[2J\ud800"]
SOURCE = """#include <x>
// myFusedAttention( is below
void f(int a) {
  myFusedAttention(a);
}
void myFusedAttention(int a) {
}
"""
ANNOTATION = r"::(?:error|warning|notice) file=hw1/module\.cpp,line=(\d+),title=[^:,\r\n]*::[^\r\n]*"
SOURCES = github.Sources({"module.cpp": SOURCE}, {"module.cpp": "hw1/module.cpp"})
AT = datetime(2026, 9, 1, 12, 0, 5, tzinfo=timezone(timedelta(hours=2)))
CONFIG = COURSE.read_text()
FAULTS = {"a broken config": "gpt149.yaml", "no end": "did not end", "no submission": "there is no folder"}


def some_text(draw: random.Random, most: int = 6) -> str:
    pieces = [draw.choice(HOSTILE) for _ in range(draw.randint(0, most))]
    pieces += [chr(draw.randrange(*draw.choice([(0x20, 0x3000), (0x10000, 0x10FFFF)]))) for _ in range(5)]
    draw.shuffle(pieces)
    return draw.choice(["\n", " ", "\r\n", ""]).join(pieces) * draw.choice([1, 1, 1, 400])


def some_number(draw: random.Random) -> float:
    return draw.choice([0.0, 1.0, 12.345678, 1e9, -3.0, math.nan, math.inf, -math.inf, draw.random() * 100])


def some_case(draw: random.Random, why: Diagnosis | None) -> CaseResult:
    name, ok = some_text(draw, 1), draw.random() < 0.5
    made = CaseResult(name, {"N": draw.randrange(99)}, ok, some_number(draw), why)
    maps = [(), ("09", "90"), ("0", "09"), (some_text(draw),), ("9" * 8,) * 8]
    return replace(made, hidden=draw.random() < 0.3, error_map=draw.choice(maps))


def some_result(draw: random.Random) -> tuple[SubmissionResult, Score]:
    parts = []
    for k in range(draw.choice([1, 3, 7, 60])):
        verdict = draw.choice((*classrows.VERDICTS, "unjudged"))
        diagnoses = [None, Diagnosis(draw.choice(["x", "race", "row_range"]), some_text(draw))]
        found = tuple(some_case(draw, draw.choice(diagnoses)) for _ in range(draw.randrange(4)))
        name = draw.choice([f"part{k}", PARTS[k % 6][0] + "x" * (k // 6), some_text(draw, 1)]) or "p"
        flags = (Flag(some_text(draw, 1), some_text(draw), "review"),) * draw.randrange(2)
        texts = {"output": some_text(draw), "waits_for": "ispc" if verdict == "unjudged" else ""}
        made = PartResult(name, some_text(draw), verdict, abs(some_number(draw)), cases=found, flags=flags)
        parts.append(replace(made, diagnosis=draw.choice(diagnoses), **texts))
    made = replace(result((part(*PARTS[2]),)), parts=tuple({each.id: each for each in parts}.values()))
    return made, rubric.score(assignment(), made, late_s=draw.choice([None, 1e5]))


def on_classroom50(judged: SubmissionResult, scored: Score) -> dict[str, Any]:
    return classroom50.results(assignment(), judged, scored, products.CLASSROOM50_SAMPLE, AT)


RENDERED: dict[str, Callable[[SubmissionResult, Score], dict[str, Any]]] = {
    name: lambda judged, scored, on=on: on.results(assignment(), judged, scored, seconds=1.0)
    for name, on in (("gradescope", gradescope), ("prairielearn", prairielearn))
} | {"classroom50": on_classroom50}
SEEDS = range(4)
EACH = one_of_each([(name, seed) for name in RENDERED for seed in SEEDS], lambda each: each[0])


def test_the_table_has_a_renderer_or_a_gradebook_for_each_platform() -> None:
    rows = {row.name: row for row in table.PLATFORMS}
    assert {*RENDERED, "github", "canvas", "moodle"} == set(rows)
    for name, row in rows.items():
        assert (row.gradebook is None) == (name in {*RENDERED, "github"})
        assert (name in products.PRODUCTS) == bool(row.release)
    limits = {"gradescope": job.CONTAINER.limit_s, "prairielearn": prairielearn_job.CONTAINER.limit_s}
    for name, limit_s in limits.items():
        assert limit_s < (rows[name].seconds or 0)
    assert rows["prairielearn"].bytes_back == MOST_BYTES["prairielearn"]
    assert rows["classroom50"].bytes_back == MOST_BYTES["classroom50"]


@pytest.mark.parametrize(("platform", "seed"), EACH)
def test_any_result_is_rendered_in_a_valid_form(platform: str, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        judged, scored = some_result(draw)
        if platform == "gradescope" and len(judged.parts) > 20:
            continue  # Gradescope has no limit on the size
        require_valid(platform, RENDERED[platform](judged, scored))


@pytest.mark.parametrize("platform", RENDERED)
def test_a_class_with_every_verdict_is_valid_and_reveals_no_secret(platform: str) -> None:
    for row in (each for each in classrows.the_class(12) if each.result is not None):
        scored = row.score or rubric.score(assignment(), row.result)
        found = require_valid(platform, RENDERED[platform](row.result, scored))
        names = [test.get("name") or test["test-name"] for test in found.get("tests", ())]
        assert len(names) == len(set(names))
        if platform == "gradescope":
            found["tests"] = [test for test in found["tests"] if test["visibility"] == "visible"]
        assert not [secret for secret in SECRETS if secret in json.dumps(found, ensure_ascii=False)]


def test_the_validator_itself_finds_faults() -> None:
    right = on_classroom50(result((part(*PARTS[2]),)), rubric.score(assignment(), result((part(*PARTS[2]),))))
    assert faults(right, SCHEMAS["classroom50"]) == []
    wrong = {"schema": [2], "x": [1], "tests": [[{}]], "score": [True, 1.5], "datetime": ["now"]}
    for name, bad in ((name, bad) for name, each in wrong.items() for bad in each):
        assert faults({**right, name: bad}, SCHEMAS["classroom50"]), name
    assert not any(map(harmless, ("a\n  ::warning::x", "a ##[x]", "\x1b[1m")))


@pytest.mark.full
def test_too_many_parts_for_a_platform_are_the_kits_fault() -> None:
    many = replace(result((part(*PARTS[2]),)), parts=tuple(part(f"p{k}", "x", 1.0) for k in range(6000)))
    refused("too many parts", on_classroom50, many, rubric.score(assignment(), many), of=KitError)


def published(judged: SubmissionResult, scored: Score, folder: Path) -> tuple[str, str, dict[str, str]]:
    """Publish a result as in a workflow. Return the printed text, the summary, and the outputs read by a runner."""
    files = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    with redirect_stdout(io.StringIO()) as stream, patch.dict(os.environ, files):
        with github.muted():
            print("\n".join(HOSTILE).encode("utf-8", "replace").decode())
        github.publish(assignment(), judged, scored, SOURCES)
    output = (folder / "GITHUB_OUTPUT").read_text(encoding="utf-8").splitlines()
    assert [line.partition("=")[0] for line in output] == ["status", "summary"]
    summary = (folder / "GITHUB_STEP_SUMMARY").read_text(encoding="utf-8")
    for name in files:
        (folder / name).unlink()
    return stream.getvalue(), summary, dict(line.split("=") for line in output)


@pytest.mark.parametrize("seed", one_of_each(SEEDS, lambda _: "any"))
def test_a_runner_obeys_the_annotations_alone(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    for _ in range(7):
        judged, scored = some_result(draw)
        said, summary, found = published(judged, scored, tmp_path)
        assert found["status"] in ("pass", "fail", "error")
        assert re.fullmatch(r"\d+ of \d+ parts? passed, [\d.e+]+ of [\d.e+]+ points", found["summary"])
        for row in obeyed(said):
            found_at = re.fullmatch(ANNOTATION, row)
            assert found_at and 1 <= int(found_at[1]) <= SOURCE.count("\n") + 1, row
        for level in ("error", "warning", "notice"):
            assert sum(row.startswith(f"::{level} ") for row in obeyed(said)) <= github.MOST_ANNOTATIONS
        assert len(summary.encode()) <= 1 << 20
        assert not re.search(r"<(?!pre>|/pre>)", summary), "markup that is not the kit's"
        assert summary.count("<pre>") == summary.count("</pre>")
        outside = re.sub(r"<pre>.*?</pre>", "", summary, flags=re.DOTALL)
        assert not re.search(r"(?<!\\)!\[|(?<!\\)\]\(", outside)
        assert outside.count("\n| ") == 1 + len(judged.parts)


def test_scores_of_classroom_50_are_points_times_the_smallest_step() -> None:
    wrong = result(tuple(part(*each, "wrong" if each[0] == "part3" else "pass") for each in PARTS))
    scored = rubric.score(assignment(), wrong)
    found = on_classroom50(wrong, scored)
    assert (found["datetime"], found["graded_at"]) == ("2026-09-01T10:00:05Z",) * 2
    assert found["max-score"] == 9300 and found["score"] == round(100 * scored.earned)
    assert {test["max-score"] for test in found["tests"]} == {150, 1000, 2000, 2500, 3500}
    without = {"case_credit": 0.0, "time_bands": (), "points_if_slow": 0.0}
    plain = replace(assignment(), parts=tuple(replace(each, **without) for each in assignment().parts))
    assert classroom50.scale(plain) == 2, "1.5 points are 3 half points"
    assert classroom50.scale(replace(plain, parts=plain.parts[3:])) == 1
    text = classroom50.body(assignment(), wrong, scored)
    assert text.startswith("**5 of 6 parts passed, ") and "its scores are points times 100" in text
    missing = {**products.CLASSROOM50_SAMPLE, "OWNER": "", "COMMIT_URL": ""}
    refused("COMMIT_URL, OWNER not set", classroom50.named, missing)
    refused("begin with submit/", classroom50.named, {**products.CLASSROOM50_SAMPLE, "SUBMISSION_TAG": "v1"})


def annotated(*parts: PartResult, sources: github.Sources = SOURCES) -> list[str]:
    return github.annotations(assignment(), student.views(assignment(), result(parts)), sources)


def test_annotations_are_on_the_students_lines() -> None:
    (wrong,) = annotated(part(*PARTS[4], "wrong"))
    its_definition = "::error file=hw1/module.cpp,line=6,title=part3%3A wrong result::"
    assert wrong.startswith(its_definition) and "%0A" in wrong and "\n" not in wrong
    assert "line=4," not in annotated(part(*PARTS[4], "crash"))[0]
    message = Diagnosis("x", "module.cpp:3: error: 100% wrong")
    (broken,) = annotated(replace(part(*PARTS[4], "compile_error"), diagnosis=message))
    assert broken.endswith("::module.cpp:3: error: 100%25 wrong") and "line=3," in broken
    assert annotated(part(*PARTS[4], "slow", ratio=2.0))[0].startswith("::warning ")
    assert "line=1," in annotated(part(*PARTS[5], "missing"))[0], "a function that is not there"
    assert annotated(part(*PARTS[4])) == []
    lines = annotated(*(part(*PARTS[k], "compile_error") for k in (2, 3, 4)), sources=github.Sources({}))
    assert len(lines) == 1 and lines[0].count("does not compile") == 3


def test_a_hidden_failure_is_reported_as_in_the_feedback(tmp_path: Path) -> None:
    judged = result((part(*PARTS[2]), hidden_failure()))
    said, summary, found = published(judged, rubric.score(assignment(), judged), tmp_path)
    assert found == {"status": "fail", "summary": "1 of 2 parts passed, 16 of 30 points"}
    for text in (said.partition("::error file")[2], summary):
        assert "At least one hidden test failed" in text
        assert not [secret for secret in SECRETS if secret in text]


def test_outside_of_a_workflow_nothing_is_written_but_printed(monkeypatch: Patch, capsys: Capture) -> None:
    judged = result((part(*PARTS[2]),))
    scored = rubric.score(assignment(), judged)
    for name in github.FILES:
        monkeypatch.delenv(name, raising=False)
    github.publish(assignment(), judged, scored, SOURCES)
    assert capsys.readouterr().out.count("names no file") == 2
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/")
    refused("GITHUB_STEP_SUMMARY: cannot write", github.publish, assignment(), judged, scored, SOURCES)


def on_prairielearn(judged: SubmissionResult, scored: Score | None = None) -> dict[str, Any]:
    scored = scored or rubric.score(assignment(), judged)
    return require_valid("prairielearn", prairielearn.results(assignment(), judged, scored, seconds=1.0))


def test_late_days_lower_the_score_and_a_file_that_does_not_compile_costs_no_attempt() -> None:
    found = on_prairielearn(result(tuple(part(*each, "compile_error") for each in PARTS)))
    assert found["gradable"] is False and "was not declared" in found["format_errors"][0]
    assert on_prairielearn(result((part(*PARTS[2], "compile_error"), part(*PARTS[3]))))["gradable"]
    waits = replace(part(*PARTS[2]), verdict="unjudged", waits_for="ispc")
    found = on_prairielearn(result((waits, part(*PARTS[3]))))
    assert found["gradable"] is False and "has no ispc" in found["format_errors"][0]
    no_file = prairielearn.refused(assignment(), "x\x1b[2J", seconds=0)
    for made in (no_file, prairielearn.kit_fault("S", seconds=0)):
        assert require_valid("prairielearn", made)["gradable"] is False
    half = result(tuple(part(*each, "slow") for each in PARTS))
    scored = rubric.score(assignment(), half)
    found, ids = on_prairielearn(half, scored), {each.id for each in half.parts}
    points = sum(line.points for line in scored.lines if line.id in ids)
    assert found["score"] == pytest.approx(points / 93, abs=1e-4)
    late = on_prairielearn(half, replace(scored, penalty=scored.earned / 4, total=0.75 * scored.earned))
    assert late["score"] == pytest.approx(0.75 * found["score"], abs=1e-4) and "writeup" in found["message"]


def test_error_maps_are_drawn_for_public_cases_only() -> None:
    wrong = np.zeros((2, 3, 17, 9), bool)
    wrong[1, 2, 16, :] = True
    wrong[0, 0, 0, 0] = True
    assert error_map(wrong) == (*("00000000",) * 7, "55555555")
    assert error_map(np.ones(3, bool)) == ("999",) and error_map(np.zeros((4, 4), bool)) == ()
    assert error_map(np.ones((1, 1), bool)) == ("9",)
    made = part(*PARTS[3], "wrong")
    mapped = tuple(case if case.ok else replace(case, error_map=("09", "90")) for case in made.cases)
    made = replace(made, cases=mapped)
    (image,) = prairielearn.images(student.view(made))
    picture = base64.b64decode(image["url"].partition(",")[2]).decode()
    assert picture.count("<rect") == 1 + 4 and 'fill-opacity="1.00"' in picture
    hidden = replace(hidden_failure().cases[-1], error_map=("9",))
    # After a hidden case, a kernel could return wrong elements on purpose, so that the error map shows hidden inputs.
    for secret in (replace(hidden_failure(), cases=(hidden,)), replace(made, cases=(hidden, *mapped))):
        assert prairielearn.images(student.view(secret)) == []
    assert all(prairielearn.svg(rows, "t") == "" for rows in ((), ("",), ("0x",), ("0", "00")))
    assert "<b>" not in prairielearn.svg(("0",), "<b>")


def test_feedback_and_platforms_say_the_same() -> None:
    judged = result((part(*PARTS[3], "wrong"), hidden_failure("part3")))
    for view in student.views(assignment(), judged):
        feedback_text = "\n".join(f"{name}: {text}" for name, text in feedback.paragraphs(view))
        for render in RENDERED.values():
            outputs = json.dumps(render(judged, rubric.score(assignment(), judged)))
            assert json.dumps(feedback_text.splitlines()[0])[1:-1] in outputs


def shown(judged: SubmissionResult, scored: Score | None = None) -> dict[str, Any]:
    scored = scored or score(judged)
    return require_valid("gradescope", gradescope.results(assignment(), judged, scored, seconds=3))


def visible(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    tests = [test for test in found["tests"] if test["visibility"] == "visible"]
    return {test["name"].partition(":")[0]: test for test in tests}


def seen_by_student(found: dict[str, Any]) -> str:
    tests = [test for test in found["tests"] if test["visibility"] != "hidden"]
    return json.dumps([found["output"], tests], ensure_ascii=False)


def test_parts_have_their_points_and_the_total_the_late_penalty() -> None:
    judged = result(tuple(part(i, title, points, "slow") for i, title, points in PARTS))
    scored = score(judged, late_days=1, write_up=None)
    found = shown(judged, scored)
    tests = [(name, test["score"], test["max_score"]) for name, test in visible(found).items()]
    assert tests == [(name, points / 2, points) for name, _, points in PARTS]
    assert found["score"] == scored.total == 93 / 2 - 10
    assert "Late by 1 day" in found["output"] and "graded by people: writeup" in found["output"]


def test_a_hidden_failure_never_looks_like_a_pass_and_only_the_staff_sees_its_details() -> None:
    found = shown(result((part(*PARTS[2]), hidden_failure())))
    tests = visible(found)
    assert tests["part1"]["status"] == "passed" and tests["part2"]["status"] == "failed"
    assert "hidden test failed" in tests["part2"]["output"]
    assert "1 of 2 parts passed" in found["output"] and "Hidden tests failed in: part2" in found["output"]
    hidden = next(one for one in shown(result((hidden_failure(),)))["tests"] if "hidden tests" in one["name"])
    assert hidden["visibility"] == "hidden" and hidden["status"] == "failed"
    assert classrows.SECRET_NAME in hidden["output"] and "N=7919" in hidden["output"]


def test_suspicions_are_for_the_staff_and_no_flagged_part_is_on_the_leaderboard() -> None:
    flagged = replace(part(*PARTS[2]), flags=(Flag("library_call", "It calls at::matmul.", "review"),))
    judged = result((flagged,))
    found = shown(judged, score(judged, extra=3.0))
    assert "matmul" in json.dumps(found) and "matmul" not in seen_by_student(found)
    extra = visible(found)["Extra credit, part 3"]
    assert (extra["score"], extra["max_score"]) == (3.0, 0.0)
    right, other = part(*PARTS[2], ratio=0.8), part(*PARTS[3], ratio=0.5)
    rest = (part(*PARTS[4], "slow", ratio=2.0), part(*PARTS[5], "wrong"))
    both = shown(result((right, other, *rest)))["leaderboard"]
    assert [entry["name"].partition(":")[0] for entry in both] == ["part1", "part2"]
    judged = result((right, replace(other, flags=(Flag("odd", "look", "review"),)), *rest))
    assert shown(judged)["leaderboard"] == [{"name": "part1: time / reference", "value": 0.8, "order": "asc"}]
    assert not shown(replace(judged, flags=(Flag("whole", "file", "review"),))).get("leaderboard")


def test_absurd_numbers_and_names_stay_valid() -> None:
    hostile = replace(part(*PARTS[2]), title="\x1b[1m" + "x" * 5000, output="\x1b[2J" * 100_000)
    judged = result((hostile, *classrows.absurd_rows()[1].result.parts[3:]))
    scored = replace(score(judged), total=math.nan, lines=(ScoreLine("part1", "x", math.inf, math.nan),))
    found = gradescope.results(assignment(), judged, scored, seconds=math.inf)
    assert require_valid("gradescope", found)["score"] == 0.0


def laid_out(folder: Path, source: str | None, config: str | None = None) -> Path:
    for name in ("submission", "results"):
        (folder / name).mkdir(parents=True)
    due = {"due_date": "2025-11-01T23:00:00.000000-07:00", "title": "Attention"}
    users = [{"email": "ada@example.edu", "name": "Ada", "id": 7}]
    metadata = {"id": 1, "created_at": "2025-11-02T00:30:00.000000-07:00", "assignment": due, "users": users}
    files = {"source/configs/gpt149.yaml": config or CONFIG, "submission_metadata.json": json.dumps(metadata)}
    files |= {} if source is None else {"submission/module.cpp": source}
    return put(folder, files)


def results_of(root: Path) -> dict[str, Any]:
    return require_valid("gradescope", json.loads((root / "results" / "results.json").read_text()))


@pytest.mark.parametrize("kind", [*FAULTS, "no more processes"])
def test_kit_faults_show_no_traceback(kind: str, tmp_path: Path, monkeypatch: Patch, capfd: Capture) -> None:
    if kind == "no more processes":
        monkeypatch.setattr(container, "run", Mock(side_effect=RuntimeError(kind)))
    if kind != "no submission":
        laid_out(tmp_path, "int x;", config="id: [broken" if kind == "a broken config" else None)
    # 10 ms are too short to compile anything.
    assert job.main(tmp_path, **{"limit_s": 0.01} if kind == "no end" else {}) == 3
    found, seen = results_of(tmp_path), seen_by_student(results_of(tmp_path))
    assert found["score"] == 0.0 and "not your code's fault" in seen
    assert "Traceback" not in seen and "gpt149.yaml" not in seen
    assert FAULTS.get(kind, kind) in json.dumps(found) + capfd.readouterr().err


def test_an_empty_submission_is_the_students_fault(tmp_path: Path) -> None:
    put(laid_out(tmp_path, None), {"submission/readme.txt": "sorry"})
    assert job.main([str(tmp_path)]) == 0
    found = results_of(tmp_path)
    assert found["score"] == 0.0 and "module.cpp" in found["output"] and len(found["tests"]) == 1


@pytest.mark.parametrize("words", ["absent", "--root absent", "--help"])
def test_wrong_arguments_create_no_files(words: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UsageError, SystemExit)):
        job.main(words.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_link_or_folder_in_place_of_results_is_replaced(kind: str, tmp_path: Path) -> None:
    root = laid_out(tmp_path, None)
    target, place = tmp_path / "grades", root / "results" / "results.json"
    target.write_text("precious")
    if kind == "link":
        place.symlink_to(target)
    else:
        (place / "deep").mkdir(parents=True)
    job.main(root, limit_s=0.01)
    assert target.read_text() == "precious" and not place.is_symlink()
    results_of(root)


def test_a_forged_results_json_gains_nothing(tmp_path: Path, master: str) -> None:
    head, _, parts = CONFIG.partition("\nparts:\n")
    first = parts.partition("  - id: 4Dread")[2].partition("  - id: 4Dwrite")[0]
    forging = FORGING.replace("RESULTS", str(tmp_path / "results" / "results.json"))
    root = laid_out(tmp_path, forging + master, f"{head}\nparts:\n  - id: 4Dread{first}")
    put(root, {"submission/results.json": '{"score": 1000}'})
    mode = stat.S_IMODE(os.stat(root / "results").st_mode)
    assert job.main(root) == 0
    found = results_of(root)
    assert found["score"] <= 1.5
    (only,) = visible(found).values()
    assert (only["name"], only["max_score"]) == ("4Dread: 4-D Read", 1.5)
    assert stat.S_IMODE(os.stat(root / "results").st_mode) == mode
    assert sorted(path.name for path in (root / "results").iterdir()) == ["results.json"]


def test_a_missing_tool_is_no_fault(tmp_path: Path, master: str, monkeypatch: Patch, capfd: Capture) -> None:
    root = put(laid_out(tmp_path, INCLUDE + master), {"submission/module.ispc": PROGRAM})
    monkeypatch.setenv("PATH", on_the_path(BROKEN))
    assert job.main(root) == 3
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
def test_a_users_due_date_counts_first_and_without_one_nothing_is_late(kind: str, tmp_path: Path) -> None:
    (text, late_s), path = LATE_S[kind], tmp_path / "submission_metadata.json"
    if text is not None:
        path.write_text(text)
    assert job.late_s(tmp_path, assignment()) == late_s
