"""Error budget of float32 for each output of softmax(QK^T)V.

An error has two sources. The result is rounded, by about u |v| with u = 2^-24. Scores are wrong by u |q||k|, which
changes a mean of values more if the values lie further apart. So the budget of column c is

    u (sqrt(E[v_c^2]) + sqrt(E[S^2]) sqrt(Var[v_c])),    S_j = sum_k |q_k k_jk|,  E and Var over keys by their weights.
"""

import torch
from torch import Tensor

#: Least allowed error in units of the budget: on a tiny shape the usual error may be below one rounding by luck.
LEAST_UNITS = 1.0


def exact_and_budget(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax(QK^T)V and the budget of each element, in float64."""
    scores = Q @ K.transpose(-2, -1)
    weights = torch.softmax(scores, -1)
    reach = (weights * (Q.abs() @ K.abs().transpose(-2, -1)).square()).sum(-1, keepdim=True).sqrt()
    exact, squares = weights @ V, weights @ V.square()
    spread = (squares - exact.square()).clamp(min=0).sqrt()
    return exact, 2.0**-24 * (squares.sqrt() + reach * spread)
