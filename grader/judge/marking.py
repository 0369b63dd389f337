"""One answer of a runner held against the oracle, whole, and what a call without an answer means for the verdict."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grader.assignment.records import Case, Part
from grader.core.errors import KitError
from grader.core.results import CaseResult, Diagnosis
from grader.integrity import flags as integrity
from grader.judge import binding, faults, grid
from grader.judge.answers import answers, expectations
from grader.judge.bench import Bench
from grader.judge.events import Deviated
from grader.runner.calls import Call
from grader.runner.session import Session
from grader.source import callgraph

if TYPE_CHECKING:
    from grader.core.arrays import Array
    from grader.judge.comparison import Expected
    from grader.judge.diagnosis.deviation import Axis
    from grader.judge.oracle import Oracle
    from grader.source.landmarks import Body


class Marker:
    """Marks the answers to one part of one submission, the reference's as well as the student's.

    Of each input it remembers where the first wrong answer to it was wrong, and nothing else.
    """

    def __init__(self, bench: Bench, part: Part) -> None:
        self.bench, self.part, self.shape = bench, part, bench.shape
        self.lab = bench.assignment.lab
        self.wrong: dict[str, Any] = {}
        """By the input's name: a bool array of the output's shape, or None where the answer was right."""
        self.wrong_output: dict[str, str] = {}
        """By the input's name: which output `wrong` is about."""
        self.as_autograd = False
        """True if the file is called by way of its autograd.Function, which makes some inputs itself."""

    @functools.cached_property
    def oracle(self) -> Oracle:
        return self.lab.oracle(self.part.oracle)

    def inputs_of(self, case: Case) -> tuple[dict[str, int], Mapping[str, Any]]:
        """A case's sizes, by name, and its inputs."""
        from grader.judge.questions import question

        shape = {**self.shape, **case.shape}
        return shape, question(self.lab, case, shape)

    def expected(self, inputs: Mapping[str, Any], shape: Mapping[str, int]) -> dict[str, Expected]:
        """Return the part's expected outputs, by name."""
        from grader.judge.questions import CaseInputs

        seen = self.seen(inputs)
        if isinstance(inputs, CaseInputs):
            return expectations(self.part, inputs.expected(self.part.oracle, seen))
        return expectations(self.part, self.oracle.expected(seen, shape))

    def seen(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return those of a call's inputs that it depends on."""
        form = self.part.device and self.part.device.autograd
        if not (self.as_autograd and form):
            return inputs
        names = {*form.arguments, form.gradient}
        return {name: value for name, value in inputs.items() if name in names}

    def is_right(self, shape: dict[str, int], inputs: Mapping[str, Any], call: Call) -> bool:
        """Return True if a call's answer is the oracle's. Remembers and reports nothing."""
        from grader.judge.comparison import compare

        found, _ = answers(self.part, shape, inputs, call)
        expected = self.expected(inputs, shape)
        return found is not None and all(compare(expected[name], found[name]).ok for name in found)

    def is_used(self) -> bool:
        """Return True if the source defines the function, and the part that stands in for it reaches it by name.

        A part that the reader of functions does not find may well use it.
        """
        graph, user = callgraph.of_source(self.source), self.bench.assignment.part(self.part.stands_in or "")
        reached = graph.reached(user.function) or graph.known
        return self.part.function in reached

    def mark(
        self,
        name: str,
        shape: dict[str, int],
        inputs: Mapping[str, Any],
        call: Call,
        *,
        again: Sequence[Mapping[str, Any]] = (),
        explain: bool = True,
        earlier: Sequence[Diagnosis] | None = None,
        shared: bool = True,
    ) -> CaseResult:
        """Right or wrong, and why if it is to be explained. `again` are the answers of the same call made again.

        `shared` says whether several threads worked on it. `earlier` are the diagnoses of other inputs, which
        `diagnose.settled` is to compare with this one; None for an output by itself.
        """
        from grader.core.arrays import np
        from grader.judge.comparison import compare, error_map
        from grader.judge.diagnosis import diagnose

        part = self.part
        public_shape = self.sizes(shape)
        found, misfit = answers(part, shape, inputs, call)
        if found is None:
            return CaseResult(name, public_shape, False, None, misfit)
        changed = self._overwritten(inputs, call)
        if changed is not None:
            # Told before a wrong output, which it may well explain.
            return CaseResult(name, public_shape, False, None, changed)
        expected = self.expected(inputs, shape)
        comparisons = {answer: compare(expected[answer], actual) for answer, actual in found.items()}
        wrong = [answer for answer, comparison in comparisons.items() if not comparison.ok]
        if wrong:
            self._tell_deviation(
                name, shape, expected[wrong[0]], found[wrong[0]], comparisons[wrong[0]].wrong
            )
        diagnosis = None
        if wrong and wrong[0] in inputs and np.array_equal(found[wrong[0]], inputs[wrong[0]]):
            diagnosis = diagnose.not_written(wrong[0])
        elif wrong and explain:
            diagnosis = diagnose.diagnose(
                self.oracle,
                inputs,
                shape,
                expected[wrong[0]],
                found[wrong[0]],
                comparisons[wrong[0]],
                again=[answers[wrong[0]] for answers in again],
                part_id=part.id,
                earlier=earlier or (),
                name=wrong[0],
                shared=shared,
            )
            if isinstance(diagnosis, diagnose.Explained):
                diagnosis = diagnosis.in_order(self._is_in_text)
            if earlier is None:
                (diagnosis,) = diagnose.settled([diagnosis])
        if self.wrong.get(name) is None:
            self.wrong[name] = comparisons[wrong[0]].wrong if wrong else None
            self.wrong_output[name] = wrong[0] if wrong else ""
        digest = integrity.output_sha256(found[wrong[0]], comparisons[wrong[0]].wrong) if wrong else None
        largest = max(comparison.max_error for comparison in comparisons.values())
        where = error_map(comparisons[wrong[0]].wrong) if wrong else ()
        return CaseResult(
            name, public_shape, not wrong, largest, diagnosis, output_sha256=digest, error_map=where
        )

    def _is_in_text(self, pattern: str) -> bool:
        """Return True if the part's function has this in a line that does more than copy an argument; True where its
        text is not found."""
        return self.body is None or bool(self.body.uses(pattern))

    @functools.cached_property
    def body(self) -> Body | None:
        """The part's function in the student's text, None where it is not found there."""
        # Late: a right kernel is judged without it.
        from grader.backends.gpu import kernelmarks
        from grader.source import landmarks

        name = self.part.function or ""
        if self.bench.source.suffix != ".py":
            return landmarks.function(self.source, name)
        form = self.part.device.autograd if self.part.device is not None else None
        found = kernelmarks.function(self.source, name)
        if found is not None or form is None:
            return found
        launches = form.language == "triton" if form.language else None
        return kernelmarks.method(
            self.source, "backward" if form.gradient else "forward", form.name, launches
        )

    def _tell_deviation(
        self, name: str, shape: Mapping[str, int], expected: Expected, actual: Array, wrong: Array
    ) -> None:
        from grader.judge.diagnosis.deviation import usual_axes

        own = self.oracle.axes
        axes = own if len(own) == actual.ndim else usual_axes(actual.ndim)
        told = Deviated(
            part=self.part,
            case=name,
            hidden=any(case.hidden for case in self.part.cases if case.name == name),
            shape=binding.used_sizes(shape, self.part),
            axes=axes,
            blocks=self._blocks(axes, shape),
            expected=expected.value,
            actual=actual,
            tolerance=expected.tolerance,
            wrong=wrong,
        )
        self.bench.tell(told)

    def _blocks(self, axes: tuple[Axis, ...], shape: Mapping[str, int]) -> tuple[tuple[str, int] | None, ...]:
        if not self.oracle.cuts:
            return (None,) * len(axes)
        sizes = binding.used_sizes(shape, self.part)
        defines = self.bench.options.defines
        return grid.blocks(axes, self.oracle.cuts, sizes, self.source, self.part.function, defines)

    @functools.cached_property
    def source(self) -> str:
        """The student's text, empty where it cannot be read."""
        try:
            return self.bench.source.read_text(errors="replace")
        except OSError:
            return ""

    def _overwritten(self, inputs: Mapping[str, Any], call: Call) -> Diagnosis | None:
        """A diagnosis where the call changed an input that is no output."""
        from grader.judge.diagnosis import diagnose

        part = self.part
        if not call.changed_inputs or (part.table and part.returns == "nothing"):
            return None
        names = ["tensor"] if part.table else binding.tensor_names(part, inputs)
        kept = [name for name in names if name not in part.outputs]
        changed = [names[k] for k in call.changed_inputs if k < len(names) and names[k] in kept]
        return diagnose.inputs_overwritten(changed, kept, self.oracle.output) if changed else None

    def sizes(self, shape: Mapping[str, int]) -> dict[str, int]:
        """Those that the part has, as they are told."""
        used = binding.used_sizes(shape, self.part)
        used.pop("threads", None)
        return used

    def refuse_broken(
        self,
        call: Call,
        session: Session,
        where: str,
        *,
        hidden: bool = False,
        shape: Mapping[str, int] | None = None,
    ) -> None:
        """Raises Faulty, the part's verdict, for a call of the student's that gave no answer. `hidden`: on a hidden
        case; `shape` are all sizes of the input that `where` names."""
        if call.status != "ok":
            sizes = None if shape is None else self.sizes(shape)
            raise faults.call_fault(
                call,
                self.part,
                where,
                hidden=hidden,
                sizes=sizes,
                printed=session.printed,
                packages=self.bench.assignment.packages,
            )

    def refuse_failed_reference(self, call: Call) -> None:
        """Raises KitError for a call of the reference that gave no answer; Faulty where the student's code ended it."""
        if call.status != "ok":
            if self.bench.zygote.sabotaged:
                raise faults.sabotage()
            raise KitError(
                f"the reference failed on {self.part.id}: {call.status} {call.signal_name}{call.message}"
            )
