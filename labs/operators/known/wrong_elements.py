"""Wrong sums, products and ReLUs."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

from .wrong_layers import exchanged

_ROW_OF_B = "b + (RB == 1 ? 0 : i) * CB"
_COLUMN_OF_B = "row[CB == 1 ? 0 : j]"
_ADD_ROWS = "#pragma omp parallel for\n    for (int i = 0; i < R; i++) {"
_BACK_ROWS = "    for (int i = 0; i < R; i++) {\n        float *row"
_TO_DB = "row[CB == 1 ? 0 : j] += go[i * C + j];"
_TO_GB = "gb[other] += go[at] * a[at];"
_TO_GA = "ga[at] += go[at] * b[other];"

WRONG = (
    Mutation(
        "B by the row's index",
        "add",
        ((_COLUMN_OF_B, "row[CB == 1 ? 0 : i % CB]"),),
        ("broadcast_wrong_axis",),
    ),
    Mutation("first row of B", "add", ((_ROW_OF_B, "b"),), ("broadcast_too_much",)),
    Mutation("first column of B", "add", ((_COLUMN_OF_B, "row[0]"),), ("broadcast_too_much",)),
    Mutation("B subtracted", "add", ((" + row[", " - row["),), ("wrong_operator",)),
    Mutation("B multiplied", "add", ((" + row[", " * row["),), ("wrong_operator",)),
    Mutation(
        "B forgotten",
        "add",
        ((" + row[CB == 1 ? 0 : j]", ""), ("        const float *row = " + _ROW_OF_B + ";\n", "")),
        ("operand_missing",),
    ),
    Mutation(
        "last row left out", "add", ((_ADD_ROWS, _ADD_ROWS.replace("i < R;", "i < R - 1;")),), ("row_range",)
    ),
    Mutation(
        "dA written", "add_backward", (("ga[i * C + j] +=", "ga[i * C + j] ="),), ("gradient_overwritten",)
    ),
    Mutation("dB written", "add_backward", ((_TO_DB, _TO_DB.replace("+=", "=")),), ("broadcast_not_summed",)),
    Mutation(
        "dB by the row's index",
        "add_backward",
        ((_TO_DB, "if (CB > 1 && i >= CB) continue;\n            row[CB == 1 ? 0 : i] += go[i * C + j];"),),
        ("broadcast_wrong_axis",),
    ),
    Mutation(
        "first use alone",
        "add_backward",
        ((_TO_DB, f"if ((RB > 1 || i == 0) && (CB > 1 || j == 0)) {_TO_DB}"),),
        ("broadcast_not_summed",),
    ),
    Mutation(
        "rows of dB shared by threads",
        "add_backward",
        ((_BACK_ROWS, "#pragma omp parallel for\n" + _BACK_ROWS),),
        ("race",),
    ),
    Mutation(
        "gradient subtracted",
        "add_backward",
        (("ga[i * C + j] +=", "ga[i * C + j] -="),),
        ("gradient_negated",),
    ),
    Mutation("sum for the product", "mul", ((" * row[CB", " + row[CB"),), ("wrong_operator",)),
    Mutation("one number of B", "mul", ((_ROW_OF_B, "b"), (_COLUMN_OF_B, "row[0]")), ("broadcast_too_much",)),
    Mutation(
        "operands swapped",
        "mul_backward",
        ((_TO_GA, "ga[at] += go[at] * a[at];"), (_TO_GB, "gb[other] += go[at] * b[other];")),
        ("operands_swapped",),
    ),
    Mutation("dO forgotten", "mul_backward", ((_TO_GA, "ga[at] += b[other];"),), ("upstream_ignored",)),
    Mutation("as of a sum", "mul_backward", ((_TO_GB, "gb[other] += go[at];"),), ("operand_missing",)),
    Mutation(
        "last use of B alone",
        "mul_backward",
        ((_TO_GB, "gb[other] = go[at] * a[at];"),),
        ("broadcast_not_summed",),
    ),
    Mutation(
        "mean of the uses",
        "mul_backward",
        ((_TO_GB, "gb[other] += go[at] * a[at] * RB * CB / (R * C);"),),
        ("broadcast_mean",),
    ),
    Mutation(
        "gradient added twice",
        "mul_backward",
        ((_TO_GA, "ga[at] += 2 * go[at] * b[other];"),),
        ("gradient_added_twice",),
    ),
    Mutation(
        "dA and dB exchanged",
        "mul_backward",
        exchanged("dA", "dB", ("R * C", "RB * CB"), "ab"),
        ("gradients_swapped",),
    ),
    Mutation("positive numbers cut off", "relu", (("x[i] > 0 ?", "x[i] < 0 ?"),), ("relu_sign",)),
    Mutation("absolute value", "relu", (("x[i] > 0 ? x[i] : 0", "std::abs(x[i])"),), ("relu_sign",)),
    Mutation("a leak", "relu", (("x[i] : 0", "x[i] : 0.01f * x[i]"),), ("relu_leaky",)),
    Mutation("slope for value", "relu", (("? x[i] : 0", "? 1 : 0"),), ("relu_step",)),
    Mutation("last number left out", "relu", (("i < n;", "i < n - 1;"),), ("element_range",)),
    Mutation("gradient at 0", "relu_backward", (("x[i] > 0", "x[i] >= 0"),), ("relu_at_zero",)),
    Mutation("by the sign of dO", "relu_backward", (("x[i] > 0", "go[i] > 0"),), ("relu_wrong_sign",)),
    Mutation("everywhere", "relu_backward", (("        if (x[i] > 0) ", "        "),), ("relu_missing",)),
    Mutation("slope alone", "relu_backward", (("+= go[i]", "+= 1"),), ("upstream_ignored",)),
    Mutation(
        "dX written",
        "relu_backward",
        (("        if (x[i] > 0) gx[i] += go[i];", "        gx[i] = x[i] > 0 ? go[i] : 0;"),),
        ("gradient_overwritten",),
    ),
)
