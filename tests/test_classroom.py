"""A class on record: kills at any moment, workers that die, machines that are unfit, changes, and the command line.

Most classes here are graded by `classes/acting_worker.py`, in which all but the evaluator is the real worker.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT, insert_at_start, keeping

from grader.assignment.records import RunLimits
from grader.staff.classroom import ledger, running

SMALL = ROOT / "tests" / "classes" / "small.yaml"
ACTING = ROOT / "tests" / "classes" / "acting_worker.py"
JUDGE = """
import json, resource, sys
from pathlib import Path
from grader.staff.classroom import fingerprints, running
wanted = json.loads(sys.argv[1])
named = ("submissions", "out", "config", "manual", "submitted", "calibration")
paths = {key: Path(path) for key in named if (path := wanted.pop(key, None)) is not None}
running.INSPECTION_SILENCE_S = wanted.pop("inspection_s", running.INSPECTION_SILENCE_S)
if "silent_s" in wanted:
    from grader.staff.cluster import machines
    machines.SILENT_S = wanted.pop("silent_s")
only, command, kit = tuple(wanted.pop("only", ())), wanted.pop("command"), wanted.pop("kit")
# Of the kit's own sources nothing may depend here: somebody may be working on them.
fingerprints.of_kit = (lambda: kit) if kit else fingerprints.of_kit
asked = running.RunOptions(**paths, only=only, trust=True, **wanted)
code = running.run(asked, command=[sys.executable, *command])
assert "torch" not in sys.modules
print("peak KiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


class Class:
    """A folder of acting submissions, and a judge to be started on it as often as one likes."""

    def __init__(self, root: Path) -> None:
        self.folder, self.out, self.state = root / "class", root / "out", root / "state"
        self.temporary = root / "temporary"
        self.config = root / "small.yaml"
        for folder in (self.folder, self.state, self.temporary):
            folder.mkdir()
        self.config.write_text(SMALL.read_text())

    def add(self, name: str, *directives: str) -> None:
        (self.folder / name).mkdir(exist_ok=True)
        text = "\n".join(f"// {line}" for line in directives)
        (self.folder / name / "module.cpp").write_text(f"{text}\nPYBIND11_MODULE\n")

    def start(self, **wanted: object) -> subprocess.Popen[str]:
        # Real runners have user ids of their own, which may not enter a folder of pytest's.
        place = {} if "command" in wanted else {"TMPDIR": str(self.temporary)}
        asked = {"workers": 2, "resume": True, "command": [str(ACTING)], "kit": "1", "tier": "D", **wanted}
        paths = {"submissions": str(self.folder), "out": str(self.out), "config": str(self.config)}
        return subprocess.Popen(
            [sys.executable, "-c", JUDGE, json.dumps({**paths, **asked})],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                "ACTING_STATE": str(self.state),
                **place,
            },
        )

    def run(self, **wanted: object) -> tuple[int, str]:
        """Exit code and what was said, errors last."""
        judge = self.start(**wanted)
        said, wrong = judge.communicate(timeout=120)
        return judge.returncode, said + wrong

    def graded(self) -> list[str]:
        """Who was evaluated to the end, in that order, once for each time."""
        log = self.state / "log"
        return log.read_text().split() if log.exists() else []

    def grades(self) -> dict[str, dict[str, str]]:
        text = (self.out / "grades.csv").read_text(encoding="utf-8-sig")
        return {row["id"]: row for row in csv.DictReader(io.StringIO(text))}

    def recorded(self) -> Counter[str]:
        """How many whole result lines each submission has."""
        path = self.out / ledger.LEDGER
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        items = [json.loads(line) for line in lines]
        return Counter(item["submission_id"] for item in items if item["kind"] == "result")


@pytest.fixture
def acting(tmp_path: Path) -> Class:
    return Class(tmp_path)


def processes_of(state: Path) -> list[int]:
    """Workers (and what they started) of the class with this state folder, by its name in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if str(state).encode() in environment and not zombie:
            found.append(int(folder.name))
    return found


def gone(state: Path, within_s: float = 15.0) -> bool:
    """Whether all of them are gone, after a while at most."""
    deadline = time.monotonic() + within_s
    while processes_of(state):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# ---- killed at any moment


def test_killed_judge_resumes_to_the_same_grades_and_grades_nothing_twice(
    acting: Class, tmp_path: Path
) -> None:
    names = [f"student{k:02d}" for k in range(14)]
    verdicts = ("pass", "slow", "wrong")
    for k, name in enumerate(names):
        acting.add(name, f"sleep {0.01 * (k % 4):.2f}", verdicts[k % 3])
    (acting.folder / "broken.zip").write_bytes(b"PK\3\4 no more than that")
    code, said = acting.run(seed=1)
    assert code == 0, said
    expected = (acting.out / "grades.csv").read_bytes()
    totals = {name: row["total"] for name, row in acting.grades().items()}
    assert totals == {"broken": "0"} | {name: ("30", "18", "0")[k % 3] for k, name in enumerate(names)}

    moments = random.Random(149)
    kills = 0
    acting.out = tmp_path / "killed"
    while True:
        judge = acting.start(seed=1)
        goal = len(acting.recorded()) + moments.randrange(4)
        while judge.poll() is None and len(acting.recorded()) < goal:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.1))
        finished = set(acting.recorded())
        if judge.poll() is not None:
            break
        judge.kill()
        judge.communicate()
        kills += 1
        assert gone(acting.state), "workers outlive their judge"
        assert finished <= set(acting.recorded()), "a kill lost what was finished"
    assert judge.returncode == 0, "".join(judge.communicate())
    judge.communicate()
    assert (acting.out / "grades.csv").read_bytes() == expected
    assert acting.recorded() == dict.fromkeys([*names, "broken"], 1), "graded twice"
    assert kills >= 5
    assert not list(acting.temporary.iterdir()), "a scratch folder is left"


# ---- what costs only itself


def test_dead_worker_costs_one_submission_and_only_the_second_time(acting: Class) -> None:
    acting.add("ada")
    acting.add("bob", "die 1", "slow")
    acting.add("eve", "die 2", "slow")
    acting.add("zoe", "wrong")
    code, said = acting.run()
    assert code == 3, said
    assert "1 have no verdict by the kit's fault: eve" in said
    grades = acting.grades()
    assert [grades[name]["total"] for name in ("ada", "bob", "eve", "zoe")] == ["30", "18", "", "0"]
    assert "the kit's fault" in grades["eve"]["trouble"] and "SIGKILL" in grades["eve"]["trouble"]
    assert ledger.read(acting.out).records["bob"].attempt == 2
    assert gone(acting.state)

    code, said = acting.run()
    assert code == 0, said
    assert "1 are graded again (the kit failed last time): eve" in said
    assert acting.grades()["eve"]["total"] == "18"
    assert Counter(acting.graded()) == {"ada": 1, "bob": 1, "eve": 1, "zoe": 1}


def test_unsteady_machine_sends_a_submission_to_the_end_of_the_queue_twice_at_most(acting: Class) -> None:
    acting.add("ada", "unfit 1")
    acting.add("bob", "unfit 9")
    acting.add("eve")
    code, said = acting.run(workers=1)
    assert code == 0, said
    assert acting.graded() == ["ada", "bob", "eve", "ada", "bob", "bob"]
    assert said.count("too unsteady") == 3
    assert {name: record.attempt for name, record in ledger.read(acting.out).records.items()} == {
        "ada": 2, "bob": 3, "eve": 1,
    }  # fmt: skip


def test_workers_that_cannot_start_are_told_with_their_own_words(acting: Class) -> None:
    acting.add("ada")
    code, said = acting.run(command=["-c", "import sys; sys.exit('there is no torch here')"])
    assert "KitError: workers cannot start (exit code 1): there is no torch here" in said
    assert code != 0 and not acting.recorded()


def test_machine_that_can_grade_nothing_is_told_after_a_few(acting: Class) -> None:
    for k in range(9):
        acting.add(f"student{k}", "hopeless")
    code, said = acting.run()
    assert code != 0
    assert "KitError: nothing can be graded here: there is no compiler" in said
    assert 3 <= len(acting.recorded()) <= 4


# ---- again, and why


def test_only_what_changed_is_graded_again_and_told_why(acting: Class) -> None:
    for name in ("ada", "bob", "eve"):
        acting.add(name)
    code, said = acting.run()
    assert code == 0, said
    code, said = acting.run(resume=False)
    assert code == 2 or "UsageError" in said
    assert "--resume" in said

    acting.add("bob", "slow")
    code, said = acting.run()
    assert code == 0, said
    assert "2 were finished before and stay as they are" in said
    assert "1 are graded again (source changed): bob" in said
    assert acting.grades()["bob"]["total"] == "18"

    (acting.out / "eve" / ledger.RESULT).unlink()
    code, said = acting.run()
    assert "1 are graded again (its result.json cannot be read): eve" in said
    (acting.out / "eve" / ledger.RESULT).write_text("{}")
    code, said = acting.run()
    assert "1 are graded again (its result.json cannot be read): eve" in said

    acting.config.write_text(acting.config.read_text().replace("points: 10", "points: 10.0"))
    code, said = acting.run(only=["ada"], kit="2")
    assert "1 are graded again (assignment changed, kit changed): ada" in said
    assert Counter(acting.graded()) == {"ada": 2, "bob": 2, "eve": 3}
    assert ledger.read(acting.out).records["ada"].reason == "assignment changed, kit changed"


# ---- interrupted


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_interrupted_class_leaves_valid_reports_and_says_how_to_go_on(
    acting: Class, how: signal.Signals
) -> None:
    acting.add("ada", "slow")
    acting.add("bob", "freeze")
    judge = acting.start(workers=1)
    while not acting.recorded():
        assert judge.poll() is None
        time.sleep(0.01)
    judge.send_signal(how)
    said, wrong = judge.communicate(timeout=30)
    assert judge.returncode == 130, said + wrong
    assert "--resume" in said and "1 of 2 graded" in said
    assert gone(acting.state, within_s=1.0)
    grades = acting.grades()
    assert grades["ada"]["total"] == "18"
    assert grades["bob"]["total"] == "" and "not graded yet" in grades["bob"]["trouble"]

    acting.add("bob")
    code, said = acting.run()
    assert code == 0, said
    assert acting.graded() == ["ada", "bob"]


def test_a_file_that_is_read_without_end_costs_only_its_own_verdict(acting: Class) -> None:
    """Each kind of phase has its own limit: where a worker reads, seconds are enough, and nobody waits for hours."""
    for name in ("ada", "eve", "zoe"):
        acting.add(name)
    acting.add("bob", "ponder")
    code, said = acting.run(inspection_s=2.0)
    assert code == 3, said
    assert sorted(acting.graded()) == ["ada", "eve", "zoe"]
    assert "3 of 4 graded" in said and "stuck in inspection" in acting.grades()["bob"]["trouble"]

    acting.add("bob")
    code, said = acting.run()
    assert code == 0, said
    assert sorted(acting.graded()) == ["ada", "bob", "eve", "zoe"]


def test_reading_gets_seconds_where_a_measurement_gets_minutes() -> None:
    limits = running.silence_limits(RunLimits(build_s=180, call_s=10, memory_gib=4))
    assert limits["waiting"] is None
    assert limits["inspection"] <= 60 and 180 < limits["building"] <= 300
    assert limits["timing"] == limits["results"] > 200 * 10


def test_judge_s_memory_does_not_grow_with_the_class(acting: Class) -> None:
    peaks_kib = []
    for count in (10, 60):
        for k in range(count):
            acting.add(f"student{k:03d}", "slow", *["a line that the kernel prints"] * 200)
        code, said = acting.run()
        assert code == 0, said
        peaks_kib.append(int(said.split("peak KiB")[1]))
    assert peaks_kib[1] - peaks_kib[0] < 10 << 10, peaks_kib


# ---- the real thing, from the command line


def grader(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "grader", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
    )


def descendants(pid: int) -> list[Path]:
    """The /proc folders of all that a process started, directly or not."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in (task / "children").read_text().split():
            found += [Path("/proc", child), *descendants(int(child))]
    return found


def is_running(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


REAL = {"command": ["-m", "grader.staff.classroom.worker"], "tier": None}


@pytest.fixture(scope="module")
def real_class(master: str, tmp_path_factory: pytest.TempPathFactory) -> Class:
    """A class graded by real workers in the strongest sandbox there is, its judge killed on the way."""
    real = Class(tmp_path_factory.mktemp("real"))
    master = keeping(master, "myNaiveAttention", "myFusedAttention")
    faulty = insert_at_start(
        insert_at_start(master, "myNaiveAttention", "N -= N > 1;"), "myFusedAttention", "abort();"
    )
    for name, text in {"ada": master, "=1+1 <i>bob": master, "eve": faulty}.items():
        real.add(name)
        (real.folder / name / "module.cpp").write_text(text)
    with zipfile.ZipFile(real.folder / "zoe.zip", "w") as archive:
        archive.writestr("handin/module.cpp", master)
    (real.folder / "empty").mkdir()

    judge = real.start(**REAL)
    while len(real.recorded()) < 2:
        assert judge.poll() is None, judge.communicate()
        time.sleep(0.01)
    started = descendants(judge.pid)
    judge.kill()
    judge.communicate()
    deadline = time.monotonic() + 15
    while any(map(is_running, started)):
        assert time.monotonic() < deadline, f"of {started} some outlive the judge"
        time.sleep(0.05)
    finished = ledger.read(real.out).records
    code, said = real.run(**REAL)
    assert code == 0, said
    assert f"{len(finished)} were finished before and stay as they are" in said
    assert dict(finished).items() <= dict(ledger.read(real.out).records).items()
    return real


def test_every_real_submission_gets_its_verdict(real_class: Class) -> None:
    out = real_class.out
    history = ledger.read(out)
    verdicts = {name: tuple(record.verdicts.values()) for name, record in history.records.items()}
    good = ("pass", "pass")
    awkward = next(entry.submission_id for entry in history.roster if "<i>" in entry.name)
    assert verdicts == {"ada": good, awkward: good, "zoe": good, "eve": ("wrong", "crash"), "empty": ()}
    assert history.records["empty"].fault == "submission"
    assert {"building", "results", "timing"} <= set(history.records["ada"].seconds)
    assert json.loads((out / "ada" / ledger.RESULT).read_text())["points"] == 30


def test_show_and_report_tell_of_a_graded_class_without_grading(real_class: Class, tmp_path: Path) -> None:
    out = real_class.out
    shown = grader("show", out, "eve")
    assert shown.returncode == 0, shown.stderr
    assert (
        "part3: Fused Attention" in shown.stdout and "CRASHED" in shown.stdout and "SIGABRT" in shown.stdout
    )
    assert shown.stdout.splitlines()[-1] == "total: 0 of 30"
    missed = grader("show", out, "evee")
    assert missed.returncode == 2 and "did you mean 'eve'?" in missed.stderr

    by_hand = tmp_path / "manual.csv"
    by_hand.write_text("id,part1,comment\neve,7.5,a good idea\n")
    records = (out / ledger.LEDGER).read_bytes()
    told = grader("report", out, "--manual", by_hand)
    assert told.returncode == 0, told.stderr
    rows = csv.DictReader(io.StringIO((out / "grades.csv").read_text(encoding="utf-8-sig")))
    assert {row["id"]: row["total"] for row in rows}["eve"] == "7.5"
    kept, added = (out / ledger.LEDGER).read_bytes()[: len(records)], ledger.read(out)
    assert kept == records, "a report grades nobody"
    assert added.reported is not None and added.reported.totals["eve"] == 7.5
    again = grader("report", out)
    assert again.returncode == 0 and "LOWER" not in again.stdout, "points by hand are remembered"
    without = grader("report", out, "--no-manual")
    assert without.returncode == 0 and "1 totals are LOWER" in without.stdout
    assert "eve 7.5 -> 0" in without.stdout and f"came from {by_hand}" in without.stdout
    by_hand.write_text("id,part1\nnobody,1\n")
    assert grader("report", out, "--manual", by_hand).returncode == 2
    assert grader("report", tmp_path).returncode == 2


def test_run_from_the_command_line_gives_every_submission_an_entry(real_class: Class, tmp_path: Path) -> None:
    run = grader("run", real_class.folder, "--out", tmp_path, "--config", SMALL, "--trust", "--only", "empty")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "[1/1] empty: " in run.stdout and "1 could not be read" in run.stdout
    rows = csv.DictReader(io.StringIO((tmp_path / "grades.csv").read_text(encoding="utf-8-sig")))
    troubles = {row["id"]: row["trouble"] for row in rows}
    assert len(troubles) == 5 and troubles["ada"] == "not graded yet" and "module.cpp" in troubles["empty"]
    again = grader(
        "run", real_class.folder, "--out", tmp_path, "--config", SMALL, "--trust", "--only", "empty"
    )
    assert again.returncode == 2 and "--resume" in again.stderr


def test_one_grades_by_the_same_path_and_exits_like_a_student_s_run(
    real_class: Class, tmp_path: Path
) -> None:
    folder, out = real_class.folder, real_class.out
    report = tmp_path / "one.json"
    run = grader("one", folder / "eve", "--config", SMALL, "--trust", "--json", report)
    assert run.returncode == 1, run.stdout + run.stderr
    alone, among_others = (json.loads(path.read_text()) for path in (report, out / "eve" / ledger.RESULT))
    assert alone["submission"] == among_others["submission"] | {"id": "eve"}
    assert [part["verdict"] for part in alone["parts"]] == ["wrong", "crash"]
    assert run.stdout.splitlines()[-1] == "total: 0 of 30"
    assert grader("one", folder / "nowhere").returncode == 2
    assert grader("one", folder / "empty", "--config", SMALL, "--trust").returncode == 1


def test_help_and_mistakes_need_no_torch() -> None:
    traced = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "grader", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert traced.returncode == 0
    assert all(command in traced.stdout for command in ("run", "one", "show", "report", "similar", "doctor"))
    assert "grader.base.errors" in traced.stderr and "torch" not in traced.stderr
    for arguments in (
        ["run"],
        ["frob"],
        ["run", "x", "--out", "y", "--jobs", "0"],
        ["run", "/nowhere", "--out"],
        ["run", str(SMALL.parent), "--out", str(SMALL.parent / "results")],
    ):
        mistake = grader(*arguments)
        assert mistake.returncode == 2
        assert len(mistake.stderr.splitlines()) == 1 and mistake.stderr.startswith("grader: ")
    assert not (SMALL.parent / "results").exists()
