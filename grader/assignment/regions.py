"""Solution regions of a master source: the lines that the staff see and the students do not.

A master holds lines that consist of nothing but one of these markers (and white space):

    // BEGIN SOLUTION      lines of the staff's solution, left out of the starter;
    // END SOLUTION
    // BEGIN STARTER       lines of the starter, commented out so that the master compiles without them.
    // END STARTER

In Python `#` stands for `//`. Regions neither nest nor overlap. The idea of making the handout from one master comes
from nbgrader and otter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from grader.core.errors import UsageError

_MARKER = re.compile(r"\s*(?://|#)\s*(BEGIN|END)\s+(SOLUTION|STARTER)\s*")
_MARKER_LIKE = re.compile(r"(?://|#)\s*(BEGIN|END)[\s_-]+(SOLUTION|STARTER)", re.IGNORECASE)
_IN_PYTHON = re.compile(r"^\s*#\s*BEGIN\s+(?:SOLUTION|STARTER)\s*$", re.MULTILINE)
#: {sign that begins a comment: pattern of a starter line that is commented out with this sign}.
_COMMENTED = {sign: re.compile(rf"(\s*){sign}(?: (.*)|)") for sign in ("//", "#")}


def strip_solution(text: str) -> str:
    """Return the starter made from a master source: no solutions, starter lines uncommented, no markers.

    A starter line loses its first `// ` (or `# `) and keeps its indentation. A bare `//` becomes an empty line. A text
    without markers is returned unchanged.

    Raises:
        UsageError: a marker has no partner, is inside another region or shares its line with code, or a starter line
            is not a comment. The message names the line.
    """
    starter: list[str] = []
    sign = "#" if _IN_PYTHON.search(text) else "//"
    for number, line, region in lines(text):
        if region is None:
            starter.append(line)
        elif region == "STARTER":
            starter.append(_uncomment(line, number, sign))
    return "".join(starter)


def lines(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield (number, line, region) for each line that is not a marker; the region is "SOLUTION", "STARTER" or None.

    Raises UsageError for misplaced markers, as `strip_solution` does.
    """
    region: str | None = None
    opened_at = 0
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        marker = _MARKER.fullmatch(line)
        if marker is None:
            if _MARKER_LIKE.search(line):
                raise UsageError(
                    f"line {number}: write the marker in capitals, alone on its line: {line.strip()}"
                )
            yield number, line, region
            continue
        edge, kind = marker.groups()
        if edge == "BEGIN":
            if region is not None:
                raise UsageError(f"line {number}: BEGIN {kind} is inside the region of line {opened_at}")
            region, opened_at = kind, number
        elif region != kind:
            where = "no region is open" if region is None else f"the region of line {opened_at} is {region}"
            raise UsageError(f"line {number}: END {kind}, but {where}")
        else:
            region = None
    if region is not None:
        raise UsageError(f"line {opened_at}: BEGIN {region} has no END {region}")


def _uncomment(line: str, number: int, sign: str) -> str:
    body = line.rstrip("\r\n")
    ending = line[len(body) :]
    if not body.strip():
        return line
    commented = _COMMENTED[sign].fullmatch(body)
    if commented is None:
        raise UsageError(
            f"line {number}: a starter line must be commented out with '{sign} ': {body.strip()}"
        )
    indent, code = commented.groups()
    return (indent + code if code else "") + ending
