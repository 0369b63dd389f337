"""The leaderboard: who is on it, ties, pseudonyms, histories, and a page that needs nothing from elsewhere."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from classes import ledgers
from conftest import ASSIGNMENT, COURSE, refused
from test_report_html import Page

from grader.__main__ import run
from grader.staff.board.page import page as page_of
from grader.staff.board.standings import Place, board_of, counted, placed
from grader.staff.classroom import ledger
from grader.staff.classroom.ledger import Entry, Record, Run


def record(name: str, ratio: float | None, day: int = 4, **more: object) -> Record:
    ratios = {} if ratio is None else {"part1": (ratio, ratio - 0.02, ratio + 0.02)}
    known = {"verdicts": {"part1": "pass"}, "ratios": ratios, **more}
    return replace(ledgers.record(name), at=f"2026-11-{day:02}T12:00:00+00:00", **known)  # type: ignore[arg-type]


def run_on(day: int) -> Run:
    return Run(f"2026-11-{day:02}T08:00:00+00:00", str(COURSE), "gpt149", "f", "k", None, True, "A", 1)


@pytest.fixture
def graded(tmp_path: Path) -> Path:
    """Results of two runs over four days. cyd is flagged, dee is wrong, eve's last result counts, fay left."""
    roster = [Entry(name, name) for name in ("ada", "bob", "ida", "cyd", "dee", "eve")]
    wrong = {"verdicts": {"part1": "wrong"}}
    first = [record("ada", 1.30, 1), record("bob", 1.0, 1), record("eve", 0.5, 1)]
    last = [record("ada", 0.80), record("bob", 0.81), record("cyd", 0.1, flagged=("part1",))]
    last += [record("dee", 0.2, **wrong), record("eve", None, **wrong)]
    last += [record("ida", 1.5), record("fay", 0.3)]
    out = tmp_path / "out"
    with ledger.hold(out) as book:
        for day, results in ((1, first), (4, last)):
            book.open_run(run_on(day), roster if day == 4 else [*roster, Entry("fay", "fay")])
            for each in results:
                book.finish(each, None)
    return out


def test_overlapping_intervals_share_a_place_with_the_first_of_it() -> None:
    near = [Place("c", 1.2, 1.05, 1.3), Place("a", 1.0, 0.9, 1.1), Place("b", 1.1, 1.0, 1.2)]
    found = [(place.student, place.rank, place.is_tied) for place in placed([*near, Place("d", 2, 2, 2)])]
    assert found == [("a", 1, True), ("b", 1, True), ("c", 1, True), ("d", 4, False)]
    far = placed([Place("a", 1.0, 0.9, 1.1), Place("b", 1.2, 1.11, 1.3), Place("c", 1.25, 1.2, 1.3)])
    assert [place.rank for place in far] == [1, 2, 2]
    assert placed([]) == ()
    # Others may stand between them.
    tight = [Place(f"t{k}", 0.93 + k / 1000, 0.925, 0.95) for k in range(12)]
    others = [Place("late", 1.0, 0.97, 1.04), Place("wide", 0.92, 0.9, 0.99), Place("far", 2, 1.9, 2.1)]
    found = placed([*tight, *others])
    assert {place.student: place.rank for place in found if place.rank > 1} == {"far": 15}
    assert [place.student for place in found[:2]] == ["wide", "t0"] and found[0].is_tied


def test_one_person_with_two_ids_stands_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    roster = [Entry("fay", "Fay", ("F@x.edu",)), Entry("fay-2", "Fay", ("f@x.edu",), identities=("sis:7",))]
    roster += [Entry("doe", "Fay", identities=("sis:7",)), Entry("other", "Fay", ("g@x.edu",))]
    roster.append(Entry("bare", "Fay"))
    with ledger.hold(out) as book:
        book.open_run(run_on(4), roster)
        for k, entry in enumerate(roster):
            book.finish(record(entry.submission_id, 1.0 + k / 2), None)
    (part,) = board_of([out], ASSIGNMENT).parts
    found = [(place.student, place.ratio) for place in part.places]
    assert found == [("doe", 1.0), ("other", 2.5), ("bare", 3.0)]


def test_only_the_right_and_unflagged_count(graded: Path) -> None:
    board = board_of([graded], ASSIGNMENT)
    (part,) = board.parts
    assert [(place.student, place.rank) for place in part.places] == [("ada", 1), ("bob", 1), ("ida", 3)]
    assert [point.ratio for point in part.history["ada"]] == [1.30, 0.80] and len(board.runs) == 2
    for uncounted in (record("x", float("nan")), record("x", 1.0, fault="kit")):
        assert counted(uncounted, "part1") is None
    assert counted(record("x", 1.0, verdicts={"part1": "slow"}), "part1") is not None


def test_the_page_is_whole_and_pseudonyms_stay(graded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["board", str(graded), "--json", str(graded / "field.json")]) == 0
    said = capsys.readouterr().out
    page = (graded / "board.html").read_text()
    read, kept = Page(page), (graded / "pseudonyms.csv").read_text()
    known = {row["id"]: row["pseudonym"] for row in csv.DictReader(kept.splitlines())}
    assert not read.open and "<script" not in page
    assert not [given for _, given in read.elements if "src" in given or (given.get("href") or "#")[0] != "#"]
    assert set(known) == {"ada", "bob", "ida"} and len(set(known.values())) == 3
    assert not re.search(r"\b(ada|bob|ida)\b", page + said)
    assert all(page.count(name) >= 2 for name in known.values()), "the table and the line of each"
    assert page.count("<polyline") == 3 and page.count("=1</td>") == 2
    (field,) = json.loads((graded / "field.json").read_text())["ada"]
    assert field == {"name": "part1: time / reference", "value": 0.8, "order": "asc"}
    assert run(["board", str(graded)]) == 0
    assert (graded / "pseudonyms.csv").read_text() == kept, "a student keeps the name"
    assert run(["board", str(graded), "--names"]) == 0
    assert "<bdi>ada</bdi>" in (graded / "board.html").read_text()


def test_a_hostile_name_stands_on_the_page_as_text(graded: Path) -> None:
    odd = dict.fromkeys(("ada", "bob", "ida"), "<b>\u202eodd")
    hostile = "".join(page_of(ASSIGNMENT, board_of([graded], ASSIGNMENT), odd))
    assert "&lt;b&gt;" in hostile and "<b>" not in hostile and "\u202e" not in hostile


def test_a_board_of_nobody_or_of_nothing_is_reported_in_a_line(graded: Path, tmp_path: Path) -> None:
    refused(r"holds no ledger\.jsonl", run, ["board", str(tmp_path / "none"), str(graded)])
    with ledger.hold(tmp_path / "empty") as book:
        book.open_run(run_on(1), [Entry("ada", "ada")])
    refused("nobody was timed there", run, ["board", str(tmp_path / "empty")])
