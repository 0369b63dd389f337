"""A part's memory and profiler table beside the reference's, each from the same calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grader import binding, faults, looks
from grader.errors import KitError
from grader.events import Profiled
from grader.looks import Look
from grader.marking import Marker
from grader.results import Memory
from grader.session import Call


def beside_reference(marker: Marker, mine: Look) -> Memory:
    """What was found of the student's on the way (`mine`), and what the reference shows in the same calls.

    The listener hears both tables, the reference's first. Raises KitError when the reference fails or is wrong.
    """
    part = marker.part
    theirs = _reference(marker, mine) if part.reference else None
    if theirs is not None:
        _tell(marker, theirs, "REFERENCE")
    _tell(marker, mine, "STUDENT")
    return Memory(
        mine.profiler_bytes(part, "STUDENT"),
        theirs.profiler_bytes(part, "REFERENCE") if theirs else None,
        mine.peak_bytes,
        theirs.peak_bytes if theirs else None,
    )


def _reference(marker: Marker, mine: Look) -> Look:
    part, peak_bytes = marker.part, None
    with marker.bench.reference(threads=marker.shape["threads"]) as session:
        for step in looks.reference_steps(part):
            # The profiled call has the student's inputs, whose expected values are at hand.
            shape, inputs = (mine.shape, mine.inputs) if step.profile else marker.inputs_of(step.case)
            request = binding.request(part, shape, inputs, reference=True)
            call = session.call(request, echo_inputs=True, **step.wanted(part, "REFERENCE"))
            marker.refuse_failed_reference(call)
            peak_bytes = call.peak_bytes if step.peak else peak_bytes
    marked = marker.mark("profiled call", dict(shape), inputs, call)
    if not marked.ok:
        raise KitError(f"the reference is wrong on {part.id}: {marked.diagnosis}; please report this")
    return Look(peak_bytes, call, shape, inputs, marked.ok)


def _tell(marker: Marker, look: Look, side: looks.Side) -> None:
    marker.bench.tell(
        Profiled(
            marker.part,
            side,
            look.ok,
            look.call.profiled_wall_s or 0.0,
            look.call.profile,
            _example(marker, look.inputs, look.shape, look.call),
        )
    )


def _example(
    marker: Marker, inputs: Mapping[str, Any], shape: Mapping[str, int], call: Call
) -> tuple[tuple[int, ...], float, float] | None:
    """One index of an accessor with its expected and actual value, as the published check prints it."""
    if not marker.part.table:
        return None
    actual, _ = faults.fitting_output(marker.part, shape, inputs, call)
    if actual is None:
        return None
    index = tuple(int(i) for i in inputs["index"][0])
    expected = marker.expected(inputs, shape).value
    place = (0,) if marker.part.returns == "number" else index
    return index, float(expected[place]), float(actual[place])
