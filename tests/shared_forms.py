"""Short forms that tests share: the main assignment, sandbox tiers, a Python of its own, #include lines."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from building import HEAD
from conftest import ROOT

from grader.assignment.loading import load
from grader.base.errors import UsageError
from grader.sandbox import Sandbox, choose

COURSE = ROOT / "configs" / "gpt149.yaml"
ASSIGNMENT = load(COURSE)


def tiers() -> list[Sandbox]:
    found = []
    for tier in "ABCD":
        with contextlib.suppress(UsageError):
            found.append(choose(tier, trust=tier == "D"))
    return found


def python(
    *arguments: object, folder: Path = ROOT, text: bool = True, timeout_s: float = 120, **environment: object
) -> subprocess.CompletedProcess[Any]:
    """Return an ended Python that ran in a folder, had nothing to read, and these variables besides ours."""
    given = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": text, "timeout": timeout_s}
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=folder, env=given, **options)


def includes(names: str) -> str:
    return HEAD + "".join(f"#include <{name}>\n" for name in names.split())
