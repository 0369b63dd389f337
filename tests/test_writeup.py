"""The write-up: regions that tables are put into, what is still empty, and a class's answers side by side."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader import submission
from grader.assignment.loading import load
from grader.base.errors import KitError, UsageError
from grader.base.places import WRITEUP_TEMPLATE
from grader.staff import writeups
from grader.staff.classroom import manual
from grader.staff.writeups import key, sheet, staff
from grader.study.writeup import checking, exporting, regions
from grader.study.writeup.regions import answers, fill, tables

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = (ROOT / "writeup_template.md").read_text()
TABLE = "| tile | ms |\n|---|---|\n| 8 | 1.0 |"


def answered(text: str = "Because of the cache.", template: str = TEMPLATE) -> str:
    """The template with every answer and table filled in."""
    for region in reversed(regions.regions(template)):
        body = TABLE if region.kind == "table" else text
        template = f"{template[: region.start]}{body}\n{template[region.end :]}"
    return template


# ---- regions


def test_a_table_is_put_into_its_region_and_nowhere_else() -> None:
    text = fill(TEMPLATE, "sweep-part2", TABLE)
    assert tables(text)["sweep-part2"] == TABLE
    assert sum(bool(each) for each in tables(text).values()) == 1 and not any(answers(text).values())
    assert fill(text, "sweep-part2", TABLE) == text, "again changes nothing"
    other = TABLE.replace("8", "16")
    assert fill(text, "sweep-part2", other) == fill(TEMPLATE, "sweep-part2", other)
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        line for line in TEMPLATE.splitlines() if line.startswith("#")
    ]


@given(
    st.text(
        alphabet=st.characters(
            exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029", exclude_categories=["Cs"]
        )
    )
)
def test_any_text_survives_in_a_region(text: str) -> None:
    before = "<!-- table: cache -->\n<!-- end -->\n"
    try:
        after = fill(before, "cache", text)
    except UsageError:
        assert "<!--" in text
        return
    assert tables(after)["cache"] == regions.without_comments(text.strip()).strip()


def test_line_endings_stay() -> None:
    text = fill("a\r\n<!-- table: cache -->\r\n<!-- end -->\r\nb\r\n", "cache", TABLE)
    assert "\n" not in text.replace("\r\n", "") and text.endswith("<!-- end -->\r\nb\r\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<!-- table: cache -->\n", "line 1: <!-- table: cache --> has no <!-- end -->"),
        ("a\n<!-- end -->\n", "line 2: <!-- end -->, but no region is open"),
        ("<!-- table: cache -->\n<!-- answer: x -->\n", "line 2: .* inside the region of line 1"),
        ("<!-- answer: x -->\n<!-- end -->\n" * 2, "line 3: .* second time"),
        ("<!-- answer: x --> and so on\n", "line 1: a marker stands alone"),
        ("<!-- Answer: X -->\n", "line 1: a marker stands alone"),
        ("", "there is no place for the table 'cache': write the lines"),
    ],
)
def test_a_broken_marker_is_told_by_its_line(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        fill(text, "cache", TABLE)


def test_a_table_cannot_bring_a_marker() -> None:
    with pytest.raises(UsageError, match="holds a region's marker"):
        fill(TEMPLATE, "cache", "x\n<!-- end -->")


def test_comments_are_no_answer() -> None:
    text = "<!-- answer: x -->\n<!-- write\nhere -->\n<!-- end -->\n"
    assert answers(text) == {"x": ""}


def test_template_key_and_studies_speak_of_the_same_things() -> None:
    asked = answers(TEMPLATE)
    questions = key.read(staff.WRITEUP_KEY)
    assert set(asked) - {question.answer for question in questions} == {"name", *checking.OPTIONAL}
    worth = {item.id: item.points for item in load(ROOT / "configs" / "gpt149.yaml").manual}
    assert sum(question.points for question in questions) == worth["writeup"]
    assert all(f"### {question.title} (" in TEMPLATE for question in questions)
    assert set(tables(TEMPLATE)) <= {
        step.table for step in load(ROOT / "configs" / "gpt149.yaml").lab.steps()
    }


ONE_ANSWER = "<!-- answer: x -->\n{}\n<!-- end -->\n"


@pytest.mark.parametrize(
    "pattern",
    [
        lambda n: ONE_ANSWER.format("<!--" * (n // 4)),
        lambda n: ONE_ANSWER.format("<!---->" * (n // 7)),
        lambda n: ONE_ANSWER.format("\n" * n),
        lambda n: ONE_ANSWER.format("\n <!-- x" * (n // 8)),
        lambda n: " " * (n // 2) + "<!-- answer:" + " " * (n // 2),
        lambda n: "<!-- answer: " + "a-" * (n // 2),
        lambda n: "".join(f"<!-- answer: a{k} -->\n<!-- end -->\n" for k in range(n // 35)),
    ],
    ids=["comments", "whole comments", "lines", "lines with comments", "blanks", "a name", "regions"],
)
def test_a_write_up_is_read_in_time_linear_in_its_size(pattern: Callable[[int], str]) -> None:
    def cpu_s(size: int) -> float:
        text = pattern(size)
        started = time.process_time()
        with contextlib.suppress(UsageError):
            checking.state_of(text, "writeup.md", ())
        return time.process_time() - started

    small, large = (min(cpu_s(size) for _ in range(3)) for size in (1 << 15, 1 << 18))
    assert large < 24 * small + 0.1, "8 times the size takes 64 times as long where time is quadratic"


def test_regions_have_limits() -> None:
    many = "".join(f"<!-- answer: a{k} -->\n<!-- end -->\n" for k in range(regions.MOST_REGIONS + 1))
    with pytest.raises(UsageError, match="line 401: more than 200 regions"):
        regions.regions(many)
    with pytest.raises(UsageError, match="line 1: a name has at most 60 letters: aaa"):
        regions.regions(f"<!-- answer: {'a' * 61} -->\n<!-- end -->\n")
    assert regions.regions(f"<!-- answer: {'a' * 60} -->\n<!-- end -->\n")[0].name == "a" * 60


def test_comments_end_where_they_end() -> None:
    for text, kept in {
        "a<!-- b -->c": "ac",
        "<!-- <!-- --> -->": " -->",
        "<!-->": "<!-->",
        "<!---->x": "x",
        "a <!-- b": "a <!-- b",
    }.items():
        assert regions.without_comments(text) == kept


# ---- for the student


def test_a_student_is_told_what_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "writeup.md"
    mine.write_text(TEMPLATE)
    assert writeups.main([str(mine)]) == 1
    told = capsys.readouterr().out
    assert "EMPTY" in told and "empty (optional)" in told and "python gpt149.py study --writeup" in told
    mine.write_text(answered())
    assert writeups.main([str(mine)]) == 0
    assert "nothing is empty" in capsys.readouterr().out
    mine.write_text(answered().replace("<!-- answer: layout -->\n", "").replace("<!-- end -->", "", 0))
    with pytest.raises(UsageError, match=r"writeup.md: line \d+: <!-- end -->, but no region is open"):
        writeups.main([str(mine)])
    mine.write_text("# mine\n")
    assert writeups.main([str(mine)]) == 1
    assert "GONE: write the lines <!-- answer: layout -->" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"no such file: .*writeup.md; begin with `cp"):
        writeups.main([str(tmp_path / "nowhere" / "writeup.md")])
    mine.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        writeups.main([str(mine)])


def test_what_the_template_says_is_no_answer() -> None:
    template = "<!-- answer: x -->\nWrite here.\n<!-- end -->\n"
    wanted = tuple(regions.regions(template))
    (place,) = checking.state_of(template, "w", wanted).places
    assert not place.filled
    (place,) = checking.state_of(template.replace("Write", "I wrote"), "w", wanted).places
    assert place.words == 3


def test_without_pandoc_a_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    mine = tmp_path / "writeup.md"
    mine.write_text(answered())
    assert exporting.export(mine, "pdf").startswith("no PDF: pandoc is not installed")
    pandoc = tmp_path / "pandoc"
    pandoc.write_text('#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done\necho page > "$2"\n')
    pandoc.chmod(pandoc.stat().st_mode | stat.S_IXUSR)
    assert exporting.export(mine, "html") == f"wrote {tmp_path / 'writeup.html'}"
    assert (tmp_path / "writeup.html").read_text() == "page\n"
    pandoc.write_text("#!/bin/sh\necho 'no LaTeX here' >&2\nexit 43\n")
    with pytest.raises(KitError, match="no LaTeX here; a PDF needs LaTeX"):
        exporting.export(mine, "pdf")


# ---- for the staff


@pytest.fixture
def handed_in(tmp_path: Path) -> Path:
    folder = tmp_path / "class"
    for name, text in {
        "ada": answered("Row-major.\n\n# A heading of mine\n<script>alert(1)</script>\x1b[31m"),
        "bob": TEMPLATE,
        "eve": "<!-- end -->\n",
    }.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "writeup.md").write_text(text)
    (folder / "ada" / "module.cpp").write_text("int main() {}\n")
    return folder


def test_a_class_is_read_question_by_question(
    handed_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, table = tmp_path / "reading.md", tmp_path / "manual.csv"
    assert writeups.main([str(handed_in), "--read", str(reading), "--sheet", str(table)]) == 0
    told = capsys.readouterr().out
    assert "3 write-ups, 1 complete" in told and "eve  writeup.md: line 1: <!-- end -->" in told
    text = reading.read_text()
    layout = text.partition("## 1. The layout")[2]
    assert layout.index("131072") < layout.index("**ada**") < layout.index("> Row-major.")
    assert "\n> # A heading of mine" in text and "\n# A heading" not in text and "\x1b" not in text
    assert manual.read_manual(table, load(ROOT / "configs" / "gpt149.yaml")) == {
        "ada": {},
        "bob": {},
        "eve": {},
    }


def test_a_hostile_write_up_moves_no_cursor_and_costs_its_reader_nothing(tmp_path: Path) -> None:
    """The command itself, since what it prints is made harmless where it is printed."""
    hostile = "\x1b]0;owned\x07\r\x1b[2Kmallory  complete\x9b2K\u202e"
    texts = {
        "mallory": f"<!-- answer: x --> {hostile}\n",
        "oscar": "<!-- answer: name -->\n" + "<!--" * (1 << 17) + "\n<!-- end -->\n",
        "peggy": "<!-- answer: name -->\n" + f"{hostile}\n" * 9000 + "<!-- end -->\n",
    }
    for name, text in texts.items():
        (tmp_path / "class" / name).mkdir(parents=True)
        (tmp_path / "class" / name / "writeup.md").write_text(text)
    command = [sys.executable, "-m", "grader", "writeup", str(tmp_path / "class"), "--read", "reading.md"]
    ended = subprocess.run(
        [*command, "--sheet", "manual.csv"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    told = ended.stdout.decode()
    assert ended.returncode == 0, ended.stderr
    assert "3 write-ups, 0 complete" in told and "mallory  writeup.md: line 1: a marker stands alone" in told
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", told)
    assert max(map(len, told.splitlines())) < 400 and len(told.splitlines()) == 6
    reading = (tmp_path / "reading.md").read_text()
    assert (
        "\x1b" not in reading and "\x9b" not in reading and "cut here" in reading and len(reading) < 150_000
    )
    assert "\x1b" not in (tmp_path / "manual.csv").read_text()


def test_a_pipe_is_no_write_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "writeup.md")
    with pytest.raises(UsageError, match="is no file"):
        writeups.main([str(tmp_path / "writeup.md")])
    (tmp_path / "long.md").write_bytes(b"a" * (checking.MOST_BYTES + 1))
    with pytest.raises(UsageError, match="larger than 4 MiB"):
        writeups.main([str(tmp_path / "long.md")])


def test_points_and_remarks_by_hand_stay(handed_in: Path, tmp_path: Path) -> None:
    table = tmp_path / "manual.csv"
    table.write_text("id,part1_extra,comment,writeup\nbob,3,seen in the lab,\nada,,,6.5\n")
    sheet.update(
        table,
        {"ada": ("ada", ""), "bob": ("bob", "empty: name"), "cyd": ("Cyd D", "empty: x")},
        "writeup",
        None,
    )
    given = manual.read_manual(table)
    assert given == {"bob": {"part1_extra": 3.0}, "ada": {"writeup": 6.5}, "cyd": {}}
    assert "seen in the lab" in table.read_text() and "empty: x" in table.read_text()
    sheet.update(table, {"cyd": ("Cyd D", "")}, "writeup", None)
    assert "write-up" not in table.read_text().partition("\n")[2], "a remark goes when its reason has gone"
    table.write_text("id,writeup\nada,six\n")
    with pytest.raises(UsageError, match=r"manual.csv:2: writeup: points should be a number"):
        sheet.update(table, {}, "writeup", None)


def test_ids_are_those_of_the_class(handed_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grader.staff.classroom import ledger

    roster = [ledger.Entry("ada", "Ada"), ledger.Entry("zoe", "Zoe Z")]
    monkeypatch.setattr(ledger, "read", lambda folder: ledger.History(roster=tuple(roster)))
    table = tmp_path / "manual.csv"
    with pytest.raises(UsageError, match=r"no submission in .* is called 'bob'"):
        sheet.update(table, {"bob": ("bob", "")}, "writeup", tmp_path)
    told = sheet.update(table, {"ada": ("ada", ""), "README": ("README", "")}, "writeup", tmp_path)
    assert "note: 1 write-ups are of nobody in" in told and "no row: README" in told
    assert table.read_text().splitlines() == [
        "id,name,writeup,comment",
        "ada,Ada,,",
        "zoe,Zoe Z,,write-up: none",
    ]
    monkeypatch.setattr(ledger, "read", lambda folder: ledger.History())
    with pytest.raises(UsageError, match="holds no class"):
        sheet.update(table, {}, "writeup", tmp_path)


def ids_of_both(folder: Path, scratch: Path) -> tuple[list[str], list[str], list[str]]:
    """What a run calls the submissions of a folder, what the write-ups are called, and which of those are there."""
    graded = [item.id for item in submission.find(folder, "module.cpp", scratch)]
    found = staff.collect([folder], checking.template(WRITEUP_TEMPLATE), staff.source_of_class(None))
    return graded, [each.id for each in found], [each.id for each in found if each.state is not None]


def test_a_run_and_the_write_ups_agree_on_ids(tmp_path: Path) -> None:
    """In every form in which a class arrives; the staff's own files, and others' names, make nobody else of anyone."""
    kernel, text = "int main() {}\n", TEMPLATE
    forms: dict[str, tuple[dict[str, str], list[str]]] = {
        "folders": (
            {
                "README.md": "of the staff\n",
                "ada/module.cpp": kernel,
                "ada/writeup.md": text,
                "ada/notes.md": text,
                "lock/module.cpp": kernel,
                "lock/writeup.md": text,
                "zoe/module.cpp": kernel,
            },
            ["ada", "lock_"],
        ),
        "a_template_of_the_staff": (
            {"writeup.md": text, "ada/module.cpp": kernel, "bob/module.cpp": kernel, "bob/writeup.md": text},
            ["bob"],
        ),
        "files": (
            {"ada.cpp": kernel, "ada.md": text, "bob.cpp": kernel, "bob.md": text, "README.md": "staff\n"},
            ["ada", "bob"],
        ),
        "files_that_clash": (
            {"Ada.cpp": kernel, "Ada.md": text, "ada.cpp": kernel, "ada.md": text, "ada.ispc": "\n"},
            ["Ada-%", "ada-%"],
        ),
        "one_in_a_folder": (
            {"ada/module.cpp": kernel, "ada/writeup.md": text, "ada/README.md": text},
            ["ada"],
        ),
        "canvas": (
            {
                "doejane_1_2_module.cpp": kernel,
                "doejane_1_3_writeup.md": text,
                "royj_LATE_4_5_module.cpp": kernel,
            },
            ["doejane_1"],
        ),
    }
    for form, (files, there) in forms.items():
        folder = tmp_path / form
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        graded, known, read = ids_of_both(folder, tmp_path / f"{form}.scratch")
        assert known == graded, form
        assert [re.sub("-[0-9a-f]{6}$", "-%", name) for name in read] == there, form
        # Write-ups that were handed in apart from the sources are the same people's.
        alone = tmp_path / f"{form}-alone"
        for name, content in files.items():
            if name.endswith(".md") and "README" not in name and (form == "canvas" or name != "writeup.md"):
                (alone / name).parent.mkdir(parents=True, exist_ok=True)
                (alone / name).write_text(content)
        found = staff.collect([alone], checking.template(WRITEUP_TEMPLATE), "module.cpp")
        assert [each.id for each in found] == read, form
        several = [alone / name for name in files if (alone / name).is_file()]
        if form.startswith("files"):
            found = staff.collect(several, checking.template(WRITEUP_TEMPLATE), "module.cpp")
            assert sorted(each.id for each in found) == read, form


def test_names_of_a_results_folder_are_nobody_s(tmp_path: Path) -> None:
    from grader.staff.classroom import byhand, ledger

    held = ["grades.csv", "report.html", "similar.html", ledger.LEDGER, ledger.LOCK, byhand.MANUAL]
    assert not {submission.ids.safe_name(name.upper()).casefold() for name in held} & set(held)


def test_a_key_is_read_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "key.yaml"
    path.write_text("questions:\n  x: {title: X, points: 1, expct: [a]}\n")
    with pytest.raises(
        UsageError, match=r"key.yaml:2: unknown key 'expct' in a question; did you mean 'expect'"
    ):
        key.read(path)
    with pytest.raises(UsageError, match="cannot read the key"):
        key.read(tmp_path / "nowhere.yaml")
