"""Grading a class: killed judges and workers, unfit machines, changed submissions, and the command line."""

import json
import random
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from classes.acting_class import HANG_S, SMALL, Class, gone, grader, processes_of, rows_of, wait_until
from conftest import ROOT, Capture, insert_at_start, keeping, one_of_each, put, refused
from handing_in import zipped
from process_tree import alive, descendants

from grader.__main__ import run
from grader.assignment import loading
from grader.assignment.records import RunLimits
from grader.staff.classroom import executor, ledger, planning


def test_killed_judge_resumes_to_the_same_grades_and_grades_none_twice(acting: Class, tmp_path: Path) -> None:
    """Four judges are killed, each soon after 0 to 2 further results. Each can finish only 2 of the 10 submissions."""
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
    assert ledger.read(acting.out).records["bob"].attempt == 2
    assert gone(acting.state)

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
    """Each phase has its own time limit. The limit for reading is seconds, so that a class does not wait for hours."""
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


def test_a_class_on_a_gpu_has_half_as_many_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job needs memory of the machine's only GPU for its tensors and compilers."""
    monkeypatch.setattr(planning.machine, "describe", lambda: {"cores": 8, "memory_bytes": 64 << 30})
    for lab, card, jobs in (("gpu", tmp_path, 4), ("gpu", tmp_path / "none", 8), ("softmax", tmp_path, 8)):
        monkeypatch.setattr(planning, "CARD", card)
        assert planning.workers(loading.load(ROOT / "labs" / lab / "assignment.yaml").parts) == jobs
