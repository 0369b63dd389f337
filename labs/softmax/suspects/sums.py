"""Mistakes in the sum: over what it goes, when it begins anew, what it loses."""

from __future__ import annotations

from collections.abc import Callable

from grader.core.arrays import Array, np
from grader.judge.diagnosis.suspect import Suspect, registering

from ..scene import Scene, row, total

MISTAKES: list[Suspect] = []
mistake = registering(MISTAKES)


MISTAKES += [
    row("over_rows", "wrong_axis",
        "Each column is divided by its own sum: the sum goes over rows in the place of columns.",
        lambda s: s.weights / total(np.exp(s.whole - s.all_most).T).T),
    row("plain_over_rows", "wrong_axis",
        "Each column is divided by its own sum of exp(x): the sum goes over rows in the place of columns.",
        lambda s: s.plain / total(np.exp(s.whole).T).T),
    row("over_everything", "sum_of_matrix", "Each row is divided by the sum of the whole matrix, and not by its own.",
        lambda s: s.weights / total(np.exp(s.whole - s.all_most)).sum(dtype=np.float32)),
    row("plain_over_everything", "sum_of_matrix",
        "Each row is divided by the sum of exp(x) of the whole matrix, and not by its own.",
        lambda s: s.plain / total(np.exp(s.whole)).sum(dtype=np.float32)),
    row("kept_sum", "sum_not_reset",
        "The sum of a row holds those of the rows before it: set it to 0 at the beginning of each row.",
        lambda s: s.weights / s.of_all(np.cumsum(total(np.exp(s.whole - s.all_most)), 0, dtype=np.float32))),
    row("plain_kept_sum", "sum_not_reset",
        "The sum of exp(x) of a row holds those of the rows before it: set it to 0 at the beginning of each row.",
        lambda s: s.plain / s.of_all(np.cumsum(total(np.exp(s.whole)), 0, dtype=np.float32))),
    row("running_sum", "divided_too_early",
        "Each element is divided by the sum up to itself, which is not complete yet: divide in a pass of its own.",
        lambda s: s.weights / np.cumsum(s.weights, 1, dtype=np.float32)),
    row("lacks_first", "first_left_out",
        "The sum lacks the first element of the row: a loop that begins at 1 needs a sum that begins at exp(0) = 1.",
        lambda s: s.weights / total(s.weights[:, 1:])),
]  # fmt: skip


# ---- a sum of float32 that loses what is small beside it


def in_lanes(weights: Array, lanes: int) -> Array:
    """The sum of each row in `lanes` float32 sums that take turns, and these added up: as a loop does."""
    count = -(-weights.shape[1] // lanes) * lanes
    padded = np.zeros((len(weights), count), np.float32)
    padded[:, : weights.shape[1]] = weights
    # np.cumsum adds one after the other, where np.sum adds in pairs.
    sums = np.cumsum(padded.reshape(len(weights), -1, lanes), 1, dtype=np.float32)[:, -1]
    return sums.sum(1, keepdims=True, dtype=np.float32)


def _losing(lanes: int, backwards: bool) -> Callable[[Scene], Array]:
    def predict(s: Scene) -> Array:
        return s.weights / in_lanes(s.weights[:, ::-1] if backwards else s.weights, lanes)

    return predict


def _lanes(lanes: int) -> tuple[Suspect, ...]:
    held = "one float" if lanes == 1 else f"{lanes} floats"
    words = (
        f"The sum of a row is held in {held} and loses what many small numbers amount to: once it is "
        "1 or more, what is "
        "below 6e-8 changes nothing. Sum in double, or in blocks of some hundred numbers whose sums are then added."
    )
    return tuple(
        Suspect("float_sum", words, _losing(lanes, backwards), (f"{lanes} lanes{' backwards' * backwards}",))
        for backwards in (False, True)
    )


#: From `safe` on.
LANES: tuple[Suspect, ...] = tuple(suspect for lanes in (1, 2, 4, 8, 16) for suspect in _lanes(lanes))
