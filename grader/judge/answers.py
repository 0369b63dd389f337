"""A call's answers by name: what the function returned, and what it wrote into tensors that it was given for that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grader.assignment.records import Part
from grader.core.precision import unwritten, widened
from grader.core.results import Diagnosis
from grader.judge import binding
from grader.runner.calls import Call

if TYPE_CHECKING:
    from grader.judge.comparison import Expected

#: The name of what a function returns.
RESULT = ""


def answers(
    part: Part, shape: Mapping[str, int], inputs: Mapping[str, Any], call: Call
) -> tuple[dict[str, Any] | None, Diagnosis | None]:
    """Arrays as the oracle sees them, or None and why one has the wrong type or shape, or was never written."""
    from grader.judge.diagnosis import diagnose

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
        dtype = binding.dtype_of(part, name, shape)
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
    """The bits of an element that nobody has written."""
    filled = unwritten((1,), dtype)
    return filled.view(f"u{filled.itemsize}")[0]


def expectations(part: Part, expected: Expected | Mapping[str, Expected]) -> dict[str, Expected]:
    """Return the oracle's expected outputs by name; an oracle with a single output need not name it."""
    from grader.judge.comparison import Expected

    if isinstance(expected, Expected):
        single = RESULT if part.returns == "tensor" or not part.outputs else next(iter(part.outputs))
        return {single: expected}
    return dict(expected)
