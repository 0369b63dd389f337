"""Short explanation of a compiler's output for a student: the first error, its line with a caret, and a hint.

Reads the messages of gcc, clang and ispc, which have the same format. Does not run a compiler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from grader.core.harmless import harmless
from grader.sandbox import Finished
from grader.source.cpptext import renames_lines
from grader.source.hints import hint_for

MAX_LINES = 15
MAX_COLUMNS = 110
MAX_MESSAGE = 300
LONGEST_LINE = 8192
"""Most characters that are read of a line of the compiler's output. A source can cause lines of any length."""
LOCATION = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d{1,9}):(?:(?P<column>\d{1,9}):)?\s+(?P<text>.*)$")
UNDEFINED, UNDEFINED_APPLE = (
    re.compile(r"undefined reference to [`']"),
    re.compile(r"\s+\"([^\"]+)\", referenced from"),
)
#: Errors for a name that is defined twice, as GNU ld, gold, lld and Apple's linker print them.
REPEATED = re.compile(
    r"multiple definition of [`'](?P<gnu>[^']+)'|duplicate symbol(?:: | ')(?P<other>[^'\s]+)"
)
#: Python's symbols stay undefined when an object is linked: the interpreter provides them.
PYTHON_SYMBOL = re.compile(r"_?Py[A-Z_]|_Py")
#: The header that defines PYBIND11_MODULE, and the compilers' errors for this macro inside a function or a class.
BINDING_HEADER = "gpt149_abi.h"
MISPLACED = re.compile(
    r"expected identifier before '\{'|before 'namespace'|namespaces? |block scope|not allowed here"
)
#: A line by which a compiler, assembler or linker reports that memory ran out. It names no place in a file.
OUT_OF_MEMORY = re.compile(
    r"^(?:[\w./+-]+: )?(?:fatal: |LLVM ERROR: |fatal error: )?(?:out of memory(?: allocating \d+ bytes.*)?"
    r"|(?:virtual )?memory exhausted(?:: Cannot allocate memory)?|.*: Cannot allocate memory"
    r"|final link failed: (?:memory exhausted|Cannot allocate memory)"
    r"|\s*what\(\):  ?std::bad_alloc|terminate called after throwing an instance of 'std::bad_alloc')\s*$"
)
#: Errors that are not due to too little memory: errors with a place in a file (the assembler writes "Error"), and
#: errors of a linker that has read all files.
PLACED_ERROR = re.compile(
    r":\d+: (?:fatal )?error: |undefined reference to |multiple definition of ", re.IGNORECASE
)


@dataclass(frozen=True)
class Message:
    """One compiler error. `line` and `column` (in bytes) count from 1 in `file`; 0 if unknown.

    `file` is a file of the student, or a header if the compiler names no line of the student. `via` is the header in
    which the compiler noticed the error; "" for an error in the student's own text. `used` is the line and column of
    the outermost use of the macro in which the error is; zeros for an error in no macro.
    """

    file: str
    line: int
    column: int
    text: str
    via: str = ""
    used: tuple[int, int] = (0, 0)


def ran_out_of_memory(finished: Finished) -> bool:
    """Return True if a compiler or linker reported that it ran out of memory, and no error with a place in a file.

    A source can make the compiler print the same words (#error), but only as an error with a place.
    """
    if finished.returncode == 0:
        return False
    lines = _lines(finished.output.decode(errors="replace"))
    return any(map(OUT_OF_MEMORY.match, lines)) and not any(map(PLACED_ERROR.search, lines))


def _lines(output: str) -> list[str]:
    return [line[:LONGEST_LINE] for line in output.splitlines()]


def undefined_name(line: str) -> str:
    """Return the name of the undefined function that a line of a linker reports; "" for any other line."""
    if opened := UNDEFINED.search(line):
        end = line.find("'", opened.end() + 1)
        return line[opened.end() : end] if end > 0 else ""
    apple = UNDEFINED_APPLE.match(line)
    return apple[1] if apple else ""


def missing_symbols(output: str) -> list[str]:
    """Return one line of the linker's output for each undefined function, except Python's (see PYTHON_SYMBOL)."""
    found: dict[str, str] = {}
    for line in _lines(output):
        name = undefined_name(line)
        if name and not PYTHON_SYMBOL.match(name):
            found.setdefault(name, line)
    return list(found.values())


def repeated_symbols(output: str) -> list[str]:
    """Return the names that a linker reports as defined twice, once each."""
    found = filter(None, map(REPEATED.search, _lines(output)))
    return list(dict.fromkeys(match["gnu"] or match["other"] for match in found))


def errors(output: str, names: tuple[str, ...]) -> list[Message]:
    """Return the errors in a compiler's output, in their order. `names` are the student's files.

    An error in a header gets the place in a student's file that led to it, if the compiler names one. gcc names it
    before the error ("required from here", "included from"), clang after it ("... requested here").
    """
    found: list[Message] = []
    pending: tuple[str, int, int] | None = None
    for line in _lines(output):
        match = LOCATION.match(line)
        if match is None:
            if included := re.search(r"(?:^In file included from|^\s+from) ([^\s:]+):(\d{1,9})", line):
                pending = (included[1], int(included[2]), 0) if included[1] in names else pending
            continue
        place = (match["file"], int(match["line"]), int(match["column"] or 0))
        own = match["file"] in names
        level = re.match(r"(?i)(?:fatal )?error: (?P<text>.*)", match["text"])
        if level is not None:
            file, row, column = place if own or pending is None else pending
            found.append(Message(file, row, column, level["text"], "" if own else match["file"]))
            pending = None
        elif own and found and found[-1].file in names and "in expansion of macro" in match["text"]:
            found[-1] = replace(found[-1], used=place[1:])
        elif own and "note:" not in match["text"]:
            pending = place
        elif own and found and found[-1].via and found[-1].file not in names:
            found[-1] = Message(*place, found[-1].text, found[-1].via)
    return found


def explain(finished: Finished, sources: Mapping[str, str], *, timeout_s: float) -> str:
    """Return a text of 1 to MAX_LINES lines for the student about a compiler that failed, without control characters.

    `sources` holds the text of each file by the name under which it was compiled. `timeout_s` is the compiler's limit.
    """
    output = finished.output.decode(errors="replace")
    if finished.timed_out:
        lines = [
            f"the compiler was stopped after {timeout_s:g} s of processor time",
            "hint: look for a template or a macro that expands without end",
        ]
    elif ran_out_of_memory(finished):
        lines = [
            "the compiler was stopped because it needed more than its 4 GB of memory",
            "hint: look for huge constant arrays, and for templates or macros that expand without end",
        ]
    elif found := errors(output, tuple(sources)):
        lines = _error_lines(_placed(found, sources), sources)
    elif missing := missing_symbols(output):
        lines = _link_lines(missing)
    elif repeated := repeated_symbols(output):
        lines = [f"defined twice: {simplify(name)}" for name in repeated[:5]]
        lines.append(
            "hint: a library that every program is linked with (such as the C library or OpenMP) already defines this "
            "name: rename your function or variable"
        )
    else:
        lines = ["the compiler failed without an error message; its last lines were:"]
        lines += [line for line in output.splitlines() if line.strip()][-8:]
    return "\n".join(harmless(line[:MAX_MESSAGE]) for line in lines[:MAX_LINES])


def _placed(found: list[Message], sources: Mapping[str, str]) -> list[Message]:
    """Return the errors, without their places if #line directives in the sources make the places unreliable."""
    if not any(map(renames_lines, sources.values())):
        return found
    return [replace(item, file=next(iter(sources)), line=0, column=0, via="") for item in found]


def _error_lines(found: list[Message], sources: Mapping[str, str]) -> list[str]:
    first = next((item for item in found if item.file in sources), found[0])
    if first.via.endswith(BINDING_HEADER):
        # The error inside PYBIND11_MODULE would not help: usually a block before the macro is still open.
        stands = "PYBIND11_MODULE stands inside another block: expected '}' before it"
        first = replace(first, text=stands if MISPLACED.search(first.text) else first.text, via="")
    text = simplify(first.text)
    where = f"{first.file}:{first.line}" if first.file in sources else first.file.rpartition("/")[2]
    if first.file in sources and not first.line:
        where = f"{first.file} (a #line directive hides the line)"
    lines = [f"{where}: error: {text}", *_excerpt(first, sources.get(first.file, ""))]
    if first.via and first.file in sources:
        lines.append(
            f"(the error was noticed inside the header {first.via.rpartition('/')[2]}, which this line uses)"
        )
    hint = hint_for(text, first.line, sources.get(first.file, ""), first.via.rpartition("/")[2])
    if hint:
        lines.append(f"hint: {hint}")
    others = len(found) - 1
    if others:
        lines.append(
            f"({others} more error{'s' if others > 1 else ''} after this one; often they go away with it)"
        )
    return lines


def _excerpt(message: Message, source: str) -> list[str]:
    """Return the source line of a message and a caret under its column. A long line is cut around the column."""
    rows = source.split("\n")
    if not 1 <= message.line <= len(rows):
        return []
    row = rows[message.line - 1].rstrip("\r")
    before = row.encode(errors="replace")[: max(0, message.column - 1)].decode(errors="replace").expandtabs(4)
    shown = row.expandtabs(4)
    start = max(0, len(before) - MAX_COLUMNS * 2 // 3) if len(shown) > MAX_COLUMNS else 0
    lines = [f"{message.line:>5} | {shown[start : start + MAX_COLUMNS]}"]
    if message.column:
        lines.append(f"{'':>5} | {'':>{len(before) - start}}^")
    return lines


def _link_lines(missing: list[str]) -> list[str]:
    names = [name for line in missing if (name := undefined_name(line))]
    lines = [f"undefined function: {simplify(name)}" for name in names[:5]]
    if any("ISPC" in name for name in names):
        lines.append("hint: ISPC's tasks (launch, sync) have no runtime here: use 'foreach' without tasks")
    else:
        lines.append(
            "hint: it is declared and called but never defined: write its body, or make the declaration and the "
            "definition agree in name, parameters and 'const'"
        )
    return lines


TYPE_NAMES = (
    (re.compile(r"std::(?:__cxx11|__1)::"), "std::"),
    (
        re.compile(r"std::basic_string<char(?:, std::char_traits<char>(?:, std::allocator<char> ?)?)?>"),
        "std::string",
    ),
    (re.compile(r"std::vector<([\w: ]+?), std::allocator<\1> ?>"), r"std::vector<\1>"),
    (re.compile(r"std::vector<([\w: ]+?)>::value_type"), r"\1"),
    (re.compile(r" ?\{aka '([^']*)'\}|' \(aka '([^']*)'\)"), ""),
    (re.compile(r"(?:torch|at)::Tensor"), "at::Tensor"),
)


def simplify(text: str) -> str:
    """Shorten a message of the compiler: long type names become usual ones, deep templates become <...>."""
    text = text[:LONGEST_LINE]
    for pattern, replacement in TYPE_NAMES:
        text = pattern.sub(replacement, text)
    text = re.sub(r" \[with [^\]]*\]|; [\w:]+ = [^;\]']+", "", text)
    # Template arguments that are nested three deep come from libraries and do not help a student.
    deep = re.compile(r"<[^<>]*<[^<>]*<[^<>]*>[^<>]*>[^<>]*>")
    while len(text) > 160 and deep.search(text):
        text = deep.sub("<...>", text)
    return text if len(text) <= MAX_MESSAGE - 40 else text[: MAX_MESSAGE - 44] + " ..."
