"""Places in gcc's output that are the compiler's own.

A source influences much of a compiler's output: a string in `#pragma message` or `static_assert` may hold line ends,
and so whole lines that look like errors elsewhere. gcc writes the places of its messages in a configurable colour. Here
the colour is a random number of each run, which no source can know: text with it comes from the compiler.
"""

from __future__ import annotations

import re
import secrets

#: The option for output without marks, and its replacement with marks.
PLAIN, MARKED = "-fdiagnostics-color=never", "-fdiagnostics-color=always"
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m(?:\x1b\[K)?|\x1b\[K")
#: Beginning of a line that names a place, as `grader.source.diagnostics` reads it.
_PLACE = re.compile(rb"[^\s:][^:]*:\d+:")
_INCLUDED = re.compile(rb"In file included from |\s+from ")
_ERROR = re.compile(rb"[^\s:][^:]*:\d+:(?:\d+:)? +(?:fatal )?error: ")
#: Messages of assembler and linker with a place. They have no colours, and run only if the compiler found no error.
_LATER = re.compile(rb"[^\s:][^:]*:\d+: (?:Error|Fatal error|Warning|Info): ")


def drawn() -> str:
    """Draw a mark for one run. It consists of digits, as only digits may be a colour."""
    return str(secrets.randbelow(1 << 62) + (1 << 62))


def colors(mark: str) -> str:
    """Return the value of GCC_COLORS."""
    return f"locus={mark}"


def plain(output: bytes, mark: str) -> bytes:
    """Return gcc's messages without colours. Lines that name a place but do not come from the compiler are indented, so
    that they do not look like errors.
    """
    sign = b"\x1b[%sm\x1b[K" % mark.encode()
    lines = [(sign in line, line.startswith(sign), _COLOUR.sub(b"", line)) for line in output.split(b"\n")]
    has_errors = any(begins and _ERROR.match(text) for _, begins, text in lines)
    return b"\n".join(
        text if is_own or (not has_errors and _LATER.match(text)) else _indented(text)
        for is_own, _, text in lines
    )


def _indented(text: bytes) -> bytes:
    if _INCLUDED.match(text):
        return b"  | " + text.lstrip()
    return b"  " + text if _PLACE.match(text) else text
