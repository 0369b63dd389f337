"""Wrong kernels and right variants, each made from the master source by one named edit of one function.

An edit replaces text that must occur in its function as often as it says, so a change of the master that a mutation
no longer fits is an error, never a mutation that silently does nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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


def edited(source: str, mutation: Mutation) -> str:
    """The source with a mutation's edits made anywhere in it. Raises ValueError where a text does not occur."""
    return mutated(without_starter(source), mutation)


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
    opened, closed = "// BEGIN SOLUTION", "// END SOLUTION"
    if text.count(opened) != 1 or text.count(closed) != 1:
        raise ValueError(f"{mutation.name}: {mutation.part} has no single solution region")
    before, after = text[: text.index(opened) + len(opened)], text[text.index(closed) :]
    return f"{before}\n{mutation.body}\n    {after}"
