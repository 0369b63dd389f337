"""From a student's module.cpp to a shared object that the runner can load.

Theory of operation. A build has two paths to the same object. The *light* path compiles the unchanged file against a
small precompiled subset of torch's headers (shim/gpt149_light.h); the *full* path compiles it against the real ones,
and is taken without a word whenever the light one fails, unless the failure is one that no header could mend
(`grader.lightpath`). It has two rungs, because torch/extension.h costs four times as much as the tensors in it:
torch/types.h first, then torch/extension.h. What a student is shown comes from the last rung that was needed.

The cache holds finished objects and precompiled headers under the hash of all that went into them. An entry is made
in a directory of its own and renamed into place: a killed build leaves nothing that another would wait for, and two
builds of the same source do the work twice and agree. There are no locks.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from grader import diagnostics, ispc, lightpath, objectcache
from grader.errors import KitError, UsageError
from grader.harmless import one_line
from grader.sandbox import GIB, OPEN, Finished, Sandbox, compiling, run_limited
from grader.sandbox.view import programs_folders
from grader.toolchain import (
    Toolchain,
    cache_root,
    default_flags,
    libomp_prefix,
    linker_flags,
    openmp_flags,
    toolchain,
)

LIGHT_HEADER, PRECOMPILED = "gpt149_light.h", "gpt149_light.h.gch"
SHIM = Path(__file__).resolve().parent / "shim"
COMPILER_MEMORY_BYTES = 4 * GIB
COMPILER_OUTPUT_BYTES = 256 << 10
MIB = 1 << 20
OBJECT_BYTES, SANITIZED_SIZE = 8 * MIB, 8
"""An object's size, and how many times as large it may be with sanitizers and debug information. The master's has 0.09
MiB, with sanitizers 2.1."""
#: The precompiled header is the kit's own work and is not charged to the student's limit.
HEADER_TIMEOUT_S = 600.0
#: Errors after the first few are its echoes, and each one costs time and pages once torch's templates are in it.
MAX_ERRORS = 5
SANITIZE_FLAGS = (
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-fsanitize=address,undefined",
    # torch hides its type information, so a check of dynamic types would accuse the innocent.
    "-fno-sanitize=vptr",
    "-fno-sanitize-recover=undefined",
    "-D_GLIBCXX_ASSERTIONS",
)
#: From the quickest to the one that knows every header; the middle one also belongs to the full path.
RUNGS = ("light", "tensors", "full")
RUNG_MACROS = {"light": ("-DAT_PER_OPERATOR_HEADERS",), "tensors": ("-DGPT149_TENSORS_ONLY",), "full": ()}
#: The compiler sees no other environment: CPATH or GCC_EXEC_PREFIX would change objects behind the cache's back.
ENVIRONMENT = ("PATH", "LIBRARY_PATH", "LD_LIBRARY_PATH", "SDKROOT", "DEVELOPER_DIR")


#: What takes the time: the kit's own headers, a compiler, or the judge, which reads the source or a compiler's words.
BuildStep = Literal["headers", "building", "inspection"]


@dataclass(frozen=True)
class Build:
    """What became of one source. `object_path` is None unless `ok`; `diagnostics` is "" if `ok`.

    `path` is "light" or "full"; `cached` says that nothing was compiled. `notes` are for the student, also after a
    build that worked. `wall_s` is the whole call, `cpu_s` the CPU time of all compilers that it started. `key` is the
    object's content hash. `waits_for` names a program that this machine lacks ("ispc"): then the source is not to
    blame, `diagnostics` says what to install, and "" stands there in all other cases.
    """

    ok: bool
    object_path: Path | None
    path: str
    cached: bool
    diagnostics: str
    notes: tuple[str, ...]
    wall_s: float
    cpu_s: float
    key: str
    waits_for: str = ""


def build(
    source: Path,
    *,
    flags: Sequence[str] = (),
    defines: Mapping[str, str] | None = None,
    sanitize: bool = False,
    cache: Path | None = None,
    timeout_s: float = 120,
    object_bytes: int = OBJECT_BYTES,
    sandbox: Sandbox = OPEN,
    tell: Callable[[BuildStep], None] = lambda step: None,
) -> Build:
    """Compile and link `source` (and a module.ispc beside it), or find the finished object in the cache.

    `flags` come after the published ones and so override them; `defines` are macros, as `-D NAME=VALUE`. `sanitize`
    builds with AddressSanitizer, UBSan and checked vectors in place of optimisation. `timeout_s` is wall-clock time
    for all compilers of the student's code together; an object of more than `object_bytes` (with sanitizers,
    SANITIZED_SIZE times as many) is refused. `tell` hears of each step as it begins. In a `sandbox` compilers see a
    copy of the source, the headers and one folder for their output, nothing else; the kit's own headers are precompiled
    outside of it. A faulty source gives a Build with `ok` False, never an exception. Raises UsageError when `source`
    cannot be read or a macro's name is none, KitError when the machine has no compiler or its torch no headers.
    """
    started = time.monotonic()
    recipe = _recipe(source, flags, defines or {}, sanitize)
    limit_bytes = object_bytes * (SANITIZED_SIZE if sanitize else 1)
    work = _Work(recipe, cache or cache_root(), timeout_s, limit_bytes, sandbox, tell)
    path = work.find()
    cached = path is not None
    if path is None:
        path, message = work.compile()
    else:
        message = work.too_large(work.entry(path))
    return Build(
        ok=not message,
        object_path=None if message else work.entry(path),
        path=path,
        cached=cached,
        # The compiler knows the file by one name, so that equal sources share an object; the student knows another.
        diagnostics=re.sub(r"\Amodule\.cpp(?=:)", lambda _: one_line(source.name), message),
        notes=_notes(recipe),
        wall_s=time.monotonic() - started,
        cpu_s=work.cpu_s,
        key=work.key,
        waits_for=work.waits_for,
    )


def precompile(*, flags: Sequence[str] = (), sanitize: bool = False, cache: Path | None = None) -> float:
    """Make the light path's precompiled header for these flags ahead of the first build.

    Returns the CPU seconds spent, 0.0 when it was there. A header that does not compile with this torch is no error:
    builds then take the full path.
    """
    recipe = Recipe(toolchain(), b"", None, tuple(flags), (), sanitize)
    work = _Work(recipe, cache or cache_root(), 0.0, 0)
    work.light_header()
    return work.cpu_s


# ---- what is compiled, and how


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what an object is. `ispc_file` is the module.ispc beside the source."""

    tools: Toolchain
    text: bytes
    ispc_file: ispc.IspcFile | None
    flags: tuple[str, ...]
    defines: tuple[str, ...]
    sanitize: bool

    def key(self) -> str:
        return _digest(repr(self).encode(), *_shim_contents())

    def header_key(self) -> str:
        """A precompiled header serves all sources with the same flags. clang also insists on the same macros."""
        macros = self.defines if self.tools.family == "clang" else ()
        return _digest(repr((self.tools, self.flags, macros, self.sanitize)).encode(), *_shim_contents())

    def compile_flags(self, path: str) -> tuple[str, ...]:
        """Flags of the compiler proper on one of RUNGS, up to but without the source."""
        tools = self.tools
        openmp, _ = openmp_flags(tools.system, tools.family, libomp_prefix())
        includes = [] if path == "full" else [f"-I{SHIM / path}"]
        if path == "full" and tools.python_include_dir is not None:
            includes += ["-isystem", str(tools.python_include_dir)]
        for directory in tools.include_dirs:
            includes += ["-isystem", str(directory)]
        abi = () if tools.cxx11_abi is None else (f"-D_GLIBCXX_USE_CXX11_ABI={tools.cxx11_abi}",)
        return (
            f"-std={tools.cxx_standard}",
            *default_flags(tools.machine),
            *openmp,
            *("-fPIC", "-fvisibility=hidden", "-w"),
            *diagnostic_flags(tools),
            *("-DTORCH_EXTENSION_NAME=gpt149_module", *abi),
            *RUNG_MACROS[path],
            *self.flags,
            *(SANITIZE_FLAGS if self.sanitize else ()),
            *includes,
            f"-I{SHIM}",
        )

    def link_flags(self, path: str, linker: str | None) -> tuple[str, ...]:
        tools = self.tools
        _, openmp = openmp_flags(tools.system, tools.family, libomp_prefix())
        libraries = ("-lc10", "-ltorch_cpu", *(("-ltorch_python",) if path == "full" else ()))
        chosen = linker_flags(tools.system, linker, SHIM, allow_undefined=path == "full")
        # A shared object leaves the sanitizers' own functions to the runtime that is preloaded.
        return (*chosen, f"-L{tools.library_dir}", *libraries, *openmp)


def _recipe(source: Path, flags: Sequence[str], defines: Mapping[str, str], sanitize: bool) -> Recipe:
    return Recipe(
        tools=toolchain(),
        text=_read(source),
        ispc_file=ispc.beside(source),
        flags=tuple(flags),
        defines=_define_flags(defines),
        sanitize=sanitize,
    )


def _read(source: Path) -> bytes:
    try:
        return source.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from error


def _define_flags(defines: Mapping[str, str]) -> tuple[str, ...]:
    for name in defines:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UsageError(f"-D {name}: a macro's name is letters, digits and underscores")
    return tuple(f"-D{name}={value}" for name, value in sorted(defines.items()))


def diagnostic_flags(tools: Toolchain) -> tuple[str, ...]:
    """Plain text with byte columns, whatever the terminal; `grader.diagnostics` reads it."""
    limit = f"-ferror-limit={MAX_ERRORS}" if tools.family == "clang" else f"-fmax-errors={MAX_ERRORS}"
    columns = ("-fdiagnostics-column-unit=byte",) if tools.family == "gcc" and tools.major >= 11 else ()
    return ("-fdiagnostics-color=never", limit, *columns)


def _shim_contents() -> list[bytes]:
    files = sorted(path for path in SHIM.rglob("*") if path.is_file())
    return [item for path in files for item in (str(path.relative_to(SHIM)).encode(), path.read_bytes())]


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]


def _notes(recipe: Recipe) -> tuple[str, ...]:
    notes = []
    if recipe.ispc_file is not None and recipe.ispc_file.cannot_be_compiled:
        notes.append(ispc.LEFT_OUT)
    if b"PYBIND11_MODULE" not in recipe.text:
        notes.append("the file has no PYBIND11_MODULE, so it offers no function")
    return tuple(notes)


# ---- doing it


@dataclass
class _Work:
    """One build on its way. `cpu_s` adds up the compilers' CPU time; `waits_for` as in `Build`."""

    recipe: Recipe
    cache: Path
    timeout_s: float
    object_bytes: int
    sandbox: Sandbox = OPEN
    tell: Callable[[BuildStep], None] = lambda step: None
    cpu_s: float = 0.0
    waits_for: str = ""
    key: str = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.recipe.key()

    def entry(self, path: str) -> Path:
        return self.cache / "objects" / f"{self.key}.{path}.so"

    def find(self) -> str | None:
        return next((path for path in ("light", "full") if objectcache.touch(self.entry(path))), None)

    def run(
        self, command: Sequence[str], cwd: Path, timeout_s: float, room: compiling.Room | None = None
    ) -> Finished:
        """Run a compiler; in a `room` (and so in the sandbox) if it reads what a student wrote."""
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        finished = run_limited(
            command,
            cwd=cwd,
            timeout_s=max(0.0, timeout_s),
            memory_bytes=COMPILER_MEMORY_BYTES,
            output_bytes=COMPILER_OUTPUT_BYTES,
            env={**environment, "LC_ALL": "C", "TMPDIR": str(cwd)},
            sandbox=OPEN if room is None else self.sandbox,
            read=() if room is None else (*room.read, SHIM, *self.compilers_files(command[0])),
            uid=None if room is None else room.uid,
        )
        self.cpu_s += finished.cpu_s
        return finished

    def compilers_files(self, program: str) -> tuple[Path, ...]:
        known = self.recipe.ispc_file.compiler if self.recipe.ispc_file else None
        return known.files() if known and program == known.path else programs_folders(program)

    def compile(self) -> tuple[str, str]:
        """Try the light path, then the full one; returns the path that decided and its message, "" for success."""
        if ispc.must_wait(self.recipe.text, self.recipe.ispc_file):
            self.waits_for = ispc.TOOL
            return "light", ispc.LACKING
        path, message = self.compile_all()
        if message and self.recipe.ispc_file is not None and self.recipe.ispc_file.cannot_be_compiled:
            # Functions of module.ispc may be what it lacks, and nobody can tell here.
            self.waits_for = ispc.TOOL
            message = f"{ispc.LACKING}\nWithout it the compiler says:\n{message}"
        return path, message

    def compile_all(self) -> tuple[str, str]:
        """As `compile`, with what there is on this machine."""
        header = self.light_header()
        deadline = time.monotonic() + self.timeout_s
        with (
            objectcache.workplace(self.cache) as place,
            compiling.room(self.sandbox, place, header) as room,
        ):
            # Nothing but the files that the assignment names lies in the compiler's directory.
            (room.folder / "module.cpp").write_bytes(self.recipe.text)
            message = self.compile_ispc(room, deadline)
            if message:
                return "light", message
            for rung in self.rungs(room.header):
                failure = self.attempt(rung, room, deadline)
                if failure is None or not self.may_be_mended(failure, rung):
                    break
            path = "light" if rung == "light" else "full"
            if failure is not None:
                return path, self.explain(failure)
            if message := self.too_large(room.folder / "module.so"):
                return path, message
            objectcache.publish(compiling.taken(room.folder / "module.so", place), self.entry(path))
            objectcache.prune(self.cache)
            return path, ""

    def too_large(self, made: Path) -> str:
        """Why an object is refused for its size, or "". What is not there is another's affair."""
        with contextlib.suppress(FileNotFoundError):
            if (size := made.lstat().st_size) > self.object_bytes:
                return (
                    f"the compiled file has {size / MIB:.1f} MiB; it may have {self.object_bytes / MIB:g} MiB\n"
                    "hint: look for huge arrays with values in the source, and fill them while the program runs"
                )
        return ""

    def rungs(self, header: Path | None) -> list[str]:
        """The RUNGS worth trying for this source, `header` being the precompiled one, if it can be had."""
        self.tell("inspection")
        python = lightpath.needs_python(self.recipe.text.decode(errors="replace"))
        return [rung for rung in RUNGS if (rung != "light" or header) and (rung != "tensors" or not python)]

    def attempt(self, rung: str, room: compiling.Room, deadline: float) -> Finished | None:
        """Compile and link on one of RUNGS; None for success.

        The quick linker does not find libstdc++ where the compiler has it in an unusual place. What it misses is
        missing only when the compiler's own linker misses it too; where that one does not, it is used from then on.
        """
        quick, distrusted = self.recipe.tools.linker, self.cache / "linkers" / self.recipe.header_key()
        if quick is not None and not distrusted.exists():
            failure = self.attempt_with(quick, rung, room, deadline)
            if failure is None or failure.timed_out or b"undefined" not in failure.output:
                return failure
        failure = self.attempt_with(None, rung, room, deadline)
        if failure is None and quick is not None:
            distrusted.mkdir(parents=True, exist_ok=True)
        return failure

    def attempt_with(
        self, linker: str | None, rung: str, room: compiling.Room, deadline: float
    ) -> Finished | None:
        self.tell("building")
        tools, recipe = self.recipe.tools, self.recipe
        objects = [ispc.OBJECT] if (room.folder / ispc.OBJECT).exists() else []
        finished = self.run(
            [
                str(tools.compiler),
                *(
                    _use_header(tools, room.header)
                    if rung == "light" and room.header
                    else ("-include", "gpt149_full.h")
                ),
                *recipe.compile_flags(rung),
                *recipe.defines,
                *("-shared", "-o", "module.so", "module.cpp"),
                *objects,
                *recipe.link_flags(rung, linker),
            ],
            room.folder,
            deadline - time.monotonic(),
            room,
        )
        if finished.returncode != 0 or finished.timed_out:
            return finished
        missing = diagnostics.missing_symbols(finished.output.decode(errors="replace"))
        return replace(finished, returncode=1, output="\n".join(missing).encode()) if missing else None

    def may_be_mended(self, failure: Finished, rung: str) -> bool:
        """Whether a higher rung could make a source compile that failed on this one."""
        if rung == "full" or failure.timed_out or diagnostics.ran_out_of_memory(failure):
            return False
        self.tell("inspection")
        source, output = (text.decode(errors="replace") for text in (self.recipe.text, failure.output))
        return not lightpath.is_final(source, output, self.full_names, all_of_aten=rung == "tensors")

    def explain(self, failure: Finished) -> str:
        self.tell("inspection")
        texts = {
            "module.cpp": self.recipe.text,
            ispc.SOURCE: self.recipe.ispc_file.text if self.recipe.ispc_file else b"",
        }
        sources = {name: text.decode(errors="replace") for name, text in texts.items()}
        return diagnostics.explain(failure, sources, timeout_s=self.timeout_s)

    def compile_ispc(self, room: compiling.Room, deadline: float) -> str:
        """Make the header and the object of module.ispc, if there is one that can be compiled; a message or ""."""
        handed_in = self.recipe.ispc_file
        if handed_in is not None and handed_in.is_empty:
            (room.folder / ispc.HEADER).write_bytes(ispc.EMPTY_HEADER)
            return ""
        if handed_in is None or handed_in.compiler is None:
            return ""
        timeout_s = deadline - time.monotonic()
        finished = self.run_ispc(handed_in.compiler, handed_in.text, room, timeout_s)
        if finished is not None and finished.returncode == 0 and not finished.timed_out:
            return ""
        if finished is None or (not finished.timed_out and not self.ispc_runs(handed_in.compiler)):
            self.waits_for = ispc.TOOL
            return ispc.DOES_NOT_RUN
        return self.explain(finished)

    def run_ispc(
        self, compiler: ispc.Compiler, text: bytes, room: compiling.Room, timeout_s: float
    ) -> Finished | None:
        """Have it compile this text in a room; None when the sandbox does not let it start."""
        (room.folder / ispc.SOURCE).write_bytes(text)
        try:
            command = compiler.command(ispc.SOURCE, self.recipe.defines)
            return self.run(command, room.folder, timeout_s, room)
        except KitError:
            return None

    def ispc_runs(self, compiler: ispc.Compiler) -> bool:
        """Whether it compiles a file of the kit's own in this sandbox."""
        with objectcache.workplace(self.cache) as place, compiling.room(self.sandbox, place, None) as room:
            finished = self.run_ispc(compiler, ispc.PROBE, room, ispc.PROBE_TIMEOUT_S)
            return finished is not None and finished.returncode == 0 and not finished.timed_out

    def light_header(self) -> Path | None:
        """The directory of the precompiled header, made if need be; None when it does not compile with this torch.

        That is remembered too, as an empty directory.
        """
        entry = self.cache / "headers" / self.recipe.header_key()
        if not objectcache.touch(entry):
            self.tell("headers")
            with objectcache.workplace(self.cache) as place:
                made = place / "header"
                made.mkdir()
                command = [str(self.recipe.tools.compiler), *self.recipe.compile_flags("light")]
                command += self.recipe.defines if self.recipe.tools.family == "clang" else ()
                command += ["-x", "c++-header", str(SHIM / LIGHT_HEADER), "-o", str(made / PRECOMPILED)]
                finished = self.run(command, place, HEADER_TIMEOUT_S)
                if finished.timed_out or finished.returncode < 0:
                    return None
                if finished.returncode != 0:
                    (made / PRECOMPILED).unlink(missing_ok=True)
                objectcache.publish(made, entry)
            self.tell("building")
        return entry if (entry / PRECOMPILED).is_file() else None

    def full_names(self) -> frozenset[str]:
        """Every word in the text of the real headers, macros' names and their values included."""
        entry = self.cache / "headers" / f"{self.recipe.header_key()}.names"
        if not objectcache.touch(entry):
            self.tell("headers")
            with objectcache.workplace(self.cache) as place:
                flags = self.recipe.compile_flags("full")
                text = place / "full.ii"
                command = [str(self.recipe.tools.compiler), *flags, "-E", "-dD", "-P", "-x", "c++"]
                self.run([*command, str(SHIM / "gpt149_full.h"), "-o", str(text)], place, HEADER_TIMEOUT_S)
                words = set(re.findall(rb"[A-Za-z_]\w*", text.read_bytes())) if text.exists() else set()
                (place / "names").write_bytes(b"\n".join(sorted(words)))
                objectcache.publish(place / "names", entry)
            self.tell("inspection")
        return frozenset(entry.read_text().split("\n"))


def _use_header(tools: Toolchain, header: Path) -> tuple[str, ...]:
    if tools.family == "clang":
        return ("-include-pch", str(header / PRECOMPILED))
    # gcc looks for NAME.gch in each directory of the include path before it looks for NAME: should the entry have been
    # pruned a moment ago, it finds the header itself in the shim.
    return (f"-I{header}", "-include", LIGHT_HEADER)
