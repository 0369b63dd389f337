"""Suspected bugs of an attention kernel: each is a small function from inputs to the output such a kernel would give.

When an output is wrong, the suspects are tried in the order of `all_suspects` (`labs.attention.fitting`). Those
whose prediction agrees with what the kernel returned explain it, and those that no other input refutes name the bug,
together where they are several. To add one, write a function with `@suspect(code,
words)`, in the module of this package that it is about, that gives its prediction, float64 (G, R, d), or
None where it does not apply (no such block, say). Suspects that explain the same output (with a single key,
most do) are told in their order: put the simpler bug first.

A `Scene` holds what they need. Its heads are a window of G (b, h) pairs in memory order, its rows a sample
of R rows, so that all suspects together take well under a second at N = 1024.
"""

from __future__ import annotations

from collections.abc import Iterator

from grader.judge.diagnosis.suspect import Suspect

from ..scene import Scene
from . import (
    blocks,
    bounds,
    flash,
    formula,
    heads,
    leftovers,
    operands,
    precision,
    strides,
)


def all_suspects(scene: Scene) -> Iterator[Suspect]:
    """Every suspect that applies to the scene, simpler ones first."""
    for module in (formula, operands, heads, bounds, leftovers, strides):
        yield from module.SUSPECTS
    # Flash before the general block suspects: with blocks of Bc some of them give the same output.
    yield from flash.suspects(scene)
    yield from blocks.suspects(scene)
    yield from precision.SUSPECTS
