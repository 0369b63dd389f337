"""Explanation of a crash, an exception or a time-out. See `grader.explain.closer_look`."""

from __future__ import annotations

import re
from dataclasses import replace

from grader.assignment.records import Case
from grader.backends.native import crashes
from grader.core.results import Diagnosis
from grader.explain import clues, hang_samples, sanitizer_sites
from grader.explain.diagnose import concluded, unexplained
from grader.explain.explainer import (
    INDEX_LEAD,
    OUTSIDE,
    VALUE_LEAD,
    Explainer,
    lines_in,
    sentence,
    with_message,
)
from grader.explain.hang_samples import Samples
from grader.explain.judged_part import Checked
from grader.explain.suspect import FEWEST_PARTIAL

#: Message on a crash. Its general advice, after the colon, is removed if the place of the crash is known.
HINT = re.compile(r"(crashed with SIG(?:SEGV|BUS|FPE|ILL)): .*", re.DOTALL)
#: Vector accesses under a mask, which AddressSanitizer does not check.
MASKED = r"\b_mm\w*_mask\w*(?:load|store|gather|scatter)\w*\s*\("
#: Message of the exception of `data_ptr<float>()` on a tensor of another type, and C++ names of torch's types.
SCALAR_TYPE = re.compile(r"expected scalar type (\w+) but found (\w+)")
CPP_TYPES = {"Float": "float", "Double": "double", "Int": "int", "Long": "int64_t"}
#: The place of an exception in a Python file. A hand-in of several files has their names in place of "line".
RAISED = re.compile(r": line (\d{1,9}) raised \w")
EXITS = r"\b_?(?:exit|_Exit|quick_exit)\s*\("
MOST_STOPPED = 2
STUCK = "This loop cannot end:"
CHANGES = "These lines change the variables that the loops test:"
INDEX_LINES = re.compile(rf"\n(?:{INDEX_LEAD}|{VALUE_LEAD})(?:\n  .*)+")
#: The list of wrong accesses (`sanitizer_sites.words`): its headline, and its places after the first one.
LATER_PLACES = re.compile(
    r"\d+ places, in order\.[^\n]*\n1\. |\n(?:[2-9]\. |\.\.\. and )[^\n]*(?:\n  [^\n]*)*"
)


class CrashExplainer(Explainer):
    """Explanation of a part whose call ended without an output."""

    def crash(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis of a crash, with the place that a checked build reports, and edits that prevent it.

        Without such edits, the cause of earlier wrong outputs is added. It may also be the cause of the crash: a write
        outside of an array gives a wrong output at one size and a crash at another.
        """
        placed = sentence(lambda: self._placed(diagnosis), diagnosis)
        # For exit(), an exception and an endless loop the message already names the line: do not search for edits.
        is_explained = diagnosis.hidden or diagnosis.code in ("exit", "exception") or STUCK in placed.message
        near = lines_in(self.source.name, placed.message.rpartition(CHANGES)[2])
        repairs = "" if is_explained else sentence(lambda: self._repairs(near=near), "")
        # If edits correct the part, leave out the cause of earlier wrong outputs and the lines that compute an index.
        before = "" if diagnosis.hidden or repairs else sentence(lambda: self._before(diagnosis), "")
        place = LATER_PLACES.sub("", INDEX_LINES.sub("", placed.message)) if repairs else placed.message
        return with_message(placed, place, repairs, before)

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
            return with_message(diagnosis, diagnosis.message, *shown)
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
            return with_message(diagnosis, f"{lead} {STUCK}", *stuck)
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
        return with_message(diagnosis, *lines)

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
            return with_message(diagnosis, f"{lead} {STUCK}", *stuck)
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
        return with_message(diagnosis, diagnosis.message, words, *shown)

    def _stuck(self) -> list[str]:
        """Return the loops whose text shows that they cannot end."""
        found = self.body.stuck_loops() if self.body is not None else []
        return [self._row(place, note) for place, note in found[:MOST_STOPPED]]

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
