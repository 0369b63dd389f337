"""The networks that are trained, as data: their layers, sizes and first weights. No torch, no arithmetic of layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from grader.base.arrays import Array, np
from labs.operators.train.digits import CLASSES, SIDE
from labs.operators.train.operations import OPERATIONS, Operation, Place

LOSS, UPDATE = Place(0, "loss (cross entropy)"), Place(0, "update (sgd)")


@dataclass(frozen=True)
class Layer:
    """`kind` begins the names of its two functions. `sizes` are their arguments without the batch's; `output` is the
    shape that one image has behind it, `parameters` are the shapes of W and b where it has some."""

    kind: str
    output: tuple[int, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """`input` is the shape of one image; `epochs` and `rate` are what it learns well with."""

    name: str
    title: str
    input: tuple[int, ...]
    layers: tuple[Layer, ...]
    epochs: int
    rate: float

    def places(self) -> Iterator[tuple[Place, Layer]]:
        return ((Place(k + 1, layer.kind), layer) for k, layer in enumerate(self.layers))

    def parameters(self) -> Iterator[tuple[Place, str, tuple[int, ...]]]:
        """Where each parameter is, its name and shape, in the order in which they lie in memory one after the other."""
        for place, layer in self.places():
            for name, shape in layer.parameters.items():
                yield place, name, shape

    @property
    def count(self) -> int:
        """Numbers in all parameters."""
        return sum(math.prod(shape) for _, _, shape in self.parameters())

    def operations(self) -> dict[str, Operation]:
        """The student's functions that training it calls, in the order of their first use."""
        kinds = list(dict.fromkeys(layer.kind for layer in self.layers))
        names = [f"{kind}Forward" for kind in kinds] + ["crossEntropyForward", "crossEntropyBackward"]
        names += [f"{kind}Backward" for kind in reversed(kinds)] + ["sgdStep"]
        return {name: OPERATIONS[name] for name in names}

    def first_weights(self, seed: int) -> Array:
        """float32 (count), uniform within 1 / sqrt(numbers that go into an output), as in PyTorch's own layers."""
        random = np.random.Generator(np.random.PCG64(seed))
        parts = []
        for layer in self.layers:
            if layer.parameters:
                fan_in = math.prod(layer.parameters["W"]) // layer.parameters["b"][0]
                size = sum(math.prod(shape) for shape in layer.parameters.values())
                parts.append(random.uniform(-1, 1, size) / math.sqrt(fan_in))
        return np.concatenate(parts).astype(np.float32)

    def split(self, flat: Array) -> list[Array]:
        """Views of the parameters in `flat`, in their shapes."""
        found, start = [], 0
        for _, _, shape in self.parameters():
            end = start + math.prod(shape)
            found.append(flat[start:end].reshape(shape))
            start = end
        return found

    def owner(self, element: int) -> tuple[Place, str, tuple[int, ...]]:
        """The parameter that the `element`-th of all numbers belongs to, and its index there."""
        for place, name, shape in self.parameters():
            size = math.prod(shape)
            if element < size:
                return place, name, tuple(int(k) for k in np.unravel_index(element, shape))
            element -= size
        raise IndexError(element)


def linear(inputs: int, outputs: int) -> Layer:
    sizes = {"I": inputs, "O": outputs}
    return Layer("linear", (outputs,), sizes, {"W": (inputs, outputs), "b": (outputs,)})


def conv2d(shape: tuple[int, int, int], features: int, kernel: int = 3, pad: int = 1) -> Layer:
    """Over images of `shape` (channels, height, width), with a stride of 1."""
    channels, height, width = shape
    sizes = {"C": channels, "H": height, "Wd": width, "F": features, "K": kernel, "stride": 1, "pad": pad}
    grown = 2 * pad - kernel + 1
    weights = {"W": (features, channels, kernel, kernel), "b": (features,)}
    return Layer("conv2d", (features, height + grown, width + grown), sizes, weights)


def maxpool2d(shape: tuple[int, int, int], kernel: int = 2) -> Layer:
    """Of squares that lie side by side."""
    channels, height, width = shape
    sizes = {"C": channels, "H": height, "Wd": width, "K": kernel, "stride": kernel}
    return Layer("maxpool2d", (channels, height // kernel, width // kernel), sizes)


def mlp(hidden: int = 32) -> Network:
    pixels = SIDE * SIDE
    layers = (linear(pixels, hidden), Layer("relu", (hidden,)), linear(hidden, CLASSES))
    return Network("mlp", f"MLP {pixels}-{hidden}-{CLASSES}", (pixels,), layers, epochs=10, rate=0.2)


def cnn(first: int = 8, second: int = 16) -> Network:
    half, quarter = SIDE // 2, SIDE // 4
    layers = (
        conv2d((1, SIDE, SIDE), first),
        Layer("relu", (first, SIDE, SIDE)),
        maxpool2d((first, SIDE, SIDE)),
        conv2d((first, half, half), second),
        Layer("relu", (second, half, half)),
        maxpool2d((second, half, half)),
        linear(second * quarter * quarter, CLASSES),
    )
    title = f"CNN with {first} and {second} features of 3 x 3"
    return Network("cnn", title, (1, SIDE, SIDE), layers, epochs=5, rate=0.1)


NETWORKS = {"mlp": mlp, "cnn": cnn}
