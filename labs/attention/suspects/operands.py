"""Suspected bugs of operands: another matrix, another axis or another layout than the right one."""

from __future__ import annotations

from grader.core.arrays import Array
from grader.judge.diagnosis.suspect import Suspect, registering

from ..scene import Scene

SUSPECTS: list[Suspect] = []
suspect = registering(SUSPECTS)


@suspect("wrong_axis", "The softmax is normalised over the columns of Q K^T; each of its rows must sum to 1.")
def softmax_over_columns(s: Scene) -> Array | None:
    every = s.all_weights
    return None if every is None else s.weights / every.sum(1, keepdims=True) @ s.v


@suspect("q_k_swapped", "Q and K are swapped: the scores are K Q^T, the transpose of what they should be.")
def q_and_k_swapped(s: Scene) -> Array:
    return s.attend(s.k[:, s.rows] @ s.q.mT)


@suspect("wrong_operand", "K is used in the place of Q: the scores are K K^T.")
def k_for_q(s: Scene) -> Array:
    return s.attend(s.k[:, s.rows] @ s.k.mT)


@suspect("wrong_operand", "Q is used in the place of K: the scores are Q Q^T.")
def q_for_k(s: Scene) -> Array:
    return s.attend(s.q[:, s.rows] @ s.q.mT)


@suspect("wrong_operand", "K is used in the place of V.")
def k_for_v(s: Scene) -> Array:
    return s.attend(s.scores, s.k)


@suspect("wrong_operand", "Q is used in the place of V.")
def q_for_v(s: Scene) -> Array:
    return s.attend(s.scores, s.q)


@suspect("wrong_operand", "The output is a copy of V: each row attends to its own key alone.")
def copies_v(s: Scene) -> Array:
    return s.v[:, s.rows]


@suspect("scores_returned", "The output holds softmax(Q K^T): the product with V is missing.")
def probabilities_returned(s: Scene) -> Array | None:
    return s.probabilities[:, :, : s.d] if s.keys >= s.d else None


@suspect("scores_returned", "The output holds Q K^T: softmax and the product with V are missing.")
def scores_returned(s: Scene) -> Array | None:
    return s.scores[:, :, : s.d] if s.keys >= s.d else None


def _other_layout(matrix: Array) -> Array:
    """(G, N, d) as a kernel reads it that takes element (i, j) at offset j * N + i."""
    return matrix.reshape(matrix.shape[0], matrix.shape[2], matrix.shape[1]).mT


@suspect(
    "k_transposed", "K is read as if it were stored transposed, (d, N): element (j, k) lies at j * d + k."
)
def k_read_transposed(s: Scene) -> Array:
    return s.attend(s.q[:, s.rows] @ _other_layout(s.k).mT)


@suspect(
    "v_transposed", "V is read as if it were stored transposed, (d, N): element (j, k) lies at j * d + k."
)
def v_read_transposed(s: Scene) -> Array:
    return s.attend(s.scores, _other_layout(s.v))


@suspect(
    "q_transposed", "Q is read as if it were stored transposed, (d, N): element (i, k) lies at i * d + k."
)
def q_read_transposed(s: Scene) -> Array:
    return s.attend(_other_layout(s.q)[:, s.rows] @ s.k.mT)


@suspect(
    "scores_transposed", "The product with V reads the weights transposed: (j, i) in the place of (i, j)."
)
def weights_read_transposed(s: Scene) -> Array | None:
    every = s.all_weights
    return None if every is None else (every / every.sum(2, keepdims=True)).mT[:, s.rows] @ s.v


@suspect("v_reversed", "The values are taken in reverse order: key j gets the value of key N - 1 - j.")
def v_reversed(s: Scene) -> Array:
    return s.attend(s.scores, s.v[:, ::-1])
