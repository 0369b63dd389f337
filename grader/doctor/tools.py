"""Checks of the compiler (on a small program), of other tools that judging needs, and of optional tools."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from grader.assignment import labs
from grader.backends.gpu import devicebuild
from grader.backends.gpu.kernelreference import KernelReference
from grader.backends.native import ispc, toolchain
from grader.core.errors import KitError
from grader.core.quantities import whole
from grader.doctor.host import Finding, Host, fail, of_error, ok, warn

#: Optional modules, and below optional programs, as rows of (name, loss without it, how to get it).
MODULES = (
    ("jinja2", "there are no pages (report.html, similar.html, board.html)", "pip install jinja2"),
    ("matplotlib", "there are no plots", "pip install matplotlib"),
)
WITHOUT_ISPC = f"a submission that uses code in {ispc.SOURCE} is not judged: its points stay open"
PROGRAMS = (
    ("ispc", WITHOUT_ISPC, f"install it from {ispc.WHERE_FROM}"),
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
    "results and times are judged; but there is no profiler table, no part that torch computes (part0), no demo and no "
    "command `frontier`, and files that need more of torch than tensors are not judged"
)
NUMPY_PROBE = "import numpy; print(numpy.__version__)"
#: Program that prints JSON: "torch" is torch's version, "trouble" the error of converting a tensor to NumPy ("" if that
#: works).
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
    """Yield findings on compiler, OpenMP, NumPy, torch, GPUs and optional tools.

    Takes a few seconds, mostly for an import of torch in another process.
    """
    try:
        tools = toolchain.toolchain()
    except KitError as error:
        yield of_error(error, "fail", "nothing can be built")
        tools = None
    if tools is not None:
        yield ok(f"{tools.compiler_version}, for {tools.cxx_standard}")
        yield _compiles(host, tools)
    yield _numpy(host)
    yield from _torch(host)
    yield from _reference(host)
    yield from _ispc(host)
    yield from gpu_findings(host)
    yield from missing(MODULES, host.has_module)
    yield from missing(PROGRAMS, host.which)


def _compiles(host: Host, tools: toolchain.Toolchain) -> Finding:
    """Compile a small OpenMP program as submissions are compiled, and run it. Return the finding."""
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
        return fail(
            "this processor does not have the instructions that kernels are compiled for (AVX)",
            "every kernel would crash",
            "grade on an x86-64 processor of 2011 or later, or on ARM",
        )
    if ended.returncode != 0 or "2 threads 3" not in ended.output:
        return fail(
            f"a compiled OpenMP program does not run: {_first(ended.output) or f'status {ended.returncode}'}",
            "no kernel would run either",
            "unset OMP_THREAD_LIMIT; if TMPDIR is on a disk that is mounted noexec, choose another folder",
        )
    return ok("a program with OpenMP compiles and runs")


def _explained(output: str) -> Finding:
    """Return the finding on a failed compilation, with a remedy for the likely cause. `output` is the compiler's."""
    if "omp.h" in output or "gomp" in output or "lomp" in output or "fopenmp" in output:
        return fail(
            "the compiler has no OpenMP",
            "no submission can be built",
            "apt install g++ (or libomp-dev for clang); on macOS brew install libomp",
        )
    if "No such file or directory" in output or "file not found" in output:
        return fail(
            f"the compiler lacks headers: {_first(output)}",
            "no submission can be built",
            "apt install g++ libc6-dev",
        )
    return fail(
        f"the compiler does not compile a small program: {_first(output)}",
        "no submission can be built",
        "apt install --reinstall g++",
    )


def _numpy(host: Host) -> Finding:
    ran = host.run([sys.executable, "-c", NUMPY_PROBE])
    version = ran.output.strip() if ran.returncode == 0 else ""
    major = version.partition(".")[0]
    if (whole(major) or 0) >= 2:
        return ok(f"NumPy {version}")
    return fail(
        f"NumPy 2 is missing (found: {version or 'none'})", "nothing can be judged", "pip install 'numpy>=2'"
    )


def _torch(host: Host) -> Iterator[Finding]:
    """Yield findings on torch and on its headers, both optional: most submissions are judged without torch."""
    if not host.has_module("torch"):
        yield warn("this Python has no torch (optional)", WITHOUT_TORCH, "pip install torch")
        return
    try:
        files = toolchain.torch_files()
    except KitError as error:
        yield of_error(error, "warn", WITHOUT_TORCH)
        return
    if files.python_include_dir is None:
        yield warn(
            "no Python.h",
            "submissions that use pybind11 in unusual ways cannot be built; nearly all others can",
            "apt install python3-dev",
        )
    ran = host.run([sys.executable, "-c", TORCH_PROBE])
    try:
        said = json.loads(ran.output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        yield warn(
            f"torch cannot be imported: {ran.line(-1)}", WITHOUT_TORCH, "pip install --force-reinstall torch"
        )
        return
    if said["trouble"]:
        yield warn(
            f"torch {said['torch']} does not work with this NumPy: {said['trouble']}",
            "C++ kernels are judged all the same; Triton's interpreter, text generation (--inference) and students' "
            "own scripts may fail",
            "pip install --upgrade torch",
        )
    else:
        yield ok(f"torch {said['torch']}, with its headers")


def _reference(host: Host) -> Iterator[Finding]:
    """Yield findings on the reference: a handout needs a compiled reference for this platform that links and loads.

    A checkout has the reference's sources, so it needs no finding.
    """
    try:
        reference = labs.load(labs.LABS / labs.main()).reference()
        if isinstance(reference, KernelReference):
            # A reference in Triton is not linked. Results are judged without it, so a handout does not contain it.
            if not host.has_module(devicebuild.TRITON):
                remedy = f'pip install "{devicebuild.TRITON_PACKAGE}"'
                yield fail("Triton is not installed", "no kernel in Triton can be judged", remedy)
            return
        if reference.sources():
            return
        for_torch = reference.for_torch()
        reference.program()
    except KitError as error:
        yield of_error(error, "fail", "no part with a reference can be judged")
        return
    if for_torch is None:
        yield ok("the reference for this platform links")
        return
    loaded = host.run(
        [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(for_torch[1])]
    )
    if loaded.returncode != 0:
        yield warn(
            f"the reference library does not load: {loaded.line(-1)}",
            "there is no profiler table of the reference",
            "apt install libgomp1, or use a machine of the course",
        )
    else:
        yield ok("the reference for this platform links and loads")


def _ispc(host: Host) -> Iterator[Finding]:
    """Yield a finding on ispc if it is installed: its version, or a warning if it does not run."""
    path = host.which(ispc.TOOL)
    if path is None:
        return
    ran = host.run([path, "--version"])
    version = ispc.version_of(ran.output)
    if ran.returncode != 0 or not version:
        reason = _first(ran.output) or f"status {ran.returncode}"
        yield warn(
            f"{path} does not run: {reason}", WITHOUT_ISPC, f"install another one from {ispc.WHERE_FROM}"
        )
    else:
        yield ok(f"{version} ({path})")


def missing(table: Sequence[tuple[str, str, str]], has: Callable[[str], object]) -> Iterator[Finding]:
    """Yield a warning for each missing module or program of a table like MODULES.

    `has(name)` returns a true value if the module or program is installed.
    """
    for name, lost, get in table:
        if not has(name):
            yield warn(f"{name} is not installed (optional)", f"without {name}, {lost}", get)


def _first(output: str) -> str:
    """Return the most informative line of a compiler's output: the first with "error", else the first."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "")


TOOL = "nvidia-smi"
FIELDS = ("name", "driver_version", "compute_mode", "persistence_mode", "memory.total", "memory.used")
#: Major version of the oldest NVIDIA driver that runs programs made with CUDA 12.
OLDEST_DRIVER = 525
LEAST_FREE_SHARE = 0.8


def gpu_findings(host: Host) -> Iterator[Finding]:
    """Yield findings on each GPU and its programs. Yield none if nvidia-smi, a part of NVIDIA's driver, is missing."""
    path = host.which(TOOL)
    if path is None:
        return
    ran = host.run([path, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"])
    if ran.returncode != 0:
        yield warn(
            f"{TOOL} finds no GPU: {ran.line(0)}",
            "of GPU kernels, only the results are judged, and none in CUDA",
            "load NVIDIA's driver; ignore this on a machine without a GPU",
        )
        return
    rows = [[cell.strip() for cell in line.split(",")] for line in ran.output.splitlines() if line.strip()]
    cards = [dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS)]
    for card in cards:
        yield from _card(card)
    if not cards:
        return
    yield from _others(host, path)
    if not host.has_module(devicebuild.TRITON):
        yield warn(
            "Triton is not installed",
            "parts in Triton are not judged: their points stay open",
            f'pip install "{devicebuild.TRITON_PACKAGE}" (the extra gpu)',
        )
    if host.which(devicebuild.NVCC) is None:
        yield warn(
            "nvcc is not on the PATH",
            "parts in CUDA are not judged: their points stay open",
            "install NVIDIA's CUDA toolkit and put its bin folder on the PATH",
        )


def _card(card: dict[str, str]) -> Iterator[Finding]:
    name, driver = card["name"], card["driver_version"]
    yield ok(f"{name}, driver {driver}, {card['memory.total']} MiB")
    if driver.split(".")[0].isdigit() and int(driver.split(".")[0]) < OLDEST_DRIVER:
        yield warn(
            f"the driver {driver} is older than {OLDEST_DRIVER}",
            "this GPU may not run code that today's torch and Triton compile",
            "install a newer driver",
        )
    if card["compute_mode"] != "Default":
        yield fail(
            f"the compute mode of the {name} is {card['compute_mode']}",
            "the judge and its runners are several processes on one GPU, which this mode does not allow",
            f"{TOOL} -c DEFAULT (as root)",
        )
    if card["persistence_mode"] == "Disabled":
        yield warn(
            f"persistence mode of the {name} is off",
            "the driver may be loaded anew for each process, which makes each judging slower",
            f"{TOOL} -pm 1 (as root)",
        )
    total, used = card["memory.total"], card["memory.used"]
    if total.isdigit() and used.isdigit() and int(used) > (1 - LEAST_FREE_SHARE) * int(total):
        yield warn(
            f"{used} of {total} MiB of the {name} are in use",
            "a timed call has memory for fewer sets of inputs, so times of short kernels vary more",
            "end other programs that use the GPU",
        )


def _others(host: Host, path: str) -> Iterator[Finding]:
    ran = host.run([path, "--query-compute-apps=pid", "--format=csv,noheader"])
    pids = [line.strip() for line in ran.output.splitlines() if line.strip().isdigit()]
    if ran.returncode == 0 and pids:
        yield warn(
            f"other processes use a GPU: {', '.join(pids[:5])}",
            "processes take turns on a GPU: each process's times include work of the others",
            "judge when these processes have ended",
        )
