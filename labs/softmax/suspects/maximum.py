"""Mistakes in the maximum that is taken off, which show where exp() overflows, or where a whole row is 0."""

from __future__ import annotations

from collections.abc import Callable

from grader.core.arrays import Array, np
from grader.judge.diagnosis.suspect import Suspect, registering

from ..scene import Scene, normalised, row, shifted, total

MISTAKES: list[Suspect] = []
mistake = registering(MISTAKES)


MISTAKES += [
    row("no_maximum", "no_maximum", "The maximum is not taken off: exp(x) is infinite above 88.7, and 0 below -104.",
        lambda s: shifted(s, 0.0)),
    row("of_the_matrix", "maximum_of_matrix",
        "The maximum is that of the whole matrix: a row far below it is 0 throughout, and its sum too. Begin anew "
        "in each row.",
        lambda s: shifted(s, s.whole.max())),
    row("of_the_column", "maximum_wrong_axis",
        "The maximum goes over rows: each element needs that of its row, not of its column.",
        lambda s: shifted(s, s.whole.max(0, keepdims=True))),
    row("of_the_first", "maximum_of_first", "The first element of the row is taken off, and not the largest one.",
        lambda s: shifted(s, s.x[:, :1])),
    row("of_the_last", "maximum_of_last", "The last element of the row is taken off, and not the largest one.",
        lambda s: shifted(s, s.x[:, -1:])),
]  # fmt: skip


def _of_row_before(start: float) -> Callable[[Scene], Array]:
    def predict(s: Scene) -> Array:
        before = np.concatenate([np.full((1, 1), start, np.float32), s.all_most[:-1]])
        return shifted(s, s.of_all(before))

    return predict


_BEFORE = (
    "The maximum that is taken off is that of the row before: it is used before that of this row is known."
)
MISTAKES += [
    Suspect("maximum_of_row_before", _BEFORE, _of_row_before(start), (f"row before, begun at {start}",))
    for start in (0.0, -np.inf, -np.finfo(np.float32).max)
]


MISTAKES += [
    row("largest_so_far", "maximum_not_reset",
        "The maximum is the largest of all rows so far: set it to -inf at the beginning of each row.",
        lambda s: shifted(s, s.of_all(np.maximum.accumulate(s.all_most, 0)))),
    row("of_absolutes", "maximum_of_absolutes", "The largest |x| is taken off, and not the largest x.",
        lambda s: shifted(s, abs(s.x).max(1, keepdims=True))),
    row("of_the_smallest", "minimum_taken", "The smallest element of the row is taken off, and not the largest one.",
        lambda s: shifted(s, s.x.min(1, keepdims=True))),
]  # fmt: skip


def _begun_at(start: float) -> Callable[[Scene], Array]:
    return lambda s: shifted(s, np.maximum(s.most, np.float32(start)))


MISTAKES += [
    Suspect(
        "maximum_start",
        f"The maximum begins at {words}, which is more than all elements of some rows: begin at -inf.",
        _begun_at(start),
        (f"begun at {start:g}",),
    )
    for start, words in (
        (0.0, "0, or at numeric_limits<float>::min(), which is the smallest positive number"),
        (-100.0, "-100"),
        (-1000.0, "-1000"),
    )
]


MISTAKES += [
    row("misses_first", "maximum_misses_first",
        "The maximum leaves out the first element of the row: look at the loop's start.",
        lambda s: shifted(s, s.x[:, 1:].max(1, keepdims=True, initial=np.float32(-np.inf)))),
    row("only_in_sum", "maximum_only_in_sum",
        "The maximum is taken off in the sum, and not in what is divided by it: exp(x) / sum exp(x - m).",
        lambda s: s.plain / total(s.weights)),
    row("only_above", "maximum_only_above",
        "The maximum is taken off in what is divided, and not in the sum: exp(x - m) / sum exp(x).",
        lambda s: s.weights / total(s.plain)),
    row("added", "maximum_added", "The maximum is added to x, and not taken off.",
        lambda s: normalised(np.exp(s.x + s.most))),
]  # fmt: skip
