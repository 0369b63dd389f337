"""Suspected losses of precision."""

from __future__ import annotations

from torch import Tensor

from grader.scene import Scene, Suspect, registering

SUSPECTS: list[Suspect] = []
suspect = registering(SUSPECTS)


@suspect(
    "low_precision", "The inputs have been rounded to half precision (float16). Keep float32 throughout."
)
def float16_inputs(s: Scene) -> Tensor:
    q, k, v = (t.half().double() for t in (s.q, s.k, s.v))
    return s.attend(q[:, s.rows] @ k.mT, v)


@suspect("low_precision", "The inputs have been rounded to bfloat16. Keep float32 throughout.")
def bfloat16_inputs(s: Scene) -> Tensor:
    q, k, v = (t.bfloat16().double() for t in (s.q, s.k, s.v))
    return s.attend(q[:, s.rows] @ k.mT, v)


@suspect(
    "low_precision",
    "The scores or weights are stored as whole numbers somewhere: an int in the place of a float?",
)
def whole_scores(s: Scene) -> Tensor:
    return s.attend(s.scores.trunc())
