"""Wrong kernels as edits of the course's solution, each with the codes of its expected diagnosis."""

from __future__ import annotations

from grader.assignment.mutations import Edit, Mutation

_OF_B = "factor * b[k * N + j]"
_STORE = "o[i * N + j] += factor"
_DB_LOOPS = "    for (int k = 0; k < K; k++)\n        for (int i = 0; i < M; i++) {"
_DW_LOOPS = "    for (int i = 0; i < I; i++)\n        for (int n = 0; n < N; n++) {"
_TO_DB = "for (int o = 0; o < O; o++) gb[o] += gy[n * O + o];"
_TO_DW = "gw[i * O + o] += factor * gy[n * O + o];"
_BIAS = "for (int o = 0; o < O; o++) y[n * O + o] = bias[o];"

#: A matrix product that adds into a variable `sum`. Its declaration replaces one of {0}, {1} and {2}; only at {2} does
#: each element of O start with a new sum.
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
    """Return edits with which a function computes two gradients correctly and then adds each to the other's tensor."""
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
    Mutation("stored transposed", "matmul", ((_STORE, _STORE.replace("i * N + j", "j * M + i")),),
             ("transposed_output",)),
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
    Mutation("sum goes on along the row", "matmul", body=_SUMS.format("", "float sum = 0;", ""),
             codes=("sum_carried_on",)),
    Mutation("factors added", "matmul", ((_OF_B, "(factor + b[k * N + j])"),), ("operands_added",)),
    Mutation("B not transposed", "matmul_backward", (("* b[k * N + j]", "* b[j * K + k]"),), ("transposed_operand",)),
    Mutation("A not transposed", "matmul_backward", (("a[i * K + k];", "a[k * M + i];"),), ("transposed_operand",)),
    Mutation("dA written", "matmul_backward", (("] += sum", "] = sum"),), ("gradient_overwritten",)),
    Mutation("dB written", "matmul_backward", (("] += factor", "] = factor"),), ("not_summed",)),
    Mutation("rows of dO shared out for dB", "matmul_backward",
             ((_DB_LOOPS, "    for (int i = 0; i < M; i++)\n        for (int k = 0; k < K; k++) {"),), ("race",)),
    Mutation("dA subtracted", "matmul_backward", (("] += sum", "] -= sum"),), ("gradient_negated",)),
    Mutation("dB stored transposed", "matmul_backward", (("gb[k * N + j]", "gb[j * K + k]"),),
             ("transposed_output",)),
    Mutation("dA and dB exchanged", "matmul_backward", exchanged("dA", "dB", ("M * K", "K * N"), "ab"),
             ("gradients_swapped",)),
    Mutation("bias forgotten", "linear", ((_BIAS, ""), (", *bias = b.data_ptr<float>()", "")), ("bias_missing",)),
    Mutation("bias by the row", "linear", (("= bias[o]", "= bias[n % O]"),), ("bias_wrong_index",)),
    Mutation("first bias for all", "linear", (("= bias[o]", "= bias[0]"),), ("bias_wrong_index",)),
    Mutation("bias in each term", "linear",
             ((_BIAS, ""), ("factor * w[i * O + o]", "factor * w[i * O + o] + bias[o]")), ("bias_added_often",)),
    Mutation("bias subtracted", "linear", (("= bias[o]", "= -bias[o]"),), ("bias_sign",)),
    Mutation("bias in the first row", "linear", ((_BIAS, f"if (n == 0) {_BIAS}"),), ("bias_first_row",)),
    Mutation("W transposed", "linear", (("w[i * O + o]", "w[o * I + i]"),), ("transposed_operand",)),
    Mutation("last input left out", "linear", (("i < I;", "i < I - 1;"),), ("term_missing",)),
    Mutation("db of the last row", "linear_backward", ((_TO_DB, _TO_DB.replace("+=", "=")),), ("batch_not_summed",)),
    Mutation("db of the first row", "linear_backward", ((_TO_DB, f"if (n == 0) {_TO_DB}"),), ("batch_not_summed",)),
    Mutation("db is a mean", "linear_backward", ((_TO_DB, _TO_DB.replace("+ o];", "+ o] / N;")),),
             ("gradient_mean",)),
    Mutation("dW is a mean", "linear_backward", ((_TO_DW, _TO_DW.replace("+ o];", "+ o] / N;")),),
             ("gradient_mean",)),
    Mutation("batch shared out for dW", "linear_backward",
             ((_DW_LOOPS, "    for (int n = 0; n < N; n++)\n        for (int i = 0; i < I; i++) {"),), ("race",)),
    Mutation("dX written", "linear_backward", (("] += sum", "] = sum"),), ("gradient_overwritten",)),
    Mutation("dW of the last row", "linear_backward", ((_TO_DW, _TO_DW.replace("+=", "=")),), ("batch_not_summed",)),
    Mutation("dW stored transposed", "linear_backward", ((_TO_DW, _TO_DW.replace("i * O + o] +", "o * I + i] +")),),
             ("transposed_output",)),
    Mutation("W not transposed", "linear_backward", (("* w[i * O + o]", "* w[o * I + i]"),), ("transposed_operand",)),
    Mutation("all of dY for each bias", "linear_backward",
             ((_TO_DB, "for (int o = 0; o < O * O; o++) gb[o / O] += gy[n * O + o % O];"),), ("bias_wrong_axis",)),
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
    Mutation("dX and dW exchanged", "linear_backward", exchanged("dX", "dW", ("N * I", "I * O"), "xw"),
             ("gradients_swapped",)),
)  # fmt: skip


# ---- wrong sums, products and ReLUs

_ROW_OF_B = "b + (RB == 1 ? 0 : i) * CB"
_COLUMN_OF_B = "row[CB == 1 ? 0 : j]"
_ADD_ROWS = "#pragma omp parallel for\n    for (int i = 0; i < R; i++) {"
_BACK_ROWS = "    for (int i = 0; i < R; i++) {\n        float *row"
_ADDS_TO_DB = "row[CB == 1 ? 0 : j] += go[i * C + j];"
_TO_GB = "gb[other] += go[at] * a[at];"
_TO_GA = "ga[at] += go[at] * b[other];"

WRONG_ELEMENTS = (
    Mutation("B by the row's index", "add", ((_COLUMN_OF_B, "row[CB == 1 ? 0 : i % CB]"),),
             ("broadcast_wrong_axis",)),
    Mutation("first row of B", "add", ((_ROW_OF_B, "b"),), ("broadcast_too_much",)),
    Mutation("first column of B", "add", ((_COLUMN_OF_B, "row[0]"),), ("broadcast_too_much",)),
    Mutation("B subtracted", "add", ((" + row[", " - row["),), ("wrong_operator",)),
    Mutation("B multiplied", "add", ((" + row[", " * row["),), ("wrong_operator",)),
    Mutation("B forgotten", "add",
             ((" + row[CB == 1 ? 0 : j]", ""), ("        const float *row = " + _ROW_OF_B + ";\n", "")),
             ("operand_missing",)),
    Mutation("last row left out", "add", ((_ADD_ROWS, _ADD_ROWS.replace("i < R;", "i < R - 1;")),), ("row_range",)),
    Mutation("dA written", "add_backward", (("ga[i * C + j] +=", "ga[i * C + j] ="),), ("gradient_overwritten",)),
    Mutation("dB written", "add_backward", ((_ADDS_TO_DB, _ADDS_TO_DB.replace("+=", "=")),),
             ("broadcast_not_summed",)),
    Mutation(
        "dB by the row's index",
        "add_backward",
        (
            (
                _ADDS_TO_DB,
                "if (CB > 1 && i >= CB) continue;\n            row[CB == 1 ? 0 : i] += go[i * C + j];",
            ),
        ),
        ("broadcast_wrong_axis",),
    ),
    Mutation("first use alone", "add_backward",
             ((_ADDS_TO_DB, f"if ((RB > 1 || i == 0) && (CB > 1 || j == 0)) {_ADDS_TO_DB}"),),
             ("broadcast_not_summed",)),
    Mutation("rows of dB shared by threads", "add_backward",
             ((_BACK_ROWS, "#pragma omp parallel for\n" + _BACK_ROWS),), ("race",)),
    Mutation("gradient subtracted", "add_backward", (("ga[i * C + j] +=", "ga[i * C + j] -="),),
             ("gradient_negated",)),
    Mutation("sum for the product", "mul", ((" * row[CB", " + row[CB"),), ("wrong_operator",)),
    Mutation("one number of B", "mul", ((_ROW_OF_B, "b"), (_COLUMN_OF_B, "row[0]")), ("broadcast_too_much",)),
    Mutation("operands swapped", "mul_backward",
             ((_TO_GA, "ga[at] += go[at] * a[at];"), (_TO_GB, "gb[other] += go[at] * b[other];")),
             ("operands_swapped",)),
    Mutation("dO forgotten", "mul_backward", ((_TO_GA, "ga[at] += b[other];"),), ("upstream_ignored",)),
    Mutation("as of a sum", "mul_backward", ((_TO_GB, "gb[other] += go[at];"),), ("operand_missing",)),
    Mutation("last use of B alone", "mul_backward", ((_TO_GB, "gb[other] = go[at] * a[at];"),),
             ("broadcast_not_summed",)),
    Mutation("mean of the uses", "mul_backward", ((_TO_GB, "gb[other] += go[at] * a[at] * RB * CB / (R * C);"),),
             ("broadcast_mean",)),
    Mutation("gradient added twice", "mul_backward", ((_TO_GA, "ga[at] += 2 * go[at] * b[other];"),),
             ("gradient_added_twice",)),
    Mutation("dA and dB exchanged", "mul_backward", exchanged("dA", "dB", ("R * C", "RB * CB"), "ab"),
             ("gradients_swapped",)),
    Mutation("positive numbers cut off", "relu", (("x[i] > 0 ?", "x[i] < 0 ?"),), ("relu_sign",)),
    Mutation("absolute value", "relu", (("x[i] > 0 ? x[i] : 0", "std::abs(x[i])"),), ("relu_sign",)),
    Mutation("a leak", "relu", (("x[i] : 0", "x[i] : 0.01f * x[i]"),), ("relu_leaky",)),
    Mutation("slope for value", "relu", (("? x[i] : 0", "? 1 : 0"),), ("relu_step",)),
    Mutation("last number left out", "relu", (("i < n;", "i < n - 1;"),), ("element_range",)),
    Mutation("gradient at 0", "relu_backward", (("x[i] > 0", "x[i] >= 0"),), ("relu_at_zero",)),
    Mutation("by the sign of dO", "relu_backward", (("x[i] > 0", "go[i] > 0"),), ("relu_wrong_sign",)),
    Mutation("everywhere", "relu_backward", (("        if (x[i] > 0) ", "        "),), ("relu_missing",)),
    Mutation("slope alone", "relu_backward", (("+= go[i]", "+= 1"),), ("upstream_ignored",)),
    Mutation("dX written", "relu_backward",
             (("        if (x[i] > 0) gx[i] += go[i];", "        gx[i] = x[i] > 0 ? go[i] : 0;"),),
             ("gradient_overwritten",)),
)  # fmt: skip


# ---- wrong losses and steps

_SQUARE = "sum += difference * difference;"
_SLOPE = "2 * (x[i] - t[i]) / n"
_LOSS = "std::log(sum) + most - row[label[n]]"
_CHANGE = "(p - (c == label[n] ? 1 : 0)) / N"
_MOST = "const float most = *std::max_element(row, row + C);"

WRONG_LOSSES = (
    Mutation("sum of squares", "mse", (("= sum / n", "= sum"),), ("mean_missing",)),
    Mutation("mean taken twice", "mse", (("= sum / n", "= sum / n / n"),), ("mean_twice",)),
    Mutation("mean divides integers", "mse", (("= sum / n", "= 1 / n * sum"),), ("not_written",),
             says="divides integers, 1 / n"),
    Mutation("absolute differences", "mse", ((_SQUARE, "sum += std::abs(difference);"),), ("not_squared",)),
    Mutation("root of the mean", "mse", (("= sum / n", "= std::sqrt(sum / n)"),), ("root_taken",)),
    Mutation("half of the mean", "mse", (("= sum / n", "= sum / n / 2"),), ("half_of_loss",)),
    Mutation("last number left out", "mse", (("i < n;", "i < n - 1;"),), ("term_missing",)),
    Mutation("factor 2 forgotten", "mse_backward", ((_SLOPE, "(x[i] - t[i]) / n"),), ("factor_missing",)),
    Mutation("gradient of the sum", "mse_backward", ((_SLOPE, "2 * (x[i] - t[i])"),), ("mean_missing",)),
    Mutation("T - X", "mse_backward", ((_SLOPE, "2 * (t[i] - x[i]) / n"),), ("gradient_negated",)),
    Mutation("factor divides integers", "mse_backward",
             ((_SLOPE, "factor * (x[i] - t[i])"), ("float *gx = dX.data_ptr<float>();",
               "auto memory = [](torch::Tensor &t) { return t.data_ptr<float>(); };\n"
               "    float *gx = memory(dX);\n    const float factor = 2 / n;")),
             ("not_written",), says="divides integers, 2 / n"),
    Mutation("dX written", "mse_backward", (("gx[i] +=", "gx[i] ="),), ("gradient_overwritten",)),
    Mutation("T forgotten", "mse_backward", ((_SLOPE, "2 * x[i] / n"), (", *t = T.data_ptr<float>()", "")),
             ("target_ignored",)),
    Mutation("no maximum", "cross_entropy", ((_MOST, "const float most = 0;"),), ("not_finite",)),
    Mutation("maximum of 0 at least", "cross_entropy",
             ((_MOST, "const float most = std::max(0.0f, *std::max_element(row, row + C));"),), ("not_finite",)),
    Mutation("log of a quotient", "cross_entropy", ((_LOSS, "-std::log(std::exp(row[label[n]] - most) / sum)"),),
             ("not_finite",)),
    Mutation("sum over the batch", "cross_entropy", (("= total / N", "= total"),), ("mean_missing",)),
    Mutation("mean over the classes too", "cross_entropy", (("= total / N", "= total / N / C"),),
             ("mean_over_classes",)),
    Mutation("maximum not taken back", "cross_entropy", ((_LOSS, "std::log(sum) - row[label[n]]"),),
             ("maximum_not_taken_back",)),
    Mutation("label from 1", "cross_entropy", (("row[label[n]]", "row[label[n] > 0 ? label[n] - 1 : C - 1]"),),
             ("label_off_by_one",)),
    Mutation("sign", "cross_entropy", ((_LOSS, "row[label[n]] - most - std::log(sum)"),), ("loss_negated",)),
    Mutation(
        "logarithm of base 2",
        "cross_entropy",
        (
            ("std::log(sum) + most", "std::log2(sum) + (most"),
            ("row[label[n]]", "row[label[n]]) / std::log(2.0f)"),
        ),
        ("wrong_base",),
    ),
    Mutation("one total for all threads", "cross_entropy", ((" reduction(+ : total)", ""),), ("race",)),
    Mutation("1 at the label forgotten", "cross_entropy_backward",
             ((_CHANGE, "p / N"), ("    const int64_t *label = labels.data_ptr<int64_t>();\n", "")),
             ("one_hot_missing",)),
    Mutation("sum over the batch", "cross_entropy_backward", ((" / N;", ";"),), ("mean_missing",)),
    Mutation("1 not divided", "cross_entropy_backward", ((_CHANGE, "p / N - (c == label[n] ? 1 : 0)"),),
             ("mean_missing",)),
    Mutation("dX written", "cross_entropy_backward", (("gx[n * C + c] +=", "gx[n * C + c] ="),),
             ("gradient_overwritten",)),
    Mutation("no maximum", "cross_entropy_backward", ((_MOST, "const float most = 0;"),), ("not_finite",)),
    Mutation("label off by one", "cross_entropy_backward", (("c == label[n] ?", "c == label[n] + 1 ?"),),
             ("label_off_by_one",)),
    Mutation("not divided by the sum", "cross_entropy_backward", ((" / sum;", ";\n            (void)sum;"),),
             ("not_normalised",)),
    Mutation(
        "one row for all threads",
        "cross_entropy_backward",
        (
            ("#pragma omp", "    std::vector<float> exps(C);\n#pragma omp"),
            ("sum += std::exp(row[c] - most);", "sum += exps[c] = std::exp(row[c] - most);"),
            ("p = std::exp(row[c] - most) / sum", "p = exps[c] / sum"),
        ),
        ("race",),
    ),
    Mutation("uphill", "sgd", (("p[i] -=", "p[i] +="),), ("step_uphill",)),
    Mutation("rate ignored", "sgd", (("rate * g[i]", "g[i]"),), ("rate_ignored",)),
    Mutation("parameters replaced", "sgd", (("p[i] -= rate", "p[i] = -rate"),), ("step_replaces",)),
    Mutation("last number left out", "sgd", (("i < n;", "i < n - 1;"),), ("element_range",)),
)  # fmt: skip


# ---- wrong convolutions and maxima of windows

_PLACE = "ih = oh * stride + kh - pad, iw = ow * stride + kw - pad;"
_SIZES = "OH = (H + 2 * pad - K) / stride + 1, OW = (Wd + 2 * pad - K) / stride + 1;"
_TAP = "((c * K + kh) * K + kw) * places"
_READ = "x[((n * C + c) * H + ih) * Wd + iw]"
_COLUMNS = "        std::vector<float> columns(taps * places, 0.0f);\n"
_IMAGES = "#pragma omp parallel for\n    for (int n = 0; n < N; n++) {\n"
_PICTURE_BIAS = "out[p] = bias[f]"
_DB = """        for (int n = 0; n < N; n++)
            for (int p = 0; p < places; p++) gb[f] += gy[(n * F + f) * places + p];"""
_DX = "gx[((n * C + c) * H + ih) * Wd + iw] += column[oh * OW + ow];"
_INSIDE = "ih >= 0 && ih < H && iw >= 0 && iw < Wd"
_DW_PLACE = _PLACE + "\n                    const bool inside"
_DX_PLACE = _PLACE + "\n                    if ("
_TAPS_LOOP = "#pragma omp parallel for\n    for (int t = 0; t < taps; t++) {"
_SEEN = "        for (int n = 0; n < N; n++) {\n            for (int oh"


def _placed(place: str) -> tuple[tuple[str, str], ...]:
    """Return the edit with which conv2dForward reads the image at other indices: `place` declares ih and iw."""
    return ((_PLACE, place),)


WRONG_PICTURES = (
    Mutation("taps as (kh, kw, c)", "conv2d", ((_TAP, "((kh * K + kw) * C + c) * places"),), ("im2col_order",)),
    Mutation("taps transposed", "conv2d", ((_TAP, "((c * K + kw) * K + kh) * places"),), ("kernel_transposed",)),
    Mutation("filter flipped", "conv2d",
             _placed("ih = oh * stride + (K - 1 - kh) - pad, iw = ow * stride + (K - 1 - kw) - pad;"),
             ("kernel_flipped",)),
    Mutation("border ignored", "conv2d", _placed("ih = oh * stride + kh, iw = ow * stride + kw;"),
             ("padding_ignored",)),
    Mutation("border one too wide", "conv2d", _placed(_PLACE.replace("- pad", "- pad - 1")), ("padding_off_by_one",)),
    Mutation("border one too narrow", "conv2d", _placed(_PLACE.replace("- pad", "- pad + 1")),
             ("padding_off_by_one",)),
    Mutation("stride ignored", "conv2d", _placed(_PLACE.replace(" * stride", "")), ("stride_ignored",)),
    Mutation("stride times the filter's index", "conv2d",
             _placed("ih = oh + kh * stride - pad, iw = ow + kw * stride - pad;"), ("stride_of_filter",)),
    Mutation("stride of columns ignored", "conv2d", _placed(_PLACE.replace("ow * stride", "ow")), ("stride_ignored",),
             says="In the columns only: "),
    Mutation("border times stride", "conv2d",
             _placed("ih = (oh - pad) * stride + kh, iw = (ow - pad) * stride + kw;"), ("stride_of_border",),
             says="multiplied by the stride"),
    Mutation(
        "border repeated",
        "conv2d",
        (
            (f"if ({_INSIDE})\n", ""),
            (
                _READ,
                "x[((n * C + c) * H + std::min(std::max(ih, 0), H - 1)) * Wd + std::min(std::max(iw, 0), Wd - 1)]",
            ),
        ),
        ("border_repeated",),
    ),
    Mutation("bias forgotten", "conv2d", ((_PICTURE_BIAS, "out[p] = 0"), (", *bias = b.data_ptr<float>()", "")),
             ("bias_missing",)),
    Mutation("bias by the image", "conv2d", ((_PICTURE_BIAS, "out[p] = bias[n % F]"),), ("bias_wrong_index",)),
    Mutation("bias in each channel", "conv2d", ((_PICTURE_BIAS, "out[p] = C * bias[f]"),), ("bias_added_often",)),
    Mutation("size without + 1", "conv2d", ((_SIZES, _SIZES.replace(" + 1", "")),), ("wrong_shape",)),
    Mutation(
        "size rounded up",
        "conv2d",
        (
            (
                _SIZES,
                "OH = (H + 2 * pad - K + stride - 1) / stride + 1, OW = (Wd + 2 * pad - K + stride - 1) / stride + 1;",
            ),
        ),
        ("wrong_shape",),
    ),
    Mutation("first row of the image as border", "conv2d", (("if (ih >= 0", "if (ih > 0"),), ("image_edge",)),
    Mutation("last column of the image as border", "conv2d", (("iw < Wd)", "iw < Wd - 1)"),), ("image_edge",)),
    Mutation("rows of H numbers", "conv2d", ((_READ, "x[(n * C + c) * H * Wd + (ih * H + iw) % (H * Wd)]"),),
             ("row_length",)),
    Mutation("one image's columns for all threads", "conv2d",
             ((_COLUMNS, ""), (_IMAGES, "    std::vector<float> columns(taps * places, 0.0f);\n" + _IMAGES)),
             ("race",)),
    Mutation("channels replaced", "conv2d",
             (("out[p] += factor", "out[p] = (t % (K * K) == 0 ? bias[f] : out[p]) + factor"),),
             ("channels_missing",)),
    Mutation("db of the first image", "conv2d_backward", ((_DB, _DB.replace("n < N", "n < 1")),),
             ("batch_not_summed",)),
    Mutation("db of the last image", "conv2d_backward", ((_DB, _DB.replace("int n = 0", "int n = N - 1")),),
             ("batch_not_summed",)),
    Mutation("db is a mean of images", "conv2d_backward", ((_DB, _DB.replace("+ p];", "+ p] / N;")),),
             ("gradient_mean",)),
    Mutation("db of one place", "conv2d_backward", ((_DB, _DB.replace("p < places", "p < 1")),),
             ("places_not_summed",)),
    Mutation("dW written", "conv2d_backward", (("gw[f * taps + t] += sum", "gw[f * taps + t] = sum"),),
             ("batch_not_summed",)),
    Mutation("dW is a mean", "conv2d_backward", (("gw[f * taps + t] += sum", "gw[f * taps + t] += sum / N"),),
             ("gradient_mean",)),
    Mutation("dX written", "conv2d_backward", ((_DX, _DX.replace("+=", "=")),), ("overlap_overwritten",)),
    Mutation("images shared out for dW", "conv2d_backward",
             ((_TAPS_LOOP, _TAPS_LOOP.partition("\n")[2]), (_SEEN, "#pragma omp parallel for\n" + _SEEN)), ("race",)),
    Mutation("dW as (kh, kw, c)", "conv2d_backward",
             (("gw[f * taps + t] +=", "gw[f * taps + t % (K * K) * C + c] +="),), ("im2col_order",)),
    Mutation("filters not added up", "conv2d_backward", (("column[p] += factor", "column[p] = factor"),),
             ("filters_not_summed",)),
    Mutation("dX of a flipped filter", "conv2d_backward",
             ((_DX_PLACE, _DX_PLACE.replace("+ kh", "+ (K - 1 - kh)").replace("+ kw", "+ (K - 1 - kw)")),),
             ("kernel_flipped",)),
    Mutation("dX without the border", "conv2d_backward", ((_DX_PLACE, _DX_PLACE.replace(" - pad", "")),),
             ("padding_ignored",)),
    Mutation("dW in steps of 1", "conv2d_backward", ((_DW_PLACE, _DW_PLACE.replace(" * stride", "")),),
             ("stride_ignored",)),
    Mutation(
        "dW of transposed filters",
        "conv2d_backward",
        (
            (
                "t / K % K, kw = t % K;\n        std::vector<float> seen",
                "t % K, kw = t / K % K;\n        std::vector<float> seen",
            ),
        ),
        ("kernel_transposed",),
    ),
    Mutation("dX and dW exchanged", "conv2d_backward",
             exchanged("dX", "dW", ("N * C * H * Wd", "F * C * K * K"), "xw"), ("gradients_swapped",)),
    Mutation("maximum begins at 0", "maxpool2d", (("] = from[best];", "] = std::max(0.0f, from[best]);"),),
             ("maximum_from_zero",)),
    Mutation("smallest number", "maxpool2d", (("from[place] > from[best]", "from[place] < from[best]"),),
             ("minimum",)),
    Mutation("last of equal ones", "maxpool2d", (("from[place] > from[best]", "from[place] >= from[best]"),),
             ("last_of_equal",)),
    Mutation(
        "columns before rows",
        "maxpool2d",
        (
            (
                "for (int kh = 0; kh < K; kh++)\n                    for (int kw = 0; kw < K; kw++)",
                "for (int kw = 0; kw < K; kw++)\n                    for (int kh = 0; kh < K; kh++)",
            ),
        ),
        ("first_by_columns",),
    ),
    Mutation("place in the window", "maxpool2d",
             (("] = best;", "] = (best / Wd - oh * stride) * K + best % Wd - ow * stride;"),), ("index_in_window",)),
    Mutation("place in the tensor", "maxpool2d", (("] = best;", "] = plane * H * Wd + best;"),),
             ("index_in_tensor",)),
    Mutation("place by columns", "maxpool2d", (("] = best;", "] = best % Wd * H + best / Wd;"),),
             ("index_transposed",)),
    Mutation("steps of 1", "maxpool2d", (("oh * stride", "oh", 2), ("ow * stride", "ow", 2)), ("stride_ignored",)),
    Mutation("steps of K", "maxpool2d",
             (("oh * stride", "std::min(oh * K, H - K)", 2), ("ow * stride", "std::min(ow * K, Wd - K)", 2)),
             ("stride_is_window",)),
    Mutation("windows of K - 1", "maxpool2d", (("kh < K;", "kh < K - 1;"), ("kw < K;", "kw < K - 1;")),
             ("window_too_small",)),
    Mutation("index never stored", "maxpool2d",
             (("                at[(plane * OH + oh) * OW + ow] = best;\n", "                (void)at;\n"),),
             ("not_written",)),
    Mutation("gradient written", "maxpool2d_backward", (("] += gy", "] = gy"),), ("overlap_overwritten",)),
    Mutation("first plane alone", "maxpool2d_backward",
             (("#pragma omp parallel for\n", ""), ("gx[plane * H * Wd + at", "gx[at")), ("plane_ignored",)),
    Mutation("dX cleared first", "maxpool2d_backward",
             (("#pragma omp", "    std::fill(gx, gx + N * C * H * Wd, 0.0f);\n#pragma omp"),),
             ("gradient_overwritten",)),
    Mutation(
        "whole window",
        "maxpool2d_backward",
        (
            (
                "gx[plane * H * Wd + at[plane * OH * OW + p]] += gy[plane * OH * OW + p];",
                "for (int k = 0; k < K * K; k++)\n                gx[plane * H * Wd + (p / OW * stride + k / K) * Wd + "
                "p % OW * stride + k % K] += gy[plane * OH * OW + p];\n    (void)at;",
            ),
        ),
        ("whole_window",),
    ),
    Mutation("dY forgotten", "maxpool2d_backward", (("+= gy[plane * OH * OW + p];", "+= 1;\n    (void)gy;"),),
             ("upstream_ignored",)),
)  # fmt: skip
