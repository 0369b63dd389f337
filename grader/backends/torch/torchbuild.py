"""Build of a student's module.cpp as a shared object for a process with torch.

Theory of operation. A build has two ways ("paths") to the same object. The *light* path compiles the unchanged file
with a small precompiled subset of torch's headers (shim/gpt149_light.h), in a few seconds. If it fails, the *full* path
compiles the file with torch/extension.h, in about a minute, and its messages are shown. Few files have errors here,
because the native build, without torch, comes first (`backends.selection`).

The cache holds objects and precompiled headers under the hash of all their inputs. An entry is made in its own folder
and renamed into place, without locks. So no build waits for a killed build. Two simultaneous builds of a source do the
work twice, with equal results.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grader.backends.native import ispc, sanitize, stages
from grader.backends.native.compilers import (
    HEADER_TIMEOUT_S,
    PROBE,
    SHIM,
    Compilers,
    Source,
    clock_flags,
    common_flags,
    contents_of,
    define_flags,
    digest,
    named,
    read_source,
    use_header,
)
from grader.backends.native.toolchain import (
    TorchFiles,
    libomp_prefix,
    linker_flags,
    no_compiler_at_link,
    openmp_flags,
    toolchain,
    torch_files,
)
from grader.backends.records import Build, BuildOptions
from grader.core import objectcache
from grader.sandbox import Finished, TimeLimit, compiling
from grader.sandbox.view import python_paths
from grader.source import diagnostics

LIGHT_HEADER, PRECOMPILED = "gpt149_light.h", "gpt149_light.h.gch"
#: Value of `Build.waits_for` if a header that torch's headers include is missing on this machine, usually Python.h.
PYTHON_HEADERS = "Python.h"
#: Compiler error about a header, or a folder of headers, that cannot be found or read. Groups: file with the #include
#: (for a folder, the compiler's program), name of the header or folder.
MISSES_A_HEADER = re.compile(
    r"^(?P<where>[^\n:]+)(?::\d+:\d+)?: (?:fatal )?error: '?(?P<name>[^:'\n]+)'?(?:: (?:No such|Perm)| file not found)",
    re.MULTILINE,
)
LACKING_HEADERS = (
    "This machine has no Python.h that compilers in the sandbox can read, and this file needs Python's headers: "
    "nothing is judged, and no points are lost. Install them (apt install python3-dev) where every user can read them, "
    "and judge again."
)
#: The two paths of a build, the faster one first.
PATHS = ("light", "full")
#: Headers that are replaced by empty files on the light path, which halves its time. gpt149_light.h includes all
#: declarations that a file needs.
EMPTY = (
    *(f"torch/{name}.h" for name in ("all", "torch", "types")),
    *(f"ATen/{name}.h" for name in ("ATen", "Context", "DeviceGuard", "Functions", "TensorUtils")),
)
#: Headers that include Python.h. Empty files in the folder BINDINGS replace them on the light path, and also on the
#: full path if Python.h is missing.
EMPTY_BINDINGS = (
    *("torch/extension.h", "torch/python.h"),
    *(f"pybind11/{name}.h" for name in ("functional", "numpy", "operators", "pybind11", "stl")),
)
BINDINGS = "bindings"


@dataclass(frozen=True, kw_only=True)
class TorchBuild(Build):
    """Result of a build for a process with torch. `path` is the way of building: "light" or "full"."""

    path: str


def build(source: Path, **options: Any) -> TorchBuild:
    """Compile and link `source` (and a module.ispc beside it), or find the finished object in the cache.

    `options` are fields of BuildOptions. A source that does not compile gives a build with `ok` False. Raises
    UsageError if `source` cannot be read or a macro's name is invalid. Raises KitError without a working compiler,
    without torch, or with a torch without headers.
    """
    started = time.monotonic()
    wanted = BuildOptions(**options)
    recipe = _recipe(source, wanted.flags, wanted.defines or {}, wanted.sanitize)
    work = _Work(recipe, wanted, (SHIM, *python_paths()))
    path = work.find()
    cached = path is not None
    if path is None:
        path, message = work.compile()
    else:
        message = work.too_large(work.entry(path))
    return TorchBuild(
        ok=not message,
        object_path=None if message else work.entry(path),
        path=path,
        cached=cached,
        diagnostics=named(message, source),
        notes=recipe.notes(),
        wall_s=time.monotonic() - started,
        cpu_s=work.cpu_s,
        key=work.key,
        waits_for=work.waits_for,
    )


def precompile() -> None:
    """Precompile the light path's header, before the first build. If it does not compile, builds take the full path."""
    recipe = TorchRecipe(toolchain(), b"", None, (), (), sanitize=False, torch=torch_files())
    _Work(recipe, BuildOptions()).light_header()


# ---- recipes of builds


@dataclass(frozen=True)
class TorchRecipe(Source):
    """Everything on which the content of an object depends. `sanitize`: True to build with sanitizers."""

    sanitize: bool
    torch: TorchFiles

    def key(self) -> str:
        return digest(repr(self).encode(), *_shim_contents())

    def header_key(self) -> str:
        """Return the cache key of the precompiled header. It covers the flags and, for clang, the student's macros."""
        macros = self.defines if self.tools.family == "clang" else ()
        # The key omits the folder of Python's headers, because the light path does not include them.
        torch = replace(self.torch, python_include_dir=None)
        return digest(
            repr((self.tools, torch, self.flags, macros, self.sanitize)).encode(), *_shim_contents()
        )

    def compile_flags(self, path: str) -> tuple[str, ...]:
        """Return the compile flags for one of PATHS."""
        tools, torch = self.tools, self.torch
        includes = [f"-I{SHIM / path}"] if path == "light" else []
        if path == "full" and torch.python_include_dir is not None:
            includes += ["-isystem", str(torch.python_include_dir)]
        for directory in torch.include_dirs:
            includes += ["-isystem", str(directory)]
        abi = () if torch.cxx11_abi is None else (f"-D_GLIBCXX_USE_CXX11_ABI={torch.cxx11_abi}",)
        return (
            *common_flags(tools),
            *("-fPIC", "-fvisibility=hidden", *abi),
            *(("-DAT_PER_OPERATOR_HEADERS",) if path == "light" else ()),
            *self.flags,
            *(sanitize.FLAGS if self.sanitize else ()),
            *includes,
            f"-I{SHIM}",
        )

    def link_flags(self, path: str) -> tuple[str, ...]:
        tools = self.tools
        _, openmp = openmp_flags(tools.system, tools.family, libomp_prefix())
        libraries = ("-lc10", "-ltorch_cpu", *(("-ltorch_python",) if path == "full" else ()))
        chosen = linker_flags(tools.system, SHIM, allow_undefined=path == "full")
        # Flags for sanitizers are not needed: their library is preloaded into the process.
        return (*chosen, *no_compiler_at_link(tools), f"-L{self.torch.library_dir}", *libraries, *openmp)


def _recipe(source: Path, flags: Sequence[str], defines: Mapping[str, str], sanitize: bool) -> TorchRecipe:
    return TorchRecipe(
        tools=toolchain(),
        text=read_source(source),
        ispc_file=ispc.beside(source),
        flags=tuple(flags),
        defines=define_flags(defines),
        sanitize=sanitize,
        torch=torch_files(),
    )


def _shim_contents() -> list[bytes]:
    return [*contents_of(SHIM), repr((EMPTY, EMPTY_BINDINGS, clock_flags())).encode()]


# ---- one build


def _misses_a_header(failure: Finished) -> bool:
    found = MISSES_A_HEADER.search(failure.output.decode(errors="replace"))
    return found is not None and (
        found["name"] == PYTHON_HEADERS or Path(found["where"]).name != "module.cpp"
    )


class _Work(Compilers):
    """Steps of one build of a student's file for a process with torch."""

    source: TorchRecipe

    @functools.cached_property
    def key(self) -> str:
        return self.source.key()

    def entry(self, path: str) -> Path:
        return self.cache / "objects" / f"{self.key}.{path}.so"

    def find(self) -> str | None:
        """Return the first of PATHS whose object is in the cache; None if the cache has no object of this file."""
        return next((path for path in PATHS if objectcache.touch(self.entry(path))), None)

    def compile(self) -> tuple[str, str]:
        """Try the light path, then the full path. Return (last path tried, its error message, or "" for success)."""
        if self.must_wait():
            return "light", ispc.LACKING
        header = self.light_header()
        limit = TimeLimit(self.options.timeout_s)
        with (
            objectcache.workplace(self.cache) as place,
            compiling.room(self.options.sandbox, place, header) as room,
        ):
            # The compiler's folder gets only module.cpp and, below, module.ispc: other files of the student stay out.
            room.put("module.cpp", self.source.text)
            message = self.compile_ispc(room, limit)
            if message:
                return "light", self.may_lack_ispc(message)
            for path in PATHS if room.header else ("full",):
                failure = self.attempt(path, room, limit)
                if failure is None or failure.timed_out or diagnostics.ran_out_of_memory(failure):
                    break
            if failure is not None:
                message = self.explain(failure, lambda: self.probed(path, header))
                if path == "full" and _misses_a_header(failure) and not self.headers_are_whole():
                    self.waits_for = PYTHON_HEADERS
                    message = f"{LACKING_HEADERS}\nWithout them the compiler says:\n{message}"
                return path, self.may_lack_ispc(message)
            message = self.too_large(room.folder / "module.so")
            headers = (Path("/usr/include"), SHIM, *self.source.torch.include_dirs)
            message = message or stages.refused(self.source.tools, room.folder, stages.ASSEMBLED, headers)
            if message:
                return path, message
            objectcache.publish(compiling.taken(room.folder / "module.so", place), self.entry(path))
            objectcache.prune(self.cache)
            return path, ""

    def probed(self, path: str, header: Path | None) -> Iterator[Finished]:
        """Build PROBE on this path in a new folder. Yield the failed run, or nothing if the build succeeds."""
        with (
            objectcache.workplace(self.cache) as place,
            compiling.room(self.options.sandbox, place, header) as room,
        ):
            room.put("module.cpp", PROBE)
            failure = self.attempt(path, room, TimeLimit(HEADER_TIMEOUT_S))
            if failure is not None:
                yield failure

    def headers_are_whole(self) -> bool:
        """Return True if compilers in this sandbox can read Python.h and the headers that it includes."""
        with (
            objectcache.workplace(self.cache) as place,
            compiling.room(self.options.sandbox, place, None) as room,
        ):
            room.put("module.cpp", b"#include <Python.h>\n")
            command = [str(self.source.tools.compiler), *self.source.compile_flags("full")]
            command += ["-E", "-o", "module.ii", "module.cpp"]
            return self.run(command, room.folder, HEADER_TIMEOUT_S, room).returncode == 0

    def attempt(self, path: str, room: compiling.Room, limit: TimeLimit) -> Finished | None:
        """Compile and link on one of PATHS. Return the failed run of the compiler; None for success."""
        self.options.on_step("building")
        tools, recipe = self.source.tools, self.source
        bindings = [f"-I{room.header / BINDINGS}"] if room.header else []
        objects = [ispc.OBJECT] if (room.folder / ispc.OBJECT).exists() else []
        finished = self.run(
            [
                str(tools.compiler),
                *(
                    use_header(tools, room.header, LIGHT_HEADER)
                    if path == "light" and room.header
                    else ("-include", "gpt149_full.h")
                ),
                *(bindings if path == "light" or recipe.torch.python_include_dir is None else ()),
                *recipe.compile_flags(path),
                *recipe.defines,
                *stages.listing_flags(tools),
                *("-shared", "-o", "module.so", "module.cpp"),
                *objects,
                *recipe.link_flags(path),
            ],
            room.folder,
            limit,
            room,
        )
        if finished.returncode != 0 or finished.timed_out:
            return finished
        missing = diagnostics.missing_symbols(finished.output.decode(errors="replace"))
        return replace(finished, returncode=1, output="\n".join(missing).encode()) if missing else None

    def light_header(self) -> Path | None:
        """Return the folder of the precompiled header, made on first use; None if it does not compile with this torch.

        An error of the compiler is cached, too, as a folder without the header. A time-out or a killed compiler is not.
        """
        entry = self.cache / "headers" / self.source.header_key()
        if not objectcache.touch(entry):
            self.options.on_step("headers")
            with objectcache.workplace(self.cache) as place:
                made = place / "header"
                for name in (*EMPTY, *(f"{BINDINGS}/{name}" for name in EMPTY_BINDINGS)):
                    (made / name).parent.mkdir(parents=True, exist_ok=True)
                    (made / name).touch()
                command = [str(self.source.tools.compiler), *self.source.compile_flags("light")]
                command += self.source.defines if self.source.tools.family == "clang" else ()
                command += [f"-I{made}", f"-I{made / BINDINGS}", "-x", "c++-header"]
                command += [str(SHIM / LIGHT_HEADER), "-o", str(made / PRECOMPILED)]
                finished = self.run(command, place, HEADER_TIMEOUT_S)
                if finished.timed_out or finished.returncode < 0:
                    return None
                if finished.returncode != 0:
                    (made / PRECOMPILED).unlink(missing_ok=True)
                objectcache.publish(made, entry)
            self.options.on_step("building")
        return entry if (entry / PRECOMPILED).is_file() else None
