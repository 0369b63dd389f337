"""Builds with sanitizers name the student's line. The stand-in for torch (a small library) gives the same results."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from building import HEAD, PLAIN, SANITIZED, binding, cpu_growth, includes, text_of
from conftest import ROOT, put, python, refused, write
from torch.utils.cpp_extension import include_paths

from grader.backends.native import nativebuild, sanitize, standin
from grader.backends.native.nativehost import NativeHost
from grader.backends.native.toolchain import toolchain
from grader.backends.torch.torchbuild import build
from grader.core.arrays import np
from grader.core.errors import KitError
from grader.runner.calls import Request
from grader.sandbox import OPEN, Limits, Sandbox, choose, lock
from grader.study.standalone import build_program, ran

NAMES = ("tensor_write", "input_read", "vector_read", "overflow", "fine")
#: Script that calls each faulty function under the sanitizer in a forked child, so that torch is imported only once.
CALL_EACH = """
import os, sys, torch
from grader.runner.runner import CallFailed, StudentObject
loaded = StudentObject(sys.argv[1])
for name in loaded.names:
    child = os.fork()
    if child == 0:
        os.dup2(1, 2)
        print("CALL", name, flush=True)
        loaded.prepare(name, [torch.ones(100), 100])()
        print("SURVIVED", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
WORK = "that is torch's own work; write it yourself, with loops over elements"
PYTHON = "there is no Python where kernels run"
ABSENT = "which kernels cannot use"


def natively(source: Path) -> dict[str, str]:
    made = nativebuild.build(source, sanitize=True)
    assert made.ok and made.program is not None, made.diagnostics
    reports = {}
    with NativeHost(checks=sanitize.options()) as host:
        for name in NAMES:
            with host.spawn(made.program, threads=1, limits=Limits(memory_bytes=None)) as session:
                call = session.call(Request(name, [{"input": 0}, {"value": 100}], [np.ones(100, np.float32)]))
            reports[name] = session.printed + ("SURVIVED" if call.status == "ok" else "")
    return reports


def with_torch(source: Path) -> dict[str, str]:
    made = build(source, sanitize=True)
    assert (made.ok, made.path) == (True, "light"), made.diagnostics
    printed = python("-c", CALL_EACH, made.object_path, timeout_s=600, **sanitize.environment()).stdout
    return {part.split("\n", 1)[0].strip(): part for part in printed.split("CALL ")[1:]}


@pytest.mark.parametrize("judge", [natively, pytest.param(with_torch, marks=pytest.mark.full)])
def test_sanitizers_name_the_students_own_line(judge: Callable, tmp_path: Path) -> None:
    source = write(tmp_path, includes("vector") + text_of("faulty.cpp") + binding(*NAMES))
    reports = judge(source)
    for name, kind, quoted in (
        ("tensor_write", "heap-buffer-overflow write", ["p[i] = 1.0f;"]),
        ("input_read", "heap-buffer-overflow read", ["return q.data_ptr<float>()[n];"]),
        ("vector_read", "vector index", ["return t[x * w + y];", "s += twoDimRead(v, 0, i, n);"]),
        ("overflow", "undefined behaviour", ["x += n;"]),
    ):
        found = sanitize.report(reports[name], source)
        assert found is not None and found.kind == kind, reports[name]
        row = source.read_text().split("\n")[found.frames[0].line - 1].strip()
        assert [frame.text for frame in found.frames] == quoted and row == quoted[0]
        extent = f"index 100 of an array of 100 {'floats' if found.made else 'elements'}"
        assert "overflow " not in kind or extent in found.message
        assert ("integer overflows" in found.of_value) == (name == "overflow")
    assert "SURVIVED" in reports["fine"] and sanitize.report(reports["fine"], source) is None


@pytest.mark.skipif(not all(map(shutil.which, ("addr2line", "nm"))), reason="binutils is not installed")
def test_lines_are_found_in_a_folder_of_any_name(tmp_path: Path) -> None:
    """Frames of the kit's own functions are left out, but not frames of a program whose folder has the kit's name."""
    files = {"module.cpp": "int f() { return 1; }\nint main() { return f(); }\n"}
    folder = put(tmp_path / "my gpt149 (1)", files)
    built = folder / "program"
    subprocess.run([toolchain().compiler, "-g", "-o", built, "module.cpp"], cwd=folder, check=True)
    symbols = subprocess.check_output(["nm", built], text=True)
    address = int(next(row.split()[0] for row in symbols.split("\n") if row.endswith(" main")), 16)
    place = f"({built}+{address + 1:#x})"
    for shown in (place, f"(/proc/self/exe+{address + 1:#x}) (BuildId: db0f24bf)"):  # the second is GCC 13's
        assert "module.cpp:2" in sanitize.with_lines(f"    #1 0x55d2 in main {shown}", built)
    own = f"    #2 0x55d2 in void gpt149::Bound<float>::call() {place}"
    assert sanitize.with_lines(own, built) == own


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has Landlock")
@pytest.mark.parametrize("sandbox", [OPEN, choose(trust=True)], ids=lambda sandbox: sandbox.tier)
def test_a_program_with_sanitizers_reads_only_its_own_files(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = write(tmp_path, "answers", "secret")
    secret.chmod(0o644)
    text = f'#define SECRET "{secret}"\n' + text_of("secret_readers.cpp") + binding("look")
    text = includes("cstdio dirent.h fcntl.h unistd.h sys/syscall.h") + text
    made = nativebuild.build(write(tmp_path, text), sanitize=True)
    assert made.ok and made.program is not None, made.diagnostics
    given = {"threads": 1, "limits": Limits(memory_bytes=None)}
    with NativeHost(sandbox, checks=sanitize.options()) as host, host.spawn(made.program, **given) as session:
        assert "landlock" in host.applied
        call = session.call(Request("look", [{"input": 0}], [np.ones(1, np.float32)]))
    assert call.status == "ok", session.printed
    lines = session.printed.splitlines()
    # The kit sets all of its environment, which has the options of the sanitizers.
    own = ["SAW /proc/self/environ", "SAW its own map", "SAW zeros in new memory"]
    assert [line for line in lines if line.startswith("SAW")] == own
    assert len([line for line in lines if line.startswith("no ")]) == 13


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has Landlock")
def test_a_kernel_without_landlock_starts_no_program_with_sanitizers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "landlock_version", lambda: 0)
    for sandbox in (OPEN, Sandbox("C", seccomp=True, own_uid=True)):
        refused("need Landlock", NativeHost, sandbox, checks=sanitize.options(), of=KitError)


EXPRESSIONS = ROOT / "tests" / "sources" / "tensor_expressions.cpp"
CALL = """
import sys, torch
from grader.runner.runner import StudentObject
StudentObject(sys.argv[1]).prepare("expressions", [torch.zeros(1)])()
"""


def lines(printed: str) -> dict[tuple[str, str], str]:
    """Return {(kind, text of the expression): result} for the lines that tensor_expressions.cpp has printed."""
    rows = (line.split("\t") for line in printed.splitlines())
    return {(row[0], row[1]): row[2] for row in rows if len(row) == 3}


@pytest.mark.full
def test_stand_in_tensors_behave_like_torchs() -> None:
    made = build(EXPRESSIONS, flags=("-O0",))
    assert (made.ok, made.path) == (True, "light"), made.diagnostics
    # Build with the stand-in and sanitizers, which must report nothing.
    chosen = {"ASAN_OPTIONS": sanitize.ASAN_OPTIONS, "UBSAN_OPTIONS": sanitize.UBSAN_OPTIONS}
    options = {name: ":".join(f"{k}={v}" for k, v in each.items()) for name, each in chosen.items()}
    strict = replace(SANITIZED, flags=(*SANITIZED.flags, "-O0", "-g1", "-fsanitize=float-cast-overflow"))
    request = Request("expressions", [{"input": 0}], [np.zeros(1, np.float32)])
    with ran(build_program(EXPRESSIONS, strict), request, environment=options, memory_bytes=None) as run:
        assert run.finished.returncode == 0, run.output[-3000:]
    assert "runtime error" not in run.output and "AddressSanitizer" not in run.output, run.output[-3000:]
    using_torch, found = lines(python("-c", CALL, made.object_path).stdout), lines(run.output)
    written = len(re.findall(r"(?:^|\) )\s*(?:VALUE|EFFECT|TEXT)\(", EXPRESSIONS.read_text(), re.MULTILINE))
    assert len(using_torch) == written > 0 and list(using_torch) == list(found)
    assert any(shown.startswith("throws") for shown in using_torch.values()) and found == using_torch


def test_the_headers_that_the_stand_in_replaces_are_torchs() -> None:
    folders = [Path(folder) for folder in include_paths()]
    assert not [name for name in standin.HEADERS if not any((folder / name).is_file() for folder in folders)]


@pytest.mark.parametrize(("error", "kind", "name", "reason"), [
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
    ("static assertion failed: kernels cannot use tensors of this type",
     "absent", "tensors of this type", "uses tensors of a type that kernels cannot use"),
    ("use of deleted function 'at::indexing::TensorIndex::TensorIndex(T)", "absent", "index", "uses a tensor"),
    *[(error, "python", name, f"uses {name}: {PYTHON}") for error, name in (
        ("'dict' is not a member of 'pybind11'", "pybind11::dict"),
        ("'PyErr_SetString' was not declared in this scope", "PyErr_SetString"),
        ("unknown type name 'PyObject'", "PyObject"),
        ("'class gpt149::Module' has no member named 'def_submodule'", "Module::def_submodule"),
    )],
])  # fmt: skip
def test_a_compiler_s_error_becomes_a_line(error: str, kind: str, name: str, reason: str) -> None:
    found = standin.refusal(f"module.cpp:7:21: error: {error}\nmodule.cpp:9: error: x", "a.cpp")
    assert found is not None and found.text.startswith(f"a.cpp:7 {reason}")
    assert (found.line, found.name, found.kind) == (7, name, kind)
    assert "\n" not in found.text and len(found.text) < 200


@pytest.mark.parametrize(("header", "kind"), [
    ("c10/cuda/CUDAStream.h", "absent"), ("torch/nn.h", "absent"), ("Python.h", "python"),
    ("pybind11/embed.h", "python"), ("torch/csrc/utils/pybind.h", "python"), ("mine.h", None),
])  # fmt: skip
def test_a_missing_header_is_reported_with_its_kind(header: str, kind: str | None) -> None:
    for words in (f"{header}: No such file or directory", f"'{header}' file not found"):
        found = standin.refusal(f"module.cpp:3:10: fatal error: {words}", "a.cpp")
        assert (found and found.kind) == kind
        assert found is None or found.text.startswith(f"a.cpp:3 includes {header}")


def test_other_compiler_errors_get_no_message_about_torch() -> None:
    no_mm = "'mm' is not a member of 'at'"
    outputs = ["expected ';' before '}' token", "'rowSum' was not declared in this scope"]
    outputs.append(f"'at::matmul' and more\nmodule.cpp:8:3: error: {no_mm}")
    required = "/kit/plain_types.h:9:1: error: static assertion failed\nmodule.cpp:5:3:   required from here"
    outputs = [*(f"module.cpp:7:3: error: {output}" for output in outputs), required]
    for output in (*outputs, f"module.cpp:99999999999:3: error: {no_mm}", no_mm, ""):
        assert standin.refusal(output, "a.cpp", "using namespace torch;") is None, output


def test_a_bare_name_is_torchs_only_after_using_namespace() -> None:
    """Otherwise the message for a forgotten `float sum` would say that `sum` is a function of torch."""
    output = "module.cpp:2:3: error: 'sum' was not declared in this scope"
    called, kept = "auto x = sum (t);", "sum += x;"
    for source in ([], [f"// nothing\n{called}"], [f"using namespace torch;\n{kept}"]):
        assert standin.refusal(output, "a.cpp", *source) is None
    found = standin.refusal(output, "a.cpp", f"using  namespace at;\n{called}")
    assert found is not None and (found.kind, found.name) == ("work", "sum")


def test_the_line_is_the_students_where_the_error_is_in_a_template() -> None:
    error = "error: static assertion failed: kernels cannot use tensors of this type"
    error = f"/kit/plain_types.h:9:1: {error}\nmodule.cpp:5:3:   required from here"
    found = standin.refusal(f"In file included from x.h:1:\n{error}", "a.cpp")
    assert found is not None and (found.line, found.kind) == (5, "absent")


@pytest.mark.parametrize("piece", [
    "module.cpp:1:1: error: ", "no match for 'operator", "no match for 'operator*' (operand types are ",
    "no matching function for call to 'f(", "at::Tensor' {aka ", "'torch::", "'a' is not a member of 'at::a",
    "invalid operands to binary expression (", "a" * 50, "using namespace ", "\n",
])  # fmt: skip
def test_hostile_text_of_a_compiler_costs_linear_time(piece: str) -> None:
    def look(characters: int) -> None:
        text = (piece * (characters // len(piece)))[:characters]
        standin.refusal(f"module.cpp:1:1: error: {text}", "a.cpp", text)

    assert cpu_growth(look, 10_000, 200_000) < 60


def test_a_students_file_takes_the_precompiled_header(tmp_path: Path) -> None:
    prepared = standin.prepare(PLAIN.flags)
    assert prepared.cpu_s >= 0 and prepared.object.is_file()
    assert standin.prepare(PLAIN.flags).cpu_s == 0, "the header is kept"
    (tmp_path / "module.cpp").write_text(HEAD + "at::Tensor f() { return at::zeros({2}); }\n")
    command = [*prepared.command(), "-H", "-Winvalid-pch", "-fsyntax-only", "module.cpp"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    if prepared.tools.family == "gcc":
        assert shown.stderr.startswith(f"! {prepared.folder / standin.PRECOMPILED}"), shown.stderr
    assert "plain_tensor.h" not in shown.stderr
