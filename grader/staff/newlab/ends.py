"""Kernels of a lab with the verdicts that they must get, for the test file in each new lab."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from grader.assignment import labs
from grader.assignment.loading import load
from grader.assignment.mutations import Mutation, edited
from grader.assignment.regions import strip_solution
from grader.core.results import PartResult
from grader.judge.bench import Options
from grader.judge.evaluate import evaluate

TIME_BUDGET_S = 10.0
ATTEMPTS = 4
"""Maximum number of attempts to time a kernel: on a busy machine its time may stay undecided."""
NOT_STEADY = {"machine_unfit", "undecided"}


@dataclass(frozen=True)
class Ending:
    """A kernel of the lab in `folder`, and the verdict that it must get.

    If `edit` is given, the kernel is the lab's solution with this change, and only the edit's part is judged. If `edit`
    is None, the kernel is the starter for the verdict "wrong", else the unchanged solution. Every part must then get
    the verdict.
    """

    folder: Path
    name: str
    verdict: str
    edit: Mutation | None = None

    def __str__(self) -> str:
        return self.name

    def faults(self, scratch: Path) -> list[str]:
        """Judge the kernel in `scratch`. Return a message for each unexpected verdict or code of its diagnosis."""
        assignment = load(labs.assignment_file(self.folder, staff=True))
        text = labs.master(self.folder, assignment.source).read_text(encoding="utf-8")
        if self.edit is not None:
            text = edited(text, self.edit, labs.load(self.folder).kernels())
        elif self.verdict == "wrong":
            text = strip_solution(text)
        source = scratch / assignment.source
        source.write_text(text, encoding="utf-8")
        parts = assignment.select("all") if self.edit is None else (assignment.part(self.edit.part),)
        timing = self.verdict in ("pass", "slow")
        options = Options(timing=timing, profile=False, time_budget_s=TIME_BUDGET_S)
        for _ in range(ATTEMPTS):
            result = evaluate(assignment, source, parts, options)
            if not any(part.time and NOT_STEADY & set(part.time.flags) for part in result.parts):
                break
        return [fault for part in result.parts if (fault := self._fault(part))]

    def _fault(self, part: PartResult) -> str:
        code = part.diagnosis.code if part.diagnosis else ""
        why = f": {part.diagnosis.message}" if part.diagnosis else ""
        # A suspect (a check for one likely mistake) may have raised an exception: then the diagnosis names no cause.
        why += "".join(f" ({flag.message})" for flag in part.flags if flag.code == "explanation_failed")
        if part.verdict == "unjudged":
            return ""  # This machine may lack a GPU. Then the verdict cannot be checked here.
        if part.verdict != self.verdict:
            return f"{part.id} is {part.verdict} and must be {self.verdict}{why}"
        if self.edit is not None and self.edit.codes and code not in self.edit.codes:
            return f"{part.id} gets {code} and must get {' or '.join(self.edit.codes)}{why}"
        return ""


def all_of(folder: Path) -> list[Ending]:
    """Return all kernels with known verdicts of the lab in `folder`. Raises UsageError if it is not a lab."""
    folder = folder.resolve()
    found = [Ending(folder, "the master passes", "pass"), Ending(folder, "the starter is wrong", "wrong")]
    kernels = labs.load(folder).kernels()
    if kernels is not None:
        right = getattr(kernels, "RIGHT", ())
        found += [Ending(folder, f"{edit.part}: {edit.name}", "pass", edit) for edit in right]
        found += [Ending(folder, f"{edit.part}: {edit.name}", "wrong", edit) for edit in kernels.WRONG]
        if (slow := getattr(kernels, "SLOW", None)) is not None:
            found.append(Ending(folder, f"{slow.part}: {slow.name}", "slow", slow))
    return found
