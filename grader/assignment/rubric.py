"""Rules for points: time bands, points given by people, lateness. Defines their records and reads them from YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from grader.assignment.yamlnode import Keys, Node

ID_PATTERN, ID_WORDS = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "letters, digits, _ . and -"
DESCRIPTIVE_COLUMNS = ("name", "email", "comment")
"""Columns of a points table that are only for its reader; no manual item may have such a name."""
_RESERVED = ("id", "all", "total", *DESCRIPTIVE_COLUMNS)
COMMANDS = ("lab", "doctor", "init", "threads", "memory", "race", "machine", "study")
"""Commands of gpt149.py, which no part may have as its command. The lab's own studies are refused, too."""

TIME_BAND_KEYS = Keys("a time band", ("share",), ("up_to",))
MANUAL_KEYS = Keys("a manual item", ("id", "title", "points"), ("extra",))
LATE_KEYS = Keys("late", ("per_day",), ("due", "grace_minutes", "cap_days", "after_cap"))
PER_DAY_KEYS = Keys("per_day", (), ("share", "points"))


Parallel = Literal["required", "review", "free"]
Races = Literal["wrong", "review", "free"]
ONE_THREAD = "one_thread"
"""Code of the flag for a right kernel that runs on one thread although the assignment asks for all threads."""


@dataclass(frozen=True)
class TimeRule:
    clock: Literal["cpu", "wall"]
    threads: int | None
    """Threads of a timed call; None means the run's `threads`."""
    cores: int | None
    """Cores that a timed call may use, for student and reference alike; None means all of the machine's."""
    allowance_ratio: float = 1.10
    allowance_ms: float = 15.0
    graded: bool = True
    """True if points depend on the time."""
    parallel: Parallel = "free"
    """Consequence of running on one thread: at most a slow kernel's points ("required"), a flag ("review"), or none."""
    races: Races = "review"
    """Consequence of a data race in a right kernel: the points of a wrong kernel ("wrong") or a flag ("review").
    "free": races are not searched for."""


@dataclass(frozen=True)
class TimeBand:
    """A correct but slow kernel earns `share` of its points if its time ratio is at most `up_to` (None: any ratio)."""

    up_to: float | None
    share: float


@dataclass(frozen=True)
class ManualItem:
    """Points that a person gives, from 0 to `points`. `extra` items are extra credit: they do not raise the maximum."""

    id: str
    title: str
    points: float
    extra: bool = False


@dataclass(frozen=True)
class LateRule:
    """Penalty for lateness, by days. The first day begins when the grace period ends, and each begun day is charged.

    One of `share_per_day` (of the earned points) and `points_per_day` is set. After `cap_days` the penalty stays as it
    is ("max_penalty") or takes all points ("zero"). Without `due`, only Gradescope's due date makes a submission late.
    """

    due: datetime | None
    grace_s: float
    share_per_day: float | None
    points_per_day: float | None
    cap_days: int | None
    after_cap: Literal["zero", "max_penalty"] | None


def read_id(node: Node, what: str) -> str:
    value = node.text(what, ID_PATTERN, f"an id of {ID_WORDS}")
    if value in _RESERVED:
        raise node.fail(f"{what} cannot be '{value}': the kit uses that word itself")
    return value


def read_time_bands(node: Node, allowance_ratio: float) -> tuple[TimeBand, ...]:
    """Read bands from fast to slow. Raises UsageError if a band can never be reached or pays more than a faster one."""
    bands: list[TimeBand] = []
    entries = node.items("time_bands", 50)
    for entry in entries:
        keys = entry.mapping(TIME_BAND_KEYS)
        share = keys["share"].number("share", 0.0, 1.0)
        up_to = keys["up_to"].number("up_to", 1.0) if "up_to" in keys else None
        if up_to is not None and up_to <= allowance_ratio:
            raise keys["up_to"].fail(
                f"up_to {up_to:g} is never reached: a ratio up to {allowance_ratio:g} earns all points"
            )
        if bands and bands[-1].up_to is None:
            raise entry.fail(
                "a band is never reached after one without 'up_to', which contains all larger ratios: "
                "remove one of the two"
            )
        if bands and up_to is not None and up_to <= (bands[-1].up_to or 0):
            raise keys["up_to"].fail(
                f"put fast bands first: up_to {up_to:g} follows up_to {bands[-1].up_to:g}"
            )
        if bands and share > bands[-1].share:
            raise keys["share"].fail(
                f"a slower band would earn more than the band before it: share {share:g}, not {bands[-1].share:g}"
            )
        bands.append(TimeBand(up_to, share))
    if not bands:
        raise node.fail("time_bands needs at least one band")
    return tuple(bands)


def read_manual_items(node: Node, taken: set[str]) -> tuple[ManualItem, ...]:
    """Read the manual items in order. `taken` are the ids of the parts, which no item may have."""
    items: list[ManualItem] = []
    for entry in node.items("manual"):
        keys = entry.mapping(MANUAL_KEYS)
        item_id = read_id(keys["id"], "id of a manual item")
        if item_id in taken or any(item.id == item_id for item in items):
            raise keys["id"].fail(f"two parts or manual items are called '{item_id}'")
        points = keys["points"].number("points", 0.0, 10_000)
        if points == 0:
            raise keys["points"].fail(f"{item_id}: points should be above 0")
        extra = keys["extra"].truth("extra") if "extra" in keys else False
        items.append(ManualItem(item_id, keys["title"].text("title"), points, extra))
    return tuple(items)


def read_late(node: Node) -> LateRule:
    keys = node.mapping(LATE_KEYS)
    per_day = keys["per_day"].mapping(PER_DAY_KEYS)
    if len(per_day) != 1:
        raise keys["per_day"].fail("per_day takes either 'share' (of what was earned) or 'points'")
    if ("cap_days" in keys) != ("after_cap" in keys):
        given = keys.get("cap_days") or keys["after_cap"]
        raise given.fail(
            "give both cap_days and after_cap, or neither: later than cap_days days, a hand-in gets no points "
            "(after_cap: zero), or the penalty of cap_days days (after_cap: max_penalty)"
        )
    return LateRule(
        due=keys["due"].moment("due") if "due" in keys else None,
        grace_s=60.0 * keys["grace_minutes"].number("grace_minutes", 0, 527_040)
        if "grace_minutes" in keys
        else 0.0,
        share_per_day=per_day["share"].number("share", 0.0, 1.0) if "share" in per_day else None,
        points_per_day=per_day["points"].number("points", 0.0, 10_000) if "points" in per_day else None,
        cap_days=keys["cap_days"].whole("cap_days", 1, 366) if "cap_days" in keys else None,
        after_cap=keys["after_cap"].choice("after_cap", ("zero", "max_penalty"))  # type: ignore[arg-type]
        if "after_cap" in keys
        else None,
    )


def read_payment(keys: Mapping[str, Node], part_id: str, time: TimeRule | None) -> dict[str, Any]:
    """Return {field of `Part`: value} for points and partial credit. Raises UsageError if a wrong kernel could earn
    more than a slow one."""
    points = keys["points"].number("points", 0.0, 10_000)
    for key in ("time_bands", "points_if_slow"):
        if key in keys and not (time and time.graded):
            raise keys[key].fail(f"part {part_id} has {key}, but its time is not graded")
    if "time_bands" in keys and "points_if_slow" in keys:
        raise keys["points_if_slow"].fail(
            f"part {part_id} has time_bands and points_if_slow: give the points in a last band without 'up_to'"
        )
    if_slow = (
        keys["points_if_slow"].number("points_if_slow", 0.0, 10_000) if "points_if_slow" in keys else 0.0
    )
    if if_slow > points:
        raise keys["points_if_slow"].fail(f"points_if_slow ({if_slow:g}) is more than points ({points:g})")
    bands: tuple[TimeBand, ...] = ()
    if "time_bands" in keys and time:
        bands = read_time_bands(keys["time_bands"], time.allowance_ratio)
    credit = keys["case_credit"].number("case_credit", 0.0, 1.0) if "case_credit" in keys else 0.0
    slowest = bands[-1].share if bands and bands[-1].up_to is None else 0.0
    slowest = slowest if bands else if_slow / points if points else 0.0
    if time and time.graded and credit > slowest:
        raise keys["case_credit"].fail(
            f"part {part_id}: a right but very slow kernel would earn the share {slowest:g}, a wrong one up to "
            f"{credit:g} (case_credit); raise points_if_slow or the share of a last time band without 'up_to'"
        )
    return {"points": points, "points_if_slow": if_slow, "time_bands": bands, "case_credit": credit}
