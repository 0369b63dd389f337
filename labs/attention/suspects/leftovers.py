"""Suspected bugs of what earlier rounds of a loop left behind: sums and workspaces that are not cleared."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from grader.core.arrays import Array, np
from grader.judge.diagnosis.suspect import Suspect, registering

from ..scene import Scene, row
from ..softmax import softmax

SUSPECTS: list[Suspect] = []
suspect = registering(SUSPECTS)


def _head_by_head(s: Scene, step: Callable[[Array, Array], tuple[Array, Array]]) -> Iterator[Array]:
    """Outputs of heads worked off one after the other over a workspace (R, N) that is not cleared between
    them.
    `step(scores, left)` gives the weights and what the workspace holds afterwards."""
    left = np.zeros_like(s.scores[0])
    for g in range(s.q.shape[0]):
        weights, left = step(s.scores[g], left)
        yield weights @ s.v[g]


@suspect(
    "stale_scores",
    "Scores are added to what QK_t still holds from the head before: its weights. Only the first head starts from "
    "zeros. Set each score (or clear QK_t) at the start of each (b, h).",
)
def scores_added_to_last_weights(s: Scene) -> Array | None:
    def step(scores: Array, left: Array) -> tuple[Array, Array]:
        weights = softmax(scores + left, 1)
        return weights, weights

    return np.stack(list(_head_by_head(s, step))) if s.first == 0 else None


@suspect(
    "stale_scores",
    "Scores are added to what QK_t still holds from the head before of its batch: its weights. Only each batch starts "
    "from zeros. Set each score (or clear QK_t) at the start of each (b, h).",
)
def scores_added_to_last_weights_of_batch(s: Scene) -> Array | None:
    if s.first % s.shape["H"]:
        return None
    out, weights = [], np.zeros_like(s.scores[0])
    for g, scores in enumerate(s.scores):
        weights = softmax(scores if g % s.shape["H"] == 0 else scores + weights, 1)
        out.append(weights @ s.v[g])
    return np.stack(out)


SUSPECTS += [
    row("scores_added_to_last_scores", "stale_scores",
        "Scores are added to those of the heads before. Set each score (or clear the workspace) for each (b, h).",
        lambda s: s.attend(s.scores.cumsum(0)) if s.first == 0 else None),
    row("score_not_reset", "stale_scores",
        "The score is not set back to zero for the next key: it goes on growing along the row.",
        lambda s: s.attend(s.scores.cumsum(2))),
    row("row_sum_not_reset", "stale_sum",
        "The row sum is not set back to zero for the next row: it holds all rows before.",
        lambda s:
            None if s.all_weights is None else s.weights @ s.v / s.all_weights.sum(2).cumsum(1)[:, s.rows, None]),
]  # fmt: skip


@suspect("stale_sum", "The row sum is not set back to zero for the next row or head: it holds all before.")
def row_sum_never_reset(s: Scene) -> Array | None:
    every = s.all_weights
    if every is None or s.first:
        return None
    sums = every.sum(2)
    return s.weights @ s.v / sums.cumsum().reshape(sums.shape)[:, s.rows, None]


@suspect(
    "stale_sum",
    "The row sum is set back to zero for each batch only: it holds all rows and heads before of its batch.",
)
def row_sum_reset_for_each_batch(s: Scene) -> Array | None:
    if s.all_sums is None:
        return None
    within = s.all_sums.cumsum(1)
    before = s.up_to_here(within[:, -1], of_batch=True)
    if before is None:
        return None
    sums = within + (before - within[:, -1])[:, None]
    return s.weights @ s.v / sums[:, s.rows, None]


SUSPECTS += [
    row("value_not_reset", "stale_value",
        "The output's value is not set back to zero for the next channel: it holds all channels before.",
        lambda s: s.truth.cumsum(2)),
    row("row_not_reset", "stale_value",
        "The output's value is not set back to zero for the next row: it holds all rows before.",
        lambda s: s.truth_all.cumsum(1)[:, s.rows]),
    row("value_never_reset", "stale_value",
        "The output's value is never set back to zero: it holds all channels and rows before.",
        lambda s: s.truth_all.reshape(len(s.truth_all), -1).cumsum(1).reshape(s.truth_all.shape)[:, s.rows]),
]  # fmt: skip


@suspect(
    "stale_l",
    "The row sums L are not set back to zero for the next (b, h): they still hold those of the heads before.",
)
def l_not_reset(s: Scene) -> Array | None:
    sums = s.up_to_here(s.row_sum)
    return None if sums is None else s.weights @ s.v / sums


@suspect(
    "stale_l",
    "The row sums L are set back to zero for each batch only, not for each head: they still hold those of the heads "
    "before of its batch.",
)
def l_reset_for_each_batch(s: Scene) -> Array | None:
    sums = s.up_to_here(s.row_sum, of_batch=True)
    return None if sums is None else s.weights @ s.v / sums
