"""Extended explanation of a wrong or crashing part. It helps the student find the line; the verdict is already known.

If a checked build (with sanitizers) finds an access outside of an array, the message on a wrong result names the
access. Otherwise it names facts common to all inputs, and the wrong step of the computation. Then follow, if found:
edits that make the part right, lines to look at, and a command with the smallest sizes that fail. If the code that
writes one sentence raises an error, only that sentence is missing. This module does not change verdicts, points, or
the codes of diagnoses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TypeVar

from grader.assignment.inputs import drawn
from grader.assignment.records import Case
from grader.backends import binding, faults
from grader.backends.native import crashes, warnings
from grader.core.arrays import np
from grader.core.commandline import size_options
from grader.core.harmless import harmless
from grader.core.results import Diagnosis
from grader.explain import clues, common_facts, hang_samples, repair, sanitizer_sites, size_probe
from grader.explain.common_facts import Seen
from grader.explain.deviation import usual_axes
from grader.explain.diagnose import OTHER_RESULT, PARTLY, SAME_OUTPUT, concluded, unexplained
from grader.explain.explanation_errors import attempt
from grader.explain.hang_samples import Samples
from grader.explain.judged_part import Checked, JudgedPart, OtherBuilds
from grader.explain.oracle import Dissected, Oracle
from grader.explain.relations import CLOSE, NOT_STORED
from grader.explain.size_probe import Prober
from grader.explain.suspect import FEWEST_PARTIAL
from grader.source import dataflow, landmarks, scopes

UNWRITTEN = (
    "Only one thread works here, so it is not a race: the function reads memory that was never written."
)
DIVIDED = "the threads divide the iterations of this loop"
WHOLE_LOOP = "each thread runs the whole loop: is `#pragma omp for` missing before it?"
#: The head of a class, up to its `{`.
_CLASS = re.compile(r"\b(?:struct|class)\s+(\w+)[^;{}()=]*\{")
_T = TypeVar("_T")
_U = TypeVar("_U")
#: Remark on a tile length that was guessed from one input. It is removed if the message names a tile length or a
#: multiple that fits all inputs.
LIKELY = re.compile(r" \(tiles of \d+ would end there\)")
#: Message on a crash. Its general advice, after the colon, is removed if the place of the crash is known.
HINT = re.compile(r"(crashed with SIG(?:SEGV|BUS|FPE|ILL)): .*", re.DOTALL)
#: Patterns for facts that `common_facts.condition` returns: a size that is a multiple of a tile, a size above 1, two
#: sizes that are compared, a size from a number on. The groups are the names of the sizes.
MULTIPLE = re.compile(r"right where (\w+) is a multiple of (\w+)")
NO_MULTIPLE = re.compile(r"right where (\w+) is not a multiple of (\w+)")
ABOVE = re.compile(r"right where (\w+) = 1, wrong where \1 > 1")
RELATED = re.compile(r"right where (\w+) [<>]?= ([A-Za-z]\w*),")
FROM = re.compile(r"right where (\w+) <= \d+, wrong where \1 >= (\d+)")
OF_OUTPUT = re.compile(r"right where the output's \w+ [<>]?= the output's ")
#: The length of a last tile: `i0 + T < N ? T : N - i0`. If groups 1 and 3 differ, the line uses a wrong variable.
REMAINDER = re.compile(r"\b(\w+)\s*\+\s*\w+\s*<=?\s*(\w+)\s*\?\s*\w+\s*:\s*\2\s*-\s*(\w+)\b")
#: Vector accesses under a mask, which AddressSanitizer does not check.
MASKED = r"\b_mm\w*_mask\w*(?:load|store|gather|scatter)\w*\s*\("
#: Message of the exception of `data_ptr<float>()` on a tensor of another type, and C++ names of torch's types.
SCALAR_TYPE = re.compile(r"expected scalar type (\w+) but found (\w+)")
CPP_TYPES = {"Float": "float", "Double": "double", "Int": "int", "Long": "int64_t"}
#: For types of inputs: the C++ type, and the types as which it is read by mistake. Casts to other types may be on
#: purpose: to read the bits of a float, say.
MISREAD = {"float32": ("float", ("double",)), "int64": ("int64_t", ("int", "int32_t", "float", "double"))}
#: The place of an exception in a Python file. A hand-in of several files has their names in place of "line".
RAISED = re.compile(r": line (\d{1,9}) raised \w")
EXITS = r"\b_?(?:exit|_Exit|quick_exit)\s*\("
MOST_STOPPED = 2
STUCK = "This loop cannot end:"
CHANGES = "These lines change the variables that the loops test:"
INDEX_LEAD = "The index depends on these lines:"
VALUE_LEAD = "The value depends on these lines:"
INDEX_LINES = re.compile(rf"\n(?:{INDEX_LEAD}|{VALUE_LEAD})(?:\n  .*)+")
OUTSIDE = "Something outside of an array is read or written:"
RACE = "`{}` shows all data races."
#: General advice on a race, replaced or removed if the source text shows a more precise cause.
OWN_PART = re.compile(r"Give each thread its own: declare it[^`]*?omp_get_thread_num\(\)\.")
ADVICE = re.compile(
    rf"{OWN_PART.pattern}|Threads write the same element of [^`]*?add these arrays up, under omp critical\."
)
#: A vector that is made of a tensor's elements. Groups: vector, tensor.
COPIED_IN = re.compile(r"\bvector\s*<\s*float\s*>\s+(\w+)\s*[({]\s*(\w+)\s*\.\s*data_ptr\b")
#: The list of wrong accesses (`sanitizer_sites.words`): its headline, and its places after the first one.
LATER_PLACES = re.compile(
    r"\d+ places, in order\.[^\n]*\n1\. |\n(?:[2-9]\. |\.\.\. and )[^\n]*(?:\n  [^\n]*)*"
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
COUNT = "omp_get_num_threads"
COUNTED_EARLY = "1 outside of a parallel region: call omp_get_max_threads() there"
#: The end of a text that is inside the braces of a lambda expression.
IN_LAMBDA = re.compile(r"\[[^][]{0,80}\][^;{}]{0,200}\{[^{}]*$")
NUMBERED_EARLY = "called before the parallel region: it is 0 for all threads"
#: The description of an edit that resets all elements of an array, or moves a line that does it. The groups are the
#: array's name.
SET_AGAIN = re.compile(
    r"add a loop that sets all of (\w+)|:\d+: (?:std::)?(?:fill|memset)\w*\(\s*&?(\w+)[^\n]*\(this (?:line|statement)"
)
MOST_CHECKED = 4
#: The inputs of a case of at most this product of sizes are exchanged, one after the other.
MOST_SWAPPED = 1 << 16
MOST_NUMBERS = 4
#: Numbers of floats in a vector.
VECTORS = (4, 8, 16)
#: If the search for lines to look at (`clues`) finds none, a function of at most this many lines is shown whole.
SHORT = 8
NUMBERS = re.compile(r"(?:^|(?<= ))Expected [^\n`]*[^\n` ]")
OTHER_CAUSE = re.compile(rf" {SAME_OUTPUT} .*?(?= Expected )", re.DOTALL)
#: Codes of diagnoses that need no further explanation by sizes or lines.
PLAIN = frozenset(
    {"wrong_shape", "wrong_dtype", "wrong_type", "inputs_overwritten", "exception", "protocol", "exit"}
)


def _sentence(explain: Callable[[], _T], otherwise: _U) -> _T | _U:
    """Return `explain()`; return `otherwise` if a call of the kernel fails, or if `explain` has an error of its own."""
    return attempt(explain, otherwise, expected=(faults.Faulty,))


def _lines_in(name: str, text: str) -> set[int]:
    """Return the lines of the file `name` to which a text refers, as in `name:7`."""
    return {int(line) for line in re.findall(rf"{re.escape(name)}:(\d+)", text)}


def _offset(body: landmarks.Body, line: int) -> int:
    """Return the offset of a line in the file's text without comments and literals."""
    return len("\n".join(body.code[: line - 1])) + (line > 1)


def _without_guesses(diagnosis: Diagnosis) -> Diagnosis:
    """Return a diagnosis of NaN or infinity without the guesses at its cause. Return other diagnoses unchanged."""
    numbers = NUMBERS.search(diagnosis.message) if diagnosis.code in ("not_finite", "overflow") else None
    return replace(diagnosis, message=f"NaN or infinity. {numbers[0]}") if numbers else diagnosis


@dataclass(frozen=True)
class _Findings:
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


class Closer:
    """Explainer of one part that is wrong or has crashed.

    `second` makes builds with sanitizers or edits; None if many submissions are judged, because builds take too long.
    """

    def __init__(self, judged: JudgedPart, second: OtherBuilds | None) -> None:
        self.judged, self.second, self.kernel = judged, second, judged.kernel
        self.part, self.assignment, self.source = self.kernel.part, self.kernel.assignment, judged.source
        self.body = self.kernel.body

    # ---- crashes and time-outs

    def crash(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis of a crash, with the place that a checked build reports, and edits that prevent it.

        Without such edits, the cause of earlier wrong outputs is added. It may also be the cause of the crash: a write
        outside of an array gives a wrong output at one size and a crash at another.
        """
        placed = _sentence(lambda: self._placed(diagnosis), diagnosis)
        # For exit(), an exception and an endless loop the message already names the line: do not search for edits.
        is_explained = diagnosis.hidden or diagnosis.code in ("exit", "exception") or STUCK in placed.message
        near = _lines_in(self.source.name, placed.message.rpartition(CHANGES)[2])
        repairs = "" if is_explained else _sentence(lambda: self._repairs(near=near), "")
        # If edits correct the part, leave out the cause of earlier wrong outputs and the lines that compute an index.
        before = "" if diagnosis.hidden or repairs else _sentence(lambda: self._before(diagnosis), "")
        place = LATER_PLACES.sub("", INDEX_LINES.sub("", placed.message)) if repairs else placed.message
        return replace(placed, message="\n".join(filter(None, (place, repairs, before))))

    def _before(self, diagnosis: Diagnosis) -> str:
        """Return the cause of wrong public outputs before the crash; "" if it is unknown or few elements are wrong."""
        wrong = [
            case for case in self.judged.cases if not case.hidden and case.diagnosis not in (None, diagnosis)
        ]
        found = concluded(wrong, self.kernel.oracle.axes)
        if found is None or found.code in unexplained(self.kernel.oracle.axes):
            return ""
        # With few wrong elements, too many suspects fit by chance.
        if (found.wrong_count or 0) < FEWEST_PARTIAL:
            return ""
        name = next(case.name for case in wrong if case.diagnosis is found)
        return f"Before that, the result was wrong on '{name}'. {found.message}"

    def _placed(self, diagnosis: Diagnosis) -> Diagnosis:
        if diagnosis.code == "exit":
            return self._with_lines(diagnosis, EXITS, "It is called in")
        raised = RAISED.search(diagnosis.message)
        if raised and self.body is not None and not diagnosis.hidden:
            # The number may be part of a text that the student's code wrote.
            line = int(raised[1])
            shown = [self._row(self.body.place(line))] if 0 < line <= len(self.body.rows) else []
            return replace(diagnosis, message="\n".join([diagnosis.message, *shown]))
        if mixed := SCALAR_TYPE.search(diagnosis.message):
            used, held = (CPP_TYPES.get(name, name) for name in mixed.groups())
            advice = f"A tensor has elements of type {held}: write data_ptr<{held}>() in place of data_ptr<{used}>()"
            pattern = rf"\b(?:data_ptr|accessor)\s*<\s*(?:const\s+)?{used}\b"
            return self._with_lines(diagnosis, pattern, f"{advice} for this tensor")
        if diagnosis.hidden or self.judged.broken is None:
            return diagnosis
        case, call = self.judged.broken
        lead = HINT.sub(r"\1:", diagnosis.message.replace(crashes.ADVICE, "").rstrip())
        if call.signal_name in crashes.SANITIZED and (stuck := self._stuck()):
            return replace(diagnosis, message="\n".join([f"{lead} {STUCK}", *stuck]))
        if self.second is None:
            return self._stopped(diagnosis, None) if call.status == "timeout" else diagnosis
        # A write outside of an array may also damage the runner's own data, so that the reply is malformed.
        if call.status not in ("timeout", "protocol") and call.signal_name not in crashes.SANITIZED:
            return diagnosis
        found, kept = self.second.look(self.part, [case]), ""
        if found is not None and not found.sites.found and call.status != "timeout":
            found = self.second.look_in_turn(self.part)
            kept = self._late_crash(case, found)
        if found is None or not found.sites.found:
            if found is not None and call.signal_name in crashes.SANITIZED:
                return self._unseen(diagnosis)
            return self._stopped(diagnosis, found.stopped if found else None)
        of_value = sanitizer_sites.of_value(found.sites.found)
        places = sanitizer_sites.words(found.sites.found, self.source.name)
        lines = [lead, *self._with_indices(places, bool(of_value)), kept]
        if call.status == "timeout":
            # Name the wrong access first: it may be the cause of the time-out, because a damaged heap can block a call.
            lines = [of_value or OUTSIDE, *lines[1:], diagnosis.message.partition(" Look for ")[0]]
        return replace(diagnosis, message="\n".join(line for line in lines if line))

    def _with_lines(self, diagnosis: Diagnosis, pattern: str, words: str) -> Diagnosis:
        """Return the diagnosis with the lines of the whole file in which a pattern occurs, if there are few.

        `words` introduce the lines.
        """
        rows, code = (self.body.rows, self.body.code) if self.body is not None else ((), ())
        found = [n for n, row in enumerate(code) if re.search(pattern, row)]
        if not 0 < len(found) <= clues.MOST_PLACES:
            return diagnosis
        shown = [f"  {self.source.name}:{n + 1}: {harmless(rows[n].strip())[:160]}" for n in found]
        return replace(diagnosis, message="\n".join([diagnosis.message, f"{words}:", *shown]))

    def _unseen(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis without the advice to use sanitizers, because sanitizers found no wrong access.

        Lines with masked vector accesses are added, because sanitizers do not check these.
        """
        message = diagnosis.message.replace(crashes.ADVICE, "").rstrip()
        message += (
            " A run with sanitizers finds no such access. They check single elements and whole vectors."
        )
        return self._with_lines(
            replace(diagnosis, message=message), MASKED, "They do not check these masked accesses"
        )

    def _stopped(self, diagnosis: Diagnosis, stopped: Samples | None) -> Diagnosis:
        """Return the diagnosis of a time-out, with the loops whose text shows that they cannot end.

        Without such loops, the lines at which `stopped` sampled the call are added, and the loops around the most
        frequent line.
        """
        if self.body is None or diagnosis.code != "timeout":
            return diagnosis
        name = self.source.name
        if stuck := self._stuck():
            lead = diagnosis.message.partition(" Look for ")[0]
            return replace(diagnosis, message="\n".join([f"{lead} {STUCK}", *stuck]))
        lines = stopped.lines(self.body) if stopped else None
        if not lines:
            return diagnosis
        often = lines.most_common(MOST_STOPPED)
        where = ", ".join(f"{name}:{line}" for line, _ in often)
        words = f"The call was stopped in {where} ({hang_samples.TIMES} samples). The loops around this line:"
        heads = self.body.enclosing(often[0][0])
        changes = self.body.changes([place for place in heads if re.match(r"\s*while\b", place.text)])
        steps = set(re.findall(r"[-+]=\s*([A-Za-z_]\w*)\s*;", "\n".join(each.text for each in changes)))
        sizes = [self._row(each, "can this step be 0?") for each in self.body.values(steps)]
        shown = [*map(self._row, heads), *([CHANGES, *map(self._row, changes), *sizes] if changes else ())]
        return replace(diagnosis, message="\n".join([diagnosis.message, words, *shown]))

    def _stuck(self) -> list[str]:
        """Return the loops whose text shows that they cannot end."""
        found = self.body.stuck_loops() if self.body is not None else []
        return [self._row(place, note) for place, note in found[:MOST_STOPPED]]

    def _row(self, place: landmarks.Place, note: str = "") -> str:
        """Return a line of the student's file for a message."""
        return f"  {self.source.name}:{place.line}: {place.text}" + (f"   ({note})" if note else "")

    def _late_crash(self, crashed: Case, found: Checked | None) -> str:
        """Return the reason why the case `crashed` crashes only after other calls: a wrong access in an earlier call,
        or a static variable. `found` is the checked build's result of calling all public cases in one runner."""
        shown = clues.lines(self.body, self.part, ["static"]) if self.body is not None else []
        first = found.sites.found[:1] if found is not None else []
        if not shown and first and not first[0].where.startswith(f"'{crashed.name}'"):
            return "Alone this call does not crash. The crash is a late effect of the error above, in an earlier call."
        words = "This call crashes only after earlier calls: does a static or global variable keep a value?"
        return (
            f"{words}\n{clues.in_words(shown, self.body, self.source.name)}" if self.body and shown else words
        )

    # ---- a wrong output

    def wrong(self, known: Diagnosis) -> Diagnosis:
        """Return the diagnosis `known` of a wrong public case, extended by all further findings."""
        if known.code in PLAIN:
            return known
        # If every thread runs the whole loop, the threads race, even if each call gives the same wrong result.
        is_whole = WHOLE_LOOP in "\n".join(_sentence(self._shared_out, []))
        if known.code == "race" or is_whole:
            races = _sentence(self._races, "")
            if races or (is_whole and known.code == "race"):
                return self._raced(known, races)
        diagnosis = _sentence(lambda: self._with_source_mistake(self._stored(known)), known)
        has_cause = known.code not in unexplained(self.kernel.oracle.axes) and not known.message.startswith(
            PARTLY
        )
        checked = _sentence(lambda: self._checked(diagnosis, has_cause), None)
        if checked is not None and checked.sites.found:
            return self._outside(diagnosis, checked, has_cause)
        prober, smallest = _sentence(self._probed, (None, None))
        unread, constant_on = ([], "") if has_cause else _sentence(self._unread, ([], ""))
        found = _Findings(diagnosis, has_cause, checked, prober, smallest, unread, constant_on)
        shared, dissected = self._facts_sentence(found), self._dissection(found)
        facts = _lines_in(self.source.name, diagnosis.message)
        repairs = _sentence(lambda: self._repairs(smallest, facts=facts), "")
        lead = self._lead(found, shared, dissected)
        shown = _sentence(
            lambda: self._lines(found, dissected, self._bounds(f"{shared} {diagnosis.message}")), []
        )
        if repairs:
            lead, shown = self._beside(repairs, lead, shown, has_cause)
        lines = [
            *((lead, repairs) if has_cause else (repairs, lead)),
            *shown,
            *_sentence(lambda: self._next(found), []),
        ]
        return replace(diagnosis, message="\n".join(line for line in lines if line))

    def _beside(self, repairs: str, lead: str, shown: list[str], has_cause: bool) -> tuple[str, list[str]]:
        """Return (`lead`, `shown`), shortened to what is printed beside the edits `repairs`.

        The edits make the part right on all inputs, so they outrank guesses at the cause.

        1. If `lead` names the cause (`has_cause`) and an array that an edit resets, `lead` and `shown` stay.
        2. Otherwise `lead` is a guess if the cause is unknown, if `lead` names another array, or if no edited line is
           named. Then only the sentence of `lead` with the expected and the actual number stays.
        3. In all other cases, and if `lead` lacks that sentence, `lead` stays and `shown` is left out.
        """
        named, others = (_lines_in(self.source.name, text) for text in (repairs, "\n".join((lead, *shown))))
        numbers = NUMBERS.search(lead)
        # The array that `lead` suspects may differ from the array that the edits reset.
        set_again = {"".join(names) for names in SET_AGAIN.findall(repairs)}
        text = self.body.all_code() if self.body is not None and set_again else ""
        arrays = set(re.findall(r"\b[A-Z]\w*\b", lead)) & set(re.findall(r"\w+", text))
        if has_cause and set_again & arrays:
            return OTHER_CAUSE.sub("", lead), shown
        is_other = bool(set_again and arrays)
        if numbers is not None and (not has_cause or not named & others or is_other):
            # Keep only the first sentence: the later ones may name causes.
            first = re.split(r"(?<=\.) (?=[A-Z])", numbers[0])[0]
            return first, self._old_values(set_again) if set_again else []
        return OTHER_CAUSE.sub("", lead), []

    def _old_values(self, names: Collection[str]) -> list[str]:
        """Return the lines that use old values of these arrays, as a list of one text or no text."""
        if self.body is None:
            return []
        places = self.body.piled(names, reads=True)
        shown = [clues.Shown(place, "depends on old values") for place in places[: clues.MOST_PLACES]]
        return [clues.in_words(shown, self.body, self.source.name)] if shown else []

    def _repairs(
        self,
        smallest: Mapping[str, int] | None = None,
        near: Collection[int] = (),
        facts: Collection[int] = (),
        helper: str = "",
    ) -> str:
        """Return sentences with the small edits that make the part right (`repair.repairs`); "" if none does."""
        if self.second is None:
            return ""
        return repair.repairs(self.judged, self.second, smallest, near, facts, helper)

    def helper_repairs(self, helper: str) -> str:
        """Return a sentence with the edits of the function `helper` that make the part right; "" if none does."""
        return _sentence(lambda: self._repairs(helper=helper), "")

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
        rows, regions = self._with_indices(races), _sentence(lambda: self._shared_out(races), [])
        # If the lines write through a pointer, show where it gets its address.
        written = re.findall(r":\d+: (\w+)\[[^=]*\]\s*[-+*/]?=(?!=)", races)
        for name in dict.fromkeys(written):
            found = body.find(rf"\*\s*(?:const\s+)?{name}\s*=(?!=)") if body is not None else []
            rows[1:1] = [
                self._row(place, f"sets {name}")
                for place in found[-1:]
                if f":{place.line}: " not in "\n".join(rows)
            ]
        if NUMBERED_EARLY in "\n".join(regions):
            rows[0] = OWN_PART.sub("Call omp_get_thread_num() inside the parallel region.", rows[0])
        elif WHOLE_LOOP in "\n".join(regions):
            rows = [OWN_PART.sub("", races).rstrip()]
        elif early:
            rows = [OWN_PART.sub("", rows[0]).rstrip()]
        elif body is not None and rows[0].partition(":")[0] in body.returned:
            rows[0] = OWN_PART.sub(SAME_ELEMENT, rows[0])
        elif ONE_APART.search("\n".join(rows[1:])):
            rows[0] = ADVICE.sub(ROW_LENGTH, rows[0])
        elif strides := _sentence(self._strides, []):
            rows = [ADVICE.sub("The parts of the threads overlap.", rows[0]), *strides]
        elif parts := re.findall(r"(\w+)\s*=[^=\n]*omp_get_thread_num", "\n".join(rows[1:])):
            own = re.search(rf"\b(?:{'|'.join(parts)})\s*[\[*]|\[[^\]\n]*\b(?:{'|'.join(parts)})\b", rows[0])
            rows[0] = OWN_PART.sub(OVERLAP if own else "", rows[0]).rstrip()
        lines = [first, *early, *regions, *rows, command, seen]
        return replace(diagnosis, message="\n".join(line for line in lines if line))

    def _shared_out(self, races: str = "") -> list[str]:
        """Return the lines of the function that show how a parallel region divides its work, each with a note.

        They are the pragmas and the loops around the lines that `races` names. If there is exactly one region, its
        pragma is added. Further lines are calls of omp_get_thread_num() before it, declarations of numbers that all
        threads share, and loops that each thread runs whole.
        """
        if (body := self.body) is None:
            return []
        code, notes = "\n".join(body.code), dict[int, str]()
        accesses = _lines_in(self.source.name, re.sub(r".*\ballocated \(.*", "", races))
        for line in accesses:
            lines = scopes.shared_loop(code, _offset(body, line))
            notes |= dict(zip(lines, ("the parallel region", DIVIDED), strict=False))
        notes = {line: note for line, note in notes.items() if line not in accesses}
        regions = body.find(r"#\s*pragma\s+omp\s+parallel\b")
        if len(regions) == 1:
            begin, end = _offset(body, body.first), _offset(body, body.last + 1)
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
        )
        rows, sizes = list[str](), self.kernel.shape.keys()
        for line in body.lines():
            for name, begun, column, index, width in begin.findall(body.code[line - 1]):
                counter, step = column or index, begun or width
                used = rf"\b{name}\s*\[\s*(\w+)\s*\]|\[\s*{name}\s*\+\s*(\w+)\s*\]"
                counters = (
                    {"".join(one) for one in re.findall(used, code)} if name and not counter else {counter}
                )
                ends = {end for each, end in LOOP_TO.findall(code) if each in counters}
                if step in sizes and len(ends & sizes) == len(ends) == 1 and step not in ends:
                    end = min(ends)
                    note = f"{end} in place of {step}? Thread t begins at t * {step}, but uses {end} elements"
                    rows.append(self._row(body.place(line), note))
        return rows

    def _facts_sentence(self, found: _Findings) -> str:
        """Return a sentence with facts common to all inputs; "" if none is found.

        If the cause is known, return "" unless the diagnosis's code is in `Oracle.sized_codes`.
        """
        if found.has_cause and found.diagnosis.code not in self.kernel.oracle.sized_codes:
            return ""
        return _sentence(lambda: self._facts(found.prober), "")

    def _dissection(self, found: _Findings) -> Dissected | None:
        """Return the wrong step of the computation; None if it is not found, or if a known cause already names it."""
        code, message = found.diagnosis.code, found.diagnosis.message
        is_named = found.has_cause or (code == "low_precision" and not message.startswith(CLOSE))
        if is_named and code not in self.kernel.oracle.dissected_codes:
            return None
        return _sentence(lambda: self._dissected(found.prober), None)

    def _lead(self, found: _Findings, shared: str, dissected: Dissected | None) -> str:
        """Return the message of the diagnosis, preceded by sentences with the other findings."""
        added, message = [shared], found.diagnosis.message
        if found.diagnosis.code == "unsteady":
            added.append(_sentence(self._left_behind, ""))
            if found.checked is not None and found.checked.tried:
                message = message.replace(Oracle.unsteady_advice, "" if added[1] else UNWRITTEN)
        zeros = "" if _lines_in(self.source.name, message) else self._zeros(found.checked)
        if zeros and found.diagnosis.code in ("race", "unsteady"):
            numbers = NUMBERS.search(message)
            message = f"{OTHER_RESULT} {numbers[0] if numbers else ''}".rstrip()
        added += [dissected.words if dissected else "", zeros]
        if found.unread:
            added.append(
                f"a change of {found.unread[0]} alone changes no output: {found.unread[0]} is not used, or another "
                "input is used in its place"
            )
        if found.constant_on:
            added.append(
                f"on '{found.constant_on}' no input changes the output: at these sizes, is the computation skipped, or "
                "multiplied by 0?"
            )
        if right := self._right_outputs():
            names, others = (
                " and ".join(name or "the returned tensor" for name in outputs)
                for outputs in (right, sorted(self.kernel.wrong_outputs))
            )
            added.append(f"right on all inputs: {names}; look at {others}")
        ended = [text if text.endswith("?") else f"{text}." for text in added if text]
        lead = " ".join(f"{text[:1].upper()}{text[1:]}" for text in ended)
        if dissected and message.startswith("NaN"):
            message = _without_guesses(found.diagnosis).message
        if "tile of" in lead or "multiple of" in lead:
            message = LIKELY.sub("", message)
        return f"{lead} {message}".strip()

    def _stored(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis of an output of zeros, with the line that stores into the output.

        If the source text shows why the stored values are lost, this reason is added instead. Other diagnoses are
        returned unchanged.
        """
        if diagnosis.code != "not_written" or self.body is None:
            return diagnosis
        shown = clues.lines(self.body, self.part, ["store"], self._right_outputs())
        divisions = self.body.whole_divisions()[:1]
        if not shown and not divisions:
            return self._unstored(diagnosis)
        stores = f"line {shown[0].place.line} stores into" if shown else ""
        unsaid = re.search(NOT_STORED.format(r"([^.]+)"), diagnosis.message)
        output = unsaid[1] if unsaid else ""
        words = f"{stores} {output}, but every returned value is 0"
        for place, division in divisions:
            words = (
                f"line {place.line} divides integers, {division}: the result is 0 if the second one is larger. Write "
                f"{division.replace('/', '.0f /', 1).replace(' .', '.')} for a float"
            )
        for place in self.body.find(COPIED_IN.pattern)[:1] if shown else ():
            for array, tensor in COPIED_IN.findall(place.text)[:1]:
                is_set = re.search(rf"\b{array}\b", shown[0].place.text)
                if is_set and not self.body.find(rf"\b(?:copy\w*|memcpy)\b.*\b{array}\b"):
                    how = f"line {place.line} makes {array} a copy of {tensor}"
                    words = f"{stores} {array}, and {how}: use a pointer to {tensor}"
        for place, copy in self.body.lost_copies()[:1] if shown else ():
            words = (
                f"{stores} {copy}, which is a copy, and line {place.line} returns another tensor. Return the tensor "
                "with the copy's values"
            )
        for place, tensor, array in self.body.overwritten()[:1] if shown else ():
            words = (
                f"{stores} the memory of {tensor}, and line {place.line} overwrites it with {array}, which is still 0. "
                f"Return {tensor} as it is, or store into {array}"
            )
        for copied in clues.lines(self.body, self.part, ["own_copies"], self._right_outputs())[:1]:
            words = (
                f"line {copied.place.line} gives each thread a copy of its own to store into, and the copies are lost. "
                "Name the output in none of the clauses private and firstprivate"
            )
        return replace(diagnosis, message=diagnosis.message.replace(NOT_STORED.format(output), words))

    def _unstored(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis of an output of zeros, with the inputs that the function does not use and its last step.

        It is returned unchanged if the function has no loop, or uses no input.
        """
        body, unsaid = self.body, re.search(NOT_STORED.format(r"([^.]+)"), diagnosis.message)
        steps = body.find(r"[^=!<>]=(?!=)") if body is not None and body.find(r"\b(?:for|while)\b") else []
        if body is None or unsaid is None or not steps:
            return diagnosis
        inputs = self.kernel.inputs_of(self._public()[0])
        given = [one for one in zip(self.part.arguments, body.parameters, strict=False) if one[0] in inputs]
        unused = [argument for argument, own in given if not body.reads([own])]
        if len(unused) == len(given):
            return diagnosis
        words = [f"no store into {unsaid[1]} was found in {body.name}"]
        words += [f"{' and '.join(unused)} is never read"] if unused else []
        text = f"{', and '.join(words)}: is a last step missing, after {self.source.name}:{steps[-1].line}?"
        return replace(diagnosis, message=diagnosis.message.replace(f"{unsaid[0]}.", text))

    def _with_source_mistake(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis, preceded by a mistake that the source text shows, if any.

        Such mistakes are: a reduction by a wrong operator; exp() of a wrong sign; a sum that is not set to 0; changes
        to a copy; threads that are counted outside of a parallel region.
        """
        if self.body is None:
            return diagnosis
        name, words = self.source.name, ""
        if mixed := [one for at in dataflow.reached(self.body) for one in at.body.mixed_reductions()]:
            words = f"{name}:{mixed[0][0].line} has `{mixed[0][0].text}`, {mixed[0][1]}"
        elif lost := list(scopes.lost_shares(self.body.all_code(), 0, len(self.body.all_code()))):
            ((line, word, array), *_) = lost
            line += self.body.lines().start - 1
            numbers = NUMBERS.search(diagnosis.message)
            diagnosis = replace(diagnosis, message=numbers[0]) if numbers else diagnosis
            words = (
                f"Only one thread runs the block after {name}:{line} (omp {word}), so what the other threads added "
                f"up in their own {array} is lost. Write omp critical in place of omp {word}."
            )
        elif "stale" in diagnosis.code and (
            cleared := [one for at in dataflow.reached(self.body) for one in at.body.cleared_sources()]
        ):
            ((place, tensor, vector), *_) = cleared
            words = (
                f"{name}:{place.line} clears {tensor}, but {vector} is a copy of it: clear {vector} itself."
            )
        elif misread := self._misread():
            words = misread
        elif copied := dataflow.without_effect(self.body):
            ((place, copy, kind), *_) = copied
            diagnosis = _without_guesses(diagnosis)
            words = (
                f"{copy} in {name}:{place.line} is a copy: what is changed in it is lost. Write a reference, as in "
                f"{kind} &{copy}."
            )
        elif diagnosis.code in ("not_finite", "overflow"):
            for place, term in self.body.grown_exponents()[:1]:
                diagnosis = _without_guesses(diagnosis)
                words = (
                    f"{term} in {name}:{place.line} has the wrong sign. The new maximum minus the old one is positive, "
                    "and infinite while the old one is -inf, so that exp() overflows. Write "
                    "exp(old maximum - new maximum)."
                )
        elif diagnosis.code == "stale_sum" and (added := self.body.never_begun()):
            ((place, array), *_) = added
            words = f"{array} is added to in {name}:{place.line} and set to zero nowhere in this function."
        elif diagnosis.code == "not_normalised" and (
            kept := [one for at in dataflow.reached(self.body) for one in at.body.kept_divisors()]
        ):
            ((place, sum_), *_) = kept
            words = f"{sum_} is added to in {name}:{place.line} and not set to zero in the loop around it."
        elif self.body.find(r"#\s*pragma\s+omp\s+parallel\b") and (
            counted := [at for at in self.body.find(rf"\b{COUNT}\b") if self._counted(at.line)]
        ):
            words = f"{COUNT}() in {name}:{counted[0].line} is {COUNTED_EARLY}."
        return replace(diagnosis, message=f"{words} {diagnosis.message}") if words else diagnosis

    def _misread(self) -> str:
        """Return a sentence on a cast of a tensor's data to another type than that of its elements; "" without one."""
        body = self.body
        cases = [case for case in self._public() if self.kernel.wrong.get(case.name) is not None]
        if body is None or not cases:
            return ""
        inputs = self.kernel.inputs_of(cases[0])
        for argument, own in zip(self.part.arguments, body.parameters, strict=False):
            kind, others = MISREAD.get(str(inputs[argument].dtype) if argument in inputs else "", ("", ()))
            cast = rf"(?:\(|cast\s*<)\s*(?:const\s+)?([\w:]+)\s*\*\s*[)>]\s*\(?\s*{own}\s*\.\s*data_ptr\s*\("
            for place in body.find(cast) if kind and own else ():
                for used in re.findall(cast, place.text)[:1]:
                    if used.removeprefix("std::") in others:
                        return (
                            f"{own} has elements of type {kind}, and {self.source.name}:{place.line} reads them as "
                            f"{used}. Write {own}.data_ptr<{kind}>()."
                        )
        return ""

    def _right_outputs(self) -> list[str]:
        """Return the names of the outputs that were right on every input; [] if no output was wrong."""
        wrong = self.kernel.wrong_outputs
        return sorted(self.kernel.seen_outputs - wrong) if wrong else []

    def _public(self) -> list[Case]:
        """Return the public cases, the smallest first."""
        cases = [case for case in self.part.cases if not case.hidden]
        return sorted(cases, key=lambda case: math.prod({**self.kernel.shape, **case.shape}.values()))

    def _probed(self) -> tuple[Prober | None, dict[str, int] | None]:
        """Call the kernel at other sizes. Return (the Prober with these calls, the smallest sizes that fail).

        Both are None if the lab lists no sizes to try, or if the part has no suitable case (`size_probe.choose`,
        `size_probe.anchors`). The sizes are None if no call fails.
        """
        case, anchors = size_probe.choose(self.kernel), size_probe.anchors(self.kernel)
        if case is None or not anchors or not self.kernel.oracle.probes:
            return None, None
        with self.judged.fresh(threads=self.kernel.shape["threads"]) as session:
            prober = Prober(self.kernel, session, case)
            for anchor in anchors:
                smallest = prober.smallest(anchor)
                if smallest is not None:
                    prober.look(anchor)
                    return prober, smallest
            return prober, None

    def _unread(self) -> tuple[list[str], str]:
        """Find the inputs that change the expected outputs of a wrong case, but not the kernel's outputs.

        Return (names of these inputs, ""). If the expected outputs depend on several inputs and the kernel's outputs on
        none of them, return ([], the case's name).
        """
        shaped = [(case, {**self.kernel.shape, **case.shape}) for case in self._public() if case.weight > 0]
        wrong = [(case, shape) for case, shape in shaped if self.kernel.wrong.get(case.name) is not None]
        if not wrong:
            return [], ""
        # On a small case, a kernel that leaves out the last elements may use no element of an input.
        sized = [(math.prod(self.kernel.sizes(each[1]).values()), each) for each in wrong]
        few = [one for one in sized if one[0] <= MOST_SWAPPED]
        _, (case, shape) = max(few, key=itemgetter(0)) if few else min(sized, key=itemgetter(0))
        inputs, others = (
            drawn(self.kernel.lab, case.distribution, shape, seed, keep=False)
            for seed in (case.seed, case.seed + 1)
        )
        found, moving = [], 0
        with self.judged.fresh(threads=shape["threads"]) as session:
            first = self.kernel.call(session, case.name, inputs)
            # An output of NaN does not show on which inputs it depends.
            is_finite = first.outputs and all(np.isfinite(value).all() for value in first.outputs.values())
            for name in inputs if is_finite else ():
                run = self.kernel.call(session, case.name, inputs.swapped(name, others))
                if name in self.part.outputs or not first.outputs or not run.outputs:
                    continue
                # A change below the tolerance counts as none: a right kernel may round it away.
                moves = any(
                    (abs(known.value - first.expected[output].value) > known.tolerance).any()
                    for output, known in run.expected.items()
                )
                same = (np.array_equal(value, first.outputs[output]) for output, value in run.outputs.items())
                moving += moves
                if moves and all(same):
                    found.append(name)
        return ([], case.name) if moving > 1 and len(found) == moving else (found, "")

    def _facts(self, prober: Prober | None) -> str:
        """Return a clause on the wrong indices or on the sizes that are right; "" if no simple clause holds.

        It begins with the inputs on which it holds: "on all 9 inputs that were tried: only row 0 is wrong".
        """
        oracle, kernel = self.kernel.oracle, self.kernel
        seen = [
            Seen(
                {**kernel.sizes(shape), **self._lengths(shape)},
                kernel.wrong[case.name],
                case.weight == 0 or size_probe.is_trivial(oracle, shape),
                kernel.wrong_output.get(case.name, ""),
            )
            for case in self.part.cases
            if not case.hidden and case.name in kernel.wrong
            for shape in [{**kernel.shape, **case.shape}]
        ]
        probes = list(prober.seen.values()) if prober is not None else []
        names = [*kernel.sizes(kernel.shape), *self._lengths(kernel.shape)]
        every = [*seen, *probes]
        place = common_facts.place(every, oracle.axes, oracle.tiles)
        condition = common_facts.condition(every, names, oracle.tiles)
        clauses = "; ".join(filter(None, (place, condition)))
        if clauses:
            return f"on all {len(every)} inputs that were tried: {clauses}"
        wrong = [each for each in every if each.wrong is not None]
        if place := common_facts.place(wrong, oracle.axes, oracle.tiles):
            return f"on all {len(wrong)} inputs on which it is wrong: {place}"
        # Special inputs of the cases may be right by chance: use only the random inputs of `prober`.
        condition = common_facts.condition(probes, names, oracle.tiles)
        return f"on {len(probes)} random inputs of other sizes: {condition}" if condition else ""

    def _lengths(self, shape: Mapping[str, int]) -> dict[str, int]:
        """Return the lengths of the output's axes, by name ("the output's rows").

        Only axes whose length is an expression such as N // 2 are returned, not those whose length is a single size.
        """
        oracle, dims = self.kernel.oracle, self.part.output_dims
        axes = oracle.axes if len(oracle.axes) == len(dims) else usual_axes(len(dims))
        lengths = binding.output_shape(self.part, shape)
        return {
            f"the output's {axis.plural}": length
            for axis, dim, length in zip(axes, dims, lengths, strict=True)
            if not str(dim).isidentifier()
        }

    def _dissected(self, prober: Prober | None) -> Dissected | None:
        anchors = size_probe.anchors(self.kernel)
        if prober is None or not anchors:
            return None
        with self.judged.fresh(threads=self.kernel.shape["threads"]) as session:
            asked = Prober(self.kernel, session, prober.case)
            return self.kernel.oracle.dissect(asked.output, anchors[0])

    # ---- builds with sanitizers

    def _checked(self, diagnosis: Diagnosis, known: bool) -> Checked | None:
        """Run the checked build on public inputs, if it exists and a wrong access may be the cause; else return None.

        Memory outside of an array and freed memory hold arbitrary values, so their effect may look like a mistake in a
        formula. If a cause is `known` and all elements are wrong, the build runs only if calls give different results.
        """
        if self.second is None:
            return None
        is_whole = diagnosis.wrong_count == diagnosis.total_count
        if known and is_whole and diagnosis.code not in ("unsteady", "race"):
            return None
        cases = self._public()
        wrong = [case for case in cases if self.kernel.wrong.get(case.name) is not None]
        found = self.second.look(self.part, wrong[:MOST_CHECKED])
        if found is None or found.sites.found:
            return found
        # A right result does not exclude a wrong access: also try small inputs on which the result is right.
        small = [case for case in cases if case.shape and case not in wrong]
        others = self.second.look(self.part, small[:MOST_CHECKED])
        return others if others is not None and others.sites.found else found

    def _outside(self, diagnosis: Diagnosis, checked: Checked, has_cause: bool) -> Diagnosis:
        """Return the diagnosis with the wrong accesses that the checked build found.

        A cause that the diagnosis names (`has_cause`) is dropped, because arbitrary values from outside of an array can
        imitate any cause. The cause stays if the build found only errors in values, such as an integer overflow.
        """
        found, of_value = NUMBERS.search(diagnosis.message), sanitizer_sites.of_value(checked.sites.found)
        # A guess at the cause may be wrong here, too.
        numbers, lead = re.sub(r": look at [^.]*", "", found[0]) if found else "", of_value or OUTSIDE
        # The elements that an accessor reads or writes show its mistake, wherever else it reads or writes.
        if has_cause and (of_value or self.part.table):
            numbers = diagnosis.message
        if diagnosis.code in ("unsteady", "race"):
            lead = f"{OTHER_RESULT} {lead}"
        places = sanitizer_sites.words(checked.sites.found, self.source.name)
        if "freed" in places:
            # Freed memory holds arbitrary values: the indices of wrong elements do not help.
            numbers = re.sub(r"(?<= wrong): .*", ".", numbers)
        shown = self._with_indices(places, bool(of_value))
        near = _lines_in(self.source.name, "\n".join(shown))
        repairs = _sentence(lambda: self._repairs(near=near), "")
        lines = [
            lead,
            *self._returned(places),
            *([sanitizer_sites.words(checked.sites.found[:1], self.source.name)] if repairs else shown),
            repairs,
            numbers,
        ]
        return replace(diagnosis, message="\n".join(line for line in lines if line).strip())

    def _returned(self, places: str) -> list[str]:
        """Return the lines that make a tensor (from_blob) of memory that is freed when the function returns."""
        found = self.body.find(r"\bfrom_blob\b") if self.body is not None and "freed" in places else []
        note = "from_blob copies nothing: the array is freed when the function returns; add .clone()"
        return [self._row(place, note) for place in found if ".clone" not in place.text]

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
        begin, at = (_offset(body, each) for each in (body.opened, line))
        is_outside = scopes.region_around(code, at) is None and not IN_LAMBDA.search(code[begin:at])
        return COUNTED_EARLY if is_outside else ""

    def _zeros(self, checked: Checked | None) -> str:
        if checked is None or not checked.right_if_zeroed:
            return ""
        return (
            f"on '{checked.right_if_zeroed[0]}' the result is right only if all new memory is zeros: a variable has no "
            "initial value, or memory keeps values of the previous call"
        )

    # ---- what to do next, and where

    def _next(self, found: _Findings) -> list[str]:
        prober, smallest, checked = found.prober, found.smallest, found.checked
        repeated = []
        if prober is not None and smallest is not None:
            numbers = _sentence(lambda: self._numbers(prober, smallest), "")
            repeated = [f"Smallest that fails: {self._command(smallest)}{numbers}"]
        if found.diagnosis.code == "low_precision" or (
            found.has_cause and found.diagnosis.code != "unsteady"
        ):
            # The cause is known: a run with sanitizers would not help.
            return repeated
        if checked is not None and checked.tried:
            return ["No access outside of an array was seen on these inputs.", *repeated]
        if not self.kernel.backend.kind.on_card and (self.second is None or not self.second.exists):
            repeated.append(f"Next: {self._named()} --sanitize names accesses outside of an array.")
        return repeated

    def _command(self, sizes: dict[str, int]) -> str:
        assignment = self.assignment
        chosen = {name: size for name, size in sizes.items() if size != assignment.defaults.get(name)}
        words = " ".join(size_options(chosen, assignment.size_options))
        return f"{self._named()} {words}".rstrip()

    def _named(self, study: str = "") -> str:
        """Return the command line that judges the part, or that runs the command `study` on it."""
        return f"{self.judged.command} {study}{self.part.id if study else self.part.command}"

    def _races(self) -> str:
        watch = self.judged.watch_races
        return watch(self.part) if watch is not None else ""

    def _left_behind(self) -> str:
        """Make one wrong call twice in a new process. Return a sentence if only the second call is wrong, else ""."""
        case = next((case for case in self._public() if self.kernel.wrong.get(case.name) is not None), None)
        if case is None:
            return ""
        threads = {**self.kernel.shape, **case.shape}["threads"]
        try:
            with self.judged.fresh(threads=threads) as session:
                right = [self.kernel.call_case(session, case).is_right for _ in range(2)]
        except faults.Faulty:
            return ""
        if right != [True, False]:
            return ""
        keeping = self.kernel.oracle.keeping
        return f"the first call of a process is right and the same call again is wrong: {keeping}"

    def _numbers(self, prober: Prober, sizes: dict[str, int]) -> str:
        """Call the kernel at `sizes`. Return " (expected ..., got ...)" with all elements of the output.

        Returns "" for several outputs, an output of more than MOST_NUMBERS elements, and a right output.
        """
        inputs = prober.inputs({**self.kernel.shape, **sizes})
        expected = self.kernel.expected(inputs)
        if len(expected) != 1:
            return ""
        (value,) = (each.value for each in expected.values())
        if value.size > MOST_NUMBERS:
            return ""
        with self.judged.fresh(threads=self.kernel.shape["threads"]) as session:
            found = Prober(self.kernel, session, prober.case).output(sizes, inputs)
        if found is None:
            return ""
        wanted, got = (" ".join(f"{x:.6g}" for x in each.reshape(-1)) for each in (value, found))
        # A result that changes from call to call may be right in this call.
        return f" (expected {wanted}, got {got})" if wanted != got else ""

    def _bounds(self, facts_found: str) -> list[str]:
        """Return clues for loops whose ends may be wrong: keywords for the lines to show (see `clues`).

        `facts_found` has the sentence of `common_facts` about the sizes at which calls are right or wrong, and the
        diagnosis's message.
        """
        if "beyond the last full tile" in facts_found:
            return list(clues.USUAL["remainder_tile"])
        if several := MULTIPLE.search(facts_found):
            return [f"cut:{several[1]}", *(["shares"] if several[2].isdigit() else [f"until:{several[2]}"])]
        if several := NO_MULTIPLE.search(facts_found):
            return [f"rest:{several[1]},{several[2]}", f"tests:{several[2]}"]
        if above := ABOVE.search(facts_found):
            # Loops run over lengths of inputs and outputs, but not over a stride, say.
            lengths = {
                str(dim) for dims in (*self.part.inputs.values(), self.part.output_dims) for dim in dims
            }
            return [f"unlooped:{above[1]}"] if above[1] in lengths else []
        if number := FROM.search(facts_found):
            fewest = int(number[2])
            # With one turn for each thread, no thread can meet values of its last turn.
            own = ["own_turns"] if fewest == self.kernel.shape["threads"] + 1 else []
            lanes = ["lanes"] if fewest in VECTORS else []
            return [*own, "grown", *lanes, f"turns:{fewest}"]
        if OF_OUTPUT.search(facts_found):
            return ["same_ends"]
        if relation := RELATED.search(facts_found):
            return [*(f"mixed:{name}" for name in relation.groups()), f"?until:{relation[2]}"]
        return []

    def _lines(self, found: _Findings, dissected: Dissected | None, bounds: list[str]) -> list[str]:
        code, known, checked = found.diagnosis.code, found.has_cause, found.checked
        if self.body is None:
            return []
        oracle, wanted = self.kernel.oracle, [*bounds, *(dissected.clues if dissected else ())]
        if checked is not None and checked.right_if_zeroed:
            wanted += ["static", "bare", "fresh"]
        if instead := re.search(r"\b([A-Z]) is used in the place of ([A-Z])\b", found.diagnosis.message):
            wanted.append(f"instead:{instead[1]},{instead[2]}")
        for name in found.unread[:1]:
            wanted += [f"input:{name}", *(f"input:{other}" for other in self._alike(name))]
        wanted += () if known else ("small",)
        wanted += (
            oracle.clues.get(code)
            or clues.usual(code)
            or (("store", "stored") if known else clues.USUAL["wrong_values"])
        )
        suspected = self._suspected(known and code not in {*oracle.dissected_codes, "unsteady"})
        name = self.source.name
        shown = clues.lines(self.body, self.part, list(dict.fromkeys(wanted)), self._right_outputs())
        shown = shown or clues.lines(self.body, self.part, clues.USUAL["wrong_values"], self._right_outputs())
        if len(shown) == 1:
            line = shown[0].place.line
            made = [at for at in dataflow.indices(self.body, line) if at.line != line]
            shown = [*shown, *(replace(shown[0], place=at, words="") for at in made[: clues.MOST_PLACES])]
        shown = [*(() if known else self._hiding(self.body)[: clues.MOST_PLACES]), *shown]
        for line in map(int, re.findall(r"\bline (\d+) divides\b", found.diagnosis.message)):
            shown = [clues.Shown(self.body.place(line), "divides integers"), *shown]
        # If the source text shows the mistake, only its line matters.
        facts = [line for line in _lines_in(name, found.diagnosis.message) if line <= len(self.body.rows)]
        shown = [clues.Shown(self.body.place(line), "") for line in facts] or shown
        if not shown and self.kernel.backend.kind.on_card:
            return suspected
        if not shown and self.body.last - self.body.opened <= SHORT:
            shown = [clues.Shown(place, "") for place in self.body.find(r"\w")]
        return [*suspected, clues.in_words(shown, self.body, name)]

    def _hiding(self, body: landmarks.Body) -> list[clues.Shown]:
        """Return the lines of the function that declare a number that hides an outer one of the same name."""
        code = "\n".join(body.code)
        begin, end = (len("\n".join(body.code[: line - 1])) for line in (body.first, body.last + 1))
        found = scopes.hiding(code, begin, end, scopes.declared_names(code))
        return [
            clues.Shown(body.place(scopes.line_of(code, span[0])), f"declares {words}")
            for _, span, _, words in found
        ]

    def _alike(self, name: str) -> list[str]:
        """Return the other inputs with the dimensions of the input `name`. Similar names come first."""
        sizes, letters = self.part.inputs, name.rstrip("0123456789")
        others = [other for other in sizes if other != name and sizes[other] == sizes[name]]
        return sorted(
            (other for other in others if other not in self.part.outputs),
            key=lambda other: other.rstrip("0123456789") != letters,
        )

    def _suspected(self, known: bool) -> list[str]:
        """Return the compiler's warnings for the function, and for functions and classes that it uses.

        Warnings about uninitialized variables are returned for all this code. Other warnings are returned only for the
        function itself, and only if the mistake is not `known`.
        """
        if self.second is None or not self.second.is_allowed or self.body is None:
            return []
        used = [(at.body.first, at.body.last) for at in dataflow.reached(self.body)[1:]]
        code, text = "\n".join(self.body.code), self.body.all_code()
        for one in _CLASS.finditer(code):
            if re.search(rf"\b{one[1]}\b", text):
                last = landmarks.closed(code, one.end(), "{}")
                used.append((scopes.line_of(code, one.start()), scopes.line_of(code, last)))
        rows = self.body.rows
        own = range(self.body.first, self.body.last + 1)
        return [
            f"The compiler says: {self.source.name}:{each.line}: {each.text}\n"
            f"  {rows[each.line - 1].strip()[:120]}"
            for each in warnings.warned(self.source, self.judged.defines, [(own.start, own.stop - 1), *used])
            if "uninitialized" in each.flag or (each.line in own and not known)
        ]
