"""One judged call: its inputs, its outputs by name, and their deviation from the expected values.

An output is the returned value, or a tensor argument that the function writes.

The inputs of a case and the expected values are the same for every part and every submission of a class. Computing them
can cost as much as a kernel's call, so a process caches those of small cases. Inputs of timed calls are drawn anew for
each call and are not cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from grader.assignment.labs import Lab
from grader.assignment.records import Case, Part
from grader.backends import binding
from grader.core.precision import unwritten, widened
from grader.core.results import Diagnosis
from grader.runner.calls import Call

if TYPE_CHECKING:
    from grader.explain.comparison import Comparison, Expected
    from grader.explain.oracle import Oracle

KEPT = 32
LARGEST_KEPT_ELEMENTS = 1 << 20
"""Most input elements of a cached case. A case of this size takes 10 MB, expected values included."""
#: Name of the output that a function returns.
RESULT = ""


@dataclass(frozen=True)
class CaseRun:
    """One call of a part's function. Its outputs are read and compared on first use, and only once."""

    part: Part
    case: str
    """Name of the input: a case's name, or "timed call"."""
    shape: Mapping[str, int]
    inputs: Mapping[str, Any]
    seen: Mapping[str, Any]
    """Inputs on which the expected values depend."""
    call: Call
    oracle: Oracle

    @cached_property
    def _read(self) -> tuple[dict[str, Any] | None, Diagnosis | None]:
        """The values of `outputs` and `misfit`: one of them is None."""
        return (
            outputs_of(self.part, self.shape, self.inputs, self.call)
            if self.call.status == "ok"
            else (None, None)
        )

    @property
    def outputs(self) -> dict[str, Any] | None:
        """Outputs by name; None if the call returned no output of the right type and shape (see `misfit`)."""
        return self._read[0]

    @property
    def misfit(self) -> Diagnosis | None:
        """Diagnosis of an output with a wrong type or shape, or that was not written; None without such a fault."""
        return self._read[1]

    @cached_property
    def expected(self) -> dict[str, Expected]:
        return expected_of(self.part, self.oracle, self.inputs, self.seen, self.shape)

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """Comparison of each output; {} without outputs."""
        from grader.explain.comparison import compare

        return {name: compare(self.expected[name], actual) for name, actual in (self.outputs or {}).items()}

    @cached_property
    def wrong(self) -> str | None:
        """Name of the first wrong output; None if all outputs are right or missing."""
        return next((name for name, compared in self.comparisons.items() if not compared.ok), None)

    @property
    def is_right(self) -> bool:
        return self.outputs is not None and self.wrong is None


def outputs_of(
    part: Part, shape: Mapping[str, int], inputs: Mapping[str, Any], call: Call
) -> tuple[dict[str, Any] | None, Diagnosis | None]:
    """Return (outputs by name, None), or (None, diagnosis) if an output has a wrong type or shape or is not written."""
    from grader.explain import diagnose

    if part.returns == "nothing" and part.table:
        return {RESULT: call.echoes[0]}, None
    if part.returns == "number":
        return {RESULT: call.output}, None
    found: dict[str, Any] = {}
    if part.returns == "tensor":
        wanted, dtype = binding.output_shape(part, shape), part.dtype
        if call.kind != "a tensor":
            return None, diagnose.wrong_type(call.kind, None, None, wanted, part.output_dims, dtype)
        if call.dtype != dtype or call.shape != wanted or call.output is None:
            misfit = diagnose.wrong_type(call.kind, call.dtype, call.shape, wanted, part.output_dims, dtype)
            return None, misfit
        found[RESULT] = call.output
    names = binding.tensor_names(part, inputs)
    for name in part.outputs:
        dtype = binding.output_dtype(part, name, shape)
        if names.index(name) >= len(call.echoes):
            return None, diagnose.not_written(name)
        value = call.echoes[names.index(name)]
        if (
            value.size
            and name not in inputs
            and bool((value.view(f"u{value.itemsize}") == _unwritten(dtype)).all())
        ):
            return None, diagnose.not_written(name)
        found[name] = widened(value, dtype)
    return found, None


def _unwritten(dtype: str) -> Any:
    """Return the bits that mark an element as not written (`core.precision.unwritten`)."""
    filled = unwritten((1,), dtype)
    return filled.view(f"u{filled.itemsize}")[0]


def expected_of(
    part: Part, oracle: Oracle, inputs: Mapping[str, Any], seen: Mapping[str, Any], shape: Mapping[str, int]
) -> dict[str, Expected]:
    """Return a part's expected outputs by name. For the inputs of a case they are computed once and cached."""
    if isinstance(inputs, CaseInputs):
        return expectations(part, inputs.expected(part.oracle, seen))
    return expectations(part, oracle.expected(seen, shape))


def expectations(part: Part, expected: Expected | Mapping[str, Expected]) -> dict[str, Expected]:
    """Return an oracle's expected outputs by name. An oracle with a single output may return it without a name."""
    from grader.explain.comparison import Expected

    if isinstance(expected, Expected):
        single = RESULT if part.returns == "tensor" or not part.outputs else next(iter(part.outputs))
        return {single: expected}
    return dict(expected)


class CaseInputs(dict[str, Any]):
    """Input arrays of a case by name, and a cache of the expected values. Callers must not change the arrays."""

    def __init__(self, lab: Lab, inputs: Mapping[str, Any], shape: Mapping[str, int]) -> None:
        super().__init__(inputs)
        self._lab, self._shape = lab, shape
        self._expected: dict[tuple[str, int], Expected | Mapping[str, Expected]] = {}

    def expected(self, oracle: str, seen: Mapping[str, Any]) -> Expected | Mapping[str, Expected]:
        """Return the expected values that the oracle of this name computes from the inputs `seen`."""
        key = (oracle, len(seen))
        if key not in self._expected:
            self._expected[key] = self._lab.oracle(oracle).expected(seen, self._shape)
        return self._expected[key]

    @property
    def elements(self) -> int:
        return sum(int(array.size) for array in self.values())


_kept: OrderedDict[tuple[object, ...], CaseInputs] = OrderedDict()


def question(lab: Lab, case: Case, shape: Mapping[str, int]) -> CaseInputs:
    """Return the inputs of a case, cached if they are small. `shape` holds all sizes, the case's own included."""
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
