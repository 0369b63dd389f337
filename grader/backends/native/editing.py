"""The compile command of a student's file for an editor, in the format of `compile_commands.json`.

clangd, which many editors use, cannot read a precompiled header of gcc. So the command includes the header as text,
from folders in the cache that no build removes. clangd finds the C++ library of gcc, but not gcc's `omp.h`, so a copy
of that is put there, too.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from grader.backends.native import standin
from grader.backends.native.compilers import SHIM, contents_of, define_flags, digest
from grader.backends.native.toolchain import (
    Toolchain,
    cache_root,
    default_flags,
    libomp_prefix,
    openmp_flags,
    toolchain,
    torch_files,
)
from grader.core.errors import KitError

#: Headers for an editor: the kit's stand-in for torch ("light"), or torch's own ("full").
Headers = Literal["light", "full"]
FILE = "compile_commands.json"
#: Name of the copy of gcc's omp.h.
GCC_OMP = "gcc_omp.h"
#: An omp.h that hides the attribute __malloc__ with arguments, which clang does not know.
OMP = f'#pragma once\n#define __malloc__(...)\n#include "{GCC_OMP}"\n#undef __malloc__\n'
WARNINGS = ("-Wall", "-Wextra", "-Wno-unknown-pragmas")


def commands(source: Path, headers: Headers, defines: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the entries of `compile_commands.json` for a source.

    Raises UsageError for an invalid macro name. Raises KitError without a compiler, and for "full" headers without
    torch.
    """
    tools = toolchain()
    path = source.resolve()
    words = [
        str(tools.compiler),
        f"-std={tools.cxx_standard}",
        *default_flags(tools.machine),
        *openmp_flags(tools.system, tools.family, libomp_prefix())[0],
        "-DTORCH_EXTENSION_NAME=gpt149_module",
        *define_flags(defines),
        *WARNINGS,
        *(_light(tools) if headers == "light" else _full(tools)),
        "-c",
        str(path),
    ]
    return [{"directory": str(path.parent), "file": str(path), "arguments": words}]


def _light(tools: Toolchain) -> list[str]:
    # -isystem: an editor then shows no warnings in these headers.
    folders = (_included(tools, standin.write_headers), standin.PLAIN, SHIM)
    return ["-include", standin.HEADER, *(word for folder in folders for word in ("-isystem", str(folder)))]


def _full(tools: Toolchain) -> list[str]:
    torch = torch_files()
    folders = [*torch.include_dirs, *filter(None, [torch.python_include_dir])]
    words = [word for folder in folders for word in ("-isystem", str(folder))]
    abi = () if torch.cxx11_abi is None else (f"-D_GLIBCXX_USE_CXX11_ABI={torch.cxx11_abi}",)
    return ["-isystem", str(_included(tools, _nothing)), *words, *abi]


def _nothing(folder: Path) -> None:
    """Write no headers: those of torch are in torch's folder."""


def _included(tools: Toolchain, fill: Callable[[Path], None]) -> Path:
    """Return a folder of the cache with the files that `fill` writes, and the compiler's omp.h."""
    made = digest(
        repr(tools).encode(), repr(standin.RULES).encode(), fill.__name__.encode(), *contents_of(SHIM)
    )
    folder = cache_root() / "editor" / made
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fill(folder)
        if tools.family == "gcc":
            named = subprocess.run(
                [str(tools.compiler), "-print-file-name=include/omp.h"],
                capture_output=True,
                text=True,
                timeout=20,
            ).stdout.strip()
            if Path(named).is_file():
                shutil.copyfile(named, folder / GCC_OMP)
                (folder / "omp.h").write_text(OMP)
    except OSError as error:
        raise KitError(
            f"cannot write the cache {folder}: {error.strerror}; point GPT149_CACHE elsewhere"
        ) from error
    return folder
