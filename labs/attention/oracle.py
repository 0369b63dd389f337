"""Expected values in float64, the tolerance of each, and checks ("relations") that explain wrong outputs.

Theory of the tolerance, the error budget. For one head, O[i, c] = sum_j P[i, j] V[j, c] with P = softmax(Q K^T). A
kernel that computes O in float32 (u = 2^-24) makes three kinds of error. None of them is proportional to |O|:

- A score is a sum of d products; its rounding error is up to d u |q||k| and typically sqrt(d) u |q||k|. An
  error e in a score is a relative error e in its weight exp(score). The rounding of score - maximum is another
  such error.
- A sum over N keys rounds N times. Errors of random sign grow as sqrt(N), but equal addends round the same
  way for thousands of steps, so the growth may be linear. The published flash update also rounds O in each
  block.
- exp, products and the division round a constant number of times.

Let A[i, c] = sum_j P[i, j] |V[j, c]|. A relative error of the weights, or of the products P V, changes O[i, c] by at
most the same fraction of A[i, c]. Where values of both signs cancel, |O| is far smaller than A, and every float32
kernel has a large relative error. Where all values have one sign, A = |O|. So the budget scales with A:

    tolerance = ABSOLUTE + u A (CONSTANT + PER_KEY N + PER_SCORE sqrt(d) |q_i| max_j |k_j|)

The budget is ten times the largest error measured with right kernels (`tests/test_oracle.py` repeats the measurement).
On random inputs at N = 1024, d = 32 it is 1.9e-4 A. If a kernel rounds its inputs to float16, its error is ten times
the budget; with bfloat16 it is seventy times.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from grader.core import machine
from grader.core.arrays import Array, np
from grader.core.draws import Draws
from grader.core.results import Diagnosis
from grader.explain import relations as simple
from grader.explain.comparison import UNIT_ROUNDOFF, Comparison, Expected
from grader.explain.deviation import Axis, Deviation
from grader.explain.oracle import Ask, Dissected, Oracle
from grader.explain.relations import Found
from grader.explain.suspect import Suspect

from .dissect import diagnose_read, diagnose_write, dissect, flat_offsets
from .suspects import bounds, fitting

_SCORES, _VALUES = ("input:Q", "input:K"), ("input:V",)
_SUM = ("sums", "divide", "call:exp")
#: Clues for lines. _L: uses of L or LTensor. _L_ROW: accesses to elements of L; without these, the lines of _L.
_L = "text:\\bL(?:Tensor)?\\b"
_L_ROW = ("text:\\bL\\s*\\[", f"?{_L}")

CLUES: Mapping[str, tuple[str, ...]] = {
    "scaled": ("call:sqrt", "call:exp"),
    "wrong_base": ("call:exp",),
    "linear_exp": ("call:exp", "sums"),
    "exp_missing": ("call:exp", "sums"),
    "exp_twice": ("call:exp",),
    "exp_of_magnitude": ("call:exp", "call:abs"),
    "double_softmax": ("call:exp",),
    "maximum_only_above": ("call:exp", "divide"),
    "maximum_only_in_sum": ("call:exp", "divide"),
    "whole_sum": ("whole_sums", "divide"),
    "normalised_twice": ("divide", "stored"),
    "not_normalised": ("bare", "sums", "divide", "call:exp"),
    "uniform_softmax": ("call:exp", *_SCORES),
    "negated": ("call:exp", "store"),
    "hard_maximum": ("call:exp",),
    "softmax_missing": ("call:exp", "loops"),
    "scores_returned": _VALUES,
    "copied_input": ("store",),
    "wrong_operand": (*_SCORES, *_VALUES),
    "wrong_axis": ("divide", "sums"),
    "q_k_swapped": _SCORES,
    "k_transposed": ("input:K",),
    "q_transposed": ("input:Q",),
    "v_transposed": _VALUES,
    "v_reversed": _VALUES,
    "scores_transposed": ("times:V", *_VALUES),
    "wrong_stride": (*_SCORES, *_VALUES),
    "causal_mask": ("of_row", "skips", "loops", "call:exp"),
    "key_missing": ("skips", "loops"),
    "channel_missing": ("loops", *_SCORES),
    "channels_missing": ("loops", *_SCORES),
    "remainder_keys": ("cut:N", "loops", "steps"),
    "remainder_channels": ("cut:d", "loops", "steps", *_SCORES),
    "tile_normalised": ("divide", "sums", "fills", "loops"),
    "tile_end": ("one_short", "?loops", "steps"),
    "first_block_only": ("loops", "steps"),
    "first_block_missing": ("loops", "steps"),
    "last_block_only": ("fills", "steps", "sums"),
    "last_block_sum": ("fills", "steps", "sums"),
    "block_overwritten": ("restarts:d", "zeroed:N", "stored", "store"),
    "score_overwritten": ("zeroed:d", "into:Q", *_SCORES),
    "stale_scores": ("piled", "begun:Q", "?bare", "?input:Q", "?input:K", "cleared", "cleared_in"),
    "stale_sum": ("never_begun", "bare", "fills", "sums", "divide"),
    "tile_not_cleared": ("steps", "fills", "?input:Q", "?input:K"),
    "key_twice": (*_VALUES, "store", "loops"),
    "divided_early": ("divide", "sums"),
    "columns_copied": ("pointer:V", *_VALUES, "store"),
    "rows_copied": ("pointer:Q", *_SCORES, "store"),
    "stale_value": ("bare", "stored", "fills", "store"),
    "stale_l": ("fills", "cleared", _L),
    "heads_copied": (*_SCORES, *_VALUES, "store"),
    "batches_copied": (*_SCORES, *_VALUES, "store"),
    "heads_permuted": ("store", *_SCORES),
    "head_ignored": (*_SCORES, *_VALUES),
    "other_heads_weights": (*_SCORES, *_VALUES),
    "other_rows_weights": (*_SCORES, *_VALUES),
    "summed_heads": _SCORES,
    "repeated_softmax": _SUM,
    "flash_not_rescaled": ("stored", "store", "text:\\b[Ll]i\\b", f"?{_L}"),
    "maximum_so_far": ("minus_maximum", "updates", "call:exp", "sums"),
    "maximum_not_rescaled": ("text:\\b[Ll]i\\b", f"?{_L}", "updates", "call:exp", "sums"),
    "flash_not_divided": ("divide", "stored", "store"),
    "flash_l_not_carried": (_L, "text:\\b[Ll]new\\b"),
    "flash_l_tile_row": (*_L_ROW,),
    "flash_o_tile_row": ("text:\\(\\s*O\\s*,|\\bO\\s*\\[",),
    "flash_tile_row": (*_L_ROW, "text:\\(\\s*O\\s*,|\\bO\\s*\\["),
    "q_tile_row": ("input:Q",),
    "k_tile_row": ("input:K",),
    "v_tile_row": ("input:V",),
    "later_operand": _VALUES,
    "k_v_tile_row": ("input:K", "input:V"),
    "flash_pv_kept": ("text:\\bPV\\b", "?into:V"),
    "flash_o_twice": ("stored", "store"),
    "flash_stale_tail": ("around:Bc", "?until:Bc", "?summing", "call:exp", "sums", "?loops"),
    "padded_keys": ("around:Bc", "?until:Bc", "?summing", "sums", "?loops"),
    "not_finite": ("bare", "fresh", "divide", "begun:Q", "skips"),
    "wrong_values": ("bytes", "skips", "stored", "loops", "text:\\bL\\s*\\[", "store", "index"),
    "heads": ("leaves", *_SCORES, *_VALUES, "store"),
    "batches": ("leaves", "unlooped:B", *_SCORES, *_VALUES, "store"),
    "row_range": ("loops", "store"),
    "column_range": ("loops", "store"),
    "periodic_rows": ("loops", "steps"),
    "periodic_columns": ("loops", "steps"),
}


def another_layout(seen: Deviation) -> Found | None:
    """Return (diagnosis code, message) if the values are right, but the dimensions are in another order; else None."""
    b, h, n, d = seen.expected.shape
    actual, wrong = seen.actual, seen.wrong
    layouts: list[tuple[str, Callable[[Array], Array]]] = [
        ("(B, N, H, d)", lambda t: t.reshape(b, n, h, d).swapaxes(1, 2)),
        ("(B, H, d, N)", lambda t: t.reshape(b, h, d, n).swapaxes(2, 3)),
        ("(H, B, N, d)", lambda t: t.reshape(h, b, n, d).swapaxes(0, 1)),
        ("(B, N, d, H)", lambda t: t.reshape(b, n, d, h).transpose(0, 3, 1, 2)),
    ]
    for name, arranged in layouts:
        if not np.array_equal(arranged(actual), actual) and seen.agrees(
            seen.expected, arranged(actual), seen.slack, arranged(wrong)
        ):
            return "wrong_layout", (
                f"The values are right but stored as {name}; the output is (B, H, N, d), row-major. "
                "Check the order of the indices where O is written."
            )
    return None


def copied_heads(seen: Deviation) -> Found | None:
    """Return (diagnosis code, message) if each wrong head has the right values of another head; else None."""
    b, h = seen.expected.shape[:2]
    heads, got, allowed, bad = (
        t.reshape(b * h, *t.shape[2:]) for t in (seen.expected, seen.actual, seen.slack, seen.wrong)
    )
    count = b * h
    if count == 1 or count > 32:
        return None
    source: list[int] = []
    for g in range(count):
        fits = (
            [s for s in range(count) if seen.agrees(heads[s], got[g], allowed[s], bad[g])]
            if bad[g].any()
            else [g]
        )
        if not fits:
            return None
        source.append(fits[0])
    if source == list(range(count)):
        return None
    if len(set(source)) == 1:
        return "heads_copied", (
            f"Every head holds the result of batch {source[0] // h}, head {source[0] % h}. "
            "Each (b, h) has its own inputs: check that b and h are used wherever Q, K, V and O are indexed."
        )
    if source == [g // h * h for g in range(count)]:
        return "heads_copied", "Every head holds the result of head 0 of its batch: the index h is not used."
    if b > 1 and source == [g % h for g in range(count)]:
        return "batches_copied", "Every batch holds the result of batch 0: the index b is not used."
    if sorted(source) == list(range(count)):
        return (
            "heads_permuted",
            "The heads are right but in the wrong order: check how b and h enter the indices.",
        )
    pairs = [f"({g // h}, {g % h}) holds ({s // h}, {s % h})" for g, s in enumerate(source) if g != s]
    return "heads_copied", f"Some heads (b, h) hold the results of other heads: {', '.join(pairs[:3])}."


Shape = Mapping[str, int]
Inputs = Mapping[str, Array]

ABSOLUTE = 1e-7
CONSTANT = 40.0
PER_KEY = 2.5
PER_SCORE = 5.0
#: For arguments up to this number, exp() is finite in float32.
EXP_LIMIT = 88.0

#: Number of scores that a thread computes at once: 512 KiB, which stay in the core's cache until they multiply V.
_CHUNK_SCORES = 1 << 16
#: A call with at least this many scores starts threads. Smaller calls take only a few milliseconds.
_SHARED_SCORES = 1 << 20
#: Limit on the number of threads. More threads mostly wait for Python's lock.
_MOST_THREADS = 8


class Attention(Oracle):
    """softmax(Q K^T) V for each batch and head; no scaling by 1/sqrt(d), no mask. Q, K, V: (B, H, N, d)."""

    axes = (
        Axis("batch", "batches", "b", "B", listed=True),
        Axis("head", "heads", "h", "H", listed=True),
        Axis("row", "rows", "i", "N"),
        Axis("column", "columns", "j", "d"),
    )
    tiles = ("Br", "Bc")
    cuts: ClassVar[Mapping[str, tuple[str, ...]]] = {"i": ("Br", "TILE_SIZE"), "j": ("TILE_SIZE",)}
    output, overflowing = "O", "random*8"
    probes: ClassVar = {
        "N": (1, 2, 3, 4, 5, 8, 12, 16, 17, 24, 32, 33, 48, 64, 96),
        "d": (1, 2, 3, 4, 5, 8, 12, 16, 17, 32, 33),
        "B": (1, 2, 3),
        "H": (1, 2, 3, 4),
        "Br": (1, 2, 4, 8, 64, 128),
        "Bc": (1, 2, 4, 8, 64, 128),
    }
    trivial: ClassVar = {"N": 1}
    clues = CLUES
    sized_codes = frozenset(
        {"remainder_keys", "remainder_channels", "first_block_only", "first_block_missing", "block_overwritten",
         "score_overwritten", "last_block_only", "last_block_sum", "channels_missing",
         "tile_normalised", "tile_end", "not_normalised"}
    )  # fmt: skip
    dissected_codes = frozenset({"not_normalised", "constant_factor"})
    relations = (
        *(simple.not_written, simple.partly_not_written, another_layout, simple.moved),
        *(copied_heads, simple.constant_factor),
    )
    weak_relations = (simple.copied, simple.row_factors, simple.imprecise)
    outside_codes = frozenset({bounds.CODE})

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        """Return the whole output, float64 (B, H, N, d)."""
        return self.expected_rows(inputs, slice(None))

    def sample(self, inputs: Inputs, shape: Shape, draws: Draws, rows: int) -> tuple[Any, Expected]:
        """Draw at most `rows` rows, the same in every batch and head. Return an index that selects them from the output
        (B, H, N, d), and their expected values.
        """
        chosen = draws.permutation(shape["N"], rows)
        return (slice(None), slice(None), chosen), self.expected_rows(inputs, chosen)

    def expected_rows(self, inputs: Inputs, rows: Array | slice) -> Expected:
        """Return the output's rows `rows` (int64 (R,), each below N) of every batch and head: float64 (B, H, R, d)."""
        q, k, v = inputs["Q"][:, :, rows].astype(np.float64), inputs["K"].astype(np.float64), inputs["V"]
        keys, d = k.shape[2:]
        v_and_size = np.empty((*v.shape[:3], 2 * d))
        v_and_size[..., :d] = v
        np.abs(v, out=v_and_size[..., d:])
        both = _weighted(q, k, v_and_size)
        score_bound = _norms(q) * _norms(k).max(2, keepdims=True)
        growth = CONSTANT + PER_KEY * keys + PER_SCORE * math.sqrt(d) * score_bound
        return Expected(both[..., :d].copy(), ABSOLUTE + UNIT_ROUNDOFF * both[..., d:] * growth[..., None])

    def suspects(self, seen: Deviation, likely: frozenset[str]) -> list[Suspect]:
        return fitting(seen, likely)

    def dissect(self, ask: Ask, sizes: Shape) -> Dissected | None:
        return dissect(ask, sizes)

    def not_finite(self, seen: Deviation, amount: str) -> tuple[str, str]:
        largest = _largest_score(seen.inputs)
        if largest > EXP_LIMIT:
            return "overflow", (
                f"NaN or infinity in {amount}. Scores go up to {largest:.0f} here, and exp() of more than "
                f"{EXP_LIMIT:.0f} is infinite in float32: subtract the row's maximum first."
            )
        if _holds_exponentials(seen):
            return "stale_scores", (
                f"NaN or infinity in {amount}: scores are added to exp() values of an earlier head or row, until "
                "exp() overflows. Set each score to 0 before its sum begins (for each row, if the array holds one row)."
            )
        return "not_finite", (
            f"NaN or infinity in {amount}. Scores are at most {largest:.0f} here, so exp() of a right score is finite."
        )

    def flops(self, shape: Shape) -> int:
        """Return the number of multiplications and additions in the two matrix products."""
        return 4 * shape["B"] * shape["H"] * shape["N"] ** 2 * shape["d"]


#: `_holds_exponentials` computes only the first _REPLAYED_HEADS heads, and none if a head has more than
#: _REPLAYED_SCORES scores.
_REPLAYED_HEADS, _REPLAYED_SCORES = 4, 1 << 20


def _holds_exponentials(seen: Deviation) -> bool:
    """Return True if an uncleared QK_t explains the rows with NaN or infinity.

    The mistake: scores are added to the previous head's exp() values in QK_t, and exp() of the sums overflows.
    """
    q, k = (seen.inputs[name].astype(np.float64).reshape(-1, *seen.inputs[name].shape[2:]) for name in "QK")
    heads = slice(0, min(_REPLAYED_HEADS, len(q)))
    if len(q) < 2 or k.shape[1] ** 2 > _REPLAYED_SCORES:
        return False
    left, overflows = 0.0, []
    for scores in q[heads] @ k[heads].mT:
        left = np.exp(np.minimum(scores + left, 700.0))
        overflows.append((left > np.finfo(np.float32).max).any(1))
        left = np.where(left > np.finfo(np.float32).max, 700.0, left)
    predicted = np.stack(overflows)
    finite = np.isfinite(seen.actual).all(3).reshape(len(q), -1)[heads]
    wrong = seen.wrong.any(3).reshape(len(q), -1)[heads]
    return bool(predicted.any() and not wrong[0].any() and (finite != predicted).mean() > 0.97)


def _largest_score(inputs: Inputs) -> float:
    q, k = inputs["Q"], inputs["K"]
    step = max(1, (1 << 20) // k.shape[2])
    return max(
        float(abs(q[b, h, i : i + step] @ k[b, h].T).max())
        for b in range(q.shape[0])
        for h in range(q.shape[1])
        for i in range(0, q.shape[2], step)
    )


def _norms(rows: Array) -> Array:
    return np.sqrt(np.einsum("...k,...k->...", rows, rows))


def _weighted(q: Array, k: Array, values: Array) -> Array:
    """Return softmax(Q K^T) times `values`, float64 (B, H, R, D).

    Shapes: q (B, H, R, d), k (B, H, N, d), values (B, H, N, D). Large calls use several threads: NumPy releases
    Python's lock while it computes.
    """
    b, h, rows, d = q.shape
    keys, width = values.shape[2:]
    q, k_transposed = q.reshape(b * h, rows, d), k.reshape(b * h, keys, d).mT
    values = values.reshape(b * h, keys, width)
    out = np.empty((b * h, rows, width))
    chunks = iter(_chunks(b * h, rows, keys))

    def work() -> None:
        # Inputs may hold any numbers. Infinity and NaN are visible in the output, so NumPy need not warn of them.
        with np.errstate(all="ignore"):
            for heads, some in chunks:
                scores = q[heads, some] @ k_transposed[heads]
                scores -= scores.max(2, keepdims=True)
                np.exp(scores, out=scores)
                np.matmul(scores, values[heads], out=out[heads, some])
                out[heads, some] /= scores.sum(2, keepdims=True)

    threads = _threads() if b * h * rows * keys >= _SHARED_SCORES else 1
    if threads == 1:
        work()
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(work) for _ in range(threads)]:
                done.result()
    return out.reshape(b, h, rows, width)


def _chunks(heads: int, rows: int, keys: int) -> list[tuple[slice, slice]]:
    """Split the work into ranges of heads and rows with about `_CHUNK_SCORES` scores each, but at least one row."""
    some_heads = max(1, _CHUNK_SCORES // max(1, rows * keys))
    some_rows = max(1, _CHUNK_SCORES // max(1, keys))
    return [
        (slice(g, g + some_heads), slice(i, i + some_rows))
        for g in range(0, heads, some_heads)
        for i in range(0, rows, some_rows)
    ]


def _threads() -> int:
    """Return OMP_NUM_THREADS if it is set, else the number of usable cores; at most _MOST_THREADS.

    The grading of a class sets OMP_NUM_THREADS to each worker's share of the cores.
    """
    setting = os.environ.get("OMP_NUM_THREADS", "")
    cores = int(setting) if setting.isdecimal() else len(machine.usable_cpus()) or os.cpu_count() or 1
    return max(1, min(cores, _MOST_THREADS))


class Read4D(Oracle):
    """Oracle of fourDimRead. Expects the element of `tensor` at each row of `index`: float64 (M,), without error."""

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        flat = inputs["tensor"].reshape(-1).astype(np.float64)
        return Expected(flat[flat_offsets(inputs["index"], shape)], 0.0)

    def diagnose(
        self, inputs: Inputs, shape: Shape, expected: Expected, actual: Array, comparison: Comparison
    ) -> Diagnosis:
        actual, wrong = (t.reshape(expected.value.shape) for t in (actual, comparison.wrong))
        return diagnose_read(inputs, shape, expected.value, actual.astype(np.float64), wrong)


class Write4D(Oracle):
    """Oracle of fourDimWrite. Expects `tensor` with values[m] stored at index[m] for each m. No error is allowed.

    All other elements must keep their value. So a write to a wrong or additional place is found.
    """

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        after = inputs["tensor"].reshape(-1).astype(np.float64)
        after[flat_offsets(inputs["index"], shape)] = inputs["values"]
        return Expected(after.reshape(inputs["tensor"].shape), 0.0)

    def diagnose(
        self, inputs: Inputs, shape: Shape, expected: Expected, actual: Array, comparison: Comparison
    ) -> Diagnosis:
        actual, wrong = (t.reshape(expected.value.shape) for t in (actual, comparison.wrong))
        return diagnose_write(inputs, shape, expected.value, actual.astype(np.float64), wrong)


ORACLES: dict[str, Oracle] = {"attention": Attention(), "read4d": Read4D(), "write4d": Write4D()}
