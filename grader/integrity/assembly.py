"""Search of the assembly that a compiler made of a student's file, for machine code that the file smuggles in as data.

Theory of operation. Compilers write instructions into executable sections and data into all others. But compilers copy
inline assembly, names of sections and names of symbols from the source unchanged. These can place bytes where
instructions belong. `#APP` and `#NO_APP` mark inline assembly, but a source can contain these marks too. So the whole
assembly is read, and all statements that compilers do not make are reported. Expected are:

    executable sections   instructions, labels and directives that place no bytes (SILENT).
    other sections        also directives that place data (DATA).
    flags of a section    those that compilers give: never writable and executable.

The lexical rules are those of the GNU assembler for x86-64 (its manual, "Syntax"). A statement that can be read in two
ways is reported. The time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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
#: Arguments of an alignment whose padding consists of nop, or of bytes that the assembler chooses.
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
#: Sections that linkers place in code because of their names, and sections that hold data unless flags make them code.
_CODE_BY_NAME = re.compile(r"\.(?:text|init|fini|plt|stub|gnu\.linkonce\.t)(?:\.|\Z)")
_DATA_BY_NAME = re.compile(r"\.(?:data|rodata|bss|tdata|tbss|debug_\w+|eh_frame|gcc_except_table)(?:\.|\Z)")


def foreign_statements(text: str) -> Iterator[str]:
    """Yield the directive (or first character) of each statement that no compiler makes, with its place.

    The place is "(line N)" of the source if the assembly names a line, else "(after LABEL)".
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
    if name in SILENT or name.startswith("cfi_"):
        return True
    if executable:
        return name in ("byte", "value") and _PREFIX.match(rest) is not None
    return name in DATA


def _section(rest: str, known: dict[str, bool]) -> tuple[bool, bool]:
    """Return (is executable, has only flags that compilers give) for the arguments of a .section directive.

    `known` maps names of earlier sections to True if they are executable. A section without flags is looked up there.
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
    """Return the replacement of a string, character or comment, for splitting the assembly into statements.

    A string loses the characters that separate statements. A comment stays only if it names a line of the source.
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
