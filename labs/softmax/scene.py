"""Input from which a suspect (a possible mistake) predicts an output, and comparison of predictions with the output.

Predictions are computed in float32, like a student's kernel. So where a kernel overflows, its prediction has the same
infinities and NaN, which must also agree with the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from grader.core.arrays import Array, np
from grader.explain.deviation import Deviation
from grader.explain.suspect import AGREEING, Suspect, matching_suspects

#: Suspects are tried on rows with at most MOST_ELEMENTS elements in all, but on at least FEWEST_ROWS rows.
MOST_ELEMENTS, FEWEST_ROWS = 1 << 17, 4


@dataclass(frozen=True)
class Scene:
    """Input of a call with a wrong output, float32. `whole` (R, C) is the matrix X; `x` (K, C) are its K rows from row
    `first` on, for which suspects predict the output.
    """

    x: Array
    first: int
    whole: Array

    @property
    def columns(self) -> int:
        return self.x.shape[1]

    @cached_property
    def most(self) -> Array:
        """The maximum of each row of `x`, (K, 1)."""
        return self.x.max(1, keepdims=True)

    @cached_property
    def weights(self) -> Array:
        """exp(x - maximum), (K, C)."""
        return np.exp(self.x - self.most)

    @cached_property
    def plain(self) -> Array:
        """exp(x), (K, C)."""
        return np.exp(self.x)

    @cached_property
    def all_most(self) -> Array:
        """The maximum of each row of `whole`, (R, 1)."""
        return self.whole.max(1, keepdims=True)

    @cached_property
    def running(self) -> Array:
        """The running maximum: for each element the maximum of its row up to this element, (K, C)."""
        return np.maximum.accumulate(self.x, 1)

    def of_all(self, per_row: Array) -> Array:
        """Return the scene's K rows of `per_row` (R, ...), an array with a row for each row of X."""
        return per_row[self.first : self.first + len(self.x)]


def total(weights: Array) -> Array:
    """Return the exact sum of each row, rounded to float32, (K, 1)."""
    return weights.sum(1, keepdims=True, dtype=np.float64).astype(np.float32)


def normalised(weights: Array) -> Array:
    """Return the weights (K, C) divided by the sums of their rows."""
    return weights / total(weights)


def shifted(scene: Scene, shift: Array | float) -> Array:
    """Return the softmax as computed with `shift` subtracted in place of each row's maximum, (K, C).

    The result differs from the right softmax only if exp() overflows or underflows.
    """
    return normalised(np.exp(scene.x - np.asarray(shift, np.float32)))


# ---- comparison of predictions with an output


def scene_of(seen: Deviation) -> tuple[Scene, Deviation]:
    """Return a Scene of the rows on which suspects are tried, limited by MOST_ELEMENTS. Also return `seen`, cut to
    these rows."""
    whole = seen.inputs["X"]
    count = max(FEWEST_ROWS, MOST_ELEMENTS // max(1, whole.shape[1]))
    first_wrong = int(seen.wrong.any(1).argmax())
    first = 0 if first_wrong < count else first_wrong - 1
    rows = slice(first, first + count)
    cut = replace(
        seen,
        expected=seen.expected[rows],
        actual=seen.actual[rows],
        tolerance=seen.tolerance[rows],
        wrong=seen.wrong[rows],
    )
    return Scene(np.ascontiguousarray(whole[rows]), first, whole), cut


@np.errstate(all="ignore")
def fitting(
    suspects: Sequence[Suspect],
    scene: object,
    seen: Deviation,
    likely: frozenset[str],
    right: Mapping[str, Array] | None = None,
) -> list[Suspect]:
    """Return the suspects that explain the output `seen`. `scene` is the argument of their predictions.

    `likely`: names of suspects to try first, as for `grader.explain.oracle.Oracle.suspects`. `right` has the expected
    values of the call's right outputs, by name. A suspect that predicts other values for one of these is left out.
    """

    def spoils(suspect: Suspect) -> bool:
        predicted = suspect.predicted(scene) if right else None
        return isinstance(predicted, Mapping) and any(
            name in predicted and not np.allclose(predicted[name], value, rtol=1e-3, atol=0)
            for name, value in (right or {}).items()
        )

    kept = [suspect for suspect in suspects if not spoils(suspect)]
    return matching_suspects(kept, seen, likely, scene, agreement)


def agreement(seen: Deviation, predicted: Array, slack: Array | None = None) -> tuple[bool, bool]:
    """Compare a prediction with the output. Return (explains the wrong elements, agrees with nearly all right ones).

    To explain the wrong elements, a prediction must agree with nearly all of them. If these are all NaN or infinite, it
    must also agree with nearly all right elements, because many mistakes give NaN. Without right elements it then
    explains nothing. NaN agrees only with NaN. `slack` is the allowed difference of each element, by default
    `seen.slack`.
    """
    actual, wrong = seen.actual, seen.wrong
    slack = seen.slack if slack is None else slack
    same = (np.isnan(actual) & np.isnan(predicted)) | (actual == predicted)
    miss = abs(actual - predicted)
    # Reduce the tolerance where the prediction is far smaller than the right output. Otherwise a small prediction would
    # agree with an output of 0.
    scale = np.minimum(abs(predicted) / np.maximum(abs(seen.expected), 1e-300), 1.0) if wrong.any() else 1.0
    close = same | (miss <= slack * scale + 1e-4 * np.minimum(abs(predicted), abs(actual)))
    # A prediction must be much closer to the output than the right value is.
    near = same | (miss <= 0.25 * abs(actual - seen.expected))
    if wrong.any() and (close & near)[wrong].mean() < AGREEING:
        return False, False
    has_pattern = not wrong.any() or bool(np.isfinite(actual[wrong]).any())
    fits_right = has_pattern if wrong.all() else bool(close[~wrong].mean() > AGREEING)
    return fits_right or has_pattern, fits_right
