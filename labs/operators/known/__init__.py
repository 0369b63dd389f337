"""Test kernels with known verdicts. Each is the course's solution (the master) with one named change.

`python -m grader selftest --lab operators` judges all of them. Each kernel of WRONG states the codes of its expected
diagnosis. Kernels of RIGHT are correct variants: they must pass and be fast enough. Students do not get this package.
"""

from __future__ import annotations

from pathlib import Path

from grader.assignment import loading
from grader.assignment.mutations import Mutation

from . import wrong
from .right import RIGHT

__all__ = ["FUNCTIONS", "RIGHT", "SLOW", "WRONG"]

WRONG: tuple[Mutation, ...] = (
    *wrong.WRONG_ELEMENTS,
    *wrong.WRONG,
    *wrong.WRONG_PICTURES,
    *wrong.WRONG_LOSSES,
)

SLOW = Mutation(
    "thirty times",
    "matmul",
    (
        (
            "const float factor = a[i * K + k];",
            "volatile float idle = 0;\n"
            "            for (int e = 0; e < 30 * N; e++) idle = idle + 1;\n"
            "            const float factor = a[i * K + k];",
        ),
    ),
)

#: Function of each part, by the part's id.
FUNCTIONS = {
    part.id: part.function for part in loading.load(Path(__file__).parents[1] / "assignment.yaml").parts
}
