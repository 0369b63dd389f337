"""The part of a result that a student may see when some cases are hidden: the one place that decides it.

A hidden case is told by one sentence: that one failed. Its name, shape, numbers and diagnosis stay with the staff.

That alone would not keep it secret, for the kernel has seen its inputs and may repeat them: in what it prints, in an
exception's text, even in a "wrong" value of a later public case. So whatever the kernel said or computed after its
first hidden case is told without text or numbers of its own making. What came before it is told in full. (A bit per
case, right or wrong, is left to it, as in any test.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grader.assignment.records import Assignment, Case
from grader.core.results import CaseResult, Diagnosis, PartResult, SubmissionResult
from grader.report import words

#: Verdicts that are known before the kernel has seen any input.
BEFORE_INPUTS = ("compile_error", "missing", "unjudged")
BEFORE_INPUTS_CODES = ("load_error", "load_crash", "load_timeout", "not_bound")

HIDDEN_FAILED = (
    "At least one hidden test failed: an input that is not in the handout. Try shapes of your own: sizes of 1, "
    "odd ones, sizes that are no multiple of 16 or of your blocks' lengths, and several of everything."
)
HIDDEN_ENDED = "It ended on a hidden test: an input that is not in the handout. Try shapes of your own."
PRINTED_WITHHELD = (
    "(What it printed is not shown, because it also ran on hidden tests. Run gpt149.py to see it.)"
)

#: Numbers that a fixed sentence may hold ("row 0", "1 + x", "2^x"); any other may be of the kernel's choice.
_FIXED_NUMBERS = {"0", "1", "2", "4"}
#: A line of the submission's source below a diagnosis, by its file and number.
_QUOTED = re.compile(r"\s*[^\s:]+:\d+: ")


@dataclass(frozen=True)
class StudentView:
    """One part as its student may see it.

    `part` holds no hidden case, and no text or number from after the first of them; `hidden_passed` is None when the
    part has no hidden case that was reached.
    """

    part: PartResult
    hidden_passed: bool | None
    note: str = ""
    """Return the sentence that a hidden test failed, or that something is not shown."""

    @property
    def all_passed(self) -> bool:
        return self.part.verdict == "pass" and self.hidden_passed is not False


def view(part: PartResult, cases: Sequence[Case] = ()) -> StudentView:
    """Return the result of this part that the student may see. `cases`: all cases of the assignment, reached or not."""
    hidden = [case for case in part.cases if case.hidden]
    if not hidden and not any(case.hidden for case in cases):
        return StudentView(part, None)
    first_hidden = next((k for k, case in enumerate(part.cases) if case.hidden), len(part.cases))
    public = tuple(
        case if k < first_hidden else _without_numbers(case)
        for k, case in enumerate(part.cases)
        if not case.hidden
    )
    failed = any(not case.ok for case in hidden)
    ended_hidden = _ended_on_hidden(part, cases)
    diagnosis = _diagnosis(part, public, first_hidden, ended_hidden)
    notes = [HIDDEN_FAILED] if failed else []
    if ended_hidden:
        notes = [HIDDEN_ENDED]
    if part.output:
        notes.append(PRINTED_WITHHELD)
    told = replace(part, cases=public, diagnosis=diagnosis, output="")
    passed = None if not hidden and not ended_hidden else not (failed or ended_hidden)
    return StudentView(told, passed, "\n".join(notes))


def views(assignment: Assignment, result: SubmissionResult) -> tuple[StudentView, ...]:
    """Every part of a result, with what the assignment has hidden."""
    cases = {part.id: part.cases for part in assignment.parts}
    return tuple(view(part, cases.get(part.id, ())) for part in result.parts)


def numberless(message: str) -> str:
    """The sentences of a diagnosis that hold no number of the kernel's making; "" when none is left.

    The rest ("Expected 0.1, got 103 at ...") is where a kernel can say something: it chose the 103.
    """
    sentences = [
        sentence
        for line in message.strip().splitlines()
        # A quoted line of source is one piece, whatever stands in it: C++ has ? and : of its own.
        for sentence in ([line] if _QUOTED.match(line) else re.split(r"(?<=[.?!])\s+", line.strip()))
        if sentence
    ]
    plain = [
        not _QUOTED.match(sentence)
        and {n.rstrip(".,") for n in re.findall(r"(?<![\w^.])[-+]?\d[\d.,e+-]*", sentence)} <= _FIXED_NUMBERS
        and not re.search(r"\b(nan|inf)\b", sentence, re.IGNORECASE)
        for sentence in sentences
    ]
    # Of "Lines to look at:" without its lines nothing is left to read.
    follows = [*plain[1:], False]
    kept = [
        sentence
        for sentence, ours, next_ours in zip(sentences, plain, follows, strict=True)
        if ours and (next_ours or not sentence.endswith(":"))
    ]
    return words.line(" ".join(kept), 600)


def _without_numbers(case: CaseResult) -> CaseResult:
    diagnosis = case.diagnosis and Diagnosis(case.diagnosis.code, numberless(case.diagnosis.message))
    return replace(case, max_error=None, diagnosis=diagnosis, output_sha256=None, error_map=())


def _ended_on_hidden(part: PartResult, cases: Sequence[Case]) -> bool:
    """Whether a call without an answer (a crash, a hang) was one on a hidden case, as its diagnosis has recorded."""
    if part.verdict not in ("crash", "timeout") or part.diagnosis is None:
        return False
    if part.diagnosis.hidden is not None or part.diagnosis.code in BEFORE_INPUTS_CODES:
        return bool(part.diagnosis.hidden)
    # Not recorded, by an older kit: hidden cases come when all public ones have been answered.
    answered = {case.name for case in part.cases}
    return all(case.hidden or case.name in answered for case in cases)


def _diagnosis(
    part: PartResult, public: tuple[CaseResult, ...], first_hidden: int, ended_hidden: bool
) -> Diagnosis | None:
    """The part's diagnosis if it was told from what may be told, else that of a public case, else none."""
    own = part.diagnosis
    if own is None:
        return None
    if part.verdict in BEFORE_INPUTS or own.code in BEFORE_INPUTS_CODES:
        return own
    if part.verdict == "wrong":
        told = [case.diagnosis for case in public if case.diagnosis]
        alike = [diagnosis for diagnosis in told if diagnosis.code == own.code]
        return own if own in told else next(iter(alike or told), None)
    if ended_hidden:
        return None
    if first_hidden == len(part.cases):
        return own
    # It crashed on a public case, but after hidden ones: an exception's text is the student's own.
    return Diagnosis(own.code, "" if own.code == "exception" else numberless(own.message))
