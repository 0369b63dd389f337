"""Wrong kernels of `online`, each with the code of its expected diagnosis."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

from .texts import (
    BLOCKS_OF_8,
    KEEP,
    NOW,
    ONLINE_PASS,
    ROW,
    ROWS,
    SKIP,
    START,
    UPDATE,
    WRITE,
    J,
)

WRONG_ONLINE = (
    Mutation("sum not rescaled", "online", (("sum * std::exp(most - now)", "sum"),), ("not_rescaled",)),
    Mutation(
        "maximum updated after use",
        "online",
        (
            (START, "        float most = x[0] == -INFINITY ? -1e30f : x[0];\n        double sum = 0.0;\n"),
            ("std::exp(x[j] - now)", "std::exp(x[j] - most)"),
        ),
        ("maximum_after_use",),
    ),
    Mutation(
        "new element rescaled",
        "online",
        ((UPDATE, "            sum = (sum + std::exp(x[j] - now)) * std::exp(most - now);\n"),),
        ("new_term_rescaled",),
    ),
    Mutation(
        "rescaled upside down",
        "online",
        (("sum * std::exp(most - now)", "(sum > 0 ? sum * std::exp(now - most) : 0)"),),
        ("rescaled_upside_down",),
    ),
    Mutation(
        "sum begun anew",
        "online",
        (("sum * std::exp(most - now)", "(now > most ? 0 : sum)"),),
        ("rescaled_to_new_only",),
    ),
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
    Mutation(
        "first counted twice",
        "online",
        ((START, "        float most = x[0];\n        double sum = x[0] == -INFINITY ? 0.0 : 1.0;\n"),),
        ("first_counted_twice",),
    ),
    Mutation(
        "written too early",
        "online",
        (
            (KEEP, KEEP + "            o[j] = std::exp(x[j] - most) / (float)sum;\n"),
            (WRITE, "        (void)total;\n"),
        ),
        ("written_too_early",),
    ),
    Mutation(
        "state not reset",
        "online",
        ((START, ""), (ROWS, START.replace("        ", "    ") + ROWS)),
        ("state_not_reset",),
    ),
    Mutation(
        "maximum not reset",
        "online",
        (("        float most = -INFINITY;\n", ""), (ROWS, "    float most = -INFINITY;\n" + ROWS)),
        ("maximum_not_reset",),
    ),
    Mutation("float sum", "online", (("double sum = 0.0", "float sum = 0.0f"),), ("float_sum",)),
    Mutation("powers of two", "online", (("std::exp(", "std::exp2(", 3),), ("wrong_base",)),
    Mutation(
        "no maximum when written",
        "online",
        ((WRITE, WRITE.replace("x[j] - most", "x[j]")),),
        ("maximum_only_in_sum",),
    ),
    Mutation(
        "no maximum",
        "online",
        ((NOW, "            const float now = 0.0f;\n"), ("most = -INFINITY", "most = 0.0f")),
        ("no_maximum",),
    ),
    Mutation(
        "last column left out", "online", ((J, J.replace("j < C", "j < C - 1"), 2),), ("columns_left_out",)
    ),
    Mutation(
        "sum of whole blocks of eight",
        "online",
        ((ONLINE_PASS, ONLINE_PASS.replace(J, BLOCKS_OF_8)),),
        ("sum_misses_columns", "columns_left_out"),
        says="8",
    ),
    Mutation(
        "rows of R numbers",
        "online",
        ((ROW, ROW.replace("(size_t)i * C;\n        float", "(size_t)i * R;\n        float")),),
        ("wrong_stride",),
    ),
)
