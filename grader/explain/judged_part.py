"""Interface between the judge and the explanation of a part: the judge's classes implement these protocols."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from grader.assignment.inputs import CaseInputs
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
    """The student's function of one part, and a record of its wrong outputs."""

    lab: Lab
    backend: Backend
    wrong: dict[str, Any]
    """Mask of the wrong elements (bool, of the output's shape) by case; None if the output was right."""
    wrong_output: dict[str, str]
    """Name of the output that the mask in `wrong` belongs to, by case."""
    seen_outputs: set[str]
    wrong_outputs: set[str]

    @property
    def oracle(self) -> Oracle: ...

    @property
    def body(self) -> Body | None: ...

    def sizes(self, shape: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes in `shape` that the part uses."""

    def expected(self, inputs: CaseInputs) -> dict[str, Expected]:
        """Return the expected outputs by name."""

    def call(self, session: Session, case: str, inputs: CaseInputs, **how: Any) -> CaseRun:
        """Call the function on these inputs; `how` are keywords of `Session.call`."""

    def call_case(self, session: Session, case: Case, **how: Any) -> CaseRun:
        """Call the function on the inputs of a case."""

    def inputs_of(self, case: Case) -> CaseInputs:
        """Return the inputs of a case. Raises UsageError if its sizes do not fit together."""


@dataclass(frozen=True)
class JudgedPart:
    """One part that is wrong or has crashed, with all that its explanation needs."""

    kernel: Kernel
    source: Path
    defines: Mapping[str, str]
    cases: Sequence[CaseResult]
    broken: tuple[Case, Call] | None
    """The case whose call returned no output, and that call."""
    fresh: Callable[..., Session]
    """Function that starts a new runner; its keyword `threads` is the number of threads."""
    command: str
    """Start of a command line in messages; the name of a part follows."""
    tested: Collection[str] = ()
    """Functions of the file that pass a test of their own (accessors)."""
    watch_races: Callable[[Part], str] | None = None
    """Function that runs a part under ThreadSanitizer and describes the data races found, with lines; "" for none."""


@dataclass
class Checked:
    """Result of calls to the checked build (with sanitizers) of a part. In this build all new memory is zero.

    `tried` has the names of the cases whose call by `look` ended. `right_if_zeroed` has the names of the cases among
    them with a right result.
    """

    sites: Sites
    tried: list[str] = field(default_factory=list)
    right_if_zeroed: list[str] = field(default_factory=list)
    stopped: Samples | None = None
    """Samples of a call that did not end."""


class EditedBuild(Protocol):
    """A build of a source with edits (`grader.source.edited_source`)."""

    bad: Collection[tuple[int, int]]
    """Line and column of the compiler's first errors; empty for a build that can be called."""

    def can_choose(self, case: Case) -> bool:
        """Return True if the first tensor of a case can hold an edit's number."""

    def call(self, case: Case, number: int, *, fresh: bool = False, cpu_s: float = 1.0) -> CaseRun | None:
        """Call the function with edit `number` on the inputs of a case, for at most `cpu_s` of CPU time.

        `fresh`: use a new runner. Returns None if the function cannot be called.
        """

    def is_clean(self, cases: Sequence[Case], number: int) -> bool:
        """Return True if the function with edit `number` makes no wrong access on these cases (a checked build)."""


class EditBuilder(Protocol):
    """Function that builds other texts in place of the student's file."""

    def edited(self, part: Part, text: str, *, checked: bool = False) -> EditedBuild | None:
        """Build `text` in place of the student's file and return the build; None if it cannot be made.

        `checked`: build it with sanitizers.
        """


class OtherBuilds(EditBuilder, Protocol):
    """Other builds of the student's file (`judge.explanation`)."""

    @property
    def is_allowed(self) -> bool: ...

    @property
    def exists(self) -> bool:
        """Return True if a checked build could be made."""

    def look(self, part: Part, cases: Sequence[Case]) -> Checked | None:
        """Call the checked build on these cases until it reports a bad access; None without a checked build."""

    def look_in_turn(self, part: Part) -> Checked | None:
        """Call the checked build on all public cases in one runner. Return None without a checked build."""
