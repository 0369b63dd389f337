"""Right kernels in other styles than the master's: each must pass."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

from .wrong_backward import KEY_BLOCKS, KEY_DS, KEY_P, QUERY_P, UNITS
from .wrong_forward import ACC, BOTH, NOW, RESCALE, SCALE, SUM, L, P
from .wrong_rows import DOT, LONG_SUM, ROW_WEIGHTS, UPDATE, Y

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
    Mutation(
        "natural throughout",
        "flash_forward",
        (
            (SCALE, "d**-0.5"),
            (P, P.replace("exp2", "exp")),
            (RESCALE, RESCALE.replace("exp2", "exp")),
            (L, "m + tl.log(total)"),
        ),
    ),
    Mutation(
        "small tiles",
        "flash_forward",
        (
            (
                "    rows, keys, warps, stages = _forward_blocks(D, q.element_size(), causal)\n",
                "    rows, keys, warps, stages = 32, 16, 2, 1\n",
            ),
        ),
    ),
    Mutation(
        "wide tiles",
        "flash_forward",
        (
            (
                "    rows, keys, warps, stages = _forward_blocks(D, q.element_size(), causal)\n",
                "    rows, keys, warps, stages = 32, 128, 4, 2\n",
            ),
        ),
    ),
    Mutation(
        "every tile masked",
        "flash_forward",
        (
            ("    whole = M // KEYS * KEYS\n", "    whole = 0\n"),
            ("        whole = min(whole, tile * ROWS // KEYS * KEYS)\n", ""),
        ),
    ),
    Mutation("a large negative number", "flash_forward", ((BOTH, BOTH.replace('float("-inf")', "-1.0e30")),)),
    Mutation(
        "scores scaled first",
        "flash_forward",
        (
            (NOW, "        s = s * scale\n        now = tl.maximum(m, tl.max(s, 1))\n"),
            (P, P.replace("s * scale", "s")),
        ),
    ),
    Mutation(
        "divided in each step",
        "flash_forward",
        (
            (SUM, "        before = total * rescale\n        total = before + tl.sum(p, 1)\n"),
            (
                ACC,
                "        acc = acc * (before / total)[:, None] + tl.dot(p.to(v.dtype), v) / total[:, None]\n",
            ),
            ("acc / total[:, None]", "acc"),
        ),
    ),
    Mutation(
        "natural throughout",
        "flash_backward",
        (
            (UNITS, "mask=rows < N, other=0.0)", 2),
            (KEY_P, KEY_P.replace("exp2(s * scale", "exp(s * (scale / LOG2_E)")),
            (QUERY_P, QUERY_P.replace("exp2(", "exp(").replace("* scale", "* (scale / LOG2_E)")),
        ),
    ),
    Mutation("small tiles", "flash_backward", ((KEY_BLOCKS, "    rows, keys, warps, stages = 16, 32, 2, 1\n"),)),
    Mutation("dS in two steps", "flash_backward", ((KEY_DS, "        ds = p * dp - p * delta[None, :]\n"),)),
)  # fmt: skip
