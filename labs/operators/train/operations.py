"""Calls of the student's functions in the student's runner, with the arguments that the assignment's parts describe.

A call sends its tensors through a pipe and receives the returned value and the written arguments. This process loads no
student code. The sizes of a reply are checked; its numbers are not trusted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from grader.assignment.records import Assignment, Part
from grader.backends import binding, faults
from grader.backends.native.crashes import SIGNAL_HINTS
from grader.backends.native.nativehost import NativeHost
from grader.backends.selection import make
from grader.backends.torch.zygote import Zygote
from grader.core.arrays import Array
from grader.core.errors import KitError
from grader.explain.case_run import outputs_of
from grader.judge.bench import Bench, Options
from grader.runner.calls import Call
from grader.runner.session import Session
from grader.sandbox import of_file

if TYPE_CHECKING:
    from grader.sandbox import Limits


@dataclass(frozen=True)
class Place:
    """A call's place in the network: the layer's number from 1 and its kind; number 0 for calls outside of layers."""

    number: int
    kind: str

    def __str__(self) -> str:
        return f"layer {self.number} ({self.kind})" if self.number else self.kind


class Broken(Exception):
    """Raised if a call of a student's function failed, so that training cannot continue. The message names the
    function."""


@dataclass(frozen=True)
class Made:
    """One finished call: the `tensors` that were sent, and the results, `answers`, by name."""

    place: Place
    part: Part
    tensors: Mapping[str, Array]
    sizes: Mapping[str, int]
    rate: float
    answers: Mapping[str, Array]


class StudentOperators:
    """Calls of the student's functions in one runner. `on_call` is called after each successful call. `wall_s` is the
    total time of the calls in s, including the pipe but not `on_call`, whose total time is `on_call_s`."""

    def __init__(self, session: Session, parts: Mapping[str, Part]) -> None:
        self.session, self.parts = session, parts
        self.on_call: Callable[[Made], None] | None = None
        self.calls, self.wall_s, self.on_call_s = 0, 0.0, 0.0

    def __call__(
        self,
        place: Place,
        part_id: str,
        tensors: Mapping[str, Array],
        sizes: Mapping[str, int],
        rate: float = 0.0,
    ) -> Mapping[str, Array]:
        """Return the results of a part's function by name: the tensors that it wrote, and as `RESULT` the tensor that
        it returned, if any. `rate` replaces the last argument, sgd's learning rate. Raises Broken if the call fails."""
        part = self.parts[part_id]
        request = binding.request(part, sizes, tensors)
        if rate:
            request = replace(request, arguments=[*request.arguments[:-1], {"value": rate}])
        call = self.session.call(request)
        self.calls += 1
        self.wall_s += call.wall_s
        if call.status != "ok":
            raise Broken(f"{part.function} in {place} {_ended(call)}")
        answers, misfit = outputs_of(part, sizes, tensors, call)
        if answers is None:
            why = misfit.message if misfit else "it gave no answer"
            raise Broken(f"{part.function} in {place}: {why}")
        if self.on_call is not None:
            started = time.perf_counter()
            self.on_call(Made(place, part, tensors, sizes, rate, answers))
            self.on_call_s += time.perf_counter() - started
        return answers


def _ended(call: Call) -> str:
    """Return the end of a sentence on a failed call, such as "did not end within 3 s"."""
    if call.status == "timeout":
        return f"did not end within {call.wall_s:.0f} s"
    if call.status == "exception":
        return f"threw a C++ exception: {call.message}"
    if call.signal_name:
        hint = SIGNAL_HINTS.get(call.signal_name, "the process was ended by this signal")
        return f"crashed with {call.signal_name}: {hint}"
    if call.status == "protocol":
        return "crashed: the process sent back something other than a result"
    return f"ended the process ({call.message})"


# ---- a runner for the student's file that lives as long as training takes

CPU_LIMIT_S = 1 << 20
"""CPU limit of the runner in s, so large that it is never reached. A time limit applies to each call instead."""

Start = Callable[[int], StudentOperators]


class Unfit(Exception):
    """Raised if the student's file cannot be used for training. The message is for the student."""


class _LongBench(Bench):
    """A `Bench` (it builds a file and starts runners) whose runners have no limit on their total CPU time."""

    @property
    def limits(self) -> Limits:
        return replace(super().limits, cpu_s=CPU_LIMIT_S)


@contextmanager
def opened(assignment: Assignment, source: Path, wanted: Iterable[str]) -> Iterator[Start]:
    """Build the file. Yield a function that takes a number of threads, starts a runner, and returns its
    StudentOperators. End all runners afterwards.

    Raises:
        Unfit: the file does not compile, cannot be loaded or lacks the function of one of the parts `wanted`.
        KitError: the machine cannot build it.
    """
    parts = {part_id: assignment.part(part_id) for part_id in wanted}
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
            assignment, source, Options(profile=False), lambda event: None, made, zygote, runners, host=host
        )

        def start(threads: int) -> StudentOperators:
            try:
                # Do not freeze the runner between calls: to freeze and continue it takes as long as a small call.
                session = bench.student(next(iter(parts.values())), threads=threads, freeze=False)
            except faults.Faulty as fault:
                raise Unfit(fault.diagnosis.message) from fault
            for part in parts.values():
                if (unbound := bench.backend(part).unbound(part, session)) is not None:
                    raise Unfit(unbound.message)
            return StudentOperators(session, parts)

        yield start
