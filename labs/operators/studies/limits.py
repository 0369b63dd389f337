"""Lower limits for kernels of a part: operations and bytes.

An addition, a product, a quotient, a comparison, exp() and log() are one operation each; a multiply-add is two. Matrix
products and convolutions are those of the definition, without the products with a border of zeros: Strassen's or
Winograd's ways do with fewer. Of bytes each tensor counts once: read, or written, or both where a gradient is added to.
That is a limit while nothing of it is read twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from grader.assignment.expressions import evaluate_int
from grader.assignment.records import Part

from .. import arithmetic

Shape = Mapping[str, int]

FLOAT_BYTES, LABEL_BYTES = 4, 8
#: Tensors of the assignment with whole numbers in them, which have no type of their own in its file.
WHOLE = frozenset({"labels", "indices", "index"})


@dataclass(frozen=True)
class Work:
    """Work of one call. `operations` are counted as the module's text says; bytes are those that must be read, and
    written. `in_place`: all that is written was read before, as with a gradient that is added to."""

    operations: int
    read_bytes: int
    written_bytes: int
    in_place: bool = False

    @property
    def moved_bytes(self) -> int:
        return self.read_bytes + self.written_bytes


def work(part: Part, shape: Shape) -> Work:
    """Return the work of one call of a part."""
    read = written = 0
    for name, dims in _tensors(part).items():
        size = math.prod(evaluate_int(dim, shape) for dim in dims)
        size *= LABEL_BYTES if name in WHOLE else FLOAT_BYTES
        read += size if name in part.inputs else 0
        written += size if name in part.outputs else 0
    in_place = part.returns != "tensor" and all(name in part.inputs for name in part.outputs)
    if part.returns == "tensor":
        written += FLOAT_BYTES * math.prod(evaluate_int(dim, shape) for dim in part.output_dims)
    return Work(OPERATIONS[part.oracle](shape), read, written, in_place)


def _tensors(part: Part) -> dict[str, tuple[str, ...]]:
    """The dimensions of those tensors that are handed to the function, by name."""
    outputs = {name: tuple(output.dims) for name, output in part.outputs.items()}
    known = {**outputs, **{name: tuple(dims) for name, dims in part.inputs.items()}}
    return {name: known[name] for name in dict.fromkeys(part.arguments) if name in known}


def _elements(s: Shape) -> int:
    return s["R"] * s["C"]


def _product(s: Shape) -> int:
    return s["M"] * s["K"] * s["N"]


def _layer(s: Shape) -> int:
    return s["batch"] * s["I"] * s["O"]


def _products_of_images(s: Shape) -> int:
    """Products of a filter's number and one of the image, over all places, filters and images."""
    taps = arithmetic.usual_taps(s)
    rows = int(((taps.rows >= 0) & (taps.rows < s["height"])).sum())
    columns = int(((taps.columns >= 0) & (taps.columns < s["width"])).sum())
    return s["images"] * s["channels"] * s["filters"] * rows * columns


def _places_of_images(s: Shape) -> int:
    return s["images"] * s["filters"] * math.prod(arithmetic.out_size(s))


def _windows(s: Shape) -> int:
    down, right = ((s[name] - s["side"]) // s["step"] + 1 for name in ("rows", "columns"))
    return s["maps"] * s["planes"] * down * right


def _logits(s: Shape) -> int:
    return s["batch"] * s["classes"]


#: By the name of a part's oracle.
OPERATIONS: Mapping[str, Callable[[Shape], int]] = {
    "add": _elements,
    "add_backward": lambda s: 2 * _elements(s),
    "mul": _elements,
    "mul_backward": lambda s: 4 * _elements(s),
    "relu": lambda s: s["n"],
    "relu_backward": lambda s: 2 * s["n"],
    "matmul": lambda s: 2 * _product(s),
    "matmul_backward": lambda s: 4 * _product(s),
    "linear": lambda s: 2 * _layer(s),
    "linear_backward": lambda s: 4 * _layer(s) + s["batch"] * s["O"],
    "conv2d": lambda s: 2 * _products_of_images(s),
    "conv2d_backward": lambda s: 4 * _products_of_images(s) + _places_of_images(s),
    "maxpool2d": lambda s: _windows(s) * (s["side"] ** 2 - 1),
    "maxpool2d_backward": _windows,
    "mse": lambda s: 3 * s["n"],
    "mse_backward": lambda s: 3 * s["n"],
    # The maximum, its difference, the exponential, the sum; and the quotient and the gradient's sum.
    "cross_entropy": lambda s: 4 * _logits(s),
    "cross_entropy_backward": lambda s: 6 * _logits(s),
    "sgd": lambda s: 2 * s["n"],
}
