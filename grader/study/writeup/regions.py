"""Regions of a write-up: marked places in a Markdown text for answers and for measured tables.

    <!-- answer: part3-threads -->
    Text of the student.
    <!-- end -->

    <!-- table: threads-part3 -->
    Table that a study command has written.
    <!-- end -->

A marker must be alone on its line. It is invisible in the rendered text. Regions must not nest or overlap, and two
regions of a kind must not have the same name. A region with only white space and comments is empty, so the template can
give hints in comments.

The text is untrusted, so all functions take time linear in its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from grader.core.errors import UsageError
from grader.core.harmless import one_line

MOST_REGIONS = 200
"""Maximum number of regions in a write-up. The course's template has about thirty."""
LONGEST_NAME = 60
_MARKER = re.compile(
    rf"\s*<!--\s*(?:(answer|table)\s*:\s*([a-z0-9][a-z0-9_-]{{0,{LONGEST_NAME - 1}}})|(end))\s*-->\s*"
)
_MARKER_LIKE = re.compile(r"^[^\S\n]*<!--\s*((answer|table)\s*:|end\s*-->)", re.IGNORECASE | re.MULTILINE)
_COMMENT_START, _COMMENT_END = "<!--", "-->"


@dataclass(frozen=True)
class Region:
    """One region: `kind` is "answer" or "table", `body` the text between its markers.

    `line` is the number of the first marker's line, from 1. The body is text[start:end] of the write-up.
    """

    kind: str
    name: str
    body: str
    line: int
    start: int
    end: int

    @cached_property
    def text(self) -> str:
        """The body without comments and without surrounding white space."""
        return without_comments(self.body).strip()

    @property
    def is_empty(self) -> bool:
        return not self.text


def without_comments(text: str) -> str:
    """Return the text without its comments. A `<!--` without a `-->` counts as text."""
    kept: list[str] = []
    place = 0
    # A regular expression would take quadratic time for comments without an end.
    while (start := text.find(_COMMENT_START, place)) >= 0:
        end = text.find(_COMMENT_END, start + len(_COMMENT_START))
        if end < 0:
            break
        kept.append(text[place:start])
        place = end + len(_COMMENT_END)
    return "".join([*kept, text[place:]])


def regions(text: str) -> list[Region]:
    """Return all regions of a write-up, in order.

    Raises UsageError with the line for a marker without a partner, inside another region or beside other text. Also
    raises it for a name that occurs twice, and for more than MOST_REGIONS regions.
    """
    found: list[Region] = []
    names: set[tuple[str, str]] = set()
    opened: re.Match[str] | None = None
    opened_line = start = place = 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        marker = _MARKER.fullmatch(line)
        if marker is None:
            if _MARKER_LIKE.match(line):
                raise UsageError(f"line {number}: {_fault(line)}")
        elif marker[3] is None:
            if opened is not None:
                raise UsageError(f"line {number}: {_shown(marker)} inside the region of line {opened_line}")
            if (marker[1], marker[2]) in names:
                raise UsageError(
                    f"line {number}: {_shown(marker)} occurs for the second time: delete one of the two"
                )
            if len(names) == MOST_REGIONS:
                raise UsageError(f"line {number}: more than {MOST_REGIONS} regions: this is not a write-up")
            names.add((marker[1], marker[2]))
            opened, opened_line, start = marker, number, place + len(line)
        elif opened is None:
            raise UsageError(f"line {number}: <!-- end -->, but no region is open")
        else:
            found.append(Region(opened[1], opened[2], text[start:place], opened_line, start, place))
            opened = None
        place += len(line)
    if opened is not None:
        raise UsageError(f"line {opened_line}: {_shown(opened)} has no <!-- end -->")
    return found


def answers(text: str) -> dict[str, str]:
    """Return the text of each answer by name, in order and without comments; "" for an empty region."""
    return {region.name: region.text for region in regions(text) if region.kind == "answer"}


def tables(text: str) -> dict[str, str]:
    """Return the text of each table by name, in order and without comments; "" for an empty region."""
    return {region.name: region.text for region in regions(text) if region.kind == "table"}


def fill(text: str, name: str, table_markdown: str) -> str:
    """Return the text with `table_markdown` in place of the content of the table region `name`.

    The table gets the line endings of the text. Raises UsageError if the region is missing, if the table contains a
    marker, and for the errors of `regions`.
    """
    if _MARKER_LIKE.search(table_markdown):
        raise UsageError(f"the table '{name}' contains a region's marker")
    region = next((each for each in regions(text) if (each.kind, each.name) == ("table", name)), None)
    if region is None:
        raise UsageError(
            f"there is no region for the table '{name}': write the lines '<!-- table: {name} -->' and "
            "'<!-- end -->' where it should go"
        )
    newline = "\r\n" if text[: region.start].endswith("\r\n") else "\n"
    body = newline.join(table_markdown.strip().splitlines())
    # Markdown recognises a table only after an empty line.
    return f"{text[: region.start]}{newline}{body}{newline}{newline}{text[region.end :]}"


def _fault(line: str) -> str:
    """Return a message on the error in a line that begins like a marker."""
    named = re.match(r"\s*<!--\s*(?:answer|table)\s*:\s*([a-z0-9-]+)", line)
    if named and len(named[1]) > LONGEST_NAME:
        return f"a name has at most {LONGEST_NAME} letters: {one_line(named[1])}"
    return f"write a marker alone on its line: {one_line(line)}"


def _shown(marker: re.Match[str]) -> str:
    return f"<!-- {marker[1]}: {marker[2]} -->"
