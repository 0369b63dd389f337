"""Wrong losses and steps."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

_SQUARE = "sum += difference * difference;"
_SLOPE = "2 * (x[i] - t[i]) / n"
_LOSS = "std::log(sum) + most - row[label[n]]"
_CHANGE = "(p - (c == label[n] ? 1 : 0)) / N"
_MOST = "const float most = *std::max_element(row, row + C);"

WRONG = (
    Mutation("sum of squares", "mse", (("= sum / n", "= sum"),), ("mean_missing",)),
    Mutation("mean taken twice", "mse", (("= sum / n", "= sum / n / n"),), ("mean_twice",)),
    Mutation("absolute differences", "mse", ((_SQUARE, "sum += std::abs(difference);"),), ("not_squared",)),
    Mutation("root of the mean", "mse", (("= sum / n", "= std::sqrt(sum / n)"),), ("root_taken",)),
    Mutation("half of the mean", "mse", (("= sum / n", "= sum / n / 2"),), ("half_of_loss",)),
    Mutation("last number left out", "mse", (("i < n;", "i < n - 1;"),), ("term_missing",)),
    Mutation("factor 2 forgotten", "mse_backward", ((_SLOPE, "(x[i] - t[i]) / n"),), ("factor_missing",)),
    Mutation("gradient of the sum", "mse_backward", ((_SLOPE, "2 * (x[i] - t[i])"),), ("mean_missing",)),
    Mutation("T - X", "mse_backward", ((_SLOPE, "2 * (t[i] - x[i]) / n"),), ("gradient_negated",)),
    Mutation("dX written", "mse_backward", (("gx[i] +=", "gx[i] ="),), ("gradient_overwritten",)),
    Mutation(
        "T forgotten",
        "mse_backward",
        ((_SLOPE, "2 * x[i] / n"), (", *t = T.data_ptr<float>()", "")),
        ("target_ignored",),
    ),
    Mutation("no maximum", "cross_entropy", ((_MOST, "const float most = 0;"),), ("not_finite",)),
    Mutation(
        "log of a quotient",
        "cross_entropy",
        ((_LOSS, "-std::log(std::exp(row[label[n]] - most) / sum)"),),
        ("not_finite",),
    ),
    Mutation("sum over the batch", "cross_entropy", (("= total / N", "= total"),), ("mean_missing",)),
    Mutation(
        "mean over the classes too",
        "cross_entropy",
        (("= total / N", "= total / N / C"),),
        ("mean_over_classes",),
    ),
    Mutation(
        "maximum not taken back",
        "cross_entropy",
        ((_LOSS, "std::log(sum) - row[label[n]]"),),
        ("maximum_not_taken_back",),
    ),
    Mutation(
        "label from 1",
        "cross_entropy",
        (("row[label[n]]", "row[label[n] > 0 ? label[n] - 1 : C - 1]"),),
        ("label_off_by_one",),
    ),
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
    Mutation(
        "1 at the label forgotten",
        "cross_entropy_backward",
        ((_CHANGE, "p / N"), ("    const int64_t *label = labels.data_ptr<int64_t>();\n", "")),
        ("one_hot_missing",),
    ),
    Mutation("sum over the batch", "cross_entropy_backward", ((" / N;", ";"),), ("mean_missing",)),
    Mutation(
        "1 not divided",
        "cross_entropy_backward",
        ((_CHANGE, "p / N - (c == label[n] ? 1 : 0)"),),
        ("mean_missing",),
    ),
    Mutation(
        "dX written",
        "cross_entropy_backward",
        (("gx[n * C + c] +=", "gx[n * C + c] ="),),
        ("gradient_overwritten",),
    ),
    Mutation("no maximum", "cross_entropy_backward", ((_MOST, "const float most = 0;"),), ("not_finite",)),
    Mutation(
        "label off by one",
        "cross_entropy_backward",
        (("c == label[n] ?", "c == label[n] + 1 ?"),),
        ("label_off_by_one",),
    ),
    Mutation(
        "not divided by the sum",
        "cross_entropy_backward",
        ((" / sum;", ";\n            (void)sum;"),),
        ("not_normalised",),
    ),
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
)
