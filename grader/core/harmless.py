"""Untrusted text made safe to print, and the stream through which both command lines print.

Names, sources, messages and output come from students. Printed unchanged, such text can set a terminal's title, erase
lines or fake a line of the kit. So text is cleaned where it is printed, not where it is made: `guard_standard_streams`
puts a `HarmlessStream` in front of stdout and stderr. The stream replaces every character that is a command to a
terminal. The kit's own colours and progress line are named sequences (CONTROLS), which only `control` writes.
"""

from __future__ import annotations

import io
import sys
import unicodedata
from collections.abc import Callable, Iterable
from typing import TextIO, cast

MARK = "?"
"""Replacement for each harmful character: one column wide, in every encoding."""
#: Characters that are not replaced: line ends, tabs, and invisible marks of Arabic, Hebrew, Persian and Hindi names.
KEPT = "\n\t\u200c\u200d\u200e\u200f"
#: Unicode categories of replaced characters: control, format, lone surrogates, line and paragraph separators.
_HARMFUL_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")

#: The control sequences (ECMA-48) that the kit itself sends to a terminal, by purpose.
CONTROLS = {
    "good": "\x1b[1;32m",
    "bad": "\x1b[1;31m",
    "warn": "\x1b[1;33m",
    "plain": "\x1b[0m",
    "rewrite": "\r\x1b[K",
    # Background colours from light to dark, each with a readable text colour.
    "few": "\x1b[30;48;5;223m",
    "many": "\x1b[30;48;5;208m",
    "most": "\x1b[97;48;5;160m",
}


class _Replacements(dict[int, str]):
    """A table for `str.translate` that replaces harmful characters by `mark`. Entries are computed on first use."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    def __missing__(self, code: int) -> str:
        self[code] = found = self.mark if _is_harmful(chr(code)) else chr(code)
        return found


_REPLACEMENTS = {mark: _Replacements(mark) for mark in (MARK, "\ufffd")}


def _is_harmful(char: str) -> bool:
    is_noncharacter = ord(char) & 0xFFFE == 0xFFFE or "\ufdd0" <= char <= "\ufdef"
    return char not in KEPT and (unicodedata.category(char) in _HARMFUL_CATEGORIES or is_noncharacter)


def harmless(text: str, mark: str = MARK) -> str:
    """Replace each character that is unsafe to print with `mark` ("?" or U+FFFD).

    Unsafe are noncharacters and all characters of _HARMFUL_CATEGORIES, except KEPT. "\\r\\n" becomes "\\n". Takes
    linear time.
    """
    return text.replace("\r\n", "\n").translate(_REPLACEMENTS[mark])


def one_line(text: str, most: int = 80, clean: Callable[[str], str] = harmless) -> str:
    """Return untrusted text, cleaned by `clean`, as one line of at most `most` characters. "…" marks a cut."""
    # Cleaning a long text is slow: cut it first, but keep more than `most` characters, as cleaning removes some.
    kept = " ".join(clean(text[: 4 * most]).split())
    if len(kept) <= most and len(text) <= 4 * most:
        return kept
    kept = kept[: most - 1]
    while kept and unicodedata.combining(kept[-1]):
        kept = kept[:-1]
    return kept + "…"


class HarmlessStream(io.TextIOBase):
    """A text stream that cleans each text with `harmless` and writes it to another stream, the stream beneath."""

    def __init__(self, beneath: TextIO) -> None:
        self._beneath = beneath

    def write(self, text: str) -> int:
        """Write the cleaned text. Raises OSError, or ValueError if the stream beneath is closed."""
        self._beneath.write(harmless(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        for text in lines:
            self.write(text)

    def flush(self) -> None:
        if not self._beneath.closed:
            self._beneath.flush()

    def isatty(self) -> bool:
        return self._beneath.isatty()

    def fileno(self) -> int:
        return self._beneath.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._beneath.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._beneath.errors


def guarded(stream: TextIO) -> TextIO:
    """Wrap a stream in a HarmlessStream, unless it already is one."""
    return stream if isinstance(stream, HarmlessStream) else cast(TextIO, HarmlessStream(stream))


def unguarded(stream: TextIO) -> TextIO:
    """Return the stream beneath a HarmlessStream; return any other stream unchanged.

    This is for a library that writes terminal sequences. The caller must clean untrusted text before it passes the text
    to that library.
    """
    return stream._beneath if isinstance(stream, HarmlessStream) else stream


def control(stream: TextIO, name: str) -> None:
    """Write the sequence `name` of CONTROLS to the stream."""
    unguarded(stream).write(CONTROLS[name])


def guard_standard_streams() -> None:
    """From now on, replace harmful characters in all that this process prints to stdout and stderr."""
    # Printing fails for characters that the terminal's encoding lacks, and a student's text may hold some: escape them.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)
