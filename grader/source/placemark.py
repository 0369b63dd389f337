"""Marks by which the true places in gcc's output differ from places that a source makes gcc print.

A string in `#pragma message` or `static_assert` may hold line ends. So a source can make gcc print whole lines that
look like errors in other places. gcc prints the places of its own messages in a colour, which can be configured. The
kit makes this colour a random number for each run. A source cannot know it, so text with this colour comes from gcc.
"""

from __future__ import annotations

import re
import secrets

#: gcc's option for output without colours, and the option that replaces it to get marks.
PLAIN, MARKED = "-fdiagnostics-color=never", "-fdiagnostics-color=always"
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m(?:\x1b\[K)?|\x1b\[K")
#: Start of a line that names a place, in the format that `grader.source.diagnostics` reads.
_PLACE = re.compile(rb"[^\s:][^:]*:\d+:")
_INCLUDED = re.compile(rb"In file included from |\s+from ")
_ERROR = re.compile(rb"[^\s:][^:]*:\d+:(?:\d+:)? +(?:fatal )?error: ")
#: Messages of the assembler with a place. They have no colours, and appear only if the compiler found no error.
_LATER = re.compile(rb"[^\s:][^:]*:\d+: (?:Error|Fatal error|Warning|Info): ")


def drawn() -> str:
    """Draw the random mark for one run. It consists of digits only, as a colour must."""
    return str(secrets.randbelow(1 << 62) + (1 << 62))


def colors(mark: str) -> str:
    """Return the value of the environment variable GCC_COLORS that makes gcc use the mark."""
    return f"locus={mark}"


def plain(output: bytes, mark: str) -> bytes:
    """Return gcc's messages without colours. Lines that imitate a place are indented: they are not read as errors."""
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
