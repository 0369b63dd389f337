"""Expected outputs of this lab in float64, each with its tolerance: the error that a right kernel may have.

Three kinds of rounding are allowed:

- `u` = 2^-p, the roundoff of the case's type (p = 24, 11, 8). Every result is rounded to this type once. The weights
  that enter a second product (P, dS) may also be rounded to it, because the tensor cores take only operands of this
  type.
- TF32: the tensor cores cut operands of float32 to 10 bits after the binary point. This is the default of tl.dot, and
  it is allowed. The relative error of an operand is then at most 2^-10. An operand that fits into 10 bits has no error.
  The cases with logits of about 10,000 have only such operands, so their scores must be right for float32, too.
- `e` = 2^-24: all sums are kept in float32. The error of a sum of n products may be (2 sqrt(n) + 32) e times the sum of
  their absolute values. (See Higham, Accuracy and Stability of Numerical Algorithms, section 4.2: n e at worst, sqrt(n)
  e usually.) The constant 32 is for tensor cores, whose adders cut bits and do not round. The relative error of exp()
  of a score s may be 4 e (|s| + |m| + 4): s and its row's maximum m are scaled by log2(e), rounded, and subtracted.

The code propagates these errors to first order, with absolute values. An error in a score is a relative error of its
weight. Errors of weights give the errors of O, L, dQ, dK and dV. All terms are worst cases, except the square roots.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from grader.core.arrays import Array, np
from grader.core.draws import Draws
from grader.explain import relations as simple
from grader.explain.comparison import Expected
from grader.explain.deviation import Axis, Deviation
from grader.explain.oracle import Inputs, Oracle, Shape
from grader.explain.suspect import Suspect, matching_suspects

from . import arithmetic
from .suspects import backward, elements, forward
from .suspects.scene import Heads

_MASKS = r"line:\b(?:tl|torch)\.where\s*\(|\bmasked_fill\w*\s*\("
_LOADS, _STORES = r"line:\btl\.load\s*\(", r"line:\btl\.(?:store|atomic_\w+)\s*\("
_EXPONENTIALS = r"line:\bexp2?\s*\("
_LOGARITHMS = r"line:\blog2?\s*\("
_ROW_SUMS = r"line:\b(?:tl\.|torch\.)?sum\s*\("
_MAXIMA = r"line:\b(?:maximum|a?max)\s*\("
_PRODUCTS = r"line:\b(?:tl\.dot|matmul|bmm|einsum)\s*\(|\w\s@\s\w"
_LOOPS = r"line:^\s*(?:for|while)\b"
_DIVISIONS = r"line:[\w\])]\s*/(?!/)"
_SCALES = r"line:\bscale\b\s*=(?!=)|\bsqrt\s*\(|\*\*\s*-?\s*0?\.5"
#: Finds sums of products: x = x + a @ b, x += tl.dot(a, b), tl.dot(a, b, acc).
_RUNNING = (
    r"line:\b(\w+)\s*=\s*\1\b.*(?:\bdot\s*\(|\w\s@\s\w)|\+=.*(?:\bdot\s*\(|\w\s@\s\w)|\bdot\s*\([^=]*\bacc"
)
_TRANSPOSED = r"line:\btl\.trans\s*\(|\.T\b|\.transpose\s*\(|\.permute\s*\("
_CASTS = r"line:\.(?:to|half|bfloat16)\s*\("
_OFFSETS = r"line:\bprogram_id\s*\("
_COMPARED = r"line:\]\s*[<>]=?\s*\w"
_MASK = (_COMPARED, _MASKS, r"line:\b(?:causal|CAUSAL|is_causal|IS_CAUSAL)\b")
_SCORE_GRADIENT = r"line:\bd_?[sS]\s*=(?!=)"

CLUES: Mapping[str, tuple[str, ...]] = {
    code: clues
    for codes, clues in (
        ("mask_missing mask_reversed mask_strict mask_from_end mask_as_zero mask_after_exp mask_late", _MASK),
        ("mask_by_tiles mask_always diagonal_dropped", (*_MASK, _LOOPS)),
        ("tail_unmasked", (_MASKS, _LOADS)),
        ("no_rescale", (_RUNNING, _ROW_SUMS, _EXPONENTIALS)),
        ("maximum_start maximum_alone no_maximum", (_MAXIMA, _EXPONENTIALS)),
        ("sum_alone sum_of_last_block sum_without_maximum", (_LOGARITHMS, _ROW_SUMS)),
        ("sum_without_logarithm sum_base", (_LOGARITHMS, _STORES)),
        ("wrong_base base_mixed weights_not_normalised log_softmax", (_EXPONENTIALS,)),
        (
            "scale_missing scale_wrong score_scale_missing unscaled dv_scaled",
            (_SCALES, _SCORE_GRADIENT, _PRODUCTS),
        ),
        ("not_normalised divided_twice divided_by_keys divided_by_largest", (_DIVISIONS, _STORES)),
        ("dropped_block first_block_only last_block_only block_alone", (_LOOPS, _RUNNING, _ROW_SUMS)),
        ("pointers_not_moved", (_LOOPS, _LOADS)),
        ("operand_exchanged", (_PRODUCTS, _LOADS)),
        ("weights_missing delta_wrong delta_missing delta_outside", (_SCORE_GRADIENT, r"line:\b[Dd]elta\b")),
        ("not_transposed transposed_operand", (_TRANSPOSED, _PRODUCTS)),
        ("operand_not_contiguous neighbours_row first_head heads", (_OFFSETS, _LOADS)),
        ("outputs_exchanged not_written partly_not_written moved", (_STORES,)),
        ("precision low_precision half_accumulator", (_CASTS, _PRODUCTS)),
        ("wrong_axis", (_ROW_SUMS, _MAXIMA)),
        ("wrong_values", (_PRODUCTS, _COMPARED)),
    )
    for code in codes.split()
}


E = 2.0**-24
TF32 = 2.0**-10
"""Largest relative error of an operand that is cut to TF32."""
FLUSHED = {24: 1e-36, 11: 2.0**-25, 8: 1e-36}
"""Largest error of a tiny result that is rounded to 0, by precision. For float16, half of its smallest positive number.
The smallest numbers of float32 and bfloat16 are so small that this error does not matter."""
COLUMNS_LOOKED_AT = 64
"""Number of columns that are checked in sampled rows of a product. Only these columns of b are needed in float64."""
HEADS_LOOKED_AT = 4
"""Limit on the heads from which rows of a large output are checked."""
MOST_SCORES = 1 << 28
"""Limit on the scores of all checked heads: one head of N = M = 16,384, which takes some seconds in float64."""


def unit(shape: Shape) -> float:
    """Return the roundoff of the case's type: half a unit in the last place of 1."""
    return float(2.0 ** -shape.get("precision", 24))


def flushed(shape: Shape) -> float:
    return FLUSHED[shape.get("precision", 24)]


def weights_unit(shape: Shape) -> float:
    """Return the relative error of weights that are rounded to become an operand of a second product."""
    return TF32 if shape.get("precision", 24) == 24 else unit(shape)


def cut(t: Array) -> Array:
    """Return the largest error of each number if tensor cores cut it to TF32; 0 for numbers that fit into TF32."""
    kept = (np.ascontiguousarray(t, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(kept == t, 0.0, abs(t.astype(np.float64)) * TF32)


def summed(terms: int) -> float:
    """Return the allowed error of a float32 sum, relative to the sum of its terms' absolute values."""
    return (2 * terms**0.5 + 32) * E


# ---- functions of single elements or rows


class OnGpu(Oracle):
    """Base class of this lab's oracles, with the advice that they share."""

    clues = CLUES
    unsteady_advice = (
        "Do programs of a kernel write to the same element, or add to it without an atomic operation? Is memory read "
        "before it is written (torch.empty holds any values), or does a global variable keep a value?"
    )
    keeping = "memory of torch.empty is read or added to before it is set, or a global variable keeps a value"


class Rows(OnGpu):
    """Oracle of a function from x to y, which have the same shape. `dims` names its two sizes."""

    dims = ("R", "C")
    axes = (Axis("row", "rows", "i", "R"), Axis("column", "columns", "j", "C"))
    output = "y"

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        return self.of(inputs["x"].astype(np.float64), shape)

    def sample(self, inputs: Inputs, shape: Shape, draws: Draws, rows: int) -> tuple[Array, Expected]:
        chosen = draws.permutation(shape[self.dims[0]], rows)
        return chosen, self.of(inputs["x"][chosen].astype(np.float64), shape)

    @abstractmethod
    def of(self, x: Array, shape: Shape) -> Expected:
        """Return the expected output for these rows of x, float64."""

    def bytes(self, shape: Shape) -> int:
        """Return the number of bytes to move: x is read once, and y is written once."""
        size = 4 if shape.get("precision", 24) == 24 else 2
        return 2 * size * self.numbers(shape)

    def numbers(self, shape: Shape) -> int:
        return shape[self.dims[0]] * shape[self.dims[1]]


class Gelu(Rows):
    mistakes = tuple(elements.GELU)
    relations = (simple.not_written, simple.partly_not_written, simple.moved)
    weak_relations = (simple.transposed, simple.constant_factor, simple.imprecise)

    def of(self, x: Array, shape: Shape) -> Expected:
        y = arithmetic.gelu(x)
        # A kernel may multiply x by (1 + tanh(u)) / 2. If u is far below 0, this factor is about 0, but its absolute
        # error is about E.
        return Expected(y, flushed(shape) + 1.01 * unit(shape) * abs(y) + 16 * E * abs(x))

    def flops(self, shape: Shape) -> int:
        """Return the number of operations of a polynomial of third degree, an exponential and a quotient."""
        return 8 * self.numbers(shape)


class Softmax(Rows):
    mistakes = tuple(elements.SOFTMAX)
    relations = (simple.not_written, simple.partly_not_written, simple.transposed, simple.moved)
    weak_relations = (simple.row_factors, simple.imprecise)

    def of(self, x: Array, shape: Shape) -> Expected:
        y = arithmetic.softmax(x)
        depth = np.minimum(x.max(1, keepdims=True) - x, 110.0)
        size = abs(np.where(np.isfinite(x), x, 0.0)).max(1, keepdims=True)
        steps = 64 + 8 * x.shape[1] ** 0.5 + 4 * depth + 4 * size
        return Expected(y, flushed(shape) + y * (1.01 * unit(shape) + E * steps))

    def flops(self, shape: Shape) -> int:
        return 3 * self.numbers(shape)

    def not_finite(self, seen: Deviation, amount: str) -> tuple[str, str]:
        return "not_finite", (
            f"NaN or infinity in {amount}. Does exp() overflow (above 88.7) because the row's maximum is not "
            "subtracted? Or is -inf subtracted from -inf, in a block that is all masked or beyond the row's end?"
        )


class SoftmaxLong(Softmax):
    dims = ("lines", "width")
    axes = (Axis("row", "rows", "i", "lines"), Axis("column", "columns", "j", "width"))


# ---- a product


class Matmul(OnGpu):
    axes = (Axis("row", "rows", "i", "rows"), Axis("column", "columns", "j", "columns"))
    output = "c"
    mistakes = tuple(elements.MISTAKES)
    relations = (simple.not_written, simple.partly_not_written, simple.transposed, simple.moved)
    weak_relations = (simple.constant_factor, elements.half_accumulator, simple.imprecise)

    def expected(self, inputs: Inputs, shape: Shape) -> Expected:
        return self.of(inputs["a"], inputs["b"], shape)

    def sample(self, inputs: Inputs, shape: Shape, draws: Draws, rows: int) -> tuple[Array, Expected]:
        chosen = draws.permutation(shape["rows"], rows)
        columns = draws.permutation(shape["columns"], COLUMNS_LOOKED_AT)
        found = self.of(inputs["a"][chosen], inputs["b"][:, columns], shape)
        return (chosen[:, None], columns[None, :]), found

    def of(self, a: Array, b: Array, shape: Shape) -> Expected:
        left, right = a.astype(np.float64), b.astype(np.float64)
        value = left @ right
        tolerance = summed(a.shape[1]) * (abs(left) @ abs(right))
        if shape.get("precision", 24) == 24:
            tolerance += cut(a) @ abs(right) + abs(left) @ cut(b)
        return Expected(value, flushed(shape) + 1.01 * unit(shape) * abs(value) + tolerance)

    def flops(self, shape: Shape) -> int:
        return 2 * shape["rows"] * shape["inner"] * shape["columns"]

    def bytes(self, shape: Shape) -> int:
        size = 4 if shape.get("precision", 24) == 24 else 2
        m, k, n = shape["rows"], shape["inner"], shape["columns"]
        return size * (m * k + k * n + m * n)


# ---- attention


@dataclass(frozen=True)
class Propagated:
    """Scores, weights and their largest errors, for some rows and keys of some heads. Shapes: q (B, n, d), k and v
    (B, m, d). `rows` (n) and `keys` (m) are their indices in the whole tensors."""

    q: Array
    k: Array
    v: Array
    rows: Array
    keys: Array
    shape: Shape

    @classmethod
    def of(cls, inputs: Inputs, shape: Shape, heads: Array, rows: Array, keys: Array) -> Propagated:
        """Return a Propagated for these rows and keys of these heads. `inputs` has all rows, keys and heads."""
        q, k, v = inputs["q"][heads][:, rows], inputs["k"][heads][:, keys], inputs["v"][heads][:, keys]
        return cls(q, k, v, rows, keys, shape)

    @cached_property
    def scores(self) -> Array:
        scores = arithmetic.scores(self.q, self.k)
        return arithmetic.masked(scores, self.rows, self.keys, causal=bool(self.shape["causal"]))

    @cached_property
    def largest(self) -> Array:
        """Return the largest finite |score| of each row, (B, n, 1)."""
        return abs(np.where(np.isfinite(self.scores), self.scores, 0.0)).max(2, keepdims=True)

    @cached_property
    def weight_error(self) -> Array:
        """The largest allowed relative error of each weight, (B, n, m)."""
        d = self.q.shape[2]
        q, k = abs(self.q.astype(np.float64)), abs(self.k.astype(np.float64))
        # The inputs `heads_large` and `heads_below` are small multiples of 1/4: sums of their products are exact.
        exact = all(np.array_equal(t * 4, np.round(t * 4)) for t in (self.q, self.k))
        found = np.zeros(self.scores.shape) if exact else summed(d) * d**-0.5 * (q @ k.swapaxes(1, 2))
        if self.shape.get("precision", 24) == 24 and not exact:
            found += d**-0.5 * (cut(self.q) @ k.swapaxes(1, 2) + q @ cut(self.k).swapaxes(1, 2))
        finite = np.where(np.isfinite(self.scores), abs(self.scores), 0.0)
        found += 4 * E * (finite + self.largest + 4)
        return np.asarray(np.expm1(np.minimum(found, 50.0)))


def forward_of(p: Propagated) -> dict[str, Expected]:
    """Return the expected O (B, n, d) and L (B, n)."""
    lse = arithmetic.log_sum_exp(p.scores)
    weights = np.exp(p.scores - lse[..., None])
    v = p.v.astype(np.float64)
    value, keys = weights @ v, p.v.shape[1]
    off = weights * p.weight_error
    tolerance = (off + (weights_unit(p.shape) + summed(keys)) * weights) @ abs(v)
    tolerance += abs(value) * (off.sum(2, keepdims=True) + summed(keys) + 1.01 * unit(p.shape))
    if p.shape.get("precision", 24) == 24:
        tolerance += weights @ cut(p.v)
    tolerance += flushed(p.shape) * (1 + abs(v).sum(1, keepdims=True))
    lse_tolerance = off.sum(2) + summed(keys) + 4 * E * (abs(lse) + p.largest[..., 0])
    return {"O": Expected(value, tolerance), "L": Expected(lse, lse_tolerance)}


def gradients_of(
    p: Propagated, o: Array, lse: Array, upstream: Array, *, own: bool, wanted: Sequence[str]
) -> dict[str, Expected]:
    """Return the `wanted` outputs: dQ (B, n, d) of the rows of `p`, and the rows' contribution to dK and dV (B, m, d).

    `own`: True if the submission's own forward pass computed O and L. Then the errors of that pass count,
    too: in L, and in D, the sum of dO * O over d. `upstream` is dO.
    """
    u, w, scale = unit(p.shape), weights_unit(p.shape), p.q.shape[2] ** -0.5
    is_single = p.shape.get("precision", 24) == 24
    d, rows, keys = p.q.shape[2], p.q.shape[1], p.k.shape[1]
    v, out, do = (t.astype(np.float64) for t in (p.v, o, upstream))
    weights = np.exp(p.scores - lse.astype(np.float64)[..., None])

    def mean(t: Array) -> Array:
        """Return each row's mean of `t` over the keys, weighted by `weights`."""
        return np.asarray((weights * t).sum(2, keepdims=True) / (weights.sum(2, keepdims=True) + 1e-300))

    lse_off = 4 * E * abs(lse.astype(np.float64))[..., None]
    if own:
        lse_off += mean(p.weight_error) + summed(p.shape["M"]) + 4 * E * p.largest
    off = np.expm1(np.log1p(p.weight_error) + lse_off)
    v_t, do_size = v.swapaxes(1, 2), abs(do)
    dp = do @ v_t
    dp_off = summed(d) * (do_size @ abs(v_t))
    if is_single:
        dp_off += cut(upstream) @ abs(v_t) + do_size @ cut(p.v).swapaxes(1, 2)
    delta = (do * out).sum(2, keepdims=True)
    # A kernel may compute D from O before or after rounding, so one roundoff u is allowed.
    delta_off = (summed(d) + u) * (do_size * abs(out)).sum(2, keepdims=True)
    if own:
        rounding = w + 2 * summed(p.shape["M"])
        delta_off += mean((p.weight_error + lse_off) * abs(dp - delta) + rounding * abs(dp) + dp_off)
        # A kernel may also compute D as the row's sum of P dP. Then an error of L changes D as well.
        delta_off = np.maximum(delta_off, mean((off + rounding) * abs(dp) + (1 + off) * dp_off))
    ds = weights * (dp - delta)
    ds_off = (
        weights * (off * abs(dp - delta) + (1 + off) * (dp_off + delta_off)) + w * abs(ds) + flushed(p.shape)
    )
    weights_off = weights * (off + w) + flushed(p.shape)

    def product(left: Array, left_off: Array, right: Array, terms: int, factor: float) -> Expected:
        size = abs(right.astype(np.float64))
        value = factor * (left @ right.astype(np.float64))
        tolerance = (left_off + summed(terms) * abs(left)) @ size
        if is_single:
            tolerance += abs(left) @ cut(right)
        return Expected(value, factor * tolerance + 1.01 * u * abs(value) + flushed(p.shape))

    turned = [t.swapaxes(1, 2) for t in (ds, ds_off, weights, weights_off)]
    factors = {
        "dQ": (ds, ds_off, p.k, keys, scale),
        "dK": (turned[0], turned[1], p.q, rows, scale),
        "dV": (turned[2], turned[3], upstream, rows, 1.0),
    }
    return {name: product(*factors[name]) for name in wanted}


class Flash(OnGpu):
    """Base of the oracles of attention's two passes. The predictions of its `mistakes` take a `Heads`."""

    output = "O"
    explains_not_finite = True
    relations = (simple.partly_not_written,)
    weak_relations = (elements.half_accumulator, simple.imprecise)

    def suspects(self, seen: Deviation, likely: frozenset[str]) -> list[Suspect]:
        """Return the suspects that explain the output. Elements with NaN or infinity are not compared."""
        if not seen.finite():
            lost = seen.wrong & ~np.isfinite(seen.actual)
            seen = replace(
                seen,
                actual=np.where(lost, seen.expected, seen.actual),
                wrong=np.logical_and(seen.wrong, ~lost),
            )
            if not seen.wrong.any():
                return []
        scene = Heads.of(seen.inputs, seen.sizes)
        at_hand = [replace(one, predict=_reading(one, scene, seen.output)) for one in self.mistakes]
        with np.errstate(all="ignore"):
            return matching_suspects(at_hand, seen, likely)

    def not_finite(self, seen: Deviation, amount: str) -> tuple[str, str]:
        return "not_finite", (
            f"NaN or infinity in {amount}. Is -inf subtracted from -inf (a row that has not seen a key yet has the "
            "maximum -inf), does exp() overflow because a maximum, or L, is not subtracted, or is a row divided by a "
            "sum of 0?"
        )

    def flops(self, shape: Shape) -> int:
        """Return the number of operations in two products of N x M x d multiply-adds for each head, each of them two
        operations. With a causal mask, only visible keys count."""
        seen = shape["N"] * shape["M"]
        if shape["causal"]:
            n, m = shape["N"], shape["M"]
            seen = min(n, m) * (min(n, m) + 1) // 2 + max(0, n - m) * m
        return 4 * shape["B"] * seen * shape["d"]

    def bytes(self, shape: Shape) -> int:
        size = 4 if shape.get("precision", 24) == 24 else 2
        numbers = 2 * shape["N"] + 2 * shape["M"]
        return shape["B"] * (size * numbers * shape["d"] + 4 * shape["N"])


def _reading(suspect: Suspect, scene: Heads, output: str):  # type: ignore[no-untyped-def]
    """Return a function that returns the suspect's prediction of the output called `output`, or None without one."""

    def predict(_: object) -> Array | None:
        found = suspect.predicted(scene)
        return None if found is None else found.get(output)

    return predict


class FlashForward(Flash):
    axes = (
        Axis("head", "heads", "b", "B", listed=True),
        Axis("row", "rows", "i", "N"),
        Axis("column", "columns", "c", "d"),
    )
    mistakes = tuple(forward.MISTAKES)

    def expected(self, inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
        everything = (np.arange(shape[size]) for size in ("B", "N", "M"))
        return forward_of(Propagated.of(inputs, shape, *everything))

    def sample(
        self, inputs: Inputs, shape: Shape, draws: Draws, rows: int
    ) -> tuple[tuple[Array, Array], Mapping[str, Expected]]:
        heads, chosen = _chosen(shape, draws, rows)
        found = forward_of(Propagated.of(inputs, shape, heads, chosen, np.arange(shape["M"])))
        return (heads[:, None], chosen[None, :]), found


class FlashBackward(Flash):
    axes = (
        Axis("head", "heads", "b", "B", listed=True),
        Axis("row", "rows", "i", ""),
        Axis("column", "columns", "c", "d"),
    )
    output = "dQ, dK and dV"
    mistakes = tuple(backward.MISTAKES)

    def expected(self, inputs: Inputs, shape: Shape) -> Mapping[str, Expected]:
        every = [np.arange(shape[size]) for size in ("B", "N", "M")]
        return self._gradients(inputs, shape, *every, ("dQ", "dK", "dV"))

    def sample(
        self, inputs: Inputs, shape: Shape, draws: Draws, rows: int
    ) -> tuple[tuple[Array, Array], Mapping[str, Expected]]:
        heads, chosen = _chosen(shape, draws, rows)
        chosen = chosen[chosen < shape["M"]]
        queries = self._gradients(inputs, shape, heads, chosen, np.arange(shape["M"]), ("dQ",))
        keys = self._gradients(inputs, shape, heads, np.arange(shape["N"]), chosen, ("dK", "dV"))
        return (heads[:, None], chosen[None, :]), {**queries, **keys}

    def flops(self, shape: Shape) -> int:
        """Return the number of operations in the backward pass's five products; the forward pass has two."""
        return super().flops(shape) * 5 // 2

    def bytes(self, shape: Shape) -> int:
        """Return the number of bytes to move: q, k, v, O, dO and L are read once, dQ, dK and dV are written once."""
        size = 4 if shape.get("precision", 24) == 24 else 2
        numbers = 4 * shape["N"] + 4 * shape["M"]
        return shape["B"] * (size * numbers * shape["d"] + 4 * shape["N"])

    @staticmethod
    def _gradients(
        inputs: Inputs, shape: Shape, heads: Array, rows: Array, keys: Array, wanted: Sequence[str]
    ) -> Mapping[str, Expected]:
        """Return the `wanted` gradients, summed over these rows and keys only.

        So dQ is complete if `keys` are all keys, and dK and dV if `rows` are all rows.
        """
        own = "L" not in inputs
        if not own:
            o, lse = inputs["O"][heads][:, rows], inputs["L"][heads][:, rows]
        else:
            q, k, v = (inputs[name][heads] for name in "qkv")
            o, lse = arithmetic.attention(q, k, v, causal=bool(shape["causal"]), rows=rows)
        seen, upstream = Propagated.of(inputs, shape, heads, rows, keys), inputs["dO"][heads][:, rows]
        return gradients_of(seen, o, lse, upstream, own=own, wanted=wanted)


def _chosen(shape: Shape, draws: Draws, rows: int) -> tuple[Array, Array]:
    few = min(HEADS_LOOKED_AT, max(1, MOST_SCORES // (shape["N"] * shape["M"])))
    heads = draws.permutation(shape["B"], few)
    return heads, draws.permutation(shape["N"], max(1, rows // len(heads)))


ORACLES: dict[str, Oracle] = {
    "gelu": Gelu(),
    "softmax": Softmax(),
    "softmax_long": SoftmaxLong(),
    "matmul": Matmul(),
    "flash_forward": FlashForward(),
    "flash_backward": FlashBackward(),
}
