"""Mutations of the attention master: names of its functions, and files with many wrong variants of them."""

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
    """Return the source after mutations of different functions. Raises ValueError where an edit's text is missing."""
    return general.applied(source, FUNCTIONS, mutations)


def edited(source: str, mutation: Mutation) -> str:
    """Return the source after one mutation. Raises ValueError if a text to replace is missing in its function."""
    return apply(source, [mutation])


def side_by_side(source: str, mutations: Sequence[Mutation]) -> str:
    """Return one source with a function named `variant(k)` for the k-th mutation. It keeps the accessors of `source`
    and leaves out its other kernels. Raises ValueError where an edit's text is missing."""
    return general.side_by_side(source, FUNCTIONS, mutations, KERNELS)
