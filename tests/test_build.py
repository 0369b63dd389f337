"""Builds with torch, on both paths, and without it; the interface of the built object; the tools of the machine."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from building import HEAD, UNOPTIMIZED, both_builds, call, loaded, one_function, sharing_headers
from conftest import ROOT, refused, write
from honest.styles import published
from native_programs import asked

from grader.backends.native import nativebuild, standin, toolchain
from grader.backends.native.nativehost import NativeHost
from grader.backends.records import Build
from grader.backends.torch import torchbuild
from grader.backends.torch.loaded import CallFailed, StudentObject
from grader.backends.torch.torchbuild import TorchBuild, build
from grader.core.errors import KitError
from grader.sandbox import choose
from grader.source import cpptext

#: One of every parameter and result that the interface knows, and some that it does not.
SIGNATURES = """#include <torch/extension.h>
#include <stdexcept>
torch::Tensor same(const torch::Tensor &t) { return t; }
torch::Tensor transposed(torch::Tensor &t) { return t.t(); }
torch::Tensor nothing() { return torch::Tensor(); }
float mixed(int &i, const long &l, float f, double d, bool b) { return i + l + f + d + (b ? 1000 : 0); }
int64_t size_of(std::vector<float> v) { return v.size(); }
void twice(std::vector<float> &v) { for (float &x : v) x *= 2; }
std::vector<float> squares(const std::vector<float> &v) { auto w = v; for (auto &x : w) x *= x; return w; }
void throws_std() { throw std::runtime_error("\\n \\nfirst line\\nsecond line"); }
void throws_torch(torch::Tensor t) { TORCH_CHECK(t.dim() == 7, "want 7 dimensions"); }
void throws_int() { throw 3; }
int strange(std::vector<std::string> v) { return v.size(); }
int tile() { return TILE_SIZE; }
// By value and with a different last type than the published one.
void fourDimWrite(std::vector<float> &t, int x, int y, int z, int b, int sx, int sy, int sz, const float v) {
  t[((x * sx + y) * sy + z) * sz + b] = v;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "documented";
  m.attr("version") = 3;
  m.def("same", &same).def("transposed", transposed, "doc");
  m.def("nothing", &nothing).def("twice", &twice).def("squares", &squares).def("strange", &strange);
  m.def("mixed", &mixed, "doc", py::arg("i"), py::arg("l") = 3, py::arg("f"), py::arg("d"), py::arg("b") = true);
  m.def("size_of", &size_of, py::call_guard<py::gil_scoped_release>());
  m.def("throws_std", &throws_std).def("throws_torch", &throws_torch).def("throws_int", &throws_int).def("tile", &tile);
  m.def("lambda", [](int a, float b) { return a * b; }, "a lambda");
}
"""


@pytest.fixture(scope="module")
def signatures(tmp_path_factory: pytest.TempPathFactory) -> StudentObject:
    made = build(write(tmp_path_factory.mktemp("signatures"), SIGNATURES), defines={"TILE_SIZE": "24"})
    assert (made.ok, made.path, made.diagnostics, made.notes) == (True, "light", "", ())
    return loaded(made)


def test_published_style_compiles_lightly_and_offers_what_it_does_not_bind(tmp_path: Path) -> None:
    made = build(write(tmp_path, published()))
    assert (made.ok, made.path) == (True, "light"), made.diagnostics
    built = loaded(made)
    assert dict(built.functions) == {
        "myNaiveAttention": "T(TTTTiiii)", "myFusedAttention": "T(TTTTiiii)", "twoDimRead": "f(Wiii)",
        "fourDimRead": "f(Wiiiiiii)", "fourDimWrite": "v(Wiiiiiiif)",
    }  # fmt: skip
    block = torch.zeros(2 * 3 * 4 * 5)
    call(built, "fourDimWrite", block, 1, 2, 3, 4, 3, 4, 5, 2.5)
    assert block.reshape(2, 3, 4, 5)[1, 2, 3, 4] == 2.5 and block.count_nonzero() == 1
    assert call(built, "fourDimRead", block, 1, 2, 3, 4, 3, 4, 5) == 2.5
    q, k, v = (torch.randn(2, 2, 9, 4) for _ in range(3))
    sizes, values = call(built, "myNaiveAttention", q, k, v, torch.zeros(9, 9), 2, 2, 9, 4)
    expected = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
    assert torch.allclose(torch.tensor(values).reshape(sizes), expected, atol=1e-5)
    # Nothing but the interface leaves the object.
    command = ["nm", "-D", "--defined-only", str(made.object_path)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Some compilers leave copies of the standard library's own templates (_ZNSt..., _ZSt...), which need not be hidden.
    names = {name for line in listing.splitlines() if not re.match("_ZN?K?St", name := line.split()[-1])}
    assert names == {f"gpt149_{name}" for name in ("count", "name", "signature", "call", "release")}


def test_signatures_are_known_and_values_go_in_and_out(signatures: StudentObject) -> None:
    assert dict(signatures.functions) == {
        "same": "T(T)", "transposed": "T(T)", "nothing": "T()", "mixed": "f(ilfdb)", "size_of": "l(V)",
        "twice": "v(W)", "squares": "V(V)", "throws_std": "v()", "throws_torch": "v(T)", "throws_int": "v()",
        "strange": "i(?)", "tile": "i()", "lambda": "f(if)", "fourDimWrite": "v(Wiiiiiiif)",
    }  # fmt: skip
    grid = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    assert call(signatures, "same", grid) == ([2, 3], [0, 1, 2, 3, 4, 5])
    assert call(signatures, "transposed", grid) == ([3, 2], [0, 3, 1, 4, 2, 5])
    assert call(signatures, "same", torch.zeros(0, 3)) == ([0, 3], [])
    assert call(signatures, "nothing") == 4
    assert call(signatures, "mixed", 1, 2, 0.5, 0.25, True) == 1003.75
    assert call(signatures, "size_of", grid.flatten()) == 6
    assert call(signatures, "squares", grid.flatten()) == ([6], [0, 1, 4, 9, 16, 25])
    values = grid.flatten()
    call(signatures, "twice", values)
    assert values.tolist() == [0, 2, 4, 6, 8, 10]
    assert (call(signatures, "lambda", 3, 1.5), call(signatures, "tile")) == (4.5, 24)


def test_exceptions_become_one_line(signatures: StudentObject) -> None:
    for message, (name, *arguments) in {
        "first line": ("throws_std",),
        "want 7 dimensions": ("throws_torch", torch.zeros(2)),
        "not a std::exception": ("throws_int",),
        "another type": ("strange", 1),
    }.items():
        assert "second" not in refused(message, call, signatures, name, *arguments, of=CallFailed)


@both_builds
def test_a_file_without_bindings_offers_nothing(made_by: Callable[..., Build], tmp_path: Path) -> None:
    made = made_by(write(tmp_path, HEAD + "torch::Tensor f(torch::Tensor t) { return t; }\n"))
    assert made.ok and any("PYBIND11_MODULE" in note for note in made.notes)
    if isinstance(made, TorchBuild):
        assert loaded(made).functions == []
    else:
        with NativeHost() as host, host.spawn(made.program, threads=1) as session:
            assert session.death is None and session.functions == {}


@both_builds
def test_an_object_has_a_largest_size(made_by: Callable[..., Build], tmp_path: Path) -> None:
    text = "  return torch::zeros({table[n]});"
    source = write(tmp_path, one_function(text, "char table[3 << 20] = {1, 2};"))
    assert made_by(source).ok
    # The limit also holds for an object from the cache, which was built under a larger limit, and for a new one.
    for text in ("", "// compiled anew\n"):
        source.write_text(source.read_text() + text)
        made = made_by(source, object_bytes=2 << 20)
        assert not made.ok and made.object_path is None
        assert "MiB; it may have 2 MiB" in made.diagnostics and "hint:" in made.diagnostics
    if made_by is build:
        assert made_by(source, object_bytes=2 << 20, sanitize=True).ok, "sanitizers may make it larger"


@pytest.mark.full
def test_the_full_path_takes_over_silently(tmp_path: Path) -> None:
    """The file uses more of torch than the light header declares."""
    text = one_function("return torch::matmul(t, t) * n;", "#include <torch/torch.h>\n")
    text = text.replace("m.def(", 'm.def("g", [](int a) { return a; }, py::arg("a")); m.def(')
    made = build(write(tmp_path, text), timeout_s=600)
    assert (made.ok, made.path, made.diagnostics, made.notes) == (True, "full", "", ()), made
    built = loaded(made)
    assert dict(built.functions) == {"g": "i(i)", "f": "T(Ti)"}
    assert call(built, "f", torch.eye(2), 3) == ([2, 2], [3, 0, 0, 3])


#: A missing header of the student's own stays the student's fault.
HEADERS = ["Python.h", "mine.h", pytest.param("torch/csrc/Device.h", marks=pytest.mark.full)]


@pytest.mark.parametrize("include", HEADERS)
def test_files_wait_for_headers(include: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = replace(toolchain.torch_files(), python_include_dir=None)
    monkeypatch.setattr(torchbuild, "torch_files", lambda: known)
    waits_for = "" if include == "mine.h" else "Python.h"
    made = build(write(tmp_path, one_function("return t;", f"#include <{include}>\n")), timeout_s=600)
    assert (made.ok, made.waits_for) == (False, waits_for), made.diagnostics
    assert ("apt install python3-dev" in made.diagnostics) == bool(waits_for)


def test_comments_and_literals_are_no_code() -> None:
    code = {
        "a /* b */ c // d\ne": "a   c  \ne",
        'f("/*", \'"\', u8"\\"//", L\'\\\'\') g': "f( ,  ,  ,  ) g",
        'R"(/* " )" h; FOOR"(" i': "  h; FOOR  i",
        'R"ab()" )ab" j': "  j",
        "1'000'000 + 0x'a k'l": "1'000'000 + 0x'a k ",
        "m /* never closed": "m  ",
        'n "never closed\no': "n  \no",
        'p R"(never closed': "p  ",
        "// goes on \\\nq\nr": " \nr",
    }
    assert {source: cpptext.without_comments(source) for source in code} == code


WORKS = one_function("return t;")
TARGET = '#pragma GCC target("avx2,fma")\n'
#: Beginnings of a file whose torch headers come next, and if their pragmas are for those headers.
BEGINNINGS = [
    ("", False),
    (TARGET, True),
    ('\ufeff#include <vector>\n #  pragma  GCC\\\n optimize("Ofast")\r\n', True),
    ("%:pragma GCC push_options\n", True),
    ('#pragma clang attribute push(__attribute__((target("avx2"))), apply_to=function)\n', True),
    ('#define FAST(x) _Pragma(#x)\nFAST(GCC optimize("O3"))\n', True),
    (f"{HEAD}{TARGET}#include <vector>\n", False),
    (f"// {TARGET}/*\n{TARGET}*/\n", False),
    ('#pragma once\n#pragma GCC diagnostic ignored "-Wall"\n#pragma omp declare simd\n', False),
]


@pytest.mark.parametrize(("beginning", "own_order"), BEGINNINGS)
def test_a_file_whose_pragmas_are_for_the_headers_has_its_own_order(beginning: str, own_order: bool) -> None:
    assert standin.steers_headers((beginning + WORKS).encode()) is own_order
    assert not standin.steers_headers((beginning + "int x;\n" * 9).encode()), "no header of torch's"


def value(host: NativeHost, program: Path | None) -> list[float]:
    assert program is not None
    with host.spawn(program, threads=1) as session:
        answer = session.call(asked("f", 3, shape=(2,), output=(2,)))
    assert answer.status == "ok", (session.death, answer)
    return answer.output.tolist()


PUSH = "#pragma GCC push_options\n"


@pytest.mark.parametrize(("top", "expected"), [("", 3), (PUSH, 2), (f"{PUSH}std::vector<int> early;\n", 3)])
def test_the_order_of_pragmas_and_headers(top: str, expected: float, tmp_path: Path) -> None:
    """Compile a file with the headers first if it needs that."""
    seen = f"{top}#ifdef GPT149_PLAIN_TORCH_H\n#define WERE_FIRST\n#endif\n"
    body = "#ifdef WERE_FIRST\nreturn torch::full({1}, 3.0f);\n#endif\nreturn torch::full({1}, 2.0f);"
    made = nativebuild.build(write(tmp_path, seen + one_function(body)))
    with NativeHost() as host:
        assert value(host, made.program) == [expected], made.diagnostics


@pytest.mark.parametrize("flags", [(), pytest.param(UNOPTIMIZED, marks=pytest.mark.full)])
def test_macros_and_flags_are_taken(flags: tuple[str, ...], tmp_path: Path) -> None:
    body = "#if defined(__OPTIMIZE__)\nn = 0;\n#endif\nreturn torch::full({1}, (float)(TIMES + n));"
    made = nativebuild.build(write(tmp_path, one_function(body)), defines={"TIMES": "7"}, flags=flags)
    with NativeHost() as host:
        assert value(host, made.program) == [10.0 if flags else 7.0]


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("return at::matmul(t, t);", "mine.cpp:4 calls at::matmul", "mine.cpp:4: error"),
        ("\nreturn t.softmax(-1);", "mine.cpp:5 calls Tensor::softmax", "mine.cpp:5: error"),
        ("return torch::fft::fft(t);", "mine.cpp:4 uses torch's", "mine.cpp:4: error"),
        ("int x = 3\nreturn t;", "", "mine.cpp:5: error"),
        ("cblas_sgemm(); return t;", "", "undefined function: cblas_sgemm"),
        ("PyEval_GetBuiltins(); return t;", "", "PyEval_GetBuiltins"),
    ],
)
def test_torchs_own_work_is_refused_by_name(tmp_path: Path, body: str, line: str, message: str) -> None:
    declared = 'extern "C" { void cblas_sgemm(); void PyEval_GetBuiltins(); }\n'
    source = write(tmp_path, one_function(body, declared))
    made = nativebuild.build(source.rename(tmp_path / "mine.cpp"))
    assert not made.ok and made.program is None
    assert message in made.diagnostics and str(tmp_path) not in made.diagnostics
    assert made.refused.text.startswith(line) if made.refused else not line


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these sandboxes")
def test_a_compiler_in_the_sandbox_sees_what_it_needs_and_no_more(tmp_path: Path) -> None:
    box = choose()
    made = nativebuild.build(write(tmp_path, one_function(f"// {box.tier}\nreturn t;")), sandbox=box)
    assert made.ok, made.diagnostics
    with NativeHost(box) as host:
        assert value(host, made.program) == [1.0, 2.0]
    secret = write(tmp_path, "#error seen\n", "secret.h")
    made = nativebuild.build(write(tmp_path, f'#include "{secret}"\n{WORKS}'), sandbox=box)
    assert not made.ok and "seen" not in made.diagnostics


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="static programs are tried on Linux alone")
def test_without_static_libraries_linking_is_dynamic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nativebuild, "LINKAGES", {"dynamic": nativebuild.LINKAGES["dynamic"]})
    cache = sharing_headers(tmp_path / "cache")
    made = nativebuild.build(write(tmp_path, WORKS), cache=cache)
    assert made.ok and made.linkage == "dynamic", made.diagnostics
    for box in (choose(), choose("D", trust=True)):
        with NativeHost(box, cache) as host:
            assert value(host, made.program) == [1.0, 2.0]
            assert "no files" not in host.applied
    # As with an OpenMP library that wants shared memory files: no report says that the student's kernel crashed.
    trial = nativebuild.kit(cache).folder / nativebuild.TRIAL
    trial.unlink()
    shutil.copy("/bin/false", trial)
    refused("start in the sandbox .*: try CXX=", NativeHost, choose(), cache, of=KitError)


def test_flags_and_the_cache_by_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for machine in (("Linux", "gcc"), ("Linux", "clang"), ("Darwin", "gcc")):
        assert toolchain.openmp_flags(*machine, Path("/omp")) == (("-fopenmp",), ("-fopenmp",))
    expected = (("-Xpreprocessor", "-fopenmp", "-I/omp/include"), ("-L/omp/lib", "-lomp"))
    assert toolchain.openmp_flags("Darwin", "clang", Path("/omp")) == expected
    assert toolchain.default_flags("x86_64") == ("-O3", "-mavx") == toolchain.default_flags("AMD64")
    assert toolchain.default_flags("arm64") == ("-O3",) == toolchain.default_flags("aarch64")
    linux = toolchain.linker_flags("Linux", None, Path("/s"), allow_undefined=False)
    assert "-Wl,-z,defs" in linux and not any("fuse-ld" in flag for flag in linux)
    gold = toolchain.linker_flags("Linux", "gold", Path("/s"), allow_undefined=True)
    assert {"-fuse-ld=gold", "-Wl,--warn-unresolved-symbols"} <= set(gold)
    darwin = toolchain.linker_flags("Darwin", None, Path("/s"), allow_undefined=True)
    assert darwin[:2] == ("-undefined", "dynamic_lookup")
    for variable, folder in (("GPT149_CACHE", "."), ("XDG_CACHE_HOME", "gpt149"), ("HOME", ".cache/gpt149")):
        monkeypatch.setenv(variable, str(tmp_path))
        assert toolchain.cache_root() == tmp_path / folder
        monkeypatch.delenv(variable)


def test_bad_requests_and_a_missing_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("cannot read", build, tmp_path / "absent.cpp")
    refused("macro's name", build, ROOT / "module.cpp", defines={"TILE SIZE": "8"})
    monkeypatch.setenv("CXX", "no-such-compiler")
    refused(r"apt install g\+\+", toolchain.toolchain, of=KitError)


def test_building_needs_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert toolchain.describe()["torch"] == toolchain.torch_files().version == toolchain.torch_version()
    # The standard that torch asks for decides what is compiled; without torch it is the kit's own.
    with_torch = toolchain._toolchain_for.__wrapped__("g++", None)
    monkeypatch.setattr(toolchain, "_torch_root", lambda: None)
    assert toolchain.describe()["torch"] == toolchain.ABSENT
    without = toolchain._toolchain_for.__wrapped__("g++", None)
    assert without == replace(with_torch, cxx_standard="c++17")
    refused("no torch: run 'make setup'", toolchain.torch_files.__wrapped__, of=KitError)
