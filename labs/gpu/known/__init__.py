"""Kernels with known verdicts: the master with named edits. Only for the staff; a handout lacks this package.

Each kernel of WRONG names the code of its expected diagnosis. Kernels of RIGHT are correct ways to write the same, and
must pass. SLOW is correct but takes longer. Other labs keep these in `kernels`, but here that is the students' file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from grader.assignment import mutations
from grader.assignment.mutations import Mutation

from .edits import RIGHT, WRONG_BACKWARD, WRONG_FORWARD, WRONG_ROWS

__all__ = ["FUNCTIONS", "RIGHT", "SHAPE", "SLOW", "WRONG", "side_by_side"]

#: Sizes for parts that are not timed and whose case names no sizes.
SHAPE = {
    "R": 8,
    "C": 64,
    "lines": 2,
    "width": 5000,
    "rows": 64,
    "inner": 64,
    "columns": 64,
    "B": 1,
    "N": 64,
    "M": 64,
    "d": 32,
}
FUNCTIONS = {
    "gelu": ("_gelu", "gelu"),
    "softmax": ("_softmax_row", "softmax"),
    "softmax_long": ("_softmax_blocks", "softmax_long"),
    "matmul": ("_matmul", "matmul"),
    "flash_forward": ("_forward_tiles", "_forward", "flash_forward"),
    "flash_backward": (
        *("_row_sums", "_key_tiles", "_backward_keys", "_query_tiles", "_backward_queries"),
        "flash_backward",
    ),
}
"""Functions of the master that an edit of a part may change: its kernels and the function that launches them."""
WRONG = (*WRONG_ROWS, *WRONG_FORWARD, *WRONG_BACKWARD)

SLOW = Mutation(
    "every tile of keys twice",
    "flash_forward",
    (
        (
            "        s = tl.dot(q, tl.trans(k))\n",
            "        s = tl.dot(q, tl.trans(k))\n        s = (s + tl.dot(q, tl.trans(k * 0.5))) / 1.5\n",
        ),
    ),
)


def side_by_side(master: str, made: Sequence[Mutation]) -> str:
    """Return one file with all of these edits. Each edit has its own copy of the kernels."""
    source = mutations.without_starter(master)
    variants = ""
    for number, mutation in enumerate(made):
        *kernels, launcher = FUNCTIONS[mutation.part]
        text = "\n\n".join(mutations.pieces(source, FUNCTIONS[mutation.part], mutation).values())
        for name in kernels:
            text = re.sub(rf"\b{name}\b", f"{name}_of_{number}", text)
        variants += "\n\n" + text.replace(f"def {launcher}(", f"def {mutations.variant(number)}(", 1)
    return source + variants
