"""Test kernels with known verdicts. Each is the course's solution (the master) with one named change.

Each kernel of WRONG states the codes of its expected diagnosis. Kernels of RIGHT are correct variants that must pass.
SLOW is correct but takes longer. Other labs call such a module `kernels`; here kernels.py is the students' file.
Students do not get this module.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from grader.assignment import mutations
from grader.assignment.mutations import Mutation

__all__ = ["FUNCTIONS", "RIGHT", "SHAPE", "SLOW", "WRONG", "side_by_side"]

#: Sizes for cases that state no sizes, in parts whose time is not measured.
SHAPE = {
    "R": 8,
    "C": 64,
    "lines": 2,
    "width": 5000,
    "rows": 64,
    "inner": 64,
    "columns": 64,
    "B": 1,
    "N": 64,
    "M": 64,
    "d": 32,
}
FUNCTIONS = {
    "gelu": ("_gelu", "gelu"),
    "softmax": ("_softmax_row", "softmax"),
    "softmax_long": ("_softmax_blocks", "softmax_long"),
    "matmul": ("_matmul", "matmul"),
    "flash_forward": ("_forward_tiles", "_forward", "flash_forward"),
    "flash_backward": (
        *("_row_sums", "_key_tiles", "_backward_keys", "_query_tiles", "_backward_queries"),
        "flash_backward",
    ),
}
"""Functions of the course's solution (the master) that an edit may change, by part: kernels, then their launcher."""
U = "    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)\n"
Y = "    y = x / (1.0 + tl.exp2(u * (-2.0 * LOG2_E)))\n"
ROW_WEIGHTS = "    weights = tl.exp2((x - tl.max(x, 0)) * LOG2_E)\n"
UPDATE = "        total = total * tl.exp2((most - now) * LOG2_E) + tl.exp2((x - now) * LOG2_E)\n"
LONG_SUM = "    whole = tl.sum(total * tl.exp2((most - m) * LOG2_E), 0)\n"
DOT = "        acc = tl.dot(a, b, acc)\n"
STEP = "    for start in range(0, K, INNER):\n"

GELU = (
    Mutation("twice as much", "gelu", ((Y, Y.replace("x /", "2.0 * x /")),), ("gelu_half_missing",)),
    Mutation("no factor x", "gelu", ((Y, Y.replace("x /", "1.0 /")),), ("gelu_factor_x_missing",)),
    Mutation("no cubic term", "gelu", ((U, U.replace(" + 0.044715 * x * x * x", "")),), ("gelu_cubic_missing",)),
    Mutation("a square", "gelu", ((U, U.replace("x * x * x", "x * x")),), ("gelu_square",)),
    Mutation("no root", "gelu", ((U, U.replace("0.7978845608028654 * ", "")),), ("gelu_root_missing",)),
    Mutation("sigmoid of u", "gelu", ((Y, Y.replace("-2.0 *", "-1.0 *")),), ("gelu_two_missing",)),
    Mutation("sigmoid of 1.702 x", "gelu", ((U, "    u = 0.851 * x\n"),), ("gelu_sigmoid",)),
    Mutation("erf", "gelu", ((Y, "    y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))\n"),), ("gelu_erf",)),
    Mutation("base 2", "gelu", ((Y, Y.replace("(-2.0 * LOG2_E)", "(-2.0)")),), ("gelu_base",)),
    Mutation("last block left out", "gelu", (("_gelu[(R * blocks,)]", "_gelu[(max(1, R * blocks - 1),)]"),),
             ("row_range", "not_finite")),
    Mutation("rows as if contiguous", "gelu", (("*x.stride(), *y.stride()", "C, 1, *y.stride()"),),
             ("operand_not_contiguous", "not_finite")),
)  # fmt: skip
SOFTMAX = (
    Mutation("no maximum", "softmax", ((ROW_WEIGHTS, "    weights = tl.exp2(x * LOG2_E)\n"),),
             ("no_maximum", "not_finite")),
    Mutation("not divided", "softmax", (("weights / tl.sum(weights, 0)", "weights"),), ("not_normalised",)),
    Mutation("divided by the largest", "softmax", (("weights / tl.sum(weights, 0)", "weights / tl.max(weights, 0)"),),
             ("not_normalised", "divided_by_largest"), says="divided"),
    Mutation("base 2", "softmax", ((ROW_WEIGHTS, ROW_WEIGHTS.replace(" * LOG2_E", "")),), ("wrong_base",)),
    Mutation("log2(e) and exp", "softmax", ((ROW_WEIGHTS, ROW_WEIGHTS.replace("exp2", "exp")),), ("wrong_base",)),
    Mutation("tail loaded as 0", "softmax", (('other=float("-inf")', "other=0.0"),), ("tail_unmasked",)),
    Mutation("one row for all", "softmax", (("x_ptr + row * x_row", "x_ptr + 0 * x_row"),),
             ("row_range", "first_row", "wrong_values")),
    Mutation("a logarithm", "softmax", (("    tl.store(", "    y = tl.log(y)\n    tl.store("),),
             ("log_softmax", "not_finite")),
)  # fmt: skip
LONG = (
    Mutation("no rescale", "softmax_long",
             ((UPDATE, UPDATE.replace("total * tl.exp2((most - now) * LOG2_E)", "total")),),
             ("no_rescale", "not_normalised")),
    Mutation("lanes not brought together", "softmax_long", ((LONG_SUM, "    whole = tl.sum(total, 0)\n"),),
             ("not_normalised",)),
    Mutation("one block's sum", "softmax_long", ((UPDATE, "        total = tl.exp2((x - now) * LOG2_E)\n"),),
             ("sum_of_last_block", "not_normalised")),
    Mutation("tail loaded as 0", "softmax_long", (('other=float("-inf")', "other=0.0", 2),),
             ("tail_unmasked", "not_normalised")),
    Mutation("last block left out", "softmax_long",
             (("range(0, C, BLOCK)", "range(0, C // BLOCK * BLOCK, BLOCK)", 2),),
             ("dropped_block", "column_range", "not_finite")),
)  # fmt: skip
MATMUL = (
    Mutation("last step left out", "matmul", ((STEP, STEP.replace("K,", "K // INNER * INNER,")),),
             ("dropped_block",)),
    Mutation("overwritten", "matmul", ((DOT, "        acc = tl.dot(a, b)\n"),), ("last_block_only",)),
    Mutation("b stands still", "matmul",
             (("        a_ptrs += INNER * a_column\n        b_ptrs += INNER * b_row\n", ""),),
             ("pointers_not_moved",)),
    Mutation("sum in float16", "matmul",
             (("    acc = tl.zeros([ROWS, COLUMNS], tl.float32)\n",
               "    acc = tl.zeros([ROWS, COLUMNS], tl.float16)\n"),
              (DOT, "        acc = (acc + tl.dot(a, b)).to(tl.float16)\n")),
             ("half_accumulator", "low_precision")),
    Mutation("strides of b exchanged", "matmul", (("*a.stride(), *b.stride()", "*a.stride(), *b.stride()[::-1]"),),
             ("transposed_operand", "race")),
    Mutation("as if contiguous", "matmul", (("*a.stride(), *b.stride()", "K, 1, N, 1"),),
             ("operand_not_contiguous", "not_finite")),
    Mutation("whole tiles only", "matmul", (("triton.cdiv(N, columns)", "max(1, N // columns)"),),
             ("column_range", "remainder_tile", "not_finite")),
)  # fmt: skip
WRONG_ROWS = (*GELU, *SOFTMAX, *LONG, *MATMUL)


# ---- wrong kernels of attention's forward pass, each with the code of its expected diagnosis

FORWARD = "flash_forward"
SEEN = "                seen = seen & (keys[None, :] <= rows[:, None])\n"
TAIL = "            seen = (keys < M)[None, :]\n"
NOW = "        now = tl.maximum(m, tl.max(s, 1) * scale)\n"
P = "        p = tl.exp2(s * scale - now[:, None])\n"
RESCALE = "        rescale = tl.exp2(m - now)\n"
SUM = "        total = total * rescale + tl.sum(p, 1)\n"
ACC = "        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])\n"
L = "(m + tl.log2(total)) / LOG2_E"
SCALE = "d**-0.5 * LOG2_E.value"
BOTH = '            s = tl.where(seen, s, float("-inf"))\n'

WRONG_FORWARD = (
    Mutation("nothing rescaled", FORWARD, ((RESCALE, "        rescale = tl.exp2(now - now)\n"),), ("no_rescale",),
             says="either"),
    Mutation("accumulator not rescaled", FORWARD, ((ACC, ACC.replace(" * rescale[:, None]", "")),), ("no_rescale",),
             says="accumulator"),
    Mutation("sum not rescaled", FORWARD, ((SUM, SUM.replace("total * rescale", "total")),), ("no_rescale",),
             says="sum l"),
    Mutation("mask reversed", FORWARD, ((SEEN, SEEN.replace("<=", ">=")),),
             ("mask_reversed", "no_rescale", "not_finite")),
    Mutation("values by the strides of keys", FORWARD,
             (("k_strides[1], v_strides[1], rows", "k_strides[1], k_strides[1], rows", 2),
              ("v_strides[0]", "k_strides[0]"))),
    Mutation("strict mask", FORWARD, ((SEEN, SEEN.replace("<=", "<")),), ("mask_strict", "not_finite")),
    Mutation("one key too many", FORWARD, ((SEEN, SEEN.replace("rows[:, None]", "rows[:, None] + 1")),),
             ("mask_strict",)),
    Mutation("no single key masked", FORWARD, ((SEEN, "                seen = seen\n"),),
             ("mask_by_tiles", "mask_missing")),
    Mutation("never causal", FORWARD, (("CAUSAL=causal", "CAUSAL=False"),), ("mask_missing",)),
    Mutation("always causal", FORWARD, (("CAUSAL=causal", "CAUSAL=True"),), ("mask_always",)),
    Mutation("masked by 0", FORWARD, ((BOTH, BOTH.replace('float("-inf")', "0.0")),),
             ("mask_as_zero", "tail_unmasked")),
    Mutation("tail not masked", FORWARD, ((TAIL, "            seen = (keys >= 0)[None, :]\n"),), ("tail_unmasked",)),
    Mutation("last keys left out", FORWARD, (("    last = M\n", "    last = M // KEYS * KEYS\n"),),
             ("dropped_block", "not_finite")),
    Mutation("overwritten", FORWARD,
             ((ACC, "        acc = tl.dot(p.to(v.dtype), v)\n"), (SUM, "        total = tl.sum(p, 1)\n")),
             ("last_block_only",)),
    Mutation("weights to base 2", FORWARD, ((SCALE, "d**-0.5"),), ("base_mixed",)),
    Mutation("log2(e) and exp", FORWARD, ((P, P.replace("exp2", "exp")), (RESCALE, RESCALE.replace("exp2", "exp"))),
             ("base_mixed",)),
    Mutation("rescaled to another base", FORWARD, ((RESCALE, RESCALE.replace("exp2", "exp")),), ("base_mixed",)),
    Mutation("L to base 2", FORWARD, ((L, "m + tl.log2(total)"),), ("sum_base",)),
    Mutation("natural and base 2", FORWARD, ((L, "m + tl.log(total)"),), ("sum_base",)),
    Mutation("L without maximum", FORWARD, ((L, "tl.log(total)"),), ("sum_without_maximum",)),
    Mutation("L is a sum", FORWARD, ((L, "total"),), ("sum_alone",)),
    Mutation("no scale", FORWARD, ((SCALE, "LOG2_E.value"),), ("scale_missing",)),
    Mutation("divided by d", FORWARD, ((SCALE, "LOG2_E.value / d"),), ("scale_wrong",)),
    Mutation("not divided", FORWARD, (("acc / total[:, None]", "acc"),), ("not_normalised",)),
    Mutation("divided by M", FORWARD, (("acc / total[:, None]", "acc / M"),), ("divided_by_keys",)),
    Mutation("maximum begins at 0", FORWARD,
             (('m = tl.full([ROWS], float("-inf"), tl.float32)', "m = tl.zeros([ROWS], tl.float32)"),),
             ("maximum_start", "not_finite")),
    Mutation("no maximum", FORWARD,
             ((NOW, "        now = tl.zeros_like(m)\n"),
              ('m = tl.full([ROWS], float("-inf"), tl.float32)', "m = tl.zeros([ROWS], tl.float32)")),
             ("no_maximum", "maximum_start", "not_finite")),
    Mutation("sums in float16", FORWARD,
             ((ACC,
               "        acc = (acc * rescale[:, None] + tl.dot(p.to(v.dtype), v)).to(tl.float16).to(tl.float32)\n"),
              (SUM, "        total = (total * rescale + tl.sum(p, 1)).to(tl.float16).to(tl.float32)\n")),
             ("half_accumulator", "low_precision")),
    Mutation("scaled in 16 bits", FORWARD,
             (("        s = tl.dot(q, tl.trans(k))\n",
               "        s = tl.dot((q * scale).to(q.dtype), tl.trans(k)) / scale\n"),),
             ("half_accumulator", "low_precision", "wrong_values")),
    Mutation("keys for values", FORWARD, (("v = _load_tile(v_ptr, v_stride", "v = _load_tile(k_ptr, k_stride"),),
             ("operand_exchanged",)),
    Mutation("one head", FORWARD, (("    k_ptr += head * k_strides[0]\n", ""),),
             ("wrong_values", "heads", "first_head")),
    Mutation("as if contiguous", FORWARD,
             (("q.stride()[:2], k.stride()[:2], v.stride()[:2]", "(N * d, d), (M * d, d), (M * d, d)"),),
             ("operand_not_contiguous", "not_finite")),
    Mutation("last rows not stored", FORWARD,
             (("_forward[(triton.cdiv(N, rows), B)]", "_forward[(max(1, N // rows), B)]"),),
             ("row_range", "remainder_tile", "partly_not_written", "race", "not_finite")),
)  # fmt: skip


# ---- wrong kernels of attention's backward pass, each with the code of its expected diagnosis

BACKWARD = "flash_backward"
DV = "        dv = tl.dot(p.to(do.dtype), do, dv)\n"
DK = "        dk = tl.dot(ds.to(q.dtype), q, dk)\n"
DQ = "        dq = tl.dot(ds.to(k.dtype), k, dq)\n"
KEY_DS = "        ds = p * (dp - delta[None, :])\n"
QUERY_DS = "        ds = p * (dp - delta[:, None])\n"
KEY_SEEN = "                seen = seen & (keys[:, None] <= rows[None, :])\n"
QUERY_SEEN = "                seen = seen & (keys[None, :] <= rows[:, None])\n"
KEY_ALL, QUERY_ALL = (
    "                seen = seen & (rows >= 0)[None, :]\n",
    "                seen = seen & (rows >= 0)[:, None]\n",
)
KEY_P = "        p = tl.exp2(s * scale - lse[None, :])\n"
QUERY_P = "        p = tl.exp2(tl.dot(q, tl.trans(k)) * scale - lse[:, None])\n"
SUMS = "tl.sum(o * do, 1)"
UNITS = "mask=rows < N, other=0.0) * LOG2_E"
KEY_BLOCKS = "    rows, keys, warps, stages = _key_blocks(D, q.element_size())\n"
EQUAL_BLOCKS = "    rows, keys, warps, stages = 16, 16, 4, 2\n"


def _ds(old: str, new: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return two edits that replace `old` by `new` in dS: one in the kernel for keys, one in the kernel for queries."""
    return (KEY_DS, KEY_DS.replace(old, new)), (
        QUERY_DS,
        QUERY_DS.replace(old.replace("[None, :]", "[:, None]"), new.replace("[None, :]", "[:, None]")),
    )


WRONG_BACKWARD = (
    Mutation("dQ not scaled", BACKWARD, (("dq * (scale / LOG2_E)", "dq"),), ("scale_missing",), says="dQ"),
    Mutation("dK not scaled", BACKWARD, (("dk * (scale / LOG2_E)", "dk"),), ("scale_missing",), says="dK"),
    Mutation("scale of log2", BACKWARD,
             (("dk * (scale / LOG2_E)", "dk * scale"), ("dq * (scale / LOG2_E)", "dq * scale")), ("base_mixed",)),
    Mutation("dV scaled", BACKWARD,
             (("tile * KEYS, M, dv, KEYS, D, d)", "tile * KEYS, M, dv * (scale / LOG2_E), KEYS, D, d)"),),
             ("dv_scaled",)),
    Mutation("no D", BACKWARD, _ds("(dp - delta[None, :])", "dp"), ("delta_missing",)),
    Mutation("D added", BACKWARD, _ds("dp - delta", "dp + delta"), ("delta_sign",)),
    Mutation("D of dO", BACKWARD, ((SUMS, "tl.sum(do, 1)"),), ("delta_wrong",), says="rowsum(dO)"),
    Mutation("D of squares", BACKWARD, ((SUMS, "tl.sum(o * o, 1)"),), ("delta_wrong",), says="rowsum(O * O)"),
    Mutation("no weights in dS", BACKWARD, _ds("p * ", ""), ("weights_missing", "not_finite")),
    Mutation("D outside", BACKWARD, _ds("p * (dp - delta[None, :])", "p * dp - delta[None, :]"),
             ("delta_outside", "wrong_values")),
    Mutation("dV of P", BACKWARD, ((DV, DV.replace("p.to", "tl.trans(p).to")), (KEY_BLOCKS, EQUAL_BLOCKS)),
             ("not_transposed",)),
    Mutation("dK of dS", BACKWARD, ((DK, DK.replace("ds.to", "tl.trans(ds).to")), (KEY_BLOCKS, EQUAL_BLOCKS)),
             ("not_transposed",)),
    Mutation("dK of P", BACKWARD, ((DK, DK.replace("ds.to", "p.to")),), ("operand_exchanged",)),
    Mutation("dV of dS", BACKWARD, ((DV, ""), (DK, DK + "        dv = tl.dot(ds.to(do.dtype), do, dv)\n")),
             ("operand_exchanged",)),
    Mutation("dQ of P", BACKWARD, ((DQ, DQ.replace("ds.to", "p.to")),), ("operand_exchanged",)),
    Mutation("dP of keys", BACKWARD,
             (("dp = tl.dot(do, tl.trans(v))", "dp = tl.dot(do, tl.trans(k))"),
              ("dp = tl.dot(v, tl.trans(do))", "dp = tl.dot(k, tl.trans(do))")),
             ("operand_exchanged",)),
    Mutation("dK for dV", BACKWARD, (("return dq, dk, dv", "return dq, dv, dk"),), ("outputs_exchanged",)),
    Mutation("no L", BACKWARD,
             ((KEY_P, KEY_P.replace(" - lse[None, :]", "")), (QUERY_P, QUERY_P.replace(" - lse[:, None]", ""))),
             ("weights_not_normalised", "not_finite")),
    Mutation("L of base e", BACKWARD, ((UNITS, "mask=rows < N, other=0.0)", 2),), ("base_mixed", "not_finite")),
    Mutation("never causal", BACKWARD, (("CAUSAL=causal", "CAUSAL=False", 2),), ("mask_missing", "not_finite")),
    Mutation("mask reversed", BACKWARD,
             ((KEY_SEEN, KEY_SEEN.replace("<=", ">=")), (QUERY_SEEN, QUERY_SEEN.replace("<=", ">="))),
             ("mask_reversed", "diagonal_dropped", "wrong_values")),
    Mutation("strict mask", BACKWARD,
             ((KEY_SEEN, KEY_SEEN.replace("<=", "<")), (QUERY_SEEN, QUERY_SEEN.replace("<=", "<"))),
             ("mask_strict",)),
    Mutation("mask by tiles", BACKWARD, ((KEY_SEEN, KEY_ALL), (QUERY_SEEN, QUERY_ALL)),
             ("mask_by_tiles", "mask_missing", "not_finite")),
    Mutation("last queries left out", BACKWARD, (("unmasked, N,\n", "unmasked, N // ROWS * ROWS,\n"),),
             ("dropped_block",)),
    Mutation("last keys left out", BACKWARD, (("    last = M\n", "    last = M // KEYS * KEYS\n"),),
             ("dropped_block",)),
    Mutation("dK overwritten", BACKWARD, ((DK, "        dk = tl.dot(ds.to(q.dtype), q)\n"),), ("last_block_only",)),
    Mutation("dQ overwritten", BACKWARD, ((DQ, "        dq = tl.dot(ds.to(k.dtype), k)\n"),), ("last_block_only",)),
    Mutation("negative", BACKWARD, (("dq * (scale / LOG2_E)", "-dq * (scale / LOG2_E)"),), ("negated",)),
    Mutation("scores not scaled", BACKWARD,
             ((KEY_P, KEY_P.replace("s * scale", "s * LOG2_E")), (QUERY_P, QUERY_P.replace("* scale", "* LOG2_E"))),
             ("score_scale_missing", "not_finite")),
)  # fmt: skip


# ---- right kernels in other styles than the master's: each must pass

_LANES = """    most = tl.full([BLOCK], -3.0e38, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
"""
_SCALARS = """    m = -3.0e38
    whole = 0.0
"""
_LANE_STEP = (
    "        now = tl.maximum(most, x)\n"
    + UPDATE
    + "        most = now\n    m = tl.max(most, 0)\n"
    + LONG_SUM
)
_BLOCK_STEP = """        now = tl.maximum(m, tl.max(x, 0))
        whole = whole * tl.exp(m - now) + tl.sum(tl.exp(x - now), 0)
        m = now
"""
_TWO_PASSES = """        now = tl.maximum(most, x)
        most = now
    m = tl.max(most, 0)
    for start in range(0, C, BLOCK):
        column = start + lane
        x = tl.load(x_ptr + row * x_row + column * x_column, mask=column < C, other=float("-inf")).to(tl.float32)
        total += tl.exp2((x - m) * LOG2_E)
    whole = tl.sum(total, 0)
"""

RIGHT = (
    Mutation("a sigmoid", "gelu", ((Y, "    y = x * tl.sigmoid(2.0 * u)\n"),)),
    Mutation("tanh by exp", "gelu", ((Y, "    y = 0.5 * x * (2.0 - 2.0 / (tl.exp(2.0 * u) + 1.0))\n"),)),
    Mutation("short blocks", "gelu", (("min(4096 // x.element_size(), _power_of_two(C))", "64"),)),
    Mutation("exp", "softmax", ((ROW_WEIGHTS, "    weights = tl.exp(x - tl.max(x, 0))\n"),)),
    Mutation("an inverse", "softmax", (("weights / tl.sum(weights, 0)", "weights * (1.0 / tl.sum(weights, 0))"),)),
    Mutation("of tl", "softmax", (("weights / tl.sum(weights, 0)", "tl.softmax(x)"),)),
    Mutation("one maximum a block", "softmax_long", ((_LANES, _SCALARS), (_LANE_STEP, _BLOCK_STEP))),
    Mutation("maximum, then sum", "softmax_long", ((_LANE_STEP, _TWO_PASSES),)),
    Mutation("short blocks", "softmax_long", (("min(4096, _power_of_two(C))", "1024"),)),
    Mutation("added", "matmul", ((DOT, "        acc += tl.dot(a, b)\n"),)),
    Mutation("small tiles, no groups", "matmul", (("GROUP=8", "GROUP=1"), ("64, 64, 32, 4", "16, 32, 16, 2"))),
    Mutation("two halves of a sum", "matmul", ((DOT, "        acc = tl.dot(a, b) + acc\n"),)),
    Mutation("natural throughout", "flash_forward",
             ((SCALE, "d**-0.5"),
              (P, P.replace("exp2", "exp")),
              (RESCALE, RESCALE.replace("exp2", "exp")),
              (L, "m + tl.log(total)"))),
    Mutation("small tiles", "flash_forward",
             (("    rows, keys, warps, stages = _forward_blocks(D, q.element_size(), causal)\n",
               "    rows, keys, warps, stages = 32, 16, 2, 1\n"),)),
    Mutation("wide tiles", "flash_forward",
             (("    rows, keys, warps, stages = _forward_blocks(D, q.element_size(), causal)\n",
               "    rows, keys, warps, stages = 32, 128, 4, 2\n"),)),
    Mutation("every tile masked", "flash_forward",
             (("    whole = M // KEYS * KEYS\n", "    whole = 0\n"),
              ("        whole = min(whole, tile * ROWS // KEYS * KEYS)\n", ""))),
    Mutation("a large negative number", "flash_forward", ((BOTH, BOTH.replace('float("-inf")', "-1.0e30")),)),
    Mutation("scores scaled first", "flash_forward",
             ((NOW, "        s = s * scale\n        now = tl.maximum(m, tl.max(s, 1))\n"),
              (P, P.replace("s * scale", "s")))),
    Mutation("divided in each step", "flash_forward",
             ((SUM, "        before = total * rescale\n        total = before + tl.sum(p, 1)\n"),
              (ACC, "        acc = acc * (before / total)[:, None] + tl.dot(p.to(v.dtype), v) / total[:, None]\n"),
              ("acc / total[:, None]", "acc"))),
    Mutation("natural throughout", "flash_backward",
             ((UNITS, "mask=rows < N, other=0.0)", 2),
              (KEY_P, KEY_P.replace("exp2(s * scale", "exp(s * (scale / LOG2_E)")),
              (QUERY_P, QUERY_P.replace("exp2(", "exp(").replace("* scale", "* (scale / LOG2_E)")))),
    Mutation("small tiles", "flash_backward", ((KEY_BLOCKS, "    rows, keys, warps, stages = 16, 32, 2, 1\n"),)),
    Mutation("dS in two steps", "flash_backward", ((KEY_DS, "        ds = p * dp - p * delta[None, :]\n"),)),
)  # fmt: skip

WRONG = (*WRONG_ROWS, *WRONG_FORWARD, *WRONG_BACKWARD)

SLOW = Mutation(
    "every tile of keys twice",
    "flash_forward",
    (
        (
            "        s = tl.dot(q, tl.trans(k))\n",
            "        s = tl.dot(q, tl.trans(k))\n        s = (s + tl.dot(q, tl.trans(k * 0.5))) / 1.5\n",
        ),
    ),
)


def side_by_side(master: str, made: Sequence[Mutation]) -> str:
    """Return the text of one file: the master and, under new names, the functions that each mutation changes."""
    source = mutations.without_starter(master)
    variants = ""
    for number, mutation in enumerate(made):
        *kernels, launcher = FUNCTIONS[mutation.part]
        text = "\n\n".join(mutations.pieces(source, FUNCTIONS[mutation.part], mutation).values())
        for name in kernels:
            text = re.sub(rf"\b{name}\b", f"{name}_of_{number}", text)
        variants += "\n\n" + text.replace(f"def {launcher}(", f"def {mutations.variant(number)}(", 1)
    return source + variants
