"""Days that single students get beyond the due date: `DIR/extensions.yaml`, written by `grader extend` or by hand.

    ada: {extension: 2, reason: illness}
    bob: {slip: 3}

An extension moves the student's due date. Slip days are spent only as far as late days remain. Grace, zone and the
price of a late day are those of the assignment.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.assignment.rubric import LateRule
from grader.assignment.yamlnode import MOST_BYTES, Keys, compose
from grader.core import plainfile
from grader.core.errors import UsageError
from grader.core.harmless import one_line
from grader.score import DAY_S, late_days
from grader.submission.ids import no_such_submission

FILE = "extensions.yaml"
HEADER = "# Days beyond the due date, by id. `grader extend` rewrites this file: keep notes in `reason`.\n"
KEYS = Keys("days of a student", (), ("extension", "slip", "reason"))
MOST_DAYS = 366


@dataclass(frozen=True)
class Days:
    """Days that one student was given. `slip` are those that may be spent."""

    extension: int = 0
    slip: int = 0
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.extension or self.slip)

    def late_s(self, late_s: float) -> float:
        """Return the lateness that is left, in seconds after the due date."""
        return max(0.0, late_s - (self.extension + self.slip) * DAY_S)

    def slip_used(self, rule: LateRule | None, late_s: float | None) -> int:
        """Return the slip days that were spent: late days after the extension, up to those given."""
        left = late_days(rule, None if late_s is None else max(0.0, late_s - self.extension * DAY_S))
        return min(self.slip, left)

    def text(self) -> str:
        pieces = [
            f"extension {self.extension}" if self.extension else "",
            f"slip {self.slip}" if self.slip else "",
        ]
        reason = f" ({one_line(self.reason, 80)})" if self.reason else ""
        return ", ".join(filter(None, pieces)) + reason


def read(folder: Path, ids: Collection[str]) -> tuple[dict[str, Days], list[str]]:
    """Read the days of a class, and remarks on ids without a submission: it may still come, or be misspelt.

    Raises UsageError with file and line.
    """
    path = folder / FILE
    try:
        data = plainfile.read(path, MOST_BYTES)
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if not data.removeprefix(HEADER.encode()).strip():
        return {}, []
    found, notes = {}, []
    for name, (key, value) in compose(data, path).entries("the extensions").items():
        if name not in ids:
            notes.append(str(key.fail(f"{no_such_submission(name, ids)} (days are kept until one is)")))
        given = value.mapping(KEYS)
        found[name] = Days(
            given["extension"].whole("extension", 0, MOST_DAYS) if "extension" in given else 0,
            given["slip"].whole("slip", 0, MOST_DAYS) if "slip" in given else 0,
            given["reason"].text("reason") if "reason" in given else "",
        )
    return found, notes


def write(folder: Path, days: Mapping[str, Days]) -> None:
    """Write the file. Raises UsageError."""
    # JSON is YAML: quoted texts need no rules of their own.
    lines = [
        f"{json.dumps(name, ensure_ascii=False)}: {{extension: {each.extension}, slip: {each.slip}"
        + (f", reason: {json.dumps(each.reason, ensure_ascii=False)}" if each.reason else "")
        + "}\n"
        for name, each in sorted(days.items())
        if each
    ]
    try:
        with plainfile.folder(folder) as place:
            plainfile.replace(place, FILE, ["".join([HEADER, *lines]).encode()])
    except OSError as error:
        raise UsageError(f"cannot write {folder / FILE}: {error.strerror}") from error
