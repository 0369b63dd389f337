"""Functions, classes and macros that a C++ file defines, and the other definitions that each of them uses by name.

The text is untrusted and is read in the judge's process. One pass over its words and brackets finds all definitions, so
the time is linear in the text. Types are not known. A name with several definitions is left out if more than one of
them has a loop. A function inside a function or class counts as part of the outer one.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from grader.source.cpptext import macros, parameter_names, without_comments

LARGEST_SOURCE, MOST_NAMES = 1 << 20, 4000
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?!pragma)(?:\\[ \t\r]*\n|[^\n])*$", re.MULTILINE)
_TOKEN = re.compile(r"[A-Za-z_]\w*|->|::|[^\s\w]")
_WORD = re.compile(r"[A-Za-z_]\w*")
_END_OF_LOOP = re.compile(r"[][(){};]")
_AFTER_PARAMETERS = frozenset({"const", "noexcept", "override", "final", "mutable", "->", "::", "&", "*"})
_NO_FUNCTION = frozenset({"if", "for", "while", "switch", "catch", "return", "sizeof", "alignas", "decltype"})
#: A loop, or code that may loop: an algorithm, threads, a lambda expression.
_LOOP = re.compile(
    r"\b(?:for|while|do|goto|for_each(?:_n)?|transform(?:_reduce)?|accumulate|inner_product|reduce|parallel_for|async|thread)"
    r"\b|\]\s{0,9}[({]"
)


@dataclass(frozen=True)
class Definition:
    """A function, class or macro. `text` is its body without comments and literals."""

    name: str
    text: str
    parameters: tuple[str, ...] | None = None
    """Names of its parameters; None for a class and for a macro without parentheses."""

    @property
    def has_loop(self) -> bool:
        return _LOOP.search(self.text) is not None

    @property
    def shape(self) -> str:
        """Text without blanks, with numbers in place of names. Copies with renamed variables have equal shapes."""
        numbers = dict[str, str]()
        renamed = _WORD.sub(lambda word: f"<{numbers.setdefault(word[0], str(len(numbers)))}>", self.text)
        return "".join(renamed.split())

    @property
    def words(self) -> frozenset[str]:
        return frozenset(_WORD.findall(self.text))

    @functools.cached_property
    def loops(self) -> list[str]:
        """Texts of the outermost loops, each with the statement that it repeats."""
        return [self.text[first:last] for first, last in self._spans]

    @functools.cached_property
    def statements(self) -> list[str]:
        """Statements outside of all loops."""
        pieces = (self.text[first:last] for first, last in self.outside)
        return [each for piece in pieces for each in re.split("[;{}]", piece)]

    @property
    def outside(self) -> list[tuple[int, int]]:
        """Start and end offsets of the pieces of text before, between and after the outermost loops."""
        ends = [0, *itertools.chain(*self._spans), len(self.text)]
        return list(zip(ends[::2], ends[1::2], strict=True))

    @functools.cached_property
    def _spans(self) -> list[tuple[int, int]]:
        found, after = list[tuple[int, int]](), 0
        for loop in _LOOP.finditer(self.text):
            if loop.start() < after:
                continue
            depth = 0
            for token in _END_OF_LOOP.finditer(self.text, loop.start() + 1):
                depth += (token[0] in "([{") - (token[0] in ")]}")
                after = token.end()
                if depth < 0 or (depth == 0 and token[0] in ";}"):
                    break
            found.append((loop.start(), after))
        return found


@functools.lru_cache(maxsize=2)
def of_source(source: str) -> CallGraph:
    """Return the call graph of a file. Cached, because each part of a submission needs the graph."""
    return CallGraph(source)


class CallGraph:
    """Definitions of one file by name, and the definitions that each of them uses."""

    def __init__(self, source: str) -> None:
        code = without_comments(source[:LARGEST_SOURCE])
        found = dict[str, list[Definition]]()
        defined = (Definition(each.name, each.text, each.parameters) for each in macros(code))
        for each in (*defined, *_definitions(_DIRECTIVE.sub("", code))):
            found.setdefault(each.name, []).append(each)
        self.known = dict[str, Definition]()
        for name, ones in list(found.items())[:MOST_NAMES]:
            working = [each for each in ones if each.has_loop]
            if len(working) <= 1:
                text = "\n".join(each.text for each in working or ones)
                self.known[name] = Definition(name, text, (working or ones)[0].parameters)

    def reached(self, name: str) -> dict[str, Definition]:
        """Return the definition of `name` and all that it uses, directly or not; {} if `name` is not defined."""
        found, open_ = dict[str, Definition](), [name]
        while open_:
            now = open_.pop()
            if now in found or now not in self.known:
                continue
            found[now] = self.known[now]
            open_ += sorted(found[now].words & self.known.keys())
        return found


def _definitions(code: str) -> Iterator[Definition]:
    """Yield the functions, classes and named lambda expressions that are not inside a function or class."""
    opened = list[tuple[str, str, int]]()
    """Open brackets: the bracket, the name before it, and the offset after it."""
    inside = 0
    """Number of bodies of functions and classes around the current token."""
    before, earlier, callable_, declared = "", "", "", ""
    heads = list[tuple[int, int]]()
    """For each open body, the start and end offsets of the parameters before it; (0, 0) without parameters."""
    closed_at = (0, 0)
    for token in _TOKEN.finditer(code):
        word = token[0]
        if word in "([{":
            name = ""
            if word == "(":
                name = before if _WORD.fullmatch(before) and before not in _NO_FUNCTION else ""
                name = name or (callable_ if before == "]" else "")
            elif word == "[":
                name = earlier if before == "=" else ""
            else:
                name = declared or callable_
                inside += bool(name)
                heads.append((0, 0) if declared else closed_at)
            opened.append((word, name, token.end()))
            callable_ = declared = ""
        elif word in ")]}":
            closed = opened.pop() if opened else ("", "", 0)
            if closed[0] == "{":
                first, last = heads.pop()
                if closed[1]:
                    inside -= 1
                    if inside == 0:
                        names = parameter_names(code[first:last]) if last else None
                        yield Definition(closed[1], code[closed[2] : token.start()], names)
            elif closed[1]:
                closed_at = (closed[2] if word == ")" else token.start(), token.start())
            callable_ = closed[1] if word in ")]" else ""
        elif word == ";" or (word == "=" and declared):
            callable_ = declared = ""
        elif before in ("struct", "class"):
            declared = word
        elif callable_ and word not in _AFTER_PARAMETERS and before not in ("->", "::"):
            callable_ = ""
        earlier, before = before, word
