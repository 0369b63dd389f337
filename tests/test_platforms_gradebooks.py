"""Gradebooks of Canvas and Moodle: grades are filled in, other bytes stay, exports of other classes are refused."""

import csv
import io
import random
import re
import shutil
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from classrows import ABSURD_NAMES, student
from conftest import refused, write

from grader import score as rubric
from grader.assignment.loading import load
from grader.core.errors import UsageError
from grader.core.places import PUBLIC_CONFIG
from grader.report import result_json
from grader.staff.classroom import fingerprints, ledger
from grader.staff.classroom import gradebook as classbook
from grader.staff.platforms import cells, gradebook, matching, table
from grader.staff.platforms.matching import Student

TITLE = "Attention kernels on a multi-core CPU"
CANVAS_HEADER = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", f"{TITLE} (4711)", "Final Score"]
MOODLE_HEADER = ["Identifier", "Full name", "Email address", "Status", "Grade", "Maximum Grade"]
MOODLE_HEADER += ["Grade can be changed", "Last modified (submission)", "Last modified (grade)"]
MOODLE_HEADER.append("Feedback comments")


@pytest.fixture(scope="module")
def graded_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write results of a class of 25 as a run does: late submissions, one unjudged submission, points by hand."""
    root = tmp_path_factory.mktemp("gradebooks")
    late = "late: {due: 2025-11-03T13:00:00+00:00, per_day: {share: 0.1}}\n"
    config = write(root, f"extends: {PUBLIC_CONFIG}\n{late}", "late.yaml")
    out, assignment, draw = root / "out", load(config), random.Random(25)
    rows, entries = [student(k, draw) for k in range(25)], []
    for k, row in enumerate(rows):
        name, at = f"login{k}" if k % 5 == 3 else row.submission_id, f"2025-11-0{3 + k % 3}T12:00:00+00:00"
        mail, number = {"emails": (f"Student{k}@example.edu",)}, {"identities": (f"sis:{9000 + k}",)}
        both = {"identities": (f"canvas:{500 + k}", f"moodle:{700 + k}")}
        known = (mail, number, both, {}, mail)[k % 5]
        entries.append(ledger.Entry(name, ABSURD_NAMES[k % 18], submitted_at=at, **known))
    at, prints = "2025-11-09T00:00:00+00:00", fingerprints.Fingerprints("s", assignment.fingerprint, "k", "t")
    run = ledger.Run(at, str(config), assignment.id, assignment.fingerprint, "k", None, True, "A", 1)
    with ledger.hold(out) as book:
        book.open_run(run, entries)
        for k, (row, entry) in enumerate(zip(rows, entries, strict=True)):
            if k == 7:
                continue
            judged = replace(row.result, submission_id=entry.submission_id)
            found = result_json.to_dict(judged, rubric.score(assignment, row.result))
            book.finish(ledger.Record(entry.submission_id, prints, at, {}, 1), found)
    by_hand = [f"{entry.submission_id},{k % 8}\n" for k, entry in enumerate(entries[:20])]
    (out / "manual.csv").write_text("".join(["id,writeup\n", *by_hand]))
    return out


def canvas(k: int) -> list[str]:
    login = f"login{k}" if k % 5 == 3 else f"STUDENT{k}@example.edu"
    number = str(9000 + k) if k % 2 or k % 5 == 1 else ""
    return [f"Last{k}, First", str(500 + k), number, login, "A", "", "0"]


def moodle(k: int) -> list[str]:
    number = f"{9000 + k}" if k % 5 == 1 else f"login{k}" if k % 5 == 3 else ""
    known = [f"Participant {700 + k}", f"First Last{k}", f"Student{k}@example.edu", "Submitted for grading"]
    return [*known, "", "100.00", "Yes", "-", "-", "keep <b>this</b>, please", number]


def text_of(header: list[str], rows: list[list[str]]) -> str:
    target = io.StringIO()
    csv.writer(target, lineterminator="\r\n").writerows([header, *rows])
    return target.getvalue()


def canvas_export(students: int = 25) -> str:
    possible = ["    Points Possible", "", "", "", "", "100", "(read only)"]
    return text_of(CANVAS_HEADER, [possible, *(canvas(k) for k in range(students))])


def moodle_export(students: int = 25) -> str:
    return "\ufeff" + text_of([*MOODLE_HEADER, "ID number"], [moodle(k) for k in range(students)])


canvas_with, moodle_with = canvas_export().replace, moodle_export().replace
EXPORTS = {"canvas": (canvas_export(), f"{TITLE} (4711)"), "moodle": (moodle_export(), "Grade")}
OWN_COLUMNS = ("Quiz (1)", "Äß = 2 (22)", "Notes", "Final Score")
Pieces = tuple[list[str], list[int], list[Student], list[str | None]]


def report(out: Path, column: str | None = None, **exports: Path) -> str:
    with redirect_stdout(io.StringIO()) as printed:
        assert classbook.report(out, None, exports=exports, column=column) == 0
    return printed.getvalue()


@pytest.fixture
def graded(graded_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(graded_once, tmp_path / "graded"))


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return tmp_path / "export.csv"


def read(path: Path) -> list[dict[str, str]]:
    rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""))
    return [row for row in rows if next(iter(row.values())).strip() != "Points Possible"]


def fill(platform: str, export: Path, students: list[Student]) -> gradebook.Filled:
    return gradebook.fill(table.gradebooks()[platform], export, students, gradebook.Asked(TITLE, 100.0))


@pytest.mark.parametrize("platform", EXPORTS)
def test_a_class_of_25_is_filled_into_an_export(platform: str, graded: Path, export: Path) -> None:
    text, column = EXPORTS[platform]
    export.write_bytes(text.encode())
    said = report(graded, **{platform: export})
    made, grades = graded / f"{platform}.csv", {row["id"]: row for row in read(graded / "grades.csv")}
    assert sum(bool(row["total"]) for row in grades.values()) == 24
    assert sum(row["late_penalty"] != "0" for row in grades.values()) > 8
    # Compare by position: the export lists students in the roster's order, but may use other ids.
    wanted = [grades[entry.submission_id]["total"] for entry in ledger.read(graded).roster]
    found = read(made)
    assert [row[column] and float(row[column]) for row in found] == [each and float(each) for each in wanted]
    assert [{**row, column: ""} for row in found] == read(export)
    assert f"{platform}: grades filled in: 24; left" in said
    assert "no grade yet, left as they were (1): " in said
    assert "not final (5): " in said, "five have no points for the write-up"
    # Fill in the totals once more: no grade and no byte changes.
    first = made.read_bytes()
    again = report(graded, **{platform: export})
    assert made.read_bytes() == first and again.splitlines()[-1] == said.splitlines()[-1]
    assert f"{platform}: grades filled in: 0; left as they were: 25" in report(graded, **{platform: made})
    assert made.read_bytes() == first


def test_students_of_one_list_and_two_of_one_name_are_listed(graded: Path, export: Path) -> None:
    text = canvas_export()
    for k, name in ((3, "Smith, Bob"), (4, "Smith, Bob"), (5, "Doe, D")):
        text = re.sub(rf'"Last{k}, First",(\d+),[^,]*,[^,]*,', rf'"{name}",\1,,else{k},', text)
    export.write_text(text)
    a, b = (k for k, line in enumerate(text.splitlines(), 1) if "Smith, Bob" in line)
    left = f"left as they were (3): Smith, Bob (line {a}); Smith, Bob (line {b}); Doe, D\n"
    assert left in report(graded, canvas=export)
    unknown = "\x1b[2J=1+1 Test,503,,elsewhere"
    export.write_text(canvas_export(22).replace('"Last3, First",503,9003,login3', unknown))
    said = report(graded, canvas=export)
    assert "submissions whose student is not in export.csv (4): login3, " in said and "login23" in said
    assert "in export.csv without a submission, left as they were (1): ?[2J=1+1 Test" in said
    assert "\x1b" not in said and (graded / "canvas.csv").read_text().splitlines()[5] == f"{unknown},A,,0"


@pytest.mark.parametrize(
    "left_out, matched",
    [(("Full name", "Email address"), 2), (("Email address",), 2), (("Email address", "ID number"), 1)],
)
def test_a_worksheet_may_lack_names(left_out: tuple[str, ...], matched: int, export: Path) -> None:
    """With blind marking, folders of a download are named by the participant's number, and worksheets lack names."""
    header = [*MOODLE_HEADER, "ID number"]
    kept = [k for k, name in enumerate(header) if name not in left_out]
    rows = [[moodle(k)[column] for column in kept] for k in (0, 1)]
    export.write_text(text_of([header[k] for k in kept], rows))
    known = (("participant_700", ("moodle:700",), 12.5), ("9001", (), 50.0), ("else", (), 7.0))
    students = [Student(n, "", matching.identities(n, (), ids, fold=False), total) for n, ids, total in known]
    found = fill("moodle", export, students)
    assert found.content.decode().count(",12.5,") == 1 and found.content.decode().count(",50,") == matched - 1
    said = "\n".join(found.notes)
    assert f"grades filled in: {matched}" in said
    if matched == 1:
        assert ("Participant 701" if "Full name" in left_out else "First Last1") in said


def pieces(draw: random.Random, platform: str) -> Pieces:
    """Return a random export's pieces, indices of pieces to fill in, students, and expected cells (None: unchanged)."""
    ending, quoted = draw.choice(["\n", "\r\n", "\r"]), draw.random() < 0.5
    on_canvas = platform == "canvas"

    def cell(text: str) -> str:
        needs = re.search(r'[",\r\n]', text) or text.startswith('"')
        return '"' + text.replace('"', '""') + '"' if needs or quoted or draw.random() < 0.2 else text

    extra = [draw.choice(OWN_COLUMNS) + " " * k for k in range(draw.randrange(3))]
    header = [*CANVAS_HEADER[:6], *extra] if on_canvas else MOODLE_HEADER
    at = header.index(EXPORTS[platform][1])
    rows: list[list[str]] = [header]
    if on_canvas:
        if draw.random() < 0.3:
            rows.append(["", "", "", "", "", "Manual Posting", *extra])
        rows.append(["    Points Possible", "", "", "", "", "100.00", *("(read only)" for _ in extra)])
    first, students, values = len(rows), [], []
    for k in range(draw.randrange(1, 12)):
        name = draw.choice(ABSURD_NAMES).replace("\0", "").encode("utf-8", "replace").decode()
        old = draw.choice(["", "", "12.5", "-", "0"])
        address = f"u{k}@x.org" if on_canvas else f"U{k}@x.org"
        on_moodle = [f"Participant {k}", name, address, name, old, "100.00", "Yes", "-", "-", name]
        of_canvas = [name, str(k), f"s{k}", address, "=1+1,2", old, *(name for _ in extra)]
        rows.append(of_canvas if on_canvas else on_moodle)
        total = draw.choice([None, 0.0, 12.5, 100.0, 33.333, draw.random() * 100])
        if k and draw.random() < 0.2:
            values.append(None)
            continue
        known = matching.identities(f"f{k}", (address,), (), fold=on_canvas)
        students.append(Student(f"f{k}", name, known, total))
        same = total is not None and old in ("12.5", "0") and float(old) == round(total, 2)
        values.append(None if total is None or same else f"{round(total, 2):.2f}".rstrip("0").rstrip("."))
    draw.shuffle(students)
    if on_canvas and draw.random() < 0.5:
        # Other columns of the course may precede or follow the assignment's column.
        rows, at = [[*row[:at], *row[at + 1 :], row[at]] for row in rows], len(header) - 1
    found, places = ["\ufeff"] if draw.random() < 0.5 else [""], []
    for number, row in enumerate(rows):
        for column, text in enumerate(row):
            if number >= first and column == at:
                places.append(len(found))
            found += [cell(text), "," if column + 1 < len(row) else ending]
    return found, places, students, values


@pytest.mark.parametrize("platform", EXPORTS)
def test_filling_changes_only_the_bytes_of_grades(platform: str, export: Path) -> None:
    draw = random.Random(77)
    for _ in range(300):
        text, places, students, values = pieces(draw, platform)
        export.write_bytes("".join(text).encode())
        found = fill(platform, export, students)
        for place, value in zip(places, values, strict=True):
            if value is not None:
                text[place] = f'"{value}"' if text[place].startswith('"') else value
        assert found.content.decode() == "".join(text)
        assert not any("\n" in note or "\x1b" in note for note in found.notes)
        export.write_bytes(found.content)
        assert fill(platform, export, students).content == found.content


def test_cells_are_those_of_the_csv_module() -> None:
    draw = random.Random(4180)
    for _ in range(2000):
        text = "".join(draw.choice('ab,"\n\r ') for _ in range(draw.randrange(30)))
        try:
            wanted = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if any(row)]
        except csv.Error:
            with suppress(UsageError):
                cells.parse(Path("t"), text)
            continue
        assert [[one.text for one in row.cells] for row in cells.parse(Path("t"), text).rows] == wanted, text


def test_moodle_addresses_are_case_sensitive_and_columns_are_not(graded: Path, export: Path) -> None:
    export.write_text(moodle_with("Student0@", "student0@").replace("Maximum Grade", "Maximum grade"))
    assert "student0@example.edu in Moodle has other capitals)" in report(graded, moodle=export)
    assert "Maximum grade" in (graded / "moodle.csv").read_text(encoding="utf-8-sig").splitlines()[0]


def by_address(k: int, total: float, platform: str = "canvas", waiting: tuple[str, ...] = ()) -> Student:
    known = matching.identities("f", (f"Student{k}@example.edu",), (), fold=platform == "canvas")
    return Student(f"f{k}", "x", known, total, waiting)


def test_students_are_not_listed_if_all_wait_for_the_same(export: Path) -> None:
    export.write_text(canvas_export(3))

    def notes(*waiting: tuple[str, ...]) -> str:
        students = [by_address(k, 5.0, waiting=each) for k, each in enumerate(waiting)]
        return " ".join(fill("canvas", export, students).notes)

    assert "not final: all 3 students, who lack points for writeup" in notes(*[("writeup",)] * 3)
    assert "not final (2): f0 (writeup), f2 (writeup)" in notes(("writeup",), (), ("writeup",))
    assert "not final (3): f0 (writeup), f1 (part4), " in notes(("writeup",), ("part4",), ("writeup",))


def test_locked_grades_extra_credit_and_groups_are_filled_in(export: Path) -> None:
    export.write_text(moodle_export(4).replace("Yes", "No", 1))
    students = [by_address(k, total, "moodle") for k, total in enumerate((50.0, 104.0, 60.0))]
    found = fill("moodle", export, students)
    export.write_bytes(found.content)
    assert [row["Grade"] for row in read(export)] == ["", "100", "60", ""]
    assert "not filled in, because the grade is locked (1): First Last0 50 (locked in Moodle)" in found.notes
    assert "above the maximum, so 100 is filled in (1): First Last1 104" in found.notes
    export.write_text(canvas_export(3))
    emails = ("student0@example.edu", "student1@example.edu")
    group = Student("g", "x", matching.identities("g", emails, (), fold=True), 80.0, people=2)
    assert fill("canvas", export, [group]).content.decode().count(",80,0") == 2
    refused("matches 2 rows", fill, "canvas", export, [replace(group, people=1)])


def test_the_column_may_be_an_id_and_a_link_is_replaced_and_not_followed(graded: Path, export: Path) -> None:
    target = write(export.parent, "precious", "precious")
    (graded / "canvas.csv").symlink_to(target)
    export.write_text(canvas_with(TITLE, "Homework 4").replace("A,,0", "A,17.5,0", 1))
    said = report(graded, canvas=export, column="4711")
    assert target.read_text() == "precious" and not (graded / "canvas.csv").is_symlink()
    assert "grades filled in: 24" in said
    assert re.search(r"replaced an earlier grade \(1\): Last0, First 17\.5 -> [\d.]+\n", said)


ANOTHER_COURSE = canvas_with("example.edu", "other.edu").replace("login", "x").replace(",90", ",80")
OTHER_SHEET = moodle_with("example.edu", "other.edu").replace("Participant 7", "Participant 8")
TWO_SUBMISSIONS = canvas_with(",,STUDENT0@", ",9001,STUDENT0@").replace("501,9001", "501,")
#: Exports of Canvas and of Moodle that are refused, and a part of the message.
NO_CANVAS = {
    "another course": (ANOTHER_COURSE.replace(",5", ",6"), "none of the 25 submissions belongs to one of"),
    "one id": (canvas_with("9003", "9001"), ":6: another student has the same id '9001': see .*:4"),
    "no column": (canvas_with("SIS Login ID", "Login"), ":1: there is no column 'SIS Login ID'"),
    "a column twice": (canvas_with("Section", "ID"), ":1: the column 'ID' .* twice|no column 'Sec"),
    "closed": (canvas_with(",100,", ",100 (read only),"), ":2: 'Attention .* is the assignment closed"),
    "no such assignment": (canvas_with("Attention kernels", "Quiz"), ":1: no column is called 'Attention"),
    "two such": (canvas_with("Final Score", f"{TITLE} (1)"), ":1: several columns .* with --column"),
    "another maximum": (canvas_with(",100,", ",50,"), ":2: the assignment is out of 50 points in"),
    "no points possible": (canvas_with("Points Possible", "x"), "there is no row 'Points Possible'"),
    "a short row": (canvas_with("A,,0", "A", 1), ":3: 5 cells for 7 columns"),
    "semicolons": (canvas_with(",", ";"), "should be separated by commas"),
    "an open quotation": (canvas_with('"Last3', '"""Last3').replace('First",503', "First,503"), "CSV"),
    "not UTF-8": ("\udcff", "not UTF-8 text"),
    "one submission of two": (TWO_SUBMISSIONS, "matches two submissions"),
}
NO_MOODLE = {
    "another course": (OTHER_SHEET.replace(",login", ",x").replace(",90", ",80"), "export of another course"),
    "one address": (moodle_with("Student4@", "Student5@"), ":7: another student has the same id 'Stud"),
    "no column": (moodle_with("Feedback comments", "x"), ":1: there is no column 'Feedback"),
    "a column too many": (moodle_with("ID number", "My notes"), ":1: Moodle does not know the column 'My n"),
    "a column twice": (moodle_with("ID number", "GROUP,group"), ":1: the column 'Group' occurs twice"),
    "closed": (moodle_with(",Yes,", ",No,"), "every grade is locked: is the assign"),
    "another maximum": (moodle_with("100.00", "10.00", 1), ":2: the assignment is out of 10 poin"),
    "nothing": ("", "the file is empty"),
    "an identifier": (moodle_with("Participant 701", "701"), ":3: expected an identifier like 'Participant"),
}
REFUSED = [("canvas", kind) for kind in NO_CANVAS] + [("moodle", kind) for kind in NO_MOODLE]


def written(out: Path) -> dict[Path, int]:
    # Leave out the lock: each command writes into it.
    return {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != "lock"}


@pytest.mark.parametrize(("platform", "kind"), REFUSED)
def test_another_export_is_refused_in_one_line(platform: str, kind: str, graded: Path, export: Path) -> None:
    text, why = (NO_CANVAS if platform == "canvas" else NO_MOODLE)[kind]
    before = written(graded)
    export.write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(why, report, graded, **{platform: export})
    assert written(graded) == before, "no file may be written"
