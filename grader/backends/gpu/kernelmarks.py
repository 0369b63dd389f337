"""Lines of a student's Python function, and of the kernels and helpers below it, that a finding is about.

The counterpart of grader/source/landmarks.py for C++. The text is untrusted and could crash Python's own parser, so it
is read by regular expressions in linear time.
"""

from __future__ import annotations

import re

from grader.source.cpptext import PYTHON, PythonSpan, blanked, python_definitions
from grader.source.landmarks import LARGEST_SOURCE, LONGEST_LINE, Body

MOST_FUNCTIONS, MOST_CLASSES = 40, 20
"""Most functions and classes that are examined: an untrusted file may define any number."""
_LAUNCH = re.compile(r"\w\s{0,9}\[[^\n]{0,200}\]\s{0,9}\(")


def function(source: str, name: str) -> Body | None:
    """Return the definition of `name` with all functions of the file that it reaches by name; other lines are empty.
    None if the text has no such function.
    """
    text = _Text(source)
    found = [span for span in text.spans if span.kind == "def" and span.name == name and span.indent == 0]
    return text.body(found[-1]) if found else None


def method(source: str, name: str, class_name: str, launches: bool | None) -> Body | None:
    """Return the same as `function` for the method of a class.

    The class is the named one, else the only one that has the method and whose text launches kernels, or launches none,
    as `launches` requires.
    """
    text = _Text(source)
    classes = [span for span in text.spans if span.kind == "class" and class_name in ("", span.name)]
    methods = [span for span in text.spans if span.kind == "def" and span.name == name]
    found = []
    for cls in classes[:MOST_CLASSES]:
        inside = [span for span in methods if cls.first < span.first and span.end <= cls.end]
        if inside and (class_name or launches in (None, text.launches(cls))):
            found.append(inside[0])
    return text.body(found[0]) if len(found) == 1 else None


class _Text:
    def __init__(self, source: str) -> None:
        text = source[:LARGEST_SOURCE]
        self.rows, self.lines = text.split("\n"), blanked(text, PYTHON).split("\n")
        self.spans = python_definitions(self.lines)

    def launches(self, span: PythonSpan) -> bool:
        return any(_LAUNCH.search(line) for k in self._reached(span) for line in self.lines[k.first : k.end])

    def body(self, start: PythonSpan) -> Body:
        kept = {line for span in self._reached(start) for line in range(span.first, span.end)}
        code = tuple(line[:LONGEST_LINE] if k in kept else "" for k, line in enumerate(self.lines))
        rows = tuple(row[:LONGEST_LINE] for row in self.rows)
        # Keep all lines: kernels may come before the function or after it.
        return Body(start.name, start.first + 1, 0, len(rows), (), rows, code)

    def _reached(self, start: PythonSpan) -> list[PythonSpan]:
        """Return this definition and the file's outermost definitions that it names, directly or through others."""
        outer = {span.name: span for span in self.spans if span.indent == 0 and span.kind == "def"}
        reached = [start]
        for span in reached:  # grows on the way
            for word in re.findall(r"[A-Za-z_]\w*", "\n".join(self.lines[span.first : span.end])):
                if len(reached) < MOST_FUNCTIONS and word in outer and outer[word] not in reached:
                    reached.append(outer[word])
        return reached
