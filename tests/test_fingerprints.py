"""A verdict is out of date when a source of the judging path changes, and no other."""

from __future__ import annotations

from pathlib import Path

from conftest import ROOT, write_files

from grader.base import imports
from grader.staff.classroom import fingerprints


def test_sources_that_judge_decide_and_those_that_show_or_keep_verdicts_do_not() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in fingerprints.deciding()}
    judging = "judge/timing/measure.py judge/integrity/symbols.py sandbox/seccomp.py run/inside/runner.cpp "
    judging += "run/runner.py run/inside/plain/plain_tensor.h build/shim/gpt149_abi.h"
    assert {"labs/attention/suspects/blocks.py", "module_ref_stub/kernels.cpp"} <= names
    assert {f"grader/{name}" for name in judging.split()} <= names
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "grader" / "run").rglob("*.py")} <= names
    folders = (f"grader/{k}/" for k in ("report", "study", "doctor", "submission"))
    assert not [name for name in names if name.startswith(("grader/score.py", "textgen/", *folders))]
    assert [name for name in names if "/staff/" in name] == ["grader/staff/classroom/worker.py"]


def test_every_module_that_judging_imports_is_found(tmp_path: Path) -> None:
    names = ("judge/evaluate.py", "judge/extra.py", "report/plot.py")
    write_files(tmp_path / "grader", dict.fromkeys(names, ""))
    before = fingerprints.deciding(tmp_path)
    (tmp_path / "grader/judge/evaluate.py").write_text("def f():\n    from grader.judge import extra\n")
    assert [path.name for path in set(fingerprints.deciding(tmp_path)) - set(before)] == ["extra.py"]
    known = {"grader.judge.evaluate", "grader.judge.extra", "grader.report.plot"}
    assert imports.modules(tmp_path).keys() == known
