"""The search of a handout for secrets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from grader.assignment import labs
from grader.assignment.labs import SOURCE_SUFFIXES
from grader.assignment.loading import load
from grader.core.errors import UsageError
from grader.staff.release import stripping
from grader.staff.release.contents import Files, Kit
from grader.staff.release.stripping import Secret

#: Where a handout may hold C++: its starter, and the headers and drivers that the kit compiles with.
_KITS_OWN = ("grader/",)


def secrets(kit: Kit) -> list[Secret]:
    """Every line and number that the staff keeps: solution, reference, hidden cases and seeds, keys."""
    found = [secret for name, text in kit.solutions.items() for secret in stripping.of_master(text, name)]
    # A reference that is written as a student's file is begins with what the starter gives everybody.
    whole = "\n".join(kit.starters.values()).encode()
    given = whole, stripping.compact(whole)
    references = kit.reference_sources
    for path in kit.staff_files:
        text = path.read_text(encoding="utf-8")
        whose = "the reference" if path in references else "what is for the staff"
        of_path = stripping.of_source(text, "/".join(path.parts[-2:]), whose)
        found += [secret for secret in of_path if secret.needle not in given[secret.compact]]
    public = [part.id for part in load(kit.public).parts]
    for path in sorted(kit.config.parent.iterdir()):
        if path.is_file():
            found += stripping.of_staff_text(path.read_text(encoding="utf-8"), path.name, public)
    return found + stripping.of_assignment(kit.assignment)


def leaks(files: Files, secrets: Iterable[Secret]) -> list[str]:
    """Return each file that holds a secret, with the first one found in it."""
    secrets = list(secrets)
    found = []
    for path, file in sorted(files.items()):
        whole, compact = file.content, stripping.compact(file.content)
        for secret in secrets:
            if secret.needle in (compact if secret.compact else whole):
                found.append(f"{path}{_line(whole, secret)} holds {secret.what}")
                break
    return found


def strangers(files: Files, kit: Kit) -> list[str]:
    """Return the files that must not be in a handout, with any content."""
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
    """A path and the folders that it lies in."""
    found = PurePosixPath(path)
    return (found, *found.parents)


def refuse(files: Files, kit: Kit) -> None:
    """Raise UsageError, in one line, if the handout gives a secret away."""
    found = strangers(files, kit) + leaks(files, secrets(kit))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise UsageError(f"nothing was written, for the handout would give away a secret: {found[0]}{more}")


def _line(content: bytes, secret: Secret) -> str:
    """Return ":12", the line of the needle, if it lies within one line."""
    if not secret.compact:
        return ""
    for number, line in enumerate(content.splitlines(), 1):
        if secret.needle in stripping.compact(line):
            return f":{number}"
    return ""
