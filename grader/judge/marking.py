"""One answer of a runner held against the oracle, whole, and what a call without an answer means for the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grader.assignment.records import Case, Part
from grader.base.errors import KitError
from grader.base.results import CaseResult, Diagnosis
from grader.judge import faults
from grader.judge.bench import Bench
from grader.judge.integrity import flags as integrity
from grader.run.calls import Call
from grader.run.session import Session


class Marker:
    """Marks the answers to one part of one submission, the reference's as well as the student's. It remembers none."""

    def __init__(self, bench: Bench, part: Part) -> None:
        self.bench, self.part, self.shape = bench, part, bench.shape

    def inputs_of(self, case: Case) -> tuple[dict[str, int], Mapping[str, Any]]:
        """A case's sizes, by name, and its inputs."""
        from grader.judge.questions import question

        shape = {**self.shape, **case.shape}
        return shape, question(case, shape)

    def expected(self, inputs: Mapping[str, Any], shape: Mapping[str, int]) -> Any:
        from grader.judge import oracle
        from grader.judge.questions import CaseInputs

        if isinstance(inputs, CaseInputs):
            return inputs.expected(self.part.oracle)
        return oracle.ORACLES[self.part.oracle].expected(inputs, shape)

    def mark(
        self,
        name: str,
        shape: dict[str, int],
        inputs: Mapping[str, Any],
        call: Call,
        *,
        second: Any = None,
        explain: bool = True,
        earlier: Sequence[Diagnosis] | None = None,
    ) -> CaseResult:
        """Right or wrong, and why if it is to be explained. `second` is the output of the same call made again.

        `earlier` are the diagnoses of other inputs, which `diagnose.settled` is to compare with this one; None for an
        output by itself.
        """
        from grader.judge import oracle
        from grader.judge.diagnosis import diagnose

        part = self.part
        public_shape = {key: value for key, value in shape.items() if key != "threads"}
        actual, misfit = faults.fitting_output(part, shape, inputs, call)
        if actual is None:
            return CaseResult(name, public_shape, False, None, misfit)
        if call.changed_inputs and part.returns != "nothing":
            # Told before a wrong output, which it may well explain.
            names = ["tensor"] if part.table else [a for a in dict.fromkeys(part.arguments) if a in inputs]
            changed = [names[k] for k in call.changed_inputs if k < len(names)]
            return CaseResult(name, public_shape, False, None, diagnose.inputs_overwritten(changed))
        expected = self.expected(inputs, shape)
        comparison = oracle.compare(expected, actual)
        diagnosis = None
        if not comparison.ok and explain:
            diagnosis = diagnose.diagnose(
                part.oracle,
                inputs,
                shape,
                expected,
                actual,
                comparison,
                second=second,
                part_id=part.id,
                earlier=earlier or (),
            )
            if earlier is None:
                (diagnosis,) = diagnose.settled([diagnosis])
        digest = None if comparison.ok else integrity.output_sha256(actual)
        return CaseResult(
            name, public_shape, comparison.ok, comparison.max_error, diagnosis, output_sha256=digest
        )

    def refuse_broken(self, call: Call, session: Session, where: str, *, hidden: bool = False) -> None:
        """Raises Faulty, the part's verdict, for a call of the student's that gave no answer. `hidden`: on a hidden
        case."""
        if call.status == "ok":
            return
        if self.bench.options.sanitize:
            found = faults.sanitizer_finding(session, self.bench.source)
            if found is not None:
                raise faults.Faulty("crash", replace(found, hidden=hidden))
        raise faults.call_fault(call, self.part, where, hidden=hidden)

    def refuse_failed_reference(self, call: Call) -> None:
        """Raises KitError for a call of the reference that gave no answer; Faulty where the student's code ended it."""
        if call.status != "ok":
            if self.bench.zygote.sabotaged:
                raise faults.sabotage()
            raise KitError(
                f"the reference failed on {self.part.id}: {call.status} {call.signal_name}{call.message}"
            )
