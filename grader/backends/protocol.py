"""The protocol of all backends: how the parts of one submission are built, started, called, timed and explained.

`grader.backends.selection` chooses the backend of a part. `Checks` and `TimedPart` are the judge's side: the functions
and data that a backend may use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from grader.assignment.inputs import CaseInputs
from grader.assignment.records import Assignment, Case, Part
from grader.assignment.rubric import TimeRule
from grader.backends import binding, faults
from grader.backends.faults import Broken, Faulty
from grader.backends.kinds import OTHER, Kind
from grader.backends.records import Build
from grader.core.results import Diagnosis, Flag, ProfileRow, Timing, Verdict
from grader.runner.calls import Call, Request, Round
from grader.runner.session import Session
from grader.runner.watch import Evidence
from grader.sandbox import Limits

if TYPE_CHECKING:
    from grader.source.landmarks import Body

Observed = tuple[Case, bool, tuple[ProfileRow, ...], str]
"""One call: its case, True if it was right, its profile (functions called) and its trace (recorded GPU work)."""


@dataclass(frozen=True)
class Opening:
    """Settings for starting a runner."""

    threads: int
    call_timeout_s: float
    cpus: list[int] | None = None
    limits: Limits | None = None
    freeze: bool = True
    """True to stop the runner between calls (`torch.zygote.Zygote.spawn`)."""
    shared_fd: int | None = None
    """Descriptor of the judge's device memory, for a runner that is timed on a GPU."""

    @property
    def on_cpu(self) -> dict[str, Any]:
        """All settings except `shared_fd`, as keywords for `spawn` of `Zygote` and `NativeHost`."""
        return {name: value for name, value in vars(self).items() if name != "shared_fd"}


@dataclass(frozen=True)
class SampledRows:
    """Comparison of some rows of an output with the oracle's rows: `wrong` of `count` elements are wrong."""

    wrong: int
    count: int
    max_error: float
    tolerance: float
    """Largest tolerance of the compared elements."""


class Checks(Protocol):
    """The judge's interface for backends: a part's inputs, and checks of its calls."""

    part: Part
    shape: dict[str, int]
    functions: Mapping[str, str] | None
    """Signatures of the functions that the student's file exports, by name; None until the file is loaded."""

    @property
    def assignment(self) -> Assignment: ...

    def inputs_of(self, case: Case) -> CaseInputs:
        """Return a case's inputs, cached if they are small."""

    def holds(self, case: str, inputs: CaseInputs, call: Call) -> bool:
        """Return True if a call's outputs are all right and it changed none of its inputs."""

    def sampled(self, inputs: CaseInputs, rows: int) -> Callable[[Mapping[str, Any]], dict[str, SampledRows]]:
        """Choose about `rows` random rows of each output. Return a function that checks these rows.

        The function takes outputs by name, and returns the comparison of each with the oracle.
        """

    def changed_inputs(self, names: Sequence[str], kept: Sequence[str]) -> Diagnosis:
        """Return the diagnosis for a call that changed the inputs `names`. No input in `kept` may change."""

    def call_timeout_s(self, shape: Mapping[str, int]) -> float: ...

    def refuse_broken(self, call: Call, session: Session, where: str) -> None:
        """Raise Faulty if a call of the student's function failed."""

    def refuse_failed_reference(self, call: Call) -> None:
        """Raise KitError if a call of the reference failed."""


@dataclass(frozen=True)
class TimedPart:
    """Data for timing a part against the reference."""

    checks: Checks
    rule: TimeRule
    student: Callable[..., Session]
    """Function that starts a runner with the student's code; its keywords are fields of an Opening."""
    reference: Callable[..., Session]
    seed: int
    budget_s: float
    decide: Callable[[Iterable[Round], Literal["cpu", "wall"], float], Timing]
    """Function of (rounds, clock, seconds): judges rounds until the verdict is clear or the seconds are used up."""
    on_cores: Callable[[], Iterator[Round]]
    """Function that yields rounds on CPU cores without end, each with a new pair of runners."""


class Backend(ABC):
    """One way to build, start and call the parts of one submission. A subclass needs only `build` and `open`."""

    kind: Kind = OTHER

    @abstractmethod
    def build(self, part: Part) -> Build | None:
        """Return the build with which a part is judged; None if the part runs no student code."""

    @abstractmethod
    def open(self, part: Part | None, how: Opening, *, reference: bool = False) -> Session:
        """Start a runner with the student's file (`reference`: True for the reference). It may die while loading.

        Raises Faulty if the student's file cannot be started, KitError if the reference cannot.
        """

    def request(self, part: Part, inputs: CaseInputs, *, reference: bool = False) -> Request:
        """Return the request for a call of a part's function (`reference`: True for the reference's function)."""
        return binding.request(part, inputs.shape, inputs, reference=reference)

    def unbound(self, part: Part, session: Session) -> Diagnosis | None:
        """Return a diagnosis if a part's function cannot be called; None if it can."""
        return None

    def seen(self, part: Part, functions: Mapping[str, str]) -> Collection[str] | None:
        """Return the names of the inputs that the student's function gets; None if it gets all inputs.

        The expected values are computed from these inputs. `functions` are the exported functions of the student's
        file.
        """
        return None

    def forward_of(self, part: Part, parts: Iterable[Part]) -> Part | None:
        """Return the part of `parts` whose autograd.Function has `part` as its backward pass.

        Return None if `part` is not a backward pass, or if no such part exists.
        """
        return None

    def function_in(self, part: Part, source: str) -> Body | None:
        """Return a part's function in the student's source; None if it is not found."""
        return None

    def measure(self, timed: TimedPart) -> Timing:
        """Time a part against the reference. Raises Faulty if the student's code fails or is wrong."""
        return timed.decide(timed.on_cores(), timed.rule.clock, timed.budget_s)

    def peaks(self, part: Part) -> tuple[int | None, int | None] | None:
        """Return the peak memory of (student, reference) in timed calls, in bytes; None if it was not measured."""
        return None

    def flags(self, evidence: Sequence[Evidence], builds: Sequence[Build]) -> Iterable[Flag]:
        """Return flags for suspicious acts of a part's runners.

        `evidence` has the observations of each runner, and `builds` are the builds that the runners may have loaded.
        """
        return ()

    def time_flags(self, timing: Timing, *, flops: float, threads: int, cores: int) -> Iterable[Flag]:
        """Return flags for impossibly short times and for use of too many cores (`integrity.flags.time_flags`).

        Return () for parts that compute on a GPU.
        """
        return ()

    def library_flags(self, checks: Checks, calls: Sequence[Observed], *, play: bool) -> tuple[Flag, ...]:
        """Return flags for a GPU part in whose calls a library does the work of a kernel.

        `play`: True to also replay the calls' traces (recorded operators and kernel launches) on other inputs.
        """
        return ()

    def lacks(self, part: Part, step: Literal["results", "time"]) -> Faulty | None:
        """Return the fault (verdict `unjudged`) if this machine lacks a GPU for judging results or time; else None."""
        return None

    def is_disturbed(self, diagnosis: Diagnosis) -> bool:
        """Return True if other submissions on the machine may have caused the failure that this diagnosis describes."""
        return False

    def fault(self, broken: Broken) -> Faulty:
        """Return the verdict and message for a call that returned no output."""
        call = broken.call
        verdict: Verdict = "timeout" if call.status == "timeout" else "crash"
        reason = call.message or call.signal_name or call.status
        return faults.fault(verdict, call.status, f"{broken.at} failed: {reason}.", broken.hidden)

    def loading_fault(self, session: Session) -> Faulty:
        """Return the verdict and message for a runner that died while loading, or did not load the file."""
        death = session.death or Call("crash", message=session.load_error or "")
        return faults.loading_fault(death, "code outside of functions with a", "code outside of functions")

    def with_loads_outside(self, part: Part, diagnosis: Diagnosis, lines: Sequence[int]) -> Diagnosis:
        """Return the diagnosis, extended by a note on the source `lines`, which read outside of all tensors."""
        return diagnosis
