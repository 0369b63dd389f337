"""Tokens of C++, CUDA and Python that stay the same if a student disguises copied code.

- Dropped: comments, docstrings, white space, `#include` and `import`, braces, `std::`, qualifiers, and tokens without
  effect: empty statements, parentheses that only group, `+` before a value, `0 +`, `1 *`.
- Made equal: all names, all numbers, all strings, all arithmetic types, a digraph and its symbol, `++x` and `x++`.
- Kept, because they cannot be renamed: keywords, operators, the words of a pragma, and functions that the file calls
  but does not define (`std::exp`, `omp_get_thread_num`, `tl.load`, functions of the starter).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain

from grader.source import cpptext


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class Language:
    """Rules to find the tokens of a language.

    `hidden` matches comments and literals, `token` one token in the text between them. `types` are the names of
    arithmetic types.
    """

    hidden: re.Pattern[str]
    token: re.Pattern[str]
    keywords: frozenset[str]
    types: frozenset[str]


def _language(
    hidden: re.Pattern[str], included: str, operators: str, keywords: str, types: str = ""
) -> Language:
    token = re.compile(
        rf"(?P<space>\s+|\\\n)|(?P<include>{included}[^\n]*)|(?P<number>\.?\d(?:[eEpP][+-]|[\w.']|)*)"
        rf"|(?P<name>[^\W\d]\w*)|(?P<operator>{operators}|.)",
        re.MULTILINE,
    )
    return Language(hidden, token, _words(keywords), _words(types))


CPP = _language(
    cpptext.CPP,
    r"\#[ \t]*include\b",
    r"<%|%>|<:(?!:[^:>])|:>|%:|<<=|>>=|->\*|\.\.\.|::|->|\+\+|--|&&|\|\||<<|>>|[-+*/%&|^=<>!]=",
    "alignas and asm break case catch class continue decltype default define defined delete do else endif enum extern "
    "false for friend goto if ifdef ifndef mutable namespace new noexcept not nullptr operator or pragma private "
    "protected public reinterpret_cast return sizeof static_cast struct switch template this throw true try typedef "
    "typename undef union using virtual void while "
    "__global__ __device__ __shared__ threadIdx blockIdx blockDim gridDim",
    "auto bool char double float int int32_t int64_t long short signed size_t ssize_t uint32_t uint64_t unsigned",
)
PYTHON = _language(
    cpptext.PYTHON,
    r"^[ \t]*(?:from\s+[\w.]+\s+)?import\b",
    r"\*\*|//|->|:=|<<|>>|[-+*/%&|^=<>!@]=",
    "and as assert async await break class continue def del elif else except finally for global if in is lambda None "
    "nonlocal not or raise return True False try while with yield",
)
NAME, NUMBER, TEXT, TYPE = "name", "number", "text", "type"
_DROPPED = _words(
    "const constexpr inline static register volatile restrict __restrict __restrict__ { } ++ -- : pass"
)
#: {digraph or word: token with the same meaning}.
_SPELLINGS = {"<%": "{", "%>": "}", "<:": "[", ":>": "]", "%:": "#", "and": "&&", "or": "||", "not": "!"}
#: Keywords whose parentheses belong to their syntax and do not only group.
_HEADS = _words("alignas catch decltype for if noexcept sizeof switch while")
#: Patterns of the literals 0 and 1, and below the operators for which such a literal has no effect as the left or right
#: operand. The literal has an effect if an operator in _TIGHT is on its other side.
_ZERO, _ONE = re.compile(r"(?:0+\.?0*|\.0+)[fFlLuU]*"), re.compile(r"0*1\.?0*[fFlLuU]*")
_NEUTRAL_LEFT = {"+": _ZERO, "*": _ONE}
_NEUTRAL_RIGHT = {"+": _ZERO, "-": _ZERO, "*": _ONE, "/": _ONE}
_TIGHT = _words("* / % - << >> . ->")


VERSION = 1
"""Version of this module's rules. Increase it after a change of the rules: stored fingerprints are then outdated."""
MOST_TOKENS = 50_000
"""Maximum number of tokens of one text; a solution of the main assignment has about 4,000."""


@dataclass(frozen=True)
class Tokens:
    """Tokens of a text, as four tuples of equal length.

    `codes` are the normalised tokens, in which all names are equal; `words` are the same with the real names. Token k
    is text[starts[k]:ends[k]]. `is_cut`: True if the text has more than MOST_TOKENS tokens.
    """

    codes: tuple[str, ...]
    words: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    is_cut: bool = False


@dataclass(frozen=True)
class Source:
    """The files of one submission as one text. The first `python` characters are Python, the rest is C++."""

    text: str
    python: int = 0

    def cut(self, length: int) -> Source:
        """Return the source's first `length` characters."""
        return Source(self.text[:length], min(self.python, length))

    @property
    def parts(self) -> tuple[tuple[int, str, Language], ...]:
        """The Python part and the C++ part, each as (its offset in `text`, its text, its language)."""
        return (0, self.text[: self.python], PYTHON), (self.python, self.text[self.python :], CPP)


def tokens(source: Source, given: frozenset[str] = frozenset()) -> Tokens:
    """Return the tokens of a source, which need not compile. The starter's function names (`given`) are kept."""
    scanned = _scan(source)
    raw = _meaning(scanned)
    kept = _fixed_names(raw) | (given & {word for _, word, _, _ in raw})
    codes: list[str] = []
    words: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for kind, word, start, end in raw:
        if word in _DROPPED:
            continue
        code = word if kind not in (NAME, NUMBER, TEXT, TYPE) or word in kept else kind
        if code == TYPE and codes and codes[-1] == TYPE:
            ends[-1] = end
            continue
        codes.append(code)
        words.append(word if kind == NAME else code)
        starts.append(start)
        ends.append(end)
    return Tokens(tuple(codes), tuple(words), tuple(starts), tuple(ends), len(scanned) > MOST_TOKENS)


def unread(source: Source) -> list[str]:
    """Return the text that is not part of tokens (comments, imports, literals), as lines without white space."""
    place, pieces = 0, []
    for kind, _, start, end in _scan(source):
        if kind != TEXT:
            pieces.append(source.text[place:start])
            place = end
    pieces.append(source.text[place:])
    return ["".join(line.split()) for line in "".join(pieces).split("\n")]


def functions(source: Source) -> dict[str, list[tuple[int, int]]]:
    """Return {name: [(start, end)]}, the character ranges of the outermost functions and methods in a source."""
    found: dict[str, list[tuple[int, int]]] = {}
    for offset, text, language in source.parts:
        code = cpptext.blanked(text, language.hidden)
        end = -1
        for start, stop, name in sorted(_spans(code, language)):
            if start > end:
                found.setdefault(name, []).append((offset + start, offset + stop))
                end = stop
    return found


def _spans(code: str, language: Language) -> Iterator[tuple[int, int, str]]:
    if language is CPP:
        yield from ((one.start, one.end, one.name) for one in cpptext.definitions(code))
        return
    lines = code.split("\n")
    places = list(accumulate((len(line) + 1 for line in lines), initial=0))
    for one in cpptext.python_definitions(lines):
        if one.kind == "def":
            yield places[one.first], places[one.end], one.name


_Raw = tuple[str, str, int, int]


def _scan(source: Source) -> list[_Raw]:
    """Return (kind, word, start, end) of each token, in linear time. Stop when more than MOST_TOKENS are found.

    The word of a string literal is "". `start` and `end` are character offsets in `source.text`.
    """
    found: list[_Raw] = []
    for offset, text, language in source.parts:
        pragma, at, kind = False, 0, "space"
        for is_comment, begin, end in chain(
            cpptext.hidden(text, language.hidden), [(True, len(text), len(text))]
        ):
            for match in language.token.finditer(text, at, begin):
                kind, word = match.lastgroup or "", _SPELLINGS.get(match[0], match[0])
                if kind == "space":
                    pragma = pragma and ("\n" not in word or word == "\\\n")
                elif kind != "include":
                    if kind == NAME:
                        kind = (
                            TYPE
                            if word in language.types
                            else "keyword"
                            if word in language.keywords
                            else NAME
                        )
                        kind = "pragma" if pragma else kind
                    found.append((kind, word, offset + match.start(), offset + match.end()))
                    pragma = pragma or (word == "pragma" and len(found) > 1 and found[-2][1] == "#")
                    if len(found) > MOST_TOKENS:
                        return found
            # Skip docstrings (in Python, strings at the start of a line) and strings after `#include` (file names).
            before = text[at:begin]
            documents = (
                language is PYTHON and not before.rpartition("\n")[2].strip() and (at == 0 or "\n" in before)
            )
            if not (is_comment or documents or (before and kind == "include")):
                found.append((TEXT, '""', offset + begin, offset + end))
            at = end
    return found


def _meaning(raw: list[_Raw]) -> list[_Raw]:
    """Return the tokens without those that have no effect, such as parentheses that only group, in linear time."""
    found: list[_Raw] = []
    # For each open parenthesis: (True if the parenthesis is kept, number of kept tokens before it).
    opened: list[tuple[bool, int]] = []
    before, at = ("", "", 0, 0), 0
    while at < len(raw):
        token = raw[at]
        kind, word, _, _ = token
        following = [each[1] for each in raw[at + 1 : at + 3]] + ["", ""]
        at += 1
        begins = before[1] in (";", "{", "}", "")
        ends_value = before[0] in ("number", "text") or before[1] in (")", "]") or _is_own_name(before)
        if word == "std":
            # Drop the `::` of `std::`, too. Other names keep their `::`.
            at += following[0] == "::"
        elif word == "(" and following[:2] == ["void", ")"] and begins:
            at += 2
        elif word == "(":
            is_kept = _is_own_name(before) or before[0] == "pragma" or before[1] in _HEADS
            opened.append((is_kept, len(found)))
            found += [token] if is_kept else []
            before = token
        elif word == ")":
            is_kept, start = opened.pop() if opened else (True, 0)
            found += [token] if is_kept else []
            # The name in `(f)(x)` is called, so the next parenthesis is kept as in `f(x)`.
            is_name = not is_kept and len(found) == start + 1 and _is_own_name(found[-1])
            before = found[-1] if is_name else token
        elif begins and (word == ";" or (following[0] == ";" and kind in (NAME, NUMBER))):
            before = (kind, ";", 0, 0)
        elif word == "+" and not ends_value:
            continue
        elif _is_neutral(before, word, following, ends_value):
            at += 1
        else:
            found.append(token)
            before = before if word in ("++", "--") else token
    return found


def _is_own_name(token: _Raw) -> bool:
    return token[0] == NAME


def _is_neutral(before: _Raw, word: str, following: list[str], ends_value: bool) -> bool:
    """Return True if `word` and the next token have no effect together: `0 +` or `1 *` before a value.

    If `ends_value`, a value precedes: then return True for `+ 0`, `- 0`, `* 1` or `/ 1`. `before` is the token before
    `word`, and `following` are the words after it.
    """
    if ends_value:
        number = _NEUTRAL_RIGHT.get(word)
        return number is not None and bool(number.fullmatch(following[0])) and following[1] not in _TIGHT
    number = _NEUTRAL_LEFT.get(following[0])
    return number is not None and bool(number.fullmatch(word)) and before[1] not in _TIGHT


def _fixed_names(raw: list[_Raw]) -> frozenset[str]:
    """Return the names that the text uses only as functions that it calls but does not define."""
    called: set[str] = set()
    own: set[str] = set()
    before = ("", "", 0, 0)
    for at, token in enumerate(raw):
        if token[0] != "name":
            before = token
            continue
        is_call = at + 1 < len(raw) and raw[at + 1][1] == "("
        # `float dot(`, `def dot(` and `#define dot(` are definitions; `return dot(` is a call.
        defines = before[0] in (NAME, TYPE) or before[1] in ("define", "void", "def", "class")
        (called if is_call and not defines else own).add(token[1])
        before = token
    return frozenset(called - own)
