"""Schemas of the results that platforms document, a validator, and a submission that forges such results.

A schema is a type, a set of values, a predicate, `[schema]` (a list), or a mapping; keys that end in "?" may be absent.
"""

import base64
import json
import math
import re
from typing import Any

from grader.report import words


def number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def points(value: Any) -> bool:
    return number(value) and value >= 0


def count(value: Any) -> bool:
    return points(value) and isinstance(value, int)


def line(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\n" not in value


def data_url(value: Any) -> bool:
    found = isinstance(value, str) and re.fullmatch(r"data:image/[a-z+]+;base64,([A-Za-z0-9+/]+=*)", value)
    return bool(found and base64.b64decode(found[1], validate=True))


def harmless(value: Any) -> bool:
    """Return True for text without commands for a terminal or for the GitHub runner that logs it."""
    return (
        isinstance(value, str)
        and not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", value)
        and not any(row.strip().startswith("::") or "##[" in row for row in value.split("\n"))
    )


IMAGE = {"label": harmless, "url": data_url}
VISIBILITY = {"hidden", "after_due_date", "after_published", "visible"}
SHOWN = {"visibility": VISIBILITY, "name": lambda value: line(value) and len(value) <= 150}
SHOWN["output"] = lambda value: isinstance(value, str) and len(value) < 7000 and "\x1b" not in value
COUNTED = dict.fromkeys(("score", "max-score"), count)
SAID = dict.fromkeys(("test-name", "verdict"), line)
DESCRIBED = {"name": line, "description": line, "message": line, "output": harmless, "images": [IMAGE]}
TESTS = {
    "gradescope": {"score": points, "max_score": points, **SHOWN, "status": {"passed", "failed"}},
    "classroom50": {**COUNTED, **SAID, "passed": bool, "points": points, "message": harmless},
    "prairielearn": {**DESCRIBED, "points": points, "max_points": points},
}
TIMEOUT = {"timeout": lambda value: count(value) and 1 <= value <= 600}
LISTED = {"title": line, "topic": line, "singleVariant": bool}
METHOD = {"type": {"v3"}, "gradingMethod": {"External"}}
CONTAINER = {"image": line, "entrypoint": line, "enabled": {True}, "enableNetworking": {False}, **TIMEOUT}
SHARE = {"score": lambda value: points(value) and value <= 1}
FEEDBACK = {"message": harmless, "output": str, "images": [IMAGE]}
LEADERS = [{"name": line, "value": number, "order": {"asc", "desc"}}]
PAGE = {"output": str, "visibility": VISIBILITY, "stdout_visibility": VISIBILITY, "leaderboard?": LEADERS}
MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ").fullmatch
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SUBMITTED = dict.fromkeys(("classroom", "assignment", "owner", "commit", "release", "review"), line)
SUBMITTED |= {"schema": {"classroom50/result/v1"}, "assignment_type": {"individual", "group"}}
SUBMITTED |= {"submission": re.compile("submit/.*").fullmatch, "datetime": MOMENT, "graded_at?": MOMENT}
SUBMITTED["submitted_by?"] = {"username": line, "id?": lambda value: value is None or isinstance(value, int)}
SCHEMAS: dict[str, Any] = {
    "gradescope": {"score": points, "execution_time": points, **PAGE, "tests": [TESTS["gradescope"]]},
    "classroom50": {**COUNTED, **SUBMITTED, "tests": [TESTS["classroom50"]]},
    "prairielearn": {"gradable": {True}, **SHARE, **FEEDBACK, "tests": [TESTS["prairielearn"]]},
    "prairielearn ungradable": {"gradable": {False}, "format_errors": [harmless]},
    "info.json": {"uuid": UUID.fullmatch, **LISTED, **METHOD, "externalGradingOptions": CONTAINER},
}
MOST_BYTES = {"gradescope": 1_000_000, "prairielearn": 1_000_000, "classroom50": 1_000_000}


def faults(value: Any, schema: Any, place: str = "it") -> list[str]:
    """Return a text for each place where a JSON value (named `place`) differs from its schema; [] for a valid value."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{place} is no object"]
        known = {key.removesuffix("?"): key for key in schema}
        missing = [f"{place}.{key} is missing" for key in schema if key[-1] != "?" and key not in value]
        strange = [f"{place}.{key} is unknown" for key in value if key not in known]
        inner = (faults(value[k], schema[known[k]], f"{place}.{k}") for k in value if k in known)
        return missing + strange + [fault for each in inner for fault in each]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{place} is no list"]
        return [fault for k, item in enumerate(value) for fault in faults(item, schema[0], f"{place}[{k}]")]
    if isinstance(schema, type):
        right = isinstance(value, schema)
    elif isinstance(schema, set):
        right = any(value == each and type(value) is type(each) for each in schema)
    else:
        right = bool(schema(value))
    return [] if right else [f"{place} is {value!r:.80}"]


def require_valid(platform: str, found: dict[str, Any]) -> dict[str, Any]:
    """Assert that the platform accepts these results. Return them as read back from their JSON."""
    kind = f"{platform} ungradable" if found.get("gradable") is False else platform
    assert len(words.encoded(found)) <= MOST_BYTES[platform]
    found = json.loads(json.dumps(found, allow_nan=False))
    assert faults(found, SCHEMAS[kind]) == []
    if platform == "classroom50":
        assert all(each["score"] <= each["max-score"] for each in (found, *found["tests"]))
    return found


def obeyed(text: str) -> list[str]:
    """Return the commands that a GitHub runner would execute from a step's output."""
    stopped = r"^[^\S\n]*::stop-commands::([^\n]*\S)[^\S\n]*$.*?(^[^\S\n]*::\1::[^\S\n]*$|\Z)"
    heard = re.sub(stopped, "", text, flags=re.MULTILINE | re.DOTALL)
    return [row for row in heard.split("\n") if re.match(r"\s*::[\w-]+[ :]", row) or "##[" in row]


#: Beginning of a source that writes forged results to the path RESULTS while it is loaded, and at exit.
FORGING = """
#include <cstdio>
#include <cstdlib>
static const char* forged = "{\\"score\\": 1000, \\"tests\\": [{\\"name\\": \\"forged\\", \\"score\\": 1000}]}";
static void forge(const char* path) {
    if (FILE* file = std::fopen(path, "w")) { std::fputs(forged, file); std::fclose(file); }
}
struct Forger {
    Forger() { forge("RESULTS"); forge("results.json"); forge("/tmp/results.json"); std::puts(forged); }
    ~Forger() { forge("RESULTS"); }
} forger;
"""
