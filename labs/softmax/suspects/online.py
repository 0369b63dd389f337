"""Mistakes of the pass that keeps a running maximum m and a running sum l.

With m_j the maximum of the first j + 1 elements, l_j = l_{j-1} exp(m_{j-1} - m_j) + exp(x_j - m_j) is right. What a
wrong recurrence gives is written down as a sum over j: exp(m_j - m_last) is what the steps behind j rescale by.
"""

from __future__ import annotations

from grader.core.arrays import Array, np
from grader.judge.diagnosis.suspect import Suspect, registering

from ..scene import Scene, normalised, row, total

MISTAKES: list[Suspect] = []
mistake = registering(MISTAKES)


def _before(s: Scene, start: Array) -> Array:
    """The running maximum before each element; `start` (K, 1) before the first."""
    return np.concatenate([np.broadcast_to(start, s.most.shape), s.running[:, :-1]], 1)


def _later(s: Scene) -> Array:
    """Return the factor by which later steps rescale each step's sum."""
    return np.exp(s.running - s.most)


MISTAKES += [
    row("not_rescaled", "not_rescaled",
        "The running sum is not rescaled: where the maximum grows from m to n, what was summed so far counts exp(m "
        "- n) times.",
        lambda s: s.weights / total(np.exp(s.x - s.running))),
    row("updated_after_use", "maximum_after_use",
        "Each element is added with the maximum before it: the running maximum is updated only after exp(x - m) was "
        "taken.",
        lambda s: s.weights / total(np.exp(s.x - _before(s, s.x[:, :1])) * _later(s))),
    row("new_term_rescaled", "new_term_rescaled",
        "The new element is rescaled together with the old sum: in l = l * exp(m - n) + exp(x - n) only l is "
        "multiplied.",
        lambda s:
            s.weights / total(
                np.exp(s.x - s.running)
                * np.exp(_before(s, np.full(s.most.shape, -np.inf, np.float32)) - s.running) * _later(s))),
    row("upside_down", "rescaled_upside_down",
        "The running sum is rescaled by exp(n - m), where the maximum grows from m to n: it is exp(m - n), which is "
        "below 1.",
        lambda s: s.weights / total(np.exp(s.x - s.running) * np.exp(s.most - s.running))),
]  # fmt: skip


@mistake(
    "rescaled_to_new_only",
    "The sum begins anew where the maximum grows: what was summed so far still counts, exp(m - n) times.",
)
def begun_anew(s: Scene) -> Array:
    last_growth = s.columns - 1 - np.argmax(s.running[:, ::-1] > _before(s, np.float32(-np.inf))[:, ::-1], 1)
    kept = np.arange(s.columns) >= last_growth[:, None]
    return s.weights / total(np.where(kept, s.weights, np.float32(0)))


MISTAKES += [
    row("first_twice", "first_counted_twice",
        "The first element counts twice: where the sum begins at 1 for it, the loop begins at 1, too.",
        lambda s: s.weights / (total(s.weights) + s.weights[:, :1])),
]  # fmt: skip


@mistake(
    "written_too_early",
    "Each element is written with the maximum and the sum of the moment, exp(x - m) / l in the first pass: both are "
    "complete only at its end.",
)
def written_in_first_pass(s: Scene) -> Array:
    sums = np.cumsum(np.exp(s.x.astype(np.float64) - s.most), 1) * np.exp(
        s.most.astype(np.float64) - s.running
    )
    return np.exp(s.x - s.running) / sums.astype(np.float32)


MISTAKES += [
    row("masked_beginning", "empty_so_far",
        "A row that begins with -inf is NaN: as long as the maximum is -inf, exp(-inf - -inf) is no number. Skip "
        "what is -inf, or begin with a maximum that is finite.",
        lambda s: np.where(np.isneginf(s.x[:, :1]), np.float32(np.nan), normalised(s.weights))),
]  # fmt: skip


@mistake(
    "state_not_reset",
    "Maximum and sum of a row go on from the row before: set m to -inf and l to 0 at the beginning of each row.",
)
def state_kept(s: Scene) -> Array:
    largest = np.maximum.accumulate(s.all_most, 0).astype(np.float64)
    log_sums = s.all_most + np.log(np.exp(s.whole - s.all_most).sum(1, keepdims=True, dtype=np.float64))
    sums = np.exp(np.logaddexp.accumulate(log_sums, 0) - largest).astype(np.float32)
    return np.exp(s.x - s.of_all(largest).astype(np.float32)) / s.of_all(sums)
