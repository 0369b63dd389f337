"""Builds of files with GPU kernels: a check of Python files, and the compilation of CUDA files.

Triton compiles the kernels of a Python file later, when they are first called (`grader.backends.gpu.host`). The build
only checks that the file is valid Python, and lists the names that the file uses. A child process does this, because
untrusted text may crash a parser. nvcc compiles a CUDA file to a library with a C ABI, without torch.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.backends.gpu import readpython
from grader.backends.native.compilers import (
    COMPILER_MEMORY_BYTES,
    COMPILER_OUTPUT_BYTES,
    ENVIRONMENT,
    PROBE,
    define_flags,
    digest,
    read_source,
)
from grader.backends.native.toolchain import cache_root
from grader.backends.records import Build, BuildOptions
from grader.core import filebundle, machine, objectcache, pythontree
from grader.core.harmless import harmless
from grader.sandbox import compiling
from grader.sandbox.command import Finished, run_limited
from grader.sandbox.view import programs_folders

TRITON, NVCC = "triton", "nvcc"
LIBRARY, BUNDLE = "kernels.so", "kernels.py"
#: Requirement for pip that installs Triton.
TRITON_PACKAGE = "triton>=3.7,<3.8"
LACKING_TRITON = (
    "This Python has no working triton, which is needed to judge kernels even without a GPU: nothing is judged, and no "
    f'points are lost. Install it (pip install "{TRITON_PACKAGE}", the extra gpu), and judge again.'
)
LACKING_NVCC = (
    "This machine has no working nvcc to compile CUDA: nothing is judged, and no points are lost. Install "
    "NVIDIA's CUDA toolkit, put nvcc on the PATH, and judge again."
)
BROKEN_NVCC = (
    "nvcc cannot compile on this machine, not even an empty program: nothing is judged, and no points are lost. Its "
    "first error: {error}. Judge again when `nvcc` compiles an empty file."
)
#: Environment variable that names the C++ compiler that nvcc calls; without the variable, nvcc calls HOST_COMPILER.
HOST_COMPILER_VARIABLE, HOST_COMPILER = "NVCC_CCBIN", "gcc"
#: Architecture for which a machine without a GPU compiles, only to find errors. Older GPUs are not supported.
USUAL_ARCHITECTURE = "sm_80"
MOST_ERRORS = 8
CHECK_MEMORY_BYTES = 2 << 30
MOST_CALLS = 1000
"""Most names that `readpython` prints for one function. The limit is high, so that names to flag are not cut off."""


@dataclass(frozen=True, kw_only=True)
class PythonBuild(Build):
    """Result of checking a Python file, with names that the code of judged functions uses (`gpu.readpython`).

    Entries of `calls` and `reaches` are (judged function, name with its line): ("attention", "torch.matmul (line 7)").
    """

    calls: tuple[tuple[str, str], ...] = ()
    """Functions and methods of torch that compute."""
    reaches: tuple[tuple[str, str], ...] = ()
    """Names that kernels do not need, such as ctypes and torch's internals."""
    files: tuple[str, ...] = ()
    """Names of the files in a hand-in of several files, the main file first."""


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def nvcc() -> str:
    """Return the path of nvcc if it runs; else ""."""
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin:/opt/cuda/bin")
    return found if found and machine.answer([found, "--version"]) else ""


def _made(started: float, message: str, path: Path | None, key: str, **more: Any) -> Build:
    """Return a failed Build if there is an error `message`, else a successful Build. `more` are further fields."""
    wall_s, found = time.monotonic() - started, None if message else path
    return Build(ok=not message, object_path=found, diagnostics=message, wall_s=wall_s, key=key, **more)


def python(source: Path, entries: Iterable[str] = (), **options: Any) -> Build:
    """Check that a file is valid Python and that Triton is installed. Return the build.

    `entries`: judged functions; `options`: fields of BuildOptions. Raises UsageError if the source cannot be read.
    """
    started, wanted = time.monotonic(), BuildOptions(**options)
    text = pythontree.whole(source)
    files = filebundle.split(text)
    key = digest(b"python", text)
    if not has_triton():
        return _made(started, LACKING_TRITON, None, key, waits_for=TRITON)
    if len(text) > wanted.largest_bytes:
        return _made(
            started, f"{harmless(source.name)} has more than {wanted.largest_bytes} bytes", None, key
        )
    programs = (Path(readpython.__file__), Path(filebundle.__file__))
    name, cache = source.name, wanted.cache or cache_root()
    with objectcache.workplace(cache) as place, compiling.room(wanted.sandbox, place, None) as room:
        if files:
            source = _kept(text, place, cache / "objects" / f"{key}.py")
        copy = room.put("kernels.py", text)
        finished = run_limited(
            [*(sys.executable, "-I", "-S"), *map(str, (*programs, copy, MOST_CALLS)), *entries],
            cwd=room.folder,
            timeout_s=wanted.timeout_s,
            memory_bytes=CHECK_MEMORY_BYTES,
            output_bytes=COMPILER_OUTPUT_BYTES,
            sandbox=wanted.sandbox,
            read=programs,
            uid=room.uid,
        )
    said = finished.output.decode(errors="replace").strip().splitlines()
    if finished.returncode != 0 or finished.timed_out:
        return _made(
            started, f"{harmless(name)}: Python's parser crashes or takes too long on this file", None, key
        )
    if said and said[0].startswith("error "):
        file, line, column, message = (*said[0].removeprefix("error ").split(":", 3), "", "", "")[:4]
        lines = files.get(file, text).decode(errors="replace").splitlines()
        shown = (
            f"\n    {lines[int(line) - 1].rstrip()}" if line.isdigit() and 0 < int(line) <= len(lines) else ""
        )
        name = file or name
        # Python reports no line for a null byte or for too deep nesting.
        named = f"{name}:{line}:{column}" if line != "0" else name
        return _made(started, harmless(f"{named}: error: {message}{shown}"), None, key)
    used: dict[str, list[tuple[str, str]]] = {"calls": [], "reaches": []}
    for each in said:
        words = each.split()
        if len(words) >= 4 and words[0] in used:
            kind, entry, *parts, where = words
            where = f"line {where}" if where.isdigit() else where
            used[kind].append((entry, harmless(f"{' '.join(parts)} ({where})")))
    made = vars(_made(started, "", source.resolve(), key))
    return PythonBuild(**made, calls=tuple(used["calls"]), reaches=tuple(used["reaches"]), files=tuple(files))


def _kept(text: bytes, place: Path, entry: Path) -> Path:
    """Write the bundle `text` of a hand-in of several files to the cache, unless it is there. Return its path."""
    if not objectcache.touch(entry):
        held = place / "made"
        held.mkdir(mode=0o755)
        (held / BUNDLE).write_bytes(text)
        (held / BUNDLE).chmod(0o644)
        objectcache.publish(held, entry)
    return entry / BUNDLE


def cuda(source: Path, architecture: str = "", **options: Any) -> Build:
    """Compile a CUDA source to a library, or find it in the cache.

    `architecture` is the architecture of the GPU ("sm_90"), or "" for USUAL_ARCHITECTURE. `options` are fields of
    BuildOptions. Raises UsageError if the source cannot be read.
    """
    started, wanted = time.monotonic(), BuildOptions(**options)
    text, program = read_source(source), nvcc()
    architecture = architecture or USUAL_ARCHITECTURE
    command = [
        *(
            program,
            "-O3",
            f"-arch={architecture}",
            "-shared",
            "-Xcompiler",
            "-fPIC",
            "-Wno-deprecated-gpu-targets",
        ),
        *(*define_flags(wanted.defines or {}), "-o", LIBRARY, "kernels.cu"),
    ]
    cache = wanted.cache or cache_root()
    key = digest(b"cuda", text, " ".join(command).encode())
    entry = cache / "objects" / f"{key}.cuda"
    if not program:
        return _made(started, LACKING_NVCC, None, key, waits_for=NVCC)
    if objectcache.touch(entry):
        return _made(started, "", entry / LIBRARY, key, cached=True)
    with objectcache.workplace(cache) as place, compiling.room(wanted.sandbox, place, None) as room:
        wanted.on_step("building")
        finished = _compiled(command, text, room, wanted)
        if finished.timed_out:
            message = f"nvcc was stopped after {wanted.timeout_s:.0f} s of processor time"
        else:
            message = "" if finished.returncode == 0 else errors_of(finished.output, source.name)
        if finished.returncode != 0 and (error := _fault_of_nvcc(command, place, wanted)):
            return _made(started, BROKEN_NVCC.format(error=error), None, key, waits_for=NVCC)
        made = room.folder / LIBRARY
        if not message and made.is_file() and made.stat().st_size > wanted.largest_bytes:
            size, most = made.stat().st_size >> 20, wanted.largest_bytes >> 20
            message = f"the library has {size} MiB, more than the {most} allowed"
        if message:
            return _made(started, message, None, key, cpu_s=finished.cpu_s)
        held = place / "made"
        held.mkdir()
        held.chmod(0o755)
        library = compiling.taken(made, place)
        library.rename(held / LIBRARY)
        (held / LIBRARY).chmod(0o644)
        objectcache.publish(held, entry)
    return _made(started, "", entry / LIBRARY, key, cpu_s=finished.cpu_s)


def _compiled(command: list[str], text: bytes, room: compiling.Room, wanted: BuildOptions) -> Finished:
    """Run nvcc on a text in the sandbox. It sees the system's files, the files of CUDA and of nvcc's host compiler."""
    room.put("kernels.cu", text)
    named = (*ENVIRONMENT, HOST_COMPILER_VARIABLE)
    host = shutil.which(os.environ.get(HOST_COMPILER_VARIABLE) or HOST_COMPILER)
    return run_limited(
        command,
        cwd=room.folder,
        timeout_s=wanted.timeout_s,
        memory_bytes=4 * COMPILER_MEMORY_BYTES,
        output_bytes=COMPILER_OUTPUT_BYTES,
        env={
            **{name: os.environ[name] for name in named if name in os.environ},
            "LC_ALL": "C",
            "TMPDIR": str(room.folder),
        },
        sandbox=wanted.sandbox,
        read=(Path(command[0]).resolve().parent.parent, *(programs_folders(host) if host else ())),
        uid=room.uid,
    )


def _fault_of_nvcc(command: list[str], place: Path, wanted: BuildOptions) -> str:
    """Compile PROBE, a source of the kit, in a new folder. Return nvcc's first error; "" for success."""
    with compiling.room(wanted.sandbox, place, None) as room:
        finished = _compiled(command, PROBE, room, wanted)
    return errors_of(finished.output, "an empty program").splitlines()[0] if finished.returncode != 0 else ""


def errors_of(output: bytes, name: str) -> str:
    """Return the first errors in nvcc's output, with the student's file name `name` in place of kernels.cu.

    If the output has no errors, return its last lines.
    """
    lines = harmless(output.decode(errors="replace")).splitlines()
    errors = [line for line in lines if re.search(r"\berror\b|undefined reference|fatal", line)]
    kept = [re.sub(r"^kernels\.cu\((\d+)\):", rf"{name}:\1:", line) for line in errors[:MOST_ERRORS]]
    return "\n".join(kept or lines[-MOST_ERRORS:] or ["nvcc failed without a message"])
