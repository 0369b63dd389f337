"""Points by hand, and the path of their table, which the results folder remembers so that no later report loses them.

The table is the first of these: the one that the command line names, the one used last (the ledger records it),
`DIR/manual.csv` if it exists. A table inside the folder is remembered by its name there, so that the folder can be
moved; any other by its whole path.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grader.assignment.records import Assignment
from grader.core.errors import UsageError
from grader.staff.classroom import extensions, manual
from grader.staff.classroom.extensions import Days
from grader.staff.classroom.ledger import History

MANUAL = "manual.csv"
NONE = Path("no table at all")
"""In place of a table: points by hand are left out, and a table from elsewhere is forgotten."""
Points = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class ByHand:
    """Points by submission and item, and days beyond the due date by submission.

    `source` is the table of points as the ledger records it, None without one. `note` is a remark on the choice of
    table for a person, or "".
    """

    points: Points = field(default_factory=dict)
    days: Mapping[str, Days] = field(default_factory=dict)
    source: str | None = None
    note: str = ""


def read(
    folder: Path, given: Path | None, history: History, assignment: Assignment, ids: Collection[str]
) -> ByHand:
    """Read the points by hand for the results in `folder`. `given` is the table that the caller names, or NONE.

    Raises UsageError for a mistake in the table, and for a remembered table that no longer exists.
    """
    days, notes = extensions.read(folder, ids)
    if given == NONE:
        return ByHand(days=days, note="; ".join(notes))
    own = folder / MANUAL
    path = given
    if path is None and history.manual is not None:
        path = folder / history.manual
        _require_there(path)
        if path != own and own.exists():
            notes.append(f"points by hand come from {path}, as in the last report; {own} is not read")
    if path is None and _is_there(own):
        path = own
    note = "; ".join(notes)
    if path is None:
        return ByHand(days=days, note=note)
    return ByHand(manual.read_manual(path, assignment, ids), days, _remembered(path, folder), note)


def _is_there(own: Path) -> bool:
    """Return True if the folder holds a table of its own. It was not named by a user, so it has to be a plain file."""
    try:
        mode = own.lstat().st_mode
    except OSError:
        return False
    if not stat.S_ISREG(mode):
        raise UsageError(f"{own} is no plain file: name the table of points by hand with --manual FILE")
    return True


def _require_there(path: Path) -> None:
    try:
        there = path.is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        raise UsageError(
            f"points by hand came from {path}, which is not there any more: name their table with --manual FILE, "
            "or leave them out with --no-manual"
        )


def _remembered(path: Path, folder: Path) -> str | None:
    # What a shell offers as a pipe is gone with the command.
    if not path.is_file():
        return None
    place, home = path.resolve(), folder.resolve()
    return str(place.relative_to(home) if place.is_relative_to(home) else place)
