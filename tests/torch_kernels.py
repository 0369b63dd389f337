"""Attention with torch, for comparison with the judge's NumPy: the two share no code."""

import torch
from torch import Tensor

from grader.core.arrays import Array
from grader.explain import comparison
from labs.attention import cases
from labs.attention.oracle import ORACLES

Inputs = dict[str, Tensor]


def make_inputs(distribution: str, shape: dict[str, int], seed: int) -> Inputs:
    return {name: torch.from_numpy(x) for name, x in cases.make_inputs(distribution, shape, seed).items()}


def arrays(x: Inputs) -> dict[str, Array]:
    return {name: value.numpy() for name, value in x.items()}


def expect(oracle: str, x: Inputs, shape: dict[str, int]) -> comparison.Expected:
    return ORACLES[oracle].expected(arrays(x), shape)


def compare(expected: comparison.Expected, actual: Tensor) -> comparison.Comparison:
    return comparison.compare(expected, actual.numpy())


def scores(x: Inputs) -> Tensor:
    return x["Q"] @ x["K"].mT


def right(x: Inputs) -> Tensor:
    return torch.softmax(scores(x), 3) @ x["V"]


def rounded(x: Inputs, dtype: torch.dtype) -> Inputs:
    return {name: value.to(dtype).float() for name, value in x.items()}
