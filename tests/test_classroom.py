"""Grading a class: killed judges, changed or late submissions in all forms, points by hand, and the command line."""

import json
import os
import random
import re
import signal
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

import pytest
from classes.acting_class import HANG_S, SMALL, Class, gone, processes_of, rows_of, wait_until
from conftest import ROOT, Capture, Patch, grader, insert_at_start, keeping, one_of_each, put, refused, write
from handing_in import SOURCE, quoted_overlap, tar_bytes, zipped
from process_tree import alive, descendants

from grader.__main__ import run
from grader.assignment import loading
from grader.assignment.records import RunLimits
from grader.backends.torch.torchbuild import precompile
from grader.core.errors import KitError
from grader.staff.classroom import byhand, executor, ledger, planning
from grader.submission import exports, find, find_one
from grader.submission.archive import opening
from grader.submission.ids import no_such_submission


def test_killed_judge_resumes_to_the_same_grades_and_grades_none_twice(acting: Class, tmp_path: Path) -> None:
    """Kill four judges, each after 0 to 2 results of 10 submissions. A fifth judge grades the rest."""
    names = [f"student{k:02d}" for k in range(10)]
    for k, name in enumerate(names):
        acting.add(name, "turn", ("pass", "slow", "wrong")[k % 3])
    (acting.folder / "broken.zip").write_bytes(b"PK\3\4 no more than that")
    acting.allow_turns(10)
    acting.grade(seed=1)
    expected = (acting.out / "grades.csv").read_bytes()
    assert acting.totals() == {"broken": "0", **dict(zip(names, ["30", "18", "0"] * 4, strict=False))}
    moments = random.Random(149)
    acting.out = tmp_path / "killed"
    for _ in range(4):
        acting.allow_turns(2)
        goal = len(acting.recorded()) + moments.randrange(3)
        judge = acting.start(seed=1, workers=2)
        wait_until(lambda goal=goal: len(acting.recorded()) >= goal, judge)
        time.sleep(moments.uniform(0, 0.1))
        finished = set(acting.recorded())
        acting.kill(judge)
        assert finished <= set(acting.recorded()), "a kill lost finished results"
    assert len(acting.recorded()) < 11
    acting.allow_turns(10)
    acting.grade(seed=1)
    assert (acting.out / "grades.csv").read_bytes() == expected
    assert acting.recorded() == dict.fromkeys([*names, "broken"], 1), "graded twice"
    assert not list(acting.temporary.iterdir()), "a scratch folder is left"


@pytest.mark.full
def test_a_worker_that_dies_twice_costs_only_its_submission(acting: Class) -> None:
    acting.add_all({"ada": "", "bob": "die 1\nslow", "eve": "die 2\nslow", "zoe": "wrong"})
    said = acting.grade(exit_code=3, workers=2)
    assert "1 has no verdict because the kit or the machine failed: eve" in said
    assert acting.totals() == {"ada": "30", "bob": "18", "eve": "", "zoe": "0"}
    trouble = acting.grades()["eve"]["trouble"]
    assert "the kit or the machine failed" in trouble and "SIGKILL" in trouble
    assert ledger.read(acting.out).records["bob"].attempt == 2 and gone(acting.state)
    assert "1 is graded again (the kit failed last time): eve" in acting.grade()
    assert acting.totals()["eve"] == "18"
    assert Counter(acting.graded()) == {"ada": 1, "bob": 1, "eve": 1, "zoe": 1}


def test_unsteady_machine_sends_a_submission_to_the_end_of_the_queue_twice_at_most(acting: Class) -> None:
    acting.add_all({"ada": "unfit 1", "bob": "unfit 9", "eve": ""})
    assert acting.grade().count("too unsteady") == 3
    assert acting.graded() == ["ada", "bob", "eve", "ada", "bob", "bob"]
    attempts = {name: record.attempt for name, record in ledger.read(acting.out).records.items()}
    assert attempts == {"ada": 2, "bob": 3, "eve": 1}


def test_workers_that_cannot_start_are_reported_with_their_output(acting: Class) -> None:
    acting.add("ada")
    said = acting.grade(exit_code=1, command=["-c", "import sys; sys.exit('there is no torch here')"])
    assert "KitError: workers cannot start (exit code 1): there is no torch here" in said
    assert not acting.recorded()


def test_a_run_ends_after_a_few_submissions_if_nothing_can_be_graded(acting: Class) -> None:
    acting.add_all({f"student{k}": "hopeless" for k in range(9)})
    assert "KitError: nothing can be graded here: there is no compiler" in acting.grade(exit_code=1)
    assert 3 <= len(acting.recorded()) <= 4


def test_a_file_that_is_read_without_end_costs_only_its_own_verdict(acting: Class) -> None:
    """Each phase has its own time limit. Reading may take only seconds, so that a class does not wait for hours."""
    acting.add_all({"ada": "", "bob": "ponder", "eve": "", "zoe": ""})
    said = acting.grade(exit_code=3, inspection_s=0.1)
    assert sorted(acting.graded()) == ["ada", "eve", "zoe"]
    assert "3 of 4 graded" in said and "stuck in inspection" in acting.grades()["bob"]["trouble"]
    acting.add("bob")
    acting.grade()
    assert sorted(acting.graded()) == ["ada", "bob", "eve", "zoe"]
    limits = executor.silence_limits(RunLimits(build_s=180, call_s=10, memory_gib=4))
    assert limits["waiting"] is None
    assert limits["inspection"] <= 60 and 180 < limits["building"] <= 1500
    assert limits["timing"] == limits["results"] > 200 * 10


def test_only_changed_submissions_are_graded_again_and_the_reason_is_given(acting: Class) -> None:
    acting.add_all(dict.fromkeys(("ada", "bob", "eve"), ""))
    acting.grade()
    assert re.search("UsageError: .*--resume", acting.grade(exit_code=1, resume=False))
    acting.add("bob", "slow")
    unreadable = acting.out / "eve" / ledger.RESULT
    unreadable.unlink()
    said = acting.grade()
    assert "1 was finished before and stays as it is" in said
    assert "1 is graded again (source changed): bob" in said
    assert "1 is graded again (its result.json cannot be read): eve" in said
    assert acting.totals()["bob"] == "18"
    unreadable.write_text("{}")
    assert "1 is graded again (its result.json cannot be read): eve" in acting.grade()
    acting.config.write_text(acting.config.read_text().replace("points: 10", "points: 10.0"))
    assert "1 is graded again (assignment changed, kit changed): ada" in acting.grade(only=["ada"], kit="2")
    assert Counter(acting.graded()) == {"ada": 2, "bob": 2, "eve": 3}
    assert ledger.read(acting.out).records["ada"].reason == "assignment changed, kit changed"


@pytest.mark.parametrize("how", one_of_each([signal.SIGINT, signal.SIGTERM], key=type, name=str))
def test_interrupted_class_has_reports_and_says_how_to_go_on(acting: Class, how: signal.Signals) -> None:
    acting.add_all({"ada": "slow", "bob": "freeze"})
    judge = acting.start()
    wait_until(acting.recorded, judge)
    judge.send_signal(how)
    said, wrong = judge.communicate(timeout=HANG_S)
    assert judge.returncode == 130, said + wrong
    assert "--resume" in said and "1 of 2 graded" in said
    assert not list(processes_of(acting.state)), "workers are left after a judge's normal end"
    assert acting.totals() == {"ada": "18", "bob": ""}
    assert "not graded yet" in acting.grades()["bob"]["trouble"]
    acting.add("bob")
    acting.grade()
    assert acting.graded() == ["ada", "bob"]


@pytest.mark.full
def test_judge_s_memory_does_not_grow_with_the_class(acting: Class) -> None:
    """Each result has 1000 cases and takes more than half a MiB as Python objects."""
    peaks_kib = []
    for count in (10, 40):
        acting.add_all({f"student{k:03d}": "slow\nbulk 500" for k in range(count)})
        peaks_kib.append(int(acting.grade(apart=True).split("peak KiB")[1]))
    assert peaks_kib[1] - peaks_kib[0] < 10 << 10, peaks_kib


#: A real worker that does not grade the submission "zoe" before the test creates the file "go".
HELD_UP = """
import os, time
from pathlib import Path
from grader.staff.classroom import worker
grade = worker.Worker.grade
def held_up(self, name, *rest):
    while name == "zoe" and not Path(os.environ["ACTING_STATE"], "go").exists():
        time.sleep(0.01)
    grade(self, name, *rest)
worker.Worker.grade = held_up
worker.main()
"""
REAL = {"command": ["-c", HELD_UP], "tier": None, "workers": 2}


@pytest.fixture(scope="module")
def real_class(master: str, tmp_path_factory: pytest.TempPathFactory) -> Class:
    """Grade a class by real workers in this machine's strongest sandbox. The judge is killed once and resumed."""
    real = Class(tmp_path_factory.mktemp("real"))
    master = keeping(master, "myNaiveAttention", "myFusedAttention")
    wrong = insert_at_start(master, "myNaiveAttention", "N -= N > 1;")
    faulty = insert_at_start(wrong, "myFusedAttention", "abort();")
    sources = {"ada": master, "=1+1 <i>bob": master, "eve": faulty}
    put(real.folder, {f"{name}/module.cpp": text.encode() for name, text in sources.items()})
    put(real.folder, {"zoe.zip": zipped({"handin/module.cpp": master.encode()})})
    (real.folder / "empty").mkdir()
    judge = real.start(**REAL)
    wait_until(lambda: len(real.recorded()) >= 2, judge)
    started = descendants(judge.pid)
    judge.kill()
    judge.communicate()
    assert started
    wait_until(lambda: not any(map(alive, started)))
    finished = ledger.read(real.out).records
    assert "zoe" not in finished
    (real.state / "go").touch()
    assert f"{len(finished)} were finished before and stay as they are" in real.grade(**REAL)
    assert dict(finished).items() <= dict(ledger.read(real.out).records).items()
    return real


def test_every_real_submission_gets_its_verdict(real_class: Class) -> None:
    history = ledger.read(real_class.out)
    verdicts = {name: tuple(record.verdicts.values()) for name, record in history.records.items()}
    awkward = next(entry.submission_id for entry in history.roster if "<i>" in entry.name)
    good = dict.fromkeys(("ada", awkward, "zoe"), ("pass", "pass"))
    assert verdicts == {**good, "eve": ("wrong", "crash"), "empty": ()}
    assert history.records["empty"].fault == "submission"
    assert {"building", "results", "timing"} <= set(history.records["ada"].seconds)
    assert real_class.result("ada")["points"] == 30


def test_show_presents_a_graded_class_without_grading(real_class: Class, tmp_path: Path) -> None:
    records = (real_class.out / ledger.LEDGER).read_bytes()
    shown = grader("show", real_class.out, "eve").stdout
    assert all(text in shown for text in ("part3: Fused Attention", "CRASHED", "SIGABRT"))
    assert shown.splitlines()[-1] == "total: 0 of 30"
    assert "did you mean 'eve'?" in grader("show", real_class.out, "evee", code=2).stderr
    assert (real_class.out / ledger.LEDGER).read_bytes() == records
    grader("report", tmp_path, code=2)


def test_run_from_the_command_line_gives_every_submission_an_entry(real_class: Class, tmp_path: Path) -> None:
    asked = ("run", real_class.folder, "--out", tmp_path, "--config", SMALL, "--trust", "--only", "empty")
    said = grader(*asked).stdout
    assert "[1/1] empty: " in said and "1 could not be read" in said
    troubles = {name: row["trouble"] for name, row in rows_of(tmp_path).items()}
    assert len(troubles) == 5 and troubles["ada"] == "not graded yet" and "module.cpp" in troubles["empty"]
    assert "--resume" in grader(*asked, code=2).stderr


@pytest.mark.full
def test_one_grades_and_exits_like_a_students_run(real_class: Class, tmp_path: Path, capsys: Capture) -> None:
    folder, report, settings = real_class.folder, tmp_path / "one.json", ("--config", str(SMALL), "--trust")
    assert run(["one", str(folder / "eve"), *settings, "--json", str(report)]) == 1
    alone, among_others = json.loads(report.read_text()), real_class.result("eve")
    assert alone["submission"] == {**among_others["submission"], "id": "eve"}
    assert [part["verdict"] for part in alone["parts"]] == ["wrong", "crash"]
    assert capsys.readouterr().out.splitlines()[-1] == "total: 0 of 30"
    refused("nowhere", run, ["one", str(folder / "nowhere")])
    assert run(["one", str(folder / "empty"), *settings]) == 1


def test_wrong_usage_of_the_grader_is_one_line() -> None:
    inside = f"run {SMALL.parent} --out {SMALL.parent / 'results'}"
    for arguments in ("run", "frob", "run x --out y --jobs 0", "run /nowhere --out", inside):
        assert re.fullmatch("grader: .*\n", grader(*arguments.split(), code=2).stderr), arguments
    assert not (SMALL.parent / "results").exists()


def test_a_class_on_a_gpu_has_half_as_many_jobs(tmp_path: Path, monkeypatch: Patch) -> None:
    """Each job needs memory of the machine's only GPU for its tensors and compilers."""
    monkeypatch.setattr(planning.machine, "describe", lambda: {"cores": 8, "memory_bytes": 64 << 30})
    for lab, card, jobs in (("gpu", tmp_path, 4), ("gpu", tmp_path / "none", 8), ("softmax", tmp_path, 8)):
        monkeypatch.setattr(planning, "CARD", card)
        assert planning.workers(loading.load(ROOT / "labs" / lab / "assignment.yaml").parts) == jobs


UNREADABLE = ("yesterday", "0001-01-01 00:00+14:00", "2026-11-14 10:00", "\x1b[2J")
POINTS = {"part1": 10, "part3": 20}


@pytest.mark.full
def test_points_by_hand_stay_in_every_later_report(acting: Class, tmp_path: Path) -> None:
    acting.add_all({"ada": "wrong", "bob": ""})
    table, moved = tmp_path / "points.csv", tmp_path / "moved.csv"
    table.write_text("id,part1,comment\nada,7.5,a good idea\n")
    acting.grade(manual=str(table))
    assert acting.totals() == {"ada": "7.5", "bob": "30"}
    records = (acting.out / ledger.LEDGER).read_bytes()
    assert "LOWER" not in acting.report() and acting.totals()["ada"] == "7.5"
    assert (acting.out / ledger.LEDGER).read_bytes().startswith(records), "a report adds no ledger entry"
    reported = ledger.read(acting.out).reported
    assert reported is not None and reported.totals["ada"] == 7.5
    acting.grade()
    assert acting.totals()["ada"] == "7.5"
    for text in ("by hand (the judge gave 0: ", "total: 7.5 of 30", f"points by hand: {table}"):
        assert text in acting.show("ada")
    table.write_text("id,part1\nada,5\n")
    printed = acting.report()
    assert "1 total is LOWER than in the report of" in printed and "ada 7.5 -> 5" in printed
    table.rename(moved)
    for command in (acting.report, lambda: acting.show("ada")):
        refused(f"{table}, the table of points by hand, no longer exists", command)
    assert acting.totals()["ada"] == "5", "a report that was refused has written something"
    printed = grader("report", acting.out, "--no-manual").stdout
    assert f"came from {table}" in printed and "ada 5 -> 0" in printed and "from no table now" in printed
    assert "LOWER" not in acting.report()
    assert grader("report", acting.out, "--manual", moved) and acting.totals()["ada"] == "5"
    moved.write_text("id,part1\nnobody,1\n")
    grader("report", acting.out, "--manual", moved, code=2)


@pytest.mark.full
def test_a_points_table_moves_with_its_folder_unless_it_is_linked(acting: Class, tmp_path: Path) -> None:
    acting.add("ada", "wrong")
    acting.grade()
    (acting.out / "manual.csv").write_text("id,part1\nada,4\n")
    acting.report()
    acting.out = acting.out.rename(tmp_path / "elsewhere")
    acting.report()
    assert acting.totals()["ada"] == "4"
    put(tmp_path, {"t.csv": b"id,part1\nada,3\n"})
    (tmp_path / "link.csv").symlink_to(tmp_path / "t.csv")
    acting.report(tmp_path / "link.csv")
    assert acting.totals()["ada"] == "3" and ledger.read(acting.out).manual == str(tmp_path / "t.csv")


def test_submissions_without_a_time_are_counted(acting: Class, due_date: None, tmp_path: Path) -> None:
    put(acting.folder, {f"{k}module.cpp": b"PYBIND11_MODULE" for k in ("ada/", "bob_LATE_1_2_", "eve/")})
    said, all_three = acting.grade(), "3 of 3 submissions without a submission time"
    assert all_three in said and "ada, bob_1, eve" in said and "--submitted" in said
    assert "1 is marked late, but without a time of submission, so there is no penalty: bob_1\n" in said
    assert said.count("without a submission time") == 1 and all_three in acting.report()
    # A time without a zone is in the due date's zone, so ada is exactly in time. bob is a minute late.
    times = "id,time,who\nada,2026-11-14 23:59:00,A\nbob_1,2026-11-15T08:00:00Z,B\n"
    table = write(tmp_path, times, "times.csv")
    said = acting.grade(submitted=str(table))
    assert len(acting.graded()) == 3, "a submission time caused a new grading"
    assert "1 of 3 submissions without" in said and "): eve; to add" in said and "marked late" not in said
    assert acting.totals() == {"ada": "30", "bob_1": "25", "eve": "30"}
    assert "1 total is LOWER" in said and "bob_1 30 -> 25" in said
    acting.grade()
    assert acting.totals()["bob_1"] == "25", "the table of times is used again"
    shown = acting.show("bob_1")
    assert "1 late day, -5 points" in shown and "total: 25 of 30" in shown
    table.unlink()
    assert f"{table}, the table of submission times, no longer exists" in acting.grade(exit_code=1)


def test_file_times_count_only_with_the_option(acting: Class, due_date: None) -> None:
    acting.add_all({"ada": "", "bob": ""})
    put(acting.folder, {"zip.zip": zipped({"module.cpp": b"// slow\n"})})
    in_time, late = (datetime(2026, 11, day, 12, tzinfo=timezone.utc).timestamp() for day in (14, 15))
    for path, at in (("ada/module.cpp", in_time), ("bob/module.cpp", late), ("zip.zip", late)):
        os.utime(acting.folder / path, (at, at))
    assert "without a submission time" not in acting.grade(file_times=True)
    assert acting.totals() == {"ada": "30", "bob": "25", "zip": "13"}
    acting.grade()
    assert acting.totals()["bob"] == "25"
    packed = put(acting.state, {"z.zip": zipped({"a/module.cpp": b"x", "b/module.cpp": b"x"})}) / "z.zip"
    assert "Error: --file-times: " in acting.grade(exit_code=1, submissions=str(packed), file_times=True)


@pytest.mark.parametrize(("rows", "reason"), [
    ("id,when\nada,2026-11-14\n", "columns 'id' and 'time'"),
    ("id,time,id\n", "two columns are called"),
    ("", "should name the columns"),
    ("adda,2026-11-14 10:00\n", "no submission is called 'adda'; did you mean 'ada'?"),
    ("a*d(a),2026-11-14 10:00\n", "'a*d(a)'; did you mean 'a_d_a'?"),
    ("nobody,2026-11-14 10:00\n", "no submission is called 'nobody'"),
    *((f"ada,{time}\n", "a time should be like") for time in UNREADABLE),
    ("ada,2026-11-14 10:00Z\nada,2026-11-14 10:00Z\n", "is in an earlier line"),
    ("ada\n", "1 cells, but the table has 2 columns"),
    ('"eve\n12 of 12 graded\x1b[2K",2026-01-01\n', "no submission is called 'eve 12 of 12"),
    ('"a\nb",2026-01-01T00:00:00Z\n"a\nb",2026-01-01T00:00:00Z\n', "the id 'a b' is in an earlier line"),
    ('ada,"2\n12 of 12"\n', "not '2 12 of 12'"),
])  # fmt: skip
def test_a_bad_table_of_times_is_refused_in_one_line(rows: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(rows if not rows or rows.startswith("id,") else f"id,time\n{rows}")
    message = refused("", byhand.read_times, tmp_path / "t.csv", ["ada", "bob", "a_d_a", "a\nb"], None)
    assert message.startswith(f"{tmp_path / 't.csv'}:") and reason in message
    assert not re.search("[\x00-\x1f]", message)


def test_times_are_read_in_usual_notations() -> None:
    utc = datetime(2023, 11, 2, 7, 10, 22, 340000, tzinfo=timezone.utc)
    zoned = "2023-11-02 07:10:22.340000000 Z|2023-11-02T07:10:22.34Z|2023-11-02 00:10:22.34 -0700"
    for text in (*zoned.split("|"), "2023-11-02t08:10:22.34+01:00", "2023-11-2 7:10:22.34 UTC"):
        assert exports.moment(text) == utc, text
    assert exports.moment("2023-11-02 07:10") == datetime(2023, 11, 2, 7, 10)
    bad = "|2023-11-02|2023-13-02 07:10|0001-01-01 00:00 +14:00|9999-12-31 23:59 -14:00"
    for text in (*bad.split("|"), "2023-11-02 07:10+99:00", "2023-11-02 07:10 " * 9999, "٢٠٢٣-11-02 07:10"):
        assert exports.moment(text) is None, text


def test_a_resumed_run_keeps_the_settings_of_the_first_one(acting: Class, tmp_path: Path) -> None:
    acting.add_all({"ada": "", "bob": ""})
    acting.grade(seed=7, timing=False)
    acting.add("eve")
    bare = {"config": None, "tier": None}
    assert "sandbox tier D, seed 7" in acting.grade(**bare)
    assert Counter(acting.graded()) == {"ada": 1, "bob": 1, "eve": 1}
    runs = ledger.read(acting.out).runs
    assert (runs[-1].config, runs[-1].seed, runs[-1].timing) == (str(acting.config), 7, False)
    assert runs[-1].assignment_fingerprint == runs[0].assignment_fingerprint
    other = write(tmp_path, acting.config.read_text().replace("points: 10", "points: 11"), "other.yaml")
    for change in ({"config": str(other)}, {**bare, "seed": 8}):
        assert re.search("UsageError: .*add --regrade", acting.grade(exit_code=1, **change))
        assert len(acting.graded()) == 3
    said = acting.grade(config=str(other), regrade=True)
    assert "3 are graded again (assignment changed, settings changed)" in said
    assert ledger.read(acting.out).runs[-1].timing
    assert "--resume" in grader("run", acting.folder, "--out", tmp_path / "new", "--regrade", code=2).stderr
    moved = other.rename(tmp_path / "moved.yaml")
    assert f"was graded with {other}, which no longer exists" in acting.grade(exit_code=1, **bare)
    acting.grade(config=str(moved))
    assert len(acting.graded()) == 6


def test_unreadable_submissions_have_a_result_and_a_total(acting: Class) -> None:
    acting.add("ada")
    put(acting.folder, {"broken.zip": b"PK\3\4 no more", "empty/notes.txt": b"hi"})
    assert "2 could not be read" in acting.grade()
    for name in ("broken", "empty"):
        result = acting.result(name)
        assert (result["submission"]["id"], result["points"], result["max_points"]) == (name, 0, 30)
        assert {part["diagnosis"]["code"] for part in result["parts"]} == {"unreadable"}
        row = acting.grades()[name]
        assert (row["total"], row["max_points"], bool(row["trouble"])) == ("0", "30", True)
        assert row["trouble"] in (acting.out / name / "feedback.txt").read_text()
        shown = acting.show(name)
        assert "total: 0 of 30" in shown and row["trouble"] in shown
    (acting.out / "broken" / ledger.RESULT).unlink()
    acting.grade()
    assert (acting.out / "broken" / ledger.RESULT).exists()


def test_a_student_named_lock_is_known_by_the_id_that_the_reports_use(acting: Class) -> None:
    acting.add_all(dict.fromkeys(("lock", "lock-2", "ada"), ""))
    acting.grade()
    assert set(acting.grades()) == {"lock_", "lock-2", "ada"}
    acting.grade(only=["lock_"], again=True)
    assert Counter(acting.graded())["lock_"] == 2
    assert "no submission is called 'lock'; did you mean" in acting.grade(exit_code=1, only=["lock"])
    assert no_such_submission("nobody", ["good", "bad"]) == "no submission is called 'nobody'"
    assert len(no_such_submission("x" * 1_000_000, ["x" * 40] * 300)) < 200


#: Code that simulates a full disk while the judge unpacks a compressed tar.
FULL_DISK = """
from types import SimpleNamespace
from grader.submission.archive import opening
opening.tempfile = SimpleNamespace(TemporaryFile=lambda **_: open("/dev/full", "w+b", buffering=0))
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_costs_one_archive(acting: Class, monkeypatch: Patch) -> None:
    acting.add("ada")
    source = {"module.cpp": SOURCE}
    put(acting.folder, {"big.tar.gz": tar_bytes(source, "w:gz"), "zoe.zip": zipped(source)})
    with monkeypatch.context() as small:
        small.setattr(opening.tempfile, "TemporaryFile", lambda **_: open("/dev/full", "w+b", buffering=0))  # noqa: SIM115
        big = (acting.folder / "big.tar.gz", "module.cpp", acting.state / "one")
        refused("cannot write to .*No space left.*delete files", find_one, *big, of=KitError)
        found = {item.id: item for item in find(acting.folder, "module.cpp", acting.state / "all")}
    assert {name: item.fault for name, item in found.items()} == {"ada": "", "big": "kit", "zoe": ""}
    acting.grade(exit_code=3, prepared=FULL_DISK)
    assert acting.totals() == {"ada": "30", "big": "", "zoe": "30"}
    assert "the kit or the machine failed" in acting.grades()["big"]["trouble"]
    assert "the kit failed last time" in acting.grade() and acting.totals()["big"] == "30"


def hand_in(folder: Path, master: str) -> dict[str, tuple[str, str] | None]:
    """Write a class of submissions, each kind in four forms. Return verdicts by id, None for unreadable ones."""
    forged = 'static int forged = (std::printf("{\\"points\\": 30}\\n"), exit(0), 0);\nPYBIND11_MODULE'
    forged = "#include <cstdio>\n#include <cstdlib>\n" + master.replace("PYBIND11_MODULE", forged, 1)
    chatty = insert_at_start(master, "myFusedAttention", r'printf("\x1b[2J=1+1 <b>\n");')
    kinds = {
        "right": (master, ("pass", "pass")),
        "chatty": (chatty, ("pass", "pass")),
        "wrong": (insert_at_start(master, "myNaiveAttention", "H = 1;"), ("wrong", "pass")),
        "forged": (forged, ("crash", "crash")),
        "smaller tile": (master.replace("TILE_SIZE 16", "TILE_SIZE 8"), ("pass", "pass")),
    }
    expected: dict[str, tuple[str, str] | None] = {}
    for name, (source, ends) in kinds.items():
        text = source.encode()
        # Names keep equal files far apart in the order of grading; otherwise two workers would compile the same file.
        files = {
            f"plain {name}/module.cpp": text,
            f"nested {name}/assignment 4/module.cpp": text,
            f"zip {name}.zip": zipped({"hand-in/module.cpp": text, "__MACOSX/._module.cpp": b""}),
            f"tar {name}.tar.gz": tar_bytes({"./module.cpp": text}, "w:gz"),
        }
        put(folder, files)
        expected |= {f"{form} {name}": ends for form in ("plain", "nested", "zip", "tar")}
    good = zipped({"module.cpp": master.encode()})
    unreadable = {
        "cut off.zip": good[: len(good) // 2], "climbs.zip": zipped({"../../module.cpp": master.encode()}),
        "rooted.zip": zipped({"/etc/module.cpp": master.encode()}), "bomb.zip": quoted_overlap(40, b"0" * 100_000),
        "no archive.zip": b"PK but not really", "nothing.zip": zipped({}),
        "another file.zip": zipped({"report.pdf": b"%PDF"}), "junk.tar.gz": os.urandom(200),
    }  # fmt: skip
    put(folder, {**unreadable, "far too long/module.cpp": b"//" + b"x" * (2 << 20)})
    for name in ("empty", "a folder by that name/module.cpp", "linked"):
        (folder / name).mkdir(parents=True)
    (folder / "linked" / "module.cpp").symlink_to("/etc/passwd")
    names = [name.removesuffix(".gz").removesuffix(".tar").removesuffix(".zip") for name in unreadable]
    expected |= dict.fromkeys((*names, "empty", "a folder by that name", "far too long", "linked"))
    return expected


@pytest.mark.full
def test_every_submission_gets_the_right_points_in_each_run(master: str, tmp_path: Path) -> None:
    precompile()  # otherwise two workers could make the same header at once
    room = Class(tmp_path)
    expected = hand_in(room.folder, keeping(master, "myNaiveAttention", "myFusedAttention"))
    # exit(0) shuts torch down. On a busy machine this takes long, and must not count as a hang.
    room.config.write_text(SMALL.read_text().replace("call_s: 1,", "call_s: 2,"))
    command = ("run", room.folder, "--config", room.config, "--seed", 149, "--trust", "--out")
    grader(*command, room.out)
    rows = rows_of(room.out, "name")
    assert set(rows) == set(expected)
    first = ledger.read(room.out)
    ids = {entry.name: entry.submission_id for entry in first.roster}
    for name, ends in expected.items():
        record = first.records[ids[name]]
        if ends is None:
            assert record.fault == "submission" and record.trouble and rows[name]["trouble"], name
            continue
        assert tuple(record.verdicts.values()) == ends, (name, record)
        by_hand = sum(points for points, end in zip(POINTS.values(), ends, strict=True) if end == "pass")
        assert record.points == by_hand == float(rows[name]["total"]), (name, rows[name])
    # Grade the readable archives again, with the same seed.
    again = Class(tmp_path / "again")
    archives = [name for name in first.records if name.startswith(("zip_", "tar_"))]
    grader(*command, again.out, "--only", *archives)
    second = ledger.read(again.out)
    assert len(archives) == 5 * 2 and set(second.records) == set(archives)
    for name in archives:
        assert second.records[name].verdicts == first.records[name].verdicts, name
        assert outputs(room, name) == outputs(again, name), name


def outputs(room: Class, name: str) -> list[tuple[object, ...]]:
    cases = [case for part in room.result(name)["parts"] for case in part["cases"]]
    return [(case["name"], case["ok"], case["output_sha256"]) for case in cases]
