"""Inputs of the operators. The same distribution, sizes and seed give the same bits on any machine.

A distribution's name is OPERANDS or KIND_OPERANDS, such as `images` or `equal_images`. OPERANDS, a key of `TENSORS`,
stands for the tensors, KIND for their numbers. Before the call, gradients (dA, dX, ...) hold numbers that the call must
add to; with the kind `fresh` they hold 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grader.core.arrays import Array, np
from grader.core.draws import Draws
from grader.core.errors import UsageError

from . import arithmetic

Shape = Mapping[str, int]

BOUND = 2.0
"""Limit of numbers, which are uniform in [-BOUND, BOUND] unless a kind changes them."""
LARGE = 1000.0
"""Limit of logits of the kind `large`, whose exp() overflows a float by far."""
LEVELS = 3
"""Inputs of the kind `tied` are floor(x) for x within +-LEVELS / 2: four different numbers."""


def make_inputs(distribution: str, shape: Shape, seed: int) -> dict[str, Array]:
    """Return the input tensors by name: float32, labels and indices int64. Raises UsageError for inconsistent sizes."""
    kind, _, operands = distribution.rpartition("_")
    draws, sizes = Draws(seed), {**shape, **_MORE_SIZES.get(operands, lambda s: {})(shape)}
    made: dict[str, Array] = {}
    for name, dims in TENSORS[operands].items():
        size = tuple(sizes[dim] for dim in dims.split())
        if name == "labels":
            made[name] = draws.below(sizes["classes"], size)
        elif name == "indices":
            made[name] = arithmetic.pooled(made["X"], shape)[1]
        else:
            x = draws.uniform(size, -BOUND, BOUND)
            if name in _OPERANDS:
                x = _of_kind(kind, x)
            elif name not in _UPSTREAM and kind == "fresh":
                x = np.zeros(size, np.float32)
            made[name] = x
    return made


def _of_kind(kind: str, x: Array) -> Array:
    """Return an operand of this kind: `equal`, `negative`, `tied`, `sparse` or `large`; else `x`, uniform numbers."""
    if kind == "equal":
        return np.full(x.shape, np.float32(0.75))
    if kind == "negative":
        return -abs(x) - np.float32(0.125)
    if kind == "tied":
        return np.floor(x * np.float32(LEVELS / 2 / BOUND))
    if kind == "sparse":
        # A third of the numbers are 0 or -0.
        zero = np.where(x < 0, np.float32(-0.0), np.float32(0.0))
        return np.where(abs(x) < BOUND / 3, zero, x)
    if kind == "large":
        x = x * np.float32(LARGE / BOUND)
        # Every second row lies below -LARGE, where exp() is 0: a maximum that begins at 0 is wrong there.
        x[1::2] = -abs(x[1::2]) - np.float32(LARGE)
    return x


#: For each OPERANDS: the tensors with the names of their sizes, in the order in which tensors are drawn.
TENSORS: Mapping[str, Mapping[str, str]] = {
    "operands": {"A": "R C", "B": "RB CB", "dO": "R C", "dA": "R C", "dB": "RB CB"},
    "signals": {"X": "n", "dO": "n", "dX": "n"},
    "matrices": {"A": "M K", "B": "K N", "dO": "M N", "dA": "M K", "dB": "K N"},
    "layers": {
        "X": "batch I",
        "W": "I O",
        "b": "O",
        "dY": "batch O",
        "dX": "batch I",
        "dW": "I O",
        "db": "O",
    },
    "images": {
        "X": "images channels height width",
        "W": "filters channels kernel kernel",
        "b": "filters",
        "dY": "images filters down across",
        "dX": "images channels height width",
        "dW": "filters channels kernel kernel",
        "db": "filters",
    },
    "maps": {
        "X": "maps planes rows columns",
        "indices": "",
        "dY": "maps planes down across",
        "dX": "maps planes rows columns",
    },
    "targets": {"X": "n", "T": "n", "dX": "n"},
    "logits": {"X": "batch classes", "labels": "batch", "dX": "batch classes"},
    "weights": {"P": "n", "G": "n"},
}
_OPERANDS = frozenset("ABXWP")
#: Tensors with uniform random numbers for every KIND: gradients that the operators read, targets, and biases. Biases
#: differ from each other, so that the output shows which bias was added.
_UPSTREAM = frozenset({"dO", "dY", "b", "T", "G"})


def _fitting(s: Shape) -> Shape:
    r, c, rb, cb = (s[name] for name in ("R", "C", "RB", "CB"))
    if rb not in (1, r) or cb not in (1, c):
        raise UsageError(f"B of {rb} x {cb} does not fit A of {r} x {c}: RB is 1 or R, and CB is 1 or C")
    return {}


def _windows(s: Shape, height: str, width: str, window: int, step: int, pad: int) -> Shape:
    """Return how many places a window has in an image: `down` vertically, `across` horizontally.

    Raises UsageError if the window is larger than the image with its border of `pad`.
    """
    for name in (height, width):
        if window > s[name] + 2 * pad:
            raise UsageError(f"a window of {window} does not fit into {s[name]} with a border of {pad}")
    down, across = ((s[name] + 2 * pad - window) // step + 1 for name in (height, width))
    return {"down": down, "across": across}


#: By OPERANDS: functions that check a case's sizes and return further sizes.
_MORE_SIZES: Mapping[str, Callable[[Shape], Shape]] = {
    "operands": _fitting,
    "images": lambda s: _windows(s, "height", "width", s["kernel"], s["stride"], s["pad"]),
    "maps": lambda s: _windows(s, "rows", "columns", s["side"], s["step"], 0),
}
