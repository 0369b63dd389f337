"""Wrong kernels and right variants, each made from the master source by one named edit of one function.

An edit replaces text that must occur in its function as often as it says, so a change of the master that a mutation
no longer fits is an error, never a mutation that silently does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from grader.assignment.records import Assignment, Part

FUNCTIONS = {
    "4Dread": "inline float fourDimRead(",
    "4Dwrite": "inline void fourDimWrite(",
    "part1": "torch::Tensor myNaiveAttention(",
    "part2": "torch::Tensor myUnfusedAttentionBlocked(",
    "part3": "torch::Tensor myFusedAttention(",
    "part4": "torch::Tensor myFlashAttention(",
}
KERNELS = ("part1", "part2", "part3", "part4")
BINDINGS = "PYBIND11_MODULE"

#: The starter's lines are comments in the master; without them a text is found in the solution alone.
_STARTER = re.compile(r"^ *// BEGIN STARTER\n.*?// END STARTER\n", re.DOTALL | re.MULTILINE)

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


def apply(source: str, mutations: Iterable[Mutation]) -> str:
    """The source with mutations of different functions made. Raises ValueError where an edit's text does not occur."""
    source = _STARTER.sub("", source)
    for mutation in mutations:
        start, end = _place(source, mutation.part)
        source = source[:start] + _mutated(source[start:end], mutation) + source[end:]
    return source


def edited(source: str, mutation: Mutation) -> str:
    """The source with one mutation made: in its part's function where that is known here, else anywhere.

    Raises ValueError where a text does not occur.
    """
    if FUNCTIONS.get(mutation.part, BINDINGS * 2) in source:
        return apply(source, [mutation])
    return _mutated(_STARTER.sub("", source), mutation)


def side_by_side(source: str, mutations: Sequence[Mutation]) -> str:
    """One source with a function `variant(k)` for the k-th mutation, since each compile costs a second of its own.

    The variants call the accessors as `source` has them; kernels that were not mutated are left out. Raises ValueError
    where an edit's text does not occur.
    """
    source = _STARTER.sub("", source)
    variants, table = "", ""
    for number, mutation in enumerate(mutations):
        start, end = _place(source, mutation.part)
        declared = FUNCTIONS[mutation.part]
        renamed = f"{declared.rpartition(' ')[0]} {variant(number)}("
        variants += "\n" + _mutated(source[start:end], mutation).replace(declared, renamed, 1)
        table += f'    m.def("{variant(number)}", &{variant(number)});\n'
    for part in KERNELS:
        start, end = _place(source, part)
        source = source[:start] + source[end:]
    given = source[: source.index(BINDINGS)]
    return f"{given}{variants}\n{BINDINGS}(TORCH_EXTENSION_NAME, m) {{\n{table}}}\n"


def variant(number: int) -> str:
    """The name of a function, and of a part, in `side_by_side`."""
    return f"variant{number}"


def parts_of(assignment: Assignment, mutations: Sequence[Mutation]) -> tuple[Part, ...]:
    """What to judge in a source that `side_by_side` made: a part for each mutation, in order."""
    # A part judged through another one would be judged by a kernel that has a bug of its own.
    return tuple(
        replace(assignment.part(mutation.part), id=variant(number), function=variant(number), stands_in=None)
        for number, mutation in enumerate(mutations)
    )


def _place(source: str, part: str) -> tuple[int, int]:
    """Where a part's function begins and ends in the source."""
    start = source.index(FUNCTIONS[part])
    return start, source.index("\n}\n", start) + len("\n}\n")


def _mutated(text: str, mutation: Mutation) -> str:
    """The text of one function with the mutation made."""
    if mutation.body is not None:
        text = _with_body(text, mutation)
    for old, new, *times in mutation.edits:
        if text.count(old) != (times[0] if times else 1):
            raise ValueError(f"{mutation.name}: found {text.count(old)} times in {mutation.part}: {old!r}")
        text = text.replace(old, new)
    return text


def _with_body(text: str, mutation: Mutation) -> str:
    opened, closed = "// BEGIN SOLUTION", "// END SOLUTION"
    if text.count(opened) != 1 or text.count(closed) != 1:
        raise ValueError(f"{mutation.name}: {mutation.part} has no single solution region")
    before, after = text[: text.index(opened) + len(opened)], text[text.index(closed) :]
    return f"{before}\n{mutation.body}\n    {after}"
