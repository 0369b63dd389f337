"""Repositories on GitHub: a folder of clones, one for each student, and the `roster.csv` that names their owners.

Clones of Classroom 50 are called `CLASSROOM-ASSIGNMENT-USERNAME`. Its roster has the columns `username`, `first_name`,
`last_name`, `email`, `section` and `github_id`. A username can change and a `github_id` cannot, so the identity of a
student is that number. Rosters that GitHub Classroom exported until it was closed in August 2026 are read too; they
have the columns `identifier`, `github_username`, `github_id` and `name`. A roster is read where it lies among the
clones, under one of ROSTERS.

The last commit gives the time of submission. Git runs in an empty repository of the kit that reads the clone's objects.
So it ignores the clone's other content, such as its configuration; its time, memory and output are limited. A student
can choose a commit's date, but not the time at which GitHub received it: a table of these times (`--submitted`) is more
reliable.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from grader.core import plainfile
from grader.core.errors import UsageError, explained
from grader.core.harmless import one_line
from grader.sandbox import run_limited
from grader.staff.platforms import cells, gradebook, matching
from grader.submission import Submission
from grader.submission.exports import FIRST_YEAR, LAST_YEAR

ROSTERS = ("roster.csv", "students.csv", "classroom_roster.csv")
COLUMNS = ("username", "first_name", "last_name", "email", "github_id")
FORMER_COLUMNS = ("identifier", "github_username", "name")
GIT_TIMEOUT_S = 20.0
GIT_MEMORY_BYTES = 256 << 20
"""Address space for git, which inflates a whole object before it prints: a small file can name any size."""
GIT_OUTPUT_BYTES = 1 << 20
"""Limit on the text of a commit. The committer's line precedes the message."""
#: By default git maps whole packs, and the packs of honest students exceed the limit.
_SMALL_WINDOWS = ("-c", "core.packedGitWindowSize=1m", "-c", "core.packedGitLimit=32m")
_LARGEST_REF_BYTES = 1 << 20
_REF = re.compile(r"ref: (refs/[\w./-]{1,200})\n?")
_OBJECT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMITTER = re.compile(rb"(?m)^committer .*> (?P<seconds>\d{1,12}) [-+]\d{4}$")


@dataclass(frozen=True)
class Enrolled:
    """One row of the roster."""

    identifier: str
    """E-mail address, or the number by which a gradebook knows the student."""
    username: str
    name: str
    github_id: str
    at: str


# ---- whose a clone is


def find_roster(submissions: Path) -> Path | None:
    """Return the roster among the clones, if one is there. Raises UsageError where two are."""
    found = [path for name in ROSTERS if (path := submissions / name).is_file() and _is_roster(path)]
    if len(found) > 1:
        raise UsageError(f"which roster counts, {found[0]} or {found[1].name}? Take one of them away")
    return found[0] if found else None


def _is_roster(path: Path) -> bool:
    """Return True if the table has a column of GitHub accounts. A course's own table may have the same file name."""
    with explained(f"cannot read {path}"), path.open("rb") as file:
        first = file.readline(4096)
        return b"github_username" in first or b"github_id" in first


def read_roster(path: Path) -> list[Enrolled]:
    """Everybody of the roster; a row without a username has not joined yet. Raises UsageError with file and line."""
    table = cells.read(path)
    header = [cell.text.strip() for cell in table.rows[0].cells] if table.rows else []
    if "github_username" in header:
        places = gradebook.columns(table, FORMER_COLUMNS, "a roster of GitHub Classroom", ("github_id",))
    else:
        places = gradebook.columns(table, COLUMNS, "the roster of a Classroom 50")

    def text(row: cells.Row, *names: str) -> str:
        return " ".join(filter(None, (row.text(places[name]) for name in names if name in places)))

    people = [
        Enrolled(
            text(row, "identifier", "email"),
            text(row, "github_username", "username"),
            text(row, "name", "first_name", "last_name"),
            text(row, "github_id"),
            at=table.at(row),
        )
        for row in table.rows[1:]
    ]
    seen: dict[tuple[str, str], Enrolled] = {}
    for person in people:
        for kind in ("identifier", "username", "github_id"):
            entry = str(getattr(person, kind))
            value = entry.casefold()
            if value and (kind, value) in seen:
                first = seen[kind, value].at
                raise UsageError(
                    f"{person.at}: two students with one {kind}: '{one_line(entry)}' stands in {first} too"
                )
            seen[kind, value] = person
    return people


def named(
    submissions: Sequence[Submission], roster: Sequence[Enrolled]
) -> tuple[list[Submission], list[str]]:
    """Return the submissions with names and identities from the roster, and lines on students who are only in one of
    the two. Ids stay the folders' names.
    """
    joined = {person.username.casefold(): person for person in roster if person.username}
    joined |= {
        person.github_id: person for person in roster if person.github_id and person.github_id not in joined
    }
    titles = {item.id: item.folder.name if item.folder else item.id for item in submissions}
    prefix = _prefix([*titles.values()], joined)
    found: dict[str, Enrolled] = {}
    for item in submissions:
        person = joined.get(titles[item.id].removeprefix(prefix).casefold())
        if person is not None:
            found[item.id] = person
    identified = [
        replace(item, **_known(found[item.id])) if item.id in found else item for item in submissions
    ]
    missing = [person for person in roster if person not in found.values()]
    strangers = [item.id for item in submissions if item.id not in found]
    notes = [
        _note(
            "on the roster without a repository here",
            [
                f"{p.identifier or p.name}{f' ({p.username})' if p.username else ' (not joined)'}"
                for p in missing
            ],
        ),
        _note("repositories of nobody on the roster, graded under their own names", strangers),
    ]
    return identified, [note for note in notes if note]


def _note(what: str, names: Sequence[str]) -> str:
    return f"{what} ({len(names)}): {matching.shown(names)}" if names else ""


def _known(person: Enrolled) -> dict[str, object]:
    value = person.identifier
    known = [f"sis:{value}", f"login:{value.casefold()}"] if value and "@" not in value else []
    return {
        "name": one_line(person.name or value or person.username),
        "emails": (value,) if "@" in value else (),
        "identities": (
            *known,
            f"github:{person.username.casefold()}",
            *([f"github_id:{person.github_id}"] if person.github_id else []),
        ),
    }


def _prefix(titles: Sequence[str], joined: Mapping[str, Enrolled]) -> str:
    """Return the prefix that folder names have before the username, such as "hw1-": the one, up to a hyphen, that
    leaves usernames for most folders. Of two such prefixes the longer one is chosen."""
    first = min(titles, key=len, default="")
    cuts = ["", *(first[: k + 1] for k, char in enumerate(first) if char == "-")]

    def fitting(cut: str) -> int:
        return sum(title.startswith(cut) and title.removeprefix(cut).casefold() in joined for title in titles)

    return max(cuts, key=lambda cut: (fitting(cut), len(cut)))


# ---- when it was handed in


def with_commit_times(submissions: Sequence[Submission], scratch: Path) -> list[Submission]:
    """Return the submissions with the time of each clone's last commit, unless another time is known. Raises UsageError
    without git, or for a folder that is not a clone.
    """
    git = shutil.which("git")
    if git is None:
        raise UsageError("--commit-times needs git, which is not installed here")
    own = scratch.absolute() / "commits.git"
    _git(git, scratch, "init", "--quiet", "--bare", "--template=", str(own))
    found = [
        replace(item, submitted_at=item.submitted_at or _commit_time(git, own, item)) for item in submissions
    ]
    if not any(item.submitted_at for item in found):
        raise UsageError(
            "--commit-times: no submission is a folder with a commit in it: use --submitted FILE"
        )
    return found


def _commit_time(git: str, own: Path, item: Submission) -> datetime | None:
    """Return the time of a clone's last commit in UTC; None if it is not a clone, or cannot be read."""
    if item.folder is None or not (commit := _last_commit(item.folder / ".git")):
        return None
    objects = str(item.folder.absolute() / ".git" / "objects")
    asked = (f"--git-dir={own}", *_SMALL_WINDOWS, "cat-file", "commit", commit)
    text = _git(git, own, *asked, GIT_OBJECT_DIRECTORY=objects)
    written = _COMMITTER.search(text.partition(b"\n\n")[0])
    if written is None:
        return None
    try:
        moment = datetime.fromtimestamp(int(written["seconds"]), timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None
    return moment if FIRST_YEAR <= moment.year <= LAST_YEAR else None


def _last_commit(folder: Path) -> str:
    """Return the name of the commit that HEAD is at, "" where that is not to be found; no link is followed."""
    at = _text(folder / "HEAD")
    if _OBJECT.fullmatch(at.strip()):
        return at.strip()
    ref = _REF.fullmatch(at)
    if ref is None or ".." in ref[1]:
        return ""
    loose = _text(folder.joinpath(*ref[1].split("/"))).strip()
    packed = re.search(rf"(?m)^([0-9a-f]{{40,64}}) {re.escape(ref[1])}$", _text(folder / "packed-refs"))
    found = loose or (packed[1] if packed else "")
    return found if _OBJECT.fullmatch(found) else ""


def _text(path: Path) -> str:
    try:
        with plainfile.folder(path.parent) as place:
            return plainfile.read(path.name, _LARGEST_REF_BYTES, inside=place).decode("utf-8", "replace")
    except OSError:
        return ""


def _git(git: str, cwd: Path, *arguments: str, **variables: str) -> bytes:
    """Return the start of git's output, b"" where it fails or reaches a limit. Only the kit's configuration is read,
    and nothing is fetched."""
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_TERMINAL_PROMPT": "0",
        **variables,
    }
    try:
        ended = run_limited(
            [git, *arguments],
            cwd=cwd,
            timeout_s=GIT_TIMEOUT_S,
            memory_bytes=GIT_MEMORY_BYTES,
            output_bytes=GIT_OUTPUT_BYTES,
            env=environment,
        )
    except OSError:
        return b""
    return ended.output if ended.returncode == 0 and not ended.timed_out else b""
