"""Functions, classes and macros that a C++ file defines, and those that each of them reaches by name.

The text is untrusted and read in the judge's process. One pass over its words and brackets finds all definitions, so
the work is linear in the text. No type is known. A name with several definitions is followed only where one of them
has a loop. Functions within functions and classes belong to those.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from grader.source.cpptext import without_comments

LARGEST_SOURCE, MOST_NAMES = 1 << 20, 4000
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)([^\n]*)$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(?!pragma)[^\n]*$", re.MULTILINE)
_TOKEN = re.compile(r"[A-Za-z_]\w*|->|::|[^\s\w]")
_WORD = re.compile(r"[A-Za-z_]\w*")
_SET = re.compile(r"\b([A-Za-z_]\w*)\s*=(?!=)([^=;]*?)(?=,[*&\s]*[A-Za-z_]\w*\s*=(?!=)|$)")
_END_OF_LOOP = re.compile(r"[][(){};]")
_CONSTRUCTED = re.compile(r"[\w>][\s&*]+([A-Za-z_]\w*)\s*[({](.*)")
_AFTER_PARAMETERS = frozenset({"const", "noexcept", "override", "final", "mutable", "->", "::", "&", "*"})
_NO_FUNCTION = frozenset({"if", "for", "while", "switch", "catch", "return", "sizeof", "alignas", "decltype"})
#: A loop, or a call that loops: an algorithm, threads, a function without a name.
_LOOP = re.compile(
    r"\b(?:for|while|do|goto|for_each(?:_n)?|transform(?:_reduce)?|accumulate|inner_product|reduce|parallel_for|async|thread)"
    r"\b|\]\s{0,9}[({]"
)


@dataclass(frozen=True)
class Definition:
    """A function, class or macro. `text` is its body, without comments and literals."""

    name: str
    text: str

    @property
    def has_loop(self) -> bool:
        return _LOOP.search(self.text) is not None

    @property
    def shape(self) -> str:
        """Return the text with each word replaced by a number of its own and no blanks: equal for renamed copies."""
        numbers = dict[str, str]()
        renamed = _WORD.sub(lambda word: f"<{numbers.setdefault(word[0], str(len(numbers)))}>", self.text)
        return "".join(renamed.split())

    @property
    def words(self) -> frozenset[str]:
        return frozenset(_WORD.findall(self.text))

    @functools.cached_property
    def loops(self) -> list[str]:
        """The texts of the outermost loops, each with the statement that it controls."""
        return [self.text[first:last] for first, last in self._spans]

    @functools.cached_property
    def statements(self) -> list[str]:
        """Statements outside of all loops."""
        ends = [0, *itertools.chain(*self._spans), len(self.text)]
        outside = (self.text[first:last] for first, last in zip(ends[::2], ends[1::2], strict=True))
        return [each for piece in outside for each in re.split("[;{}]", piece)]

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
    """Return the graph of a file. All parts of a submission ask for it in turn."""
    return CallGraph(source)


class CallGraph:
    """The definitions of one file, by name."""

    def __init__(self, source: str) -> None:
        code = without_comments(source[:LARGEST_SOURCE])
        found = dict[str, list[Definition]]()
        for each in (*_macros(code), *_definitions(_DIRECTIVE.sub("", code))):
            found.setdefault(each.name, []).append(each)
        self.known = dict[str, Definition]()
        for name, ones in list(found.items())[:MOST_NAMES]:
            working = [each for each in ones if each.has_loop]
            if len(working) <= 1:
                text = "\n".join(each.text for each in working or ones)
                self.known[name] = Definition(name, text)

    def reached(self, name: str) -> dict[str, Definition]:
        """Return the definition of this name and all that it reaches by name; empty if the file has none."""
        found, open_ = dict[str, Definition](), [name]
        while open_:
            now = open_.pop()
            if now in found or now not in self.known:
                continue
            found[now] = self.known[now]
            open_ += sorted(found[now].words & self.known.keys())
        return found


def works_itself(
    name: str, own: Mapping[str, Definition], shared: Collection[str], inputs: Collection[str]
) -> bool:
    """Return False if a function leaves its work to a `shared` function that is given all of its `inputs` at once.

    The call stands outside of its loops, and no loop of its `own` definitions uses the inputs, or values made from
    them. Such loops may write workspaces or copy a result. `inputs` are names of parameters.
    """
    body = own[name]
    origins = {each: {each} for each in inputs}
    pending, delegates = list[str](), False
    for statement in body.statements:
        words = set(_WORD.findall(statement))
        if not words.isdisjoint(shared) and _origins(statement, origins) >= set(inputs):
            delegates = True
            continue
        pending.append(statement)
        for found in (*_SET.finditer(statement), *_CONSTRUCTED.finditer(statement)):
            if came := _origins(found[2], origins):
                origins.setdefault(found[1], set()).update(came)
    if not inputs or not delegates:
        return True
    used, called = [*body.loops], set[str]()
    if any(not set(_WORD.findall(loop)).isdisjoint({*origins, *shared}) for loop in used):
        return True
    given = [each for each in pending if _origins(each, origins)]
    while given:
        reached = (set(_WORD.findall(given.pop())) & own.keys()) - called - {name}
        called |= reached
        given += [own[each].text for each in reached]
    # A helper may also use values that were put into variables of the file.
    kept = origins.keys() - set(inputs)
    helpers = [each for each in own if each != name and (each in called or own[each].words & kept)]
    return any(own[each].has_loop for each in helpers)


def _origins(text: str, origins: Mapping[str, set[str]]) -> set[str]:
    return set().union(*(origins.get(word, ()) for word in _WORD.findall(text)))


def _macros(code: str) -> Iterator[Definition]:
    for macro in _MACRO.finditer(code):
        yield Definition(macro[1], macro[2])


def _definitions(code: str) -> Iterator[Definition]:
    """Yield the functions, classes and lambda expressions of namespaces."""
    opened = list[tuple[str, str, int]]()
    """Of each bracket that is open: which, the name before it, and the place after it."""
    inside = 0
    """Open bodies of functions and classes around the present place."""
    before, earlier, callable_, declared = "", "", "", ""
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
            opened.append((word, name, token.end()))
            callable_ = declared = ""
        elif word in ")]}":
            closed = opened.pop() if opened else ("", "", 0)
            if closed[0] == "{" and closed[1]:
                inside -= 1
                if inside == 0:
                    yield Definition(closed[1], code[closed[2] : token.start()])
            callable_ = closed[1] if word in ")]" else ""
        elif word == ";" or (word == "=" and declared):
            callable_ = declared = ""
        elif before in ("struct", "class"):
            declared = word
        elif callable_ and word not in _AFTER_PARAMETERS and before not in ("->", "::"):
            callable_ = ""
        earlier, before = before, word
