"""Formulas of the lab in NumPy, for expected values and for the predictions of mistakes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from grader.core import machine
from grader.core.arrays import Array, np

CUBIC, ROOT = 0.044715, (2.0 / np.pi) ** 0.5
SCORES_AT_ONCE = 1 << 20
"""Limit on the number of scores that are computed at once: 8 MiB in float64."""


def gelu(x: Array) -> Array:
    """Return x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, by a formula without cancellation if x is far below 0.

    Source: Hendrycks and Gimpel, 2016.
    """
    with np.errstate(over="ignore"):
        return np.asarray(x / (1 + np.exp(-2 * ROOT * (x + CUBIC * x**3))))


def softmax(x: Array, axis: int = -1) -> Array:
    """Return the softmax along an axis."""
    weights = np.exp(x - x.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def scores(q: Array, k: Array, scale: float | None = None) -> Array:
    """Return q k^T times `scale`, by default 1/sqrt(d): float64 (B, N, M)."""
    scale = q.shape[2] ** -0.5 if scale is None else scale
    return np.einsum("bnd,bmd->bnm", q, k, dtype=np.float64, optimize=True) * scale


def visible(rows: Array, keys: Array) -> Array:
    """Return the causal mask (n, m) for the indices of queries, `rows`, and of keys: True if key <= query."""
    return np.asarray(keys[None, :] <= rows[:, None])


def masked(s: Array, rows: Array, keys: Array, *, causal: bool) -> Array:
    """Return the scores (B, n, m). With `causal`, scores are -inf where key > query."""
    return np.where(visible(rows, keys)[None], s, -np.inf) if causal else s


def log_sum_exp(s: Array) -> Array:
    """Return log(sum(exp(s))) over the last axis; -inf for a row of only -inf."""
    most = s.max(-1, keepdims=True)
    finite = np.where(np.isneginf(most), 0.0, most)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(s - finite).sum(-1)) + finite[..., 0])


def attention(
    q: Array, k: Array, v: Array, *, causal: bool, rows: Array | None = None
) -> tuple[Array, Array]:
    """Return O (B, n, d) and the log-sum-exp L (B, n), float64, for the rows `rows` of q, by default all.
    `causal`: True if row i sees only the keys 0 to i.

    Threads compute a few rows at a time, so that their scores stay in the processor's cache.
    """
    rows = np.arange(q.shape[1]) if rows is None else rows
    values = v.astype(np.float64)
    step = max(1, SCORES_AT_ONCE // (len(q) * k.shape[1]))

    def of(some: Array) -> tuple[Array, Array]:
        keys = np.arange(min(k.shape[1], some.max(initial=0) + 1) if causal else k.shape[1])
        s = masked(scores(q[:, some], k[:, keys]), some, keys, causal=causal)
        most = s.max(-1, keepdims=True)
        weights = np.exp(np.subtract(s, most, out=s), out=s)
        total = weights.sum(-1, keepdims=True)
        return weights @ values[:, keys] / total, (np.log(total) + most)[..., 0]

    pieces = np.split(rows, range(step, len(rows), step))
    with ThreadPoolExecutor(min(len(pieces), len(machine.usable_cpus()) or 1)) as pool:
        o, lse = zip(*pool.map(of, pieces), strict=True)
    return np.concatenate(o, axis=1), np.concatenate(lse, axis=1)
