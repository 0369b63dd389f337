"""One part of one submission, judged: results on every case, time in paired rounds, memory beside the reference.

Judging has two phases. `PartJudge.judge_public` makes every call whose results a student may be shown.
`PartJudge.judge_hidden` calls the hidden cases, once all parts have had their first phase (`grader.judge.evaluate`).

Every answer of the student's runner, also a timed or a profiled one, is held against the oracle. What settles the
verdict at once (a crash, a hang, a missing function) is raised as `Faulty` wherever it shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace

from grader.assignment.records import Part
from grader.core import machine
from grader.core.results import Diagnosis, Flag, Memory, PartResult, Standing, Timing, Verdict
from grader.integrity import flags as integrity
from grader.judge import faults, looks, memory, same_work
from grader.judge.again import BROKEN_OFF
from grader.judge.bench import Bench
from grader.judge.correctness import Correctness, Runners, retold
from grader.judge.events import Corrected, Settled, Timed
from grader.judge.looks import Shown
from grader.judge.timing import rounds as pairs
from grader.runner.calls import Call


class PartJudge:
    """One part of one submission while it is being judged: its results, then its time, then its memory and flags."""

    def __init__(self, bench: Bench, part: Part) -> None:
        self.bench, self.part, self.shape = bench, part, bench.shape
        self.runners = Runners(bench, part)
        self.results = Correctness(bench, part, self.runners)
        self.marker = self.results.marker
        self.verdict: Verdict = "pass"
        self.diagnosis: Diagnosis | None = None
        self.waits_for = ""
        self.time: Timing | None = None
        self.memory: Memory | None = None
        self.held: memory.Held | None = None
        self.flags: list[Flag] = []
        self.correctness_told = False
        self.has_results = False
        """True if all public cases were called."""
        self.builds = [bench.build]
        """Builds that its runners were given."""
        self.profiled: Call | None = None

    def settle(self, fault: faults.Faulty) -> None:
        self.verdict, self.diagnosis, self.waits_for = fault.verdict, fault.diagnosis, fault.waits_for
        if fault.case is not None:
            self.results.cases.append(fault.case)
        self.tell_correctness()

    def tell_correctness(self) -> None:
        if not self.correctness_told:
            self.correctness_told = True
            self.bench.tell(Corrected(self.part, self.verdict, tuple(self.results.cases), self.diagnosis))

    def result(self) -> PartResult:
        part = self.part
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
        """Its place among other kernels, where the lab has some and they were measured on this machine."""
        if self.time is None or not self.time.fit or self.verdict not in ("pass", "slow"):
            return None
        ladder = self.bench.assignment.lab.ladder()
        return ladder.standing(self.part, self.shape, self.time.ratio) if ladder else None

    def judge_public(self) -> None:
        """Do all but the hidden cases. Whatever the submission does, nothing is raised."""
        try:
            self.judge()
        except faults.Faulty as fault:
            self.settle(fault)
        if self.has_results and not self.has_hidden_cases():
            self.flag_library_work()  # Else once for all cases, after the hidden ones.
        self.look_for_cheats()
        self.look_for_other_work()
        self.look_with_torch()
        self.look_closer()

    def has_hidden_cases(self) -> bool:
        """Return True if hidden cases are still to be called."""
        if not self.has_results or self.verdict in BROKEN_OFF:
            return False
        judged_by = self.results.stand_in
        return looks.has_hidden(self.part if judged_by is None else judged_by.part)

    def judge_hidden(self) -> None:
        """Call the hidden cases. A part that is wrong on one of them has no time, as nothing wrong has one."""
        try:
            self.results.check_hidden()
            if self.results.verdict == "wrong" and self.verdict != "wrong":
                self.verdict, self.diagnosis, self.waits_for = "wrong", self.results.diagnosis, ""
        except faults.Faulty as fault:
            self.settle(fault)
        self.flag_library_work()
        self.look_for_cheats()
        if self.verdict in ("wrong", *BROKEN_OFF) and self.time is not None:
            of_time = self.time.flags
            self.flags = [flag for flag in self.flags if flag.code not in of_time]
            self.time = None

    def judge(self) -> None:
        bench, options = self.bench, self.bench.options
        built = bench.build_of(self.part)
        if not self.part.is_torch and not built.ok:
            raise faults.build_fault(built)
        if self.part.device is not None:
            self.judge_on_device()
            return
        self.check_results()
        self.add_flags(self.proofs_in_object())
        self.tell_correctness()
        if options.sanitize:
            return
        self.measure_time()
        shown = self.results.shown
        if shown is None:
            return
        self.held = memory.held(self.marker, shown)
        self.memory = memory.peaks(self.marker, shown)

    def judge_on_device(self) -> None:
        """Results, on the card or in Triton's interpreter; then the time, which only a card can tell."""
        bench, rule = self.bench, self.part.time
        device = self.part.device
        assert device is not None
        has_card = bench.device is not None and bench.device.card is not None
        if device.language == "cuda" and not has_card:
            raise faults.lacks_gpu("It compiles. Its results and its time are not judged")
        self.check_results()
        self.tell_correctness()
        if not bench.options.timing or rule is None or self.verdict != "pass":
            return
        if has_card:
            self.measure_time()
            assert bench.device is not None
            self.memory = Memory(None, None, *bench.device.peaks.get(self.part.id, (None, None)))
            self.held = memory.Held(self.shape, self.memory.peak_bytes, self.memory.reference_peak_bytes)
        elif rule.graded:
            raise faults.lacks_gpu("Its results are right in Triton's interpreter. Its time is not judged")

    def flag_library_work(self) -> None:
        """Flag work of libraries in place of a kernel, by all right calls on a device so far."""
        if self.results.observed:
            # Only a lab on a GPU waits for what it alone needs to be imported; the same in `measure_time`.
            from grader.judge.ondevice import operators

            # Playing calls again takes as long as making them: a part without points needs no evidence of its work.
            is_paid = self.results.verdict == "pass" or self.part.case_credit > 0
            try:
                self.add_flags(operators.flags(self.results.marker, self.results.observed, play=is_paid))
            except faults.Faulty as fault:
                self.settle(fault)

    def check_results(self) -> None:
        self.results.check()
        self.has_results = True
        self.verdict, self.diagnosis = self.results.verdict, self.results.diagnosis
        if self.results.judged_through:
            self.flags.append(Flag(f"judged_through_{self.results.judged_through}"))

    def measure_time(self) -> None:
        bench, options = self.bench, self.bench.options
        rule = self.part.time
        if not options.timing or rule is None or self.verdict != "pass":
            return
        if not rule.graded and not options.time_ungraded:
            return
        measured_by = pairs.measured
        if self.part.device is not None:
            from grader.judge.ondevice import timing as device_timing

            measured_by = device_timing.measured
        with bench.exclusive(self.part) as cpus:
            measured = measured_by(self.marker, self.runners.fresh, attempt=1, cpus=cpus)
            if not measured.fit:
                # Once more, in processes of their own: what made the machine unfit may have passed.
                measured = measured_by(self.marker, self.runners.fresh, attempt=2, cpus=cpus)
        self.time = pairs.settled(measured, rule)
        bench.tell(Timed(self.part, self.time))
        if rule.graded:
            self.flags += [Flag(code) for code in self.time.flags]
            self.verdict = "slow" if self.time.verdict == "slow" else self.verdict

    def look_with_torch(self) -> None:
        """Profile the part where that is asked for. Its result is reported before: only the table needs torch."""
        bench, shown, options = self.bench, self.results.shown, self.bench.options
        # In a class a wrong part may earn points, so its profile is evidence. Its student needs the cause alone.
        wanted = ("pass", "slow") if options.second_look else ("pass", "slow", "wrong")
        if not options.profile or shown is None or self.held is None or self.verdict not in wanted:
            return
        if not self.has_hidden_cases():
            bench.tell(Settled(self.part, self.result()))
        try:
            self.profile(shown)
        except faults.Faulty as fault:
            self.settle(fault)
        self.look_for_cheats()

    def profile(self, shown: Shown) -> None:
        """The familiar table, which only torch's profiler gives, and the memory beside the reference's."""
        bench, threads = self.bench, self.shape["threads"]
        bench.zygote.start()  # It imports torch while the object is built.
        if not self.part.is_torch:
            self.builds.append(bench.torch_build())
        if self.builds[-1].object_path is None:
            self.flags.append(Flag("no_torch_build", "it compiles by itself, but not with torch", "review"))
            return
        with self.runners.fresh(threads=threads, with_torch=True) as student:
            self.memory, self.profiled, unlike = memory.beside_reference(
                self.marker, shown, student, lambda: self.runners.fresh(threads=threads)
            )
        self.flags += unlike

    def look_closer(self) -> None:
        """Say more of what is wrong, for its student. Verdict, points and codes stay."""
        told, options = self.diagnosis, self.bench.options
        if told is None or self.part.is_torch or options.sanitize or self.results.judged_through:
            return
        from grader.judge.closer import explaining
        from grader.judge.closer.checked import SecondBuild

        judged = len(self.runners.sessions)
        with ExitStack() as stack:
            second = SecondBuild(self.bench, stack) if options.second_look else None
            closer = explaining.Closer(self.results, second)
            if self.verdict in ("crash", "timeout"):
                self.diagnosis = closer.crash(told)
            elif self.verdict == "wrong" and any(
                case.diagnosis is told and not case.hidden for case in self.results.cases
            ):
                self.diagnosis = closer.wrong(told)
                self.results.cases = retold(self.results.cases, told, self.diagnosis)
        # Runners that explain are no evidence: the look for cheats is made without them.
        del self.runners.sessions[judged:]

    # ---- integrity

    def is_trusted(self) -> bool:
        """Return True if nothing of the student's runs here, or not as it would be judged."""
        return self.part.is_torch or self.bench.options.sanitize

    def look_for_cheats(self) -> None:
        """Add what the runs showed besides answers; a proved cheat outweighs any other verdict."""
        if self.is_trusted() or not self.bench.build_of(self.part).ok:
            return
        if self.part.device is not None:
            self.look_at_runners()
            return
        seen = [
            flag for s in self.runners.sessions for flag in integrity.evidence_flags(s.evidence, *self.builds)
        ]
        seen += integrity.late_flags([s.evidence for s in self.runners.sessions])
        rows = self.profiled.profile if self.profiled is not None else ()
        try:
            found = [*self.proofs_in_object(), *seen, *integrity.operator_flags(rows), *self.time_flags()]
            self.add_flags(found)
        except faults.Faulty as cheat:
            self.settle(cheat)

    def look_for_other_work(self) -> None:
        """Add signs that the part does another part's work. They reject nothing."""
        if self.is_trusted() or self.verdict not in ("pass", "slow"):
            return
        self.add_flags(same_work.output_flags(self.marker, self.runners.fresh))
        if self.held is not None:
            others = (
                memory.held_at(self.marker, self.runners.fresh, sizes)
                for sizes in same_work.sizes_beside(self.marker)
            )
            device = self.part.device
            self.add_flags(same_work.memory_flags(self.part, self.held, others if device is None else None))

    def look_at_runners(self) -> None:
        """Return the flags of a part's processes on a device: work while they stood still, and children."""
        evidence = [replace(s.evidence, new_code=()) for s in self.runners.sessions]
        seen = [flag for each in evidence for flag in integrity.evidence_flags(each)]
        try:
            self.add_flags([*seen, *integrity.late_flags(evidence)])
        except faults.Faulty as cheat:
            self.settle(cheat)

    def proofs_in_object(self) -> Iterable[Flag]:
        """Return the flags that the object alone proves. It is read while the first cases are called."""
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
