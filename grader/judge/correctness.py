"""Judges a part's results: the student's answer on every case, and why a wrong one is wrong.

What settles the verdict at once (a crash, a hang, a function that is not there) is raised as `Faulty`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grader.assignment.records import Case, Part
from grader.core import machine
from grader.core.results import CaseResult, Diagnosis, ProfileRow, Verdict
from grader.judge import binding, faults, inquiring, looks, same_work
from grader.judge.answers import answers
from grader.judge.bench import Bench
from grader.judge.looks import Shown, Step
from grader.judge.marking import Marker
from grader.judge.oracle import Oracle
from grader.judge.sites import Sites
from grader.runner import placement
from grader.runner.calls import Call
from grader.runner.session import Session

if TYPE_CHECKING:
    from grader.judge.diagnosis.deviation import Axis

MOST_DIAGNOSED, ENOUGH_AGREEING, MOST_UNDECIDED = 5, 3, 10
"""Wrong cases that are explained at most, and how many have to name the same bug to believe it at once; cases up to
which more are explained while two bugs fit all so far, which costs little, as these alone are tried first."""
SHAKEN_S, MOST_SHAKEN, MOST_REPEATS, MOST_AGAIN = 0.1, 2, 200, 3
"""Seconds of their own work for which threads that share it are held up at random moments before their results count as
right: a race may well pass in one short call. Cases that are called again for it, and calls at most; calls that a wrong
result is compared with, to see whether it is always the same."""


UNEXPLAINED = Diagnosis("wrong_values", "The result is wrong.")


class Runners:
    """Fresh runners of the student's code for one part; all of them are remembered, with what they did."""

    def __init__(self, bench: Bench, part: Part, sessions: list[Session] | None = None) -> None:
        self.bench, self.part = bench, part
        self.sessions: list[Session] = [] if sessions is None else sessions

    def fresh(self, **how: Any) -> Session:
        """One more, as `Bench.student` makes it."""
        self.sessions.append(self.bench.student(self.part, **how))
        return self.sessions[-1]


class Correctness:
    """One part of one submission, held against the oracle case by case.

    `look`: keep what some of the calls show besides (`grader.judge.looks`), for the table and the memory.
    """

    def __init__(
        self, bench: Bench, part: Part, runners: Runners | None = None, *, look: bool = True
    ) -> None:
        self.bench, self.part = bench, part
        self.runners = runners or Runners(bench, part)
        self.marker = Marker(bench, part)
        on_device = part.device is not None
        self.looking = look and not bench.options.sanitize and not on_device
        self.is_compared = same_work.is_compared(bench.assignment, part)
        self.delays = not bench.options.sanitize and not on_device
        self.shaken_s = 0.0
        """Of calls with delays, so far."""
        self.verdict: Verdict = "pass"
        self.cases: list[CaseResult] = []
        self.diagnosis: Diagnosis | None = None
        self.judged_through = ""
        self.printed = ""
        self.shown: Shown | None = None
        self.sites = Sites(bench.source, bench.program)
        """Of a checked build: places that touched what is not theirs."""
        self.outside: set[int] = set()
        """Lines (`faults.place_of`) that loaded from outside of every tensor on public inputs that came out wrong."""
        self.observed: list[tuple[Case, bool, tuple[ProfileRow, ...], str]] = []
        """Calls on a device: case, right or not, what the call called, and its trace."""
        self.broken: tuple[Case, Call] | None = None
        """The case whose call gave no answer, and what became of it."""
        self.unsettled: list[CaseResult] = []
        """Public cases as they were diagnosed one by one."""
        self.stand_in: Correctness | None = None

    def check(self) -> None:
        """Call every public case. A wrong one does not hide the others, a crash ends the part. Raises Faulty."""
        try:
            self.check_public_cases()
        finally:
            self.unsettled, self.cases = self.cases, settled_together(self.cases)
        if self.sites.found:
            raise faults.Faulty("crash", self.sites.diagnosis())
        found = concluded(self.cases, self.marker.oracle.axes)
        if self.verdict == "pass" and found is not None:
            self.verdict = "wrong"
            told_to_student = any(case.diagnosis and not case.hidden for case in self.cases)
            self.diagnosis = self.inquired(found) if told_to_student else found
            self.cases = retold(self.cases, found, self.diagnosis)
            if self.outside:
                built = self.bench.build_of(self.part)
                self.diagnosis = faults.with_loads_outside(self.diagnosis, sorted(self.outside), built)

    def check_hidden(self) -> None:
        """Call the hidden cases, after everything that is public. No further call explains them. Raises Faulty."""
        if self.stand_in is not None:
            self.stand_in.check_hidden()
            self.take_over(self.stand_in)
            return
        before, self.cases = self.cases, self.unsettled
        try:
            self.call_in_fresh_runners(
                looks.by_threads(looks.hidden_steps(self.part), self.bench.shape["threads"])
            )
        finally:
            hidden = [case for case in settled_together(self.cases) if case.hidden]
            names = {case.name for case in self.part.cases}
            public = [case for case in before if case.name in names]
            self.cases = [*public, *hidden, *(case for case in before if case.name not in names)]
        if self.sites.found:
            raise faults.Faulty("crash", self.sites.diagnosis(hidden=True))
        found = concluded(hidden, self.marker.oracle.axes)
        if self.verdict == "pass" and found is not None:
            self.verdict, self.diagnosis = "wrong", found

    def check_public_cases(self) -> None:
        part, usual = self.part, self.bench.shape["threads"]
        session = self.runners.fresh(threads=usual)
        with session:
            unbound = self.unbound(session)
            self.marker.as_autograd = binding.as_autograd(part, session.functions)
            if unbound is not None:
                if part.stands_in and unbound.code == "not_bound" and self.marker.is_used():
                    self.judge_by_stand_in()
                    return
                raise faults.Faulty("missing", unbound)
            public = looks.by_threads(looks.steps(part, look=self.looking), usual)
            try:
                self.call_cases(session, public[usual])
                self.shake(session, public.pop(usual))
            finally:
                session.close()
                self.printed = faults.without_heap_words(session.printed)
        self.call_in_fresh_runners(public)

    def call_in_fresh_runners(self, by_threads: Mapping[int, list[Step]]) -> None:
        for threads, steps in by_threads.items():
            if steps:
                with self.runners.fresh(threads=threads) as session:
                    self.call_cases(session, steps)

    def unbound(self, session: Session) -> Diagnosis | None:
        """Return the reason that the part's function cannot be called, None where it can."""
        part = self.part
        if part.device is None or part.device.language != "cuda":
            return binding.mismatch(part, session.functions, part.inputs)
        # A library does not tell what it offers, but whether it has a function of that name.
        asked = session.command({"op": "offers", "inputs": [], "function": part.function})
        return binding.mismatch(part, {part.function: ""} if asked.status == "ok" else {}, part.inputs)

    def call_cases(self, session: Session, steps: list[Step]) -> None:
        """Judge cases, and keep what some of these calls show besides (`grader.judge.looks`)."""
        results = {case.name: case for case in self.cases}
        peak_bytes = held_bytes = None
        for step in steps:
            shape, inputs = self.marker.inputs_of(step.case)
            call, result = self.check_case(session, step, shape, inputs)
            if step.case.name not in results or not result.ok:
                results[step.case.name] = result
                self.cases = [results[case.name] for case in self.part.cases if case.name in results]
            if self.part.device is not None:
                self.observed.append((step.case, result.ok, call.profile, call.trace))
            if not result.ok and not step.case.hidden:
                self.outside.update(call.outside)
            if result.ok and not step.case.hidden and self.is_compared:
                self.bench.outputs.setdefault(self.part.id, {})[step.case.name] = call.output.copy()
            if step.peak:
                peak_bytes, held_bytes = call.peak_bytes, call.held_bytes
            if step.shown:
                self.shown = Shown(peak_bytes, call, shape, inputs, result.ok, step.case.name, held_bytes)

    def shake(self, session: Session, steps: list[Step]) -> None:
        """Call the largest of these cases again and again, if the threads share work and were held up for a short time
        only, and all is right so far."""
        if not steps or not self.delays or not session.shares_work:
            return
        largest = sorted(
            steps, key=lambda step: sum(x.size for x in self.marker.inputs_of(step.case)[1].values())
        )
        placement.spread(session.pid, machine.usable_cpus())
        # Held up and free in turn: on many cores threads meet at their own pace more often than held up.
        calls = itertools.product([step.case for step in largest[: -MOST_SHAKEN - 1 : -1]], (True, False))
        # Threads that have no work left count as sharing it: the calls together may take as long as one.
        ends_s = time.monotonic() + session.call_timeout_s
        for case, held_up in itertools.islice(itertools.cycle(calls), MOST_REPEATS):
            is_over = self.shaken_s >= SHAKEN_S or time.monotonic() >= ends_s
            if is_over or not all(case.ok for case in self.cases):
                return
            self.call_cases(session, [Step(case, held_up=held_up)])

    def judge_by_stand_in(self) -> None:
        """The function is not bound, as in files for the published starter: a part that uses it decides."""
        part = self.bench.assignment.part(self.part.stands_in or "")
        stand_in = Correctness(self.bench, part, Runners(self.bench, part, self.runners.sessions), look=False)
        stand_in.check()
        self.stand_in, self.judged_through = stand_in, part.id
        self.take_over(stand_in)

    def take_over(self, stand_in: Correctness) -> None:
        self.cases, self.verdict = stand_in.cases, stand_in.verdict
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
        shared = self.delays and session.shares_work
        call = session.call(
            binding.request(self.part, shape, inputs),
            echo_inputs=True,
            delays=self.delays and step.held_up,
            measure_peak=step.peak,
        )
        self.shaken_s += met_s(call) * shared
        if self.bench.options.sanitize:
            self.sites.look(session, f"'{step.case.name}', {faults.in_words(self.marker.sizes(shape))}")
            if call.status != "ok" and self.sites.found:
                raise faults.Faulty("crash", self.sites.diagnosis(step.case.hidden))
        if call.status != "ok":
            self.broken = step.case, call
        self.marker.refuse_broken(call, session, step.case.name, hidden=step.case.hidden, shape=shape)
        explain = not self.explained()
        found, _ = answers(self.part, shape, inputs, call)
        twice = explain and found is not None and not self.part.table
        # An explanation takes its time: where the call is to be made again, that comes first.
        result = self.marker.mark(step.case.name, shape, inputs, call, explain=explain and not twice)
        if not result.ok and twice:
            result = self.look_for_race(session, step.case, shape, inputs, call, was_right=again)
        return call, replace(result, hidden=step.case.hidden)

    def look_for_race(
        self,
        session: Session,
        case: Case,
        shape: dict[str, int],
        inputs: Mapping[str, Any],
        call: Call,
        *,
        was_right: bool,
    ) -> CaseResult:
        """A wrong result that is different the next time, or was right before, has another cause than one that
        repeats."""
        if was_right:
            again = [{name: known.value for name, known in self.marker.expected(inputs, shape).items()}]
        else:
            again = self.asked_again(session, shape, inputs)
        return self.marker.mark(
            case.name,
            shape,
            inputs,
            call,
            again=again,
            earlier=[known.diagnosis for known in self.cases if known.diagnosis],
            shared=session.shares_work,
        )

    def asked_again(
        self, session: Session, shape: dict[str, int], inputs: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Return the answers of the same call made again; several times where threads share the work, since a race
        may well lose the same element twice."""
        found = []
        request = binding.request(self.part, shape, inputs)
        for number in range(MOST_AGAIN if session.shares_work else 1):
            call = session.call(request, delays=self.delays and number % 2 == 0)
            answered, _ = answers(self.part, shape, inputs, call)
            if answered is None:
                break
            found.append(answered)
        return found

    def inquired(self, told: Diagnosis) -> Diagnosis:
        """A public case's diagnosis with what further calls of the submission say of it, if its oracle asks for any."""
        names = [case.name for case in self.cases if case.diagnosis is told]
        case = next((case for case in self.part.cases if case.name in names), None)
        if case is None or type(self.marker.oracle).inquiry is Oracle.inquiry:
            return told
        try:
            with self.runners.fresh(threads=self.bench.shape["threads"]) as session:
                sentence = inquiring.sentence(self.marker, case, session, told)
        except faults.Faulty:
            # Whatever becomes of a further call, the verdict is settled.
            sentence = ""
        return replace(told, message=f"{told.message} {sentence}") if sentence else told

    def explained(self) -> bool:
        """Return True if the wrong cases so far have been explained often enough: each explanation takes its time."""
        from grader.judge.diagnosis.diagnose import undecided, unexplained

        if len(self.cases) < MOST_UNDECIDED and undecided([case.diagnosis for case in self.cases]):
            return False
        codes = [case.diagnosis.code for case in self.cases if case.diagnosis]
        places = unexplained(self.marker.oracle.axes)
        named = [code for code in codes if code not in places]
        agreeing = max((named.count(code) for code in named), default=0)
        return len(codes) >= MOST_DIAGNOSED or agreeing >= ENOUGH_AGREEING


def met_s(call: Call) -> float:
    """Seconds of a call in which its threads could meet. On a busy machine most of the wall clock's are others'."""
    return call.wall_s if call.cpu_s is None else min(call.wall_s, call.cpu_s)


def concluded(cases: Sequence[CaseResult], axes: Sequence[Axis]) -> Diagnosis | None:
    """Return the diagnosis from a part's cases: the public ones alone where any of them tells something, as their
    student may be told it. None where all are right."""
    from grader.judge.diagnosis.diagnose import most_telling

    told = [(case.hidden, case.diagnosis) for case in cases if case.diagnosis]
    public = [diagnosis for hidden, diagnosis in told if not hidden]
    if not told and not all(case.ok for case in cases):
        return UNEXPLAINED
    return most_telling(public or [diagnosis for _, diagnosis in told], axes) if told else None


def retold(cases: Sequence[CaseResult], told: Diagnosis, now: Diagnosis) -> list[CaseResult]:
    """The case that a diagnosis was told from, with what is told now."""
    return [replace(case, diagnosis=now) if case.diagnosis is told else case for case in cases]


def settled_together(cases: Sequence[CaseResult]) -> list[CaseResult]:
    """Each case's diagnosis in the light of the others: of the public ones alone where a student may be told it."""
    from grader.judge.diagnosis.diagnose import settled

    public = settled([None if case.hidden else case.diagnosis for case in cases])
    every = settled([case.diagnosis for case in cases])
    return [
        replace(case, diagnosis=alone or together)
        for case, alone, together in zip(cases, public, every, strict=True)
    ]
