"""A C++ source as text: what is left of it without comments and literals. Linear, since a stranger wrote it."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

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
    return _code(source, _Spliced(source, [], []))


def without_layout(source: str) -> str:
    """The source without its comments, blank lines and superfluous blanks, literals as they are: where two sources are
    equal in this, they mean the same but for line numbers (`__LINE__`). Linear in the source's length."""
    spliced = _Spliced(source, [], [])
    pieces, code, start, at = [], ["\n"], 0, 0
    while token := TOKEN.search(source, at):
        at = token.end()
        if token["word"] is not None:
            continue
        code.append(source[start : token.start()])
        if token["comment"]:
            end = source.find("*/", at)
            at = len(source) if end < 0 else end + 2
            code.append(" ")
        elif token[0].startswith("//"):
            code.append(" ")
        else:
            if token["mark"] is not None:
                end = spliced.end_of_raw(token["mark"], token.start(), at)
                at = len(source) if end < 0 else end
            pieces += [_squeezed("".join(code)), source[token.start() : at]]
            code = []
        start = at
    return "".join([*pieces, _squeezed("".join([*code, source[start:]]))])


def _squeezed(code: str) -> str:
    return re.sub(r" ?\n\s*", "\n", re.sub(r"[ \t\r\f\v]+", " ", code))


def renames_lines(source: str) -> bool:
    """Return True if the file itself names its lines, so that places in the compiler's messages are its own words; also
    where the beginning of a raw string is written so that compilers may not agree on what it is."""
    spliced = _splice(source)
    code = _code(spliced.text, spliced)
    return spliced.is_doubtful or LINE_DIRECTIVE.search(code) is not None


@dataclass
class _Spliced:
    """A source whose lines that end in a backslash are joined. In the text each place of `cuts` follows a splice;
    `ends` are the places after them in the source."""

    source: str
    cuts: list[int]
    ends: list[int]
    text: str = ""
    is_doubtful: bool = False

    def in_source(self, at: int) -> int:
        """The place in the source of the character at this place of the text."""
        k = bisect_right(self.cuts, at)
        return self.ends[k - 1] + at - self.cuts[k - 1] if k else at

    def in_text(self, at: int) -> int:
        """The place in the text of what stands in the source at this place, which is not inside of a splice."""
        k = bisect_right(self.ends, at)
        return self.cuts[k - 1] + at - self.ends[k - 1] if k else at

    def end_of_raw(self, mark: str, begin: int, opened: int) -> int:
        """The place after a raw string whose first characters stand at `begin` to `opened`; -1 where it has no end. No
        line is joined within it: it ends where the source itself, and not the joined text, has its end."""
        first = self.in_source(opened - 1) + 1
        if first - self.in_source(begin) != opened - begin:
            self.is_doubtful = True
        closing = f'){mark}"'
        end = self.source.find(closing, first)
        return self.in_text(end + len(closing)) if end >= 0 else -1


def _splice(source: str) -> _Spliced:
    kept, cuts, ends, length, start = [], [], [], 0, 0
    for splice in SPLICE.finditer(source):
        kept.append(source[start : splice.start()])
        length += splice.start() - start
        start = splice.end()
        cuts.append(length)
        ends.append(start)
    return _Spliced(source, cuts, ends, "".join([*kept, source[start:]]))


def _code(text: str, spliced: _Spliced) -> str:
    kept, start, at = [], 0, 0
    while token := TOKEN.search(text, at):
        at = token.end()
        if token["word"] is not None:
            continue
        kept += [text[start : token.start()], " "]
        if token["comment"]:
            end = text.find("*/", at)
            at = len(text) if end < 0 else end + 2
        elif token["mark"] is not None:
            end = spliced.end_of_raw(token["mark"], token.start(), at)
            at = len(text) if end < 0 else end
        start = at
    return "".join([*kept, text[start:]])
