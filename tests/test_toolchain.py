"""The machine that a build finds: compiler, torch, flags and the cache's place."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from building import PUBLISHED
from conftest import ROOT

from grader.base.errors import KitError, UsageError
from grader.build import toolchain
from grader.build.torchbuild import build


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
        "import sys, grader.build.torchbuild, grader.build.sanitize; "
        "grader.build.torchbuild.toolchain(); print('torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
    assert toolchain.describe()["torch"] == toolchain.torch_files().version == toolchain.torch_version()


def test_a_python_without_torch_has_a_compiler_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard that torch asks for decides what is compiled; without torch it is the kit's own."""
    with_torch = toolchain._toolchain_for.__wrapped__("g++", None)
    monkeypatch.setattr(toolchain, "_torch_root", lambda: None)
    assert toolchain.describe()["torch"] == toolchain.ABSENT
    without = toolchain._toolchain_for.__wrapped__("g++", None)
    assert without == replace(with_torch, cxx_standard="c++17")
    with pytest.raises(KitError, match="no torch: run 'make setup'"):
        toolchain.torch_files.__wrapped__()
