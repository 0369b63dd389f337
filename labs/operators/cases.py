"""Inputs of the operators. The same distribution, sizes and seed give the same bits on any machine.

A distribution's name is OPERANDS or KIND_OPERANDS, such as `images` or `equal_images`. OPERANDS, a key of `_MAKERS`,
stands for the tensors, KIND for their numbers. Before the call, gradients (dA, dX, ...) hold numbers that the call must
add to; with the kind `fresh` they hold 0.
"""

from __future__ import annotations

from collections.abc import Mapping

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
"""Number of different values in inputs of the kind `tied`."""


def make_inputs(distribution: str, shape: Shape, seed: int) -> dict[str, Array]:
    """Return the input tensors by name: float32, labels and indices int64. Raises UsageError for inconsistent sizes."""
    kind, _, operands = distribution.rpartition("_")
    draw = _Drawing(Draws(seed), kind)
    return _MAKERS[operands](draw, shape)


class _Drawing:
    """Draws random tensors of one kind: `equal`, `negative`, `tied`, `sparse`, `large`; for `fresh` and "" uniform."""

    def __init__(self, draws: Draws, kind: str) -> None:
        self.draws, self.kind = draws, kind

    def operand(self, *size: int) -> Array:
        x = self.draws.uniform(size, -BOUND, BOUND)
        if self.kind == "equal":
            return np.full(size, np.float32(0.75))
        if self.kind == "negative":
            return -abs(x) - np.float32(0.125)
        if self.kind == "tied":
            return np.floor(x * np.float32(LEVELS / 2 / BOUND))
        if self.kind == "sparse":
            # A third of the numbers are 0 or -0.
            zero = np.where(x < 0, np.float32(-0.0), np.float32(0.0))
            return np.where(abs(x) < BOUND / 3, zero, x)
        if self.kind == "large":
            return x * np.float32(LARGE / BOUND)
        return x

    def upstream(self, *size: int) -> Array:
        """Return a gradient of the loss with respect to an operator's result. It is uniform for every kind."""
        return self.draws.uniform(size, -BOUND, BOUND)

    def gradient(self, *size: int) -> Array:
        """Return the values that a gradient holds before the call: zeros if `fresh`, else random numbers."""
        held = self.draws.uniform(size, -BOUND, BOUND)
        return np.zeros(size, np.float32) if self.kind == "fresh" else held


def _operands(draw: _Drawing, s: Shape) -> dict[str, Array]:
    r, c, rb, cb = (s[name] for name in ("R", "C", "RB", "CB"))
    if rb not in (1, r) or cb not in (1, c):
        raise UsageError(f"B of {rb} x {cb} does not fit A of {r} x {c}: RB is 1 or R, and CB is 1 or C")
    return {
        "A": draw.operand(r, c),
        "B": draw.operand(rb, cb),
        "dO": draw.upstream(r, c),
        "dA": draw.gradient(r, c),
        "dB": draw.gradient(rb, cb),
    }


def _signals(draw: _Drawing, s: Shape) -> dict[str, Array]:
    n = s["n"]
    return {"X": draw.operand(n), "dO": draw.upstream(n), "dX": draw.gradient(n)}


def _matrices(draw: _Drawing, s: Shape) -> dict[str, Array]:
    m, k, n = s["M"], s["K"], s["N"]
    return {
        "A": draw.operand(m, k),
        "B": draw.operand(k, n),
        "dO": draw.upstream(m, n),
        "dA": draw.gradient(m, k),
        "dB": draw.gradient(k, n),
    }


def _layers(draw: _Drawing, s: Shape) -> dict[str, Array]:
    n, i, o = s["batch"], s["I"], s["O"]
    return {
        "X": draw.operand(n, i),
        "W": draw.operand(i, o),
        # Biases differ from each other in every kind of input, so that the output shows which bias was added.
        "b": draw.upstream(o),
        "dY": draw.upstream(n, o),
        "dX": draw.gradient(n, i),
        "dW": draw.gradient(i, o),
        "db": draw.gradient(o),
    }


def _images(draw: _Drawing, s: Shape) -> dict[str, Array]:
    n, c, h, w = (s[name] for name in ("images", "channels", "height", "width"))
    f, k = s["filters"], s["kernel"]
    rows, columns = (_windows(size, s["kernel"], s["stride"], s["pad"]) for size in (h, w))
    return {
        "X": draw.operand(n, c, h, w),
        "W": draw.operand(f, c, k, k),
        "b": draw.upstream(f),
        "dY": draw.upstream(n, f, rows, columns),
        "dX": draw.gradient(n, c, h, w),
        "dW": draw.gradient(f, c, k, k),
        "db": draw.gradient(f),
    }


def _maps(draw: _Drawing, s: Shape) -> dict[str, Array]:
    n, c, h, w = (s[name] for name in ("maps", "planes", "rows", "columns"))
    rows, columns = (_windows(size, s["side"], s["step"], 0) for size in (h, w))
    x = draw.operand(n, c, h, w)
    return {
        "X": x,
        "indices": arithmetic.pooled(x, s)[1],
        "dY": draw.upstream(n, c, rows, columns),
        "dX": draw.gradient(n, c, h, w),
    }


def _windows(size: int, window: int, step: int, pad: int) -> int:
    """Return the number of places of a window along one side of an image. Raises UsageError if it does not fit."""
    if window > size + 2 * pad:
        raise UsageError(f"a window of {window} does not fit into {size} with a border of {pad}")
    return (size + 2 * pad - window) // step + 1


def _targets(draw: _Drawing, s: Shape) -> dict[str, Array]:
    return {"X": draw.operand(s["n"]), "T": draw.upstream(s["n"]), "dX": draw.gradient(s["n"])}


def _logits(draw: _Drawing, s: Shape) -> dict[str, Array]:
    n, c = s["batch"], s["classes"]
    x = draw.operand(n, c)
    return {"X": x, "labels": draw.draws.below(c, (n,)), "dX": draw.gradient(n, c)}


def _weights(draw: _Drawing, s: Shape) -> dict[str, Array]:
    return {"P": draw.operand(s["n"]), "G": draw.upstream(s["n"])}


_MAKERS = {
    "operands": _operands,
    "signals": _signals,
    "matrices": _matrices,
    "layers": _layers,
    "images": _images,
    "maps": _maps,
    "targets": _targets,
    "logits": _logits,
    "weights": _weights,
}
