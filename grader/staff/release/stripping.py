"""Secret lines of a master and of the hidden file.

A line counts as a secret if it is unlikely to occur by chance. It has at least LEAST_CHARACTERS without white space,
and is not a comment, a preprocessor directive or the head of a plain loop. (The assignment's text quotes the pragma
on purpose.) Students must not have the same line outside of the marked regions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from grader.assignment import regions
from grader.assignment.records import Assignment

LEAST_CHARACTERS = 16
LEAST_OF_SOURCE = 40
#: Smaller numbers stand in any text by chance; seeds that are drawn as `docs/assignment-format.md` says have 18 digits.
LEAST_SEED = 1 << 24
LEAST_NAME = 6
_PLAIN_LOOP = re.compile(rb"for\((int|size_t)(\w+)=0;\2<\w+;(\2\+\+|\+\+\2)\)\{?")
_IMPORTS = re.compile(r"\s*(?:from\s+[\w.]+\s+)?import\s")
_SPACE = re.compile(rb"\s+")


@dataclass(frozen=True)
class Secret:
    """Bytes that must not be in any file of a handout. A `compact` needle has no white space, and the text that it is
    searched in loses its own; `what` names the secret to the staff."""

    what: str
    needle: bytes
    compact: bool = True


def compact(data: bytes) -> bytes:
    return _SPACE.sub(b"", data)


def of_master(text: str, name: str) -> list[Secret]:
    """Return the solution's lines, without those that the starter's given text holds as well."""
    marked = list(regions.lines(text))
    numbered = [(number, line) for number, line, region in marked if region == "SOLUTION"]
    given = compact("".join(line for _, line, region in marked if region is None).encode())
    return list(_telling(numbered, f"the solution, {name}", given, comment=comment_of(name)))


def comment_of(name: str) -> str:
    """Return the beginning of a comment in a file of this name."""
    return "#" if name.endswith(".py") else "//"


def of_source(text: str, name: str, whose: str = "the reference") -> list[Secret]:
    """Return the secrets of a source that is not handed out, such as the reference's, in pieces of one or two lines.

    Much of it is common C++ or Python. So a piece has to be LEAST_OF_SOURCE characters long, and imports are skipped.
    """
    comment = comment_of(name)
    lines = [
        b"" if comment == "#" and _IMPORTS.match(line) else compact(_code(line, comment).encode())
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
    """Return all lines of a text for the staff: hidden cases, the key to the write-up. A line that only names the
    extended one of the `public` parts is skipped, since it stands in the public file as well."""
    openings = {compact(f"- id: {part}".encode()) for part in public}
    told = _telling(enumerate(text.splitlines(), 1), f"what is for the staff, {name}", b"", comment="#")
    return [secret for secret in told if secret.needle not in openings]


def of_assignment(assignment: Assignment) -> list[Secret]:
    """Return the hidden seed in each form that it could be written in, and the names of hidden cases."""
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


def _telling(lines: Iterable[tuple[int, str]], what: str, given: bytes, *, comment: str) -> Iterator[Secret]:
    for number, line in lines:
        needle = compact(_code(line, comment).encode())
        if len(needle) >= LEAST_CHARACTERS and needle not in given and not _PLAIN_LOOP.fullmatch(needle):
            yield Secret(f"{what}:{number}", needle)


def _code(line: str, comment: str) -> str:
    """Return the line without its comment; nothing of a directive."""
    return "" if line.lstrip().startswith("#") else line.split(comment)[0]
