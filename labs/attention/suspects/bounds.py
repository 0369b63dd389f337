"""Suspected bugs of masks and loop bounds (keys or channels left out), of missing resets, and of strides."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from grader.core.arrays import Array, np
from grader.explain.suspect import Suspect, registering, row

from ..scene import Scene, softmax

SUSPECTS: list[Suspect] = []
suspect = registering(SUSPECTS)


SUSPECTS += [
    row("causal", "causal_mask",
        "Row i uses only the keys up to key i: a causal mask. This assignment has no mask.",
        lambda s: s.attend(np.where(_key_index(s) > s.rows[:, None], -np.inf, s.scores))),
    row("anti_causal", "causal_mask",
        "Row i uses only the keys from key i on, as under a mask. This assignment has no mask.",
        lambda s: s.attend(np.where(_key_index(s) < s.rows[:, None], -np.inf, s.scores))),
    row("without_itself", "causal_mask", "Row i leaves out key i.",
        lambda s: s.attend(np.where(_key_index(s) == s.rows[:, None], -np.inf, s.scores))),
]  # fmt: skip


def _key_index(s: Scene) -> Array:
    return np.arange(s.keys)[None, :]


SUSPECTS += [
    row("last_key_missing", "key_missing", "The last key is left out: a loop over the keys ends one step too early.",
        lambda s: s.some_keys(slice(0, -1)) if s.keys > 1 else None),
    row("first_key_missing", "key_missing", "The first key is left out: a loop over the keys begins at 1.",
        lambda s: s.some_keys(slice(1, None)) if s.keys > 1 else None),
    row("last_key_not_in_product", "key_missing",
        "The last key is left out of the product with V (it is in the row sum).",
        lambda s: s.probabilities[:, :, :-1] @ s.v[:, :-1]),
    row("first_key_not_in_product", "key_missing",
        "The first key is left out of the product with V (it is in the row sum).",
        lambda s: s.probabilities[:, :, 1:] @ s.v[:, 1:]),
    row("last_key_not_in_sum", "key_missing",
        "The last key is left out of the row sum (it is in the product with V).",
        lambda s: s.weights @ s.v / s.weights[:, :, :-1].sum(2, keepdims=True) if s.keys > 1 else None),
    row("first_key_not_in_sum", "key_missing",
        "The first key is left out of the row sum (it is in the product with V).",
        lambda s: s.weights @ s.v / s.weights[:, :, 1:].sum(2, keepdims=True) if s.keys > 1 else None),
    row("last_key_overwrites", "block_overwritten",
        "Only the last key is in the product with V: each key overwrites the earlier sum, in place of adding to it.",
        lambda s: s.probabilities[:, :, -1:] @ s.v[:, -1:] if s.keys > 1 else None),
    row("last_key_alone", "last_block_only",
        "Only the last key is used: each key overwrites the sums of the earlier keys, or sets them to zero.",
        lambda s: s.some_keys(slice(-1, None)) if s.keys > 1 else None),
    row("last_key_is_the_sum", "last_block_sum",
        "Each row is divided by the weight of its last key: each key overwrites the row sum, in place of adding to it.",
        lambda s: s.weights @ s.v / s.weights[:, :, -1:] if s.keys > 1 else None),
    row("last_channel_alone", "score_overwritten",
        "A score is the product of the last channel alone: each channel overwrites it, in place of adding to it.",
        lambda s: s.attend(s.q[:, s.rows, -1:] @ s.k[:, :, -1:].mT) if s.d > 1 else None),
    row("last_channel_missing", "channel_missing",
        "The last channel is left out of Q K^T: the loop over d ends one step too early.",
        lambda s: s.attend(s.q[:, s.rows, :-1] @ s.k[:, :, :-1].mT)),
    row("first_channel_missing", "channel_missing",
        "The first channel is left out of Q K^T: the loop over d begins at 1.",
        lambda s: s.attend(s.q[:, s.rows, 1:] @ s.k[:, :, 1:].mT)),
]  # fmt: skip


# ---- suspected bugs with values left by earlier iterations of a loop: sums and workspaces that are not cleared


def _head_by_head(s: Scene, step: Callable[[Array, Array], tuple[Array, Array]]) -> Iterator[Array]:
    """Yield the output (R, d) of each head, if all heads use one workspace (R, N) that is not cleared between heads.
    `step(scores, old content)` returns a head's weights and the workspace's new content, all (R, N).
    """
    left = np.zeros_like(s.scores[0])
    for g in range(s.q.shape[0]):
        weights, left = step(s.scores[g], left)
        yield weights @ s.v[g]


@suspect(
    "stale_scores",
    "QK_t still holds the previous head's weights, and scores are added to them. Set each score (or clear all of "
    "QK_t) at the start of each (b, h).",
)
def scores_added_to_last_weights(s: Scene) -> Array | None:
    def step(scores: Array, left: Array) -> tuple[Array, Array]:
        weights = softmax(scores + left, 1)
        return weights, weights

    return np.stack(list(_head_by_head(s, step))) if s.first == 0 else None


@suspect(
    "stale_scores",
    "QK_t still holds the previous head's weights, and scores are added to them. The reset for each (b, h) "
    "does not reach the rows below the first ones.",
)
def all_rows_but_the_first_kept(s: Scene) -> Array | None:
    kept = s.rows[:, None] > 0

    def step(scores: Array, left: Array) -> tuple[Array, Array]:
        weights = softmax(scores + np.where(kept, left, 0), 1)
        return weights, weights

    return np.stack(list(_head_by_head(s, step))) if s.first == 0 else None


@suspect(
    "stale_scores",
    "Scores are added to exp() values of the previous head. Set each score to 0 before its sum begins (for each row, "
    "if the array holds one row).",
)
def scores_added_to_last_exponentials(s: Scene) -> Array | None:
    def step(scores: Array, left: Array) -> tuple[Array, Array]:
        held = np.exp(scores + left)
        return softmax(scores + left, 1), held

    return np.stack(list(_head_by_head(s, step))) if s.first == 0 else None


@suspect(
    "stale_scores",
    "QK_t still holds the weights of the previous head of its batch, and scores are added to them. Only each batch "
    "starts from zeros. Set each score (or clear QK_t) at the start of each (b, h).",
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
        "Scores are added to the scores of earlier heads. Set each score (or clear the workspace) for each (b, h).",
        lambda s: s.attend(s.scores.cumsum(0)) if s.first == 0 else None),
    row("score_not_reset", "stale_scores",
        "The score is not set back to zero for the next key: it contains the scores of all earlier keys.",
        lambda s: s.attend(s.scores.cumsum(2))),
    row("row_sum_not_reset", "stale_sum",
        "The row sum is not set back to zero for the next row: it contains all earlier rows.",
        lambda s:
            None if s.all_weights is None else s.weights @ s.v / s.all_weights.sum(2).cumsum(1)[:, s.rows, None]),
]  # fmt: skip


@suspect("stale_sum", "The row sum is never set back to zero: it contains all earlier rows and heads.")
def row_sum_never_reset(s: Scene) -> Array | None:
    every = s.all_weights
    if every is None or s.first:
        return None
    sums = every.sum(2)
    return s.weights @ s.v / sums.cumsum().reshape(sums.shape)[:, s.rows, None]


@suspect(
    "stale_sum",
    "The row sum is reset to zero only for each batch: it also contains all earlier rows and heads of its batch.",
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
        "The output's value is not set back to zero for the next channel: it contains all earlier channels.",
        lambda s: s.truth.cumsum(2)),
    row("row_not_reset", "stale_value",
        "The output's value is not set back to zero for the next row: it contains all earlier rows.",
        lambda s: s.truth_all.cumsum(1)[:, s.rows]),
    row("value_never_reset", "stale_value",
        "The output's value is never set back to zero: it contains all earlier channels and rows.",
        lambda s: s.truth_all.reshape(len(s.truth_all), -1).cumsum(1).reshape(s.truth_all.shape)[:, s.rows]),
]  # fmt: skip


@suspect(
    "stale_l",
    "The row sums are not reset to zero for the next (b, h): they still hold the sums of earlier heads.",
)
def l_not_reset(s: Scene) -> Array | None:
    sums = s.up_to_here(s.row_sum)
    return None if sums is None else s.weights @ s.v / sums


@suspect(
    "stale_l",
    "The row sums are reset to zero only for each batch, not for each head: they still hold the sums of earlier "
    "heads of the batch.",
)
def l_reset_for_each_batch(s: Scene) -> Array | None:
    sums = s.up_to_here(s.row_sum, of_batch=True)
    return None if sums is None else s.weights @ s.v / sums


# ---- suspected bugs of strides: d and N exchanged in the workspace's rows, or in the sizes of Q, K and V

#: Code of every suspect of this section.
CODE = "wrong_stride"
#: Limit on N for `stride_d_everywhere`, which repeats the kernel's steps row by row.
_MOST_REPLAYED = 300
_RIGHT = "A row of QK_t has N elements: element (i, j) lies at i * N + j."


@suspect(
    CODE, f"The product with V reads the weights with stride d in the place of N, at i * d + j. {_RIGHT}"
)
def weights_read_with_stride_d(s: Scene) -> Array | None:
    places = s.rows[:, None] * s.d + np.arange(s.keys)
    if s.all_weights is None or s.all_sums is None or int(places.max()) >= s.keys**2:
        return None
    return (s.all_weights / s.all_sums[:, :, None]).reshape(len(s.q), -1)[:, places] @ s.v


def _written(s: Scene, places: Array) -> tuple[Array, Array]:
    """Return the scores at some offsets of the workspace if rows of scores are written with stride d in place of N.

    Rows then overlap, and the last write to an offset counts. `places` (R, N) are the offsets. The scores are
    (G, R, N). The second result is a mask (R, N) of the offsets to which a score was written.
    """
    i = np.minimum(places // s.d, s.keys - 1)
    j = places - i * s.d
    has = j < s.keys
    j = np.minimum(j, s.keys - 1)
    return (s.q[:, i] * s.k[:, j]).sum(3), has


@suspect(CODE, f"The scores are written with stride d in the place of N, at i * d + j. {_RIGHT}")
def scores_written_with_stride_d(s: Scene) -> Array | None:
    if s.first or s.d >= s.keys:
        return None
    scores, has = _written(s, s.rows[:, None] * s.keys + np.arange(s.keys))
    left, out = np.zeros_like(scores[0]), []
    for g in range(len(scores)):
        # Elements without a new score keep the weights of the previous head.
        left = softmax(np.where(has, scores[g], left), 1)
        out.append(left @ s.v[g])
    return np.stack(out)


@suspect(CODE, f"QK_t is read and written with stride d in the place of N everywhere, at i * d + j. {_RIGHT}")
def stride_d_everywhere(s: Scene) -> Array | None:
    if s.d >= s.keys or s.keys > _MOST_REPLAYED:
        return None
    held, _ = _written(s, np.arange((s.keys - 1) * s.d + s.keys)[None])
    held = held[:, 0]
    for at in range(0, s.keys * s.d, s.d):
        row = held[:, at : at + s.keys]
        row[:] = softmax(row, 1)
    return held[:, s.rows[:, None] * s.d + np.arange(s.keys)] @ s.v


def _register_exchanged_sizes() -> None:
    """Register one suspect for each input that is read with the sizes (H, d, N) in the place of (H, N, d)."""
    for name in "QKV":

        def predict(s: Scene, name: str = name) -> Array | None:
            if s.d == s.keys:
                return None
            flat = s.inputs[name].reshape(-1)
            head = s.first + np.arange(len(s.q))[:, None, None]
            places = (head * s.d + np.arange(s.keys)[:, None]) * s.keys + np.arange(s.d)
            # Reads beyond the tensor's end give unknown numbers: NaN.
            known = flat[np.minimum(places, len(flat) - 1)].astype(np.float64)
            values = np.where(places < len(flat), known, np.nan)
            read = {"Q": s.q, "K": s.k, "V": s.v, name: values}
            return s.attend(read["Q"][:, s.rows] @ read["K"].mT, read["V"])

        words = (
            f"{name} is read with d and N exchanged, at ((b * H + h) * d + j) * N + k, which is outside of the tensor "
            "for the last heads. Its sizes are (H, N, d): element (b, h, j, k) lies at ((b * H + h) * N + j) * d + k."
        )
        SUSPECTS.append(Suspect(CODE, words, predict, (f"{name} with d and N exchanged",)))


_register_exchanged_sizes()
