"""Extended explanation of a wrong or crashing part. It helps the student find the line; the verdict is already known.

If a checked build (with sanitizers) finds an access outside of an array, the message on a wrong result names the
access. Otherwise it names facts common to all inputs, and the wrong step of the computation. Then follow, if found:
edits that make the part right, lines to look at, and a command with the smallest sizes that fail. If the code that
writes one sentence raises an error, only that sentence is missing. This module does not change verdicts, points, or
the codes of diagnoses.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from grader.core.commandline import size_options
from grader.core.results import Diagnosis
from grader.explain import clues, sanitizer_sites
from grader.explain.crash_explainer import CrashExplainer
from grader.explain.diagnose import OTHER_RESULT, PARTLY, SAME_OUTPUT, unexplained
from grader.explain.explainer import (
    NUMBERS,
    OUTSIDE,
    Explainer,
    Findings,
    lines_in,
    sentence,
    with_message,
    without_guesses,
)
from grader.explain.further_calls import FurtherCalls
from grader.explain.judged_part import Checked, JudgedPart, OtherBuilds
from grader.explain.oracle import Dissected, Oracle
from grader.explain.race_explainer import RaceExplainer
from grader.explain.relations import CLOSE
from grader.explain.shown_lines import ShownLines
from grader.explain.source_mistakes import SourceMistakes

UNWRITTEN = (
    "Only one thread works here, so it is not a race: the function reads memory that was never written."
)
#: Remark on a tile length that was guessed from one input. It is removed if the message names a tile length or a
#: multiple that fits all inputs.
LIKELY = re.compile(r" \(tiles of \d+ would end there\)")
#: The description of an edit that resets all elements of an array, or moves a line that does it. The groups are the
#: array's name.
SET_AGAIN = re.compile(
    r"add a loop that sets all of (\w+)|:\d+: (?:std::)?(?:fill|memset)\w*\(\s*&?(\w+)[^\n]*\(this (?:line|statement)"
)
MOST_CHECKED = 4
OTHER_CAUSE = re.compile(rf" {SAME_OUTPUT} .*?(?= Expected )", re.DOTALL)
#: Codes of diagnoses that need no further explanation by sizes or lines.
PLAIN = frozenset(
    {"wrong_shape", "wrong_dtype", "wrong_type", "inputs_overwritten", "exception", "protocol", "exit"}
)


class Closer(Explainer):
    """Explainer of one part that is wrong or has crashed."""

    def __init__(self, judged: JudgedPart, second: OtherBuilds | None) -> None:
        super().__init__(judged, second)
        self.races, self.mistakes = RaceExplainer(judged, second), SourceMistakes(judged, second)
        self.calls, self.shown = FurtherCalls(judged, second), ShownLines(judged, second)

    def crash(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis of a crash, extended by its place and its cause."""
        return CrashExplainer(self.judged, self.second).crash(diagnosis)

    def wrong(self, known: Diagnosis) -> Diagnosis:
        """Return the diagnosis `known` of a wrong public case, extended by all further findings."""
        if known.code in PLAIN:
            return known
        alone = sentence(self.calls.wrong_alone, "") if known.code == "race" else ""
        if (raced := self.races.explained(known)) is not None:
            repairs = sentence(lambda: self._repairs(is_alone=True), "") if alone else ""
            return with_message(raced, alone, repairs, raced.message)
        diagnosis = sentence(lambda: self.mistakes.named(known), known)
        is_partly = known.message.startswith(PARTLY)
        has_cause = known.code not in unexplained(self.kernel.oracle.axes) and not is_partly
        checked = sentence(lambda: self._checked(diagnosis, has_cause), None)
        if checked is not None and checked.sites.found:
            return self._outside(diagnosis, checked, has_cause)
        prober, smallest = sentence(self.calls.probed, (None, None))
        unread, constant_on = ([], "") if has_cause else sentence(self.calls.unread, ([], ""))
        found = Findings(diagnosis, has_cause, checked, prober, smallest, unread, constant_on)
        shared, dissected = self._facts_sentence(found), self._dissection(found)
        facts = lines_in(self.source.name, diagnosis.message)
        repairs = sentence(lambda: self._repairs(smallest, facts=facts), "")
        lead = self._lead(found, shared, dissected)
        shown = sentence(
            lambda: self.shown.lines(found, dissected, self.shown.bounds(f"{shared} {diagnosis.message}")), []
        )
        if repairs:
            lead, shown = self._beside(repairs, lead, shown, has_cause)
        elif shown and not has_cause and dissected is None:
            shown = ["The cause is not known.", *shown]
        lines = [
            alone,
            *((lead, repairs) if has_cause else (repairs, lead)),
            *shown,
            *sentence(lambda: self._next(found), []),
        ]
        return with_message(diagnosis, *lines)

    def helper_repairs(self, helper: str) -> str:
        """Return a sentence with the edits of the function `helper` that make the part right; "" if none does."""
        return sentence(lambda: self._repairs(helper=helper), "")

    def _beside(self, repairs: str, lead: str, shown: list[str], has_cause: bool) -> tuple[str, list[str]]:
        """Return (`lead`, `shown`), shortened to what is printed beside the edits `repairs`.

        The edits make the part right on all inputs, so they outrank guesses at the cause, but not what was seen: that
        elements were not written.

        1. If `lead` names the cause (`has_cause`) and an array that an edit resets, `lead` and `shown` stay.
        2. Otherwise `lead` is a guess if the cause is unknown, if `lead` names another array, or if no edited line is
           named. Then only the sentence of `lead` with the expected and the actual number stays.
        3. In all other cases, and if `lead` lacks that sentence, `lead` stays and `shown` is left out.
        """
        named, others = (lines_in(self.source.name, text) for text in (repairs, "\n".join((lead, *shown))))
        numbers = NUMBERS.search(lead)
        # The array that `lead` suspects may differ from the array that the edits reset.
        set_again = {"".join(names) for names in SET_AGAIN.findall(repairs)}
        text = self.body.all_code() if self.body is not None and set_again else ""
        arrays = set(re.findall(r"\b[A-Z]\w*\b", lead)) & set(re.findall(r"\w+", text))
        if has_cause and set_again & arrays:
            return OTHER_CAUSE.sub("", lead), shown
        is_other = bool(set_again and arrays)
        if (
            numbers is not None
            and "not written" not in lead
            and (not has_cause or not named & others or is_other)
        ):
            # Keep only the first sentence: the later ones may name causes.
            first = re.split(r"(?<=\.) (?=[A-Z])", numbers[0])[0]
            return first, self._old_values(set_again) if set_again else []
        return OTHER_CAUSE.sub("", lead), []

    def _facts_sentence(self, found: Findings) -> str:
        """Return a sentence with facts common to all inputs; "" if none is found.

        If the cause is known, return "" unless the diagnosis's code is in `Oracle.sized_codes`.
        """
        if found.has_cause and found.diagnosis.code not in self.kernel.oracle.sized_codes:
            return ""
        return sentence(lambda: self.calls.facts(found.prober), "")

    def _dissection(self, found: Findings) -> Dissected | None:
        """Return the wrong step of the computation; None if it is not found, or if a known cause already names it."""
        code, message = found.diagnosis.code, found.diagnosis.message
        is_named = found.has_cause or (code == "low_precision" and not message.startswith(CLOSE))
        if is_named and code not in self.kernel.oracle.dissected_codes:
            return None
        return sentence(lambda: self.calls.dissected(found.prober), None)

    def _lead(self, found: Findings, shared: str, dissected: Dissected | None) -> str:
        """Return the message of the diagnosis, preceded by sentences with the other findings."""
        added, message = [shared], found.diagnosis.message
        if found.diagnosis.code == "unsteady":
            added.append(sentence(self.calls.left_behind, ""))
            if found.checked is not None and found.checked.tried:
                message = message.replace(Oracle.unsteady_advice, "" if added[1] else UNWRITTEN)
        zeros = "" if lines_in(self.source.name, message) else self._zeros(found.checked)
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
            message = without_guesses(found.diagnosis).message
        if "tile of" in lead or "multiple of" in lead:
            message = LIKELY.sub("", message)
        return f"{lead} {message}".strip()

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
        cases, wrong = self._public(), self._wrong_cases()
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
        near = lines_in(self.source.name, "\n".join(shown))
        repairs = sentence(lambda: self._repairs(near=near), "")
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

    def _zeros(self, checked: Checked | None) -> str:
        if checked is None or not checked.right_if_zeroed:
            return ""
        return (
            f"on '{checked.right_if_zeroed[0]}' the result is right only if all new memory is zeros: a variable has no "
            "initial value, or memory keeps values of the previous call"
        )

    def _next(self, found: Findings) -> list[str]:
        prober, smallest, checked = found.prober, found.smallest, found.checked
        repeated = []
        if prober is not None and smallest is not None:
            numbers = sentence(lambda: self.calls.numbers(prober, smallest), "")
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

    def _old_values(self, names: Collection[str]) -> list[str]:
        """Return the lines that use old values of these arrays, as a list of one text or no text."""
        if self.body is None:
            return []
        places = self.body.piled(names, reads=True)
        shown = [clues.Shown(place, "depends on old values") for place in places[: clues.MOST_PLACES]]
        return [clues.in_words(shown, self.body, self.source.name)] if shown else []
