"""The files of the table: each bug alone in a file of its own, or several side by side in one, which compile once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from table import MARK, Base, Bug

from grader.assignment import loading, mutations
from grader.assignment.mutations import Mutation
from grader.assignment.records import Assignment, Part
from labs.attention.mutations import FUNCTIONS, KERNELS

ROOT = Path(__file__).resolve().parents[2]
CONFIGS: dict[Base, str] = {
    "master": "configs/gpt149.yaml",
    "published": "configs/gpt149.yaml",
    "softmax": "labs/softmax/assignment.yaml",
    "operators": "labs/operators/assignment.yaml",
}
MASTERS: dict[Base, str] = {
    "master": "module.cpp",
    "softmax": "labs/softmax/softmax.cpp",
    "operators": "labs/operators/operators.cpp",
}


@dataclass(frozen=True)
class Written:
    """A file with bugs side by side: for each, in order, the part that is judged and the lines of the mistake."""

    text: str
    parts: tuple[Part, ...]
    lines: tuple[tuple[int, ...], ...]


@cache
def assignment(base: Base) -> Assignment:
    return loading.load(ROOT / CONFIGS[base])


@cache
def _right(base: Base) -> str:
    if base != "published":
        return (ROOT / MASTERS[base]).read_text()
    sys.path.append(str(ROOT / "tests" / "honest"))
    import styles

    return styles.source(styles.STYLES[0])


def _mutation(bug: Bug) -> Mutation:
    return Mutation(bug.name, bug.part, bug.edits)


def _functions(base: Base) -> dict[str, str]:
    return FUNCTIONS if base in ("master", "published") else mutations.functions_of(assignment(base))


def alone(bug: Bug) -> tuple[str, tuple[int, ...]]:
    """The file with this bug alone, and the lines of the mistake."""
    return _unmarked(mutations.applied(_right(bug.base), _functions(bug.base), [_mutation(bug)]))


def together(bugs: Sequence[Bug]) -> Written:
    """One file with all of these, which have one base."""
    base, made = bugs[0].base, [_mutation(bug) for bug in bugs]
    dropped = KERNELS if base in ("master", "published") else ()
    text, marked = _unmarked(mutations.side_by_side(_right(base), _functions(base), made, dropped))
    starts = [text[: text.index(f" {mutations.variant(k)}(")].count("\n") + 1 for k in range(len(bugs))]
    ends = [*starts[1:], text.count("\n") + 1]
    lines = tuple(
        tuple(line for line in marked if start <= line < end) for start, end in zip(starts, ends, strict=True)
    )
    return Written(text, mutations.parts_of(assignment(base), made), lines)


def _unmarked(text: str) -> tuple[str, tuple[int, ...]]:
    rows = text.split("\n")
    lines = tuple(number for number, row in enumerate(rows, 1) if MARK in row)
    return "\n".join(row.replace(MARK, "").rstrip() if MARK in row else row for row in rows), lines
