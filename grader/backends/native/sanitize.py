"""Sanitizers for a student's file: flags and environment variables to build and run it with them, and their reports.

A native runner is linked with the sanitizers (`native.nativebuild`) and gets `options` in its environment. A process
with torch is started with `environment`, because AddressSanitizer must be loaded before everything else. In both, the
memory of tensors comes from posix_memalign, around which AddressSanitizer puts guarded zones. So it finds an access
beyond a tensor's last element, unless the tensor is a view of a larger tensor.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from grader.backends.native.toolchain import Toolchain, toolchain
from grader.core import machine
from grader.core.errors import KitError
from grader.source.cpptext import without_comments

FLAGS = (
    "-O1",
    # -g1 describes lines and inlined calls only. Locations of variables would double the build time.
    "-g1",
    "-fno-omit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-fsanitize=address,undefined",
    # torch hides its type information, so this check would report correct code.
    "-fno-sanitize=vptr",
    # Continue after a fault, so that one run reports all faults.
    "-fsanitize-recover=address,undefined",
    "-D_GLIBCXX_ASSERTIONS",
    # With this macro, a container of the C++ library prints a bad index and its size, and the program continues
    # (inside/plain/plain_checked.h).
    "-DGPT149_CHECKED",
)
#: Options of AddressSanitizer. handle_abort is on because the checked containers of libstdc++ call abort().
#: detect_leaks is off because Python does not free its memory at exit. New memory is filled with zeros: a kernel whose
#: wrong result becomes right in such a build reads memory that it did not write.
ASAN_OPTIONS = {
    "detect_leaks": "0",
    "handle_abort": "1",
    "halt_on_error": "0",
    "max_malloc_fill_size": str(1 << 30),
    "malloc_fill_byte": "0",
    "print_legend": "0",
    "abort_on_error": "0",
    "allocator_may_return_null": "1",
    "detect_odr_violation": "0",
    "color": "never",
    "exitcode": "99",
}
UBSAN_OPTIONS = {"print_stacktrace": "1", "halt_on_error": "0", "color": "never"}
MAX_FRAMES, MOST_REPORTS = 8, 64
LONGEST_LINE, LONGEST_ROW = 2000, 160
"""Limits in characters. Only this much of a report's line is read, because a kernel may print long lines. Only this
much of a source line is shown."""


@dataclass(frozen=True)
class Frame:
    """One stack frame of a report that is in the student's file: its line, the line's text and the function.

    `code` is the text with the file's macros expanded, "" if they were not.
    """

    line: int
    text: str
    function: str
    code: str = ""

    @property
    def plain(self) -> str:
        """The text without comments, and with the file's macros expanded if they are known."""
        return self.code or without_comments(self.text)


@dataclass(frozen=True)
class SanitizerReport:
    """One reported fault.

    `kind` is AddressSanitizer's name with the access ("heap-buffer-overflow write"), "vector index", "failed check" or
    "undefined behaviour". `message` describes it for students. `frames` are the student's stack frames, the innermost
    first. `made` is the student's line that allocated the array, if known.
    """

    kind: str
    message: str
    frames: tuple[Frame, ...]
    made: Frame | None = None

    @property
    def place(self) -> tuple[int, ...]:
        """Line numbers of the student's stack frames, except lines with pragmas. `reports` reports each place once."""
        return tuple(frame.line for frame in self.frames if not frame.text.startswith("#"))

    @property
    def has_index(self) -> bool:
        """True if the message gives the index that was out of range."""
        return self.kind == "vector index" or bool(re.search(r"\bindex -?\d+ out of bounds", self.message))

    @property
    def lacks_index(self) -> bool:
        """True if the report says that memory is too small, which follows another one that gives the index."""
        return "insufficient space" in self.message

    @property
    def of_value(self) -> str:
        """Headline for an error in a computed value, such as an integer overflow; "" for a bad memory access."""
        if self.kind != "undefined behaviour":
            return ""
        return next((words for said, words in VALUES.items() if re.search(said, self.message)), "")


def options() -> dict[str, str]:
    """Return environment variables for a program that is linked with sanitizers."""
    return {
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in ASAN_OPTIONS.items()),
        "UBSAN_OPTIONS": ":".join(f"{name}={value}" for name, value in UBSAN_OPTIONS.items()),
    }


def environment() -> dict[str, str]:
    """Return environment variables for a Python process that will load an object with sanitizers.

    Raises KitError if the compiler has no AddressSanitizer.
    """
    tools = toolchain()
    preload = "DYLD_INSERT_LIBRARIES" if tools.system == "Darwin" else "LD_PRELOAD"
    return {preload: str(_runtime(tools)), **options()}


def readable() -> list[str]:
    """Return files that a program with sanitizers opens: its memory map, its options, and the compiler's LIBRARIES."""
    return ["/proc/self/maps", "/proc/self/environ", *_libraries(toolchain())]


#: Shared libraries that come with the compiler and that a program with sanitizers loads.
LIBRARIES = ("libasan.so", "libubsan.so", "libstdc++.so.6", "libgcc_s.so.1", "libgomp.so.1", "libomp.so")


@functools.lru_cache(maxsize=4)
def _libraries(tools: Toolchain) -> tuple[str, ...]:
    """Return the paths of the LIBRARIES that the compiler has."""
    found = (tools.file(name) for name in LIBRARIES)
    return tuple(str(path) for path in found if path is not None)


@functools.lru_cache(maxsize=4)
def _runtime(tools: Toolchain) -> Path:
    """Return the compiler's shared library of AddressSanitizer. Raises KitError if it has none."""
    names = ["libasan.so"]
    if tools.family == "clang":
        suffix = "osx_dynamic.dylib" if tools.system == "Darwin" else f"{tools.machine}.so"
        names = [f"libclang_rt.asan_{suffix}", f"libclang_rt.asan-{suffix}", "libclang_rt.asan.so"]
    for name in names:
        if (found := tools.file(name)) is not None:
            return found
    raise KitError(
        "this compiler has no AddressSanitizer: on Debian and Ubuntu install g++ with its libasan package"
    )


# ---- reading a report

FRAME = re.compile(
    r"^[ \t]*#\d+ 0x[0-9a-f]+ (?:in (?P<function>.+?) )?(?P<file>[^\s()]+):(?P<line>\d+)(?::\d+)?\s*$",
    re.MULTILINE,
)
ASAN = re.compile(r"ERROR: AddressSanitizer: (?P<kind>[\w-]+)")
ACCESS = re.compile(r"^(?P<access>READ|WRITE) of size (?P<size>\d+)", re.MULTILINE)
REGION = re.compile(
    r"is located (?P<offset>\d+) bytes (?P<side>to the right of|to the left of|after|before|inside(?: of)?) "
    r"(?P<size>\d+)-byte region"
)
ALLOCATED = re.compile(r"^(?:previously )?allocated by thread .*$", re.MULTILINE)
CAUSE = re.compile(r"caused by a (?P<access>READ|WRITE) memory access")
UBSAN = re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):\d+: runtime error: (?P<text>.*)$", re.MULTILINE)
CHECKED = re.compile(
    r"^.*?/(?P<header>[\w.]+):\d+: (?P<function>.*): Assertion '(?P<assertion>.*)' failed\.$", re.MULTILINE
)
#: UBSan's messages on errors in values (not in accesses to memory), with a headline for each.
VALUES = {
    r"(?:integer overflow|negation of).*'int'": "An integer overflows: use a wider type, such as int64_t.",
    r"integer overflow|negation of": "An integer overflows: a value does not fit into its type.",
    r"shift": "A shift overflows, or its distance does not fit the type.",
    r"division .*by zero": "A number is divided by zero.",
    r"outside the range of representable values": "A number does not fit into the type to which it is converted.",
    r"not a valid value for type": "A variable holds a value that its type does not have: was it ever set?",
    r"reached the end of a value-returning": "A function ends without `return`.",
}
CHECKS = {
    "__n < this->size()": "an index is out of range of its std::vector: operator[] was called with an index below 0 or "
    "not below its size",
    "!this->empty()": "an element of an empty container was read",
}
FAULTS = {
    "heap-buffer-overflow": "memory beyond the end (or before the start) of an array was {access}",
    "heap-use-after-free": "memory was {access} after it was freed: a pointer into a deleted tensor or vector",
    "stack-buffer-overflow": "memory beyond a local array was {access}",
    "stack-use-after-return": "a local variable was {access} after its function had returned",
    "stack-use-after-scope": "a local variable was {access} after the end of its block",
    "global-buffer-overflow": "memory beyond a global array was {access}",
    "stack-overflow": "the stack overflowed: an endless recursion, or a local array that is too large",
    "attempting": "memory was freed twice, or was not allocated by the kernel",
    "double-free": "memory was freed twice",
    "SEGV": "an address outside of all memory was {access}: a null or wild pointer, or an index far out of range",
    "FPE": "an integer was divided by zero",
    "ABRT": "the program called abort (an uncaught exception, or a failed assertion)",
    "allocation-size-too-big": "the code asked for far too much memory: look for a negative size",
    "container-overflow": "an element between a vector's size and its capacity was {access}",
}


#: Beginnings of reports: of a bad index (plain_checked.h), of AddressSanitizer, of UBSan.
SUBSCRIPT = re.compile(
    r"^gpt149: subscript (?P<index>-?\d+) of a container of (?P<size>\d+) elements", re.MULTILINE
)
BEGINS = re.compile(
    r"^gpt149: subscript -?\d|ERROR: AddressSanitizer: |^[^\s:]+:\d+:\d+: runtime error: ", re.MULTILINE
)
#: The lines of AddressSanitizer's report before its stack. Other threads may print UBSan's lines among them.
STARTED = re.compile(r"ERROR: AddressSanitizer: [^\n]*\n(?:(?![ \t]*#\d)[^\n]*\n){0,40}")


def report(output: str, source: Path) -> SanitizerReport | None:
    """Return the first fault that sanitizers report in a process's `output`; None without one."""
    return next(iter(reports(output, source)), None)


#: A stack frame without a line number, in a function whose name does not contain "gpt149". The path of the program may
#: contain this word, and also blanks.
UNNAMED = re.compile(
    r"^(?P<lead>[ \t]*#\d+ 0x[0-9a-f]+ in (?:(?!gpt149)[^\n])*?) "
    r"\((?P<file>/[^\n]*)\+0x(?P<offset>[0-9a-f]{1,16})\)(?: \(BuildId: [0-9a-f]+\))?$",
    re.MULTILINE,
)
MOST_ADDRESSES, LOOKUP_S = 100, 20.0


def with_lines(output: str, program: Path) -> str:
    """Return a program's output with line numbers added to stack frames that lack them.

    addr2line (binutils) finds the lines; without this tool the output is returned unchanged.
    """
    # The sanitizers of GCC 13 cannot read the program's path inside a sandbox, and print this link to it.
    own = (str(program), "/proc/self/exe")
    wanted = list(dict.fromkeys(m["offset"] for m in UNNAMED.finditer(output) if m["file"] in own))
    if not wanted:
        return output
    # A return address points behind the call: take the byte before it.
    addresses = [hex(int(offset, 16) - 1) for offset in wanted[:MOST_ADDRESSES]]
    listing = machine.answer(["addr2line", "-a", "-i", "-e", str(program), *addresses], LOOKUP_S)
    groups = [group.split("\n")[1:] for group in re.split(r"^0x", listing, flags=re.MULTILINE)[1:]]
    places = {
        offset: [line.partition(" (discriminator")[0] for line in lines if "module.cpp:" in line]
        for offset, lines in zip(wanted, groups, strict=False)
    }

    def named(match: re.Match[str]) -> str:
        lines = places.get(match["offset"], []) if match["file"] in own else []
        return "\n".join(f"{match['lead']} {line}" for line in lines) or match[0]

    return UNNAMED.sub(named, output)


def reports(output: str, source: Path) -> tuple[SanitizerReport, ...]:
    """Return the faults that sanitizers report in a process's `output`, in order, one for each place.

    `source` is the student's file, which was compiled under the name module.cpp.
    """
    output = "\n".join(line[:LONGEST_LINE] for line in output.split("\n"))
    among = [line[0] for started in STARTED.finditer(output) for line in UBSAN.finditer(started[0])]
    output = STARTED.sub(lambda lines: re.sub(f"{UBSAN.pattern}\n", "", lines[0], flags=re.M), output)
    output = "\n".join([output, *among])
    rows = source.read_text(errors="replace").split("\n")
    starts = [match.start() for match in BEGINS.finditer(output)][:MOST_REPORTS]
    found: dict[tuple[int, ...], SanitizerReport] = {}
    for start, end, before in zip(starts, [*starts, len(output)][1:], [0, *starts], strict=False):
        described = _described(output[start:end], output[before:start], rows)
        if described is None:
            continue
        known = found.setdefault(described.place, described)
        # Of two reports on one place, keep the one with index and size.
        if described.has_index and not known.has_index:
            found[described.place] = described
    # Threads print in any order: the reports with an index say the most about a local array.
    ordered = sorted(found.values(), key=lambda each: each.lacks_index)
    # If something wrote beyond an array, leave out integer overflows: the write may have changed the numbers.
    is_damaged = any(each.kind == "heap-buffer-overflow write" for each in ordered)
    return tuple(each for each in ordered if not (is_damaged and "integer overflow" in each.message))


def _described(text: str, before: str, rows: list[str]) -> SanitizerReport | None:
    """Parse one report: of a bad subscript, of UBSan or of AddressSanitizer. Return None for any other text.

    `before` is the text between the previous report and this one, `rows` the source's lines.
    """
    subscript, undefined, asan = SUBSCRIPT.match(text), UBSAN.match(text), ASAN.match(text)
    # The first stack is of the fault itself. The stacks of allocations and threads follow after an empty line.
    stack = re.split(r"\n\s*\n", text, maxsplit=1)[0]
    frames = _frames(stack, rows)
    if subscript is not None:
        index, size = int(subscript["index"]), int(subscript["size"])
        where = "below 0" if index < 0 else f"but the last is {size - 1}" if size else "but it is empty"
        if size <= 1 << 31 <= index < 1 << 32:
            where += f" (this is {index - (1 << 32)} in an unsigned variable)"
        message = f"an index of a std::vector is out of range: index {index}, {where}."
        return SanitizerReport("vector index", message, frames)
    if undefined is not None:
        line = int(undefined["line"])
        # With several threads, the stack that follows the message may belong to another report.
        if _is_student_file(undefined["file"]) and line not in {frame.line for frame in frames}:
            frames = (_frame(line, "", rows),)
        return SanitizerReport(
            "undefined behaviour", f"undefined behaviour: {undefined['text'][:200]}", frames
        )
    if asan is None:
        return None
    checked = CHECKED.search(before)
    if checked is not None and asan["kind"] == "ABRT":
        said = CHECKS.get(
            checked["assertion"], f"a check of the standard library failed: {checked['assertion'][:120]}"
        )
        return SanitizerReport(
            "vector index" if "__n <" in checked["assertion"] else "failed check", f"{said}.", frames
        )
    access = ACCESS.search(text) or CAUSE.search(text)
    word = access["access"].lower() if access else ""
    message = FAULTS.get(asan["kind"], f"{asan['kind']}: forbidden memory was {{access}}")
    message = message.format(access={"read": "read", "write": "written"}.get(word, "touched"))
    made = _made(text, rows)
    size = int(access["size"]) if access and "size" in access.groupdict() else 0
    extent = _extent(text, made.text if made else "", size)
    return SanitizerReport(f"{asan['kind']} {word}".strip(), f"{message}{extent}.", frames, made)


def _made(text: str, rows: list[str]) -> Frame | None:
    """Return the student's outermost frame in the stack that allocated the array; None if the report has none."""
    found = ALLOCATED.search(text)
    if found is None:
        return None
    own = _frames(re.split(r"\n\s*\n", text[found.end() :], maxsplit=1)[0], rows)
    return own[-1] if own else None


def element(made: str, size: int = 4) -> tuple[str, int]:
    """Return (name of elements, bytes per element) for the array that the source line `made` allocates: ("floats", 4).

    `size` is the number of bytes that were accessed. If the line does not show the type, 8 bytes mean elements of 8
    bytes, and any other size means elements of 4 bytes.
    """
    if re.search(r"\b(?:double|kDouble|kFloat64)\b", made):
        return "doubles", 8
    if re.search(r"\b(?:float|kFloat|kFloat32|formatTensor)\b|\b(?:zeros|empty|ones)\(\{[^{}]*\}\)", made):
        return "floats", 4
    if re.search(r"\b(?:int32_t|int|kInt)\b", made):
        return "elements", 4
    return "elements", 8 if size == 8 or re.search(r"\b(?:u?int64_t|size_t|long|kLong)\b", made) else 4


def _extent(text: str, made: str, access: int) -> str:
    """Return text with the position of an access and the array's length, in elements if possible, else in bytes."""
    region = REGION.search(text)
    if region is None:
        return ""
    offset, size = int(region["offset"]), int(region["size"])
    unit, per = element(made, access)
    if size % per or offset % per:
        unit, per = "bytes", 1
    if region["side"].startswith("inside"):
        return f" (at {unit[:-1]} {offset // per} of an array of {size // per})"
    if region["side"] in ("to the left of", "before"):
        return f" ({offset // per} {unit if offset > per else unit[:-1]} before an array of {size // per})"
    return f" (index {(size + offset) // per} of an array of {size // per} {unit})"


def _is_student_file(name: str) -> bool:
    return name.rpartition("/")[2] == "module.cpp"


def _frame(line: int, function: str, rows: list[str]) -> Frame:
    text = rows[line - 1].strip()[:LONGEST_ROW] if 1 <= line <= len(rows) else ""
    return Frame(line, text, re.sub(r"\(.*|\._omp_fn.*", "", function))


def _frames(stack: str, rows: list[str]) -> tuple[Frame, ...]:
    """Return the stack frames that are in the student's file, each once, at most MAX_FRAMES."""
    own = [match for match in FRAME.finditer(stack) if _is_student_file(match["file"])]
    frames = [_frame(int(match["line"]), match["function"] or "", rows) for match in own]
    return tuple(dict.fromkeys(frames))[:MAX_FRAMES]
