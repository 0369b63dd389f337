"""The build: both paths, the cache under ill treatment, what a student reads, sanitizers from end to end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from grader import diagnostics, lightpath, objectcache, sanitize, toolchain
from grader.build import Build, build, precompile
from grader.errors import KitError, UsageError
from grader.hints import hint_for
from grader.runner import CallFailed, StudentObject
from grader.sandbox import Finished

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "tests" / "sources" / "published_style.cpp"
HEAD = "#include <torch/extension.h>\n"
#: One of every parameter and result that the interface knows, and some that it does not.
SIGNATURES = (
    HEAD
    + """
#include <stdexcept>
torch::Tensor same(const torch::Tensor &t) { return t; }
torch::Tensor transposed(torch::Tensor &t) { return t.t(); }
torch::Tensor nothing() { return torch::Tensor(); }
float mixed(int &i, const long &l, float f, double d, bool b) { return i + l + f + d + (b ? 1000 : 0); }
int64_t size_of(std::vector<float> v) { return v.size(); }
void twice(std::vector<float> &v) { for (float &x : v) x *= 2; }
std::vector<float> squares(const std::vector<float> &v) { auto w = v; for (auto &x : w) x *= x; return w; }
void throws_std() { throw std::runtime_error("first line\\nsecond line"); }
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
  m.def("nothing", &nothing);
  m.def("mixed", &mixed, "doc", py::arg("i"), py::arg("l") = 3, py::arg("f"), py::arg("d"), py::arg("b") = true);
  m.def("size_of", &size_of, py::call_guard<py::gil_scoped_release>());
  m.def("twice", &twice);
  m.def("squares", &squares);
  m.def("throws_std", &throws_std);
  m.def("throws_torch", &throws_torch);
  m.def("throws_int", &throws_int);
  m.def("strange", &strange);
  m.def("tile", &tile);
  m.def("lambda", [](int a, float b) { return a * b; }, "a lambda");
}
"""
)


def write(folder: Path, text: str) -> Path:
    source = folder / "module.cpp"
    source.write_text(text)
    return source


def one_function(body: str, before: str = "") -> str:
    return f"{HEAD}{before}torch::Tensor f(torch::Tensor t, int n) {{\n{body}\n}}\n" + BINDING


BINDING = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }\n'


@pytest.fixture(scope="module")
def signatures(tmp_path_factory: pytest.TempPathFactory) -> StudentObject:
    source = write(tmp_path_factory.mktemp("signatures"), SIGNATURES)
    made = build(source, defines={"TILE_SIZE": "24"})
    assert (made.ok, made.path, made.diagnostics, made.notes) == (True, "light", "", ())
    import torch  # noqa: F401  (the object finds torch's libraries only in a process that holds them)

    return StudentObject(str(made.object_path))


def call(loaded: StudentObject, name: str, *values: object) -> object:
    """The function's result as a plain Python value; vectors and tensors as flat lists. CallFailed is the caller's."""
    invocation = loaded.prepare(name, list(values))
    result = invocation()
    sizes = list(result.sizes[: result.ndim])
    count = 1
    for size in sizes:
        count *= size
    value: object = result.number if result.kind == 1 else result.kind
    if result.kind in (2, 3):
        value = (sizes, list((ctypes.c_float * count).from_address(result.data)) if count else [])
    invocation.release()
    return value


# ---- the light path and its interface


def test_published_style_compiles_lightly_and_offers_what_it_does_not_bind() -> None:
    made = build(PUBLISHED)
    assert (made.ok, made.path) == (True, "light"), made.diagnostics
    loaded = _load(made)
    assert dict(loaded.functions) == {
        "myNaiveAttention": "T(TTTTiiii)",
        "myFusedAttention": "T(TTTTiiii)",
        "twoDimRead": "f(Wiii)",
        "fourDimRead": "f(Wiiiiiii)",
        "fourDimWrite": "v(Wiiiiiiif)",
    }
    import torch

    block = torch.zeros(2 * 3 * 4 * 5)
    call(loaded, "fourDimWrite", block, 1, 2, 3, 4, 3, 4, 5, 2.5)
    assert block.reshape(2, 3, 4, 5)[1, 2, 3, 4] == 2.5 and block.count_nonzero() == 1
    assert call(loaded, "fourDimRead", block, 1, 2, 3, 4, 3, 4, 5) == 2.5
    q, k, v = (torch.randn(2, 2, 9, 4) for _ in range(3))
    sizes, values = call(loaded, "myNaiveAttention", q, k, v, torch.zeros(9, 9), 2, 2, 9, 4)
    expected = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
    assert torch.allclose(torch.tensor(values).reshape(sizes), expected, atol=1e-5)


def _load(made: Build) -> StudentObject:
    import torch  # noqa: F401

    return StudentObject(str(made.object_path))


def test_nothing_but_the_interface_leaves_the_object() -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(build(PUBLISHED).object_path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = {line.split()[-1] for line in listing.splitlines()}
    assert names == {f"gpt149_{name}" for name in ("count", "name", "signature", "call", "release")}


def test_signatures(signatures: StudentObject) -> None:
    assert dict(signatures.functions) == {
        "same": "T(T)",
        "transposed": "T(T)",
        "nothing": "T()",
        "mixed": "f(ilfdb)",
        "size_of": "l(V)",
        "twice": "v(W)",
        "squares": "V(V)",
        "throws_std": "v()",
        "throws_torch": "v(T)",
        "throws_int": "v()",
        "strange": "i(?)",
        "tile": "i()",
        "lambda": "f(if)",
        "fourDimWrite": "v(Wiiiiiiif)",
    }


def test_values_go_in_and_out(signatures: StudentObject) -> None:
    import torch

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
    assert call(signatures, "lambda", 3, 1.5) == 4.5
    assert call(signatures, "tile") == 24


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("throws_std", "first line"),
        ("throws_torch", "want 7 dimensions"),
        ("throws_int", "not a std::exception"),
        ("strange", "another type"),
    ],
)
def test_exceptions_become_one_line(signatures: StudentObject, name: str, words: str) -> None:
    import torch

    arguments = {"throws_torch": [torch.zeros(2)], "strange": [1]}.get(name, [])
    with pytest.raises(CallFailed, match=words) as caught:
        call(signatures, name, *arguments)
    assert "\n" not in str(caught.value) and "second" not in str(caught.value)


def test_a_file_without_bindings_loads_and_offers_nothing(tmp_path: Path) -> None:
    made = build(write(tmp_path, "int unused;\n"))
    assert made.ok and _load(made).functions == []
    assert any("PYBIND11_MODULE" in note for note in made.notes)


# ---- the full path


@pytest.fixture(scope="module")
def beyond_light(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A file that uses more of torch than the light header declares."""
    text = one_function("return torch::matmul(t, t) * n;", "#include <torch/torch.h>\n")
    text = text.replace("m.def(", 'm.def("g", [](int a) { return a; }, py::arg("a")); m.def(')
    return build(write(tmp_path_factory.mktemp("full"), text), timeout_s=600)


def test_full_path_takes_over_without_a_word(beyond_light: Build) -> None:
    assert (beyond_light.ok, beyond_light.path, beyond_light.diagnostics) == (True, "full", ""), beyond_light
    assert beyond_light.notes == ()
    loaded = _load(beyond_light)
    assert dict(loaded.functions) == {"g": "i(i)", "f": "T(Ti)"}
    import torch

    assert call(loaded, "f", torch.eye(2), 3) == ([2, 2], [3, 0, 0, 3])


def test_python_objects_need_the_last_rung(tmp_path: Path) -> None:
    text = HEAD + "int f(py::list items) { return items.size(); }\nint g(int a) { return a + 1; }\n"
    text += 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); m.def("g", &g); }\n'
    made = build(write(tmp_path, text), timeout_s=600)
    assert (made.ok, made.path) == (True, "full"), made.diagnostics
    loaded = _load(made)
    assert dict(loaded.functions) == {"f": "i(?)", "g": "i(i)"}
    assert call(loaded, "g", 4) == 5


NAMES = frozenset({"matmul", "unordered_set", "row", "AT_DISPATCH"})


@pytest.mark.parametrize(
    ("body", "message", "final"),
    [
        ("return t", "expected ';' before '}' token", True),
        ("return torch::matmul(t, t)", "expected ';' before '}' token", False),
        ("return mispelt(t);", "'mispelt' was not declared in this scope", True),
        ("return matmul(t, t);", "'matmul' was not declared in this scope", False),
        ("std::unordered_set<int> s;", "'unordered_set' is not a member of 'std'", False),
        ("AT_DISPATCH_ALL(t)", "expected ';' before '}' token", False),
        ("return row;", "'row' was not declared in this scope", False),
        ("return 1; // torch::matmul", "could not convert '1' from 'int' to 'at::Tensor'", True),
    ],
)
def test_light_failures_are_final_only_when_no_header_could_help(
    body: str, message: str, final: bool
) -> None:
    output = f"module.cpp: In function 'f':\nmodule.cpp:3:5: error: {message}\n"
    assert lightpath.is_final(one_function(body), output, lambda: NAMES) is final


def test_undefined_functions_of_torch_are_left_to_the_full_path() -> None:
    lines = "ld: x.o: undefined reference to `{}'\n"
    for name, final in (("helper(float)", True), ("c10::List<at::Tensor>::List()", False)):
        assert lightpath.is_final(one_function("return t;"), lines.format(name), frozenset) is final


# ---- the cache


def test_an_unchanged_source_compiles_nothing(tmp_path: Path) -> None:
    first, again = build(PUBLISHED), build(PUBLISHED)
    assert again.cached and again.cpu_s == 0 and again.object_path == first.object_path
    copied = write(tmp_path, PUBLISHED.read_text())
    assert build(copied).key == first.key
    assert build(write(tmp_path, PUBLISHED.read_text() + "// changed\n")).key != first.key


def test_key_covers_what_decides_the_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grader import build as module

    source = write(tmp_path, one_function("return t;"))
    tools = toolchain.toolchain()
    keys = [module._recipe(source, *variant).key() for variant in VARIANTS]
    for changed in (replace(tools, torch_version="0"), replace(tools, compiler_version="0")):
        monkeypatch.setattr(module, "toolchain", lambda changed=changed: changed)
        keys.append(module._recipe(source, (), {}, False).key())
    monkeypatch.setattr(module, "_shim_contents", lambda: [b"other shim"])
    keys.append(module._recipe(source, (), {}, False).key())
    (tmp_path / "module.ispc").write_text("")
    keys.append(module._recipe(source, (), {}, False).key())
    assert len(set(keys)) == len(keys)


VARIANTS = (
    ((), {}, False),
    (("-O2",), {}, False),
    ((), {"TILE_SIZE": "8"}, False),
    ((), {"TILE_SIZE": "16"}, False),
    ((), {}, True),
)

BUILD_ONCE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from grader.build import build
made = build(Path(sys.argv[2]), cache=Path(sys.argv[3]))
print(made.ok, made.cached, made.object_path, flush=True)
"""


@pytest.fixture
def warm_cache(tmp_path: Path) -> Path:
    """A cache of its own that shares nothing but the precompiled header, to save its making."""
    precompile()
    cache = tmp_path / "cache"
    (cache / "headers").mkdir(parents=True)
    for entry in (toolchain.cache_root() / "headers").iterdir():
        if entry.is_dir():
            (cache / "headers" / entry.name).symlink_to(entry)
    return cache


def _start(source: Path, cache: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", BUILD_ONCE, str(ROOT), str(source), str(cache)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_a_killed_build_leaves_nothing_that_hangs_the_next(tmp_path: Path, warm_cache: Path) -> None:
    source = write(tmp_path, one_function("return t;"))
    process = _start(source, warm_cache)
    work = warm_cache / "work"
    while not (work.exists() and any(place.glob("module.cpp") for place in work.iterdir())):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not any((warm_cache / "objects").glob("*")) if (warm_cache / "objects").exists() else True
    made = build(source, cache=warm_cache)
    assert made.ok and not made.cached and made.object_path.exists()


def test_two_builds_at_once_do_not_disturb_each_other(tmp_path: Path, warm_cache: Path) -> None:
    source = write(tmp_path, one_function("return t;"))
    processes = [_start(source, warm_cache) for _ in range(2)]
    replies = [process.communicate()[0].split() for process in processes]
    assert [reply[0] for reply in replies] == ["True", "True"]
    assert replies[0][2] == replies[1][2] and Path(replies[0][2]).exists()
    assert not any((warm_cache / "work").iterdir())
    assert len(list((warm_cache / "objects").iterdir())) == 1


def test_pruning_keeps_what_was_used_last_and_what_is_young(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    folder.mkdir()
    for age in range(6):
        (folder / f"{age}.so").write_bytes(b"x" * 100)
        os.utime(folder / f"{age}.so", times=(time.time() - 1000 * age - 10,) * 2)
    left = tmp_path / "work" / "killed"
    left.mkdir(parents=True)
    os.utime(left, times=(0, 0))
    names = lambda: sorted(path.stem for path in folder.iterdir())  # noqa: E731
    objectcache.prune(tmp_path, max_bytes=10_000, max_entries=4, min_age_s=1e6)
    assert len(names()) == 6
    objectcache.prune(tmp_path, max_bytes=10_000, max_entries=4, min_age_s=1)
    assert names() == ["0", "1", "2", "3"] and not left.exists()
    assert objectcache.touch(folder / "3.so") and not objectcache.touch(folder / "5.so")
    objectcache.prune(tmp_path, max_bytes=250, max_entries=4, min_age_s=1)
    assert names() == ["0", "3"]


def test_pruning_at_once_from_many_threads(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    for k in range(60):
        (tmp_path / "objects" / f"{k}.so").write_bytes(b"x")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: objectcache.prune(tmp_path, max_entries=10, min_age_s=-1), range(16)))
    assert len(list((tmp_path / "objects").iterdir())) == 10


# ---- what a student reads


@pytest.mark.parametrize(
    ("text", "line", "error", "hint"),
    [
        (one_function("  int a = 3\n  return t;"), 4, "expected ',' or ';'", "line above"),
        (one_function("  return t"), 3, "expected ';'", "semicolon"),
        (one_function("  int i = 0;\n  twoDimRaed(i);\n  return t;"), 4, "not declared", "'twoDimRead'"),
        (
            one_function("  return t * read(0, n);", "float read(int &x, int n) { return x + n; }\n"),
            4,
            "cannot bind non-const lvalue",
            "takes only a variable",
        ),
        (
            one_function(
                "  twoDimRead(n, n);\n  return t;", "float twoDimRead(int t, int x, int y) { return 0; }\n"
            ),
            4,
            "too few arguments",
            "(tensor, x, y, sizeX)",
        ),
        (one_function("  return t;", "half(float x) { return x / 2; }\n"), 2, "", "needs its type"),
        (one_function("  return t;", "#include <attention.hpp>\n"), 2, "attention.hpp", "no such header"),
        (one_function("  return t;", '#include "module_ispc.h"\n'), 2, "module_ispc.h", "'ispc' on the PATH"),
        (one_function("  int n = 3;\n  int k = 1;\n  float k = 2;\n  return t;"), 3, "shadows|redecl", ""),
        (one_function("  for (;;) {\n  return t;"), 6, "inside another block", "never closed"),
        (
            one_function("  float x = t[0];\n  return t;"),
            3,
            "cannot convert 'at::Tensor' to 'float'",
            "data_ptr",
        ),
        (
            one_function("  helper(n);\n  return t;", "void helper(int);\n"),
            0,
            r"undefined function: helper\(int\)",
            "body",
        ),
    ],
)
def test_diagnostics(tmp_path: Path, text: str, line: int, error: str, hint: str) -> None:
    import re

    made = build(write(tmp_path, text))
    assert not made.ok and made.object_path is None
    lines = made.diagnostics.splitlines()
    assert 1 <= len(lines) <= 15 and str(tmp_path) not in made.diagnostics and "shim" not in made.diagnostics
    assert re.search(error, lines[0]), made.diagnostics
    if line:
        assert lines[0].startswith(f"module.cpp:{line}: error: "), made.diagnostics
        assert text.split("\n")[line - 1].strip() in lines[1] and lines[2].strip().endswith("^")
    assert hint in made.diagnostics


def test_messages_use_the_name_of_the_students_file(tmp_path: Path) -> None:
    source = write(tmp_path, one_function("  return t")).rename(tmp_path / "ada.cpp")
    assert build(source).diagnostics.startswith("ada.cpp:3: error: expected ';'")


def test_errors_inside_headers_show_the_students_line() -> None:
    gcc = """In file included from /usr/include/c++/12/vector:66,
                 from /x/torch/extension.h:3:
/usr/include/c++/12/bits/stl_uninitialized.h: In instantiation of 'constexpr bool std::__check() [with T = int&]':
/usr/include/c++/12/bits/stl_vector.h:558:7:   required from 'std::vector<T>::vector(const T&)'
module.cpp:7:21:   required from here
/usr/include/c++/12/bits/stl_uninitialized.h:90:63: error: static assertion failed: result type must be constructible
   90 |       static_assert(is_constructible<_ValueType, _Tp>::value,
"""
    clang = """/usr/include/c++/v1/vector:558:7: error: static assertion failed: must be constructible
module.cpp:7:21: note: in instantiation of member function 'std::vector<int>::vector' requested here
"""
    source = "\n" * 6 + "  std::vector<float> v(strings);\n"
    for output in (gcc, clang):
        told = diagnostics.explain(_failed(output), {"module.cpp": source}, timeout_s=5)
        assert told.startswith("module.cpp:7: error: static assertion failed") and "v(strings);" in told
        assert "noticed inside the header" in told


def _failed(output: str, returncode: int = 1, timed_out: bool = False) -> Finished:
    return Finished(returncode, output.encode(), 1.0, 1.0, timed_out)


def test_limits_have_their_own_line() -> None:
    sources = {"module.cpp": ""}
    assert "stopped after 7 s" in diagnostics.explain(_failed("", -9, True), sources, timeout_s=7)
    out = _failed("cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes\n")
    assert "4 GB" in diagnostics.explain(out, sources, timeout_s=7)
    assert "g++: fatal" in diagnostics.explain(_failed("g++: fatal\n"), sources, timeout_s=7)


def test_an_endless_expansion_is_stopped(tmp_path: Path) -> None:
    precompile()
    bomb = """template <long D, long K> struct Twice {
  static constexpr int value = Twice<D - 1, 2 * K>::value + Twice<D - 1, 2 * K + 1>::value;
};
template <long K> struct Twice<0, K> { static constexpr int value = 1; };
"""
    made = build(write(tmp_path, one_function("  return t * Twice<60, 0>::value;", bomb)), timeout_s=3)
    assert not made.ok and made.path == "light"
    assert "stopped after 3 s" in made.diagnostics and "template" in made.diagnostics


def test_control_characters_are_made_harmless() -> None:
    source = "int a = \x1b[31m\u202e;\n"
    told = diagnostics.explain(
        _failed("module.cpp:1:9: error: stray '\x1b' in program\n"), {"module.cpp": source}, timeout_s=1
    )
    assert "\x1b" not in told and "\u202e" not in told and "module.cpp:1" in told


def test_long_messages_and_lines_are_bounded() -> None:
    deep = "std::vector<std::map<std::pair<int, std::vector<float, std::allocator<float> > >, int> >" * 30
    source = "x" * 5000 + "\n"
    told = diagnostics.explain(
        _failed(f"module.cpp:1:3000: error: no {deep}\n" * 40), {"module.cpp": source}, timeout_s=1
    )
    assert len(told.splitlines()) <= 15 and max(map(len, told.splitlines())) <= 310
    assert "39 more errors" in told


def test_type_names_are_written_as_people_do() -> None:
    text = "cannot convert 'std::vector<float, std::allocator<float> >' to 'std::__cxx11::basic_string<char>'"
    assert diagnostics.simplify(text) == "cannot convert 'std::vector<float>' to 'std::string'"
    assert hint_for("something new", 1, "") == ""


# ---- ISPC


FAKE_ISPC = """#!/bin/sh
echo 'extern "C" int scaled(int);' > module_ispc.h
echo 'extern "C" int scaled(int x) { return x * FACTOR; }' > ispc_part.cpp
exec g++ -fPIC $(for a in "$@"; do case $a in -D*) echo $a;; esac; done) -c ispc_part.cpp -o module_ispc.o
"""


def test_ispc_is_used_when_it_is_there_and_named_when_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(
        tmp_path,
        HEAD + '#include "module_ispc.h"\nint f(int x) { return scaled(x); }\n' + BINDING,
    )
    (tmp_path / "module.ispc").write_text("export uniform int scaled(uniform int x) { return x; }\n")
    without = build(source)
    assert not without.ok and "ispc" in without.diagnostics and any("ispc" in note for note in without.notes)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ispc").write_text(FAKE_ISPC)
    (tmp_path / "bin" / "ispc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    made = build(source, defines={"FACTOR": "7"})
    assert made.ok, made.diagnostics
    assert made.notes == () and call(_load(made), "f", 6) == 42


# ---- sanitizers


FAULTY = (
    HEAD
    + """#include <vector>
inline float twoDimRead(std::vector<float> &t, int x, int y, int w) {
  return t[x * w + y];
}
torch::Tensor tensor_write(torch::Tensor q, int n) {
  auto out = at::zeros({n});
  float *p = out.data_ptr<float>();
  for (int i = 0; i <= n; i++)
    p[i] = 1.0f;
  return out;
}
float input_read(torch::Tensor q, int n) {
  return q.data_ptr<float>()[n];
}
float vector_read(torch::Tensor q, int n) {
  std::vector<float> v(n);
  float s = 0;
  for (int i = 0; i <= n; i++)
    s += twoDimRead(v, 0, i, n);
  return s;
}
int overflow(torch::Tensor q, int n) {
  int x = 2147483647;
  x += n;
  return x;
}
int fine(torch::Tensor q, int n) { return n; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("tensor_write", &tensor_write);
  m.def("input_read", &input_read);
  m.def("vector_read", &vector_read);
  m.def("overflow", &overflow);
  m.def("fine", &fine);
}
"""
)
#: One process for all: each fault in a child of its own, so that torch is imported under the sanitizer only once.
CALL_EACH = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torch
from grader.runner import CallFailed, StudentObject
loaded = StudentObject(sys.argv[2])
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


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    source = write(tmp_path_factory.mktemp("faulty"), FAULTY)
    made = build(source, sanitize=True)
    assert (made.ok, made.path) == (True, "light"), made.diagnostics
    told = subprocess.run(
        [sys.executable, "-c", CALL_EACH, str(ROOT), str(made.object_path)],
        env={**os.environ, **sanitize.environment(made)},
        capture_output=True,
        text=True,
    ).stdout
    return source, {part.split("\n", 1)[0].strip(): part for part in told.split("CALL ")[1:]}


@pytest.mark.parametrize(
    ("name", "kind", "quoted"),
    [
        ("tensor_write", "heap-buffer-overflow write", ["p[i] = 1.0f;"]),
        ("input_read", "heap-buffer-overflow read", ["return q.data_ptr<float>()[n];"]),
        ("vector_read", "vector index", ["return t[x * w + y];", "s += twoDimRead(v, 0, i, n);"]),
        ("overflow", "undefined behaviour", ["x += n;"]),
    ],
)
def test_sanitizers_name_the_students_own_line(
    faults: tuple[Path, dict[str, str]], name: str, kind: str, quoted: list[str]
) -> None:
    source, told = faults
    found = sanitize.report(told[name], source)
    assert found is not None and found.kind == kind, told[name]
    assert [frame.text for frame in found.frames] == quoted
    assert source.read_text().split("\n")[found.frames[0].line - 1].strip() == quoted[0]
    if "overflow " in kind:
        assert "index 100 of an array of 100 floats" in found.message


def test_a_fault_free_call_has_no_report(faults: tuple[Path, dict[str, str]]) -> None:
    source, told = faults
    assert "SURVIVED" in told["fine"] and sanitize.report(told["fine"], source) is None


# ---- the machine


@pytest.mark.parametrize(
    ("system", "family", "expected"),
    [
        ("Linux", "gcc", (("-fopenmp",), ("-fopenmp",))),
        ("Linux", "clang", (("-fopenmp",), ("-fopenmp",))),
        ("Darwin", "gcc", (("-fopenmp",), ("-fopenmp",))),
        ("Darwin", "clang", (("-Xpreprocessor", "-fopenmp", "-I/omp/include"), ("-L/omp/lib", "-lomp"))),
    ],
)
def test_openmp_flags(system: str, family: str, expected: tuple[tuple[str, ...], ...]) -> None:
    assert toolchain.openmp_flags(system, family, Path("/omp")) == expected


def test_flags_by_machine() -> None:
    assert toolchain.default_flags("x86_64") == ("-O3", "-mavx") == toolchain.default_flags("AMD64")
    assert toolchain.default_flags("arm64") == ("-O3",) == toolchain.default_flags("aarch64")
    linux = toolchain.linker_flags("Linux", None, Path("/s"), allow_undefined=False)
    assert "-Wl,-z,defs" in linux and not any("fuse-ld" in flag for flag in linux)
    assert "-Wl,--warn-unresolved-symbols" in toolchain.linker_flags(
        "Linux", "gold", Path("/s"), allow_undefined=True
    )
    assert toolchain.linker_flags("Darwin", None, Path("/s"), allow_undefined=True)[:2] == (
        "-undefined",
        "dynamic_lookup",
    )


def test_cache_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPT149_CACHE", str(tmp_path / "own"))
    assert toolchain.cache_root() == tmp_path / "own"
    monkeypatch.delenv("GPT149_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert toolchain.cache_root() == tmp_path / "gpt149"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert toolchain.cache_root() == tmp_path / ".cache" / "gpt149"


def test_no_compiler_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(KitError, match="apt install g\\+\\+"):
        toolchain.toolchain()


def test_bad_requests(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        build(tmp_path / "absent.cpp")
    with pytest.raises(UsageError, match="macro's name"):
        build(PUBLISHED, defines={"TILE SIZE": "8"})


def test_building_imports_no_torch() -> None:
    code = (
        "import sys, grader.build, grader.sanitize; grader.build.toolchain(); print('torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
    assert toolchain.describe()["torch"] == toolchain.toolchain().torch_version
