"""`python -m grader board DIR ...`: one page that ranks the right submissions by speed, from ledgers alone.

Results folders are given from the oldest run to the newest. Every result in a ledger counts for the history, and each
student's last one for the standings.
"""

from __future__ import annotations

import json
from pathlib import Path

from grader.core import wholefile
from grader.core.commandline import Parser
from grader.core.errors import UsageError
from grader.core.places import GRADER_COMMAND
from grader.report.html import missing_library
from grader.staff.board import page
from grader.staff.board.standings import Board, board_of, pseudonyms
from grader.staff.classroom import gradebook

PAGE, TABLE = "board.html", "pseudonyms.csv"


def main(arguments: list[str]) -> int:
    parse = Parser(prog=f"{GRADER_COMMAND} board", description="Rank the right submissions by speed.")
    parse.path("folders", "--out folders of runs, the oldest first", "DIR", nargs="+")
    parse.add_argument("--names", action="store_true", help="show ids (default: pseudonyms)")
    parse.path("--out", f"the page (default: {PAGE} in the last DIR)")
    parse.path("--json", "also Gradescope's leaderboard field, by id")
    given = parse.parse_args(arguments)
    if missing := missing_library():
        raise UsageError(f"the page needs the package {missing}: `pip install {missing}`")
    last: Path = given.folders[-1]
    assignment, _ = gradebook.open_book(last)
    board = board_of(given.folders, assignment)
    if not board.parts:
        raise UsageError(
            f"{last}: no submission there was timed, right and without a flag, so no leaderboard was written"
        )
    called = {name: name for name in board.students}
    if not given.names:
        called = pseudonyms(last, board.students)
    target = given.out or last / PAGE
    try:
        wholefile.write(target, page.page(assignment, board, called))
        if given.json is not None:
            wholefile.write(given.json, [json.dumps(fields(board), indent=1), "\n"])
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or target}: {error.strerror}") from error
    for part in board.parts:
        first = part.places[0]
        print(
            f"{part.id}: {len(part.places)} right and unflagged; {called[first.student]} leads with {first.ratio:.2f} x"
        )
    note = "" if given.names else f"; ids of the pseudonyms: {last / TABLE}"
    print(f"wrote {target}{note}")
    return 0


def fields(board: Board) -> dict[str, list[dict[str, object]]]:
    """Return Gradescope's `leaderboard` for each student's submission."""
    found: dict[str, list[dict[str, object]]] = {}
    for part in board.parts:
        for place in part.places:
            entry = {"name": f"{part.id}: time / reference", "value": round(place.ratio, 3), "order": "asc"}
            found.setdefault(place.student, []).append(entry)
    return found
