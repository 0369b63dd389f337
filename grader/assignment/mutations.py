"""Wrong kernels and right variants, each made from the master source by one named edit of one function.

An edit replaces text that must occur in its function as often as it says, so a change of the master that a mutation
no longer fits is an error, never a mutation that silently does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from grader.assignment.records import Assignment, Part

#: The starter's lines are comments in the master; without them a text is found in the solution alone.
_STARTER = re.compile(r"^ *(//|#) BEGIN STARTER\n.*?\1 END STARTER\n", re.DOTALL | re.MULTILINE)
#: Where a function of Python's ends: at the next line that begins in the first column, but for the bracket that closes
#: its arguments.
_OUTSIDE = re.compile(r"^[^\s)]", re.MULTILINE)

_BINDINGS = "PYBIND11_MODULE"
_BETWEEN = "\f"

#: (text, its replacement) or (text, its replacement, how often the text occurs).
Edit = tuple[str, str] | tuple[str, str, int]


@dataclass(frozen=True)
class Mutation:
    """`codes`: the diagnoses that name this bug; empty when none is expected to (it must be rejected all the same).
    `says`: what the message must hold besides, to name this bug and no other with that code. `body`: the solution as a
    whole, in place of edits."""

    name: str
    part: str
    edits: tuple[Edit, ...] = ()
    codes: tuple[str, ...] = ()
    body: str | None = None
    says: str = ""


def edited(source: str, mutation: Mutation) -> str:
    """The source with a mutation's edits made anywhere in it. Raises ValueError where a text does not occur."""
    return mutated(without_starter(source), mutation)


def applied(source: str, functions: Mapping[str, str | Sequence[str]], mutations: Iterable[Mutation]) -> str:
    """The source with mutations of different parts made, each within its part's functions alone; `functions` are their
    names by part, one or several (a kernel and what launches it). Raises ValueError where a text or a function does not
    occur."""
    source = without_starter(source)
    for mutation in mutations:
        names = functions[mutation.part]
        names = (names,) if isinstance(names, str) else names
        spans = sorted(place(source, name) for name in dict.fromkeys(names))
        # No text of an edit holds it, so that none reaches from one function into the next.
        texts = mutated(_BETWEEN.join(source[start:end] for start, end in spans), mutation).split(_BETWEEN)
        for (start, end), text in zip(reversed(spans), reversed(texts), strict=True):
            source = source[:start] + text + source[end:]
    return source


def side_by_side(
    source: str, functions: Mapping[str, str], mutations: Sequence[Mutation], dropped: Sequence[str] = ()
) -> str:
    """One source with a function `variant(k)` for the k-th mutation, since each compile costs a second of its own.

    `dropped` are parts whose unchanged functions no other one calls: they are left out. Raises ValueError as `applied`.
    """
    source = without_starter(source)
    variants, table = "", ""
    for number, mutation in enumerate(mutations):
        start, end = place(source, functions[mutation.part])
        text = mutated(source[start:end], mutation)
        variants += "\n" + text.replace(f" {functions[mutation.part]}(", f" {variant(number)}(", 1)
        table += f'    m.def("{variant(number)}", &{variant(number)});\n'
    # What is left stays bound, for oracles that ask for further calls.
    kept = [function for part, function in functions.items() if part not in dropped]
    table += "".join(f'    m.def("{name}", &{name});\n' for name in dict.fromkeys(kept))
    for part in dropped:
        start, end = place(source, functions[part])
        source = source[:start] + source[end:]
    given = source[: source.index(_BINDINGS)]
    return f"{given}{variants}\n{_BINDINGS}(TORCH_EXTENSION_NAME, m) {{\n{table}}}\n"


def variant(number: int) -> str:
    """The name of a function, and of a part, in `side_by_side`."""
    return f"variant{number}"


def parts_of(assignment: Assignment, mutations: Sequence[Mutation]) -> tuple[Part, ...]:
    """Return the parts to judge in a source that `side_by_side` made: a part for each mutation, in order."""
    # A part judged through another one would be judged by a kernel that has a bug of its own.
    return tuple(
        replace(assignment.part(mutation.part), id=variant(number), function=variant(number), stands_in=None)
        for number, mutation in enumerate(mutations)
    )


def functions_of(assignment: Assignment) -> dict[str, str]:
    """The names of the functions that students write, by part."""
    return {part.id: part.function for part in assignment.parts if part.function is not None}


def place(source: str, function: str) -> tuple[int, int]:
    """Where a function is defined: from the beginning of the line that declares it to the brace that closes it, alone
    on its line; in Python with its decorators, up to the next line that begins in the first column. Raises ValueError
    where there is none."""
    in_python = re.search(rf"^(?:@.*\n)*def {re.escape(function)}\(", source, re.MULTILINE)
    if in_python is not None:
        outside = _OUTSIDE.search(source, in_python.end())
        return in_python.start(), outside.start() if outside else len(source)
    found = re.search(rf"^[A-Za-z][^\n;]* {re.escape(function)}\(", source, re.MULTILINE)
    if found is None:
        raise ValueError(f"no function {function}")
    return found.start(), source.index("\n}\n", found.start()) + len("\n}\n")


def without_starter(source: str) -> str:
    return _STARTER.sub("", source)


def mutated(text: str, mutation: Mutation) -> str:
    """The text of one function with the mutation made."""
    if mutation.body is not None:
        text = _with_body(text, mutation)
    for old, new, *times in mutation.edits:
        if text.count(old) != (times[0] if times else 1):
            raise ValueError(f"{mutation.name}: found {text.count(old)} times in {mutation.part}: {old!r}")
        text = text.replace(old, new)
    return text


def _with_body(text: str, mutation: Mutation) -> str:
    sign = "#" if "# BEGIN SOLUTION" in text else "//"
    opened, closed = f"{sign} BEGIN SOLUTION", f"{sign} END SOLUTION"
    if text.count(opened) != 1 or text.count(closed) != 1:
        raise ValueError(f"{mutation.name}: {mutation.part} has no single solution region")
    before, after = text[: text.index(opened) + len(opened)], text[text.index(closed) :]
    return f"{before}\n{mutation.body}\n    {after}"
