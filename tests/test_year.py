"""A course's year: changes between reports, appeals, extensions, feedback for students, and the leaderboard."""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import classrows
import pytest
from classes import acting_class
from classes.acting_class import Class
from conftest import ASSIGNMENT, COURSE, Capture, Patch, grader, refused, write
from test_report_html import Page

from grader.__main__ import run
from grader.assignment.records import Assignment, Part
from grader.assignment.rubric import LateRule
from grader.core.results import Flag, PartResult, SubmissionResult, Timing
from grader.report import classbook, feedback
from grader.report import page as verdict
from grader.report.machines import Row, load_text, load_warning
from grader.score import late_days
from grader.staff.board import Place, board_of, counted, placed
from grader.staff.board import page as page_of
from grader.staff.classroom import appeals, changes, gradebook, ledger
from grader.staff.classroom.byhand import Days
from grader.staff.classroom.changes import Graded, Standing
from grader.staff.classroom.ledger import Entry, Record, Run
from grader.submission.ids import closest

ROW = {"id": "ada", "submitted_at": "", "part1": "10", "late_days": "0", "late_penalty": "0", "total": "10"}
ROW |= {"max_points": "10", "part1_verdict": "pass"}
RIGHT = classrows.part("part1", "Naive", 10.0)
WRONG = classrows.part("part1", "Naive", 10.0, "wrong")


def standing(part: PartResult, **facts: str) -> Standing:
    changed = {key: facts.pop(key) for key in ("kit", "assignment") if key in facts}
    prints = replace(acting_class.FINGERPRINTS, **changed)
    machine = {"processor": facts.get("processor", "P"), "cores": 2}
    result = SubmissionResult("ada", "", "gpt149", machine, {"compiler": "g++ 12"}, {}, (part,))
    return Standing(replace(acting_class.record("ada"), fingerprints=prints), result)


@pytest.mark.parametrize(("then", "now", "why"), [
    (standing(WRONG), standing(RIGHT, kit="new"), ("case: right now: 'random'", "(wrong -> pass)", "kit")),
    (standing(RIGHT), standing(classrows.part("part1", "Naive", 10.0, "slow", ratio=1.5)), ("time: 1.00", "1.50")),
    (standing(RIGHT), standing(RIGHT, assignment="new"), ("rubric",)),
    (standing(RIGHT), standing(RIGHT), ("rubric or by hand",)),
    (standing(WRONG), standing(RIGHT, processor="Q"), ("case", "machine")),
    (standing(RIGHT), standing(classrows.part("part1", "Naive", 10.0, "crash")), ("verdict: pass -> crash",)),
], ids=("case and kit", "time", "rubric", "by hand", "machine", "verdict"))  # fmt: skip
def test_a_change_of_points_names_its_cause(then: Standing, now: Standing, why: tuple[str, ...]) -> None:
    old = Graded(Path("a"), {"ada": ROW, "gone": ROW}, {}, known={"ada": then})
    new = Graded(Path("b"), {"ada": {**ROW, "part1": "7.5", "total": "7.5"}}, {}, known={"ada": now})
    part, total = changes.between(old, new)
    assert [part.part, part.before, part.after, part.by, total.part] == ["part1", 10.0, 7.5, -2.5, "total"]
    assert all(text in part.why for text in why)
    text = "\n".join(changes.lines(old, new, [part, total]))
    words = ("points of 1 of 1 submissions changed (totals: 0 rose, 1 fell)", "only in a: gone", "-2.5")
    assert not [each for each in words if each not in text]


def test_changed_maximum_points_are_blamed_on_the_rubric() -> None:
    tables = ({"ada": {**ROW, "part1": n, "max_points": n}} for n in ("10", "15"))
    old, new = (Graded(Path("a"), rows, {}, known={"ada": standing(RIGHT)}) for rows in tables)
    assert changes.between(old, new)[0].why == "rubric"


@pytest.mark.full
def test_a_regrade_and_a_report_print_changed_totals(acting: Class, tmp_path: Path) -> None:
    acting.add_all({"ada": "wrong", "bob": ""})
    assert "changed" not in acting.grade()
    acting.add("ada")
    said = acting.grade()
    assert "points of 1 of 2 submissions changed (totals: 1 rose, 0 fell)" in said
    assert "source: another file" in said
    assert (acting.out / "changes.csv").read_text(encoding="utf-8-sig").startswith("id,part,before,after")
    (acting.out / "manual.csv").write_text("id,part1\nbob,4\n")
    said = acting.report()
    assert "bob  part1  10  ->   4  -6  by hand" in said and "1 total is LOWER" in said
    assert "changed" not in acting.report(), "nothing has changed since"
    refused("holds no ledger.jsonl", changes.diff, tmp_path, acting.out, None)


def timed(ratio: float, *, fit: bool = True) -> Timing:
    return replace(classrows.timing(ratio, slow=ratio > 1.1), fit=fit)


@pytest.fixture
def appealed(acting: Class, monkeypatch: Patch) -> Iterator[list[PartResult]]:
    """Grade a slow kernel. Yield a list: each judging in an appeal gives the last part the list's next result."""
    acting.add("ada", "slow")
    acting.grade()
    turns: list[PartResult] = []

    def judged(of: Assignment, source: Path, parts: Sequence[Part], *_: Any, **__: Any) -> SubmissionResult:
        found = [PartResult(part.id, part.title, "pass", part.points) for part in parts]
        found[-1] = turns.pop(0) if "slow" in source.read_text() else replace(found[-1], time=timed(1.0))
        return SubmissionResult("module", "ab" * 32, of.id, *classrows.PLACE, tuple(found), max_points=30.0)

    monkeypatch.setattr(appeals, "evaluate", judged)
    monkeypatch.setattr(appeals.fingerprints, "of_kit", lambda: "1")
    yield turns


def part3(verdict: str, ratio: float, **more: bool) -> PartResult:
    made = PartResult("part3", "Fused", verdict, 20.0, time=timed(ratio, **more))  # type: ignore[arg-type]
    return made if verdict != "wrong" else replace(made, cases=classrows.cases(hidden_wrong=True), time=None)


def appeal(acting: Class, **more: object) -> int:
    calibration = write(acting.folder / "ada", "// PYBIND11_MODULE right\n", "calibration.cpp")
    asked = {"rounds": 3, "calibration": calibration, "tier": "D", "trust": True, **more}
    return appeals.run(acting.out, "AD", **asked)  # type: ignore[arg-type]


def test_only_accepted_appeals_count(acting: Class, appealed: list[PartResult], capsys: Capture) -> None:
    before = acting.result("ada"), acting.totals()
    appealed += [part3("pass", 1.0), part3("slow", 1.5), part3("pass", 1.05)]
    assert appeal(acting) == 0 and (acting.result("ada"), acting.totals()) == before
    said = capsys.readouterr().out
    assert "part3 slow 1.50" in said and "calibration 1.00" in said and "has not been changed" in said
    (page,), (record,) = ([*acting.out.glob(f"ada/appeal-*.{kind}")] for kind in ("html", "json"))
    text = page.read_text()
    words = ("round 3", "1.02 to 1.09", "Some CPU", "g++ 12.2.0", "Threads", "calibration.cpp", "round 1")
    assert not [word for word in words if word not in text]
    kept = json.loads(record.read_text())
    assert [len(kept["rounds"]), kept["accepted"], kept["recorded_points"]] == [3, False, 18]
    appealed += [part3("pass", 1.0), part3("slow", 1.5), part3("pass", 1.05)]
    assert appeal(acting, accept=True) == 0 and acting.totals() == {"ada": "30"}
    assert "ada  part3   8  ->  20  +12  time:" in capsys.readouterr().out
    assert ledger.read(acting.out).records["ada"].reason.startswith("appeal of 20")
    acting.grade()
    assert acting.totals() == {"ada": "30"} and acting.graded() == ["ada"], "the appeal is kept"


def test_an_appeal_on_an_unfit_machine_hides_hidden_cases(acting: Class, appealed: list[PartResult]) -> None:
    appealed += [part3("slow", 1.5, fit=False), part3("wrong", 1.0, fit=True)]
    assert appeal(acting, rounds=1, accept=True) == 3 and acting.totals() == {"ada": "18"}
    assert appeal(acting, rounds=1) == 0
    page = max(acting.out.glob("ada/appeal-*.html"), key=lambda path: path.stat().st_mtime_ns).read_text()
    assert "hidden test failed" in page and not [text for text in classrows.SECRETS if text in page]
    refused("no submission is called", gradebook.entry_named, ledger.read(acting.out), "zoe")


@pytest.mark.parametrize(("days", "late_h", "left", "spent"), [
    (Days(), 30, 2, 0), (Days(1), 30, 1, 0), (Days(2), 30, 0, 0), (Days(0, 3), 30, 0, 2), (Days(1, 3), 30, 0, 1),
    (Days(0, 1), 30, 1, 1), (Days(1), 24.1, 0, 0), (Days(0, 2), 0.1, 0, 0),
])  # fmt: skip
def test_an_extension_counts_before_slip_days(days: Days, late_h: float, left: int, spent: int) -> None:
    rule = LateRule(None, 900.0, 0.1, None, None, None)
    assert late_days(rule, days.late_s(late_h * 3600)) == left
    assert days.slip_used(rule, late_h * 3600) == spent


@pytest.mark.usefixtures("due_date")
def test_an_extension_is_in_every_report_and_can_be_taken_back(acting: Class, tmp_path: Path) -> None:
    acting.add_all({"ada": "", "bob": ""})
    table = write(tmp_path, "id,time\nada,2026-11-16T08:00:00Z\nbob,2026-11-16T08:00:00Z\n", "times.csv")
    acting.grade(submitted=str(table))
    assert acting.totals() == {"ada": "20", "bob": "20"} and "extension_days" not in acting.grades()["ada"]
    assert acting.grades()["ada"]["submitted_at"] == "2026-11-16T00:00:00-08:00", "the due date's zone"
    given = grader("extend", acting.out, "AD", "--days", 1, "--slip", 2, "--reason", 'a "doctor": note')
    assert "late: late days 2 -> 0, extension days 0 -> 1, slip days 0 -> 1" in given.stdout
    row, keys = acting.grades()["ada"], ("total", "late_days", "extension_days", "slip_days")
    assert [row[key] for key in keys] == ["30", "0", "1", "1"]
    for name in ("ada/feedback.txt", "report.html"):
        assert "1 day of extension, 1 day of slip spent" in (acting.out / name).read_text()
    assert 'extension 1, slip 2 (a "doctor": note)' in acting.show("ada")
    acting.grade()
    assert acting.totals() == {"ada": "30", "bob": "20"}, "a resumed run keeps the extensions"
    path = acting.out / "extensions.yaml"
    path.write_text(path.read_text().replace('"ada"', "adda"))
    said = acting.report()
    assert "extensions.yaml:2: no submission is called 'adda'; did you mean 'ada'? (the file keeps" in said
    assert acting.totals()["ada"] == "20"
    assert grader("extend", acting.out, "bob", "--slip", 1) and '"adda"' in path.read_text()
    path.write_text("ada: {extensions: 1}")
    refused("unknown key 'extensions' in days of a student; did you mean 'extension'", acting.report)
    path.write_text("")
    assert acting.report() and acting.totals() == {"ada": "20", "bob": "20"}
    refused("give --days n", gradebook.extend, acting.out, "ada", None, None, None)


def test_feedback_has_a_mail_list(acting: Class, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    acting.add_all({"ada": "wrong", "bob": ""})
    acting.grade()
    assignment, history = gradebook.open_book(acting.out)
    ada, bob = history.roster
    group = replace(history, roster=(replace(ada, emails=("a@x.edu", "=b@x.edu"), name="=Ada"), bob))
    monkeypatch.setattr(gradebook, "open_book", lambda folder: (assignment, group))
    for as_html, suffix in ((False, "txt"), (True, "html")):
        assert gradebook.give_feedback(acting.out, tmp_path / suffix, as_html=as_html) == 0
        names = {path.name for path in (tmp_path / suffix).iterdir()}
        assert names == {f"ada.{suffix}", f"bob.{suffix}", "mailmerge.csv"}
        merge = (tmp_path / suffix / "mailmerge.csv").read_text(encoding="utf-8-sig").splitlines()
        addressed = [("a@x.edu", "'=Ada", "ada", 0), ("'=b@x.edu", "'=Ada", "ada", 0), ("", "bob", "bob", 30)]
        wanted = [f"{to},{name},{id_},{id_}.{suffix},{total},30,yes" for to, name, id_, total in addressed]
        assert merge[1:] == wanted
    assert "nothing is sent" in capsys.readouterr().out
    assert (tmp_path / "txt/bob.txt").read_text() == (acting.out / "bob/feedback.txt").read_text()


def test_the_page_for_a_student_hides_hidden_cases_and_an_error_is_shown_once(tmp_path: Path) -> None:
    hidden = classrows.result((classrows.hidden_failure(),))
    row = Row("s", "<script>", "", hidden, classrows.score(hidden), None, late_days=1)
    page = feedback.html(classrows.assignment(), row)
    assert "Hidden tests failed in: part2" in page and "<script>" not in page
    assert not [text for text in classrows.SECRETS if text in page] and '<table class="points">' in page
    broken = classrows.result(tuple(classrows.part(*known, "compile_error") for known in classrows.PARTS))
    row = Row("s", "s", "", broken, classrows.score(broken), None)
    for text in (feedback.html(classrows.assignment(), row), feedback.feedback(classrows.assignment(), row)):
        assert text.count("was not declared") == 1 and text.count("as above") == len(classrows.PARTS) - 1
    classbook.write(tmp_path, classrows.assignment(), [row])
    source = write(tmp_path, "int x;\n", "module.cpp")
    about = (broken, classrows.score(broken), verdict.Collector(), datetime(2026, 1, 1), source)
    verdict.write(tmp_path / "page.html", classrows.assignment(), *about)
    for name in ("report.html", "page.html"):
        text = (tmp_path / name).read_text()
        assert (text.count("was not declared"), text.count("As above")) == (1, len(classrows.PARTS) - 1), name


def test_a_student_is_found_by_any_part_of_the_id_or_name() -> None:
    known = {"Fay_Doe_9005": "Fay Doe", "kim_1": "Kim Ray", "kim_2": "Kim Fox"}
    for text in ("fay", "DOE", "9005", "Fay_Doe_9005", "fay doe"):
        assert closest(text, known) == "Fay_Doe_9005"
    assert closest("fox", known) == "kim_2"
    refused("'kim' fits several submissions: kim_1, kim_2; give one id", closest, "kim", known)
    refused("no submission is called 'kum_1'; did you mean 'kim_1'", closest, "kum_1", known)
    refused("no submission is called ''", closest, "", known)


def test_a_busy_machine_is_reported_with_the_disturbed_times(tmp_path: Path) -> None:
    unsure = replace(part3("pass", 1.05), time=replace(timed(1.05), flags=("undecided",)))
    calm = classrows.result((unsure, RIGHT))
    busy = replace(calm, machine={**calm.machine, "load_average": [3.46, 1.0, 1.0]})
    warning = "The machine was busy (load 3.5 on 2 cores), which disturbed the times of part3."
    assert load_warning(busy) == warning and load_warning(calm) == load_text(calm) == ""
    assert load_warning(replace(busy, parts=(RIGHT,))) == "", "without a time there is no warning"
    assert load_warning(replace(busy, machine={**busy.machine, "cores": 4})) == ""
    row = Row("s", "s", "", busy, classrows.score(busy), None)
    assert warning in feedback.feedback(classrows.assignment(), row)
    classbook.write(tmp_path, classrows.assignment(), [row])
    page = (tmp_path / "report.html").read_text()
    assert warning in page and "Times disturbed by other work" in page and "3.5 to 3.5" in page
    assert "speed-up 0.95 ×" in page and "1 timed in 8 rounds; speed-up 0.95 × (median)" in page


def test_flags_and_machine_are_printed_with_a_result() -> None:
    flags = (Flag("library_call", "It calls at::matmul.", "review"), Flag("undecided"))
    found = classrows.result((replace(RIGHT, flags=flags),), flags=(Flag("whole", "", "rejected"),))
    lines = ["machine: Some CPU @ 2.50GHz", "flag for review: part1: library_call; It calls at::matmul."]
    assert gradebook.conditions_text(found).splitlines() == [*lines, "flag for rejected: whole"]


@pytest.mark.parametrize("command", ["run", "one", "doctor", "selftest", "similar", "writeup", "release"])
def test_a_command_with_an_assignment_lists_its_lab(command: str) -> None:
    refused("choose one of them with --lab NAME", run, [command, "--labs", "x"])


def record(name: str, ratio: float | None, day: int = 4, **more: object) -> Record:
    ratios = {} if ratio is None else {"part1": (ratio, ratio - 0.02, ratio + 0.02)}
    known = {"verdicts": {"part1": "pass"}, "ratios": ratios, **more}
    return replace(acting_class.record(name), at=f"2026-11-{day:02}T12:00:00+00:00", **known)  # type: ignore[arg-type]


def run_on(day: int) -> Run:
    return Run(f"2026-11-{day:02}T08:00:00+00:00", str(COURSE), "gpt149", "f", "k", None, True, "A", 1)


@pytest.fixture
def graded(tmp_path: Path) -> Path:
    """Write results of runs on days 1 and 4. On day 4, cyd is flagged, dee and eve are wrong, fay left the roster."""
    roster = [Entry(name, name) for name in ("ada", "bob", "ida", "cyd", "dee", "eve")]
    wrong = {"verdicts": {"part1": "wrong"}}
    first = [record("ada", 1.30, 1), record("bob", 1.0, 1), record("eve", 0.5, 1)]
    last = [record("ada", 0.80), record("bob", 0.81), record("cyd", 0.1, flagged=("part1",))]
    last += [record("dee", 0.2, **wrong), record("eve", None, **wrong)]
    last += [record("ida", 1.5), record("fay", 0.3)]
    with ledger.hold(tmp_path) as book:
        for day, results in ((1, first), (4, last)):
            book.open_run(run_on(day), roster if day == 4 else [*roster, Entry("fay", "fay")])
            for each in results:
                book.finish(each, None)
    return tmp_path


def test_overlapping_intervals_share_a_rank() -> None:
    near = [Place("c", 1.2, 1.05, 1.3), Place("a", 1.0, 0.9, 1.1), Place("b", 1.1, 1.0, 1.2)]
    found = [(place.student, place.rank, place.is_tied) for place in placed([*near, Place("d", 2, 2, 2)])]
    assert found == [("a", 1, True), ("b", 1, True), ("c", 1, True), ("d", 4, False)]
    far = placed([Place("a", 1.0, 0.9, 1.1), Place("b", 1.2, 1.11, 1.3), Place("c", 1.25, 1.2, 1.3)])
    assert [place.rank for place in far] == [1, 2, 2] and placed([]) == ()
    # "late" overlaps with "wide", which overlaps with all twelve tight intervals, so all of these share a rank.
    tight = [Place(f"t{k}", 0.93 + k / 1000, 0.925, 0.95) for k in range(12)]
    others = [Place("late", 1.0, 0.97, 1.04), Place("wide", 0.92, 0.9, 0.99), Place("far", 2, 1.9, 2.1)]
    found = placed([*tight, *others])
    assert {place.student: place.rank for place in found if place.rank > 1} == {"far": 15}
    assert [place.student for place in found[:2]] == ["wide", "t0"] and found[0].is_tied


def test_one_person_with_two_ids_is_listed_once(tmp_path: Path) -> None:
    roster = [Entry("fay", "Fay", ("F@x.edu",)), Entry("fay-2", "Fay", ("f@x.edu",), identities=("sis:7",))]
    roster += [Entry("doe", "Fay", identities=("sis:7",)), Entry("other", "Fay", ("g@x.edu",))]
    roster.append(Entry("bare", "Fay"))
    with ledger.hold(tmp_path) as book:
        book.open_run(run_on(4), roster)
        for k, entry in enumerate(roster):
            book.finish(record(entry.submission_id, 1.0 + k / 2), None)
    (part,) = board_of([tmp_path], ASSIGNMENT).parts
    assert [(one.student, one.ratio) for one in part.places] == [("doe", 1.0), ("other", 2.5), ("bare", 3.0)]


def test_only_right_and_unflagged_results_are_on_the_board(graded: Path) -> None:
    board = board_of([graded], ASSIGNMENT)
    (part,) = board.parts
    assert [(place.student, place.rank) for place in part.places] == [("ada", 1), ("bob", 1), ("ida", 3)]
    assert [*part.history["ada"].values()] == [1.30, 0.80] and len(board.runs) == 2
    for uncounted in (record("x", float("nan")), record("x", 1.0, fault="kit")):
        assert counted(uncounted, "part1") is None
    assert counted(record("x", 1.0, verdicts={"part1": "slow"}), "part1") is not None


def test_the_board_is_whole_and_pseudonyms_stay(graded: Path, capsys: Capture) -> None:
    assert run(["board", str(graded), "--json", str(graded / "field.json")]) == 0
    said, page = capsys.readouterr().out, (graded / "board.html").read_text()
    read, kept = Page(page), (graded / "pseudonyms.csv").read_text()
    known = {row["id"]: row["pseudonym"] for row in csv.DictReader(kept.splitlines())}
    assert not read.open and "<script" not in page
    assert not [given for _, given in read.elements if "src" in given or (given.get("href") or "#")[0] != "#"]
    assert set(known) == {"ada", "bob", "ida"} and len(set(known.values())) == 3
    assert not re.search(r"\b(ada|bob|ida)\b", page + said)
    assert all(page.count(name) >= 2 for name in known.values()), "each is in the table and at a curve"
    assert page.count("<polyline") == 3 and page.count("=1</td>") == 2
    (field,) = json.loads((graded / "field.json").read_text())["ada"]
    assert field == {"name": "part1: time / reference", "value": 0.8, "order": "asc"}
    assert run(["board", str(graded)]) == 0
    assert (graded / "pseudonyms.csv").read_text() == kept, "a student keeps the pseudonym"
    assert run(["board", str(graded), "--names"]) == 0
    assert "<bdi>ada</bdi>" in (graded / "board.html").read_text()


def test_a_hostile_name_is_shown_as_text(graded: Path) -> None:
    odd = dict.fromkeys(("ada", "bob", "ida"), "<b>\u202eodd")
    hostile = "".join(page_of(ASSIGNMENT, board_of([graded], ASSIGNMENT), odd))
    assert "&lt;b&gt;" in hostile and "<b>" not in hostile and "\u202e" not in hostile


def test_a_board_without_data_or_jinja_is_refused(graded: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    refused(r"holds no ledger\.jsonl", run, ["board", str(tmp_path / "none"), str(graded)])
    with ledger.hold(tmp_path / "empty") as book:
        book.open_run(run_on(1), [Entry("ada", "ada")])
    refused("no leaderboard was written", run, ["board", str(tmp_path / "empty")])
    monkeypatch.setattr("grader.staff.board.missing_library", lambda: "jinja2")
    refused("needs the package jinja2: `pip install jinja2`", run, ["board", str(graded)])
