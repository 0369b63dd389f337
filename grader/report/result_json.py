"""`result.json`, schema_version 1: the whole result, for other programs and for later reports.

The file has at most LARGEST_BYTES. If it would be larger, all texts are cut to the longest limit in TEXT_LIMITS with
which it fits. A cut text ends in "... N more characters". Numbers are never left out, because a submission cannot
increase their count.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from grader.core import plainfile, typedjson
from grader.core.errors import UsageError, explained
from grader.core.results import Score, SubmissionResult

LARGEST_BYTES = 1 << 20
"""Maximum size of a file that is written."""
MOST_BYTES = 8 << 20
"""Maximum size of a file that is read. Earlier versions of the kit wrote larger files."""
#: Maximum lengths of each text in characters, tried in this order. A usual result's longest text is a kernel's output,
#: of at most 64 KiB.
TEXT_LIMITS = (1 << 16, 1 << 14, 1 << 12, 1 << 10, 256, 80)


def to_dict(result: SubmissionResult, score: Score) -> dict[str, Any]:
    """Return a result as JSON values, with texts cut so that a file of them has at most LARGEST_BYTES.

    The submission's id and digest become one object, `submission`. Parts get their points from `score`, without points
    given by people. NaN and infinities become None.
    """
    return dumped(result, score)[0]


def dumped(result: SubmissionResult, score: Score) -> tuple[dict[str, Any], str]:
    """Return (values of `to_dict`, their JSON text)."""
    values = _plain(result)
    earned = {line.id: _plain(line.points) for line in score.lines}
    values["parts"] = [_with_points(part, earned.get(part["id"], 0.0)) for part in values["parts"]]
    values = _with_points(values, _plain(score.earned))
    submission = {"id": values.pop("submission_id"), "sha256": values.pop("sha256")}
    whole = {"schema_version": values.pop("schema_version"), "submission": submission, **values}
    text = _text(whole)
    for limit in TEXT_LIMITS:
        if len(text) <= LARGEST_BYTES:
            break
        whole = _cut(whole, limit)
        text = _text(whole)
    return whole, text


def _with_points(values: Mapping[str, Any], points: float) -> dict[str, Any]:
    """Return the values with `points` inserted before `max_points`."""
    at = list(values).index("max_points")
    pairs = list(values.items())
    return dict([*pairs[:at], ("points", points), *pairs[at:]])


def _text(values: Mapping[str, Any]) -> str:
    # `json` writes ASCII, so one character is one byte.
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _cut(value: Any, limit: int) -> Any:
    """Return the value with all its texts cut to `limit` characters. A cut text says how many were removed."""
    if isinstance(value, dict):
        return {key: _cut(item, limit) for key, item in value.items()}
    if isinstance(value, list):
        return [_cut(item, limit) for item in value]
    if not isinstance(value, str) or len(value) <= limit:
        return value
    # A text that was cut before ends in "... N more characters": add the characters removed now to N.
    cut = _CUT.search(value, max(0, len(value) - 40))
    kept, more = (value[: cut.start()], int(cut[1])) if cut else (value, 0)
    short = kept[: limit - 40]
    return f"{short}... {more + len(kept) - len(short)} more characters"


_CUT = re.compile(r"\.\.\. (\d{1,12}) more characters\Z")


def write(result: SubmissionResult, score: Score, path: Path) -> None:
    """Write the result to a file, atomically, or to a pipe or device (/dev/stdout). Raises UsageError if that fails."""
    text = dumped(result, score)[1]
    place = path.resolve()
    partial = place.with_name(place.name + ".partial")
    with explained(f"cannot write {path}"):
        if place.exists() and not place.is_file():
            path.write_text(text, encoding="utf-8")
            return
        partial.write_text(text, encoding="utf-8")
        partial.replace(place)


def _plain(value: Any) -> Any:
    """Return records and their content as JSON values. NaN and infinities become None, because JSON lacks them."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if is_dataclass(kind):
        return {name: _plain(getattr(value, name)) for name in _names(kind)}
    return value


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


# ---- reading back


def read(path: Path, *, inside: int | None = None) -> SubmissionResult:
    """Return the result in a file that `write` wrote. `inside` is the descriptor of the file's folder, if given.

    A number that was not finite is returned as NaN or None. Keys of later kits are ignored. Points are ignored, because
    they are computed anew from the current rubric. Raises UsageError for a link, and for a file that cannot be read,
    is too large, is nested too deeply or is not a result. The message names the file and the place in it.
    """
    with explained(f"cannot read {path}"):
        data = plainfile.read(path if inside is None else path.name, MOST_BYTES, inside=inside)
    try:
        values = typedjson.parse(data)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}); grade this submission again") from error
    try:
        return from_dict(values)
    except ValueError as error:
        raise UsageError(
            f"{path} is not a result of this kit: {error}; grade this submission again"
        ) from error


def from_dict(values: Any) -> SubmissionResult:
    """Return the result that `to_dict` converted to `values`. Raises ValueError, which names the first wrong value."""
    if not isinstance(values, Mapping):
        raise ValueError("it should be an object")
    if values.get("schema_version") != 1:
        raise ValueError(f"schema_version should be 1, not {str(values.get('schema_version'))[:40]!r}")
    submission = values.get("submission")
    if not isinstance(submission, Mapping):
        raise ValueError("submission should be an object")
    flat = {**values, "submission_id": submission.get("id"), "sha256": submission.get("sha256")}
    return typedjson.record(SubmissionResult, flat)
