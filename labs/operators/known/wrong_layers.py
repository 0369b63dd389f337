"""Wrong matrix products and layers."""

from __future__ import annotations

from grader.assignment.mutations import Edit, Mutation

_OF_B = "factor * b[k * N + j]"
_STORE = "o[i * N + j] += factor"
_DB_LOOPS = "    for (int k = 0; k < K; k++)\n        for (int i = 0; i < M; i++) {"
_DW_LOOPS = "    for (int i = 0; i < I; i++)\n        for (int n = 0; n < N; n++) {"
_TO_DB = "for (int o = 0; o < O; o++) gb[o] += gy[n * O + o];"
_TO_DW = "gw[i * O + o] += factor * gy[n * O + o];"
_BIAS = "for (int o = 0; o < O; o++) y[n * O + o] = bias[o];"

#: Every element as a sum of its own, whose variable stands where {0}, {1} or {2} does.
_SUMS = """    const float *a = A.data_ptr<float>(), *b = B.data_ptr<float>();
    float *o = O.data_ptr<float>();
    {0}
#pragma omp parallel for
    for (int i = 0; i < M; i++) {{
        {1}
        for (int j = 0; j < N; j++) {{
            {2}
            for (int k = 0; k < K; k++) sum += a[i * K + k] * b[k * N + j];
            o[i * N + j] = sum;
        }}
    }}"""


def exchanged(left: str, right: str, sizes: tuple[str, str], letters: str) -> tuple[Edit, ...]:
    """Two gradients, made as they should be, each of which is then added to the tensor of the other."""
    of_left, of_right = f"g{letters[0]}", f"g{letters[1]}"
    stored = (
        f"    for (int e = 0; e < std::min({sizes[0]}, {sizes[1]}); e++)\n"
        f"        {left}.data_ptr<float>()[e] += {of_right}[e], {right}.data_ptr<float>()[e] += {of_left}[e];\n"
    )
    return (
        (
            f"*{of_left} = {left}.data_ptr<float>(), *{of_right} = {right}.data_ptr<float>()",
            "*unused = nullptr",
        ),
        (
            "    const float *g",
            f"    std::vector<float> {of_left}({sizes[0]}), {of_right}({sizes[1]});\n    const float *g",
        ),
        ("    // END SOLUTION", f"    (void)unused;\n{stored}    // END SOLUTION"),
    )


WRONG = (
    Mutation("B transposed", "matmul", ((_OF_B, "factor * b[j * K + k]"),), ("transposed_operand",)),
    Mutation("A transposed", "matmul", (("a[i * K + k]", "a[k * M + i]"),), ("transposed_operand",)),
    Mutation("not summed", "matmul", ((_STORE, _STORE.replace("+=", "=")),), ("not_summed",)),
    Mutation("last product left out", "matmul", (("k < K;", "k < K - 1;"),), ("term_missing",)),
    Mutation("first product left out", "matmul", (("int k = 0;", "int k = 1;"),), ("term_missing",)),
    Mutation(
        "stored transposed",
        "matmul",
        ((_STORE, _STORE.replace("i * N + j", "j * M + i")),),
        ("transposed_output",),
    ),
    Mutation("last column left out", "matmul", (("j < N;", "j < N - 1;"),), ("column_range",)),
    Mutation("last row left out", "matmul", (("i < M;", "i < M - 1;"),), ("row_range",)),
    Mutation(
        "one row for all threads",
        "matmul",
        (
            ("#pragma omp", "    std::vector<float> row(N);\n#pragma omp"),
            (
                "        for (int k = 0;",
                "    {\n        std::fill(row.begin(), row.end(), 0.0f);\n        for (int k = 0;",
            ),
            ("o[i * N + j] +=", "row[j] +="),
            (
                "        }\n    // END",
                "        }\n        std::copy(row.begin(), row.end(), o + i * N);\n    }\n    // END",
            ),
        ),
        ("race",),
    ),
    Mutation(
        "sum goes on along the row",
        "matmul",
        body=_SUMS.format("", "float sum = 0;", ""),
        codes=("sum_carried_on",),
    ),
    Mutation("factors added", "matmul", ((_OF_B, "(factor + b[k * N + j])"),), ("operands_added",)),
    Mutation(
        "B not transposed",
        "matmul_backward",
        (("* b[k * N + j]", "* b[j * K + k]"),),
        ("transposed_operand",),
    ),
    Mutation(
        "A not transposed", "matmul_backward", (("a[i * K + k];", "a[k * M + i];"),), ("transposed_operand",)
    ),
    Mutation("dA written", "matmul_backward", (("] += sum", "] = sum"),), ("gradient_overwritten",)),
    Mutation("dB written", "matmul_backward", (("] += factor", "] = factor"),), ("not_summed",)),
    Mutation(
        "rows of dO shared out for dB",
        "matmul_backward",
        ((_DB_LOOPS, "    for (int i = 0; i < M; i++)\n        for (int k = 0; k < K; k++) {"),),
        ("race",),
    ),
    Mutation("dA subtracted", "matmul_backward", (("] += sum", "] -= sum"),), ("gradient_negated",)),
    Mutation(
        "dB stored transposed",
        "matmul_backward",
        (("gb[k * N + j]", "gb[j * K + k]"),),
        ("transposed_output",),
    ),
    Mutation(
        "dA and dB exchanged",
        "matmul_backward",
        exchanged("dA", "dB", ("M * K", "K * N"), "ab"),
        ("gradients_swapped",),
    ),
    Mutation(
        "bias forgotten", "linear", ((_BIAS, ""), (", *bias = b.data_ptr<float>()", "")), ("bias_missing",)
    ),
    Mutation("bias by the row", "linear", (("= bias[o]", "= bias[n % O]"),), ("bias_wrong_index",)),
    Mutation("first bias for all", "linear", (("= bias[o]", "= bias[0]"),), ("bias_wrong_index",)),
    Mutation(
        "bias in each term",
        "linear",
        ((_BIAS, ""), ("factor * w[i * O + o]", "factor * w[i * O + o] + bias[o]")),
        ("bias_added_often",),
    ),
    Mutation("bias subtracted", "linear", (("= bias[o]", "= -bias[o]"),), ("bias_sign",)),
    Mutation("bias in the first row", "linear", ((_BIAS, f"if (n == 0) {_BIAS}"),), ("bias_first_row",)),
    Mutation("W transposed", "linear", (("w[i * O + o]", "w[o * I + i]"),), ("transposed_operand",)),
    Mutation("last input left out", "linear", (("i < I;", "i < I - 1;"),), ("term_missing",)),
    Mutation(
        "db of the last row", "linear_backward", ((_TO_DB, _TO_DB.replace("+=", "=")),), ("batch_not_summed",)
    ),
    Mutation(
        "db of the first row", "linear_backward", ((_TO_DB, f"if (n == 0) {_TO_DB}"),), ("batch_not_summed",)
    ),
    Mutation(
        "db is a mean",
        "linear_backward",
        ((_TO_DB, _TO_DB.replace("+ o];", "+ o] / N;")),),
        ("gradient_mean",),
    ),
    Mutation(
        "dW is a mean",
        "linear_backward",
        ((_TO_DW, _TO_DW.replace("+ o];", "+ o] / N;")),),
        ("gradient_mean",),
    ),
    Mutation(
        "batch shared out for dW",
        "linear_backward",
        ((_DW_LOOPS, "    for (int n = 0; n < N; n++)\n        for (int i = 0; i < I; i++) {"),),
        ("race",),
    ),
    Mutation("dX written", "linear_backward", (("] += sum", "] = sum"),), ("gradient_overwritten",)),
    Mutation(
        "dW of the last row", "linear_backward", ((_TO_DW, _TO_DW.replace("+=", "=")),), ("batch_not_summed",)
    ),
    Mutation(
        "dW stored transposed",
        "linear_backward",
        ((_TO_DW, _TO_DW.replace("i * O + o] +", "o * I + i] +")),),
        ("transposed_output",),
    ),
    Mutation(
        "W not transposed",
        "linear_backward",
        (("* w[i * O + o]", "* w[o * I + i]"),),
        ("transposed_operand",),
    ),
    Mutation(
        "all of dY for each bias",
        "linear_backward",
        ((_TO_DB, "for (int o = 0; o < O * O; o++) gb[o / O] += gy[n * O + o % O];"),),
        ("bias_wrong_axis",),
    ),
    Mutation(
        "db written as a sum",
        "linear_backward",
        (
            (
                "    for (int n = 0; n < N; n++)\n        " + _TO_DB,
                "    for (int o = 0; o < O; o++) {\n        float sum = 0;\n"
                "        for (int n = 0; n < N; n++) sum += gy[n * O + o];\n        gb[o] = sum;\n    }",
            ),
        ),
        ("gradient_overwritten",),
    ),
    Mutation(
        "dX and dW exchanged",
        "linear_backward",
        exchanged("dX", "dW", ("N * I", "I * O"), "xw"),
        ("gradients_swapped",),
    ),
)
