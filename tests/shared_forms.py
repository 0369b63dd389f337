"""Short forms that several tests share: the course, sandbox tiers, a Python of its own, and #include lines."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from building import HEAD
from conftest import ROOT

from grader.base.errors import UsageError
from grader.sandbox import Sandbox, choose

COURSE = ROOT / "configs" / "gpt149.yaml"


def tiers() -> list[Sandbox]:
    """Return the sandbox of each tier that works on this machine, the strongest first."""
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
