"""A judged part as its explanation sees it. The judge's own classes fit these protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from grader.assignment.labs import Lab
from grader.assignment.records import Case, Part
from grader.backends.protocol import Backend, Checks
from grader.core.results import CaseResult
from grader.explain.case_run import CaseRun
from grader.explain.hang_samples import Samples
from grader.explain.oracle import Oracle
from grader.explain.sanitizer_sites import Sites
from grader.runner.calls import Call
from grader.runner.session import Session

if TYPE_CHECKING:
    from grader.explain.comparison import Expected
    from grader.source.landmarks import Body


class Kernel(Checks, Protocol):
    """The student's function, and which of its answers were wrong."""

    lab: Lab
    backend: Backend
    wrong: dict[str, Any]
    """By the input's name: a bool array of the output's shape, None where the answer was right."""
    wrong_output: dict[str, str]
    """By the input's name: which output `wrong` is about."""
    seen_outputs: set[str]
    wrong_outputs: set[str]

    @property
    def oracle(self) -> Oracle: ...

    @property
    def body(self) -> Body | None: ...

    def sizes(self, shape: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes that the part has."""

    def expected(self, inputs: Mapping[str, Any], shape: Mapping[str, int]) -> dict[str, Expected]:
        """Return the expected outputs, by name."""

    def call(
        self, session: Session, case: str, shape: Mapping[str, int], inputs: Mapping[str, Any], **how: Any
    ) -> CaseRun:
        """Call the function."""

    def call_case(self, session: Session, case: Case, **how: Any) -> CaseRun:
        """Call the function on the inputs of a case."""


@dataclass(frozen=True)
class JudgedPart:
    """One part that is wrong or broke off."""

    kernel: Kernel
    source: Path
    defines: Mapping[str, str]
    cases: Sequence[CaseResult]
    broken: tuple[Case, Call] | None
    """The case whose call gave no answer, with that call."""
    fresh: Callable[..., Session]
    """Starts a fresh runner with this number of `threads`."""
    command: str
    """Command that messages name, to be followed by a part."""
    watch_races: Callable[[Part], str] | None = None
    """Returns the races of a watched call with their lines, "" without any."""


@dataclass
class Checked:
    """Result of the checked build for a part.

    `is_right` names wrong cases that are right in this build, in which all new memory is zeros, without a bad access.
    """

    sites: Sites
    tried: list[str] = field(default_factory=list)
    is_right: list[str] = field(default_factory=list)
    stopped: Samples | None = None
    """Samples of a call that did not end."""


class OtherBuilds(Protocol):
    """Other builds of the student's file (`judge.second_build`)."""

    @property
    def is_allowed(self) -> bool: ...

    @property
    def exists(self) -> bool:
        """Return True if there is a checked build."""

    def look(self, part: Part, cases: Sequence[Case]) -> Checked | None:
        """Call the part on these cases, each in a runner of its own, until a place is found or the time is up."""

    def look_in_turn(self, part: Part) -> Checked | None:
        """Check all public cases as `look` does, in one runner."""
