"""Events of the evaluator, in this order, while a submission is being judged."""

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
    """Before the first part: "headers" (the kit's own are compiled), "building" (the compiler runs) or
    "inspection" (the judge reads the source, the compiler's output or the object)."""

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
    """A wrong output, sent before Corrected, or after it for a timed output. `expected`, `actual`
    and `tolerance` are float64 of the output's shape, `wrong` is bool; a listener changes none of them. `blocks` are
    those of `grader.judge.grid.blocks`. The same `case` may be sent again if its call was repeated."""

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
    """Correctness on the public cases is known: before anything is timed or profiled."""

    part: Part
    verdict: Verdict
    cases: tuple[CaseResult, ...]
    diagnosis: Diagnosis | None


@dataclass(frozen=True)
class RoundTimed:
    """One more paired round has been timed, `rounds` by now; `ratio` is this one's, student over reference. No verdict:
    that follows from all of them together."""

    part: Part
    rounds: int
    ratio: float


@dataclass(frozen=True)
class Timed:
    """The time is known."""

    part: Part
    time: Timing


@dataclass(frozen=True)
class Settled:
    """A right part's result, before its profiled calls: PartDone follows, and seldom has another verdict."""

    part: Part
    result: PartResult


@dataclass(frozen=True)
class Profiled:
    """One call under the profiler. `side` is REFERENCE or STUDENT; `ok` says whether its output was right. `claim` are
    the words for that, `denial` the words below a wrong one.
    """

    part: Part
    side: str
    ok: bool
    claim: str
    denial: str
    wall_s: float
    rows: tuple[ProfileRow, ...]
    example: tuple[tuple[int, ...], float, float] | None = None
    """For an accessor: an index, the expected and the actual value."""


@dataclass(frozen=True)
class HiddenStarted:
    """All parts have had their public calls, and this part's hidden cases are called now."""

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
