"""A C++ source as text: what is left of it without comments and literals. Linear, since a stranger wrote it."""

from __future__ import annotations

import re

#: What may open a comment or a literal, and what must be read as a whole so that nothing inside opens one: names and
#: numbers, whose digits a ' may separate. Every alternative reads on from where it begins and never tries again.
TOKEN = re.compile(
    r"//(?:\\.|[^\\\n])*"
    r"|(?P<comment>/\*)"
    r'|(?:u8|[uUL])?R"(?P<mark>[^()\\\s"]{0,16})\('
    r'|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"?'
    r"|(?:u8|[uUL])?'(?:\\.|[^'\\\n])*'?"
    r"|(?P<word>\.?\d(?:'\w|[\w.])*|[A-Za-z_]\w*)",
    re.DOTALL,
)
#: A directive by which a file gives its lines other numbers and names; in a text without comments.
LINE_DIRECTIVE = re.compile(r"^[ \t\f\v]*(?:#|%:)[ \t\f\v]*(?:line\b|\d)", re.MULTILINE)
SPLICE = re.compile(r"\\[ \t\r]*\n")


def without_comments(source: str) -> str:
    """The source with a space for each comment, string and character. One that is never closed ends with its line, or
    with the file where it may span lines. Linear in the source's length."""
    kept, start, at = [], 0, 0
    while token := TOKEN.search(source, at):
        at = token.end()
        if token["word"] is not None:
            continue
        kept += [source[start : token.start()], " "]
        if token["comment"] or token["mark"] is not None:
            closing = "*/" if token["comment"] else f'){token["mark"]}"'
            end = source.find(closing, at)
            at = len(source) if end < 0 else end + len(closing)
        start = at
    return "".join([*kept, source[start:]])


def renames_lines(source: str) -> bool:
    """Whether the file itself names its lines, so that places in the compiler's messages are its own words."""
    return LINE_DIRECTIVE.search(without_comments(SPLICE.sub("", source))) is not None
