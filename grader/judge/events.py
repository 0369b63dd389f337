"""Events that the evaluator sends to a listener while it judges a submission, in the order of this file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grader.assignment.records import Part
from grader.backends.records import Build, BuildStep
from grader.core.results import CaseResult, Diagnosis, PartResult, ProfileRow, Timing, Verdict

if TYPE_CHECKING:
    from grader.core.arrays import Array
    from grader.explain.deviation import Axis


@dataclass(frozen=True)
class BuildStarted:
    source: Path


@dataclass(frozen=True)
class StepStarted:
    """A preparing step begins, before the first part. `step` is "headers" (the kit's headers are compiled), "building"
    (the compiler runs) or "inspection" (the judge reads the source, the compiler's output or the object)."""

    step: BuildStep


@dataclass(frozen=True)
class Built:
    build: Build


@dataclass(frozen=True)
class PartStarted:
    part: Part
    shape: Mapping[str, int]


@dataclass(frozen=True)
class Deviated:
    """A wrong output. For a public case the event is sent before Corrected, for a hidden or timed call after it.

    `expected` (float64), `actual` and `wrong` (bool) have the output's shape. Listeners must not change them. `blocks`
    come from `grader.explain.deviation.blocks`. `hidden`: True if students do not get this case. If the call of a case
    is repeated under the profiler and is wrong again, a second event is sent.
    """

    part: Part
    case: str
    hidden: bool
    shape: Mapping[str, int]
    axes: tuple[Axis, ...]
    blocks: tuple[tuple[str, int] | None, ...]
    expected: Array
    actual: Array
    tolerance: Array | float
    wrong: Array


@dataclass(frozen=True)
class Corrected:
    """The verdict on the public cases, sent before anything is timed or profiled."""

    part: Part
    verdict: Verdict
    cases: tuple[CaseResult, ...]
    diagnosis: Diagnosis | None


@dataclass(frozen=True)
class RoundTimed:
    """One more round has been timed, `rounds` so far. `ratio` is this round's student time / reference time."""

    part: Part
    rounds: int
    ratio: float


@dataclass(frozen=True)
class Timed:
    """The timing of a part is complete."""

    part: Part
    time: Timing


@dataclass(frozen=True)
class Settled:
    """The result of a part without hidden cases, sent before its profiled calls.

    PartDone follows, rarely with another verdict.
    """

    part: Part
    result: PartResult


@dataclass(frozen=True)
class Profiled:
    """One call under the profiler. `side` is REFERENCE or STUDENT. `ok` is True if its output was right.

    `claim` is the text to print before True or False (`ok`), `denial` the text to print below it for a wrong output.
    """

    part: Part
    side: str
    ok: bool
    claim: str
    denial: str
    wall_s: float
    rows: tuple[ProfileRow, ...]
    example: tuple[tuple[int, ...], float, float] | None = None
    """For an accessor: an index, the expected value and the actual value."""


@dataclass(frozen=True)
class HiddenStarted:
    """The hidden cases of this part are called next; the public calls of all parts are done."""

    part: Part


@dataclass(frozen=True)
class PartDone:
    part: Part
    result: PartResult


Event = (
    BuildStarted
    | StepStarted
    | Built
    | PartStarted
    | Deviated
    | Corrected
    | RoundTimed
    | Timed
    | Settled
    | Profiled
    | HiddenStarted
    | PartDone
)
Listener = Callable[[Event], None]
