"""Tables of a lab's known kernels, shared out to files that a test judges at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import pytest
from _pytest.mark.structures import ParameterSet

from grader.assignment.mutations import Mutation


def code_of(mutation: Mutation) -> Hashable:
    return mutation.codes[:1]


def part_of(mutation: Mutation) -> Hashable:
    return mutation.part


def in_files(
    made: Sequence[Mutation], key: Callable[[Mutation], Hashable], most: int = 45
) -> list[ParameterSet]:
    """Return parameters for `parametrize`, lists of kernels for one file. The first of each key is in both tiers."""
    first = {key(mutation): mutation for mutation in reversed(made)}
    chosen = [mutation for mutation in made if first[key(mutation)] is mutation]
    others = [mutation for mutation in made if first[key(mutation)] is not mutation]
    return [
        pytest.param(some[start : start + most], marks=marks, id=f"{name} from {start}")
        for name, some, marks in (("first", chosen, ()), ("others", others, pytest.mark.full))
        for start in range(0, len(some), most)
    ]
