"""Hand-ins of several Python files: packages, helpers and adapters, judged as one in Triton's interpreter."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT
from without_card import cardless, interpreted, words

from grader import submission
from grader.assignment.loading import load
from grader.assignment.mutations import Mutation, edited
from grader.base import filebundle, pythontree
from grader.base.errors import UsageError
from grader.base.results import PartResult
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate

ASSIGNMENT = load(ROOT / "labs" / "cs336" / "assignment.yaml")
SOURCE = ASSIGNMENT.source
SOLUTION = edited((ROOT / "labs" / "cs336" / SOURCE).read_text(encoding="utf-8"), Mutation("", "", ()))
HEAD, _, _REST = SOLUTION.partition("ROWS, KEYS = 64, 64\n")
_TILES, _, _CLASSES = _REST.partition("class FlashAttentionPyTorch")
TILES, CLASSES = f"{HEAD}ROWS, KEYS = 64, 64\n{_TILES}", f"class FlashAttentionPyTorch{_CLASSES}"
NAMES = "KEYS, NEVER, ROWS, _backward, _forward"
FORWARD, BACKWARD = ASSIGNMENT.part("forward_triton"), ASSIGNMENT.part("backward_triton")


def adapters(module: str, suffix: str = "") -> str:
    """The course's adapters, as students fill them in."""
    return "from __future__ import annotations\nfrom typing import Type\nimport torch\n\n" + "\n".join(
        f"def get_flashattention_autograd_function_{language}() -> Type:\n"
        f"    from {module} import FlashAttention{name}{suffix} as Chosen\n    return Chosen\n"
        for language, name in (("pytorch", "PyTorch"), ("triton", "Triton"))
    )


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def judged(source: Path, part=FORWARD, name: str = "random", **options: object) -> PartResult:  # type: ignore[no-untyped-def]
    chosen = replace(part, cases=tuple(case for case in part.cases if case.name == name))
    how = Options(shape={}, timing=False, profile=False, **options)  # type: ignore[arg-type]
    return evaluate(ASSIGNMENT, source, (chosen,), how).parts[0]


HELPER = {SOURCE: f"{HEAD}from tiles import {NAMES}\n\n\n{CLASSES}", "tiles.py": TILES}
PACKAGE = {
    "cs336_systems/__init__.py": "",
    "cs336_systems/flash.py": f"{HEAD}from .ops.tiles import *\nfrom .ops import tiles as own\n"
    f"{CLASSES.replace('*_backward(', '*own._backward(')}",
    "cs336_systems/ops/__init__.py": "from cs336_basics.numbers import NEVER\n",
    "cs336_systems/ops/tiles.py": f"{TILES}\n__all__ = ['KEYS', 'NEVER', 'ROWS', '_forward']\n",
    "cs336-basics/cs336_basics/numbers.py": "NEVER = float('-inf')\n",
    "tests/adapters.py": adapters("cs336_systems.flash"),
}
