"""Selection of the results that a student may see. No other module makes this choice.

About a part's hidden cases, students learn only whether one failed. A hidden case's name, shape, numbers and diagnosis
are only for the staff.

This rule alone would not keep a hidden case secret. The kernel has seen the hidden inputs and may repeat them: in its
output, in an exception's text, even in a "wrong" value of a later public case. So all results after a kernel's first
hidden case are shown without text or numbers that the kernel could choose. Earlier results are shown in full. A kernel
can still reveal one bit per case by a right or a wrong result, as in any test.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grader.assignment.records import Assignment, Case
from grader.core.places import HANDOUT_COMMAND
from grader.core.results import CaseResult, Diagnosis, PartResult, SubmissionResult, Verdict
from grader.report import words

#: Verdicts, and codes of diagnoses, that are reached before the kernel has seen any input.
BEFORE_INPUTS = ("compile_error", "missing", "unjudged")
BEFORE_INPUTS_CODES = ("load_error", "load_crash", "load_timeout", "not_bound")

HIDDEN_FAILED = (
    "At least one hidden test failed: on an input outside the handout, the result was wrong or missing."
)
OWN_SHAPES = (
    "Try your own shapes: sizes of 1, odd sizes, sizes that are not multiples of 16 or of your block lengths, and "
    "several batches, if there are any."
)
PRINTED_WITHHELD = (
    f"(What it printed is not shown, because it also ran on hidden tests. Run {HANDOUT_COMMAND} to see it.)"
)

#: Numbers that occur in the kit's fixed sentences ("row 0", "1 + x", "2^x"). A kernel may have chosen any other number.
_FIXED_NUMBERS = {"0", "1", "2", "4"}
#: Source line of the submission that a diagnosis quotes, with its file and line number.
_QUOTED = re.compile(r"\s*[^\s:]+:\d+: ")


@dataclass(frozen=True)
class StudentView:
    """Result of one part, reduced to the content that its student may see.

    `part` lacks hidden cases, and all texts and numbers that the kernel may have chosen after its first hidden case.
    `hidden_passed`: True if all hidden cases that ran are right, False if one is not, None if none ran.
    """

    part: PartResult
    hidden_passed: bool | None
    note: str = ""
    """Sentences which say that a hidden test failed or that the output is not shown, or ""."""

    @property
    def all_passed(self) -> bool:
        return self.part.verdict == "pass" and self.hidden_passed is not False

    @property
    def public_passed(self) -> bool:
        return self.part.diagnosis is None and all(case.ok for case in self.part.cases)


def view(part: PartResult, cases: Sequence[Case] = ()) -> StudentView:
    """Return the part's result as the student may see it. `cases` are all cases of the part in the assignment."""
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
    # Show "wrong" for a crash or a hang, too: by choosing among three verdicts, a kernel could reveal
    # more than one bit of a hidden input.
    verdict: Verdict = "wrong" if ended_hidden else part.verdict
    shown = replace(part, cases=public, diagnosis=diagnosis, output="", verdict=verdict)
    passed = None if not hidden and not ended_hidden else not (failed or ended_hidden)
    found = StudentView(shown, passed)
    notes = [HIDDEN_FAILED + f" {OWN_SHAPES}" * found.public_passed] if passed is False else []
    if part.output:
        notes.append(PRINTED_WITHHELD)
    return replace(found, note="\n".join(notes))


def views(assignment: Assignment, result: SubmissionResult) -> tuple[StudentView, ...]:
    """Return each part of a result as the student may see it."""
    cases = {part.id: part.cases for part in assignment.parts}
    return tuple(view(part, cases.get(part.id, ())) for part in result.parts)


def numberless(message: str) -> str:
    """Drop quoted source lines, and sentences with a number that the kernel could have chosen. Return one line.

    A sentence such as "Expected 0.1, got 103 at ..." could reveal a secret, because the kernel chose the 103.
    """
    sentences = [
        sentence
        for line in message.strip().splitlines()
        # Do not split a quoted source line: in C++, "?" and "." do not end a sentence.
        for sentence in ([line] if _QUOTED.match(line) else re.split(r"(?<=[.?!])\s+", line.strip()))
        if sentence
    ]
    plain = [
        not _QUOTED.match(sentence)
        and {n.rstrip(".,") for n in re.findall(r"(?<![\w^.])[-+]?\d[\d.,e+-]*", sentence)} <= _FIXED_NUMBERS
        and not re.search(r"\b(nan|inf)\b", sentence, re.IGNORECASE)
        for sentence in sentences
    ]
    # A heading such as "Lines to look at:" is dropped if the line after it is dropped.
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
    """Return True if the part crashed or hung on a hidden case."""
    if part.verdict not in ("crash", "timeout") or part.diagnosis is None:
        return False
    if part.diagnosis.hidden is not None or part.diagnosis.code in BEFORE_INPUTS_CODES:
        return bool(part.diagnosis.hidden)
    # Results of older kits lack `hidden`. Those kits called hidden cases last, so the failed case is hidden if all
    # public cases have a result.
    answered = {case.name for case in part.cases}
    return all(case.hidden or case.name in answered for case in cases)


def _diagnosis(
    part: PartResult, public: tuple[CaseResult, ...], first_hidden: int, ended_hidden: bool
) -> Diagnosis | None:
    """Return the diagnosis that the student may see: the part's, else one of a public case, else None.

    `ended_hidden`: the part crashed or hung on a hidden case.
    """
    own = part.diagnosis
    if own is None:
        return None
    if part.verdict in BEFORE_INPUTS or own.code in BEFORE_INPUTS_CODES:
        return own
    if part.verdict == "wrong":
        # If all cases are right, the fault is a data race, found in a watched call before any hidden case was called.
        if part.cases and all(case.ok for case in part.cases):
            return own
        diagnoses = [case.diagnosis for case in public if case.diagnosis]
        alike = [diagnosis for diagnosis in diagnoses if diagnosis.code == own.code]
        return own if own in diagnoses else next(iter(alike or diagnoses), None)
    if ended_hidden:
        return None
    if first_hidden == len(part.cases):
        return own
    # The failed call was on a public case, but came after hidden ones. The kernel chooses the text of an exception,
    # which may contain hidden data.
    return Diagnosis(own.code, "" if own.code == "exception" else numberless(own.message))
