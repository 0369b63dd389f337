"""Bundles: the Python files of one hand-in, joined into one file that is stored, sent and compared as a whole.

In a bundle, each file's content follows a line with its name and size. Names are paths relative to the folder that was
handed in. The main file is first. `Bundle` finds modules in a bundle as Python finds them in folders. This module
imports nothing of the kit, because processes with student code use it as well.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping

HEAD = re.compile(rb"# ---- ((?:\w[\w-]*/)*\w[\w-]*\.py) \((\d{1,8}) bytes\)\n")
INIT = "__init__.py"
#: Paths of files in which a hand-in of the course CS336 names the classes to judge, relative to the hand-in's folder.
ADAPTERS = ("tests/adapters.py", "adapters.py")
MOST_FILES = 100
#: Names of modules that are never looked for in a hand-in: Python's own modules, and these libraries.
INSTALLED = sys.stdlib_module_names | {"torch", "triton", "numpy", "cffi"}


def pack(files: Mapping[str, bytes]) -> bytes:
    """Join files into one bundle, in their order. A single file is returned unchanged."""
    if len(files) == 1:
        return next(iter(files.values()))
    return b"".join(
        b"# ---- %s (%d bytes)\n%s\n" % (name.encode(), len(content), content)
        for name, content in files.items()
    )


def split(data: bytes) -> dict[str, bytes]:
    """Return the files of a bundle by name, the main file first; {} for data that is not a bundle."""
    found: dict[str, bytes] = {}
    place = 0
    while place < len(data):
        head = HEAD.match(data, place)
        if head is None or len(found) == MOST_FILES:
            return {}
        place = head.end() + int(head[2]) + 1
        found[head[1].decode()] = data[head.end() : place - 1]
    return found


def first_lines(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield (number of the file's first line in the bundle, file's name) for each file of a bundle.

    Yield nothing for data that is not a bundle.
    """
    line = 1
    for name, content in split(data).items():
        yield line + 1, name
        line += content.count(b"\n") + 2


def roots(main: str, top: str) -> Iterator[str]:
    """Yield the folders in which the top-level module or package `top` may lie, as prefixes of paths ("src/").

    `main` is the path of the main file, whose folder is one of them.
    """
    folder = main.rpartition("/")[0]
    yield from dict.fromkeys(("", f"{folder}/" if folder else "", "src/", f"{top.replace('_', '-')}/"))


class Bundle:
    """The files of one hand-in by name, the main file first."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        self.main = next(iter(files))
        self._places: dict[str, str] = {}

    def place(self, module: str) -> str:
        """Return the path of a module's file, or "FOLDER/" for a package without `__init__.py`.

        Return "" if the hand-in has no such module.
        """
        if module not in self._places:
            self._places[module] = self._place(module)
        return self._places[module]

    def _place(self, module: str) -> str:
        top = module.partition(".")[0]
        for root in () if top in INSTALLED else roots(self.main, top):
            path = root + module.replace(".", "/")
            for file in (f"{path}/{INIT}", f"{path}.py"):
                if file in self.files:
                    return file
            if any(file.startswith(f"{path}/") for file in self.files):
                return f"{path}/"
        return ""

    def module_of(self, file: str) -> str:
        """Return the module name by which a file is imported; "" if no import leads to the file."""
        *folders, last = file.split("/")
        first = len(folders)
        while first and "/".join([*folders[:first], INIT]) in self.files:
            first -= 1
        names = [*folders[first if first < len(folders) else 0 :], last.removesuffix(".py")]
        module = ".".join(names[:-1] if last == INIT else names)
        return module if self.place(module) == file else ""

    def adapters(self) -> str:
        """Return the path of the first file named adapters.py (see ADAPTERS); "" if the hand-in has none."""
        found = (file for file in self.files if file.rpartition("/")[2] == "adapters.py")
        return next(found, "")
