"""Labs: the folders that hold what one assignment alone knows, what the engine asks of them, and how it finds one.

A lab is a Python package `labs/NAME`. Its `__init__` answers before NumPy is imported: which oracles and distributions
an assignment file may name. The rest is imported when it is first asked for.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from grader.core import imports
from grader.core.commandline import SizeOption
from grader.core.errors import UsageError
from grader.core.places import HIDDEN_CONFIG, PUBLIC_CONFIG, ROOT

if TYPE_CHECKING:
    from grader.assignment.reference import Reference
    from grader.core.arrays import Array
    from grader.core.results import Standing, SubmissionResult

LABS = ROOT / "labs"
PACKAGE = "labs"


@dataclass(frozen=True)
class OracleFacts:
    """`distributions`: those that give the oracle what it needs. `columns`: for a function that is called once for each
    row of a table, the kind of each of its columns, "i" for whole numbers and "f" for others."""

    distributions: tuple[str, ...]
    columns: str = ""

    @property
    def timed(self) -> str:
        """Distribution of the inputs of timed calls."""
        return "random" if "random" in self.distributions else self.distributions[0]


@dataclass(frozen=True)
class Step:
    """One study: its table's name and its command line, with the options of a full one or of a first look."""

    table: str
    command: str
    part: str = ""
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()

    def arguments(self, *, is_quick: bool) -> list[str]:
        return [*([self.part] if self.part else []), *(self.quick if is_quick else self.full)]


class Ladder(Protocol):
    """Other kernels that a part's are measured against, from the slowest to the machine's own limit; a module with
    these functions will do. Parts and assignments are those of `grader.assignment.records`."""

    def standing(self, part: Any, shape: Mapping[str, int], ratio: float) -> Standing | None:
        """The place of a kernel that takes `ratio` times as long as the part's reference, where the others were
        measured on this machine before; None elsewhere. Never raises, measures nothing."""

    def line(self, standing: Standing) -> str:
        """A place in one line, for a verdict."""

    def shares(self, standing: Standing) -> dict[str, float]:
        """The other kernels' own shares of the peak, in per cent, by what they are called."""

    def hint(self, assignment: Any, result: SubmissionResult, sizes: Sequence[str] = ()) -> str:
        """What to type to have a result's timed parts on the ladder, "" where they are or cannot be. `sizes` are the
        options that asked for the result's shape: another shape's ladder would not do."""


class Lab(ABC):
    """The value of `LAB` in a lab's package."""

    inputs_version = 1
    """Version of the generator of inputs: with one version equal seeds give equal bits on any machine."""
    oracles: ClassVar[Mapping[str, OracleFacts]]
    options: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Options of the command line by the size that they set: the flag, and what the size is. A size that is missing
    here has a flag of its own name."""

    claim = "result == expected result"
    """What the table of a call under torch's profiler says to be true or false."""
    denial = "YOUR RESULT IS INCORRECT"
    """What stands below it where it is false."""
    watched_sizes: ClassVar[Mapping[str, int]] = {}
    """Sizes of a call under ThreadSanitizer, which makes each access slow; {} for those of a part's largest case."""

    proof_sizes: ClassVar[Mapping[str, int]] = {}
    """Sizes at which a release proves that its solution is in time, where the assignment's own take long."""

    studies: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Studies of its own beside the kit's (`grader.study.COMMANDS`), by command: the module with `main`, relative to
    the lab's package (".studies.sweep"), and what it shows."""

    programs: ClassVar[Sequence[str]] = ()
    """Sources in its folder of programs that its studies run. A handout holds them compiled (`grader.study.helpers`),
    for they show loops of the solution."""

    staff: ClassVar[Sequence[str]] = ()
    """Files and folders of its own that no handout holds, whoever imports them, besides those of every lab: hidden
    cases, the reference's sources, known kernels (`kernels.py`), threats."""

    tests: ClassVar[tuple[str, ...]] = ()
    """What a command line may ask to be judged, where that is to be known before any YAML is read: the main lab's."""

    has_demo: ClassVar[bool] = False
    """True if the student's command line has a demo that calls its kernels."""

    growth: ClassVar[tuple[str, tuple[int, ...]]] = ("", ())
    """The size over which memory is looked at, and values for it; without one the first, at its default."""

    @abstractmethod
    def oracle(self, name: str) -> Any:
        """One of `oracles`: a `grader.judge.oracle.Oracle`."""

    @abstractmethod
    def make_inputs(self, distribution: str, shape: Mapping[str, int], seed: int) -> dict[str, Array]:
        """Contiguous inputs by name; the same three give the same bits. Raises UsageError for sizes that it lacks."""

    @abstractmethod
    def reference(self) -> Reference:
        """The kernels that a student's are measured against: those of `torch.labreference`, or its own."""

    def steps(self) -> Sequence[Step]:
        """What `study` makes in a row, in the write-up's order; () for the general studies."""
        return ()

    def ladder(self) -> Ladder | None:
        """Kernels of known speed beside the reference, if the lab has any."""
        return None

    def kernels(self) -> ModuleType | None:
        """The module `kernels` of the lab's package, which only the staff have: kernels whose verdict is known."""
        return self._of_staff("kernels")

    def threats(self) -> ModuleType | None:
        """The package `threats` of the lab's, which only the staff have: attempts to cheat or to harm, as submissions,
        each with how it must end (the main lab's says what it offers)."""
        return self._of_staff("threats")

    def _of_staff(self, name: str) -> ModuleType | None:
        """A module of the lab's that no handout has, where it lies in this copy of the kit."""
        is_there = (self.folder / f"{name}.py").is_file() or (self.folder / name / "__init__.py").is_file()
        return importlib.import_module(f"{type(self).__module__}.{name}") if is_there else None

    @property
    def folder(self) -> Path:
        """The folder of the lab's package."""
        module = sys.modules[type(self).__module__]
        assert module.__file__ is not None
        return Path(module.__file__).resolve().parent


def size_options(lab: Lab, names: Iterable[str]) -> list[SizeOption]:
    """The command line's options for sizes of these names, and for the threads."""
    found, wanted = [], {*names, "threads"}
    for name in dict.fromkeys((*(name for name in lab.options if name in wanted), *names, "threads")):
        usual = (f"--{name}" if len(name) > 1 else f"-{name}", "OpenMP threads" if name == "threads" else "")
        flag, what = lab.options.get(name, usual)
        found.append(SizeOption(flag, name, what))
    return found


def assignment_file(folder: Path, staff: bool = False) -> Path:
    """The assignment that lies in a lab's folder; for the `staff` with the hidden cases, where they are.

    The main lab's is the kit's own. Raises UsageError where there is none.
    """
    public, hidden = folder / "assignment.yaml", folder / "hidden" / "assignment.yaml"
    if folder == LABS / main():
        public, hidden = PUBLIC_CONFIG, HIDDEN_CONFIG
    if staff and hidden.is_file():
        return hidden
    if not public.is_file():
        raise UsageError(f"the lab {folder.name} has no {public}")
    return public


def find(name: str, beside: Iterable[Path] = ()) -> Path:
    """The folder of the lab of that name: one that a file of `beside` lies in, else the kit's. Raises UsageError."""
    for file in beside:
        for folder in file.absolute().parents[:2]:
            if folder.name == name and (folder / "__init__.py").is_file():
                return folder
    return named(name)


def known() -> list[str]:
    """The kit's own labs, the main one first."""
    return [folder.name for folder in folders()]


def folders(elsewhere: Path | None = None) -> list[Path]:
    """The kit's labs, the main one first, and those of a folder `elsewhere`."""
    own = sorted(LABS.glob("*/__init__.py"), key=lambda path: (path.parent.name != main(), path))
    others = sorted(elsewhere.glob("*/__init__.py")) if elsewhere else []
    return [path.parent for path in (*own, *others)]


def named(name: str, elsewhere: Path | None = None) -> Path:
    """The folder of a lab, in `elsewhere` or the kit's. Raises UsageError, with near names, where there is none."""
    there = {folder.name: folder.absolute() for folder in folders(elsewhere)}
    if name in there:
        return there[name]
    from difflib import get_close_matches

    near = get_close_matches(name, there, 1, 0.6)
    raise UsageError(f"no lab '{name}'{f': {near[0]}?' if near else ''} (there are {', '.join(there)})")


def master(folder: Path, source: str) -> Path:
    """The master source of a lab: in its folder, or the kit's where that has none."""
    return folder / source if (folder / source).is_file() else ROOT / source


def beside(folder: Path, name: str, usual: Path) -> Path:
    """A file of a lab's own, or where the main lab has its: the write-up's template, its key."""
    return folder / name if (folder / name).is_file() or folder != LABS / main() else usual


def deciding(folder: Path) -> list[Path]:
    """What of a lab outside of the kit can change a verdict: its modules and its reference, none of the tests."""
    modules = [
        path
        for path in folder.rglob("*.py")
        if path.stem != "kernels" and "test_" not in path.name and path.parent != folder / "threats"
    ]
    return sorted([*modules, *folder.glob("reference.*")])


def title(folder: Path) -> str:
    """The first line of what a lab says of itself, without running it."""
    import ast

    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def main() -> str:
    """The lab of an assignment file that names none."""
    return str(importlib.import_module(PACKAGE).MAIN)


def module_name(folder: Path) -> str:
    """The name that a lab's package is imported under.

    The kit's own are `labs.NAME`. Another's name ends in a digest of its folder, so that labs of one name from several
    folders (last year's copy, a colleague's) live in one process without sharing modules.
    """
    if folder.parent == LABS:
        return f"{PACKAGE}.{folder.name}"
    return f"{PACKAGE}.{folder.name}_{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"


def load(folder: Path) -> Lab:
    """Return the lab in a folder. Raises UsageError where it cannot be imported, or names itself absolutely."""
    return _load(folder.resolve())


@functools.cache
def _load(folder: Path) -> Lab:
    name = module_name(folder)
    try:
        if folder.parent == LABS:
            return _offered(importlib.import_module(name))
        _require_relative_imports(folder)
        importlib.import_module(PACKAGE)
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return _offered(module)
    except UsageError:
        raise
    except Exception as error:
        for left in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
            del sys.modules[left]
        raise UsageError(f"the lab {folder} cannot be imported: {type(error).__name__}: {error}") from error


def _require_relative_imports(folder: Path) -> None:
    """Raise UsageError for a module of a lab that imports `labs.NAME...`, its own name: that may be another lab's."""
    own = f"{PACKAGE}.{folder.name}"
    for path in sorted(folder.rglob("*.py")):
        try:
            named = list(imports.imports("", path, {}))
        except (SyntaxError, ValueError):
            continue  # Reported where it is imported.
        for found in named:
            if f"{found.imported}.".startswith(f"{own}."):
                inside = found.imported.removeprefix(own).removeprefix(".")
                dots = "." * len(path.relative_to(folder).parts)
                raise UsageError(
                    f"{path}:{found.line}: a lab's modules import one another relatively: "
                    f"write 'from {dots}{inside} import ...'"
                )


def _offered(module: ModuleType) -> Lab:
    found = getattr(module, "LAB", None)
    if not isinstance(found, Lab):
        raise UsageError(f"{module.__file__}: no LAB of grader.assignment.labs.Lab in it")
    return found
