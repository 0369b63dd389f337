"""Kernels of which it is known what must become of them: the master with named edits. For the staff, not handed out.

WRONG names for each the code that must be told, RIGHT are other ways of writing the same, which must pass, SLOW is
right and takes longer. The students' file is called kernels.py, so that this package stands for what other labs call
so.
"""

from __future__ import annotations

from grader.assignment import mutations
from grader.assignment.mutations import Mutation
from labs.gpu.known.right import RIGHT
from labs.gpu.known.wrong_backward import WRONG_BACKWARD
from labs.gpu.known.wrong_forward import WRONG_FORWARD
from labs.gpu.known.wrong_rows import WRONG_ROWS

__all__ = ["FUNCTIONS", "RIGHT", "SHAPE", "SLOW", "WRONG", "edited"]

#: Sizes of what is not timed, where a case has none of its own.
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
"""What of the master an edit of a part may be in: its kernels and the function that launches them."""
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


def edited(source: str, mutation: Mutation) -> str:
    """The source with one mutation made in its part's functions. Raises ValueError where a text does not occur."""
    return mutations.applied(source, FUNCTIONS, [mutation])
