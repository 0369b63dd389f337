"""A tool that the machine lacks is not the student's fault: open points, never a 0, from verdict to report."""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from classes.acting_class import SMALL, rows_of
from classrows import PARTS, assignment, part, result
from conftest import insert_at_start, keeping, python, write_files
from ispc_stand_in import BROKEN, INCLUDE, PROGRAM, STAND_IN, USES_IT, on_the_path

from grader.core.errors import EXIT_KIT, EXIT_PASS, EXIT_SUBMISSION
from grader.core.results import Diagnosis, PartResult, SubmissionResult, exit_code
from grader.report import classbook, feedback, result_json, terminal
from grader.report import gradescope as gradescope_report
from grader.report.machines import Row
from grader.score import part_points, score
from grader.staff.classroom import gradebook, ledger, planning

LACKING = "This machine has no ispc that runs."


def unjudged(part_id: str, title: str, points: float) -> PartResult:
    diagnosis = Diagnosis("machine_lacks", LACKING)
    return PartResult(part_id, title, "unjudged", points, diagnosis=diagnosis, waits_for="ispc")


WAITING = result(tuple(unjudged(*known) for known in PARTS))
SCORED = score(assignment(), WAITING)
MIXED = result((part(*PARTS[2]), unjudged(*PARTS[3])))


def row_of(found: SubmissionResult, name: str = "bob", **manual: float) -> Row:
    return Row(name, name.title(), "", found, score(assignment(), found, manual), None)


def test_its_points_are_open_and_no_part_of_a_grade_until_they_are_given_by_hand() -> None:
    ids = tuple(known[0] for known in PARTS)
    assert SCORED.waiting == ids and SCORED.pending == (*ids, "writeup")
    assert all("no ispc" in line.reason and "open" in line.reason for line in SCORED.lines if line.id in ids)
    for known in assignment().parts:
        points, reason = part_points(known, PartResult(known.id, known.title, "unjudged", known.points))
        assert points == 0 and "open" in reason
    scored = score(assignment(), WAITING, {"part1": 8.0})
    assert "part1" not in scored.waiting and "part1" not in scored.pending
    assert next(line for line in scored.lines if line.id == "part1").points == 8.0
    row = row_of(WAITING, part1=0.0)
    assert row.part_points("part1") == 0.0 and row.part_points("part2") is None and row.total is None
    row = row_of(WAITING, **{known[0]: known[2] for known in PARTS})
    assert row.total == 93.0 and not row.waiting


CODES = {"": EXIT_PASS, "pass pass": EXIT_PASS, "pass unjudged": EXIT_KIT, "unjudged": EXIT_KIT}
CODES |= {"unjudged wrong": EXIT_SUBMISSION, "pass slow": EXIT_SUBMISSION}


@pytest.mark.parametrize("verdicts", CODES)
def test_exit_codes(verdicts: str) -> None:
    assert exit_code(PartResult("p", "", verdict, 1) for verdict in verdicts.split()) == CODES[verdicts]


def test_it_survives_in_files_and_those_of_an_earlier_kit_wait_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result_json.write(WAITING, SCORED, path)
    values = json.loads(path.read_text())
    assert {part["waits_for"] for part in values["parts"]} == {"ispc"} and values["schema_version"] == 1
    assert result_json.read(path) == WAITING
    for part_values in values["parts"]:
        del part_values["waits_for"]  # as an earlier kit wrote it
    path.write_text(json.dumps(values))
    assert result_json.read(path).parts[0].waits_for == ""
    prints = {"source": "1", "assignment": "2", "kit": "3", "settings": "4"}
    known = {"submission_id": "a", "at": "", "seconds": {}, "attempt": 1}
    old = {"kind": "result", "fingerprints": prints, **known}
    (tmp_path / ledger.LEDGER).write_text(json.dumps(old) + "\n")
    assert ledger.read(tmp_path).records["a"].waits_for == ""
    nameless = result((PartResult("part1", "Naive", "unjudged", 10.0),))
    assert "lacks a tool for them" in feedback.not_judged(nameless, ("part1",))


def test_no_report_shows_a_0(tmp_path: Path) -> None:
    whole = result(tuple(part(*known) for known in PARTS))
    rows = [row_of(WAITING), row_of(MIXED, "ann"), row_of(whole, "zoe")]
    assert not classbook.write(tmp_path, assignment(), rows)
    bob, ann, zoe = rows_of(tmp_path).values()
    assert {bob[name] for name, _, _ in PARTS} == {""}
    assert (bob["total"], bob["part1_verdict"]) == ("", "unjudged")
    assert bob["pending"].split() == [*(name for name, _, _ in PARTS), "writeup"]
    assert (ann["part1"], ann["part2"], ann["total"]) == ("10", "", "") and "part2" in ann["pending"].split()
    assert zoe["total"] == "93" and zoe["pending"] == "writeup"
    page = (tmp_path / "report.html").read_text()
    assert "for want of ispc" in page and "not judged yet" in page and "not final" in page
    assert page.count('class="c-unjudged"') >= 7
    feedback_text = (tmp_path / "bob" / "feedback.txt").read_text()
    for words in ("not your fault", "has no ispc", "not judged  open of 10 points", LACKING):
        assert words in feedback_text
    assert "\nTotal open of 100" in re.sub(" +", " ", feedback_text)
    assert "not judged" not in (tmp_path / "zoe" / "feedback.txt").read_text()


def test_a_terminal_says_that_the_points_are_open() -> None:
    stream = io.StringIO()
    screen = terminal.Terminal(stream)
    other = replace(WAITING.parts[0], id="other", diagnosis=Diagnosis("machine_lacks", "no nvcc"))
    for one in (*WAITING.parts, other):
        screen.verdict(one, 0.0)
    screen.scoreboard(WAITING, SCORED)
    screen.say(gradebook.score_text(SCORED))
    printed = stream.getvalue()
    assert "NOT JUDGED  open of 10 points" in printed and printed.count(LACKING) == 1 and "no nvcc" in printed
    assert printed.count("as above") == len(WAITING.parts) - 1
    assert "not judged" in printed and "open / 10" in printed and "0 / 93, not final" in printed
    assert "total: open of 100" in printed and "0 of 10" not in printed


def test_gradescope_says_that_its_0_is_not_a_grade() -> None:
    def rendered(found: SubmissionResult) -> dict:
        return gradescope_report.results(assignment(), found, score(assignment(), found), seconds=1.0)

    found = rendered(WAITING)
    assert found["output"].startswith("Not judged yet: 4Dread") and "not your fault" in found["output"]
    assert "graded by people: writeup." in found["output"]
    for test in found["tests"]:
        assert "this 0 is not a grade" in test["name"] and "not judged" in test["output"]
    found = rendered(MIXED)
    names = [test["name"] for test in found["tests"] if test["visibility"] == "visible"]
    assert ["not a grade" in name for name in names] == [False, True]


def test_waiting_is_over_when_all_of_it_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(planning, "CHECKS", {"ispc": lambda: True, "gpu": lambda: False})
    monkeypatch.setenv("PATH", str(tmp_path))
    assert planning.is_over("") == planning.is_over("gpu") == planning.is_over("gpu ispc") == ""
    assert planning.is_over("ispc") == "ispc is here now" and planning.is_over("nvcc") == ""
    write_files(tmp_path, {"nvcc": "#!/bin/sh\n"}, 0o755)
    assert planning.is_over("ispc nvcc") == "ispc and nvcc is here now"


def test_lines_name_how_many_what_for_and_what_to_do() -> None:
    waits = {**{f"s{k}": "ispc" for k in range(7)}, "x": "nvcc"}
    first, second = planning.missing_tools(waits, "go on")
    assert first.startswith("7 cannot be judged without ispc") and "s0, s1, s2, s3, s4 and 2 more" in first
    assert "https://ispc.github.io" in first and "open" in first and first.endswith("then go on")
    assert second.startswith("1 cannot be judged without nvcc, their points are open: x;")


def run(path: str, *command: object) -> CompletedProcess[str]:
    return python(*command, "--config", SMALL, "--no-time", timeout_s=600, PATH=path)


@pytest.fixture(scope="module")
def paths() -> Iterator[tuple[str, str]]:
    with on_the_path(BROKEN) as without, on_the_path(STAND_IN) as with_ispc:
        yield without, with_ispc


@pytest.fixture(scope="module")
def class_folder(master: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = keeping(master, "myNaiveAttention", "myFusedAttention")
    uses = INCLUDE + insert_at_start(plain, "myNaiveAttention", USES_IT)
    submissions = {
        "plain": {"module.cpp": plain},
        "uses": {"module.cpp": uses, "module.ispc": PROGRAM},
        "wrong": {"module.cpp": uses, "module.ispc": PROGRAM.replace("*= by", "+= by")},
        "empty": {"module.cpp": INCLUDE + plain, "module.ispc": "// later\n"},
        "alone": {"module.cpp": uses},
        "leftover": {"module.cpp": plain, "module.ispc": PROGRAM},
        "broken": {"module.cpp": "no C++;", "module.ispc": PROGRAM},
    }
    texts = {f"{name}/{file}": text for name, files in submissions.items() for file, text in files.items()}
    return write_files(tmp_path_factory.mktemp("class"), texts)


def test_a_class_waits_for_ispc(class_folder: Path, paths: tuple[str, str], tmp_path: Path) -> None:
    out, (without, with_ispc) = tmp_path / "out", paths

    def run_class(path: str, *more: str) -> tuple[int, str]:
        where = (class_folder, "--out", out, "--seed", "149", "--trust")
        ended = run(path, "-m", "grader", "run", *where, *more)
        return ended.returncode, ended.stdout + ended.stderr

    code, said = run_class(without)
    assert code == EXIT_KIT, said
    waits = "2 cannot be judged without ispc, their points are open: uses, wrong"
    before, _, after = said.partition("[1/7]")
    assert waits in before and waits in after and "5 of 7 graded" in after
    assert "--resume" in after.rpartition(waits)[2] and "points are open until there is ispc" in after
    for name, record in ledger.read(out).records.items():
        broken = name in ("alone", "broken") and "compile_error"
        verdict = "unjudged" if name in ("uses", "wrong") else broken or "pass"
        assert set(record.verdicts.values()) == {verdict}, name
    grades = rows_of(out)
    assert set(grades) == {folder.name for folder in class_folder.iterdir()}
    for name in ("uses", "wrong"):
        assert grades[name]["total"] == grades[name]["part1"] == grades[name]["part3"] == ""
        assert grades[name]["pending"] == "part1 part3" and grades[name]["trouble"] == ""
    assert grades["alone"]["total"] == "0" and grades["plain"]["total"] == "30"

    code, said = run_class(without, "--resume")
    assert code == EXIT_KIT and waits in said.partition("of 7 graded")[0] and "[1/" not in said, said

    code, said = run_class(with_ispc, "--resume")
    assert code == EXIT_PASS, said
    assert "2 are graded again (ispc is here now): uses, wrong" in said and "[2/2]" in said
    assert "cannot be judged" not in said and "7 of 7 graded" in said
    grades = rows_of(out)
    assert grades["uses"]["total"] == "30" and grades["uses"]["pending"] == ""
    assert (grades["wrong"]["part1"], grades["wrong"]["part1_verdict"]) == ("0", "wrong")
    kept = json.loads((out / "uses" / ledger.RESULT).read_text())
    assert "stand-in" in kept["toolchain"]["ispc"] and (out / "uses" / "module.ispc").is_file()
    assert "ispc" not in json.loads((out / "plain" / ledger.RESULT).read_text())["toolchain"]

    code, said = run_class(without, "--resume")
    assert code == EXIT_PASS and "7 were finished before" in said, "what was judged stays judged"


def test_a_run_of_ones_own_says_what_to_install(class_folder: Path, paths: tuple[str, str]) -> None:
    student, staff = ("gpt149.py", "all", "--no-table", "--module"), ("-m", "grader", "one", "--trust")
    for path, code in zip(paths, (EXIT_KIT, EXIT_PASS), strict=True):
        for command in (student, staff):
            ended = run(path, *command, class_folder / "uses")
            assert ended.returncode == code, ended.stdout + ended.stderr
            if code == EXIT_KIT:
                assert "NOT JUDGED  open of 10 points" in ended.stdout
                assert "no points" in ended.stdout and "ispc.github.io" in ended.stdout
