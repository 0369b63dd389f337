"""Shared part of this lab's studies: one request to a child that loads the student's file and measures on the GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from grader.core.errors import KitError, UsageError

#: Isolated: else the child's folder comes before Python's library, and `profile` is a module of both.
PYTHON = [sys.executable, "-I"]
CHILD = Path(__file__).resolve().parent / "inside.py"
TIMEOUT_S = 300.0


def measured(what: str, file: Path, **wanted: object) -> dict[str, Any]:
    """Return the child's answer.

    Raises:
        KitError: one line; this machine has no GPU or the child does not answer.
        UsageError: the file lacks the requested function, or the function fails.
    """
    request = json.dumps({"what": what, "file": str(file.resolve()), **wanted})
    try:
        ran = subprocess.run(
            [*PYTHON, str(CHILD)], input=request, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        found: dict[str, Any] = json.loads(ran.stdout)
    except subprocess.TimeoutExpired as error:
        raise KitError(f"the measuring process gave no answer within {TIMEOUT_S:.0f} s") from error
    except json.JSONDecodeError as error:
        last = (ran.stderr.strip().splitlines() or ["no word"])[-1]
        raise KitError(f"the measuring process ended: {last[:200]}") from error
    if "missing" in found:
        raise KitError(found["missing"])
    if "failed" in found:
        raise UsageError(f"{file.name}: {found['failed']}")
    return found


def about(found: dict[str, Any], *more: str) -> str:
    """Describe the conditions of a measurement: the GPU, the date, torch's version and `more`."""
    import datetime

    return " · ".join(
        [str(found["card"]), datetime.date.today().isoformat(), f"torch {found['torch']}", *more]
    )
