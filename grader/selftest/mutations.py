"""Wrong kernels and right variants, each made from the master source by one named edit of one function.

An edit replaces text that must occur in its function as often as it says, so a change of the master that a mutation
no longer fits is an error, never a mutation that silently does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

FUNCTIONS = {
    "4Dread": "inline float fourDimRead(",
    "4Dwrite": "inline void fourDimWrite(",
    "part1": "torch::Tensor myNaiveAttention(",
    "part2": "torch::Tensor myUnfusedAttentionBlocked(",
    "part3": "torch::Tensor myFusedAttention(",
    "part4": "torch::Tensor myFlashAttention(",
}

#: The starter's lines are comments in the master; without them a text is found in the solution alone.
_STARTER = re.compile(r"^ *// BEGIN STARTER\n.*?// END STARTER\n", re.DOTALL | re.MULTILINE)

#: (text, its replacement) or (text, its replacement, how often the text occurs).
Edit = tuple[str, str] | tuple[str, str, int]


@dataclass(frozen=True)
class Mutation:
    """`codes`: the diagnoses that name this bug; empty when none is expected to (it must be rejected all the same).
    `body`: the solution as a whole, in place of edits."""

    name: str
    part: str
    edits: tuple[Edit, ...] = ()
    codes: tuple[str, ...] = ()
    body: str | None = None


def apply(source: str, mutations: Iterable[Mutation]) -> str:
    """The source with mutations of different functions made. Raises ValueError where an edit's text does not occur."""
    source = _STARTER.sub("", source)
    for mutation in mutations:
        start = source.index(FUNCTIONS[mutation.part])
        end = source.index("\n}\n", start) + len("\n}\n")
        text = source[start:end]
        if mutation.body is not None:
            text = _with_body(text, mutation)
        for old, new, *times in mutation.edits:
            if text.count(old) != (times[0] if times else 1):
                raise ValueError(
                    f"{mutation.name}: found {text.count(old)} times in {mutation.part}: {old!r}"
                )
            text = text.replace(old, new)
        source = source[:start] + text + source[end:]
    return source


def _with_body(text: str, mutation: Mutation) -> str:
    opened, closed = "// BEGIN SOLUTION", "// END SOLUTION"
    if text.count(opened) != 1 or text.count(closed) != 1:
        raise ValueError(f"{mutation.name}: {mutation.part} has no single solution region")
    before, after = text[: text.index(opened) + len(opened)], text[text.index(closed) :]
    return f"{before}\n{mutation.body}\n    {after}"


def packed(mutations: Iterable[Mutation]) -> list[tuple[Mutation, ...]]:
    """Mutations in groups that share one source, since a compile costs seconds: each group has at most one of a part,
    and an accessor's mutation, on which the parts depend, only shares with the other accessor's."""
    queues: dict[str, list[Mutation]] = {part: [] for part in FUNCTIONS}
    for mutation in mutations:
        queues[mutation.part].append(mutation)
    groups: list[tuple[Mutation, ...]] = []
    for parts in (("4Dread", "4Dwrite"), ("part1", "part2", "part3", "part4")):
        rounds = max(len(queues[part]) for part in parts)
        groups += [tuple(queues[part][k] for part in parts if k < len(queues[part])) for k in range(rounds)]
    return groups
