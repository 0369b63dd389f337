"""Code shared by all builds of a source: running compilers under limits in the sandbox, and messages on failures."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from grader.backends.native import ispc
from grader.backends.native.toolchain import (
    Toolchain,
    cache_root,
    default_flags,
    libomp_prefix,
    openmp_flags,
)
from grader.backends.records import BuildOptions
from grader.core import objectcache
from grader.core.errors import KitError, UsageError, explained
from grader.core.harmless import one_line
from grader.core.quantities import size_text
from grader.sandbox import GIB, OPEN, Finished, TimeLimit, compiling, run_limited
from grader.sandbox.view import programs_folders, system_paths
from grader.source import diagnostics

SHIM = Path(__file__).resolve().parent / "shim"
COMPILER_MEMORY_BYTES = 4 * GIB
COMPILER_OUTPUT_BYTES = 256 << 10
#: Time limit for precompiling the kit's header. This time is not part of the student's limit.
HEADER_TIMEOUT_S = 600.0
#: Limit on the errors that a compiler prints. Later errors mostly follow from the first, and torch's can fill pages.
MAX_ERRORS = 5
#: Environment variables that a compiler gets. Others are removed, because CPATH or GCC_EXEC_PREFIX would change objects
#: without changing their cache keys.
ENVIRONMENT = ("PATH", "LIBRARY_PATH", "LD_LIBRARY_PATH", "SDKROOT", "DEVELOPER_DIR")
#: Errors of the compiler's driver about a broken installation. A source can make the compiler print the same words.
#: The compiler is broken only if it also prints them for PROBE.
BROKEN = re.compile(r"^[\w./+-]+: fatal error: (cannot (?:read spec file|execute) [^\n]*)", re.MULTILINE)
PROBE = b"int gpt149_probe = 1;\n"
"""A source of the kit. If it cannot be compiled, the compiler is at fault."""


@dataclass(frozen=True)
class Source:
    """A submission's source with its compiler flags. `ispc_file` is the module.ispc beside the source, if any."""

    tools: Toolchain
    text: bytes
    ispc_file: ispc.IspcFile | None
    flags: tuple[str, ...]
    defines: tuple[str, ...]

    def notes(self) -> tuple[str, ...]:
        """Return notes for the student, which are shown even if the build succeeded."""
        notes = []
        if self.ispc_file is not None and self.ispc_file.cannot_be_compiled:
            notes.append(ispc.LEFT_OUT)
        if b"PYBIND11_MODULE" not in self.text:
            notes.append("the file has no PYBIND11_MODULE, so none of its functions can be called")
        return tuple(notes)


@dataclass(frozen=True)
class Stage:
    """Paths that one stage of a build sees in the sandbox: files of the system (`system`) and of the kit (`read`).

    `sees_header` is True if the stage also sees the folder of the precompiled header.
    """

    system: tuple[Path, ...]
    read: tuple[Path, ...] = ()
    sees_header: bool = True


@dataclass
class Compilers:
    """Runner of compilers for one source. `waits_for` names a program or header that this machine lacks.

    `cpu_s` is the total CPU time of the compilers. `visible` are the paths that they see in the sandbox, besides the
    system's paths and their build folder (Room).
    """

    source: Source
    options: BuildOptions
    visible: tuple[Path, ...] = (SHIM,)
    cpu_s: float = field(default=0.0, init=False)
    waits_for: str = field(default="", init=False)
    failed_at: tuple[tuple[int, int], ...] = field(default=(), init=False)
    """Line and column of each error that was found in the source."""

    @cached_property
    def cache(self) -> Path:
        return self.options.cache or cache_root()

    def run(
        self,
        command: Sequence[str],
        cwd: Path,
        timeout_s: float | TimeLimit,
        room: compiling.Room | None = None,
        stage: Stage | None = None,
    ) -> Finished:
        """Run a compiler in the folder `cwd`: in the sandbox if it gets a `room` (build folder), else without one.

        A compiler that reads a student's text needs a room. In the sandbox it can read the paths of its `stage`;
        without a stage, the system's paths and `visible`.
        """
        mark, colors = "", {}
        if self.source.tools.family == "gcc" and any(PLAIN in word for word in command):
            # The mark is a large number, because gcc accepts only digits (and `;`) as a colour.
            mark = str(secrets.randbelow(1 << 62) + (1 << 62))
            command = [word.replace(PLAIN, MARKED) for word in command]
            colors = {"GCC_COLORS": f"locus={mark}"}
        finished = run_limited_compiler(
            command,
            cwd,
            timeout_s,
            colors,
            sandbox=OPEN if room is None else self.options.sandbox,
            read=() if room is None else self._read(command[0], room, stage),
            system=system_paths() if stage is None else stage.system,
            uid=None if room is None else room.uid,
        )
        self.cpu_s += finished.cpu_s
        return replace(finished, output=without_marks(finished.output, mark)) if mark else finished

    def _read(self, program: str, room: compiling.Room, stage: Stage | None) -> tuple[Path, ...]:
        own = (*self.visible, *self.compilers_files(program)) if stage is None else stage.read
        return (*own, *(room.read if stage is None or stage.sees_header else ()))

    def compilers_files(self, program: str) -> tuple[Path, ...]:
        """Return the paths that `program`, ispc or the C++ compiler, needs outside of system folders."""
        known = self.source.ispc_file.compiler if self.source.ispc_file else None
        return known.files() if known and program == known.path else programs_folders(program)

    def must_wait(self) -> bool:
        """Return True, and set `waits_for`, if the source cannot be compiled because this machine has no ispc."""
        if not ispc.must_wait(self.source.text, self.source.ispc_file):
            return False
        self.waits_for = ispc.TOOL
        return True

    def may_lack_ispc(self, message: str) -> str:
        """Return the message of a failed build. If missing ispc may be the cause, extend it and set `waits_for`.

        An undeclared name may be a function of module.ispc, which cannot be compiled without ispc.
        """
        file = self.source.ispc_file
        if file is None or not file.cannot_be_compiled or not ispc.LACKS_A_NAME.search(message):
            return message
        self.waits_for = ispc.TOOL
        return f"{ispc.LACKING}\nWithout it the compiler says:\n{message}"

    def too_large(self, made: Path) -> str:
        """Return a message if an object is larger than allowed; else "", also for a missing file."""
        with contextlib.suppress(FileNotFoundError):
            if (size := made.lstat().st_size) > self.options.largest_bytes:
                return (
                    f"the compiled file has {size_text(size)}; the limit is {size_text(self.options.largest_bytes)}\n"
                    "hint: look for huge arrays with values in the source, and fill them while the program runs"
                )
        return ""

    def explain(self, failure: Finished, probed: Callable[[], Iterable[Finished]] | None = None) -> str:
        """Return the message for the student about a failed build. Raises KitError if the compiler itself is broken.

        `probed` builds PROBE in the same sandbox and returns the results of its stages. It is called only if the output
        says that the compiler is broken. None means that the compiler is known to work.
        """
        if probed is not None and BROKEN.search(failure.output.decode(errors="replace")):
            for finished in probed():
                if broken := BROKEN.search(finished.output.decode(errors="replace")):
                    raise KitError(
                        f"the compiler cannot be used in this sandbox: it {one_line(broken[1], 200)}"
                    )
        self.options.on_step("inspection")
        texts = {
            "module.cpp": self.source.text,
            ispc.SOURCE: self.source.ispc_file.text if self.source.ispc_file else b"",
        }
        sources = {name: text.decode(errors="replace") for name, text in texts.items()}
        output = failure.output.decode(errors="replace")
        found = diagnostics.errors(output, ("module.cpp",))
        places = [place for each in found for place in ((each.line, each.column), each.used)]
        self.failed_at = tuple(filter(any, places))
        return diagnostics.explain(failure, sources, timeout_s=self.options.timeout_s)

    def compile_ispc(self, room: compiling.Room, limit: TimeLimit) -> str:
        """Compile module.ispc, if there is one and ispc runs here. Return an error message, or "" for success."""
        handed_in = self.source.ispc_file
        if handed_in is not None and handed_in.is_empty:
            room.put(ispc.HEADER, ispc.EMPTY_HEADER)
            return ""
        if handed_in is None or handed_in.compiler is None:
            return ""
        finished = self.run_ispc(handed_in.compiler, handed_in.text, room, limit)
        if finished is not None and finished.returncode == 0 and not finished.timed_out:
            return ""
        if finished is None or (not finished.timed_out and not self.ispc_runs(handed_in.compiler)):
            self.waits_for = ispc.TOOL
            return ispc.DOES_NOT_RUN
        return self.explain(finished)

    def run_ispc(
        self, compiler: ispc.Compiler, text: bytes, room: compiling.Room, timeout_s: float | TimeLimit
    ) -> Finished | None:
        """Compile a text with ispc in the folder of `room`. Return None if ispc does not start in the sandbox."""
        room.put(ispc.SOURCE, text)
        try:
            command = compiler.command(ispc.SOURCE, self.source.defines)
            return self.run(command, room.folder, timeout_s, room)
        except KitError:
            return None

    def ispc_runs(self, compiler: ispc.Compiler) -> bool:
        """Return True if ispc can compile a file of the kit in this sandbox."""
        with (
            objectcache.workplace(self.cache) as place,
            compiling.room(self.options.sandbox, place, None) as room,
        ):
            finished = self.run_ispc(compiler, ispc.PROBE, room, ispc.PROBE_TIMEOUT_S)
            return finished is not None and finished.returncode == 0 and not finished.timed_out


def run_limited_compiler(
    command: Sequence[str],
    place: Path,
    timeout_s: float | TimeLimit,
    variables: Mapping[str, str] | None = None,
    **how: Any,
) -> Finished:
    """Run a compiler in the folder `place` with the usual limits. `variables` are added to its environment.

    `how` are further keywords of `run_limited`; by default it runs without a sandbox.
    """
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return run_limited(
        command,
        cwd=place,
        timeout_s=timeout_s,
        memory_bytes=COMPILER_MEMORY_BYTES,
        output_bytes=COMPILER_OUTPUT_BYTES,
        env={**environment, **(variables or {}), "LC_ALL": "C", "TMPDIR": str(place)},
        **how,
    )


# ---- flags and messages


def read_source(source: Path) -> bytes:
    with explained(f"cannot read {source}"):
        return source.read_bytes()


def define_flags(defines: Mapping[str, str]) -> tuple[str, ...]:
    for name in defines:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UsageError(f"-D {name}: a macro's name is letters, digits and underscores")
    return tuple(f"-D{name}={value}" for name, value in sorted(defines.items()))


def diagnostic_flags(tools: Toolchain) -> tuple[str, ...]:
    """Return the flags for messages in the format that `grader.source.diagnostics` reads: plain, with byte columns."""
    limit = f"-ferror-limit={MAX_ERRORS}" if tools.family == "clang" else f"-fmax-errors={MAX_ERRORS}"
    columns = ("-fdiagnostics-column-unit=byte",) if tools.family == "gcc" and tools.major >= 11 else ()
    return (PLAIN, limit, *columns)


def clock_flags() -> tuple[str, ...]:
    """Return the flags that fix `__DATE__`, `__TIME__` and `__TIMESTAMP__`.

    Otherwise equal sources would give different objects under one cache key. The first flag turns off the warning about
    redefined macros.
    """
    fixed = {"DATE": "Jan  1 1970", "TIME": "00:00:00", "TIMESTAMP": "Thu Jan  1 00:00:00 1970"}
    return ("-Wno-builtin-macro-redefined", *(f'-D__{name}__="{value}"' for name, value in fixed.items()))


def common_flags(tools: Toolchain) -> tuple[str, ...]:
    """Return the compile flags that all code of one program has, with and without torch."""
    openmp, _ = openmp_flags(tools.system, tools.family, libomp_prefix())
    standard, module = f"-std={tools.cxx_standard}", "-DTORCH_EXTENSION_NAME=gpt149_module"
    shown = (*diagnostic_flags(tools), *clock_flags())
    return (standard, *default_flags(tools.machine), *openmp, "-w", *shown, module)


def use_header(tools: Toolchain, folder: Path, name: str) -> tuple[str, ...]:
    """Return the flags that include the header `name` before the source.

    `folder` holds the precompiled header, with the file name NAME.gch.
    """
    if tools.family == "clang":
        return (f"-I{folder}", "-include-pch", str(folder / f"{name}.gch"))
    # gcc looks for NAME.gch before NAME in each include directory. If NAME.gch was just removed, gcc uses NAME.
    return (f"-I{folder}", "-include", name)


def named(message: str, source: Path) -> str:
    """Return a compiler's message with the student's file name at its beginning, in place of module.cpp.

    Compilers see all student files as module.cpp, so that equal sources give equal objects.
    """
    return re.sub(r"\Amodule\.cpp(?=:)", lambda _: one_line(source.name), message)


def contents_of(*folders: Path) -> list[bytes]:
    """Return the names and contents of all files below these folders, for a cache key."""
    found = []
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            found += [str(path.relative_to(folder)).encode(), path.read_bytes()]
    return found


def digest(*parts: bytes) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(len(part).to_bytes(8, "little") + part)
    return made.hexdigest()[:32]


# ---- marks on places
# Random marks distinguish places (FILE:LINE) of gcc's own messages from text that imitates a place.
# A string in `#pragma message` or `static_assert` may hold line ends. So a source can make gcc print whole lines that
# look like errors in other places. gcc prints the places of its own messages in a colour, which can be configured. The
# kit makes this colour a random number for each run. A source cannot know it, so text with this colour comes from gcc.

#: gcc's option for output without colours, and the option that replaces it so that the places of errors are coloured.
PLAIN, MARKED = "-fdiagnostics-color=never", "-fdiagnostics-color=always"
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m(?:\x1b\[K)?|\x1b\[K")
#: Start of a line that names a place, in the format that `grader.source.diagnostics` reads.
_PLACE = re.compile(rb"[^\s:][^:]*:\d+:")
_INCLUDED = re.compile(rb"In file included from |\s+from ")
_ERROR = re.compile(rb"[^\s:][^:]*:\d+:(?:\d+:)? +(?:fatal )?error: ")
#: Messages of the assembler, with FILE:LINE. They have no colours, and appear only if the compiler found no error.
_LATER = re.compile(rb"[^\s:][^:]*:\d+: (?:Error|Fatal error|Warning|Info): ")


def without_marks(output: bytes, mark: str) -> bytes:
    """Return gcc's messages without colours. Indent lines that imitate a place, so that they are not read as errors.

    `mark` is the colour number by which gcc's own places are recognized.
    """
    sign = b"\x1b[%sm\x1b[K" % mark.encode()
    lines = [(sign in line, line.startswith(sign), _COLOUR.sub(b"", line)) for line in output.split(b"\n")]
    has_errors = any(begins and _ERROR.match(text) for _, begins, text in lines)
    return b"\n".join(
        text if is_own or (not has_errors and _LATER.match(text)) else _indented(text)
        for is_own, _, text in lines
    )


def _indented(text: bytes) -> bytes:
    if _INCLUDED.match(text):
        return b"  | " + text.lstrip()
    return b"  " + text if _PLACE.match(text) else text
