"""Python files of a hand-in: the main file and all files that it imports from its own folders.

The files are found by following import statements from the main file and from adapters (`filebundle.ADAPTERS`). Other
files in the folders are neither read nor judged. Regular expressions find the imports, so an import in a comment may
add a file that is not needed. Python's own modules, torch, Triton and NumPy are never part of a hand-in. Links are not
followed.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from grader.core import plainfile
from grader.core.errors import UsageError
from grader.core.filebundle import ADAPTERS, INIT, INSTALLED, MOST_FILES, pack, roots, split
from grader.core.quantities import size_text

MOST_BYTES = 1 << 20
MOST_PLACES, MOST_LOOKS = 20_000, 100_000
"""Limits on the number of different paths at which a file is looked for, and on the number of all look-ups."""
MOST_NAMES, MOST_PARTS = 200, 12
"""Limits on the names in one import statement, and on the parts of a dotted name."""
ASKED = b"get_flashattention_autograd_function_"
"""Start of the names of functions in CS336's adapters for attention. A file of adapters without this text is
ignored."""
OF_LAB = b"from grader.assignment.labs import"
"""Text that marks the `__init__.py` of a lab."""
_IMPORT = re.compile(rb"(?:^|[;:])[ \t]*import[ \t]+([^\n#;]+)", re.MULTILINE)
_FROM = re.compile(
    rb"(?:^|[;:])[ \t]*from[ \t]+([.\w]+)[ \t]*import[ \t]*(\([^)]{0,4000}|[^\n#;]*)", re.MULTILINE
)
_PART = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)

Read = Callable[[str], "bytes | None"]
"""Function that returns the content of the plain file at a path, or None without one."""


class TooMany(Exception):
    """Error for a hand-in that imports too many files, bytes or names. The message follows the hand-in's name."""


def gathered(main: str, content: bytes, read: Read) -> dict[str, bytes]:
    """Return the contents of the main file and of all files that it imports, directly or indirectly, by name.

    A file's name is its path relative to the folder in which Python looks for absolute imports.

    Args:
        main: path of the main file, whose content is `content`.
        read: reader for the other files, by path.

    Raises TooMany for more than MOST_FILES files, MOST_BYTES bytes or too many look-ups.
    """
    folder = _root(main.rpartition("/")[0], read)
    top = f"{folder}/" if folder or main[:1] == "/" else ""
    own = (
        re.sub(r"[^\w/-]|(?<![^/])-", "_", main.removeprefix(top).removesuffix(".py"), flags=re.ASCII) + ".py"
    )
    found, pending, looks = {own: content}, [own], 0
    looked: set[tuple[str, bytes]] = set()

    def look(name: str, asked: bytes = b"") -> None:
        nonlocal looks
        looks += 1
        if len(looked) > MOST_PLACES or looks > MOST_LOOKS:
            raise TooMany("imports too many names: hand in only the files that are needed")
        if (name, asked) not in looked and name not in found:
            looked.add((name, asked))
            text = read(top + name)
            if text is not None and asked in text:
                found[name] = text
                pending.append(name)

    for name in (*ADAPTERS, f"{own.rpartition('/')[0]}/adapters.py".lstrip("/")):
        look(name, ASKED)
    while pending:
        name = pending.pop()
        for wanted in chain(_packages(name), _wanted(own, name, found[name])):
            look(wanted)
        if len(found) > MOST_FILES or sum(map(len, found.values())) > MOST_BYTES:
            raise TooMany(
                f"imports more than {MOST_FILES} files or {size_text(MOST_BYTES)} of its own: hand in what is needed"
            )
    return found


def _root(folder: str, read: Read) -> str:
    """Return the folder in which Python looks for absolute imports of a main file that lies in `folder`.

    In a hand-in of CS336, this is the parent of the main file's package, because ADAPTERS lie there.
    """
    while folder and read(f"{folder}/{INIT}") is not None:
        folder = folder.rpartition("/")[0]
    outer = folder.rpartition("/")[0]
    places = [f"{outer}/{name}" if outer or folder[:1] == "/" else name for name in ADAPTERS]
    is_course = bool(folder) and any(ASKED in (read(place) or b"") for place in places)
    return outer if is_course else folder


def _packages(name: str) -> Iterator[str]:
    """Yield the path of `__init__.py` in each folder that contains the file `name`."""
    folders = name.split("/")[:-1]
    for count in range(1, len(folders) + 1):
        yield "/".join([*folders[:count], INIT])


def _wanted(main: str, name: str, content: bytes) -> Iterator[str]:
    """Yield the paths at which the modules imported by the file `name` may lie. `main` is the main file's name."""
    text = re.sub(rb"\\\r?\n", b" ", content)
    for found in _IMPORT.finditer(text):
        for module in re.findall(rb"[\w.]+", found[1])[:MOST_NAMES]:
            yield from _places(main, name, module.decode("latin-1"), ())
    for found in _FROM.finditer(text):
        names = [each.decode("latin-1") for each in re.findall(rb"\w+", found[2])[:MOST_NAMES]]
        yield from _places(main, name, found[1].decode("latin-1"), names)


def _places(main: str, name: str, module: str, names: list[str] | tuple[()]) -> Iterator[str]:
    """Yield the paths where `module`, imported by the file `name`, and its submodules `names` may lie.

    `main` is the main file's name.
    """
    dotted = module.lstrip(".")
    level = len(module) - len(dotted)
    parts = dotted.split(".") if dotted else []
    folders = name.split("/")[:-1]
    if len(parts) > MOST_PARTS or level > len(folders) + 1 or not all(map(_PART.fullmatch, parts)):
        return
    if not level and (not parts or parts[0] in INSTALLED):
        return
    around = folders[: len(folders) - level + 1] if level else []
    for root in ["".join(f"{each}/" for each in around)] if level else roots(main, parts[0]):
        for count in range(1, len(parts) + 1):
            path = root + "/".join(parts[:count])
            yield f"{path}/{INIT}"
            if count == len(parts):
                yield f"{path}.py"
        folder = root + "".join(f"{part}/" for part in parts)
        for each in filter(_PART.fullmatch, names):
            yield f"{folder}{each}/{INIT}"
            yield f"{folder}{each}.py"


def bundled(main: str, content: bytes, read: Read) -> bytes:
    """Return the main file and all files that it needs as one bundle. A file that needs none is returned unchanged.

    Raises TooMany, as `gathered` does.
    """
    return content if split(content) else pack(gathered(main, content, read))


# ---- on disk


def whole(source: Path) -> bytes:
    """Return the content of a source on disk: for a Python file, a bundle with the modules that it imports.

    Raises UsageError for a file that cannot be read, and if the imports exceed a limit of `gathered`.
    """
    try:
        content = source.read_bytes()
        path = source.resolve().as_posix()
        return bundled(path, content, on_disk) if source.suffix == ".py" else content
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from error
    except TooMany as error:
        raise UsageError(f"{source} {error}") from error


def members(source: Path) -> dict[str, Path]:
    """Return the paths of a hand-in's files by name, the main file first.

    Return {} for a hand-in of a single file, or if reading fails.
    """
    path = source.resolve()
    try:
        found = gathered(path.as_posix(), path.read_bytes(), on_disk) if path.suffix == ".py" else {}
    except (OSError, TooMany):
        return {}
    main = next(iter(found), "")
    top = path.parents[main.count("/")]
    # `gathered` renames a main file whose name is not a valid module name: use its true path.
    return {name: path if name == main else top / name for name in found} if len(found) > 1 else {}


def main_in(folder: Path, name: str) -> Path:
    """Return the file to judge in a folder: `name` if it exists, else the folder itself.

    For a Python file `name` that is missing, try ADAPTERS before the folder.
    """
    places = [folder / each for each in (name, *(ADAPTERS if name.endswith(".py") else ()))]
    return next((path for path in places if path.is_file()), folder)


def on_disk(path: str) -> bytes | None:
    """Read a Python file for `gathered`; None if it is missing, reached by a link, or the `__init__.py` of a lab."""
    try:
        content = plainfile.read(path, MOST_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise TooMany(f"imports {path}, which is too large: {error.strerror}") from error
        return None
    # A teacher may judge the lab's master file, which lies in the lab's folder. That folder's `__init__.py` belongs to
    # the kit and is not a part of the hand-in.
    is_of_lab = path.endswith(f"/{INIT}") and OF_LAB in content
    return content if os.path.realpath(path) == path and not is_of_lab else None
