"""Memory and profiler table of a part, compared with those of the reference in the same calls.

The true peak comes from the judged calls, which decide the verdict. The profiler's table needs a process with torch, so
one call of student and reference is repeated in such a process. This call's output does not decide a verdict. If it
differs from the judged output, the kernel gets a flag for review.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from grader.backends.faults import Faulty
from grader.core.errors import KitError
from grader.core.results import Flag, Memory
from grader.explain.case_run import RESULT, CaseRun
from grader.judge import case_order
from grader.judge.case_order import Shown
from grader.judge.events import Profiled
from grader.judge.marker import Marker
from grader.runner.calls import Call
from grader.runner.session import Session

SAME_FACTOR = 2.0
"""Allowed difference between profiled and judged output, as a multiple of the difference of two judged outputs."""


def beside_reference(
    marker: Marker, mine: Shown, student: Session, again: Callable[[], Session]
) -> tuple[Memory, Call, list[Flag]]:
    """Repeat a judged call under torch's profiler, first for the reference, then for the student.

    Args:
        mine: the judged call.
        student: a runner with torch that has loaded the student's object.
        again: function that starts a runner such as that of the judged call (without torch).

    Returns (memory of both, the student's profiled call, [a flag] if this call's output differs from the judged one).
    Raises KitError if the reference fails or is wrong, Faulty if the student's call fails.
    """
    part, bench = marker.part, marker.bench
    theirs: CaseRun | None = None
    if part.reference and bench.assignment.lab.reference().for_torch() is not None:
        with bench.reference(threads=marker.shape["threads"], with_torch=True) as session:
            theirs = _profiled(marker, mine, session, "REFERENCE")
    own = _profiled(marker, mine, student, "STUDENT")
    memory = replace(
        of_call(marker, mine)[0],
        profiler_bytes=case_order.profiler_bytes(part, "STUDENT", own.call),
        reference_profiler_bytes=case_order.profiler_bytes(part, "REFERENCE", theirs.call)
        if theirs
        else None,
    )
    return memory, own.call, _unlike(marker, mine, own, again)


@dataclass(frozen=True)
class Held:
    """Most memory held in a call of the student and of the reference (`Call.held_bytes`); None if it is unknown."""

    shape: Mapping[str, int]
    student_bytes: int | None
    reference_bytes: int | None
    grown_bytes: int | None = None
    """Growth of the student's process during the judged call (`Call.peak_bytes`)."""


def of_call(marker: Marker, mine: Shown) -> tuple[Memory, Held]:
    """Return true peaks and held memory of student and reference in the judged call. Raises KitError if the reference
    fails."""
    call = _reference_call(marker, {}) if marker.part.reference else None
    memory = Memory(None, None, mine.peak_bytes, call.peak_bytes if call else None)
    return memory, Held(marker.shape, mine.held_bytes, call.held_bytes if call else None, mine.peak_bytes)


def held_at(marker: Marker, fresh: Callable[..., Session], sizes: Mapping[str, int]) -> Held:
    """Measure the memory that student and reference hold in a call with other `sizes`, each in a new runner.

    If the student's output is not right, the student's memory is None. Raises KitError if the reference fails.
    """
    theirs = _reference_call(marker, sizes).held_bytes if marker.part.reference else None
    mine: Call | None = None
    with contextlib.suppress(Faulty), fresh(threads=marker.shape["threads"]) as session:
        mine = _large_call(marker, session, sizes, reference=False)
    return Held({**marker.shape, **sizes}, mine.held_bytes if mine else None, theirs)


def _reference_call(marker: Marker, sizes: Mapping[str, int]) -> Call:
    """Return the reference's measured call at these sizes. All submissions share it, so it is made only once."""
    key = (
        marker.backend.kind,
        marker.bench.assignment.lab_folder,
        marker.part.reference,
        *sorted({**marker.shape, **sizes}.items()),
    )
    if key not in _KNOWN_CALLS:
        with marker.bench.reference(threads=marker.shape["threads"]) as session:
            call = _large_call(marker, session, sizes, reference=True)
            assert call is not None  # `_large_call` returns None only for the student
            _KNOWN_CALLS[key] = replace(call, output=None, echoes=())
    return _KNOWN_CALLS[key]


_KNOWN_CALLS: dict[tuple[Any, ...], Call] = {}


def _large_call(
    marker: Marker, session: Session, sizes: Mapping[str, int], *, reference: bool
) -> Call | None:
    """Call the cases with their own shape, then the case whose memory is measured. Return the measured call.

    `sizes` replace sizes of the measured call. `reference`: call the reference, not the student. Returns None if an
    output of the student is not right. Raises KitError if the reference fails.
    """
    measured = None
    for step in case_order.reference_steps(marker.part):
        case = replace(step.case, shape={**step.case.shape, **sizes}) if step.peak else step.case
        shape = {**marker.shape, **case.shape}
        run = marker.call_case(
            session,
            case,
            reference=reference,
            echo_inputs=True,
            measure_peak=step.peak,
            timeout_s=marker.bench.call_timeout_s(shape),
        )
        if reference:
            marker.refuse_failed_reference(run.call)
        elif not run.is_right:
            return None
        measured = run.call if step.peak else measured
    return measured


def _profiled(marker: Marker, mine: Shown, session: Session, side: case_order.Side) -> CaseRun:
    """Repeat the judged call `mine` under the profiler after a small warm-up call, and return the repetition.

    `side`: "REFERENCE" or "STUDENT", the kernel to call. Raises KitError if the reference fails or is wrong, Faulty if
    the student's call fails.
    """
    part, is_reference = marker.part, side == "REFERENCE"
    small, table = marker.inputs_of(case_order.smallest(part)), case_order.profiled(part, side)
    for inputs, how in ((small, {}), (mine.run.inputs, table)):
        run = marker.call(session, "profiled call", inputs, reference=is_reference, echo_inputs=True, **how)
        if is_reference:
            marker.refuse_failed_reference(run.call)
        else:
            marker.refuse_broken(run.call, session, "profiled call")
    ok = marker.mark(run, explain=False).ok
    if is_reference and not ok:
        raise KitError(f"the reference is wrong on {part.id} under the profiler; please report this")
    example = _example(run)
    said = (marker.lab.claim, marker.lab.denial)
    seconds = run.call.profiled_wall_s or 0.0
    marker.bench.emit(Profiled(part, side, ok, *said, seconds, run.call.profile, example))
    return run


def _unlike(marker: Marker, mine: Shown, own: CaseRun, again: Callable[[], Session]) -> list[Flag]:
    """Return [a flag] if the output under the profiler differs too much from the judged output; else [].

    The limit is SAME_FACTOR times the difference between the judged output and the output of a repeated judged call.
    """
    judged, shown = mine.run.outputs, own.outputs
    if not mine.ok or judged is None or shown is None:
        return []
    apart = _distance(judged, shown)
    if apart == 0.0:
        return []
    with again() as session:
        other = marker.again(session, mine.run, echo_inputs=True).outputs
    if other is not None and apart <= SAME_FACTOR * _distance(judged, other):
        return []
    message = f"the output under torch's profiler differs by up to {apart:.3g} from the judged output of the same call"
    return [Flag("differs_under_torch", message, "review")]


def _distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the largest difference between the outputs of two calls; inf for different shapes."""
    return max(
        float(abs(one[name] - other[name]).max(initial=0))
        if one[name].shape == other[name].shape
        else math.inf
        for name in one
    )


def _example(run: CaseRun) -> tuple[tuple[int, ...], float, float] | None:
    """Return (index, expected, actual value) of one element of an accessor's output; None without such an output."""
    if not run.part.table or run.outputs is None:
        return None
    actual = run.outputs[RESULT]
    index = tuple(int(i) for i in run.inputs["index"][0])
    expected = run.expected[RESULT].value
    place = (0,) if run.part.returns == "number" else index
    return index, float(expected[place]), float(actual[place])
