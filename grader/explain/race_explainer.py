"""Explanation of a data race: the lines, and how the threads divide the work. See `grader.explain.closer_look`."""

from __future__ import annotations

import re

from grader.core.results import Diagnosis
from grader.explain import clues
from grader.explain.diagnose import OTHER_RESULT
from grader.explain.explainer import NUMBERS, Explainer, lines_in, offset_of, sentence, with_message
from grader.source import scopes

DIVIDED = "the threads divide the iterations of this loop"
WHOLE_LOOP = "each thread runs the whole loop: is `#pragma omp for` missing before it?"
RACE = "`{}` shows all data races."
#: General advice on a race, replaced or removed if the source text shows a more precise cause.
OWN_PART = re.compile(r"Give each thread its own: declare it[^`]*?omp_get_thread_num\(\)\.")
ADVICE = re.compile(
    rf"{OWN_PART.pattern}|Threads write the same element of [^`]*?add these arrays up, under omp critical\."
)
#: A pointer to the element that has the number of the thread, and advice for it.
ONE_APART = re.compile(
    r"\*\s*(?:const\s+)?\w+\s*=[^=;]*[+\[]\s*(?:omp_get_thread_num\(\)|tid|thread\w*)\s*\]?\s*;"
)
ROW_LENGTH = (
    "The rows of two threads begin one element apart: multiply the thread's number by the length of a row."
)
SAME_ELEMENT = (
    "Threads work on the same element of the result: share out a loop whose counter is in its index."
)
#: A loop from 0. Group 1 is its counter, group 2 its end.
LOOP_TO = re.compile(r"\b(\w+)\s*=\s*0\s*;\s*\1\s*<\s*(\w+)\s*;")
OVERLAP = "The parts of the threads overlap: look at where they begin, and at their length."
NUMBERED_EARLY = "called before the parallel region: it is 0 for all threads"


class RaceExplainer(Explainer):
    """Explanation of a part with a data race."""

    def explained(self, known: Diagnosis) -> Diagnosis | None:
        """Return the diagnosis with the lines of a data race; None without one."""
        # If every thread runs the whole loop, the threads race, even if each call gives the same wrong result.
        is_whole = WHOLE_LOOP in "\n".join(sentence(self._shared_out, []))
        # A part with threads that is wrong only in a timed call may race, too.
        threaded = self.body.find(r"\bomp\b|\bparallel_for\b|\bthread\b") if self.body is not None else []
        is_timed_only = bool(threaded) and not self._wrong_cases()
        if known.code == "race" or is_whole or is_timed_only:
            races = sentence(self._races, "")
            if races or (is_whole and known.code == "race"):
                return self._raced(known, races)
        return None

    def _races(self) -> str:
        watch = self.judged.watch_races
        return watch(self.part) if watch is not None else ""

    def _raced(self, diagnosis: Diagnosis, races: str) -> Diagnosis:
        """Return the diagnosis with the lines of the data races that ThreadSanitizer found (`races`)."""
        numbers = NUMBERS.search(diagnosis.message)
        first = "Data race: several threads use the same memory, and one of them writes:"
        first = f"{OTHER_RESULT} {first}" if diagnosis.code == "race" else first
        command = RACE.format(self._named("race "))
        # A race damages random elements. So name the wrong indices only if they are one thread's share of the work.
        seen = re.sub(r"(?<= wrong): (?!.*share of).*", ".", numbers[0]) if numbers else ""
        body = self.kernel.body
        early_words, find = clues.KNOWN["nowait"]
        early = [self._row(each, early_words) for each in (find(body) if body is not None else ())]
        rows, regions = self._with_indices(races), sentence(lambda: self._shared_out(races), [])
        # If the lines write through a pointer, show where it gets its address.
        written = re.findall(r":\d+: (\w+)\[[^=]*\]\s*[-+*/]?=(?!=)", races)
        for name in dict.fromkeys(written):
            found = body.find(rf"\*\s*(?:const\s+)?{name}\s*=(?!=)") if body is not None else []
            rows[1:1] = [
                self._row(place, f"sets {name}")
                for place in found[-1:]
                if f":{place.line}: " not in "\n".join(rows)
            ]
        unprotected = sentence(lambda: self._unprotected(races), [])
        if unprotected:
            rows = [ADVICE.sub("", races).rstrip(), *unprotected]
        elif NUMBERED_EARLY in "\n".join(regions):
            rows[0] = OWN_PART.sub("Call omp_get_thread_num() inside the parallel region.", rows[0])
        elif WHOLE_LOOP in "\n".join(regions):
            rows = [OWN_PART.sub("", races).rstrip()]
        elif early:
            rows = [OWN_PART.sub("", rows[0]).rstrip()]
        elif body is not None and rows[0].partition(":")[0] in body.returned:
            rows[0] = OWN_PART.sub(SAME_ELEMENT, rows[0])
        elif ONE_APART.search("\n".join(rows[1:])):
            rows[0] = ADVICE.sub(ROW_LENGTH, rows[0])
        elif strides := sentence(self._strides, []):
            rows = [ADVICE.sub("The parts of the threads overlap.", rows[0]), *strides]
        elif parts := re.findall(r"(\w+)\s*=[^=\n]*omp_get_thread_num", "\n".join(rows[1:])):
            own = re.search(rf"\b(?:{'|'.join(parts)})\s*[\[*]|\[[^\]\n]*\b(?:{'|'.join(parts)})\b", rows[0])
            rows[0] = OWN_PART.sub(OVERLAP if own else "", rows[0]).rstrip()
        lines = [first, *early, *regions, *rows, command, seen]
        return with_message(diagnosis, *lines)

    def _shared_out(self, races: str = "") -> list[str]:
        """Return the lines of the function that show how a parallel region divides its work, each with a note.

        They are the pragmas and the loops around the lines that `races` names. If there is exactly one region, its
        pragma is added. Further lines are calls of omp_get_thread_num() before it, declarations of numbers that all
        threads share, and loops that each thread runs whole.
        """
        if (body := self.body) is None:
            return []
        code, notes = "\n".join(body.code), dict[int, str]()
        accesses = lines_in(self.source.name, re.sub(r".*\ballocated \(.*", "", races))
        for line in accesses:
            lines = scopes.shared_loop(code, offset_of(body, line))
            notes |= dict(zip(lines, ("the parallel region", DIVIDED), strict=False))
        notes = {line: note for line, note in notes.items() if line not in accesses}
        regions = body.find(r"#\s*pragma\s+omp\s+parallel\b")
        if len(regions) == 1:
            begin, end = offset_of(body, body.first), offset_of(body, body.last + 1)
            notes |= {
                line: f"declared outside of the parallel region: all threads share {' and '.join(names)}"
                for line, names in scopes.shared_numbers(code, begin, end).items()
            }
            notes |= {
                place.line: NUMBERED_EARLY
                for place in body.find(r"\bomp_get_thread_num\s*\(")
                if place.line < regions[0].line
            }
            notes[regions[0].line] = "the parallel region"
            notes |= dict.fromkeys(scopes.whole_loops(code, begin, end), WHOLE_LOOP)
        return [self._row(body.place(line), note) for line, note in sorted(notes.items())]

    def _unprotected(self, races: str) -> list[str]:
        """Return the pragmas that protect one statement, if a line of `races` is in the statement after that one."""
        if (body := self.body) is None:
            return []
        code, rows = "\n".join(body.code), list[str]()
        for place in body.find(r"#\s*pragma\s+omp\s+(?:critical|atomic)\b"):
            begin = offset_of(body, place.line + 1)
            first = scopes.statement_end(code, begin)
            lines = range(
                scopes.line_of(code, first) + 1, scopes.line_of(code, scopes.statement_end(code, first)) + 1
            )
            is_block = code[begin:first].lstrip().startswith("{")
            if not is_block and not {*lines}.isdisjoint(lines_in(self.source.name, races)):
                rows.append(self._row(place, "this protects only the next statement: put both into { }"))
        return rows

    def _strides(self) -> list[str]:
        """Return the lines where thread t's part of an array begins at t * step, although its length is not `step`.

        The step and the length are sizes of the assignment. The length is the end of the loops over the part.
        """
        if (body := self.body) is None:
            return []
        code = body.all_code()
        numbers = "|".join(["omp_get_thread_num", *re.findall(r"(\w+)\s*=\s*omp_get_thread_num\b", code)])
        begin = re.compile(
            rf"(?:(\w+)\s*=[^=;]*)?\b(?:{numbers})\b[\s()]*\*\s*(\w+)\s*(?:\]?\s*;|\+\s*(\w+)\s*\])"
            rf"|(?:Read|Write)\(\s*\w+\s*,\s*(?:{numbers})[\s()]*,\s*(\w+)\s*,\s*(\w+)"
            # A view of the part, given the address of its first element and its length.
            rf"|[({{][^;]*\b(?:{numbers})\b[\s()]*\*\s*(\w+)\s*,\s*(\w+)\s*[)}}]\s*;"
        )
        rows, sizes = list[str](), self.kernel.shape.keys()
        for line in body.lines():
            for name, begun, column, index, width, first, length in begin.findall(body.code[line - 1]):
                counter, step = column or index, begun or width or first
                used = rf"\b{name}\s*\[\s*(\w+)\s*\]|\[\s*{name}\s*\+\s*(\w+)\s*\]"
                counters = (
                    {"".join(one) for one in re.findall(used, code)} if name and not counter else {counter}
                )
                ends = (
                    {length} if length else {end for each, end in LOOP_TO.findall(code) if each in counters}
                )
                if step in sizes and len(ends & sizes) == len(ends) == 1 and step not in ends:
                    end = min(ends)
                    note = f"{end} in place of {step}? Thread t begins at t * {step}, but uses {end} elements"
                    rows.append(self._row(body.place(line), note))
        return rows
