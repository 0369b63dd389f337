"""The stand-in for torch does with tensors what torch does: the same expressions, built with both, come out alike."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from torch.utils.cpp_extension import include_paths

from grader import standin
from grader.build import build
from grader.session import Request
from grader.study.standalone import Kit, build_program, ran

EXPRESSIONS = ROOT / "tests" / "sources" / "tensor_expressions.cpp"
CALL = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from grader.runner import StudentObject
StudentObject(sys.argv[2]).prepare("expressions", [torch.zeros(1)])()
"""


def lines(printed: str) -> dict[tuple[str, str], str]:
    """What came out, by kind and text of the expression."""
    rows = (line.split("\t") for line in printed.splitlines())
    return {(row[0], row[1]): row[2] for row in rows if len(row) == 3}


@pytest.fixture(scope="module")
def with_torch() -> dict[tuple[str, str], str]:
    made = build(EXPRESSIONS, flags=("-O0",))
    assert (made.ok, made.path) == (True, "light"), made.diagnostics
    command = [sys.executable, "-c", CALL, str(ROOT), str(made.object_path)]
    return lines(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)


@pytest.fixture(scope="module")
def with_the_stand_in() -> dict[tuple[str, str], str]:
    program = build_program(EXPRESSIONS, Kit(flags=("-O0", "-g1")))
    with ran(program, Request("expressions", [{"input": 0}], [torch.zeros(1)])) as run:
        assert run.finished.returncode == 0, run.output
    return lines(run.output)


def test_every_line_of_the_file_was_run_by_both(
    with_torch: dict[tuple[str, str], str], with_the_stand_in: dict[tuple[str, str], str]
) -> None:
    count = len(re.findall(r"^    (?:VALUE|EFFECT|TEXT)\(", EXPRESSIONS.read_text(), re.MULTILINE))
    assert list(with_torch) == list(with_the_stand_in)
    assert len(with_torch) == count > 250
    assert sum(shown.startswith("throws") for shown in with_torch.values()) > 30


@pytest.mark.parametrize("kind", ["VALUE", "EFFECT", "TEXT"])
def test_they_come_out_alike(
    kind: str, with_torch: dict[tuple[str, str], str], with_the_stand_in: dict[tuple[str, str], str]
) -> None:
    differing = {
        text: f"torch: {shown}, stand-in: {with_the_stand_in.get((of, text))}"
        for (of, text), shown in with_torch.items()
        if of == kind and shown != with_the_stand_in.get((of, text))
    }
    assert not differing


def test_the_headers_that_it_replaces_are_torchs() -> None:
    folders = [Path(folder) for folder in include_paths()]
    missing = [name for name in standin.HEADERS if not any((folder / name).is_file() for folder in folders)]
    assert not missing


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (
            "module.cpp:7:21: error: no member named 'matmul' in 'at::Tensor'",
            "a.cpp:7 calls torch's matmul: a study cannot run it, as the kernel is to do this work itself",
        ),
        (
            "module.cpp:7:3: error: no member named 'fft' in namespace 'torch'",
            "a.cpp:7 uses torch's fft, which the study's stand-in for torch does not have",
        ),
        (
            "module.cpp:9:5: error: invalid operands to binary expression ('at::Tensor' and 'at::Tensor')",
            "a.cpp:9 calls torch's operators: a study cannot run it, as the kernel is to do this work itself",
        ),
        (
            "module.cpp:3:10: fatal error: 'c10/cuda/CUDAStream.h' file not found",
            "a.cpp:3 includes c10/cuda/CUDAStream.h, which the study's stand-in for torch does not have",
        ),
        (
            "/kit/plain_types.h:9:1: error: static assertion failed\nmodule.cpp:5:3:   required from here",
            None,
        ),
        ("module.cpp:7:3: error: expected ';' before '}' token", None),
        ("module.cpp:7:3: error: 'rowSum' was not declared in this scope", None),
        ("module.cpp:7:3: error: 'softmax' was not declared in this scope", "a.cpp:7 calls torch's softmax"),
        ("", None),
    ],
)
def test_a_compilers_words_become_a_line(output: str, told: str | None) -> None:
    found = standin.refusal(output, "a.cpp")
    assert (found is None) if told is None else (found or "").startswith(told)
