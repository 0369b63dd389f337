"""Child process that inspects a built object and its assembly: `python -m grader.integrity.inspection OBJECT`.

Theory of operation. The object is written by a compiler, but its content depends on untrusted text. `elf`, `symbols`
and this module read the object in linear time. They run in a child process (`inspect`) with limits on time, memory and
output, so a failure there does not stop the judge. An object that is not wholly understood gets the flag
`unreadable_object` and is judged like any other. The child prints one JSON list of flags. It reads the assembly only if
the assembly lies beside the object, as module.s beside module.o.

Theory of operation, assembly. The assembly is searched for machine code that a source contains as data bytes. Compilers
write instructions into executable sections and data into all others. But they copy inline assembly, names of sections
and names of symbols from the source unchanged, and such text can place bytes among instructions. `#APP` and `#NO_APP`
mark inline assembly, but a source can contain these marks, too. So the whole assembly is read, and every statement that
no compiler writes is reported. The expected statements are:

    executable sections   instructions, labels and directives that place no bytes (SILENT).
    other sections        also directives that place data (DATA).
    flags of a section    those that compilers give: never writable and executable.

The lexical rules are those of the GNU assembler for x86-64 (its manual, chapter "Syntax"). An ambiguous statement is
reported. The time is linear in the length of the text.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from grader.core.places import ROOT
from grader.core.quantities import shortened
from grader.core.results import Flag
from grader.integrity import elf, symbols
from grader.sandbox import GIB, run_limited

LARGEST_BYTES = 32 << 20
"""Size in bytes of the largest assembly that is read. The kit's own solution has 0.4 MB of assembly."""

#: Directives that place no bytes in the current section, except padding that the assembler chooses.
_SILENT = """
    file loc ident type size globl global weak weakref hidden protected internal local set equ comm lcomm
    p2align align balign text data bss section addrsig addrsig_sym intel_syntax att_syntax rept endr
"""
_DATA = """
    byte 2byte 4byte 8byte value short hword word int long quad octa float single double ascii asciz base64
    string string8 string16 string32 string64 zero skip space fill sleb128 uleb128
"""
SILENT, DATA = frozenset(_SILENT.split()), frozenset(_DATA.split())
_ALIGNING = frozenset(("p2align", "align", "balign"))
#: Arguments of an alignment directive that choose nop as padding, or leave the choice to the assembler.
_ALIGNED = re.compile(r"\s*\w+\s*(?:,\s*(?:0x90)?\s*(?:,\s*\w*\s*)?)?\Z")
#: Instruction prefixes that gcc writes as data, before a call that finds a thread-local variable.
_PREFIX = re.compile(r"0x66(?:66)?\Z")

_LEXEME = re.compile(r"\"(?:\\[^\n]|[^\"\\\n])*\"?|'\\?[^\n]|#[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_LINE_OF_SOURCE = re.compile(r"# [0-9]{1,9} \"")
_BLANKS, _UNCLEAR = " \t", "\x7f"
_STATEMENTS = re.compile(r"[\n;\x00-\x08\x0b-\x1f]")
_LABEL = re.compile(r"[ \t]*(?:\"[^\"]*\"|[^ \t:,%()\"]+)[ \t]*:")
_DIRECTIVE = re.compile(r"[ \t]*\.([\w.$]*)[ \t]*(.*)", re.DOTALL)
_SECTION = re.compile(r"\"?([\w.$*-]+)\"?\s*(?:,\s*\"([a-zA-Z?]*)\"\s*(?:,.*)?)?\Z", re.DOTALL)
#: The first matches names of sections that linkers treat as code. The second matches names of sections that hold data
#: unless their flags make them executable.
_CODE_BY_NAME = re.compile(r"\.(?:text|init|fini|plt|stub|gnu\.linkonce\.t)(?:\.|\Z)")
_DATA_BY_NAME = re.compile(r"\.(?:data|rodata|bss|tdata|tbss|debug_\w+|eh_frame|gcc_except_table)(?:\.|\Z)")


def foreign_statements(text: str) -> Iterator[str]:
    """Yield a text for each statement of the assembly `text` that no compiler writes: its directive and its place.

    For a statement that is not clearly a directive, the text has its first character in place of the directive. The
    place is "(line N)" of the source if the assembly names a line, else "(after LABEL)".
    """
    executable, line, label, known = True, "0", "the start", dict[str, bool]()
    for statement in _STATEMENTS.split(_LEXEME.sub(_without_comments, text)):
        if statement[:1] == "#":
            line = statement.split()[1]
            continue
        at = 0
        while named := _LABEL.match(statement, at):
            label, at = named[0].strip(_BLANKS)[:-1], named.end()
        statement = statement[at:]
        place = f"(line {line})" if line != "0" else f"(after {label})"
        if _UNCLEAR in statement or statement.strip(_BLANKS)[:1] in ("/", "\\", '"'):
            yield f"{statement.strip(_BLANKS)[:1]} {place}"
        found = _DIRECTIVE.match(statement)
        if found is None:
            continue
        name, rest = found[1].lower(), found[2].strip()
        if name in ("text", "data", "bss"):
            executable = name == "text"
        elif name == "section":
            executable, is_plain = _section(rest, known)
            if not is_plain:
                yield f".section {rest} {place}"
        elif executable and name in _ALIGNING and not _ALIGNED.match(rest):
            yield f".{name} {rest} {place}"
        elif not _is_expected(name, rest, executable):
            yield f".{name} {place}"


def _is_expected(name: str, rest: str, executable: bool) -> bool:
    """Return True if compilers write the directive `.name rest` in code (`executable`) or in other sections."""
    if name in SILENT or name.startswith("cfi_"):
        return True
    if executable:
        return name in ("byte", "value") and _PREFIX.match(rest) is not None
    return name in DATA


def _section(rest: str, known: dict[str, bool]) -> tuple[bool, bool]:
    """Parse `rest`, the arguments of a .section directive.

    Returns (True if the section is executable, True if it has only flags that compilers give). `known` maps the names
    of earlier sections to True if they are executable; the section is looked up there or added.
    """
    found = _SECTION.match(rest)
    if found is None:
        return True, False
    name, flags = found[1], found[2]
    is_data = _DATA_BY_NAME.match(name) is not None
    if flags is None:
        return known.setdefault(name, not is_data), True
    by_flags = "x" in flags
    executable = by_flags or _CODE_BY_NAME.match(name) is not None
    is_plain = known.setdefault(name, executable) == executable
    return executable, is_plain and not (by_flags and (is_data or "w" in flags or "a" not in flags))


def _without_comments(lexeme: re.Match[str]) -> str:
    """Return the replacement for a string, a character or a comment, so that the text can be split into statements.

    In a string, separators of statements become commas. A character becomes 0. A comment is kept only if it names a
    line of the source. Ambiguous text becomes _UNCLEAR, which is reported later.
    """
    found = lexeme[0]
    if found[0] == "#":
        return f"\n{found}" if _LINE_OF_SOURCE.match(found) else ""
    if found[0] == "/":
        return " "
    if found[0] == "'":
        return _UNCLEAR if found[-1] in "\"#;/\\'" else "0"
    is_whole = len(found) > 1 and found[-1] == '"'
    return _STATEMENTS.sub(",", found) if is_whole else _UNCLEAR


TIMEOUT_S = 20.0
"""Limit on processor time for one object. An honest object takes 0.1 s, the worst that `elf` accepts about 3 s."""
MEMORY_BYTES = GIB
OUTPUT_BYTES = 64 << 10

#: (Flag code, message) for calls of functions of each category of `grader.integrity.symbols`.
_CALLS = {
    "torch": ("torch_operators", "the file calls functions of torch that compute"),
    "hiding": ("hides_operators", "the file reads or switches off torch's recording of operators"),
    "loader": ("calls_the_loader", "the file looks up functions of other libraries at run time"),
    "process": ("starts_processes", "the file starts other processes"),
    "outside": ("reaches_outside", "the file calls functions that act on other processes or on the system"),
    "cores": ("chooses_cores", "the file chooses the cores of its threads"),
    "priority": ("chooses_cores", "the file chooses the priority of its threads"),
    "network": ("network", "the file opens network connections"),
    "python": ("runs_python", "the file runs Python code"),
}
_MOST_NAMES, _MOST_LOADED_NAMES, _MOST_FOREIGN = 6, 1000, 1000
LONGEST_NAME, LONGEST_REASON = 80, 200
"""Most characters of a name in a flag, and of the reason why an object could not be read."""

#: Names of libraries and functions that compute. A kernel that loads them at run time holds these names as data.
_LOADED_NAMES = re.compile(
    rb"cblas_\w+|\b[sd]gemm\w*|lib(?:mkl|openblas|cblas|blas|blis|dnnl|torch|gpt149_ref)\w*|gpt149_ref\w*|_ZN2at\w+"
)


# ---- the judge's side


def inspect(path: Path, timeout_s: float = TIMEOUT_S) -> tuple[Flag, ...]:
    """Return the flags of an object, found by a child process. Never raises because of the object's content."""
    finished = run_limited(
        [sys.executable, "-m", "grader.integrity.inspection", str(path)],
        cwd=ROOT,
        timeout_s=timeout_s,
        memory_bytes=MEMORY_BYTES,
        output_bytes=OUTPUT_BYTES,
    )
    if finished.timed_out:
        return (unreadable(f"reading it took more than {timeout_s:g} s"),)
    try:
        if finished.returncode == 0:
            return tuple(Flag(**fields) for fields in json.loads(finished.output))
    except (ValueError, TypeError):
        pass
    said = finished.output.decode(errors="replace").split("\n")
    last = next((line for line in reversed(said) if line.strip()), f"exit code {finished.returncode}")
    return (unreadable(f"its reader failed: {last}"),)


def unreadable(why: str) -> Flag:
    return Flag(
        "unreadable_object", f"the built object cannot be inspected: {shown(why, LONGEST_REASON)}", "review"
    )


# ---- the child's side


def flags_of(content: elf.SharedObject) -> tuple[Flag, ...]:
    """Return a flag for each category of functions that an object calls.

    An object that loads libraries at run time, and names a library or function that computes, is flagged "rejected".
    """
    found = _wanted_by_category(content)
    flags = []
    for category, names in found.items():
        code, words = _CALLS[category]
        # For "cores" a note is enough: the judge sees from outside if a thread uses other cores (flag `more_cores`).
        flags.append(Flag(code, f"{words}: {listed(names)}", "note" if category == "cores" else "review"))
    if "loader" in found and (loaded := _loaded_names(content.data)):
        message = f"the file loads {listed(loaded)} with {listed(found['loader'])}"
        flags.append(Flag("loads_a_library", message, "rejected"))
    return tuple(flags)


def flags_of_assembly(path: Path) -> tuple[Flag, ...]:
    """Return a flag if an assembly holds statements that no compiler makes. Only assembly for x86-64 is read."""
    if platform.machine() not in ("x86_64", "AMD64") or not path.is_file():
        return ()
    if path.stat().st_size > LARGEST_BYTES:
        return (unreadable(f"the assembly has more than {LARGEST_BYTES >> 20} MiB"),)
    # latin-1 decodes any byte to one character, and the assembler knows no other encoding.
    found = [*islice(foreign_statements(path.read_text("latin-1")), _MOST_FOREIGN)]
    if not found:
        return ()
    message = f"the file has bytes or sections that no C++ compiler makes (assembly or an attribute): {listed(found)}"
    return (Flag("machine_code", message, "review"),)


def _wanted_by_category(content: elf.SharedObject) -> dict[str, list[str]]:
    versions = any(wanted.versioned for wanted in content.wanted)
    found: dict[str, list[str]] = {}
    for wanted in content.wanted:
        category = symbols.category(wanted, versions=versions)
        if category is not None:
            found.setdefault(category, []).append(_for_people(wanted.name))
    return found


def _for_people(symbol: str) -> str:
    name = symbols.qualified_name(symbol) if symbol.startswith("_Z") else symbol
    return re.sub(r"\Aat::_ops::(\w+)::\w+\Z", r"at::\1", name)


def _loaded_names(data: bytes) -> set[str]:
    """Return the names in an object's data that match _LOADED_NAMES, at most _MOST_LOADED_NAMES.

    Each name is cut to LONGEST_NAME + 1 characters. This is longer than `shown` allows, so `shown` appends "...".
    """
    found: set[str] = set()
    for match in _LOADED_NAMES.finditer(data):
        found.add(match[0][: LONGEST_NAME + 1].decode(errors="replace"))
        if len(found) >= _MOST_LOADED_NAMES:
            break
    return found


# ---- names in messages, here and in the other flags


def listed(names: Iterable[str]) -> str:
    """List the first _MOST_NAMES names, sorted and cut to LONGEST_NAME characters, and the number of the others."""
    return shortened([shown(name) for name in sorted(set(names))], _MOST_NAMES)


def shown(text: str, limit: int = LONGEST_NAME) -> str:
    """Return untrusted text on one line: at most `limit` characters, without terminal control characters."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(letter if letter.isprintable() else "?" for letter in cut)


def main() -> None:
    try:
        path = Path(sys.argv[1])
        flags = (*flags_of(elf.read(path)), *flags_of_assembly(path.with_suffix(".s")))
    except elf.NotReadable as error:
        flags = (unreadable(str(error)),)
    print(json.dumps([asdict(flag) for flag in flags]))


if __name__ == "__main__":
    main()
