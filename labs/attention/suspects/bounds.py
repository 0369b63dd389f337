"""Suspected bugs of masks and loop bounds: keys and channels that are left out."""

from __future__ import annotations

from grader.core.arrays import Array, np
from grader.judge.diagnosis.suspect import Suspect, registering

from ..scene import Scene

SUSPECTS: list[Suspect] = []
suspect = registering(SUSPECTS)


@suspect(
    "causal_mask", "Each row sees the keys up to its own only: a causal mask. This assignment has no mask."
)
def causal(s: Scene) -> Array:
    return s.attend(np.where(_key_index(s) > s.rows[:, None], -np.inf, s.scores))


@suspect(
    "causal_mask",
    "Each row sees the keys from its own on only, as under a mask. This assignment has no mask.",
)
def anti_causal(s: Scene) -> Array:
    return s.attend(np.where(_key_index(s) < s.rows[:, None], -np.inf, s.scores))


@suspect("causal_mask", "Each row leaves out its own key.")
def without_itself(s: Scene) -> Array:
    return s.attend(np.where(_key_index(s) == s.rows[:, None], -np.inf, s.scores))


def _key_index(s: Scene) -> Array:
    return np.arange(s.keys)[None, :]


@suspect("key_missing", "The last key is left out: a loop over the keys ends one step too early.")
def last_key_missing(s: Scene) -> Array | None:
    return s.some_keys(slice(0, -1)) if s.keys > 1 else None


@suspect("key_missing", "The first key is left out: a loop over the keys begins at 1.")
def first_key_missing(s: Scene) -> Array | None:
    return s.some_keys(slice(1, None)) if s.keys > 1 else None


@suspect("key_missing", "The last key is left out of the product with V (it is in the row sum).")
def last_key_not_in_product(s: Scene) -> Array:
    return s.probabilities[:, :, :-1] @ s.v[:, :-1]


@suspect("key_missing", "The first key is left out of the product with V (it is in the row sum).")
def first_key_not_in_product(s: Scene) -> Array:
    return s.probabilities[:, :, 1:] @ s.v[:, 1:]


@suspect("key_missing", "The last key is left out of the row sum (it is in the product with V).")
def last_key_not_in_sum(s: Scene) -> Array | None:
    return s.weights @ s.v / s.weights[:, :, :-1].sum(2, keepdims=True) if s.keys > 1 else None


@suspect("key_missing", "The first key is left out of the row sum (it is in the product with V).")
def first_key_not_in_sum(s: Scene) -> Array | None:
    return s.weights @ s.v / s.weights[:, :, 1:].sum(2, keepdims=True) if s.keys > 1 else None


@suspect("channel_missing", "The last channel is left out of Q K^T: the loop over d ends one step too early.")
def last_channel_missing(s: Scene) -> Array:
    return s.attend(s.q[:, s.rows, :-1] @ s.k[:, :, :-1].mT)


@suspect("channel_missing", "The first channel is left out of Q K^T: the loop over d begins at 1.")
def first_channel_missing(s: Scene) -> Array:
    return s.attend(s.q[:, s.rows, 1:] @ s.k[:, :, 1:].mT)
