"""One part of one submission, judged: results on every case, memory beside the reference, time in paired rounds.

Every answer of the student's runner, also a timed or a profiled one, is held against the oracle. What settles the
verdict at once (a crash, a hang, a missing function) is raised as `Faulty` wherever it shows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from grader import binding, faults, integrity, looks, machine, score
from grader.assignment import Case, Part
from grader.bench import Bench
from grader.errors import KitError
from grader.events import JUDGED_THROUGH, Corrected, Profiled
from grader.looks import Look, Step
from grader.results import CaseResult, Diagnosis, Flag, Memory, PartResult, Timing, Verdict
from grader.seeds import derive
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
        self.sessions: list[Session] = []
        self.looking = True
        self.look: Look | None = None

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
            points=score.part_points(part, self.verdict, self.cases, self.time)[0],
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
        self.look_for_cheats()
        return self.result()

    def judge(self) -> None:
        bench, options = self.bench, self.bench.options
        if not self.part.is_torch and not bench.build.ok:
            raise faults.Faulty("compile_error", Diagnosis("compile_error", bench.build.diagnostics))
        if not self.is_trusted():
            self.add_flags(flag for flag in integrity.inspect_object(bench.build) if flag.level == "rejected")
        self.check_cases()
        self.tell_correctness()
        if self.verdict in ("crash", "timeout", "missing") or options.sanitize:
            return
        if self.look is not None:
            self.look_at_memory(self.look)
        rule = self.part.time
        if not options.timing or rule is None or self.verdict != "pass":
            return
        if not rule.graded and not options.time_ungraded:
            return
        with bench.exclusive():
            for _attempt in range(2):
                # Twice where the machine is unfit, in processes of their own: what made it unfit may have passed.
                self.measure_time()
                if self.time is None or self.time.fit:
                    break
        self.settle_time()

    def student(self, *, threads: int, cpus: list[int] | None = None) -> Session:
        """A fresh runner of the student's; what it does is remembered."""
        self.sessions.append(self.bench.student(self.part, threads=threads, cpus=cpus))
        return self.sessions[-1]

    # ---- integrity

    def is_trusted(self) -> bool:
        """Whether nothing of the student's runs here, or not as it would be judged."""
        return self.part.is_torch or self.bench.options.sanitize

    def look_for_cheats(self) -> None:
        """What the runs showed besides answers; a proved cheat outweighs any other verdict."""
        if self.is_trusted() or not self.bench.build.ok:
            return
        seen = [
            flag for s in self.sessions for flag in integrity.evidence_flags(s.evidence, self.bench.build)
        ]
        rows = self.look.call.profile if self.look is not None else ()
        try:
            self.add_flags([*seen, *integrity.operator_flags(rows), *self.time_flags()])
        except faults.Faulty as cheat:
            self.settle(cheat)

    def time_flags(self) -> Iterable[Flag]:
        from grader import oracle

        if self.time is None or self.part.time is None:
            return ()
        return integrity.time_flags(
            self.time,
            flops=oracle.ORACLES[self.part.oracle].flops(self.shape),  # type: ignore[union-attr]
            threads=self.part.time.threads or self.shape["threads"],
            cores=len(machine.usable_cpus()),
        )

    def add_flags(self, flags: Iterable[Flag]) -> None:
        """One flag of each kind is enough. Raises Faulty for a proved cheat."""
        for flag in flags:
            if (flag.code, flag.level) not in {(known.code, known.level) for known in self.flags}:
                self.flags.append(flag)
        for flag in self.flags:
            if flag.level == "rejected":
                raise faults.Faulty("rejected", Diagnosis(flag.code, flag.message))

    # ---- results

    def check_cases(self) -> None:
        """Every case in turn; a wrong one does not hide the others, a crash ends the part."""
        part = self.part
        session = self.student(threads=self.shape["threads"])
        with session:
            unbound = binding.mismatch(part, session.functions, self.bench.assignment.inputs)
            if unbound is not None:
                if part.stands_in and unbound.code == "not_bound":
                    self.judge_by_stand_in()
                    return
                raise faults.Faulty("missing", unbound)
            look = self.looking and self.bench.options.profile and not self.bench.options.sanitize
            try:
                self.call_cases(session, looks.steps(part, look=look))
            finally:
                session.close()
                self.printed = session.printed
        if hidden := looks.hidden_steps(part):
            with self.student(threads=self.shape["threads"]) as session:
                self.call_cases(session, hidden)
        if told := [case for case in self.cases if case.diagnosis]:
            from grader.diagnose import most_telling

            # What a public case tells can be told to its student.
            public = [case.diagnosis for case in told if not case.hidden]
            self.verdict = "wrong"
            self.diagnosis = most_telling(public or [case.diagnosis for case in told])

    def call_cases(self, session: Session, steps: list[Step]) -> None:
        """Judge cases, and keep what some of these calls show besides (`grader.looks`)."""
        results = {case.name: case for case in self.cases}
        peak_bytes = None
        for step in steps:
            shape, inputs = self.inputs_of(step.case)
            call, result = self.check_case(session, step, shape, inputs)
            if step.case.name not in results or not result.ok:
                results[step.case.name] = result
                self.cases = [results[case.name] for case in self.part.cases if case.name in results]
            peak_bytes = call.peak_bytes if step.peak else peak_bytes
            if step.profile:
                self.look = Look(peak_bytes, call, shape, inputs, result.ok)

    def inputs_of(self, case: Case) -> tuple[dict[str, int], Mapping[str, Any]]:
        from grader.questions import question

        shape = {**self.shape, **case.shape}
        return shape, question(case, shape)

    def judge_by_stand_in(self) -> None:
        """The function is not bound, as in files for the published starter: a part that uses it decides."""
        stand_in = Judged(self.bench, self.bench.assignment.part(self.part.stands_in or ""))
        stand_in.looking, stand_in.sessions = False, self.sessions
        stand_in.check_cases()
        self.cases, self.verdict = stand_in.cases, stand_in.verdict
        self.flags.append(Flag(JUDGED_THROUGH + stand_in.part.id))
        if stand_in.verdict != "pass":
            self.diagnosis = Diagnosis(
                "not_bound",
                f"{self.part.function} is not bound, so it counts through {stand_in.part.id}, which is not right yet. "
                f'Bind it with m.def("{self.part.function}", &{self.part.function}) to have it checked by itself.',
            )

    def check_case(
        self, session: Session, step: Step, shape: dict[str, int], inputs: Mapping[str, Any]
    ) -> tuple[Call, CaseResult]:
        call = session.call(
            binding.request(self.part, shape, inputs), echo_inputs=True, **step.wanted(self.part, "STUDENT")
        )
        self.refuse_broken(call, session, step.case.name)
        result = self.compare(step.case.name, shape, inputs, call)
        if not result.ok and call.output is not None and not self.part.table:
            result = self.look_for_race(session, step.case, shape, inputs, call, result)
        return call, replace(result, hidden=step.case.hidden)

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
        expected = self.expected(inputs, shape)
        comparison = oracle.compare(expected, actual)
        diagnosis = None
        if not comparison.ok and not self.explained():
            diagnosis = diagnose.diagnose(
                part.oracle, inputs, shape, expected, actual, comparison, second=second
            )
        digest = None if comparison.ok else integrity.output_sha256(actual)
        return CaseResult(
            name, public_shape, comparison.ok, comparison.max_error, diagnosis, output_sha256=digest
        )

    def expected(self, inputs: Mapping[str, Any], shape: Mapping[str, int]) -> Any:
        from grader import oracle
        from grader.questions import Question

        if isinstance(inputs, Question):
            return inputs.expected(self.part.oracle)
        return oracle.ORACLES[self.part.oracle].expected(inputs, shape)  # type: ignore[arg-type]

    def explained(self) -> bool:
        """Whether the wrong cases so far have been explained often enough: each explanation takes its time."""
        from grader.diagnose import UNEXPLAINED

        codes = [case.diagnosis.code for case in self.cases if case.diagnosis]
        named = [code for code in codes if code not in UNEXPLAINED]
        agreeing = max((named.count(code) for code in named), default=0)
        return len(codes) >= MOST_DIAGNOSED or agreeing >= ENOUGH_AGREEING

    # ---- memory and the profiler's table

    def look_at_memory(self, mine: Look) -> None:
        """The student's table and memory were found on the way; the reference shows its own in the same calls."""
        theirs = self.look_at_reference(mine) if self.part.reference else None
        if theirs is not None:
            self.tell_look(theirs, "REFERENCE")
        self.tell_look(mine, "STUDENT")
        self.memory = Memory(
            mine.profiler_bytes(self.part, "STUDENT"),
            theirs.profiler_bytes(self.part, "REFERENCE") if theirs else None,
            mine.peak_bytes,
            theirs.peak_bytes if theirs else None,
        )

    def look_at_reference(self, mine: Look) -> Look:
        """Raises KitError when the reference fails or is wrong on the input of the profiled call."""
        part, peak_bytes = self.part, None
        with self.bench.reference(threads=self.shape["threads"]) as session:
            for step in looks.reference_steps(part):
                # The profiled call has the student's inputs, whose expected values are at hand.
                shape, inputs = (mine.shape, mine.inputs) if step.profile else self.inputs_of(step.case)
                request = binding.request(part, shape, inputs, reference=True)
                call = session.call(request, echo_inputs=True, **step.wanted(part, "REFERENCE"))
                self.refuse_failed_reference(call)
                peak_bytes = call.peak_bytes if step.peak else peak_bytes
        compared = self.compare("profiled call", dict(shape), inputs, call)
        if not compared.ok:
            raise KitError(f"the reference is wrong on {part.id}: {compared.diagnosis}; please report this")
        return Look(peak_bytes, call, shape, inputs, compared.ok)

    def refuse_failed_reference(self, call: Call) -> None:
        if call.status != "ok":
            if self.bench.zygote.sabotaged:
                raise faults.sabotage()
            raise KitError(
                f"the reference failed on {self.part.id}: {call.status} {call.signal_name}{call.message}"
            )

    def tell_look(self, look: Look, side: looks.Side) -> None:
        self.bench.tell(
            Profiled(
                self.part,
                side,
                look.ok,
                look.call.profiled_wall_s or 0.0,
                look.call.profile,
                self.example(look.inputs, look.shape, look.call),
            )
        )

    def example(
        self, inputs: Mapping[str, Any], shape: Mapping[str, int], call: Call
    ) -> tuple[tuple[int, ...], float, float] | None:
        """One index of an accessor with its expected and actual value, as the published check prints it."""
        if not self.part.table:
            return None
        actual, _ = faults.fitting_output(self.part, shape, inputs, call)
        if actual is None:
            return None
        index = tuple(int(i) for i in inputs["index"][0])
        expected = self.expected(inputs, shape).value
        place = (0,) if self.part.returns == "number" else index
        return index, float(expected[place]), float(actual[place])

    # ---- time

    def measure_time(self) -> None:
        """Paired rounds on fresh inputs, in a fresh pair of runners with a timed call's threads and cores."""
        from grader import measure

        rule, options = self.part.time, self.bench.options
        assert rule is not None
        policy = measure.TimePolicy(
            clock=rule.clock,
            allowance_ratio=rule.allowance_ratio,
            allowance_ms=rule.allowance_ms,
            budget_s=options.time_budget_s,
            graded=rule.graded,
        )
        seed = self.bench.assignment.seed if options.seed is None else options.seed
        attempt = 1 if self.time is None else 2
        draw = TimedInputs(
            self, derive(secrets.randbits(60) if seed is None else seed, self.part.id, attempt)
        )
        threads, cpus = rule.threads or self.shape["threads"], machine.timing_cpus(rule.threads)
        with (
            self.bench.reference(threads=threads, cpus=cpus) as reference,
            self.student(threads=threads, cpus=cpus) as student,
        ):
            self.warm_up(reference, student)
            self.time = measure.compare(
                partial(draw.sample, reference, is_reference=True),
                partial(draw.sample, student, is_reference=False),
                policy,
                warmup=0,
            )

    def warm_up(self, reference: Session, student: Session) -> None:
        """A small call of each: its threads start, and its code pages are touched."""
        shape, inputs = self.inputs_of(looks.smallest(self.part))
        self.refuse_failed_reference(
            reference.call(binding.request(self.part, shape, inputs, reference=True))
        )
        self.refuse_broken(student.call(binding.request(self.part, shape, inputs)), student, "warm-up")

    def settle_time(self) -> None:
        """What the measurement means for the verdict: nothing where the part's time is not graded."""
        if self.time is None or self.part.time is None:
            return
        if not self.part.time.graded:
            # Nothing was to be decided, so nothing is undecided.
            flags = [flag for flag in self.time.flags if flag != "undecided"]
            self.time = replace(self.time, verdict="pass", flags=(*flags, "not_graded"))
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
        inputs = make_inputs("random", shape, derive(self.seed, "inputs", self.calls))
        call = session.call(binding.request(part, shape, inputs, reference=is_reference))
        if is_reference:
            judged.refuse_failed_reference(call)
        judged.refuse_broken(call, session, "timed call")
        actual, misfit = faults.fitting_output(part, shape, inputs, call)
        if actual is None:
            raise faults.Faulty("wrong", misfit or Diagnosis("wrong", "wrong in a timed call"))
        generator = torch.Generator().manual_seed(derive(self.seed, "rows", self.calls))
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
