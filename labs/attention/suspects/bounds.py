"""Suspected bugs of masks and loop bounds: keys and channels that are left out."""

from __future__ import annotations

from grader.core.arrays import Array, np
from grader.judge.diagnosis.suspect import Suspect, registering

from ..scene import Scene, row

SUSPECTS: list[Suspect] = []
suspect = registering(SUSPECTS)


SUSPECTS += [
    row("causal", "causal_mask",
        "Each row sees the keys up to its own only: a causal mask. This assignment has no mask.",
        lambda s: s.attend(np.where(_key_index(s) > s.rows[:, None], -np.inf, s.scores))),
    row("anti_causal", "causal_mask",
        "Each row sees the keys from its own on only, as under a mask. This assignment has no mask.",
        lambda s: s.attend(np.where(_key_index(s) < s.rows[:, None], -np.inf, s.scores))),
    row("without_itself", "causal_mask", "Each row leaves out its own key.",
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
    row("last_channel_missing", "channel_missing",
        "The last channel is left out of Q K^T: the loop over d ends one step too early.",
        lambda s: s.attend(s.q[:, s.rows, :-1] @ s.k[:, :, :-1].mT)),
    row("first_channel_missing", "channel_missing",
        "The first channel is left out of Q K^T: the loop over d begins at 1.",
        lambda s: s.attend(s.q[:, s.rows, 1:] @ s.k[:, :, 1:].mT)),
]  # fmt: skip
