"""Data from which a suspect, a possible bug of an attention kernel, predicts a kernel's output with this bug."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from grader.core.arrays import Array, np


def softmax(scores: Array, axis: int) -> Array:
    """Return exp(scores) divided by their sum along `axis`, float64. As in torch, a row of only -inf gives NaN."""
    weights = np.exp(scores - scores.max(axis, keepdims=True))
    weights /= weights.sum(axis, keepdims=True)
    return weights


@dataclass(frozen=True)
class Scene:
    """Inputs of a call with a wrong output, and intermediate results of the right computation.

    Arrays are float64, except `rows`, int64 (R,): the rows for which suspects predict the output. `q`, `k`, `v`
    (G, N, d) are the heads `first` ... `first + G - 1` of all B * H heads. `truth_all` (G, N, d) is their expected
    output. `inputs` are the call's own arrays, with all heads and in the types that the kernel got.
    """

    q: Array
    k: Array
    v: Array
    truth_all: Array
    rows: Array
    first: int
    shape: Mapping[str, int]
    inputs: Mapping[str, Array]

    @property
    def keys(self) -> int:
        return self.k.shape[1]

    @property
    def d(self) -> int:
        return self.k.shape[2]

    @cached_property
    def scores(self) -> Array:
        """Q K^T for the rows in `rows`, (G, R, N)."""
        return self.q[:, self.rows] @ self.k.mT

    @cached_property
    def weights(self) -> Array:
        """exp(scores), not yet divided by the row sums: (G, R, N)."""
        return np.exp(self.scores)

    @cached_property
    def row_sum(self) -> Array:
        return self.weights.sum(2, keepdims=True)

    @cached_property
    def probabilities(self) -> Array:
        return self.weights / self.row_sum

    @cached_property
    def truth(self) -> Array:
        return self.truth_all[:, self.rows]

    @cached_property
    def all_weights(self) -> Array | None:
        """exp(Q K^T) of all rows, (G, N, N); None if it would have more than 2^23 elements."""
        if self.q.shape[0] * self.keys**2 > 1 << 23:
            return None
        return np.exp(self.q @ self.k.mT)

    def attend(self, scores: Array, v: Array | None = None) -> Array:
        """Return softmax(scores) V. Shapes: scores (G, R, keys), V (G, keys, d), by default the scene's V."""
        return softmax(scores, 2) @ (self.v if v is None else v)

    def some_keys(self, keys: slice) -> Array:
        """Return the output (G, R, d) if only these keys and their values are used."""
        return self.attend(self.scores[:, :, keys], self.v[:, keys])

    @cached_property
    def all_sums(self) -> Array | None:
        """The row sums of all rows, (G, N); None unless `all_weights` are available."""
        return None if self.all_weights is None else self.all_weights.sum(2)

    @cached_property
    def blocks(self) -> tuple[Array, Array] | None:
        """Sums of the weights over each block of Bc keys, and the products of the block's weights with V.

        Shapes (blocks, G, N, 1) and (blocks, G, N, d). None without `all_weights` or Bc, or if the products would have
        more than 2^22 elements.
        """
        every, block = self.all_weights, self.shape.get("Bc", 0)
        if every is None or block < 1 or -(-self.keys // block) * self.v.size > 1 << 22:
            return None
        starts = range(0, self.keys, block)
        sums = [every[:, :, k : k + block].sum(2, keepdims=True) for k in starts]
        return np.stack(sums), np.stack(
            [every[:, :, k : k + block] @ self.v[:, k : k + block] for k in starts]
        )

    def head_of(self, name: str, head: Callable[[int, int], tuple[int, int]]) -> Array:
        """Return input `name` (G, N, d) as read by a kernel that takes head `head(b, h)` in place of (b, h)."""
        heads = self.shape["H"]
        source = [head(*divmod(self.first + g, heads)) for g in range(self.q.shape[0])]
        return np.stack([self.inputs[name][b, h] for b, h in source], dtype=np.float64)

    def scores_of(self, head: Callable[[int, int], tuple[int, int]]) -> Array:
        """Return the scores (G, R, N) of a kernel that takes head `head(b, h)` of Q and K in place of (b, h)."""
        return self.head_of("Q", head)[:, self.rows] @ self.head_of("K", head).mT

    def up_to_here(self, heads: Array, *, of_batch: bool = False) -> Array | None:
        """Return for each head the sum of `heads` (G, ...) over this head and all earlier ones.

        Return None if the scene lacks an earlier head. `of_batch`: True to add only heads of the same batch.
        """
        if self.first % self.shape["H"] if of_batch else self.first:
            return None
        sums = heads.cumsum(0)
        if not of_batch:
            return sums
        begin = [g // self.shape["H"] * self.shape["H"] for g in range(len(heads))]
        return sums - (sums - heads)[begin]
