"""Which suspected bugs explain a wrong output: their predictions held against it, first on few rows, then on more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from grader.scene import Scene, Suspect
from grader.suspects import all_suspects

#: Elements of the scores (G, R, N) that suspects are tried on, and the rows of the first look.
_SCENE_SCORES = 1 << 17
_PROBE_ROWS, _SCENE_ROWS = 3, 40
#: Wrong elements below which a suspect must agree with the right ones beside them, too: some suspect always fits a few.
_FEWEST_PARTIAL = 8
#: Shares of the elements that a prediction must agree with, and that it must say something of.
_AGREEING, _KNOWN = 0.97, 0.25


@dataclass(frozen=True)
class Sight:
    """What an output shows in the rows of a scene: the values, how far each may be off, which are wrong; (G, R, d)."""

    scene: Scene
    got: Tensor
    allowed: Tensor
    bad: Tensor

    @cached_property
    def _bad_at(self) -> Tensor:
        return self.bad.flatten().nonzero().flatten()

    @cached_property
    def _got_bad(self) -> Tensor:
        return self.got.flatten()[self._bad_at]

    @cached_property
    def _nearer(self) -> Tensor:
        """How near a prediction must be to be far nearer than the expected output, at the wrong elements."""
        return 0.25 * (self._got_bad - self.scene.truth.flatten()[self._bad_at]).abs()

    @cached_property
    def _size(self) -> Tensor:
        return self.scene.truth.square().mean(2, keepdim=True).sqrt()

    def agrees(self, predicted: Tensor) -> tuple[bool, bool]:
        """Whether a prediction agrees with nearly all wrong elements, and with nearly all right ones as well."""
        if not len(self._bad_at):
            return False, False
        predicted_bad = predicted.flatten()[self._bad_at]
        miss = (self._got_bad - predicted_bad).abs()
        unknown = predicted_bad.isnan()
        near = miss <= self._nearer
        if int((near | unknown).sum()) < _AGREEING * len(miss):
            return False, False
        if int(unknown.sum()) > (1 - _KNOWN) * len(miss):
            return False, False
        # A prediction far smaller than the right output must be met as closely in proportion, or zero would meet it.
        scale = (predicted.square().mean(2, keepdim=True).sqrt() / self._size).clamp(max=1.0)
        slack = 8 * self.allowed * scale + 1e-4 * torch.minimum(predicted.abs(), self.got.abs())
        close = (self.got - predicted).abs() <= slack
        known = ~predicted.isnan()
        if close.flatten()[self._bad_at][~unknown].logical_and(near[~unknown]).double().mean() < _AGREEING:
            return False, False
        others = known & ~self.bad
        return True, not others.any() or bool(close[others].double().mean() > _AGREEING)


def fitting(
    inputs: Mapping[str, Tensor],
    shape: Mapping[str, int],
    expected: Tensor,
    tolerance: Tensor,
    actual: Tensor,
    wrong: Tensor,
    likely: frozenset[str] = frozenset(),
) -> list[Suspect]:
    """All suspects that explain the whole output, else those that explain its wrong elements; simpler ones first.

    All tensors are (B, H, N, d). `likely` names suspects that other outputs of the kernel have shown: where some of
    them explain the whole output, no others are tried.
    """
    heads = _window(wrong, expected.shape[2])
    enough = int(wrong.flatten(0, 1)[heads].sum()) >= _FEWEST_PARTIAL
    wrong, tolerance, actual = (t.flatten(0, 1)[heads] for t in (wrong, tolerance, actual))
    q, k, v = (inputs[name].flatten(0, 1)[heads].double() for name in "QKV")

    def sight(rows: Tensor) -> Sight:
        scene = Scene(q, k, v, expected.flatten(0, 1)[heads], rows, heads.start, shape, inputs)
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
    """Those that explain all, and those that explain what is wrong and not what is right."""
    full, partial = [], []
    for suspect in suspects:
        predicted = suspect.predict(probe.scene)
        if predicted is None or not probe.agrees(predicted)[0]:
            continue
        predicted = suspect.predict(whole.scene)
        if predicted is None:
            continue
        explains_wrong, explains_right = whole.agrees(predicted)
        if explains_wrong:
            (full if explains_right else partial).append(suspect)
    return full, partial


def _window(wrong: Tensor, keys: int) -> slice:
    """Consecutive heads for the suspects: from the first on where the first wrong one is among them, for a bug may
    depend on the heads before; else from the one before the first wrong one."""
    heads = wrong.flatten(0, 1).flatten(1).any(1)
    count = max(2, min(8, _SCENE_SCORES // (keys * 8)))
    first_wrong = int(heads.nonzero()[0])
    start = 0 if first_wrong < count else first_wrong - 1
    return slice(start, min(start + count, len(heads)))


def _sample_rows(wrong: Tensor, count: int) -> Tensor:
    """Rows to look at: the first wrong ones, then wrong and right ones spread over N. `wrong`: (G, N, d)."""
    hit = wrong.any(2).any(0)
    bad, good = hit.nonzero().flatten(), (~hit).nonzero().flatten()
    spread = bad[torch.linspace(0, len(bad) - 1, min(count, len(bad))).long()]
    others = good[torch.linspace(0, len(good) - 1, min(count // 4, len(good))).long()] if len(good) else good
    return torch.cat([bad[:1], spread, others]).unique()
