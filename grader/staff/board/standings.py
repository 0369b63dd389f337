"""Places on a leaderboard, from the results that ledgers hold: pure functions of records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grader.assignment.records import Assignment
from grader.core.errors import UsageError
from grader.staff.classroom import ledger
from grader.staff.classroom.recorded import Record

Ratio = tuple[float, float, float]


@dataclass(frozen=True)
class Place:
    """One student in one part: rank (shared where intervals overlap), ratio to the reference's time, its interval."""

    student: str
    ratio: float
    low: float
    high: float
    rank: int = 0
    is_tied: bool = False


@dataclass(frozen=True)
class Point:
    """One result of a student over time: `run` counts the states of the board, from 0."""

    run: int
    at: str
    ratio: float


@dataclass(frozen=True)
class PartBoard:
    """The standings of one part, the fastest first, and each student's results over time."""

    id: str
    title: str
    places: tuple[Place, ...]
    history: dict[str, tuple[Point, ...]]


@dataclass(frozen=True)
class Board:
    """All parts with a timed student; `runs` are the days of the states in the histories."""

    parts: tuple[PartBoard, ...]
    students: tuple[str, ...]
    runs: tuple[str, ...]
    judged_by: str = ""
    """Sentence of the last run on kit, machine and load."""


def board_of(folders: Sequence[Path], assignment: Assignment) -> Board:
    """The board of these results folders. Raises UsageError for one without a ledger."""
    told: list[tuple[str, Record]] = []
    judged_by = ""
    for k, folder in enumerate(folders):
        history = ledger.read(folder)
        if not history.runs:
            raise UsageError(f"{folder} holds no {ledger.LEDGER}: name folders that were --out of a run")
        judged_by = history.runs[-1].judged_by
        there = {entry.submission_id for entry in history.roster}
        starts = [run.at for run in history.runs]
        for record in ledger.results(folder):
            if record.submission_id in there:
                # Which start of the judge it belongs to: what was handed in by then.
                start = max((at for at in starts if at <= record.at), default=starts[0])
                told.append((f"{k:04} {start}", record))
    states = sorted({state for state, _ in told})
    parts = []
    for part in assignment.select("all"):
        found = _part(part.id, part.title, told, states)
        if found is not None:
            parts.append(found)
    students = sorted({place.student for part in parts for place in part.places})
    return Board(tuple(parts), tuple(students), tuple(state.partition(" ")[2] for state in states), judged_by)


def _part(
    part_id: str, title: str, told: Sequence[tuple[str, Record]], states: Sequence[str]
) -> PartBoard | None:
    last: dict[str, Ratio | None] = {}
    points: dict[str, dict[int, Point]] = {}
    for state, record in told:
        ratio = counted(record, part_id)
        last[record.submission_id] = ratio
        if ratio is not None:
            run = states.index(state)
            points.setdefault(record.submission_id, {})[run] = Point(run, record.at, ratio[0])
    ranked = placed(Place(name, *ratio) for name, ratio in last.items() if ratio is not None)
    if not ranked:
        return None
    history = {
        place.student: tuple(point for _, point in sorted(points[place.student].items())) for place in ranked
    }
    return PartBoard(part_id, title, ranked, history)


def counted(record: Record, part_id: str) -> Ratio | None:
    """Return a student's ratio if the part is right, was timed, and has no flag."""
    ratio = record.ratios.get(part_id)
    if ratio is None or record.fault or part_id in record.flagged or not all(map(math.isfinite, ratio)):
        return None
    return ratio if record.verdicts.get(part_id) in ("pass", "slow") else None


def placed(found: Iterable[Place]) -> tuple[Place, ...]:
    """Return the places with their ranks. A place shares a rank if its interval overlaps that of the first in the
    rank."""
    ordered = sorted(found, key=lambda place: (place.ratio, place.student))
    ranked: list[Place] = []
    first: Place | None = None
    for k, place in enumerate(ordered):
        if first is None or place.low > first.high:
            first = replace(place, rank=k + 1)
        ranked.append(replace(place, rank=first.rank))
    ranks = [place.rank for place in ranked]
    return tuple(replace(place, is_tied=ranks.count(place.rank) > 1) for place in ranked)
