"""Descriptions of the networks that are trained: layers, sizes and first weights. This module needs no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from grader.core.arrays import Array, np

from .digits import CLASSES, SIDE
from .operations import Place

WARM_UP_STEPS = 200
LAST_GAIN = 0.01
"""Gain of the last layer's first weights. It is small, so that the first logits are nearly equal and steps small."""
LOSS, UPDATE = Place(0, "loss (cross entropy)"), Place(0, "update (sgd)")


@dataclass(frozen=True)
class Layer:
    """One layer. `kind` is the id of the part whose function computes it. `output` is the shape of one image after the
    layer. `parameters` has the shapes of W and b.

    `sizes` has the part's sizes except one, which is the number of images: `batch` is this size's name, "" for relu.
    """

    kind: str
    output: tuple[int, ...]
    batch: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """A network. `input` is the shape of one image. `epochs` and `rate` are defaults with which it learns well. In the
    first WARM_UP_STEPS the rate is multiplied by `warm_up`.

    In the first steps of a network with convolutions, the rate is often too large for the curvature of the loss:
    gradient descent then doubles small differences every few steps. With a fifth of the rate, two trainings that differ
    only in rounding stay close: their losses differ by 1e-6 after 200 steps, not by 1e-2.
    """

    name: str
    title: str
    input: tuple[int, ...]
    layers: tuple[Layer, ...]
    epochs: int
    rate: float
    warm_up: float = 1.0

    def places(self) -> Iterator[tuple[Place, Layer]]:
        return ((Place(k + 1, layer.kind), layer) for k, layer in enumerate(self.layers))

    def parameters(self) -> Iterator[tuple[Place, str, tuple[int, ...]]]:
        """Yield (the layer's place, name, shape) of each parameter, in memory order."""
        for place, layer in self.places():
            for name, shape in layer.parameters.items():
                yield place, name, shape

    @property
    def count(self) -> int:
        """Return the number of elements of all parameters."""
        return sum(math.prod(shape) for _, _, shape in self.parameters())

    def parts(self) -> list[str]:
        """Return the parts whose functions training calls, in the order of their first use."""
        kinds = [*dict.fromkeys(layer.kind for layer in self.layers), "cross_entropy"]
        return [*kinds, *(f"{kind}_backward" for kind in reversed(kinds)), "sgd"]

    def first_weights(self, seed: int) -> Array:
        """Draw the parameters with which training starts, float32 (count). b is 0. W is uniform with a variance of
        2 / n, where n is the number of inputs of each output (He and others, 2015). In the last layer the variance is
        LAST_GAIN / (3 n)."""
        random = np.random.Generator(np.random.PCG64(seed))
        parts = []
        for layer in self.layers:
            if layer.parameters:
                shape = layer.parameters["W"]
                fan_in = math.prod(shape) // layer.parameters["b"][0]
                bound = math.sqrt((LAST_GAIN if layer is self.layers[-1] else 6) / fan_in)
                parts += [random.uniform(-bound, bound, math.prod(shape)), np.zeros(layer.parameters["b"])]
        return np.concatenate(parts).astype(np.float32)

    def split(self, flat: Array) -> list[Array]:
        """Return the parameters as views of the array `flat`, in their shapes."""
        found, start = [], 0
        for _, _, shape in self.parameters():
            end = start + math.prod(shape)
            found.append(flat[start:end].reshape(shape))
            start = end
        return found

    def owner(self, element: int) -> tuple[Place, str, tuple[int, ...]]:
        """Return the parameter that contains element number `element` of the array of all parameters: its layer's
        place, its name, and the element's index in it."""
        for place, name, shape in self.parameters():
            size = math.prod(shape)
            if element < size:
                return place, name, tuple(int(k) for k in np.unravel_index(element, shape))
            element -= size
        raise IndexError(element)


def linear(inputs: int, outputs: int) -> Layer:
    sizes = {"I": inputs, "O": outputs}
    return Layer("linear", (outputs,), "batch", sizes, {"W": (inputs, outputs), "b": (outputs,)})


def conv2d(shape: tuple[int, ...], features: int, kernel: int, stride: int) -> Layer:
    """Return a convolution of images of `shape` (channels, height, width), padded so that an odd `kernel` with a
    stride of 1 keeps height and width."""
    channels, height, width = shape
    pad = kernel // 2
    sizes = {"channels": channels, "height": height, "width": width, "filters": features}
    sizes |= {"kernel": kernel, "stride": stride, "pad": pad}
    weights = {"W": (features, channels, kernel, kernel), "b": (features,)}
    output = tuple((size + 2 * pad - kernel) // stride + 1 for size in (height, width))
    return Layer("conv2d", (features, *output), "images", sizes, weights)


def maxpool2d(shape: tuple[int, ...]) -> Layer:
    """Return a pooling layer with adjacent windows of 2 x 2. Windows that do not fit at the end are left out."""
    channels, height, width = shape
    sizes = {"planes": channels, "rows": height, "columns": width, "side": 2, "step": 2}
    return Layer("maxpool2d", (channels, height // 2, width // 2), "maps", sizes)


def relu(before: Layer) -> Layer:
    return Layer("relu", before.output)


def mlp(hidden: int = 32) -> Network:
    """Return the published course's network, by default 784-32-10."""
    first = linear(SIDE * SIDE, hidden)
    layers = (first, relu(first), linear(hidden, CLASSES))
    return Network(
        "mlp", f"MLP {SIDE * SIDE}-{hidden}-{CLASSES}", (SIDE * SIDE,), layers, epochs=10, rate=0.2
    )


def cnn(first: int = 8, second: int = 16) -> Network:
    """Return a network with two padded convolutions, the first with stride 2. Its second maxpool2d gets images of
    7 x 7 and leaves out their last row and column."""
    one = conv2d((1, SIDE, SIDE), first, kernel=5, stride=2)
    half = maxpool2d(one.output)
    two = conv2d(half.output, second, kernel=3, stride=1)
    quarter = maxpool2d(two.output)
    layers = (one, relu(one), half, two, relu(two), quarter, linear(math.prod(quarter.output), CLASSES))
    title = f"CNN, {first} features of 5 x 5 and {second} of 3 x 3"
    return Network("cnn", title, (1, SIDE, SIDE), layers, epochs=8, rate=0.05, warm_up=0.2)


NETWORKS: Mapping[str, Callable[[], Network]] = {"mlp": mlp, "cnn": cnn}
