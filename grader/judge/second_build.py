"""The checked build: a second build of a student's file with sanitizers, to find the line of a bad memory access.

It is made only in a student's own run, in the sandbox of the judged build. The program also gets the lock of all
programs with sanitizers (`native.nativehost`), so a checked build needs a Linux with Landlock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property

from grader.assignment.records import Case, Part
from grader.backends import faults
from grader.backends.native import sanitize
from grader.backends.native.nativehost import NativeHost
from grader.backends.selection import make
from grader.core.errors import KitError
from grader.explain.hang_samples import Samples
from grader.explain.judged_part import Checked
from grader.explain.sanitizer_sites import Sites
from grader.judge import case_order
from grader.judge.bench import Bench
from grader.judge.marker import Marker
from grader.sandbox import of_file

BUDGET_S, CALL_S = 6.0, 5.0


class SecondBuild:
    """The checked build of one submission, made on first use."""

    def __init__(self, bench: Bench, stack: ExitStack) -> None:
        self.bench, self.stack = bench, stack

    @property
    def is_allowed(self) -> bool:
        """Return True if the compiler's warnings may be used: the file needs no torch and needs no sandbox."""
        return self._is_program and not of_file(self.bench.source).locks

    @property
    def _is_program(self) -> bool:
        return self.bench.of_file().kind.is_program and not self.bench.options.sanitize

    @cached_property
    def checked(self) -> Bench | None:
        """The bench of the checked build; None if the file needs torch or the machine has no sanitizers."""
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

    def look(self, part: Part, cases: Iterable[Case]) -> Checked | None:
        """Call the checked build on these cases, each in its own runner, until a bad access is found or time is up."""
        bench = self.checked
        if bench is None:
            return None
        marker, found = Marker(bench, part), Checked(Sites(bench.source, bench.build.program))
        deadline = time.monotonic() + BUDGET_S
        for case in cases:
            if time.monotonic() > deadline or found.sites.found:
                break
            try:
                self._call(marker, case, found)
            except faults.Faulty:
                break
        return found

    def look_in_turn(self, part: Part) -> Checked | None:
        """Call the checked build on all public cases in one runner, since state left by one call may break the next."""
        bench = self.checked
        if bench is None:
            return None
        marker, found = Marker(bench, part), Checked(Sites(bench.source, bench.build.program))
        deadline = time.monotonic() + BUDGET_S
        try:
            with bench.student(part, threads=bench.shape["threads"], freeze=False) as session:
                for case in [step.case for step in case_order.steps(part, look=False)]:
                    run = marker.call_case(session, case, timeout_s=CALL_S)
                    shape, call = run.shape, run.call
                    found.sites.look(session, f"'{case.name}', {faults.in_words(marker.sizes(shape))}")
                    if call.status != "ok" or found.sites.found or time.monotonic() > deadline:
                        break
                session.close()
                found.sites.look(session, f"'{case.name}', {faults.in_words(marker.sizes(shape))}")
        except faults.Faulty:
            pass
        return found

    def _call(self, marker: Marker, case: Case, found: Checked) -> None:
        shape = {**marker.shape, **case.shape}
        where = f"'{case.name}', {faults.in_words(marker.sizes(shape))}"
        samples = Samples(program) if (program := marker.bench.build.program) is not None else None
        with marker.bench.student(marker.part, threads=shape["threads"], freeze=False) as session:
            session.before_timeout = samples.take if samples is not None else None
            run = marker.call_case(session, case, timeout_s=CALL_S)
            session.close()
            found.sites.look(session, where)
        if run.call.status == "timeout":
            found.stopped = samples
            return
        found.tried.append(case.name)
        if run.is_right:
            found.is_right.append(case.name)
