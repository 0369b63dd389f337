"""When submissions were handed in, as a table tells that the staff has from elsewhere.

    id,time
    ada,2026-11-14 22:10
    grace_hopper,2026-11-15T07:03:00Z

`id` as in grades.csv; a time without a zone is in that of the due date. Other columns are for the reader of the table.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timezone, tzinfo
from pathlib import Path

from grader.base.errors import UsageError
from grader.base.harmless import one_line
from grader.staff.classroom.manual import table
from grader.submission.ids import no_such_submission
from grader.submission.moments import moment


def read_times(path: Path, ids: Collection[str], zone: tzinfo | None) -> dict[str, datetime]:
    """Times in UTC by submission id. `zone` is that of times which name none. Raises UsageError with file and line."""
    columns, rows = table(path)
    if "time" not in columns:
        raise UsageError(f"{path}:1: the first row should name the columns 'id' and 'time'")
    times: dict[str, datetime] = {}
    for line, row in rows:
        at, name = f"{path}:{line}", row["id"]
        if name not in ids:
            raise UsageError(f"{at}: {no_such_submission(name, ids)}")
        if name in times:
            raise UsageError(f"{at}: '{one_line(name)}' stands there twice")
        if row["time"]:
            times[name] = _in_utc(row["time"], zone, at)
    return times


def _in_utc(text: str, zone: tzinfo | None, at: str) -> datetime:
    found = moment(text)
    if found is not None and found.tzinfo is None:
        found = found.replace(tzinfo=zone) if zone else None
    if found is None:
        raise UsageError(f"{at}: a time should be like 2026-11-14T23:59:00-08:00, not '{one_line(text, 40)}'")
    return found.astimezone(timezone.utc)
