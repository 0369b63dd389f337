"""From a compiler's output to the few lines that help: the first error, its line with a caret, a hint.

Reads the plain text of gcc, clang and ispc, which share a format. The file was compiled under the name that `sources`
gives it. Nothing here runs a compiler.
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
"""Characters of a line of the compiler's that are looked at; a source or a #line directive can make it print any."""
LOCATION = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d{1,9}):(?:(?P<column>\d{1,9}):)?\s+(?P<text>.*)$")
UNDEFINED, UNDEFINED_APPLE = (
    re.compile(r"undefined reference to [`']"),
    re.compile(r"\s+\"([^\"]+)\", referenced from"),
)
#: Errors for a name that is defined twice: of GNU ld and gold, of lld, and of Apple's linker.
REPEATED = re.compile(
    r"multiple definition of [`'](?P<gnu>[^']+)'|duplicate symbol(?:: | ')(?P<other>[^'\s]+)"
)
#: Python's symbols stay undefined when an object is linked: the interpreter provides them.
PYTHON_SYMBOL = re.compile(r"_?Py[A-Z_]|_Py")
#: The header of PYBIND11_MODULE, and the compilers' errors for its namespaces inside a function or a class.
BINDING_HEADER = "gpt149_abi.h"
MISPLACED = re.compile(
    r"expected identifier before '\{'|before 'namespace'|namespaces? |block scope|not allowed here"
)
#: A whole line by which a compiler, assembler or linker reports that memory ran out. It names no place.
OUT_OF_MEMORY = re.compile(
    r"^(?:[\w./+-]+: )?(?:fatal: |LLVM ERROR: |fatal error: )?(?:out of memory(?: allocating \d+ bytes.*)?"
    r"|(?:virtual )?memory exhausted(?:: Cannot allocate memory)?|.*: Cannot allocate memory"
    r"|final link failed: (?:memory exhausted|Cannot allocate memory)"
    r"|\s*what\(\):  ?std::bad_alloc|terminate called after throwing an instance of 'std::bad_alloc')\s*$"
)
#: Lines that no program prints when it has run out of memory: an error with a place (the assembler writes "Error"), and
#: a linker's errors after it has read all files.
PLACED_ERROR = re.compile(
    r":\d+: (?:fatal )?error: |undefined reference to |multiple definition of ", re.IGNORECASE
)


@dataclass(frozen=True)
class Message:
    """One error. `line` and `column` (in bytes, from 1) are in the student's file `file`, 0 where unknown;
    `via` names the header in which the compiler noticed it, "" when it is in the student's own text."""

    file: str
    line: int
    column: int
    text: str
    via: str = ""


def ran_out_of_memory(finished: Finished) -> bool:
    """Return True if a program reported that it ran out of memory. Text that a source makes the compiler print (#error)
    has a place before it and does not count.
    """
    if finished.returncode == 0:
        return False
    lines = _lines(finished.output.decode(errors="replace"))
    return any(map(OUT_OF_MEMORY.match, lines)) and not any(map(PLACED_ERROR.search, lines))


def _lines(output: str) -> list[str]:
    return [line[:LONGEST_LINE] for line in output.splitlines()]


def undefined_name(line: str) -> str:
    """Return the function that a linker misses, by its line on it; "" for any other line."""
    if opened := UNDEFINED.search(line):
        end = line.find("'", opened.end() + 1)
        return line[opened.end() : end] if end > 0 else ""
    apple = UNDEFINED_APPLE.match(line)
    return apple[1] if apple else ""


def missing_symbols(output: str) -> list[str]:
    """Return the linker's lines on functions that exist nowhere, each once. Python's own functions are left out, since
    the interpreter provides them."""
    found: dict[str, str] = {}
    for line in _lines(output):
        name = undefined_name(line)
        if name and not PYTHON_SYMBOL.match(name):
            found.setdefault(name, line)
    return list(found.values())


def repeated_symbols(output: str) -> list[str]:
    """Return the names that a linker met in two places, once each."""
    found = filter(None, map(REPEATED.search, _lines(output)))
    return list(dict.fromkeys(match["gnu"] or match["other"] for match in found))


def errors(output: str, names: tuple[str, ...]) -> list[Message]:
    """Return the errors in the compiler's order, each placed in one of the student's files (`names`) if any line leads
    there.

    gcc lists the way to a place in a header before the error ("required from here", "included from"). clang lists it
    after the error ("in instantiation of ... requested here").
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
        elif own and "note:" not in match["text"]:
            pending = place
        elif own and found and found[-1].via and found[-1].file not in names:
            found[-1] = Message(*place, found[-1].text, found[-1].via)
    return found


def explain(finished: Finished, sources: Mapping[str, str], *, timeout_s: float) -> str:
    """At most 15 lines for the student about a compiler that failed. `sources` is the text of each file by its name.

    Never empty. Control characters of the source or the output are made harmless.
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
            "hint: what every program is linked with (the C library, OpenMP, the start of a program) defines this name "
            "too: give yours another one"
        )
    else:
        lines = ["the compiler failed without an error message; the end of what it said:"]
        lines += [line for line in output.splitlines() if line.strip()][-8:]
    return "\n".join(harmless(line[:MAX_MESSAGE]) for line in lines[:MAX_LINES])


def _placed(found: list[Message], sources: Mapping[str, str]) -> list[Message]:
    """Return the errors with the places that the compiler named; without places if the file renames its own lines."""
    if not any(map(renames_lines, sources.values())):
        return found
    return [replace(item, file=next(iter(sources)), line=0, column=0, via="") for item in found]


def _error_lines(found: list[Message], sources: Mapping[str, str]) -> list[str]:
    first = next((item for item in found if item.file in sources), found[0])
    if first.via.endswith(BINDING_HEADER):
        # The macro's own error does not help: a block before the macro is still open.
        stands = "PYBIND11_MODULE stands inside another block: expected '}' before it"
        first = replace(first, text=stands if MISPLACED.search(first.text) else first.text, via="")
    text = simplify(first.text)
    where = f"{first.file}:{first.line}" if first.file in sources else first.file.rpartition("/")[2]
    if first.file in sources and not first.line:
        where = f"{first.file}: a #line directive hides where"
    lines = [f"{where}: error: {text}", *_excerpt(first, sources.get(first.file, ""))]
    if first.via and first.file in sources:
        lines.append(
            f"(noticed inside the header {first.via.rpartition('/')[2]} while it compiled this line)"
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
    """Return the line and a caret under the place, with the line clipped around it."""
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
    """Return a message with shortened templates: type names as people write them."""
    text = text[:LONGEST_LINE]
    for pattern, replacement in TYPE_NAMES:
        text = pattern.sub(replacement, text)
    text = re.sub(r" \[with [^\]]*\]|; [\w:]+ = [^;\]']+", "", text)
    # Template arguments nested three deep do not help a person who wrote none of them.
    deep = re.compile(r"<[^<>]*<[^<>]*<[^<>]*>[^<>]*>[^<>]*>")
    while len(text) > 160 and deep.search(text):
        text = deep.sub("<...>", text)
    return text if len(text) <= MAX_MESSAGE - 40 else text[: MAX_MESSAGE - 44] + " ..."
