"""Functions that a part calls: their calls, their parameters, and their text with macros expanded.

A part's function often computes a value in another function of its file. `reached` returns all functions that it calls.
`Reached.own` gives the names of the part's variables in them. So the searches of `grader.source.landmarks` work in all
these functions.

The text is untrusted and is read in the judge's process. Functions, calls and expansions are limited in number, so the
time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from grader.source.cpptext import Definition, apart, definitions, macros, parameter_names
from grader.source.landmarks import LONGEST_LINE, Body, Place, closed

MOST_FUNCTIONS, MOST_CALLS = 24, 64
#: Limits on macros: how many are expanded, the rounds of expansion for one line, and the characters of a macro's text.
_MOST_MACROS, _ROUNDS, _LONGEST_MACRO = 64, 3, 200
#: Limit on the characters of all expanded lines together.
_MOST_EXPANDED = 1 << 20
_LAMBDA = re.compile(r"\b([A-Za-z_]\w*)\s*=\s*\[[^\[\]\n]{0,80}\]\s*\(([^()\n]{0,200})\)[^{};\n]{0,60}\{")
_LOOP = r"\b(?:for|while|for_each|transform|copy\w*|fill\w*|memset|memcpy)\b"
_WORD = re.compile(r"[A-Za-z_]\w*")
#: The beginning of a lambda expression, or of a loop over elements, that gets a number by value. Groups: type, name.
_ONE_COPY = re.compile(r"(?:\]\s*\(|\bfor\s*\()\s*(float|double|auto)\s+(\w+)\s*(?:\)|:[^;{}]*\))\s*\{?")
#: The variable that an argument begins with: `Q + off`, `&O[i]`, `(float *) p`, `tensor.data()`.
_LEADING = re.compile(r"[\s&*(]*(?:(?:const\s+)?(?:float|double|void|char)\s*\*\s*\)\s*&?)?([A-Za-z_]\w*)")


@dataclass(frozen=True)
class Reached:
    """A function that a part runs: the part's own function, or a function of its file that `caller` calls.

    `calls` are the lines of `caller` that call this function. `given` maps each parameter of this function to variables
    of the caller: those with which an argument begins (`Q` for the argument `Q + offset`).
    """

    body: Body
    caller: Reached | None
    calls: tuple[Place, ...]
    given: Mapping[str, frozenset[str]]

    def own(self, names: Iterable[str]) -> list[str]:
        """Return this function's parameters that get the variables `names` of the part's function, or copies of them.

        Returns `names` for the part's function, and [] for a called function without a loop: such a function is taken
        for an accessor, which works on any array.
        """
        if self.caller is None:
            return list(names)
        known, _ = self.caller.body.made_of(self.caller.own(names))
        named = [name for name in self.body.parameters if self.given.get(name, frozenset()) & known]
        return named if self.body.find(_LOOP) else []

    @property
    def part(self) -> Reached:
        """The part's own function."""
        return self if self.caller is None else self.caller.part


def reached(body: Body) -> list[Reached]:
    """Return the function with its macros expanded, then the functions of the file that it calls, nearest first.

    Lambda expressions with a name count as functions. Returns only the function itself for a Python file.
    """
    if body.opened == 0:
        return [Reached(body, None, (), {})]
    rows = expanded(body.code)
    code = "\n".join(rows)
    known = dict[str, Definition]()
    for each in (*definitions(code), *_lambdas(code)):
        if each.name != body.name:
            known.setdefault(each.name, each)
    found, names = [Reached(replace(body, code=rows), None, (), {})], {body.name}
    for caller in found:  # `found` grows during the loop
        text = caller.body.all_code()
        for name in dict.fromkeys(_WORD.findall(text)):
            if name in known and name not in names and len(found) < MOST_FUNCTIONS:
                called = _called(caller, known[name], code, rows)
                if called.calls:
                    names.add(name)
                    found.append(called)
    return found


def indices(body: Body, line: int) -> list[Place]:
    """Return the lines that compute the indices in line `line`, which lies in `body` or in a function that it calls.

    See `Body.indices`. Returns [] for a line of any other function.
    """
    around = [at.body for at in reached(body) if at.body.opened <= line <= at.body.last]
    return min(around, key=lambda each: each.last - each.opened).indices(line) if around else []


def without_effect(body: Body) -> list[tuple[Place, str, str]]:
    """Return (line, variable, type) for each copy that the part changes in vain, because no code reads the copy later.

    The copy is a vector or a number that is passed by value. A vector counts if a void function sets its elements. A
    number counts if a void function, a lambda expression or a loop over elements sets the number and does not read it.
    """
    code, names = "\n".join(body.code), {at.body.name for at in reached(body)[1:]}
    found = list[tuple[Place, str, str]]()
    for one in definitions(code):
        parameters = code[one.opened : one.closed]
        is_void = re.search(r"\bvoid\s+$", code[: one.start][-40:]) is not None
        refers = re.search(r"[&*]", re.sub(r"\bconst\b[^,]*", "", parameters)) is not None
        for name in re.findall(r"\bvector\s*<\s*\w+\s*>\s+(\w+)\s*(?:,|$)", parameters):
            sets = re.search(
                rf"\b{name}\s*\[[^][;]*\]\s*[-+*/]?=(?!=)|&\s*\w+\s*:\s*{name}\s*\)|\bfill\w*\(\s*{name}\b"
                rf"|\b{name}\.(?:assign|resize|clear)\(",
                code[one.body : one.end],
            )
            if one.name in names and is_void and not refers and sets:
                found.append((body.place(code.count("\n", 0, one.start) + 1), name, "std::vector<float>"))
        numbers = re.findall(r"(?:^|,)\s*(float|double)\s+(\w+)\s*(?=,|$)", parameters)
        for kind, name in numbers if is_void and one.name in names else ():
            if _is_only_set(name, code[one.body : one.end]):
                found.append((body.place(code.count("\n", 0, one.start) + 1), name, kind))
    for copy in _ONE_COPY.finditer(code):
        line, ended = code.count("\n", 0, copy.start()) + 1, code.find(";", copy.end())
        text = code[copy.end() : closed(code, copy.end(), "{}") if copy[0].endswith("{") else ended]
        if body.opened <= line <= body.last and _is_only_set(copy[2], text):
            found.append((body.place(line), copy[2], copy[1]))
    return found


def _is_only_set(name: str, text: str) -> bool:
    """Return True if C++ sets a variable and does not read it."""
    rest, count = re.subn(rf"\b{name}\s*[-+*/]?=(?!=)", "", text)
    return count > 0 and not re.search(rf"\b{name}\b", rest)


def _called(caller: Reached, one: Definition, code: str, rows: tuple[str, ...]) -> Reached:
    first, opened, last = (code.count("\n", 0, at) + 1 for at in (one.start, one.body, one.end))
    parameters = parameter_names(code[one.opened : one.closed])
    body = Body(one.name, first, opened, last, parameters, caller.body.rows, rows)
    calls, given = list[Place](), {name: set[str]() for name in parameters}
    for place, arguments in _calls(caller.body, one.name):
        calls.append(place)
        for name, argument in zip(parameters, arguments, strict=False):
            if begins := _LEADING.match(argument):
                given[name].add(begins[1])
    return Reached(body, caller, tuple(calls), {name: frozenset(each) for name, each in given.items()})


def _calls(body: Body, name: str) -> list[tuple[Place, list[str]]]:
    """Return the lines of a function that call `name`, each with the texts of the arguments.

    A declaration of an object (`Span rows(H, K);`) calls a constructor.
    """
    text, found = body.all_code(), list[tuple[Place, list[str]]]()
    # A pointer to an instance of a template, or a container of objects, whose constructor has this name: the arguments
    # of the calls are unknown.
    unseen = rf"\b{name}\s*<[^<>();]{{0,80}}>(?!\s*[\w(&*:])|<\s*{name}\s*>"
    for use in islice(re.finditer(unseen, text), MOST_CALLS):
        found.append((body.place(body.lines().start + text.count("\n", 0, use.start())), []))
    for call in re.finditer(rf"\b{name}\b\s*(?:<[^<>();]{{0,80}}>\s*)?(?:\w+\s*)?\(", text):
        if len(found) == MOST_CALLS:
            break
        end = closed(text, call.end(), "()")
        line = body.lines().start + text.count("\n", 0, call.start())
        found.append((body.place(line), apart(text[call.end() : end - 1])))
    return found


@lru_cache(maxsize=4)
def _lambdas(code: str) -> tuple[Definition, ...]:
    return tuple(
        Definition(
            one[1], one.start(), one.start(2), one.end(2), one.end(), closed(code, one.end(), "{}") - 1
        )
        for one in islice(_LAMBDA.finditer(code), MOST_FUNCTIONS)
    )


@lru_cache(maxsize=4)
def expanded(code: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines with the function-like macros of the file expanded: `FOR(i, N)` becomes a `for`.

    Line numbers do not change. A call is not expanded if it spans several lines or would make its line too long.
    """
    known = dict[str, tuple[tuple[str, ...], str]]()
    for each in macros("\n".join(code)):
        text = re.sub(r"\\[ \t]*\n\s*", "", each.text).strip()
        is_short = len(text) <= _LONGEST_MACRO and len(known) < _MOST_MACROS
        if each.parameters is not None and is_short and "#" not in text:
            known[each.name] = each.parameters, text
    if not known:
        return code
    named = re.compile(rf"\b({'|'.join(known)})\s*\(")
    rows, left = list(code), _MOST_EXPANDED
    for n, row in enumerate(rows):
        if row.lstrip().startswith("#") or row.rstrip().endswith("\\"):
            continue
        for _ in range(_ROUNDS):
            if left > 0 and len(row) <= LONGEST_LINE and named.search(row):
                row = _expanded(row, known, named)
                left -= len(row)
        if len(row) <= 2 * LONGEST_LINE:
            rows[n] = row
    return tuple(rows)


def _expanded(row: str, known: Mapping[str, tuple[tuple[str, ...], str]], named: re.Pattern[str]) -> str:
    kept, at = "", 0
    while len(kept) <= LONGEST_LINE and (call := named.search(row, at)) is not None:
        end = closed(row, call.end(), "()")
        if row[end - 1] != ")":
            break
        parameters, text = known[call[1]]
        given = map(str.strip, apart(row[call.end() : end - 1]))
        kept += row[at : call.start()] + _filled(text, dict(zip(parameters, given, strict=False)))
        at = end
    return kept + row[at:]


def _filled(text: str, values: Mapping[str, str]) -> str:
    """Return a macro's text with its parameters replaced by `values`.

    Brackets around a parameter are dropped if its value is a single word: `(p)[i]` becomes `Q[i]` for p = Q.
    """
    for name, value in values.items():
        if re.fullmatch(r"[\w.]+", value):
            text = re.sub(rf"\(\s*{name}\s*\)", name, text)
    return _WORD.sub(lambda word: values.get(word[0], word[0]), text)
