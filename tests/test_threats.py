"""Each threat gets its required verdict in every sandbox tier of this machine; `selftest` reports a faulty judge."""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from _pytest.mark.structures import ParameterSet
from building import reads_python_h
from conftest import ASSIGNMENT, ROOT, Capture, Patch, one_of_each, refused, tiers, write
from honest.styles import published
from process_tree import descendants, wait_for

from grader import sandbox
from grader.assignment import labs, regions
from grader.assignment.mutations import Mutation, edited, without_starter
from grader.backends.torch.zygote import Zygote
from grader.core.results import Diagnosis, Flag, PartResult, SubmissionResult, Timing
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate
from grader.staff import selftest
from labs.attention import kernels
from labs.attention.threats import CONTROLS, THREATS, Submission, faults, judge, places, submissions

PUBLIC_FOLDERS = (Path("/dev/shm"), Path("/tmp"), Path("/var/tmp"))
TIERS = tiers()
Tiers = list[sandbox.Sandbox]
HONEST = {"the master": (ROOT / "module.cpp").read_text(), "the published style": published()}
#: Tiers for all threats: the strongest, and the strongest without namespaces. Others test rows that depend on them.
ALL_ROWS = {TIERS[0].tier, next(one.tier for one in TIERS if one.bwrap is None)}
JUDGE_CPU_S = 60.0  # limit on the judge's own processor time for one file: over ten times the usual time


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


#: Folder with a folder of secret files for each test. The threats' sources contain its path, always the same, so that
#: their objects are cached. Names of files in public folders are derived from it: parallel tests and other checkouts
#: have other names.
SECRETS = Path(os.environ["GPT149_CACHE"]) / f"threats-{digest(str(ROOT))}"


class Confinements:
    """A zygote (which forks runners) for each sandbox tier. It starts at first use and is shared, as in a class."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.stack = stack
        self.started: dict[str, Zygote] = {}

    def zygote(self, box: sandbox.Sandbox) -> Zygote:
        if box.tier not in self.started:
            self.started[box.tier] = self.stack.enter_context(Zygote(sandbox=box))
            with self.started[box.tier].spawn("torch", "", threads=1):
                pass
        return self.started[box.tier]


@pytest.fixture(scope="module")
def confinements() -> Iterator[Confinements]:
    with contextlib.ExitStack() as stack:
        yield Confinements(stack)


def cases() -> Iterator[ParameterSet]:
    """Yield (sandboxes, submission, True for the profiler's table) for the threats that are tested in each tier.

    Every submission is tested with the table, which needs a runner with torch. In the strongest tier and in D, those
    that do not attack such a runner are also tested without. All but one, which is slow, have a fast test there. A test
    judges in one tier after the other, so that all use one build.
    """
    for submission in submissions([*CONTROLS, *THREATS]):
        # Attacks on file descriptors and on Python need a runner with torch.
        meets_table = submission.first.row in ("A2", "B1", "C1")
        boxes = [box for box in TIERS if box.tier in ALL_ROWS or submission.first.depends_on_tier]
        quick = [box for box in boxes if box.tier in (TIERS[0].tier, "D")]
        others = [box for box in boxes if box not in quick]
        for some, table in ((quick, False), (quick, True), (others, True)):
            name = f"{''.join(box.tier for box in some)}: {submission.name}{', with the table' * table}"
            slow = submission.first.lacking_end is not None
            marks = [pytest.mark.full] * (some is not quick or table != meets_table or slow)
            if some and (table or not meets_table):
                yield pytest.param(some, submission, table, id=name, marks=marks)


@pytest.mark.parametrize(("boxes", "submission", "table"), [*cases()])
def test_every_threat_ends_in_its_verdict_or_flag(
    boxes: Tiers, submission: Submission, table: bool, confinements: Confinements, tmp_path: Path
) -> None:
    test = digest(f"{[box.tier for box in boxes]} {submission.name} {table}")
    for box in boxes:
        zygote, tier, folder = confinements.zygote(box), box.tier, tmp_path / box.tier
        # Build a row for each tier if its end depends on what the compiler can read there.
        needs_python_h = submission.first.lacking_end is not None
        own = tier * (submission.first.open_end is not None or needs_python_h)
        secrets = SECRETS / f"{own}-{test}"
        secrets.mkdir(parents=True, exist_ok=True)
        named = places(secrets)
        processes, started_s, wall_s = len(descendants(os.getpid())), time.process_time(), time.monotonic()
        result = judge(submission, folder, named, zygote, sandbox=box, table=table)
        wall_s = time.monotonic() - wall_s
        assert submission.first.wall_s == 0.0 or wall_s < submission.first.wall_s
        # The limit is on the judge's own time; compilers and kernels have other limits.
        assert time.process_time() - started_s < JUDGE_CPU_S and result.sandbox["tier"] == tier
        rows = [(submission.threats[part.id], part) for part in result.parts]
        wrong = {row.name: found for row, part in rows if (found := faults(row, tier, result, part))}
        files = [path for place in PUBLIC_FOLDERS for path in place.glob(f"{named['marker']}*")]
        for path in files:
            path.rmdir() if path.is_dir() else path.unlink()
        assert not wrong
        assert (rows[0][1].verdict == "unjudged") == (needs_python_h and not reads_python_h(box))
        # If the attack has killed the zygote in tier D, a new one replaces it: wait for the right number of processes.
        assert wait_for(lambda most=processes: len(descendants(os.getpid())) <= most)
        # In tier D a kernel may write to folders that every user may write to.
        assert not files or tier == "D"
        beside = (Path(name).parts[0] for name in submission.first.files)
        assert {path.name for path in folder.iterdir()} == {"module.cpp", *beside}


@pytest.mark.parametrize("name", one_of_each(HONEST, key=lambda name: None))
def test_honest_files_are_never_flagged(name: str, confinements: Confinements, tmp_path: Path) -> None:
    """Judge honest files in the strongest tier, with times and profiles."""
    parts = tuple(part for part in ASSIGNMENT.parts if part.function and part.id not in ("part2", "part4"))
    options = Options(shape={"N": 128, "Br": 32, "Bc": 32}, seed=149)
    source, zygote = write(tmp_path, HONEST[name]), confinements.zygote(TIERS[0])
    result = evaluate(ASSIGNMENT, source, parts, options, zygote=zygote, sandbox=TIERS[0])
    # The published style does not export fourDimWrite, so the part of this function gets the verdict of part 1.
    assert [part.verdict for part in result.parts if part.verdict not in ("pass", "slow")] == []
    flags = [*result.flags, *(flag for part in result.parts for flag in part.flags)]
    assert [flag for flag in flags if flag.level != "note"] == []


def test_every_kind_of_threat_has_a_row() -> None:
    # Threats C5 (archives) and E7 (folders) are tested in test_submission.py and test_hostile_outfolder.py.
    counts = {"A": 11, "B": 5, "C": 6, "D": 2, "E": 6, "F": 2}
    rows = {f"{letter}{number}" for letter, last in counts.items() for number in range(1, last + 1)}
    assert {row.row for row in THREATS} == rows - {"C5"}
    packed = [row for submission in submissions([*THREATS, *CONTROLS]) for row in submission.threats.values()]
    assert len(packed) == len({(row.row, row.name) for row in packed}) == len(THREATS) + len(CONTROLS)


def part(verdict: str, *flags: str, ratio: float = 1.0) -> PartResult:
    timing = Timing(10.0, 10.0 * ratio, ratio, (ratio, ratio), 0.98, 8, "cpu", 1.1, "pass", 1.0, True, flags)
    diagnosis = None if verdict == "pass" else Diagnosis("code", "its words")
    return PartResult("part1", "Part", verdict, 10.0, time=timing, diagnosis=diagnosis)  # type: ignore[arg-type]


def result(*parts: PartResult, flags: tuple[Flag, ...] = ()) -> SubmissionResult:
    return SubmissionResult("module", "", "gpt149", {}, {}, {}, parts, flags)


def test_every_case_fits_the_master_and_every_part_has_one(master: str) -> None:
    assert all(edited(master, bug, kernels) != without_starter(master) for bug in kernels.WRONG)
    assert edited(master, kernels.SLOW, kernels) != without_starter(master)
    assert {bug.part for bug in kernels.WRONG} == {each.id for each in ASSIGNMENT.parts if not each.is_torch}


def test_the_selftest_names_faults_of_the_machine() -> None:
    assert not list(selftest.master_faults(result(part("pass"), part("slow"))))
    assert "its words" in next(selftest.master_faults(result(part("wrong"))))
    accused = result(part("pass"), flags=(Flag("torch_operator", "calls torch", "review"), Flag("undecided")))
    assert list(selftest.master_faults(accused)) == ["flagged: calls torch"]
    assert not list(selftest.time_faults(result(part("pass"), part("pass", "not_graded"))))
    assert len(list(selftest.time_faults(result(part("slow"), part("pass", "machine_unfit"))))) == 2
    assert not list(selftest.slow_faults(result(part("slow"))))
    assert "1.02 times" in next(selftest.slow_faults(result(part("pass", ratio=1.02))))


def test_selftest_tries_each_row_with_few_files() -> None:
    packed = (["A1"], ["A1", "A2", ""], ["A2", "B1"], ["B1"], ["C1"])
    files = [SimpleNamespace(threats={row: SimpleNamespace(row=row) for row in rows}) for rows in packed]
    assert selftest.one_for_each_row(files) == [files[1], files[2], files[4]]


def test_the_selftest_concludes_for_each_group(monkeypatch: Patch, capsys: Capture) -> None:
    fine = [selftest.Trial(group, "one", (), 1.0) for group in ("right kernels", "wrong kernels", "times")]
    for made, code in ((fine, 0), ([*fine, selftest.Trial("times", "two", ("called slow",), 0.5)], 3)):
        monkeypatch.setattr(selftest, "trials", lambda *_, made=made, **__: iter(made))
        assert selftest.main(["--tier", "D", "--trust"]) == code
    printed = capsys.readouterr().out
    assert "called slow" in printed and "NOT TRUSTED  verdicts on time: 1 of 2" in printed
    assert "trusted      that wrong kernels are found: 1 of 1" in printed
    assert "NOT TRIED    that submissions do no harm" in printed


def test_the_selftest_refuses_a_starter(tmp_path: Path, master: str, monkeypatch: Patch) -> None:
    (tmp_path / "module.cpp").write_text(regions.strip_solution(master))
    monkeypatch.setattr(labs, "master", lambda folder, source: tmp_path / source)
    refused("needs the master", next, selftest.trials(ASSIGNMENT, sandbox.OPEN, tmp_path))


def test_a_missed_bug_is_reported(master: str, zygote: Zygote, tmp_path: Path, monkeypatch: Patch) -> None:
    """`selftest` judges two edits as bugs. The second does not change the result, so it is reported as missed."""
    parts = tuple(replace(each, cases=each.cases[:3]) for each in ASSIGNMENT.parts)
    no_bug = Mutation("no bug at all", "part2", (("/ rowSum", "* (1.0f / rowSum)"),))
    found = next(bug for bug in kernels.WRONG if bug.part == "part1")
    monkeypatch.setattr(kernels, "WRONG", (found, no_bug))
    bench = selftest.TrialSetup(replace(ASSIGNMENT, parts=parts), sandbox.OPEN, zygote, tmp_path, kernels)
    made = {trial.name: trial.faults for trial in selftest.wrong_kernels(bench, master)}
    missed = "the verdict is pass, and must be wrong or crash"
    assert made == {f"part1: {found.name}": (), "part2: no bug at all": (missed,)}
