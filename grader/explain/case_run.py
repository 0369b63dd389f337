"""One judged call: its inputs, its outputs by name, and their deviation from the expected values.

An output is the returned value, or a tensor argument that the function writes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from grader.assignment.inputs import CaseInputs
from grader.assignment.records import Part
from grader.backends import binding
from grader.core.precision import unwritten, widened
from grader.core.results import Diagnosis
from grader.runner.calls import Call

if TYPE_CHECKING:
    from grader.explain.comparison import Comparison, Expected
    from grader.explain.oracle import Oracle

#: Name of the output that a function returns.
RESULT = ""


@dataclass(frozen=True)
class CaseRun:
    """One call of a part's function. Its outputs are read and compared on first use, and only once."""

    part: Part
    case: str
    """Name of the input: a case's name, or "timed call"."""
    inputs: CaseInputs
    seen: Collection[str] | None
    """Names of the inputs on which the expected values depend; None for all."""
    call: Call
    oracle: Oracle

    @property
    def shape(self) -> Mapping[str, int]:
        return self.inputs.shape

    @cached_property
    def _read(self) -> tuple[dict[str, Any] | None, Diagnosis | None]:
        """The pair (`outputs`, `misfit`). At most one of the two has a value; both are None if the call failed."""
        return (
            outputs_of(self.part, self.shape, self.inputs, self.call)
            if self.call.status == "ok"
            else (None, None)
        )

    @property
    def outputs(self) -> dict[str, Any] | None:
        """Outputs by name; None if the call failed, or an output was not written or has a wrong type or shape."""
        return self._read[0]

    @property
    def misfit(self) -> Diagnosis | None:
        """Diagnosis of an output that has a wrong type or shape or was not written; None without such a fault."""
        return self._read[1]

    @cached_property
    def expected(self) -> dict[str, Expected]:
        return expectations(self.part, self.inputs.expected(self.oracle, self.seen))

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """Comparison of each output with its expected values, by the output's name; {} if `outputs` is None."""
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
    part: Part, shape: Mapping[str, int], inputs: Collection[str], call: Call
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
    """Return the bits of an element of type `dtype` that was not written (`core.precision.unwritten`)."""
    filled = unwritten((1,), dtype)
    return filled.view(f"u{filled.itemsize}")[0]


def expectations(part: Part, expected: Expected | Mapping[str, Expected]) -> dict[str, Expected]:
    """Return an oracle's expected outputs by name. An oracle with a single output may return it without a name."""
    from grader.explain.comparison import Expected

    if isinstance(expected, Expected):
        single = RESULT if part.returns == "tensor" or not part.outputs else next(iter(part.outputs))
        return {single: expected}
    return dict(expected)
