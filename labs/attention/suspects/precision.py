"""Suspected losses of precision."""

from __future__ import annotations

from grader.core.arrays import Array, np
from grader.judge.diagnosis.suspect import Suspect, registering

from ..scene import Scene, row

SUSPECTS: list[Suspect] = []
suspect = registering(SUSPECTS)


@suspect(
    "low_precision", "The inputs have been rounded to half precision (float16). Keep float32 throughout."
)
def float16_inputs(s: Scene) -> Array:
    q, k, v = (t.astype(np.float16).astype(np.float64) for t in (s.q, s.k, s.v))
    return s.attend(q[:, s.rows] @ k.mT, v)


def _rounded_to_bfloat16(values: Array) -> Array:
    """The upper halves of float32 numbers, rounded to nearest, ties to even: NumPy has no such type."""
    bits = values.astype(np.float32).view(np.uint32)
    bits += 0x7FFF + ((bits >> 16) & 1)
    return (bits & 0xFFFF0000).view(np.float32).astype(np.float64)


@suspect("low_precision", "The inputs have been rounded to bfloat16. Keep float32 throughout.")
def bfloat16_inputs(s: Scene) -> Array:
    q, k, v = (_rounded_to_bfloat16(t) for t in (s.q, s.k, s.v))
    return s.attend(q[:, s.rows] @ k.mT, v)


def _cut_to_bfloat16(values: Array) -> Array:
    """The upper halves of float32 numbers, the lower ones dropped."""
    bits = values.astype(np.float32).view(np.uint32) & 0xFFFF0000
    return bits.view(np.float32).astype(np.float64)


def _cut_to_float16(values: Array) -> Array:
    """The next float16 towards zero."""
    near = values.astype(np.float16)
    beyond = abs(near.astype(np.float64)) > abs(values)
    return np.where(beyond, np.nextafter(near, np.float16(0)), near).astype(np.float64)


@suspect(
    "low_precision",
    "The inputs have been cut to bfloat16: the lower 16 bits of each float are dropped. Keep float32 throughout.",
)
def inputs_cut_to_bfloat16(s: Scene) -> Array:
    q, k, v = (_cut_to_bfloat16(t) for t in (s.q, s.k, s.v))
    return s.attend(q[:, s.rows] @ k.mT, v)


@suspect(
    "low_precision",
    "The inputs have been cut to half precision (float16), towards zero. Keep float32 throughout.",
)
def inputs_cut_to_float16(s: Scene) -> Array:
    q, k, v = (_cut_to_float16(t) for t in (s.q, s.k, s.v))
    return s.attend(q[:, s.rows] @ k.mT, v)


SUSPECTS += [
    row("whole_scores", "low_precision",
        "The scores or weights are stored as whole numbers somewhere: an int in the place of a float?",
        lambda s: s.attend(np.trunc(s.scores))),
]  # fmt: skip
