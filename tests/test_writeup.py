"""The write-up: regions for tables, questions without an answer, and the answers of a class, question by question."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import put, python, refused, write
from hypothesis import given
from hypothesis import strategies as st

from grader import submission
from grader.assignment import labs, loading
from grader.core import errors, places
from grader.core.harmless import harmless
from grader.staff import writeups
from grader.staff.classroom import byhand, ledger
from grader.study import writeup
from grader.study.writeup import exported, fill, tables

COURSE = loading.load(places.PUBLIC_CONFIG)
TEMPLATE = (places.ROOT / "writeup_template.md").read_text()
TABLE = "| tile | ms |\n|---|---|\n| 8 | 1.0 |"
#: Characters at which Python also splits lines. Random texts contain none of them, and no surrogates.
LINE_ENDS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def answers(text: str) -> Mapping[str, str]:
    return writeup.state_of(text, "", ()).texts


def answered(text: str = "Because of the cache.", template: str = TEMPLATE) -> str:
    for region in reversed(writeup.regions(template)):
        body = TABLE if region.kind == "table" else text
        template = f"{template[: region.start]}{body}\n{template[region.end :]}"
    return template


def test_a_table_is_put_into_its_region_and_nowhere_else() -> None:
    text = fill(TEMPLATE, "sweep-part2", TABLE)
    assert tables(text)["sweep-part2"] == TABLE
    assert sum(bool(each) for each in tables(text).values()) == 1 and not any(answers(text).values())
    assert fill(text, "sweep-part2", TABLE) == text, "filling it again changes nothing"
    other = TABLE.replace("8", "16")
    assert fill(text, "sweep-part2", other) == fill(TEMPLATE, "sweep-part2", other)
    headings = [line for line in TEMPLATE.splitlines() if line.startswith("#")]
    assert [line for line in text.splitlines() if line.startswith("#")] == headings
    text = fill("a\r\n<!-- table: cache -->\r\n<!-- end -->\r\nb\r\n", "cache", TABLE)
    assert "\n" not in text.replace("\r\n", "") and text.endswith("<!-- end -->\r\nb\r\n")
    refused("contains a marker such as", fill, TEMPLATE, "cache", "x\n<!-- end -->")


@given(st.text(alphabet=st.characters(exclude_characters=LINE_ENDS, exclude_categories=["Cs"])))
def test_any_text_survives_in_a_region(text: str) -> None:
    before = "<!-- table: cache -->\n<!-- end -->\n"
    try:
        after = fill(before, "cache", text)
    except errors.UsageError:
        assert "<!--" in text
        return
    assert tables(after)["cache"] == writeup.without_comments(text.strip()).strip()


MANY = "".join(f"<!-- answer: a{k} -->\n<!-- end -->\n" for k in range(writeup.MOST_REGIONS + 1))
BROKEN = {
    "<!-- table: cache -->\n": "line 1: <!-- table: cache --> has no <!-- end -->",
    "a\n<!-- end -->\n": "line 2: <!-- end -->, but no region is open",
    "<!-- table: cache -->\n<!-- answer: x -->\n": "line 2: .* inside the region of line 1",
    "<!-- answer: x -->\n<!-- end -->\n" * 2: "line 3: .* second time",
    "<!-- answer: x --> and so on\n": "line 1: write a marker alone",
    "<!-- Answer: X -->\n": "line 1: write a marker alone",
    "": "there is no region for the table 'cache': write the lines",
    f"<!-- answer: {'a' * 61} -->\n<!-- end -->\n": "line 1: a name has at most 60 letters: aaa",
    MANY: "line 401: more than 200 regions",
}


def test_a_broken_marker_is_reported_by_its_line() -> None:
    for text, why in BROKEN.items():
        refused(why, fill, text, "cache", TABLE)
    assert writeup.regions(f"<!-- answer: {'a' * 60} -->\n<!-- end -->\n")[0].name == "a" * 60


def test_template_key_and_studies_have_the_same_questions_and_tables(tmp_path: Path) -> None:
    asked, questions = answers(TEMPLATE), writeups.read_key(writeups.WRITEUP_KEY)
    assert set(asked) - {question.answer for question in questions} == {"name", *writeup.OPTIONAL}
    assert sum(one.points for one in questions) == {item.id: item.points for item in COURSE.manual}["writeup"]
    assert all(f"### {question.title} (" in TEMPLATE for question in questions)
    assert set(tables(TEMPLATE)) <= {step.table for step in COURSE.lab.steps()}
    put(tmp_path, {"key.yaml": "questions:\n  x: {title: X, points: 1, expct: [a]}\n"})
    for lab in map(labs.named, ("softmax", "operators")):
        text, questions = (lab / "writeup_template.md").read_text(), lab / "hidden" / "writeup_key.yaml"
        assert {one.answer for one in writeups.read_key(questions)} == {*answers(text)} - {"name", "extra"}
        assert {step.table for step in labs.load(lab).steps()} == set(tables(text))
    why = "key.yaml:2: unknown key 'expct' in a question; did you mean 'expect'"
    refused(why, writeups.read_key, tmp_path / "key.yaml")
    refused("cannot read the key", writeups.read_key, tmp_path / "nowhere.yaml")


ONE_ANSWER = "<!-- answer: x -->\n{}\n<!-- end -->\n"


def test_comments_are_removed_from_answers() -> None:
    texts = {"a<!-- b -->c": "ac", "<!-- write\nhere -->": "", "<!-- <!-- --> -->": " -->", "<!---->x": "x"}
    for text, kept in {**texts, "<!-->": "<!-->", "a <!-- b": "a <!-- b"}.items():
        assert writeup.without_comments(text) == kept
        assert answers(ONE_ANSWER.format(text)) == {"x": kept.strip()}


def test_empty_answers_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, code, words in (
        (TEMPLATE, 1, ("EMPTY", "empty (optional)", "python gpt149.py study --writeup")),
        (answered(), 0, ("no region is empty",)),
        ("# mine\n", 1, ("MISSING: write the lines <!-- answer: layout -->",)),
    ):
        (tmp_path / "writeup.md").write_text(text)
        assert writeups.main([str(tmp_path / "writeup.md")]) == code
        assert all(map(capsys.readouterr().out.__contains__, words))
    # The template's own words do not count as an answer.
    template = ONE_ANSWER.format("Write here.")
    wanted = tuple(writeup.regions(template))
    (place,) = writeup.state_of(template, "w", wanted).places
    assert not place.filled
    (place,) = writeup.state_of(template.replace("Write", "I wrote"), "w", wanted).places
    assert place.words == 3


def test_a_file_that_is_no_write_up_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "writeup.md"
    refused(r"no such file: .*writeup.md; begin with `cp", writeups.main, [str(mine)])
    lost_marker = answered().replace("<!-- answer: layout -->\n", "").encode()
    contents = {b"\xff\xfe": "not UTF-8", b"a" * (writeup.MOST_BYTES + 1): "larger than 4 MiB"}
    for content, why in {**contents, lost_marker: r"md: line \d+: <!-- end -->, but no region is"}.items():
        mine.write_bytes(content)
        refused(why, writeups.main, [str(mine)])
    mine.unlink()
    os.mkfifo(mine)
    refused("is not a file", writeups.main, [str(mine)])


def test_without_pandoc_a_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = write(tmp_path, answered(), "writeup.md")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert exported(mine, "pdf").startswith("no PDF was written: pandoc is not installed")
    pandoc = '#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done\necho page > "$2"\n'
    put(tmp_path, {"pandoc": pandoc}, 0o755)
    assert exported(mine, "html") == f"wrote {tmp_path / 'writeup.html'}"
    assert (tmp_path / "writeup.html").read_text() == "page\n"
    put(tmp_path, {"pandoc": "#!/bin/sh\necho 'no LaTeX here' >&2\nexit 43\n"}, 0o755)
    refused("no LaTeX here; a PDF needs LaTeX", exported, mine, "pdf", of=errors.KitError)


def test_a_class_is_read_by_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ada = answered("Row-major.\n\n# A heading of mine\n<script>alert(1)</script>\x1b[31m")
    texts = {"ada/writeup.md": ada, "bob/writeup.md": TEMPLATE, "eve/writeup.md": "<!-- end -->\n"}
    handed_in = put(tmp_path / "class", {**texts, "ada/module.cpp": "int main() {}\n"})
    reading, table = tmp_path / "reading.md", tmp_path / "manual.csv"
    assert writeups.main([str(handed_in), "--read", str(reading), "--sheet", str(table)]) == 0
    said = capsys.readouterr().out
    assert "3 write-ups, 1 complete" in said and "eve  writeup.md: line 1: <!-- end -->" in said
    text = reading.read_text()
    layout = text.partition("## 1. The layout")[2]
    assert layout.index("131072") < layout.index("**ada**") < layout.index("> Row-major.")
    assert "\n> # A heading of mine" in text and "\n# A heading" not in text and "\x1b" not in text
    assert byhand.read_manual(table, COURSE) == {"ada": {}, "bob": {}, "eve": {}}


FENCES = [
    "</blockquote>\n\n<p><b>bob</b></p><blockquote><img src='http://x.example/1'><script>f()</script>",
    "~~~\n\n**bob**\n\n![](http://x.example/1) [a]: http://x.example\n~~~~ ~~~~~~~\n\ndone\n===",
    "```\n\r\x0b\u2028# bob\n" + "word " * 90 + "x" * 300,
    "- a list\n\n      code[i * N + j] < 3 && *x;\n\n| a | b |",
]


@pytest.mark.parametrize("answer", FENCES, ids=["HTML", "fences", "lines", "honest"])
def test_an_answer_is_text_in_the_reading_copy(answer: str) -> None:
    """An answer's lines are quoted between two fences. No line of the answer looks like a fence."""
    handed_in = writeups.Writeup("ada", "Ada", writeup.State((), {"x": answer}))
    text = writeups.reading([handed_in], [writeups.Question("x", "X", 1, ())], ())
    fence, *inner, last = text.partition("**ada**\n\n")[2].splitlines()
    assert fence == last and re.fullmatch("> ~~~+", fence)
    assert all(row == ">" or (row.startswith("> ") and len(row) <= 102) for row in inner)
    assert not [row for row in inner if fence[2:] in row]
    assert "".join("".join(row[1:] for row in inner).split()) == "".join(harmless(answer).split()) != ""


def test_a_hostile_write_up_is_printed_without_control_characters(tmp_path: Path) -> None:
    """Run the command itself, because its printer makes text harmless."""
    hostile = "\x1b]0;owned\x07\r\x1b[2Kmallory  complete\x9b2K\u202e"
    texts = {
        "mallory/writeup.md": f"<!-- answer: x --> {hostile}\n",
        "oscar/writeup.md": "<!-- answer: name -->\n" + "<!--" * (1 << 17) + "\n<!-- end -->\n",
        "peggy/writeup.md": "<!-- answer: name -->\n" + f"{hostile}\n" * 9000 + "<!-- end -->\n",
    }
    put(tmp_path / "class", texts)
    asked = "-m grader writeup class --read reading.md --sheet manual.csv"
    ended = python(*asked.split(), folder=tmp_path, timeout_s=300, PYTHONPATH=places.ROOT)
    said = ended.stdout
    assert ended.returncode == 0, ended.stderr
    assert "3 write-ups, 0 complete" in said and "mallory  writeup.md: line 1: write a marker alone" in said
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said)
    assert max(map(len, said.splitlines())) < 400 and len(said.splitlines()) == 6
    reading = (tmp_path / "reading.md").read_text()
    assert not {*"\x1b\x9b"} & {*reading} and "cut here" in reading and len(reading) < 150_000
    assert "\x1b" not in (tmp_path / "manual.csv").read_text()


def test_points_and_remarks_by_hand_stay(tmp_path: Path) -> None:
    rows = "id,part1_extra,comment,writeup\nbob,3,seen in the lab,\nada,,,6.5\n"
    table = write(tmp_path, rows, "manual.csv")
    people = {"ada": ("ada", ""), "bob": ("bob", "empty: name"), "cyd": ("Cyd D", "empty: x")}
    writeups.update(table, people, "writeup", None)
    assert byhand.read_manual(table) == {"bob": {"part1_extra": 3.0}, "ada": {"writeup": 6.5}, "cyd": {}}
    assert "seen in the lab" in table.read_text() and "empty: x" in table.read_text()
    writeups.update(table, {"cyd": ("Cyd D", "")}, "writeup", None)
    assert "write-up" not in table.read_text().partition("\n")[2], "the remark is removed with its reason"
    table.write_text("id,writeup\nada,six\n")
    refused(r"manual.csv:2: writeup: points should be a number", writeups.update, table, {}, "writeup", None)


def test_points_have_the_class_s_ids_none_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roster = (ledger.Entry("ada", "Ada"), ledger.Entry("zoe", "Zoe Z"))
    monkeypatch.setattr(ledger, "read", lambda folder: ledger.History(roster=roster))
    table, bob = tmp_path / "manual.csv", {"bob": ("bob", "")}
    refused("no write-up belongs to a submission .*'bob'", writeups.update, table, bob, "writeup", tmp_path)
    said = writeups.update(table, {"ada": ("ada", ""), "README": ("README", "")}, "writeup", tmp_path)
    assert "note: 1 write-up belongs to no student in" in said and "no row: README" in said
    rows = ["id,name,writeup,comment", "ada,Ada,,", "zoe,Zoe Z,,write-up: none"]
    assert table.read_text().splitlines() == rows
    monkeypatch.setattr(ledger, "read", lambda folder: ledger.History())
    refused("holds no results of a class", writeups.update, table, {}, "writeup", tmp_path)
    held = ["grades.csv", "report.html", "similar.html", ledger.LEDGER, ledger.LOCK, byhand.MANUAL]
    assert not {submission.ids.safe_name(name.upper()).casefold() for name in held} & set(held)


WANTED = writeup.wanted_regions(places.WRITEUP_TEMPLATE)
#: By form of a class's folder: its files, and the ids of the submissions that have a write-up. "%" stands for a digest.
FORMS = {
    "folders": ("ada/module.cpp ada/writeup.md lock/module.cpp lock/writeup.md zoe/module.cpp", "ada lock_"),
    "a template of the staff": ("writeup.md ada/module.cpp bob/module.cpp bob/writeup.md", "bob"),
    "files": ("ada.cpp ada.md bob.cpp bob.md README.md", "ada bob"),
    "files that clash": ("Ada.cpp Ada.md ada.cpp ada.md ada.ispc", "Ada-% ada-%"),
    "one in a folder": ("ada/module.cpp ada/writeup.md ada/README.md", "ada"),
    "canvas": ("doejane_1_2_module.cpp doejane_1_3_writeup.md royj_LATE_4_5_module.cpp", "doejane_1"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_run_and_the_write_ups_agree_on_ids(form: str, tmp_path: Path) -> None:
    names, there = (each.split() for each in FORMS[form])
    files = {name: TEMPLATE if name.endswith(".md") else "int main() {}\n" for name in names}
    folder = put(tmp_path / "class", {**files, "README.md": "of the staff\n"})
    found = writeups.collect([folder], WANTED, "module.cpp")
    graded = [item.id for item in submission.find(folder, "module.cpp", tmp_path / "scratch")]
    assert [each.id for each in found] == graded
    read = [each.id for each in found if each.state is not None]
    assert [re.sub("-[0-9a-f]{6}$", "-%", name) for name in read] == there
    # Write-ups that were handed in without sources get the same ids.
    own = [name for name in names if name.endswith(".md") and "README" not in name and name != "writeup.md"]
    alone = put(tmp_path / "alone", dict.fromkeys(own, TEMPLATE))
    assert [each.id for each in writeups.collect([alone], WANTED, "module.cpp")] == read
    if form.startswith("files"):
        several = writeups.collect([alone / name for name in own], WANTED, "module.cpp")
        assert sorted(each.id for each in several) == read
