"""One part of one submission, judged: results on every case, time in paired rounds, memory beside the reference.

Every answer of the student's runner, also a timed or a profiled one, is held against the oracle. What settles the
verdict at once (a crash, a hang, a missing function) is raised as `Faulty` wherever it shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from grader import score
from grader.assignment.records import Case, Part
from grader.base import machine
from grader.base.results import CaseResult, Diagnosis, Flag, Memory, PartResult, Standing, Timing, Verdict
from grader.judge import binding, faults, inquiring, looks, memory
from grader.judge.answers import answers
from grader.judge.bench import Bench
from grader.judge.events import Corrected, Timed
from grader.judge.integrity import flags as integrity
from grader.judge.looks import Shown, Step
from grader.judge.marking import Marker
from grader.judge.timing import rounds
from grader.run.calls import Call
from grader.run.session import Session

MOST_DIAGNOSED, ENOUGH_AGREEING, MOST_UNDECIDED = 5, 3, 10
"""Wrong cases that are explained at most, and how many have to name the same bug to believe it at once; cases up to
which more are explained while two bugs fit all so far, which costs little, as these alone are tried first."""
SHAKEN_S, MOST_SHAKEN = 0.1, 2
"""Seconds for which threads that share work are held up at random moments before their results count as right: a race
may well pass in one short call. And cases that are called again for it."""


class Judged:
    """One part of one submission while it is being judged."""

    def __init__(self, bench: Bench, part: Part) -> None:
        self.bench, self.part = bench, part
        self.shape = bench.shape
        self.marker = Marker(bench, part)
        self.verdict: Verdict = "pass"
        self.cases: list[CaseResult] = []
        self.diagnosis: Diagnosis | None = None
        self.judged_through = self.waits_for = ""
        self.time: Timing | None = None
        self.memory: Memory | None = None
        self.flags: list[Flag] = []
        self.printed = ""
        self.correctness_told = False
        self.sessions: list[Session] = []
        self.builds = [bench.build]
        """What its runners were given."""
        self.looking = True
        self.delays = not bench.options.sanitize
        self.shaken_s = 0.0
        """Of calls with delays, so far."""
        self.shown: Shown | None = None
        self.profiled: Call | None = None

    def settle(self, fault: faults.Faulty) -> None:
        self.verdict, self.diagnosis, self.waits_for = fault.verdict, fault.diagnosis, fault.waits_for
        if fault.case is not None:
            self.cases.append(fault.case)
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
            frontier=self.standing(),
            judged_through=self.judged_through,
            waits_for=self.waits_for,
        )

    def standing(self) -> Standing | None:
        """Its place among other kernels, where the lab has some and they were measured on this machine."""
        if self.time is None or not self.time.fit or self.verdict not in ("pass", "slow"):
            return None
        ladder = self.bench.assignment.lab.ladder()
        return ladder.standing(self.part, self.shape, self.time.ratio) if ladder else None

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
            raise faults.build_fault(bench.build)
        self.check_cases()
        self.add_flags(self.proofs_in_object())
        self.tell_correctness()
        if self.verdict in ("crash", "timeout", "missing") or options.sanitize:
            return
        self.measure_time()
        if self.shown is None:
            return
        if options.profile:
            # Last: only the familiar table needs torch, and no finding is to wait for it.
            self.look_with_torch(self.shown)
        else:
            self.memory = memory.peaks(self.marker, self.shown)

    def measure_time(self) -> None:
        bench, options = self.bench, self.bench.options
        rule = self.part.time
        if not options.timing or rule is None or self.verdict != "pass":
            return
        if not rule.graded and not options.time_ungraded:
            return
        with bench.exclusive():
            measured = rounds.measured(self.marker, self.student, attempt=1)
            if not measured.fit:
                # Once more, in processes of their own: what made the machine unfit may have passed.
                measured = rounds.measured(self.marker, self.student, attempt=2)
        self.time = rounds.settled(measured, rule)
        bench.tell(Timed(self.part, self.time))
        if rule.graded:
            self.flags += [Flag(code) for code in self.time.flags]
            self.verdict = "slow" if self.time.verdict == "slow" else self.verdict

    def look_with_torch(self, shown: Shown) -> None:
        """The familiar table, which only torch's profiler gives, and the memory beside the reference's."""
        bench, threads = self.bench, self.shape["threads"]
        bench.zygote.start()  # It imports torch while the object is built.
        if not self.part.is_torch:
            self.builds.append(bench.torch_build())
        if self.builds[-1].object_path is None:
            self.flags.append(Flag("no_torch_build", "it compiles by itself, but not with torch", "review"))
            self.memory = memory.peaks(self.marker, shown)
            return
        with self.student(threads=threads, with_torch=True) as student:
            self.memory, self.profiled, unlike = memory.beside_reference(
                self.marker, shown, student, lambda: self.student(threads=threads)
            )
        self.flags += unlike

    def student(self, *, threads: int, cpus: list[int] | None = None, with_torch: bool = False) -> Session:
        """A fresh runner of the student's; what it does is remembered."""
        self.sessions.append(self.bench.student(self.part, threads=threads, cpus=cpus, with_torch=with_torch))
        return self.sessions[-1]

    # ---- integrity

    def is_trusted(self) -> bool:
        """Whether nothing of the student's runs here, or not as it would be judged."""
        return self.part.is_torch or self.bench.options.sanitize

    def look_for_cheats(self) -> None:
        """What the runs showed besides answers; a proved cheat outweighs any other verdict."""
        if self.is_trusted() or not self.bench.build.ok:
            return
        seen = [flag for s in self.sessions for flag in integrity.evidence_flags(s.evidence, *self.builds)]
        seen += integrity.late_flags([s.evidence for s in self.sessions])
        rows = self.profiled.profile if self.profiled is not None else ()
        try:
            found = [*self.proofs_in_object(), *seen, *integrity.operator_flags(rows), *self.time_flags()]
            self.add_flags(found)
        except faults.Faulty as cheat:
            self.settle(cheat)

    def proofs_in_object(self) -> Iterable[Flag]:
        """What the object alone proves. It is looked at while the first cases are called."""
        if self.is_trusted():
            return ()
        return [flag for flag in self.bench.object_flags() if flag.level == "rejected"]

    def time_flags(self) -> Iterable[Flag]:
        if self.time is None or self.part.time is None:
            return ()
        return integrity.time_flags(
            self.time,
            flops=self.marker.oracle.flops(self.shape),
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
        try:
            self.check_all_cases()
        finally:
            self.settle_diagnoses()
        told = [(case.hidden, case.diagnosis) for case in self.cases if case.diagnosis]
        if self.verdict == "pass" and told:
            from grader.judge.diagnosis.diagnose import most_telling

            # What a public case tells can be told to its student.
            public = [diagnosis for hidden, diagnosis in told if not hidden]
            self.verdict = "wrong"
            found = most_telling(public or [diagnosis for _, diagnosis in told], self.marker.oracle.axes)
            self.diagnosis = self.inquired(found) if public else found

    def check_all_cases(self) -> None:
        part, usual = self.part, self.shape["threads"]
        session = self.student(threads=usual)
        with session:
            unbound = binding.mismatch(part, session.functions, part.inputs)
            if unbound is not None:
                if part.stands_in and unbound.code == "not_bound":
                    self.judge_by_stand_in()
                    return
                raise faults.Faulty("missing", unbound)
            look = self.looking and not self.bench.options.sanitize
            public = looks.by_threads(looks.steps(part, look=look), usual)
            try:
                self.call_cases(session, public[usual])
                self.shake(session, public.pop(usual))
            finally:
                session.close()
                self.printed = session.printed
        hidden = looks.by_threads(looks.hidden_steps(part), usual)
        for threads, steps in (*public.items(), *hidden.items()):
            if steps:
                with self.student(threads=threads) as session:
                    self.call_cases(session, steps)

    def call_cases(self, session: Session, steps: list[Step]) -> None:
        """Judge cases, and keep what some of these calls show besides (`grader.judge.looks`)."""
        results = {case.name: case for case in self.cases}
        peak_bytes = None
        for step in steps:
            shape, inputs = self.marker.inputs_of(step.case)
            call, result = self.check_case(session, step, shape, inputs)
            if step.case.name not in results or not result.ok:
                results[step.case.name] = result
                self.cases = [results[case.name] for case in self.part.cases if case.name in results]
            peak_bytes = call.peak_bytes if step.peak else peak_bytes
            if step.shown:
                self.shown = Shown(peak_bytes, call, shape, inputs, result.ok)

    def shake(self, session: Session, steps: list[Step]) -> None:
        """Call the largest of these cases again and again, if the threads share work and were held up for a short time
        only, and all is right so far."""
        if not steps or not self.delays or not session.shares_work:
            return
        largest = sorted(
            steps, key=lambda step: sum(x.size for x in self.marker.inputs_of(step.case)[1].values())
        )
        for step in itertools.cycle(largest[-MOST_SHAKEN:]):
            if self.shaken_s >= SHAKEN_S or not all(case.ok for case in self.cases):
                return
            self.call_cases(session, [Step(step.case)])

    def judge_by_stand_in(self) -> None:
        """The function is not bound, as in files for the published starter: a part that uses it decides."""
        stand_in = Judged(self.bench, self.bench.assignment.part(self.part.stands_in or ""))
        stand_in.looking, stand_in.sessions = False, self.sessions
        stand_in.check_cases()
        self.cases, self.verdict = stand_in.cases, stand_in.verdict
        self.judged_through = stand_in.part.id
        self.flags.append(Flag(f"judged_through_{stand_in.part.id}"))
        if stand_in.verdict != "pass":
            self.diagnosis = Diagnosis(
                "not_bound",
                f"{self.part.function} is not bound, so it counts through {stand_in.part.id}, which is not right yet. "
                f'Bind it with m.def("{self.part.function}", &{self.part.function}) to have it checked by itself.',
            )

    def check_case(
        self, session: Session, step: Step, shape: dict[str, int], inputs: Mapping[str, Any]
    ) -> tuple[Call, CaseResult]:
        again = any(case.name == step.case.name and case.ok for case in self.cases)
        held_up = self.delays and session.shares_work
        call = session.call(
            binding.request(self.part, shape, inputs),
            echo_inputs=True,
            delays=self.delays,
            measure_peak=step.peak,
        )
        self.shaken_s += call.wall_s * held_up
        self.marker.refuse_broken(call, session, step.case.name, hidden=step.case.hidden)
        explain = not self.explained()
        found, _ = answers(self.part, shape, inputs, call)
        twice = found is not None and not self.part.table
        # An explanation takes its time: where the call is to be made again, that comes first.
        result = self.marker.mark(step.case.name, shape, inputs, call, explain=explain and not twice)
        if not result.ok and twice:
            result = self.look_for_race(session, step.case, shape, inputs, call, explain, was_right=again)
        return call, replace(result, hidden=step.case.hidden)

    def look_for_race(
        self,
        session: Session,
        case: Case,
        shape: dict[str, int],
        inputs: Mapping[str, Any],
        call: Call,
        explain: bool,
        *,
        was_right: bool,
    ) -> CaseResult:
        """A wrong result that is different the next time, or was right before, has another cause than one that
        repeats."""
        if was_right:
            second: Any = {name: known.value for name, known in self.marker.expected(inputs, shape).items()}
        else:
            again = session.call(binding.request(self.part, shape, inputs), delays=self.delays)
            second, _ = answers(self.part, shape, inputs, again)
        return self.marker.mark(
            case.name,
            shape,
            inputs,
            call,
            second=second,
            explain=explain,
            earlier=[known.diagnosis for known in self.cases if known.diagnosis],
        )

    def inquired(self, told: Diagnosis) -> Diagnosis:
        """A public case's diagnosis with what further calls of the submission say of it, if its oracle asks for any."""
        (name,) = [case.name for case in self.cases if case.diagnosis is told][:1]
        case = next(case for case in self.part.cases if case.name == name)
        try:
            with self.student(threads=self.shape["threads"]) as session:
                sentence = inquiring.sentence(self.marker, case, session, told)
        except faults.Faulty:
            # Whatever becomes of a further call, the verdict is settled.
            sentence = ""
        return replace(told, message=f"{told.message} {sentence}".strip())

    def settle_diagnoses(self) -> None:
        """Each case's diagnosis in the light of the others: of the public ones alone where a student may be told it."""
        from grader.judge.diagnosis.diagnose import settled

        public = settled([None if case.hidden else case.diagnosis for case in self.cases])
        every = settled([case.diagnosis for case in self.cases])
        self.cases = [
            replace(case, diagnosis=alone or together)
            for case, alone, together in zip(self.cases, public, every, strict=True)
        ]

    def explained(self) -> bool:
        """Whether the wrong cases so far have been explained often enough: each explanation takes its time."""
        from grader.judge.diagnosis.diagnose import undecided, unexplained

        if len(self.cases) < MOST_UNDECIDED and undecided([case.diagnosis for case in self.cases]):
            return False
        codes = [case.diagnosis.code for case in self.cases if case.diagnosis]
        places = unexplained(self.marker.oracle.axes)
        named = [code for code in codes if code not in places]
        agreeing = max((named.count(code) for code in named), default=0)
        return len(codes) >= MOST_DIAGNOSED or agreeing >= ENOUGH_AGREEING
