"""Labs: the folders that hold what one assignment alone knows, what the engine asks of them, and how it finds one.

A lab is a Python package `labs/NAME`. Its `__init__` answers before NumPy is imported: which oracles and distributions
an assignment file may name. The rest is imported when it is first asked for.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

from grader.base.errors import UsageError
from grader.base.places import ROOT

if TYPE_CHECKING:
    from grader.base.arrays import Array
    from grader.judge.oracle import Oracle
    from grader.judge.reference import Reference

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
        """What the inputs of timed calls are like."""
        return "random" if "random" in self.distributions else self.distributions[0]


class Lab(ABC):
    """What a lab's package offers as `LAB`."""

    inputs_version = 1
    """How inputs are made: with one version equal seeds give equal bits on any machine."""
    oracles: ClassVar[Mapping[str, OracleFacts]]
    options: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Options of the command line by the size that they set: the flag, and what the size is. A size that is missing
    here has a flag of its own name."""

    @abstractmethod
    def oracle(self, name: str) -> Oracle:
        """One of `oracles`."""

    @abstractmethod
    def make_inputs(self, distribution: str, shape: Mapping[str, int], seed: int) -> dict[str, Array]:
        """Contiguous inputs by name; the same three give the same bits. Raises UsageError for sizes that it lacks."""

    @abstractmethod
    def reference(self) -> Reference:
        """The kernels that a student's are measured against."""


def find(name: str, beside: Iterable[Path] = ()) -> Path:
    """The folder of the lab of that name: one that a file of `beside` lies in, else the kit's. Raises UsageError."""
    for file in beside:
        for folder in file.absolute().parents[:2]:
            if folder.name == name and (folder / "__init__.py").is_file():
                return folder
    if (LABS / name / "__init__.py").is_file():
        return LABS / name
    raise UsageError(f"no lab '{name}': {LABS} holds {', '.join(known()) or 'none'}")


def known() -> list[str]:
    """The kit's own labs, the main one first."""
    names = [path.parent.name for path in sorted(LABS.glob("*/__init__.py"))]
    return sorted(names, key=lambda name: name != main())


def main() -> str:
    """The lab of an assignment file that names none."""
    return str(importlib.import_module(PACKAGE).MAIN)


@functools.cache
def load(folder: Path) -> Lab:
    """The lab in a folder, imported as `labs.NAME` wherever it lies. Raises UsageError when that fails."""
    name = f"{PACKAGE}.{folder.name}"
    try:
        if folder.parent == LABS:
            return _offered(importlib.import_module(name))
        importlib.import_module(PACKAGE)
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except Exception as error:
        sys.modules.pop(name, None)
        raise UsageError(f"the lab {folder} cannot be imported: {type(error).__name__}: {error}") from error
    return _offered(module)


def _offered(module: ModuleType) -> Lab:
    found = getattr(module, "LAB", None)
    if not isinstance(found, Lab):
        raise UsageError(f"{module.__file__}: no LAB of grader.assignment.labs.Lab in it")
    return found
