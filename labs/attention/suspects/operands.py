"""Suspected bugs of operands: another matrix, another axis or another layout than the right one."""

from __future__ import annotations

from grader.core.arrays import Array
from grader.judge.diagnosis.suspect import Suspect, registering

from ..scene import row

SUSPECTS: list[Suspect] = []
suspect = registering(SUSPECTS)


SUSPECTS += [
    row("softmax_over_columns", "wrong_axis",
        "The softmax is normalised over the columns of Q K^T; each of its rows must sum to 1.",
        lambda s: None if s.all_weights is None else s.weights / s.all_weights.sum(1, keepdims=True) @ s.v),
    row("q_and_k_swapped", "q_k_swapped",
        "Q and K are swapped: the scores are K Q^T, the transpose of what they should be.",
        lambda s: s.attend(s.k[:, s.rows] @ s.q.mT)),
    row("k_for_q", "wrong_operand", "K is used in the place of Q: the scores are K K^T.",
        lambda s: s.attend(s.k[:, s.rows] @ s.k.mT)),
    row("q_for_k", "wrong_operand", "Q is used in the place of K: the scores are Q Q^T.",
        lambda s: s.attend(s.q[:, s.rows] @ s.q.mT)),
    row("k_for_v", "wrong_operand", "K is used in the place of V.", lambda s: s.attend(s.scores, s.k)),
    row("q_for_v", "wrong_operand", "Q is used in the place of V.", lambda s: s.attend(s.scores, s.q)),
    row("copies_v", "wrong_operand", "The output is a copy of V: each row attends to its own key alone.",
        lambda s: s.v[:, s.rows]),
    row("probabilities_returned", "scores_returned",
        "The output holds softmax(Q K^T): the product with V is missing.",
        lambda s: s.probabilities[:, :, : s.d] if s.keys >= s.d else None),
    row("scores_returned", "scores_returned", "The output holds Q K^T: softmax and the product with V are missing.",
        lambda s: s.scores[:, :, : s.d] if s.keys >= s.d else None),
]  # fmt: skip


def _other_layout(matrix: Array) -> Array:
    """(G, N, d) as a kernel reads it that takes element (i, j) at offset j * N + i."""
    return matrix.reshape(matrix.shape[0], matrix.shape[2], matrix.shape[1]).mT


SUSPECTS += [
    row("k_read_transposed", "k_transposed",
        "K is read as if it were stored transposed, (d, N): element (j, k) lies at j * d + k.",
        lambda s: s.attend(s.q[:, s.rows] @ _other_layout(s.k).mT)),
    row("v_read_transposed", "v_transposed",
        "V is read as if it were stored transposed, (d, N): element (j, k) lies at j * d + k.",
        lambda s: s.attend(s.scores, _other_layout(s.v))),
    row("q_read_transposed", "q_transposed",
        "Q is read as if it were stored transposed, (d, N): element (i, k) lies at i * d + k.",
        lambda s: s.attend(_other_layout(s.q)[:, s.rows] @ s.k.mT)),
    row("weights_read_transposed", "scores_transposed",
        "The product with V reads the weights transposed: (j, i) in the place of (i, j).",
        lambda s:
            None if s.all_weights is None else
            (s.all_weights / s.all_weights.sum(2, keepdims=True)).mT[:, s.rows] @ s.v),
    row("v_reversed", "v_reversed", "The values are taken in reverse order: key j gets the value of key N - 1 - j.",
        lambda s: s.attend(s.scores, s.v[:, ::-1])),
]  # fmt: skip
