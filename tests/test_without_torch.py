"""The judge's own process never imports torch, and judges, explains and times on machines without it."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import keeping, python, write, write_files

from grader.assignment.mutations import Mutation, edited
from labs.attention import kernels

#: Returns torch's place, for builds against its headers, and refuses to run any of it.
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
#: A Python without torch, for imports and for questions about its place. Its child processes have one.
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


def run(script: str, *arguments: str, code: int = 0) -> str:
    ended = python("-c", script, *arguments, timeout_s=300)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


def judged(sources: dict[str, str], folder: Path, *, torch: str, table: bool) -> dict[str, Any]:
    """Return the results of these sources, by name, from a process without torch. `torch` is one of the scripts."""
    write_files(folder, {f"{name}/module.cpp": text for name, text in sources.items()})
    places = {name: str(folder / name / "module.cpp") for name in sources}
    said = run(torch + JUDGE, json.dumps(places), "table" if table else "no table")
    return json.loads(said.splitlines()[-1])


@pytest.mark.full
def test_right_and_wrong_results_are_judged_and_explained_without_torch(master: str, tmp_path: Path) -> None:
    small = keeping(master, "myNaiveAttention")
    sources = {mutation.name: edited(small, mutation, kernels) for mutation in (SCALED, SWAPPED, TYPED)}
    sources |= {"right": small, "timed": small}
    results = judged(sources, tmp_path, torch=REFUSES_TORCH, table=True)
    parts = {name: result["parts"] for name, result in results.items()}
    assert [part["verdict"] for part in parts["right"]] == ["pass"] * 3
    assert parts["timed"][0]["time"]["rounds"] and parts["timed"][0]["verdict"] in ("pass", "slow")
    for name, place, code, words in (
        ("swapped", 0, "swapped_indices", "y and z are swapped"),
        ("scaled", 2, "scaled", "divided by sqrt(d)"),
        ("typed", 2, "wrong_dtype", "It returned a tensor of bfloat16"),
    ):
        part = parts[name][place]
        assert part["verdict"] == "wrong" and part["diagnosis"]["code"] == code
        assert words in part["diagnosis"]["message"]
    assert any(case["output_sha256"] for case in parts["scaled"][2]["cases"])
    assert results["right"]["inputs_version"] == 2


WITHOUT = [REFUSES_TORCH, pytest.param(HIDES_TORCH, marks=pytest.mark.full)]


@pytest.mark.parametrize("torch", WITHOUT, ids=["not imported", "absent"])
def test_a_python_without_torch_judges(torch: str, master: str, tmp_path: Path) -> None:
    """A machine without torch compiles by another standard, and needs headers of its own: the full tier alone."""
    small = keeping(master, "myNaiveAttention")
    sources = {"right": small, "scaled": edited(small, SCALED, kernels), "timed": small}
    results = judged(sources, tmp_path, torch=torch, table=False)
    assert [part["verdict"] for part in results["right"]["parts"]] == ["pass"] * 3
    assert [part["verdict"] for part in results["scaled"]["parts"]] == ["pass", "pass", "wrong"]
    assert results["scaled"]["parts"][2]["diagnosis"]["code"] == "scaled"
    assert results["timed"]["parts"][0]["time"]["rounds"]
    if torch == HIDES_TORCH:
        chains = [result["toolchain"] for result in results.values()]
        assert {(each["torch"], each["cxx_standard"]) for each in chains} == {("absent", "c++17")}


COMMAND_LINE = "\nimport runpy; sys.argv[0] = 'gpt149.py'; runpy.run_path('gpt149.py', run_name='__main__')"


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
