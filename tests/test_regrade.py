"""Regrading after a change of the assignment: points cost nothing, a new case costs that case."""

import json
import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
from classes.acting_class import SMALL, Class
from conftest import insert_at_start, keeping, results_alone, write

from grader import score
from grader.assignment import prints
from grader.assignment.loading import load
from grader.assignment.prints import PartPrints
from grader.core import typedjson
from grader.core.results import CaseResult, Diagnosis, Flag, PartResult, SubmissionResult, Timing
from grader.judge import regrade
from grader.judge.regrade import Rest
from grader.report import result_json
from grader.staff.classroom import ledger

TIME = Timing(1.0, 1.0, 1.0, (0.9, 1.1), 0.98, 8, "cpu", 1.1, "pass", 1.0, fit=True, flags=("undecided",))


def case(name: str, ok: bool = True) -> CaseResult:
    return CaseResult(name, {}, ok, 0.0, None if ok else Diagnosis("places", "wrong there"))


def result(verdict: str, *cases: CaseResult, **more: object) -> SubmissionResult:
    part = PartResult("p", "P", verdict, 10.0, cases=cases, time=TIME, **more)  # type: ignore[arg-type]
    return SubmissionResult("ada", "", "small", {}, {}, {}, (part,), max_points=10.0)


OLD = PartPrints("calls", "times", {"a": "1", "b": "1"})

NEW, FEWER = {"cases": {**OLD.cases, "c": "1"}}, {"cases": {"a": "1"}}


CHANGES = {
    "nothing": ({}, {"pass": {}}),
    "calls": ({"calling": "other"}, {"pass": None}),
    "times": ({"timing": "other"}, {"pass": None, "wrong": {}}),
    "a case more": (NEW, {"pass": {"p": ("c",)}, "wrong": {"p": ("c",)}, "crash": {}}),
    "another case": ({"cases": {**OLD.cases, "b": "2"}}, {"slow": {"p": ("b",)}}),
    "a case less": (FEWER, {"pass": {}, "wrong": None, "timeout": None, "compile_error": {}}),
}


@pytest.mark.parametrize(("change", "left_by_verdict"), CHANGES.values(), ids=CHANGES)
def test_what_is_left_follows_from_what_changed(change: dict, left_by_verdict: dict) -> None:
    now = replace(OLD, **change)
    for verdict, left in left_by_verdict.items():
        before = result(verdict, case("a"), case("b", verdict != "wrong"))
        assert regrade.rest({"p": OLD}, {"p": now}, before) == (None if left is None else Rest(left)), verdict
        # One part is judged again as a whole, the other stays.
        other = replace(before.parts[0], id="q", verdict="pass", cases=(case("a"), case("b")))
        two = replace(before, parts=(*before.parts, other))
        beside = regrade.rest({"p": OLD, "q": OLD}, {"p": now, "q": OLD}, two)
        assert beside == Rest({"p": ()} if left is None else left), verdict
        assert regrade.rest({}, {"p": now}, before) is None


def test_points_titles_and_weights_decide_no_verdict(tmp_path: Path) -> None:
    text = SMALL.read_text()
    changes = {"points: 10": "points: 11", "points_if_slow: 8": "points_if_slow: 2"}
    changes |= {"title: Fused Attention": "title: Fused", "seed: 2,": "seed: 2, weight: 7,"}
    changes["schema_version: 1"] = "schema_version: 1\nlate: {per_day: {points: 3}}"
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "a.yaml").write_text(text)
    before = prints.of_parts(load(SMALL))
    assert prints.of_parts(load(tmp_path / "a.yaml")) == before
    for old, new in (("d: 8, Br", "d: 9, Br"), ("call_s: 1,", "call_s: 2,")):
        (tmp_path / "b.yaml").write_text(text.replace(old, new))
        changed = prints.of_parts(load(tmp_path / "b.yaml"))
        assert all(changed[name].calling != before[name].calling for name in before)
    (tmp_path / "c.yaml").write_text(text.replace("seed: 1}", "seed: 5}"))
    for name, now in prints.of_parts(load(tmp_path / "c.yaml")).items():
        assert now.calling == before[name].calling
        assert {case for case, its in now.cases.items() if its != before[name].cases[case]} == {"random"}


def test_a_case_that_is_wrong_takes_the_time_away_and_what_hung_on_it() -> None:
    assignment = load(SMALL)
    flags = (Flag("undecided"), Flag("odd", "look", "review"))
    old = result("pass", case("random"), flags=flags)
    two = tuple(replace(old.parts[0], id=name) for name in ("part1", "part3"))
    old = replace(old, parts=two, flags=flags)
    wrong = replace(old.parts[1], verdict="wrong", cases=(case("ragged", False),), time=None, flags=())
    right = replace(wrong, verdict="pass", cases=(case("ragged"),))
    left = Rest({"part3": ("ragged",)})
    kept = regrade.joined(assignment, old, replace(old, parts=(right,), flags=()), left)
    assert kept.parts[1].time == TIME and [c.name for c in kept.parts[1].cases] == ["random", "ragged"]
    assert kept.parts[0].max_points == 10 and kept.parts[1].max_points == 20 == kept.max_points - 10
    found = regrade.joined(assignment, old, replace(old, parts=(wrong,), flags=()), left).parts[1]
    assert (found.verdict, found.time, [flag.code for flag in found.flags]) == ("wrong", None, ["odd"])
    crashed = replace(right, verdict="crash", cases=(), diagnosis=Diagnosis("crash", "it crashed"))
    found = regrade.joined(assignment, old, replace(old, parts=(crashed,), flags=()), left).parts[1]
    assert found.verdict == "crash" and found.diagnosis == crashed.diagnosis and found.time is None


def test_judging_the_rest_ends_as_judging_all(master: str, tmp_path: Path) -> None:
    """A real file: right on public cases, wrong on a hidden case that is added later."""
    hidden, public = tmp_path / "hidden.yaml", tmp_path / "public.yaml"
    extra = "{name: many, distribution: random, seed: 9, shape: {B: 1, H: 3, N: 17, d: 4}}"
    public.write_text(f"extends: {SMALL}\nseed: 3\n")
    hidden.write_text(f"{public.read_text()}hidden_cases:\n  - {extra}\n")
    kept = keeping(master, "myNaiveAttention", "myFusedAttention")
    source = write(tmp_path, insert_at_start(kept, "myFusedAttention", "H -= H > 2;"))
    before_assignment, assignment = load(public), load(hidden)
    before = results_alone(before_assignment, source, before_assignment.select("all"))
    assert [part.verdict for part in before.parts] == ["pass", "pass"]
    left = regrade.rest(prints.of_parts(before_assignment), prints.of_parts(assignment), before)
    assert left == Rest({"part1": ("many",), "part3": ("many",)})
    called = []

    def judged(parts: tuple) -> SubmissionResult:
        called.extend(case.name for part in parts for case in part.cases)
        return results_alone(assignment, source, parts)

    found = regrade.judge_rest(assignment, before, left, judged)
    whole = results_alone(assignment, source, assignment.select("all"))
    assert called == ["many", "many"]
    assert [part.verdict for part in whole.parts] == ["pass", "wrong"]
    decided = attrgetter("verdict", "cases", "diagnosis", "flags")
    assert [decided(part) for part in found.parts] == [decided(part) for part in whole.parts]


def test_a_changed_rubric_starts_no_worker_and_a_new_case_calls_nothing_else(acting: Class) -> None:
    for name, directive in {"ada": "", "bob": "slow", "eve": "wrong"}.items():
        acting.add(name, directive)
    (acting.folder / "broken.zip").write_bytes(b"PK\3\4 no more than that")
    acting.grade(seed=1)
    text = acting.config.read_text().replace("points_if_slow: 8", "points_if_slow: 3")
    late = "late: {due: 2020-01-01T00:00:00Z, per_day: {points: 1}, cap_days: 2, after_cap: max_penalty}\n"
    acting.config.write_text(text.replace("points: 10", "points: 40") + late)
    unstartable = ["-c", "import sys; sys.exit('a worker was started')"]
    assert "3 are scored anew, and nothing is run" in acting.grade(command=unstartable, file_times=True)
    assert acting.totals() == {"ada": "58", "bob": "41", "eve": "0", "broken": "0"}
    stored = acting.result("bob")
    assert [part["points"] for part in stored["parts"]] == [40, 3] and stored["max_points"] == 60
    assert ledger.read(acting.out).records["bob"].points == 43
    assert Counter(acting.graded()) == {"ada": 1, "bob": 1, "eve": 1}
    assert "4 were finished before and stay as they are" in acting.grade(command=unstartable)
    more = "cases:\n  - {name: another, distribution: random, seed: 3}\n"
    acting.config.write_text(acting.config.read_text().replace("cases:\n", more))
    said = acting.grade()
    assert "3 are graded again (assignment changed: only the cases another): ada, bob, eve" in said
    called = (acting.state / "called").read_text().splitlines()
    again = sorted(line.split()[0] for line in called if line.endswith("part1:another part3:another"))
    assert again == ["ada", "bob", "eve"]
    assert Counter(acting.graded()) == {"ada": 2, "bob": 2, "eve": 2}


def test_a_result_is_written_as_json_itself_writes_it() -> None:
    odd = '\u00e9\n"\\ \U0001f600 \ud800'
    found = replace(result("pass", case("a"), case("b", False)), flags=(Flag("odd", odd, "review"),))
    unmeasured = replace(found.parts[0], time=replace(TIME, ratio=math.inf, self_ratio=math.nan), cases=())
    found = replace(found, parts=(*found.parts, unmeasured))
    values, text = result_json.dumped(found, score.score(load(SMALL), found))
    assert text == json.dumps(values, indent=2, allow_nan=False) + "\n"
    assert values["parts"][1]["time"]["ratio"] is None and values["flags"][0]["message"] == odd
    assert list(values["parts"][0])[:2] == ["id", "title"]


TOO_DEEP = ("[" * 33 + "]" * 33, '["\\\\",' + "[" * 32 + "]" * 32 + "]")
IN_TEXTS = ('["' + "[" * 99 + '"]', '["\\"' + "[" * 99 + '"]', '["\\\\\\"' + "{" * 99 + '\\\\"]')
SHALLOW = ("[" * 32 + "]" * 32, *IN_TEXTS, '{"a": "]", "b": ' + "[" * 31 + "]" * 31 + "}")


@pytest.mark.parametrize("text", [*TOO_DEEP, *SHALLOW])
def test_depth_is_counted_outside_of_texts(text: str) -> None:
    with pytest.raises(ValueError, match="deep") if text in TOO_DEEP else nullcontext():
        assert typedjson.parse(text.encode()) == json.loads(text)
