"""Text of strangers made fit to be printed, and the stream through which both command lines print everything.

Names, sources, messages and output come from students. Whatever writes them to a terminal unchanged lets a student set
its title, erase lines or fake a "complete". So text is made harmless where it is printed, not where it is told:
`guard_standard_streams` puts a `HarmlessStream` in front of stdout and stderr, and that writes no character that a
terminal obeys. The kit's own colours and progress line are named sequences (CONTROLS), which only `control` writes.
"""

from __future__ import annotations

import io
import sys
import unicodedata
from collections.abc import Callable, Iterable
from typing import TextIO, cast

MARK = "?"
"""Replacement for each harmful character: one column wide, in every encoding."""
#: Line ends and tabs, and what names in Arabic, Hebrew, Persian or Hindi hold between their letters.
KEPT = "\n\t\u200c\u200d\u200e\u200f"
#: Control, format (direction of text, invisible letters) and lone surrogate characters; line and paragraph separators.
_HARMFUL_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")

#: The kit's own terminal sequences (ECMA-48), by what they do.
CONTROLS = {
    "good": "\x1b[1;32m",
    "bad": "\x1b[1;31m",
    "warn": "\x1b[1;33m",
    "plain": "\x1b[0m",
    "rewrite": "\r\x1b[K",
    # Backgrounds, from light to dark, each with letters that can be read on it.
    "few": "\x1b[30;48;5;223m",
    "many": "\x1b[30;48;5;208m",
    "most": "\x1b[97;48;5;160m",
}


class _Replacements(dict[int, str]):
    """For `str.translate`: each character's replacement, found when it is first met."""

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
    """The text with `mark` ("?" or U+FFFD) in place of each character that a terminal obeys, that turns the direction
    of what follows, or that no encoding holds. Newlines and tabs stay, "\\r\\n" becomes "\\n". Time is linear."""
    return text.replace("\r\n", "\n").translate(_REPLACEMENTS[mark])


def one_line(text: str, most: int = 80, clean: Callable[[str], str] = harmless) -> str:
    """A stranger's name or value within a message: one harmless line of at most `most` characters, which `clean` makes
    so."""
    # Cleaning costs time per character, and a text can be long: cut first, with room for what is removed.
    kept = " ".join(clean(text[: 4 * most]).split())
    if len(kept) <= most and len(text) <= 4 * most:
        return kept
    kept = kept[: most - 1]
    while kept and unicodedata.combining(kept[-1]):
        kept = kept[:-1]
    return kept + "…"


class HarmlessStream(io.TextIOBase):
    """A text stream that makes harmless whatever is written to it, and hands it on to the one beneath."""

    def __init__(self, beneath: TextIO) -> None:
        self._beneath = beneath

    def write(self, text: str) -> int:
        """Raises what the stream beneath raises: OSError, ValueError if it is closed."""
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
    """The stream behind a HarmlessStream, unless it is one."""
    return stream if isinstance(stream, HarmlessStream) else cast(TextIO, HarmlessStream(stream))


def unguarded(stream: TextIO) -> TextIO:
    """The stream beneath, for a library that writes terminal sequences of its own: what it is told to show has to be
    made harmless before."""
    return stream._beneath if isinstance(stream, HarmlessStream) else stream


def control(stream: TextIO, name: str) -> None:
    """Write one of CONTROLS."""
    unguarded(stream).write(CONTROLS[name])


def guard_standard_streams() -> None:
    """From here on whatever this process prints to stdout and stderr is harmless."""
    # A student's line, or name, may hold what the terminal's encoding does not.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)
