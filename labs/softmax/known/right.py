"""Right kernels in other styles than the master's: each must pass, in time too."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

from .wrong import (
    KEEP,
    MOST,
    NAIVE_SUM,
    NAIVE_WRITE,
    NOW,
    ONLINE_PASS,
    ROW,
    ROWS,
    SAFE_SUM,
    SKIP,
    START,
    UPDATE,
    WRITE,
    J,
)

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
