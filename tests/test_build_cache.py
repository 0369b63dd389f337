"""The build's cache: the keys of its entries, and robustness against kills, concurrent builds and pruning."""

import os
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
from building import both_builds, one_function, sharing_headers
from conftest import ROOT, write, write_files

from grader.backends.native import compilers, nativebuild, sanitize, standin, toolchain
from grader.backends.records import Build
from grader.backends.torch import torchbuild
from grader.backends.torch.torchbuild import build
from grader.core import objectcache
from grader.sandbox import Finished, run_limited

Patch = pytest.MonkeyPatch


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


def test_key_covers_what_decides_the_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def warm_cache(tmp_path: Path) -> Path:
    return sharing_headers(tmp_path / "cache")


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
    """A handout and its clone share entries: the contents of the kit's folders decide, not their paths."""
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


def test_tuning_flags_share_the_objects_of_others(monkeypatch: pytest.MonkeyPatch, warm_cache: Path) -> None:
    """Kernels for another instruction set wait for a precompiled header, but the stand-in is not compiled again."""
    usual = standin.prepare(nativebuild.OWN_FLAGS)
    compiled: list[str] = []

    def made(command: Sequence[str], place: Path) -> float:
        compiled.append(Path(command[-3]).name)
        Path(command[-1]).write_text("made")
        return 1.0

    monkeypatch.setattr(standin, "_compile", made)
    for more in (("-mavx2", "-mfma", "-g1"), ("-O1",)):
        tuned = standin.prepare((*nativebuild.OWN_FLAGS, *more), cache=warm_cache)
        assert compiled == [standin.HEADER] and tuned.cpu_s == 1.0
        assert [a.read_bytes() for a in tuned.objects] == [b.read_bytes() for b in usual.objects]
        compiled.clear()
    # Flags that decide more than that have objects of their own.
    for other in (("-fsanitize=address", "-O1"), ("-DMORE",)):
        standin.prepare((*nativebuild.OWN_FLAGS, *other), cache=warm_cache)
        assert sorted(compiled) == sorted([standin.HEADER, standin.SOURCE.name])
        compiled.clear()


def test_entries_are_shared_with_another_cache_by_kind(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    write_files(first, {f"headers/{name}/include/x.h": name for name in ("a.plain", "b.light")})
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
attempt = torchbuild._Work.attempt_with

def waiting(*arguments):
    print("compiling", flush=True)
    sys.stdin.readline()
    return attempt(*arguments)

torchbuild._Work.attempt_with = waiting
made = torchbuild.build(Path(sys.argv[1]), cache=Path(sys.argv[2]))
print(made.ok, made.cached, made.object_path, flush=True)
"""


def compiling(source: Path, cache: Path) -> subprocess.Popen[str]:
    """Start a build in a process of its own, which waits for a line of input before it starts the compiler."""
    arguments = [sys.executable, "-c", BUILD, str(source), str(cache)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(arguments, cwd=ROOT, text=True, **pipes)
    assert process.stdout is not None and process.stdout.readline() == "compiling\n"
    return process


def test_a_killed_build_leaves_nothing_that_hangs_the_next(tmp_path: Path, warm_cache: Path) -> None:
    source = write(tmp_path, one_function("return t;"))
    with compiling(source, warm_cache) as process:
        assert any(place.glob("**/module.cpp") for place in (warm_cache / "work").iterdir())
        process.kill()
    assert process.returncode == -signal.SIGKILL and not list(warm_cache.glob("objects/*"))
    made = build(source, cache=warm_cache)
    assert made.ok and not made.cached and made.object_path.exists()


def test_two_builds_at_once_do_not_disturb_each_other(tmp_path: Path, warm_cache: Path) -> None:
    processes = [compiling(write(tmp_path, one_function("return t;")), warm_cache) for _ in range(2)]
    replies = [process.communicate("go\n")[0].splitlines()[-1].split() for process in processes]
    assert [reply[:2] for reply in replies] == [["True", "False"]] * 2
    assert replies[0][2] == replies[1][2] and Path(replies[0][2]).exists()
    assert not any((warm_cache / "work").iterdir())
    assert len(list((warm_cache / "objects").iterdir())) == 1


def test_pruning_many_times_at_once_keeps_what_was_used_last_or_is_young(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "objects", {f"{age}.so": "x" * 100 for age in range(6)})
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


def test_variables_that_change_objects_are_withheld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object is found again by its text and flags alone."""
    noted = Mock(side_effect=run_limited)
    monkeypatch.setattr(compilers, "run_limited", noted)
    for name in ("CPATH", "GCC_EXEC_PREFIX", "LIBRARY_PATH", "SOURCE_DATE_EPOCH"):
        monkeypatch.setenv(name, "0")
    assert nativebuild.build(write(tmp_path, one_function(f"return t; // {os.urandom(8).hex()}"))).ok
    passed = set().union(*(call.kwargs["env"] for call in noted.mock_calls))
    assert noted.called and passed <= {*compilers.ENVIRONMENT, "LC_ALL", "TMPDIR", "GCC_COLORS"}
    assert not {"CPATH", "SOURCE_DATE_EPOCH"} & passed


@pytest.mark.skipif(toolchain.toolchain().linker is None, reason="no quick linker here")
def test_only_the_kit_s_probe_condemns_a_linker(tmp_path: Path, warm_cache: Path, monkeypatch: Patch) -> None:
    """The linker's choice does not depend on a file that sometimes calls an undefined function."""
    real = torchbuild._Work.attempt_with

    def at_an_odd_second(self: object, linker: str | None, *rest: object) -> Finished | None:
        undefined = Finished(1, b"module.cpp: undefined reference to `undefined()'", 0.0, 0.0, False)
        return undefined if linker else real(self, linker, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(torchbuild._Work, "attempt_with", at_an_odd_second)
    with monkeypatch.context() as working:
        # Some machines have a quick linker that misses the C++ library.
        working.setattr(torchbuild._Work, "can_link", lambda self, linker: True)
        assert build(write(tmp_path, one_function("return t; // odd")), cache=warm_cache).ok
    assert not list(warm_cache.glob("linkers/*"))
    # Where the linker misses the C++ library itself, it is left alone from then on.
    monkeypatch.setattr(torchbuild, "LINKER_PROBE", 'void gone(); extern "C" void probe() { gone(); }\n')
    assert build(write(tmp_path, one_function("return t; // odd again")), cache=warm_cache).ok
    assert len(list(warm_cache.glob("linkers/*"))) == 1


def test_the_compiler_s_clock_stands_still(tmp_path: Path, warm_cache: Path) -> None:
    clock = """
constexpr bool same(const char* a, const char* b) { return *a == *b && (!*a || same(a + 1, b + 1)); }
static_assert(same(__DATE__, "Jan  1 1970") && same(__TIME__, "00:00:00"), "date");
static_assert(same(__TIMESTAMP__, "Thu Jan  1 00:00:00 1970"), "timestamp");
"""
    source = write(tmp_path, one_function("return t;", clock))
    light = build(source, cache=warm_cache)
    assert light.ok and light.path == "light", light.diagnostics
    nativebuild.kit()
    objectcache.share(toolchain.cache_root(), warm_cache, (".kit",))
    native = nativebuild.build(source, cache=warm_cache)
    assert native.ok, native.diagnostics
