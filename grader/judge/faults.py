"""From a call that gave no usable answer to a verdict, and to words that a student can act on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from grader.assignment.records import Part
from grader.backends.gpu import kernelfiles
from grader.backends.gpu.card.finding import GPU
from grader.backends.gpu.devicebuild import PythonBuild
from grader.backends.native.nativebuild import NativeBuild
from grader.backends.records import Build
from grader.core.harmless import one_line
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


def load_error(error: str, part: Part, packages: Sequence[str]) -> Faulty:
    """The object or file raised `error` while it was loaded. `packages` are what the assignment lets a file import:
    one that is not installed is the machine's lack."""
    if part.device is None:
        return _faulty("compile_error", "load_error", f"the object cannot be loaded: {error}")
    if error.endswith(kernelfiles.NO_CARD):
        return lacks_gpu(f"The file asks for a card when it is imported: {error}")
    lacking = NO_MODULE.search(error)
    name = lacking["name"] if lacking else ""
    if name in packages:
        told = (
            f"The file imports {name}, which this Python lacks: pip install {name}, and judge again. No points are "
            "lost; they stay open."
        )
        return Faulty("unjudged", Diagnosis("machine_lacks", told), waits_for=name)
    advice = ""
    if name:
        allowed = ", ".join(("torch", "triton", "numpy", *packages))
        module = f"{name}{lacking['more']}" if lacking else name
        advice = (
            f". Hand {module} in with the file if it is yours: of other packages a file may import {allowed}"
        )
    elif "ImportError: attempted relative import" in error:
        advice = ". Hand in the whole folder that its package lies in"
    return _faulty("compile_error", "load_error", f"the file cannot be loaded: {error}{advice}")


def loading_fault(death: Call, *, is_python: bool = False) -> Faulty:
    """The object never got as far as offering its functions: something outside them runs while it is loaded."""
    if death.status == "timeout":
        runs = "statements outside of functions that" if is_python else "global variables whose initialisers"
        return _faulty(
            "timeout", "load_timeout", f"Loading the file did not end. Look at {runs} loop or wait."
        )
    how = death.signal_name or death.message or death.status
    runs = "statements outside of functions" if is_python else "global variables and static initialisers"
    return _faulty(
        "crash",
        "load_crash",
        f"The process ended ({how}) while the file was being loaded, before any function was called. "
        f"Look at {runs}: nothing outside the functions should run code.",
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
    "SIGABRT": "abort() was called: a failed assertion, or an exception thrown inside an OpenMP region",
    "SIGBUS": "a read or write outside an array",
    "SIGFPE": "a whole number was divided by zero (a size or count that became 0?)",
    "SIGILL": "the end of a function that should return a value was reached, or an instruction this CPU lacks",
    "SIGKILL": "the process was killed, most likely for using too much memory",
    "SIGXFSZ": "it wrote a file larger than allowed",
    "SIGXCPU": "it used more CPU time than allowed",
    "SIGSYS": "it asked the system for what no kernel needs: to start another process, to use the network, or "
    "to reach for a process that is not its own",
}


OF_TENSORS = (
    "something outside of a tensor was read or written: check the pointers, strides and masks of all loads and stores "
    "on sizes that do not fill the last block"
)
"""The same of kernels that are launched on tensors, for signals that memory is the cause of."""
DEVICE_HINTS = {
    **SIGNAL_HINTS,
    **dict.fromkeys(("SIGSEGV", "SIGBUS"), OF_TENSORS),
    "SIGABRT": "abort() was called",
}


NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(?P<name>\w+)(?P<more>[\w.]*)")
CANNOT_IMPORT = re.compile(r"raised (?:ModuleNotFound|Import)Error: ")
DAMAGED_HEAP = re.compile(
    r"^(?:munmap_chunk\(\)|free\(\)|malloc\(\)|realloc\(\)|malloc_consolidate\(\)|corrupted (?:size|double-linked)|"
    r"double free or corruption|unaligned |sysmalloc|malloc: |Fatal glibc error: malloc)[^\n]{0,200}$",
    re.MULTILINE,
)
"""Words of the C library when it finds its lists of free memory overwritten."""
REFUSED_FILE = re.compile(r'^gpt149: (?P<call>open|fopen) "(?P<path>[^\n]{0,200})" failed\n?', re.MULTILINE)
"""Words of the runner (inside/machine_files.h)."""
STACK_SMASHED = re.compile(r"^\*\*\* stack smashing detected \*\*\*[^\n]*$", re.MULTILINE)
UNCAUGHT = re.compile(
    r"^terminate called after throwing an instance of '(?P<type>[^'\n]{1,80})'", re.MULTILINE
)
ASSERTION = re.compile(r"^[^\n]{0,200}Assertion (?P<text>[^\n]{1,120}) failed\.", re.MULTILINE)
ADVICE = "Run again with --sanitize to see the line."
#: What a build with sanitizers can show the line of.
SANITIZED = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"})


def call_fault(
    call: Call,
    part: Part,
    where: str,
    *,
    hidden: bool = False,
    sizes: Mapping[str, int] | None = None,
    printed: str = "",
    packages: Sequence[str] = (),
) -> Faulty:
    """Verdict and words for a call that gave no answer. `where` names its input, `sizes` are the part's there, and
    `hidden` says whether that is a hidden case's: who tells a student asks the field, not the words. `printed` is what
    the process said before it ended; `packages` are as for `load_error`."""
    if part.device is not None and not hidden and CANNOT_IMPORT.search(call.message):
        # The course's adapters import in a function, and so may any file.
        return load_error(call.message, part, packages)
    if call.message.endswith(kernelfiles.NO_CARD):
        return lacks_gpu(f"{part.function} on the input '{where}' asks for a card: {call.message}")
    if call.is_missing:
        return _faulty("missing", "not_implemented", f"{part.function}: {call.message}.")
    verdict, code, message = _no_answer(call, part, where, sizes or {}, printed)
    return _faulty(verdict, code, message, hidden)


def in_words(sizes: Mapping[str, int]) -> str:
    """B=2 H=3 N=103 d=40"""
    return " ".join(f"{name}={size}" for name, size in sizes.items() if name != "threads")


def own_output(printed: str) -> str:
    """Return a kernel's output without the C library's words at its end and the runner's about files."""
    return DAMAGED_HEAP.sub("", REFUSED_FILE.sub("", printed)).strip("\n")


def refused_files(printed: str) -> tuple[tuple[str, str], ...]:
    """Return the files that a kernel could not open: the call's name and the path."""
    return tuple(dict.fromkeys((found["call"], found["path"]) for found in REFUSED_FILE.finditer(printed)))


def _why_aborted(printed: str) -> str:
    """Return the reason of an abort, as far as the process printed it; else ""."""
    if (heap := DAMAGED_HEAP.search(printed)) is not None:
        return (
            "the heap is damaged: something was written outside of an array before, or freed twice (noticed late, by "
            f"the C library: {one_line(heap[0], 60)})"
        )
    if STACK_SMASHED.search(printed) is not None:
        return "something was written beyond the end of a local array"
    if (thrown := UNCAUGHT.search(printed)) is not None:
        return f"an exception that nobody catches, {thrown['type']}: one that leaves an OpenMP region, say"
    if (failed := ASSERTION.search(printed)) is not None:
        return f"a failed assertion: {failed['text']}"
    return ""


def _no_answer(
    call: Call, part: Part, where: str, sizes: Mapping[str, int], printed: str
) -> tuple[Verdict, str, str]:
    at = f"{part.function} on the input '{where}'" + (f", {in_words(sizes)}," if sizes else "")
    if call.status == "timeout" and call.message:
        return ("timeout", "timeout", f"{at.rstrip(',')} was not called: {call.message}.")
    if call.status == "timeout" and call.cpu_s is not None:
        return (
            "timeout",
            "timeout",
            f"{at} did not end within {call.cpu_s:.0f} s of processor time and {call.wall_s:.0f} s in all. This "
            "machine has no GPU: Triton's interpreter runs the kernel, and each operation of it takes about 50 "
            "microseconds there. Use larger blocks, so that there are fewer programs and steps (tl.dot instead of a "
            "loop over single numbers), or look for a loop whose bound never lets it end.",
        )
    if call.status == "timeout":
        return (
            "timeout",
            "timeout",
            f"{at} did not end within {call.wall_s:.0f} s. Look for a loop whose counter or bound never lets it end "
            "(a while without an increment, an inner loop that reuses the outer loop's counter).",
        )
    if call.status == "exception":
        if part.device is not None:
            return ("crash", "exception", f"{at.rstrip(',')}: {call.message}")
        memory = " (it asked for more memory than a run may have)" if "bad_alloc" in call.message else ""
        where_told = f" ({in_words(sizes)})" if sizes else ""
        return (
            "crash",
            "exception",
            f"{part.function} on the input '{where}' threw a C++ exception: "
            f"{call.message.strip() or 'one without a message'}{memory}{where_told}",
        )
    if call.status == "protocol":
        told = f"{at.rstrip(',')}: the process sent back something that is no result."
        return ("crash", "protocol", told)
    if call.signal_name and part.device is not None:
        hint = DEVICE_HINTS.get(call.signal_name, "the process was ended by this signal")
        if call.signal_name == "SIGABRT" and DAMAGED_HEAP.search(printed) is not None:
            hint = OF_TENSORS
        return ("crash", call.signal_name.lower(), f"{at} crashed with {call.signal_name}: {hint}.")
    if call.signal_name:
        hint = SIGNAL_HINTS.get(call.signal_name, "the process was ended by this signal")
        if call.signal_name == "SIGABRT":
            hint = _why_aborted(printed) or hint
        advice = f" {ADVICE}" if call.signal_name in SANITIZED else ""
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


def with_loads_outside(diagnosis: Diagnosis, lines: Sequence[int], build: Build | NativeBuild) -> Diagnosis:
    """Return the diagnosis with the lines that loaded what no tensor holds: these may be the cause."""
    places = [place_of(line, build) for line in lines]
    which = "Line" if len(lines) == 1 else "Lines"
    told = (
        f"{which} {', '.join(places)} loaded from outside of every tensor, where a kernel gets NaN or a "
        "whole number without a meaning: check the masks."
    )
    return replace(diagnosis, message=f"{diagnosis.message} {told}")


def place_of(line: int, build: Build | NativeBuild) -> str:
    """Return a line as a runner sends it (`kernelfiles.OWN`) in words, with its file where there are several."""
    file, number = divmod(line, 1 << kernelfiles.FILE_BITS)
    files = build.files if isinstance(build, PythonBuild) else ()
    return f"{files[file]}:{number}" if file < len(files) else str(number)


def sabotage() -> Faulty:
    """The kit's own processes died while only the student's code was in a position to end them."""
    return _faulty(
        "crash",
        "sabotage",
        "Processes of the grader were ended while the kernel ran. A kernel must leave other processes alone.",
    )
