"""Finder of a student's Python function with the kernels and helpers that it uses. Diagnoses quote lines from them.

grader/source/landmarks.py does the same for C++ and defines the result, a `Body`. The text is untrusted and could crash
Python's parser, so it is read by regular expressions, in linear time.
"""

from __future__ import annotations

import re

from grader.core import filebundle
from grader.source.cpptext import PYTHON, PythonSpan, blanked, python_definitions
from grader.source.landmarks import LARGEST_SOURCE, LONGEST_LINE, Body

MOST_FUNCTIONS, MOST_CLASSES = 40, 20
"""Most functions and classes that are examined, because an untrusted file may define any number."""
_LAUNCH = re.compile(r"\w\s{0,9}\[[^\n]{0,200}\]\s{0,9}\(")


def function(source: str, name: str) -> Body | None:
    """Return a Body with the function `name` and all functions of the file that it uses, directly or indirectly.

    All other lines of the Body's code are empty. Returns None if the source has no function `name`.
    """
    text = _Text(source)
    found = [span for span in text.spans if span.kind == "def" and span.name == name and span.indent == 0]
    return text.body(found[-1]) if found else None


def method(source: str, name: str, class_name: str, launches: bool | None) -> Body | None:
    """Return a Body with the method `name` of a class and all functions that it uses.

    If `class_name` is "", `launches` selects the class among those that have the method: a class that launches kernels
    (True), a class that does not (False), or any class (None). Returns None unless exactly one class fits.
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
        self.files = tuple(filebundle.first_lines(source.encode()))

    def launches(self, span: PythonSpan) -> bool:
        return any(_LAUNCH.search(line) for k in self._reached(span) for line in self.lines[k.first : k.end])

    def body(self, start: PythonSpan) -> Body:
        kept = {line for span in self._reached(start) for line in range(span.first, span.end)}
        code = tuple(line[:LONGEST_LINE] if k in kept else "" for k, line in enumerate(self.lines))
        rows = tuple(row[:LONGEST_LINE] for row in self.rows)
        # The Body covers the whole file: kernels may come before or after the function.
        return Body(start.name, start.first + 1, 0, len(rows), (), rows, code, files=self.files)

    def _reached(self, start: PythonSpan) -> list[PythonSpan]:
        """Return the definition `start` and the module-level functions that it uses, directly or indirectly."""
        outer = {span.name: span for span in self.spans if span.indent == 0 and span.kind == "def"}
        reached = [start]
        for span in reached:  # `reached` grows during the loop
            for word in re.findall(r"[A-Za-z_]\w*", "\n".join(self.lines[span.first : span.end])):
                if len(reached) < MOST_FUNCTIONS and word in outer and outer[word] not in reached:
                    reached.append(outer[word])
        return reached
