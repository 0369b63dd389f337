"""Further calls of a submission's own functions, made while a wrong result is explained.

An oracle names the calls and makes a sentence of what they answered (`Oracle.inquiry`). They are made in a runner of
their own with all its limits, after the verdict is settled: a call that ends badly costs the sentence and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grader.assignment.records import Case
from grader.core.results import Diagnosis
from grader.judge import binding
from grader.judge.answers import answers
from grader.judge.marking import Marker
from grader.runner.session import Session

#: Calls of one inquiry at most, and codes of diagnoses that no further call would add to.
MOST_CALLS = 16
NEEDS_NONE = frozenset(
    {"not_written", "race", "unsteady", "wrong_shape", "wrong_dtype", "wrong_type", "inputs_overwritten"}
)


def sentence(marker: Marker, case: Case, session: Session, told: Diagnosis) -> str:
    """Return what further calls show of the part's wrong result on this case, which is computed once more; "" for
    nothing, or where one of the calls gives no answer."""
    from grader.core.arrays import np

    if told.code in NEEDS_NONE:
        return ""
    shape, inputs = marker.inputs_of(case)
    actual = _answered(marker.part.id, marker, shape, inputs, session)
    if actual is None:
        return ""
    inquiry = marker.oracle.inquiry(inputs, shape, marker.expected(inputs, shape), actual)
    if inquiry is None:
        return ""
    found = []
    for part_id, given in inquiry.calls[:MOST_CALLS]:
        answer = _answered(part_id, marker, shape, given, session)
        if answer is None:
            return ""
        found.append(answer)
    with np.errstate(all="ignore"):
        return inquiry.told(found)


def _answered(
    part_id: str, marker: Marker, shape: Mapping[str, int], inputs: Mapping[str, Any], session: Session
) -> dict[str, Any] | None:
    """The answers of one function; None where it is not bound, breaks off or answers something else."""
    part = marker.bench.assignment.part(part_id) if part_id != marker.part.id else marker.part
    if binding.mismatch(part, session.functions, part.inputs) is not None:
        return None
    call = session.call(binding.request(part, shape, inputs))
    return answers(part, shape, inputs, call)[0] if call.status == "ok" else None
