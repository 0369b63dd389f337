"""`python -m module_ref_stub [FOLDER]`: build the reference library, if the cache lacks it, and print its path.

With a FOLDER, build into it the object files that a handout contains (reference and expert kernels), for this platform,
and print their paths. Exit code 3 if a build fails.
"""

from __future__ import annotations

import platform
from pathlib import Path

from grader.core import commandline
from grader.core.commandline import Parser
from grader.core.errors import EXIT_PASS, UsageError
from module_ref_stub.library import RECIPES, build_prebuilt, has_sources, library_path


def run(arguments: list[str]) -> int:
    parse = Parser(prog="python -m module_ref_stub", description=(__doc__ or "").splitlines()[0])
    parse.add_argument(
        "folder", metavar="FOLDER", type=Path, nargs="?", help="where to build a handout's compiled files"
    )
    folder = parse.parse_args(arguments).folder
    if folder is None:
        print(library_path())
        return EXIT_PASS
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}")
    if not has_sources():
        raise UsageError("this copy of the kit is a handout: it does not hold the reference's sources")
    from grader.backends.native.toolchain import toolchain

    compiler = str(toolchain().compiler)
    for recipe in RECIPES:
        print(build_prebuilt(folder, platform.system(), platform.machine(), compiler, recipe))
    return EXIT_PASS


if __name__ == "__main__":
    commandline.main("module_ref_stub", run)
