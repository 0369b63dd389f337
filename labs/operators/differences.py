"""Comparison of a wrong gradient with the slope of the student's own forward function.

The loss is L = sum of dO * forward(X), or forward(X) itself where that is a loss. Its slope along one element x is
(L(x + h) - L(x - h)) / 2h. Two calls of the student's forward function give the slope. It is compared with the
gradient that their backward function added, and with the right one. Where forward is linear or quadratic in x, any h
will do. Elsewhere h is smaller. An element is skipped if its slope in float64 is not the right gradient (at a tie, at
a corner).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from grader.core.arrays import Array, np
from grader.judge.comparison import Expected, compare
from grader.judge.diagnosis.inquiry import Answers, Inquiry
from grader.judge.oracle import Inputs

#: Elements that are looked at: those whose gradient is furthest from right.
TRIED = 3
#: Two figures agree to this share of the larger one, beside rounding.
AGREEING = 0.05
#: What a float32 forward function may be off by, as a share of its results.
ROUNDING = 2.0**-20

Forward = Callable[[Inputs], Array]
RESULT = ""


@dataclass(frozen=True)
class Point:
    """An element of a gradient: the number that was added to it, and the right one."""

    at: tuple[int, ...]
    added: float
    right: float


@dataclass(frozen=True)
class Slopes:
    """Settings of the finite differences. `forward` is the part whose function is called. `operands` maps each
    gradient to its operand. `upstream` is the input with the gradient of the result ("" for a loss), and `step` is h.
    """

    forward: str
    operands: Mapping[str, str]
    upstream: str
    step: float = 1.0

    def inquiry(
        self,
        inputs: Inputs,
        expected: Mapping[str, Expected],
        actual: Mapping[str, Array],
        right_forward: Forward,
    ) -> Inquiry | None:
        """Return calls that show the slope at a few wrong elements of the first wrong gradient. `right_forward`
        computes in float64."""
        wrong = [name for name in self.operands if not compare(expected[name], actual[name]).ok]
        if not wrong:
            return None
        name, operand = wrong[0], self.operands[wrong[0]]
        points = [
            point
            for point in _furthest(inputs[name], expected[name], actual[name])
            if self._is_smooth(inputs, operand, point, right_forward)
        ]
        calls = [
            (self.forward, moved) for point in points for moved in self._moved(inputs, operand, point.at)
        ]

        def told(answers: Sequence[Answers]) -> str:
            results = [np.asarray(answer[RESULT], np.float64) for answer in answers]
            slopes = [
                self._slope(inputs, self._moved(inputs, operand, point.at), operand, point.at, pair)
                for point, pair in zip(points, zip(results[::2], results[1::2], strict=True), strict=True)
            ]
            return _sentence(self._function, name, points, slopes)

        return Inquiry(calls, told) if calls else None

    @property
    def _function(self) -> str:
        first, *others = self.forward.split("_")
        return f"{first}{''.join(word.capitalize() for word in others)}Forward"

    def _moved(self, inputs: Inputs, operand: str, at: tuple[int, ...]) -> list[dict[str, Array]]:
        """Return the inputs with one element larger, and smaller, by h."""
        moved = []
        for step in (self.step, -self.step):
            changed = inputs[operand].copy()
            changed[at] += np.float32(step)
            moved.append({**inputs, operand: changed})
        return moved

    def _slope(
        self,
        inputs: Inputs,
        moved: Sequence[Inputs],
        operand: str,
        at: tuple[int, ...],
        results: Sequence[Array],
    ) -> tuple[float, float]:
        """Return the slope from two results of a forward function, and its possible error."""
        above, below = results
        run = float(moved[0][operand][at]) - float(moved[1][operand][at])
        weight = inputs[self.upstream].astype(np.float64) if self.upstream else np.ones(1)
        rise = weight * (above - below)
        size = abs(weight) * (abs(above) + abs(below)) * (above != below)
        return float(rise.sum()) / run, ROUNDING * float(size.sum()) / run

    def _is_smooth(self, inputs: Inputs, operand: str, point: Point, forward: Forward) -> bool:
        moved = self._moved(inputs, operand, point.at)
        slope, off = self._slope(inputs, moved, operand, point.at, [forward(x) for x in moved])
        return _agree(slope, point.right, off) and not _agree(point.added, point.right, off)


def _furthest(held: Array, expected: Expected, actual: Array) -> list[Point]:
    """Return the finite elements whose gradient is furthest from right."""
    error = np.where(np.isfinite(actual), abs(actual - expected.value), -1.0)
    found = []
    for place in np.argsort(error, axis=None)[::-1][:TRIED]:
        at = tuple(int(k) for k in np.unravel_index(place, error.shape))
        if error[at] > 0:
            before = float(held[at])
            found.append(Point(at, float(actual[at]) - before, float(expected.value[at]) - before))
    return found


def _agree(one: float, other: float, off: float) -> bool:
    return abs(one - other) <= AGREEING * max(abs(one), abs(other)) + off


def _sentence(
    function: str, name: str, points: Sequence[Point], slopes: Sequence[tuple[float, float]]
) -> str:
    """Return a sentence about the slopes, with the numbers of the first; "" if they do not agree."""
    as_right = [_agree(slope, point.right, off) for point, (slope, off) in zip(points, slopes, strict=True)]
    as_added = [_agree(slope, point.added, off) for point, (slope, off) in zip(points, slopes, strict=True)]
    point, (slope, _) = points[0], slopes[0]
    if not np.isfinite([slope for slope, _ in slopes]).all():
        return ""
    place = f"{name}[{', '.join(map(str, point.at))}]"
    if all(as_right):
        return (
            f"Your own {function} says so too: by a finite difference of it, {place} should get {slope:.4g}, and "
            f"{point.added:.4g} was added. It is this backward function that is wrong."
        )
    if all(as_added):
        return (
            f"It does agree with your own {function}: by a finite difference of that, {place} should get {slope:.4g}, "
            f"but the right gradient is {point.right:.4g}. Look at the forward function first."
        )
    if not any(as_right) and not any(as_added):
        return (
            f"By a finite difference of your own {function}, {place} should get {slope:.4g}; the right gradient is "
            f"{point.right:.4g}, and {point.added:.4g} was added. Look at the forward function as well."
        )
    return ""
