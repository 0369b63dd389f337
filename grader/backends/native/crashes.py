"""Messages for C++ that does not load, crashes or hangs."""

from __future__ import annotations

import re

from grader.backends import faults
from grader.backends.faults import Broken, Faulty, fault, in_words
from grader.core.harmless import one_line
from grader.runner.calls import Call

SIGNAL_HINTS = {
    "SIGSEGV": "a read or write outside an array, or a local array or recursion too large for the stack (use a "
    "std::vector). Check the order of indices, the bounds of loops over a last, shorter block, and that the "
    "kernel uses no files: it cannot open any",
    "SIGABRT": "abort() was called: a failed assertion, or an exception thrown inside an OpenMP region",
    "SIGBUS": "a read or write outside an array",
    "SIGFPE": "a whole number was divided by zero (a size or count that became 0?)",
    "SIGILL": "the end of a function that should return a value was reached, or an instruction this CPU lacks",
    "SIGKILL": "the process was killed, most likely for using too much memory",
    "SIGXFSZ": "it wrote a file larger than allowed",
    "SIGXCPU": "it used more CPU time than allowed",
    "SIGSYS": "it made a system call that kernels may not make: to start another process, to use the network, or "
    "to access another process",
}


REFUSED_FILE = re.compile(r'^gpt149: (?P<call>open|fopen) "(?P<path>[^\n]{0,200})" failed\n?', re.MULTILINE)
"""Line that the runner prints if the kernel cannot open a file (inside/machine_files.h)."""
DAMAGED_HEAP = re.compile(
    r"^(?:munmap_chunk\(\)|free\(\)|malloc\(\)|realloc\(\)|malloc_consolidate\(\)|corrupted (?:size|double-linked)|"
    r"double free or corruption|unaligned |sysmalloc|malloc: |Fatal glibc error: malloc)[^\n]{0,200}$",
    re.MULTILINE,
)
"""Lines that the C library prints when it notices that its lists of free memory were overwritten."""
STACK_SMASHED = re.compile(r"^\*\*\* stack smashing detected \*\*\*[^\n]*$", re.MULTILINE)
UNCAUGHT = re.compile(
    r"^terminate called after throwing an instance of '(?P<type>[^'\n]{1,80})'", re.MULTILINE
)
ASSERTION = re.compile(r"^[^\n]{0,200}Assertion (?P<text>[^\n]{1,120}) failed\.", re.MULTILINE)
ADVICE = "Run again with --sanitize to see the line."
#: Signals for which a build with sanitizers can show the line.
SANITIZED = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"})


def load_error(error: str) -> Faulty:
    """Return the verdict for a compiled file that could not be loaded. `error` is the loader's message."""
    return fault("compile_error", "load_error", f"the compiled file cannot be loaded: {error}")


def loading_fault(death: Call) -> Faulty:
    """Return the verdict for a compiled file whose code outside of functions crashed or hung during loading."""
    return faults.loading_fault(
        death, "global variables whose initialisers", "global variables and static initialisers"
    )


def program_fault(reason: str) -> Faulty:
    """Return the verdict for a program that does not start. Inline assembly can cause this, ordinary C++ cannot."""
    return fault(
        "compile_error",
        "load_error",
        f"The program built from your file does not start: {one_line(reason, 200)}. Look for asm, sections and "
        "attributes: a kernel needs none.",
    )


class CallWords:
    """Verdicts and messages for calls that returned no output. Subclasses replace messages for other languages."""

    def fault(self, broken: Broken) -> Faulty:
        call, at = broken.call, broken.at
        if call.is_missing:
            return fault("missing", "not_implemented", f"{broken.part.function}: {call.message}.")
        if call.status == "timeout":
            message = f"{broken.at_end} was not called: {call.message}." if call.message else ""
            return fault("timeout", "timeout", message or self.timeout(broken), broken.hidden)
        if call.status == "exception":
            code, message = "exception", self.exception(broken)
        elif call.status == "protocol":
            code, message = (
                "protocol",
                f"{broken.at_end}: the process sent back something other than a result.",
            )
        elif call.signal_name:
            code, message = call.signal_name.lower(), f"{at} crashed with {self.signal(broken)}"
        elif call.exit_code is not None:
            ended = f"ended the process ({call.message}) in place of returning"
            code, message = "exit", f"{at} {ended}. A kernel must return its result."
        else:
            code, message = "stopped", f"{at} was stopped: {call.message}."
        return fault("crash", code, message, broken.hidden)

    def exception(self, broken: Broken) -> str:
        said, sizes = broken.call.message, in_words(broken.sizes)
        memory = " (it asked for more memory than a run may have)" if "bad_alloc" in said else ""
        return (
            f"{broken.part.function} on the input '{broken.where}' threw a C++ exception: "
            f"{said.strip() or 'one without a message'}{memory}{f' ({sizes})' if broken.sizes else ''}"
        )

    def signal(self, broken: Broken) -> str:
        name = broken.call.signal_name
        hint = SIGNAL_HINTS.get(name, "the process was ended by this signal")
        if name == "SIGABRT":
            hint = _why_aborted(broken.printed) or hint
        return f"{name}: {hint}." + (f" {ADVICE}" if name in SANITIZED else "")

    def timeout(self, broken: Broken) -> str:
        return (
            f"{broken.at} did not end within {broken.call.wall_s:.0f} s. Look for a loop whose counter or bound never "
            "lets it end."
        )


def call_fault(broken: Broken) -> Faulty:
    return CallWords().fault(broken)


def own_output(printed: str) -> str:
    """Return the kernel's own printed text, without lines of the runner and of the C library."""
    return DAMAGED_HEAP.sub("", REFUSED_FILE.sub("", printed)).strip("\n")


def refused_files(printed: str) -> tuple[tuple[str, str], ...]:
    """Return (name of the call, path) for each file that the kernel could not open, from its printed text."""
    return tuple(dict.fromkeys((found["call"], found["path"]) for found in REFUSED_FILE.finditer(printed)))


def _why_aborted(printed: str) -> str:
    """Return the reason of an abort if the process printed one; else ""."""
    if (heap := DAMAGED_HEAP.search(printed)) is not None:
        return (
            "the heap is damaged: earlier, something was written outside of an array, or freed twice (the C library "
            f"noticed it late: {one_line(heap[0], 60)})"
        )
    if STACK_SMASHED.search(printed) is not None:
        return "something was written beyond the end of a local array"
    if (thrown := UNCAUGHT.search(printed)) is not None:
        return f"an uncaught exception of type {thrown['type']}, such as one that leaves an OpenMP region"
    if (failed := ASSERTION.search(printed)) is not None:
        return f"a failed assertion: {failed['text']}"
    return ""
