"""Verdicts for builds and calls that failed, with messages for the student.

Messages for the signals and exceptions of one language are in its backend (`native.crashes`, `gpu.backend`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grader.assignment.records import Part
from grader.backends.records import Build
from grader.core.results import CaseResult, Diagnosis, Verdict
from grader.runner.calls import Call


class Faulty(Exception):
    """Exception that decides a part's verdict at once, mostly after a failed call of the student's function.

    `case` is the case's result if a call returned a wrong output. If the verdict is `unjudged`, `waits_for` names
    the missing tool or device.
    """

    def __init__(
        self, verdict: Verdict, diagnosis: Diagnosis, case: CaseResult | None = None, waits_for: str = ""
    ) -> None:
        super().__init__(diagnosis.message)
        self.verdict, self.diagnosis, self.case, self.waits_for = verdict, diagnosis, case, waits_for


def fault(verdict: Verdict, code: str, message: str, hidden: bool | None = None) -> Faulty:
    return Faulty(verdict, Diagnosis(code, message, hidden=hidden))


def build_fault(build: Build) -> Faulty:
    """Return the verdict for a failed build.

    The source does not compile or was not handed in, or this machine lacks a program that the build needs.
    """
    if build.waits_for:
        diagnosis = Diagnosis("machine_lacks", build.diagnostics)
        return Faulty("unjudged", diagnosis, waits_for=build.waits_for)
    if not build.key:
        return fault("missing", "not_bound", build.diagnostics)
    return fault("compile_error", "compile_error", build.diagnostics)


@dataclass(frozen=True)
class Broken:
    """A call of the student's function that returned no output."""

    part: Part
    call: Call
    where: str
    """Name of the input."""
    hidden: bool = False
    """True for a hidden case: reports for students leave out its sizes and numbers."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    printed: str = ""
    """Text that the process printed before it ended."""

    @property
    def at(self) -> str:
        """Function, input and sizes of the call in words, as the subject of a sentence."""
        sizes = f", {in_words(self.sizes)}," if self.sizes else ""
        return f"{self.part.function} on the input '{self.where}'{sizes}"

    @property
    def at_end(self) -> str:
        return self.at.rstrip(",")


def loading_fault(death: Call, runs: str, ends: str) -> Faulty:
    """Return the verdict for a process that failed while it loaded the file, before any function was called.

    `runs` and `ends` name the code that may be the cause. They end the message's advice: "Look at RUNS loop or wait"
    after a time-out, "Look at ENDS: ..." after a crash.
    """
    if death.status == "timeout":
        return fault("timeout", "load_timeout", f"Loading the file did not end. Look at {runs} loop or wait.")
    how = death.signal_name or death.message or death.status
    return fault(
        "crash",
        "load_crash",
        f"The process ended ({how}) while the file was being loaded, before any function was called. "
        f"Look at {ends}: nothing outside the functions should run code.",
    )


def in_words(sizes: Mapping[str, int]) -> str:
    """Format sizes as in `B=2 H=3 N=103 d=40`, without the number of threads."""
    return " ".join(f"{name}={size}" for name, size in sizes.items() if name != "threads")


def sabotage() -> Faulty:
    """Return the verdict for a kernel that killed processes of the kit."""
    return fault(
        "crash",
        "sabotage",
        "Processes of the grader were ended while the kernel ran. A kernel must leave other processes alone.",
    )
