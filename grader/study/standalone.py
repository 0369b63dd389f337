"""Standalone programs: a student's file compiled without Python and torch, for tools that watch every instruction.

Theory of operation. ThreadSanitizer must be active from the start of a process, and valgrind makes a program fifty
times slower. Neither works with an interpreter that has loaded torch. So the unchanged module.cpp is compiled with a
stand-in for torch's tensors (`native.standin`), and linked with the native runner (inside/runner.cpp), which calls its
functions. In such a program, the runner reads requests from a file and writes replies to a file. If module.cpp uses
more of torch than the stand-in has, it does not compile. `native.standin` then names the line, and the caller uses
another method.

The program and its output are untrusted. It runs as a separate process with a minimal environment, in a sandbox with
Landlock and a filter of system calls. There it can read or start only the system's libraries, /bin/sh, itself, and the
tool that runs it (such as valgrind). It can write only to its own folder. If no sandbox works here, only the user's own
file is run.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from grader.backends.native import nativebuild, standin
from grader.backends.native.compilers import SHIM, Compilers, Source, run_limited_compiler
from grader.backends.native.toolchain import (
    Toolchain,
    cache_root,
    default_flags,
    libomp_prefix,
    openmp_flags,
    toolchain,
)
from grader.backends.records import BuildOptions
from grader.core import machine, objectcache, plainfile
from grader.core.errors import KitError, UsageError
from grader.core.harmless import one_line
from grader.runner.calls import Call, Request, native_header, offered, understood
from grader.runner.frames import FRAME, Incoming, RunnerDied
from grader.sandbox import GIB, Finished, compiling, run_limited
from grader.sandbox.tiers import OPEN, Sandbox, choose
from grader.sandbox.view import LIBRARIES

NATIVE = Path(__file__).resolve().parent / "native"
COMPILE_TIMEOUT_S = 180.0


class Unsuitable(Exception):
    """Raised if a file cannot be built or run as a standalone program. The error's text is the reason, in one line."""


@dataclass(frozen=True)
class Kit:
    """Compiler options for a standalone program. `runtime` is a source that replaces its OpenMP library, or None."""

    flags: tuple[str, ...]
    link_flags: tuple[str, ...] = ()
    runtime: str | None = None


def build_program(
    source: Path, kit: Kit, defines: Mapping[str, str] | None = None, sandbox: Sandbox = OPEN
) -> Path:
    """Build a student's file as a standalone program, unless it is in the cache. Return the program's path.

    `defines` are macros by name. The compilers run in `sandbox`. Raises Unsuitable if the file does not compile or link
    without torch, and KitError if a source of the kit does not.
    """
    tools, text = toolchain(), source.read_bytes()
    macros = tuple(f"-D{name}={value}" for name, value in sorted((defines or {}).items()))
    runner = nativebuild.kit().runner
    decisive = repr((tools, kit, macros, standin.RULES, str(runner)))
    digest = hashlib.sha256(decisive.encode() + b"\0" + text)
    for path in (*sorted(NATIVE.glob("*.*")), *sorted(standin.PLAIN.glob("*")), *sorted(SHIM.glob("*.h"))):
        digest.update(b"\0" + path.read_bytes())
    entry = cache_root() / "objects" / f"{digest.hexdigest()[:32]}.program"

    def make(place: Path) -> Path:
        prepared = standin.prepare(kit.flags, macros)
        compiled = Source(tools, text, None, kit.flags, macros)
        compilers = Compilers(compiled, BuildOptions(sandbox=sandbox), (SHIM, standin.PLAIN))
        with compiling.room(sandbox, place, prepared.folder) as room:
            _compile_all(compilers, replace(prepared, folder=room.header), kit, runner, room, source.name)
            return compiling.taken(room.folder / "program", place)

    return objectcache.kept(cache_root(), entry, make)


def _compile_all(
    compilers: Compilers, prepared: standin.Prepared, kit: Kit, runner: Path, room: compiling.Room, name: str
) -> None:
    """Compile the student's file (`name` in messages) and link `program` in `room`. Raises Unsuitable if that fails."""
    tools, text, macros = prepared.tools, compilers.source.text, compilers.source.defines
    room.put("module.cpp", text)
    for command in prepared.commands(text):
        compile_one = [*command, *macros, "-c", "module.cpp", "-o", "module.o"]
        finished = compilers.run(compile_one, room.folder, COMPILE_TIMEOUT_S, room)
        if finished.returncode == 0:
            break
    if finished.returncode != 0:
        said = finished.output.decode(errors="replace")
        refused = standin.refusal(said, name, text.decode(errors="replace"))
        raise Unsuitable(
            refused.text if refused else f"it does not compile without torch: {_first_error(finished)}"
        )
    kits = [runner, *([_runtime(tools, NATIVE / kit.runtime)] if kit.runtime else [])]
    objects = ["module.o", str(prepared.object)]
    objects += [room.put(f"kit{k}.o", path.read_bytes()).name for k, path in enumerate(kits)]
    openmp = () if kit.runtime else openmp_flags(tools.system, tools.family, libomp_prefix())[1]
    link = [str(tools.compiler), *nativebuild.main_flags(tools), *objects]
    link += [*kit.link_flags, *openmp, "-pthread", "-o", "program"]
    finished = compilers.run(link, room.folder, COMPILE_TIMEOUT_S, room)
    if finished.returncode != 0:
        raise Unsuitable(f"it does not link without torch: {_first_error(finished)}")


def _runtime(tools: Toolchain, source: Path) -> Path:
    """Return the cached object of the kit's OpenMP library, compiled if needed. Raises KitError if that fails."""
    flags = (f"-std={tools.cxx_standard}", *default_flags(tools.machine), "-w", "-g1")
    digest = hashlib.sha256(repr((tools, flags, source.name)).encode())
    for path in sorted(NATIVE.glob("*.*")):
        digest.update(b"\0" + path.read_bytes())
    entry = cache_root() / "objects" / f"{digest.hexdigest()[:32]}.{source.stem}.o"

    def make(place: Path) -> Path:
        command = [str(tools.compiler), *flags, "-c", str(source), "-o", "runtime.o"]
        finished = run_limited_compiler(command, place, COMPILE_TIMEOUT_S)
        if finished.returncode != 0:
            raise KitError(
                f"{tools.compiler} cannot compile {source.name} of the kit: {_first_error(finished)}"
            )
        return place / "runtime.o"

    return objectcache.kept(cache_root(), entry, make)


def _first_error(finished: Finished) -> str:
    if finished.timed_out:
        return f"no result within {COMPILE_TIMEOUT_S:.0f} s"
    lines = [line.strip() for line in finished.output.decode(errors="replace").splitlines() if line.strip()]
    signs = ("error:", "undefined reference", "multiple definition")
    chosen = next((line for line in lines if any(word in line for word in signs)), "")
    return one_line(chosen or (lines[-1] if lines else "no message"), 200)


# ---- running it

#: Shell command that starts a program with the files `requests` and `replies` in place of a runner's pipes. A runner
#: ends at the end of the requests.
_FROM_FILES = ("/bin/sh", "-c", 'exec "$@" 3<requests 4>replies', "sh")
_REPLY_BYTES = 1 << 20
CONFINES_SIGNALS = 6
"""First version of Landlock that stops signals to other processes. The filter of system calls allows signals."""


@dataclass(frozen=True)
class Ran:
    """Result of one run of a standalone program.

    `output` is the text that the program and its tool (such as valgrind) printed. `call` is the program's reply to the
    request, or None if it is missing or invalid. `folder` holds the files that the program wrote.
    """

    finished: Finished
    output: str
    call: Call | None
    folder: Path


@contextmanager
def ran(
    program: Path,
    request: Request,
    *,
    without_the_call: bool = False,
    prefix: Sequence[str] = (),
    tool_files: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
    threads: int = 1,
    timeout_s: float = 120.0,
    memory_bytes: int | None = 4 * GIB,
    sandbox: Sandbox = OPEN,
) -> Iterator[Ran]:
    """Run a standalone program, which calls the function that `request` names, and yield the result.

    Args:
        without_the_call: prepare the call, but leave it out.
        prefix: command line of a tool that runs the program, such as valgrind; () for none.
        tool_files: files of the tool, to which the sandbox gives access.
        environment: additional environment variables.
        threads: value of OMP_NUM_THREADS.
        sandbox: if it is one for untrusted files, the program gets a user id of its own if possible.

    The end of the `with` block deletes `Ran.folder`. Raises Unsuitable if this machine cannot confine the program.
    """
    most_bytes = _REPLY_BYTES + 4 * math.prod(request.output_shape)
    header = {
        **request.described(),
        "max_output_bytes": most_bytes,
        "without_the_call": without_the_call,
    }
    text = native_header(header)
    confined = _sandbox(sandbox)
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="gpt149-study-", ignore_cleanup_errors=True)
            )
        )
        block = stack.enter_context(confined.claimed_uids())
        with (folder / "requests").open("wb") as requests:
            sent = request.payload()
            requests.writelines((FRAME.pack(len(text), sum(map(len, sent))) + text, *sent))
        if block is not None:
            # The user id under which the program will run may have no access to the cache.
            program = Path(shutil.copy(program, folder / "program"))
            for path in (folder, *folder.iterdir()):
                os.chown(path, block[0], block[0])
        finished = run_limited(
            [*_FROM_FILES, *prefix, str(program)],
            cwd=folder,
            sandbox=confined,
            system=(*map(Path, LIBRARIES), *map(Path, _FROM_FILES[:1]), *tool_files),
            read=(program, Path("/proc/self")),
            timeout_s=timeout_s,
            memory_bytes=memory_bytes,
            uid=None if block is None else block[0],
            env={
                "PATH": "/usr/bin:/bin",
                "LC_ALL": "C",
                "TMPDIR": str(folder),
                "OMP_NUM_THREADS": str(threads),
                "GPT149_CACHE_FILES": machine.cache_files(),
                **(environment or {}),
            },
        )
        call = _answer(folder / "replies", request, most_bytes)
        yield Ran(finished, finished.output.decode(errors="replace"), call, folder)


def _sandbox(of_file: Sandbox) -> Sandbox:
    """Return the sandbox for a standalone program: tier B, which has Landlock and a filter of system calls.

    The stronger tier A is not used, because it has no /proc, which the tools read. `of_file` is the sandbox in which
    the file is judged. If tier B does not work here, return OPEN (limits only) for the user's own file, and raise
    Unsuitable for others.
    """
    try:
        found = replace(choose("B"), own_uid=choose("B").own_uid and of_file.locks)
    except UsageError as error:
        if of_file.locks:
            raise Unsuitable(f"this machine cannot confine the program: {error}") from error
        return OPEN
    if of_file.locks and not found.own_uid and found.landlock < CONFINES_SIGNALS:
        raise Unsuitable(
            "this Linux cannot stop signals from the program to other processes (6.12 or later can)"
        )
    return found


def _answer(replies: Path, request: Request, most_bytes: int) -> Call | None:
    """Return the reply in the file `replies`, after the greeting; None if it is missing, invalid or too large."""
    try:
        descriptor = plainfile.open_file(replies)
    except OSError:
        return None
    try:
        offered(_frame(descriptor, 0).header)
        answer = _frame(descriptor, most_bytes)
        return understood(answer.header, answer.payload, request, 0.0, None)
    except (OSError, RunnerDied):
        return None
    finally:
        os.close(descriptor)


def _frame(fd: int, most_bytes: int) -> Incoming:
    incoming = Incoming(most_bytes)
    while not incoming.complete:
        incoming.read_some(fd)
    return incoming
