"""Records of one assignment: its parts, their cases, how they are called, judged and graded.

`grader.assignment.loading` makes these records from YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

from grader.assignment import labs
from grader.assignment.inputs import CaseInputs, drawn
from grader.assignment.rubric import LateRule, ManualItem, TimeBand, TimeRule

if TYPE_CHECKING:
    from grader.core.commandline import SizeOption

Shape = dict[str, int]
Returns = Literal["tensor", "number", "nothing", "outputs"]


@dataclass(frozen=True)
class Case:
    """One input of a part. `shape` holds the sizes that replace the run's sizes.

    If the part is wrong, the credit for a right case is proportional to its `weight`. Only staff see a `hidden` case.
    """

    name: str
    distribution: str
    seed: int
    shape: Mapping[str, int] = field(default_factory=dict)
    weight: float = 1.0
    hidden: bool = False


@dataclass(frozen=True)
class Output:
    """A tensor that a function writes or, on a GPU, may return (key `outputs`)."""

    dims: tuple[str, ...]
    dtype: str = "float32"
    """An element type; "like" is the type that the case's size `precision` stands for."""


#: Values of the YAML key `backend` besides "cpp", with the suffixes of their files. `backends.selection.MAKERS` has the
#: same keys.
SUFFIXES: Mapping[str, str] = {
    "triton": ".py",
    "cuda": ".cu",
}


def file_of(source: str, language: str) -> str:
    """Return the name of the file for the parts written in `language`: `source`, or its stem with another suffix."""
    suffix = SUFFIXES[language]
    return source if source.endswith(suffix) else str(PurePath(source).with_suffix(suffix))


@dataclass(frozen=True)
class AutogradForm:
    """Calling convention of a part, if it is handed in as an autograd.Function: `apply(*arguments)` is called.

    If `gradient` names an argument, the returned tensor's method `backward` is then called with this argument. The
    outputs are then the gradients of the tensors among `arguments`. `name` is the class to call; for "" the runner
    finds the class. The forward pass must be written in `language`; "" allows both languages.
    """

    arguments: tuple[str, ...]
    gradient: str | None = None
    language: Literal["", "triton", "pytorch"] = ""
    name: str = ""


@dataclass(frozen=True)
class DeviceCall:
    """Further properties of a part in another language than C++.

    `dtypes` maps inputs to types. The size `precision` gives the type of all other inputs. `ranges` has the bounds of
    the random numbers in a timed call's inputs. `returned` are the outputs that no argument names. Torch's
    operators in `library_operators` may be called, others are flagged. ("any",) allows all except attention.
    """

    language: str
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
    """Dimensions of the returned tensor; () if `returns` is not "tensor"."""
    oracle: str
    points: float
    points_if_slow: float
    cases: tuple[Case, ...]
    """The public cases, followed by the hidden ones in a staff file."""
    time_bands: tuple[TimeBand, ...] = ()
    case_credit: float = 0.0
    """Largest share of the points that a wrong part can still earn; see `grader.score`."""
    prototype: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    is_torch: bool = False
    """True for a part that calls a function of torch itself (key `torch_function`)."""
    dtype: str = "float32"
    """Element type of the returned tensor."""
    outputs: Mapping[str, Output] = field(default_factory=dict)
    """Tensors that the function writes or returns, by name. An output that is also an input is changed in place."""
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Dimensions of the input tensors that the part's arguments may name. They come from the part's key `inputs`, else
    from the assignment's."""
    table: tuple[str, ...] = ()
    columns: str = ""
    """Kind of each column of the table: see `grader.assignment.labs.OracleFacts`."""
    reference: str | None = None
    workspace_in_scope: bool = True
    """True if the profiler's figures include the call's workspaces."""
    stands_in: str | None = None
    """Id of a part that calls this part's function, and is judged instead if the file does not export this function."""
    differs_from: tuple[str, ...] = ()
    """Ids of earlier parts that sum in another order; see `grader.judge.same_work`."""
    avoids_tensor: tuple[str, ...] = ()
    """Dimensions of a float32 tensor that the part should not allocate; an allocation is flagged for review."""
    time: TimeRule | None = None
    device: DeviceCall | None = None
    """Set for a part in another language than C++, such as kernels for a GPU."""

    def lone_case(self, *, hidden: bool) -> Case | None:
        """Return the only public case with a weight, or the only hidden one if `hidden`; None for 0 or several."""
        weighted = [case for case in self.cases if case.hidden == hidden and case.weight > 0]
        return weighted[0] if len(weighted) == 1 else None

    def of_class(self, name: str | None) -> Part:
        """Return a copy of this part that calls the autograd.Function `name`.

        Returns this part itself if `name` is empty or the part cannot be handed in as an autograd.Function.
        """
        if not name or not self.device or not self.device.autograd:
            return self
        return replace(self, device=replace(self.device, autograd=replace(self.device.autograd, name=name)))


@dataclass(frozen=True)
class RunLimits:
    build_s: float
    call_s: float
    memory_gib: float
    object_mib: float = 8.0


TorchRunner = Literal["never", "needed", "always"]
"""Files that may be judged in a process with torch, because they use more of torch than tensors. "never": none.
"needed": files that need Python, pybind11 or more of torch than the kit's headers declare. "always": also files that
call torch's operators. Such files are flagged for review. A file that is not allowed does not compile."""


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
    """Every file that the assignment was read from, `path` first."""
    manual: tuple[ManualItem, ...] = ()
    late: LateRule | None = None
    seed: int | None = None
    """Seed of the inputs of timed calls, and of hidden cases without a seed of their own."""
    fingerprint: str = ""
    """SHA-256 over the files that decide this assignment, and over the seed if the caller gave one."""
    torch_runner: TorchRunner = "needed"
    profiler_table: bool = False
    """True to record torch's figures of memory and operators for a class. Takes about one second per result."""
    packages: tuple[str, ...] = ()
    """Python packages that a hand-in may import besides torch, Triton and NumPy."""

    @property
    def warnings(self) -> list[str]:
        """Return warnings about rules that are valid but probably a mistake, one line each."""
        kinds = [(part, hidden) for part in self.parts if part.case_credit for hidden in (False, True)]
        return [
            f"{part.id}: '{case.name}' is the only {'hidden' if hidden else 'public'} case with a weight, so it alone "
            "decides half of case_credit: add another case"
            for part, hidden in kinds
            if (case := part.lone_case(hidden=hidden)) is not None
        ]

    @property
    def lab(self) -> labs.Lab:
        """Return the assignment's lab. Raises UsageError when it cannot be imported."""
        return labs.load(self.lab_folder)

    @property
    def size_options(self) -> list[SizeOption]:
        """Return the command-line options for the assignment's sizes."""
        return labs.size_options(self.lab, self.defaults)

    def typical_inputs(self, part: Part, shape: Mapping[str, int], seed: int) -> CaseInputs:
        """Make inputs from the distribution that a part is timed on."""
        return drawn(self.lab, self.lab.oracles[part.oracle].timed, shape, seed, keep=False)

    @property
    def sources(self) -> tuple[str, ...]:
        """All files that are handed in, `source` first.

        The parts in each further language have a file of their own. If this file is not handed in, its parts get the
        verdict `missing`, and the other parts are judged.
        """
        return (self.source, *self.beside(self.source))

    def beside(self, source: str) -> tuple[str, ...]:
        """Return the names of the files judged together with the file `source`.

        They have the same stem, and the suffixes of the other languages.
        """
        languages = dict.fromkeys(part.device.language for part in self.parts if part.device)
        return tuple(name for each in languages if (name := file_of(source, each)) != source)

    def commands(self) -> list[str]:
        """Return the part names that a student may type, in order, each once."""
        return list(dict.fromkeys(part.command for part in self.parts))

    def select(self, command: str) -> tuple[Part, ...]:
        """Return the parts of one command; `all` selects every part that earns points."""
        if command == "all":
            return tuple(part for part in self.parts if part.points > 0)
        return tuple(part for part in self.parts if part.command == command)

    def part(self, part_id: str) -> Part:
        return next(part for part in self.parts if part.id == part_id)
