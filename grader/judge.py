"""One part of one submission, judged: results on every case, memory beside the reference, time in paired rounds.

Every answer of the student's runner, also a timed or a profiled one, is held against the oracle. What settles the
verdict at once (a crash, a hang, a missing function) is raised as `Faulty` wherever it shows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from grader import binding, faults, machine, score
from grader.assignment import Case, Part
from grader.bench import Bench
from grader.errors import KitError
from grader.events import JUDGED_THROUGH, Corrected, Profiled
from grader.results import CaseResult, Diagnosis, Flag, Memory, PartResult, Timing, Verdict
from grader.session import Call, Session

SAMPLED_ROWS, SAMPLED_REFERENCE_ROWS = 24, 4
"""Rows of each timed output that are compared with the oracle: drawn after the kernel has answered."""
MOST_DIAGNOSED, ENOUGH_AGREEING = 5, 3
"""Wrong cases that are explained at most, and how many have to name the same bug to believe it at once."""


class Judged:
    """One part of one submission while it is being judged."""

    def __init__(self, bench: Bench, part: Part) -> None:
        self.bench, self.part = bench, part
        self.shape = bench.shape
        self.verdict: Verdict = "pass"
        self.cases: list[CaseResult] = []
        self.diagnosis: Diagnosis | None = None
        self.time: Timing | None = None
        self.memory: Memory | None = None
        self.flags: list[Flag] = []
        self.printed = ""
        self.correctness_told = False

    def settle(self, fault: faults.Faulty) -> None:
        self.verdict, self.diagnosis = fault.verdict, fault.diagnosis
        self.tell_correctness()

    def tell_correctness(self) -> None:
        if not self.correctness_told:
            self.correctness_told = True
            self.bench.tell(Corrected(self.part, self.verdict, tuple(self.cases), self.diagnosis))

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

    def run(self) -> PartResult:
        """Judge it; whatever the submission did, this ends in a result."""
        try:
            self.judge()
        except faults.Faulty as fault:
            self.settle(fault)
        return self.result()

    def judge(self) -> None:
        bench, options = self.bench, self.bench.options
        if not self.part.is_torch and not bench.build.ok:
            raise faults.Faulty("compile_error", Diagnosis("compile_error", bench.build.diagnostics))
        self.check_cases()
        self.tell_correctness()
        if self.verdict in ("crash", "timeout", "missing") or options.sanitize:
            return
        if not options.profile and not options.timing:
            return
        timed = options.timing and self.part.time is not None and self.verdict == "pass"
        with self.runners() as (reference, student):
            if options.profile:
                self.look_at_memory(reference, student)
            if timed and reference is not None:
                self.measure_time(reference, student, warmup=0 if options.profile else 1)
        if self.time is not None and not self.time.fit:
            # Once more, in processes of their own: what made the machine unfit may have passed.
            with self.runners() as (reference, student):
                if reference is not None:
                    self.measure_time(reference, student, warmup=1)
        self.settle_time()

    @contextmanager
    def runners(self) -> Iterator[tuple[Session | None, Session]]:
        """A fresh pair of runners, reference (where the part has one) and student, with a timed call's threads."""
        rule = self.part.time
        threads = (rule.threads if rule else None) or self.shape["threads"]
        cpus = machine.timing_cpus(rule.threads) if rule else None
        with ExitStack() as stack:
            reference = None
            if self.part.reference:
                reference = stack.enter_context(self.bench.reference(threads=threads, cpus=cpus))
            yield reference, stack.enter_context(self.bench.student(self.part, threads=threads, cpus=cpus))

    # ---- results

    def check_cases(self) -> None:
        """Every case in turn; a wrong one does not hide the others, a crash ends the part."""
        part = self.part
        session = self.bench.student(part, threads=self.shape["threads"])
        with session:
            unbound = binding.mismatch(part, session.functions, self.bench.assignment.inputs)
            if unbound is not None:
                if part.stands_in and unbound.code == "not_bound":
                    self.judge_by_stand_in()
                    return
                raise faults.Faulty("missing", unbound)
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
        stand_in = Judged(self.bench, self.bench.assignment.part(self.part.stands_in or ""))
        stand_in.check_cases()
        self.cases, self.verdict = stand_in.cases, stand_in.verdict
        self.flags.append(Flag(JUDGED_THROUGH + stand_in.part.id))
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
        if self.bench.options.sanitize:
            found = faults.sanitizer_finding(session, self.bench.source)
            if found is not None:
                raise faults.Faulty("crash", found)
        raise faults.call_fault(call, self.part, where)

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
        if not comparison.ok and not self.explained():
            diagnosis = diagnose.diagnose(
                part.oracle, inputs, shape, expected, actual, comparison, second=second
            )
        return CaseResult(name, public_shape, comparison.ok, comparison.max_error, diagnosis)

    def explained(self) -> bool:
        """Whether the wrong cases so far have been explained often enough: each explanation takes its time."""
        from grader.diagnose import UNEXPLAINED

        codes = [case.diagnosis.code for case in self.cases if case.diagnosis]
        named = [code for code in codes if code not in UNEXPLAINED]
        agreeing = max((named.count(code) for code in named), default=0)
        return len(codes) >= MOST_DIAGNOSED or agreeing >= ENOUGH_AGREEING

    # ---- memory and the profiler's table

    def look_at_memory(self, reference: Session | None, student: Session) -> None:
        """One call each, reference first, for the table and the profiler's bytes, and one for the peak."""
        if self.part.function not in student.functions and not self.part.is_torch:
            return  # judged through another part
        theirs = self.profile_side(reference, "REFERENCE") if reference else (None, None)
        mine = self.profile_side(student, "STUDENT")
        self.memory = Memory(mine[0], theirs[0], mine[1], theirs[1])

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
                echo_inputs=True,
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
            raise faults.Faulty(
                "wrong", compared.diagnosis or Diagnosis("wrong", "wrong in the profiled call")
            )
        profiled = answers[-1]
        scope = next((row for row in profiled.profile if row.name == f"{side} - {part.label}"[:60]), None)
        self.bench.tell(
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

    def measure_time(self, reference: Session, student: Session, *, warmup: int) -> None:
        """Paired rounds on fresh inputs."""
        from grader import measure

        rule, options = self.part.time, self.bench.options
        assert rule is not None
        policy = measure.TimePolicy(
            clock=rule.clock,
            allowance_ratio=rule.allowance_ratio,
            allowance_ms=rule.allowance_ms,
            budget_s=options.time_budget_s,
        )
        seed = secrets.randbits(60) if options.seed is None else options.seed
        draw = TimedInputs(self, seed)
        self.time = measure.compare(
            partial(draw.sample, reference, is_reference=True),
            partial(draw.sample, student, is_reference=False),
            policy,
            warmup,
        )

    def settle_time(self) -> None:
        """What the measurement means for the verdict: nothing where the part's time is not graded."""
        if self.time is None or self.part.time is None:
            return
        if not self.part.time.graded:
            self.time = replace(self.time, verdict="pass", flags=(*self.time.flags, "not_graded"))
            return
        self.flags += [Flag(code) for code in self.time.flags]
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
            raise faults.Faulty("wrong", misfit or Diagnosis("wrong", "wrong in a timed call"))
        generator = torch.Generator().manual_seed(seed ^ 0x5EED)
        rows = torch.randperm(shape["N"], generator=generator)
        rows = rows[: SAMPLED_REFERENCE_ROWS if is_reference else SAMPLED_ROWS]
        expected = oracle.ORACLES[part.oracle].expected_rows(inputs, shape, rows)  # type: ignore[union-attr]
        right = oracle.compare(expected, actual.index_select(2, rows)).ok and bool(
            torch.isfinite(actual).all()
        )
        if not right and not is_reference:
            result = judged.compare("timed call", shape, inputs, call)
            judged.cases.append(result)
            raise faults.Faulty(
                "wrong", result.diagnosis or Diagnosis("wrong", "wrong in a timed call, right before")
            )
        if not right:
            raise KitError(
                f"the reference gave a wrong result on {part.id} while it was timed; please report this"
            )
        return Sample(call.wall_s, call.cpu_s)
