"""What each platform takes, written down from its documentation as data, and a validator for it.

A schema is a type, a set of the values that there may be, a predicate, `[schema]` for a list, or a mapping of keys to
schemas, where a key that ends in "?" may be absent and no other key is allowed.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from typing import Any


def number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def points(value: Any) -> bool:
    return number(value) and value >= 0


def share(value: Any) -> bool:
    return number(value) and 0 <= value <= 1


def line(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\n" not in value


def line_number(value: Any) -> bool:
    return isinstance(value, int) and value >= 1


def data_url(value: Any) -> bool:
    found = (
        re.fullmatch(r"data:image/[a-z+]+;base64,([A-Za-z0-9+/]+=*)", value)
        if isinstance(value, str)
        else None
    )
    return found is not None and bool(base64.b64decode(found[1], validate=True))


def harmless(value: Any) -> bool:
    """Text in which nothing is obeyed by a terminal, or by a runner of GitHub's that logs it."""
    return (
        isinstance(value, str)
        and not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", value)
        and not any(row.strip().startswith("::") or "##[" in row for row in value.split("\n"))
    )


IMAGE = {"label": harmless, "url": data_url}
VISIBILITY = {"hidden", "after_due_date", "after_published", "visible"}

SCHEMAS: dict[str, Any] = {
    "gradescope": {
        "score": points,
        "execution_time": points,
        "output": str,
        "visibility": VISIBILITY,
        "stdout_visibility": VISIBILITY,
        "leaderboard?": [{"name": line, "value": number, "order": {"asc", "desc"}}],
        "tests": [
            {
                "name": line,
                "score": points,
                "max_score": points,
                "status": {"passed", "failed"},
                "output": str,
                "visibility": VISIBILITY,
            }
        ],
    },
    "github": {
        "version": {1},
        "status": {"pass", "fail", "error"},
        "max_score": points,
        "tests": [
            {
                "name": line,
                "status": {"pass", "fail", "error"},
                "score": points,
                "max_score": points,
                "message": harmless,
                "test_code": line,
                "filename": line,
                "line_no": line_number,
                "duration": points,
            }
        ],
    },
    "prairielearn": {
        "gradable": {True},
        "score": share,
        "message": harmless,
        "output": str,
        "images": [IMAGE],
        "tests": [
            {
                "name": line,
                "description": line,
                "points": points,
                "max_points": points,
                "message": line,
                "output": harmless,
                "images": [IMAGE],
            }
        ],
    },
    "prairielearn ungradable": {"gradable": {False}, "format_errors": [harmless]},
    "info.json": {
        "uuid": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch,
        "title": line,
        "topic": line,
        "type": {"v3"},
        "gradingMethod": {"External"},
        "singleVariant": bool,
        "externalGradingOptions": {
            "enabled": {True},
            "image": line,
            "entrypoint": line,
            "timeout": lambda value: isinstance(value, int) and 1 <= value <= 600,
            "enableNetworking": {False},
        },
    },
}
MOST_BYTES = {"gradescope": 1_000_000, "prairielearn": 1_000_000, "github": 98_000}


def faults(value: Any, schema: Any, place: str = "it") -> list[str]:
    """Where a value of JSON is not as its schema has it; [] for a valid one."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{place} is no object"]
        known = {key.removesuffix("?"): key for key in schema}
        missing = [
            f"{place}.{key} is missing" for name, key in known.items() if key == name and name not in value
        ]
        strange = [f"{place}.{key} is unknown" for key in value if key not in known]
        inner = [
            f
            for key in value
            if key in known
            for f in faults(value[key], schema[known[key]], f"{place}.{key}")
        ]
        return missing + strange + inner
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{place} is no list"]
        return [fault for k, item in enumerate(value) for fault in faults(item, schema[0], f"{place}[{k}]")]
    if isinstance(schema, type):
        right = isinstance(value, schema)
    elif isinstance(schema, (set, frozenset)):
        right = any(value == each and type(value) is type(each) for each in schema)
    else:
        check: Callable[[Any], Any] = schema
        right = bool(check(value))
    return [] if right else [f"{place} is {value!r:.80}"]
