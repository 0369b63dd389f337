"""Suspects of the softmax of rows: mistakes in the argument of exp() and in the divisor."""

from __future__ import annotations

from collections.abc import Callable

from grader.core.arrays import Array, np
from grader.explain.suspect import Suspect, row

from ..scene import Scene, normalised, shifted, total

LOG2_E = np.float32(1.4426950408889634)


def _other_rows(s: Scene) -> Array | None:
    """Return the softmax of a kernel that reads element (i, j) at X[i * R + j].

    Return None if R = C, where this is right, or if R > C, where it reads beyond X.
    """
    rows, columns = s.whole.shape
    if rows >= columns:
        return None
    at = np.arange(s.first, s.first + len(s.x))[:, None] * rows + np.arange(columns)
    x = s.whole.reshape(-1)[at]
    return normalised(np.exp(x - x.max(1, keepdims=True)))


def _in_steps(values: Array, digits: int) -> Array:
    return np.round(values * np.float32(10**digits)) / np.float32(10**digits)


MISTAKES: list[Suspect] = [
    row("not_divided", "not_normalised", "The rows do not sum to 1: they are never divided by the sum of exp(x - m).",
        lambda s: s.weights),
    row("base_two", "wrong_base",
        "exp2(x) computes powers of 2, not of e: multiply x by log2(e) = 1.442695 before, or call exp(x).",
        lambda s: normalised(np.exp2(s.x - s.most))),
    row("scaled_for_nothing", "wrong_base",
        "x is multiplied by log2(e), but then exp() is called: that gives exp(1.4427 * x). Call exp2(), because "
        "exp2(x * log2(e)) is exp(x), or leave the factor out.",
        lambda s: normalised(np.exp((s.x - s.most) * LOG2_E))),
    row("logarithm", "log_taken",
        "The output is the logarithm of the softmax, x - m - log(sum), not the softmax.",
        lambda s: s.x - s.most - np.log(total(s.weights))),
    row("no_exponential", "no_exponential",
        "Each element x is divided by the sum of its row: exp() is missing in both.",
        lambda s: s.x / total(s.x)),
    row("sum_of_elements", "exponential_missing_in_sum",
        "The sum adds the elements of the row, not their exp().",
        lambda s: s.weights / total(s.x)),
    row("turned_round", "wrong_sign",
        "The smallest element of a row has the largest share: exp(-x) or exp(m - x) is used, not exp(x - m).",
        lambda s: normalised(np.exp(s.x.min(1, keepdims=True) - s.x))),
    row("exponential_of_output", "reads_what_it_wrote",
        "exp() is applied twice to each element: the last pass does not read x, but O, which already contains "
        "exp(x - m).",
        lambda s: np.exp(s.weights) / total(s.weights)),
    row("shifted_exponential_of_output", "reads_what_it_wrote",
        "The last pass computes exp(o - m), not exp(x - m): it reads O, to which an earlier pass has written.",
        lambda s: np.exp(s.weights - s.most) / total(s.weights)),
    row("rows_of_another_length", "wrong_stride",
        "Row i is read from X[i * R + j]: each row has C elements, so row i begins at i * C.", _other_rows),
    *(row(f"{what} {digits}", "rounded", f"{what} rounded to {digits} decimals: smaller weights are lost.", predict)
      for digits in (2, 3, 4, 5, 6)
      for what, predict in (
          ("exp(x - m) is", lambda s, digits=digits: normalised(_in_steps(s.weights, digits))),
          ("The results are", lambda s, digits=digits: _in_steps(normalised(s.weights), digits)),
      )),
]  # fmt: skip

#: Mistakes of kernels that do not subtract a maximum.
NAIVE: list[Suspect] = [
    row("plain_not_divided", "not_normalised",
        "The rows do not sum to 1: they are never divided by the sum of exp(x).",
        lambda s: s.plain),
    row("divided_by_largest", "divided_by_largest",
        "Each row is divided by its largest exp(x), not by the sum of exp(x).",
        lambda s: s.weights),
    row("plain_sum_of_elements", "exponential_missing_in_sum", "The sum adds the elements of the row, not their exp().",
        lambda s: s.plain / total(s.x)),
    row("plain_exponential_of_output", "reads_what_it_wrote",
        "exp() is applied twice to each element: the last pass does not read x, but O, which already contains exp(x).",
        lambda s: np.exp(s.plain) / total(s.plain)),
]  # fmt: skip

# ---- mistakes in the subtracted maximum: results are wrong only if exp() overflows, or is 0 for a whole row

MAXIMUM: list[Suspect] = [
    row("no_maximum", "no_maximum", "The maximum is not subtracted: exp(x) is infinite above 88.7, and 0 below -104.",
        lambda s: shifted(s, 0.0)),
    row("of_the_matrix", "maximum_of_matrix",
        "The maximum is that of the whole matrix: in a row far below it, each exp() and their sum are 0. Compute the "
        "maximum of each row.",
        lambda s: shifted(s, s.whole.max())),
    row("of_the_column", "maximum_wrong_axis",
        "The maximum goes over rows: each element needs the maximum of its row, not of its column.",
        lambda s: shifted(s, s.whole.max(0, keepdims=True))),
    row("position_of_maximum", "maximum_position",
        "The position of the largest element is subtracted, not its value: std::max_element returns a pointer p, and "
        "the value is *p.",
        lambda s: shifted(s, s.x.argmax(1)[:, None])),
    row("of_the_first", "maximum_of_first", "The first element of the row is subtracted, not the largest one.",
        lambda s: shifted(s, s.x[:, :1])),
    row("of_the_last", "maximum_of_last", "The last element of the row is subtracted, not the largest one.",
        lambda s: shifted(s, s.x[:, -1:])),
    *(row(f"row before, {start} for row 0", "maximum_of_row_before",
          "The maximum of the previous row is subtracted: it is used before the maximum of this row is known.",
          lambda s, start=start: shifted(
              s, s.of_all(np.concatenate([np.full((1, 1), start, np.float32), s.all_most[:-1]]))))
      for start in (0.0, -np.inf, -np.finfo(np.float32).max)),
    row("largest_so_far", "maximum_not_reset",
        "The maximum also contains all earlier rows: set it to -inf at the beginning of each row.",
        lambda s: shifted(s, s.of_all(np.maximum.accumulate(s.all_most, 0)))),
    row("of_absolutes", "maximum_of_absolutes", "The largest |x| is subtracted, not the largest x.",
        lambda s: shifted(s, abs(s.x).max(1, keepdims=True))),
    row("of_the_smallest", "minimum_taken", "The smallest element of the row is subtracted, not the largest one.",
        lambda s: shifted(s, s.x.min(1, keepdims=True))),
    *(row(f"begun at {start:g}", "maximum_start",
          f"The maximum is {words} in rows whose elements are all smaller: does it begin there, or do other numbers "
          "take part in it? Begin at -inf.",
          lambda s, start=start: shifted(s, np.maximum(s.most, np.float32(start))))
      for start, words in (
          (0.0, "0 (or numeric_limits<float>::min(), the smallest positive number)"),
          (-100.0, "-100"),
          (-1000.0, "-1000"),
      )),
    row("begun at 0 behind the first", "maximum_start",
        "The maximum begins at 0 and leaves out the row's first element: begin at this element, or at -inf.",
        lambda s: shifted(s, s.x[:, 1:].max(1, keepdims=True, initial=0.0))),
    row("misses_first", "maximum_misses_first",
        "The maximum leaves out the first element of the row: look at the loop's start.",
        lambda s: shifted(s, s.x[:, 1:].max(1, keepdims=True, initial=np.float32(-np.inf)))),
    row("only_in_sum", "maximum_only_in_sum",
        "The maximum is subtracted in the sum, but not in the numerator: exp(x) / sum exp(x - m).",
        lambda s: s.plain / total(s.weights)),
    row("only_above", "maximum_only_above",
        "The maximum is subtracted in the numerator, but not in the sum: exp(x - m) / sum exp(x).",
        lambda s: s.weights / total(s.plain)),
    row("added", "maximum_added", "The maximum is added to x, not subtracted.",
        lambda s: normalised(np.exp(s.x + s.most))),
]  # fmt: skip

# ---- mistakes in the sum: its range, its start, its rounding

SUMS: list[Suspect] = [
    row("plain_whole_sum", "whole_sum",
        "The sum is a whole number: each exp() loses its fraction when it is added. Make the sum a float or a double.",
        lambda s: s.plain / total(np.floor(s.plain))),
    row("over_rows", "wrong_axis",
        "Each column is divided by its own sum: sum over the columns of each row, not over rows.",
        lambda s: s.weights / total(np.exp(s.whole - s.all_most).T).T),
    row("plain_over_rows", "wrong_axis",
        "Each column is divided by its own sum of exp(x): sum over the columns of each row, not over rows.",
        lambda s: s.plain / total(np.exp(s.whole).T).T),
    row("over_everything", "sum_of_matrix", "Each row is divided by the sum of the whole matrix, not by its own sum.",
        lambda s: s.weights / total(np.exp(s.whole - s.all_most)).sum(dtype=np.float32)),
    row("plain_over_everything", "sum_of_matrix",
        "Each row is divided by the sum of exp(x) of the whole matrix, not by its own sum.",
        lambda s: s.plain / total(np.exp(s.whole)).sum(dtype=np.float32)),
    row("kept_sum", "sum_not_reset",
        "The sum of a row also contains the sums of earlier rows: set it to 0 at the beginning of each row.",
        lambda s: s.weights / s.of_all(np.cumsum(total(np.exp(s.whole - s.all_most)), 0, dtype=np.float32))),
    row("plain_kept_sum", "sum_not_reset",
        "The sum of exp(x) also contains the sums of earlier rows: set it to 0 at the beginning of each row.",
        lambda s: s.plain / s.of_all(np.cumsum(total(np.exp(s.whole)), 0, dtype=np.float32))),
    row("running_sum", "divided_too_early",
        "Each element is divided by a sum that is not complete yet, up to this element: divide in a separate pass.",
        lambda s: s.weights / np.cumsum(s.weights, 1, dtype=np.float32)),
    row("lacks_first", "first_left_out",
        "The sum lacks the first element of the row: a loop that begins at 1 needs a sum that begins at exp(0) = 1.",
        lambda s: s.weights / total(s.weights[:, 1:])),
    row("whole_sum", "whole_sum",
        "The sum is a whole number: each exp() loses its fraction when it is added. Make the sum a float or a double.",
        lambda s: s.weights / total(np.floor(s.weights))),
]  # fmt: skip


# ---- a float32 sum that loses small terms


def in_lanes(weights: Array, lanes: int) -> Array:
    """Return each row's sum as a vectorised float32 loop computes it: a sum for each SIMD lane, then their sum."""
    count = -(-weights.shape[1] // lanes) * lanes
    padded = np.zeros((len(weights), count), np.float32)
    padded[:, : weights.shape[1]] = weights
    # np.cumsum adds one number after the other, but np.sum would add in pairs.
    sums = np.cumsum(padded.reshape(len(weights), -1, lanes), 1, dtype=np.float32)[:, -1]
    return sums.sum(1, keepdims=True, dtype=np.float32)


#: Suspects for `safe` and `online` only, because `naive` may use a sum that loses small terms.
LANES: tuple[Suspect, ...] = tuple(
    row(
        f"{lanes} lanes{' backwards' * backwards}",
        "float_sum",
        f"The sum of a row loses many small numbers, like a sum in {'one float' if lanes == 1 else f'{lanes} floats'}"
        ": once it is 1 or more, adding a number below 6e-8 does not change it. Sum in double, or in blocks of "
        "some hundred numbers whose sums are then added.",
        lambda s, lanes=lanes, step=-1 if backwards else 1: s.weights / in_lanes(s.weights[:, ::step], lanes),
    )
    for lanes in (1, 2, 4, 8, 16)
    for backwards in (False, True)
)


# ---- mistakes of the pass that keeps a running maximum m and a running sum l.
# The right recurrence is l_j = l_{j-1} exp(m_{j-1} - m_j) + exp(x_j - m_j), where m_j is the maximum of elements 0 to
# j. Predictions compute the result of a wrong recurrence as a sum over j, because all later steps together rescale term
# j by exp(m_j - m_last).


def _before(s: Scene, start: Array) -> Array:
    """Return the running maximum before each element, (K, C). Before the first element it is `start` (K, 1)."""
    return np.concatenate([np.broadcast_to(start, s.most.shape), s.running[:, :-1]], 1)


def _later(s: Scene) -> Array:
    """Return the factor (K, C) by which all later steps of the running sum rescale the term of each element."""
    return np.exp(s.running - s.most)


def _begun_anew(s: Scene) -> Array:
    """Return the output (K, C) of a kernel that sets the running sum to 0 whenever the maximum grows."""
    last_growth = s.columns - 1 - np.argmax(s.running[:, ::-1] > _before(s, np.float32(-np.inf))[:, ::-1], 1)
    kept = np.arange(s.columns) >= last_growth[:, None]
    return s.weights / total(np.where(kept, s.weights, np.float32(0)))


def _is_new_maximum(s: Scene) -> Array:
    """Return a mask (K, C) of the elements, from the second on, that are larger than all earlier ones in their row."""
    return np.asarray(s.x > _before(s, np.full(s.most.shape, np.inf, np.float32)))


def _written_in_first_pass(s: Scene) -> Array:
    """Return the output (K, C) of a kernel that writes exp(x - m) / l in its first pass, with the running m and l."""
    sums = np.cumsum(np.exp(s.x.astype(np.float64) - s.most), 1) * np.exp(
        s.most.astype(np.float64) - s.running
    )
    return np.exp(s.x - s.running) / sums.astype(np.float32)


def _state_kept(s: Scene) -> Array:
    """Return the output (K, C) of a kernel that does not reset m and l at the beginning of a row."""
    largest = np.maximum.accumulate(s.all_most, 0).astype(np.float64)
    log_sums = s.all_most + np.log(np.exp(s.whole - s.all_most).sum(1, keepdims=True, dtype=np.float64))
    sums = np.exp(np.logaddexp.accumulate(log_sums, 0) - largest).astype(np.float32)
    return np.exp(s.x - s.of_all(largest).astype(np.float32)) / s.of_all(sums)


#: Functions that return the lane of each column by (columns j, C, number of lanes).
_LANES_OF: tuple[Callable[[Array, int, int], Array], ...] = (
    lambda j, columns, lanes: j % lanes,
    lambda j, columns, lanes: np.where(j < columns // lanes * lanes, j % lanes, 0),
    lambda j, columns, lanes: np.minimum(j // max(1, columns // lanes), lanes - 1),
    lambda j, columns, lanes: j // -(-columns // lanes),
)


def _lanes_not_rescaled(s: Scene, lane_of: Array) -> Array:
    """Return the output (K, C) of a kernel that adds the sums of lanes as they are, each with its own maximum."""
    sums = np.zeros_like(s.most)
    for lane in np.unique(lane_of):
        x = s.x[:, lane_of == lane]
        sums += np.where(np.isneginf(x), np.float32(0), np.exp(x - _largest(x))).sum(1, keepdims=True)
    return s.weights / sums


RUNNING: list[Suspect] = [
    row("not_rescaled", "not_rescaled",
        "The running sum is not rescaled: when the maximum grows from m to n, multiply the sum so far by exp(m - n).",
        lambda s: s.weights / total(np.exp(s.x - s.running))),
    row("updated_after_use", "maximum_after_use",
        "Each element is added with the old maximum: update the running maximum before exp(x - m) is computed.",
        lambda s: s.weights / total(np.exp(s.x - _before(s, s.x[:, :1])) * _later(s))),
    row("new_term_rescaled", "new_term_rescaled",
        "The new element is rescaled together with the old sum: in l = l * exp(m - n) + exp(x - n) only l is "
        "multiplied.",
        lambda s:
            s.weights / total(
                np.exp(s.x - s.running)
                * np.exp(_before(s, np.full(s.most.shape, -np.inf, np.float32)) - s.running) * _later(s))),
    row("upside_down", "rescaled_upside_down",
        "The running sum is rescaled by exp(n - m) when the maximum grows from m to n: it should be exp(m - n), which "
        "is below 1.",
        lambda s: s.weights / total(np.exp(s.x - s.running) * np.exp(s.most - s.running))),
    row("begun_anew", "rescaled_to_new_only",
        "The sum is set to 0 when the maximum grows from m to n: multiply the sum so far by exp(m - n) instead.",
        _begun_anew),
    row("new_maximum_left_out", "new_maximum_left_out",
        "An element that becomes the maximum rescales the sum, but is not added to it: after sum *= exp(old - new), "
        "add its term, exp(0) = 1.",
        lambda s: s.weights / total(np.where(_is_new_maximum(s), np.float32(0), s.weights))),
    row("ties_left_out", "ties_left_out",
        "An element that equals the maximum so far adds nothing to the sum: it has to add exp(0) = 1.",
        lambda s: s.weights / total(np.where(s.x == _before(s, np.full(s.most.shape, np.inf, np.float32)),
                                             np.float32(0), s.weights))),
    row("first_twice", "first_counted_twice",
        "The first element counts twice: if the sum begins at 1 for it, the loop has to begin at 1, too.",
        lambda s: s.weights / (total(s.weights) + s.weights[:, :1])),
    row("written_in_first_pass", "written_too_early",
        "The first pass already writes exp(x - m) / l: write in a second pass, because m and l are complete only after "
        "the first.", _written_in_first_pass),
    row("masked_beginning", "empty_so_far",
        "A row that begins with -inf is NaN: as long as the maximum is -inf, exp(-inf - -inf) is not a number. Skip "
        "elements that are -inf, or begin with a finite maximum.",
        lambda s: np.where(np.isneginf(s.x[:, :1]), np.float32(np.nan), normalised(s.weights))),
    row("state_kept", "state_not_reset",
        "Maximum and sum of a row continue those of the previous row: set m to -inf and l to 0 at the start of each "
        "row.", _state_kept),
    *(row(f"{lanes} lanes {k}", "lanes_not_rescaled",
          "The sums of several lanes or blocks of a row are added as they are, although each has its own maximum m: "
          "first multiply each sum by exp(m - n), where n is the largest of these maxima.",
          lambda s, lanes=lanes, of=of: _lanes_not_rescaled(s, of(np.arange(s.columns), s.columns, lanes)))
      for lanes in (2, 4, 8, 16)
      for k, of in enumerate(_LANES_OF)),
]  # fmt: skip


# ---- columns that a loop leaves out: the last one, or those beyond the last full block of an unrolled loop

WIDTHS = (2, 4, 8, 16, 32, 64, 128, 256)


def suspects(columns: int, *, has_maximum: bool) -> list[Suspect]:
    """Return suspects in which a loop leaves out the last column, or the columns beyond the last full block.

    Block widths that leave out the same columns share one suspect, with a name for each width. `columns` is C.
    `has_maximum`: True if the part computes a maximum, whose loop may leave out columns, too.
    """
    cuts: dict[int, list[str]] = {}
    cuts[columns - 1] = ["the last one"]
    for width in WIDTHS:
        if columns % width:
            cuts.setdefault(columns // width * width, []).append(str(width))
    return [
        Suspect(
            code,
            f"{words} from {cut} on: {_why(columns, names)}.",
            lambda s, cut=cut, predict=predict: predict(s, cut),
            tuple(f"{code} {name}" for name in names),
        )
        for code, words, predict in (_KINDS if has_maximum else _KINDS[:-1])
        for cut, names in cuts.items()
    ]


def _why(columns: int, names: list[str]) -> str:
    found = ["the loop ends at C - 1"] if "the last one" in names else []
    if any(name.isdigit() for name in names):
        found.append(f"the rest of {columns} columns, beyond the last full block, is forgotten")
    return ", or ".join(found)


def _largest(x: Array) -> Array:
    """Return the maximum of each row (K, 1), as a loop that starts at -inf finds it: -inf if x has no columns."""
    return x.max(1, keepdims=True, initial=np.float32(-np.inf))


def _left_out(s: Scene, cut: int) -> Array:
    x = s.x[:, :cut]
    weights = np.exp(x - _largest(x))
    found = np.zeros_like(s.x)
    found[:, :cut] = weights / total(weights)
    return found


_KINDS: tuple[tuple[str, str, Callable[[Scene, int], Array]], ...] = (
    ("columns_left_out", "All passes leave out the columns", _left_out),
    (
        "sum_misses_columns",
        "The sum leaves out the columns",
        lambda s, cut: s.weights / total(s.weights[:, :cut]),
    ),
    (
        "maximum_misses_columns",
        "The maximum leaves out the columns",
        lambda s, cut: shifted(s, _largest(s.x[:, :cut])),
    ),
)
