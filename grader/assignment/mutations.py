"""Mutations: wrong kernels and correct variants, made from the course's solution by one named edit of one function.

The edit changes the master: the source file with the solution in marked regions. The edit states how often the text to
replace must occur. If the master has this text more or less often, applying the edit raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grader.assignment.records import Assignment, Part

#: Starter lines are comments in the master. They are removed, so that an edit's text matches only the solution.
_STARTER = re.compile(r"^ *(//|#) BEGIN STARTER\n.*?\1 END STARTER\n", re.DOTALL | re.MULTILINE)
#: End of a Python function: the next line that begins in the first column, but not with `)`.
_OUTSIDE = re.compile(r"^[^\s)]", re.MULTILINE)

_BINDINGS = "PYBIND11_MODULE"
_BETWEEN = "\f"

#: (text, its replacement) or (text, its replacement, how often the text occurs).
Edit = tuple[str, str] | tuple[str, str, int]


@dataclass(frozen=True)
class Mutation:
    """One planted bug or correct variant.

    `codes`: the judge must give one of these diagnoses; () if any failure of the kernel suffices. `says`: text that the
    message must contain, to distinguish it from messages for other bugs with the same code. `body`: new text of the
    whole solution region, or None; the `edits` are made afterwards.
    """

    name: str
    part: str
    edits: tuple[Edit, ...] = ()
    codes: tuple[str, ...] = ()
    body: str | None = None
    says: str = ""


def edited(source: str, mutation: Mutation, kernels: Any = None) -> str:
    """Return the source with one mutation applied.

    The edits are made only in the functions that `kernels.FUNCTIONS` names for the part. Without this table, they are
    made anywhere in the source. Raises ValueError if a text to replace does not occur as often as the edit states.
    """
    functions = getattr(kernels, "FUNCTIONS", None)
    if functions is not None:
        return applied(source, functions, [mutation])
    return mutated(without_starter(source), mutation)


def applied(source: str, functions: Mapping[str, str | Sequence[str]], mutations: Iterable[Mutation]) -> str:
    """Apply mutations of different parts, each within its part's functions only.

    `functions` maps a part to the name of its function, or to several names (a kernel and its launcher). Returns the
    edited source. Raises ValueError if a function is missing, or a text occurs more or less often than its edit states.
    """
    source = without_starter(source)
    for mutation in mutations:
        names = functions[mutation.part]
        for name, text in pieces(source, (names,) if isinstance(names, str) else names, mutation).items():
            start, end = place(source, name)
            source = source[:start] + text + source[end:]
    return source


def pieces(source: str, names: Sequence[str], mutation: Mutation) -> dict[str, str]:
    """Return {function: its text after the mutation}. Raises ValueError as `applied` does."""
    # The separator occurs in no edit, so no edit can match across two functions.
    texts = _BETWEEN.join(source[slice(*place(source, name))] for name in names)
    return dict(zip(names, mutated(texts, mutation).split(_BETWEEN), strict=True))


def in_one_file(
    kernels: Any, assignment: Assignment, master: str, made: Sequence[Mutation]
) -> tuple[str, tuple[Part, ...]]:
    """Make one source that has a function for each mutation in `made`. Return (source, a part for each function)."""
    own = getattr(kernels, "side_by_side", None)
    text = own(master, made) if own is not None else side_by_side(master, kernels.FUNCTIONS, made)
    return text, parts_of(assignment, made)


def side_by_side(source: str, functions: Mapping[str, str], mutations: Sequence[Mutation]) -> str:
    """Return one source with a function `variant(k)` for the k-th mutation, so that one compilation serves all.

    The master's own functions stay exported, because an oracle may call them. Raises ValueError as `applied` does.
    """
    source = without_starter(source)
    variants, table = "", ""
    for number, mutation in enumerate(mutations):
        name = functions[mutation.part]
        text = pieces(source, [name], mutation)[name]
        variants += "\n" + text.replace(f" {name}(", f" {variant(number)}(", 1)
        table += f'    m.def("{variant(number)}", &{variant(number)});\n'
    table += "".join(f'    m.def("{name}", &{name});\n' for name in dict.fromkeys(functions.values()))
    given = source[: source.index(_BINDINGS)]
    return f"{given}{variants}\n{_BINDINGS}(TORCH_EXTENSION_NAME, m) {{\n{table}}}\n"


def variant(number: int) -> str:
    """Return the name of the function, and of the part, that `side_by_side` makes of mutation number `number`."""
    return f"variant{number}"


def parts_of(assignment: Assignment, mutations: Sequence[Mutation]) -> tuple[Part, ...]:
    """Return the parts to judge in a source made by `side_by_side`: one part per mutation, in order."""
    # Without `stands_in`, each part is judged by its own function only.
    return tuple(
        replace(assignment.part(mutation.part), id=variant(number), function=variant(number), stands_in=None)
        for number, mutation in enumerate(mutations)
    )


def place(source: str, function: str) -> tuple[int, int]:
    """Return the span (start, end) of a function's definition in the source.

    C++: from the start of its first line through the closing brace, which stands alone on its line. Python: from its
    decorators to the next line that begins in the first column. Raises ValueError for an unknown function.
    """
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
    """Return the text of one or more functions with the mutation applied. Raises ValueError as `applied` does."""
    if mutation.body is not None:
        text = _with_body(text, mutation)
    for old, new, *times in mutation.edits:
        if (count := text.count(old)) != (wanted := times[0] if times else 1):
            raise ValueError(f"{mutation.name}: {mutation.part} has {old!r} {count} times, not {wanted}")
        text = text.replace(old, new)
    return text


def _with_body(text: str, mutation: Mutation) -> str:
    sign = "#" if "# BEGIN SOLUTION" in text else "//"
    opened, closed = f"{sign} BEGIN SOLUTION", f"{sign} END SOLUTION"
    if text.count(opened) != 1 or text.count(closed) != 1:
        raise ValueError(f"{mutation.name}: {mutation.part} should have exactly one solution region")
    before, after = text[: text.index(opened) + len(opened)], text[text.index(closed) :]
    return f"{before}\n{mutation.body}\n    {after}"
