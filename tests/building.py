"""Small sources and shared compiler flags for tests of the build, calls of built objects, and growth of CPU time."""

import ctypes
import math
import time
import timeit
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT

from grader.backends.native import nativebuild, sanitize, standin
from grader.backends.native.toolchain import cache_root, python_include_dir, toolchain
from grader.backends.records import Build
from grader.backends.torch import torchbuild
from grader.backends.torch.loaded import StudentObject
from grader.study import race
from grader.study.standalone import Kit

#: Each set of flags needs a precompiled header of 6 to 30 s. Tests that do not depend on them share those of the kit.
UNOPTIMIZED = ("-O0",)
PLAIN = Kit(flags=nativebuild.OWN_FLAGS)
SANITIZED = Kit(flags=(*PLAIN.flags, *sanitize.FLAGS), link_flags=("-fsanitize=address,undefined",))
HEAD = "#include <torch/extension.h>\n"
WITH_TORCH = pytest.param(torchbuild.build, marks=pytest.mark.full, id="with torch")
_LACKS_PYTHON_H = python_include_dir() is None
needs_python_h = pytest.mark.skipif(_LACKS_PYTHON_H, reason="no Python.h: apt install python3-dev")
_HAS_TSAN = race.has_thread_sanitizer(toolchain())
needs_tsan = pytest.mark.skipif(not _HAS_TSAN, reason="only gcc on Linux has the ThreadSanitizer that fits")
both_builds = pytest.mark.parametrize("made_by", [pytest.param(nativebuild.build, id="native"), WITH_TORCH])


def built(path: Path | None) -> Build:
    return Build(ok=True, object_path=path, cached=False, diagnostics="", notes=(), wall_s=0, cpu_s=0, key="")


def binding(*names: str) -> str:
    """Return the end of a source that offers these functions; a name may be several, with spaces between them."""
    offered = " ".join(f'm.def("{name}", &{name});' for name in " ".join(names).split())
    return f"PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ {offered} }}\n"


BINDING = binding("f")


def includes(names: str) -> str:
    return HEAD + "".join(f"#include <{name}>\n" for name in names.split())


def one_function(body: str, before: str = "") -> str:
    return f"{HEAD}{before}torch::Tensor f(torch::Tensor t, int n) {{\n{body}\n}}\n" + BINDING


def sharing_headers(cache: Path) -> Path:
    """Return a new cache that holds the precompiled headers for the usual flags, and nothing else."""
    torchbuild.precompile()
    stand_in = standin.prepare(nativebuild.OWN_FLAGS).folder
    light = cache_root() / "headers" / torchbuild._recipe(ROOT / "module.cpp", (), {}, False).header_key()
    (cache / "headers").mkdir(parents=True)
    for entry in (stand_in, light):
        (cache / "headers" / entry.name).symlink_to(entry)
    return cache


def loaded(made: Build) -> StudentObject:
    import torch  # noqa: F401  (the object finds torch's libraries only in a process that holds them)

    return StudentObject(str(made.object_path))


def call(of: StudentObject, name: str, *values: object) -> object:
    """Return the function's result as a plain Python value; vectors and tensors as flat lists. Raises CallFailed."""
    invocation = of.prepare(name, list(values))
    result = invocation()
    value: object = result.number if result.kind == 1 else result.kind
    if result.kind in (2, 3):
        sizes = list(result.sizes[: result.ndim])
        count = math.prod(sizes)
        value = (sizes, list((ctypes.c_float * count).from_address(result.data)) if count else [])
    invocation.release()
    return value


def cpu_growth(act: Callable[[int], object], small: int, large: int, repeat: int = 5) -> float:
    """Return the CPU time of `act` for the large size over that for the small one, each in its best run."""

    def least_s(size: int) -> float:
        return min(timeit.repeat(lambda: act(size), timer=time.thread_time, number=1, repeat=repeat))

    # Times below 0.1 ms are mostly the clock's and the interpreter's own.
    return least_s(large) / max(least_s(small), 1e-4)
