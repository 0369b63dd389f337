"""The protocol of all backends: how the parts of one submission are built, started, called, timed and explained.

`grader.backends.selection` chooses the backend of a part. `Checks` and `TimedPart` are the judge's side: all that a
backend may ask of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from grader.assignment.records import Assignment, Case, Part
from grader.assignment.rubric import TimeRule
from grader.backends.faults import Broken, Faulty
from grader.backends.kinds import Kind
from grader.backends.records import Build
from grader.core.results import Diagnosis, Flag, ProfileRow, Timing
from grader.runner.calls import Call, Request, Round, Sample
from grader.runner.session import Session
from grader.runner.watch import Evidence
from grader.sandbox import Limits

if TYPE_CHECKING:
    from grader.source.landmarks import Body

Observed = tuple[Case, bool, tuple[ProfileRow, ...], str]
"""One call: its case, True if it was right, the functions that it called, and its trace."""


@dataclass(frozen=True)
class Opening:
    """Settings of one new runner."""

    threads: int
    call_timeout_s: float
    cpus: list[int] | None = None
    limits: Limits | None = None
    freeze: bool = True
    """True to stop it between calls (`torch.zygote.Zygote.spawn`)."""
    shared_fd: int | None = None
    """Device memory of the judge's, for a runner that is timed on a card."""


@dataclass(frozen=True)
class SampledRows:
    """One output, compared with the oracle in some rows."""

    wrong: int
    count: int
    max_error: float
    tolerance: float
    """Largest of the rows."""


class Checks(Protocol):
    """The judge's half of calls to one part: inputs and expected values."""

    part: Part
    shape: dict[str, int]
    functions: Mapping[str, str] | None
    """Functions that the student's file offers; None until it was loaded."""

    @property
    def assignment(self) -> Assignment: ...

    def inputs_of(self, case: Case) -> tuple[dict[str, int], Mapping[str, Any]]:
        """Return a case's sizes and inputs, by name."""

    def holds(self, case: str, shape: Mapping[str, int], inputs: Mapping[str, Any], call: Call) -> bool:
        """Return True if all outputs are right and no input was changed."""

    def sampled(
        self, shape: Mapping[str, int], inputs: Mapping[str, Any], rows: int
    ) -> Callable[[Mapping[str, Any]], dict[str, SampledRows]]:
        """Return a comparison of outputs with the oracle in about `rows` random rows of each, chosen only now."""

    def changed_inputs(self, names: Sequence[str], kept: Sequence[str]) -> Diagnosis:
        """Diagnosis of a call that changed these of the inputs that it had to keep."""

    def call_timeout_s(self, shape: Mapping[str, int]) -> float: ...

    def refuse_broken(self, call: Call, session: Session, where: str) -> None:
        """Raise Faulty if a call of the student's gave no answer."""

    def refuse_failed_reference(self, call: Call) -> None:
        """Raise KitError if a call of the reference gave no answer."""


class TimedCalls(Protocol):
    """Calls on fresh inputs whose outputs are checked, each a sample."""

    tensor_bytes: int

    def sample(self, session: Session, *, is_reference: bool) -> Sample: ...

    def small_call(self, session: Session, *, is_reference: bool) -> None: ...

    def place(self, count: int) -> int: ...

    def beside_delayed(self, session: Session, place: int, is_reference: bool) -> Iterator[Sample]: ...


@dataclass(frozen=True)
class TimedPart:
    """One measurement of a part against the reference."""

    checks: Checks
    calls: TimedCalls
    rule: TimeRule
    student: Callable[..., Session]
    """Starts a runner of the student's, with these fields of an Opening."""
    reference: Callable[..., Session]
    seed: int
    budget_s: float
    decide: Callable[[Iterable[Round], Literal["cpu", "wall"], float], Timing]
    """Takes rounds until their clock proves a verdict, or until their calls have taken this many seconds."""
    cpus: list[int] | None = None
    """Cores for the runners of both sides; None for the machine's default."""


class Backend(ABC):
    """One way to build, start and call the parts of one submission."""

    kind: Kind

    @abstractmethod
    def build(self, part: Part) -> Build | None:
        """Return the build that a part is judged with; None if it needs no build of the student's."""

    @abstractmethod
    def open(self, part: Part | None, how: Opening, *, reference: bool = False) -> Session:
        """Start a runner of the student's file, or of the `reference`; it may be dead on arrival.

        Raises Faulty for a file that cannot be started, KitError for a reference.
        """

    @abstractmethod
    def request(
        self, part: Part, shape: Mapping[str, int], inputs: Mapping[str, Any], *, reference: bool = False
    ) -> Request:
        """Return the request for one call. `inputs` are named arrays; `reference` names the reference's function."""

    @abstractmethod
    def unbound(self, part: Part, session: Session) -> Diagnosis | None:
        """Return the reason that a part's function cannot be called; None if it can."""

    def seen(self, part: Part, functions: Mapping[str, str]) -> Collection[str] | None:
        """Return the inputs that a call depends on, in a file with these functions; None for all."""
        return None

    @abstractmethod
    def function_in(self, part: Part, source: str) -> Body | None:
        """Return a part's function in the text of the student's file; None if it is not found there."""

    @abstractmethod
    def measure(self, timed: TimedPart) -> Timing:
        """Time a part against the reference. Raises Faulty when the student's code breaks or is wrong."""

    def peaks(self, part: Part) -> tuple[int | None, int | None] | None:
        """Return the student's and the reference's memory in timed calls, in bytes; None if it was not measured."""
        return None

    @abstractmethod
    def flags(self, evidence: Sequence[Evidence], builds: Sequence[Build]) -> Iterator[Flag]:
        """Yield flags for activity of a part's runners beyond their answers. They may have loaded `builds`."""

    def library_flags(self, checks: Checks, calls: Sequence[Observed], *, play: bool) -> tuple[Flag, ...]:
        """Return flags for a part's calls that use a library in place of a kernel. Without `play` no call is replayed
        for that.
        """
        return ()

    def lacks(self, part: Part, step: Literal["results", "time"]) -> Faulty | None:
        """Return the fault to raise if this machine lacks a device for a step."""
        return None

    @abstractmethod
    def fault(self, broken: Broken) -> Faulty:
        """Return the verdict and the words for a call without an answer."""

    @abstractmethod
    def loading_fault(self, session: Session) -> Faulty:
        """Verdict and words for a runner that is dead on arrival, or did not load the file."""

    def with_loads_outside(self, part: Part, diagnosis: Diagnosis, lines: Sequence[int]) -> Diagnosis:
        """Return the diagnosis with the lines that loaded from outside of every tensor."""
        return diagnosis
