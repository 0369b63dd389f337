"""The stand-in for torch: the same expressions, built with it and with torch, print the same."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from building import HEAD, PLAIN, SANITIZED, cpu_growth
from conftest import ROOT, python
from torch.utils.cpp_extension import include_paths

from grader.backends.native import sanitize, standin
from grader.backends.torch.torchbuild import build
from grader.core.arrays import np
from grader.runner.calls import Request
from grader.study.standalone import build_program, ran

EXPRESSIONS = ROOT / "tests" / "sources" / "tensor_expressions.cpp"
CALL = """
import sys, torch
from grader.backends.torch.loaded import StudentObject
StudentObject(sys.argv[1]).prepare("expressions", [torch.zeros(1)])()
"""
Results = dict[tuple[str, str], str]


def lines(printed: str) -> Results:
    """Return the printed results by kind and text of the expression."""
    rows = (line.split("\t") for line in printed.splitlines())
    return {(row[0], row[1]): row[2] for row in rows if len(row) == 3}


@pytest.fixture(scope="module")
def with_torch() -> Results:
    made = build(EXPRESSIONS, flags=("-O0",))
    assert (made.ok, made.path) == (True, "light"), made.diagnostics
    return lines(python("-c", CALL, made.object_path).stdout)


@pytest.fixture(scope="module")
def with_the_stand_in() -> Results:
    """Build with sanitizers, which print nothing unless they end the program."""
    chosen = {"ASAN_OPTIONS": sanitize.ASAN_OPTIONS, "UBSAN_OPTIONS": sanitize.UBSAN_OPTIONS}
    options = {name: ":".join(f"{k}={v}" for k, v in each.items()) for name, each in chosen.items()}
    strict = replace(SANITIZED, flags=(*SANITIZED.flags, "-O0", "-g1", "-fsanitize=float-cast-overflow"))
    program = build_program(EXPRESSIONS, strict)
    request = Request("expressions", [{"input": 0}], [np.zeros(1, np.float32)])
    with ran(program, request, environment=options, memory_bytes=None) as run:
        assert run.finished.returncode == 0, run.output[-3000:]
    assert "runtime error" not in run.output and "AddressSanitizer" not in run.output, run.output[-3000:]
    return lines(run.output)


@pytest.mark.full
def test_tensors_do_the_same_as_torchs(with_torch: Results, with_the_stand_in: Results) -> None:
    written = len(re.findall(r"(?:^|\) )\s*(?:VALUE|EFFECT|TEXT)\(", EXPRESSIONS.read_text(), re.MULTILINE))
    assert len(with_torch) == written > 0 and list(with_torch) == list(with_the_stand_in)
    assert any(shown.startswith("throws") for shown in with_torch.values())
    assert with_the_stand_in == with_torch


def test_the_headers_that_it_replaces_are_torchs() -> None:
    folders = [Path(folder) for folder in include_paths()]
    assert not [name for name in standin.HEADERS if not any((folder / name).is_file() for folder in folders)]


WORK = "that is torch's own work; the assignment gives you tensors, not operators"
PYTHON = "there is no Python where kernels run"
ABSENT = "which kernels are not given"


@pytest.mark.parametrize(
    ("error", "kind", "name", "reason"),
    [
        *[(error, "work", name, f"calls {name}: {WORK}") for error, name in (
            ("no member named 'matmul' in 'at::Tensor'", "Tensor::matmul"),
            ("'const class at::Tensor' has no member named 'exp_'", "Tensor::exp_"),
            ("'_softmax' is not a member of 'at'", "at::_softmax"),
            ("'linalg_norm' is not a member of 'torch'; did you mean x?", "torch::linalg_norm"),
            ("'torch::nn' has not been declared", "torch::nn"),
            ("'at::native' has not been declared", "at::native"),
            ("'bmm' has not been declared in 'at'", "at::bmm"),
            ("no matching function for call to 'exp(at::Tensor&)'", "exp"),
            ("no match for 'operator*' (operand types are 'at::Tensor' and 'float')", "operator*"),
        )],
        ("invalid operands to binary expression ('at::Tensor' and 'at::Tensor')",
         "work", "operators", f"calls torch operators: {WORK}"),
        *[(error, "absent", name, f"uses torch's {name}, {ABSENT}") for error, name in (
            ("no member named 'fft' in namespace 'torch'", "torch::fft"),
            ("'class at::Tensor' has no member named 'grad'", "Tensor::grad"),
            ("'Half' is not a member of 'c10'", "c10::Half"),
        )],
        ("static assertion failed: kernels are given no tensors of this type",
         "absent", "tensors of this type", "uses tensors of a type that kernels are not given"),
        ("use of deleted function 'at::indexing::TensorIndex::TensorIndex(T)", "absent", "index", "indexes by"),
        *[(error, "python", name, f"uses {name}: {PYTHON}") for error, name in (
            ("'dict' is not a member of 'pybind11'", "pybind11::dict"),
            ("'PyErr_SetString' was not declared in this scope", "PyErr_SetString"),
            ("unknown type name 'PyObject'", "PyObject"),
            ("'class gpt149::Module' has no member named 'def_submodule'", "Module::def_submodule"),
        )],
    ],
)  # fmt: skip
def test_a_compiler_s_error_becomes_a_line(error: str, kind: str, name: str, reason: str) -> None:
    found = standin.refusal(f"module.cpp:7:21: error: {error}\nmodule.cpp:9: error: x", "a.cpp")
    assert found is not None and found.text.startswith(f"a.cpp:7 {reason}")
    assert (found.line, found.name, found.kind) == (7, name, kind)
    assert "\n" not in found.text and len(found.text) < 200


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("c10/cuda/CUDAStream.h", "absent"), ("torch/nn.h", "absent"), ("Python.h", "python"),
        ("pybind11/embed.h", "python"), ("torch/csrc/utils/pybind.h", "python"), ("mine.h", None),
    ],
)  # fmt: skip
def test_a_header_that_is_not_there(header: str, kind: str | None) -> None:
    for words in (f"{header}: No such file or directory", f"'{header}' file not found"):
        found = standin.refusal(f"module.cpp:3:10: fatal error: {words}", "a.cpp")
        assert (found and found.kind) == kind
        assert found is None or found.text.startswith(f"a.cpp:3 includes {header}")


def test_other_errors_are_none_of_the_stand_ins() -> None:
    no_mm = "'mm' is not a member of 'at'"
    outputs = ["expected ';' before '}' token", "'rowSum' was not declared in this scope"]
    outputs.append(f"'at::matmul' and more\nmodule.cpp:8:3: error: {no_mm}")
    required = "/kit/plain_types.h:9:1: error: static assertion failed\nmodule.cpp:5:3:   required from here"
    outputs = [*(f"module.cpp:7:3: error: {output}" for output in outputs), required]
    for output in (*outputs, f"module.cpp:99999999999:3: error: {no_mm}", no_mm, ""):
        assert standin.refusal(output, "a.cpp", "using namespace torch;") is None, output


def test_a_bare_name_is_torchs_only_where_torchs_names_are_taken_in() -> None:
    """Otherwise the message for a forgotten `float sum` would call it torch's."""
    output = "module.cpp:2:3: error: 'sum' was not declared in this scope"
    called, kept = "auto x = sum (t);", "sum += x;"
    for source in ([], [f"// nothing\n{called}"], [f"using namespace torch;\n{kept}"]):
        assert standin.refusal(output, "a.cpp", *source) is None
    found = standin.refusal(output, "a.cpp", f"using  namespace at;\n{called}")
    assert found is not None and (found.kind, found.name) == ("work", "sum")


def test_the_line_is_the_students_where_the_error_is_in_a_template() -> None:
    error = "error: static assertion failed: kernels are given no tensors of this type"
    error = f"/kit/plain_types.h:9:1: {error}\nmodule.cpp:5:3:   required from here"
    output = f"In file included from x.h:1:\n{error}"
    found = standin.refusal(output, "a.cpp")
    assert found is not None and (found.line, found.kind) == (5, "absent")


@pytest.mark.parametrize(
    "piece",
    [
        "module.cpp:1:1: error: ", "no match for 'operator", "no match for 'operator*' (operand types are ",
        "no matching function for call to 'f(", "at::Tensor' {aka ", "'torch::", "'a' is not a member of 'at::a",
        "invalid operands to binary expression (", "a" * 50, "using namespace ", "\n",
    ],
)  # fmt: skip
def test_hostile_text_of_a_compiler_costs_linear_time(piece: str) -> None:
    def look(characters: int) -> None:
        text = (piece * (characters // len(piece)))[:characters]
        standin.refusal(f"module.cpp:1:1: error: {text}", "a.cpp", text)

    assert cpu_growth(look, 10_000, 200_000) < 60


def test_a_students_file_takes_the_precompiled_header(tmp_path: Path) -> None:
    """The kit's own sources do not see the names either, or their objects would export the student's interface."""
    prepared = standin.prepare(PLAIN.flags)
    assert prepared.cpu_s >= 0 and all(made.is_file() for made in prepared.objects)
    assert standin.prepare(PLAIN.flags).cpu_s == 0, "it is kept"
    (tmp_path / "module.cpp").write_text(HEAD + "at::Tensor f() { return at::zeros({2}); }\n")
    command = [*prepared.command(), "-H", "-Winvalid-pch", "-fsyntax-only", "module.cpp"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    if prepared.tools.family == "gcc":
        assert shown.stderr.startswith(f"! {prepared.folder / standin.PRECOMPILED}"), shown.stderr
    assert "plain_tensor.h" not in shown.stderr
