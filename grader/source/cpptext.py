"""Finder of comments, literals and functions in C++, CUDA and Python sources. Takes linear time: the text is untrusted.

pygments would take 10 to 17 times as long for C++, and quadratic time for 800 KB of declarations without a body.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

#: Tokens that open a comment or a literal. Names and numbers are matched, too: otherwise a ' between digits would look
#: like the start of a character literal. Each alternative matches in linear time, without backtracking.
CPP = re.compile(
    r"//(?:\\.|[^\\\n])*"
    r"|(?P<comment>/\*)"
    r'|(?:u8|[uUL])?R"(?P<mark>[^()\\\s"]{0,16})\('
    r'|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"?'
    r"|(?:u8|[uUL])?'(?:\\.|[^'\\\n])*'?"
    r"|(?P<word>\.?\d(?:'\w|[\w.])*|[A-Za-z_]\w*)",
    re.DOTALL,
)
PYTHON = re.compile(
    r"#[^\n]*|(?:\b[rRbBfFuU]{1,2})?(?:(?P<triple>'''|\"\"\")|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?)",
    re.DOTALL,
)
#: A #line directive, which changes the line numbers and file name in messages. The text must have no comments.
LINE_DIRECTIVE = re.compile(r"^[ \t\f\v]*(?:#|%:)[ \t\f\v]*(?:line\b|\d)", re.MULTILINE)
SPLICE = re.compile(r"\\[ \t\r]*\n")
_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)(?:\(([^()\n]{0,200})\))?((?:\\[ \t\r]*\n|[^\n])*)",
    re.MULTILINE,
)
#: A declared integer and its first value, a number above 1 or a name.
NAMED_NUMBER = re.compile(
    r"\b(?:int|long|size_t|unsigned)\s+(\w+)\s*=\s*([2-9]|[1-9]\d+|[A-Za-z_]\w*)\s*[;,]"
)


@dataclass(frozen=True)
class Macro:
    """A `#define`. `text`, from the offset `begin` to `end`, holds its continued lines as they are in the source."""

    name: str
    parameters: tuple[str, ...] | None
    """Names of its parameters; None for a macro without parentheses."""
    text: str
    begin: int
    end: int


@lru_cache(maxsize=4)
def macros(code: str) -> tuple[Macro, ...]:
    """Return the macros that C++ code defines, in its order. Comments and literals must have been removed."""
    return tuple(
        Macro(
            one[1],
            None if one[2] is None else tuple(re.findall(r"[A-Za-z_]\w*", one[2])),
            one[3],
            *one.span(3),
        )
        for one in _MACRO.finditer(code)
    )


def named_numbers(code: str) -> dict[str, int]:
    """Return the whole numbers that have names in C++ code: macros and first values of integers, by their names."""
    texts = {macro.name: macro.text.strip() for macro in macros(code) if macro.parameters is None}
    texts |= dict(NAMED_NUMBER.findall(code))
    # A name may stand for another one: `int T = TILE_SIZE`.
    found = {name: texts.get(text, text) for name, text in texts.items()}
    return {name: int(text) for name, text in found.items() if re.fullmatch(r"\d{1,9}", text)}


def hidden(
    text: str, language: re.Pattern[str] = CPP, spliced: _Spliced | None = None
) -> Iterator[tuple[bool, int, int]]:
    """Yield (is_comment, start, end) for each comment, string and character literal in a text.

    A comment or literal that is never closed ends with its line, or with the file if its kind may span lines. If `text`
    is the text of a `_Spliced`, pass this as `spliced`.
    """
    at = 0
    while token := language.search(text, at):
        at, kind = token.end(), token.lastgroup
        if kind == "word":
            continue
        if kind == "mark":
            end = (spliced or _Spliced(text, [], [])).end_of_raw(token["mark"], token.start(), at)
            at = len(text) if end < 0 else end
        elif kind is not None:
            closing = "*/" if kind == "comment" else token[kind]
            end = text.find(closing, at)
            at = len(text) if end < 0 else end + len(closing)
        yield token[0].startswith(("/", "#")), token.start(), at


def without_comments(source: str) -> str:
    """Return the source with one space in place of each comment, string and character literal."""
    return _code(source, None)


@lru_cache(maxsize=4)
def blanked(source: str, language: re.Pattern[str] = CPP) -> str:
    """Return the source with comments and literals overwritten by spaces. All other characters keep their offsets."""
    kept, start = [], 0
    for _, begin, end in hidden(source, language):
        kept += [source[start:begin], re.sub(r"[^\n]", " ", source[begin:end])]
        start = end
    return "".join([*kept, source[start:]])


def without_layout(source: str) -> str:
    """Return the source without comments, blank lines and superfluous blanks. Literals stay.

    Two sources with the same result mean the same, except for line numbers (`__LINE__`).
    """
    pieces, code, start = [], ["\n"], 0
    for is_comment, begin, end in hidden(source):
        code.append(source[start:begin])
        start = end
        if is_comment:
            code.append(" ")
        else:
            pieces += [_squeezed("".join(code)), source[begin:end]]
            code = []
    return "".join([*pieces, _squeezed("".join([*code, source[start:]]))])


def _squeezed(code: str) -> str:
    return re.sub(r" ?\n\s*", "\n", re.sub(r"[ \t\r\f\v]+", " ", code))


def renames_lines(source: str) -> bool:
    """Return True if the file has #line directives, so that places in the compiler's messages cannot be trusted.

    Also True if compilers may disagree on the beginning of a raw string.
    """
    spliced = _splice(source)
    code = _code(spliced.text, spliced)
    return spliced.is_doubtful or LINE_DIRECTIVE.search(code) is not None


@dataclass
class _Spliced:
    """A source and its `text`, in which lines that end in a backslash are joined with the next line.

    `cuts` are the offsets in the text at which lines were joined, `ends` the corresponding offsets in the source.
    `is_doubtful` is True if compilers may read a raw string in two ways.
    """

    source: str
    cuts: list[int]
    ends: list[int]
    text: str = ""
    is_doubtful: bool = False

    def in_source(self, at: int) -> int:
        """Map an offset in the joined text to an offset in the source."""
        k = bisect_right(self.cuts, at)
        return self.ends[k - 1] + at - self.cuts[k - 1] if k else at

    def in_text(self, at: int) -> int:
        """Map an offset in the source (not inside a removed line end) to an offset in the joined text."""
        k = bisect_right(self.ends, at)
        return self.cuts[k - 1] + at - self.ends[k - 1] if k else at

    def end_of_raw(self, mark: str, begin: int, opened: int) -> int:
        """Return the offset after a raw string whose opening reaches from `begin` to `opened`; -1 if it never ends.

        A raw string keeps backslashes at line ends, so its end is searched in the source, not in the joined text.
        """
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


def _code(text: str, spliced: _Spliced | None) -> str:
    kept, start = [], 0
    for _, begin, end in hidden(text, spliced=spliced):
        kept += [text[start:begin], " "]
        start = end
    return "".join([*kept, text[start:]])


# ---- functions


_BRACKET = re.compile(r"\b([A-Za-z_]\w*)\s*\(|[(){}]")
_TO_BODY = re.compile(r"\s*(?:(?:const|noexcept|override)\b\s*)*(?:->[\w:<>,*&\s]*)?\{")
_NO_FUNCTIONS = frozenset({"if", "while", "for", "switch", "catch"})


@dataclass(frozen=True)
class Definition:
    """A function's definition, as offsets in the text: its name begins at `start`.

    Its parameters reach from `opened` to `closed`, its body from `body` to `end`, the offset of the closing brace.
    """

    name: str
    start: int
    opened: int
    closed: int
    body: int
    end: int


@lru_cache(maxsize=4)
def definitions(code: str) -> tuple[Definition, ...]:
    """Return the functions that C++ code defines, in its order. Comments and literals must have been removed.

    A function whose brace is never closed is left out. `#if` and `#else` that both open a brace can have this effect.
    """
    found: list[Definition] = []
    brackets: list[tuple[str, int, int]] = []
    blocks: list[tuple[tuple[str, int, int, int] | None, int, list[tuple[str, int, int]]]] = []
    head: tuple[str, int, int, int] | None = None
    for match in _BRACKET.finditer(code):
        kind, at = match[0][-1], match.end()
        if kind == "(":
            brackets.append((match[1] or "", match.start(), at))
        elif kind == ")" and brackets:
            name, start, opened = brackets.pop()
            is_body = name and name not in _NO_FUNCTIONS and _TO_BODY.match(code, at)
            # Do not take a clause of a pragma, such as `private(i)` before a block, for the head of a function.
            if is_body and not re.match(r"\s*#\s*pragma\b", code[code.rfind("\n", 0, start) + 1 : start]):
                head = (name, start, opened, match.start())
        elif kind == "{":
            blocks.append((head, at, brackets))
            head, brackets = None, []
        elif kind == "}" and blocks:
            opens, body, brackets = blocks.pop()
            if opens is not None:
                found.append(Definition(*opens, body, match.start()))
    return tuple(sorted(found, key=lambda one: one.start))


def definition(code: str, name: str) -> Definition | None:
    """Return the first definition of a function of this name, or None."""
    return next((one for one in definitions(code) if one.name == name), None)


def parameter_names(text: str) -> tuple[str, ...]:
    """Return the last word of each parameter in a text like "int n, float *x".

    This is the parameter's name, or its type if the parameter has no name; "" for a piece without a word ("...").
    """
    pieces = apart(text, opening="(<[{", closing=")>]}")
    return tuple((re.findall(r"[A-Za-z_]\w*", piece) or [""])[-1] for piece in pieces)


def apart(
    text: str, at: str = ",", after: str = "", *, opening: str = "([{", closing: str = ")]}"
) -> list[str]:
    """Split a text at each character `at` outside of brackets.

    A text is split only where the pattern `after` occurs in the piece before the character.
    """
    pieces, depth, start = [], 0, 0
    for k, letter in enumerate(text):
        depth += (letter in opening) - (letter in closing)
        if letter == at and depth == 0 and re.search(after, text[start:k]):
            pieces.append(text[start:k])
            start = k + 1
    return [*pieces, text[start:]]


_DEFINED = re.compile(r"^(?:async )?(def|class) ([A-Za-z_]\w*)")


@dataclass(frozen=True)
class PythonSpan:
    """A definition in Python: its lines are `first` to `end` - 1, counted from 0. `kind` is "def" or "class"."""

    name: str
    kind: str
    first: int
    end: int
    indent: int


def python_definitions(lines: list[str]) -> list[PythonSpan]:
    """Return the functions and classes in Python lines, inner definitions before outer ones.

    Comments and literals must have been removed from the lines.
    """
    found: list[PythonSpan] = []
    pending: list[tuple[int, str, str, int]] = []
    for k, line in enumerate([*lines, "end"]):
        text = line.lstrip()
        if not text or text[0] in ")]}":
            continue
        indent = len(line) - len(text)
        while pending and pending[-1][0] >= indent:
            column, kind, name, first = pending.pop()
            found.append(PythonSpan(name, kind, first, k, column))
        if defined := _DEFINED.match(text):
            pending.append((indent, defined[1], defined[2], k))
    return found
