"""Base class of the explanations of a wrong or crashing part: lines, edits and cases that all of them use."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from grader.assignment.records import Case
from grader.backends import faults
from grader.core.results import Diagnosis
from grader.explain import clues, repair
from grader.explain.edited_calls import OneThread
from grader.explain.explanation_errors import attempt
from grader.explain.judged_part import Checked, EditBuilder, JudgedPart, OtherBuilds
from grader.explain.size_probe import Prober
from grader.source import dataflow, landmarks, scopes

_T = TypeVar("_T")
_U = TypeVar("_U")
#: The length of a last tile: `i0 + T < N ? T : N - i0`. If groups 1 and 3 differ, the line uses a wrong variable.
REMAINDER = re.compile(r"\b(\w+)\s*\+\s*\w+\s*<=?\s*(\w+)\s*\?\s*\w+\s*:\s*\2\s*-\s*(\w+)\b")
INDEX_LEAD = "The index depends on these lines:"
VALUE_LEAD = "The value depends on these lines:"
OUTSIDE = "Something outside of an array is read or written:"
COUNT = "omp_get_num_threads"
COUNTED_EARLY = "1 outside of a parallel region: call omp_get_max_threads() there"
#: The end of a text that is inside the braces of a lambda expression.
IN_LAMBDA = re.compile(r"\[[^][]{0,80}\][^;{}]{0,200}\{[^{}]*$")
NUMBERS = re.compile(r"(?:^|(?<= ))Expected [^\n`]*[^\n` ]")


def sentence(explain: Callable[[], _T], otherwise: _U) -> _T | _U:
    """Return `explain()`; return `otherwise` if a call of the kernel fails, or if `explain` has an error of its own."""
    return attempt(explain, otherwise, expected=(faults.Faulty,))


def lines_in(name: str, text: str) -> set[int]:
    """Return the lines of the file `name` to which a text refers, as in `name:7`."""
    return {int(line) for line in re.findall(rf"{re.escape(name)}:(\d+)", text)}


def offset_of(body: landmarks.Body, line: int) -> int:
    """Return the offset of a line in the file's text without comments and literals."""
    return len("\n".join(body.code[: line - 1])) + (line > 1)


def without_guesses(diagnosis: Diagnosis) -> Diagnosis:
    """Return a diagnosis of NaN or infinity without the guesses at its cause. Return other diagnoses unchanged."""
    numbers = NUMBERS.search(diagnosis.message) if diagnosis.code in ("not_finite", "overflow") else None
    return replace(diagnosis, message=f"NaN or infinity. {numbers[0]}") if numbers else diagnosis


def with_message(diagnosis: Diagnosis, *lines: str) -> Diagnosis:
    """Return the diagnosis with these lines as its message. Empty lines are left out."""
    return replace(diagnosis, message="\n".join(line for line in lines if line))


@dataclass(frozen=True)
class Findings:
    """Results of further calls and builds for a wrong part."""

    diagnosis: Diagnosis
    has_cause: bool
    """True if the diagnosis names the mistake, not only the wrong indices."""
    checked: Checked | None
    prober: Prober | None
    smallest: dict[str, int] | None
    unread: Sequence[str]
    """Inputs that change the expected output but not the kernel's output. Only searched if the cause is unknown."""
    constant_on: str = ""
    """Name of a wrong case in which no input changes the outputs. Only searched if the cause is unknown."""


class Explainer:
    """One part that is wrong or has crashed, and the means to explain it.

    `second` makes builds with sanitizers or edits; None if many submissions are judged, because builds take too long.
    """

    def __init__(self, judged: JudgedPart, second: OtherBuilds | None) -> None:
        self.judged, self.second, self.kernel = judged, second, judged.kernel
        self.part, self.assignment, self.source = self.kernel.part, self.kernel.assignment, judged.source
        self.body = self.kernel.body

    def _row(self, place: landmarks.Place, note: str = "") -> str:
        """Return a line of the student's file for a message."""
        return f"  {self.source.name}:{place.line}: {place.text}" + (f"   ({note})" if note else "")

    def _with_lines(self, diagnosis: Diagnosis, pattern: str, words: str) -> Diagnosis:
        """Return the diagnosis with the lines of the whole file in which a pattern occurs, if there are few.

        `words` introduce the lines.
        """
        body = self.body
        code = body.code if body is not None else ()
        found = [n for n, row in enumerate(code, 1) if re.search(pattern, row)]
        if body is None or not 0 < len(found) <= clues.MOST_PLACES:
            return diagnosis
        shown = [self._row(body.place(n)) for n in found]
        return with_message(diagnosis, diagnosis.message, f"{words}:", *shown)

    def _repairs(
        self,
        smallest: Mapping[str, int] | None = None,
        near: Collection[int] = (),
        facts: Collection[int] = (),
        helper: str = "",
        is_alone: bool = False,
    ) -> str:
        """Return sentences with the small edits that make the part right (`repair.repairs`); "" if none does.

        `is_alone`: call the edits with one thread.
        """
        if self.second is None:
            return ""
        builds: EditBuilder = OneThread(self.second) if is_alone else self.second
        return repair.repairs(self.judged, builds, smallest, near, facts, helper)

    def _with_indices(self, places: str, of_value: bool = False) -> list[str]:
        """Return `places` with the arrays' lengths, then the lines that compute the indices.

        `places` is the text on the wrong accesses. `of_value`: True if the text is about wrong values instead (an
        overflow, say). Then no lengths are added, and the lines are those that compute the values.
        """
        named = [int(line) for line in re.findall(rf"{re.escape(self.source.name)}:(\d+)", places)]
        body = self.body
        if body is None:
            return [places]
        lengths = []
        lines_of_arrays = [] if of_value else named[:2]
        of_lines = "\n".join(body.code[n - 1] for n in lines_of_arrays)
        for array in dict.fromkeys(re.findall(r"\b(\w+)\s*\[|(?<=\()\s*(\w+)\s*(?=,)", of_lines)):
            array = "".join(array)
            sized = body.find(rf"\b(?:float|double|int)\b[^;()=]*\b{array}\s*\[")[:1]
            # A private vector is empty, and a private pointer has no value.
            private = [] if sized else body.find(rf"\bomp\b.*\bprivate\s*\([^()]*\b{array}\b")
            note = f"each thread gets a new {array}, empty or without a value: firstprivate({array})?"
            if private:
                return ["\n".join([places, *(self._row(place, note) for place in private)])]
            lengths += [self._row(at, f"the length of {array}") for at in sized if at.line not in named]
        places = "\n".join([places, *dict.fromkeys(lengths)])
        # Use at most two of the named lines: the access, and the call of the function that contains it.
        made_of = [made for line in named if (made := dataflow.indices(body, line))][:2]
        indices = {place.line: place for made in reversed(made_of) for place in made}
        elsewhere = [one for line in named for one in body.set_in_other_loops(line)]
        # If all wrong accesses are to std::vectors, leave out lines that set a pointer: they do not affect the index.
        is_vector = 0 < places.count("std::vector is out of range") == places.count(", on '")
        left_out = r"\*\s*\w+\s*=" if is_vector else "^$"
        made = [at for n, at in indices.items() if n not in named and not re.search(left_out, at.text)]
        made = sorted(made, key=lambda place: not re.search(clues.SMALL, place.text))[: clues.MOST_PLACES]
        if any("omp_get_thread_num" in place.text for place in made):
            made += body.find(r"\bnum_threads\s*\(|\bomp_set_num_threads\s*\(")
        lines = [
            self._row(place, f"{rest[3]} in place of {rest[1]}?" if rest and rest[1] != rest[3] else small)
            for place in made
            for rest in [REMAINDER.search(place.text)]
            for small in [
                clues.KNOWN["small"][0] if re.search(clues.SMALL, place.text) else self._counted(place.line)
            ]
        ]
        words = "{} ends a loop around the access, but in this function only other loops set it"
        lines += [self._row(place, words.format(name)) for place, name in dict.fromkeys(elsewhere)]
        return [places, VALUE_LEAD if of_value else INDEX_LEAD, *lines] if lines else [places]

    def _counted(self, line: int) -> str:
        """Return a note if a line of the function calls omp_get_num_threads() outside of parallel regions, else ""."""
        body = self.body
        if body is None or line not in body.lines() or COUNT not in body.code[line - 1]:
            return ""
        code = "\n".join(body.code)
        begin, at = (offset_of(body, each) for each in (body.opened, line))
        is_outside = scopes.region_around(code, at) is None and not IN_LAMBDA.search(code[begin:at])
        return COUNTED_EARLY if is_outside else ""

    def _public(self) -> list[Case]:
        """Return the public cases, the smallest first."""
        cases = [case for case in self.part.cases if not case.hidden]
        return sorted(cases, key=lambda case: math.prod({**self.kernel.shape, **case.shape}.values()))

    def _wrong_cases(self) -> list[Case]:
        """Return the public cases with a wrong output, the smallest first."""
        return [case for case in self._public() if self.kernel.wrong.get(case.name) is not None]

    def _right_outputs(self) -> list[str]:
        """Return the names of the outputs that were right on every input; [] if no output was wrong."""
        wrong = self.kernel.wrong_outputs
        return sorted(self.kernel.seen_outputs - wrong) if wrong else []

    def _named(self, study: str = "") -> str:
        """Return the command line that judges the part, or that runs the command `study` on it."""
        return f"{self.judged.command} {study}{self.part.id if study else self.part.command}"
