"""The tools of the machine: compiler, torch, flags and the place of the cache."""

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


def test_openmp_flags() -> None:
    for machine in (("Linux", "gcc"), ("Linux", "clang"), ("Darwin", "gcc")):
        assert toolchain.openmp_flags(*machine, Path("/omp")) == (("-fopenmp",), ("-fopenmp",))
    expected = (("-Xpreprocessor", "-fopenmp", "-I/omp/include"), ("-L/omp/lib", "-lomp"))
    assert toolchain.openmp_flags("Darwin", "clang", Path("/omp")) == expected


def test_flags_by_machine() -> None:
    assert toolchain.default_flags("x86_64") == ("-O3", "-mavx") == toolchain.default_flags("AMD64")
    assert toolchain.default_flags("arm64") == ("-O3",) == toolchain.default_flags("aarch64")


def test_linker_flags() -> None:
    def flags(system: str, linker: str | None, undefined: bool) -> tuple[str, ...]:
        return toolchain.linker_flags(system, linker, Path("/s"), allow_undefined=undefined)

    linux = flags("Linux", None, False)
    assert "-Wl,-z,defs" in linux and not any("fuse-ld" in flag for flag in linux)
    assert {"-fuse-ld=gold", "-Wl,--warn-unresolved-symbols"} <= set(flags("Linux", "gold", True))
    assert flags("Darwin", None, True)[:2] == ("-undefined", "dynamic_lookup")


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
