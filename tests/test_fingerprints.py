"""What makes a verdict out of date: the sources of the judging path, and no others."""

from __future__ import annotations

from pathlib import Path

from grader.base import imports
from grader.staff.classroom import fingerprints

ROOT = Path(__file__).resolve().parents[1]


def names() -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in fingerprints.deciding()}


def test_what_judges_decides() -> None:
    assert {
        "grader/judge/timing/measure.py",
        "labs/attention/suspects/blocks.py",
        "grader/judge/integrity/symbols.py",
        "grader/sandbox/seccomp.py",
        "grader/run/inside/runner.cpp",
        "grader/run/inside/plain/plain_tensor.h",
        "grader/run/runner.py",
        "grader/build/shim/gpt149_abi.h",
        "module_ref_stub/kernels.cpp",
    } <= names()
    untrusted = {path for path in names() if path.startswith("grader/run/")}
    all_of_run = {path.relative_to(ROOT).as_posix() for path in (ROOT / "grader" / "run").rglob("*.py")}
    assert all_of_run <= untrusted


def test_what_shows_measures_or_keeps_verdicts_decides_none() -> None:
    telling = (
        "grader/score.py",
        "grader/report/",
        "grader/study/",
        "grader/doctor/",
        "grader/submission/",
        "textgen/",
    )
    assert not [name for name in names() if name.startswith(telling)]
    staffs = {name for name in names() if name.startswith("grader/staff/")}
    assert staffs == {"grader/staff/classroom/worker.py"}


def test_every_module_that_judging_imports_is_found(tmp_path: Path) -> None:
    """A module counts from the day on which something on the path imports it."""
    for name in ("grader/judge/evaluate.py", "grader/judge/extra.py", "grader/report/plot.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    before = fingerprints.deciding(tmp_path)
    (tmp_path / "grader/judge/evaluate.py").write_text("def f():\n    from grader.judge import extra\n")
    added = set(fingerprints.deciding(tmp_path)) - set(before)
    assert [path.name for path in added] == ["extra.py"]
    assert imports.modules(tmp_path).keys() == {
        "grader.judge.evaluate",
        "grader.judge.extra",
        "grader.report.plot",
    }
