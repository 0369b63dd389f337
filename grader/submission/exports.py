"""Students' names, from the exports of course sites: Gradescope's metadata file, file names of Canvas and Moodle."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import yaml

from grader.core.errors import UsageError
from grader.submission.archive.records import shown

GRADESCOPE_METADATA = "submission_metadata.yml"
MAX_METADATA_BYTES = 256 << 20
#: Levels of nested lists and mappings. Those down to KEPT_DEPTH are kept (document, submission, submitters, submitter).
#: Deeper levels, for example an autograder's results, are parsed and dropped. A file with more than MAX_DEPTH levels is
#: refused.
KEPT_DEPTH, MAX_DEPTH = 4, 64
MAX_TEXT_CHARS = 200
MAX_DIRECTIVES = 16
_DIRECTIVE = re.compile(r"(?:^|[\r\n\x85\u2028\u2029])%")
#: Limit on the number of students who hand in one submission together.
MAX_GROUP = 64
#: doejane_LATE_12345_67890_module-1.cpp: person, lateness, user, attachment, name of the file that was handed in.
CANVAS = re.compile(
    r"(?P<person>[^_]+(?:_[^_]+)*?)(?P<late>_late)?_(?P<user>\d+)_(?P<file_id>\d+)_(?P<file>.+)", re.I
)
#: Ada Lovelace_123_assignsubmission_file_: person, and the participant's number in the worksheet.
MOODLE = re.compile(r"(?P<person>.+)_(?P<participant>\d{1,20})_assignsubmission_file_?")


@dataclass(frozen=True)
class Person:
    name: str
    email: str = ""
    sid: str = ""


@dataclass(frozen=True)
class GradescopeEntry:
    """One submission of an export: the name of its folder, the students who handed it in, and the time in UTC."""

    folder: str
    people: tuple[Person, ...]
    submitted_at: datetime | None


#: Loader for `yaml.parse`, which yields events and builds no objects. CSafeLoader uses libyaml and is faster.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def gradescope_entries(content: bytes, where: str) -> list[GradescopeEntry]:
    """Return the submissions that a `submission_metadata.yml` lists, in the file's order.

    `content` are the file's bytes, `where` is its name in messages. Each value is read as plain text: YAML's tags,
    merge keys and types have no effect. Raises UsageError for an invalid file.
    """
    advice = "download the export again, or delete this file to grade the folders under their own names"
    try:
        top = _tree(content)
    except _Strange as error:
        raise UsageError(f"{where}:{error.line}: {error}: {advice}") from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{where}{line}: not valid YAML: {advice}") from error
    listed = top if isinstance(top, dict) else {}
    entries = [
        GradescopeEntry(folder, _people(entry), _time(_get(entry, "created_at")))
        for folder, entry in listed.items()
        if isinstance(entry, dict)
    ]
    if not entries:
        raise UsageError(f"{where}: lists no submissions: {advice}")
    return entries


class _Strange(Exception):
    """Raised for YAML that no Gradescope export contains. `line` is its line number, from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass
class _Open:
    """A list or mapping (`is_mapping`) of which the parser has not read the end yet.

    `kept` is the content so far, None if the content is not needed. In a mapping, `at_key` is True if the next item is
    a key, and `key` is the last key.
    """

    kept: dict[str, object] | list[object] | None
    is_mapping: bool
    key: str | None = None
    at_key: bool = True

    def add(self, value: object, key: str | None) -> bool:
        """Add the next item. In a mapping, keys and values alternate. Return True if the item was a key.

        `key` is the item's text if the item can be a key: None for a list, a mapping or a long text.
        """
        if not self.is_mapping:
            if isinstance(self.kept, list):
                self.kept.append(value)
            return False
        self.at_key = not self.at_key
        if not self.at_key:
            self.key = key
            return True
        if isinstance(self.kept, dict) and self.key is not None:
            self.kept[self.key] = value
        return False


def _tree(content: bytes) -> object:
    """Parse a metadata file into texts, lists and mappings, without the parts that `gradescope_entries` never reads.

    An alias becomes a reference to its anchor's object, so that many aliases do not take much memory. Raises
    yaml.YAMLError, ValueError or _Strange.
    """
    stack = [_Open([], is_mapping=False)]
    anchors: dict[str, object] = {}
    documents = 0
    text = content.decode("utf-8-sig")
    if len(_DIRECTIVE.findall(text)) > MAX_DIRECTIVES:
        # PyYAML parses directives in quadratic time.
        raise _Strange(f"more than {MAX_DIRECTIVES} directives", 1)
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _Strange("more than one document", event.start_mark.line + 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
        elif isinstance(event, yaml.NodeEvent):
            _take(event, stack, anchors)
    return stack[0].kept[0] if stack[0].kept else None  # type: ignore[index]


def _take(event: yaml.NodeEvent, stack: list[_Open], anchors: dict[str, object]) -> None:
    """Add the item of `event` to the innermost open list or mapping, the last in `stack`.

    A new list or mapping is then the innermost one: it is appended to `stack`.
    """
    outer = stack[-1]
    if isinstance(event, yaml.AliasEvent):
        outer.add(anchors.get(event.anchor), None)
        return
    if isinstance(event, yaml.ScalarEvent):
        if outer.kept is None:
            outer.add(None, None)
            return
        value: object = shown(event.value, MAX_TEXT_CHARS)
        outer.add(value, event.value if len(event.value) <= MAX_TEXT_CHARS else None)
    else:
        if len(stack) > MAX_DEPTH:
            raise _Strange(f"lists or mappings more than {MAX_DEPTH} deep", event.start_mark.line + 1)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        value = ({} if is_mapping else []) if _is_wanted(stack) else None
        # A list or mapping may itself be a key. As it has no text, the value under this key is dropped.
        outer.add(value, None)
        stack.append(_Open(value, is_mapping))  # type: ignore[arg-type]
    if event.anchor and value is not None:
        anchors[event.anchor] = value


def _is_wanted(stack: list[_Open]) -> bool:
    """Return True if the content of the list or mapping that begins now is needed.

    The needed ones are the document, each submission, each list `submitters`, and each submitter.
    """
    outer = stack[-1]
    if outer.kept is None or len(stack) > KEPT_DEPTH or (outer.is_mapping and outer.at_key):
        return False
    return len(stack) != 3 or outer.key in ("submitters", ":submitters")


def _get(mapping: Mapping[str, object], key: str) -> object:
    """Return the value of `:key` (a Ruby symbol, as Gradescope writes keys), else of the plain `key`, else None."""
    return mapping.get(f":{key}", mapping.get(key))


def _people(entry: Mapping[str, object]) -> tuple[Person, ...]:
    listed = _get(entry, "submitters")
    return tuple(
        Person(*(_text(_get(item, key)) for key in ("name", "email", "sid")))
        for item in (listed[:MAX_GROUP] if isinstance(listed, list) else [])
        if isinstance(item, dict)
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _time(value: object) -> datetime | None:
    at = moment(value) if isinstance(value, str) else None
    if at is None:
        return None
    return at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc)


#: Accepted years of a submission. For years near 1 or 9999, arithmetic with dates would raise errors.
FIRST_YEAR, LAST_YEAR = 1990, 2200
LONGEST_CHARS = 80
_MOMENT = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})(?:[Tt]|[ \t]+)"
    r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]*))?)?"
    r"(?:[ \t]*(?P<zone>Z|z|UTC|(?P<sign>[-+])(?P<zone_h>[0-9]{1,2})(?::?(?P<zone_min>[0-9]{2}))?))?"
)


def moment(text: str) -> datetime | None:
    """Parse a time such as 2026-11-14 22:10:00 -0800; None for other texts. It has a zone only if the text has one."""
    found = _MOMENT.fullmatch(text.strip()) if len(text) <= LONGEST_CHARS else None
    if found is None or not FIRST_YEAR <= int(found["year"]) <= LAST_YEAR:
        return None
    whole = [int(found[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second")]
    microseconds = int((found["fraction"] or "").ljust(6, "0")[:6])
    try:
        return datetime(*whole, microseconds, tzinfo=_zone(found))  # type: ignore[misc]
    except ValueError:
        return None


def _zone(found: re.Match[str]) -> timezone | None:
    """Return the zone of a match of _MOMENT, or None without one. Raises ValueError for an offset of a day or more."""
    if not found["zone"]:
        return None
    if not found["sign"]:
        return timezone.utc
    offset = timedelta(hours=int(found["zone_h"]), minutes=int(found["zone_min"] or 0))
    return timezone(-offset if found["sign"] == "-" else offset)
