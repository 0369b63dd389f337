"""Build of a student's module.cpp into a native runner: a program without Python and torch.

Theory of operation. The unchanged file is compiled with the published flags and the stand-in for torch's tensors
(`native.standin`). The stand-in's header is precompiled once for each set of flags. The object is linked with the
stand-in's object, the runner (inside/runner.cpp), the C and C++ libraries and OpenMP into one static program. If the
machine's compiler cannot do that, the C library and OpenMP stay shared. Front end, assembler and linker are separate
processes, and each sees only the files that it needs (`native.stages`). The kit's own objects are cached.

The reference is a program of the same kind with its own kernels (inside/reference.cpp): it has the same runner,
libraries and linker flags.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from grader.backends.native import ispc, sanitize, stages, standin
from grader.backends.native.compilers import (
    PROBE,
    SHIM,
    Compilers,
    Source,
    Stage,
    clock_flags,
    contents_of,
    define_flags,
    digest,
    named,
    read_source,
    run_limited_compiler,
)
from grader.backends.native.standin import Prepared, Refusal, refusal
from grader.backends.native.toolchain import (
    NO_COMPILER_AT_LINK,
    Toolchain,
    cache_root,
    libomp_prefix,
    no_compiler_at_link,
    openmp_flags,
    toolchain,
)
from grader.backends.records import Build, BuildOptions
from grader.core import objectcache
from grader.core.errors import KitError
from grader.core.places import GRADER_COMMAND
from grader.sandbox import Finished, TimeLimit, compiling

INSIDE = Path(__file__).resolve().parent / "inside"
OBJECT, PROGRAM, RUNNER, LAUNCH, TRIAL = "module.o", "program", "runner.o", "launch", "trial"
VIEWS = "views.json"
#: Folders of the kit whose headers a student's file may include.
KITS_HEADERS = (SHIM, standin.PLAIN, INSIDE)
#: Ways to link a program, the best first. A static program does not open any library when it starts.
LINKAGES = {
    "static-pie": ("-static-pie",),
    "static": ("-static",),
    "dynamic": ("-pie", "-static-libstdc++", "-static-libgcc"),
}
#: Name of the linkage of a program with sanitizers. Such a program cannot be static.
SANITIZED = "sanitized"
SANITIZED_LINK = ("-fsanitize=address,undefined",)
#: Linker flags for a stack that is not executable, even if an object requests that.
PLAIN_STACK = ("-Wl,-z,noexecstack",)
_FILE_CALLS = "open open64 openat openat64 fopen fopen64 fileno fclose read close"
FILE_CALLS = tuple(f"-Wl,--wrap={name}" for name in _FILE_CALLS.split())
"""Linker flags that redirect calls of these functions to inside/machine_files.h."""
KIT_TIMEOUT_S = 120.0
#: Compiler flags for all code in a program, in addition to the flags of `native.standin`.
OWN_FLAGS = ("-fPIE", "-fvisibility=hidden")
#: Flags that join objects into one without local names, which would reveal the structure of the source.
JOIN_FLAGS = ("-r", "-nostdlib", "-Wl,-x")


@dataclass(frozen=True, kw_only=True)
class NativeBuild(Build):
    """Result of a native build. `program` is None unless `ok`. `linkage` is one of LINKAGES, or SANITIZED.

    `refused` names the part of torch that the file uses and the stand-in lacks, if any.
    """

    program: Path | None
    linkage: str
    refused: Refusal | None


def build(source: Path, **options: Any) -> NativeBuild:
    """Compile and link `source` (and a module.ispc beside it) without torch, or find the program in the cache.

    `options` are fields of BuildOptions. A source that does not compile gives a build with `ok` False. Raises
    UsageError if `source` cannot be read or a macro's name is invalid, KitError if the compiler is missing or broken.
    """
    started = time.monotonic()
    wanted = BuildOptions(**options)
    tools = toolchain()
    recipe = Source(
        tools,
        read_source(source),
        ispc.beside(source),
        (*(sanitize.FLAGS if wanted.sanitize else ()), *wanted.flags),
        define_flags(wanted.defines or {}),
    )
    work = _Work(recipe, wanted)
    cached = objectcache.touch(work.entry)
    message, refused = ("", None) if cached else work.compile(source.name)
    message = message or work.too_large(work.entry / OBJECT)
    return NativeBuild(
        ok=not message,
        program=None if message else work.entry / PROGRAM,
        object_path=None if message else work.entry / OBJECT,
        linkage=work.linkage(kit(work.cache)),
        cached=cached,
        diagnostics=named(message, source),
        refused=refused,
        failed_at=work.failed_at,
        notes=recipe.notes(),
        wall_s=time.monotonic() - started,
        cpu_s=work.cpu_s,
        key=work.key,
        waits_for=work.waits_for,
    )


def precompile(*, flags: Sequence[str] = ()) -> None:
    """Compile the stand-in and the kit's objects for these flags, before the first build needs them.

    Raises KitError if the kit's own sources cannot be compiled.
    """
    _made_ahead((*OWN_FLAGS, *flags), (), None)


def _made_ahead(flags: tuple[str, ...], macros: tuple[str, ...], cache: Path | None) -> tuple[Kit, Prepared]:
    """Return the kit's objects and the compiled stand-in, from the cache if they are there.

    Neither depends on a student's file. Both are compiled at the same time: one after the other takes a fifth longer.
    """
    with ThreadPoolExecutor(1) as beside:
        known = beside.submit(kit, cache)
        prepared = standin.prepare(flags, macros, cache)
        return known.result(), prepared


# ---- recipes of builds


def _openmp(tools: Toolchain) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return openmp_flags(tools.system, tools.family, libomp_prefix())


def main_flags(tools: Toolchain) -> tuple[str, ...]:
    """Return PLAIN_STACK, FILE_CALLS and the flag that starts the runner's `main`, even if the student's file has one.

    Return () on macOS.
    """
    return () if tools.system == "Darwin" else ("-Wl,--wrap=main", *PLAIN_STACK, *FILE_CALLS)


def _link(tools: Toolchain, linkage: str, objects: Sequence[str], program: str) -> list[str]:
    how = SANITIZED_LINK if linkage == SANITIZED else () if tools.system == "Darwin" else LINKAGES[linkage]
    return [
        str(tools.compiler),
        *how,
        *no_compiler_at_link(tools),
        *main_flags(tools),
        *objects,
        *_openmp(tools)[1],
        "-pthread",
        "-o",
        program,
    ]


# ---- the kit's own objects


@dataclass(frozen=True)
class Kit:
    """The kit's own compiled files: the object of the runner, and the launcher. `linkage` is a key of LINKAGES.

    Programs with this linkage work on this machine. `views` are the system's files that each stage of a build sees.
    """

    folder: Path
    linkage: str
    views: stages.Views

    @property
    def runner(self) -> Path:
        return self.folder / RUNNER

    @property
    def launch(self) -> Path:
        """The program that locks itself and becomes a runner (inside/launch.cpp)."""
        return self.folder / LAUNCH


def kit(cache: Path | None = None) -> Kit:
    """Return the kit's compiled files, cached for each compiler. Raises KitError if they cannot be compiled."""
    cache, tools = cache or cache_root(), toolchain()
    entry = cache / "objects" / f"{digest(repr(tools).encode(), *contents_of(INSIDE, SHIM))}.kit"
    objectcache.kept(cache, entry, lambda place: _make_kit(tools, place))
    return Kit(entry, (entry / "linkage").read_text(), _views(tools, cache))


def _views(tools: Toolchain, cache: Path) -> stages.Views:
    """Return the files that each stage sees. Cached while these files exist, because finding them takes 0.4 s."""
    entry = cache / "objects" / f"{digest(repr(tools).encode(), Path(stages.__file__).read_bytes())}.views"
    if objectcache.touch(entry):
        known = stages.Views.from_json(entry.read_text())
        if known.are_there():
            return known
        entry.unlink(missing_ok=True)
    made = stages.views(tools)
    with objectcache.workplace(cache) as place:
        (place / VIEWS).write_text(made.to_json())
        objectcache.publish(place / VIEWS, entry)
    return made


def _make_kit(tools: Toolchain, place: Path) -> Path:
    compiler, openmp = str(tools.compiler), _openmp(tools)[0]
    _make_object(tools, RUNNER, place)
    _make_object(tools, "trial.o", place, *openmp)
    linkage = next((each for each in LINKAGES if _works(tools, each, place)), None)
    if linkage is None:
        _make(_link(tools, "dynamic", [RUNNER, "trial.o"], TRIAL), place)
        raise KitError(f"this compiler makes programs that do not start; try `{GRADER_COMMAND} doctor`")
    _open_to_runners(place / TRIAL)
    (place / "linkage").write_text(linkage)
    static = ("-static",) if linkage.startswith("static") else ()
    launch = [str(INSIDE / "launch.cpp"), "-o", LAUNCH]
    _make([compiler, f"-std={tools.cxx_standard}", "-O2", *static, *launch], place)
    return place


def _works(tools: Toolchain, linkage: str, place: Path) -> bool:
    """Return True if a program with inside/trial.cpp can be linked in this way and runs."""
    if tools.system == "Darwin" and linkage != "dynamic":
        return False
    linked = _limited(_link(tools, linkage, [RUNNER, "trial.o"], TRIAL), place)
    if linked.returncode != 0:
        return False
    # The runner reads requests from descriptor 3, which is empty here, and writes replies to descriptor 4.
    ran = _limited(["/bin/sh", "-c", "exec ./trial 3</dev/null 4>&1"], place)
    return ran.returncode == 0 and b'"functions": []' in ran.output


def _limited(command: Sequence[str], place: Path) -> Finished:
    return run_limited_compiler(command, place, KIT_TIMEOUT_S)


def _make(command: Sequence[str], place: Path) -> None:
    """Compile or link a source of the kit. Raises KitError with the first error."""
    finished = _limited(command, place)
    if finished.returncode != 0 or finished.timed_out:
        lines = finished.output.decode(errors="replace").splitlines() or ["no message"]
        first = next((line for line in lines if "error" in line or "undefined" in line), lines[-1])
        raise KitError(f"{command[0]} cannot build the native runner: {first.strip()[:300]}")


def _make_object(tools: Toolchain, name: str, place: Path, *flags: str) -> None:
    """Compile the source in inside/ that belongs to the object `name`."""
    source, includes = INSIDE / f"{Path(name).stem}.cpp", (f"-I{INSIDE}", f"-I{SHIM}")
    how = (f"-std={tools.cxx_standard}", "-O2", "-fPIE", *includes, *flags)
    _make([str(tools.compiler), *how, "-c", str(source), "-o", name], place)


def _open_to_runners(program: Path) -> None:
    """Let every user start the program: a runner may have another user id, and the umask may exclude other users."""
    program.chmod(0o755)


def reference_program(kernels: Callable[[], Path], key: str) -> Path:
    """Return the program of the reference, cached if possible.

    `kernels` returns the object with its kernels; `key` changes when that object changes. Raises KitError if the
    program cannot be compiled or linked. Exceptions of `kernels` pass through.
    """
    cache, tools = cache_root(), toolchain()
    known = kit(cache)
    entry = cache / "objects" / f"{digest(b'reference', key.encode(), known.folder.name.encode())}.program"

    def make(place: Path) -> Path:
        _make_object(tools, "reference.o", place)
        return _linked(known, tools, [str(known.runner), "reference.o", str(kernels())], place)

    return objectcache.kept(cache, entry, make)


def _linked(known: Kit, tools: Toolchain, objects: Sequence[str], place: Path) -> Path:
    """Link a program that every user may start. Return its path."""
    _make(_link(tools, known.linkage, objects, PROGRAM), place)
    _open_to_runners(place / PROGRAM)
    return place / PROGRAM


def joined(kernels: Path, made: Path) -> None:
    """Write the object `kernels` to `made` without local names. Raises KitError if the linker fails."""
    tools = toolchain()
    with objectcache.workplace(cache_root()) as place:
        _make([str(tools.compiler), *JOIN_FLAGS, str(kernels), "-o", "joined.o"], place)
        made.write_bytes((place / "joined.o").read_bytes())


def linked(kernels: Path) -> Path:
    """Link `kernels`, an object that was compiled like a student's file, into a native program, cached if possible.

    Return the program's path. Raises KitError if linking fails.
    """
    cache, tools = cache_root(), toolchain()
    known = kit(cache)
    prepared = standin.prepare(OWN_FLAGS, (), cache)
    entry = cache / "objects" / f"{digest(kernels.read_bytes(), known.folder.name.encode())}.program"
    objects = [str(known.runner), str(kernels), str(prepared.object)]
    return objectcache.kept(cache, entry, lambda place: _linked(known, tools, objects, place))


# ---- one build


class _Work(Compilers):
    """Steps of one native build of a student's file."""

    @cached_property
    def key(self) -> str:
        """Digest of everything on which the content of the program depends."""
        rules = (standin.RULES, LINKAGES, PLAIN_STACK, FILE_CALLS, NO_COMPILER_AT_LINK, clock_flags())
        return digest(repr((self.source, rules)).encode(), *contents_of(SHIM, standin.PLAIN, INSIDE))

    @property
    def entry(self) -> Path:
        return self.cache / "objects" / f"{self.key}.native"

    def linkage(self, known: Kit) -> str:
        """Return the linkage of this build's program: a key of LINKAGES, or SANITIZED."""
        return SANITIZED if self.options.sanitize else known.linkage

    def compile(self, name: str) -> tuple[str, Refusal | None]:
        """Compile and link the file. Return (error message, missing part of torch): ("", None) for success.

        `name` is the file's name in messages.
        """
        if self.must_wait():
            return ispc.LACKING, None
        self.options.on_step("headers")
        flags = (*OWN_FLAGS, *self.source.flags)
        known, prepared = _made_ahead(flags, self.source.defines, self.cache)
        self.cpu_s += prepared.cpu_s
        limit = TimeLimit(self.options.timeout_s)
        with (
            objectcache.workplace(self.cache) as place,
            compiling.room(self.options.sandbox, place, prepared.folder) as room,
        ):
            room.put("module.cpp", self.source.text)
            room.put(RUNNER, known.runner.read_bytes())
            if message := self.compile_ispc(room, limit):
                return self.may_lack_ispc(message), None
            self.options.on_step("building")
            headers = (*known.views.headers, *KITS_HEADERS, room.header or prepared.folder)
            for finished, listed in self.stages(known, prepared, room, limit, self.source.text):
                if finished.returncode != 0 or finished.timed_out:
                    self.options.on_step("inspection")
                    text = self.source.text.decode(errors="replace")
                    refused = refusal(finished.output.decode(errors="replace"), name, text)
                    message = self.explain(finished, lambda: self.probed(known, prepared))
                    return self.may_lack_ispc(message), refused
                if listed and (message := stages.refused(self.source.tools, room.folder, listed, headers)):
                    return message, None
            if message := self.too_large(room.folder / OBJECT):
                return message, None
            made = place / "made"
            made.mkdir()
            # Keep the assembly, too: `grader.integrity.inspection` reads it.
            for file in (OBJECT, PROGRAM, stages.ASSEMBLY):
                os.rename(compiling.taken(room.folder / file, place), made / file)
            _open_to_runners(made / PROGRAM)
            objectcache.publish(made, self.entry)
            objectcache.prune(self.cache)
        return "", None

    def probed(self, known: Kit, prepared: Prepared) -> Iterator[Finished]:
        """Build PROBE in a new folder. Yield the results of the compiler's stages, up to the first that fails."""
        with (
            objectcache.workplace(self.cache) as place,
            compiling.room(self.options.sandbox, place, prepared.folder) as room,
        ):
            room.put(stages.SOURCE, PROBE)
            room.put(RUNNER, known.runner.read_bytes())
            for finished, _ in self.stages(known, prepared, room, TimeLimit(KIT_TIMEOUT_S)):
                yield finished
                if finished.returncode != 0 or finished.timed_out:
                    return

    def stages(
        self, known: Kit, prepared: Prepared, room: compiling.Room, limit: TimeLimit, text: bytes = b""
    ) -> Iterator[tuple[Finished, str]]:
        """Run front end, assembler and linker. Each sees only its own files (`stages.Views`).

        For each stage, yield its result and the name of the file that lists the files it read ("" for the linker).
        `text` is the student's source, empty for a source of the kit.
        """
        assert room.header is not None
        seen, views, compiler = replace(prepared, folder=room.header), known.views, self.source.tools.compiler

        def run(command: Sequence[str], stage: Stage) -> Finished:
            return self.run(command, room.folder, limit, room, stage)

        for command in seen.commands(text):
            front_end = [*command, *self.source.defines, *stages.FRONT_END_FLAGS]
            finished = run(front_end, Stage(views.front_end, KITS_HEADERS))
            if finished.returncode == 0:
                break
        yield finished, stages.INCLUDED

        assembler = [
            str(compiler),
            *stages.listing_flags(self.source.tools),
            "-c",
            stages.ASSEMBLY,
            "-o",
            OBJECT,
        ]
        yield run(assembler, Stage(views.assembler, sees_header=False)), stages.ASSEMBLED

        others = [ispc.OBJECT] if (room.folder / ispc.OBJECT).exists() else []
        objects = [RUNNER, OBJECT, *others, str(seen.object)]
        yield run(_link(self.source.tools, self.linkage(known), objects, PROGRAM), Stage(views.linker)), ""
