"""Wrong kernels of GELU, softmax and the product, each with the code of its expected diagnosis."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

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
    Mutation(
        "sum in float16",
        "matmul",
        (
            (
                "    acc = tl.zeros([ROWS, COLUMNS], tl.float32)\n",
                "    acc = tl.zeros([ROWS, COLUMNS], tl.float16)\n",
            ),
            (DOT, "        acc = (acc + tl.dot(a, b)).to(tl.float16)\n"),
        ),
        ("half_accumulator", "low_precision"),
    ),
    Mutation("strides of b exchanged", "matmul", (("*a.stride(), *b.stride()", "*a.stride(), *b.stride()[::-1]"),),
             ("transposed_operand", "race")),
    Mutation("as if contiguous", "matmul", (("*a.stride(), *b.stride()", "K, 1, N, 1"),),
             ("operand_not_contiguous", "not_finite")),
    Mutation("whole tiles only", "matmul", (("triton.cdiv(N, columns)", "max(1, N // columns)"),),
             ("column_range", "remainder_tile", "not_finite")),
)  # fmt: skip
WRONG_ROWS = (*GELU, *SOFTMAX, *LONG, *MATMUL)
