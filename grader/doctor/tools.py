"""Checks of the tools that a build needs, proved by a build, and of optional tools."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grader.assignment import labs
from grader.backends.gpu import devicebuild
from grader.backends.gpu.kernelreference import KernelReference
from grader.backends.native import ispc, toolchain
from grader.core.errors import KitError
from grader.core.quantities import whole
from grader.doctor import gpu
from grader.doctor.host import Finding, Host

#: (module or program, what is missing without it, how to get it).
MODULES = (
    ("jinja2", "there is no report.html", "pip install jinja2"),
    ("matplotlib", "there are no plots", "pip install matplotlib"),
)
WITHOUT_ISPC = f"submissions with a {ispc.SOURCE} that is not empty are not judged: their points stay open"
PROGRAMS = (
    ("ispc", WITHOUT_ISPC, ispc.WHERE_FROM),
    ("valgrind", "cache misses cannot be counted for the write-up", "apt install valgrind"),
)
PROBE = """
#include <cstdio>
#include <omp.h>
#include <vector>
int main() {
    int seen = 0;
    std::vector<float> sums(4);
    #pragma omp parallel for num_threads(2) reduction(max : seen)
    for (int i = 0; i < 4; i++) { sums[i] = i; seen = omp_get_num_threads(); }
    std::printf("%d threads %.0f\\n", seen, sums[3]);
}
"""
WITHOUT_TORCH = (
    "results and times are judged; but there is no profiler table, no part of torch's own (part0), no demo "
    "and no frontier, and files that need more of torch than tensors are not judged"
)
NUMPY_PROBE = "import numpy; print(numpy.__version__)"
#: Program that imports torch and prints its versions. NumPy is imported by the conversion.
TORCH_PROBE = """
import json, warnings
warnings.simplefilter("ignore")
import torch
said = {"torch": torch.__version__, "trouble": ""}
try:
    import numpy
    torch.zeros(1).numpy()
except ModuleNotFoundError:
    pass
except Exception as error:
    said["trouble"] = str(error).splitlines()[0]
print(json.dumps(said))
"""


def findings(host: Host) -> Iterator[Finding]:
    """Yield findings on compiler, OpenMP, NumPy, torch and optional tools. Takes as long as torch's import."""
    try:
        tools = toolchain.toolchain()
    except KitError as error:
        what, _, remedy = str(error).partition(": ")
        yield Finding("fail", what, "nothing can be built", remedy)
        tools = None
    if tools is not None:
        yield Finding("ok", f"{tools.compiler_version}, for {tools.cxx_standard}")
        yield _compiles(host, tools)
    yield _numpy(host)
    yield from _torch(host)
    yield from _reference(host)
    yield from _ispc(host)
    yield from gpu.findings(host)
    yield from _optional(host)


def _compiles(host: Host, tools: toolchain.Toolchain) -> Finding:
    """Compile a small OpenMP program as submissions are compiled, and run it."""
    compile_flags, link_flags = toolchain.openmp_flags(tools.system, tools.family, toolchain.libomp_prefix())
    flags = [*toolchain.default_flags(tools.machine), *compile_flags]
    with tempfile.TemporaryDirectory(prefix="gpt149-", dir=host.scratch) as folder:
        source, program = Path(folder, "probe.cpp"), Path(folder, "probe")
        source.write_text(PROBE)
        built = host.run([str(tools.compiler), *flags, str(source), "-o", str(program), *link_flags])
        if built.returncode != 0:
            return _explained(built.output)
        ended = host.run([str(program)])
    if ended.returncode in (-4, 132):
        return Finding(
            "fail",
            "this processor does not have the instructions that kernels are compiled for (AVX)",
            "every kernel would crash",
            "grade on an x86-64 processor of 2011 or later, or on ARM",
        )
    if ended.returncode != 0 or "2 threads 3" not in ended.output:
        return Finding(
            "fail",
            f"a compiled OpenMP program does not run: {_first(ended.output) or f'status {ended.returncode}'}",
            "no kernel would run either",
            "look at the message; OpenMP may be limited by OMP_THREAD_LIMIT, or scratch be mounted noexec",
        )
    return Finding("ok", "a program with OpenMP compiles and runs")


def _explained(output: str) -> Finding:
    if "omp.h" in output or "gomp" in output or "lomp" in output or "fopenmp" in output:
        return Finding(
            "fail",
            "the compiler has no OpenMP",
            "part 3 cannot be built",
            "apt install g++ (or libomp-dev for clang); on macOS brew install libomp",
        )
    if "No such file or directory" in output or "file not found" in output:
        return Finding(
            "fail",
            f"the compiler lacks headers: {_first(output)}",
            "no submission can be built",
            "apt install g++ libc6-dev",
        )
    return Finding(
        "fail",
        f"the compiler does not compile a small program: {_first(output)}",
        "no submission can be built",
        "apt install --reinstall g++",
    )


def _numpy(host: Host) -> Finding:
    ran = host.run([sys.executable, "-c", NUMPY_PROBE])
    version = ran.output.strip() if ran.returncode == 0 else ""
    major = version.partition(".")[0]
    if (whole(major) or 0) >= 2:
        return Finding("ok", f"NumPy {version}")
    return Finding(
        "fail",
        f"NumPy 2 is missing (found: {version or 'none'})",
        "nothing can be judged",
        "pip install 'numpy>=2'",
    )


def _torch(host: Host) -> Iterator[Finding]:
    """Yield findings on torch and on compiling against it. Judging needs neither."""
    if not host.has_module("torch"):
        yield Finding("warn", "this Python has no torch (optional)", WITHOUT_TORCH, "pip install torch")
        return
    try:
        files = toolchain.torch_files()
    except KitError as error:
        what, _, remedy = str(error).partition(": ")
        yield Finding("warn", what, WITHOUT_TORCH, remedy)
        return
    if files.python_include_dir is None:
        yield Finding(
            "warn",
            "no Python.h",
            "nearly every submission builds without it, but one that uses pybind11 in unusual ways does not",
            "apt install python3-dev",
        )
    ran = host.run([sys.executable, "-c", TORCH_PROBE])
    try:
        said = json.loads(ran.output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        told = (ran.output.strip().splitlines() or [f"status {ran.returncode}"])[-1]
        yield Finding(
            "warn",
            f"torch cannot be imported: {told}",
            WITHOUT_TORCH,
            "pip install --force-reinstall torch",
        )
        return
    if said["trouble"]:
        yield Finding(
            "warn",
            f"torch {said['torch']} does not work with this NumPy: {said['trouble']}",
            "judging uses each without the other, but a model cannot speak through the kernel (--inference), and a "
            "student's script may fail",
            "pip install --upgrade torch",
        )
    else:
        yield Finding("ok", f"torch {said['torch']}, with its headers")


def _reference(host: Host) -> Iterator[Finding]:
    """Check a handout's reference, which cannot be compiled there: it exists for this platform, links and loads."""
    try:
        reference = labs.load(labs.LABS / labs.main()).reference()
        if isinstance(reference, KernelReference):
            # A handout lacks a Triton reference, and nothing needs to be linked; results are judged all the same.
            if not host.has_module(devicebuild.TRITON):
                remedy = f'pip install "{devicebuild.TRITON_PACKAGE}"'
                yield Finding("fail", "Triton is not installed", "no kernel in Triton can be judged", remedy)
            return
        if reference.sources():
            return
        for_torch = reference.for_torch()
        reference.program()
    except KitError as error:
        what, _, remedy = str(error).partition(": ")
        yield Finding("fail", what, "no part with a reference can be judged", remedy)
        return
    if for_torch is None:
        yield Finding("ok", "the reference for this platform links")
        return
    loaded = host.run(
        [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(for_torch[1])]
    )
    if loaded.returncode != 0:
        told = (loaded.output.strip().splitlines() or [f"status {loaded.returncode}"])[-1]
        yield Finding(
            "warn",
            f"the reference library does not load: {told}",
            "there is no profiler table of the reference",
            "apt install libgomp1, or use a machine of the course",
        )
    else:
        yield Finding("ok", "the reference for this platform links and loads")


def _ispc(host: Host) -> Iterator[Finding]:
    """Check that an installed ispc runs. If it does not, it counts as missing."""
    path = host.which(ispc.TOOL)
    if path is None:
        return
    ran = host.run([path, "--version"])
    version = ispc.version_of(ran.output)
    if ran.returncode != 0 or not version:
        told = _first(ran.output) or f"status {ran.returncode}"
        yield Finding("warn", f"{path} does not run: {told}", WITHOUT_ISPC, f"get one from {ispc.WHERE_FROM}")
    else:
        yield Finding("ok", f"{version} ({path})")


def _optional(host: Host) -> Iterator[Finding]:
    missing = [(name, lost, get) for name, lost, get in MODULES if not host.has_module(name)]
    missing += [(name, lost, get) for name, lost, get in PROGRAMS if not host.which(name)]
    for name, lost, get in missing:
        yield Finding("warn", f"{name} is not installed (optional)", f"without it {lost}", get)


def _first(output: str) -> str:
    """Return the most informative line of a compiler's output: the first with "error", else the first."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "")
