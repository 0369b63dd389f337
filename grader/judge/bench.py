"""Context shared by the parts of one submission: the assignment, the build, the runners and their hosts."""

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
    """Reserve nothing: this judge is the only one on its machine."""
    return nullcontext()


@dataclass(frozen=True)
class Watched:
    """Result of a watched call: variables and lines of `races`, or why none could be seen (`unseen`). Both are "" where
    the call had no race."""

    races: str = ""
    unseen: str = ""


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
    watch_races: Callable[..., Watched] | None = None
    """Watches one call of a part for data races (`grader.study.race.words_of`)."""
    command: str = ""
    """Command that takes a part's name, for the reader of the messages; "" for that of this copy of the kit."""


@dataclass(frozen=True)
class Bench:
    """One submission with all that judging its parts needs. `stack` ends the remaining runners."""

    assignment: Assignment
    source: Path
    options: Options
    emit: Listener
    made: selection.Made
    zygote: Zygote
    stack: ExitStack
    exclusive: Exclusive = unshared
    """Reserves the resources that a timing of a part needs. It yields the cores for the runners, None for the machine's
    default.
    """
    host: NativeHost | None = None
    """Starts programs of `build`'s kind; None if everything is judged in processes with torch."""
    object_flags: Callable[[], tuple[Flag, ...]] = tuple
    """Flags of the built object (`grader.integrity.flags.inspect_object`), once they are known."""
    outputs: dict[str, dict[str, Array]] = field(default_factory=dict)
    """Right public outputs by part and case, of parts that are compared (`grader.judge.same_work`)."""

    helpers: dict[str, bool] = field(default_factory=dict)
    """Parts that others call (`Part.table`), by id: True if one fails its own test."""
    budgets: dict[str, Budget] = field(default_factory=dict)
    """Time that the calls of each part have used, by its id."""

    @property
    def build(self) -> Build:
        """The build that decides: a program of its own, or an object for a process with torch."""
        return self.made.judged

    @property
    def shape(self) -> dict[str, int]:
        """The run's sizes by name: the assignment's defaults under the command line's."""
        return {**self.assignment.defaults, **self.options.shape}

    @property
    def command(self) -> str:
        """The command that messages name, to be followed by a part."""
        return self.options.command or labs.command(self.assignment.lab_folder)

    def watched(self, part: Part) -> Watched | None:
        """Watch a call of a part for data races, None where this run does not."""
        watch, defines = self.options.watch_races, self.options.defines
        if watch is None:
            return None
        return watch(self.assignment, part, self.source, defines, self.shape, self.zygote.sandbox)

    @property
    def limits(self) -> sandbox.Limits:
        memory_bytes = int(self.assignment.limits.memory_gib * sandbox.GIB)
        return sandbox.Limits(memory_bytes=None if self.options.sanitize else memory_bytes)

    def call_timeout_s(self, shape: Mapping[str, int]) -> float:
        """Return the assignment's limit on a call, scaled with the work of shapes larger than its defaults."""

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

    def backend(self, part: Part) -> Backend:
        """Return the backend that judges a part."""
        return self.made.backend(part, self.assignment.lab, self.zygote, self.host)

    def of_file(self, *, with_torch: bool = False) -> Backend:
        """Return the backend of the C++ file, or that of its object `with_torch`."""
        return self.made.of_file(self.assignment.lab, self.zygote, None if with_torch else self.host)

    def student(
        self, part: Part, *, threads: int, freeze: bool = True, with_torch: bool = False, **how: Any
    ) -> Session:
        """Start a runner of the student's code, as it is judged or `with_torch`. `how` are fields of an Opening.

        Raises Faulty where the code cannot be loaded.
        """
        backend = self.backend(part)
        if with_torch and backend.kind.is_students:
            backend = self.of_file(with_torch=True)
        timeout_s = self.call_timeout_s(self.shape)
        opening = Opening(threads, timeout_s, limits=self.limits, freeze=freeze, **how)
        session = self.stack.enter_context(backend.open(part, opening))
        session.budget = self.budgets.setdefault(part.id, Budget(session.call_timeout_s))
        if session.death is not None or session.load_error is not None:
            raise backend.loading_fault(session)
        return session

    def reference(self, *, threads: int, cpus: list[int] | None = None, with_torch: bool = False) -> Session:
        """Return a fresh runner holding the reference, of the same kind as the student's. Raises KitError."""
        opening = Opening(threads, self.call_timeout_s(self.shape), cpus)
        session = self.of_file(with_torch=with_torch).open(None, opening, reference=True)
        self.stack.enter_context(session)
        if session.death is not None or session.load_error is not None:
            raise KitError(f"the reference cannot be loaded: {session.load_error or session.death}")
        return session
