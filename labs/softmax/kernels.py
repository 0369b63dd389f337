"""Kernels with known verdicts: the master with named edits. Only for the staff; a handout lacks this file.

`python -m grader selftest --lab softmax` judges them all, and so does tests/test_softmax.py. Each kernel of WRONG names
the code of its expected diagnosis. Kernels of RIGHT are correct ways to write the same; they must pass, in time too.
"""

from __future__ import annotations

from grader.assignment.mutations import Mutation

from .known.right import RIGHT
from .known.wrong import WRONG_MERGES, WRONG_NAIVE, WRONG_ONLINE, WRONG_SAFE

__all__ = ["FUNCTIONS", "RIGHT", "SHAPE", "SLOW", "WRONG"]

#: Sizes for parts that are not timed and whose case names no sizes.
SHAPE = {"R": 64, "C": 96, "d": 24}
FUNCTIONS = {
    "naive": "naiveSoftmax",
    "safe": "safeSoftmax",
    "online": "onlineSoftmax",
    "merge": "mergeSoftmax",
}
WRONG = (*WRONG_NAIVE, *WRONG_SAFE, *WRONG_ONLINE, *WRONG_MERGES)

#: Each of the exponentials has another argument, so that the compiler cannot merge them.
SLOW = Mutation(
    "four exponentials more for each element",
    "naive",
    (
        (
            "            sum += std::exp(x[j]);",
            "            volatile float kept = 0.0f;\n"
            "            for (int k = 4; k >= 0; k--) kept = std::exp(x[j] - k);\n"
            "            sum += kept;",
        ),
    ),
)
