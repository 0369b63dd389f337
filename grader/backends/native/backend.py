"""The backend of C++ that is judged as a program of its own."""

from __future__ import annotations

from dataclasses import dataclass

from grader.assignment.labs import Lab
from grader.assignment.records import Part
from grader.backends.native import crashes
from grader.backends.native.cpp import CppCalls
from grader.backends.native.nativehost import NativeHost, ProgramRefused
from grader.backends.protocol import Opening
from grader.backends.records import Build
from grader.runner.session import Session


@dataclass(frozen=True)
class NativeBackend(CppCalls):
    """Programs of one submission (`grader.backends.protocol.Backend`)."""

    built: Build
    host: NativeHost
    lab: Lab

    def build(self, part: Part) -> Build:
        return self.built

    def open(self, part: Part | None, how: Opening, *, reference: bool = False) -> Session:
        if reference:
            program = self.lab.reference().program()
            return self.host.spawn(
                program, threads=how.threads, cpus=how.cpus, call_timeout_s=how.call_timeout_s
            )
        assert self.built.program is not None
        try:
            session = self.host.spawn(
                self.built.program,
                threads=how.threads,
                cpus=how.cpus,
                limits=how.limits,
                freeze=how.freeze,
                call_timeout_s=how.call_timeout_s,
            )
        except ProgramRefused as reason:
            raise crashes.program_fault(str(reason)) from reason
        if session.load_error is not None:
            # It has nothing to load, so that is no greeting of the kit's.
            raise crashes.program_fault("it sent back something that is no greeting")
        return session
