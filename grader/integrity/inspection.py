"""Child process that reads the calls and names of a built object: `python -m grader.integrity.inspection OBJECT`. It
also reads the object's assembly if that lies beside it, as module.s beside module.o.

Theory of operation. A compiler writes the object, but untrusted text decides its content. `elf`, `symbols` and
`assembly` read it in linear time; if they fail all the same, they fail in a child (`inspect`) with limits of time,
memory and output. The judge continues in any case: an object that is not wholly understood gets the flag
`unreadable_object`, for a person to look at, and is judged like any other. The child prints one JSON list of flags.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from grader.core.places import ROOT
from grader.core.results import Flag
from grader.integrity import assembly, elf, symbols
from grader.sandbox import GIB, run_limited

TIMEOUT_S = 20.0
"""Processor time for one object. An honest one takes 0.1 s, the worst that `elf` lets through about three."""
MEMORY_BYTES = GIB
OUTPUT_BYTES = 64 << 10

#: Calls of the file, by the categories of `grader.integrity.symbols`: the flag's code and its message.
_CALLS = {
    "torch": ("torch_operators", "the file calls functions of torch that compute"),
    "hiding": ("hides_operators", "the file looks at or switches off torch's records of its operators"),
    "loader": ("calls_the_loader", "the file looks for functions of other libraries while it runs"),
    "process": ("starts_processes", "the file starts other processes"),
    "outside": ("reaches_outside", "the file reaches for other processes or for the system itself"),
    "cores": ("chooses_cores", "the file chooses the cores of its threads"),
    "priority": ("chooses_cores", "the file chooses the priority of its threads"),
    "network": ("network", "the file opens network connections"),
    "python": ("runs_python", "the file runs Python code"),
}
_MOST_NAMES, _MOST_LOADED_NAMES, _MOST_FOREIGN = 6, 1000, 1000
LONGEST_NAME, LONGEST_REASON = 80, 200
"""Characters of a name in a flag, and of why an object could not be read."""

#: Texts by which a kernel that calls the loader names the libraries and functions to load.
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
        return (unreadable(f"that took more than {timeout_s:g} s"),)
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
    """Return an object's flags: one for each category of calls, and the proof if it names a library to load."""
    found = _wanted_by_category(content)
    flags = []
    for category, names in found.items():
        code, words = _CALLS[category]
        # A thread on cores that it was not given is seen from outside (`more_cores`).
        flags.append(Flag(code, f"{words}: {listed(names)}", "note" if category == "cores" else "review"))
    if "loader" in found and (loaded := _loaded_names(content.data)):
        message = f"the file loads {listed(loaded)} with {listed(found['loader'])}"
        flags.append(Flag("loads_a_library", message, "rejected"))
    return tuple(flags)


def flags_of_assembly(path: Path) -> tuple[Flag, ...]:
    """Return a flag for code in an assembly that no compiler makes. Only assembly for x86-64 is read."""
    if platform.machine() not in ("x86_64", "AMD64") or not path.is_file():
        return ()
    if path.stat().st_size > assembly.LARGEST_BYTES:
        return (unreadable(f"its assembly has more than {assembly.LARGEST_BYTES >> 20} MiB"),)
    # Read as latin-1: every byte is a letter, and the assembler knows no encoding either.
    found = [*islice(assembly.foreign_statements(path.read_text("latin-1")), _MOST_FOREIGN)]
    if not found:
        return ()
    message = f"bytes or sections that no compiler makes of C++, by inline assembly or an attribute: {listed(found)}"
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
    """Return the names that are loaded, each with one letter more than is shown; too many end the search."""
    found: set[str] = set()
    for match in _LOADED_NAMES.finditer(data):
        found.add(match[0][: LONGEST_NAME + 1].decode(errors="replace"))
        if len(found) >= _MOST_LOADED_NAMES:
            break
    return found


# ---- words, for this and the other flags


def listed(names: Iterable[str]) -> str:
    """Return the first few names in order, none longer than LONGEST_NAME, and the number of the others."""
    found = sorted(set(names))
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return ", ".join(shown(name) for name in found[:_MOST_NAMES]) + more


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
