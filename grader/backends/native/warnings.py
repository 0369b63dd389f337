"""Compiler warnings that may explain a wrong result.

Judged builds print no warnings, because style warnings would bury the errors. If a result is wrong, the file is
compiled again with a few warnings about possible causes: variables that are read before they are set, floats that are
cut to integers, indices beyond a local array, comparisons that are always true.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.backends.native import standin
from grader.backends.native.compilers import define_flags, run_limited_compiler
from grader.backends.native.nativebuild import OWN_FLAGS
from grader.backends.native.toolchain import cache_root
from grader.core import objectcache
from grader.core.errors import KitError
from grader.core.harmless import harmless, one_line

_WARNINGS = (
    "uninitialized maybe-uninitialized float-conversion empty-body div-by-zero sequence-point array-bounds "
    "type-limits"
)
FLAGS = tuple(f"-W{name}" for name in _WARNINGS.split())
#: Optimization level at which the compiler follows values through a function. Some warnings need this.
OPTIMISED = ("-O1",)
TIMEOUT_S = 20.0
MOST_SHOWN, MOST_OUTPUT = 3, 1 << 18
WARNING = re.compile(
    r"^module\.cpp:(?P<line>\d{1,9}):\d+: warning: (?P<text>.*?) \[-W(?P<flag>[\w-]+)=?\]?$", re.MULTILINE
)
#: Warnings to leave out: conversions to floating types (of the double from exp(), say), which keep the fraction.
ROUNDED = re.compile(r"to '(?:float|double|long double)'")


@dataclass(frozen=True)
class Warned:
    """One warning: the line in the student's file, the compiler's text and the name of its flag."""

    line: int
    text: str
    flag: str


def warned(
    source: Path, defines: Mapping[str, str], spans: Collection[tuple[int, int]]
) -> tuple[Warned, ...]:
    """Return the first warnings for lines in `spans`, pairs of (first, last) line; () without a compiler or file."""
    try:
        found = _all(source.read_bytes(), define_flags(defines))
    except (KitError, OSError):
        return ()
    return tuple(each for each in found if any(a <= each.line <= b for a, b in spans))[:MOST_SHOWN]


@functools.lru_cache(maxsize=4)
def _all(text: bytes, macros: tuple[str, ...]) -> tuple[Warned, ...]:
    """Return the warnings for a whole file. Cached, because several parts need them."""
    prepared = standin.prepare(OWN_FLAGS, macros)
    with objectcache.workplace(cache_root()) as place:
        (place / "module.cpp").write_bytes(text)
        command = [word for word in prepared.command() if word != "-w"]
        finished = run_limited_compiler(
            [*command, *macros, *FLAGS, *OPTIMISED, "-c", "module.cpp", "-o", "module.o"], place, TIMEOUT_S
        )
    output = finished.output.decode(errors="replace")[:MOST_OUTPUT]
    found = [
        Warned(int(match["line"]), one_line(harmless(match["text"]), 120), match["flag"])
        for match in WARNING.finditer(output)
    ]
    return tuple(dict.fromkeys(each for each in found if not ROUNDED.search(each.text)))
