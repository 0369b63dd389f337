"""Operators of a neural network, forward and backward: element by element, matrix products, images, losses, SGD.

Backward functions add to the gradients that they receive. A case's `distribution` says how its inputs are drawn: which
tensors, such as "images", and after a prefix which numbers, such as "negative_images". See `cases`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from grader.assignment.labs import Lab, OracleFacts, Reference, Step

if TYPE_CHECKING:
    from types import ModuleType

    from grader.core.arrays import Array
    from grader.explain.oracle import Oracle


def _facts(operands: str, *kinds: str) -> OracleFacts:
    return OracleFacts((operands, *(f"{kind}_{operands}" for kind in kinds)))


_OPERANDS = _facts("operands", "fresh", "equal", "negative")
_SIGNALS = _facts("signals", "fresh", "sparse", "negative")
_MATRICES = _facts("matrices", "fresh", "equal", "negative")
_LAYERS = _facts("layers", "fresh", "equal", "negative")
_IMAGES = _facts("images", "fresh", "equal", "negative")
_MAPS = _facts("maps", "fresh", "tied", "equal", "negative")
_TARGETS = _facts("targets", "fresh", "equal", "negative")
_LOGITS = _facts("logits", "fresh", "equal", "negative", "large")


class _Operators(Lab):
    oracles: ClassVar = {
        "add": _OPERANDS,
        "add_backward": _OPERANDS,
        "mul": _OPERANDS,
        "mul_backward": _OPERANDS,
        "relu": _SIGNALS,
        "relu_backward": _SIGNALS,
        "matmul": _MATRICES,
        "matmul_backward": _MATRICES,
        "linear": _LAYERS,
        "linear_backward": _LAYERS,
        "conv2d": _IMAGES,
        "conv2d_backward": _IMAGES,
        "maxpool2d": _MAPS,
        "maxpool2d_backward": _MAPS,
        "mse": _TARGETS,
        "mse_backward": _TARGETS,
        "cross_entropy": _LOGITS,
        "cross_entropy_backward": _LOGITS,
        "sgd": _facts("weights", "equal", "negative"),
    }
    options: ClassVar = {
        "R": ("-R", "rows of A in add and mul"),
        "C": ("-C", "columns of A in add and mul"),
        "RB": ("--RB", "rows of B in add and mul: 1 or R"),
        "CB": ("--CB", "columns of B in add and mul: 1 or C"),
        "n": ("-n", "numbers in relu, mse and sgd"),
        "M": ("-M", "rows of A in matmul"),
        "K": ("-K", "columns of A in matmul"),
        "N": ("-N", "columns of B in matmul"),
        "batch": ("--batch", "rows of X in linear and cross_entropy"),
        "I": ("-I", "columns of X in linear"),
        "O": ("-O", "columns of Y in linear"),
        "classes": ("--classes", "columns of X in cross_entropy"),
        "images": ("--images", "images in conv2d"),
        "channels": ("--channels", "channels of an image in conv2d"),
        "height": ("--height", "rows of an image in conv2d"),
        "width": ("--width", "columns of an image in conv2d"),
        "filters": ("--filters", "filters in conv2d"),
        "kernel": ("--kernel", "rows and columns of a filter"),
        "stride": ("--stride", "stride of conv2d"),
        "pad": ("--pad", "padding of conv2d"),
        "maps": ("--maps", "images in maxpool2d"),
        "planes": ("--planes", "channels of an image in maxpool2d"),
        "rows": ("--rows", "rows of an image in maxpool2d"),
        "columns": ("--columns", "columns of an image in maxpool2d"),
        "side": ("--side", "rows and columns of a window in maxpool2d"),
        "step": ("--step", "stride of maxpool2d"),
    }
    staff: ClassVar = ("known",)
    studies: ClassVar = {
        "train": (".train.command", "two networks learn digits with your operators, and with PyTorch's"),
        "ladder": (
            ".studies.ladder",
            "a part's time beside the reference, fast kernels, PyTorch and the machine's limit",
        ),
    }
    #: Sizes for the search for data races: each loop that threads may share has several iterations. The windows of
    #: maxpool2d overlap by four rows and columns, so that several windows have the same maximum.
    watched_sizes: ClassVar = {
        "R": 13, "C": 7, "RB": 1, "CB": 7, "n": 101, "M": 11, "K": 7, "N": 5, "batch": 11, "I": 7, "O": 5,
        "classes": 5, "images": 5, "channels": 3, "height": 7, "width": 6, "filters": 4, "kernel": 3,
        "stride": 1, "pad": 1, "maps": 5, "planes": 3, "rows": 9, "columns": 8, "side": 5, "step": 1,
    }  # fmt: skip
    #: Memory studies vary a filter's side, because the memory of im2col grows with its square.
    growth: ClassVar = ("kernel", (1, 3, 5, 7))

    def oracle(self, name: str) -> Oracle:
        from .oracle import ORACLES

        return ORACLES[name]

    def make_inputs(self, distribution: str, shape: Mapping[str, int], seed: int) -> dict[str, Array]:
        from .cases import make_inputs

        return make_inputs(distribution, shape, seed)

    def reference(self) -> Reference:
        from grader.backends.torch.labreference import SourceReference

        from .studies.sources import all_levels

        return SourceReference(self.folder, others=all_levels(self.folder))

    def kernels(self) -> ModuleType | None:
        return self._of_staff("known")

    def steps(self) -> Sequence[Step]:
        threads = "linear_backward_threads"
        return (
            Step("machine", "machine"),
            Step("ladder-matmul", "ladder", "matmul", (), ("--rounds", "3")),
            Step(f"threads-{threads}", "threads", threads, ("--threads", "1,2,4,8"), ("--threads", "1,2")),
            Step("race", "race", "linear_backward"),
            Step("memory", "memory", "conv2d", (), ("--kernel", "1,5")),
        )


LAB = _Operators()
