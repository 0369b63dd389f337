"""Kernels with known verdicts: the course's solution (the master) with one named edit. A handout lacks this file.

`python -m grader selftest --lab operators` judges all of them. Each kernel of WRONG has the codes of its expected
diagnosis. Kernels of RIGHT are correct variants: they must pass, and be fast enough.
"""

from __future__ import annotations

from grader.assignment.mutations import Mutation

from .known import wrong
from .known.right import RIGHT

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

FUNCTIONS = {
    "add": "addForward",
    "add_backward": "addBackward",
    "mul": "mulForward",
    "mul_backward": "mulBackward",
    "relu": "reluForward",
    "relu_backward": "reluBackward",
    "matmul": "matmulForward",
    "matmul_backward": "matmulBackward",
    "linear": "linearForward",
    "linear_backward": "linearBackward",
    "conv2d": "conv2dForward",
    "conv2d_backward": "conv2dBackward",
    "maxpool2d": "maxpool2dForward",
    "maxpool2d_backward": "maxpool2dBackward",
    "mse": "mseForward",
    "mse_backward": "mseBackward",
    "cross_entropy": "crossEntropyForward",
    "cross_entropy_backward": "crossEntropyBackward",
    "sgd": "sgdStep",
}
