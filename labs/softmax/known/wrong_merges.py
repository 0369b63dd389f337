"""Wrong kernels of `merge`, each with the code of its expected diagnosis."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

MOST = "std::max(m1[i], m2[i])"
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
    Mutation("maximum of the left", "merge", ((MOST, "m1[i]"),), ("maximum_of_one_side",), says="left"),
    Mutation("maximum of the right", "merge", ((MOST, "m2[i]"),), ("maximum_of_one_side",), says="right"),
    Mutation("minimum", "merge", ((MOST, "std::min(m1[i], m2[i])"),), ("minimum_taken",)),
    Mutation("maxima added", "merge", ((MOST, "m1[i] + m2[i]"),), ("maxima_added",)),
    Mutation("maximum not below 0", "merge", ((MOST, f"std::max(0.0f, {MOST})"),), ("maximum_start",)),
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
             ("empty_sides",), says="-inf - -inf"),
    Mutation("divided by nothing", "merge", ((EMPTY, "true ? "),), ("empty_sides",), says="0 / 0"),
    Mutation("empty where one side is", "merge",
             ((MOST, f"m1[i] == -INFINITY || m2[i] == -INFINITY ? -INFINITY : {MOST}"),), ("empty_sides",),
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
