"""`memory`: what the profiler says, what a call truly takes and what the formula gives, for all parts and some N."""

from __future__ import annotations

from collections.abc import Mapping

from grader import binding
from grader.assignment import Part, call_of, evaluate_int

FLOAT_BYTES = 4


def workspace_bytes(part: Part, shape: Mapping[str, int]) -> int:
    """Bytes of the workspaces that a call of the part is given: its `zeros(...)` arguments, float32."""
    total = 0
    for argument in part.arguments:
        if (dims := call_of(argument, "zeros")) is not None:
            count = 1
            for dim in dims:
                count *= evaluate_int(dim, shape)
            total += FLOAT_BYTES * count
    return total


def output_bytes(part: Part, shape: Mapping[str, int]) -> int:
    """Bytes of the part's result, float32."""
    count = 1
    for size in binding.output_shape(part, shape):
        count *= size
    return FLOAT_BYTES * count
