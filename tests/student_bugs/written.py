"""The files of the table: each bug alone in a file of its own, or many side by side in one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from table import MARK, Base, Bug

from grader.assignment import loading, mutations
from grader.assignment.mutations import Mutation
from grader.assignment.records import Assignment
from tests.honest import styles

ROOT = Path(__file__).resolve().parents[2]
CONFIGS: dict[Base, str] = {
    "master": "configs/gpt149.yaml",
    "published": "configs/gpt149.yaml",
    "softmax": "labs/softmax/assignment.yaml",
    "operators": "labs/operators/assignment.yaml",
}


@cache
def assignment(base: Base) -> Assignment:
    return loading.load(ROOT / CONFIGS[base])


@cache
def _right(base: Base) -> str:
    if base == "published":
        return styles.source(styles.STYLES[0])
    named = {
        "master": "module.cpp",
        "softmax": "labs/softmax/softmax.cpp",
        "operators": "labs/operators/operators.cpp",
    }
    return (ROOT / named[base]).read_text()


def _mutation(bug: Bug) -> Mutation:
    return Mutation(bug.name, bug.part, bug.edits)


def alone(bug: Bug) -> tuple[str, tuple[int, ...]]:
    """The file with this bug, and the lines of the mistake."""
    functions = mutations.functions_of(assignment(bug.base))
    return _unmarked(mutations.applied(_right(bug.base), functions, [_mutation(bug)]))


def together(bugs: Sequence[Bug]) -> str:
    """One file with all of these, which have one base, as `mutations.side_by_side`; still marked."""
    functions = mutations.functions_of(assignment(bugs[0].base))
    return mutations.side_by_side(_right(bugs[0].base), functions, [_mutation(bug) for bug in bugs])


def _unmarked(text: str) -> tuple[str, tuple[int, ...]]:
    rows = text.split("\n")
    lines = tuple(number for number, row in enumerate(rows, 1) if MARK in row)
    return "\n".join(row.replace(MARK, "").rstrip() if MARK in row else row for row in rows), lines
