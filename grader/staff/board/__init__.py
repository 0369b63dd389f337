"""Leaderboard: `python -m grader board DIR ...` writes one page that ranks correct submissions by speed.

The results come from the ledgers (`grader.staff.classroom.ledger`) in the folders. Name the folder of the oldest run
first, because the ranking uses each student's last result. The chart shows all results.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import json
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape
from pathlib import Path

from grader.assignment.records import Assignment
from grader.core import plainfile
from grader.core.commandline import Parser
from grader.core.errors import UsageError, explained
from grader.core.places import GRADER_COMMAND
from grader.report import words
from grader.report.html import environment, missing_library, policy
from grader.staff.classroom import gradebook, ledger
from grader.staff.classroom.ledger import Entry, Record
from grader.staff.platforms.matching import folder as folder_identity
from grader.staff.platforms.matching import identities

PAGE = "board.html"


def main(arguments: list[str]) -> int:
    parse = Parser(prog=f"{GRADER_COMMAND} board", description="Rank the right submissions by speed.")
    parse.path("folders", "--out folders of runs, the oldest first", "DIR", nargs="+")
    parse.add_argument("--names", action="store_true", help="show ids (default: pseudonyms)")
    parse.path("--out", f"file for the page (default: {PAGE} in the last DIR)")
    parse.path("--json", "also write the entries of Gradescope's leaderboard, by student id, to this file")
    given = parse.parse_args(arguments)
    if missing := missing_library():
        raise UsageError(f"the page needs the package {missing}: `pip install {missing}`")
    last: Path = given.folders[-1]
    assignment, _ = gradebook.open_book(last)
    board = board_of(given.folders, assignment)
    if not board.parts:
        raise UsageError(
            f"no leaderboard was written: {last} has no submission that is timed, right and without a flag"
        )
    called = {name: name for name in board.students}
    if not given.names:
        called = pseudonyms(last, board.students)
    target = given.out or last / PAGE
    try:
        plainfile.write(target, page(assignment, board, called))
        if given.json is not None:
            plainfile.write(given.json, [json.dumps(fields(board), indent=1), "\n"])
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or target}: {error.strerror}") from error
    for part in board.parts:
        first = part.places[0]
        print(
            f"{part.id}: {len(part.places)} of the students are ranked; {called[first.student]} is first, with "
            f"{first.ratio:.2f} times the reference's time"
        )
    note = "" if given.names else f"; ids of the pseudonyms: {last / TABLE}"
    print(f"wrote {target}{note}")
    return 0


def fields(board: Board) -> dict[str, list[dict[str, object]]]:
    """Return {student id: value of the field `leaderboard` in Gradescope's results.json}."""
    found: dict[str, list[dict[str, object]]] = {}
    for part in board.parts:
        for place in part.places:
            entry = {"name": f"{part.id}: time / reference", "value": round(place.ratio, 3), "order": "asc"}
            found.setdefault(place.student, []).append(entry)
    return found


# ---- the page: its Content-Security-Policy allows the page's own style sheet, but no script and no network

MOST_LINES = 60
"""Maximum number of lines in a chart, one for each student; more lines would be unreadable."""
CLOSE = 1.25
"""The axis labels the ratio 1.0 only if the lowest and the highest ratio differ from it by more than this factor."""
WIDTH, HEIGHT, MARGIN = 640, 240, 34
FOLDER = Path(__file__).parent


def page(assignment: Assignment, board: Board, called: Mapping[str, str]) -> Iterator[str]:
    """Yield the page's HTML in pieces. `called` maps each student's id to the name that is shown."""
    from markupsafe import Markup

    pages = environment(None, FOLDER)
    pages.globals.update(day=_day, chart=lambda *of: Markup(_chart(*of)))
    style = Markup((FOLDER / "board.css").read_text(encoding="utf-8"))
    yield from pages.get_template("board.html").generate(
        assignment=assignment, board=board, called=called, style=style, policy=policy(style, "")
    )


def _chart(part: PartBoard, board: Board, called: Mapping[str, str]) -> str:
    """Return an SVG chart of the ratio (logarithmic) over the runs, with a line for each of the MOST_LINES fastest
    students. Return "" if no student has two results."""
    if all(len(points) < 2 for points in part.history.values()):
        return ""
    shown = part.places[:MOST_LINES]
    ratios = [ratio for place in shown for ratio in part.history[place.student].values()]
    low, high = math.log(min(ratios) * 0.95), math.log(max(ratios) * 1.05)
    steps = max(1, len(board.runs) - 1)

    def at(run: int, ratio: float) -> tuple[float, float]:
        x = MARGIN + (WIDTH - 2 * MARGIN) * run / steps
        y = MARGIN / 2 + (HEIGHT - 1.5 * MARGIN) * (high - math.log(ratio)) / (high - low)
        return round(x, 1), round(y, 1)

    lines = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_text(part.id)} over the runs: a line a student">'
    ]
    for ratio in sorted({min(ratios), 1.0, max(ratios)}):
        is_end = ratio in (min(ratios), max(ratios))
        if is_end or min(ratios) * CLOSE < ratio < max(ratios) / CLOSE:
            _, y = at(0, ratio)
            lines.append(f'<line class="axis" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y}" y2="{y}"/>')
            lines.append(f'<text x="2" y="{y + 4}">{ratio:.2f}</text>')
    for run in sorted({0, len(board.runs) - 1}):
        x, _ = at(run, min(ratios))
        anchor = "start" if run == 0 else "end"
        lines.append(f'<text x="{x}" y="{HEIGHT - 6}" text-anchor="{anchor}">{_day(board.runs[run])}</text>')
    for place in reversed(shown):
        points = [at(run, ratio) for run, ratio in part.history[place.student].items()]
        kind = "line lead" if place.rank == 1 else "line"
        title = f"<title>{_text(called[place.student])}: {place.ratio:.2f}</title>"
        path = " ".join(f"{x},{y}" for x, y in points)
        lines.append(f'<g><polyline class="{kind}" points="{path}">{title}</polyline>')
        lines += [f'<circle class="dot" cx="{x}" cy="{y}" r="2.5"/>' for x, y in points]
        lines.append("</g>")
    lines.append("</svg>\n")
    return "".join(lines)


def _day(at: str) -> str:
    try:
        return words.moment(datetime.fromisoformat(at))
    except ValueError:
        return ""


def _text(value: str) -> str:
    return escape(words.line(value, 80))


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
    """Return {student id: pseudonym} and store new ones in the folder. Raises UsageError if their file is unusable."""
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
    """Return the secret key for pseudonyms, made and stored if missing. `place` is the folder's descriptor."""
    try:
        return plainfile.read(SECRET, 64, inside=place)
    except FileNotFoundError:
        key = secrets.token_hex(16).encode()
        plainfile.replace(place, SECRET, [key])
        return key


def _known(place: int) -> dict[str, str]:
    """Return the valid rows {student id: pseudonym} stored in the folder whose descriptor is `place`."""
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
    """Return the pseudonym computed from `key` and the student's id `name`, with a number if it is already `taken`."""
    digest = hmac.new(key, name.encode(errors="surrogateescape"), hashlib.sha256).digest()
    first, second = int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:8], "big")
    drawn = pseudonym = f"{QUALITIES[first % len(QUALITIES)]} {ANIMALS[second % len(ANIMALS)]}"
    count = 1
    while pseudonym in taken:
        count += 1
        pseudonym = f"{drawn} {count}"
    return pseudonym


#: (the student's time / the reference's time, low end of this ratio's confidence interval, high end).
Ratio = tuple[float, float, float]


@dataclass(frozen=True)
class Place:
    """Rank of one student, given by id, in one part. `ratio` is the student's time / the reference's time.

    `low` and `high` are the ends of the ratio's confidence interval. `is_tied`: other students have the same rank.
    """

    student: str
    ratio: float
    low: float
    high: float
    rank: int = 0
    is_tied: bool = False


@dataclass(frozen=True)
class PartBoard:
    """The ranking in one part, the fastest student first, and each student's results over time."""

    id: str
    title: str
    places: tuple[Place, ...]
    history: dict[str, dict[int, float]]
    """By student: the ratio by number of the run (from 0), in the order of the runs."""


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
                # The ledger can hold several runs. The result belongs to the last run that started before it.
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
    """Return a part's ranking and history; None if no student has a time to rank (`counted`).

    A run's key is the text "NUMBER OF THE FOLDER, START TIME". `records` are pairs (key of the run, record), `states`
    are all runs' keys in order, and `stands` is the result of `persons`.
    """
    last: dict[str, Ratio | None] = {}
    points: dict[str, dict[int, float]] = {}
    for state, record in records:
        ratio = counted(record, part_id)
        last[record.submission_id] = ratio
        if ratio is not None:
            run, student = states.index(state), stands[record.submission_id]
            points.setdefault(student, {})[run] = ratio[0]
    # A student with two ids is ranked once, with the faster result.
    best: dict[str, Ratio] = {}
    for name, ratio in last.items():
        if ratio is not None:
            best[stands[name]] = min(ratio, best.get(stands[name], ratio))
    ranked = placed(Place(name, *ratio) for name, ratio in best.items())
    if not ranked:
        return None
    history = {place.student: dict(sorted(points[place.student].items())) for place in ranked}
    return PartBoard(part_id, title, ranked, history)


def counted(record: Record, part_id: str) -> Ratio | None:
    """Return a record's ratio for a part; None if the part is wrong, not timed, or has a flag for review."""
    ratio = record.ratios.get(part_id)
    if ratio is None or record.fault or part_id in record.flagged or not all(map(math.isfinite, ratio)):
        return None
    return ratio if record.verdicts.get(part_id) in ("pass", "slow") else None


def placed(found: Iterable[Place]) -> tuple[Place, ...]:
    """Return the places with ranks, the fastest first. Places in a chain of overlapping intervals share a rank."""
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
    """Return {submission id: the last submission id of the same person}.

    `entries` are the rosters' entries, the oldest run first. Submissions belong to one person if they share an e-mail
    address or an id on a platform. Names are not compared: two students may have the same name.
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
