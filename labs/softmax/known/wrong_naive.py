"""Wrong kernels of `naive`, each with the code of its expected diagnosis."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

from .texts import NAIVE_SUM, NAIVE_WRITE, ROWS, J

COLUMN_SUM = """        for (int j = 0; j < C; j++) {
            float sum = 0.0f;
            for (int k = 0; k < R; k++) sum += std::exp(X[(size_t)k * C + j]);
            o[j] = std::exp(x[j]) / sum;
        }
"""
FOUR_AT_A_TIME = """        for (int j = 0; j + 4 <= C; j += 4) {
            sum += std::exp(x[j]) + std::exp(x[j + 1]) + std::exp(x[j + 2]) + std::exp(x[j + 3]);
        }
"""


WRONG_NAIVE = (
    Mutation("not divided", "naive", (("std::exp(x[j]) / sum", "std::exp(x[j])"),), ("not_normalised",)),
    Mutation(
        "divided by the largest",
        "naive",
        ((NAIVE_SUM, NAIVE_SUM.replace("sum += std::exp(x[j])", "sum = std::max(sum, std::exp(x[j]))")),),
        ("divided_by_largest", "not_normalised"),
        says="largest",
    ),
    Mutation(
        "sum over rows",
        "naive",
        (("        float sum = 0.0f;\n" + NAIVE_SUM + NAIVE_WRITE, COLUMN_SUM),),
        ("wrong_axis",),
    ),
    Mutation(
        "sum not reset",
        "naive",
        ((ROWS, "    float sum = 0.0f;\n" + ROWS), ("        float sum = 0.0f;\n", "")),
        ("sum_not_reset",),
    ),
    Mutation(
        "divided too early",
        "naive",
        (
            (NAIVE_SUM, ""),
            (
                "o[j] = std::exp(x[j]) / sum;",
                "sum += std::exp(x[j]);\n            o[j] = std::exp(x[j]) / sum;",
            ),
        ),
        ("divided_too_early",),
    ),
    Mutation("powers of two", "naive", (("std::exp(", "std::exp2(", 2),), ("wrong_base",)),
    Mutation(
        "log2(e) and exp", "naive", (("std::exp(x[j])", "std::exp(x[j] * 1.4426950f)", 2),), ("wrong_base",)
    ),
    Mutation(
        "sum of x", "naive", (("sum += std::exp(x[j])", "sum += x[j]"),), ("exponential_missing_in_sum",)
    ),
    Mutation("no exponential", "naive", (("std::exp(x[j])", "x[j]", 2),), ("no_exponential",)),
    Mutation("negative exponent", "naive", (("std::exp(x[j])", "std::exp(-x[j])", 2),), ("wrong_sign",)),
    Mutation(
        "reads what it wrote",
        "naive",
        (
            ("sum += std::exp(x[j])", "sum += o[j] = std::exp(x[j])"),
            ("std::exp(x[j]) / sum", "std::exp(o[j]) / sum"),
        ),
        ("reads_what_it_wrote",),
    ),
    Mutation(
        "X as workspace",
        "naive",
        (
            ("const float *x = X + (size_t)i * C;", "float *x = XTensor.data_ptr<float>() + (size_t)i * C;"),
            ("sum += std::exp(x[j])", "sum += x[j] = std::exp(x[j])"),
            ("std::exp(x[j]) / sum", "x[j] / sum"),
        ),
        ("inputs_overwritten",),
    ),
    Mutation("last row left out", "naive", ((ROWS, ROWS.replace("i < R", "i < R - 1")),), ("row_range",)),
    Mutation(
        "last column left out", "naive", ((J, J.replace("j < C", "j < C - 1"), 2),), ("columns_left_out",)
    ),
    Mutation("sum of whole blocks of four", "naive", ((NAIVE_SUM, FOUR_AT_A_TIME),), ("sum_misses_columns",)),
    Mutation(
        "rows exchanged with columns",
        "naive",
        (
            ("o[j] = std::exp", "O[(size_t)j * R + i] = std::exp"),
            ("        float *o = O + (size_t)i * C;\n", ""),
        ),
        ("wrong_layout",),
    ),
    Mutation("rows of R numbers", "naive", (("X + (size_t)i * C", "X + (size_t)i * R"),), ("wrong_stride",)),
    Mutation(
        "half precision",
        "naive",
        (
            (
                "o[j] = std::exp(x[j]) / sum;",
                "o[j] = std::exp(x[j]) / sum;\n"
                "            { const float big = o[j] * 8193.0f; o[j] = big - (big - o[j]); }",
            ),
        ),
        ("low_precision",),
    ),
    Mutation("nothing stored", "naive", (("o[j] = std::exp(x[j]) / sum;", "(void)o;"),), ("not_written",)),
)
