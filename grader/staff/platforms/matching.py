"""Matching of the students in a platform's list with the submissions of a class.

A student has *identities*, texts of the form KIND:VALUE: `sis:100234` (the number in the university's records),
`email:ada@example.edu`, `login:ada`, `canvas:4711`, `moodle:123`. A row of the list matches a submission if they share
an identity. Names are never compared, because two students may have the same name. If a class was handed in as plain
folders, only the folders' names are known. They are identities, too (`folder:ada`), used only if no other identity
matches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from grader.core.errors import UsageError
from grader.core.harmless import one_line
from grader.submission.ids import safe_name

FOLDER = "folder"


@dataclass(frozen=True)
class Student:
    """One graded submission, whose students have the `identities`.

    `total` are the points by rubric and by hand, minus the late penalty; None without a grade. `pending` lists the
    rubric items without points. `people` is the number of students who handed in the submission together.
    """

    submission_id: str
    name: str
    identities: frozenset[str]
    total: float | None
    pending: tuple[str, ...] = ()
    people: int = 1


@dataclass(frozen=True)
class Listed:
    """One row of a platform's list of students. `at` is "FILE:LINE" of the row, for messages."""

    name: str
    at: str
    identities: tuple[str, ...]


class Rostered(Protocol):
    """Interface of one submission on the roster of a class, such as `grader.staff.classroom.ledger.Entry`."""

    @property
    def submission_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def emails(self) -> tuple[str, ...]: ...
    @property
    def identities(self) -> tuple[str, ...]: ...


def identities(
    submission_id: str, emails: Iterable[str], others: Iterable[str], *, fold: bool
) -> frozenset[str]:
    """Return a submission's identities: e-mail addresses, `others`, and its id. `fold`: ignore case in addresses."""
    return frozenset(
        [
            *(email(address, fold=fold) for address in emails if address.strip()),
            *others,
            f"{FOLDER}:{submission_id}",
        ]
    )


def email(address: str, *, fold: bool) -> str:
    """Return the identity of a student with this e-mail address. `fold`: ignore case."""
    address = address.strip()
    return f"email:{address.casefold() if fold else address}"


def folder(value: str) -> str:
    """Return the identity of a submission whose folder has this name."""
    return f"{FOLDER}:{safe_name(value)}"


def match(listed: Sequence[Listed], students: Sequence[Student]) -> dict[int, int]:
    """Match rows with submissions. Return {index in `listed`: index in `students`}, sorted by the row's index.

    If students handed in one submission together, each of them may have a row. Raises UsageError if the match is
    ambiguous: two rows share an identity, or a row's identities belong to two submissions. Also raises it if a
    submission matches more rows than students handed it in.
    """
    _refuse_equal_rows(listed)
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for k, student in enumerate(students):
        for identity in student.identities:
            holders[identity].append(k)
    found = {k: _holder(row, students, holders, weak=False) for k, row in enumerate(listed)}
    pairs = {k: holder for k, holder in found.items() if holder is not None}
    taken = set(pairs.values())
    for k, row in enumerate(listed):
        if k in pairs:
            continue
        holder = _holder(row, students, holders, weak=True)
        if holder is not None and holder not in taken:
            pairs[k] = holder
    _refuse_crowds(pairs, listed, students)
    return dict(sorted(pairs.items()))


def _refuse_equal_rows(listed: Sequence[Listed]) -> None:
    seen: dict[str, Listed] = {}
    for row in listed:
        for identity in row.identities:
            if identity.startswith(f"{FOLDER}:"):
                continue  # A folder's name may be made from an e-mail address. Different addresses can give one name.
            if identity in seen and seen[identity] is not row:
                raise UsageError(
                    f"{row.at}: another student has the same id '{_value(identity)}': see {seen[identity].at}"
                )
            seen[identity] = row


def _holder(
    row: Listed, students: Sequence[Student], holders: dict[str, list[int]], *, weak: bool
) -> int | None:
    """Return the index of the row's submission, or None. Raises UsageError if the row matches two submissions.

    `holders` maps identities to indices of submissions. `weak`: compare only folder names, else all other identities.
    """
    found: dict[int, str] = {}
    for identity in row.identities:
        if identity.startswith(f"{FOLDER}:") != weak:
            continue
        for k in holders.get(identity, ()):
            found.setdefault(k, identity)
    if len(found) > 1:
        places = " and ".join(
            f"{students[k].submission_id} (by '{_value(identity)}')"
            for k, identity in list(found.items())[:2]
        )
        raise UsageError(f"{row.at}: '{one_line(row.name, 40)}' matches two submissions: {places}")
    return next(iter(found), None)


def _refuse_crowds(pairs: dict[int, int], listed: Sequence[Listed], students: Sequence[Student]) -> None:
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for k, found in pairs.items():
        rows[found].append(k)
    for found, places in rows.items():
        if len(places) > students[found].people:
            raise UsageError(
                f"{listed[places[1]].at}: the submission {students[found].submission_id} matches "
                f"{len(places)} rows ({', '.join(listed[k].at.rpartition(':')[2] for k in places[:4])}), but "
                f"only {students[found].people} handed it in"
            )


def differing_in_capitals(row: Listed, students: Iterable[Student]) -> str:
    """Return an e-mail address of `students` that differs from the row's address only in case, or ""."""
    own = {identity.casefold() for identity in row.identities if identity.startswith("email:")}
    known = (identity for student in students for identity in student.identities)
    return next((_value(each) for each in known if each.startswith("email:") and each.casefold() in own), "")


def listed(what: str, names: Sequence[str]) -> str:
    """Return "WHAT (number of names): names"; "" without names. Names that contain commas are separated by ";"."""
    lines = [one_line(name, 200) for name in names]
    comma = "; " if any("," in name for name in lines) else ", "
    return f"{what} ({len(lines)}): {comma.join(lines)}" if lines else ""


def _value(identity: str) -> str:
    return one_line(identity.partition(":")[2], 60)
