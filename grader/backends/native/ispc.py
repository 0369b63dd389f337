"""Finds module.ispc, a submission's second file in ISPC (Intel's language for SIMD), and makes its compile command.

module.ispc is compiled before module.cpp, in the same sandbox. `ispc` makes the header module_ispc.h and an object.
module.cpp includes the header, and the objects of both files are linked. The judge does not parse module.ispc. It only
checks if the file holds more than white space and comments. If not, the kit writes an empty header, because ispc
refuses an empty file.

A machine without `ispc` cannot judge such a submission. That is not the student's fault: the verdict is `unjudged`.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.backends.native.toolchain import X86
from grader.core import machine
from grader.core.errors import UsageError, explained

TOOL = "ispc"
SOURCE, HEADER, OBJECT = "module.ispc", "module_ispc.h", "module_ispc.o"
WHERE_FROM = "https://ispc.github.io"
#: A larger file counts as not empty without a check. Submissions are smaller.
LONGEST_EMPTY_BYTES = 1 << 20
VERSION_TIMEOUT_S, PROBE_TIMEOUT_S = 20.0, 60.0
NOT_SPACE = re.compile(rb"\S")

#: Header for an empty module.ispc. It declares the namespace, because module.cpp may say `using namespace ispc`.
EMPTY_HEADER = b"#pragma once\nnamespace ispc {}\n"
#: A program that every ispc can compile. If compiling this fails too, the student's file is not at fault.
PROBE = b"export void gpt149_probe(uniform float values[]) { values[programIndex] = 0; }\n"

LACKING = (
    f"This machine has no working {TOOL} to compile {SOURCE}: nothing is judged, and no points "
    f"are lost. Install it ({WHERE_FROM}), put it on the PATH, and judge again."
)
DOES_NOT_RUN = (
    f"The {TOOL} of this machine cannot compile even the kit's own test file in the sandbox: nothing is judged, and no "
    f"points are lost. Install an ispc that every user can read and run ({WHERE_FROM}), and judge again."
)
LEFT_OUT = f"{SOURCE} was left out: this machine has no working {TOOL} ({WHERE_FROM})"

#: Instruction sets that ispc's avx2 targets need, by their names in /proc/cpuinfo.
AVX2_FLAGS = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2"})


@dataclass(frozen=True)
class Compiler:
    """A working `ispc`. `version` is the line from its --version; `target` names instruction set and gang size."""

    path: str
    modified_ns: int
    size_bytes: int
    version: str
    arch: str
    target: str

    def command(self, source: str, macros: Sequence[str] = ()) -> list[str]:
        """Return the command line. It must run in the folder of `source`, and writes HEADER and OBJECT there."""
        flags = ("-O3", "--pic", f"--arch={self.arch}", f"--target={self.target}", *macros)
        return [self.path, *flags, source, "-h", HEADER, "-o", OBJECT]

    def files(self) -> tuple[Path, ...]:
        """Return the paths that ispc needs besides the system's folders: its program, its libraries and its data.

        The parent of ispc's `bin` is not included as a whole: it may be a person's home folder.
        """
        program = Path(self.path)
        prefix = program.parent.parent
        parts = [prefix / "lib", prefix / "lib64", prefix / "share" / TOOL]
        return (program, *(part for part in parts if prefix != Path("/") and part.is_dir()))


@dataclass(frozen=True)
class IspcFile:
    """A module.ispc that was handed in. `compiler` is None if no ispc runs on this machine."""

    text: bytes
    compiler: Compiler | None

    @property
    def is_empty(self) -> bool:
        return is_empty(self.text)

    @property
    def cannot_be_compiled(self) -> bool:
        return self.compiler is None and not self.is_empty


def beside(source: Path) -> IspcFile | None:
    """Return the module.ispc in the folder of `source`, with this machine's ispc; None without such a file.

    Raises UsageError if the file cannot be read.
    """
    path = source.parent / SOURCE
    if not path.is_file():
        return None
    with explained(f"cannot read {path}"):
        text = path.read_bytes()
    return IspcFile(text, compiler())


def is_empty(text: bytes) -> bool:
    """Return True if a file holds only white space and comments that are closed. Takes linear time."""
    if len(text) > LONGEST_EMPTY_BYTES:
        return False
    at = 3 if text.startswith(b"\xef\xbb\xbf") else 0
    while found := NOT_SPACE.search(text, at):
        opening, closing = text[found.start() : found.start() + 2], -1
        if opening == b"//":
            closing = text.find(b"\n", found.end())
            if closing < 0:
                return True
        elif opening == b"/*":
            closing = text.find(b"*/", found.start() + 2) + 1
        if closing <= 0:
            return False
        at = closing + 1
    return True


#: Errors of compilers and linkers for a name that is not declared or defined.
LACKS_A_NAME = re.compile(
    r"not declared|undeclared|undefined (?:reference|symbol|function)|not a member|no member"
)


def must_wait(text: bytes, handed_in: IspcFile | None) -> bool:
    """Return True if a module.cpp with this text cannot be compiled because this machine has no `ispc`.

    A text that does not name ispc's header may compile without ispc: module.ispc may be a leftover.
    """
    return handed_in is not None and handed_in.cannot_be_compiled and HEADER.encode() in text


def waits_for(source: Path) -> str:
    """Return the tool that a submission needs and this machine lacks; "" for none. Nothing is built.

    Returns "" also if a file cannot be read: the build will report that.
    """
    try:
        handed_in = beside(source)
        return TOOL if handed_in is not None and must_wait(source.read_bytes(), handed_in) else ""
    except (OSError, UsageError):
        return ""


def describe(source: Path) -> dict[str, object]:
    """Return the entry about ispc for a result's toolchain; {} unless ispc compiles a file of the submission."""
    handed_in = beside(source)
    if handed_in is None or handed_in.is_empty or handed_in.compiler is None:
        return {}
    return {"ispc": f"{handed_in.compiler.version}, target {handed_in.compiler.target}"}


# ---- the compiler of this machine


def compiler() -> Compiler | None:
    """Return the `ispc` on the PATH; None without one, or if it does not run."""
    found = shutil.which(TOOL)
    if found is None:
        return None
    path = os.path.realpath(found)
    try:
        status = os.stat(path)
    except OSError:
        return None
    return _compiler_at(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4)
def _compiler_at(path: str, modified_ns: int, size_bytes: int) -> Compiler | None:
    """Return the `ispc` at `path`; None if it does not run. Cached until its modification time or size changes."""
    version = version_of(machine.answer([path, "--version"], VERSION_TIMEOUT_S))
    if not version:
        return None
    arch, target = target_of(platform.machine(), _processor_flags())
    return Compiler(path, modified_ns, size_bytes, version, arch, target)


def version_of(said: str) -> str:
    """Return the version line from the output `said` of `ispc --version`; "" if no line names ispc."""
    return next((line.strip() for line in said.splitlines() if TOOL in line.lower()), "")[:200]


def target_of(machine: str, flags: frozenset[str]) -> tuple[str, str]:
    """Return the values of ispc's options --arch and --target for a processor with these instruction sets (`flags`).

    Gangs have 8 lanes, as in the course's published command line.
    """
    if machine.lower() not in X86:
        return "aarch64", "neon-i32x8"
    return "x86-64", "avx2-i32x8" if flags >= AVX2_FLAGS else "sse4-i32x8"


def _processor_flags() -> frozenset[str]:
    """Return the instruction sets of this processor by their names in /proc/cpuinfo; empty if they are unknown."""
    try:
        with open("/proc/cpuinfo") as facts:
            for line in facts:
                if line.startswith("flags"):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()
