"""The two networks trained side by side: the student's, whose operators are calls to the runner, and PyTorch's own.

The student's layers are `torch.autograd.Function`s. PyTorch only records their order and calls their backward functions
in reverse order. The student's file computes everything, including the update of the parameters. All parameters of a
network are in one array, so that a step needs one call of sgdStep.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from grader.core.arrays import Array, np
from grader.explain.case_run import RESULT

from .networks import LOSS, UPDATE, Layer, Network
from .operations import Place, StudentOperators

Context = Any


def _arrays(**tensors: Tensor) -> dict[str, Array]:
    return {name: tensor.detach().contiguous().numpy() for name, tensor in tensors.items()}


def _zeros(**tensors: Tensor) -> dict[str, Array]:
    """Return gradients of zeros for these tensors, by name."""
    return {name: np.zeros(tensor.shape, np.float32) for name, tensor in tensors.items()}


class _Weighted(torch.autograd.Function):
    """A layer with parameters, linear or conv2d. Its inputs are X, W and b; backward returns a gradient of each."""

    @staticmethod
    def forward(
        ctx: Context, x: Tensor, w: Tensor, b: Tensor, call: StudentOperators, place: Place, layer: Layer
    ) -> Tensor:
        ctx.save_for_backward(x, w, b)
        ctx.call, ctx.place, ctx.sizes, ctx.kind = (
            call,
            place,
            {layer.batch: len(x), **layer.sizes},
            layer.kind,
        )
        return torch.from_numpy(call(place, layer.kind, _arrays(X=x, W=w, b=b), ctx.sizes)[RESULT])

    @staticmethod
    def backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, w, b = ctx.saved_tensors
        tensors = {**_arrays(dY=dy, X=x, W=w), **_zeros(dX=x, dW=w, db=b)}
        answers = ctx.call(ctx.place, f"{ctx.kind}_backward", tensors, ctx.sizes)
        dx = torch.from_numpy(answers["dX"]) if ctx.needs_input_grad[0] else None
        return dx, torch.from_numpy(answers["dW"]), torch.from_numpy(answers["db"]), None, None, None


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, call: StudentOperators, place: Place) -> Tensor:
        ctx.save_for_backward(x)
        ctx.call, ctx.place = call, place
        return torch.from_numpy(call(place, "relu", _arrays(X=x), {"n": x.numel()})[RESULT]).view(x.shape)

    @staticmethod
    def backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        tensors = {**_arrays(dO=dy, X=x), **_zeros(dX=x)}
        answers = ctx.call(ctx.place, "relu_backward", tensors, {"n": x.numel()})
        return torch.from_numpy(answers["dX"]), None, None


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, call: StudentOperators, place: Place, layer: Layer) -> Tensor:
        ctx.save_for_backward(x)
        ctx.call, ctx.place, ctx.sizes = call, place, {layer.batch: len(x), **layer.sizes}
        answers = call(place, "maxpool2d", _arrays(X=x), ctx.sizes)
        ctx.index = answers["index"]
        return torch.from_numpy(answers[RESULT])

    @staticmethod
    def backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        tensors = {**_arrays(dY=dy), "indices": ctx.index, **_zeros(dX=x)}
        answers = ctx.call(ctx.place, "maxpool2d_backward", tensors, ctx.sizes)
        return torch.from_numpy(answers["dX"]), None, None, None


class _Loss(torch.autograd.Function):
    """The mean cross entropy. As the last layer it gets no gradient from a later one."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, labels: Tensor, call: StudentOperators) -> Tensor:
        ctx.save_for_backward(x, labels)
        ctx.call, ctx.sizes = call, {"batch": len(x), "classes": x.shape[1]}
        return torch.from_numpy(call(LOSS, "cross_entropy", _arrays(X=x, labels=labels), ctx.sizes)[RESULT])

    @staticmethod
    def backward(ctx: Context, _one: Tensor) -> tuple[Tensor | None, ...]:
        x, labels = ctx.saved_tensors
        tensors = {**_arrays(X=x, labels=labels), **_zeros(dX=x)}
        answers = ctx.call(LOSS, "cross_entropy_backward", tensors, ctx.sizes)
        return torch.from_numpy(answers["dX"]), None, None


class StudentNetwork:
    """A network of the student's operators. Its methods raise `operations.Broken` if a call of a student's function
    fails."""

    def __init__(self, network: Network, weights: Array, call: StudentOperators) -> None:
        self.network, self.call = network, call
        self.weights = weights.copy()
        views = network.split(self.weights)
        self.parameters = [torch.from_numpy(view).requires_grad_() for view in views]

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes) of images (n, 28, 28), float32."""
        x, parameters = images.view(-1, *self.network.input), iter(self.parameters)
        for place, layer in self.network.places():
            if layer.kind == "relu":
                x = _Relu.apply(x, self.call, place)
            elif layer.kind == "maxpool2d":
                x = _Pool.apply(x, self.call, place, layer)
            else:
                flat = x.flatten(1) if layer.kind == "linear" else x
                x = _Weighted.apply(flat, next(parameters), next(parameters), self.call, place, layer)
        return x

    def step(self, images: Tensor, labels: Tensor, rate: float) -> tuple[float, int]:
        """Make one step of gradient descent. Return the loss before it and the number of correctly read images."""
        logits = self.forward(images)
        loss = _Loss.apply(logits, labels, self.call)
        gradients = torch.autograd.grad(loss, self.parameters)
        gradient = torch.cat([each.reshape(-1) for each in gradients]).numpy()
        answers = self.call(UPDATE, "sgd", {"P": self.weights, "G": gradient}, {"n": len(gradient)}, rate)
        self.weights[:] = answers["P"]
        return float(loss.detach()), _right(logits, labels)


class TorchNetwork:
    """The same network computed by PyTorch in float32, with the same first weights."""

    def __init__(self, network: Network, weights: Array) -> None:
        self.network = network
        views = network.split(weights.copy())
        self.parameters = [torch.from_numpy(view).requires_grad_() for view in views]
        self.optimizer = torch.optim.SGD(self.parameters)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes) of images (n, 28, 28), float32."""
        x, parameters = images.view(-1, *self.network.input), iter(self.parameters)
        for layer in self.network.layers:
            if layer.kind == "relu":
                x = F.relu(x)
            elif layer.kind == "maxpool2d":
                x = F.max_pool2d(x, layer.sizes["side"], layer.sizes["step"])
            elif layer.kind == "linear":
                w, b = next(parameters), next(parameters)
                x = torch.addmm(b, x.flatten(1), w)
            else:
                w, b = next(parameters), next(parameters)
                x = F.conv2d(x, w, b, layer.sizes["stride"], layer.sizes["pad"])
        return x

    def step(self, images: Tensor, labels: Tensor, rate: float) -> tuple[float, int]:
        """Make one training step, as `StudentNetwork.step` does."""
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.zero_grad()
        logits = self.forward(images)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach()), _right(logits, labels)


def _right(logits: Tensor, labels: Tensor) -> int:
    return int((logits.detach().argmax(1) == labels).sum())
