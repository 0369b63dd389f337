"""Search of a handout for secrets: lines of the solution and of the hidden assignment file.

Short lines occur by chance. So a secret line has at least LEAST_CHARACTERS without white space. It is not a comment, a
preprocessor directive or the head of a plain loop. (The assignment's text quotes a pragma on purpose.) Lines that the
starter also has outside of the marked regions are not secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from grader.assignment import labs, regions
from grader.assignment.labs import SOURCE_SUFFIXES
from grader.assignment.loading import load
from grader.assignment.records import Assignment
from grader.core.errors import UsageError
from grader.staff.release.contents import Files, Kit, comment_of

LEAST_CHARACTERS = 16
LEAST_OF_SOURCE = 40
#: Smaller numbers occur by chance in any text; seeds drawn as in `docs/assignment-rules.md` have 18 digits.
LEAST_SEED = 1 << 24
LEAST_NAME = 6
_PLAIN_LOOP = re.compile(rb"for\((int|size_t)(\w+)=0;\2<\w+;(\2\+\+|\+\+\2)\)\{?")
_IMPORTS = re.compile(r"\s*(?:from\s+[\w.]+\s+)?import\s")
_SPACE = re.compile(rb"\s+")


@dataclass(frozen=True)
class Secret:
    """Bytes that must not occur in a handout. If `compact`, white space is removed from the needle and from the
    searched text. `what` describes the secret to the staff."""

    what: str
    needle: bytes
    compact: bool = True


def squeezed(data: bytes) -> bytes:
    return _SPACE.sub(b"", data)


def of_master(text: str, name: str) -> list[Secret]:
    """Return the lines of the solution in a master, without lines that the starter also has."""
    marked = list(regions.lines(text))
    numbered = [(number, line) for number, line, region in marked if region == "SOLUTION"]
    given = squeezed("".join(line for _, line, region in marked if region is None).encode())
    return list(_searched(numbered, f"the solution, {name}", given, comment=comment_of(name)))


def of_source(text: str, name: str, whose: str = "the reference") -> list[Secret]:
    """Return the secrets of a source that students do not get, such as the reference: pieces of one or two lines.

    Much of it is common C++ or Python. So a piece has at least LEAST_OF_SOURCE characters, and imports are skipped.
    """
    comment = comment_of(name)
    lines = [
        b"" if comment == "#" and _IMPORTS.match(line) else squeezed(_code(line, comment).encode())
        for line in text.splitlines()
    ]
    pieces = dict(enumerate(lines, 1))
    found = []
    for number, line in pieces.items():
        after = pieces.get(number + 1, b"")
        for piece in (line, line + after if line and after else b""):
            if len(piece) >= LEAST_OF_SOURCE:
                found.append(Secret(f"{whose}, {name}:{number}", piece))
                break
    return found


def of_staff_text(text: str, name: str, public: Sequence[str] = ()) -> list[Secret]:
    """Return the lines of a text for the staff, such as hidden cases or the write-up's key. The line `- id: PART` of a
    `public` part is skipped, because the public file has it, too."""
    openings = {squeezed(f"- id: {part}".encode()) for part in public}
    staff_lines = _searched(
        enumerate(text.splitlines(), 1), f"a text for the staff, {name}", b"", comment="#"
    )
    return [secret for secret in staff_lines if secret.needle not in openings]


def of_assignment(assignment: Assignment) -> list[Secret]:
    """Return the names of hidden cases, and each hidden seed as decimal, hexadecimal and binary number."""
    secrets = []
    seeds = [assignment.seed] if assignment.seed is not None else []
    seeds += [case.seed for part in assignment.parts for case in part.cases if case.hidden]
    for seed in dict.fromkeys(seed for seed in seeds if seed >= LEAST_SEED):
        forms = (str(seed), f"{seed:x}", f"{seed:X}")
        secrets += [Secret("a hidden seed", form.encode()) for form in dict.fromkeys(forms)]
        secrets += [
            Secret("a hidden seed, in binary", seed.to_bytes(8, order), compact=False)
            for order in ("little", "big")
        ]
    cases = [case for part in assignment.parts for case in part.cases]
    names = {case.name for case in cases if case.hidden and len(case.name) >= LEAST_NAME}
    names -= {case.name for case in cases if not case.hidden}
    secrets += [
        Secret(f"the name of the hidden case '{name}'", name.encode(), compact=False)
        for name in sorted(names)
    ]
    return secrets


def _searched(lines: Iterable[tuple[int, str]], what: str, given: bytes, *, comment: str) -> Iterator[Secret]:
    for number, line in lines:
        needle = squeezed(_code(line, comment).encode())
        if len(needle) >= LEAST_CHARACTERS and needle not in given and not _PLAIN_LOOP.fullmatch(needle):
            yield Secret(f"{what}:{number}", needle)


def _code(line: str, comment: str) -> str:
    """Return the line without its comment, or "" for a preprocessor directive."""
    return "" if line.lstrip().startswith("#") else line.split(comment)[0]


#: Folders in which a handout may have C++ files other than the starter: the kit's headers and drivers.
_KITS_OWN = ("grader/",)


def secrets(kit: Kit) -> list[Secret]:
    """Return all secrets: lines of the solution, the reference, hidden cases and keys, and hidden seeds."""
    found = [secret for name, text in kit.solutions.items() for secret in of_master(text, name)]
    # A reference may have the form of a student's file: do not search for lines of the starter.
    whole = "\n".join(kit.starters.values()).encode()
    given = whole, squeezed(whole)
    references = kit.reference_sources
    for path in kit.staff_files:
        text = path.read_text(encoding="utf-8")
        whose = "the reference" if path in references else "a source for the staff"
        of_path = of_source(text, "/".join(path.parts[-2:]), whose)
        found += [secret for secret in of_path if secret.needle not in given[secret.compact]]
    public = [part.id for part in load(kit.public).parts]
    for path in sorted(kit.config.parent.iterdir()):
        if path.is_file():
            found += of_staff_text(path.read_text(encoding="utf-8"), path.name, public)
    return found + of_assignment(kit.assignment)


def leaks(files: Files, secrets: Iterable[Secret]) -> list[str]:
    """Return a line for each file with a secret, with the first secret found in it."""
    secrets = list(secrets)
    found = []
    for path, file in sorted(files.items()):
        whole, compact = file.content, squeezed(file.content)
        for secret in secrets:
            if secret.needle in (compact if secret.compact else whole):
                found.append(f"{path}{_line(whole, secret)} holds {secret.what}")
                break
    return found


def strangers(files: Files, kit: Kit) -> list[str]:
    """Return a line for each file that must not be in a handout at all, by its path."""
    found = []
    own = PurePosixPath(labs.PACKAGE, kit.lab.name)
    staffs = {own / name for name in kit.assignment.lab.staff}
    for path in sorted(files):
        source = path.endswith(SOURCE_SUFFIXES) and path not in kit.masters
        folder, _, name = path.rpartition("/")
        is_lab_table = folder.startswith("labs/") and (name == "kernels.py" or "threats" in folder.split("/"))
        if (
            "hidden" in path.split("/")
            or path.startswith("tests/")
            or is_lab_table
            or staffs & {*places(path)}
        ):
            found.append(f"{path} is for the staff")
        elif source and not path.startswith(_KITS_OWN):
            found.append(f"{path} is a source that is not the starter")
    return found


def places(path: str) -> tuple[PurePosixPath, ...]:
    """Return a path and its parent folders."""
    found = PurePosixPath(path)
    return (found, *found.parents)


def refuse(files: Files, kit: Kit) -> None:
    """Raise UsageError, in one line, if the handout contains a secret."""
    found = strangers(files, kit) + leaks(files, secrets(kit))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise UsageError(f"nothing was written, because the handout would reveal a secret: {found[0]}{more}")


def _line(content: bytes, secret: Secret) -> str:
    """Return ":12" for line 12 if the secret lies within one line, else ""."""
    if not secret.compact:
        return ""
    for number, line in enumerate(content.splitlines(), 1):
        if secret.needle in squeezed(line):
            return f":{number}"
    return ""
