"""Short forms for the rows of the tables. A kernel's name begins with its part: "p1 ..." is of part 1."""

from __future__ import annotations

from functools import partial

from grader.assignment.mutations import Edit, Mutation

PARTS = ("part1", "part2", "part3", "part4")


def wrong(
    part: str, name: str, codes: str, *edits: Edit, says: str = "", body: str | None = None
) -> Mutation:
    """A wrong kernel. `codes` are the diagnoses that name it, with spaces between them."""
    return Mutation(f"p{part[-1]} {name}", part, edits, tuple(codes.split()), body, says)


def right(part: str, name: str, *edits: Edit, body: str | None = None) -> Mutation:
    return Mutation(f"p{part[-1]} {name}", part, edits, body=body)


WRONG = [partial(wrong, part) for part in PARTS]
RIGHT = [partial(right, part) for part in PARTS]
