"""Small source files of the tests of the build, and a way to call what was built in this process."""

from __future__ import annotations

import ctypes
from pathlib import Path

from conftest import ROOT

from grader.build.records import Build
from grader.run.loaded import StudentObject

PUBLISHED = ROOT / "tests" / "sources" / "published_style.cpp"
HEAD = "#include <torch/extension.h>\n"
BINDING = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }\n'


def write(folder: Path, text: str) -> Path:
    source = folder / "module.cpp"
    source.write_text(text)
    return source


def one_function(body: str, before: str = "") -> str:
    return f"{HEAD}{before}torch::Tensor f(torch::Tensor t, int n) {{\n{body}\n}}\n" + BINDING


def loaded(made: Build) -> StudentObject:
    import torch  # noqa: F401  (the object finds torch's libraries only in a process that holds them)

    return StudentObject(str(made.object_path))


def call(of: StudentObject, name: str, *values: object) -> object:
    """The function's result as a plain Python value; vectors and tensors as flat lists. CallFailed is the caller's."""
    invocation = of.prepare(name, list(values))
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
