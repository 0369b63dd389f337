"""Further calls of a submission's own functions, made while a wrong result is explained.

An oracle names the calls and makes a sentence of what they answered (`Oracle.inquiry`). They are made in a runner of
their own with all its limits, after the verdict is settled: a call that ends badly costs the sentence and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grader.assignment.records import Case, Part
from grader.backends import binding
from grader.core.results import Diagnosis
from grader.judge.case_run import CaseRun
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
    run = marker.call(session, case.name, *marker.inputs_of(case))
    if run.outputs is None:
        return ""
    inquiry = marker.oracle.inquiry(run.inputs, run.shape, run.expected, run.outputs)
    if inquiry is None:
        return ""
    found = []
    for part_id, given in inquiry.calls[:MOST_CALLS]:
        part = marker.part if part_id == run.part.id else marker.bench.assignment.part(part_id)
        answer = _answered(part, run, given, session)
        if answer is None:
            return ""
        found.append(answer)
    with np.errstate(all="ignore"):
        return inquiry.told(found)


def _answered(part: Part, run: CaseRun, inputs: Mapping[str, Any], session: Session) -> dict[str, Any] | None:
    """The outputs of a function at the sizes of a run; None if it is not bound, breaks off or answers something
    else."""
    if binding.mismatch(part, session.functions, part.inputs) is not None:
        return None
    call = session.call(binding.request(part, run.shape, inputs))
    return replace(run, part=part, inputs=inputs, seen=inputs, call=call).outputs
