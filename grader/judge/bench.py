"""Context of judging one submission, shared by its parts: the assignment, the builds, the options and the runners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader import sandbox
from grader.assignment import labs
from grader.assignment.records import Assignment, Part
from grader.backends import binding, selection
from grader.backends.native.nativehost import NativeHost
from grader.backends.protocol import Backend, Opening
from grader.backends.records import Build
from grader.backends.torch.zygote import Zygote
from grader.core.errors import KitError
from grader.core.results import Flag
from grader.judge.events import Listener
from grader.runner.calls import Budget
from grader.runner.session import Session

if TYPE_CHECKING:
    from grader.core.arrays import Array
    from grader.explain.oracle import Oracle

SANITIZER_SLOWDOWN = 20
Exclusive = Callable[[Part], AbstractContextManager["list[int] | None"]]


def unshared(part: Part) -> AbstractContextManager[list[int] | None]:
    """Return a context that reserves no cores and yields None: for a judge that has the machine to itself."""
    return nullcontext()


@dataclass(frozen=True)
class Watched:
    """Result of a call under ThreadSanitizer. `races` describes its data races, with variables and lines; "" for none.

    `unseen` is the reason why the call could not be made; else "".
    """

    races: str = ""
    unseen: str = ""


@dataclass(frozen=True)
class Options:
    """Options of one run.

    `shape` overrides the assignment's default sizes. `defines` are macros for the compiler. `seed` makes timed inputs
    repeatable. By default it is the assignment's seed; without one it is new in each run. `timing`: time parts that are
    right. `time_ungraded`: time also those parts whose time earns no points. `time_budget_s` limits the seconds of a
    part's timed calls (`grader.judge.timing.measure`). `profile`: repeat one call of each part under torch's profiler,
    to show its table. `sanitize`: build the file with sanitizers, which find wrong accesses to memory.
    """

    shape: Mapping[str, int] = field(default_factory=dict)
    defines: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    timing: bool = True
    time_ungraded: bool = True
    time_budget_s: float = 60.0
    profile: bool = True
    sanitize: bool = False
    second_look: bool = False
    """True in a student's own run: a file that is wrong or crashes is built again, with checks that find the line."""
    watch_races: Callable[..., Watched] | None = None
    """Function that looks for data races in one call of a part (`grader.study.race.words_of`)."""
    command: str = ""
    """Command in messages, to which a part's name is appended; "" for the usual command of this copy of the kit."""


@dataclass(frozen=True)
class Bench:
    """One submission, with everything that judging its parts needs.

    `emit` receives the events, `made` holds the builds, `zygote` forks runners with torch. `stack` closes all runners.
    """

    assignment: Assignment
    source: Path
    options: Options
    emit: Listener
    made: selection.Made
    zygote: Zygote
    stack: ExitStack
    exclusive: Exclusive = unshared
    """Context manager that reserves cores for timing a part. It yields the runners' cores; None for the default."""
    give_way: Callable[[], None] = lambda: None
    """Function that is called before a runner starts, if no runner of this submission is alive. Meanwhile, other
    submissions may be timed."""
    host: NativeHost | None = None
    """Starter of native runners; None if everything is judged in processes with torch."""
    object_flags: Callable[[], tuple[Flag, ...]] = tuple
    """Function that waits for the flags of the built object and returns them (see `integrity.flags.inspect_object`)."""
    outputs: dict[str, dict[str, Array]] = field(default_factory=dict)
    """Right outputs on public cases, by part and case, only for parts that `grader.judge.same_work` compares."""

    opened: list[Session] = field(default_factory=list)
    """The student's runners. The list is cleared when a runner starts after all others have ended."""
    helpers: dict[str, bool] = field(default_factory=dict)
    """Judged parts whose functions other parts may call, by id: True if the part is wrong or its call failed."""
    noted: set[str] = field(default_factory=set)
    """Codes of flags that concern all parts and were already added to one of them."""
    budgets: dict[str, Budget] = field(default_factory=dict)
    """Time that the calls of each part may use and have used, by the part's id."""
    stretches: dict[tuple[tuple[str, int], ...], float] = field(default_factory=dict)
    """Largest `growth` of all parts, by sizes: it takes long to compute if there are many parts."""

    @property
    def build(self) -> Build:
        """The build that is judged: a program, an object that a process with torch loads, or GPU kernels."""
        return self.made.judged

    @property
    def shape(self) -> dict[str, int]:
        """The run's sizes by name: those of the command line, else the assignment's defaults."""
        return {**self.assignment.defaults, **self.options.shape}

    @property
    def command(self) -> str:
        """Command in messages, to which a part's name is appended."""
        return self.options.command or labs.command(self.assignment.lab_folder)

    def watched(self, part: Part) -> Watched | None:
        """Look for data races in a call of a part. Return the result; None if this run does not look for races."""
        watch, defines = self.options.watch_races, self.options.defines
        if watch is None:
            return None
        return watch(self.assignment, part, self.source, defines, self.shape, self.zygote.sandbox)

    @property
    def limits(self) -> sandbox.Limits:
        memory_bytes = int(self.assignment.limits.memory_gib * sandbox.GIB)
        return sandbox.Limits(memory_bytes=None if self.options.sanitize else memory_bytes)

    def call_timeout_s(self, shape: Mapping[str, int]) -> float:
        """Return the time limit of a call in seconds. A shape with more work than the default sizes gets more time."""
        key = tuple(shape.items())
        if key not in self.stretches:
            self.stretches[key] = max(
                (self.growth(part, shape) for part in self.assignment.parts), default=1.0
            )
        stretch = self.stretches[key]
        return self.assignment.limits.call_s * stretch * (SANITIZER_SLOWDOWN if self.options.sanitize else 1)

    def growth(self, part: Part, shape: Mapping[str, int]) -> float:
        """Return a part's work at these sizes divided by its work at the default sizes; at least 1."""
        defaults = self.assignment.defaults
        oracle: Oracle = self.assignment.lab.oracle(part.oracle)
        usual, now = oracle.flops(defaults), oracle.flops(shape)
        if not usual:
            usual, now = (binding.elements(part, sizes) for sizes in (defaults, shape))
        return max(1.0, now / max(1, usual))

    def backend(self, part: Part, *, with_torch: bool = False) -> Backend:
        """Return the backend that judges a part. `with_torch`: the one that runs C++ code in a process with torch."""
        return self.made.backend(part, self.assignment.lab, self.zygote, None if with_torch else self.host)

    def of_file(self, *, with_torch: bool = False) -> Backend:
        """Return the backend for the student's C++ file. `with_torch`: the one that uses a process with torch."""
        return self.made.of_file(self.assignment.lab, self.zygote, None if with_torch else self.host)

    def student(
        self, part: Part, *, threads: int, freeze: bool = True, with_torch: bool = False, **how: Any
    ) -> Session:
        """Start a runner with the student's code. `freeze`: stop it between calls. `with_torch`: use a torch process.

        `how` are further fields of an Opening (`grader.backends.protocol`). Raises Faulty if the code cannot be loaded.
        """
        backend = self.backend(part, with_torch=with_torch)
        timeout_s = self.call_timeout_s(self.shape)
        opening = Opening(threads, timeout_s, limits=self.limits, freeze=freeze, **how)
        if all(session.death is not None for session in self.opened):
            self.opened.clear()
            self.give_way()
        session = self.stack.enter_context(backend.open(part, opening))
        self.opened.append(session)
        session.budget = self.budgets.setdefault(part.id, Budget(session.call_timeout_s))
        if session.death is not None or session.load_error is not None:
            raise backend.loading_fault(session)
        return session

    def reference(self, *, threads: int, cpus: list[int] | None = None, with_torch: bool = False) -> Session:
        """Start a runner with the reference. `with_torch`: in a torch process. Raises KitError if it does not load."""
        opening = Opening(threads, self.call_timeout_s(self.shape), cpus)
        session = self.of_file(with_torch=with_torch).open(None, opening, reference=True)
        self.stack.enter_context(session)
        if session.death is not None or session.load_error is not None:
            why = session.load_error or session.death
            raise KitError(f"the reference cannot be loaded: {why}; please report this")
        return session
