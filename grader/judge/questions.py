"""The inputs of a case together with what is expected of them: the same for every part and every submission of a class.

Making them costs as much as many a kernel, so a process that judges many keeps some. Inputs of timed calls are drawn
afresh for each and never come here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from grader.assignment.records import Case
from grader.judge.cases import make_inputs
from grader.judge.oracle import ORACLES, Expected

KEPT = 32
LARGEST_KEPT_ELEMENTS = 1 << 18
"""Of one tensor: with its expected values a case of this size takes 8 MB."""


class CaseInputs(dict[str, Any]):
    """Input arrays by name, which remember the expected values. Nobody may write to either."""

    def __init__(self, inputs: Mapping[str, Any], shape: Mapping[str, int]) -> None:
        super().__init__(inputs)
        self._shape = shape
        self._expected: dict[str, Expected] = {}

    def expected(self, oracle: str) -> Expected:
        """Expected values by the oracle of that name."""
        if oracle not in self._expected:
            self._expected[oracle] = ORACLES[oracle].expected(self, self._shape)
        return self._expected[oracle]


def question(case: Case, shape: Mapping[str, int]) -> CaseInputs:
    """The inputs of a case in this shape (which holds the case's own sizes already)."""
    sizes = tuple(sorted(shape.items()))
    small = shape["B"] * shape["H"] * shape["N"] * shape["d"] <= LARGEST_KEPT_ELEMENTS
    return (_kept if small else _made)(case.distribution, sizes, case.seed)


def _made(distribution: str, sizes: tuple[tuple[str, int], ...], seed: int) -> CaseInputs:
    return CaseInputs(make_inputs(distribution, dict(sizes), seed), dict(sizes))


_kept = functools.lru_cache(maxsize=KEPT)(_made)
