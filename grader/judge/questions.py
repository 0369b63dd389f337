"""The inputs of a case together with what is expected of them: the same for every part and every submission of a class.

Making them costs as much as many a kernel, so a process that judges many keeps some. Inputs of timed calls are drawn
afresh for each and never come here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from grader.assignment.labs import Lab
from grader.assignment.records import Case
from grader.judge.comparison import Expected

KEPT = 32
LARGEST_KEPT_ELEMENTS = 1 << 20
"""Of all inputs of a case: with its expected values one of this size takes some 10 MB."""


class CaseInputs(dict[str, Any]):
    """Input arrays by name, which remember the expected values. Nobody may write to either."""

    def __init__(self, lab: Lab, inputs: Mapping[str, Any], shape: Mapping[str, int]) -> None:
        super().__init__(inputs)
        self._lab, self._shape = lab, shape
        self._expected: dict[tuple[str, int], Expected | Mapping[str, Expected]] = {}

    def expected(self, oracle: str, seen: Mapping[str, Any]) -> Expected | Mapping[str, Expected]:
        """Return what the oracle of that name expects of these of the inputs."""
        key = (oracle, len(seen))
        if key not in self._expected:
            self._expected[key] = self._lab.oracle(oracle).expected(seen, self._shape)
        return self._expected[key]

    @property
    def elements(self) -> int:
        return sum(int(array.size) for array in self.values())


_kept: OrderedDict[tuple[object, ...], CaseInputs] = OrderedDict()


def question(lab: Lab, case: Case, shape: Mapping[str, int]) -> CaseInputs:
    """The inputs of a case in this shape (which holds the case's own sizes already)."""
    key = (id(lab), case.distribution, case.seed, *sorted(shape.items()))
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key]
    made = CaseInputs(lab, lab.make_inputs(case.distribution, shape, case.seed), dict(shape))
    if made.elements <= LARGEST_KEPT_ELEMENTS:
        _kept[key] = made
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return made
