"""Labs: packages with the code of one assignment each. Defines their interface `Lab`, and finds and loads them.

A lab is a Python package `labs/NAME`. Importing its `__init__` is enough to learn which oracles (right results) and
distributions (kinds of inputs) an assignment file may name. NumPy and the rest of the lab are imported on first use.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from grader.core import imports
from grader.core.commandline import SizeOption
from grader.core.errors import UsageError
from grader.core.places import HIDDEN_CONFIG, PUBLIC_CONFIG, ROOT, STUDENT_COMMAND

if TYPE_CHECKING:
    from grader.core.arrays import Array
    from grader.core.results import Standing, SubmissionResult

#: Suffixes of a reference's source files, which no handout may hold.
SOURCE_SUFFIXES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".ispc", ".ptx", ".s")
Platform = tuple[str, str]
"""A platform, as `platform.system()` and `platform.machine()` name it."""


class Reference(Protocol):
    """The reference kernels of a lab. A part's key `reference` names one of them.

    Its methods except `sources` raise KitError if a build fails, or if a handout lacks the object for this platform.
    """

    def program(self) -> Path:
        """Return the path of a native runner's program that holds the kernels. Builds it unless it is cached."""

    def for_torch(self) -> tuple[Literal["raw", "student"], Path] | None:
        """Return (kind, path) of the file that a process with torch loads.

        "raw" is a library with a C ABI. "student" is an object that is built like a student's file. Returns None if
        this copy of the kit lacks the file, for example a handout without sources.
        """

    def sources(self) -> list[Path]:
        """List the source files that a handout leaves out; empty in a handout."""

    def compiled(self, folder: Path, compilers: Mapping[Platform, str]) -> dict[str, Path]:
        """Compile objects for a handout into `folder`. Return them by their path in the kit.

        `compilers` maps each platform of the handout to a compiler command; this platform is one of them.
        """


LABS = ROOT / "labs"
PACKAGE = "labs"


@dataclass(frozen=True)
class OracleFacts:
    """Facts about an oracle that are known before it is imported.

    The oracle accepts inputs of `distributions`. If a part has a `table`, its function is called once for each row.
    Then `columns` has a letter for each column, "i" for whole numbers, "f" for other numbers. Otherwise it is "".
    """

    distributions: tuple[str, ...]
    columns: str = ""

    @property
    def timed(self) -> str:
        """Distribution of the inputs of timed calls: "random" if the oracle accepts it, else the first accepted one."""
        return "random" if "random" in self.distributions else self.distributions[0]


@dataclass(frozen=True)
class Step:
    """One of the studies that the command `study` runs in one go: its own command, its part ("" for none), and options.

    `full` and `quick` are the options for a full and for a quick run. `table` names the region of the write-up that the
    study's table fills.
    """

    table: str
    command: str
    part: str = ""
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()

    def arguments(self, *, is_quick: bool) -> list[str]:
        return [*([self.part] if self.part else []), *(self.quick if is_quick else self.full)]


class Ladder(Protocol):
    """Kernels of known speed, up to the machine's peak speed. A student's kernel is ranked among them.

    A module with these functions can serve as a ladder. The arguments `part` and `assignment` are a Part and an
    Assignment of `grader.assignment.records`.
    """

    def standing(self, part: Any, shape: Mapping[str, int], ratio: float) -> Standing | None:
        """Return the rank of a kernel that takes `ratio` times as long as the part's reference.

        Returns None if the ladder's kernels were not yet measured on this machine. Never raises, and measures nothing.
        """

    def line(self, standing: Standing) -> str:
        """Describe a rank in one line, to be printed beside the verdict."""

    def shares(self, standing: Standing) -> dict[str, float]:
        """Return the known kernels' shares of the machine's peak, in per cent, by their names."""

    def hint(self, assignment: Any, result: SubmissionResult, sizes: Sequence[str] = ()) -> str:
        """Return the command that ranks a result's timed parts; "" if every part is ranked already or cannot be ranked.

        The command has the options `sizes`, which describe the result's shape: a rank holds for one shape only.
        """


class Lab(ABC):
    """Interface of a lab; a lab's package defines one instance as `LAB`."""

    inputs_version = 1
    """Version of the input generator. With the same version and seed, inputs have the same bits on any machine."""
    oracles: ClassVar[Mapping[str, OracleFacts]]
    options: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """(Flag, description) of the command-line option for each size, by the size's name. For a size that is missing
    here, the flag is made from the name."""

    claim = "result == expected result"
    """Text that is printed above the profiler's table of a call, followed by "True" or "False"."""
    denial = "YOUR RESULT IS INCORRECT"
    """Text printed on the line below `claim` if the result is wrong."""
    watched_sizes: ClassVar[Mapping[str, int]] = {}
    """Sizes of a call under ThreadSanitizer, which makes calls slow; {} for a part's largest public case."""

    proof_sizes: ClassVar[Mapping[str, int]] = {}
    """Smaller sizes at which a release checks that its solution is fast enough; {} for the assignment's own sizes."""

    studies: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """(Module, description) of each of the lab's own studies, by command; `grader.study.COMMANDS` has the general ones.
    The module defines `main`, and its name is relative to the lab's package (".studies.sweep")."""

    programs: ClassVar[Sequence[str]] = ()
    """Source files, in the lab's folder, of programs that the lab's studies run. A handout holds only the compiled
    programs (`grader.study.helpers`), because the sources contain loops of the solution."""

    staff: ClassVar[Sequence[str]] = ()
    """Further files and folders of the lab that no handout may hold: a release fails if its handout would hold one.
    Hidden cases, the reference's sources, `kernels.py` and `threats` need not be listed: no handout may hold them."""

    tests: ClassVar[tuple[str, ...]] = ()
    """Part names that the command line accepts, so that `--help` need not read YAML. Only the main lab has them."""

    has_demo: ClassVar[bool] = False
    """True if the student's command line has a demo that calls its kernels."""

    growth: ClassVar[tuple[str, tuple[int, ...]]] = ("", ())
    """Size that the memory study varies, and its values. ("", ()) stands for the first size with its default value."""

    @abstractmethod
    def oracle(self, name: str) -> Any:
        """Return one of `oracles` as a `grader.explain.oracle.Oracle`."""

    @abstractmethod
    def make_inputs(self, distribution: str, shape: Mapping[str, int], seed: int) -> dict[str, Array]:
        """Make contiguous input arrays by name. Equal arguments give equal bits. A missing size raises UsageError."""

    @abstractmethod
    def reference(self) -> Reference:
        """Return the reference: the kernels with which a student's kernels are compared."""

    def steps(self) -> Sequence[Step]:
        """Return the studies that `study` runs in one go, in the write-up's order; () to run the general studies."""
        return ()

    def ladder(self) -> Ladder | None:
        """Return kernels of known speed besides the reference, or None."""
        return None

    def kernels(self) -> ModuleType | None:
        """Return the lab's module `kernels`: kernels with a known verdict. None in a handout."""
        return self._of_staff("kernels")

    def threats(self) -> ModuleType | None:
        """Return the lab's package `threats`: submissions that try to cheat or do harm, with their expected outcomes.

        None in a handout. The main lab's package `threats` documents what such a package contains.
        """
        return self._of_staff("threats")

    def _of_staff(self, name: str) -> ModuleType | None:
        """Import a staff-only module of the lab; None if this copy of the kit does not have it."""
        is_there = (self.folder / f"{name}.py").is_file() or (self.folder / name / "__init__.py").is_file()
        return importlib.import_module(f"{type(self).__module__}.{name}") if is_there else None

    @property
    def folder(self) -> Path:
        """The folder of the lab's package."""
        module = sys.modules[type(self).__module__]
        assert module.__file__ is not None
        return Path(module.__file__).resolve().parent


def size_options(lab: Lab, names: Iterable[str]) -> list[SizeOption]:
    """Return the command-line options for these sizes and for the number of threads."""
    found, wanted = [], {*names, "threads"}
    for name in dict.fromkeys((*(name for name in lab.options if name in wanted), *names, "threads")):
        usual = (f"--{name}" if len(name) > 1 else f"-{name}", "OpenMP threads" if name == "threads" else "")
        flag, what = lab.options.get(name, usual)
        found.append(SizeOption(flag, name, what))
    return found


def assignment_file(folder: Path, staff: bool = False) -> Path:
    """Return the assignment file of a lab's folder. With `staff`, return the file with hidden cases if it exists.

    The main lab's files are outside of its folder: PUBLIC_CONFIG and HIDDEN_CONFIG. Raises UsageError if the lab has no
    assignment file.
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
    """Return the folder of the lab `name`: one of the two folders above a file in `beside`, else a lab of the kit.

    Raises UsageError for an unknown lab.
    """
    for file in beside:
        for folder in file.absolute().parents[:2]:
            if folder.name == name and (folder / "__init__.py").is_file():
                return folder
    return named(name)


def command(folder: Path, program: str = STUDENT_COMMAND) -> str:
    """Return the command for the lab in `folder`, without the part to judge: `gpt149` or `gpt149 lab softmax`, say."""
    if folder == LABS / main():
        return program
    elsewhere = "" if folder.parent == LABS else f"--labs {shlex.quote(str(folder.parent))} "
    return f"{program} lab {elsewhere}{folder.name}"


def known() -> list[str]:
    """Return the names of the kit's own labs, the main one first."""
    return [folder.name for folder in folders()]


def folders(elsewhere: Path | None = None) -> list[Path]:
    """Return the folders of the kit's labs, the main one first, and of the labs in the folder `elsewhere`."""
    own = sorted(LABS.glob("*/__init__.py"), key=lambda path: (path.parent.name != main(), path))
    others = sorted(elsewhere.glob("*/__init__.py")) if elsewhere else []
    return [path.parent for path in (*own, *others)]


def named(name: str, elsewhere: Path | None = None) -> Path:
    """Return a lab's folder, in `elsewhere` or the kit. Raises UsageError, with a similar name, for an unknown lab."""
    there = {folder.name: folder.absolute() for folder in folders(elsewhere)}
    if name in there:
        return there[name]
    from difflib import get_close_matches

    near = get_close_matches(name, there, 1, 0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UsageError(f"no lab is called '{name}'{hint} (labs: {', '.join(there)})")


def master(folder: Path, source: str) -> Path:
    """Return the path of a lab's master, the source with the solution: in its folder, else in the kit's root."""
    return folder / source if (folder / source).is_file() else ROOT / source


def beside(folder: Path, name: str, usual: Path) -> Path:
    """Return the path of a lab's file `name` (its write-up template, say). If the main lab lacks it, return `usual`."""
    return folder / name if (folder / name).is_file() or folder != LABS / main() else usual


def deciding(folder: Path) -> list[Path]:
    """List a lab's files that can change a verdict: reference and modules, without tests, `kernels` and `threats`."""
    modules = [
        path
        for path in folder.rglob("*.py")
        if path.stem != "kernels" and "test_" not in path.name and path.parent != folder / "threats"
    ]
    return sorted([*modules, *folder.glob("reference.*")])


def title(folder: Path) -> str:
    """Return the first line of the lab's docstring, without importing the lab."""
    import ast

    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def main() -> str:
    """Return the name of the main lab, used by assignment files that name no lab."""
    return str(importlib.import_module(PACKAGE).MAIN)


def module_name(folder: Path) -> str:
    """Return the module name under which a lab's package is imported.

    A lab of the kit is `labs.NAME`. For any other lab, a digest of its folder's path is appended. So one process can
    import labs of the same name from several folders (last year's copy, a colleague's) as different modules.
    """
    if folder.parent == LABS:
        return f"{PACKAGE}.{folder.name}"
    return f"{PACKAGE}.{folder.name}_{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"


def load(folder: Path) -> Lab:
    """Import the lab in a folder; again if the folder was made anew. Raises UsageError if that fails."""
    folder = folder.resolve()
    try:
        made_ns = (folder / "__init__.py").stat().st_mtime_ns
    except OSError:
        made_ns = 0
    return _load(folder, made_ns)


@functools.cache
def _load(folder: Path, made_ns: int) -> Lab:
    """Import the lab in a folder. `made_ns`: time of the last change to its `__init__.py`, a key of the cache."""
    name = module_name(folder)
    try:
        if folder.parent == LABS:
            return _offered(importlib.import_module(name))
        _forget(name)
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
        _forget(name)
        raise UsageError(f"the lab {folder} cannot be imported: {type(error).__name__}: {error}") from error


def _forget(name: str) -> None:
    """Remove a package and its modules from the imported ones."""
    for left in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
        del sys.modules[left]
    importlib.invalidate_caches()


def _require_relative_imports(folder: Path) -> None:
    """Raise UsageError if a module of a lab imports `labs.NAME...`: another lab may have the same name."""
    own = f"{PACKAGE}.{folder.name}"
    for path in sorted(folder.rglob("*.py")):
        try:
            named = list(imports.imports("", path, {}))
        except (SyntaxError, ValueError):
            continue  # `load` imports the module later, and reports the error.
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
        raise UsageError(
            f"{module.__file__}: define LAB, an instance of a subclass of grader.assignment.labs.Lab"
        )
    return found
