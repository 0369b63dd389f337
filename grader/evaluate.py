"""The one evaluator: from a source file to a result, for the student's run, the class and Gradescope alike.

Order of work for each part: is it bound; is it right on every case (the student's runner gets inputs only, the judge
compares with float64); what do the profiler and the resident high-water mark say beside the reference; how fast is it,
in paired rounds whose every output is checked as well. A listener hears each finding as it is made, so that a terminal
can show correctness long before the timing is done. Nothing here prints.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from grader import binding, faults, machine, sandbox, score
from grader.assignment import Assignment, Case, Part
from grader.build import Build, build
from grader.errors import KitError
from grader.results import (
    CaseResult,
    Diagnosis,
    Memory,
    PartResult,
    ProfileRow,
    SubmissionResult,
    Timing,
    Verdict,
)
from grader.session import Call, Session, Zygote
from grader.toolchain import describe as describe_toolchain

SAMPLED_ROWS = 48
"""Rows of each timed output that are compared with the oracle: drawn after the kernel has answered."""
SANITIZER_SLOWDOWN = 20
MOST_DIAGNOSED = 5
"""Wrong cases that are explained: the explanation of one more hardly changes which is the most telling."""
JUDGED_THROUGH = "judged_through_"
"""Start of the flag of a part whose function is not bound; the id of the part that decided follows."""


@dataclass(frozen=True)
class Options:
    """What one run may vary. `shape` overrides the assignment's defaults; `seed` makes timed inputs repeatable (by
    default each run draws its own)."""

    shape: Mapping[str, int] = field(default_factory=dict)
    defines: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    timing: bool = True
    profile: bool = True
    sanitize: bool = False


# ---- what a listener hears, in this order


@dataclass(frozen=True)
class Built:
    build: Build


@dataclass(frozen=True)
class PartStarted:
    part: Part
    shape: Mapping[str, int]


@dataclass(frozen=True)
class Corrected:
    """Correctness is known: before anything is profiled or timed."""

    part: Part
    verdict: Verdict
    cases: tuple[CaseResult, ...]
    diagnosis: Diagnosis | None


@dataclass(frozen=True)
class Profiled:
    """One call under the profiler. `side` is REFERENCE or STUDENT; `ok` says whether its output was right."""

    part: Part
    side: str
    ok: bool
    wall_s: float
    rows: tuple[ProfileRow, ...]
    example: tuple[tuple[int, ...], float, float] | None = None
    """For an accessor: an index, the expected and the actual value."""


@dataclass(frozen=True)
class PartDone:
    result: PartResult


Event = Built | PartStarted | Corrected | Profiled | PartDone
Listener = Callable[[Event], None]


class Faulty(Exception):
    """A call of the student's function that settles the part's verdict."""

    def __init__(self, verdict: Verdict, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.message)
        self.verdict, self.diagnosis = verdict, diagnosis


class Evaluator:
    """Holds what the parts of one submission share: the build, the zygote and the reference."""

    def __init__(
        self,
        assignment: Assignment,
        source: Path,
        options: Options = Options(),
        listener: Listener = lambda event: None,
        zygote: Zygote | None = None,
    ) -> None:
        self.assignment, self.source, self.options, self.tell = assignment, source, options, listener
        self.shape = {**assignment.defaults, **options.shape}
        self.limits = sandbox.Limits(
            memory_bytes=None if options.sanitize else int(assignment.limits.memory_gib * sandbox.GIB)
        )
        self._given_zygote = zygote
        self._stack = ExitStack()

    def run(self, parts: tuple[Part, ...]) -> SubmissionResult:
        """Evaluate the parts in order. Raises KitError when the machine or the kit cannot judge at all."""
        with self._stack:
            if not self.options.sanitize:
                # Before the build and before the judge's own import of torch: it imports torch meanwhile.
                self.zygote = self._given_zygote or self._stack.enter_context(Zygote())
            self.build = self._build()
            self.tell(Built(self.build))
            if self.options.sanitize:
                # AddressSanitizer has to be in the process before anything else: a zygote of its own.
                from grader import sanitize

                self.zygote = self._stack.enter_context(Zygote(sanitize.environment(self.build)))
            import torch  # noqa: F401 (now, beside the zygote's own import, and not after it)

            results = tuple(self._part(part) for part in parts)
        return SubmissionResult(
            submission_id=self.source.stem,
            sha256=hashlib.sha256(self.source.read_bytes()).hexdigest(),
            assignment=self.assignment.id,
            machine=machine.describe(),
            toolchain=describe_toolchain(),
            sandbox=sandbox.describe(),
            parts=results,
            flags=tuple(dict.fromkeys(flag for result in results for flag in result.flags)),
            points=sum(result.points for result in results),
            max_points=sum(result.max_points for result in results),
        )

    # ---- shared by the parts

    def _build(self) -> Build:
        return build(
            self.source,
            defines=self.options.defines,
            sanitize=self.options.sanitize,
            timeout_s=self.assignment.limits.build_s,
        )

    def call_timeout_s(self, shape: Mapping[str, int]) -> float:
        """The assignment's limit, stretched with the work of larger shapes than its defaults."""

        def work(sizes: Mapping[str, int]) -> int:
            return sizes["B"] * sizes["H"] * sizes["N"] ** 2 * sizes["d"]

        stretch = max(1.0, work(shape) / work(self.assignment.defaults))
        return self.assignment.limits.call_s * stretch * (SANITIZER_SLOWDOWN if self.options.sanitize else 1)

    def _student(self, part: Part, *, threads: int, cpus: list[int] | None = None) -> Session:
        """A fresh runner holding the student's object (or torch itself, for a part that is torch's)."""
        kind = "torch" if part.is_torch else "student"
        session = self._stack.enter_context(
            self.zygote.spawn(
                kind,
                self.build.object_path or "",
                threads=threads,
                cpus=cpus,
                limits=self.limits,
                call_timeout_s=self.call_timeout_s(self.shape),
            )
        )
        if session.death is not None:
            raise Faulty(*faults.loading_fault(session.death))
        if session.load_error is not None:
            raise Faulty(
                "compile_error", Diagnosis("load_error", f"the object cannot be loaded: {session.load_error}")
            )
        return session

    def _reference(self, *, threads: int, cpus: list[int] | None = None) -> Session:
        from module_ref_stub import library_path

        session = self._stack.enter_context(
            self.zygote.spawn(
                "raw",
                library_path(),
                threads=threads,
                cpus=cpus,
                call_timeout_s=self.call_timeout_s(self.shape),
            )
        )
        if session.death is not None or session.load_error is not None:
            raise KitError(f"the reference library cannot be loaded: {session.load_error or session.death}")
        return session

    # ---- one part

    def _part(self, part: Part) -> PartResult:
        self.tell(PartStarted(part, self.shape))
        judged = Judged(self, part)
        try:
            judged.run()
        except Faulty as fault:
            judged.settle(fault)
        result = judged.result()
        self.tell(PartDone(result))
        return result


class Judged:
    """One part of one submission while it is being judged."""

    def __init__(self, evaluator: Evaluator, part: Part) -> None:
        self.evaluator, self.part = evaluator, part
        self.shape = evaluator.shape
        self.verdict: Verdict = "pass"
        self.cases: list[CaseResult] = []
        self.diagnosis: Diagnosis | None = None
        self.time: Timing | None = None
        self.memory: Memory | None = None
        self.flags: list[str] = []
        self.printed = ""
        self.correctness_told = False

    def settle(self, fault: Faulty) -> None:
        self.verdict, self.diagnosis = fault.verdict, fault.diagnosis
        self.tell_correctness()

    def tell_correctness(self) -> None:
        if not self.correctness_told:
            self.correctness_told = True
            self.evaluator.tell(Corrected(self.part, self.verdict, tuple(self.cases), self.diagnosis))

    def result(self) -> PartResult:
        part = self.part
        return PartResult(
            id=part.id,
            title=part.title,
            verdict=self.verdict,
            points=score.points(part, self.verdict),
            max_points=part.points,
            cases=tuple(self.cases),
            time=self.time,
            memory=self.memory,
            diagnosis=self.diagnosis,
            flags=tuple(self.flags),
            output=self.printed,
        )

    def run(self) -> None:
        evaluator, options = self.evaluator, self.evaluator.options
        if not self.part.is_torch and not evaluator.build.ok:
            raise Faulty("compile_error", Diagnosis("compile_error", evaluator.build.diagnostics))
        self.check_cases()
        self.tell_correctness()
        if self.verdict in ("crash", "timeout", "missing") or options.sanitize:
            return
        if options.profile:
            self.look_at_memory()
        if options.timing and self.part.time and self.verdict == "pass":
            self.measure_time()

    # ---- results

    def check_cases(self) -> None:
        """Every case in turn; a wrong one does not hide the others, a crash ends the part."""
        part = self.part
        session = self.evaluator._student(part, threads=self.shape["threads"])
        with session:
            unbound = binding.mismatch(part, session.functions, self.evaluator.assignment.inputs)
            if unbound is not None:
                if part.stands_in and unbound.code == "not_bound":
                    self.judge_by_stand_in()
                    return
                raise Faulty("missing", unbound)
            try:
                for case in part.cases:
                    self.check_case(session, case)
            finally:
                session.close()
                self.printed = session.printed
        if told := [case.diagnosis for case in self.cases if case.diagnosis]:
            from grader.diagnose import most_telling

            self.verdict, self.diagnosis = "wrong", most_telling(told)

    def judge_by_stand_in(self) -> None:
        """The function is not bound, as in files for the published starter: a part that uses it decides."""
        stand_in = Judged(self.evaluator, self.evaluator.assignment.part(self.part.stands_in or ""))
        stand_in.check_cases()
        self.cases, self.verdict = stand_in.cases, stand_in.verdict
        self.flags.append(JUDGED_THROUGH + stand_in.part.id)
        if stand_in.verdict != "pass":
            self.diagnosis = Diagnosis(
                "not_bound",
                f"{self.part.function} is not bound, so it counts through {stand_in.part.id}, which is not right yet. "
                f'Bind it with m.def("{self.part.function}", &{self.part.function}) to have it checked by itself.',
            )

    def check_case(self, session: Session, case: Case) -> None:
        from grader.cases import make_inputs

        shape = {**self.shape, **case.shape}
        inputs = make_inputs(case.distribution, shape, case.seed)
        call = session.call(binding.request(self.part, shape, inputs), echo_inputs=True)
        self.refuse_broken(call, session, case.name)
        result = self.compare(case.name, shape, inputs, call)
        if not result.ok and call.output is not None and not self.part.table:
            result = self.look_for_race(session, case, shape, inputs, call, result)
        self.cases.append(result)

    def look_for_race(
        self,
        session: Session,
        case: Case,
        shape: dict[str, int],
        inputs: Mapping[str, Any],
        call: Call,
        first: CaseResult,
    ) -> CaseResult:
        """A wrong result that is different the next time has another cause than one that repeats."""
        again = session.call(binding.request(self.part, shape, inputs))
        if again.output is None or again.output.shape != call.output.shape:
            return first
        return self.compare(case.name, shape, inputs, call, second=again.output)

    def refuse_broken(self, call: Call, session: Session, where: str) -> None:
        """Turn a call without an answer into the part's verdict."""
        if call.status == "ok":
            return
        if self.evaluator.options.sanitize:
            found = faults.sanitizer_finding(session, self.evaluator.source)
            if found is not None:
                raise Faulty("crash", found)
        raise Faulty(*faults.call_fault(call, self.part, where))

    def compare(
        self, name: str, shape: dict[str, int], inputs: Mapping[str, Any], call: Call, second: Any = None
    ) -> CaseResult:
        """Hold one answer against the oracle, whole."""
        from grader import diagnose, oracle

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
        expected = oracle.ORACLES[part.oracle].expected(inputs, shape)
        comparison = oracle.compare(expected, actual)
        diagnosis = None
        if not comparison.ok and sum(not case.ok for case in self.cases) < MOST_DIAGNOSED:
            diagnosis = diagnose.diagnose(
                part.oracle, inputs, shape, expected, actual, comparison, second=second
            )
        return CaseResult(name, public_shape, comparison.ok, comparison.max_error, diagnosis)

    # ---- memory and the profiler's table

    def look_at_memory(self) -> None:
        """One call each, reference first, for the table and the profiler's bytes, and one for the peak."""
        part = self.part
        reference: tuple[int | None, int | None] = (None, None)
        if part.reference:
            with self.evaluator._reference(threads=self.shape["threads"]) as session:
                reference = self.profile_side(session, "REFERENCE")
        with self.evaluator._student(part, threads=self.shape["threads"]) as session:
            if part.function not in session.functions and not part.is_torch:
                return  # judged through another part
            student = self.profile_side(session, "STUDENT")
        self.memory = Memory(student[0], reference[0], student[1], reference[1])

    def profile_side(self, session: Session, side: str) -> tuple[int | None, int | None]:
        """(profiler bytes, peak bytes) of one side. A small call comes first, so that code pages do not count."""
        from grader.cases import make_inputs

        part, is_reference = self.part, side == "REFERENCE"
        small = min(part.cases, key=lambda case: case.shape.get("N", 1 << 30))
        sized = next((case for case in part.cases if case.distribution == "random"), part.cases[0])
        answers = []
        for case, wanted in (
            (small, {}),
            (sized, {"measure_peak": True}),
            (sized, {"profile_label": f"{side} - {part.label}"}),
        ):
            shape = {**self.shape, **(case.shape if wanted == {} or part.table else {})}
            inputs = make_inputs(case.distribution, shape, case.seed)
            call = session.call(
                binding.request(part, shape, inputs, reference=is_reference),
                workspace_in_scope=part.workspace_in_scope,
                **wanted,  # type: ignore[arg-type]
            )
            if is_reference and call.status != "ok":
                raise KitError(
                    f"the reference failed on {part.id}: {call.status} {call.signal_name}{call.message}"
                )
            self.refuse_broken(call, session, "memory and profile")
            answers.append(call)
        compared = self.compare("profiled call", shape, inputs, answers[-1])
        if is_reference and not compared.ok:
            raise KitError(f"the reference is wrong on {part.id}: {compared.diagnosis}; please report this")
        if not compared.ok and self.verdict == "pass":
            self.cases.append(compared)
            raise Faulty("wrong", compared.diagnosis or Diagnosis("wrong", "wrong in the profiled call"))
        profiled = answers[-1]
        scope = next((row for row in profiled.profile if row.name == f"{side} - {part.label}"[:60]), None)
        self.evaluator.tell(
            Profiled(
                part,
                side,
                compared.ok,
                profiled.profiled_wall_s or 0.0,
                profiled.profile,
                self.example(inputs, shape, profiled),
            )
        )
        return (scope.cpu_bytes if scope else None), answers[1].peak_bytes

    def example(
        self, inputs: Mapping[str, Any], shape: Mapping[str, int], call: Call
    ) -> tuple[tuple[int, ...], float, float] | None:
        """One index of an accessor with its expected and actual value, as the published check prints it."""
        from grader.oracle import ORACLES

        if not self.part.table:
            return None
        actual, _ = faults.fitting_output(self.part, shape, inputs, call)
        if actual is None:
            return None
        index = tuple(int(i) for i in inputs["index"][0])
        expected = ORACLES[self.part.oracle].expected(inputs, shape).value
        place = (0,) if self.part.returns == "number" else index
        return index, float(expected[place]), float(actual[place])

    # ---- time

    def measure_time(self) -> None:
        """Paired rounds on fresh inputs. A second attempt follows when the machine was not fit in the first."""
        from grader import measure

        rule = self.part.time
        assert rule is not None
        policy = measure.TimePolicy(
            clock=rule.clock, allowance_ratio=rule.allowance_ratio, allowance_ms=rule.allowance_ms
        )
        threads = rule.threads or self.shape["threads"]
        cpus = machine.timing_cpus(rule.threads)
        for _ in range(2):
            with (
                self.evaluator._reference(threads=threads, cpus=cpus) as reference,
                self.evaluator._student(self.part, threads=threads, cpus=cpus) as student,
            ):
                seeds = secrets.SystemRandom() if self.evaluator.options.seed is None else None
                draw = TimedInputs(self, seeds.getrandbits(60) if seeds else self.evaluator.options.seed or 0)
                self.time = measure.compare(
                    partial(draw.sample, reference, is_reference=True),
                    partial(draw.sample, student, is_reference=False),
                    policy,
                )
            if self.time.fit:
                break
        if not rule.graded:
            self.time = replace(self.time, verdict="pass", flags=(*self.time.flags, "not_graded"))
        self.flags += [flag for flag in self.time.flags if flag not in self.flags and flag != "not_graded"]
        if self.time.verdict == "slow":
            self.verdict = "slow"


class TimedInputs:
    """Fresh inputs for every timed call, and the check of every timed output on rows the kernel cannot foresee."""

    def __init__(self, judged: Judged, seed: int) -> None:
        self.judged, self.seed = judged, seed
        self.calls = 0

    def sample(self, session: Session, *, is_reference: bool) -> Any:
        """One timed call of either side. Raises Faulty when the student's output is wrong or missing."""
        import torch

        from grader import oracle
        from grader.cases import make_inputs
        from grader.measure import Sample

        judged, part, shape = self.judged, self.judged.part, self.judged.shape
        self.calls += 1
        seed = self.seed + self.calls
        inputs = make_inputs("random", shape, seed)
        call = session.call(binding.request(part, shape, inputs, reference=is_reference))
        if is_reference and call.status != "ok":
            raise KitError(
                f"the reference failed while it was timed: {call.status} {call.signal_name}{call.message}"
            )
        judged.refuse_broken(call, session, "timed call")
        actual, misfit = faults.fitting_output(part, shape, inputs, call)
        if actual is None:
            raise Faulty("wrong", misfit or Diagnosis("wrong", "wrong in a timed call"))
        rows = torch.randperm(shape["N"], generator=torch.Generator().manual_seed(seed ^ 0x5EED))[
            :SAMPLED_ROWS
        ]
        expected = oracle.ORACLES[part.oracle].expected_rows(inputs, shape, rows)  # type: ignore[union-attr]
        right = oracle.compare(expected, actual.index_select(2, rows)).ok and bool(
            torch.isfinite(actual).all()
        )
        if not right and not is_reference:
            result = judged.compare("timed call", shape, inputs, call)
            judged.cases.append(result)
            raise Faulty(
                "wrong", result.diagnosis or Diagnosis("wrong", "wrong in a timed call, right before")
            )
        if not right:
            raise KitError(
                f"the reference gave a wrong result on {part.id} while it was timed; please report this"
            )
        return Sample(call.wall_s, call.cpu_s)
