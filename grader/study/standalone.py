"""A student's file as a program of its own, without Python and torch, for tools that watch every instruction.

Theory of operation. ThreadSanitizer must own a process from its start and valgrind runs everything fifty times slower:
neither gets on with an interpreter that has loaded torch. So the unchanged module.cpp is compiled against a stand-in
for torch's tensors (`grader.standin`), behind the same C interface as in a runner, and linked with a `main` that calls
one function on inputs from a file (native/driver.cpp). A file that uses more of torch than the stand-in knows does not
compile; `grader.standin` says which line of it does that, and the caller falls back to what works on the usual
object.

The program is untrusted: it runs as a process of its own under limits of time, memory and output, with an empty
environment, as every student's own run does. Nothing that it prints is believed but what the tool around it reports.
"""

from __future__ import annotations

import hashlib
import math
import resource
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grader import objectcache, standin
from grader.compilers import (
    SHIM,
    run_limited_compiler,
)
from grader.errors import KitError
from grader.harmless import one_line
from grader.sandbox import GIB, Finished, run_limited
from grader.session import Request
from grader.toolchain import cache_root, default_flags, libomp_prefix, openmp_flags, toolchain

NATIVE = Path(__file__).resolve().parent / "native"
COMPILE_TIMEOUT_S = 180.0
#: Exit codes of native/driver.cpp.
DRIVER_MISSING, DRIVER_EXCEPTION = 3, 4


class Unsuitable(Exception):
    """The file cannot be made into such a program; the text says why, in one line."""


@dataclass(frozen=True)
class Kit:
    """What the student's object is linked with. `runtime` is a source in native/ that takes the place of the
    compiler's OpenMP library."""

    flags: tuple[str, ...]
    link_flags: tuple[str, ...] = ()
    runtime: str | None = None


def build_program(source: Path, kit: Kit, defines: Mapping[str, str] | None = None) -> Path:
    """The program of this file, from the cache where it is known. The compilers see the file under limits.

    Raises Unsuitable when it does not compile or link against the stand-in, KitError when the kit's own sources do not.
    """
    tools, text = toolchain(), source.read_bytes()
    macros = tuple(f"-D{name}={value}" for name, value in sorted((defines or {}).items()))
    digest = hashlib.sha256(repr((tools, kit, macros, standin.HEADERS)).encode() + b"\0" + text)
    for path in (*sorted(NATIVE.glob("*.*")), *sorted(standin.PLAIN.glob("*")), *sorted(SHIM.glob("*.h"))):
        digest.update(b"\0" + path.read_bytes())
    entry = cache_root() / "objects" / f"{digest.hexdigest()[:32]}.program"
    if not objectcache.touch(entry):
        with objectcache.workplace(cache_root()) as place:
            (place / "module.cpp").write_bytes(text)
            prepared = standin.prepare(kit.flags, macros)
            _compile_all(prepared, kit, macros, place, source.name)
            objectcache.publish(place / "program", entry)
            objectcache.prune(cache_root())
    return entry


def _compile_all(prepared: standin.Prepared, kit: Kit, macros: Sequence[str], place: Path, name: str) -> None:
    tools = prepared.tools
    finished = _run_compiler([*prepared.command(), *macros, "-c", "module.cpp", "-o", "module.o"], place)
    if finished.returncode != 0:
        source = (place / "module.cpp").read_text(errors="replace")
        refused = standin.refusal(finished.output.decode(errors="replace"), name, source)
        raise Unsuitable(
            refused.text if refused else f"it does not compile without torch: {_first_error(finished)}"
        )
    common = (str(tools.compiler), f"-std={tools.cxx_standard}", *default_flags(tools.machine), "-w")
    ours = ["driver.cpp", *([kit.runtime] if kit.runtime else [])]
    for own in ours:
        finished = _run_compiler(
            [*common, "-g1", "-c", str(NATIVE / own), "-o", f"{Path(own).stem}.o"], place
        )
        if finished.returncode != 0:
            raise KitError(f"{tools.compiler} cannot compile {own} of the kit: {_first_error(finished)}")
    objects = ["module.o", *(f"{Path(own).stem}.o" for own in ours), *map(str, prepared.objects)]
    _, link_openmp = openmp_flags(tools.system, tools.family, libomp_prefix())
    openmp = () if kit.runtime else link_openmp
    finished = _run_compiler(
        [str(tools.compiler), *objects, *kit.link_flags, *openmp, "-pthread", "-o", "program"], place
    )
    if finished.returncode != 0:
        raise Unsuitable(f"it does not link without torch: {_first_error(finished)}")


def _run_compiler(command: Sequence[str], place: Path) -> Finished:
    return run_limited_compiler(command, place, COMPILE_TIMEOUT_S)


def _first_error(finished: Finished) -> str:
    if finished.timed_out:
        return f"no result within {COMPILE_TIMEOUT_S:.0f} s"
    lines = [line.strip() for line in finished.output.decode(errors="replace").splitlines() if line.strip()]
    telling = ("error:", "undefined reference", "multiple definition")
    chosen = next((line for line in lines if any(word in line for word in telling)), "")
    return one_line(chosen or (lines[-1] if lines else "no message"), 200)


# ---- running it


@dataclass(frozen=True)
class Ran:
    """One run. `output` is what the program and the tool around it printed; `values` the bytes of the result."""

    finished: Finished
    output: str
    values: bytes
    folder: Path


@contextmanager
def ran(
    program: Path,
    request: Request,
    *,
    calls: int = 1,
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    threads: int = 1,
    timeout_s: float = 120.0,
    memory_bytes: int = 4 * GIB,
) -> Iterator[Ran]:
    """Call the function that `request` names, `calls` times, behind `prefix` (a tool's command line). What the tool
    wrote lies in `Ran.folder` for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="gpt149-study-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "plan").write_text(_plan(request, calls))
        with (folder / "inputs").open("wb") as inputs:
            for array in request.inputs:
                inputs.write(array.tobytes())
        finished = run_limited(
            [*prefix, str(program), "plan", "inputs", "output"],
            cwd=folder,
            timeout_s=timeout_s,
            memory_bytes=memory_bytes,
            env={
                "PATH": "/usr/bin:/bin",
                "LC_ALL": "C",
                "OMP_NUM_THREADS": str(threads),
                **(environment or {}),
            },
        )
        result = folder / "output"
        values = b""
        if result.is_file() and not result.is_symlink():
            with result.open("rb") as file:
                values = file.read(4 * math.prod(request.output_shape))
        yield Ran(finished, finished.output.decode(errors="replace"), values, folder)


#: For tools that reserve terabytes of addresses.
UNLIMITED = resource.RLIM_INFINITY


def _plan(request: Request, calls: int) -> str:
    lines = [f"{request.function} {calls}"]
    for argument in request.arguments:
        if "input" in argument:
            sizes = list(request.inputs[argument["input"]].shape)
            lines.append(f"tensor {len(sizes)} {' '.join(map(str, sizes))}")
        elif "zeros" in argument:
            lines.append(f"zeros {len(argument['zeros'])} {' '.join(map(str, argument['zeros']))}")
        else:
            lines.append(f"number {int(argument['value'])}")
    return "\n".join(lines) + "\n"
