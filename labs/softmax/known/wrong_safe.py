"""Wrong kernels of `safe`, each with the code of its expected diagnosis."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

from .texts import BLOCKS_OF_8, MOST, ROWS, SAFE_SUM, WRITE, J

WHOLE_MATRIX = """    float most = -INFINITY;
    for (size_t e = 0; e < (size_t)R * C; e++) most = std::max(most, X[e]);
"""
OF_COLUMN = """            float most = -INFINITY;
            for (int k = 0; k < R; k++) most = std::max(most, X[(size_t)k * C + j]);
"""

WRONG_SAFE = (
    Mutation("no maximum", "safe", (("x[j] - most", "x[j] - 0 * C", 2),), ("no_maximum",)),
    Mutation(
        "maximum of the matrix", "safe", ((MOST, ""), (ROWS, WHOLE_MATRIX + ROWS)), ("maximum_of_matrix",)
    ),
    Mutation(
        "maximum over rows",
        "safe",
        (
            (MOST, ""),
            ("            sum += std", OF_COLUMN + "            sum += std"),
            ("            o[j] =", OF_COLUMN + "            o[j] ="),
        ),
        ("maximum_wrong_axis",),
    ),
    Mutation(
        "maximum of the first", "safe", ((MOST, "        const float most = x[0];\n"),), ("maximum_of_first",)
    ),
    Mutation(
        "maximum of the row before",
        "safe",
        (
            (ROWS, "    float next = 0.0f;\n" + ROWS),
            (
                MOST,
                MOST.replace(
                    "float most = -INFINITY", "const float most = next;\n        next = -INFINITY"
                ).replace("most = std::max(most", "next = std::max(next"),
            ),
        ),
        ("maximum_of_row_before",),
    ),
    Mutation(
        "maximum not reset",
        "safe",
        ((ROWS, "    float most = -INFINITY;\n" + ROWS), ("        float most = -INFINITY;\n", "")),
        ("maximum_not_reset",),
    ),
    Mutation("maximum begun at 0", "safe", (("most = -INFINITY", "most = 0.0f"),), ("maximum_start",)),
    Mutation(
        "maximum begun at FLT_MIN",
        "safe",
        (("most = -INFINITY", "most = std::numeric_limits<float>::min()"),),
        ("maximum_start",),
    ),
    Mutation(
        "maximum begun at -1000", "safe", (("most = -INFINITY", "most = -1000.0f"),), ("maximum_start",)
    ),
    Mutation(
        "largest magnitude",
        "safe",
        (("std::max(most, x[j])", "std::max(most, std::fabs(x[j]))"),),
        ("maximum_of_absolutes",),
    ),
    Mutation(
        "minimum",
        "safe",
        (("most = -INFINITY", "most = INFINITY"), ("std::max(most, x[j])", "std::min(most, x[j])")),
        ("minimum_taken",),
    ),
    Mutation(
        "maximum without the last",
        "safe",
        ((MOST, MOST.replace("j < C", "j < C - 1")),),
        ("maximum_misses_columns",),
    ),
    Mutation(
        "maximum without the first",
        "safe",
        ((MOST, MOST.replace("j = 0", "j = 1")),),
        ("maximum_misses_first",),
    ),
    Mutation(
        "maximum in blocks of eight",
        "safe",
        ((MOST, MOST.replace(J, BLOCKS_OF_8)),),
        ("maximum_misses_columns",),
        says="8",
    ),
    Mutation(
        "maximum in the sum only",
        "safe",
        ((WRITE, WRITE.replace("x[j] - most", "x[j]")),),
        ("maximum_only_in_sum",),
    ),
    Mutation(
        "no maximum in the sum",
        "safe",
        ((SAFE_SUM, SAFE_SUM.replace("x[j] - most", "x[j]")),),
        ("maximum_only_above",),
    ),
    Mutation("maximum added", "safe", (("x[j] - most", "x[j] + most", 2),), ("maximum_added",)),
    Mutation(
        "logarithm",
        "safe",
        (("std::exp(x[j] - most) / total", "x[j] - most - std::log(total)"),),
        ("log_taken",),
    ),
    Mutation("float sum", "safe", (("double sum = 0.0", "float sum = 0.0f"),), ("float_sum",)),
    Mutation(
        "float sum in eight lanes",
        "safe",
        (
            (
                SAFE_SUM,
                "        float lanes[8] = {};\n"
                + SAFE_SUM.replace("sum +=", "lanes[j % 8] +=")
                + "        for (float lane : lanes) sum += lane;\n",
            ),
        ),
        ("float_sum",),
        says="8 floats",
    ),
    Mutation(
        "sum not reset",
        "safe",
        ((ROWS, "    double sum = 0.0;\n" + ROWS), ("        double sum = 0.0;\n", "")),
        ("sum_not_reset",),
    ),
    Mutation("whole blocks of eight", "safe", ((J, BLOCKS_OF_8, 3),), ("columns_left_out",), says="8"),
    Mutation(
        "written in whole blocks of eight",
        "safe",
        ((WRITE, WRITE.replace(J, BLOCKS_OF_8)),),
        ("remainder_tile", "column_range"),
    ),
    Mutation(
        "reads what it wrote",
        "safe",
        (
            ("sum += std::exp(x[j] - most)", "sum += o[j] = std::exp(x[j] - most)"),
            ("std::exp(x[j] - most) / total", "std::exp(o[j] - most) / total"),
        ),
        ("reads_what_it_wrote",),
    ),
)
