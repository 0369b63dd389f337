"""Explains a wrong 4-D accessor: the offsets that it used, and the formula that gives them.

In the tensors of these cases all values differ. So a value shows the offset from which it was read, or to which it was
written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from grader.core.arrays import Array, first_of, np
from grader.core.results import Diagnosis

#: (sizeX, sizeY, sizeZ, length of the first dimension) -> (factor of x, of y, of z, of b, constant).
Strides = Callable[[int, int, int, int], "tuple[int, ...]"]

RIGHT = "((x * sizeX + y) * sizeY + z) * sizeZ + b"

#: Formulas that people write, and the mistake in each. All are linear, so their strides define them.
FORMULAS: tuple[tuple[str, str, Strides], ...] = (
    ("swapped_indices", "x and y are swapped", lambda X, Y, Z, W: (Y * Z, X * Y * Z, Z, 1, 0)),
    ("swapped_indices", "x and z are swapped", lambda X, Y, Z, W: (Z, Y * Z, X * Y * Z, 1, 0)),
    ("swapped_indices", "x and b are swapped", lambda X, Y, Z, W: (1, Y * Z, Z, X * Y * Z, 0)),
    ("swapped_indices", "y and z are swapped", lambda X, Y, Z, W: (X * Y * Z, Z, Y * Z, 1, 0)),
    ("swapped_indices", "y and b are swapped", lambda X, Y, Z, W: (X * Y * Z, 1, Z, Y * Z, 0)),
    ("swapped_indices", "z and b are swapped", lambda X, Y, Z, W: (X * Y * Z, Y * Z, 1, Z, 0)),
    ("wrong_strides", "The order of the indices is reversed", lambda X, Y, Z, W: (1, X, X * Y, X * Y * Z, 0)),
    ("wrong_strides", "The order of the indices is reversed", lambda X, Y, Z, W: (1, W, W * X, W * X * Y, 0)),
    ("wrong_strides", "sizeX and sizeY are swapped", lambda X, Y, Z, W: (X * Y * Z, X * Z, Z, 1, 0)),
    ("wrong_strides", "sizeX and sizeZ are swapped", lambda X, Y, Z, W: (X * Y * Z, X * Y, X, 1, 0)),
    ("wrong_strides", "sizeY and sizeZ are swapped", lambda X, Y, Z, W: (X * Y * Z, Y * Z, Y, 1, 0)),
    (
        "wrong_strides",
        "sizeY is where sizeX belongs and so on",
        lambda X, Y, Z, W: (W * X * Y, X * Y, Y, 1, 0),
    ),
    ("missing_factor", "The stride of x lacks the factor sizeX", lambda X, Y, Z, W: (Y * Z, Y * Z, Z, 1, 0)),
    ("missing_factor", "The stride of x lacks the factor sizeY", lambda X, Y, Z, W: (X * Z, Y * Z, Z, 1, 0)),
    ("missing_factor", "The stride of x lacks the factor sizeZ", lambda X, Y, Z, W: (X * Y, Y * Z, Z, 1, 0)),
    ("missing_factor", "The stride of y lacks the factor sizeY", lambda X, Y, Z, W: (X * Y * Z, Z, Z, 1, 0)),
    ("missing_factor", "The stride of y lacks the factor sizeZ", lambda X, Y, Z, W: (X * Y * Z, Y, Z, 1, 0)),
    (
        "missing_factor",
        "The stride of z lacks the factor sizeZ",
        lambda X, Y, Z, W: (X * Y * Z, Y * Z, 1, 1, 0),
    ),
    (
        "missing_factor",
        "Each stride has one size in place of the product",
        lambda X, Y, Z, W: (X, Y, Z, 1, 0),
    ),
    ("missing_term", "x is not used", lambda X, Y, Z, W: (0, Y * Z, Z, 1, 0)),
    ("missing_term", "y is not used", lambda X, Y, Z, W: (X * Y * Z, 0, Z, 1, 0)),
    ("missing_term", "z is not used", lambda X, Y, Z, W: (X * Y * Z, Y * Z, 0, 1, 0)),
    ("missing_term", "b is not used", lambda X, Y, Z, W: (X * Y * Z, Y * Z, Z, 0, 0)),
    ("missing_term", "The indices are not used", lambda X, Y, Z, W: (0, 0, 0, 0, 0)),
    ("off_by_one", "The offset is one too large", lambda X, Y, Z, W: (X * Y * Z, Y * Z, Z, 1, 1)),
    ("off_by_one", "The offset is one too small", lambda X, Y, Z, W: (X * Y * Z, Y * Z, Z, 1, -1)),
)


def diagnose_read(
    inputs: Mapping[str, Array], shape: Mapping[str, int], expected: Array, actual: Array, wrong: Array
) -> Diagnosis:
    """Explain wrong reads. `expected`, `actual` and the mask `wrong` have an element for each row of the indices."""
    (first,) = first_of(wrong)
    index = tuple(inputs["index"][first].tolist())
    if not actual.any():
        code, why = "not_written", "Every read returns 0: fourDimRead is not written yet."
    else:
        flat = inputs["tensor"].reshape(-1).astype(np.float64)
        code, why = _explain(inputs, shape, wrong, lambda offsets, rows: flat[offsets] == actual[rows])
        where = np.flatnonzero(flat == actual[first])
        if len(where) == 1 and code == "wrong_offset":
            right = flat_offsets(inputs["index"], shape)[first]
            why = f"It read offset {where[0]} where {right} is right. {why}"
        elif code == "wrong_offset":
            why = f"The value is not in the tensor, so fourDimRead read outside of it. {why}"
    return _report("fourDimRead", code, why, index, expected[first], actual[first], wrong, inputs, shape)


def diagnose_write(
    inputs: Mapping[str, Array], shape: Mapping[str, int], expected: Array, actual: Array, wrong: Array
) -> Diagnosis:
    """Explain wrong writes. `expected` and `actual` are the tensor after all writes, `wrong` masks wrong elements."""
    before, after = inputs["tensor"].reshape(-1).astype(np.float64), actual.reshape(-1)
    flat_wrong, wanted = wrong.reshape(-1), expected.reshape(-1)
    (at,) = first_of(flat_wrong)
    index = tuple(int(i) for i in np.unravel_index(at, inputs["tensor"].shape))
    named = np.zeros(len(before), bool)
    named[flat_offsets(inputs["index"], shape)] = True
    if np.array_equal(before, after):
        code, why = (
            "not_written",
            "Nothing was written: fourDimWrite is not written yet, or it changes a copy of the tensor.",
        )
    elif not (flat_wrong & ~named).any() and np.array_equal(before[flat_wrong], after[flat_wrong]):
        which = "The last element keeps" if flat_wrong.sum() == flat_wrong[-1] else "These elements keep"
        code, why = (
            "element_skipped",
            (f"{which} the old value, because it is never overwritten: look for a condition on the offset."),
        )
    elif (both := flat_wrong & named).any() and np.array_equal((before + wanted)[both], after[both]):
        code, why = "wrong_value", "`val` is added to the old value: write it with = and not +=."
    elif not both.any():
        code, why = "extra_write", "The right elements are written, but other elements are changed, too."
    elif flat_wrong.sum() <= len(inputs["index"]) // 4:
        code, why = (
            "extra_write",
            "Most elements are written correctly, but other writes change a few of them again.",
        )
    else:
        code, why = _explain_writes(inputs, shape, before, after)
    return _report("fourDimWrite", code, why, index, wanted[at], after[at], flat_wrong, inputs, shape)


def _explain(
    inputs: Mapping[str, Array],
    shape: Mapping[str, int],
    wrong: Array,
    holds: Callable[[Array, Array], Array],
) -> tuple[str, str]:
    """Return code and words of the first wrong formula that explains the values that were read.

    `holds(offsets, rows)` returns True for each row in which the value at the given offset was read. A formula explains
    the values if that is True for all rows whose offset lies in the tensor. These must be at least a quarter of all
    rows, and one of them must be wrong.
    """
    size = inputs["tensor"].size
    for code, words, strides in FORMULAS:
        offsets = _offsets(strides, inputs["index"], shape)
        inside = np.flatnonzero((offsets >= 0) & (offsets < size))
        if len(inside) < max(1, len(offsets) // 4) or not wrong[inside].any():
            continue
        if holds(offsets[inside], inside).all():
            return code, f"{words}. The offset is {RIGHT}."
    return "wrong_offset", f"The offset is {RIGHT}: the last index is contiguous."


def _explain_writes(
    inputs: Mapping[str, Array], shape: Mapping[str, int], before: Array, after: Array
) -> tuple[str, str]:
    for code, words, strides in FORMULAS:
        offsets = _offsets(strides, inputs["index"], shape)
        inside = (offsets >= 0) & (offsets < len(before))
        replayed = before.copy()
        for offset, value in zip(offsets[inside].tolist(), inputs["values"][inside].tolist(), strict=True):
            replayed[offset] = value
        if np.array_equal(replayed, after):
            return code, f"{words}. The offset is {RIGHT}."
    if not np.isin(after, np.concatenate([before, inputs["values"]])).all():
        return "wrong_value", "The stored values are not those of `val`."
    return "wrong_offset", f"The offset is {RIGHT}: the last index is contiguous."


def _offsets(strides: Strides, index: Array, shape: Mapping[str, int]) -> Array:
    *factors, constant = strides(shape["H"], shape["N"], shape["d"], shape["B"])
    return index @ np.array(factors) + constant


def _report(
    name: str,
    code: str,
    why: str,
    index: tuple[int, ...],
    expected: Array,
    actual: Array,
    wrong: Array,
    inputs: Mapping[str, Array],
    shape: Mapping[str, int],
) -> Diagnosis:
    at = ", ".join(f"{letter}={i}" for letter, i in zip("xyzb", index, strict=True))
    sizes = tuple(shape[key] for key in "BHNd")
    count, total = int(wrong.sum()), wrong.size
    message = (
        f"{why} Element ({at}) of a tensor of shape {sizes}: expected {expected:g}, got {actual:g}; "
        f"{count} of {total} elements are wrong."
    )
    return Diagnosis(code, message, index, float(expected), float(actual), count, total)


def flat_offsets(index: Array, shape: Mapping[str, int]) -> Array:
    """Return the row-major offsets, int64 (M,), of the rows (x, y, z, b) of `index` in a tensor of (B, H, N, d).

    The published convention: x * sizeX sizeY sizeZ + y * sizeY sizeZ + z * sizeZ + b, with sizes H, N and d.
    """
    x, y, z, b = index.T
    return ((x * shape["H"] + y) * shape["N"] + z) * shape["d"] + b
