"""Functions that make kernels. WRONG[k] and RIGHT[k] make one of part k + 1; names begin with the part ("p1 ...")."""

from functools import partial

from grader.assignment.mutations import Edit, Mutation

Body = str | None
PARTS = ("part1", "part2", "part3", "part4")
BATCHES, HEADS = "for (int b = 0; b < B; b++) {", "for (int h = 0; h < H; h++) {"
ROW_SUM = "float rowSum = 0.0f;"
DECLARE_ZERO = (HEADS, "int zero = 0;\n        " + HEADS)


def head_of(b: str, h: str) -> tuple[Edit, ...]:
    """Return edits that read Q, K and V at batch `b` and head `h`, two C++ expressions."""
    return tuple((f"fourDimRead({t}, b, h,", f"fourDimRead({t}, {b}, {h},") for t in "QKV")


def wrong(part: str, name: str, codes: str, *edits: Edit, says: str = "", body: Body = None) -> Mutation:
    return Mutation(f"p{part[-1]} {name}", part, edits, tuple(codes.split()), body, says)


def right(part: str, name: str, *edits: Edit, body: Body = None) -> Mutation:
    return Mutation(f"p{part[-1]} {name}", part, edits, body=body)


WRONG = [partial(wrong, part) for part in PARTS]
RIGHT = [partial(right, part) for part in PARTS]
