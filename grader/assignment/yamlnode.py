"""YAML nodes with their positions: a message about a malformed value names its file and line.

Only YAML's nodes are built, and no Python object is constructed from them. So tags run no code, and aliases of aliases
(the "billion laughs" attack) cost nothing. Some of YAML's features are refused with a message: repeated keys, merge
keys, numbers in base 8, 16 or 60, `no` in place of text, not-a-number.
"""

from __future__ import annotations

import difflib
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import yaml

from grader.core.errors import UsageError
from grader.core.quantities import size_text

MOST_BYTES = 1 << 20
MOST_INDENTED, MOST_OPENED = 200, 400
"""Limits for libyaml, which parses recursively: columns of indentation, and signs in the whole file that may begin a
list or mapping. Beyond them PyYAML's slower parser is used."""
_TAG = "tag:yaml.org,2002:"
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,18})")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,18})?(\.\d{0,18})?([eE][-+]?\d{1,2})?")


@dataclass(frozen=True)
class Keys:
    """The keys of one kind of mapping. `what` is the mapping's name in messages, such as "a part"."""

    what: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return self.required + self.optional


class Node:
    """A YAML value that knows its file and line, so that an error can name them.

    Every reading method takes the value's name for messages, and raises UsageError with file and line.
    """

    def __init__(self, node: yaml.Node) -> None:
        self.node = node

    def fail(self, message: str) -> UsageError:
        mark = self.node.start_mark
        return UsageError(f"{mark.name}:{mark.line + 1}: {message}")

    def shown(self) -> str:
        """Return the value as a message quotes it: short, and on one line."""
        if isinstance(self.node, yaml.SequenceNode):
            return "a list"
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        text = self.node.value
        if text == "" and self.tag == "null":
            return "nothing"
        shown = repr(text if len(text) <= 40 else text[:37] + "...")
        return shown if self.tag == "str" else shown[1:-1]

    @property
    def tag(self) -> str:
        return self.node.tag.removeprefix(_TAG)

    # ---- mappings and lists

    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    def entries(self, what: str) -> dict[str, tuple[Node, Node]]:
        """Return the key and value nodes by the key's text, in order. Raises UsageError for repeated keys."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.fail(f"{what} should be a mapping of keys to values, not {self.shown()}")
        found: dict[str, tuple[Node, Node]] = {}
        for key_node, value_node in self.node.value:
            at_key = Node(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                raise at_key.fail(f"a key of {what} should be a word, not {at_key.shown()}")
            key = key_node.value
            if key == "<<":
                raise at_key.fail(f"merge keys (<<) are not read in {what}: write the merged keys out")
            if key in found:
                raise at_key.fail(f"the key {at_key.shown()} occurs twice in {what}")
            found[key] = (at_key, Node(value_node))
        return found

    def mapping(self, keys: Keys, also: Sequence[str] = ()) -> dict[str, Node]:
        """Return the values by key. `also` are further allowed keys. Raises UsageError for unknown and missing keys."""
        items: dict[str, Node] = {}
        known = (*keys.all, *also)
        for key, (at_key, value) in self.entries(keys.what).items():
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}"
                raise at_key.fail(f"unknown key '{at_key.shown().strip(chr(39))}' in {keys.what}{hint}")
            items[key] = value
        for key in keys.required:
            if key not in items:
                raise self.fail(f"{keys.what} lacks the key '{key}'")
        return items

    def items(self, what: str, at_most: int = 1000) -> list[Node]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.fail(f"{what} should be a list, not {self.shown()}")
        if len(self.node.value) > at_most:
            raise self.fail(f"{what} has {len(self.node.value)} entries; at most {at_most} are read")
        return [Node(node) for node in self.node.value]

    # ---- single values

    def _raw(self, what: str, wanted: str, *tags: str) -> str:
        if not isinstance(self.node, yaml.ScalarNode) or self.tag not in tags:
            hint = ""
            if isinstance(self.node, yaml.ScalarNode) and tags == ("str",) and self.node.value:
                hint = " (put it in quotes)"
            raise self.fail(f"{what} should be {wanted}, not {self.shown()}{hint}")
        return self.node.value

    def text(self, what: str, pattern: str = r".+", wanted: str = "one line of text") -> str:
        """Return the value as text. The pattern must match the whole text."""
        value = self._raw(what, wanted, "str")
        if not re.fullmatch(pattern, value) or len(value) > 4000 or not value.strip():
            raise self.fail(f"{what} should be {wanted}, not {self.shown()}")
        if any(ord(character) < 32 and character != "\n" for character in value):
            raise self.fail(f"{what} should hold no control characters")
        return value

    def number(self, what: str, low: float = 0.0, high: float = 1e6) -> float:
        wanted = f"a number of at least {low:g}"
        value = self._raw(what, wanted, "int", "float")
        if not _NUMBER.fullmatch(value) or not any(character.isdigit() for character in value):
            raise self.fail(f"{what} should be {wanted} in decimal digits, not {self.shown()}")
        number = float(value)
        if not math.isfinite(number) or number < low:
            raise self.fail(f"{what} should be {wanted}, not {self.shown()}")
        if number > high:
            raise self.fail(f"{what} should be at most {high:.10g}, not {self.shown()}")
        return number

    def whole(self, what: str, low: int = 0, high: int = (1 << 31) - 1) -> int:
        wanted = f"a whole number of at least {low}"
        value = self._raw(what, wanted, "int")
        if value.lstrip("-").isdigit() and len(value) > 19:
            raise self.fail(f"{what} should be at most {high}, not {self.shown()}")
        if not _WHOLE.fullmatch(value):
            raise self.fail(f"{what} should be {wanted} in decimal digits, not {self.shown()}")
        if int(value) < low:
            raise self.fail(f"{what} should be {wanted}, not {self.shown()}")
        if int(value) > high:
            raise self.fail(f"{what} should be at most {high}, not {self.shown()}")
        return int(value)

    def truth(self, what: str) -> bool:
        value = self._raw(what, "true or false", "bool").lower()
        if value not in ("true", "false"):
            raise self.fail(f"{what} should be true or false, not {self.shown()}")
        return value == "true"

    def choice(self, what: str, choices: Sequence[str]) -> str:
        wanted = f"one of {', '.join(choices)}"
        value = self._raw(what, wanted, "str")
        if value not in choices:
            raise self.fail(f"{what} should be {wanted}, not {self.shown()}")
        return value

    def expression(self, what: str) -> str:
        """Return a name, a number or an arithmetic expression as text, not evaluated."""
        return self._raw(what, "a name, a whole number or an expression", "str", "int")

    def moment(self, what: str) -> datetime:
        """Return a date with time and zone, such as 2026-11-14T23:59:00-08:00."""
        wanted = "a date with time and zone such as 2026-11-14T23:59:00-08:00"
        value = self._raw(what, wanted, "str", "timestamp")
        try:
            moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", value))
        except ValueError as error:
            raise self.fail(f"{what} should be {wanted}, not {self.shown()}") from error
        if moment.tzinfo is None:
            raise self.fail(f"{what} needs a time and a zone: write {wanted.partition('such as ')[2]}")
        return moment

    def plain(self, what: str) -> str | int | float | bool | None:
        """Return a single value: text, a number, true, false or null (None)."""
        match self.tag if isinstance(self.node, yaml.ScalarNode) else "":
            case "str":
                return self.node.value
            case "int":
                return self.whole(what, -(1 << 31))
            case "float":
                return self.number(what, -1e30, 1e30)
            case "bool":
                return self.truth(what)
            case "null":
                return None
        raise self.fail(f"{what} should be a single plain value, not {self.shown()}")


def compose(data: bytes, path: Path) -> Node:
    """Parse a file's bytes as one YAML document. Raises UsageError, with the line if the YAML is malformed."""
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path}: larger than {size_text(MOST_BYTES)}: this is not an assignment file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read the assignment {path}: not UTF-8 text") from error
    if (root := _composed_fast(text, path)) is not None:
        return Node(root)
    try:
        loader = yaml.SafeLoader(text)
        loader.name = str(path)  # the file's name in the positions of all nodes
        root = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(
            f"{path}:{line}: the character {error.character!r} is not allowed in YAML"
        ) from error
    except yaml.MarkedYAMLError as error:
        raise UsageError(_broken(error, path, text)) from error
    except RecursionError as error:
        raise UsageError(f"{path}: lists or mappings are nested too deeply") from error
    if root is None:
        raise UsageError(f"{path}: the file is empty")
    return Node(root)


class _Named(io.StringIO):
    """A text stream with a `name`, which libyaml reports as the file in the positions of nodes."""

    name = ""


def _composed_fast(text: str, path: Path) -> yaml.Node | None:
    """Parse a text with libyaml. Return None if libyaml is missing, or the text is nested too deeply or malformed.

    For None the caller uses PyYAML's parser in Python, which reports errors.
    """
    depth = text.count("[") + text.count("{") + text.count("- ") + text.count("? ")
    deepest = max((len(line) - len(line.lstrip(" ")) for line in text.splitlines()), default=0)
    if not yaml.__with_libyaml__ or deepest > MOST_INDENTED or depth > MOST_OPENED:
        return None
    stream = _Named(text)
    stream.name = str(path)
    loader = yaml.CSafeLoader(stream)
    try:
        return loader.get_single_node()
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    finally:
        loader.dispose()


def _broken(error: yaml.MarkedYAMLError, path: Path, text: str) -> str:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return f"{path}: not valid YAML: {error.problem or error.context}"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    tab = "\t" in line[: mark.column + 1]
    problem = "a tab in the indentation; use spaces" if tab else error.problem or error.context
    return f"{path}:{mark.line + 1}: not valid YAML: {problem}"
