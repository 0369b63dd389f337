"""The self-test finds faults of a judge, and names the promises that cannot be trusted then."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ASSIGNMENT, refused

from grader import sandbox
from grader.assignment import labs
from grader.assignment.mutations import Mutation
from grader.assignment.regions import strip_solution
from grader.backends.torch.zygote import Zygote
from grader.core.results import Diagnosis, Flag, PartResult, SubmissionResult, Timing
from grader.staff import selftest
from grader.staff.selftest import Trial
from labs.attention import kernels as cases
from labs.attention.mutations import apply


def part(verdict: str, *flags: str, ratio: float = 1.0) -> PartResult:
    timing = Timing(10.0, 10.0 * ratio, ratio, (ratio, ratio), 0.98, 8, "cpu", 1.1, "pass", 1.0, True, flags)
    diagnosis = None if verdict == "pass" else Diagnosis("code", "its words")
    return PartResult("part1", "Part", verdict, 10.0, time=timing, diagnosis=diagnosis)  # type: ignore[arg-type]


def result(*parts: PartResult, flags: tuple[Flag, ...] = ()) -> SubmissionResult:
    return SubmissionResult("module", "", "gpt149", {}, {}, {}, parts, flags)


def test_every_case_fits_the_master_and_every_part_has_one(master: str) -> None:
    assert all(apply(master, [bug]) != apply(master, []) for bug in cases.WRONG)
    assert apply(master, [cases.SLOW]) != apply(master, [])
    assert {bug.part for bug in cases.WRONG} == {each.id for each in ASSIGNMENT.parts if not each.is_torch}


def test_what_counts_against_the_machine() -> None:
    assert not list(selftest.master_faults(result(part("pass"), part("slow"))))
    assert "its words" in next(selftest.master_faults(result(part("wrong"))))
    accused = result(part("pass"), flags=(Flag("torch_operator", "calls torch", "review"), Flag("undecided")))
    assert list(selftest.master_faults(accused)) == ["flagged: calls torch"]
    assert not list(selftest.time_faults(result(part("pass"), part("pass", "not_graded"))))
    assert len(list(selftest.time_faults(result(part("slow"), part("pass", "machine_unfit"))))) == 2
    assert not list(selftest.slow_faults(result(part("slow"))))
    assert "1.02 times" in next(selftest.slow_faults(result(part("pass", ratio=1.02))))


def test_each_row_is_tried_with_few_files() -> None:
    packed = (["A1"], ["A1", "A2", ""], ["A2", "B1"], ["B1"], ["C1"])
    files = [
        SimpleNamespace(threats={k: SimpleNamespace(row=row) for k, row in enumerate(rows)})
        for rows in packed
    ]
    assert selftest.one_for_each_row(files) == [files[1], files[2], files[4]]


def test_groups_have_conclusions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fine = [Trial(group, "one", (), 1.0) for group in ("right kernels", "wrong kernels", "times")]
    for made, code in ((fine, 0), ([*fine, Trial("times", "two", ("called slow",), 0.5)], 3)):
        monkeypatch.setattr(selftest, "trials", lambda *_, made=made, **__: iter(made))
        assert selftest.main(["--tier", "D", "--trust"]) == code
    printed = capsys.readouterr().out
    assert "called slow" in printed and "NOT TRUSTED  verdicts on time: 1 of 2" in printed
    assert "trusted      that wrong work is found: 1 of 1" in printed
    assert "NOT TRIED    that submissions can be run without harm" in printed


def test_a_starter_is_no_master(tmp_path: Path, master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module.cpp").write_text(strip_solution(master))
    monkeypatch.setattr(labs, "master", lambda folder, source: tmp_path / source)
    refused("needs the master", next, selftest.trials(ASSIGNMENT, sandbox.OPEN, tmp_path))


def test_a_blind_judge(master: str, zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bugs are judged for real. The second is harmless: a judge that passes it looks like one that misses a bug."""
    parts = tuple(replace(each, cases=each.cases[:3]) for each in ASSIGNMENT.parts)
    course = replace(ASSIGNMENT, parts=parts)
    no_bug = Mutation("no bug at all", "part2", (("/ rowSum", "* (1.0f / rowSum)"),))
    found = next(bug for bug in cases.WRONG if bug.part == "part1")
    monkeypatch.setattr(cases, "WRONG", (found, no_bug))
    bench = selftest.TrialSetup(course, sandbox.OPEN, zygote, tmp_path, cases)
    made = {trial.name: trial.faults for trial in selftest.wrong_kernels(bench, master)}
    assert made == {f"part1: {found.name}": (), "part2: no bug at all": ("it is pass",)}
