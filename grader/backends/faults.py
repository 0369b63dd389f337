"""A part's verdict by a call that gave no usable answer, in words that a student can act on.

Words for the signals and exceptions of one language are its backend's (`native.crashes`, `gpu.crashes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from grader.assignment.records import Part
from grader.backends.records import Build
from grader.core.results import CaseResult, Diagnosis, Verdict
from grader.runner.calls import Call


class Faulty(Exception):
    """Raised to settle a part's verdict at once: mostly a call of the student's function, with `case` its mark if it
    gave an answer. `waits_for` is what the machine lacks where the verdict is `unjudged`."""

    def __init__(
        self, verdict: Verdict, diagnosis: Diagnosis, case: CaseResult | None = None, waits_for: str = ""
    ) -> None:
        super().__init__(diagnosis.message)
        self.verdict, self.diagnosis, self.case, self.waits_for = verdict, diagnosis, case, waits_for


def fault(verdict: Verdict, code: str, message: str, hidden: bool | None = None) -> Faulty:
    return Faulty(verdict, Diagnosis(code, message, hidden=hidden))


def build_fault(build: Build) -> Faulty:
    """There is no object: by the source's fault, since there is no source, or since this machine lacks a program that
    makes one of it."""
    if build.waits_for:
        diagnosis = Diagnosis("machine_lacks", build.diagnostics)
        return Faulty("unjudged", diagnosis, waits_for=build.waits_for)
    if not build.key:
        return fault("missing", "not_bound", build.diagnostics)
    return fault("compile_error", "compile_error", build.diagnostics)


class Words(Protocol):
    """Words of one backend for an exception and a signal. `at` names function, input and sizes."""

    def exception(self, call: Call, part: Part, where: str, sizes: Mapping[str, int]) -> str: ...

    def signal(self, call: Call, at: str, printed: str) -> str: ...

    def timeout(self, call: Call, at: str) -> str: ...


def call_fault(
    call: Call,
    part: Part,
    where: str,
    words: Words,
    *,
    hidden: bool = False,
    sizes: Mapping[str, int] | None = None,
    printed: str = "",
) -> Faulty:
    """Verdict and words for a call that gave no answer.

    `where` names its input, `sizes` are the part's there. `hidden` says whether that is a hidden case's: reports for
    students look at the field, not at the words. `printed` is what the process printed before it ended.
    """
    if call.is_missing:
        return fault("missing", "not_implemented", f"{part.function}: {call.message}.")
    sizes = sizes or {}
    at = place_of_call(part, where, sizes)
    if call.status == "timeout":
        message = words.timeout(call, at)
        if call.message:
            message = f"{at.rstrip(',')} was not called: {call.message}."
        return fault("timeout", "timeout", message, hidden)
    if call.status == "exception":
        return fault("crash", "exception", words.exception(call, part, where, sizes), hidden)
    if call.status == "protocol":
        message = f"{at.rstrip(',')}: the process sent back something that is no result."
        return fault("crash", "protocol", message, hidden)
    if call.signal_name:
        return fault("crash", call.signal_name.lower(), words.signal(call, at, printed), hidden)
    if call.exit_code is not None:
        message = (
            f"{at} ended the process ({call.message}) in place of returning. A kernel must return its result."
        )
        return fault("crash", "exit", message, hidden)
    return fault("crash", "stopped", f"{at} was stopped: {call.message}.", hidden)


def place_of_call(part: Part, where: str, sizes: Mapping[str, int]) -> str:
    """Return the words for one call: its function, input and sizes."""
    return f"{part.function} on the input '{where}'" + (f", {in_words(sizes)}," if sizes else "")


def loading_fault(death: Call, runs: str, ends: str) -> Faulty:
    """The process ended before any function was called. `runs` and `ends` name what runs while a file is loaded, for
    a process that did not end and for one that did."""
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
    """B=2 H=3 N=103 d=40"""
    return " ".join(f"{name}={size}" for name, size in sizes.items() if name != "threads")


def sabotage() -> Faulty:
    """The kit's own processes died while only the student's code was in a position to end them."""
    return fault(
        "crash",
        "sabotage",
        "Processes of the grader were ended while the kernel ran. A kernel must leave other processes alone.",
    )
