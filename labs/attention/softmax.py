"""The softmax of scores."""

from __future__ import annotations

from grader.core.arrays import Array, np


def softmax(scores: Array, axis: int) -> Array:
    """exp(scores) over their sum along an axis, as torch's: a row of -inf alone is NaN. In float64."""
    weights = np.exp(scores - scores.max(axis, keepdims=True))
    weights /= weights.sum(axis, keepdims=True)
    return weights
