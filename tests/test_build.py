"""Builds without torch, and with torch's light or full headers: bindings, tools, and the cache of objects."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from building import HEAD, asked, both_builds, call, loaded, one_function, text_of
from conftest import ROOT, Patch, put, refused, some, tiers, write
from honest.styles import published

from grader.backends.native import compilers, nativebuild, sanitize, standin, toolchain
from grader.backends.native.nativehost import NativeHost
from grader.backends.records import Build
from grader.backends.torch import torchbuild
from grader.backends.torch.torchbuild import TorchBuild, build
from grader.core import errors, objectcache
from grader.runner.runner import CallFailed, StudentObject
from grader.sandbox import OPEN, choose, run_limited
from grader.source import cpptext

SIGNATURES = text_of("signatures.cpp")
#: Headers that are missing, or in a folder that is closed to compilers. Only a missing mine.h is the student's fault.
HEADERS = ["Python.h", "closed.h", "mine.h", pytest.param("torch/csrc/Device.h", marks=pytest.mark.full)]
PUSH = "#pragma GCC push_options\n"


@pytest.fixture(scope="module")
def signatures(tmp_path_factory: pytest.TempPathFactory) -> StudentObject:
    made = build(write(tmp_path_factory.mktemp("signatures"), SIGNATURES), defines={"TILE_SIZE": "24"})
    assert (made.ok, made.path, made.diagnostics, made.notes) == (True, "light", "", ())
    return loaded(made)


def test_published_style_uses_light_headers_and_offers_unbound_functions(tmp_path: Path) -> None:
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
    # The object exports only the functions that a runner calls.
    command = ["nm", "-D", "--defined-only", str(made.object_path)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Some compilers leave copies of the standard library's own templates (_ZNSt..., _ZSt...), which need not be hidden.
    names = {name for line in listing.splitlines() if not re.match("_ZN?K?St", name := line.split()[-1])}
    assert names == {f"gpt149_{name}" for name in ("count", "name", "signature", "call", "release")}


def test_functions_of_each_signature_can_be_called(signatures: StudentObject) -> None:
    assert dict(signatures.functions) == {
        "same": "T(T)", "transposed": "T(T)", "nothing": "T()", "mixed": "f(ilfdb)", "size_of": "l(V)",
        "twice": "v(W)", "squares": "V(V)", "throws_std": "v()", "throws_torch": "v(T)", "throws_int": "v()",
        "strange": "i(?)", "tile": "i()", "lambda": "f(if)", "fourDimWrite": "v(Wiiiiiiif)",
    }  # fmt: skip
    grid = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    assert call(signatures, "same", grid) == ([2, 3], [0, 1, 2, 3, 4, 5])
    assert call(signatures, "transposed", grid) == ([3, 2], [0, 3, 1, 4, 2, 5])
    assert call(signatures, "same", torch.zeros(0, 3)) == ([0, 3], []) and call(signatures, "nothing") == 4
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
def test_a_file_without_bindings_has_no_functions(made_by: Callable[..., Build], tmp_path: Path) -> None:
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
    # The limit also holds for an object in the cache that was built when the limit was larger.
    for text in ("", "// compiled anew\n"):
        source.write_text(source.read_text() + text)
        made = made_by(source, object_bytes=2 << 20)
        assert not made.ok and made.object_path is None
        assert "MiB; the limit is 2 MiB" in made.diagnostics and "hint:" in made.diagnostics
    if made_by is build:
        assert made_by(source, object_bytes=2 << 20, sanitize=True).ok, "the limit is higher with sanitizers"


@pytest.mark.full
def test_the_build_falls_back_to_full_headers_without_a_message(tmp_path: Path) -> None:
    """The file uses parts of torch that the light header does not declare, so it is built with the full headers."""
    text = one_function("return torch::matmul(t, t) * n;", "#include <torch/torch.h>\n")
    text = text.replace("m.def(", 'm.def("g", [](int a) { return a; }, py::arg("a")); m.def(')
    made = build(write(tmp_path, text), timeout_s=600)
    assert (made.ok, made.path, made.diagnostics, made.notes) == (True, "full", "", ()), made
    built = loaded(made)
    assert dict(built.functions) == {"g": "i(i)", "f": "T(Ti)"}
    assert call(built, "f", torch.eye(2), 3) == ([2, 2], [3, 0, 0, 3])


@pytest.mark.parametrize("include", HEADERS)
def test_only_a_students_missing_header_is_a_fault(include: str, tmp_path: Path, monkeypatch: Patch) -> None:
    # The compilers of tier C have another user id, which may not enter pytest's folders.
    closed, box = (tmp_path, tiers()[-2]) if include == "closed.h" else (None, OPEN)
    known = replace(toolchain.torch_files(), python_include_dir=closed)
    monkeypatch.setattr(torchbuild, "torch_files", lambda: known)
    waits_for = "" if include == "mine.h" else "Python.h"
    source = write(tmp_path, one_function("return t;", f"#include <{include}>\n"))
    made = build(source, timeout_s=600, sandbox=box)
    assert (made.ok, made.waits_for) == (False, waits_for), made.diagnostics
    assert ("apt install python3-dev" in made.diagnostics) == bool(waits_for)


def test_comments_and_literals_are_removed_from_code() -> None:
    code = {
        "a /* b */ c // d\ne": "a   c  \ne", 'f("/*", \'"\', u8"\\"//", L\'\\\'\') g': "f( ,  ,  ,  ) g",
        'R"(/* " )" h; FOOR"(" i': "  h; FOOR  i", 'R"ab()" )ab" j': "  j",
        "1'000'000 + 0x'a k'l": "1'000'000 + 0x'a k ", "m /* never closed": "m  ", 'n "never closed\no': "n  \no",
        'p R"(never closed': "p  ", "// goes on \\\nq\nr": " \nr",
    }  # fmt: skip
    assert {source: cpptext.without_comments(source) for source in code} == code


WORKS = one_function("return t;")
TARGET = '#pragma GCC target("avx2,fma")\n'
#: Beginnings of a file, before its torch headers. True: the beginning has pragmas that affect torch's headers.
BEGINNINGS = [
    ("", False), (TARGET, True), ('\ufeff#include <vector>\n #  pragma  GCC\\\n optimize("Ofast")\r\n', True),
    ('%:pragma GCC push_options\n#pragma GCC target("abi=ms")\n', True),
    ('#pragma clang attribute push(__attribute__((target("avx2"))), apply_to=function)\n', True),
    ('#define FAST(x) _Pragma(#x)\nFAST(GCC optimize("O3"))\n', True),
    (f"{HEAD}{TARGET}#include <vector>\n", False), (f"// {TARGET}/*\n{TARGET}*/\n", False),
    ('#pragma once\n#pragma GCC diagnostic ignored "-Wall"\n#pragma omp declare simd\n', False),
]  # fmt: skip


@pytest.mark.parametrize(("beginning", "own_order"), BEGINNINGS)
def test_pragmas_before_the_headers_keep_the_files_own_order(beginning: str, own_order: bool) -> None:
    assert standin.steers_headers((beginning + WORKS).encode()) is own_order
    assert not standin.steers_headers((beginning + "int x;\n" * 9).encode()), "no header of torch's"
    targets = standin.targets_of_headers((beginning + WORKS).encode())
    assert not own_order or targets == (("-mavx2", "-mfma") if beginning.startswith(TARGET) else ())


def value(host: NativeHost, program: Path | None) -> list[float]:
    assert program is not None
    with host.spawn(program, threads=1) as session:
        answer = session.call(asked("f", 3, shape=(2,), output=(2,)))
    assert answer.status == "ok", (session.death, answer)
    return answer.output.tolist()


@pytest.mark.parametrize("top, expected", some([(PUSH, 2), (f"{PUSH}std::vector<int> v;\n", 3), ("", 3)], 3))
def test_the_order_of_pragmas_and_headers(top: str, expected: float, tmp_path: Path) -> None:
    """The judged function returns 3 if the kit includes its torch headers before the file's text, else 2."""
    # The kit includes its headers before a file that begins with a pragma only if it does not compile otherwise.
    seen = f"{top}#ifdef GPT149_PLAIN_TORCH_H\n#define WERE_FIRST\n#endif\n"
    body = "#ifdef WERE_FIRST\nreturn torch::full({1}, 3.0f);\n#endif\nreturn torch::full({1}, 2.0f);"
    made = nativebuild.build(write(tmp_path, seen + one_function(body)))
    with NativeHost() as host:
        assert value(host, made.program) == [expected], made.diagnostics


@pytest.mark.parametrize("flags", [(), pytest.param(("-O0",), marks=pytest.mark.full)])
def test_macros_and_flags_reach_the_compiler(flags: tuple[str, ...], tmp_path: Path) -> None:
    body = "#if defined(__OPTIMIZE__)\nn = 0;\n#endif\nreturn torch::full({1}, (float)(TIMES + n));"
    made = nativebuild.build(write(tmp_path, one_function(body)), defines={"TIMES": "7"}, flags=flags)
    with NativeHost() as host:
        assert value(host, made.program) == [10.0 if flags else 7.0]


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="static programs are built only on Linux")
def test_without_static_libraries_linking_is_dynamic(tmp_path: Path, cache: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(nativebuild, "LINKAGES", {"dynamic": nativebuild.LINKAGES["dynamic"]})
    made = nativebuild.build(write(tmp_path, WORKS), cache=cache)
    assert made.ok and made.linkage == "dynamic", made.diagnostics
    for box in (choose(), choose("D", trust=True)):
        with NativeHost(box, cache) as host:
            assert value(host, made.program) == [1.0, 2.0] and "no files" not in host.applied
    # A trial program that fails (OpenMP libraries may need shared memory) is not the student's fault.
    trial = nativebuild.kit(cache).folder / nativebuild.TRIAL
    trial.unlink()
    shutil.copy("/bin/false", trial)
    refused("start in the sandbox .*: try CXX=", NativeHost, choose(), cache, of=errors.KitError)


def test_flags_and_cache_folder_depend_on_the_system(monkeypatch: Patch, tmp_path: Path) -> None:
    for machine in (("Linux", "gcc"), ("Linux", "clang"), ("Darwin", "gcc")):
        assert toolchain.openmp_flags(*machine, Path("/omp")) == (("-fopenmp",), ("-fopenmp",))
    expected = (("-Xpreprocessor", "-fopenmp", "-I/omp/include"), ("-L/omp/lib", "-lomp"))
    assert toolchain.openmp_flags("Darwin", "clang", Path("/omp")) == expected
    assert toolchain.default_flags("x86_64") == ("-O3", "-mavx") == toolchain.default_flags("AMD64")
    assert toolchain.default_flags("arm64") == ("-O3",) == toolchain.default_flags("aarch64")
    strict = toolchain.linker_flags("Linux", Path("/s"), allow_undefined=False)
    tolerant = toolchain.linker_flags("Linux", Path("/s"), allow_undefined=True)
    assert "-Wl,-z,defs" in strict and set(tolerant) - set(strict) == {"-Wl,--warn-unresolved-symbols"}
    darwin = toolchain.linker_flags("Darwin", Path("/s"), allow_undefined=True)
    assert darwin[:2] == ("-undefined", "dynamic_lookup")
    for variable, folder in (("GPT149_CACHE", "."), ("XDG_CACHE_HOME", "gpt149"), ("HOME", ".cache/gpt149")):
        monkeypatch.setenv(variable, str(tmp_path))
        assert toolchain.cache_root() == tmp_path / folder
        monkeypatch.delenv(variable)


def test_bad_requests_and_a_missing_compiler_are_reported(tmp_path: Path, monkeypatch: Patch) -> None:
    refused("cannot read", build, tmp_path / "absent.cpp")
    refused("macro's name", build, ROOT / "module.cpp", defines={"TILE SIZE": "8"})
    monkeypatch.setenv("CXX", "no-such-compiler")
    refused(r"apt install g\+\+", toolchain.toolchain, of=errors.KitError)


def test_building_needs_no_torch(monkeypatch: Patch) -> None:
    assert toolchain.describe()["torch"] == toolchain.torch_files().version == toolchain.torch_version()
    # A build with torch uses torch's C++ standard, a build without torch uses the kit's.
    with_torch = toolchain._toolchain_for.__wrapped__("g++", None)
    monkeypatch.setattr(toolchain, "_torch_root", lambda: None)
    assert toolchain.describe()["torch"] == toolchain.ABSENT
    assert toolchain._toolchain_for.__wrapped__("g++", None) == replace(with_torch, cxx_standard="c++17")
    refused("no torch: run 'make setup'", toolchain.torch_files.__wrapped__, of=errors.KitError)


@both_builds
def test_an_unchanged_source_compiles_nothing(made_by: Callable[..., Build], tmp_path: Path) -> None:
    text = one_function("return t;")
    first, again = made_by(write(tmp_path, text)), made_by(write(tmp_path, text))
    assert first.ok and again.ok and again.cached and again.cpu_s == 0
    assert (again.object_path, again.key) == (first.object_path, first.key)
    others = [made_by(write(tmp_path, text + "// other\n"))]
    others.append(made_by(write(tmp_path, text), defines={"N": "3"}))
    if made_by is nativebuild.build:
        others.append(made_by(write(tmp_path, text), flags=sanitize.FLAGS))
    assert len({first.key, *(other.key for other in others)}) == 1 + len(others)


def test_the_key_covers_all_that_changes_an_object(tmp_path: Path, monkeypatch: Patch) -> None:
    source = write(tmp_path, one_function("return t;"))
    tools, torch = toolchain.toolchain(), toolchain.torch_files()
    macros = [((), {"TILE_SIZE": size}, False) for size in ("8", "16")]
    variants = [((), {}, False), (("-O2",), {}, False), *macros, ((), {}, True)]
    keys = [torchbuild._recipe(source, *variant).key() for variant in variants]
    for name, changed in (
        ("torch_files", replace(torch, version="0")),
        ("toolchain", replace(tools, compiler_version="0")),
        ("_shim_contents", [b"other shim"]),
    ):
        monkeypatch.setattr(torchbuild, name, lambda changed=changed: changed)
        keys.append(torchbuild._recipe(source, (), {}, False).key())
    (tmp_path / "module.ispc").write_text("")
    keys.append(torchbuild._recipe(source, (), {}, False).key())
    assert len(set(keys)) == len(keys)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return a new cache that contains only the precompiled headers for the usual flags."""
    torchbuild.precompile()
    key = torchbuild._recipe(ROOT / "module.cpp", (), {}, False).header_key()
    (tmp_path / "cache" / "headers").mkdir(parents=True)
    for entry in (standin.prepare(nativebuild.OWN_FLAGS).folder, toolchain.cache_root() / "headers" / key):
        (tmp_path / "cache" / "headers" / entry.name).symlink_to(entry)
    return tmp_path / "cache"


FROM_A_COPY = """
import sys
from pathlib import Path
import grader
from grader.backends.native import nativebuild, standin
def compile(*_):
    sys.exit("compiles")
standin._compile = compile
print(Path(grader.__file__).parent)
print(nativebuild.build(Path(sys.argv[1])).ok and standin.prepare(nativebuild.OWN_FLAGS).cpu_s)
"""


@pytest.mark.full
def test_a_second_copy_of_the_kit_finds_the_entries_of_the_first_one(tmp_path: Path) -> None:
    """A handout and its copy share cache entries: keys depend on the contents of the kit's folders, not on paths."""
    source = write(tmp_path, one_function("return t;"))
    assert nativebuild.build(source).ok
    standin.prepare(nativebuild.OWN_FLAGS)
    copy = tmp_path / "grader"
    shutil.copytree(ROOT / "grader", copy, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", FROM_A_COPY, str(source)]
    assert subprocess.check_output(command, cwd=tmp_path, text=True).split() == [str(copy), "0.0"]
    with (copy / "backends" / "native" / "inside" / "plain" / "plain_types.h").open("a") as changed:
        changed.write("// changed\n")
    ended = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True)
    assert (ended.stdout.split(), ended.stderr) == ([str(copy)], "compiles\n")


def test_tuning_flags_share_the_objects_of_others(monkeypatch: Patch, cache: Path) -> None:
    """Flags for speed or debug information need a new precompiled header, but not a new compiled stand-in for torch."""
    usual = standin.prepare(nativebuild.OWN_FLAGS)
    compiled: list[str] = []

    def made(command: Sequence[str], place: Path) -> float:
        compiled.append(Path(command[-3]).name)
        Path(command[-1]).write_text("made")
        return 1.0

    monkeypatch.setattr(standin, "_compile", made)
    for more in (("-mavx2", "-mfma", "-g1"), ("-O1",)):
        tuned = standin.prepare((*nativebuild.OWN_FLAGS, *more), cache=cache)
        assert compiled == [standin.HEADER] and tuned.cpu_s == 1.0
        assert tuned.object.read_bytes() == usual.object.read_bytes()
        compiled.clear()
    # Flags that change more than speed and debug information need a stand-in that is compiled with them.
    for other in (("-fsanitize=address", "-O1"), ("-DMORE",)):
        standin.prepare((*nativebuild.OWN_FLAGS, *other), cache=cache)
        assert sorted(compiled) == sorted([standin.HEADER, standin.SOURCE.name])
        compiled.clear()


def test_entries_are_shared_with_another_cache_by_kind(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    put(first, {f"headers/{name}/include/x.h": name for name in ("a.plain", "b.light")})
    for _ in range(2):
        objectcache.share(first, other, (".plain", ".kit"))
    assert [path.name for path in (other / "headers").iterdir()] == ["a.plain"]
    assert (other / "headers" / "a.plain" / "include" / "x.h").read_text() == "a.plain"
    assert not list((other / "work").iterdir())
    objectcache.share(tmp_path / "none", other, (".plain",))


BUILD = """
import sys
from pathlib import Path
from grader.backends.torch import torchbuild
attempt = torchbuild._Work.attempt
def waiting(*arguments):
    print("compiling", flush=True)
    sys.stdin.readline()
    return attempt(*arguments)
torchbuild._Work.attempt = waiting
made = torchbuild.build(Path(sys.argv[1]), cache=Path(sys.argv[2]))
print(made.ok, made.cached, made.object_path, flush=True)
"""


def compiling(source: Path, cache: Path) -> subprocess.Popen[str]:
    """Start a process that builds the source. It waits for a line of input before it starts the compiler."""
    arguments = [sys.executable, "-c", BUILD, str(source), str(cache)]
    process = subprocess.Popen(arguments, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == "compiling\n"
    return process


@pytest.mark.full
def test_a_killed_build_does_not_block_the_next_one(tmp_path: Path, cache: Path) -> None:
    source = write(tmp_path, one_function("return t;"))
    with compiling(source, cache) as process:
        assert any(place.glob("**/module.cpp") for place in (cache / "work").iterdir())
        process.kill()
    assert process.returncode == -signal.SIGKILL and not list(cache.glob("objects/*"))
    made = build(source, cache=cache)
    assert made.ok and not made.cached and made.object_path.exists()


@pytest.mark.full
def test_two_builds_at_once_do_not_disturb_each_other(tmp_path: Path, cache: Path) -> None:
    processes = [compiling(write(tmp_path, one_function("return t;")), cache) for _ in range(2)]
    replies = [process.communicate("go\n")[0].splitlines()[-1].split() for process in processes]
    assert [reply[:2] for reply in replies] == [["True", "False"]] * 2
    assert replies[0][2] == replies[1][2] and Path(replies[0][2]).exists()
    assert not any((cache / "work").iterdir()) and len(list((cache / "objects").iterdir())) == 1


def test_pruning_many_times_at_once_keeps_what_was_used_last_or_is_young(tmp_path: Path) -> None:
    folder = put(tmp_path / "objects", {f"{age}.so": "x" * 100 for age in range(6)})
    for age in range(6):
        os.utime(folder / f"{age}.so", times=(time.time() - 1000 * age - 10,) * 2)
    left = tmp_path / "work" / "killed"
    left.mkdir(parents=True)
    os.utime(left, times=(0, 0))

    def pruned(max_bytes: int, min_age_s: float) -> str:
        objectcache.prune(tmp_path, max_bytes=max_bytes, max_entries=4, min_age_s=min_age_s)
        return "".join(sorted(path.stem for path in folder.iterdir()))

    assert pruned(10_000, min_age_s=1e6) == "012345"
    assert pruned(10_000, min_age_s=1) == "0123" and not left.exists()
    assert objectcache.touch(folder / "3.so") and not objectcache.touch(folder / "5.so")
    assert pruned(250, min_age_s=1) == "03"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: (folder / f"{k}.so").write_bytes(b"x"), range(60)))
        list(pool.map(lambda _: objectcache.prune(tmp_path, max_entries=10, min_age_s=-1), range(16)))
    assert len(list(folder.iterdir())) == 10


def test_variables_that_change_objects_are_removed(tmp_path: Path, monkeypatch: Patch) -> None:
    """The cache finds objects by text and flags only, so environment variables must not change an object."""
    noted = Mock(side_effect=run_limited)
    monkeypatch.setattr(compilers, "run_limited", noted)
    for name in ("CPATH", "GCC_EXEC_PREFIX", "LIBRARY_PATH", "SOURCE_DATE_EPOCH"):
        monkeypatch.setenv(name, "0")
    assert nativebuild.build(write(tmp_path, one_function(f"return t; // {os.urandom(8).hex()}"))).ok
    passed = set().union(*(call.kwargs["env"] for call in noted.mock_calls))
    assert noted.called and passed <= {*compilers.ENVIRONMENT, "LC_ALL", "TMPDIR", "GCC_COLORS"}
    assert not {"CPATH", "SOURCE_DATE_EPOCH"} & passed


@pytest.mark.full
def test_the_compiler_has_a_fixed_date(tmp_path: Path, cache: Path) -> None:
    clock = """
constexpr bool same(const char* a, const char* b) { return *a == *b && (!*a || same(a + 1, b + 1)); }
static_assert(same(__DATE__, "Jan  1 1970") && same(__TIME__, "00:00:00"), "date");
static_assert(same(__TIMESTAMP__, "Thu Jan  1 00:00:00 1970"), "timestamp");
"""
    source = write(tmp_path, one_function("return t;", clock))
    light = build(source, cache=cache)
    assert light.ok and light.path == "light", light.diagnostics
    nativebuild.kit()
    objectcache.share(toolchain.cache_root(), cache, (".kit",))
    native = nativebuild.build(source, cache=cache)
    assert native.ok, native.diagnostics
