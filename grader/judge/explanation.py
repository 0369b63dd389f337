"""Steps that extend a part's diagnosis for the student. They do not change verdicts, points or codes.

The checked build (`SecondBuild`) is a second build with sanitizers, to find the line of a bad memory access. It is made
only in a student's own run, in the sandbox of the judged build. Programs with sanitizers are confined by Landlock, too
(`native.nativehost`), so a checked build needs a Linux with Landlock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from grader.assignment.inputs import CaseInputs
from grader.assignment.records import Case, Part
from grader.backends import binding, faults
from grader.backends.native import crashes, sanitize
from grader.backends.native.nativehost import NativeHost
from grader.backends.selection import make
from grader.core.errors import KitError, UsageError
from grader.core.results import Diagnosis, Verdict
from grader.explain import clues
from grader.explain.case_run import CaseRun
from grader.explain.closer_look import Closer
from grader.explain.explainer import NUMBERS
from grader.explain.explanation_errors import attempt
from grader.explain.hang_samples import Samples
from grader.explain.judged_part import Checked, JudgedPart
from grader.explain.sanitizer_sites import Sites
from grader.judge import case_order
from grader.judge.bench import Bench, Watched
from grader.judge.correctness import Correctness, Runners
from grader.judge.marker import Marker
from grader.judge.regrade import BROKEN_OFF
from grader.runner.session import Session
from grader.sandbox import of_file
from grader.source import edited_source, landmarks

Refinement = Callable[[Diagnosis], Diagnosis]
#: Calls in the student's source that open a file.
OPENS = r"\b(?:f?re|f)?open\b|\bifstream\b"
MOST_FILES = 3
#: Verdicts of a file from which no program was built, so that no function can be called.
NOT_BUILT = ("compile_error", "unjudged")


def refinements(
    results: Correctness, verdict: Verdict, diagnosis: Diagnosis, stack: ExitStack
) -> list[Refinement]:
    """Return the steps that extend a part's diagnosis, in order. `stack` ends the processes that they start."""
    steps = [] if _is_plain(results) else _closer_look(results, verdict, diagnosis, stack)
    if not diagnosis.hidden and results.refused_files and verdict in ("wrong", *BROKEN_OFF):
        steps.append(lambda known: _with_files(known, results))
    return steps


def _is_plain(results: Correctness) -> bool:
    """Return True if no search for a cause is useful.

    This holds for a part that calls torch's own function, in a run with sanitizers, and for a part that is judged
    through another part.
    """
    is_students = results.backend.kind.is_students
    return not is_students or results.bench.options.sanitize or bool(results.judged_through)


def _closer_look(
    results: Correctness, verdict: Verdict, diagnosis: Diagnosis, stack: ExitStack
) -> list[Refinement]:
    """Return steps that name a wrong forward pass or a helper function that fails, or else call the kernel again."""
    part, bench = results.part, results.bench
    if part.table or verdict == "wrong":
        bench.helpers[part.id] = verdict in ("wrong", *BROKEN_OFF)
    if verdict == "wrong" and (forward := _wrong_forward(results)) is not None:
        lead = (
            f"This pass uses {' and '.join(forward.outputs)} of {forward.id}, which is wrong: fix it first."
        )
        return [lambda known: replace(known, message=f"{lead} {known.message}")]
    if verdict in NOT_BUILT and not part.table:
        return []
    options = bench.options
    judged = JudgedPart(
        results.marker,
        bench.source,
        options.defines,
        results.cases,
        results.broken,
        results.runners.fresh,
        bench.command,
        {each.function for each in bench.assignment.parts if each.table} - {part.function},
        (lambda part: (bench.watched(part) or Watched()).races) if options.second_look else None,
    )
    closer = Closer(judged, SecondBuild(bench, stack) if options.second_look else None)
    if (
        not part.table
        and not diagnosis.hidden
        and (helper := attempt(lambda: failing_helper(results), None)) is not None
    ):
        edits = closer.helper_repairs(helper.function)
        return [lambda known: _helper_first(known, helper, verdict, results, edits)]
    if verdict in ("crash", "timeout"):
        return [closer.crash]
    is_public = any(case.diagnosis is diagnosis and not case.hidden for case in results.cases)
    return [closer.wrong] if verdict == "wrong" and is_public else []


def _helper_first(
    known: Diagnosis, helper: Part, verdict: Verdict, results: Correctness, edits: str
) -> Diagnosis:
    """Return the diagnosis with the advice to fix the function of `helper` first.

    Its lines are added, or the `edits` that correct it.
    """
    first = (
        f"Your {helper.function} fails its own test ({results.bench.command} {helper.command}): fix it first."
    )
    # The failing helper explains a crash, and results that change: leave out their details.
    rest = known.message if verdict == "wrong" else f"{known.message.partition(': ')[0]}."
    if known.code == "unsteady" and (numbers := NUMBERS.search(known.message)):
        rest = numbers[0]
    body = landmarks.function(results.marker.source, helper.function)
    places = [clues.Shown(place, "") for place in body.find(r"\w")] if body is not None else []
    shown = (
        [clues.in_words(places[: clues.MOST_LINES], body, results.bench.source.name)]
        if body and places
        else []
    )
    return replace(known, message="\n".join([f"{first} {rest}", *([edits] if edits else shown)]))


def _wrong_forward(results: Correctness) -> Part | None:
    """Return the part whose outputs this part, a backward pass, reads, if that part is wrong; else None."""
    part, bench = results.part, results.bench
    forward = results.backend.forward_of(part, bench.assignment.parts)
    if forward is None or results.marker.seen() is None:
        return None
    return forward if bench.helpers.get(forward.id) else None


def failing_helper(results: Correctness) -> Part | None:
    """Return the first part with a `table` (an accessor) that this part calls and that fails by itself, else None."""
    bench, body = results.bench, results.marker.body
    for part in bench.assignment.parts:
        if not part.table or body is None or not body.find(rf"\b{part.function}\s*\("):
            continue
        if part.id not in bench.helpers:
            alone = replace(part, stands_in=None)
            found = Correctness(bench, alone, Runners(bench, alone), look=False)
            try:
                found.check()
                bench.helpers[part.id] = found.diagnosis is not None
            except faults.Faulty as fault:
                bench.helpers[part.id] = fault.verdict in BROKEN_OFF
        if bench.helpers[part.id]:
            return part
    return None


def _with_files(known: Diagnosis, results: Correctness) -> Diagnosis:
    """Return the diagnosis with the files that the kernel could not open, and the source lines that open them."""
    body, name = results.marker.body, results.bench.source.name
    rows, code = (body.rows, body.code) if body is not None else ((), ())
    lines = [known.message.replace(crashes.ADVICE, "").rstrip()]
    for call, path in results.refused_files[:MOST_FILES]:
        at = [n for n, row in enumerate(rows) if path and path in row]
        at += [n for n, row in enumerate(code) if re.search(OPENS, row)]
        place = f"{name}:{at[0] + 1}: " if at else ""
        lines.append(
            f'{place}{call}("{path}") failed: kernels cannot open files, except the files about caches in '
            "/sys/devices/system/cpu/cpu0/cache"
        )
    return replace(known, message="\n".join(lines))


BUDGET_S, CALL_S, WAIT_S = 6.0, 5.0, 2.0
"""Limits in CPU seconds on a search with the checked build and on each of its calls. The wall time of a call is limited
to WAIT_S plus twice the limit on its CPU time."""


class Edited:
    """A build of a source with numbered edits (see `EditedBuild`). `bad`: (line, column) of the compiler's errors."""

    def __init__(self, marker: Marker, stack: ExitStack, bad: Collection[tuple[int, int]]) -> None:
        self.marker, self.stack, self.bad = marker, stack, bad
        self.session: Session | None = None

    def call(self, case: Case, number: int, *, fresh: bool = False, cpu_s: float = 1.0) -> CaseRun | None:
        """Call the function with edit `number` on the inputs of a case.

        Return None if the runner fails or cannot select this edit. `fresh`: use a new runner, because an earlier edit
        may have damaged memory. Without it, a case that cannot select an edit keeps that of the previous call. `cpu_s`
        limits the call's CPU time. A runner that does not start or only waits may have met a pause of the machine, so
        it gets a second try.
        """
        inputs, chosen = self.marker.inputs_of(case), self._choosing(case, number)
        if chosen is None and number and (fresh or self.session is None):
            return None
        run = self._call(case, inputs, chosen, cpu_s, fresh=fresh)
        if (run is None or run.call.has_waited) and (chosen is not None or not number):
            return self._call(case, inputs, chosen, cpu_s, fresh=True)
        return run

    def can_choose(self, case: Case) -> bool:
        return self._choosing(case, 0) is not None

    def _choosing(self, case: Case, number: int) -> CaseInputs | None:
        """Return inputs that select an edit: the first tensor carries its number. None if it has only one element."""
        inputs = self.marker.inputs_of(case)
        first = binding.tensor_names(self.marker.part, inputs)[0]
        return inputs.starting(first, (edited_source.MAGIC, number))

    def is_clean(self, cases: Sequence[Case], number: int) -> bool:
        """Return True if the function with edit `number` makes no wrong access on these cases (a checked build)."""
        sites = Sites(self.marker.bench.source, self.marker.bench.build.program)
        for k, case in enumerate(cases):
            run = self.call(case, number, fresh=not k, cpu_s=CALL_S)
            if run is not None and run.call.status not in ("ok", "timeout"):
                return False
        if self.session is not None:
            self.session.close()
            sites.look(self.session, "")
            self.session = None
        return not sites.found

    def _call(
        self, case: Case, inputs: CaseInputs, chosen: CaseInputs | None, cpu_s: float, *, fresh: bool
    ) -> CaseRun | None:
        """Call the function on `chosen`, if any, which selects the edit, and on the case. See `call`."""
        marker = self.marker
        if fresh and self.session is not None:
            self.session.close()
            self.session = None
        try:
            if self.session is None:
                started = marker.bench.student(marker.part, threads=inputs.shape["threads"], freeze=False)
                self.session = self.stack.enter_context(started)
            session = self.session
            limit_s = _limit(session, cpu_s)
            if chosen is not None:
                marker.call(session, case.name, chosen, timeout_s=limit_s)
            run = marker.call_case(session, case, timeout_s=limit_s)
        except (faults.Faulty, KitError):
            self.session = None
            return None
        if run.call.status != "ok":
            session.close()
            self.session = None
        return run


def _limit(session: Session, cpu_s: float) -> float:
    """Limit the CPU time of a session's calls. Return a limit on their wall time in seconds, for calls that wait."""
    session.call_cpu_s = cpu_s
    return WAIT_S + 2 * cpu_s


class SecondBuild:
    """Maker of further builds of one submission: the checked build (with sanitizers), and builds of edited sources."""

    def __init__(self, bench: Bench, stack: ExitStack) -> None:
        self.bench, self.stack = bench, stack

    @property
    def is_allowed(self) -> bool:
        """Return True if the compiler may be run on the file for its warnings, without the locks of a sandbox.

        False if the file needs torch, in a run with sanitizers, and if the file's sandbox has locks (any tier but D).
        """
        return self._is_program and not of_file(self.bench.source).locks

    @property
    def _is_program(self) -> bool:
        return self.bench.of_file().kind.is_program and not self.bench.options.sanitize

    @cached_property
    def checked(self) -> Bench | None:
        """The bench of the checked build; None if the file needs torch or cannot be built with sanitizers here."""
        bench = self.bench
        if not self._is_program or bench.host is None:
            return None
        options, sandbox = replace(bench.options, sanitize=True), bench.host.sandbox
        try:
            made = make(bench.assignment, bench.source, options, sandbox=sandbox)
            if not made.native or not made.judged.ok:
                return None
            host = self.stack.enter_context(NativeHost(sandbox, checks=sanitize.options()))
        except KitError:
            return None
        return replace(bench, options=options, made=made, host=host)

    @property
    def exists(self) -> bool:
        return self.checked is not None

    def edited(self, part: Part, text: str, *, checked: bool = False) -> Edited | None:
        """Build `text` in place of the student's file; None if it needs torch or fails without an error in a line.

        `checked`: build it with sanitizers.
        """
        bench = self.checked if checked else self.bench
        if not self._is_program or bench is None or bench.host is None:
            return None
        path = Path(self.stack.enter_context(TemporaryDirectory())) / bench.source.name
        path.write_text(text)
        try:
            made = make(bench.assignment, path, bench.options, sandbox=bench.host.sandbox)
        except (KitError, UsageError):
            return None
        bench = replace(bench, made=made, opened=[], budgets={})
        bad = made.judged.failed_at
        if not made.native or (not made.judged.ok and not bad):
            return None
        return Edited(Marker(bench, part), self.stack, bad)

    def look(self, part: Part, cases: Iterable[Case]) -> Checked | None:
        """Call the checked build on these cases, each in its own runner, until a bad access is found or time is up.

        Returns None without a checked build.
        """
        bench = self.checked
        if bench is None:
            return None
        marker, found = Marker(bench, part), Checked(Sites(bench.source, bench.build.program))
        used_s = 0.0
        for case in cases:
            if used_s > BUDGET_S or found.sites.found:
                break
            try:
                used_s += self._call(marker, case, found)
                reports = [site.report for site in found.sites.found]
                if any(each.lacks_index for each in reports) and not any(each.has_index for each in reports):
                    # A thread may end the process before another one reports the index: call it with one thread.
                    alone = Checked(Sites(bench.source, bench.build.program))
                    self._call(marker, replace(case, shape={**case.shape, "threads": 1}), alone)
                    if any(site.report.has_index for site in alone.sites.found):
                        found.sites = alone.sites
            except faults.Faulty:
                break
        return found

    def look_in_turn(self, part: Part) -> Checked | None:
        """Like `look`, but call all public cases in one runner, because state left by one call may break the next."""
        bench = self.checked
        if bench is None:
            return None
        marker, found = Marker(bench, part), Checked(Sites(bench.source, bench.build.program))
        used_s = 0.0
        try:
            with bench.student(part, threads=bench.shape["threads"], freeze=False) as session:
                for case in [step.case for step in case_order.steps(part, look=False)]:
                    run = marker.call_case(session, case, timeout_s=_limit(session, CALL_S))
                    shape, call = run.shape, run.call
                    used_s += call.cpu_s or 0.0
                    found.sites.look(session, f"'{case.name}', {faults.in_words(marker.sizes(shape))}")
                    if call.status != "ok" or found.sites.found or used_s > BUDGET_S:
                        break
                session.close()
                found.sites.look(session, f"'{case.name}', {faults.in_words(marker.sizes(shape))}")
        except faults.Faulty:
            pass
        return found

    def _call(self, marker: Marker, case: Case, found: Checked) -> float:
        """Call the checked build on a case and add the result to `found`.

        Return the CPU seconds of the call; CALL_S for a time-out.
        """
        shape = {**marker.shape, **case.shape}
        where = f"'{case.name}', {faults.in_words(marker.sizes(shape))}"
        samples = Samples(program) if (program := marker.bench.build.program) is not None else None
        with marker.bench.student(marker.part, threads=shape["threads"], freeze=False) as session:
            session.before_timeout = samples.take if samples is not None else None
            run = marker.call_case(session, case, timeout_s=_limit(session, CALL_S))
            session.close()
            found.sites.look(session, where)
        if run.call.status == "timeout":
            found.stopped = samples
            return CALL_S
        found.tried.append(case.name)
        if run.is_right:
            found.right_if_zeroed.append(case.name)
        return run.call.cpu_s or 0.0
