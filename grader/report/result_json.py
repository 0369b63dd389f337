"""`result.json`, schema_version 1: the whole of a result for other programs."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grader.errors import UsageError
from grader.results import SubmissionResult


def to_dict(result: SubmissionResult) -> dict[str, Any]:
    """The result as plain values, with the submission's identity as one object. Non-finite numbers become null."""
    fields = asdict(result)
    submission = {"id": fields.pop("submission_id"), "sha256": fields.pop("sha256")}
    return _finite({"schema_version": fields.pop("schema_version"), "submission": submission, **fields})


def write(result: SubmissionResult, path: Path) -> None:
    """Write it: a file whole or not at all; anything else (a pipe, /dev/stdout) is written to, never replaced.

    Raises UsageError when the place cannot be written to.
    """
    text = json.dumps(to_dict(result), indent=2, allow_nan=False) + "\n"
    place = path.resolve()
    partial = place.with_name(place.name + ".partial")
    try:
        if place.exists() and not place.is_file():
            path.write_text(text, encoding="utf-8")
            return
        partial.write_text(text, encoding="utf-8")
        partial.replace(place)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _finite(value: Any) -> Any:
    """JSON has no infinities, and Python's own spelling of them breaks other readers."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
