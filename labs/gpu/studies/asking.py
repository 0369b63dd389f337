"""Starts the child process that measures the student's file on the GPU, for all studies of this lab."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from grader.core.errors import KitError, UsageError

#: Python's isolated mode (-I). Else `import profile` would find this folder's module, not the standard library's.
PYTHON = [sys.executable, "-I"]
CHILD = Path(__file__).resolve().parent / "inside.py"
TIMEOUT_S = 300.0


def measured(what: str, file: Path, **wanted: object) -> dict[str, Any]:
    """Return the child's reply to a request. `what` is a key of `inside.ANSWERS`, `wanted` its further arguments.

    Raises:
        KitError: this machine has no GPU, or the child does not reply.
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
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise KitError(f"the measuring process ended without a result: {last[:200]}") from error
    if "missing" in found:
        raise KitError(found["missing"])
    if "failed" in found:
        raise UsageError(f"{file.name}: {found['failed']}")
    return found


def about(found: dict[str, Any], *more: str) -> str:
    """Return one line on the conditions of a measurement: the GPU, the date, torch's version and `more`."""
    import datetime

    return " · ".join(
        [str(found["card"]), datetime.date.today().isoformat(), f"torch {found['torch']}", *more]
    )
