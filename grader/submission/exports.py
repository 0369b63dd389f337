"""Whose a submission is, as the course sites tell it: Gradescope's metadata file, Canvas' file names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import yaml

from grader.archive.records import shown
from grader.errors import UsageError

GRADESCOPE_METADATA = "submission_metadata.yml"
MAX_METADATA_BYTES = 256 << 20
#: doejane_LATE_12345_67890_module-1.cpp: person, lateness, user, attachment, the name it was handed in under.
_CANVAS = re.compile(
    r"(?P<person>[^_]+(?:_[^_]+)*?)(?P<late>_late)?_(?P<user>\d+)_(?P<file_id>\d+)_(?P<file>.+)", re.I
)


@dataclass(frozen=True)
class Person:
    name: str
    email: str = ""
    sid: str = ""


@dataclass(frozen=True)
class CanvasName:
    person: str
    user: str
    late: bool
    file: str


@dataclass(frozen=True)
class GradescopeEntry:
    """One submission of an export: its folder, everyone of its group, when it was handed in (with a time zone)."""

    folder: str
    people: tuple[Person, ...]
    submitted_at: datetime | None


def canvas_name(name: str) -> CanvasName | None:
    """What Canvas' name of a downloaded file says, or None for a name of another making."""
    found = _CANVAS.fullmatch(name)
    if found is None:
        return None
    return CanvasName(found["person"], found["user"], found["late"] is not None, found["file"])


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML's safe types; Gradescope's Ruby objects become what they are made of."""


def _untagged(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> object:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return node.value


_Loader.add_multi_constructor("", _untagged)


def gradescope_entries(content: bytes, where: str) -> list[GradescopeEntry]:
    """The submissions that a `submission_metadata.yml` lists, in its order. Raises UsageError if it cannot be read."""
    advice = "download the export again, or move this file away to grade the folders under their own names"
    try:
        top = yaml.load(content, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{where}{line}: not valid YAML: {advice}") from error
    if not isinstance(top, dict):
        raise UsageError(f"{where}: lists no submissions: {advice}")
    return [
        GradescopeEntry(str(folder), _people(entry), _time(_get(entry, "created_at")))
        for folder, entry in top.items()
        if isinstance(entry, dict)
    ]


def _get(mapping: Mapping[Any, Any], key: str) -> Any:
    """A value under a Ruby symbol, which YAML shows as `:key`, or under the plain key."""
    return mapping.get(f":{key}", mapping.get(key))


def _people(entry: Mapping[Any, Any]) -> tuple[Person, ...]:
    listed = _get(entry, "submitters")
    return tuple(
        Person(*(_text(_get(item, key)) for key in ("name", "email", "sid")))
        for item in (listed if isinstance(listed, list) else [])
        if isinstance(item, dict)
    )


def _text(value: object) -> str:
    # A list may hold itself through YAML's aliases: only what is plain is made into text.
    return shown(str(value), 200) if isinstance(value, (str, int, float)) else ""


def _time(value: object) -> datetime | None:
    if isinstance(value, str):
        text = (
            re.sub(r"(\.\d{1,6})\d*", r"\1", value.strip()).replace(" UTC", "+00:00").replace("Z", "+00:00")
        )
        try:
            value = datetime.fromisoformat(text)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)
