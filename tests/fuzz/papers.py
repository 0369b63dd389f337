"""The readers of texts for people: write-ups, tables of points, and sources that `similar` compares."""

import csv
import io
import json
from itertools import pairwise
from pathlib import Path

from conftest import ASSIGNMENT, ROOT
from honest.styles import published

from fuzz.mutating import Patterns, Reader, in_file, repeats
from grader.assignment.regions import strip_solution
from grader.core.errors import UsageError
from grader.core.harmless import harmless
from grader.report.grades_csv import csv_line, safe_text
from grader.staff import writeups
from grader.staff.classroom import byhand
from grader.staff.similarity import agreement, likeness, passages, similar_html
from grader.staff.similarity.tokens import Source, tokens
from grader.study.writeup import checking, regions

MASTER = (ROOT / "module.cpp").read_text()
STARTER = strip_solution(MASTER)
TEMPLATE = ROOT / "writeup_template.md"
WANTED = checking.template(TEMPLATE)
IDS = ("ada", "grace_hopper", "Zoë_K")
OBEYED = ("\x1b", "\x9b", "\x07", "\r", "\x7f", "\u202e", "\u2066")


def read_writeup(path: Path) -> None:
    """Read as `grader writeup` does, with the reading copy and the remark in the table of points."""
    try:
        state = checking.state_of(checking.text_of(path), path.name, WANTED)
    except UsageError as error:
        one = writeups.Writeup("ada", "Ada", None, str(error))
    else:
        one = writeups.Writeup("ada", "Ada", state)
        assert all(len(line) < 200 for line in checking.state_lines(Path("writeup.md"), state))
    copy = writeups.reading([one], (), WANTED)
    assert not any(char in copy for char in OBEYED)
    assert len(copy) < writeups.LONGEST_ANSWER * (len(WANTED) + regions.MOST_REGIONS)
    table = path.with_name("manual.csv")
    writeups.update(table, {"ada": ("Ada", one.remark)}, "writeup", None)
    assert byhand.read_manual(table, ASSIGNMENT, IDS) == {"ada": {}}


def fill_writeup(data: bytes) -> None:
    text = regions.fill(data.decode(errors="replace"), "cache", "| a |\n|---|\n| 1 |")
    assert regions.tables(text)["cache"].startswith("| a |")


def _answered() -> bytes:
    text = TEMPLATE.read_text()
    for region in reversed(regions.regions(text)):
        text = f"{text[: region.start]}Because of *the cache*.\n{text[region.end :]}"
    return text.encode()


WRITEUP_WORDS = (
    b"<!--", b"-->", b"<!-- answer: layout -->\n", b"<!-- table: cache -->\n", b"<!-- end -->\n", b"\x1b]0;x\x07",
    b"\x1b[2K", b"\xe2\x80\xae", b"\r", b"\n", b"\x00", b"```\n", b"<script>", b"| a | b |\n",
)  # fmt: skip
ANSWERS = (b"<!--", b"<!---->", b"\n", b"x <!-- end --> x\n", b"\x1b[31m\xc2\x9b")
WRITEUP_PATTERNS: Patterns = {
    **repeats(*ANSWERS, head=b"<!-- answer: layout -->\n", tail=b"\n<!-- end -->\n"),
    **repeats(b" ", tail=b"<!-- end"),
    **repeats(b"a-", head=b"<!-- answer: "),
    "regions": lambda n: b"".join(b"<!-- answer: a%d -->\n<!-- end -->\n" % k for k in range(n // 34)),
}


def read_table(path: Path) -> None:
    try:
        byhand.read_manual(path, ASSIGNMENT, IDS)
    except UsageError as error:
        message = str(error).removeprefix(str(path))
        assert len(message) < 400 and not any(char in message for char in (*OBEYED, "\n")), message
        raise
    writeups.update(path, {"ada": ("Ada", "empty: layout")}, "writeup", None)
    assert set(byhand.read_manual(path, ASSIGNMENT, IDS)) <= set(IDS)


def write_cells(data: bytes) -> None:
    """Write any text as a cell: no spreadsheet may read a formula in it, and the text reads back unchanged."""
    cells = [safe_text(text) for text in data.decode(errors="replace").split("\n")[:50]] + ["last"]
    line = csv_line(cells)
    assert next(csv.reader(io.StringIO(line, newline=""))) == cells
    for delimiter in ",;\t|":
        for row in csv.reader(io.StringIO(line, newline=""), delimiter=delimiter):
            assert not [cell for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))], row


EXTRA = b"id,name,writeup,part1_extra,comment\nada,Ada Lovelace,6.5,,see the margin\ngrace_hopper,,7,3,\n"
TABLES = (EXTRA, '\ufeffid,writeup\r\n"Zoë_K",7\r\nada,0.25\r\n'.encode())
TABLE_WORDS = (
    b'"', b",", b";", b"\r\n", b"\x00", b"\x1b]0;x\x07", b"id", b"writeup", b"part1_extra", b"=1+1", b"ada,", b"\t",
    b"1e309", b"-1", b"\xe2\x80\xa8", b"\xff", b'""', b'"\n"',
)  # fmt: skip
TABLE_PATTERNS: Patterns = {
    **repeats(b"ada,7\n", b'"', head=b"id,writeup\n"),
    **repeats(b"a,7\n", head=b'id,writeup\n"'),
    **repeats(b"7", head=b"id,writeup\nada,"),
    **repeats(b"\n", b"\x1b[31m", head=b"id\n"),
    **repeats(b",x", head=b"id"),
    "strangers": lambda n: b"id\n" + b"".join(b"%d\n" % k for k in range(n // 6)),
}
CELLS = (b'Ada Lovelace\na;=1+1\n=HYPERLINK(1)\nx;"@SUM"\n\t-1\n', "Zoë\n＝1\n; +2|=3".encode())
CELL_WORDS = (*b"= + - @ ; | \" , ' \xef\xbc\x9d".split(), b"\t", b" ", b"\r", b"\n")
CELL_PATTERNS = {**repeats(b";", b';"', b";="), **repeats(b" ", head=b"; ")}


def compare_sources(data: bytes) -> None:
    """Compare sources as `similar` does for a class: every pair's regions, on a page."""
    text = data.decode(errors="replace")
    texts = {"ada": text, "bob": "int odd;\n" + text, "cyd": MASTER, "dan": "int x;"}
    sources = {name: Source(own, len(own) // 2) for name, own in texts.items()}
    found = likeness.compare(sources, Source(STARTER))
    page = "".join(similar_html.page(found, found.pairs, (), likeness.notes(found)))
    assert "<script" not in page and not any(char in page for char in OBEYED)
    for pair in found.pairs:
        assert 0 <= pair.likeness <= 1
    left, right = tokens(Source(text)), tokens(Source(text[len(text) // 3 :]))
    shared = passages.regions(left, right, frozenset())
    assert all(a.left[1] <= b.left[0] for a, b in pairwise(shared))


def read_result(path: Path) -> None:
    (path.parent / "ada").mkdir()
    path.rename(path.parent / "ada" / "result.json")
    found = agreement.read(path.parent)
    agreement.groups({**found, "bob": found["ada"]})
    agreement.not_written(path.parent)


def print_text(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    made = harmless(text)
    assert not any(char in made for char in OBEYED) and len(made) <= len(text)
    made.encode("utf-8")


def words_without_end(count: int) -> bytes:
    """Return Fibonacci's word: full of repetitions of every length, and never periodic."""
    short, long = b";", b"; +"
    while len(long) < 3 * count:
        short, long = long, long + b" " + short
    return b" ".join(long.split()[:count])


SOURCES = tuple(text.encode() for text in (MASTER, published(), STARTER))
SOURCE_WORDS = (
    b"/*", b"*/", b"//", b'R"x(', b')x"', b'"', b"'", b"\\\n", b"#pragma omp ", b"#include ", b"{", b"}", b"::",
    b"std", b"1e+", b"for (int i = 0; i < N; i++) ", b"\x1b[31m", b"\x00", b"\xff",
)  # fmt: skip
TEXTS = (b";", b"a+b*c-d/e%f^", b"/*a", b'R"(/*a', b'"\\', b"1e+", b"a", b"void f() { g(1); }\n")
SOURCE_PATTERNS: Patterns = {
    **repeats(*TEXTS),
    **repeats(b"a ", head=b"#pragma "),
    "calls": lambda n: b"".join(b"f%d(" % k for k in range(n // 8)),
    "two loops": lambda n: b"for (;;) ; " * (n // 24) + b"if (x) " * (n // 16),
    "eight times over": lambda n: b" ".join(b"f%d();" % (k % (n // 64)) for k in range(n // 8)),
    "Fibonacci's word": lambda n: words_without_end(n // 2),
}
_WRONG = {"ok": False, "diagnosis": None}
_CASES = [{"name": f"h{k}", "hidden": k > 2, "output_sha256": f"{k}a", **_WRONG} for k in range(6)]
_DIAGNOSIS = {"code": "k_transposed", "message": "K is transposed."}
RESULT = json.dumps({"parts": [{"id": "part2", "diagnosis": _DIAGNOSIS, "cases": _CASES}]}).encode()
RESULT_WORDS = (*b'[ ] { } null 1e999 "not_written"'.split(), b'"parts": ', b'"cases": ', b'"id": ')
RESULT_PATTERNS = {
    **repeats(b"[", b'{"parts":'),
    **repeats(b"9", head=b'{"parts": '),
    **repeats(b', {"id": "x"}', head=RESULT[:-2], tail=b"]}"),
}

ERRORS = (UsageError,)
PAPERS = (_answered(), TEMPLATE.read_bytes())
#: Comparing takes a tenth of a second for each input, and sources have to stay below `tokens.MOST_TOKENS`.
COMPARING = {"cost": 13, "pattern_bytes": 12_000}
READERS = (
    Reader("write-up", in_file(read_writeup, "w.md"), PAPERS, (), WRITEUP_WORDS, WRITEUP_PATTERNS),
    Reader("write-up to be filled", fill_writeup, PAPERS, ERRORS, WRITEUP_WORDS, WRITEUP_PATTERNS),
    Reader("manual.csv", in_file(read_table, "manual.csv"), TABLES, ERRORS, TABLE_WORDS, TABLE_PATTERNS),
    Reader("cells of a CSV", write_cells, CELLS, (), CELL_WORDS, CELL_PATTERNS),
    Reader("sources to compare", compare_sources, SOURCES, (), SOURCE_WORDS, SOURCE_PATTERNS, **COMPARING),
    Reader("result.json for similar", in_file(read_result, "r"), [RESULT], (), RESULT_WORDS, RESULT_PATTERNS),
    Reader("printed text", print_text, (_answered(), *CELLS), (), WRITEUP_WORDS, WRITEUP_PATTERNS),
)
