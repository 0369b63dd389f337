"""Kernels of the mixed lab whose end is known."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

SUMS = "        for (int c = 0; c < C; c++) sum += std::exp(x[r * C + c]);\n"
ROWS = "    for (int r = 0; r < R; r++) {\n        float sum = 0;\n" + SUMS
COLUMN = "for (int k = 0; k < R; k++) sum += std::exp(x[k * C + c]);"

SUMS_OF_COLUMNS = (
    (SUMS, ""),
    ("for (int c = 0; c < C; c++) o", f"for (int c = 0; c < C; c++) sum = 0, [&] {{ {COLUMN} }}(), o"),
)
MEAN = "        mean.data_ptr<float>()[r] = sum / C;\n"
COUNTED = "counted[label[r]]++"
FLOATS = (
    ("at::zeros({R}, at::kLong)", "at::zeros({R}, at::kFloat)"),
    ("O.data_ptr<int64_t>()", "O.data_ptr<float>()"),
)

WRONG = (
    Mutation("sum not kept", "softmax", (("sum += std::exp", "sum = std::exp"),)),
    Mutation("sums of columns", "softmax", SUMS_OF_COLUMNS, ("wrong_axis",)),
    Mutation(
        "rows exchanged with columns", "softmax", (("o[r * C + c] = ", "o[c * R + r] = "),), ("wrong_layout",)
    ),
    Mutation("one row forgotten", "softmax", ((ROWS, ROWS.replace("r < R", "r < R - 1")),), ("row_range",)),
    Mutation("mean is the sum", "moments", (("= sum / C", "= sum"),), ("constant_factor",)),
    Mutation("mean never written", "moments", ((MEAN, ""),), ("not_written",)),
    Mutation(
        "counts not begun at 0", "moments", (("    for (int k = 0; k < 5; k++) counted[k] = 0;\n", ""),)
    ),
    Mutation("one label counted", "moments", ((COUNTED, "counted[0]++"),)),
    Mutation(
        "an input overwritten",
        "moments",
        ((COUNTED, f"{COUNTED}, X.data_ptr<float>()[0] = 0"),),
        ("inputs_overwritten",),
    ),
    Mutation(
        "not in place", "scale", (("x[r * C + c] *= factor", "factor * x[r * C + c]"),), ("not_written",)
    ),
    Mutation("factor forgotten", "scale", (("*= factor *", "*="),), ("constant_factor",)),
    Mutation("padding forgotten in the stride", "outer", (("(r * (C + pad) + c)", "(r * C + c)"),)),
    Mutation("place forgotten", "counts", ((" + places.data_ptr<int>()[r]", ""),)),
    Mutation("whole numbers as floats", "counts", FLOATS, ("wrong_dtype",)),
)

IDLE = "        volatile float idle = 0;\n        for (int c = 0; c < 100 * C; c++) idle = idle + std::exp(x[r * C]);\n"
SLOW = Mutation("a hundred times", "softmax", ((SUMS, IDLE + SUMS),))
