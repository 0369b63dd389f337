"""The two networks that are trained for comparison: the student's, which calls the student's functions, and PyTorch's.

The student's layers are `torch.autograd.Function`s. PyTorch only records their order and calls their backward functions
in reverse order. The student's file computes everything, including the update of the parameters. All parameters of a
network are in one array, so that a step needs only one call of sgdStep.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from grader.core.arrays import Array, np
from grader.explain.case_run import RESULT

from .networks import LOSS, UPDATE, Layer, Network
from .operations import Place, StudentOperators

Context = Any


@dataclass(frozen=True)
class Signature:
    """Names of an operator's tensors. `inputs` are the forward function's inputs, `again` the ones that the backward
    function needs as well. `upstream` is the gradient of the result, another input of backward; "" for a loss."""

    inputs: tuple[str, ...]
    upstream: str
    again: tuple[str, ...]


_WEIGHTED = Signature(("X", "W", "b"), "dY", ("X", "W"))
SIGNATURES = {
    "linear": _WEIGHTED,
    "conv2d": _WEIGHTED,
    "relu": Signature(("X",), "dO", ("X",)),
    "maxpool2d": Signature(("X",), "dY", ()),
    "cross_entropy": Signature(("X", "labels"), "", ("X", "labels")),
}


def _arrays(names: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, Array]:
    return {name: tensor.detach().contiguous().numpy() for name, tensor in zip(names, tensors, strict=True)}


class _Operator(torch.autograd.Function):
    """Calls of the student's forward and backward function of one operator. Gradients are 0 before the call."""

    @staticmethod
    def forward(
        ctx: Context,
        call: StudentOperators,
        place: Place,
        kind: str,
        sizes: Mapping[str, int],
        *tensors: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.call, ctx.place, ctx.kind, ctx.sizes = call, place, kind, sizes
        answers = call(place, kind, _arrays(SIGNATURES[kind].inputs, tensors), sizes)
        ctx.index = answers.get("index")
        made = torch.from_numpy(answers[RESULT])
        return made.view(tensors[0].shape) if kind == "relu" else made

    @staticmethod
    def backward(ctx: Context, upstream: Tensor) -> tuple[Tensor | None, ...]:
        signature = SIGNATURES[ctx.kind]
        inputs = _arrays(signature.inputs, ctx.saved_tensors)
        tensors = {name: inputs[name] for name in signature.again}
        if signature.upstream:
            tensors |= _arrays([signature.upstream], [upstream])
        if ctx.index is not None:
            tensors["indices"] = ctx.index
        gradients = {name: f"d{name}" for name in inputs if name != "labels"}
        tensors |= {gradient: np.zeros_like(inputs[name]) for name, gradient in gradients.items()}
        answers = ctx.call(ctx.place, f"{ctx.kind}_backward", tensors, ctx.sizes)
        found = [torch.from_numpy(answers[gradients[name]]) if name in gradients else None for name in inputs]
        return None, None, None, None, *found


class _Trained(ABC):
    """A network with its parameters, which are views of one array."""

    def __init__(self, network: Network, weights: Array) -> None:
        self.network, self.weights = network, weights.copy()
        views = network.split(self.weights)
        self.parameters = [torch.from_numpy(view).requires_grad_() for view in views]

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, classes) of images (n, 28, 28), float32."""
        x, parameters = images.view(-1, *self.network.input), iter(self.parameters)
        for place, layer in self.network.places():
            x = x.flatten(1) if layer.kind == "linear" else x
            x = self.layer(place, layer, x, *(next(parameters) for _ in layer.parameters))
        return x

    @abstractmethod
    def layer(self, place: Place, layer: Layer, x: Tensor, *parameters: Tensor) -> Tensor:
        """Return the output of one layer."""


class StudentNetwork(_Trained):
    """A network of the student's operators. Its methods raise `operations.Broken` if a call of a student's function
    fails."""

    def __init__(self, network: Network, weights: Array, call: StudentOperators) -> None:
        super().__init__(network, weights)
        self.call = call

    def layer(self, place: Place, layer: Layer, x: Tensor, *parameters: Tensor) -> Tensor:
        sizes = {layer.batch: len(x), **layer.sizes} if layer.batch else {"n": x.numel()}
        made: Tensor = _Operator.apply(self.call, place, layer.kind, sizes, x, *parameters)
        return made

    def step(self, images: Tensor, labels: Tensor, rate: float) -> float:
        """Make one step of gradient descent. Return the loss before it."""
        logits = self.forward(images)
        sizes = {"batch": len(logits), "classes": logits.shape[1]}
        loss = _Operator.apply(self.call, LOSS, "cross_entropy", sizes, logits, labels)
        gradients = torch.autograd.grad(loss, self.parameters)
        gradient = torch.cat([each.reshape(-1) for each in gradients]).numpy()
        answers = self.call(UPDATE, "sgd", {"P": self.weights, "G": gradient}, {"n": len(gradient)}, rate)
        self.weights[:] = answers["P"]
        return float(loss.detach())


class TorchNetwork(_Trained):
    """A network computed by PyTorch in float32, with the same first weights as the `StudentNetwork`."""

    def __init__(self, network: Network, weights: Array) -> None:
        super().__init__(network, weights)
        self.optimizer = torch.optim.SGD(self.parameters)

    def layer(self, place: Place, layer: Layer, x: Tensor, *parameters: Tensor) -> Tensor:
        if layer.kind == "relu":
            return F.relu(x)
        if layer.kind == "maxpool2d":
            return F.max_pool2d(x, layer.sizes["side"], layer.sizes["step"])
        w, b = parameters
        if layer.kind == "linear":
            return torch.addmm(b, x, w)
        return F.conv2d(x, w, b, layer.sizes["stride"], layer.sizes["pad"])

    def step(self, images: Tensor, labels: Tensor, rate: float) -> float:
        """Make one step of gradient descent. Return the loss before it."""
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.forward(images), labels)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())
