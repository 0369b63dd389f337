"""One assignment as the engine has it: its parts, their cases, how they are called, judged and paid.

Records alone: `grader.assignment.loading` makes them of YAML, and everybody else only reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

from grader.assignment import labs
from grader.assignment.rubric import LateRule, ManualItem, TimeBand, TimeRule

if TYPE_CHECKING:
    from grader.core.arrays import Array
    from grader.core.commandline import SizeOption

Shape = dict[str, int]
Returns = Literal["tensor", "number", "nothing", "outputs"]
Backend = Literal["cpp", "triton", "cuda"]


@dataclass(frozen=True)
class Case:
    """One input: `shape` holds only what differs from the run's shape.

    `weight` is its share in the credit for a wrong part, beside the other cases'. `hidden` cases are the staff's.
    """

    name: str
    distribution: str
    seed: int
    shape: Mapping[str, int] = field(default_factory=dict)
    weight: float = 1.0
    hidden: bool = False


@dataclass(frozen=True)
class Output:
    """A tensor that a function is given to write into."""

    dims: tuple[str, ...]
    dtype: str = "float32"
    """"like" is the type of the case's `precision`."""


#: Of files of kernels for a GPU, by the language they are written in.
SUFFIXES: Mapping[str, str] = {"triton": ".py", "cuda": ".cu"}


def file_of(source: str, language: str) -> str:
    """The file that holds parts in a GPU's language: the source itself, else one of the same stem beside it."""
    suffix = SUFFIXES[language]
    return source if source.endswith(suffix) else str(PurePath(source).with_suffix(suffix))


@dataclass(frozen=True)
class AutogradForm:
    """A part that may also be handed in as an autograd.Function, called by `apply(*arguments)`. With a `gradient` the
    outputs are those of the tensors among the arguments, after `backward(gradient)` of what it returned.

    Of several classes in a file `name` is the one to call. `language` says what its forward pass is written in, where
    that is part of the task; "" allows both."""

    arguments: tuple[str, ...]
    gradient: str | None = None
    language: Literal["", "triton", "pytorch"] = ""
    name: str = ""


@dataclass(frozen=True)
class DeviceCall:
    """What a part has besides whose kernels run on a GPU. Inputs without a type in `dtypes` have that of the size
    `precision`; `ranges` bound the uniform numbers of a timed call; `returned` are the outputs that no argument names.
    `library_operators` are those of torch that it may call; others that compute are flagged. ("any",) allows all but
    attention itself."""

    language: Literal["triton", "cuda"]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    returned: tuple[str, ...] = ()
    autograd: AutogradForm | None = None
    library_operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    id: str
    command: str
    title: str
    label: str
    function: str
    arguments: tuple[str, ...]
    returns: Returns
    output_dims: tuple[str, ...]
    """Dimensions of what is returned; () where no tensor is."""
    oracle: str
    points: float
    points_if_slow: float
    cases: tuple[Case, ...]
    """The public cases and, in a staff file, the hidden ones behind them."""
    time_bands: tuple[TimeBand, ...] = ()
    case_credit: float = 0.0
    """Share of the points that a wrong part could at most still earn; see `grader.score`."""
    prototype: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    is_torch: bool = False
    dtype: str = "float32"
    """Of the tensor that is returned."""
    outputs: Mapping[str, Output] = field(default_factory=dict)
    """Arguments that are written: some may be inputs as well, which the function changes in place."""
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The tensors that its arguments may name, with their dimensions: its own, else the assignment's."""
    table: tuple[str, ...] = ()
    columns: str = ""
    """The kind of each column of the table: see `grader.assignment.labs.OracleFacts`."""
    reference: str | None = None
    workspace_in_scope: bool = True
    stands_in: str | None = None
    differs_from: str | None = None
    """An earlier part that sums in another order; see `grader.judge.same_work`."""
    avoids_tensor: tuple[str, ...] = ()
    """Dimensions of a float32 tensor that the part does without."""
    time: TimeRule | None = None
    device: DeviceCall | None = None
    """Of a part whose kernels run on a GPU."""

    def of_class(self, name: str | None) -> Part:
        """The part with another autograd.Function to call, if it may be one."""
        if not name or self.device is None or self.device.autograd is None:
            return self
        return replace(self, device=replace(self.device, autograd=replace(self.device.autograd, name=name)))


@dataclass(frozen=True)
class RunLimits:
    build_s: float
    call_s: float
    memory_gib: float
    object_mib: float = 8.0


TorchRunner = Literal["never", "needed", "always"]
"""Which files may be judged in a process that has torch, with flags for people to look at, as they use more of it than
tensors: none, those that need Python, pybind11 or what kernels are not given, or also those that call torch's own work.
What is not allowed does not compile."""


@dataclass(frozen=True)
class Assignment:
    id: str
    title: str
    source: str
    defaults: Mapping[str, int]
    minima: Mapping[str, int]
    maxima: Mapping[str, int]
    inputs: Mapping[str, tuple[str, ...]]
    limits: RunLimits
    parts: tuple[Part, ...]
    path: Path
    lab_folder: Path
    files: tuple[Path, ...] = ()
    """Every file that it was read from, `path` first."""
    manual: tuple[ManualItem, ...] = ()
    late: LateRule | None = None
    seed: int | None = None
    """Makes the inputs of timed calls repeatable, and the hidden cases that have no seed of their own."""
    fingerprint: str = ""
    """sha256 of every file it was read from, and of the seed where the caller gave one."""
    torch_runner: TorchRunner = "needed"
    profiler_table: bool = False
    """True if results of a class have torch's own figures of memory and its operators, which takes a second each."""
    packages: tuple[str, ...] = ()
    """Python packages that a hand-in may import besides torch, Triton and NumPy."""

    @property
    def lab(self) -> labs.Lab:
        """Return the assignment's lab. Raises UsageError when it cannot be imported."""
        return labs.load(self.lab_folder)

    @property
    def size_options(self) -> list[SizeOption]:
        """The command line's options for its sizes."""
        return labs.size_options(self.lab, self.defaults)

    def typical_inputs(self, part: Part, shape: Mapping[str, int], seed: int) -> dict[str, Array]:
        """Inputs of the kind that a part is timed on."""
        return self.lab.make_inputs(self.lab.oracles[part.oracle].timed, shape, seed)

    @property
    def sources(self) -> tuple[str, ...]:
        """All files that are handed in, `source` first: a further one for each language that only other parts are
        written in. Who hands one of those not in has its parts missing, and the others judged."""
        return (self.source, *self.beside(self.source))

    def beside(self, source: str) -> tuple[str, ...]:
        """What is judged with a source of this name, of the same stem: all of `sources` but the first."""
        languages = dict.fromkeys(part.device.language for part in self.parts if part.device is not None)
        return tuple(name for each in languages if (name := file_of(source, each)) != source)

    def commands(self) -> list[str]:
        """Return the names that a student may type, in order, each once."""
        return list(dict.fromkeys(part.command for part in self.parts))

    def select(self, command: str) -> tuple[Part, ...]:
        """The parts of one command; `all` gives every part that earns points."""
        if command == "all":
            return tuple(part for part in self.parts if part.points > 0)
        return tuple(part for part in self.parts if part.command == command)

    def part(self, part_id: str) -> Part:
        return next(part for part in self.parts if part.id == part_id)
