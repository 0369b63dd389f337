"""Imports: the judge works without importing torch, each import names an existing module, `--help` is fast."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, keeping, put, python, some, write
from releases import third_party

from grader.assignment.mutations import Mutation, edited
from grader.core import imports
from grader.staff.classroom import fingerprints
from labs.attention import kernels
from tools import prose, public_names

#: Script that makes `import torch` fail. A search still finds torch's folder, because builds use its headers.
REFUSES_TORCH = """
import importlib.abc, importlib.machinery, sys

class Refusal(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        spec.loader = self
        return spec
    def exec_module(self, module):
        raise ImportError(f"{module.__name__} was imported in the judge's process")

sys.meta_path.insert(0, Refusal())
"""
#: Script that hides torch from imports and searches in its own process. Child processes can import torch.
HIDES_TORCH = """
import importlib.metadata, importlib.util, sys

class Absence:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

looked_up, version_of = importlib.util.find_spec, importlib.metadata.version

def find_spec(name, package=None):
    return None if name.partition(".")[0] == "torch" else looked_up(name, package)

def version(name):
    if name == "torch":
        raise importlib.metadata.PackageNotFoundError(name)
    return version_of(name)

sys.meta_path.insert(0, Absence())
importlib.util.find_spec, importlib.metadata.version = find_spec, version
"""
JUDGE = """
import json
from pathlib import Path
from grader.assignment import loading
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate
from grader.report import result_json
from grader.backends.torch.zygote import Zygote
from grader.score import score

course = loading.load(Path("configs/gpt149.yaml"))
shape = {"N": 64, "Br": 16, "Bc": 24, "threads": 2}
results = {}
with Zygote() as zygote:
    for name, path in json.loads(sys.argv[1]).items():
        timed = name == "timed"
        table = timed and sys.argv[2] == "table"
        options = Options(shape=shape, timing=timed, profile=table, time_budget_s=2.0)
        parts = tuple(course.part(part) for part in ("4Dread", "4Dwrite", "part1"))
        result = evaluate(course, Path(path), parts[2:] if timed else parts, options, zygote=zygote)
        results[name] = result_json.to_dict(result, score(course, result))
assert "torch" not in sys.modules
print(json.dumps(results))
"""
INDEX, INDEX_SWAPPED = (f"((x * sizeX + {a}) * sizeY + {b}) * sizeZ + b" for a, b in ("yz", "zy"))
SCALED = Mutation("scaled", "part1", ((", N, score)", ", N, score / std::sqrt((float)d))"),))
SWAPPED = Mutation("swapped", "4Dread", ((INDEX, INDEX_SWAPPED),))
TYPED = Mutation("typed", "part1", (("return fillTensor(OTensor, O);", "return OTensor.to(at::kBFloat16);"),))
WITHOUT = some([(REFUSES_TORCH, False), (HIDES_TORCH, False), (REFUSES_TORCH, True)], 3)
COMMAND_LINE = "\nimport runpy; sys.argv[0] = 'gpt149.py'; runpy.run_path('gpt149.py', run_name='__main__')"
NATIVE = ("inside/runner.cpp", "inside/plain/plain_tensor.h", "shim/gpt149_abi.h")


def run(script: str, *arguments: str, code: int = 0) -> str:
    return python("-c", script, *arguments, timeout_s=300, code=code).stdout


def judged(sources: dict[str, str], folder: Path, *, torch: str, table: bool) -> dict[str, Any]:
    """Judge in a process that first runs the Python code `torch`, such as HIDES_TORCH. Return the results by name."""
    put(folder, {f"{name}/module.cpp": text for name, text in sources.items()})
    places = {name: str(folder / name / "module.cpp") for name in sources}
    said = run(torch + JUDGE, json.dumps(places), "table" if table else "no table")
    return json.loads(said.splitlines()[-1])


#: By name of a mutation: the index of the wrong part, its diagnosis code, and words of the message.
EXPLAINED = {
    "swapped": (0, "swapped_indices", "y and z are swapped"),
    "scaled": (2, "scaled", "divided by sqrt(d)"),
    "typed": (2, "wrong_dtype", "It returned a tensor of bfloat16"),
}


@pytest.mark.parametrize(("torch", "table"), WITHOUT, ids=["not imported", "absent", "with the table"])
def test_a_python_without_torch_judges(torch: str, table: bool, master: str, tmp_path: Path) -> None:
    """Judging works if torch is not imported, or absent (full tier: headers for C++17 take long to compile)."""
    small = keeping(master, "myNaiveAttention")
    wrong = (SCALED, SWAPPED, TYPED) if table else (SCALED,)
    sources = {mutation.name: edited(small, mutation, kernels) for mutation in wrong}
    results = judged({**sources, "right": small, "timed": small}, tmp_path, torch=torch, table=table)
    parts = {name: result["parts"] for name, result in results.items()}
    assert [part["verdict"] for part in parts["right"]] == ["pass"] * 3
    assert [part["verdict"] for part in parts["scaled"]] == ["pass", "pass", "wrong"]
    assert parts["timed"][0]["time"]["rounds"] and parts["timed"][0]["verdict"] in ("pass", "slow")
    for name in sources:
        place, code, words = EXPLAINED[name]
        part = parts[name][place]
        assert part["verdict"] == "wrong" and part["diagnosis"]["code"] == code
        assert words in part["diagnosis"]["message"]
    assert any(case["output_sha256"] for case in parts["scaled"][2]["cases"])
    assert results["right"]["inputs_version"] == 2
    if torch == HIDES_TORCH:
        chains = [result["toolchain"] for result in results.values()]
        assert {(each["torch"], each["cxx_standard"]) for each in chains} == {("absent", "c++17")}


@pytest.mark.full
def test_a_student_without_torch_reads_what_is_missing(master: str, tmp_path: Path) -> None:
    source = write(tmp_path, keeping(master, "myNaiveAttention"))
    asked = ["part1", "-N", "64", "--no-time", "--module", str(source)]
    ran = run(HIDES_TORCH + COMMAND_LINE, *asked)
    assert "no torch" in ran and "PASS" in ran and "STUDENT - " not in ran
    checked = run(HIDES_TORCH + COMMAND_LINE, *asked, "--sanitize")
    assert "PASS" in checked and "no torch" in checked
    source.write_text(source.read_text() + "\nstatic PyObject *nothing = nullptr;\n")
    ran = " ".join(run(HIDES_TORCH + COMMAND_LINE, *asked, code=3).split())
    assert "this machine has no torch" in ran


def modules_in(root: Path, **modules: str) -> None:
    put(root / "grader", {f"{name}.py": text for name, text in {"__init__": "", **modules}.items()})


@pytest.mark.full
def test_every_import_names_a_module_and_late_ones_are_marked(tmp_path: Path) -> None:
    known = imports.modules(ROOT)
    assert imports.missing(ROOT, known) == []
    of_types = [each for name in known for each in imports.imports(name, known[name], known) if each.typing]
    assert of_types and not [each for each in of_types if each.imported not in known]
    # An import within a function is marked `late`, an import only for type checkers `typing`.
    text = "from typing import TYPE_CHECKING\nfrom grader import b\nimport torch, os\n"
    text += "if TYPE_CHECKING:\n    from grader.gone import T\ndef f():\n    from grader.lost import g\n"
    modules_in(tmp_path, a=text, b="")
    known = imports.modules(tmp_path)
    found = list(imports.imports("a", known["grader.a"], known))
    assert [each.imported for each in found] == ["grader", "grader.b", "grader.gone", "grader.lost"]
    assert [each.imported for each in found if each.typing] == ["grader.gone"]
    assert [each.imported for each in found if each.late] == ["grader.lost"]
    assert [each.imported for each in imports.missing(tmp_path, ["grader.a"])] == ["grader.lost"]
    assert third_party(tmp_path, ["grader.a"]) == {"torch"}
    assert imports.closure(tmp_path, ["grader.a"]) == {"grader.a", "grader.b", "grader"}


def test_faults_to_plant_are_still_in_the_code() -> None:
    python("benchmarks/planted_faults.py", "--list", code=0)


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
        path = write(tmp_path, statement, "__init__.py" if module == "labs.x" else "a.py")
        assert [one.imported for one in imports.imports(module, path, known)] == imported, (module, statement)


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
    modules_in(tmp_path, m=text)
    found = list(imports.imports("grader.m", tmp_path / "grader" / "m.py", {}))
    assert [each.imported[-1] for each in found] == list("abcdefghijk")
    assert [each.imported[-1] for each in found if each.late] == ["b"]


@pytest.mark.parametrize(("command", "lists"), [("gpt149", "part3"), ("grader", "similar")])
def test_help_imports_neither_torch_nor_numpy(command: str, lists: str) -> None:
    # With `-X importtime`, each line on the standard error names an import.
    ended = python("-X", "importtime", "-m", command, "--help")
    assert ended.returncode == 0 and "usage" in ended.stdout and lists in ended.stdout
    imported = [re.sub(r"^import time: .*\| +", "", line) for line in ended.stderr.splitlines()]
    assert "argparse" in imported and not [line for line in imported[1:] if not re.fullmatch(r"[\w.]+", line)]
    assert not {"torch", "numpy", "rich.console", "yaml"} & set(imported)


def test_only_sources_that_affect_verdicts_are_in_the_kits_digest() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in fingerprints.deciding()}
    judging = "judge/timing/measure.py integrity/symbols.py sandbox/seccomp.py runner/runner.py "
    judging += " ".join(f"backends/native/{name}" for name in NATIVE)
    compiled = {"grader/backends/gpu/card/kernels.cu", "labs/gpu/reference.cu", "module_ref_stub/kernels.cpp"}
    assert {"labs/attention/suspects/blocks.py", *compiled} <= names
    assert {f"grader/{name}" for name in judging.split()} <= names
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "grader" / "runner").rglob("*.py")} <= names
    folders = (f"grader/{k}/" for k in ("report", "study", "doctor", "submission"))
    assert not [name for name in names if name.startswith(("grader/score.py", "textgen/", *folders))]
    assert [name for name in names if "/staff/" in name] == ["grader/staff/classroom/worker.py"]


POOR = '''"""Whether it is open."""


def f() -> int:
    """Which of these is no number, whoever asks, and held against the one before it that the caller gave us, so that
    in the end each of them has a place of its own in the list and none is there two times."""
    ~ It t*lls nobody,
    ~ and was nothing.
    return 1
'''.replace("~", "#").replace("*", "e")
PLAIN = (
    '"""Reads a file."""\n\nX = 1\n"""Seconds."""\n\n\ndef tell() -> int:\n    # A comment.\n    return 1\n'
)


def test_each_rule_is_found_once_in_poor_prose_and_never_in_plain_prose() -> None:
    found = [f"{place.line} {place.rule}" for place in prose.of_python("a.py", POOR)]
    twice = ["5 opening", "5 whoever", "7 negated noun", "7 vague verb"]
    assert sorted(found) == ["1 opening", "5 held against", "5 long sentence", "5 negated noun", *twice]
    assert [*prose.of_python("a.py", PLAIN)] == []
    long = "y" * 126
    page = f"{'x' * 125}\n{long}\n| {long} |\n    {long}\n```sh\n{long}\n```\n{long}\n"
    assert [place.line for place in prose.of_markdown("a.md", page)] == [2, 8]


def test_no_public_name_is_missing() -> None:
    assert public_names.missing() == [] and len(public_names.LISTED.read_text().split()) > 700
