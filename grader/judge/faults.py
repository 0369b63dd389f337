"""From a call that gave no usable answer to a verdict, and to words that a student can act on."""

from __future__ import annotations

from pathlib import Path

from grader.assignment.records import Part
from grader.base.harmless import one_line
from grader.base.results import CaseResult, Diagnosis, Verdict
from grader.build.nativebuild import NativeBuild
from grader.build.records import Build
from grader.run.calls import Call
from grader.run.card.finding import GPU
from grader.run.session import Session


class Faulty(Exception):
    """What settles a part's verdict at once: mostly a call of the student's function, with `case` its mark if it gave
    an answer. `waits_for` is what the machine lacks where the verdict is `unjudged`."""

    def __init__(
        self, verdict: Verdict, diagnosis: Diagnosis, case: CaseResult | None = None, waits_for: str = ""
    ) -> None:
        super().__init__(diagnosis.message)
        self.verdict, self.diagnosis, self.case, self.waits_for = verdict, diagnosis, case, waits_for


def _faulty(verdict: Verdict, code: str, message: str, hidden: bool | None = None) -> Faulty:
    return Faulty(verdict, Diagnosis(code, message, hidden=hidden))


def build_fault(build: Build | NativeBuild) -> Faulty:
    """There is no object: by the source's fault, since there is no source, or since this machine lacks a program that
    makes one of it."""
    if build.waits_for:
        diagnosis = Diagnosis("machine_lacks", build.diagnostics)
        return Faulty("unjudged", diagnosis, waits_for=build.waits_for)
    if not build.key:
        return _faulty("missing", "not_bound", build.diagnostics)
    return _faulty("compile_error", "compile_error", build.diagnostics)


def lacks_gpu(what: str) -> Faulty:
    """`what` is known of a part and what is not, on a machine without a card."""
    message = (
        f"{what}: this machine has no GPU. No points are lost; they stay open until it is judged on one."
    )
    return Faulty("unjudged", Diagnosis("machine_lacks", message), waits_for=GPU)


def loading_fault(death: Call) -> Faulty:
    """The object never got as far as offering its functions: something outside them runs while it is loaded."""
    if death.status == "timeout":
        return _faulty(
            "timeout",
            "load_timeout",
            "Loading the file did not end. Look at global variables whose initialisers loop or wait.",
        )
    how = death.signal_name or death.message or death.status
    return _faulty(
        "crash",
        "load_crash",
        f"The process ended ({how}) while the file was being loaded, before any function was called. "
        "Look at global variables and static initialisers: nothing outside the functions should run code.",
    )


def program_fault(reason: str) -> Faulty:
    """The program that was made of the file does not come up, which no kernel alone can bring about."""
    return _faulty(
        "compile_error",
        "load_error",
        f"The program that was made of the file does not start: {one_line(reason, 200)}. Look for asm, sections and "
        "attributes: a kernel needs none.",
    )


SIGNAL_HINTS = {
    "SIGSEGV": "a read or write outside an array, or a local array or recursion too large for the stack (use a "
    "std::vector). Check the order of indices and the bounds of loops over what is left at the end, and "
    "whether a file is open: kernels have none",
    "SIGABRT": "abort() was called: a failed assertion, an exception thrown inside an OpenMP region, or a heap that an "
    "out-of-bounds write has damaged",
    "SIGBUS": "a read or write outside an array",
    "SIGFPE": "a whole number was divided by zero (a size or count that became 0?)",
    "SIGILL": "the end of a function that should return a value was reached, or an instruction this CPU lacks",
    "SIGKILL": "the process was killed, most likely for using too much memory",
    "SIGXFSZ": "it wrote a file larger than allowed",
    "SIGXCPU": "it used more CPU time than allowed",
    "SIGSYS": "it asked the system for what no kernel needs: to start another process, to use the network, or "
    "to reach for a process that is not its own",
}


#: What a build with sanitizers can show the line of.
SANITIZED = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"})


def call_fault(call: Call, part: Part, where: str, *, hidden: bool = False) -> Faulty:
    """Verdict and words for a call that gave no answer. `where` names its input, and `hidden` says whether that is a
    hidden case's: who tells a student asks the field, not the words."""
    verdict, code, message = _no_answer(call, part, where)
    return _faulty(verdict, code, message, hidden)


def _no_answer(call: Call, part: Part, where: str) -> tuple[Verdict, str, str]:
    at = f"{part.function} on the input '{where}'"
    if call.status == "timeout":
        return (
            "timeout",
            "timeout",
            f"{at} did not end within {call.wall_s:.0f} s. Look for a loop whose counter or bound never lets it end "
            "(a while without an increment, an inner loop that reuses the outer loop's counter).",
        )
    if call.status == "exception":
        if part.device is not None:
            return ("crash", "exception", f"{at} raised {call.message}")
        memory = " (it asked for more memory than a run may have)" if "bad_alloc" in call.message else ""
        return ("crash", "exception", f"{at} threw a C++ exception: {call.message}{memory}")
    if call.status == "protocol":
        return ("crash", "protocol", f"{at}: the process sent back something that is no result.")
    if call.signal_name:
        hint = SIGNAL_HINTS.get(call.signal_name, "the process was ended by this signal")
        advice = " Run again with --sanitize to see the line." if call.signal_name in SANITIZED else ""
        return (
            "crash",
            call.signal_name.lower(),
            f"{at} crashed with {call.signal_name}: {hint}.{advice}",
        )
    if call.exit_code is not None:
        return (
            "crash",
            "exit",
            f"{at} ended the process ({call.message}) in place of returning. A kernel must return its result.",
        )
    return ("crash", "stopped", f"{at} was stopped: {call.message}.")


def sabotage() -> Faulty:
    """The kit's own processes died while only the student's code was in a position to end them."""
    return _faulty(
        "crash",
        "sabotage",
        "Processes of the grader were ended while the kernel ran. A kernel must leave other processes alone.",
    )


def sanitizer_finding(session: Session, source: Path) -> Diagnosis | None:
    """What the checked build said before it ended, with the student's own lines, innermost first."""
    from grader.build import sanitize

    report = sanitize.report(session.printed, source)
    if report is None:
        return None
    lines = [f"{source.name}:{frame.line}: {frame.text.strip()}" for frame in report.frames[:3]]
    return Diagnosis("sanitizer", "\n".join([report.message, *lines]))
