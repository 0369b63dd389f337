"""Kernels with known verdicts: the master with named edits. For the staff, not handed out.

`python -m grader selftest --lab softmax` judges them all, and so does tests/test_softmax.py. WRONG names for each the
code of the expected diagnosis. RIGHT are other correct ways of writing the same, which must also pass in time.
"""

from __future__ import annotations

from grader.assignment.mutations import Mutation

from .known.right import RIGHT
from .known.wrong import WRONG_MERGES, WRONG_NAIVE, WRONG_ONLINE, WRONG_SAFE

__all__ = ["FUNCTIONS", "RIGHT", "SHAPE", "SLOW", "WRONG"]

#: Sizes of untimed parts whose case has no sizes.
SHAPE = {"R": 64, "C": 96, "d": 24}
FUNCTIONS = {
    "naive": "naiveSoftmax",
    "safe": "safeSoftmax",
    "online": "onlineSoftmax",
    "merge": "mergeSoftmax",
}
WRONG = (*WRONG_NAIVE, *WRONG_SAFE, *WRONG_ONLINE, *WRONG_MERGES)

#: The exponentials differ, so that no compiler merges them.
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
