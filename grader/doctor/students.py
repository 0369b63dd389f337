"""Checks for a student: kernels can be compiled and judged here, times are steady, the editor is set up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from grader.backends.gpu import devicebuild
from grader.backends.kinds import all_on_card, kind_of, languages
from grader.backends.native import standin
from grader.backends.native.compilers import SHIM, contents_of, digest
from grader.backends.native.toolchain import (
    Toolchain,
    cache_root,
    default_flags,
    libomp_prefix,
    openmp_flags,
    toolchain,
    torch_files,
)
from grader.core import plainfile
from grader.core.commandline import Parser, source_file
from grader.core.errors import EXIT_KIT, EXIT_PASS, KitError, UsageError, explained
from grader.core.places import PUBLIC_CONFIG, STUDENT_PROGRAM
from grader.doctor import timing, tools
from grader.doctor.host import Finding, Host, fail, ok, warn

#: Optional modules of the student's commands, as rows of (module, loss without it, how to get it).
OWN_MODULES = (("watchfiles", "there is no --watch", "pip install watchfiles"),)
PROGRAM = f"{STUDENT_PROGRAM} doctor"
COMMANDS = "compile_commands.json"
#: Name of the copy of gcc's omp.h in the cache. The file omp.h beside it has the text OMP and includes this copy.
GCC_OMP = "gcc_omp.h"
#: Text of an omp.h for clangd. It removes gcc's attribute __malloc__(...), whose arguments clang rejects.
OMP = f'#pragma once\n#define __malloc__(...)\n#include "{GCC_OMP}"\n#undef __malloc__\n'
#: Compiler warnings that clangd shows in an editor.
WARNINGS = ("-Wall", "-Wextra", "-Wno-unknown-pragmas")


def main(arguments: list[str]) -> int:
    """Run `python gpt149.py doctor`. Return 3 if a finding is a failure, else 0. Wrong options raise UsageError."""
    parse = Parser(
        prog=PROGRAM, description="What this machine lacks for your work, and what to do about it."
    )
    parse.flag("--steady", "also time the reference against itself (seconds)")
    parse.value(
        "--editor",
        "HEADERS",
        f"write {COMMANDS} beside your file, for clangd: with the tensors that kernels are judged with "
        "(light), or with torch's own headers (full)",
        nargs="?",
        const="light",
    )
    parse.path("--module", "the file that you edit", "PATH")
    parse.path("--config", "another assignment", default=PUBLIC_CONFIG)
    given = parse.parse_args(arguments)
    if given.editor:
        return _write_commands(given.editor, given.module, given.config)
    from grader.doctor import show

    failed = show(_sections(given.config, given.steady))["fail"]
    print(
        "kernels can be judged here"
        if not failed
        else f"{failed} to be fixed before kernels can be judged here"
    )
    return EXIT_KIT if failed else EXIT_PASS


def _sections(config: Path, with_steadiness: bool) -> Iterator[tuple[str, Iterable[Finding]]]:
    from grader.assignment.loading import load

    assignment = load(config)
    host = Host(threads=assignment.defaults.get("threads", 1))
    yield "tools", [*tools.findings(host), *tools.missing(OWN_MODULES, host.has_module)]
    if wanted := languages(part for part in assignment.parts if kind_of(part).on_card):
        yield "kernels on a GPU", _on_a_card(host, wanted)
    yield "times", timing.findings(host)
    if with_steadiness:
        yield "steadiness", timing.steadiness(config)


def _on_a_card(host: Host, wanted: Collection[str]) -> Iterator[Finding]:
    """Yield findings on GPUs and on the programs that judge kernels in the languages `wanted` ("triton", "cuda")."""
    cards = [found for found in tools.gpu_findings(host) if not found.what.startswith("Triton")]
    yield from cards
    if devicebuild.TRITON in wanted and not host.has_module("triton"):
        yield fail(
            "Triton is not installed",
            "Triton is needed to judge its kernels, even without a GPU",
            f'pip install "{devicebuild.TRITON_PACKAGE}"',
        )
    elif devicebuild.TRITON in wanted:
        yield ok("Triton is installed")
    if (
        "cuda" in wanted
        and not host.which(devicebuild.NVCC)
        and not any(devicebuild.NVCC in found.what for found in cards)
    ):
        yield warn(
            "nvcc is not on the PATH",
            "kernels in CUDA cannot be compiled or judged on this machine",
            "install NVIDIA's CUDA toolkit, or use a machine of the course",
        )
    if not any(found.level == "ok" for found in cards):
        yield warn(
            "no GPU",
            "Triton's interpreter judges results of Triton kernels; times and CUDA kernels are not judged here",
            "you need not do anything: points stay open until the course judges on a GPU",
        )


def _write_commands(headers: str, module: Path | None, config: Path) -> int:
    from grader.assignment.loading import load

    if headers != "light" and headers != "full":
        raise UsageError(
            f"--editor takes light or full, not '{headers}' ({PROGRAM} --help lists all options)"
        )
    assignment = load(config)
    if all_on_card(assignment.parts):
        raise UsageError(f"--editor is for C++, and {assignment.source} has kernels for a GPU")
    source = source_file(module, assignment.source, assignment.path.parent)
    path = source.resolve().parent / COMMANDS
    found = json.dumps(_commands(source, headers), indent=1)
    with explained(f"cannot write {path}", KitError):
        plainfile.write(path, [found, "\n"])
    print(f"{path} is written: clangd, and editors that use it, now know {source.name}")
    return EXIT_PASS


# ---- the compile command of a file, for editors


def _commands(source: Path, headers: str) -> list[dict[str, Any]]:
    """Return the entries of `compile_commands.json` for a source: one compiler command, which clangd reads.

    `headers`: "light" for the kit's own tensor headers, with which kernels are judged, or "full" for torch's headers.
    The command includes "light" headers as text, because clangd does not read gcc's precompiled headers. clangd finds
    gcc's C++ library but not its omp.h, so the cache has a copy. Raises KitError if the compiler or, for "full", torch
    is missing.
    """
    tools = toolchain()
    path = source.resolve()
    words = [
        str(tools.compiler),
        f"-std={tools.cxx_standard}",
        *default_flags(tools.machine),
        *openmp_flags(tools.system, tools.family, libomp_prefix())[0],
        "-DTORCH_EXTENSION_NAME=gpt149_module",
        *WARNINGS,
        *(_light(tools) if headers == "light" else _full(tools)),
        "-c",
        str(path),
    ]
    return [{"directory": str(path.parent), "file": str(path), "arguments": words}]


def _light(tools: Toolchain) -> list[str]:
    # -isystem in place of -I: an editor then shows no warnings about these headers.
    folders = (_included(tools, standin.write_headers), standin.PLAIN, SHIM)
    return ["-include", standin.HEADER, *(word for folder in folders for word in ("-isystem", str(folder)))]


def _full(tools: Toolchain) -> list[str]:
    torch = torch_files()
    folders = [*torch.include_dirs, *filter(None, [torch.python_include_dir])]
    words = [word for folder in folders for word in ("-isystem", str(folder))]
    abi = () if torch.cxx11_abi is None else (f"-D_GLIBCXX_USE_CXX11_ABI={torch.cxx11_abi}",)
    return ["-isystem", str(_included(tools, _nothing)), *words, *abi]


def _nothing(folder: Path) -> None:
    """Write nothing: argument `fill` of `_included` for torch's headers, which are in torch's own folder."""


def _included(tools: Toolchain, fill: Callable[[Path], None]) -> Path:
    """Return a folder of headers in the cache, made if needed. Raises KitError if the cache cannot be written.

    `fill(folder)` writes headers into the folder. For gcc, a copy of its omp.h is added.
    """
    made = digest(
        repr(tools).encode(), repr(standin.RULES).encode(), fill.__name__.encode(), *contents_of(SHIM)
    )
    folder = cache_root() / "editor" / made
    with explained(f"cannot write the cache {folder}", KitError, "point GPT149_CACHE elsewhere"):
        folder.mkdir(parents=True, exist_ok=True)
        fill(folder)
        if tools.family == "gcc" and (named := tools.file("include/omp.h")):
            shutil.copyfile(named, folder / GCC_OMP)
            (folder / "omp.h").write_text(OMP)
    return folder
