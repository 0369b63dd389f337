"""Helpers of tests that run GPU kernels in Triton's interpreter."""

import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from conftest import ROOT, results_alone, write
from packaging.requirements import Requirement

from grader.assignment import loading
from grader.assignment.records import Assignment
from grader.backends.gpu.card import finding
from grader.core.results import PartResult

T = TypeVar("T")
LAB = ROOT / "labs" / "gpu"
ASSIGNMENT = loading.load(LAB / "assignment.yaml")
#: The version of Triton in the optional dependencies `gpu`, which `make test` installs if possible.
TRITON = re.findall(r'^gpu = \["(triton[^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]


def unfit_triton(version: str | None) -> str:
    """Return why Triton's interpreter cannot be used with this version (None: not installed), or "" if it can."""
    if version is not None and Requirement(TRITON).specifier.contains(version, prereleases=True):
        return ""
    found = f"found {version}" if version else "which is not installed"
    return f"needs {TRITON}, {found}: pip install '{TRITON}'"


_UNFIT = unfit_triton(next((each.version for each in importlib.metadata.distributions(name="triton")), None))
interpreted = pytest.mark.skipif(bool(_UNFIT), reason=_UNFIT)
#: Skips a test on a machine with a GPU, where kernels run on the GPU and not in the interpreter.
cardless = pytest.mark.skipif(finding.is_here(), reason="this machine has a GPU")


def by_interpreter(test: T) -> T:
    return interpreted(cardless(test))


def judged(
    folder: Path, text: str, parts: Sequence[str], cases: Sequence[str] = (), of: Assignment = ASSIGNMENT
) -> dict[str, PartResult]:
    """Return the results of a file with this text, by part. `cases`: names of the cases to call (by default all)."""
    chosen = [
        replace(part, cases=tuple(case for case in part.cases if not cases or case.name in cases))
        for part in map(of.part, parts)
    ]
    return {part.id: part for part in results_alone(of, write(folder, text, of.source), chosen).parts}


def words(part: PartResult) -> str:
    assert part.diagnosis is not None
    return part.diagnosis.message
