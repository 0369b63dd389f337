"""Gradebooks of Canvas and Moodle: a class of twenty-five goes into each export and comes back, and every other byte
stays. What is refused: test_platforms_refused.py."""

from __future__ import annotations

import csv
import io
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from classrows import ABSURD_NAMES
from platform_exports import (
    CANVAS_HEADER,
    EXPORTS,
    MOODLE_HEADER,
    TITLE,
    canvas_export,
    canvas_with,
    graded_class,
    moodle,
    moodle_export,
    moodle_with,
    report,
    text_of,
)

from grader.base.errors import UsageError
from grader.staff.classroom import ledger
from grader.staff.platforms import cells, gradebook, matching, table
from grader.staff.platforms.gradebook import Asked
from grader.staff.platforms.matching import Student


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graded_class(tmp_path_factory.mktemp("gradebooks"))


def by_id(out: Path) -> dict[str, dict[str, str]]:
    text = (out / "grades.csv").read_text(encoding="utf-8-sig")
    return {row["id"]: row for row in csv.DictReader(io.StringIO(text))}


@pytest.mark.parametrize("platform", EXPORTS)
def test_a_class_of_25_goes_in_and_comes_back(platform: str, graded: Path, tmp_path: Path) -> None:
    make, column = EXPORTS[platform]
    export = tmp_path / "export.csv"
    export.write_bytes(make().encode())
    said = report(graded, **{platform: export})
    made = graded / f"{platform}.csv"
    totals = [row["total"] for row in by_id(graded).values()]
    assert (
        sum(1 for total in totals if total) == 24
        and sum(row["late_penalty"] != "0" for row in by_id(graded).values()) > 8
    )
    # By position: the roster's order is that of the export, however each of them is known.
    roster = [entry.submission_id for entry in ledger.read(graded).roster]
    wanted = [by_id(graded)[name]["total"] for name in roster]

    def read(path: Path) -> list[dict[str, str]]:
        rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""))
        return [row for row in rows if next(iter(row.values())).strip() != "Points Possible"]

    found, before = read(made), read(export)
    assert [float(row[column]) if row[column] else None for row in found] == [
        float(total) if total else None for total in wanted
    ]
    assert [{**row, column: ""} for row in found] == before
    assert (
        f"{platform}: grades filled in: 24; left" in said and "no grade yet, left as they were (1): " in said
    )
    assert "not final (5): " in said, "five have no points for the write-up"
    # In again: nothing is to be done, and nothing is another byte.
    first = made.read_bytes()
    again = report(graded, **{platform: export})
    assert made.read_bytes() == first and again.splitlines()[-1] == said.splitlines()[-1]
    assert f"{platform}: grades filled in: 0; left as they were: 25" in report(graded, **{platform: made})
    assert made.read_bytes() == first


def test_a_regrade_says_what_it_replaces(graded: Path, tmp_path: Path) -> None:
    export = tmp_path / "export.csv"
    export.write_text(canvas_export().replace("A,,0", "A,17.5,0", 1))
    said = report(graded, canvas=export)
    assert re.search(r"another grade stood there and is replaced \(1\): Last0, First 17\.5 -> [\d.]+\n", said)


def test_two_of_one_name_are_told_apart_and_names_with_commas_too(graded: Path, tmp_path: Path) -> None:
    export = tmp_path / "export.csv"
    text = canvas_export()
    for k, name in ((3, "Smith, Bob"), (4, "Smith, Bob"), (5, "Doe, D")):
        text, count = re.subn(rf'"Last{k}, First",(\d+),[^,]*,[^,]*,', rf'"{name}",\1,,else{k},', text)
        assert count == 1
    export.write_text(text)
    lines = [k for k, line in enumerate(text.splitlines(), 1) if "Smith, Bob" in line]
    told = f"left as they were (3): Smith, Bob (line {lines[0]}); Smith, Bob (line {lines[1]}); Doe, D\n"
    assert told in report(graded, canvas=export)


def test_who_is_in_one_list_alone_is_listed(graded: Path, tmp_path: Path) -> None:
    export = tmp_path / "export.csv"
    export.write_text(
        canvas_export(22).replace('"Last3, First",503,9003,login3', "\x1b[2J=1+1 Test,503,,elsewhere")
    )
    said = report(graded, canvas=export)
    assert "submissions of nobody in export.csv (4): login3, " in said and "login23" in said
    assert (
        "in export.csv without a submission, left as they were (1): ?[2J=1+1 Test" in said
        and "\x1b" not in said
    )
    kept = (graded / "canvas.csv").read_text().splitlines()[5]
    assert kept == "\x1b[2J=1+1 Test,503,,elsewhere,A,,0"


@pytest.mark.parametrize(
    "left_out, matched",
    [(("Full name", "Email address"), 2), (("Email address",), 2), (("Email address", "ID number"), 1)],
)
def test_a_worksheet_may_lack_names_and_addresses(
    left_out: tuple[str, ...], matched: int, tmp_path: Path
) -> None:
    """Where marking is blind a download's folders are called by the participants' numbers alone, too."""
    header = [*MOODLE_HEADER, "ID number"]
    kept = [k for k, name in enumerate(header) if name not in left_out]
    rows = [[moodle(k)[column] for column in kept] for k in (0, 1)]
    path = tmp_path / "worksheet.csv"
    path.write_text(text_of([header[k] for k in kept], rows))
    students = [
        Student(
            "participant_700",
            "",
            matching.identities("participant_700", (), ("moodle:700",), fold=False),
            12.5,
        ),
        Student("9001", "", matching.identities("9001", (), (), fold=False), 50.0),
        Student("else", "", matching.identities("else", (), (), fold=False), 7.0),
    ]
    found = gradebook.fill(table.gradebooks()["moodle"], path, students, Asked(TITLE, 100.0))
    assert found.content.decode().count(",12.5,") == 1 and found.content.decode().count(",50,") == matched - 1
    said = "\n".join(found.notes)
    names = ("Participant 701" if "Full name" in left_out else "First Last1") if matched == 1 else None
    assert f"grades filled in: {matched}" in said and (names is None or names in said), said


# ---- any table


def pieces(
    draw: random.Random, platform: str
) -> tuple[list[str], list[int], list[Student], list[str | None]]:
    """An export in pieces of text, which of them are cells to be filled, the class, and what is to stand there."""
    ending, quoted = draw.choice(["\n", "\r\n", "\r"]), draw.random() < 0.5

    def cell(text: str) -> str:
        needs = re.search(r'[",\r\n]', text) or text.startswith('"')
        return '"' + text.replace('"', '""') + '"' if needs or quoted or draw.random() < 0.2 else text

    extra = [
        draw.choice(["Quiz (1)", "Äß = 2 (22)", "Notes", "Final Score"]) + " " * k
        for k in range(draw.randrange(3))
    ]
    header = (
        [*CANVAS_HEADER[:6], *(name for name in extra if platform == "canvas")]
        if platform == "canvas"
        else MOODLE_HEADER
    )
    at = header.index(f"{TITLE} (4711)" if platform == "canvas" else "Grade")
    rows: list[list[str]] = [header]
    if platform == "canvas":
        if draw.random() < 0.3:
            rows.append(["", "", "", "", "", "Manual Posting", *extra])
        rows.append(["    Points Possible", "", "", "", "", "100.00", *("(read only)" for _ in extra)])
    first, students, values = len(rows), [], []
    for k in range(draw.randrange(1, 12)):
        name = draw.choice(ABSURD_NAMES).replace("\0", "").encode("utf-8", "replace").decode()
        old = draw.choice(["", "", "12.5", "-", "0"])
        if platform == "canvas":
            rows.append([name, str(k), f"s{k}", f"u{k}@x.org", "=1+1,2", old, *(name for _ in extra)])
        else:
            rows.append([f"Participant {k}", name, f"U{k}@x.org", name, old, "100.00", "Yes", "-", "-", name])
        total = draw.choice([None, 0.0, 12.5, 100.0, 33.333, draw.random() * 100])
        if k and draw.random() < 0.2:
            values.append(None)
            continue
        address = f"u{k}@x.org" if platform == "canvas" else f"U{k}@x.org"
        known = matching.identities(f"f{k}", (address,), (), fold=platform == "canvas")
        students.append(Student(f"f{k}", name, known, total))
        same = total is not None and old in ("12.5", "0") and float(old) == round(total, 2)
        values.append(None if total is None or same else f"{round(total, 2):.2f}".rstrip("0").rstrip("."))
    draw.shuffle(students)
    if platform == "canvas" and draw.random() < 0.5:
        # Columns of the course's own may stand before the assignment's as well.
        rows = [[*row[:at], *row[at + 1 :], row[at]] for row in rows]
        at = len(header) - 1
    found, places = ["\ufeff"] if draw.random() < 0.5 else [""], []
    for number, row in enumerate(rows):
        for column, text in enumerate(row):
            if number >= first and column == at:
                places.append(len(found))
            found += [cell(text), "," if column + 1 < len(row) else ending]
    return found, places, students, values


@pytest.mark.parametrize("platform", EXPORTS)
def test_all_bytes_but_the_grades_stay(platform: str, tmp_path: Path) -> None:
    draw, path = random.Random(77), tmp_path / "export.csv"
    book = table.gradebooks()[platform]
    for _ in range(300):
        before, places, students, values = pieces(draw, platform)
        path.write_bytes("".join(before).encode())
        found = gradebook.fill(book, path, students, Asked(TITLE, 100.0))
        after = list(before)
        for place, value in zip(places, values, strict=True):
            if value is not None:
                after[place] = f'"{value}"' if before[place].startswith('"') else value
        assert found.content.decode() == "".join(after)
        assert not any("\n" in note or "\x1b" in note for note in found.notes)
        path.write_bytes(found.content)
        assert gradebook.fill(book, path, students, Asked(TITLE, 100.0)).content == found.content


def test_cells_are_those_of_the_csv_module() -> None:
    draw = random.Random(4180)
    for _ in range(2000):
        text = "".join(draw.choice('ab,"\n\r ') for _ in range(draw.randrange(30)))
        try:
            wanted = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if any(row)]
        except csv.Error:
            wanted = None
        try:
            found = [[cell.text for cell in row.cells] for row in cells.parse(Path("t"), text).rows]
        except UsageError:
            found = None
        assert found == wanted or wanted is None, text


# ---- rows of their own kind


def test_moodle_compares_addresses_with_case_and_says_so(graded: Path, tmp_path: Path) -> None:
    export = tmp_path / "export.csv"
    export.write_text(moodle_with("Student0@", "student0@"))
    assert "student0@example.edu differs in capitals, which Moodle compares)" in report(graded, moodle=export)


def test_columns_are_known_in_whatever_capitals(graded: Path, tmp_path: Path) -> None:
    export = tmp_path / "export.csv"
    export.write_text(moodle_with("Maximum Grade", "Maximum grade"))
    report(graded, moodle=export)
    assert "Maximum grade" in (graded / "moodle.csv").read_text(encoding="utf-8-sig").splitlines()[0]
    export.write_text(moodle_with("ID number", "GROUP,group"))
    with pytest.raises(UsageError, match="the column 'Group' stands there twice"):
        report(graded, moodle=export)


def test_a_class_that_waits_for_the_same_is_not_listed_by_name(tmp_path: Path) -> None:
    known = [matching.identities("f", (f"student{k}@example.edu",), (), fold=True) for k in range(3)]
    export = tmp_path / "export.csv"
    export.write_text(canvas_export(3))

    def notes(*waiting: tuple[str, ...]) -> str:
        students = [Student(f"f{k}", "x", known[k], 5.0, each) for k, each in enumerate(waiting)]
        book = table.gradebooks()["canvas"]
        return " ".join(gradebook.fill(book, export, students, Asked(TITLE, 100.0)).notes)

    assert "not final: all 3 (writeup)" in notes(*[("writeup",)] * 3)
    assert "not final (2): f0 (writeup), f2 (writeup)" in notes(("writeup",), (), ("writeup",))
    assert "not final (3): f0 (writeup), f1 (part4), " in notes(("writeup",), ("part4",), ("writeup",))


def test_one_locked_grade_and_extra_credit_do_not_stop_the_others(tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    path.write_text(moodle_export(4).replace("Yes", "No", 1))
    known = [
        Student(f"f{k}", "x", matching.identities("f", (f"Student{k}@example.edu",), (), fold=False), total)
        for k, total in enumerate((50.0, 104.0, 60.0))
    ]
    found = gradebook.fill(table.gradebooks()["moodle"], path, known, Asked(TITLE, 100.0))
    grades = [row["Grade"] for row in csv.DictReader(io.StringIO(found.content.decode("utf-8-sig")))]
    assert grades == ["", "100", "60", ""]
    assert "cannot be changed and are left (1): First Last0 50 (its grade cannot be changed)" in found.notes
    assert "above the maximum of 100, which is filled in (1): First Last1 104" in found.notes


def test_a_group_gets_its_grade_in_every_row(tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    path.write_text(canvas_export(3))
    emails = ("student0@example.edu", "student1@example.edu")
    group = Student("g", "x", matching.identities("g", emails, (), fold=True), 80.0, people=2)
    found = gradebook.fill(table.gradebooks()["canvas"], path, [group], Asked(TITLE, 100.0))
    assert found.content.decode().count(",80,0") == 2
    with pytest.raises(UsageError, match="belongs to 2 rows"):
        gradebook.fill(table.gradebooks()["canvas"], path, [replace(group, people=1)], Asked(TITLE, 100.0))


def test_a_link_in_place_of_the_file_is_replaced_and_not_followed(graded: Path, tmp_path: Path) -> None:
    export, target = tmp_path / "export.csv", tmp_path / "precious"
    export.write_text(canvas_export())
    target.write_text("precious")
    (graded / "canvas.csv").unlink(missing_ok=True)
    (graded / "canvas.csv").symlink_to(target)
    report(graded, canvas=export)
    assert target.read_text() == "precious" and not (graded / "canvas.csv").is_symlink()


def test_the_column_may_be_named_by_its_id(graded: Path, tmp_path: Path) -> None:
    export = tmp_path / "export.csv"
    export.write_text(canvas_with(TITLE, "Homework 4"))
    assert "grades filled in: 24" in report(graded, canvas=export, column="4711")
