"""Suspects of elementwise sums and products with broadcast, and of ReLU."""

from __future__ import annotations

from collections.abc import Callable

from grader.core.arrays import Array, np
from grader.explain.suspect import Situation

from .. import arithmetic
from .gradients import Mistakes, beyond, common, exchanged, only

Combine = Callable[[Array, Array], Array]


def _other_axis(b: Array, rows: int, columns: int) -> Array | None:
    """Return B, which is broadcast along one axis, as read with the index of the wrong axis.

    If B is (1, C), its element i is used for row i. If B is (R, 1), its element j is used for column j. Elements beyond
    B's end are NaN. Return None for other shapes of B, or if R or C is 1.
    """
    if b.shape == (1, columns) and columns > 1 and rows > 1:
        return beyond(b.ravel(), rows)[:, None]
    if b.shape == (rows, 1) and rows > 1 and columns > 1:
        return beyond(b.ravel(), columns)[None, :]
    return None


def _forward(mistakes: Mistakes, combine: Combine, other: Combine, name: str, other_name: str) -> None:
    """Register mistakes of O = combine(A, B). One of them is to compute other(A, B).

    Messages call the results of both functions `name` and `other_name`, such as "sum" and "product".
    """

    def wrong_axis(s: Situation) -> Array | None:
        b = _other_axis(s.inputs["B"], s.sizes["R"], s.sizes["C"])
        return None if b is None else combine(s.inputs["A"], b)

    mistakes.gives_each(
        ("wrong_axis", "broadcast_wrong_axis",
         "B is read at the wrong index. If B is (1, C), use its only row for all rows of A, at the column's index; if "
         "B is (R, 1), use its only column for all columns, at the row's index.", wrong_axis),
        ("first_row", "broadcast_too_much",
         "Only the first row of B is used: the row's index is left out although B has R rows.",
         lambda s: combine(s.inputs["A"], s.inputs["B"][:1])),
        ("first_column", "broadcast_too_much",
         "Only the first column of B is used: the column's index is left out although B has C columns.",
         lambda s: combine(s.inputs["A"], s.inputs["B"][:, :1])),
        ("first_number", "broadcast_too_much", "Only the first number of B is used.",
         lambda s: combine(s.inputs["A"], s.inputs["B"][:1, :1])),
        ("other_operator", "wrong_operator", f"The {other_name} is returned, not the {name}.",
         lambda s: other(s.inputs["A"], s.inputs["B"])),
        ("difference", "wrong_operator", "A - B is returned.", lambda s: s.inputs["A"] - s.inputs["B"]),
        ("only_a", "operand_missing", "The output is a copy of A: B is left out.", lambda s: s.inputs["A"]),
        ("only_b", "operand_missing", "The output is B alone: A is left out.", lambda s: s.inputs["B"]),
    )  # fmt: skip


def _broadcast_gradients(mistakes: Mistakes, terms: Callable[[Situation], Array]) -> None:
    """Register mistakes of dB. `terms` returns (R, C): for each element of O, the number that it adds to an element of
    dB.
    """

    def cut(s: Situation, at: slice) -> Array | None:
        """Return the terms, cut to the index `at` along each broadcast axis of B; None if B has no such axis."""
        one_row, one_column = s.sizes["RB"] < s.sizes["R"], s.sizes["CB"] < s.sizes["C"]
        used = terms(s)[at if one_row else slice(None), at if one_column else slice(None)]
        return used if one_row or one_column else None

    def other_sums(s: Situation) -> Array | None:
        r, c, rows, columns = s.sizes["R"], s.sizes["C"], s.sizes["RB"], s.sizes["CB"]
        if (rows, columns) == (1, c) and r > 1 and c > 1:
            return beyond(terms(s).sum(1), c, 0.0)[None, :]
        if (rows, columns) == (r, 1) and r > 1 and c > 1:
            return beyond(terms(s).sum(0), r, 0.0)[:, None]
        return None

    def mean(s: Situation) -> Array | None:
        uses = s.sizes["R"] * s.sizes["C"] // (s.sizes["RB"] * s.sizes["CB"])
        return arithmetic.summed_to(terms(s), s.sizes["RB"], s.sizes["CB"]) / uses if uses > 1 else None

    not_summed = (
        "Each element of B is used for a whole row or column (or for all of A), but dB gets the gradient of only one "
        "use. Add up the gradients of all uses."
    )
    last, first = slice(-1, None), slice(0, 1)
    mistakes.adds_each("dB",
        ("last_use", "broadcast_not_summed", not_summed, lambda s: cut(s, last)),
        ("first_use", "broadcast_not_summed", not_summed, lambda s: cut(s, first)),
        ("all_in_first", "broadcast_wrong_index",
         "All gradients are added to the first element of dB: its index is always 0. If B is (1, C) it has to be the "
         "column's index, if B is (R, 1) the row's.",
         lambda s: only(np.full(s.expected.shape, terms(s).sum()), 0, 0) if s.expected.size > 1 else None),
    )  # fmt: skip
    mistakes.gives_each(
        ("last_use_alone", "broadcast_not_summed", not_summed, lambda s: cut(s, last)), output="dB"
    )
    mistakes.adds_each("dB",
        ("wrong_axis", "broadcast_wrong_axis",
         "The gradients are summed over the wrong axis: if B is (1, C) add up each column, if B is (R, 1) each row.",
         other_sums),
        ("mean", "broadcast_mean", "dB gets the mean of the gradients of its uses: take their sum.", mean),
    )  # fmt: skip


def _all_of(s: Situation, x: Array) -> Array:
    """Return dB (RB, CB): x, the number that each use adds, summed over all uses."""
    full = np.broadcast_to(x, (s.sizes["R"], s.sizes["C"]))
    return arithmetic.summed_to(full, s.sizes["RB"], s.sizes["CB"])


ADD = Mistakes()
_forward(ADD, np.add, np.multiply, "sum", "product")

MUL = Mistakes()
_forward(MUL, np.multiply, np.add, "product", "sum")

ADD_BACKWARD = Mistakes()
common(ADD_BACKWARD, "dA", "dB")
_broadcast_gradients(ADD_BACKWARD, lambda s: s.inputs["dO"])


ADD_BACKWARD.adds_each("dA",
    ("ones", "upstream_ignored", "1 is added to each element of dA: dO is left out.", lambda s: np.ones((1, 1))),
)  # fmt: skip
ADD_BACKWARD.adds_each("dB",
    ("ones", "upstream_ignored", "dB gets the number of uses: dO is left out.",
     lambda s: _all_of(s, np.ones((1, 1)))),
)  # fmt: skip

MUL_BACKWARD = Mistakes()
common(MUL_BACKWARD, "dA", "dB")
_broadcast_gradients(MUL_BACKWARD, lambda s: s.inputs["dO"] * s.inputs["A"])
exchanged(
    MUL_BACKWARD,
    "dA",
    "dB",
    lambda s, name: (
        s.inputs["dO"] * s.inputs["B"] if name == "dA" else _all_of(s, s.inputs["dO"] * s.inputs["A"])
    ),
)


MUL_BACKWARD.adds_each("dA",
    ("own_operand", "operands_swapped", "dA gets dO * A: the gradient of A is dO times the OTHER operand, B.",
     lambda s: s.inputs["dO"] * s.inputs["A"]),
    ("as_of_a_sum", "operand_missing", "dA gets dO alone, as for a sum: multiply by B.", lambda s: s.inputs["dO"]),
    ("operand_alone", "upstream_ignored", "dA gets B alone: dO is left out.", lambda s: s.inputs["B"]),
)  # fmt: skip
MUL_BACKWARD.adds_each("dB",
    ("own_operand", "operands_swapped", "dB gets dO * B: the gradient of B is dO times the OTHER operand, A.",
     lambda s: _all_of(s, s.inputs["dO"] * s.inputs["B"])),
    ("as_of_a_sum", "operand_missing", "dB gets dO alone, as for a sum: multiply by A.",
     lambda s: _all_of(s, s.inputs["dO"])),
    ("operand_alone", "upstream_ignored", "dB gets A alone: dO is left out.", lambda s: _all_of(s, s.inputs["A"])),
)  # fmt: skip


# ---- ReLU

RELU = Mistakes()


RELU.gives_each(
    ("negatives_kept", "relu_sign",
     "The negative numbers are kept, and the positive numbers become 0.",
     lambda s: np.minimum(s.inputs["X"], 0)),
    ("absolute", "relu_sign", "The output is |x|: negative numbers should become 0.", lambda s: abs(s.inputs["X"])),
    ("copied", "relu_missing", "The output is a copy of X: negative numbers should become 0.",
     lambda s: s.inputs["X"]),
    ("step", "relu_step", "The output is 1 where x is positive. That is the slope of ReLU; its value is x.",
     lambda s: (s.inputs["X"] > 0).astype(np.float64)),
    ("leaky", "relu_leaky", "Negative numbers give 0.01 * x, but should give 0.",
     lambda s: np.where(s.inputs["X"] > 0, s.inputs["X"], 0.01 * s.inputs["X"])),
)  # fmt: skip


RELU_BACKWARD = Mistakes()
common(RELU_BACKWARD, "dX")


RELU_BACKWARD.adds_each("dX",
    ("at_zero", "relu_at_zero", "The gradient at x = 0 has to be 0: compare with >, not with >=.",
     lambda s: s.inputs["dO"] * (s.inputs["X"] >= 0)),
    ("by_upstream", "relu_wrong_sign",
     "dO is added where dO is positive: the sign of X has to decide, not the sign of dO.",
     lambda s: np.maximum(s.inputs["dO"], 0)),
    ("inverted", "relu_wrong_sign", "dO is added where x is negative, not where it is positive.",
     lambda s: s.inputs["dO"] * (s.inputs["X"] < 0)),
    ("by_gradient", "relu_wrong_sign", "dO is added where dX is positive: the sign of X has to decide.",
     lambda s: s.inputs["dO"] * (s.inputs["dX"] > 0)),
    ("everywhere", "relu_missing", "All of dO is added: add nothing where x is not positive.",
     lambda s: s.inputs["dO"]),
    ("slope_alone", "upstream_ignored", "1 is added where x is positive: add dO.",
     lambda s: (s.inputs["X"] > 0).astype(np.float64)),
    ("times_value", "relu_value", "dO * relu(x) is added: the slope is 1 where x is positive, not x.",
     lambda s: s.inputs["dO"] * np.maximum(s.inputs["X"], 0)),
)  # fmt: skip
