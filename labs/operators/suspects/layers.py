"""Suspects of matrix products, and of a layer of neurons, which is a matrix product plus a bias."""

from __future__ import annotations

from collections.abc import Callable

from grader.core.arrays import Array, np
from grader.explain.suspect import Situation

from .gradients import Mistakes, beyond, common, divided, exchanged, only, other_rows


def other_layout(x: Array) -> Array:
    """Return the matrix that a kernel reads if it expects the transposed matrix in memory."""
    memory = x.ravel(order="K")
    return memory.reshape(x.shape[::-1]).T if x.flags.c_contiguous else memory.reshape(x.shape)


def stored_transposed(x: Array) -> Array:
    """Return the matrix that is read row by row if element (i, j) was stored at j * rows + i."""
    return x.T.reshape(x.shape)


#: Function that returns the two operands (left, right) of a product from a Situation.
Operands = Callable[[Situation], "tuple[Array, Array]"]


def _products(
    mistakes: Mistakes,
    output: str,
    left: str,
    right: str,
    operands: Operands,
    sum_of: str,
    more: Callable[[Situation], Array | float] = lambda s: 0.0,
) -> None:
    """Register mistakes of a matrix product (rows, terms) x (terms, columns).

    The kernel adds the product to the gradient `output`, or returns it if `output` is "". `left` and `right` name the
    operands, `sum_of` names the summed index. `more` returns a further summand, such as a bias.
    """

    def product(compute: Callable[[Array, Array], Array | None]) -> Callable[[Situation], Array | None]:
        def predict(s: Situation) -> Array | None:
            made = compute(*operands(s))
            return None if made is None else made + more(s)

        return predict

    for name, code, words, compute in (
        ("right_transposed", "transposed_operand", f"{right} is read as if its rows and columns were exchanged.",
         lambda x, y: x @ other_layout(y)),
        ("left_transposed", "transposed_operand", f"{left} is read as if its rows and columns were exchanged.",
         lambda x, y: other_layout(x) @ y),
        ("both_transposed", "transposed_operand",
         f"{left} and {right} are both read as if rows and columns were exchanged.",
         lambda x, y: other_layout(x) @ other_layout(y)),
        ("output_transposed", "transposed_output",
         f"The values of {output or 'the output'} are stored with rows and columns exchanged: check the index at which "
         "they are written.",
         lambda x, y: stored_transposed(x @ y)),
        ("last_missing", "term_missing", f"The last term of each sum over {sum_of} is left out.",
         lambda x, y: x[:, :-1] @ y[:-1] if len(y) > 1 else None),
        ("first_missing", "term_missing", f"The first term of each sum over {sum_of} is left out.",
         lambda x, y: x[:, 1:] @ y[1:] if len(y) > 1 else None),
        ("last_term", "not_summed",
         f"Only the last term of the sum over {sum_of} counts: use += in place of =.",
         lambda x, y: x[:, -1:] @ y[-1:] if len(y) > 1 else None),
        ("first_term", "not_summed", f"Only the first term of the sum over {sum_of} counts.",
         lambda x, y: x[:, :1] @ y[:1] if len(y) > 1 else None),
        *((f"blocks_of_{width}", "terms_left_out",
           f"Terms are missing at the end of each sum over {sum_of}: those beyond the last full block of an unrolled, "
           "vector or blocked loop.",
           lambda x, y, w=width: x[:, :len(y) // w * w] @ y[:len(y) // w * w] if len(y) % w and len(y) > w else None)
          for width in (2, 4, 8, 16, 32, 64, 128, 256)),
        ("carried", "sum_carried_on",
         f"The sum over {sum_of} is not set to 0 for the next element: it contains the sums of all earlier elements.",
         lambda x, y: (x @ y).cumsum().reshape(len(x), -1)),
        ("carried_in_row", "sum_carried_on",
         f"The sum over {sum_of} is set to 0 only at the start of each row of the result, not for each element.",
         lambda x, y: (x @ y).cumsum(1)),
        ("added", "operands_added", f"Elements of {left} and {right} are added, not multiplied.",
         lambda x, y: x.sum(1)[:, None] + y.sum(0)),
    ):  # fmt: skip
        mistakes.gives_each((name, code, words, product(compute)), output=output, adds=bool(output))


# ---- the matrix product

MATMUL = Mistakes()
_products(MATMUL, "", "A", "B", lambda s: (s.inputs["A"], s.inputs["B"]), "k")

MATMUL_BACKWARD = Mistakes()
common(MATMUL_BACKWARD, "dA", "dB", loops=("M", "K", "N"))
other_rows(MATMUL_BACKWARD, "dA", "K", {"N": "N", "M": "M"})
other_rows(MATMUL_BACKWARD, "dB", "N", {"K": "K", "M": "M"})


@MATMUL_BACKWARD.gives(
    "not_summed",
    "dA contains only the last term of the sum over j: each term replaces the previous one. Use += in place of =.",
    "dA",
)
@MATMUL_BACKWARD.gives(
    "not_summed",
    "dB contains only the last term of the sum over i: each term replaces the previous one. Use += in place of =.",
    "dB",
)
def last_product(s: Situation) -> Array:
    do, a, b = (s.inputs[name] for name in ("dO", "A", "B"))
    return do[:, -1:] @ b[:, -1:].T if s.output == "dA" else a[-1:].T @ do[-1:]


@MATMUL_BACKWARD.adds("dA", "wrong_operand", "dA gets dO transpose(A): it has to be dO transpose(B).")
@MATMUL_BACKWARD.adds("dB", "wrong_operand", "dB gets transpose(B) dO: it has to be transpose(A) dO.")
def own_operand(s: Situation) -> Array | None:
    do, a, b = (s.inputs[name] for name in ("dO", "A", "B"))
    if not do.shape == a.shape == b.shape:
        return None
    return do @ a.T if s.output == "dA" else b.T @ do


def _gradient_of_factor(s: Situation, name: str) -> Array:
    do, a, b = (s.inputs[known] for known in ("dO", "A", "B"))
    return do @ b.T if name == "dA" else a.T @ do


exchanged(MATMUL_BACKWARD, "dA", "dB", _gradient_of_factor)
_products(MATMUL_BACKWARD, "dA", "dO", "transpose(B)", lambda s: (s.inputs["dO"], s.inputs["B"].T), "j")
_products(MATMUL_BACKWARD, "dB", "transpose(A)", "dO", lambda s: (s.inputs["A"].T, s.inputs["dO"]), "i")

# ---- the layer

LINEAR = Mistakes()


def _product(s: Situation) -> Array:
    return s.inputs["X"] @ s.inputs["W"]


LINEAR.gives_each(
    ("without_bias", "bias_missing", "The bias is not added.", lambda s: _product(s)),
    ("bias_of_row", "bias_wrong_index", "The bias's index is the row of the batch: b[o] belongs to column o of Y.",
     lambda s: _product(s) + beyond(s.inputs["b"], s.sizes["batch"])[:, None] if s.sizes["batch"] > 1 else None),
    ("first_bias", "bias_wrong_index", "The first bias is added to all columns: b[o] belongs to column o of Y.",
     lambda s: _product(s) + s.inputs["b"][0]),
    ("bias_often", "bias_added_often", "The bias is added once for each term of the sum: add it once.",
     lambda s: _product(s) + s.sizes["I"] * s.inputs["b"]),
    *((f"bias_of_{block}", "bias_added_often",
       f"The bias is added once for each block of {block} terms of the sum: add it once.",
       lambda s, block=block: _product(s) - (-s.sizes["I"] // block) * s.inputs["b"])
      for block in (8, 16, 32, 64, 128)),
    ("bias_once", "bias_first_row", "The bias is added only to the first row of Y: add it to each row of the batch.",
     lambda s: _product(s) + only(np.broadcast_to(s.inputs["b"], s.expected.shape), 0)),
    ("bias_subtracted", "bias_sign", "The bias is subtracted.", lambda s: _product(s) - s.inputs["b"]),
    ("bias_alone", "bias_alone", "The output is the bias alone: XW is missing.",
     lambda s: np.broadcast_to(s.inputs["b"], s.expected.shape)),
)  # fmt: skip


_products(LINEAR, "", "X", "W", lambda s: (s.inputs["X"], s.inputs["W"]), "i", lambda s: s.inputs["b"])

LINEAR_BACKWARD = Mistakes()
common(LINEAR_BACKWARD, "dX", "dW", "db", loops=("batch", "I", "O"))
other_rows(LINEAR_BACKWARD, "dX", "I", {"O": "O", "N": "batch"})
other_rows(LINEAR_BACKWARD, "dW", "O", {"I": "I", "N": "batch"})
for _name in ("dX", "dW", "db"):
    divided(LINEAR_BACKWARD, _name, "batch", "batch")


@LINEAR_BACKWARD.gives(
    "not_summed",
    "dX contains only the last term of the sum over o: each term replaces the previous one. Use += in place of =.",
    "dX",
)
@LINEAR_BACKWARD.gives(
    "batch_not_summed",
    "dW contains only the gradient of the batch's last row: each row replaces the previous one. Use += in place of =.",
    "dW",
)
@LINEAR_BACKWARD.gives(
    "batch_not_summed",
    "db contains only the gradient of the batch's last row: each row replaces the previous one. Use += in place of =.",
    "db",
)
def last_alone(s: Situation) -> Array:
    dy, x, w = (s.inputs[name] for name in ("dY", "X", "W"))
    if s.output == "dX":
        return dy[:, -1:] @ w[:, -1:].T
    return x[-1:].T @ dy[-1:] if s.output == "dW" else dy[-1]


@LINEAR_BACKWARD.adds(
    "dW",
    "batch_not_summed",
    "dW gets the gradient of only the first row of the batch: add up the gradients of all rows.",
)
@LINEAR_BACKWARD.adds(
    "db",
    "batch_not_summed",
    "db gets the gradient of only the first row of the batch: add up the gradients of all rows.",
)
def first_of_batch(s: Situation) -> Array | None:
    dy, x = s.inputs["dY"], s.inputs["X"]
    if len(dy) < 2:
        return None
    return x[:1].T @ dy[:1] if s.output == "dW" else dy[0]


LINEAR_BACKWARD.adds_each("db",
    ("last_of_batch", "batch_not_summed",
     "db gets the gradient of only the last row of the batch: add up the gradients of all rows.",
     lambda s: s.inputs["dY"][-1] if s.sizes["batch"] > 1 else None),
    ("over_neurons", "bias_wrong_axis",
     "db gets sums over the neurons: for each neuron add up dY over the rows of the batch.",
     lambda s: beyond(s.inputs["dY"].sum(1), s.sizes["O"], 0.0) if s.sizes["O"] > 1 else None),
    ("over_all", "bias_wrong_axis", "Each element of db gets the sum of all of dY: add up only its column.",
     lambda s: s.inputs["dY"].sum(keepdims=True)[0] if s.sizes["O"] > 1 else None),
)  # fmt: skip


def _gradient_of_layer(s: Situation, name: str) -> Array:
    dy, x, w = (s.inputs[known] for known in ("dY", "X", "W"))
    return dy @ w.T if name == "dX" else x.T @ dy


exchanged(LINEAR_BACKWARD, "dX", "dW", _gradient_of_layer)
_products(LINEAR_BACKWARD, "dX", "dY", "transpose(W)", lambda s: (s.inputs["dY"], s.inputs["W"].T), "o")
_products(
    LINEAR_BACKWARD, "dW", "transpose(X)", "dY", lambda s: (s.inputs["X"].T, s.inputs["dY"]), "the batch"
)
