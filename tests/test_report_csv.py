"""grades.csv, feedback.txt, result.json: they can be read back, contain no formulas or commands, reveal no secrets."""

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import classrows as paper
import pytest
from classes.acting_class import rows_of
from classrows import NAMES, PARTS, SECRET_NAME, SECRETS, assignment, part, result, score
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st

from grader.assignment.records import Case
from grader.backends.faults import Broken
from grader.backends.native import crashes
from grader.core.errors import UsageError
from grader.core.results import Diagnosis, Memory, PartResult, Score, ScoreLine
from grader.report import classbook, feedback, grades_csv, html, result_json, student, terminal, words
from grader.report.machines import Row
from grader.runner.calls import Call
from grader.staff import writeups
from grader.study import table

KNOWN_CASES = (*(Case(name, "random", 1) for name in NAMES), Case(SECRET_NAME, "random", 2, hidden=True))
Change = Callable[[dict[str, Any]], object]
NAIVE = ("part1", "Naive", 10.0)
FORMULAS = ("-2.5", "=1", "+1", "@a", "\t=1", "\r=1", "\n=1", " =1", "\x1b[1m=1", "\u202e=1")
#: Cells that become formulas in spreadsheets that split at semicolons, or misread quotation marks within a cell.
SPLIT = ("a;=1+1", "a\t=1+1", "a; =1+1", 'a;"=1+1"', 'a;" "@SUM(1)', "a|-1", "x;y;+1", "=1;=2", "a;\t;＝1")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("class")
    assert classbook.write(folder, assignment(), paper.the_class(20)) == ()
    return folder


def test_every_row_has_its_numbers_no_cell_is_a_formula_and_such_text_an_apostrophe(written: Path) -> None:
    assert all(grades_csv.safe_text(value).startswith(("'", "\ufffd")) for value in FORMULAS)
    assert (written / "grades.csv").read_bytes().startswith(b"\xef\xbb\xbfid,name,email,")
    assert not [path.name for path in written.iterdir() if path.name.startswith(".")], "none is left"
    rows, grades = list(paper.the_class(20)), [*rows_of(written).values()]
    assert [grade["id"] for grade in grades] == [row.submission_id for row in rows]
    for row, grade in ((row, grade) for row, grade in zip(rows, grades, strict=True) if row.score):
        lines = {line.id: line for line in row.score.lines}
        assert float(grade["total"]) == pytest.approx(row.score.total)
        assert float(grade["part3"]) == lines["part3"].points
        assert float(grade["late_penalty"]) == row.score.penalty
        assert grade["part3_verdict"] == {p.id: p.verdict for p in row.result.parts}["part3"]
        assert (grade["writeup"] == "") == ("writeup" in row.score.pending)
    with (written / "grades.csv").open(encoding="utf-8-sig", newline="") as file:
        for cell in (cell for line in csv.reader(file) for cell in line):
            assert not cell.startswith(("=", "+", "@", "\t", "\r", "＝", "＋", "－", "＠"))
            assert not cell.startswith("-") or cell.lstrip("-").replace(".", "").isdigit()
    names = [grade["name"] for grade in grades]
    assert '\'=HYPERLINK("http://x","click")' in names and "أحمد بن محمد" in names


@given(st.text(st.characters(codec=None), max_size=200))
def test_any_text_becomes_harmless(text: str) -> None:
    safe = grades_csv.safe_text(text)
    assert not safe.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert not any(ord(c) < 32 or c in "\u2028\u2029\u202e\u2066" for c in safe)
    for kept in (safe, words.line(text), words.block(text)):
        kept.encode("utf-8")
        assert not {*"\x1b\u202e\r"} & {*kept}
    assert "\n" not in words.line(text)


@pytest.mark.parametrize("value", SPLIT)
def test_no_cell_is_a_formula_wherever_a_spreadsheet_splits(value: str, tmp_path: Path) -> None:
    ada = replace(row_of(part(*NAIVE)), name=value, email=value, trouble=value)
    classbook.write(tmp_path, assignment(), [ada])
    writeups.update(tmp_path / "manual.csv", {"ada": (value, value)}, "writeup", None)
    texts = [(tmp_path / name).read_text(encoding="utf-8-sig") for name in ("grades.csv", "manual.csv")]
    for text in (*texts, table.Table("t", "t", (value, "n"), ((value, 1.0),)).csv()):
        assert value.strip('="')[-1] in text
        for delimiter in ",;\t|":
            for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
                assert not [cell for cell in row if cell.strip(' "').startswith(("=", "+", "-", "@", "＝"))]
    (line,) = rows_of(tmp_path).values()
    assert line["name"].replace("'", "") == words.line(value), "only apostrophes are added"


def test_negative_points_are_numbers_and_missing_grades_are_empty(tmp_path: Path) -> None:
    found = result((part(*NAIVE),))
    negative = Score((ScoreLine("part1", "Naive", -0.1 - 0.2, 10.0),), -0.3, 0, 0.0, -0.3, 10.0)
    rows = [Row("a", "A", "", found, negative, None), Row("b", "B", "", None, None, "the archive is broken")]
    rows.append(Row("c", "C", "", found, replace(score(found), total=math.nan), None))
    classbook.write(tmp_path, assignment(), rows)
    first, second, third = rows_of(tmp_path).values()
    assert (first["part1"], first["total"]) == ("-0.3", "-0.3")
    assert (second["part1"], second["total"], second["trouble"]) == ("", "", "the archive is broken")
    assert third["total"] == ""


def test_without_jinja_there_are_still_grades(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "missing_library", lambda: "jinja2")
    notes = classbook.write(tmp_path, assignment(), paper.the_class(2))
    assert len(notes) == 1 and "jinja2" in notes[0] and "\n" not in notes[0]
    assert len(rows_of(tmp_path)) == 2 + len(paper.absurd_rows()) and not (tmp_path / "report.html").exists()


def test_a_failed_report_keeps_old_grades_and_a_blocked_folder_new_ones(tmp_path: Path) -> None:
    (tmp_path / "grades.csv").write_text("old")

    def rows():
        yield from paper.absurd_rows()[:1]
        raise UsageError("the ledger is broken")

    refused("ledger", classbook.write, tmp_path, assignment(), rows())
    assert (tmp_path / "grades.csv").read_text() == "old"
    (tmp_path / "a").write_text("a file where the folder should be")
    several = [replace(row_of(part(*NAIVE)), submission_id=name) for name in ("a", "../outside", "b")]
    assert len(classbook.write(tmp_path, assignment(), several)) == 2 and len(rows_of(tmp_path)) == 3
    assert (tmp_path / "b" / "feedback.txt").is_file() and not (tmp_path.parent / "outside").exists()


def secrets_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def row_of(*parts: PartResult) -> Row:
    found = result(tuple(parts))
    return Row("s1", "Ada", "a@example.edu", found, score(found), None)


def feedback_on(*parts: PartResult) -> str:
    return feedback.feedback(assignment(), row_of(*parts))


def test_a_time_of_submission_is_reported_in_the_zone_of_the_due_date() -> None:
    at = datetime(2026, 11, 15, 8, 30, tzinfo=timezone.utc)
    row, own = replace(row_of(part(*PARTS[2])), submitted_at=at), assignment()
    assert own.late is not None and own.late.due is None
    assert "\nHanded in 2026-11-15 08:30 UTC\n" in feedback.feedback(own, row)
    due = datetime(2026, 11, 14, 23, 59, tzinfo=timezone(timedelta(hours=-8)))
    own = replace(own, late=replace(own.late, due=due))
    assert "\nHanded in 2026-11-15 00:30 UTC-08:00\n" in feedback.feedback(own, row)


def test_only_the_failure_of_hidden_cases_is_reported_and_public_ones_in_full() -> None:
    text = feedback_on(part(*PARTS[2]), paper.hidden_failure())
    lines = ("1 of 2 parts passed.", "Hidden tests failed in: part2.", "right on 6 of 6 public inputs")
    assert not [known for known in (*lines, student.OWN_SHAPES.split()[-1]) if known not in text]
    assert "all passed" not in text.lower() and secrets_in(text) == []
    found = paper.cases("heads_copied", hidden=False)
    wrong = replace(part(*NAIVE, "wrong"), cases=found, diagnosis=found[1].diagnosis, output="i=3")
    text = feedback_on(wrong)
    assert "Expected 0.5" in text and "i=3" in text and "hidden" not in text.lower()
    both = feedback_on(replace(wrong, cases=paper.cases("heads_copied", hidden_wrong=True)))
    assert "Hidden tests failed in: part1.\n" in both and "Try your own" not in " ".join(both.split())


def test_no_feedback_holds_a_secret_or_another_student(written: Path) -> None:
    files = list(written.glob("*/feedback.txt"))
    assert len(files) == 20 + len(paper.absurd_rows())
    for text in (path.read_text(encoding="utf-8") for path in files):
        assert secrets_in(text) == [] and "\x1b" not in text
    texts = {row.name: feedback.feedback(assignment(), row) for row in list(paper.the_class(5))[:5]}
    for name, text in texts.items():
        assert [other for other in texts if other in text] == [name]


def test_texts_of_a_kernel_after_a_hidden_case_are_not_shown() -> None:
    """A kernel that has seen a hidden input may print it, put it into an exception, or return it as a wrong value."""
    message = "Expected 0.5, got 7919 at (b=0, h=0, i=0, j=0); all 64 elements are wrong."
    wrong = Diagnosis("wrong_values", message)
    *public, hidden = paper.cases()
    after = replace(public[1], ok=False, max_error=7918.5, diagnosis=wrong)
    leaking = replace(part(*PARTS[2]), verdict="wrong", diagnosis=wrong, output="N=7919\n")
    text = feedback_on(replace(leaking, cases=(public[0], hidden, after)))
    assert "7919" not in text and "7918" not in text and "'random'" in text
    # The message of a public case that was called before the hidden case cannot reveal it, so it is shown in full.
    text = feedback_on(replace(leaking, cases=(public[0], after, hidden)))
    assert "got 7919" in text and "N=7919" not in text
    thrown = Diagnosis("exception", "myKernel on the input 'random' threw a C++ exception: N is prime")
    ended = replace(part(*PARTS[2]), verdict="crash", diagnosis=thrown, cases=(hidden,))
    assert "prime" not in feedback_on(ended) and "crash" in feedback_on(ended)
    assert "N is prime" in feedback_on(replace(ended, cases=tuple(public[:2])))


def test_a_crash_names_no_hidden_case_and_repeats_a_student_s_own_words() -> None:
    message = f"myKernel on the input '{SECRET_NAME}' crashed with SIGSEGV: 7919."
    ended = replace(part(*PARTS[2]), verdict="crash", cases=paper.cases()[:-1])
    # A message that was cut may lack the case's name, and an old result may lack the field `hidden`.
    for text in (message, "myKernel crashed with SIGSEGV: 7919."):
        for diagnosis in (Diagnosis("sigsegv", text, hidden=hidden) for hidden in (True, None)):
            view = student.view(replace(ended, diagnosis=diagnosis), KNOWN_CASES)
            assert view.hidden_passed is False and view.note.startswith(student.HIDDEN_FAILED)
            assert view.part.verdict == "wrong", "only the failure of a hidden test is shown"
            assert secrets_in("\n".join(text for _, text in feedback.paragraphs(view))) == []
    # An exception's text is the student's own. A hidden case's name in it does not make the case hidden.
    message = f"myKernel on the input 'random' threw a C++ exception: '{SECRET_NAME}'"
    for diagnosis in (Diagnosis("exception", message, hidden=hidden) for hidden in (False, None)):
        view = student.view(replace(ended, diagnosis=diagnosis, cases=paper.cases()[:1]), KNOWN_CASES)
        assert view.part.diagnosis == diagnosis and student.HIDDEN_FAILED not in view.note
    right = tuple(replace(case, ok=True, diagnosis=None) for case in ended.cases)
    raced = replace(ended, verdict="wrong", diagnosis=Diagnosis("race", "two threads"), cases=right)
    assert student.view(raced, KNOWN_CASES).part.diagnosis == raced.diagnosis
    call, its_part = Call("crash", signal_name="SIGSEGV"), assignment().part("part1")
    for hidden in (False, True):
        assert crashes.call_fault(Broken(its_part, call, "random", hidden)).diagnosis.hidden is hidden


LINES = "\nLines to look at in merge:\n"
ONE_LINE = "dA is written with =.\nLines to look at in add:\n  a.cpp:40: row[C == 1 ? 0 : j] += g[i * C + j];   (it is)"
WEIGHTS = "The weights are 1 + x in place of exp(x)."
NUMBERLESS = {
    f"{WEIGHTS} Expected 3, got 7.": WEIGHTS,
    "Rows 96 to 102 are wrong. Look at the remainder tile.": "Look at the remainder tile.",
    "It returned a tensor of shape (2, 3, 103, 40).": "",
    f"{LINES.lstrip()}  a.cpp:40: m = 7;": "",
    ONE_LINE: "dA is written with =.",
    f"m is too small.{LINES}  a.cpp:2: m = 0;\n  a.cpp:4: s = 1;": "m is too small.",
}


def test_numberless_keeps_the_kits_sentences_without_numbers() -> None:
    assert {message: student.numberless(message) for message in NUMBERLESS} == NUMBERLESS
    found = student.numberless("The inputs have been rounded to half precision (float16). Got 1e-7.")
    assert found.startswith("The inputs have") and "1e-7" not in found


def test_a_peak_of_0_bytes_and_cut_texts_are_stated_in_words() -> None:
    text = terminal.memory_text(Memory(1024, 1024, 0, 4096))
    assert "true peak of the call: no more than earlier calls (reference 4096)" in text
    assert "(reference" not in terminal.memory_text(Memory(1024, None, 2048, 0)).splitlines()[1]
    assert words.peak(0) == terminal.NO_GROWTH and words.peak(2048) == "2.00 KB" and words.peak(None) == "–"
    assert "0 B" not in terminal.score_row(replace(part(*PARTS[2]), memory=Memory(1024, 1024, 0, 4096)), "0")
    assert len(words.line("x" * 10_000)) == 200 and words.line("x" * 10_000).endswith("…")
    assert words.block("a\n" * 10_000, 100).endswith("... (cut here)")
    assert words.block("\x1b[31m" * 100_000).endswith("... (cut here)")
    assert words.line("Z" + "\u0301" * 60 + "algo").count("\u0301") <= 4


def test_a_result_is_read_back_with_nan_for_numbers_that_are_not_finite(tmp_path: Path) -> None:
    for verdict in paper.VERDICTS:
        found = result((*(part(*known, verdict) for known in PARTS), paper.hidden_failure()))
        result_json.write(found, score(found), tmp_path / "result.json")
        assert result_json.read(tmp_path / "result.json") == found
    naive = part(*NAIVE)
    endless = replace(naive, max_points=math.inf, time=replace(naive.time, ratio_interval=(0.5, math.inf)))
    result_json.write(result((endless,)), score(result((naive,))), tmp_path / "result.json")
    found = result_json.read(tmp_path / "result.json").parts[0]
    assert math.isnan(found.max_points) and found.time.ratio_interval[0] == 0.5
    assert math.isnan(found.time.ratio_interval[1])


DAMAGES: dict[str, Change] = {
    "schema_version": lambda v: v.update(schema_version=2),
    "parts is missing": lambda v: v.pop("parts"),
    r"parts\[0\].verdict should be one of": lambda v: v["parts"][0].update(verdict="great"),
    r"parts\[0\].cases\[1\].ok": lambda v: v["parts"][0]["cases"][1].update(ok="yes"),
    "should hold 2 values": lambda v: v["parts"][0]["time"].update(ratio_interval=[1]),
    "submission": lambda v: v.update(submission=3),
    "machine": lambda v: v.update(machine=[]),
}


@pytest.mark.parametrize(("why", "change"), DAMAGES.items())
def test_a_damaged_result_is_reported_with_its_field(change: Change, why: str, tmp_path: Path) -> None:
    whole = result((part(*NAIVE),))
    values = result_json.to_dict(whole, score(whole))
    change(values)
    (tmp_path / "result.json").write_text(json.dumps(values))
    refused(why, result_json.read, tmp_path / "result.json")
