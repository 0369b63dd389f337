"""Points by the rubric: each rule is compared with points computed by hand; and the table of manual points."""

import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import classrows
import pytest
from conftest import ROOT, refused

from grader.assignment import loading, rubric
from grader.assignment.records import Case, Part
from grader.core.results import CaseResult, Diagnosis, Flag, PartResult, SubmissionResult, Timing
from grader.score import late_days, lateness_s, part_points, score
from grader.staff.classroom.byhand import read_manual

PUBLIC = classrows.assignment()
STAFF = loading.load(ROOT / "configs" / "hidden" / "gpt149.yaml")
DAY_S = 86_400.0
HOSTILE = "\x1b]0;owned\x07\x1b[2K\x9b\u202e"
SHOWN, LONG = "?]0;owned??[2K??", ("x" * 9999, "xxx")
MANY = ",".join(f"c{k}" for k in range(300_000))


def timing(ratio: float, low: float | None = None) -> Timing:
    """Return a measurement with this ratio, whose interval starts at `low` (the ratio itself by default)."""
    interval = (ratio if low is None else low, ratio + 0.1)
    return replace(classrows.timing(ratio, slow=True), ratio_interval=interval)


def results(part: Part, *right: str) -> tuple[CaseResult, ...]:
    cases = ((case.name, case.name in right, case.hidden) for case in part.cases)
    return tuple(CaseResult(name, {}, ok, 0.0, hidden=hidden) for name, ok, hidden in cases)


def points_of(part: Part, verdict: Any, cases: Any = (), time: Any = None, **more: Any) -> tuple[float, str]:
    judged = PartResult(part.id, part.title, verdict, part.points, tuple(cases), time, **more)
    return part_points(part, judged)


def names(part: Part, *, hidden: bool) -> list[str]:
    return [case.name for case in part.cases if case.hidden == hidden]


def earned(part: Part, verdict: str, *right: str, time: Timing | None = None) -> float:
    return points_of(part, verdict, results(part, *right), time)[0]


@pytest.mark.parametrize(("ratio", "low", "share"), [
    (1.2, 1.2, 0.9), (1.25, 1.25, 0.9), (1.26, 1.26, 0.75), (1.6, 1.4, 0.75), (2, 1.9, 0.5), (3.01, 3.01, 0.4),
    (1000, 900, 0.4),
])  # fmt: skip
def test_slow_earns_the_share_of_its_band(ratio: float, low: float, share: float) -> None:
    """The low end of the ratio's interval chooses the band, so that doubt favours the student."""
    points, reason = points_of(PUBLIC.part("part2"), "slow", (), timing(ratio, low))
    assert points == pytest.approx(20 * share)
    assert f"{points:g} of 20 points" in reason and f"{ratio:.2f} x" in reason


def test_slow_earns_nothing_beyond_the_last_band_and_one_value_without_bands() -> None:
    part = PUBLIC.part("part2")
    bounded = replace(part, time_bands=(rubric.TimeBand(1.5, 0.5),), case_credit=0.0)
    assert earned(bounded, "slow", time=timing(1.4)) == 10 and earned(bounded, "slow", time=timing(1.6)) == 0
    assert earned(replace(part, time_bands=(), points_if_slow=7.5), "slow", time=timing(9.0)) == 7.5
    # Points are rounded to the nearest hundredth.
    for share, points in ((1 / 3, 3.33), (2 / 3, 6.67), (0.12345, 1.23)):
        banded = replace(part, points=10.0, time_bands=(rubric.TimeBand(2.0, share),))
        assert earned(banded, "slow", time=timing(1.5)) == points


def test_easy_inputs_alone_earn_nothing() -> None:
    """A kernel that gives equal weights to all keys is right for one row and for equal scores, but earns nothing."""
    part = STAFF.part("part2")
    for hidden in (False, True):
        assert earned(part, "wrong", *names(part, hidden=hidden)) == 0
    for assignment in (PUBLIC, STAFF):
        assert earned(assignment.part("part2"), "wrong", "published ramp") == 0
        part = assignment.part("part1")
        easy = [c.name for c in part.cases if c.shape.get("N") == 1 or c.distribution == "constant_rows"]
        assert len(easy) >= 2 and earned(part, "wrong", *easy) == 0


def test_wrong_earns_by_weight_the_smaller_of_both_fractions() -> None:
    part = replace(
        PUBLIC.part("part2"),
        case_credit=0.4,
        cases=(
            Case("a", "random", 1, weight=6), Case("b", "random", 2, weight=2), Case("c", "ramp", 3, weight=0),
            Case("d", "random", 4, weight=5, hidden=True), Case("e", "random", 5, weight=5, hidden=True),
        ),
    )  # fmt: skip
    reason = "wrong on 2 of 5 inputs: 4 of 20 points"
    assert points_of(part, "wrong", results(part, "a", "c", "d")) == (4.0, reason)
    assert earned(part, "wrong", "b", "d", "e") == 2.0 and earned(part, "wrong", "a", "b", "c") == 0.0
    assert earned(replace(part, case_credit=0.0), "wrong", "a", "d") == 0.0


def test_a_single_hidden_case_does_not_decide_all_points() -> None:
    public = tuple(Case(name, "random", k) for k, name in enumerate("abc"))
    one, two = (Case(name, "random", 9, hidden=True) for name in "xy")
    part = replace(PUBLIC.part("part2"), case_credit=0.4, cases=(*public, one))
    both = replace(part, cases=(*public, one, two))
    assert earned(part, "wrong", "a", "b", "c") == earned(both, "wrong", "a", "b", "c", "y") == 4.0
    assert earned(both, "wrong", "a", "b", "c") == 0, "right on the published inputs alone"
    assert earned(part, "wrong", "a", "x") == pytest.approx(20 * 0.4 * 1 / 3, abs=0.006)
    assert earned(part, "wrong") == earned(replace(part, cases=(public[0], one)), "wrong") == 0
    assert replace(PUBLIC, parts=(part, both, replace(part, case_credit=0.0))).warnings == [
        "part2: 'x' is the only hidden case with a weight, so it alone decides half of case_credit: add another case"
    ]
    assert not PUBLIC.warnings and not STAFF.warnings


@pytest.mark.parametrize("count", [2, 7])
def test_hidden_cases_count_in_two_steps_whatever_their_number(count: int) -> None:
    hidden = tuple(Case(f"h{k}", "random", k, weight=1, hidden=True) for k in range(count))
    part = replace(PUBLIC.part("part2"), case_credit=0.4, cases=(Case("a", "random", 1), *hidden))
    right = [["a", *(case.name for case in hidden[:k])] for k in range(count)]
    halves = [2 * k // count for k in range(count)]
    assert [earned(part, "wrong", *each) for each in right] == [20 * 0.4 * half / 2 for half in halves]


def test_luck_in_a_race_earns_no_points_and_a_wrong_timed_call_counts_as_one_more_public_case() -> None:
    part = PUBLIC.part("part3")
    cases = results(part, *(case.name for case in part.cases[1:]))
    every = results(part, *(case.name for case in part.cases))
    race = Diagnosis("race", "another result")
    raced = [one if one.ok else replace(one, diagnosis=race) for one in cases]
    for before, after, more in ((cases, raced, {}), (every, every, {"diagnosis": race})):
        assert points_of(part, "wrong", before)[0] > 0
        points, why = points_of(part, "wrong", after, **more)
        assert points == 0 and "luck" in why
    weight = sum(case.weight for case in part.cases)
    right = results(part, *names(part, hidden=False))
    points = 25 * 0.4 * weight / (weight + 1)
    for cases in ((*right, CaseResult("timed call", {}, False, 1.0)), right):
        assert points_of(part, "wrong", cases)[0] == pytest.approx(points, abs=0.006)


def test_a_pass_earns_all_points_and_a_right_kernel_never_less_than_a_wrong_one() -> None:
    for part in PUBLIC.parts:
        assert earned(part, "pass", *names(part, hidden=False)) == part.points
    for part in STAFF.parts:
        slow = earned(part, "slow", time=timing(1e6)) if part.time and part.time.graded else part.points
        assert earned(part, "wrong", *(case.name for case in part.cases)) <= slow <= part.points


@pytest.mark.parametrize("verdict", ["crash", "timeout", "compile_error", "missing", "rejected"])
def test_a_part_without_results_earns_nothing(verdict: str) -> None:
    part = PUBLIC.part("part2")
    points, reason = points_of(part, verdict, results(part, "random", "ragged"))
    assert points == 0 and reason


def submission(**verdicts: Any) -> SubmissionResult:
    graded = (part for part in PUBLIC.parts if part.points > 0)
    parts = (PartResult(part.id, part.title, verdicts.get(part.id, "pass"), part.points) for part in graded)
    return SubmissionResult("ada", "", PUBLIC.id, {}, {}, {}, tuple(parts))


def test_a_perfect_total_is_100_extra_credit_is_on_top_and_ungraded_and_unjudged_ones_are_pending() -> None:
    result = submission()
    done = score(PUBLIC, result, {"writeup": 7})
    assert (done.earned, done.total, done.max_points, done.penalty, done.pending) == (100, 100, 100, 0, ())
    extra = score(PUBLIC, result, {"writeup": 7, "part1_extra": 3, "part4_extra": 1.5})
    assert (extra.total, extra.max_points) == (104.5, 100)
    items = "4Dread 4Dwrite part1 part2 part3 part4 writeup part1_extra part2_extra part3_extra part4_extra"
    assert [line.id for line in extra.lines] == items.split()
    fresh = score(PUBLIC, result)
    assert fresh.pending == ("writeup",) and fresh.total == 93
    assert ("writeup", "not graded yet") in [(line.id, line.reason) for line in fresh.lines]
    assert score(PUBLIC, result, {"writeup": 0}).pending == ()
    some = replace(result, parts=tuple(part for part in result.parts if part.id != "part4"))
    assert score(PUBLIC, some).pending == ("part4", "writeup")
    assert score(PUBLIC, some, {"part4": 30, "writeup": 1}).pending == ()


def test_points_by_hand_replace_those_of_a_part_and_say_so() -> None:
    result, manual = submission(part2="crash"), {"part2": 12.5}
    assert score(PUBLIC, result).earned == 73
    regraded = score(PUBLIC, result, manual)
    line = next(line for line in regraded.lines if line.id == "part2")
    assert (line.points, regraded.earned) == (12.5, 85.5)
    assert line.reason == "by hand (the judge gave 0: crashed)"
    assert score(PUBLIC, result, manual) == regraded and manual == {"part2": 12.5}, "it is unchanged"


RULE = rubric.LateRule(
    due=datetime(2026, 11, 14, 23, 59, tzinfo=timezone(timedelta(hours=-8))),
    grace_s=900, share_per_day=0.1, points_per_day=None, cap_days=3, after_cap="zero",
)  # fmt: skip


@pytest.mark.parametrize(("late_s", "days"), [
    (None, 0), (-5.0, 0), (0.0, 0), (900.0, 0), (901.0, 1), (DAY_S, 1), (DAY_S + 900, 1), (DAY_S + 901, 2),
    (3 * DAY_S + 900, 3), (3 * DAY_S + 901, 4),
])  # fmt: skip
def test_late_days_start_after_the_grace(late_s: float | None, days: int) -> None:
    assert late_days(RULE, late_s) == days and late_days(None, late_s) == 0


@pytest.mark.parametrize(("change", "days", "penalty"), [
    *(({}, days, penalty) for days, penalty in ((1, 9.3), (3, 27.9), (4, 93.0))),
    *(({"after_cap": "max_penalty"}, days, 27.9) for days in (4, 400)),
    *(({"cap_days": None, "after_cap": None}, *row) for row in ((7, 65.1), (11, 93.0))),
    ({"share_per_day": None, "points_per_day": 5.0}, 2, 10.0),
    ({"share_per_day": None, "points_per_day": 50.0, "after_cap": "max_penalty"}, 9, 93.0),
])  # fmt: skip
def test_late_days_cost_a_share_or_points(change: dict[str, Any], days: int, penalty: float) -> None:
    late = score(replace(PUBLIC, late=replace(RULE, **change)), submission(), None, days * DAY_S)
    assert late.late_days == days and late.penalty == pytest.approx(penalty)
    assert late.total == pytest.approx(93 - penalty) and late.total >= 0


def test_lateness_is_counted_across_time_zones() -> None:
    assignment = replace(PUBLIC, late=RULE)
    utc = datetime(2026, 11, 15, 8, 0, tzinfo=timezone.utc)
    assert lateness_s(assignment, utc) == 60 and lateness_s(assignment, utc - timedelta(hours=1)) == 0
    assert lateness_s(assignment, datetime(2026, 11, 15, 0, 0)) == 60, "without a zone: the due date's"
    assert lateness_s(PUBLIC, utc) is None and lateness_s(replace(PUBLIC, late=None), utc) is None


def test_points_by_hand_are_read_by_id_and_item(tmp_path: Path) -> None:
    path = tmp_path / "manual.csv"
    rows = '\ufeffid,name,writeup,part1_extra,part2,comment\r\nada,"Lovelace, Ada", 6.5 ,,,"see\n'
    path.write_bytes(f'{rows}question 3, please"\r\n\r\nZoë K.,,7,3,0,\r\n'.encode())
    given = {"ada": {"writeup": 6.5}, "Zoë K.": {"writeup": 7.0, "part1_extra": 3.0, "part2": 0.0}}
    assert read_manual(path, PUBLIC, {"ada", "Zoë K.", "grace"}) == given
    assert read_manual(path)["ada"] == {"writeup": 6.5}
    # A row without points is accepted even if its id is unknown.
    path.write_text("id,writeup,comment\nada,6.5,\nREADME,,write-up: empty\n")
    assert read_manual(path, PUBLIC, {"ada"}) == {"ada": {"writeup": 6.5}}


@pytest.mark.parametrize(("content", "line", "says"), [
    *((text, 1, "the first row should name the columns") for text in ("", "ada,7\n")),
    ("id;writeup\nada;7\n", 1, "columns should be separated by commas"),
    ("id,writeup,writeup\n", 1, "two columns are called 'writeup'"),
    *((f"id,{item}\nada,0\n", 1, f"no item is called '{item}'") for item in ("writup", "part0", "")),
    ("id,writeup\nada,7\neve,7\n", 3, "no submission is called 'eve'"),
    ("id,writeup\nadda,7\n", 2, "did you mean 'ada'?"),
    ("id,writeup\nada,7\n\nada,6\n", 4, "'ada' is already in line 2"),
    ("id,writeup\n,7\n", 2, "the row has no id"),
    ("id,part2\nada,20.1\n", 2, "20.1 points are too many; at most 20 can be given"),
    ("id,writeup\nada,-1\n", 2, "writeup: points should be a number such as 6.5, not '-1'"),
    *((f"id,writeup\nada,{cell}\n", 2, f"not '{cell}'") for cell in ("nan", "1e3", "seven")),
    ('id,writeup\nada,"6,5"\n', 2, "not '6,5'"),
    ("id,writeup\nada,7,3\n", 2, "3 cells, but the table has 2 columns"),
    ("id,writeup\nada\n", 2, "1 cells, but the table has 2 columns"),
    ('id,writeup,comment\nada,7,"one\ntwo"\ngrace,8,\n', 4, "8 points are too many; at most 7"),
    ('id,writeup\nada,"7\n', 2, "not a row of CSV"),
    (b"id,writeup\nada,7\ngra\xe7e,7\n", 3, "not UTF-8 text"),
    (f"id,writeup\n{HOSTILE},7\n", 2, f"no submission is called '{SHOWN}'"),
    (f'id,writeup\n"a\n{HOSTILE}",7\n', 2, f"no submission is called 'a {SHOWN}'"),
    *((f"id,{name}\n", 1, f"no item is called '{shown}") for name, shown in ((HOSTILE, SHOWN), LONG)),
    (f"id,writeup\nada,{HOSTILE}\n", 2, f"not '{SHOWN}'"),
    (f"id,writeup\n{LONG[0]},7\n", 2, f"no submission is called '{LONG[1]}"),
    ("id,writeup\nada,7\nb\0b,7\n", 3, "a NUL character"),
    ("id,writeup\nada," + "7" * 20_001 + "\n", 2, "a cell has more than 20000 characters"),
    ('id,writeup\nada,"' + "7\n" * 100_000, 2, "not a row of CSV"),
    ('id,writeup\n"' * 100_000, 2, "not a row of CSV"),
    *((f"id,{more}\n", 1, "columns; a table may have at most 1000") for more in ("," * 1_999_999, MANY)),
    ("id\n" + "\n" * 200_000, 100_002, "more than 100000 rows"),
    ("id\n" * 200_000, 3, "'id' is already in line 2"),
], ids=lambda value: "" if len(str(value)) > 80 else None)  # fmt: skip
def test_a_mistake_in_the_table_is_one_short_line(content: Any, line: int, says: str, tmp_path: Path) -> None:
    path = tmp_path / "manual.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refused("", read_manual, path, PUBLIC, ["ada", "grace"]).removeprefix(f"{path}:")
    assert message.startswith(f"{line}: ") and says in message
    assert len(message) < 300 and message.isprintable()


def test_a_missing_table_or_a_pipe_is_reported_in_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manual.csv")
    for name, why in (("manual.csv", "not a file"), ("gone.csv", r"cannot read .*No such file")):
        refused(why, read_manual, tmp_path / name)


def test_one_thread_earns_the_slowest_share_if_several_are_required() -> None:
    flags = (Flag("one_thread", level="review"),)
    part = PUBLIC.part("part3")
    assert points_of(part, "pass", flags=flags) == (10, "right, but it runs on one thread: 10 of 25 points")
    assert points_of(part, "slow", (), timing(1.5), flags=flags)[0] == 10.0
    for parallel in ("review", "free"):
        other = replace(part, time=replace(part.time, parallel=parallel))
        assert points_of(other, "pass", flags=flags)[0] == 25.0
