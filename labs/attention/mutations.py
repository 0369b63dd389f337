"""Finds the functions of the master source, and writes files with many wrong ones side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from grader.assignment import mutations as general
from grader.assignment.mutations import Mutation, parts_of, variant

__all__ = ["FUNCTIONS", "apply", "edited", "parts_of", "side_by_side", "variant"]

FUNCTIONS = {
    "4Dread": "fourDimRead",
    "4Dwrite": "fourDimWrite",
    "part1": "myNaiveAttention",
    "part2": "myUnfusedAttentionBlocked",
    "part3": "myFusedAttention",
    "part4": "myFlashAttention",
}
KERNELS = ("part1", "part2", "part3", "part4")


def apply(source: str, mutations: Iterable[Mutation]) -> str:
    """Return the source with mutations of different functions made. Raises ValueError where an edit's text does not
    occur."""
    return general.applied(source, FUNCTIONS, mutations)


def edited(source: str, mutation: Mutation) -> str:
    """Return the source with one mutation made in its part's function. Raises ValueError where a text does not
    occur."""
    return apply(source, [mutation])


def side_by_side(source: str, mutations: Sequence[Mutation]) -> str:
    """Return one source with a function `variant(k)` for the k-th mutation. They call the accessors as `source` has
    them; kernels that were not mutated are left out. Raises ValueError where an edit's text does not occur."""
    return general.side_by_side(source, FUNCTIONS, mutations, KERNELS)
