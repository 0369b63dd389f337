"""From the student's file to a runner that answers calls for as long as training takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from grader.assignment.records import Assignment
from grader.backends import faults
from grader.backends.kinds import kind_of
from grader.backends.native.nativehost import NativeHost
from grader.backends.selection import make
from grader.backends.torch.zygote import Zygote
from grader.core.errors import KitError
from grader.judge.bench import Bench, Options
from grader.sandbox import of_file

from .operations import Operation, StudentOperators, unfit

if TYPE_CHECKING:
    from grader.sandbox import Limits

CPU_LIMIT_S = 1 << 20
"""Each call has its own limit, and there are many of them."""

Start = Callable[[int], StudentOperators]


class Unfit(Exception):
    """The file cannot be used for training, by its own fault. The message is for the student."""


class _LongBench(Bench):
    """A bench for more calls than a judgement makes."""

    @property
    def limits(self) -> Limits:
        return replace(super().limits, cpu_s=CPU_LIMIT_S)


@contextmanager
def opened(assignment: Assignment, source: Path, wanted: dict[str, Operation]) -> Iterator[Start]:
    """Build the file, and yield a function that maps a number of threads to operators in a fresh runner. End all
    runners afterwards.

    Raises:
        Unfit: the file does not compile, cannot be loaded or lacks one of the functions `wanted`.
        KitError: the machine cannot build it.
    """
    made = make(assignment, source, Options())
    if made.judged.waits_for:
        raise KitError(made.judged.diagnostics)
    if not made.judged.ok:
        raise Unfit(f"{source.name} does not compile:\n{made.judged.diagnostics}")
    with ExitStack() as stack:
        zygote = stack.enter_context(Zygote(sandbox=of_file(source), at_once=False))
        host = stack.enter_context(NativeHost(of_file(source))) if made.native else None
        runners = stack.enter_context(ExitStack())
        bench = _LongBench(
            assignment,
            source,
            Options(profile=False),
            lambda event: None,
            made.judged,
            zygote,
            runners,
            host=host,
            with_torch=made.with_torch,
        )
        part = next(part for part in assignment.parts if kind_of(part).is_students)

        def start(threads: int) -> StudentOperators:
            try:
                # The runner is not stopped between calls: that would take as long as a small one.
                session = bench.student(part, threads=threads, freeze=False)
            except faults.Faulty as fault:
                raise Unfit(fault.diagnosis.message) from fault
            if why := unfit(session.functions, wanted):
                raise Unfit(why)
            return StudentOperators(session)

        yield start
