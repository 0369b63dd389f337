"""Suspects of GELU, of the softmax of rows and of a tiled product: mistakes, and the outputs that they would give."""

from __future__ import annotations

from functools import partial
from math import erf

from grader.core.arrays import Array, np
from grader.explain.deviation import Deviation
from grader.explain.relations import Found
from grader.explain.suspect import Situation, Suspect, row

from ..arithmetic import CUBIC, ROOT, softmax
from .scene import in_blocks

BLOCKS = tuple(1 << k for k in range(4, 14))
"""Usual lengths of blocks of a row, which the suspects try."""


def _sigmoid(u: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-u)))


def _inner(x: Array) -> Array:
    return np.asarray(ROOT * (x + CUBIC * x**3))


def by_columns(t: Array) -> Array:
    """Return the matrix that a kernel sees if it reads `t` row by row, although `t` is stored column by column."""
    return t.ravel(order="F").reshape(t.shape)


GELU: list[Suspect] = [
    row("half_missing", "gelu_half_missing", "Each value is twice what it should be: the factor 1/2 is missing.",
        lambda s: s.expected * 2),
    row("factor_missing", "gelu_factor_x_missing", "This is (1 + tanh(...)) / 2 alone: it is not multiplied by x.",
        lambda s: _sigmoid(2 * _inner(s.inputs["x"]))),
    row("one_missing", "gelu_one_missing", "This is x tanh(...) / 2: the 1 in (1 + tanh(...)) is missing.",
        lambda s: s.inputs["x"] * np.tanh(_inner(s.inputs["x"])) / 2),
    row("cubic_missing", "gelu_cubic_missing", "The cubic term 0.044715 x^3 is missing.",
        lambda s: s.inputs["x"] * _sigmoid(2 * ROOT * s.inputs["x"])),
    row("square", "gelu_square", "The term is 0.044715 x^2: it has to be x^3.",
        lambda s: s.inputs["x"] * _sigmoid(2 * ROOT * (s.inputs["x"] + CUBIC * s.inputs["x"] * s.inputs["x"]))),
    row("root_missing", "gelu_root_missing", "The factor sqrt(2/pi) is missing in the argument of tanh.",
        lambda s: s.inputs["x"] * _sigmoid(2 * (s.inputs["x"] + CUBIC * s.inputs["x"]**3))),
    row("root_of_x_alone", "gelu_root_outside", "sqrt(2/pi) multiplies x alone: it has to multiply x + 0.044715 x^3.",
        lambda s: s.inputs["x"] * _sigmoid(2 * (ROOT * s.inputs["x"] + CUBIC * s.inputs["x"]**3))),
    row("two_missing", "gelu_two_missing",
        "tanh(u) is computed as 2 sigmoid(u) - 1, but it equals 2 sigmoid(2 u) - 1. A factor 2 is missing.",
        lambda s: s.inputs["x"] * _sigmoid(_inner(s.inputs["x"]))),
    row("sigmoid_form", "gelu_sigmoid",
        "This is x sigmoid(1.702 x), another approximation: this assignment uses the tanh form.",
        lambda s: s.inputs["x"] * _sigmoid(1.702 * s.inputs["x"])),
    row("exact_form", "gelu_erf",
        "This is the exact form, with erf: this assignment uses the tanh form, which differs by up to 5e-4.",
        lambda s: s.inputs["x"] * (1 + np.vectorize(erf)(s.inputs["x"] / 2**0.5)) / 2),
    row("base_two", "gelu_base", "exp2() is used in place of exp(): 2^x = exp(x log(2)).",
        lambda s: s.inputs["x"] / (1 + np.exp2(-2 * _inner(s.inputs["x"])))),
    row("wrong_sign", "gelu_sign", "The sign of the exponent is wrong: this is x sigmoid(-2 u).",
        lambda s: s.inputs["x"] * _sigmoid(-2 * _inner(s.inputs["x"]))),
    row("relu", "gelu_relu", "This is ReLU: max(x, 0).", lambda s: np.maximum(s.inputs["x"], 0)),
    row("gelu_by_columns", "operand_not_contiguous",
        "x is read as if its rows were contiguous in memory: use its strides.",
        lambda s: by_columns(s.expected)),
]  # fmt: skip


# ---- softmax


def _without_maximum(s: Situation) -> Array:
    weights = np.exp(s.inputs["x"].astype(np.float32))
    return np.asarray(weights / weights.sum(1, keepdims=True))


SOFTMAX: list[Suspect] = [
    row("softmax_by_columns", "operand_not_contiguous",
        "x is read as if its rows were contiguous in memory: use its strides.",
        lambda s: softmax(by_columns(s.inputs["x"]))),
    row("no_maximum", "no_maximum",
        "The row's maximum is not subtracted: exp(x) is infinite above 88.7, and 0 below -104.", _without_maximum),
    row("not_divided", "not_normalised", "The rows are not divided by their sums: this is exp(x - maximum).",
        lambda s: np.exp(s.inputs["x"] - s.inputs["x"].max(1, keepdims=True))),
    row("over_rows", "wrong_axis", "Each column sums to 1, not each row: the sum has the wrong axis.",
        lambda s: softmax(s.inputs["x"], 0)),
    row("base_two", "wrong_base", "These are powers of 2: exp(x) is exp2(x * log2(e)).",
        lambda s: softmax(s.inputs["x"] * np.log(2))),
    row("scaled_and_exp", "wrong_base", "x is multiplied by log2(e), but then exp() is used in place of exp2().",
        lambda s: softmax(s.inputs["x"] / np.log(2))),
    row("log_of_it", "log_softmax", "This is the logarithm of the softmax.",
        lambda s: np.asarray(np.log(s.expected))),
    row("negative", "wrong_sign", "The signs are wrong: this is the softmax of -x.",
        lambda s: softmax(-s.inputs["x"])),
    row("by_largest", "divided_by_largest", "The rows are divided by their largest weight, not by their sum.",
        lambda s: s.expected / s.expected.max(1, keepdims=True)),
    row("row_of_another", "neighbours_row",
        "Each row has the softmax of another row: look at the program's number (program_id) and the strides.",
        lambda s: np.roll(s.expected, 1, 0) if len(s.expected) > 2 else None),
]  # fmt: skip


def _online(s: Situation, block: int, say: str) -> Array | None:
    """Return the online softmax with the mistake called `say`; None if the sizes rule it out."""
    x = s.inputs["x"]
    columns = x.shape[1]
    most = x.max(1, keepdims=True)
    if say == "padded":
        pad, shift = -columns % block, np.maximum(most, 0.0)
        weights = np.exp(x - shift)
        return weights / (weights.sum(1, keepdims=True) + pad * np.exp(-shift)) if pad else None
    if columns <= block:
        return None
    blocks = [x[:, start : start + block] for start in range(0, columns, block)]
    each = [b.max(1, keepdims=True) for b in blocks]
    sums = [np.exp(b - m).sum(1, keepdims=True) for b, m in zip(blocks, each, strict=True)]
    whole = [t * np.exp(m - most) for t, m in zip(sums, each, strict=True)]
    if say == "no_rescale":
        running = list(np.maximum.accumulate(np.array(each), 0))
        taken = [np.exp(b - m).sum(1, keepdims=True) for b, m in zip(blocks, running, strict=True)]
        return np.exp(x - most) / sum(taken)
    if say == "no_rescale_of_block":
        return np.exp(x - most) / sum(sums)
    if say == "last_block":
        return np.exp(x - most) / whole[-1]
    if say == "block_alone":
        return np.concatenate([np.exp(b - m) / t for b, m, t in zip(blocks, each, sums, strict=True)], 1)
    return np.exp(x - most) / sum(whole[:-1]) if columns % block else None


for say, code, words in (
    (
        "no_rescale",
        "no_rescale",
        "The sum is not rescaled when the maximum grows: multiply it by exp(old maximum - new maximum) before the next "
        "block is added.",
    ),
    (
        "no_rescale_of_block",
        "no_rescale",
        "The sums of the blocks are added, but each is relative to its block's maximum: multiply each by exp(the "
        "block's maximum - the row's maximum).",
    ),
    (
        "last_block",
        "sum_of_last_block",
        "Each row is divided by the sum of its last block alone: the sum is set to zero again in each block.",
    ),
    ("block_alone", "block_alone", "Each block sums to 1: maximum and sum have to go over the whole row."),
    ("dropped", "dropped_block", "The sum leaves out the columns beyond the last full block."),
    (
        "padded",
        "tail_unmasked",
        "The sum counts places beyond the row's end: they are loaded as 0, so each adds exp(0 - maximum). Load them as "
        "-inf.",
    ),
):
    SOFTMAX += in_blocks(f"{say} {{}}", code, words, partial(_online, say=say), BLOCKS)


# ---- suspects of a tiled product, and errors of sums in 16 bits

MISTAKES: list[Suspect] = []

INNER = (16, 32, 64, 128)
"""Usual lengths of tiles along the inner dimension, over which a product sums."""
LOST = 16
"""Largest error that sums in 16 bits explain, in roundoffs of the largest expected number."""


def _of_tiles(s: Situation, block: int, say: str) -> Array | None:
    """Return the product if the loop over tiles has the mistake called `say`; None if the sizes rule it out."""
    a, b = s.inputs["a"], s.inputs["b"]
    inner = a.shape[1]
    last = (inner - 1) // block * block
    if say == "dropped":
        return a[:, :last] @ b[:last] if inner % block and last else None
    if last == 0:
        return None
    if say == "overwritten":
        return a[:, last:] @ b[last:]
    if say == "first":
        return a[:, :block] @ b[:block]
    # "standing": the pointers do not move, so each step adds the product of the first tiles of a and b. If the last
    # step is shorter, it adds the product of the first parts of these tiles.
    whole, rest = inner // block, inner - last
    return whole * (a[:, :block] @ b[:block]) + a[:, :rest] @ b[:rest] * bool(inner % block)


for say, code, words in (
    (
        "dropped",
        "dropped_block",
        "The last part of the sum is left out: its length is not a multiple of the tile.",
    ),
    (
        "overwritten",
        "last_block_only",
        "Each value contains only the last tile of the sum: the accumulator is overwritten, not added to.",
    ),
    (
        "first",
        "first_block_only",
        "Each value contains only the first tile of the sum: is there a loop over the inner size?",
    ),
    (
        "standing",
        "pointers_not_moved",
        "The first tile of a and b is added again and again: move the pointers on.",
    ),
):
    MISTAKES += in_blocks(f"{say} {{}}", code, words, partial(_of_tiles, say=say), INNER)


def _turned(a: Array, b: Array, of: Array) -> Array | None:
    return a @ b if of.shape[0] == of.shape[1] else None


MISTAKES += [
    row("of_b_transposed", "transposed_operand",
        "This is a b^T: rows of b are used as columns. Look at the strides of b.",
        lambda s: _turned(s.inputs["a"], s.inputs["b"].T, s.inputs["b"])),
    row("of_a_transposed", "transposed_operand",
        "This is a^T b: rows of a are used as columns. Look at the strides of a.",
        lambda s: _turned(s.inputs["a"].T, s.inputs["b"], s.inputs["a"])),
    row("b_by_columns", "operand_not_contiguous",
        "b is read as if its rows were contiguous in memory: use its strides.",
        lambda s: s.inputs["a"] @ by_columns(s.inputs["b"])),
    row("a_by_columns", "operand_not_contiguous",
        "a is read as if its rows were contiguous in memory: use its strides.",
        lambda s: by_columns(s.inputs["a"]) @ s.inputs["b"]),
    row("both_by_columns", "operand_not_contiguous",
        "a and b are read as if their rows were contiguous in memory: use their strides.",
        lambda s: by_columns(s.inputs["a"]) @ by_columns(s.inputs["b"])),
    row("of_absolutes", "absolute_value", "This is the product of absolute values.",
        lambda s: np.asarray(abs(s.inputs["a"]) @ abs(s.inputs["b"]))),
]  # fmt: skip


def half_accumulator(seen: Deviation) -> Found | None:
    """Return (diagnosis code, message) if all errors of a 16-bit output are as small as from 16-bit sums; else None."""
    precision = seen.sizes.get("precision", 24)
    error = abs(seen.actual - seen.expected)
    if precision == 24 or error.max() > LOST * 2.0**-precision * abs(seen.expected).max():
        return None
    return "half_accumulator", (
        f"The values are close, but with errors up to {error.max():.1e}; rounding only the result would give up to "
        f"{seen.tolerance.max():.1e}. An intermediate value is kept in 16 bits: accumulators, sums, maxima and scores "
        "have to be float32. Multiply factors with the float32 product, not with a 16-bit operand."
    )
