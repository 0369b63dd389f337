"""Mistakes in a tiled product, and what a sum in 16 bits loses."""

from __future__ import annotations

from collections.abc import Callable

from grader.core.arrays import Array, np
from grader.judge.diagnosis.deviation import Deviation
from grader.judge.diagnosis.fitting import Situation
from grader.judge.diagnosis.relations import Found
from grader.judge.diagnosis.suspect import Suspect, registering

from .scene import row

MISTAKES: list[Suspect] = []
mistake = registering(MISTAKES)

INNER = (16, 32, 64, 128)
"""Lengths of tiles along the sum."""
LOST = 16
"""Errors up to so many roundings of the largest number may be those of sums in 16 bits."""


def _of_tiles(block: int, say: str) -> Callable[[Situation], Array | None]:
    def predict(s: Situation) -> Array | None:
        a, b = s.inputs["a"], s.inputs["b"]
        inner = a.shape[1]
        last = (inner - 1) // block * block
        if say == "dropped":
            return a[:, :last] @ b[:last] if inner % block and last else None
        if last == 0:
            return None
        if say == "overwritten":
            return a[:, last:] @ b[last:]
        if say == "first":
            return a[:, :block] @ b[:block]
        # The pointers stay at the first tile; the mask of the last step is that of what is left.
        whole = inner // block
        return whole * (a[:, :block] @ b[:block]) + a[:, : inner - last] @ b[: inner - last] * bool(
            inner % block
        )

    return predict


_SAYS = {
    "dropped": (
        "dropped_block",
        "The last part of the sum is left out: its length is no multiple of the tile.",
    ),
    "overwritten": (
        "last_block_only",
        "Each value holds the last tile of the sum alone: the accumulator is overwritten, not added to.",
    ),
    "first": (
        "first_block_only",
        "Each value holds the first tile of the sum alone: is there a loop over the inner size?",
    ),
    "standing": (
        "pointers_not_moved",
        "The first tile of a and b is added again and again: move the pointers on.",
    ),
}
MISTAKES += [
    Suspect(code, words, _of_tiles(block, say), (f"{say} {block}",))
    for say, (code, words) in _SAYS.items()
    for block in INNER
]


@mistake("transposed_operand", "This is a b^T: rows of b are taken for columns. Look at the strides of b.")
def of_b_transposed(s: Situation) -> Array | None:
    a, b = s.inputs["a"], s.inputs["b"]
    return a @ b.T if b.shape[0] == b.shape[1] else None


@mistake("transposed_operand", "This is a^T b: rows of a are taken for columns. Look at the strides of a.")
def of_a_transposed(s: Situation) -> Array | None:
    a, b = s.inputs["a"], s.inputs["b"]
    return a.T @ b if a.shape[0] == a.shape[1] else None


MISTAKES += [
    row("b_by_columns", "operand_not_contiguous",
        "b is read as if its rows lay behind each other in memory: use the strides that it has.",
        lambda s: s.inputs["a"] @ s.inputs["b"].ravel(order="F").reshape(s.inputs["b"].shape)),
    row("a_by_columns", "operand_not_contiguous",
        "a is read as if its rows lay behind each other in memory: use the strides that it has.",
        lambda s: s.inputs["a"].ravel(order="F").reshape(s.inputs["a"].shape) @ s.inputs["b"]),
]  # fmt: skip


@mistake(
    "operand_not_contiguous",
    "a and b are read as if their rows lay behind each other in memory: use their strides.",
)
def both_by_columns(s: Situation) -> Array:
    a, b = s.inputs["a"], s.inputs["b"]
    return a.ravel(order="F").reshape(a.shape) @ b.ravel(order="F").reshape(b.shape)


@mistake("absolute_value", "This is the product of absolute values.")
def of_absolutes(s: Situation) -> Array:
    return np.asarray(abs(s.inputs["a"]) @ abs(s.inputs["b"]))


def half_accumulator(seen: Deviation) -> Found | None:
    """Errors that are small, and more than one rounding of the result: sums, or scores, that were held in 16 bits."""
    precision = seen.sizes.get("precision", 24)
    error = abs(seen.actual - seen.expected)
    if precision == 24 or error.max() > LOST * 2.0**-precision * abs(seen.expected).max():
        return None
    return "half_accumulator", (
        f"The values are close, with errors up to {error.max():.1e}, where one rounding of the result would cost "
        f"{seen.tolerance.max():.1e}. Something between is held in 16 bits: an accumulator, a sum, a maximum or "
        f"scores have "
        "to be float32, and a factor belongs to the float32 product, not to an operand of 16 bits."
    )
