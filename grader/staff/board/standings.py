"""Ranks of students on a leaderboard, computed from the results in ledgers, and the students' pseudonyms."""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.core.errors import UsageError, explained
from grader.staff.classroom import ledger
from grader.staff.classroom.ledger import Entry, Record
from grader.staff.platforms.matching import folder as folder_identity
from grader.staff.platforms.matching import identities

SECRET, TABLE = "board.key", "pseudonyms.csv"
_QUALITIES = (
    "amber azure brisk calm clever coral crimson dapper eager early fleet gentle golden happy hazel honest indigo "
    "ivory jolly keen lively lucky mellow merry misty nimble opal patient plucky proud quick quiet rapid ruby rustic "
    "sage scarlet serene silver sleek smart snowy solar spry steady sunny swift teal tidy vivid warm witty young zesty"
)
_ANIMALS = (
    "badger beaver bison bittern camel caribou cheetah condor cormorant crane curlew dolphin dormouse eagle egret "
    "eider falcon ferret finch gannet gecko gibbon hare heron ibex jackdaw jaguar kestrel kiwi lapwing lemur lynx "
    "marmot marten merlin mole moose narwhal newt ocelot okapi osprey otter panda pelican penguin petrel plover "
    "puffin quail raven robin salmon seal shrew siskin stoat stork swallow swan tapir tern toad vole walrus weasel "
    "wombat wren yak"
)
QUALITIES, ANIMALS = tuple(_QUALITIES.split()), tuple(_ANIMALS.split())


def pseudonyms(folder: Path, students: Iterable[str]) -> dict[str, str]:
    """Return a pseudonym for each student, and store new ones in the folder.

    Raises UsageError if the folder cannot be written.
    """
    names = sorted(students)
    with explained(f"cannot keep pseudonyms in {folder}"), plainfile.folder(folder.resolve()) as place:
        key = _secret(place)
        known = _known(place)
        for name in names:
            known.setdefault(name, _drawn(key, name, set(known.values())))
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(("id", "pseudonym"))
        table.writerows(sorted(known.items()))
        plainfile.replace(place, TABLE, [text.getvalue().encode()])
    return {name: known[name] for name in names}


def _secret(place: int) -> bytes:
    try:
        return plainfile.read(SECRET, 64, inside=place)
    except FileNotFoundError:
        key = secrets.token_hex(16).encode()
        plainfile.replace(place, SECRET, [key])
        return key


def _known(place: int) -> dict[str, str]:
    """Return the stored pseudonyms by student id, without any that contain words not in QUALITIES and ANIMALS."""
    try:
        text = plainfile.read(TABLE, 16 << 20, inside=place).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return {}
    words = {*QUALITIES, *ANIMALS}
    rows = [row for row in csv.reader(io.StringIO(text)) if len(row) == 2]
    return {
        name: pseudonym
        for name, pseudonym in rows
        if set(pseudonym.split()[:2]) <= words and len(pseudonym) < 40
    }


def _drawn(key: bytes, name: str, taken: set[str]) -> str:
    digest = hmac.new(key, name.encode(errors="surrogateescape"), hashlib.sha256).digest()
    first, second = int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")
    drawn = pseudonym = f"{QUALITIES[first % len(QUALITIES)]} {ANIMALS[second % len(ANIMALS)]}"
    count = 1
    while pseudonym in taken:
        count += 1
        pseudonym = f"{drawn} {count}"
    return pseudonym


Ratio = tuple[float, float, float]


@dataclass(frozen=True)
class Place:
    """Rank of one student in one part. `ratio` is the student's time divided by the reference's.

    `low` and `high` are the ends of the ratio's confidence interval. `is_tied`: other students have the same rank.
    """

    student: str
    ratio: float
    low: float
    high: float
    rank: int = 0
    is_tied: bool = False


@dataclass(frozen=True)
class Point:
    """One result in a student's history: number of the run (from 0), its ISO time, and time / reference time."""

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
    """All parts with at least one ranked student. `runs` are the runs' start times in ISO format."""

    parts: tuple[PartBoard, ...]
    students: tuple[str, ...]
    runs: tuple[str, ...]
    judged_by: str = ""
    """Sentence about the kit, the machine and its load in the last run."""


def board_of(folders: Sequence[Path], assignment: Assignment) -> Board:
    """Return the leaderboard of the results folders. Raises UsageError for a folder without a ledger."""
    records: list[tuple[str, Record]] = []
    judged_by = ""
    entries: list[Entry] = []
    for k, folder in enumerate(folders):
        history = ledger.read(folder)
        if not history.runs:
            raise UsageError(f"{folder} holds no {ledger.LEDGER}: name the --out folders of earlier runs")
        judged_by = history.runs[-1].judged_by
        entries += history.roster
        there = {entry.submission_id for entry in history.roster}
        starts = [run.at for run in history.runs]
        for record in ledger.results(folder):
            if record.submission_id in there:
                # A folder's ledger can hold several runs: use the last start before the result was recorded.
                start = max((at for at in starts if at <= record.at), default=starts[0])
                records.append((f"{k:04} {start}", record))
    states = sorted({state for state, _ in records})
    parts, stands = [], persons(entries)
    for part in assignment.select("all"):
        found = _part(part.id, part.title, records, states, stands)
        if found is not None:
            parts.append(found)
    students = sorted({place.student for part in parts for place in part.places})
    return Board(tuple(parts), tuple(students), tuple(state.partition(" ")[2] for state in states), judged_by)


def _part(
    part_id: str,
    title: str,
    records: Sequence[tuple[str, Record]],
    states: Sequence[str],
    stands: Mapping[str, str],
) -> PartBoard | None:
    last: dict[str, Ratio | None] = {}
    points: dict[str, dict[int, Point]] = {}
    for state, record in records:
        ratio = counted(record, part_id)
        last[record.submission_id] = ratio
        if ratio is not None:
            run, student = states.index(state), stands[record.submission_id]
            points.setdefault(student, {})[run] = Point(run, record.at, ratio[0])
    # A student with two ids is ranked once, with the faster result.
    best: dict[str, Ratio] = {}
    for name, ratio in last.items():
        if ratio is not None:
            best[stands[name]] = min(ratio, best.get(stands[name], ratio))
    ranked = placed(Place(name, *ratio) for name, ratio in best.items())
    if not ranked:
        return None
    history = {
        place.student: tuple(point for _, point in sorted(points[place.student].items())) for place in ranked
    }
    return PartBoard(part_id, title, ranked, history)


def counted(record: Record, part_id: str) -> Ratio | None:
    """Return a record's ratio for a part; None if the part is wrong, untimed or flagged."""
    ratio = record.ratios.get(part_id)
    if ratio is None or record.fault or part_id in record.flagged or not all(map(math.isfinite, ratio)):
        return None
    return ratio if record.verdicts.get(part_id) in ("pass", "slow") else None


def placed(found: Iterable[Place]) -> tuple[Place, ...]:
    """Return the places, ranked and fastest first. Students share a rank if their intervals overlap.

    Two students also share a rank if a chain of overlapping intervals of other students connects their intervals.
    """
    groups: list[list[Place]] = []
    reached = -math.inf
    for place in sorted(found, key=lambda place: (place.low, place.ratio)):
        if place.low > reached:
            groups.append([])
        groups[-1].append(place)
        reached = max(reached, place.high)
    ranked: list[Place] = []
    for group in groups:
        rank, is_tied = len(ranked) + 1, len(group) > 1
        ordered = sorted(group, key=lambda place: (place.ratio, place.student))
        ranked += [replace(place, rank=rank, is_tied=is_tied) for place in ordered]
    return tuple(ranked)


def persons(entries: Iterable[Entry]) -> dict[str, str]:
    """Map each submission id to the last id of the same person.

    One person's ids share an e-mail address or an id on a platform. Names are not compared: two students may share one.
    """
    stands: dict[str, str] = {}
    known: dict[str, str] = {}
    for entry in entries:
        name = entry.submission_id
        marks = identities(name, entry.emails, entry.identities, fold=True) - {folder_identity(name)}
        same = {stands.get(known[mark], known[mark]) for mark in marks if mark in known} | {
            stands.get(name, name)
        }
        stands |= {each: name for each, now in stands.items() if now in same}
        stands |= dict.fromkeys({*same, name}, name)
        known |= dict.fromkeys(marks, name)
    return stands
