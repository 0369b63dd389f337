"""Context shared by the parts of one submission: the assignment, the build, what starts runners, and the runners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader import sandbox
from grader.assignment.records import Assignment, Part
from grader.backends.native.nativebuild import NativeBuild
from grader.backends.native.nativehost import NativeHost, ProgramRefused
from grader.backends.records import Build
from grader.backends.torch.zygote import Zygote
from grader.core.errors import KitError
from grader.core.results import Flag
from grader.judge import binding, faults
from grader.judge.events import Listener
from grader.runner.budget import Budget
from grader.runner.session import Session

if TYPE_CHECKING:
    from grader.core.arrays import Array
    from grader.judge.ondevice.host import DeviceHost
    from grader.judge.oracle import Oracle

SANITIZER_SLOWDOWN = 20
INTERPRETER_CPU, INTERPRETER_WALL = 2, 8
"""CPU and wall seconds of a call in Triton's interpreter, as multiples of `call_s`. CPU time decides, since it hardly
depends on the machine's load; wall time ends a call that waits."""
Exclusive = Callable[[Part], AbstractContextManager["list[int] | None"]]


def unshared(part: Part) -> AbstractContextManager[list[int] | None]:
    """For a judge that is the only one on its machine."""
    return nullcontext()


@dataclass(frozen=True)
class Options:
    """Options of one run. `shape` overrides the assignment's defaults; `seed` makes timed inputs repeatable (by
    default each run draws its own); `time_ungraded` times parts whose time earns nothing, too; `time_budget_s` bounds
    the timed calls of a part as `grader.judge.timing.measure` says."""

    shape: Mapping[str, int] = field(default_factory=dict)
    defines: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    timing: bool = True
    time_ungraded: bool = True
    time_budget_s: float = 60.0
    profile: bool = True
    sanitize: bool = False
    second_look: bool = False
    """True if other builds of a file that is wrong or crashes may be made to find the line: in a student's own run, in
    which nothing is confined."""
    watch_races: Callable[[Part], str | None] | None = None
    """Result of a watched run of a part: variables and lines, "" if it saw no race, None if it cannot be watched."""


@dataclass(frozen=True)
class Bench:
    """One submission on the bench. Runners that it spawns are ended with `stack`, if not before."""

    assignment: Assignment
    source: Path
    options: Options
    tell: Listener
    build: Build | NativeBuild
    """The build that decides: a program of its own, or an object for a process with torch."""
    zygote: Zygote
    stack: ExitStack
    exclusive: Exclusive = unshared
    """Gives this submission what a timing of a part needs to itself, for as long as it is measured: the cores for its
    runners, None for those that the machine's own rule names."""
    host: NativeHost | None = None
    """Starts programs of `build`'s kind; None where all is judged in processes with torch."""
    with_torch: Callable[[], Build] | None = None
    """Builds the object for a process with torch, where `build` is none; after the first time it is known."""
    object_flags: Callable[[], tuple[Flag, ...]] = tuple
    """Flags of the built object (`grader.integrity.flags.inspect_object`), once they are known."""
    device: DeviceHost | None = None
    """Starts runners of the parts whose kernels run on a GPU."""
    outputs: dict[str, dict[str, Array]] = field(default_factory=dict)
    """Right public outputs by part and case, of parts that are compared (`grader.judge.same_work`)."""

    helpers: dict[str, bool] = field(default_factory=dict)
    """Parts that others call (`Part.table`), by id: True if one fails its own test."""
    budgets: dict[str, Budget] = field(default_factory=dict)
    """Time that the calls of each part have used, by its id."""

    @property
    def shape(self) -> dict[str, int]:
        """The run's sizes by name: the assignment's defaults under the command line's."""
        return {**self.assignment.defaults, **self.options.shape}

    @property
    def program(self) -> Path | None:
        """The program that runners of the student's are, where they are no processes with torch."""
        return self.build.program if isinstance(self.build, NativeBuild) else None

    @property
    def limits(self) -> sandbox.Limits:
        memory_bytes = int(self.assignment.limits.memory_gib * sandbox.GIB)
        return sandbox.Limits(memory_bytes=None if self.options.sanitize else memory_bytes)

    def call_timeout_s(self, shape: Mapping[str, int]) -> float:
        """The assignment's limit, stretched with the work of larger shapes than its defaults."""

        stretch = max((self.growth(part, shape) for part in self.assignment.parts), default=1.0)
        return self.assignment.limits.call_s * stretch * (SANITIZER_SLOWDOWN if self.options.sanitize else 1)

    def growth(self, part: Part, shape: Mapping[str, int]) -> float:
        """Return a part's work in this shape as a multiple of the work in the assignment's own; at least 1."""
        defaults = self.assignment.defaults
        oracle: Oracle = self.assignment.lab.oracle(part.oracle)
        usual, now = oracle.flops(defaults), oracle.flops(shape)
        if not usual:
            usual, now = (binding.elements(part, part.inputs, sizes) for sizes in (defaults, shape))
        return max(1.0, now / max(1, usual))

    def student(
        self,
        part: Part,
        *,
        threads: int,
        cpus: list[int] | None = None,
        freeze: bool = True,
        with_torch: bool = False,
        shared_fd: int | None = None,
    ) -> Session:
        """A fresh runner holding the student's code, as it is judged or `with_torch` (or torch itself, for a part that
        is torch's), with device memory of the judge's if it is to be timed on a card.
        `freeze` as in `Zygote.spawn`. Raises Faulty where it cannot be loaded."""
        how: dict[str, Any] = {
            "threads": threads,
            "cpus": cpus,
            "limits": self.limits,
            "freeze": freeze,
            "call_timeout_s": self.call_timeout_s(self.shape),
        }
        if part.device is not None:
            assert self.device is not None
            how["memory_bytes"] = how.pop("limits").memory_bytes
            # Nothing is timed in the interpreter.
            how["shared_fd"] = shared_fd
            session = self.device.student(part, **{**how, "freeze": freeze and self.device.card is not None})
        elif self.host is None or with_torch or part.is_torch:
            session = self.zygote.spawn(
                "torch" if part.is_torch else "student",
                "" if part.is_torch else self.torch_build().object_path or "",
                **how,
            )
        else:
            assert isinstance(self.build, NativeBuild) and self.build.program is not None
            try:
                session = self.host.spawn(self.build.program, **how)
            except ProgramRefused as reason:
                raise faults.program_fault(str(reason)) from reason
            if session.load_error is not None:
                # It has nothing to load, so that is no greeting of the kit's.
                raise faults.program_fault("it sent back something that is no greeting")
        self.stack.enter_context(session)
        if part.device is not None and self.device is not None and self.device.card is None:
            limit_s = session.call_timeout_s
            session.call_timeout_s, session.call_cpu_s = INTERPRETER_WALL * limit_s, INTERPRETER_CPU * limit_s
        session.budget = self.budgets.setdefault(part.id, Budget(session.call_timeout_s))
        if session.death is not None:
            raise faults.loading_fault(session.death, is_python=part.device is not None)
        if session.load_error is not None:
            raise faults.load_error(session.load_error, part, self.assignment.packages)
        return session

    def build_of(self, part: Part) -> Build | NativeBuild:
        """Return the build that the part is judged with: the device's for a kernel on a GPU."""
        if part.device is not None and self.device is not None:
            return self.device.build_of(part)
        return self.build

    def torch_build(self) -> Build | NativeBuild:
        """Return the build for a process with torch, built if need be."""
        return self.with_torch() if self.with_torch is not None else self.build

    def reference(self, *, threads: int, cpus: list[int] | None = None, with_torch: bool = False) -> Session:
        """A fresh runner holding the reference, of the same kind as the student's. Raises KitError."""
        kernels = self.assignment.lab.reference()
        how: dict[str, Any] = {
            "threads": threads,
            "cpus": cpus,
            "call_timeout_s": self.call_timeout_s(self.shape),
        }
        if self.host is not None and not with_torch:
            session = self.host.spawn(kernels.program(), **how)
        elif (found := kernels.for_torch()) is not None:
            session = self.zygote.spawn(*found, **how)
        else:
            raise KitError(
                "this copy of the kit has no reference for a process with torch: judge without the table"
            )
        self.stack.enter_context(session)
        if session.death is not None or session.load_error is not None:
            raise KitError(f"the reference cannot be loaded: {session.load_error or session.death}")
        return session
