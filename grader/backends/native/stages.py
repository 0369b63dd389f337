"""The three stages of a native build (front end, assembler, linker), and the files that each may read.

Theory of operation. A student's text can make the compiler read files: by `#include` and `#embed` in the front end, by
`.incbin` and `.include` in the assembler. So a library's machine code could enter the object. Two measures prevent it:

    views     each stage is a separate process in the sandbox. It sees its own programs and its inputs: header folders
              (front end), one file (assembler), the kit's objects and the compiler's libraries (linker).
    reports   front end and assembler list every file that they read (`-MD`, `--MD`). `refused` finds files that are
              neither headers nor the student's text. This also works in tiers that do not hide files. (The assembler
              also lists files that line markers name: the source and headers.)

clang assembles in its front end and does not list the files that its assembler reads: there only the views protect.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.backends.native.toolchain import Toolchain
from grader.core.harmless import one_line
from grader.sandbox.view import loaded_files

SOURCE, ASSEMBLY = "module.cpp", "module.s"
INCLUDED, ASSEMBLED = "included.d", "assembled.d"
#: Limit on the size of a list of read files. A student's text can make it long; an honest list is far shorter.
LARGEST_LIST_BYTES = 4 << 20
ASK_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Views:
    """Files and folders of the system that each stage sees, and the folders of headers."""

    front_end: tuple[Path, ...]
    assembler: tuple[Path, ...]
    linker: tuple[Path, ...]
    headers: tuple[Path, ...]

    def to_json(self) -> str:
        return json.dumps({name: [str(path) for path in paths] for name, paths in vars(self).items()})

    @classmethod
    def from_json(cls, text: str) -> Views:
        return cls(**{name: tuple(map(Path, paths)) for name, paths in json.loads(text).items()})

    def are_there(self) -> bool:
        """Return True if all files still exist. An upgrade of the system may have removed some."""
        return all(path.exists() for paths in vars(self).values() for path in paths)


def views(tools: Toolchain) -> Views:
    """Ask the compiler for the files that each stage needs. Outside of Linux (no sandbox), return only headers."""
    driver = str(tools.compiler)
    headers = tuple(_existing(_header_folders(driver)))
    if sys.platform != "linux":
        return Views((), (), (), headers)
    front_end = _programs(driver, ["cc1plus"])
    assembler = _programs(driver, ["as"])
    linker = _programs(driver, ["ld", "collect2"])
    loader = tuple(_existing(["/etc/ld.so.cache"]))
    return Views(
        front_end=(*front_end, *loader, *headers),
        assembler=(*assembler, *loader),
        linker=(*linker, *loader, *_existing([*_library_folders(driver), *_own_folders(driver)])),
        headers=headers,
    )


#: Flags with which the compiler stops after the front end and lists the files that it has read.
FRONT_END_FLAGS = ("-MD", "-MF", INCLUDED, "-S", SOURCE, "-o", ASSEMBLY)


def listing_flags(tools: Toolchain) -> tuple[str, ...]:
    """Return the flags with which the assembler lists the files that it has read."""
    return (f"-Wa,--MD,{ASSEMBLED}",) if tools.family == "gcc" else ()


#: Folders into which all packages of a machine install headers.
SHARED = re.compile(r"/usr(?:/local)?/include/(?:[^/]+-linux-gnu/)?")
#: Subfolders of SHARED folders with headers of the C library, Linux or a compiler. The last two hold headers of
#: libraries that the standard header <execution> includes if they are installed.
_SYSTEM = (
    "arpa asm asm-generic bits c++ gnu linux misc mtd net netinet netpacket protocols rpc scsi sys oneapi tbb"
)
SYSTEM_HEADERS = frozenset(_SYSTEM.split())


def refused(tools: Toolchain, folder: Path, list_name: str, headers: Iterable[Path]) -> str:
    """Return a message if a stage has read a file that it must not read; else "".

    `list_name` is the name of the stage's list of read files. A stage may read files in the build's own `folder` and
    below the folders `headers`. In folders that all packages share (SHARED), it may only read headers of the system and
    the compiler. A list that is missing or too long is refused, too. Clang's assembler writes no list, so nothing is
    checked there.
    """
    if list_name == ASSEMBLED and not listing_flags(tools):
        return ""
    try:
        with (folder / list_name).open("rb") as file:
            text = file.read(LARGEST_LIST_BYTES + 1)
    except OSError:
        text = b""
    known = tuple(f"{os.path.realpath(root)}{os.sep}" for root in (folder, *headers))
    read = list(_listed(text.decode(errors="replace"))) if len(text) <= LARGEST_LIST_BYTES else []
    if not read:
        return f"{SOURCE}: the compiler does not say which files it read"
    for name in read:
        path = os.path.realpath(os.path.join(folder, name))
        below = max((root for root in known if path.startswith(root)), key=len, default="")
        if not below:
            return (
                f"{SOURCE}: compiling it reads '{one_line(name, 200)}' (by #embed, .incbin or .include)\n"
                "hint: only your own text and headers may enter the program: write the kernel in C++"
            )
        if SHARED.fullmatch(below) and not _is_systems(path[len(below) :]):
            return (
                f"{SOURCE}: compiling it reads '{one_line(name, 200)}', a header of a library\n"
                "hint: kernels get the C and C++ standard libraries and no others: write the kernel in C++"
            )
    return ""


def _is_systems(name: str) -> bool:
    """Return True if `name`, a path in a folder of headers that packages share, belongs to the system or a compiler."""
    first, _, rest = name.partition(os.sep)
    return first in SYSTEM_HEADERS if rest else name.endswith(".h")


def _listed(text: str) -> Iterator[str]:
    """Yield the file names in a list of read files. The list is a rule for make, in which spaces are escaped."""
    _, _, names = text.replace("\\\n", " ").partition(": ")
    for name in re.findall(r"(?:\\.|\S)+", names):
        yield re.sub(r"\\([ #:\\])", r"\1", name).replace("$$", "$")


# ---- asking the compiler


def _asked(command: Sequence[str]) -> str:
    """Return the output of a compiler for a query option; "" if it does not run or does not end in time."""
    try:
        asked = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout + asked.stderr


def _header_folders(driver: str) -> list[str]:
    said = _asked([driver, "-E", "-v", "-x", "c++", os.devnull])
    return [
        line.strip()
        for line in said.partition("<...> search starts here:")[2].splitlines()
        if line[:1] == " "
    ]


def _library_folders(driver: str) -> list[str]:
    """Return the linker's library folders, but no folder (such as /usr/lib) that contains another one and much else."""
    found = re.search(r"^libraries: =(.*)$", _asked([driver, "-print-search-dirs"]), re.MULTILINE)
    folders = {os.path.realpath(folder) for folder in found.group(1).split(":")} if found else set()
    there = sorted(filter(os.path.isdir, folders))
    # The compiler may list one folder by several paths, such as /lib/... and /usr/lib/....
    outer = {folder for folder in there if any(other.startswith(f"{folder}{os.sep}") for other in there)}
    return [
        name
        for name in (os.path.normpath(folder) for folder in (found.group(1).split(":") if found else []))
        if os.path.realpath(name) not in outer
    ]


_OWN_FILES = "libgomp.spec libsanitizer.spec libgomp.so libstdc++.so libgcc.a crtbegin.o crt1.o"
OWN_FILES = tuple(_OWN_FILES.split())
"""Files in the compiler's own folders that it adds when it links a program."""


def _own_folders(driver: str) -> list[str]:
    """Return the folders of OWN_FILES. A compiler that is a script may omit them from its list of library folders."""
    found = [_asked([driver, f"-print-file-name={name}"]).strip() for name in OWN_FILES]
    # A found file may be a link to a file in another folder.
    named = [name for path in found if os.path.isabs(path) for name in (path, os.path.realpath(path))]
    return [os.path.dirname(name) for name in named]


def _programs(driver: str, names: Iterable[str]) -> tuple[Path, ...]:
    """Return the files of the compiler `driver` and its programs `names` ("as", "ld"): programs, links, libraries."""
    programs = [driver, *_behind_script(driver)]
    for name in names:
        said = _asked([driver, f"-print-prog-name={name}"]).strip()
        if found := shutil.which(said):
            programs.append(found)
    return tuple(dict.fromkeys(path for program in programs for path in loaded_files(program)))


#: Programs that scripts around a compiler commonly call by name, without a path.
SCRIPTS_TOOLS = ("sh", "bash", "env", "dirname", "basename", "readlink", "realpath", "uname", "cat")
LONGEST_SCRIPT_BYTES, MOST_SCRIPTS = 64 << 10, 100


def _behind_script(driver: str) -> list[str]:
    """Return the programs that a driver runs if it is a script; [] if it is a program.

    The programs are the script's interpreter, SCRIPTS_TOOLS, the compiler itself, and programs that the script, or a
    script that it calls, names by path.
    """
    scripts, found = [driver], dict[str, None]()
    for script in scripts:
        with open(script, "rb") as file:
            text = file.read(LONGEST_SCRIPT_BYTES).decode(errors="replace")
        if not text.startswith("#!"):
            continue
        named = filter(None, map(shutil.which, [*re.findall(r"/[\w./+-]+", text), *SCRIPTS_TOOLS]))
        called = [name for name in named if name not in found]
        found.update(dict.fromkeys(called))
        scripts += called if len(scripts) < MOST_SCRIPTS else []
    if found and (own := re.search(r"^COLLECT_GCC=(.+)$", _asked([driver, "-v"]), re.MULTILINE)):
        found.update(dict.fromkeys(filter(None, [shutil.which(own.group(1))])))
    return [*found]


def _existing(paths: Iterable[str | Path]) -> Iterator[Path]:
    for path in dict.fromkeys(map(Path, paths)):
        if path.exists():
            yield path
