"""Builds the reference and the expert kernels for this machine and compiler, and keeps them in the kit's cache.

The reference is built as one object, and the expert kernels as another. A handout has prebuilt objects and no sources.
For processes with torch, an object is linked into a library; the native runner links the reference into a program. The
build needs neither torch nor Python's headers, so one object works with every torch and Python. The kernels are
compiled once for each level of instruction sets (baseline, AVX2, AVX-512). The level is chosen at the first call. The
two objects are built separately, so that judging does not wait for the expert kernels, which compile slowly.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grader.assignment.labs import SOURCE_SUFFIXES, Platform
from grader.backends.native.compilers import digest
from grader.backends.native.nativebuild import JOIN_FLAGS
from grader.backends.native.toolchain import (
    X86,
    Toolchain,
    cache_root,
    libomp_prefix,
    openmp_flags,
    toolchain,
)
from grader.core import objectcache
from grader.core.errors import KitError
from grader.sandbox import run_limited

SOURCE_DIR = Path(__file__).resolve().parent
#: Folder of a handout's objects: for each platform, one of the reference and one of the expert kernels.
PREBUILT = SOURCE_DIR / "prebuilt"
COMPILE_TIMEOUT_S = 120.0

COMMON_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden")
_AVX2 = ("-mavx2", "-mfma", "-mprefer-vector-width=256")
_AVX512 = ("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq")


@dataclass(frozen=True)
class ReferenceRecipe:
    """Sources and compiler flags of one object.

    `dispatch` is compiled once. `leveled` has triples (source, macro, prefix); these sources are compiled once per
    level. The macro is defined as prefix + level: the name of the table of functions that the source defines."""

    stem: str
    what: str
    dispatch: str
    leveled: tuple[tuple[str, str, str], ...]
    headers: tuple[str, ...]
    flags: tuple[str, ...]
    avx2: tuple[str, ...]
    avx512: tuple[str, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        return (*self.headers, *(source for source, _, _ in self.leveled), self.dispatch)


REFERENCE = ReferenceRecipe(
    stem="libgpt149_ref",
    what="reference",
    dispatch="dispatch.cpp",
    leveled=(("kernels.cpp", "GPT149_KERNELS", "gpt149_kernels_"),),
    headers=("kernels.h", "levels.h"),
    # No contraction into fused multiply-adds, so that all levels give the same bits.
    flags=("-ffp-contract=off",),
    avx2=_AVX2,
    # No 512-bit vectors: sums in strict order do not gain from them, and part 2 took 1.15 times as long. Time limits,
    # which are relative to the reference, would then be different on machines with AVX-512.
    avx512=(*_AVX2, *_AVX512),
)

#: Prefix of the reference's file name in a handout.
STEM = REFERENCE.stem

EXPERT = ReferenceRecipe(
    stem="libgpt149_expert",
    what="expert",
    dispatch="expert.cpp",
    leveled=(
        ("expert_kernel.cpp", "GPT149_EXPERT", "gpt149_expert_"),
        ("plain_best.cpp", "GPT149_PLAIN", "gpt149_plain_"),
    ),
    headers=("expert.h", "levels.h", "expert_lanes.h"),
    flags=("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    avx2=_AVX2,
    avx512=(*_AVX2, *_AVX512, "-mprefer-vector-width=512"),
)

RECIPES = (REFERENCE, EXPERT)


def level_flags(machine: str, recipe: ReferenceRecipe = REFERENCE) -> Mapping[str, Sequence[str]]:
    """Return the compiler flags of each level of an object, for an architecture (name as in `platform.machine()`)."""
    if machine.lower() in X86:
        return {"baseline": (), "avx2": recipe.avx2, "avx512": recipe.avx512}
    return {"baseline": ()}


def compile_commands(
    machine: str, compiler: str, openmp: Sequence[str], directory: Path, recipe: ReferenceRecipe = REFERENCE
) -> tuple[list[list[str]], list[str]]:
    """Return commands that compile object files into `directory` (run them in any order), and the files' paths."""
    common = [compiler, *COMMON_FLAGS, *recipe.flags, *openmp, "-c"]
    commands = [[*common, str(SOURCE_DIR / recipe.dispatch), "-o", str(directory / "dispatch.o")]]
    for level, flags in level_flags(machine, recipe).items():
        for source, macro, prefix in recipe.leveled:
            output = str(directory / f"{Path(source).stem}-{level}.o")
            table = f"-D{macro}={prefix}{level}"
            commands.append([*common, *flags, table, str(SOURCE_DIR / source), "-o", output])
    return commands, [command[-1] for command in commands]


def library_path() -> Path:
    """Return the path of the reference library for this machine. Builds it if the cache lacks it. Imports no torch.

    Several processes may build at once: each works in its own folder and renames its result into place.

    Raises:
        KitError: no compiler was found, the compiler failed, the cache cannot be written, or a handout lacks the object
            for this platform.
    """
    return _path(REFERENCE)


def expert_path() -> Path:
    """Return the path of the expert library (expert.h). Builds and raises as `library_path` does."""
    return _path(EXPERT)


def _path(recipe: ReferenceRecipe) -> Path:
    tools = toolchain()
    _, link_flags = openmp_flags(tools.system, tools.family, libomp_prefix())
    if tools.system != "Darwin":
        # Some toolchains link the C++ library statically. Do not export its symbols from this library.
        link_flags = (*link_flags, "-Wl,--exclude-libs,ALL")

    def link(folder: Path) -> Path:
        library = folder / "library.so"
        command = [str(tools.compiler), "-shared", str(object_path(recipe)), *link_flags, "-o", str(library)]
        _run(command, folder, recipe.what)
        return library

    return _kept(f"{recipe.stem}-{_key(recipe, tools)}.so", link)


def object_path(recipe: ReferenceRecipe = REFERENCE) -> Path:
    """Return the path of a recipe's object file; in a handout, this is the prebuilt file. Raises as `library_path`."""
    if not has_sources(recipe):
        return objectcache.prebuilt(PREBUILT, recipe.stem, f"compiled {recipe.what}")
    tools = toolchain()
    compile_flags, _ = openmp_flags(tools.system, tools.family, libomp_prefix())

    def compile_all(folder: Path) -> Path:
        return _build_object(recipe, folder, tools.machine, str(tools.compiler), compile_flags)

    return _kept(f"{recipe.stem}-{_key(recipe, tools)}.o", compile_all)


def _kept(name: str, make: Callable[[Path], Path]) -> Path:
    """Return the path of the cached file `name`. If it is missing, `make(folder)` builds it and returns its path."""
    cache = cache_root()
    return objectcache.kept(cache, cache / "objects" / name, make)


def has_sources(recipe: ReferenceRecipe = REFERENCE) -> bool:
    """Return True if this copy of the kit has the sources of the kernels; a handout lacks them."""
    return all((SOURCE_DIR / name).is_file() for name in recipe.sources)


def build_prebuilt(
    folder: Path, system: str, machine: str, compiler: str, recipe: ReferenceRecipe = REFERENCE
) -> Path:
    """Compile a handout's object for a platform (`system`, `machine`) into `folder`.

    `compiler` must produce code for that platform. Each build gives the same bytes. Raises KitError if it fails.
    """
    family = "clang" if system == "Darwin" else "gcc"
    compile_flags, _ = openmp_flags(system, family, libomp_prefix())
    made = folder / objectcache.prebuilt_name(recipe.stem, system, machine)
    with tempfile.TemporaryDirectory(prefix="gpt149-prebuilt-") as directory:
        built = _build_object(recipe, Path(directory), machine, compiler, compile_flags)
        made.write_bytes(built.read_bytes())
    return made


def _build_object(
    recipe: ReferenceRecipe, directory: Path, machine: str, compiler: str, compile_flags: Sequence[str]
) -> Path:
    """Compile all levels in parallel in `directory`, and join them into one object. Return its path."""
    commands, objects = compile_commands(machine, compiler, compile_flags, directory, recipe)
    with ThreadPoolExecutor(max_workers=min(len(commands), os.cpu_count() or 1)) as pool:
        # Start the commands for AVX-512 first, because they take longest.
        list(pool.map(lambda command: _run(command, directory, recipe.what), reversed(commands)))
    joined = directory / "joined.o"
    _run([compiler, *JOIN_FLAGS, *objects, "-o", str(joined)], directory, recipe.what)
    return joined


def _run(command: Sequence[str], directory: Path, what: str) -> None:
    finished = run_limited(command, cwd=directory, timeout_s=COMPILE_TIMEOUT_S)
    if finished.timed_out:
        raise KitError(f"building the {what} took longer than {COMPILE_TIMEOUT_S:.0f} s: {command[0]}")
    if finished.returncode != 0:
        lines = finished.output.decode(errors="replace").splitlines() or ["no message"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise KitError(
            f"{command[0]} cannot build the {what}: {first.strip()}; try `python -m grader doctor`"
        )


def _key(recipe: ReferenceRecipe, tools: Toolchain) -> str:
    """Return a digest of sources, compiler and flags. OpenMP's flags follow from the compiler and are left out."""
    levels = itertools.chain(*level_flags(tools.machine, recipe).values())
    flags = [*COMMON_FLAGS, *recipe.flags, *JOIN_FLAGS, *levels]
    parts = (tools.machine, str(tools.compiler), tools.compiler_version, *flags, sources_digest(recipe))
    return digest(*map(str.encode, parts))


def sources_digest(recipe: ReferenceRecipe) -> str:
    """Return a digest of the sources; in a handout, of the prebuilt object. Raises KitError if that is missing."""
    names = [SOURCE_DIR / name for name in recipe.sources]
    paths = names if has_sources(recipe) else [object_path(recipe)]
    return digest(*(path.read_bytes() for path in paths))


class _Kernels:
    """The lab's reference: implements `assignment.labs.Reference`."""

    def program(self) -> Path:
        return native_program()

    def for_torch(self) -> tuple[Literal["raw"], Path]:
        return "raw", library_path()

    def sources(self) -> list[Path]:
        if not has_sources():
            return []
        return sorted(path for path in SOURCE_DIR.rglob("*") if path.suffix in SOURCE_SUFFIXES)

    def compiled(self, folder: Path, compilers: Mapping[Platform, str]) -> dict[str, Path]:
        made = [
            build_prebuilt(folder, *place, compiler, recipe)
            for place, compiler in compilers.items()
            for recipe in RECIPES
        ]
        return {f"{SOURCE_DIR.name}/{PREBUILT.name}/{path.name}": path for path in made}


KERNELS = _Kernels()


def native_program() -> Path:
    """Return the path of a native runner that calls the reference (native/inside/reference.cpp).

    Builds it unless it is cached. Raises as `library_path` does.
    """
    from grader.backends.native import nativebuild

    return nativebuild.reference_program(object_path, _key(REFERENCE, toolchain()))
