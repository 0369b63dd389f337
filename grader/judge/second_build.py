"""The checked build: a second build of a student's file with sanitizers, to find the line of a bad memory access.

The checked build is made only in a student's own run, in the sandbox of the judged build. The program also gets the
lock of all programs with sanitizers (`native.nativehost`), so a checked build needs a Linux with Landlock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from grader.assignment.records import Case, Part
from grader.backends import binding, faults
from grader.backends.native import sanitize
from grader.backends.native.nativehost import NativeHost
from grader.backends.selection import make
from grader.core.arrays import np
from grader.core.errors import KitError, UsageError
from grader.explain.case_run import CaseRun
from grader.explain.hang_samples import Samples
from grader.explain.judged_part import Checked
from grader.explain.sanitizer_sites import Sites
from grader.judge import case_order
from grader.judge.bench import Bench
from grader.judge.marker import Marker
from grader.runner.session import Session
from grader.sandbox import of_file
from grader.source import edits

BUDGET_S, CALL_S, EDITED_S = 6.0, 5.0, 0.4
"""Limits in seconds: on a search with the checked build, on each of its calls, and on a call of an edited build."""


class Edited:
    """A build of a source with numbered edits (see `EditedBuild`). A runner that fails is replaced by a new one."""

    def __init__(self, marker: Marker, stack: ExitStack, bad: Collection[int]) -> None:
        self.marker, self.stack, self.bad = marker, stack, bad
        self.session: Session | None = None

    def call(self, case: Case, number: int, *, fresh: bool = False) -> CaseRun | None:
        """Call the function with edit `number` on the inputs of a case; None if the runner fails.

        `fresh`: use a new runner, because an earlier edit may have damaged the last runner's memory.
        """
        marker = self.marker
        if fresh and self.session is not None:
            self.session.close()
            self.session = None
        shape, inputs = marker.inputs_of(case)
        first = binding.tensor_names(marker.part, inputs)[0]
        chosen = np.array(inputs[first])
        if chosen.dtype != np.float32 or (chosen.size < 2 and self.session is None):
            return None
        # A tensor of one number has no room for the edit's number: the edit of the call before stays active.
        chosen.reshape(-1)[:2] = (edits.MAGIC, number)[: chosen.size]
        try:
            if self.session is None:
                started = marker.bench.student(marker.part, threads=shape["threads"], freeze=False)
                self.session = self.stack.enter_context(started)
            session = self.session
            if chosen.size > 1:
                marker.call(session, case.name, shape, {**inputs, first: chosen}, timeout_s=EDITED_S)
            run = marker.call_case(session, case, timeout_s=EDITED_S)
        except faults.Faulty:
            self.session = None
            return None
        if run.call.status != "ok":
            session.close()
            self.session = None
        return run


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

    def edited(self, part: Part, text: str) -> Edited | None:
        """Build this text in place of the student's file, in the same sandbox. Return None if it cannot be built."""
        bench = self.bench
        if not self._is_program or bench.host is None:
            return None
        path = Path(self.stack.enter_context(TemporaryDirectory())) / bench.source.name
        path.write_text(text)
        try:
            made = make(bench.assignment, path, bench.options, sandbox=bench.host.sandbox)
        except (KitError, UsageError):
            return None
        bench = replace(bench, made=made, opened=[], budgets={})
        bad = re.findall(rf"{re.escape(path.name)}:(\d+):[\d:]* error:", made.judged.diagnostics)
        if not made.native or (not made.judged.ok and not bad):
            return None
        return Edited(Marker(bench, part), self.stack, {int(line) for line in bad})

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
        """Call the checked build on all public cases in one runner: state left by one call may break the next."""
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
