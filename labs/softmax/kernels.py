"""Test kernels with known verdicts. Each is the course's solution (the master) with one named change.

`python -m grader selftest --lab softmax` judges all kernels. tests/test_softmax.py judges those of WRONG and RIGHT.
Each kernel of WRONG states the codes of its expected diagnosis. Kernels of RIGHT must pass and be fast enough, and SLOW
must be too slow. Students do not get this file.
"""

from __future__ import annotations

from grader.assignment.mutations import Mutation

__all__ = ["FUNCTIONS", "RIGHT", "SHAPE", "SLOW", "WRONG"]

#: Sizes for cases that state no sizes, in parts whose time is not measured.
SHAPE = {"R": 64, "C": 96, "d": 24}
FUNCTIONS = {
    "naive": "naiveSoftmax",
    "safe": "safeSoftmax",
    "online": "onlineSoftmax",
    "merge": "mergeSoftmax",
}

MOST = """        float most = -INFINITY;
        for (int j = 0; j < C; j++) {
            most = std::max(most, x[j]);
        }
"""
"""Text of the first pass of `safe`."""
NAIVE_SUM = """        for (int j = 0; j < C; j++) {
            sum += std::exp(x[j]);
        }
"""
NAIVE_WRITE = """        for (int j = 0; j < C; j++) {
            o[j] = std::exp(x[j]) / sum;
        }
"""
SAFE_SUM = """        for (int j = 0; j < C; j++) {
            sum += std::exp(x[j] - most);
        }
"""
WRITE = """        for (int j = 0; j < C; j++) {
            o[j] = std::exp(x[j] - most) / total;
        }
"""
"""Text of the last pass of `safe` and `online`."""
SKIP = "            if (x[j] == -INFINITY) continue;  // it adds 0 to the sum, and (-inf) - (-inf) is NaN\n"
NOW = "            const float now = std::max(most, x[j]);\n"
UPDATE = "            sum = sum * std::exp(most - now) + std::exp(x[j] - now);\n"
KEEP = "            most = now;\n"
START = "        float most = -INFINITY;\n        double sum = 0.0;\n"
ONLINE_PASS = "        for (int j = 0; j < C; j++) {\n" + SKIP + NOW + UPDATE + KEEP + "        }\n"
ROWS = "    for (int i = 0; i < R; i++) {\n"
ROW = "        const float *x = X + (size_t)i * C;\n        float *o = O + (size_t)i * C;\n"
J = "(int j = 0; j < C; j++)"
BLOCKS_OF_8 = "(int j = 0; j < C / 8 * 8; j++)"


# ---- wrong kernels of `naive`, each with the code of its expected diagnosis

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
    Mutation("divided by the largest", "naive",
             ((NAIVE_SUM, NAIVE_SUM.replace("sum += std::exp(x[j])", "sum = std::max(sum, std::exp(x[j]))")),),
             ("divided_by_largest", "not_normalised"), says="largest"),
    Mutation("sum over rows", "naive", (("        float sum = 0.0f;\n" + NAIVE_SUM + NAIVE_WRITE, COLUMN_SUM),),
             ("wrong_axis",)),
    Mutation("sum not reset", "naive",
             ((ROWS, "    float sum = 0.0f;\n" + ROWS), ("        float sum = 0.0f;\n", "")), ("sum_not_reset",)),
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
    Mutation("log2(e) and exp", "naive", (("std::exp(x[j])", "std::exp(x[j] * 1.4426950f)", 2),), ("wrong_base",)),
    Mutation("sum of x", "naive", (("sum += std::exp(x[j])", "sum += x[j]"),), ("exponential_missing_in_sum",)),
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
    Mutation("last column left out", "naive", ((J, J.replace("j < C", "j < C - 1"), 2),), ("columns_left_out",)),
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
)  # fmt: skip


# ---- wrong kernels of `safe`, each with the code of its expected diagnosis

WHOLE_MATRIX = """    float most = -INFINITY;
    for (size_t e = 0; e < (size_t)R * C; e++) most = std::max(most, X[e]);
"""
OF_COLUMN = """            float most = -INFINITY;
            for (int k = 0; k < R; k++) most = std::max(most, X[(size_t)k * C + j]);
"""

WRONG_SAFE = (
    Mutation("no maximum", "safe", (("x[j] - most", "x[j] - 0 * C", 2),), ("no_maximum",)),
    Mutation("maximum of the matrix", "safe", ((MOST, ""), (ROWS, WHOLE_MATRIX + ROWS)), ("maximum_of_matrix",)),
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
    Mutation("maximum of the first", "safe", ((MOST, "        const float most = x[0];\n"),), ("maximum_of_first",)),
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
    Mutation("maximum not reset", "safe",
             ((ROWS, "    float most = -INFINITY;\n" + ROWS), ("        float most = -INFINITY;\n", "")),
             ("maximum_not_reset",)),
    Mutation("maximum begun at 0", "safe", (("most = -INFINITY", "most = 0.0f"),), ("maximum_start",)),
    Mutation("maximum begun at FLT_MIN", "safe", (("most = -INFINITY", "most = std::numeric_limits<float>::min()"),),
             ("maximum_start",)),
    Mutation("maximum begun at -1000", "safe", (("most = -INFINITY", "most = -1000.0f"),), ("maximum_start",)),
    Mutation("largest magnitude", "safe", (("std::max(most, x[j])", "std::max(most, std::fabs(x[j]))"),),
             ("maximum_of_absolutes",)),
    Mutation("minimum", "safe",
             (("most = -INFINITY", "most = INFINITY"), ("std::max(most, x[j])", "std::min(most, x[j])")),
             ("minimum_taken",)),
    Mutation("maximum without the last", "safe", ((MOST, MOST.replace("j < C", "j < C - 1")),),
             ("maximum_misses_columns",)),
    Mutation("maximum without the first", "safe", ((MOST, MOST.replace("j = 0", "j = 1")),),
             ("maximum_misses_first",)),
    Mutation("maximum in blocks of eight", "safe", ((MOST, MOST.replace(J, BLOCKS_OF_8)),),
             ("maximum_misses_columns",), says="8"),
    Mutation("maximum in the sum only", "safe", ((WRITE, WRITE.replace("x[j] - most", "x[j]")),),
             ("maximum_only_in_sum",)),
    Mutation("no maximum in the sum", "safe", ((SAFE_SUM, SAFE_SUM.replace("x[j] - most", "x[j]")),),
             ("maximum_only_above",)),
    Mutation("maximum added", "safe", (("x[j] - most", "x[j] + most", 2),), ("maximum_added",)),
    Mutation("logarithm", "safe", (("std::exp(x[j] - most) / total", "x[j] - most - std::log(total)"),),
             ("log_taken",)),
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
    Mutation("sum not reset", "safe", ((ROWS, "    double sum = 0.0;\n" + ROWS), ("        double sum = 0.0;\n", "")),
             ("sum_not_reset",)),
    Mutation("whole blocks of eight", "safe", ((J, BLOCKS_OF_8, 3),), ("columns_left_out",), says="8"),
    Mutation("written in whole blocks of eight", "safe", ((WRITE, WRITE.replace(J, BLOCKS_OF_8)),),
             ("remainder_tile", "column_range")),
    Mutation(
        "reads what it wrote",
        "safe",
        (
            ("sum += std::exp(x[j] - most)", "sum += o[j] = std::exp(x[j] - most)"),
            ("std::exp(x[j] - most) / total", "std::exp(o[j] - most) / total"),
        ),
        ("reads_what_it_wrote",),
    ),
)  # fmt: skip


# ---- wrong kernels of `online`, each with the code of its expected diagnosis

WRONG_ONLINE = (
    Mutation("sum not rescaled", "online", (("sum * std::exp(most - now)", "sum"),), ("not_rescaled",)),
    Mutation("halves added as they are", "online",
             (("double sum = 0.0;\n        for (int j = 0; j < C; j++) {",
               "double sum = 0.0, left = 0.0;\n        float first = most;\n        for (int j = 0; j < C; j++) {\n"
               "            if (j == C / 2) left = sum, first = most, sum = 0.0, most = -INFINITY;"),
              ("= (float)sum;", "= (float)(sum + left);\n        most = std::max(most, first);")),
             ("lanes_not_rescaled",)),
    Mutation(
        "maximum updated after use",
        "online",
        (
            (START, "        float most = x[0] == -INFINITY ? -1e30f : x[0];\n        double sum = 0.0;\n"),
            ("std::exp(x[j] - now)", "std::exp(x[j] - most)"),
        ),
        ("maximum_after_use",),
    ),
    Mutation("new element rescaled", "online",
             ((UPDATE, "            sum = (sum + std::exp(x[j] - now)) * std::exp(most - now);\n"),),
             ("new_term_rescaled",)),
    Mutation("rescaled upside down", "online",
             (("sum * std::exp(most - now)", "(sum > 0 ? sum * std::exp(now - most) : 0)"),),
             ("rescaled_upside_down",)),
    Mutation("sum begun anew", "online", (("sum * std::exp(most - now)", "(now > most ? 0 : sum)"),),
             ("rescaled_to_new_only",)),
    Mutation("masked beginning", "online", ((SKIP, ""),), ("empty_so_far",)),
    Mutation(
        "first left out",
        "online",
        (
            (START, "        float most = x[0];\n        double sum = 0.0;\n"),
            (ONLINE_PASS, ONLINE_PASS.replace("j = 0", "j = 1")),
        ),
        ("first_left_out",),
    ),
    Mutation("first counted twice", "online",
             ((START, "        float most = x[0];\n        double sum = x[0] == -INFINITY ? 0.0 : 1.0;\n"),),
             ("first_counted_twice",)),
    Mutation(
        "written too early",
        "online",
        (
            (KEEP, KEEP + "            o[j] = std::exp(x[j] - most) / (float)sum;\n"),
            (WRITE, "        (void)total;\n"),
        ),
        ("written_too_early",),
    ),
    Mutation("state not reset", "online", ((START, ""), (ROWS, START.replace("        ", "    ") + ROWS)),
             ("state_not_reset",)),
    Mutation("maximum not reset", "online",
             (("        float most = -INFINITY;\n", ""), (ROWS, "    float most = -INFINITY;\n" + ROWS)),
             ("maximum_not_reset",)),
    Mutation("float sum", "online", (("double sum = 0.0", "float sum = 0.0f"),), ("float_sum",)),
    Mutation("powers of two", "online", (("std::exp(", "std::exp2(", 3),), ("wrong_base",)),
    Mutation("no maximum when written", "online", ((WRITE, WRITE.replace("x[j] - most", "x[j]")),),
             ("maximum_only_in_sum",)),
    Mutation("no maximum", "online",
             ((NOW, "            const float now = 0.0f;\n"), ("most = -INFINITY", "most = 0.0f")), ("no_maximum",)),
    Mutation("last column left out", "online", ((J, J.replace("j < C", "j < C - 1"), 2),), ("columns_left_out",)),
    Mutation("sum of whole blocks of eight", "online", ((ONLINE_PASS, ONLINE_PASS.replace(J, BLOCKS_OF_8)),),
             ("sum_misses_columns", "columns_left_out"), says="8"),
    Mutation("rows of R numbers", "online",
             ((ROW, ROW.replace("(size_t)i * C;\n        float", "(size_t)i * R;\n        float")),),
             ("wrong_stride",)),
)  # fmt: skip


# ---- wrong kernels of `merge`, each with the code of its expected diagnosis

MERGE_MOST = "std::max(m1[i], m2[i])"
LEFT, RIGHT = (
    "most == -INFINITY ? 0.0f : l1[i] * std::exp(m1[i] - most)",
    "most == -INFINITY ? 0.0f : l2[i] * std::exp(m2[i] - most)",
)
MEAN = "sum > 0.0f ? (left * o1[at] + right * o2[at]) / sum : 0.0f"
EMPTY = "sum > 0.0f ? "

WRONG_MERGES = (
    Mutation("left factor forgotten", "merge", ((LEFT, "l1[i]"),), ("left_not_rescaled",)),
    Mutation("right factor forgotten", "merge", ((RIGHT, "l2[i]"),), ("right_not_rescaled",)),
    Mutation("sums added as they are", "merge", ((LEFT, "l1[i]"), (RIGHT, "l2[i]")), ("sums_not_rescaled",)),
    Mutation("l added as it is", "merge", (("l[i] = sum", "l[i] = l1[i] + l2[i]"),), ("sums_not_rescaled",)),
    Mutation("maximum of the left", "merge", ((MERGE_MOST, "m1[i]"),), ("maximum_of_one_side",), says="left"),
    Mutation("maximum of the right", "merge", ((MERGE_MOST, "m2[i]"),), ("maximum_of_one_side",), says="right"),
    Mutation("minimum", "merge", ((MERGE_MOST, "std::min(m1[i], m2[i])"),), ("minimum_taken",)),
    Mutation("maxima added", "merge", ((MERGE_MOST, "m1[i] + m2[i]"),), ("maxima_added",)),
    Mutation("maximum not below 0", "merge", ((MERGE_MOST, f"std::max(0.0f, {MERGE_MOST})"),), ("maximum_start",)),
    Mutation(
        "factors upside down",
        "merge",
        (
            ("std::exp(m1[i] - most)", "std::exp(most - m1[i])"),
            ("std::exp(m2[i] - most)", "std::exp(most - m2[i])"),
        ),
        ("rescaled_upside_down",),
    ),
    Mutation(
        "factors exchanged",
        "merge",
        (
            ("l1[i] * std::exp(m1[i]", "l1[i] * std::exp(m2[i]"),
            ("l2[i] * std::exp(m2[i]", "l2[i] * std::exp(m1[i]"),
        ),
        ("factors_exchanged",),
    ),
    Mutation("powers of two", "merge", (("std::exp(", "std::exp2(", 2),), ("wrong_base",)),
    Mutation("no maximum", "merge", (("m1[i] - most", "m1[i]"), ("m2[i] - most", "m2[i]")), ("no_maximum",)),
    Mutation("empty sides not looked at", "merge", (("most == -INFINITY ? 0.0f : ", "", 2), (EMPTY, "true ? ")),
             ("empty_sides",), says="(-inf) - (-inf)"),
    Mutation("divided by nothing", "merge", ((EMPTY, "true ? "),), ("empty_sides",), says="0 / 0"),
    Mutation("empty where one side is", "merge",
             ((MERGE_MOST, f"m1[i] == -INFINITY || m2[i] == -INFINITY ? -INFINITY : {MERGE_MOST}"),), ("empty_sides",),
             says="one side"),
    Mutation("o not divided", "merge", ((" / sum : 0.0f", " : 0.0f"),), ("not_normalised",)),
    Mutation(
        "means taken for sums",
        "merge",
        (
            (
                MEAN,
                "sum > 0.0f ? (std::exp(m1[i] - most) * o1[at] + std::exp(m2[i] - most) * o2[at]) / sum : 0.0f",
            ),
        ),
        ("sums_forgotten_in_o",),
    ),
    Mutation("o not rescaled", "merge", ((MEAN, "sum > 0.0f ? (l1[i] * o1[at] + l2[i] * o2[at]) / sum : 0.0f"),),
             ("o_not_rescaled",)),
    Mutation("left mean not rescaled", "merge", (("left * o1", "l1[i] * o1"),), ("left_not_rescaled",)),
    Mutation("right mean not rescaled", "merge", (("right * o2", "l2[i] * o2"),), ("right_not_rescaled",)),
    Mutation("sum read after it was written", "merge", (("left * o1", "(l[i] * std::exp(m1[i] - most)) * o1"),),
             ("reads_what_it_wrote",)),
    Mutation("mean of the means", "merge", ((MEAN, "(o1[at] + o2[at]) / 2"),), ("o_not_merged",)),
    Mutation("left mean alone", "merge", ((MEAN, "o1[at]"),), ("o_not_merged",), says="left"),
    Mutation("last row left out", "merge", (("i < R", "i < R - 1"),), ("element_range",)),
    Mutation("last column left out", "merge", (("k < d", "k < d - 1"),), ("column_range",)),
    Mutation("m not stored", "merge", (("        m[i] = most;\n", ""),), ("not_written",)),
)  # fmt: skip

WRONG = (*WRONG_NAIVE, *WRONG_SAFE, *WRONG_ONLINE, *WRONG_MERGES)

# ---- right kernels in other styles than the course's solution: each must pass, and be fast enough

BACKWARDS = "(int j = C - 1; j >= 0; j--)"
LOG2_E = "1.44269504f"

_ACCESSORS = """
    auto x = XTensor.accessor<float, 2>();
    auto o = OTensor.accessor<float, 2>();
    (void)X, (void)O;
    for (int i = 0; i < R; i++) {
        float sum = 0;
        for (int j = 0; j < C; j++) sum += expf(x[i][j]);
        for (int j = 0; j < C; j++) o[i][j] = expf(x[i][j]) / sum;
    }"""

_BLOCK_SUMS = """        float total = 0.0f;
        for (int j0 = 0; j0 < C; j0 += 1024) {
            float sum = 0.0f;
            for (int j = j0; j < std::min(C, j0 + 1024); j++) sum += std::exp(x[j] - most);
            total += sum;
        }
"""

_COMPENSATED = """        float sum = 0.0f, lost = 0.0f;
        for (int j = 0; j < C; j++) {
            const float term = std::exp(x[j] - most) - lost, next = sum + term;
            lost = (next - sum) - term;
            sum = next;
        }
"""

_PARTIAL_RESULTS = """
    for (int i = 0; i < R; i++) {
        const float *x = X + (size_t)i * C;
        float most = -1e30f, sum = 0.0f;
        for (int j0 = 0; j0 < C; j0 += 512) {
            const int end = std::min(C, j0 + 512);
            float m = -1e30f, l = 0.0f;
            for (int j = j0; j < end; j++) {
                if (x[j] > m) {
                    l *= std::exp(m - x[j]);
                    m = x[j];
                }
                l += std::exp(x[j] - m);
            }
            const float both = std::max(m, most);
            sum = sum * std::exp(most - both) + l * std::exp(m - both);
            most = both;
        }
        for (int j = 0; j < C; j++) O[(size_t)i * C + j] = std::exp(x[j] - most) / sum;
    }"""

_ONE_BRANCH = """            if (x[j] > most) {
                sum *= std::exp(most - x[j]);
                most = x[j];
            }
            if (x[j] > -INFINITY) sum += std::exp(x[j] - most);
"""

_FACTORS = """
    for (int i = 0; i < R; i++) {
        m[i] = m1[i] > m2[i] ? m1[i] : m2[i];
        float a = l1[i] > 0 ? expf(m1[i] - m[i]) : 0, b = l2[i] > 0 ? expf(m2[i] - m[i]) : 0;
        l[i] = a * l1[i] + b * l2[i];
        a = l[i] > 0 ? a * l1[i] / l[i] : 0;
        b = l[i] > 0 ? b * l2[i] / l[i] : 0;
        for (int k = 0; k < d; k++) o[i * d + k] = a * o1[i * d + k] + b * o2[i * d + k];
    }"""

_ONE_EXPONENTIAL = """
    for (int i = 0; i < R; i++) {
        const bool right_larger = m2[i] > m1[i];
        const float most = right_larger ? m2[i] : m1[i], least = right_larger ? m1[i] : m2[i];
        const float factor = least == -INFINITY ? 0.0f : std::exp(least - most);
        const double a = right_larger ? factor * l1[i] : l1[i], b = right_larger ? l2[i] : factor * l2[i];
        m[i] = most, l[i] = a + b;
        for (int k = 0; k < d; k++)
            o[(size_t)i * d + k] = a + b == 0 ? 0 : (a * o1[(size_t)i * d + k] + b * o2[(size_t)i * d + k]) / (a + b);
    }"""

RIGHT = (
    Mutation(
        "kept, and divided late",
        "naive",
        (
            ("sum += std::exp(x[j])", "sum += o[j] = std::exp(x[j])"),
            ("o[j] = std::exp(x[j]) / sum", "o[j] /= sum"),
        ),
    ),
    Mutation("multiplied by the inverse", "naive", ((NAIVE_WRITE, NAIVE_WRITE.replace("/ sum", "* (1.0f / sum)")),)),
    Mutation("accessors and expf", "naive", body=_ACCESSORS),
    Mutation("backwards", "naive", ((J, BACKWARDS, 2),)),
    Mutation("exp2 of x log2(e)", "naive", (("std::exp(x[j])", f"std::exp2(x[j] * {LOG2_E})", 2),)),
    Mutation(
        "four sums",
        "naive",
        (
            (
                NAIVE_SUM,
                "        float sums[4] = {};\n"
                + NAIVE_SUM.replace("sum +=", "sums[j % 4] +=")
                + "        sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);\n",
            ),
        ),
    ),
    Mutation(
        "sums in blocks",
        "safe",
        (
            (
                "        double sum = 0.0;\n" + SAFE_SUM + "        const float total = (float)sum;\n",
                _BLOCK_SUMS,
            ),
        ),
    ),
    Mutation("compensated sum", "safe", (("        double sum = 0.0;\n" + SAFE_SUM, _COMPENSATED),)),
    Mutation("largest element", "safe", ((MOST, "        const float most = *std::max_element(x, x + C);\n"),)),
    Mutation("backwards", "safe", ((J, BACKWARDS, 3),)),
    Mutation(
        "exp2, scaled before",
        "safe",
        (
            (MOST, MOST + f"        const float scaled = most * {LOG2_E};\n"),
            ("std::exp(x[j] - most)", f"std::exp2(x[j] * {LOG2_E} - scaled)", 2),
        ),
    ),
    Mutation("OpenMP over rows", "safe", ((ROWS, "    #pragma omp parallel for\n" + ROWS),)),
    Mutation(
        "rows as vectors",
        "safe",
        (
            (
                ROW,
                "        const std::vector<float> x(X + (size_t)i * C, X + (size_t)i * C + C);\n"
                "        float *o = O + (size_t)i * C;\n",
            ),
        ),
    ),
    Mutation("rescaled only where it grows", "online", ((SKIP + NOW + UPDATE + KEEP, _ONE_BRANCH),)),
    Mutation("a finite beginning", "online", ((START, START.replace("-INFINITY", "-1e30f")), (SKIP, ""))),
    Mutation("partial results of blocks, merged", "online", body=_PARTIAL_RESULTS),
    Mutation("backwards", "online", ((ONLINE_PASS, ONLINE_PASS.replace(J, BACKWARDS)),)),
    Mutation("double throughout", "online", (("const float total = (float)sum", "const double total = sum"),)),
    Mutation("written backwards", "online", ((WRITE, WRITE.replace(J, BACKWARDS)),)),
    Mutation("shares of the whole", "merge", body=_FACTORS),
    Mutation("one exponential", "merge", body=_ONE_EXPONENTIAL),
    Mutation("columns backwards", "merge", (("(int k = 0; k < d; k++)", "(int k = d - 1; k >= 0; k--)"),)),
)  # fmt: skip

#: Computes five exponentials for each element, not one. Their arguments differ, because the compiler would compute
#: equal exponentials only once.
SLOW = Mutation(
    "four exponentials more for each element",
    "naive",
    (
        (
            "            sum += std::exp(x[j]);",
            "            volatile float kept = 0.0f;\n"
            "            for (int k = 4; k >= 0; k--) kept = std::exp(x[j] - k);\n"
            "            sum += kept;",
        ),
    ),
)
