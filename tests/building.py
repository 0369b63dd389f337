"""Small source files of the tests of the build, flags that several of them share, and a way to call what was built in
this process."""

from __future__ import annotations

import ctypes
from pathlib import Path

from conftest import ROOT

from grader.build import nativebuild, sanitize, standin
from grader.build.records import Build
from grader.build.toolchain import cache_root
from grader.run.loaded import StudentObject
from grader.study.standalone import Kit

#: For each set of flags the stand-in's header is compiled anew, and its objects where they differ: six to thirty
#: seconds of CPU time. So tests to which it is all the same have the same ones. Not optimised: a file is then compiled
#: in a third of the time.
UNOPTIMIZED = ("-O0",)
PLAIN = Kit(flags=(*nativebuild.OWN_FLAGS, *UNOPTIMIZED))
SANITIZED = Kit(
    flags=(*sanitize.FLAGS, *UNOPTIMIZED, "-g1", "-fsanitize=float-cast-overflow"),
    link_flags=("-fsanitize=address,undefined",),
)
PUBLISHED = ROOT / "tests" / "sources" / "published_style.cpp"
HEAD = "#include <torch/extension.h>\n"
BINDING = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }\n'


def write(folder: Path, text: str) -> Path:
    source = folder / "module.cpp"
    source.write_text(text)
    return source


def one_function(body: str, before: str = "") -> str:
    return f"{HEAD}{before}torch::Tensor f(torch::Tensor t, int n) {{\n{body}\n}}\n" + BINDING


def sharing_headers(cache: Path) -> Path:
    """A cache of its own that shares nothing but precompiled headers and the stand-in, to save their making."""
    standin.prepare(nativebuild.OWN_FLAGS)
    (cache / "headers").mkdir(parents=True)
    for entry in (cache_root() / "headers").iterdir():
        if entry.is_dir():
            (cache / "headers" / entry.name).symlink_to(entry)
    return cache


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
