"""Short forms that several tests share: the course, sandbox tiers, a Python of its own, and #include lines."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
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
    *arguments: object, text: bool = True, timeout_s: float = 120, **environment: str
) -> subprocess.CompletedProcess[Any]:
    """Return an ended Python that ran in the kit's folder and had nothing to read."""
    command, environ = [sys.executable, *map(str, arguments)], {**os.environ, **environment}
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": text, "timeout": timeout_s}
    return subprocess.run(command, cwd=ROOT, env=environ, **options)


def includes(names: str) -> str:
    return HEAD + "".join(f"#include <{name}>\n" for name in names.split())
