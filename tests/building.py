"""Helpers that build small C++ sources with and without torch, call their functions, and compare CPU times."""

import ctypes
import math
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, write

from grader.backends.native import nativebuild, nativehost, sanitize
from grader.backends.native.toolchain import python_include_dir, toolchain
from grader.backends.records import Build
from grader.backends.torch import torchbuild
from grader.backends.torch.zygote import Zygote
from grader.core.arrays import np
from grader.runner import calls, runner, session
from grader.sandbox import Sandbox
from grader.study import race
from grader.study.standalone import Kit

Sizes = tuple[int, ...]
#: To precompile a header for a set of flags takes 6 to 30 s. Tests that do not depend on flags use the kit's own flags.
PLAIN = Kit(flags=nativebuild.OWN_FLAGS)
SANITIZED = Kit(flags=(*PLAIN.flags, *sanitize.FLAGS), link_flags=("-fsanitize=address,undefined",))
HEAD = "#include <torch/extension.h>\n"
WITH_TORCH = pytest.param(torchbuild.build, marks=pytest.mark.full, id="with torch")
_HAS_TSAN = race.has_thread_sanitizer(toolchain())
needs_tsan = pytest.mark.skipif(not _HAS_TSAN, reason="needs the ThreadSanitizer of gcc on Linux")
both_builds = pytest.mark.parametrize("made_by", [pytest.param(nativebuild.build, id="native"), WITH_TORCH])


def text_of(name: str) -> str:
    """Return the text of a C++ file in tests/sources. Most files lack includes and bindings; the tests add them."""
    return (ROOT / "tests" / "sources" / name).read_text()


def reads_python_h(box: Sandbox) -> bool:
    """Return True if Python.h is installed where compilers in this sandbox can read it."""
    if (folder := python_include_dir()) is None:
        return False
    return box.hides_files or not box.own_uid or all(place.stat().st_mode & 1 for place in folder.parents)


def built(path: Path | None) -> Build:
    return Build(ok=True, object_path=path, cached=False, diagnostics="", notes=(), wall_s=0, cpu_s=0, key="")


def binding(*names: str) -> str:
    """Return the C++ statement that exports functions to Python. Each argument is one or more names with spaces."""
    offered = " ".join(f'm.def("{name}", &{name});' for name in " ".join(names).split())
    return f"PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ {offered} }}\n"


BINDING = binding("f")


def includes(names: str) -> str:
    return HEAD + "".join(f"#include <{name}>\n" for name in names.split())


def one_function(body: str, before: str = "") -> str:
    return f"{HEAD}{before}torch::Tensor f(torch::Tensor t, int n) {{\n{body}\n}}\n" + BINDING


def loaded(made: Build) -> runner.StudentObject:
    import torch  # noqa: F401  (the object finds torch's libraries only in a process that holds them)

    return runner.StudentObject(str(made.object_path))


def call(of: runner.StudentObject, name: str, *values: object) -> object:
    """Call a student's function. Return a number, a tensor as (sizes, elements), or another result's kind."""
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
    """Return the CPU time of act(large) divided by the CPU time of act(small). Each is the least of `repeat` runs."""

    def least_s(size: int) -> float:
        return min(timeit.repeat(lambda: act(size), timer=time.thread_time, number=1, repeat=repeat))

    # A time below 0.1 ms consists mostly of the overhead of clock and interpreter.
    return least_s(large) / max(least_s(small), 1e-4)


def program(folder: Path, text: str, **options: Any) -> Path:
    made = nativebuild.build(write(folder, text), **options)
    assert made.ok and made.program is not None, made.diagnostics
    return made.program


def floats(*shape: int) -> Any:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def asked(function: str, *values: object, shape: Sizes = (4,), output: Sizes = (4,)) -> calls.Request:
    arguments = [{"input": 0}, *({"value": value} for value in values)]
    return calls.Request(function, arguments, [floats(*shape)], output)


def plain(call: calls.Call) -> calls.Call:
    """Return a copy of the call without measured times and memory, and with lists in place of tensors."""
    output = None if call.output is None else (call.output.tolist(), str(call.output.dtype))
    echoes = tuple(echo.tolist() for echo in call.echoes)
    unmeasured = dict.fromkeys(("cpu_s", "idle_s", "own_s", "peak_bytes"))
    return replace(call, wall_s=0.0, output=output, echoes=echoes, **unmeasured)


class Both:
    def __init__(self, zygote: Zygote, host: nativehost.NativeHost, source: Path) -> None:
        with_torch = torchbuild.build(source)
        assert with_torch.ok, with_torch.diagnostics
        self.zygote, self.host, self.object_path = zygote, host, str(with_torch.object_path)
        self.program = program(source.parent, source.read_text())

    def native(self, *, threads: int = 1, **options: Any) -> session.Session:
        return self.host.spawn(self.program, threads=threads, **options)

    def sessions(self, *, threads: int = 1, **options: Any) -> Iterator[session.Session]:
        """Yield a session with torch, then a native one. Each starts when requested, so the two need not overlap."""
        yield self.zygote.spawn("student", self.object_path, threads=threads, **options)
        yield self.native(threads=threads, **options)
