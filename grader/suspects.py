"""Suspected bugs of an attention kernel: each is a small function from inputs to the output such a kernel
would give.

When an output is wrong, the suspects are tried in the order of this file and the first whose prediction
agrees with what the kernel returned names the bug. To add one, write a function with `@suspect(code,
words)` that gives its prediction, float64 (G, R, d), or None where it does not apply (no such block, say).
Suspects that explain the same output (with a single key, most do) are ranked by their order: put the
simpler bug first.

A `Scene` holds what they need. Its heads are a window of G (b, h) pairs in memory order, its rows a sample
of R rows, so that all suspects together take well under a second at N = 1024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from grader.scene import SUSPECTS, Scene, Suspect, suspect

# ---- the formula


@suspect("copied_input", "The output is a copy of Q: the part is not written yet.")
def copies_q(s: Scene) -> Tensor:
    return s.q[:, s.rows]


@suspect(
    "scaled", "The scores are divided by sqrt(d). This assignment's softmax(Q K^T) V has no such factor."
)
def scaled_by_root_d(s: Scene) -> Tensor | None:
    return s.attend(s.scores / s.d**0.5) if s.d > 1 else None


@suspect(
    "scaled", "The scores are multiplied by sqrt(d). This assignment's softmax(Q K^T) V has no such factor."
)
def scaled_up_by_root_d(s: Scene) -> Tensor | None:
    return s.attend(s.scores * s.d**0.5) if s.d > 1 else None


@suspect("scaled", "The scores are divided by d. This assignment's softmax(Q K^T) V has no such factor.")
def scaled_by_d(s: Scene) -> Tensor | None:
    return s.attend(s.scores / s.d) if s.d > 1 else None


@suspect(
    "uniform_softmax",
    "Every row is the plain mean of V's rows, as if all weights were equal. Are the scores computed at all, and does "
    "exp() get them?",
)
def mean_of_values(s: Scene) -> Tensor:
    return s.v.mean(1, keepdim=True).expand_as(s.truth)


@suspect("linear_exp", "The weights are 1 + x in place of exp(x), which is close for tiny scores only.")
def one_plus_x(s: Scene) -> Tensor:
    weights = 1 + s.scores
    return weights / weights.sum(2, keepdim=True) @ s.v


@suspect(
    "linear_exp", "The weights are 1 + x + x*x/2 in place of exp(x), which is close for tiny scores only."
)
def second_order_exp(s: Scene) -> Tensor:
    weights = 1 + s.scores + s.scores**2 / 2
    return weights / weights.sum(2, keepdim=True) @ s.v


@suspect("exp_missing", "The weights are the scores themselves, divided by their sum: exp() is missing.")
def no_exp(s: Scene) -> Tensor:
    return s.scores / s.scores.sum(2, keepdim=True) @ s.v


@suspect(
    "exp_missing", "Each row is divided by the sum of its exp(score), but the scores themselves weigh V."
)
def exp_in_sum_only(s: Scene) -> Tensor:
    return s.scores / s.row_sum @ s.v


@suspect("wrong_base", "The weights are 2^x in place of exp(x).")
def exp2(s: Scene) -> Tensor:
    return s.attend(s.scores * torch.log(torch.tensor(2.0, dtype=torch.float64)))


@suspect("softmax_missing", "The output is Q K^T V: the softmax between the two products is missing.")
def no_softmax(s: Scene) -> Tensor:
    return s.scores @ s.v


@suspect(
    "not_normalised",
    "The rows of the softmax do not sum to 1: each row of the output is too large by the sum of its exp(score). "
    "Divide by that sum.",
)
def not_normalised(s: Scene) -> Tensor:
    return s.weights @ s.v


@suspect(
    "not_normalised",
    "The rows of the softmax do not sum to 1: each row is divided by its largest weight, not by their sum.",
)
def divided_by_maximum(s: Scene) -> Tensor:
    return s.weights / s.weights.amax(2, keepdim=True) @ s.v


@suspect("normalised_twice", "Each row is divided by the sum of its weights twice.")
def divided_twice(s: Scene) -> Tensor:
    return s.truth / s.row_sum


@suspect(
    "double_softmax", "The softmax is applied twice: its weights go through exp() and the division once more."
)
def double_softmax(s: Scene) -> Tensor:
    return s.attend(s.probabilities)


@suspect("hard_maximum", "Each row takes the value of its best key alone: that is a maximum, not a softmax.")
def best_key_alone(s: Scene) -> Tensor:
    best = s.scores.argmax(2, keepdim=True)
    return s.v.gather(1, best.expand(-1, -1, s.d))


@suspect("negated", "The scores have the wrong sign: softmax(-Q K^T) V.")
def negated_scores(s: Scene) -> Tensor:
    return s.attend(-s.scores)


@suspect("negated", "The output has the wrong sign.")
def negated_output(s: Scene) -> Tensor:
    return -s.truth


@suspect("exp_of_magnitude", "exp() gets the absolute value of the scores.")
def magnitude(s: Scene) -> Tensor:
    return s.attend(s.scores.abs())


# ---- which operand, which axis


@suspect("wrong_axis", "The softmax is normalised over the columns of Q K^T; each of its rows must sum to 1.")
def softmax_over_columns(s: Scene) -> Tensor | None:
    every = s.all_weights
    return None if every is None else s.weights / every.sum(1, keepdim=True) @ s.v


@suspect("q_k_swapped", "Q and K are swapped: the scores are K Q^T, the transpose of what they should be.")
def q_and_k_swapped(s: Scene) -> Tensor:
    return s.attend(s.k[:, s.rows] @ s.q.mT)


@suspect("wrong_operand", "K is used in the place of Q: the scores are K K^T.")
def k_for_q(s: Scene) -> Tensor:
    return s.attend(s.k[:, s.rows] @ s.k.mT)


@suspect("wrong_operand", "Q is used in the place of K: the scores are Q Q^T.")
def q_for_k(s: Scene) -> Tensor:
    return s.attend(s.q[:, s.rows] @ s.q.mT)


@suspect("wrong_operand", "K is used in the place of V.")
def k_for_v(s: Scene) -> Tensor:
    return s.attend(s.scores, s.k)


@suspect("wrong_operand", "Q is used in the place of V.")
def q_for_v(s: Scene) -> Tensor:
    return s.attend(s.scores, s.q)


@suspect("wrong_operand", "The output is a copy of V: each row attends to its own key alone.")
def copies_v(s: Scene) -> Tensor:
    return s.v[:, s.rows]


@suspect("scores_returned", "The output holds softmax(Q K^T): the product with V is missing.")
def probabilities_returned(s: Scene) -> Tensor | None:
    return s.probabilities[:, :, : s.d] if s.keys >= s.d else None


@suspect("scores_returned", "The output holds Q K^T: softmax and the product with V are missing.")
def scores_returned(s: Scene) -> Tensor | None:
    return s.scores[:, :, : s.d] if s.keys >= s.d else None


def _other_layout(matrix: Tensor) -> Tensor:
    """(G, N, d) as a kernel reads it that takes element (i, j) at offset j * N + i."""
    return matrix.reshape(matrix.shape[0], matrix.shape[2], matrix.shape[1]).mT


@suspect(
    "k_transposed", "K is read as if it were stored transposed, (d, N): element (j, k) lies at j * d + k."
)
def k_read_transposed(s: Scene) -> Tensor:
    return s.attend(s.q[:, s.rows] @ _other_layout(s.k).mT)


@suspect(
    "v_transposed", "V is read as if it were stored transposed, (d, N): element (j, k) lies at j * d + k."
)
def v_read_transposed(s: Scene) -> Tensor:
    return s.attend(s.scores, _other_layout(s.v))


@suspect(
    "q_transposed", "Q is read as if it were stored transposed, (d, N): element (i, k) lies at i * d + k."
)
def q_read_transposed(s: Scene) -> Tensor:
    return s.attend(_other_layout(s.q)[:, s.rows] @ s.k.mT)


@suspect(
    "scores_transposed", "The product with V reads the weights transposed: (j, i) in the place of (i, j)."
)
def weights_read_transposed(s: Scene) -> Tensor | None:
    every = s.all_weights
    return None if every is None else (every / every.sum(2, keepdim=True)).mT[:, s.rows] @ s.v


@suspect("v_reversed", "The values are taken in reverse order: key j gets the value of key N - 1 - j.")
def v_reversed(s: Scene) -> Tensor:
    return s.attend(s.scores, s.v.flip(1))


# ---- which head


def _first_head(b: int, h: int) -> tuple[int, int]:
    return b, 0


def _first_batch(b: int, h: int) -> tuple[int, int]:
    return 0, h


def _very_first(b: int, h: int) -> tuple[int, int]:
    return 0, 0


def _register_ignored_heads() -> None:
    """One suspect for each input whose head or batch index is left out where it is read."""
    for name in "QKV":
        for head, words in (
            (_first_head, f"{name} is read from head 0 for every head: its index h is not used."),
            (_first_batch, f"{name} is read from batch 0 for every batch: its index b is not used."),
            (
                _very_first,
                f"{name} is read from batch 0 and head 0 for all: its indices b and h are not used.",
            ),
        ):

            def predict(
                s: Scene, name: str = name, head: Callable[[int, int], tuple[int, int]] = head
            ) -> Tensor:
                read = {"Q": s.q, "K": s.k, "V": s.v, name: s.head_of(name, head)}
                return s.attend(read["Q"][:, s.rows] @ read["K"].mT, read["V"])

            SUSPECTS.append(Suspect("head_ignored", words, predict))


_register_ignored_heads()


# ---- masks and loop bounds


@suspect(
    "causal_mask", "Each row sees the keys up to its own only: a causal mask. This assignment has no mask."
)
def causal(s: Scene) -> Tensor:
    return s.attend(s.scores.masked_fill(_key_index(s) > s.rows[:, None], -torch.inf))


@suspect(
    "causal_mask",
    "Each row sees the keys from its own on only, as under a mask. This assignment has no mask.",
)
def anti_causal(s: Scene) -> Tensor:
    return s.attend(s.scores.masked_fill(_key_index(s) < s.rows[:, None], -torch.inf))


@suspect("causal_mask", "Each row leaves out its own key.")
def without_itself(s: Scene) -> Tensor:
    return s.attend(s.scores.masked_fill(_key_index(s) == s.rows[:, None], -torch.inf))


def _key_index(s: Scene) -> Tensor:
    return torch.arange(s.keys)[None, :]


@suspect("key_missing", "The last key is left out: a loop over the keys ends one step too early.")
def last_key_missing(s: Scene) -> Tensor | None:
    return s.some_keys(slice(0, -1)) if s.keys > 1 else None


@suspect("key_missing", "The first key is left out: a loop over the keys begins at 1.")
def first_key_missing(s: Scene) -> Tensor | None:
    return s.some_keys(slice(1, None)) if s.keys > 1 else None


@suspect("key_missing", "The last key is left out of the product with V (it is in the row sum).")
def last_key_not_in_product(s: Scene) -> Tensor:
    return s.probabilities[:, :, :-1] @ s.v[:, :-1]


@suspect("key_missing", "The first key is left out of the product with V (it is in the row sum).")
def first_key_not_in_product(s: Scene) -> Tensor:
    return s.probabilities[:, :, 1:] @ s.v[:, 1:]


@suspect("key_missing", "The last key is left out of the row sum (it is in the product with V).")
def last_key_not_in_sum(s: Scene) -> Tensor | None:
    return s.weights @ s.v / s.weights[:, :, :-1].sum(2, keepdim=True) if s.keys > 1 else None


@suspect("key_missing", "The first key is left out of the row sum (it is in the product with V).")
def first_key_not_in_sum(s: Scene) -> Tensor | None:
    return s.weights @ s.v / s.weights[:, :, 1:].sum(2, keepdim=True) if s.keys > 1 else None


@suspect("channel_missing", "The last channel is left out of Q K^T: the loop over d ends one step too early.")
def last_channel_missing(s: Scene) -> Tensor:
    return s.attend(s.q[:, s.rows, :-1] @ s.k[:, :, :-1].mT)


@suspect("channel_missing", "The first channel is left out of Q K^T: the loop over d begins at 1.")
def first_channel_missing(s: Scene) -> Tensor:
    return s.attend(s.q[:, s.rows, 1:] @ s.k[:, :, 1:].mT)


# ---- what was left behind by earlier rounds of a loop


def _head_by_head(s: Scene, step: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Iterator[Tensor]:
    """Outputs of heads worked off one after the other over a workspace (R, N) that is not cleared between
    them.
    `step(scores, left)` gives the weights and what the workspace holds afterwards."""
    left = torch.zeros_like(s.scores[0])
    for g in range(s.q.shape[0]):
        weights, left = step(s.scores[g], left)
        yield weights @ s.v[g]


@suspect(
    "stale_scores",
    "Scores are added to what QK_t still holds from the head before: its weights. Only the first head starts from "
    "zeros. Set each score (or clear QK_t) at the start of each (b, h).",
)
def scores_added_to_last_weights(s: Scene) -> Tensor | None:
    def step(scores: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(scores + left, 1)
        return weights, weights

    return torch.stack(list(_head_by_head(s, step))) if s.first == 0 else None


@suspect(
    "stale_scores",
    "Scores are added to those of the heads before. Set each score (or clear the workspace) for each (b, h).",
)
def scores_added_to_last_scores(s: Scene) -> Tensor | None:
    return s.attend(s.scores.cumsum(0)) if s.first == 0 else None


@suspect("stale_sum", "The score is not set back to zero for the next key: it goes on growing along the row.")
def score_not_reset(s: Scene) -> Tensor:
    return s.attend(s.scores.cumsum(2))


@suspect("stale_sum", "The row sum is not set back to zero for the next row: it holds all rows before.")
def row_sum_not_reset(s: Scene) -> Tensor | None:
    every = s.all_weights
    return None if every is None else s.weights @ s.v / every.sum(2).cumsum(1)[:, s.rows, None]


@suspect("stale_sum", "The row sum is not set back to zero for the next row or head: it holds all before.")
def row_sum_never_reset(s: Scene) -> Tensor | None:
    every = s.all_weights
    if every is None or s.first:
        return None
    sums = every.sum(2)
    return s.weights @ s.v / sums.flatten().cumsum(0).reshape(sums.shape)[:, s.rows, None]


@suspect(
    "stale_sum",
    "The output's value is not set back to zero for the next channel: it holds all channels before.",
)
def value_not_reset(s: Scene) -> Tensor:
    return s.truth.cumsum(2)


@suspect(
    "stale_sum", "The output's value is not set back to zero for the next row: it holds all rows before."
)
def row_not_reset(s: Scene) -> Tensor:
    return s.truth_all.cumsum(1)[:, s.rows]


@suspect("stale_sum", "The output's value is never set back to zero: it holds all channels and rows before.")
def value_never_reset(s: Scene) -> Tensor:
    return s.truth_all.flatten(1).cumsum(1).reshape(s.truth_all.shape)[:, s.rows]


@suspect(
    "stale_l",
    "The row sums L are not set back to zero for the next (b, h): they still hold those of the heads before.",
)
def l_not_reset(s: Scene) -> Tensor | None:
    return s.weights @ s.v / s.row_sum.cumsum(0) if s.first == 0 else None


# ---- precision


@suspect(
    "low_precision", "The inputs have been rounded to half precision (float16). Keep float32 throughout."
)
def float16_inputs(s: Scene) -> Tensor:
    q, k, v = (t.half().double() for t in (s.q, s.k, s.v))
    return s.attend(q[:, s.rows] @ k.mT, v)


@suspect("low_precision", "The inputs have been rounded to bfloat16. Keep float32 throughout.")
def bfloat16_inputs(s: Scene) -> Tensor:
    q, k, v = (t.bfloat16().double() for t in (s.q, s.k, s.v))
    return s.attend(q[:, s.rows] @ k.mT, v)


@suspect(
    "low_precision",
    "The scores or weights are stored as whole numbers somewhere: an int in the place of a float?",
)
def whole_scores(s: Scene) -> Tensor:
    return s.attend(s.scores.trunc())
