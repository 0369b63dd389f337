"""Calls of one part, the comparison of their outputs with the oracle, and the verdict if a call returned no output."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grader.assignment.inputs import CaseInputs, drawn
from grader.assignment.records import Case, Part
from grader.backends import binding, faults
from grader.backends.faults import Broken
from grader.backends.protocol import SampledRows
from grader.core import filebundle, pythontree
from grader.core.errors import KitError, UsageError
from grader.core.results import CaseResult, Diagnosis
from grader.explain.case_run import CaseRun, expectations
from grader.explain.explanation_errors import UNEXPLAINED, attempt
from grader.integrity import flags as integrity
from grader.judge.bench import Bench
from grader.judge.events import Deviated
from grader.runner.calls import Call
from grader.runner.session import Session
from grader.source import callgraph

if TYPE_CHECKING:
    from grader.explain.comparison import Expected
    from grader.explain.deviation import Axis
    from grader.explain.oracle import Oracle
    from grader.source.landmarks import Body


class Marker:
    """Caller of one part's function, the student's or the reference's. It compares the outputs with the oracle.

    For each case it keeps the mask of the first wrong output.
    """

    def __init__(self, bench: Bench, part: Part) -> None:
        self.bench, self.part, self.shape = bench, part, bench.shape
        self.lab, self.assignment, self.backend = bench.assignment.lab, bench.assignment, bench.backend(part)
        self.wrong: dict[str, Any] = {}
        """Mask of the wrong elements (bool, of the output's shape) by case; None if the output was right."""
        self.wrong_output: dict[str, str] = {}
        """Name of the output that the mask in `wrong` belongs to, by case."""
        self.functions: Mapping[str, str] | None = None
        """Functions that the student's file exports; None until it is loaded."""
        self.seen_outputs: set[str] = set()
        self.wrong_outputs: set[str] = set()
        """`seen_outputs`: names of all outputs so far. `wrong_outputs`: names of the outputs that were wrong on any
        case."""

    @functools.cached_property
    def oracle(self) -> Oracle:
        return self.lab.oracle(self.part.oracle)

    def inputs_of(self, case: Case) -> CaseInputs:
        return drawn(self.lab, case.distribution, {**self.shape, **case.shape}, case.seed, keep=True)

    def expected(self, inputs: CaseInputs) -> dict[str, Expected]:
        """Return the part's expected outputs by name."""
        return expectations(self.part, inputs.expected(self.oracle, self.seen()))

    def seen(self) -> Collection[str] | None:
        """Return the names of the inputs on which the expected values depend; None for all inputs."""
        return None if self.functions is None else self.backend.seen(self.part, self.functions)

    def call(
        self, session: Session, case: str, inputs: CaseInputs, *, reference: bool = False, **how: Any
    ) -> CaseRun:
        """Call the part's function, or the `reference`. `how` are keywords of `Session.call`.

        A crash is recorded in the CaseRun's `call` and does not raise.
        """
        request = self.backend.request(self.part, inputs, reference=reference)
        return CaseRun(self.part, case, inputs, self.seen(), session.call(request, **how), self.oracle)

    def call_case(self, session: Session, case: Case, **how: Any) -> CaseRun:
        """Call the function on the inputs of a case. `how`: `reference`, or keywords of `Session.call`."""
        return self.call(session, case.name, self.inputs_of(case), **how)

    def again(self, session: Session, run: CaseRun, **how: Any) -> CaseRun:
        """Repeat the call `run`. `how`: `reference`, or keywords of `Session.call`."""
        return self.call(session, run.case, run.inputs, **how)

    def holds(self, case: str, inputs: CaseInputs, call: Call) -> bool:
        """Return True if all outputs are right and no input was changed."""
        run = CaseRun(self.part, case, inputs, self.seen(), call, self.oracle)
        return run.is_right and self.overwritten(run) is None

    def sampled(self, inputs: CaseInputs, rows: int) -> Callable[[Mapping[str, Any]], dict[str, SampledRows]]:
        """Draw about `rows` rows of each output. Return a function that compares these rows with the oracle's."""
        from grader.core.arrays import np
        from grader.core.draws import Draws, derive
        from grader.explain.comparison import compare

        draws = Draws(derive(secrets.randbits(60), "rows"))
        at, expected = self.oracle.sample(inputs.only(self.seen()), inputs.shape, draws, rows)

        def looked_at(outputs: Mapping[str, Any]) -> dict[str, SampledRows]:
            found = {}
            for name, known in expectations(self.part, expected).items():
                compared = compare(known, outputs[name][at])
                wrong, tolerance = int(compared.wrong.sum()), float(np.max(known.tolerance))
                found[name] = SampledRows(wrong, compared.wrong.size, compared.max_error, tolerance)
            return found

        return looked_at

    def changed_inputs(self, names: Sequence[str], kept: Sequence[str]) -> Diagnosis:
        """Return the diagnosis for a call that changed the inputs `names`. `kept`: all inputs that must not change."""
        from grader.explain import diagnose

        return diagnose.inputs_overwritten(names, kept, self.oracle.output)

    def call_timeout_s(self, shape: Mapping[str, int]) -> float:
        return self.bench.call_timeout_s(shape)

    def is_used(self) -> bool:
        """Return True if the source defines the part's function and the stand-in part calls this function.

        The stand-in (key `stands_in`) is a part that can be judged in this part's place. If the stand-in's function is
        not found in the source, it counts as calling every function.
        """
        graph, user = callgraph.of_source(self.source), self.bench.assignment.part(self.part.stands_in or "")
        reached = graph.reached(user.function) or graph.known
        return self.part.function in reached

    def mark(
        self,
        run: CaseRun,
        *,
        again: Sequence[Mapping[str, Any]] = (),
        explain: bool = True,
        earlier: Sequence[Diagnosis] | None = None,
        shared: bool = True,
    ) -> CaseResult:
        """Compare a call's outputs and return the result, with a diagnosis of a wrong output if `explain` is set.

        Args:
            again: outputs of repeated calls with the same inputs.
            earlier: diagnoses of other cases, if the caller later chooses the causes of all cases together
                (`diagnose.settled`). None: choose the cause of this case now.
            shared: True if several threads worked.
        """
        sizes, wrong = self.sizes(run.shape), run.wrong
        refused = run.misfit if run.outputs is None else self.overwritten(run)
        if run.outputs is None or refused is not None:
            # An overwritten input may be the cause of a wrong output: report only the overwritten input.
            return CaseResult(run.case, sizes, False, None, refused)
        self.seen_outputs |= set(run.outputs)
        self.wrong_outputs |= {name for name, compared in run.comparisons.items() if not compared.ok}
        self._emit_deviation(run)
        if self.wrong.get(run.case) is None:
            self.wrong[run.case] = None if wrong is None else run.comparisons[wrong].wrong
            self.wrong_output[run.case] = wrong or ""
        largest = max(compared.max_error for compared in run.comparisons.values())
        if wrong is None:
            return CaseResult(run.case, sizes, True, largest)
        from grader.explain.comparison import error_map

        places = run.comparisons[wrong].wrong
        return CaseResult(
            run.case,
            sizes,
            False,
            largest,
            self._explained(run, wrong, again, earlier, shared, explain=explain),
            output_sha256=integrity.output_sha256(run.outputs[wrong], places),
            error_map=error_map(places),
        )

    def _explained(
        self,
        run: CaseRun,
        name: str,
        again: Sequence[Mapping[str, Any]],
        earlier: Sequence[Diagnosis] | None,
        shared: bool,
        *,
        explain: bool,
    ) -> Diagnosis | None:
        """Return the diagnosis of the wrong output `name`. If `explain` is False, only an unwritten output has one."""
        from grader.explain import diagnose

        assert run.outputs is not None
        outputs = run.outputs
        if run.inputs.holds(name, outputs[name]):
            return diagnose.not_written(name)
        if not explain:
            return None
        diagnosis: Diagnosis | None = attempt(
            lambda: diagnose.diagnose(
                self.oracle,
                run.inputs,
                run.shape,
                run.expected[name],
                outputs[name],
                run.comparisons[name],
                again=[each[name] for each in again],
                race=f"{self.bench.command} race {self.part.id}",
                earlier=earlier or (),
                name=name,
                shared=shared,
            ),
            UNEXPLAINED,
        )
        if isinstance(diagnosis, diagnose.Explained):
            diagnosis = diagnosis.fitting(lambda text: self.body is None or bool(self.body.uses(text)))
        if earlier is None:
            (diagnosis,) = diagnose.settled([diagnosis])
        return diagnosis

    @functools.cached_property
    def body(self) -> Body | None:
        """The part's function in the student's source; None if it is not found."""
        return attempt(lambda: self.backend.function_in(self.part, self.source), None)

    def _emit_deviation(self, run: CaseRun) -> None:
        """Send the first wrong output of a call, if any, to the listener."""
        from grader.explain.deviation import usual_axes

        if run.wrong is None or run.outputs is None:
            return
        expected, actual = run.expected[run.wrong], run.outputs[run.wrong]
        own = self.oracle.axes
        axes = own if len(own) == actual.ndim else usual_axes(actual.ndim)
        deviated = Deviated(
            part=self.part,
            case=run.case,
            hidden=any(case.hidden for case in self.part.cases if case.name == run.case),
            shape=binding.used_sizes(run.shape, self.part),
            axes=axes,
            blocks=self._blocks(axes, run.shape),
            expected=expected.value,
            actual=actual,
            tolerance=expected.tolerance,
            wrong=run.comparisons[run.wrong].wrong,
        )
        self.bench.emit(deviated)

    def _blocks(self, axes: tuple[Axis, ...], shape: Mapping[str, int]) -> tuple[tuple[str, int] | None, ...]:
        if not self.oracle.cuts:
            return (None,) * len(axes)
        sizes = binding.used_sizes(shape, self.part)
        defines = self.bench.options.defines
        from grader.explain.deviation import blocks

        return attempt(
            lambda: blocks(axes, self.oracle.cuts, sizes, self.source, self.part.function, defines),
            (None,) * len(axes),
        )

    @functools.cached_property
    def source(self) -> str:
        """The student's source, a bundle if it has several files; "" if it cannot be read."""
        try:
            whole = pythontree.whole(self.bench.source)
        except UsageError:
            return ""
        text = whole.decode(errors="replace")
        # Do not change the line ends of a bundle: its header lines give the sizes of the files in bytes.
        return text if filebundle.split(whole) else text.replace("\r\n", "\n").replace("\r", "\n")

    def overwritten(self, run: CaseRun) -> Diagnosis | None:
        """Return a diagnosis if the call changed an input that it should only read; else None."""
        part, call = self.part, run.call
        if not call.changed_inputs or (part.table and part.returns == "nothing"):
            return None
        names = ["tensor"] if part.table else binding.tensor_names(part, run.inputs)
        kept = [name for name in names if name not in part.outputs]
        changed = [names[k] for k in call.changed_inputs if k < len(names) and names[k] in kept]
        return self.changed_inputs(changed, kept) if changed else None

    def sizes(self, shape: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes that the part uses, without the number of threads, for messages."""
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
        """Raise Faulty with the part's verdict if a call of the student's function failed.

        `where` names the input in the message, `shape` holds all its sizes. `hidden` is True for a hidden case.
        """
        if call.status != "ok":
            sizes = {} if shape is None else self.sizes(shape)
            raise self.backend.fault(Broken(self.part, call, where, hidden, sizes, session.printed))

    def refuse_failed_reference(self, call: Call) -> None:
        """Raise KitError if the reference failed, Faulty if the student's code killed the reference's process."""
        if call.status != "ok":
            if self.bench.zygote.sabotaged:
                raise faults.sabotage()
            raise KitError(
                f"the reference failed on {self.part.id}: {call.status} {call.signal_name}{call.message}; "
                "please report this"
            )
