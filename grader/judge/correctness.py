"""Check of a part's results: it compares the outputs of every case, and finds the causes of wrong outputs.

A finding that decides the verdict at once (a crash, a hang, a missing function) is raised as `Faulty`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grader.assignment.inputs import CaseInputs
from grader.assignment.records import Case, Part
from grader.backends import faults
from grader.backends.native import crashes
from grader.backends.protocol import Observed
from grader.core import machine
from grader.core.results import CaseResult, Diagnosis
from grader.explain.case_run import CaseRun
from grader.explain.explanation_errors import attempt
from grader.explain.oracle import Oracle
from grader.explain.sanitizer_sites import Sites
from grader.judge import case_order, same_work
from grader.judge.bench import Bench
from grader.judge.case_order import Shown, Step
from grader.judge.marker import Marker
from grader.runner import placement
from grader.runner.calls import Call
from grader.runner.session import Session

MOST_DIAGNOSED, ENOUGH_AGREEING, MOST_UNDECIDED = 5, 3, 10
"""Limits on explaining wrong cases, which takes time. The search for causes stops after MOST_DIAGNOSED cases, or if
ENOUGH_AGREEING cases have the same cause. But while several causes fit, it goes on for the first MOST_UNDECIDED cases
of the part. This takes little time, because only the causes that are left are tried.
"""
SHAKEN_S, MOST_SHAKEN, MOST_REPEATS, MOST_AGAIN = 0.1, 2, 200, 3
"""Limits on calls with delayed threads, which reveal data races. Results count as right after SHAKEN_S seconds of such
calls. At most MOST_SHAKEN cases are repeated, in at most MOST_REPEATS calls, and a wrong call up to MOST_AGAIN times.
"""

#: A right case refutes suspects (known mistakes) only if its inputs have at most this many elements.
MOST_REFUTING = 1 << 17
#: MOST_INQUIRED limits the calls of one inquiry (`Oracle.inquiry`), which learns more about a wrong output. Diagnoses
#: with the codes NEEDS_NO_INQUIRY need no inquiry.
MOST_INQUIRED = 16
NEEDS_NO_INQUIRY = frozenset(
    {"not_written", "race", "unsteady", "wrong_shape", "wrong_dtype", "wrong_type", "inputs_overwritten"}
)


class Runners:
    """Factory of the runners for one part. It keeps all their sessions for the search for cheats at the end."""

    def __init__(self, bench: Bench, part: Part, sessions: list[Session] | None = None) -> None:
        self.bench, self.part = bench, part
        self.sessions: list[Session] = [] if sessions is None else sessions

    def fresh(self, **how: Any) -> Session:
        """Start a new runner as `Bench.student` does, and keep its session."""
        self.sessions.append(self.bench.student(self.part, **how))
        return self.sessions[-1]


class Correctness:
    """Results of one part of a submission, compared with the oracle case by case.

    `look`: True to measure memory, too, and to record one call for the profiler (`grader.judge.case_order`).
    """

    def __init__(
        self, bench: Bench, part: Part, runners: Runners | None = None, *, look: bool = True
    ) -> None:
        self.bench, self.part = bench, part
        self.runners = runners or Runners(bench, part)
        self.marker = Marker(bench, part)
        self.backend = self.marker.backend
        is_observable = not bench.options.sanitize and not self.backend.kind.on_card
        self.looking = look and is_observable
        self.is_compared = same_work.is_compared(bench.assignment, part)
        self.delays = is_observable
        self.shaken_s = 0.0
        """Seconds of calls with delayed threads so far."""
        self.cases: list[CaseResult] = []
        self.diagnosis: Diagnosis | None = None
        """Diagnosis of a wrong part; None if all cases are right so far."""
        self.judged_through = ""
        self.printed = ""
        self.shares_work = True
        """True if several threads worked on the public cases."""
        self.refused_files: tuple[tuple[str, str], ...] = ()
        """Files that the kernel could not open on public inputs: (name of the call such as "fopen", path) each."""
        self.shown: Shown | None = None
        self.sites = Sites(bench.source, bench.build.program)
        """Bad memory accesses that sanitizers reported."""
        self.outside: set[int] = set()
        """Lines, encoded for `gpu.backend.place_of`, that read outside all tensors in wrong calls of public cases."""
        self.observed: list[Observed] = []
        self.broken: tuple[Case, Call] | None = None
        """The case whose call returned no output, and that call."""
        self.unsettled: list[CaseResult] = []
        """Public cases with preliminary diagnoses (`diagnose.settled_together` makes the final ones)."""
        self.stand_in: Correctness | None = None

    def check(self) -> None:
        """Call every public case, even after a wrong one. A crash ends the part and raises Faulty."""
        from grader.explain.diagnose import concluded, settled_together

        try:
            self.check_public_cases()
        finally:
            refuted = attempt(self.refuted, frozenset[str]())
            self.unsettled, self.cases = self.cases, settled_together(self.cases, refuted)
        if self.sites.found:
            raise faults.Faulty("crash", self.sites.diagnosis())
        if self.stand_in is None:
            self.diagnosis = concluded(self.cases, self.marker.oracle.axes)

    def refuted(self) -> frozenset[str]:
        """Return the names of the suspects (known mistakes) that small, right public cases refute."""
        from grader.explain.diagnose import refuted

        ok = {case.name for case in self.cases if case.ok}
        right = (
            (inputs, self.marker.expected(inputs))
            for case in self.part.cases
            if case.name in ok and not case.hidden
            for inputs in [self.marker.inputs_of(case)]
            if inputs.elements <= MOST_REFUTING
        )
        return refuted(self.marker.oracle, [case.diagnosis for case in self.cases], right)

    def check_hidden(self) -> None:
        """Call the hidden cases, after all public calls, and add their results. A crash raises Faulty."""
        from grader.explain.diagnose import concluded, settled_together

        if self.stand_in is not None:
            self.stand_in.check_hidden()
            self.take_over(self.stand_in)
            return
        before, self.cases = self.cases, self.unsettled
        try:
            steps = [Step(case) for case in self.part.cases if case.hidden]
            self.call_in_fresh_runners(case_order.by_threads(steps, self.bench.shape["threads"]))
        finally:
            hidden = [case for case in settled_together(self.cases) if case.hidden]
            names = {case.name for case in self.part.cases}
            public = [case for case in before if case.name in names]
            self.cases = [*public, *hidden, *(case for case in before if case.name not in names)]
        if self.sites.found:
            raise faults.Faulty("crash", self.sites.diagnosis(hidden=True))
        self.diagnosis = self.diagnosis or concluded(hidden, self.marker.oracle.axes)

    def check_public_cases(self) -> None:
        part, usual = self.part, self.bench.shape["threads"]
        session = self.runners.fresh(threads=usual)
        with session:
            unbound, self.marker.functions = self.backend.unbound(part, session), session.functions
            if unbound is not None:
                if part.stands_in and unbound.code == "not_bound" and self.marker.is_used():
                    self.judge_by_stand_in()
                    return
                raise faults.Faulty("missing", unbound)
            public = case_order.by_threads(case_order.steps(part, look=self.looking), usual)
            try:
                self.call_cases(session, public[usual])
                self.shake(session, public.pop(usual))
            finally:
                self.shares_work = session.shares_work
                session.close()
                self.printed = crashes.own_output(session.printed)
                self.refused_files = crashes.refused_files(session.printed)
        self.call_in_fresh_runners(public)

    def call_in_fresh_runners(self, by_threads: Mapping[int, list[Step]]) -> None:
        for threads, steps in by_threads.items():
            if steps:
                with self.runners.fresh(threads=threads) as session:
                    self.call_cases(session, steps)

    def call_cases(self, session: Session, steps: list[Step]) -> None:
        """Call and judge the cases of these steps. Keep the memory of a `peak` step, and the call of a `shown` step."""
        results = {case.name: case for case in self.cases}
        peak_bytes = held_bytes = None
        for step in steps:
            run, result = self.check_case(session, step)
            call = run.call
            if step.case.name not in results or not result.ok:
                results[step.case.name] = result
                self.cases = [results[case.name] for case in self.part.cases if case.name in results]
            self.observed.append((step.case, result.ok, call.profile, call.trace))
            if not result.ok and not step.case.hidden:
                self.outside.update(call.outside)
            if result.ok and not step.case.hidden and self.is_compared:
                self.bench.outputs.setdefault(self.part.id, {})[step.case.name] = call.output.copy()
            if step.peak:
                peak_bytes, held_bytes = call.peak_bytes, call.held_bytes
            if step.shown:
                self.shown = Shown(peak_bytes, run, result.ok, held_bytes)

    def shake(self, session: Session, steps: list[Step]) -> None:
        """Repeat the largest of these cases with and without delayed threads, so that a data race shows.

        Does nothing if only one thread works. Stops after SHAKEN_S seconds of calls with several threads, after
        MOST_REPEATS calls, at the time limit of one call, or at a wrong result.
        """
        if not steps or not self.delays or not session.shares_work:
            return
        largest = sorted(steps, key=lambda step: self.marker.inputs_of(step.case).elements)
        placement.spread(session.pid, machine.usable_cpus())
        # Alternate calls with and without delays: with many cores, races show more often without delays.
        calls = itertools.product([step.case for step in largest[: -MOST_SHAKEN - 1 : -1]], (True, False))
        # `shaken_s` hardly grows while the threads are idle: limit the total time, too.
        ends_s = time.monotonic() + session.call_timeout_s
        for case, held_up in itertools.islice(itertools.cycle(calls), MOST_REPEATS):
            is_over = self.shaken_s >= SHAKEN_S or time.monotonic() >= ends_s
            if is_over or not all(case.ok for case in self.cases):
                return
            self.call_cases(session, [Step(case, held_up=held_up)])

    def judge_by_stand_in(self) -> None:
        """Judge a function that the file does not export (as in the starter) by judging another part that calls it."""
        part = self.bench.assignment.part(self.part.stands_in or "")
        stand_in = Correctness(self.bench, part, Runners(self.bench, part, self.runners.sessions), look=False)
        stand_in.check()
        self.stand_in, self.judged_through = stand_in, part.id
        self.take_over(stand_in)

    def take_over(self, stand_in: Correctness) -> None:
        """Take the cases of the part `stand_in` for this part. If that part failed, advise to export this function."""
        self.cases = stand_in.cases
        if stand_in.diagnosis is not None:
            self.diagnosis = Diagnosis(
                "not_bound",
                f"{self.part.function} is not exported, so it is judged through {stand_in.part.id}, which is not "
                f'right yet. To have it judged by itself, add m.def("{self.part.function}", &{self.part.function}).',
            )

    def check_case(self, session: Session, step: Step) -> tuple[CaseRun, CaseResult]:
        """Call one case and compare the output. Return (the call, its result). Raises Faulty if the call failed."""
        again = any(case.name == step.case.name and case.ok for case in self.cases)
        shared = self.delays and session.shares_work
        run = self.marker.call_case(
            session, step.case, echo_inputs=True, delays=self.delays and step.held_up, measure_peak=step.peak
        )
        call = run.call
        self.shaken_s += met_s(call) * shared
        if self.bench.options.sanitize:
            self.sites.look(session, f"'{step.case.name}', {faults.in_words(self.marker.sizes(run.shape))}")
            if call.status != "ok" and self.sites.found:
                raise faults.Faulty("crash", self.sites.diagnosis(step.case.hidden))
        if call.status != "ok":
            self.broken = step.case, call
        self.marker.refuse_broken(call, session, step.case.name, hidden=step.case.hidden, shape=run.shape)
        explain = not self.explained()
        if run.wrong is None or not explain or self.part.table:
            result = self.marker.mark(run, explain=explain)
        else:
            # Repeat the call first: if the output changes from call to call, `diagnose` looks for other causes.
            result = self.marker.mark(
                run,
                again=self.outputs_again(session, run, was_right=again),
                earlier=[known.diagnosis for known in self.cases if known.diagnosis],
                shared=session.shares_work,
            )
        return run, replace(result, hidden=step.case.hidden)

    def outputs_again(self, session: Session, run: CaseRun, *, was_right: bool) -> list[dict[str, Any]]:
        """Return the outputs of repeated calls with the same inputs, to be compared with a wrong result.

        If several threads work, several calls are made, because a race may damage the same element twice. `was_right`:
        True if an earlier call of this case was right. Then the expected values are returned, without a call.
        """
        if was_right:
            return [{name: known.value for name, known in run.expected.items()}]
        found = []
        for number in range(MOST_AGAIN if session.shares_work else 1):
            again = self.marker.again(session, run, delays=self.delays and number % 2 == 0)
            if again.outputs is None:
                break
            found.append(again.outputs)
        return found

    def with_inquiry(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return a public case's diagnosis, extended by a sentence from the oracle's `inquiry`, if the oracle has one.

        The further calls of the inquiry are made in a new runner.
        """
        names = [case.name for case in self.cases if case.diagnosis is diagnosis]
        case = next((case for case in self.part.cases if case.name in names), None)
        if case is None or type(self.marker.oracle).inquiry is Oracle.inquiry:
            return diagnosis

        def inquire() -> str:
            with self.runners.fresh(threads=self.bench.shape["threads"]) as session:
                return inquired(self.marker, case, session, diagnosis)

        # A crash in a further call does not change the verdict.
        sentence = attempt(inquire, "", expected=(faults.Faulty,))
        return replace(diagnosis, message=f"{diagnosis.message} {sentence}") if sentence else diagnosis

    def explained(self) -> bool:
        """Return True if no further wrong case needs a diagnosis: enough have one, or enough name the same cause.

        Return False while several causes fit and fewer than MOST_UNDECIDED cases have a result.
        """
        from grader.explain.diagnose import undecided, unexplained

        if len(self.cases) < MOST_UNDECIDED and undecided([case.diagnosis for case in self.cases]):
            return False
        codes = [case.diagnosis.code for case in self.cases if case.diagnosis]
        places = unexplained(self.marker.oracle.axes)
        named = [code for code in codes if code not in places]
        agreeing = max((named.count(code) for code in named), default=0)
        return len(codes) >= MOST_DIAGNOSED or agreeing >= ENOUGH_AGREEING


def met_s(call: Call) -> float:
    """Return an upper limit on the seconds in which several threads ran at the same time in a call.

    It is the shorter one of CPU time and wall-clock time. Wall-clock time includes waiting for a core.
    """
    return call.wall_s if call.cpu_s is None else min(call.wall_s, call.cpu_s)


def inquired(marker: Marker, case: Case, session: Session, diagnosis: Diagnosis) -> str:
    """Repeat a wrong call and make the further calls that the oracle proposes. Return the oracle's sentence on them.

    Returns "" if the diagnosis needs no calls, the oracle proposes none or has no sentence, or a call fails.
    """
    from grader.core.arrays import np

    if diagnosis.code in NEEDS_NO_INQUIRY:
        return ""
    run = marker.call_case(session, case)
    if run.outputs is None:
        return ""
    inquiry = marker.oracle.inquiry(run.inputs, run.shape, run.expected, run.outputs)
    if inquiry is None:
        return ""
    found = []
    for part_id, given in inquiry.calls[:MOST_INQUIRED]:
        part = marker.part if part_id == run.part.id else marker.bench.assignment.part(part_id)
        answer = _outputs_of(marker, part, run, CaseInputs(run.shape, given), session)
        if answer is None:
            return ""
        found.append(answer)
    with np.errstate(all="ignore"):
        return inquiry.conclude(found)


def _outputs_of(
    marker: Marker, part: Part, run: CaseRun, inputs: CaseInputs, session: Session
) -> dict[str, Any] | None:
    """Call the function of `part` with the sizes of a run. Return its outputs; None if it is missing or fails."""
    if marker.backend.unbound(part, session) is not None:
        return None
    call = session.call(marker.backend.request(part, inputs))
    return replace(run, part=part, inputs=inputs, call=call).outputs
