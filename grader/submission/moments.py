"""Parser for times as course sites and people write them: ISO 8601, YAML's looser form of it, and Ruby's."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

#: Plausible years of a submission. Date arithmetic fails far outside of them.
FIRST_YEAR, LAST_YEAR = 1990, 2200
LONGEST_CHARS = 80
_MOMENT = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})(?:[Tt]|[ \t]+)"
    r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]*))?)?"
    r"(?:[ \t]*(?P<zone>Z|z|UTC|(?P<sign>[-+])(?P<zone_h>[0-9]{1,2})(?::?(?P<zone_min>[0-9]{2}))?))?"
)


def moment(text: str) -> datetime | None:
    """Parse a time, in its own zone or without one if the text names none. Returns None for any other text."""
    found = _MOMENT.fullmatch(text.strip()) if len(text) <= LONGEST_CHARS else None
    if found is None or not FIRST_YEAR <= int(found["year"]) <= LAST_YEAR:
        return None
    whole = [int(found[name] or 0) for name in ("year", "month", "day", "hour", "minute", "second")]
    microseconds = int((found["fraction"] or "").ljust(6, "0")[:6])
    try:
        return datetime(*whole, microseconds, tzinfo=_zone(found))  # type: ignore[misc]
    except ValueError:
        return None


def _zone(found: re.Match[str]) -> timezone | None:
    """Return the zone, or None if the text names none. Raises ValueError for an offset of a day or more."""
    if not found["zone"]:
        return None
    if not found["sign"]:
        return timezone.utc
    offset = timedelta(hours=int(found["zone_h"]), minutes=int(found["zone_min"] or 0))
    return timezone(-offset if found["sign"] == "-" else offset)
