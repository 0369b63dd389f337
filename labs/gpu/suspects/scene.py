"""Data for predicting mistakes in attention: scores, masks and weights of all heads, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grader.core.arrays import Array, np
from grader.explain.suspect import Suspect, row

from .. import arithmetic


def in_blocks(
    name: str, code: str, words: str, predict: Callable[[Any, int], Any], lengths: Iterable[int]
) -> list[Suspect]:
    """Return a suspect for each block length in `lengths`.

    {} in `name` stands for the length. `predict(data, length)` returns the prediction from a Heads or a Situation.
    """
    return [row(name.format(k), code, words, lambda scene, k=k: predict(scene, k)) for k in lengths]


TILES = (16, 32, 64, 128)
"""Usual lengths of tiles."""
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Heads:
    """Inputs of a call: q (B, N, d), k, v (B, M, d), and for gradients O, dO (B, N, d) and L (B, N), all float64.

    `causal`: True if query i uses only the keys 0 to i.
    """

    q: Array
    k: Array
    v: Array
    causal: bool
    o: Any = None
    lse: Any = None
    do: Any = None

    @classmethod
    def of(cls, inputs: Mapping[str, Array], sizes: Mapping[str, int]) -> Heads:
        t = {name: array.astype(np.float64) for name, array in inputs.items()}
        causal = bool(sizes["causal"])
        o, lse = t.get("O"), t.get("L")
        if "dO" in t and lse is None:
            o, lse = arithmetic.attention(t["q"], t["k"], t["v"], causal=causal)
        return cls(t["q"], t["k"], t["v"], causal, o, lse, t.get("dO"))

    @property
    def queries(self) -> int:
        return int(self.q.shape[1])

    @property
    def keys(self) -> int:
        return int(self.k.shape[1])

    @property
    def d(self) -> int:
        return int(self.q.shape[2])

    @cached_property
    def plain(self) -> Array:
        """q k^T, not scaled and not masked, (B, N, M)."""
        return arithmetic.scores(self.q, self.k, 1.0)

    @cached_property
    def scaled(self) -> Array:
        """q k^T / sqrt(d), not masked, (B, N, M)."""
        return np.asarray(self.plain * self.d**-0.5)

    @cached_property
    def seen(self) -> Array:
        """The mask (N, M): True for keys that a query uses."""
        if not self.causal:
            return np.ones((self.queries, self.keys), bool)
        return arithmetic.visible(np.arange(self.queries), np.arange(self.keys))

    @cached_property
    def s(self) -> Array:
        """Scores (B, N, M), scaled, with -inf for masked keys."""
        return np.where(self.seen, self.scaled, -np.inf)

    @cached_property
    def most(self) -> Array:
        """The maximum of each row of `s`, (B, N, 1)."""
        return self.s.max(2, keepdims=True)

    @cached_property
    def weights(self) -> Array:
        """exp(s - maximum), not divided by the row's sum, (B, N, M)."""
        return np.exp(self.s - self.most)

    @cached_property
    def total(self) -> Array:
        """The sum of the weights of each row, (B, N, 1)."""
        return self.weights.sum(2, keepdims=True)

    @cached_property
    def right(self) -> tuple[Array, Array]:
        """The right outputs O (B, N, d) and L (B, N)."""
        return self.weights @ self.v / self.total, (self.most + np.log(self.total))[..., 0]

    # ---- gradients

    @cached_property
    def p(self) -> Array:
        """exp(s - L), (B, N, M)."""
        return np.exp(self.s - self.lse[..., None])

    @cached_property
    def dp(self) -> Array:
        return np.asarray(self.do @ self.v.swapaxes(1, 2))

    @cached_property
    def delta(self) -> Array:
        """rowsum(dO * O), (B, N, 1)."""
        return np.asarray((self.do * self.o).sum(2, keepdims=True))

    @cached_property
    def ds(self) -> Array:
        return np.asarray(self.p * (self.dp - self.delta))

    def gradients(self, p: Array | None = None, ds: Array | None = None) -> dict[str, Array]:
        """Return dQ, dK and dV from the weights `p` and the scores' gradient `ds`, by default the right ones."""
        p, ds = self.p if p is None else p, self.ds if ds is None else ds
        scale = self.d**-0.5
        return {
            "dQ": scale * ds @ self.k,
            "dK": scale * ds.swapaxes(1, 2) @ self.q,
            "dV": p.swapaxes(1, 2) @ self.do,
        }


def softmax_of(s: Array, v: Array) -> dict[str, Array]:
    """Return O and L for scores `s` and values `v`. In rows with only -inf, O is NaN, which predicts nothing."""
    lse = arithmetic.log_sum_exp(s)
    return {"O": np.exp(s - np.where(np.isneginf(lse), np.nan, lse)[..., None]) @ v, "L": lse}


def running_maxima(s: Array, tile: int) -> Array:
    """Return for each key the maximum of its row of `s` up to the end of the key's tile, (B, N, M)."""
    found = np.empty_like(s)
    most = np.full(s.shape[:2], -np.inf)
    for start in range(0, s.shape[2], tile):
        most = np.maximum(most, s[:, :, start : start + tile].max(2))
        found[:, :, start : start + tile] = most[:, :, None]
    return found


def last_tile(length: int, tile: int) -> int:
    """Return the index at which the last tile begins, full or not."""
    return (length - 1) // tile * tile
