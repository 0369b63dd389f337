"""Kernels for a GPU judged where there is none, by Triton's interpreter: what several test files ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT

from grader.assignment.loading import load
from grader.base.results import PartResult
from grader.build import devicebuild
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate
from grader.run.card import finding

LAB = ROOT / "labs" / "gpu"
ASSIGNMENT = load(LAB / "assignment.yaml")
#: `make test` installs Triton where it can.
interpreted = pytest.mark.skipif(not devicebuild.has_triton(), reason="needs triton (the extra gpu)")
#: Where a card is, it runs the kernels, and the interpreter is not asked.
cardless = pytest.mark.skipif(finding.is_here(), reason="this machine has a GPU")


def judged(folder: Path, text: str, parts: Sequence[str], cases: Sequence[str] = ()) -> dict[str, PartResult]:
    """Results alone of a file with this text, by part; on the cases of these names where there are some."""
    (folder / "kernels.py").write_text(text, encoding="utf-8")
    chosen = [
        replace(part, cases=tuple(case for case in part.cases if not cases or case.name in cases))
        for part in map(ASSIGNMENT.part, parts)
    ]
    options = Options(shape={}, timing=False, profile=False)
    return {part.id: part for part in evaluate(ASSIGNMENT, folder / "kernels.py", chosen, options).parts}


def words(part: PartResult) -> str:
    """What its diagnosis says."""
    assert part.diagnosis is not None
    return part.diagnosis.message
