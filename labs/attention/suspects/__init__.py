"""Suspects of an attention kernel: each is a function that predicts the output of a kernel with one bug.

When an output is wrong, `fitting` tries the suspects in the order of `all_suspects`. A suspect explains the output if
the prediction agrees with this output. If the kernel has several wrong outputs, a suspect that explains only some of
them is dropped. The student sees all remaining suspects.

To add a suspect, write a row (or a function under `@suspect(code, words)`) in the module of its subject. The prediction
is float64 (G, R, d), or None where the bug cannot occur (for example without a second block). Put the simpler bug
first: if several suspects explain the same output, they are shown in this order.

A `Scene` holds the inputs of the predictions: G heads (b, h) that follow one another in memory, and a sample of R rows.
Because a Scene is small, all suspects together take well under a second at N = 1024.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from grader.core.arrays import Array, np
from grader.explain.deviation import Deviation
from grader.explain.suspect import AGREEING, FEWEST_PARTIAL, KNOWN, Suspect

from ..scene import Scene
from . import blocks, bounds, flash, formula, heads


def all_suspects(scene: Scene) -> Iterator[Suspect]:
    """Yield every suspect that applies to the scene, simpler ones first."""
    for module in (formula, heads, bounds):
        yield from module.SUSPECTS
    # For blocks of Bc keys, some suspects of `flash` and `blocks` predict the same output. Those of `flash` come first.
    yield from flash.suspects(scene)
    yield from blocks.suspects(scene)
    yield from blocks.SUSPECTS


# ---- search for the suspects that explain an output: compare predictions and output in a few rows, then in more

#: Limit on the elements of a scene's scores (G, R, N).
_SCENE_SCORES = 1 << 17
#: Numbers of rows that the first and the second comparison use.
_PROBE_ROWS, _SCENE_ROWS = 3, 40


@dataclass(frozen=True)
class Sight:
    """A wrong output in a scene's rows: values `got`, tolerances `allowed`, mask `bad` of errors, each (G, R, d)."""

    scene: Scene
    got: Array
    allowed: Array
    bad: Array

    @cached_property
    def _bad_at(self) -> Array:
        return np.flatnonzero(self.bad)

    @cached_property
    def _got_bad(self) -> Array:
        return self.got.reshape(-1)[self._bad_at]

    @cached_property
    def _nearer(self) -> Array:
        """Allowed distance of a prediction from each wrong element: a quarter of the element's error."""
        return 0.25 * abs(self._got_bad - self.scene.truth.reshape(-1)[self._bad_at])

    @cached_property
    def _size(self) -> Array:
        return _root_mean_square(self.scene.truth)

    def agrees(self, predicted: Array) -> tuple[bool, bool]:
        """Return (explains, is_whole) for a prediction (G, R, d).

        `explains`: True if it agrees with nearly all wrong elements. `is_whole`: True if it agrees with nearly all
        right elements as well. Elements that are NaN in the prediction are unknown and not compared. If too few wrong
        elements are known, both results are False.
        """
        if not len(self._bad_at):
            return False, False
        predicted_bad = predicted.reshape(-1)[self._bad_at]
        miss = abs(self._got_bad - predicted_bad)
        unknown = np.isnan(predicted_bad)
        near = miss <= self._nearer
        if int((near | unknown).sum()) < AGREEING * len(miss):
            return False, False
        if int(unknown.sum()) > (1 - KNOWN) * len(miss):
            return False, False
        # Reduce the tolerance if a prediction is far smaller than the right output. Otherwise a small prediction would
        # agree with zeros.
        scale = np.minimum(_root_mean_square(predicted) / self._size, 1.0)
        slack = 8 * self.allowed * scale + 1e-4 * np.minimum(abs(predicted), abs(self.got))
        close = abs(self.got - predicted) <= slack
        known = ~np.isnan(predicted)
        if (close.reshape(-1)[self._bad_at] & near)[~unknown].mean() < AGREEING:
            return False, False
        others = known & ~self.bad
        return True, not others.any() or bool(close[others].mean() > AGREEING)


def fitting(seen: Deviation, likely: frozenset[str] = frozenset()) -> list[Suspect]:
    """Return the suspects that explain the whole output; if no suspect does, those that explain its wrong elements.

    With fewer than FEWEST_PARTIAL wrong elements, return only suspects that explain the whole output. Simpler suspects
    come first. `likely` names suspects that explain other outputs of the kernel. They are tried first; if one explains
    the whole output, others are not tried.
    """
    heads = _window(seen.wrong, seen.expected.shape[2])
    enough = int(_heads(seen.wrong)[heads].sum()) >= FEWEST_PARTIAL
    wrong, tolerance, actual = (_heads(t)[heads] for t in (seen.wrong, seen.tolerance, seen.actual))
    q, k, v = (_heads(seen.inputs[name])[heads].astype(np.float64) for name in "QKV")
    expected = _heads(seen.expected)[heads]

    def sight(rows: Array) -> Sight:
        scene = Scene(q, k, v, expected, rows, heads.start, seen.sizes, seen.inputs)
        return Sight(scene, actual[:, rows], tolerance[:, rows], wrong[:, rows])

    probe, whole = (sight(_sample_rows(wrong, count)) for count in (_PROBE_ROWS, _SCENE_ROWS))
    suspects = list(all_suspects(probe.scene))
    full, partial = _tried(
        (suspect for suspect in suspects if not likely.isdisjoint(suspect.names)), probe, whole
    )
    if full:
        return full
    full, more = _tried((suspect for suspect in suspects if likely.isdisjoint(suspect.names)), probe, whole)
    return full or ([*partial, *more] if enough else [])


def _tried(suspects: Iterable[Suspect], probe: Sight, whole: Sight) -> tuple[list[Suspect], list[Suspect]]:
    """Return (suspects that explain all elements, suspects that explain only the wrong elements).

    A suspect is tried on `probe`, which has a few rows. If it explains these, it is tried on `whole`, which has more.
    """
    full: list[Suspect] = []
    partial: list[Suspect] = []
    for suspect in suspects:
        predicted = suspect.predicted(probe.scene)
        if predicted is None or not probe.agrees(predicted)[0]:
            continue
        predicted = suspect.predicted(whole.scene)
        if predicted is None:
            continue
        explains_wrong, explains_right = whole.agrees(predicted)
        if explains_wrong:
            (full if explains_right else partial).append(suspect)
    return full, partial


def _window(wrong: Array, keys: int) -> slice:
    """Return a range of consecutive heads for the suspects, which contains the first wrong head.

    It begins at head 0 if possible, because a bug may depend on earlier heads; else one head before the wrong one."""
    heads = np.asarray(_heads(wrong).any((1, 2)))
    count = max(2, min(8, _SCENE_SCORES // (keys * 8)))
    first_wrong = int(heads.argmax())
    start = 0 if first_wrong < count else first_wrong - 1
    return slice(start, min(start + count, len(heads)))


def _sample_rows(wrong: Array, count: int) -> Array:
    """Return row numbers: the first wrong row, `count` wrong rows and `count // 4` right ones, both spread over N."""
    hit = wrong.any(2).any(0)
    bad, good = np.flatnonzero(hit), np.flatnonzero(~hit)
    return np.unique(np.concatenate([bad[:1], _spread(bad, count), _spread(good, count // 4)]))


def _spread(rows: Array, count: int) -> Array:
    """Return at most `count` of these row numbers, from the first to the last at equal distances."""
    if not len(rows):
        return rows
    return rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64)]


def _heads(values: Array) -> Array:
    """Reshape (B, H, N, d) to (B * H, N, d)."""
    return values.reshape(-1, *values.shape[2:])


def _root_mean_square(rows: Array) -> Array:
    return np.sqrt(np.square(rows).mean(2, keepdims=True))
