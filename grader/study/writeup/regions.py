"""The regions of a write-up: marked places in a Markdown text for answers and for measured tables.

    <!-- answer: part3-threads -->
    What the student writes.
    <!-- end -->

    <!-- table: threads-part3 -->
    What a study command has measured.
    <!-- end -->

A marker stands alone on its line (within a line it is just text) and shows nowhere in a rendered text. Regions neither
nest nor overlap, and no name occurs twice within its kind. A region is empty while it holds nothing but white space and
comments, so that a hint to the writer may stand in it.

Everything here takes time linear in the text: a class's write-ups are read by a machine before a person does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from grader.core.errors import UsageError
from grader.core.harmless import one_line

MOST_REGIONS = 200
"""The course's template has about thirty."""
LONGEST_NAME = 60
_MARKER = re.compile(
    rf"\s*<!--\s*(?:(answer|table)\s*:\s*([a-z0-9][a-z0-9_-]{{0,{LONGEST_NAME - 1}}})|(end))\s*-->\s*"
)
_MARKER_LIKE = re.compile(r"^[^\S\n]*<!--\s*((answer|table)\s*:|end\s*-->)", re.IGNORECASE | re.MULTILINE)
_COMMENT_START, _COMMENT_END = "<!--", "-->"


@dataclass(frozen=True)
class Region:
    """One region: `kind` is "answer" or "table", `body` what stands between its markers, `line` that of its first
    marker, counted from 1; `start` and `end` are the body's place in the text."""

    kind: str
    name: str
    body: str
    line: int
    start: int
    end: int

    @cached_property
    def text(self) -> str:
        """The body without comments and the white space around it."""
        return without_comments(self.body).strip()

    @property
    def is_empty(self) -> bool:
        return not self.text


def without_comments(text: str) -> str:
    """The text less its comments. A comment that nothing ends is text."""
    kept: list[str] = []
    place = 0
    # By hand: an expression would look for the end of each of many unended comments anew, in quadratic time.
    while (start := text.find(_COMMENT_START, place)) >= 0:
        end = text.find(_COMMENT_END, start + len(_COMMENT_START))
        if end < 0:
            break
        kept.append(text[place:start])
        place = end + len(_COMMENT_END)
    return "".join([*kept, text[place:]])


def regions(text: str) -> list[Region]:
    """All regions of a write-up, in order. Raises UsageError, naming the line, for a marker that has no partner, that
    stands inside another region or before other text, for a name that occurs twice, and for more than MOST_REGIONS."""
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
                raise UsageError(f"line {number}: {_shown(marker)} stands here for the second time")
            if len(names) == MOST_REGIONS:
                raise UsageError(f"line {number}: more than {MOST_REGIONS} regions: this is no write-up")
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
    """What stands in each answer's region, by name and in order, without comments; "" for an empty one."""
    return {region.name: region.text for region in regions(text) if region.kind == "answer"}


def tables(text: str) -> dict[str, str]:
    """What stands in each table's region, by name and in order, without comments; "" for an empty one."""
    return {region.name: region.text for region in regions(text) if region.kind == "table"}


def fill(text: str, name: str, table_markdown: str) -> str:
    """The text with `table_markdown` in the region of the table `name`, in place of what stood there.

    Line endings are those of the text. Raises UsageError when there is no such region, when the table holds a marker,
    and whatever `regions` raises.
    """
    if _MARKER_LIKE.search(table_markdown):
        raise UsageError(f"the table '{name}' holds a region's marker")
    region = next((each for each in regions(text) if (each.kind, each.name) == ("table", name)), None)
    if region is None:
        raise UsageError(
            f"there is no place for the table '{name}': write the lines '<!-- table: {name} -->' and "
            "'<!-- end -->' where it should stand"
        )
    newline = "\r\n" if text[: region.start].endswith("\r\n") else "\n"
    body = newline.join(table_markdown.strip().splitlines())
    # Markdown takes a table for one only after an empty line.
    return f"{text[: region.start]}{newline}{body}{newline}{newline}{text[region.end :]}"


def _fault(line: str) -> str:
    """What is wrong with a line that begins as a marker and is none."""
    named = re.match(r"\s*<!--\s*(?:answer|table)\s*:\s*([a-z0-9-]+)", line)
    if named and len(named[1]) > LONGEST_NAME:
        return f"a name has at most {LONGEST_NAME} letters: {one_line(named[1])}"
    return f"a marker stands alone on its line: {one_line(line)}"


def _shown(marker: re.Match[str]) -> str:
    return f"<!-- {marker[1]}: {marker[2]} -->"
