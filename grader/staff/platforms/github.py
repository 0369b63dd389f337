"""Clones of students' repositories on GitHub: the student to whom each belongs, and the time of its last commit.

Clones of Classroom 50 are called `CLASSROOM-ASSIGNMENT-USERNAME`. Its roster, `roster.csv`, has the columns `username`,
`first_name`, `last_name`, `email`, `section` and `github_id`. The `github_id` identifies a student, because a username
can change. The kit also reads rosters from GitHub Classroom (closed in August 2026), with the columns `identifier`,
`github_username`, `github_id` and `name`. A roster must lie in the folder of the clones, under a name in ROSTERS.

The submission time is the time of the last commit. Git runs in an empty repository that the kit makes, and reads only
the clone's objects, so the clone's configuration has no effect. Git's time, memory and output are limited. A student
can choose a commit's date. A table (`--submitted`) of the times at which GitHub received the commits is more reliable.
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
"""Limit in bytes on git's address space. It is needed because git decompresses a whole object before it prints."""
GIT_OUTPUT_BYTES = 1 << 20
"""Limit in bytes on a commit's text. Only its start is needed: the committer's line precedes the message."""
#: Options for git. By default it maps whole pack files into memory, more than GIT_MEMORY_BYTES even in ordinary
#: repositories.
_SMALL_WINDOWS = ("-c", "core.packedGitWindowSize=1m", "-c", "core.packedGitLimit=32m")
_LARGEST_REF_BYTES = 1 << 20
_REF = re.compile(r"ref: (refs/[\w./-]{1,200})\n?")
_OBJECT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMITTER = re.compile(rb"(?m)^committer .*> (?P<seconds>\d{1,12}) [-+]\d{4}$")


@dataclass(frozen=True)
class Enrolled:
    """One student in the roster. `at` is "FILE:LINE" of the row, for messages."""

    identifier: str
    """E-mail address, or the number by which a gradebook knows the student."""
    username: str
    name: str
    github_id: str
    at: str


# ---- the student of a clone


def find_roster(submissions: Path) -> Path | None:
    """Return the path of the roster in the folder of clones, or None. Raises UsageError if there are two."""
    found = [path for name in ROSTERS if (path := submissions / name).is_file() and _is_roster(path)]
    if len(found) > 1:
        raise UsageError(f"there are two rosters, {found[0]} and {found[1].name}: remove one")
    return found[0] if found else None


def _is_roster(path: Path) -> bool:
    """Return True if the first line names a column of GitHub's rosters. Other tables may have the same file name."""
    with explained(f"cannot read {path}"), path.open("rb") as file:
        first = file.readline(4096)
        return b"github_username" in first or b"github_id" in first


def read_roster(path: Path) -> list[Enrolled]:
    """Read the roster; students who have not joined have no username. Raises UsageError with file and line."""
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
                    f"{person.at}: another student has the same {kind} '{one_line(entry)}': see {first}"
                )
            seen[kind, value] = person
    return people


def named(
    submissions: Sequence[Submission], roster: Sequence[Enrolled]
) -> tuple[list[Submission], list[str]]:
    """Return (submissions with names and identities from the roster, notes on missing repositories and students)."""
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
        matching.listed(
            "students in the roster without a repository",
            [
                f"{p.identifier or p.name}{f' ({p.username})' if p.username else ' (not joined)'}"
                for p in missing
            ],
        ),
        matching.listed(
            "repositories whose student is not in the roster, graded under the folder's name", strangers
        ),
    ]
    return identified, [note for note in notes if note]


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
    """Return the prefix before the username in the folder names `titles`, such as "hw1-".

    The prefix is empty or ends with a hyphen. Choose the one whose removal turns the most folder names into keys of
    `joined`, the usernames and GitHub ids of the roster; of equally good ones, the longest.
    """
    first = min(titles, key=len, default="")
    cuts = ["", *(first[: k + 1] for k, char in enumerate(first) if char == "-")]

    def fitting(cut: str) -> int:
        return sum(title.startswith(cut) and title.removeprefix(cut).casefold() in joined for title in titles)

    return max(cuts, key=lambda cut: (fitting(cut), len(cut)))


# ---- the time of submission


def with_commit_times(submissions: Sequence[Submission], scratch: Path) -> list[Submission]:
    """Add times of last commits to submissions without a time. Raises UsageError if git or all times are missing."""
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
    """Return the last commit's time (UTC), or None. `git` is the program, `own` the kit's empty repository."""
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
    """Return the hash of the commit to which HEAD points in `folder`, a .git folder; "" if it cannot be read."""
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
    """Run git, and return its output; b"" if git fails or takes too long.

    Git ignores the configuration of user and system, and fetches nothing. `variables` are added to its environment.
    """
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
