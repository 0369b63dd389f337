"""Imports in the sources, the files that a verdict depends on, imports for `--help`, and the prose lint."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import ROOT, python, write_files
from releases import third_party

from grader.core import imports
from grader.staff.classroom import fingerprints
from tools import prose


def write(root: Path, **modules: str) -> None:
    texts = {"__init__": "", **modules}
    write_files(root / "grader", {f"{name}.py": text for name, text in texts.items()})


def test_every_import_names_a_module_and_late_ones_are_marked(tmp_path: Path) -> None:
    known = imports.modules(ROOT)
    assert imports.missing(ROOT, known) == []
    of_types = [each for name in known for each in imports.imports(name, known[name], known) if each.typing]
    assert of_types and not [each for each in of_types if each.imported not in known]
    # Late imports and imports for types are marked.
    text = "from typing import TYPE_CHECKING\nfrom grader import b\nimport torch, os\n"
    text += "if TYPE_CHECKING:\n    from grader.gone import T\ndef f():\n    from grader.lost import g\n"
    write(tmp_path, a=text, b="")
    known = imports.modules(tmp_path)
    found = list(imports.imports("a", known["grader.a"], known))
    assert [each.imported for each in found] == ["grader", "grader.b", "grader.gone", "grader.lost"]
    assert [each.imported for each in found if each.typing] == ["grader.gone"]
    assert [each.imported for each in found if each.late] == ["grader.lost"]
    assert [each.imported for each in imports.missing(tmp_path, ["grader.a"])] == ["grader.lost"]
    assert third_party(tmp_path, ["grader.a"]) == {"torch"}
    assert imports.closure(tmp_path, ["grader.a"]) == {"grader.a", "grader.b", "grader"}


def test_faults_to_plant_are_still_in_the_code() -> None:
    ran = python("benchmarks/planted_faults.py", "--list")
    assert ran.returncode == 0, ran.stderr


def test_relative_imports_are_resolved(tmp_path: Path) -> None:
    known = ("labs.x.oracle", "labs.x.suspects.b")
    for module, statement, imported in (
        ("labs.x.a", "from .oracle import f", ["labs.x.oracle"]),
        ("labs.x.suspects.a", "from ..oracle import f", ["labs.x.oracle"]),
        ("labs.x.suspects.a", "from . import b, f", ["labs.x.suspects", "labs.x.suspects.b"]),
        ("labs.x", "from .oracle import f", ["labs.x.oracle"]),
        ("labs.x", "from . import oracle", ["labs.x", "labs.x.oracle"]),
        ("other.x.a", "from .oracle import f", []),
    ):
        path = tmp_path / ("__init__.py" if module == "labs.x" else "a.py")
        path.write_text(statement)
        found = [each.imported for each in imports.imports(module, path, known)]
        assert found == imported, (module, statement)


def test_imports_are_found_in_every_kind_of_block(tmp_path: Path) -> None:
    text = """
class A:
    import grader.a
    async def f(self):
        with x: import grader.b
try: import grader.c
except E: import grader.d
else: import grader.e
finally: import grader.f
for x in y: import grader.g
else: import grader.h
while x: import grader.i
match x:
    case 1: import grader.j
if x: pass
elif y: import grader.k
"""
    write(tmp_path, m=text)
    found = list(imports.imports("grader.m", tmp_path / "grader" / "m.py", {}))
    assert [each.imported[-1] for each in found] == list("abcdefghijk")
    assert [each.imported[-1] for each in found if each.late] == ["b"]


@pytest.mark.parametrize(("command", "lists"), [("gpt149", "part3"), ("grader", "similar")])
def test_help_imports_neither_torch_nor_numpy(command: str, lists: str) -> None:
    # Each line on the standard error is that of an import.
    ended = python("-X", "importtime", "-m", command, "--help")
    assert ended.returncode == 0 and "usage" in ended.stdout and lists in ended.stdout
    imported = [re.sub(r"^import time: .*\| +", "", line) for line in ended.stderr.splitlines()]
    assert "argparse" in imported and not [line for line in imported[1:] if not re.fullmatch(r"[\w.]+", line)]
    assert not {"torch", "numpy", "rich.console", "yaml"} & set(imported)


NATIVE = ("inside/runner.cpp", "inside/plain/plain_tensor.h", "shim/gpt149_abi.h")


def test_sources_that_judge_decide_and_those_that_show_or_keep_verdicts_do_not() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in fingerprints.deciding()}
    judging = "judge/timing/measure.py integrity/symbols.py sandbox/seccomp.py runner/runner.py "
    judging += " ".join(f"backends/native/{name}" for name in NATIVE)
    assert {"labs/attention/suspects/blocks.py", "module_ref_stub/kernels.cpp"} <= names
    assert {f"grader/{name}" for name in judging.split()} <= names
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "grader" / "runner").rglob("*.py")} <= names
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


POOR = '''"""Whether it is open."""


def f() -> int:
    """Which of these is no number, whoever asks, and held against the one before it that the caller gave us, so that
    in the end each of them has a place of its own in the list and none is there two times."""
    ~ It tells nobody,
    ~ and was nothing.
    return 1
'''.replace("~", "#")
PLAIN = '"""Reads a file."""\n\nX = 1\n"""Seconds."""\n\n\ndef f() -> int:\n    # A comment.\n    return 1  # told\n'


def test_each_rule_is_found_once_in_poor_prose() -> None:
    found = [f"{place.line} {place.rule}" for place in prose.of_python("a.py", POOR)]
    twice = ["5 opening", "5 whoever", "7 negated noun", "7 vague verb"]
    assert sorted(found) == ["1 opening", "5 held against", "5 long sentence", "5 negated noun", *twice]


def test_plain_prose_is_left_alone() -> None:
    assert [place.rule for place in prose.of_python("a.py", PLAIN)] == ["vague verb"]
    long = "y" * 126
    page = f"{'x' * 125}\n{long}\n| {long} |\n    {long}\n```sh\n{long}\n```\n{long}\n"
    assert [place.line for place in prose.of_markdown("a.md", page)] == [2, 8]


def test_the_baseline_has_each_rule() -> None:
    assert set(json.loads(prose.BASELINE.read_text())) == set(prose.RULES)
