"""Judge of one part of one submission: results on every case, time in paired rounds, and memory.

Judging has two phases. `PartJudge.judge_public` makes every call whose result the student may see.
`PartJudge.judge_hidden` calls the hidden cases, after the first phase of all parts (`grader.judge.evaluate`).

Every output of the student's runner is compared with the oracle, timed and profiled ones included. A finding that
decides the verdict at once (a crash, a hang, a missing function) is raised as `Faulty`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace

from grader.assignment.records import Part
from grader.assignment.rubric import ONE_THREAD
from grader.backends import faults
from grader.core import machine
from grader.core.results import Diagnosis, Flag, Memory, PartResult, Standing, Timing, Verdict
from grader.explain import explanation_errors
from grader.integrity import flags as integrity
from grader.judge import memory, same_work
from grader.judge.bench import Bench
from grader.judge.case_order import Shown
from grader.judge.correctness import Correctness, Runners
from grader.judge.events import Corrected, Settled, Timed
from grader.judge.regrade import BROKEN_OFF
from grader.judge.timing import rounds
from grader.runner.calls import Call

#: Pattern of code that starts threads.
THREADS = r"#\s*pragma\s+omp\s+(?!simd)|std::thread|\bparallel_for\b"


class PartJudge:
    """State of one part of a submission while it is judged: its results, then its time, then memory and flags."""

    def __init__(self, bench: Bench, part: Part) -> None:
        self.bench, self.part, self.shape = bench, part, bench.shape
        self.runners = Runners(bench, part)
        self.results = Correctness(bench, part, self.runners)
        self.marker, self.backend = self.results.marker, self.results.backend
        self.conclude("pass")
        self.time: Timing | None = None
        self.memory: Memory | None = None
        self.held: memory.Held | None = None
        self.flags: list[Flag] = []
        self.correctness_emitted = False
        self.has_results = False
        """True if all public cases were called."""
        self.builds = [bench.build]
        """Builds that the part's runners have loaded."""
        self.profiled: Call | None = None

    def conclude(self, verdict: Verdict, diagnosis: Diagnosis | None = None, waits_for: str = "") -> None:
        """Set the verdict and replace any earlier one.

        `waits_for`: program or device that the machine lacks, for the verdict "unjudged".
        """
        self.verdict, self.diagnosis, self.waits_for = verdict, diagnosis, waits_for

    def refine(self, *steps: Callable[[Diagnosis], Diagnosis], in_cases: bool = True) -> None:
        """Apply the steps to the diagnosis in turn. `in_cases`: True to change it also in the cases that have it."""
        for step in steps:
            if (diagnosis := self.diagnosis) is None:
                return
            refined = explanation_errors.attempt(functools.partial(step, diagnosis), diagnosis)
            self.conclude(self.verdict, refined, self.waits_for)
            if in_cases:
                self.results.cases = [
                    replace(case, diagnosis=refined) if case.diagnosis is diagnosis else case
                    for case in self.results.cases
                ]

    def settle(self, fault: faults.Faulty) -> None:
        """Set the part's verdict and diagnosis to those of a fault, and add the fault's case."""
        self.conclude(fault.verdict, fault.diagnosis, fault.waits_for)
        if fault.case is not None:
            self.results.cases.append(fault.case)
        self.emit_correctness()

    def emit_correctness(self) -> None:
        if not self.correctness_emitted:
            self.correctness_emitted = True
            self.bench.emit(Corrected(self.part, self.verdict, tuple(self.results.cases), self.diagnosis))

    def result(self) -> PartResult:
        part = self.part
        self.flags += explanation_errors.flags()
        return PartResult(
            id=part.id,
            title=part.title,
            verdict=self.verdict,
            max_points=part.points,
            cases=tuple(self.results.cases),
            time=self.time,
            memory=self.memory,
            diagnosis=self.diagnosis,
            flags=tuple(self.flags),
            output=self.results.printed,
            frontier=self.standing(),
            judged_through=self.results.judged_through,
            waits_for=self.waits_for,
        )

    def standing(self) -> Standing | None:
        """Return the part's speed compared with the lab's known kernels; None without these or without a valid time."""
        if self.time is None or not self.time.fit or self.verdict not in ("pass", "slow"):
            return None
        ladder = self.bench.assignment.lab.ladder()
        return ladder.standing(self.part, self.shape, self.time.ratio) if ladder else None

    def judge_public(self) -> None:
        """Judge everything except the hidden cases. Faults of the submission become the verdict and are not raised."""
        try:
            self.judge()
        except faults.Faulty as fault:
            self.settle(fault)
        # `judge_hidden` flags library work in a part with hidden cases.
        if self.has_results and not self.has_hidden_cases():
            self.flag_library_work()
        self.look_for_cheats()
        self.look_for_other_work()
        self.look_for_races()
        self.look_with_torch()
        self.explain()
        self.flags += explanation_errors.flags()

    def is_disturbed(self) -> bool:
        """Return True if the part may have crashed or timed out because of other submissions on the machine."""
        found = self.diagnosis if self.verdict in ("crash", "timeout") else None
        return found is not None and self.backend.is_disturbed(found)

    def has_hidden_cases(self) -> bool:
        """Return True if the part has hidden cases and its verdict allows `judge_hidden` to call them."""
        if not self.has_results or self.verdict in BROKEN_OFF:
            return False
        judged_by = self.results.stand_in
        return any(case.hidden for case in (self.part if judged_by is None else judged_by.part).cases)

    def judge_hidden(self) -> None:
        """Call the hidden cases. If one is wrong, the part's time is dropped, as for any wrong part."""
        try:
            self.results.check_hidden()
            if self.results.diagnosis is not None and self.verdict != "wrong":
                self.conclude("wrong", self.results.diagnosis)
        except faults.Faulty as fault:
            self.settle(fault)
        self.flag_library_work()
        self.look_for_cheats()
        if self.verdict in ("wrong", *BROKEN_OFF) and self.time is not None:
            of_time = self.time.flags
            self.flags = [flag for flag in self.flags if flag.code not in of_time]
            self.time = None

    def judge(self) -> None:
        options, built = self.bench.options, self.backend.build(self.part)
        if built is not None and not built.ok:
            raise faults.build_fault(built)
        if lacking := self.backend.lacks(self.part, "results"):
            raise lacking
        self.check_results()
        self.add_flags(self.proofs_in_object())
        self.emit_correctness()
        if options.sanitize:
            return
        self.add_flags(self.thread_flags())
        self.measure_time()
        shown = self.results.shown
        if shown is None:
            self.take_device_memory()
            return
        self.memory, self.held = memory.of_call(self.marker, shown)

    def flag_library_work(self) -> None:
        """Flag a GPU part if, in a call so far, libraries did the work in place of the student's kernel."""
        # Replaying calls takes as long as making them, so it is left out for a part that earns no points.
        is_paid = self.results.diagnosis is None or self.part.case_credit > 0
        try:
            self.add_flags(self.backend.library_flags(self.marker, self.results.observed, play=is_paid))
        except faults.Faulty as fault:
            self.settle(fault)

    def check_results(self) -> None:
        self.results.check()
        self.has_results = True
        if (found := self.results.diagnosis) is not None:
            self.conclude("wrong", found)
            if not self.results.judged_through:
                self.refine(self.results.with_inquiry)
            if lines := sorted(self.results.outside):
                # Add these lines to the part's diagnosis only, not to the diagnosis of a case.
                self.refine(
                    lambda known: self.backend.with_loads_outside(self.part, known, lines), in_cases=False
                )
        if self.results.judged_through:
            self.flags.append(Flag(f"judged_through_{self.results.judged_through}"))

    def measure_time(self) -> None:
        bench, options = self.bench, self.bench.options
        rule = self.part.time
        if not options.timing or rule is None or self.verdict != "pass":
            return
        if not rule.graded and not options.time_ungraded:
            return
        if lacking := self.backend.lacks(self.part, "time"):
            if rule.graded:
                raise lacking
            return
        try:
            with bench.exclusive(self.part) as cpus:
                measured = rounds.measured(self.marker, self.runners.fresh, attempt=1, cpus=cpus)
                if not measured.fit:
                    # Measure once more in fresh processes: the disturbance may have passed.
                    measured = rounds.measured(self.marker, self.runners.fresh, attempt=2, cpus=cpus)
        except faults.Faulty as fault:
            if rule.graded or fault.verdict != "unjudged":
                raise
            self.flags.append(Flag("not_timed", fault.diagnosis.message))
            return
        self.time = rounds.settled(measured, rule)
        bench.emit(Timed(self.part, self.time))
        if rule.graded:
            self.flags += [Flag(code) for code in self.time.flags]
            if self.time.verdict == "slow":
                self.conclude("slow")

    def take_device_memory(self) -> None:
        """Set the memory of a GPU part from its timed calls, because single calls do not measure it."""
        peaks = self.backend.peaks(self.part)
        is_timed = self.bench.options.timing and self.part.time is not None
        if peaks is None or not is_timed or self.verdict not in ("pass", "slow"):
            return
        if self.backend.lacks(self.part, "time"):
            return
        self.memory = Memory(None, None, *peaks)
        self.held = memory.Held(self.shape, self.memory.peak_bytes, self.memory.reference_peak_bytes)

    def look_with_torch(self) -> None:
        """Profile the part if requested. Send its result first, so that the student need not wait for the profiler."""
        bench, shown, options = self.bench, self.results.shown, self.bench.options
        # When a class is graded, a wrong part may earn points, so it is profiled, too. In a student's own run only the
        # cause of a wrong result matters.
        wanted = ("pass", "slow") if options.second_look else ("pass", "slow", "wrong")
        if not options.profile or shown is None or self.held is None or self.verdict not in wanted:
            return
        if not self.has_hidden_cases():
            bench.emit(Settled(self.part, self.result()))
        try:
            self.profile(shown)
        except faults.Faulty as fault:
            self.settle(fault)
        self.look_for_cheats()

    def profile(self, shown: Shown) -> None:
        """Repeat one call under torch's profiler. Store its table, and the memory of student and reference."""
        bench, threads = self.bench, self.shape["threads"]
        bench.zygote.start()  # The zygote imports torch while the object is built.
        if self.backend.kind.is_students:
            self.builds.append(bench.made.with_torch())
        if self.builds[-1].object_path is None:
            self.flags.append(
                Flag("no_torch_build", "the file compiles without torch, but not with it", "review")
            )
            return
        with self.runners.fresh(threads=threads, with_torch=True) as student:
            self.memory, self.profiled, unlike = memory.beside_reference(
                self.marker, shown, student, lambda: self.runners.fresh(threads=threads)
            )
        self.flags += unlike

    def explain(self) -> None:
        """Add facts about the cause to the diagnosis. They come from further calls and from the source."""
        if self.diagnosis is None:
            return
        from grader.judge import explanation

        before = len(self.runners.sessions)
        with ExitStack() as stack:
            self.refine(*explanation.refinements(self.results, self.verdict, self.diagnosis, stack))
        # The search for cheats leaves out the runners that were started for the explanation.
        del self.runners.sessions[before:]

    # ---- integrity

    def is_trusted(self) -> bool:
        """Return True if a cheat could not earn points: the part calls torch's own function, or sanitizers are on."""
        return not self.backend.kind.is_students or self.bench.options.sanitize

    def look_for_cheats(self) -> None:
        """Add flags from the runners' evidence, the object and the times. A proved cheat replaces any other verdict."""
        built = self.backend.build(self.part)
        if self.is_trusted() or built is None or not built.ok:
            return
        seen = self.backend.flags([session.evidence for session in self.runners.sessions], self.builds)
        rows = self.profiled.profile if self.profiled is not None else ()
        try:
            found = [*self.proofs_in_object(), *seen, *integrity.operator_flags(rows), *self.time_flags()]
            self.add_flags(found)
        except faults.Faulty as cheat:
            self.settle(cheat)

    def look_for_other_work(self) -> None:
        """Add flags for signs that the part does the same work as another part. They do not change the verdict."""
        if self.is_trusted() or self.verdict not in ("pass", "slow"):
            return
        self.add_flags(same_work.flags(self.marker, self.runners.fresh))
        if self.held is not None:
            others = (
                memory.held_at(self.marker, self.runners.fresh, sizes)
                for sizes in same_work.sizes_beside(self.marker)
            )
            comparable = None if self.backend.kind.on_card else others
            self.add_flags(same_work.memory_flags(self.part, self.held, comparable))

    def look_for_races(self) -> None:
        """Flag data races in a right kernel with threads. In a student's untimed run, only name the command `race`.

        A race changes the verdict to "wrong" if the part's time rule says so (key `races`).
        """
        options, body, rule = self.bench.options, self.marker.body, self.part.time
        if self.verdict not in ("pass", "slow"):
            return
        price = rule.races if rule is not None else "review"
        has_threads = self.results.shares_work or (body is not None and body.find(THREADS))
        if self.is_trusted() or self.backend.kind.on_card or price == "free" or not has_threads:
            return
        if options.second_look and not options.timing:
            # The command `race` knows only timed parts.
            if rule is not None and "races_unseen" not in self.bench.noted:
                words = "without timing, no part is checked for data races; to check this one"
                command = f"{self.bench.command} race {self.part.id}"
                self.flags.append(Flag("races_unseen", f"{words}: `{command}`"))
                self.bench.noted.add("races_unseen")
            return
        found = explanation_errors.attempt(lambda: self.bench.watched(self.part), None)
        if found is None:
            return
        if found.races:
            lines = " | ".join(line.strip() for line in found.races.split("\n"))
            self.flags.append(Flag("data_race", f"results are right, but threads race: {lines}", "review"))
            if price == "wrong":
                self.conclude("wrong", Diagnosis("race", found.races))
                self.time = None
        elif found.unseen:
            self.flags.append(Flag("races_unseen", f"not watched for data races: {found.unseen}"))
        else:
            self.flags.append(Flag("no_data_race", "no data race in a watched call on 4 threads"))

    def proofs_in_object(self) -> Iterable[Flag]:
        """Return the "rejected" flags of the built object, which a child process has read during the first calls."""
        if self.is_trusted():
            return ()
        return [flag for flag in self.bench.object_flags() if flag.level == "rejected"]

    def thread_flags(self) -> Iterable[Flag]:
        """Yield a flag for a right kernel that runs on one thread although the assignment asks for several."""
        rule, is_alone = self.part.time, not self.results.shares_work and self.shape["threads"] > 1
        if self.verdict == "pass" and is_alone and rule is not None and rule.parallel != "free":
            words = "the kernel runs on one thread; the assignment asks for OpenMP"
            yield Flag(ONE_THREAD, f"{words}{self._unshared_loop()}", "review")

    def _unshared_loop(self) -> str:
        """Return text on the outermost loop around the last line that reads a parameter or a copy of one.

        Returns "" if the function starts threads, or if no loop is found.
        """
        body = self.marker.body
        if body is None or body.find(r"#\s*pragma\s+omp|std::thread|parallel_for"):
            return ""
        stores = body.reads(body.parameters)
        loops = body.enclosing(stores[-1].line) if stores else []
        return f": the loop in line {loops[0].line} has no `#pragma omp parallel`" if loops else ""

    def time_flags(self) -> Iterable[Flag]:
        if self.time is None or self.part.time is None:
            return ()
        return self.backend.time_flags(
            self.time,
            flops=self.marker.oracle.flops(self.shape),
            threads=self.part.time.threads or self.shape["threads"],
            cores=len(machine.usable_cpus()),
        )

    def add_flags(self, flags: Iterable[Flag]) -> None:
        """Add flags, at most one of each code and level. Raises Faulty for a "rejected" one, a proved cheat."""
        for flag in flags:
            if (flag.code, flag.level) not in {(known.code, known.level) for known in self.flags}:
                self.flags.append(flag)
        for flag in self.flags:
            if flag.level == "rejected":
                raise faults.Faulty("rejected", Diagnosis(flag.code, flag.message))
