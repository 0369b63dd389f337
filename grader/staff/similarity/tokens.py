"""C++ text as a sequence of tokens that renaming, reformatting and re-commenting leave as it was.

What a copier changes without thinking is dropped or made equal: comments, white space, `#include`, braces, `std::`,
qualifiers, `++` and `--` (before or after), names, numbers, texts, and the arithmetic types. So are tokens without
meaning: empty statements, parentheses that only group, `+` before a value, `0 +` and `1 *`, digraphs. What cannot be
renamed stays: keywords, operators, the words of a pragma, and functions that the file calls but does not define
(`std::exp`, `omp_get_thread_num`, the starter's accessors).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|\\\n)
    |(?P<comment>/\*)
    |(?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\()
    |(?P<text>(?:u8|[uUL])?"(?:[^"\\\n]|\\[\s\S])*"?|'(?:[^'\\\n]|\\[\s\S])*'?)
    |(?P<include>\#[ \t]*include[^\n]*)
    |(?P<number>\.?\d(?:[eEpP][+-]|[\w.']|)*)
    |(?P<name>[^\W\d]\w*)
    |(?P<digraph><%|%>|<:(?!:[^:>])|:>|%:)
    |(?P<operator><<=|>>=|->\*|\.\.\.|::|->|\+\+|--|&&|\|\||<<|>>|[-+*/%&|^=<>!]=|.)""",
    re.VERBOSE,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NAME, NUMBER, TEXT, TYPE = "name", "number", "text", "type"
_TYPES = _words(
    "auto bool char double float int int32_t int64_t long short signed size_t ssize_t uint32_t uint64_t "
    "unsigned"
)
_DROPPED = _words(
    "const constexpr inline static register volatile restrict __restrict __restrict__ { } ++ --"
)
_KEYWORDS = _words(
    "alignas and asm break case catch class continue decltype default define defined delete do else endif enum "
    "extern false for friend goto if ifdef ifndef mutable namespace new noexcept not nullptr operator or pragma "
    "private protected public reinterpret_cast return sizeof static_cast struct switch template this throw true "
    "try typedef typename undef union using virtual void while"
)
#: Other spellings of the same tokens.
_SPELLINGS = {"<%": "{", "%>": "}", "<:": "[", ":>": "]", "%:": "#", "and": "&&", "or": "||", "not": "!"}
#: Keywords that keep their parentheses.
_HEADS = _words("alignas catch decltype for if noexcept sizeof switch while")
#: Numbers that change nothing, by the operator before or after them, and operators that bind more tightly.
_ZERO, _ONE = re.compile(r"(?:0+\.?0*|\.0+)[fFlLuU]*"), re.compile(r"0*1\.?0*[fFlLuU]*")
_NEUTRAL_LEFT = {"+": _ZERO, "*": _ONE}
_NEUTRAL_RIGHT = {"+": _ZERO, "-": _ZERO, "*": _ONE, "/": _ONE}
_TIGHT = _words("* / % - << >> . ->")


MOST_TOKENS = 50_000
"""Of one text; a solution of the course has some 4,000."""


@dataclass(frozen=True)
class Tokens:
    """Equally long: the normalised `codes`, and where each token stands in the text, `starts` to `ends`. `is_cut` where
    the text has more than MOST_TOKENS: these are the first."""

    codes: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    is_cut: bool = False


def tokens(text: str, given: frozenset[str] = frozenset()) -> Tokens:
    """The tokens of a text, however broken it is. `given` are the functions of the starter, which keep their names
    although the text defines them."""
    scanned = _scan(text)
    raw = _meaning(scanned)
    kept = _fixed_names(raw) | (given & {word for _, word, _, _ in raw})
    codes: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for kind, word, start, end in raw:
        if word in _DROPPED:
            continue
        code = _code(kind, word, kept)
        if code == TYPE and codes and codes[-1] == TYPE:
            ends[-1] = end
            continue
        codes.append(code)
        starts.append(start)
        ends.append(end)
    return Tokens(tuple(codes), tuple(starts), tuple(ends), len(scanned) > MOST_TOKENS)


def unread(text: str) -> list[str]:
    """Return by line what yields no tokens, without white space: comments, literals, what a comment hides."""
    place, pieces = 0, []
    for kind, _, start, end in _scan(text):
        if kind != "text":
            pieces.append(text[place:start])
            place = end
    pieces.append(text[place:])
    return ["".join(line.split()) for line in "".join(pieces).split("\n")]


def functions(text: str) -> frozenset[str]:
    """Names of the functions that a text defines or declares at its outermost level."""
    depth, found = 0, set()
    raw = _scan(text)
    for (kind, word, _, _), (_, following, _, _) in pairwise(raw):
        depth += {"{": 1, "}": -1}.get(word, 0)
        if depth == 0 and kind == "name" and following == "(" and word not in _KEYWORDS:
            found.add(word)
    return frozenset(found)


_Raw = tuple[str, str, int, int]


def _scan(text: str) -> list[_Raw]:
    """(kind, word, start, end) of each token, up to the first beyond MOST_TOKENS. Linear in the text's length, whatever
    the text is."""
    found: list[_Raw] = []
    place = 0
    pragma = False
    while place < len(text) and len(found) <= MOST_TOKENS:
        match = _TOKEN.match(text, place)
        assert match is not None  # its last alternative takes any character that is no line end
        kind, start, place = match.lastgroup or "", place, match.end()
        if kind == "space":
            pragma = pragma and ("\n" not in match.group() or match.group() == "\\\n")
        elif kind == "comment":
            place = _after(text, "*/", place)
        elif kind in ("raw", "mark"):
            place = _after(text, f'){match["mark"]}"', place)
            found.append(("text", '""', start, place))
        elif kind != "include":
            word = _SPELLINGS.get(match.group(), match.group())
            found.append(("pragma" if pragma and kind == "name" else kind, word, start, place))
            pragma = pragma or (word == "pragma" and len(found) > 1 and found[-2][1] == "#")
    return found


def _meaning(raw: list[_Raw]) -> list[_Raw]:
    """Return the tokens without those that a compiler reads over. Linear in their number."""
    found: list[_Raw] = []
    # For each open parenthesis: if it is kept, and how many tokens were found before it.
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
            # std:: goes as a whole; other names keep their '::'.
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
            # `(f)(x)` is a call, as `f(x)` is.
            is_name = not is_kept and len(found) == start + 1 and _is_own_name(found[-1])
            before = found[-1] if is_name else token
        elif begins and (word == ";" or (following[0] == ";" and _is_value(token))):
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
    return token[0] == "name" and token[1] not in _KEYWORDS and token[1] not in _TYPES


def _is_value(token: _Raw) -> bool:
    return token[0] == "number" or _is_own_name(token)


def _is_neutral(before: _Raw, word: str, following: list[str], ends_value: bool) -> bool:
    """Return True for `0 +` and `1 *` before a value, and for `+ 0`, `- 0`, `* 1` and `/ 1` after one."""
    if ends_value:
        number = _NEUTRAL_RIGHT.get(word)
        return number is not None and bool(number.fullmatch(following[0])) and following[1] not in _TIGHT
    number = _NEUTRAL_LEFT.get(following[0])
    return number is not None and bool(number.fullmatch(word)) and before[1] not in _TIGHT


def _after(text: str, closing: str, place: int) -> int:
    at = text.find(closing, place)
    return len(text) if at < 0 else at + len(closing)


def _fixed_names(raw: list[_Raw]) -> frozenset[str]:
    """Names that are only ever called, and never defined, in this text."""
    called: set[str] = set()
    own: set[str] = set()
    before = ("", "", 0, 0)
    for at, token in enumerate(raw):
        if token[0] != "name":
            before = token
            continue
        is_call = at + 1 < len(raw) and raw[at + 1][1] == "("
        # `float dot(` and `#define dot(` define, `return dot(` does not.
        defines = before[0] == "name" and (before[1] not in _KEYWORDS or before[1] in ("define", "void"))
        (called if is_call and not defines else own).add(token[1])
        before = token
    return frozenset(called - own)


def _code(kind: str, word: str, kept: frozenset[str]) -> str:
    if kind == "number":
        return NUMBER
    if kind == "text":
        return TEXT
    if kind == "name":
        if word in _TYPES:
            return TYPE
        return word if word in _KEYWORDS or word in kept else NAME
    return word
