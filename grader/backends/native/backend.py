"""The native backend (C++ without torch), and the methods that it shares with the backend for C++ with torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grader.assignment.labs import Lab
from grader.assignment.records import Part
from grader.backends import binding
from grader.backends.faults import Broken, Faulty
from grader.backends.kinds import CPP
from grader.backends.native import crashes
from grader.backends.native.nativehost import NativeHost, ProgramRefused
from grader.backends.protocol import Backend, Opening
from grader.backends.records import Build
from grader.core.results import Diagnosis, Flag, Timing
from grader.integrity import flags as integrity
from grader.runner.session import Session
from grader.runner.watch import Evidence

if TYPE_CHECKING:
    from grader.source.landmarks import Body


class CppCalls(Backend):
    """Methods of a Backend for C++ that do not depend on how runners are built and started."""

    kind = CPP

    def unbound(self, part: Part, session: Session) -> Diagnosis | None:
        return binding.mismatch(part, session.functions)

    def function_in(self, part: Part, source: str) -> Body | None:
        from grader.source import landmarks

        return landmarks.function(source, part.function or "")

    def flags(self, evidence: Sequence[Evidence], builds: Sequence[Build]) -> Iterator[Flag]:
        for each in evidence:
            yield from integrity.evidence_flags(each, *builds)
        yield from integrity.late_flags(evidence)

    def time_flags(self, timing: Timing, *, flops: float, threads: int, cores: int) -> Iterable[Flag]:
        return integrity.time_flags(timing, flops=flops, threads=threads, cores=cores)

    def fault(self, broken: Broken) -> Faulty:
        return crashes.call_fault(broken)

    def loading_fault(self, session: Session) -> Faulty:
        if session.death is not None:
            return crashes.loading_fault(session.death)
        return crashes.load_error(session.load_error or "")


@dataclass(frozen=True)
class NativeBackend(CppCalls):
    """Backend for one submission whose C++ file is built into a native program."""

    built: Build
    host: NativeHost
    lab: Lab

    def build(self, part: Part) -> Build:
        return self.built

    def open(self, part: Part | None, how: Opening, *, reference: bool = False) -> Session:
        if reference:
            return self.host.spawn(self.lab.reference().program(), **how.on_cpu)
        assert self.built.program is not None
        try:
            session = self.host.spawn(self.built.program, **how.on_cpu)
        except ProgramRefused as reason:
            raise crashes.program_fault(str(reason)) from reason
        if session.load_error is not None:
            # A native program loads no object, so the kit's code never reports a loading error: the student's code sent
            # this reply.
            raise crashes.program_fault("it sent back something other than a greeting")
        return session
