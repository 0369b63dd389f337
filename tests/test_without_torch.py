"""The judge's own process never imports torch: not for inputs, oracle, comparison, diagnosis or timing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import ROOT, keeping

from grader.selftest.mutations import Mutation, apply

#: Says where torch lies, for whoever compiles against its headers, and refuses to run any of it.
REFUSES_TORCH = """
import importlib.abc, importlib.machinery, sys

class Refusal(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        spec.loader = self
        return spec
    def create_module(self, spec):
        raise ImportError(f"{spec.name} was imported in the judge's process")
    def exec_module(self, module):
        raise AssertionError

sys.meta_path.insert(0, Refusal())
"""
JUDGE = """
import json
from pathlib import Path
from grader import assignment
from grader.bench import Options
from grader.evaluate import evaluate
from grader.report import result_json
from grader.zygote import Zygote

course = assignment.load(Path("configs/gpt149.yaml"))
shape = {"N": 64, "Br": 16, "Bc": 24, "threads": 2}
told = {}
with Zygote() as zygote:
    for name, path in json.loads(sys.argv[1]).items():
        timed = name == "timed"
        options = Options(shape=shape, timing=timed, profile=timed, time_budget_s=2.0)
        parts = tuple(course.part(part) for part in ("4Dread", "4Dwrite", "part1"))
        result = evaluate(course, Path(path), parts[2:] if timed else parts, options, zygote=zygote)
        told[name] = result_json.to_dict(result)
assert "torch" not in sys.modules
print(json.dumps(told))
"""
SCALED = Mutation(
    "scaled", "part1", (("QK_t, i, j, N, score)", "QK_t, i, j, N, score / std::sqrt((float)d))"),)
)
SWAPPED = Mutation(
    "swapped",
    "4Dread",
    (("((x * sizeX + y) * sizeY + z) * sizeZ + b", "((x * sizeX + z) * sizeY + y) * sizeZ + b"),),
)
TYPED = Mutation(
    "another type", "part1", (("return fillTensor(OTensor, O);", "return OTensor.to(at::kBFloat16);"),)
)


def judged(sources: dict[str, str], folder: Path) -> dict[str, Any]:
    """The results of these sources, by name, from a process that refuses torch."""
    places = {}
    for name, text in sources.items():
        place = folder / name / "module.cpp"
        place.parent.mkdir()
        place.write_text(text)
        places[name] = str(place)
    ended = subprocess.run(
        [sys.executable, "-c", REFUSES_TORCH + JUDGE, json.dumps(places)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_right_and_wrong_results_are_judged_and_explained_without_torch(master: str, tmp_path: Path) -> None:
    small = keeping(master, "myNaiveAttention")
    told = judged(
        {
            "right": small,
            "scaled": apply(small, [SCALED]),
            "swapped": apply(small, [SWAPPED]),
            "typed": apply(small, [TYPED]),
            "timed": small,
        },
        tmp_path,
    )
    parts = {name: result["parts"] for name, result in told.items()}
    assert [part["verdict"] for part in parts["right"]] == ["pass"] * 3
    assert parts["timed"][0]["time"]["rounds"] and parts["timed"][0]["verdict"] in ("pass", "slow")
    assert [part["verdict"] for part in parts["scaled"]] == ["pass", "pass", "wrong"]
    assert parts["swapped"][0]["verdict"] == "wrong"
    swapped = parts["swapped"][0]["diagnosis"]
    assert swapped["code"] == "swapped_indices" and "y and z are swapped" in swapped["message"]
    scaled = parts["scaled"][2]["diagnosis"]
    assert scaled["code"] == "scaled" and "divided by sqrt(d)" in scaled["message"]
    assert any(case["output_sha256"] for case in parts["scaled"][2]["cases"])
    typed = parts["typed"][2]["diagnosis"]
    assert typed["code"] == "wrong_dtype" and "It returned a tensor of bfloat16" in typed["message"]
    assert told["right"]["inputs_version"] == 2
