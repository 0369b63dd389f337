"""Readers of foreign files and of a submission's output raise only documented errors. Their time grows linearly."""

import csv
import io
import json
import os
import struct
import tarfile
import tempfile
import zipfile
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from classes.acting_class import AT, RUN, record
from conftest import ASSIGNMENT, ROOT, one_of_each
from handing_in import GRADESCOPE, tar_bytes, zip64_bytes, zipped
from honest.styles import published

from fuzz.mutating import PREFIX, Patterns, Reader, fuzz, growth, in_file, repeats
from grader import sandbox, score, submission
from grader.assignment import loading, regions
from grader.backends.native import sanitize
from grader.core import errors, quantities, results
from grader.core.arrays import np
from grader.core.harmless import harmless
from grader.core.results import CaseResult, Diagnosis, Flag, PartResult, SubmissionResult, Timing
from grader.integrity import elf, inspection, symbols
from grader.report import classbook, feedback, grades_csv, machines, result_json
from grader.runner import calls, frames
from grader.source import cpptext, diagnostics, hints
from grader.staff import writeups
from grader.staff.classroom import byhand, ledger
from grader.staff.similarity import agreement, likeness, passages
from grader.staff.similarity.tokens import Source, tokens
from grader.study import writeup
from grader.submission.archive.opening import open_archive
from grader.submission.archive.records import PIECE_BYTES, ArchiveLimits, Unreadable
from grader.submission.exports import gradescope_entries

LIMITS = ArchiveLimits(members=2000, unpacked_bytes=16 * quantities.MIB, archive_bytes=16 * quantities.MIB)
SOURCE = b"int main() { return 0; }\n" * 40
REQUEST = calls.Request("attention", [], [np.ones(2, np.float32)], (2, 3))


def read_archive(data: bytes) -> int:
    """List an archive and read all its members, in small pieces and within the limits."""
    total_bytes, scratch = 0, TemporaryDirectory(prefix=PREFIX)
    with scratch as place, closing(open_archive(io.BytesIO(data), LIMITS, Path(place))) as archive:
        assert len(archive.members) <= LIMITS.members
        for member in archive.members:
            with suppress(Unreadable):
                for piece in archive.pieces(member):
                    total_bytes += len(piece)
                    assert len(piece) <= PIECE_BYTES and total_bytes <= LIMITS.unpacked_bytes
    return total_bytes


HANDED_IN = {"hw4/module.cpp": SOURCE, "hw4/" + "long/" * 25 + "name.txt": b"x", "hw4/Zoë.md": b"hi"}
MODULE, CANVAS = {"module.cpp": SOURCE}, "doejane_LATE_12345_67890_module-1.cpp"
CLASS = {"ada/module.cpp": SOURCE, "bob.zip": zipped(MODULE), CANVAS: SOURCE, "eve/notes.txt": b""}
_METADATA = GRADESCOPE.replace("- :name: Jane", "- &jane\n    :name: Jane")
_METADATA = _METADATA.replace("- :name: Zoë", "- *jane\n  - :name: Zoë").replace("李雷", '"\\u674E\\u96F7"')
_METADATA = _METADATA.replace("tests: []", 'tests: [{a: 1, b: [x, "y"]}]')
#: Metadata with an anchor, an alias, nested lists, an escape and a merge key.
METADATA = f"{_METADATA}  <<: {{created_at: no}}\n".encode()
EXPORTED = {"submission_metadata.yml": METADATA, "submission_101/module.cpp": SOURCE}
EXPORT = {f"assignment_4_export/{name}": content for name, content in EXPORTED.items()}


def many_members(size: int) -> bytes:
    return zipped({f"{k}/module.cpp": b"" for k in range(size // 130)}, zipfile.ZIP_STORED)


def attributes(size: int) -> bytes:
    """Return a tar of about this size that consists of headers with long lists of attributes."""
    header = tar_bytes({"name" * 60: b"", "x" * 200: b"y"}, format=tarfile.PAX_FORMAT)
    return header[: header.rindex(b"ustar") - 257] * max(1, size // len(header)) + header


def a_result() -> bytes:
    found = Diagnosis("remainder_tile", "The last tile is wrong.", (0, 0, 96, 0), 0.25, 0.0, 640, 12360)
    timing = Timing(160.0, 170.0, 1.06, (1.0, 1.1), 0.98, 8, "cpu", 1.1, "pass", 1.0, True)
    timing = replace(timing, flags=("undecided",), student_wall_ms=(1.0, 2.5))
    right = CaseResult("ramp", {"N": 4, "d": 2}, True, 1e-6)
    cases = (right, CaseResult("x", {}, False, 0.4, found, True, "ab"))
    part1 = PartResult("part1", "Naive", "pass", 10.0, cases, timing, results.Memory(1, 2, None, 4))
    odd = (Flag("odd", "?", "review"),)
    part3 = PartResult("part3", "Fused", "wrong", 20.0, cases, None, None, found, odd)
    about = ({"system": "Linux", "processor": "P", "cores": 2}, {"torch": "2"}, {"tier": "A", "applied": []})
    result = SubmissionResult("ada", "00", "small", *about, (part1, part3))
    return json.dumps(result_json.to_dict(result, score.score(SMALL, result))).encode()


def row_of(path: Path) -> machines.Row:
    return machines.Row("ada", "Ada", "", result_json.read(path), None, None)


def a_ledger() -> bytes:
    with TemporaryDirectory(prefix=PREFIX) as folder:
        with ledger.hold(Path(folder)) as book:
            book.open_run(replace(RUN, manual="m.csv"), ENTRIES)
            book.finish(replace(record("ada", 10.0), sha256="00", verdicts={"part1": "pass"}), None)
            book.reported(ledger.Reported(AT, None, {"ada": 10.0}))
        return (Path(folder) / ledger.LEDGER).read_bytes()


def read_lock(path: Path) -> object:
    with ledger.hold(path.parent) as book:
        return book.scratch


ENTRIES = [ledger.Entry("ada", "Ada", ("a@b.c",), AT, True), ledger.Entry("bob", "Bob", error="no")]
SMALL = loading.load(ROOT / "tests" / "classes" / "small.yaml")
JSON_WORDS = (*rb'null true 1e999 -0 "\ud800" [] {} NaN "kind": "report"'.split(), b"\n")
TOLD = (errors.UsageError, errors.KitError)
_CASE = b'{"name": "x", "shape": {"N": 4}, "ok": true, "max_error": null}, '

READERS = (
    Reader("archives", read_archive, [
        zipped(HANDED_IN), zipped(HANDED_IN, zipfile.ZIP_STORED), zip64_bytes(b"module.cpp", SOURCE),
        *(tar_bytes(HANDED_IN, mode) for mode in ("w", "w:gz", "w:bz2", "w:xz")),
        *(tar_bytes({**HANDED_IN, "n" * 120: b"1"}, format=k) for k in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)),
    ], (Unreadable,), (*b"PK\1\2 PK\5\6 PK\6\6 PK\6\7 PK\3\4 ustar\0 ../".split(), b"\0" * 512, b"20 path=x\n"), {
        "members of a zip": many_members,
        "members of a tar": lambda size: tar_bytes({f"{k}.txt": b"" for k in range(size // 512)}),
        "attributes": attributes,
        "signatures": lambda size: b"PK\3\4" + b"PK\5\6" * (size // 4),
        "zeros in a tar": lambda size: tar_bytes({"zeros": bytes(size)}, "w:gz"),
    }),
    Reader("a class's archive",
        in_file(lambda path: submission.find(path, "module.cpp", path.with_name("scratch")), "class.zip"),
        [zipped(CLASS), zipped(EXPORT), tar_bytes(CLASS), tar_bytes(EXPORT, "w:gz")],
        TOLD, b"module.cpp .zip submission_1/ _1_2_ PK\1\2".split(), {"many students": many_members}, cost=3),
    Reader("metadata", lambda data: len(gradescope_entries(data, "metadata")), [METADATA], TOLD,
        (b"<<: *jane", b"&a ", b"*a", b"? ", b"- ", b"--- ", b"!!binary ", b"0001-01-01 00:00:00 +14:00", b"%TAG !"),
        {
            **repeats(METADATA),
            **repeats(b"[", head=b"a: "),
            **repeats(b"#", head=METADATA),
            **repeats(b"%TAG !a! tag:x\n", tail=METADATA),
            **repeats(b"1", head=b"s:\n  :created_at: '", tail=b"'\n"),
            **repeats(b"  - {name: x}\n", head=b"s:\n  :submitters:\n"),
            "anchors": lambda size: b"".join(b"a%d: &a%d x\n" % (k, k) for k in range(size // 12)),
        }),
    Reader("Canvas names", lambda data: submission.exports.CANVAS.fullmatch(data.decode("utf-8", "surrogateescape")),
        [CANVAS.encode(), b"lee_ann_23_400_module.cpp"], (), (b"_", b"_late_", b"_1_2_"),
        {"underscores": lambda n: b"a_" * (n // 64), "digits": lambda n: b"a_" + b"1_" * (n // 64)}),
    Reader("times", in_file(lambda path: byhand.read_times(path, ["ada", "bob"], None), "times.csv"),
        [b"id,time\nada,2026-11-14 23:59Z\nbob,2026-11-15T08:00:00+01:00\n"],
        TOLD, (b",", b'"', b"\n", b"ada", b"2026-11-14 10:00:00.5 Z"),
        {**repeats(b" 1", head=b"id,time\nada,"), **repeats(b",", head=b"id,time")}),
    Reader("results", in_file(lambda path: feedback.feedback(SMALL, row_of(path)), "result.json"),
        [a_result()], TOLD, JSON_WORDS, {
            **repeats(b"["),
            **repeats(b"[],", head=b"[", tail=b"0]"),
            **repeats(b'\\"', head=b'{"a": "'),
            "cases": lambda size: a_result().replace(b'"cases": [', b'"cases": [' + _CASE * (size // len(_CASE)), 1),
        }),
    Reader("results, in a class's reports",
        in_file(lambda path: classbook.write(path.parent, SMALL, [row_of(path)]), "result.json"),
        [a_result()], TOLD, JSON_WORDS, cost=3),
    Reader("ledgers", in_file(lambda path: ledger.read(path.parent), ledger.LEDGER), [a_ledger()],
        TOLD, (*JSON_WORDS, b'"result"', b'"roster"', b"../"), {
            **repeats(a_ledger()),
            **repeats(b"x", head=b'{"kind": "', tail=b'"}\n'),
            **repeats(b"\n", b"x", head=a_ledger()),
        }),
    Reader("locks", in_file(read_lock, ledger.LOCK), [b'{"lock": "1:2", "scratch": "/tmp/gpt149-class-0", "pid": 1}'],
        (), (b"gpt149-class-", b"/", b"null", b"../"), repeats(b"[")),
)  # fmt: skip

MASTER = (ROOT / "module.cpp").read_text()
STARTER = regions.strip_solution(MASTER)
TEMPLATE = ROOT / "writeup_template.md"
WANTED = writeup.wanted_regions(TEMPLATE)
IDS = ("ada", "grace_hopper", "Zoë_K")
OBEYED = ("\x1b", "\x9b", "\x07", "\r", "\x7f", "\u202e", "\u2066")


def read_writeup(path: Path) -> None:
    """Read a write-up as `grader writeup` does. Make the copy for reading, and the remark that goes into manual.csv."""
    try:
        state = writeup.state_of(writeup.text_of(path), path.name, WANTED)
    except errors.UsageError as error:
        one = writeups.Writeup("ada", "Ada", None, str(error))
    else:
        one = writeups.Writeup("ada", "Ada", state)
        assert all(len(line) < 200 for line in writeup.state_lines(Path("writeup.md"), state))
    copy = writeups.reading([one], (), WANTED)
    assert not any(char in copy for char in OBEYED)
    assert len(copy) < writeups.LONGEST_ANSWER * (len(WANTED) + writeup.MOST_REGIONS)
    table = path.with_name("manual.csv")
    writeups.update(table, {"ada": ("Ada", one.remark)}, "writeup", None)
    assert byhand.read_manual(table, ASSIGNMENT, IDS) == {"ada": {}}


def fill_writeup(data: bytes) -> None:
    text = writeup.fill(data.decode(errors="replace"), "cache", "| a |\n|---|\n| 1 |")
    assert writeup.tables(text)["cache"].startswith("| a |")


def _answered() -> bytes:
    text = TEMPLATE.read_text()
    for region in reversed(writeup.regions(text)):
        text = f"{text[: region.start]}Because of *the cache*.\n{text[region.end :]}"
    return text.encode()


WRITEUP_WORDS = (
    b"<!--", b"-->", b"<!-- answer: layout -->\n", b"<!-- table: cache -->\n", b"<!-- end -->\n", b"\x1b]0;x\x07",
    b"\x1b[2K", b"\xe2\x80\xae", b"\r", b"\n", b"\x00", b"```\n", b"<script>", b"| a | b |\n",
)  # fmt: skip
ANSWERS = (b"<!--", b"<!---->", b"\n", b"\n <!-- x", b"x <!-- end --> x\n", b"\x1b[31m\xc2\x9b")
WRITEUP_PATTERNS: Patterns = {
    **repeats(*ANSWERS, head=b"<!-- answer: layout -->\n", tail=b"\n<!-- end -->\n"),
    **repeats(b" ", tail=b"<!-- end"),
    **repeats(b"a-", b" ", head=b"<!-- answer: "),
    "regions": lambda n: b"".join(b"<!-- answer: a%d -->\n<!-- end -->\n" % k for k in range(n // 34)),
}


def read_table(path: Path) -> None:
    try:
        byhand.read_manual(path, ASSIGNMENT, IDS)
    except errors.UsageError as error:
        message = str(error).removeprefix(str(path))
        assert len(message) < 400 and not any(char in message for char in (*OBEYED, "\n")), message
        raise
    writeups.update(path, {"ada": ("Ada", "empty: layout")}, "writeup", None)
    assert set(byhand.read_manual(path, ASSIGNMENT, IDS)) <= set(IDS)


def write_cells(data: bytes) -> None:
    """Write lines of any text as CSV cells. Check that no cell is a formula and that the texts can be read back."""
    cells = [grades_csv.safe_text(text) for text in data.decode(errors="replace").split("\n")[:50]] + ["last"]
    line = grades_csv.csv_line(cells)
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
    """Compare sources as `similar` does for a class, and make the page with the regions of every pair."""
    text = data.decode(errors="replace")
    texts = {"ada": text, "bob": "int odd;\n" + text, "cyd": MASTER, "dan": "int x;"}
    found = likeness.compare({k: Source(own, len(own) // 2) for k, own in texts.items()}, Source(STARTER))
    page = "".join(agreement.page(found, found.pairs, (), likeness.notes(found)))
    assert "<script" not in page and not any(char in page for char in OBEYED)
    for pair in found.pairs:
        assert 0 <= pair.likeness <= 1
    left, right = tokens(Source(text)), tokens(Source(text[len(text) // 3 :]))
    assert all(a.left[1] <= b.left[0] for a, b in pairwise(passages.regions(left, right, frozenset())))


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
    """Return the first `count` symbols of Fibonacci's word, which has repetitions of every length but no period."""
    short, long = b";", b"; +"
    while len(long) < 3 * count:
        short, long = long, long + b" " + short
    return b" ".join(long.split()[:count])


SOURCES = tuple(text.encode() for text in (MASTER, published(), STARTER))
SOURCE_WORDS = (
    b"/*", b"*/", b"//", b'R"x(', b')x"', b'"', b"'", b"\\\n", b"#pragma omp ", b"#include ", b"{", b"}", b"::",
    b"std", b"1e+", b"for (int i = 0; i < N; i++) ", b"\x1b[31m", b"\x00", b"\xff",
)  # fmt: skip
SOURCE_PATTERNS: Patterns = {
    **repeats(b";", b"a+b*c-d/e%f^", b"/*a", b'R"(/*a', b'"\\', b"1e+", b"a", b"void f() { g(1); }\n"),
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

ERRORS = (errors.UsageError,)
PAPERS = (_answered(), TEMPLATE.read_bytes())
#: Few inputs are mutated: a comparison takes 0.1 s. Patterns are small: at most `tokens.MOST_TOKENS` tokens are read.
COMPARING = {"cost": 13, "pattern_bytes": 12_000}
READERS += (
    Reader("write-up", in_file(read_writeup, "w.md"), PAPERS, (), WRITEUP_WORDS, WRITEUP_PATTERNS),
    Reader("write-up to be filled", fill_writeup, PAPERS, ERRORS, WRITEUP_WORDS, WRITEUP_PATTERNS),
    Reader("manual.csv", in_file(read_table, "manual.csv"), TABLES, ERRORS, TABLE_WORDS, TABLE_PATTERNS),
    Reader("cells of a CSV", write_cells, CELLS, (), CELL_WORDS, CELL_PATTERNS),
    Reader("sources to compare", compare_sources, SOURCES, (), SOURCE_WORDS, SOURCE_PATTERNS, **COMPARING),
    Reader("result.json for similar", in_file(read_result, "r"), [RESULT], (), RESULT_WORDS, RESULT_PATTERNS),
    Reader("printed text", print_text, (_answered(), *CELLS), (), WRITEUP_WORDS, WRITEUP_PATTERNS),
)

PUBLISHED = published().encode()
LITERALS = (
    b'#line 7 "x.cpp"\n/* a */ auto s = R"x(py::object)x"; char c = \'"\'; int n = 1\'000; // at::zeros\n'
)
COMPILER = b"""\
In file included from module.cpp:3:
/usr/include/c++/12/vector:64:10: error: no matching function for call to 'std::vector<int, std::allocator<int> >::x'
module.cpp:14:5: error: 'twoDimRaed' was not declared in this scope; did you mean 'twoDimRead'?
   14 |     twoDimRaed(a, b);
      |     ^~~~~~~~~~
module.cpp:20:1: error: expected '}' at end of input [with T = std::map<int, std::pair<int, float> >; U = int]
/tmp/module.s:9: Error: no such instruction: `movk'
ld: module.cpp:(.text+0x9): undefined reference to `helper(float*, int)'
cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes
"""
SANITIZER = b"""\
/usr/include/c++/12/bits/stl_vector.h:1123: T& vector<T>::operator[](size_type): Assertion '__n < this->size()' failed.
module.cpp:9:3: runtime error: index 8 out of bounds for type 'float [8]'
==1==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x1
READ of size 4 at 0x602000000014 thread T0
    #0 0x7f00 in kernel(at::Tensor, int) /tmp/module.cpp:12:9
    #1 0x7f01 in main main.cpp:3
0x602000000014 is located 0 bytes to the right of 4-byte region [0x602000000010,0x602000000014)
"""
MANGLED = (
    b"_ZN2at4_ops13fill__Scalar4callERNS_6TensorERKN3c106ScalarE _ZNK2at10TensorBase8data_ptrIfEEPT_v"
    b" cblas_sgemm dlsym _ZN3fooIN1a1bEJLi3EfEE3barEv _ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev"
).split()
GREETING = {"status": "loaded", "functions": [["attention", "T(TTTii)"], ["four_d_read", "f(Viiiiiii)"]]}
PROFILE = {"profile": [["aten::zeros", 1.5, 2, 3, 64, 64]], "profiled_wall_s": 0.25}
REPLY = {"status": "ok", "kind": 2, "dtype": 6, "shape": [2, 3], "number": 0, **PROFILE}
THROWN: dict[str, object] = {"status": "exception", "message": "out_of_range"}


def framed(header: object, payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return frames.FRAME.pack(len(text), len(payload)) + text + payload


def deep(header: dict[str, object]) -> dict[str, object]:
    """Return the header. Each value except for "status" becomes a list that is 800 levels deep."""
    return {**dict.fromkeys(header, json.loads("[" * 800 + "0" + "]" * 800)), "status": header["status"]}


HEADERS = (GREETING, THROWN, deep(THROWN), deep(REPLY))


def read_words(data: bytes) -> None:
    """Read a compiler's output and make the message for a student."""
    diagnostics.missing_symbols(data.decode(errors="replace"))
    finished = sandbox.Finished(1, data, 1.0, 1.0, False)
    explained = diagnostics.explain(finished, {"module.cpp": PUBLISHED.decode()}, timeout_s=1.0)
    assert explained and len(explained) <= 15 * (diagnostics.MAX_MESSAGE + 1)


def read_hint(data: bytes) -> None:
    """Make hints for a source whose first name is not declared."""
    text = data.decode(errors="replace")
    name = next((word for word in text.split() if word.isidentifier()), "x")
    hints.hint_for(f"'{name}' was not declared in this scope", 1, text)
    hints.hint_for("too few arguments to function 'void twoDimRead(int)'", 1, text)


def read_object(data: bytes) -> None:
    assert all(len(flag.message) < 1000 for flag in inspection.flags_of(elf.parse(data)))


def read_symbol(data: bytes) -> None:
    name = data.decode(errors="replace")
    symbols.qualified_name(name)
    symbols.is_plain_operator(name)
    symbols.category(elf.UndefinedSymbol(name, versioned=False), versions=True)


def read_reply(data: bytes) -> None:
    """Read a frame from a pipe. Parse it as a runner's greeting and as its reply to a call."""
    incoming = frames.Incoming(1 << 20)
    with open(os.memfd_create("reply"), "w+b", buffering=0) as pipe:
        pipe.write(data)
        pipe.seek(0)
        while not incoming.complete:
            incoming.read_some(pipe.fileno())
    if incoming.header.get("status") == "loaded":
        calls.offered(incoming.header)
        return
    call = calls.understood(incoming.header, incoming.payload, REQUEST, 1.0, 1.0)
    assert len(call.message) <= calls.LONGEST_WORDS and len(call.dtype) < 30


def read_texts(data: bytes) -> None:
    """Put texts of a submission into a result. Check that result.json keeps its size limit and can be read back."""
    text = data.decode(errors="replace")
    part = PartResult("p", "t", "crash", 1.0, diagnosis=Diagnosis("x", text), output=text)
    result = SubmissionResult("a", "b", "c", {}, {}, {}, (part,) * 8, flags=(Flag("code", text, "review"),))
    values = result_json.to_dict(result, results.Score((), 0.0, 0, 0.0, 0.0, 0.0))
    assert len(json.dumps(values, indent=2)) < result_json.LARGEST_BYTES
    result_json.from_dict(values)


@cache
def objects() -> tuple[bytes, ...]:
    """Return small shared objects: one looks up a function of a BLAS by its name, one calls an operator of torch."""
    texts = (
        'extern void *dlsym(void *, const char *); void *run(void) { return dlsym(0, "cblas_sgemm"); }',
        'extern int w(void) __asm__("_ZN2at4_ops6matmul4callERKNS_6TensorES4_"); int run(void) { return w(); }',
    )
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for text in texts:
            (Path(folder) / "a.c").write_text(text)
            command = ["cc", "-shared", "-fPIC", "-Os", "-w", "-Wl,-z,noseparate-code", "-o", "a.so", "a.c"]
            done = sandbox.run_limited(command, cwd=Path(folder), timeout_s=60)
            assert done.returncode == 0, done.output
            made.append((Path(folder) / "a.so").read_bytes())
    return tuple(made)


def many_sections(size: int) -> bytes:
    """Return an object of this size with as many empty sections as fit. ELF stores a large count in section 0."""
    image = bytearray(objects()[0])
    (table,) = struct.unpack_from("<Q", image, 40)
    count = struct.unpack_from("<H", image, 60)[0]
    headers = image[table : table + 64 * count]
    more = max(0, size - len(image) - len(headers)) // 64
    struct.pack_into("<Q", headers, 32, count + more)
    struct.pack_into("<Q", image, 40, len(image))
    struct.pack_into("<H", image, 60, 0)
    return bytes(image + headers + struct.pack("<IIQQQQIIQQ", 0, 1, 2, 0, 0, 0, 0, 0, 1, 0) * more)


READERS += (
    Reader("source", lambda data: cpptext.renames_lines(data.decode(errors="replace")), (PUBLISHED[:6000], LITERALS),
        words=(b"/*", b"*/", b'R"(', b'R"x(', b')x"', b'"', b"'", b"\\\n", b"#include <torch/", b"py::"), patterns={
            **repeats(b"/*a", head=b'auto s = R"(\n', tail=b')";'),
            **repeats(b"/*a", b'R"ab(', b"'\n", b"\n", b"#include <torch/\n", b"Py"),
            **repeats(b'\\"', head=b'"', tail=b"\n"),
            **repeats(b" ", head=b"torch"),
        }),
    Reader("compiler's words", read_words, (COMPILER, COMPILER[:300], b"module.cpp:1:1: error: x\n"),
        words=(b"module.cpp:", b": error: ", b"undefined reference to `", b"'", b"<", b" [with ", b".s:"), patterns={
            "nested templates": lambda n: b"module.cpp:1:1: error: " + b"<" * (n // 2) + b">" * (n // 2),
            **repeats(b"a.s:", b"undefined reference to `", b"a:1:", b"module.cpp:1:1: error: x\n"),
            **repeats(b" [with ", head=b"module.cpp:1:1: error: "),
            **repeats(b"9", head=b"module.cpp:", tail=b":1: error: x"),
            **repeats(b"\n", head=b"module.cpp:1:"),
        }),
    Reader("hints", read_hint, (PUBLISHED[:6000], b"twoDimRaed(a, b); twoDimRead(c)\n"), patterns={
        "undeclared words": lambda n: b"".join(b"a%xz = b%xz + a%xz;\n" % (k, k, k) for k in range(n // 20)),
        "words alike": lambda n: b"".join(2 * (b"ab" * 20 + b"%d " % k) for k in range(n // 92)),
        **repeats(b"a"),
        **repeats(b"(,", head=b"twoDimRead("),
    }),
    Reader("sanitizers' reports",
        lambda data: sanitize.report(harmless(data.decode(errors="replace")), ROOT / "module.cpp"),
        (SANITIZER, SANITIZER[250:]),
        words=(b"    #1 0x1 in ", b"module.cpp:1", b": Assertion '", b"' failed.", b"runtime error: "), patterns={
            **repeats(b"\n", head=b"module.cpp:9:3: runtime error: x\n"),
            **repeats(b"/a:1: ", tail=b"\nERROR: AddressSanitizer: ABRT"),
            **repeats(b"a :1", head=b"module.cpp:9:3: runtime error: x\n    #1 0x1 in "),
        }),
    Reader("object", read_object, objects(), allowed=(elf.NotReadable,),
        words=(b"cblas_", b"_ZN", b"\x0b\x00\x00\x00", b"\xff\xff\xff\x6f", b"\x7fELF\x02\x01"), patterns={
            "many sections": many_sections,
            "a long name": lambda n: objects()[0].replace(b"cblas_sgemm\0", b"cblas_sgemm") + b"cblas_" + b"a" * n,
        }),
    Reader("symbol", read_symbol, MANGLED, words=(b"_ZN", b"I", b"E", b"J", b"L", b"S_", b"2at4_ops", b"99999"),
        patterns={
            **repeats(b"x", b"9", head=b"_ZN1aI"),
            **repeats(b"9", b"1a", b"1aIE", head=b"_ZN"),
            **repeats(b"I", head=b"_ZN1a"),
            **repeats(b"_", head=b"aten::"),
            **repeats(b"s", tail=b"gemm!"),
        }),
    Reader("reply", read_reply, (framed(REPLY, bytes(32)), *map(framed, HEADERS)), allowed=(frames.RunnerDied,),
        words=(b'"kind": ', b'"dtype": "', b"null", b"[[", b"1e999", b"NaN", b'"shape": [', b"true", b"-1"),
        patterns={
            "nested": lambda n: frames.FRAME.pack(n, 0) + b"[" * n,
            "functions": lambda n: framed({"status": "loaded", "functions": [["f" * n, "T"]]}),
            "a message": lambda n: framed({"status": "exception", "message": "\x1b" * n}),
        }),
    Reader("result.json", read_texts, (b"aten::matmul\n", b"[1] \x1b[2J", SANITIZER),
        patterns=repeats("é".encode(), b"\x00")),
)  # fmt: skip
#: Number of mutated inputs for each reader, divided by the reader's `cost`.
INPUTS = int(os.environ.get("FUZZ_INPUTS", "400"))
PATTERNS = [(reader, name) for reader in READERS for name in reader.patterns]


@pytest.mark.parametrize("inputs", [80, pytest.param(INPUTS, marks=pytest.mark.full)])
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_mutated_inputs_raise_only_documented_errors(reader: Reader, inputs: int) -> None:
    refused = fuzz(reader, inputs)
    # Not all inputs were refused, so the examples themselves can be read.
    assert len(refused) == inputs // reader.cost and not all(refused)
    assert not reader.allowed or any(refused)


@pytest.mark.parametrize(
    ("reader", "pattern"),
    one_of_each(PATTERNS, key=lambda each: each[0].name, name=lambda each: f"{each[0].name}: {each[1]}"),
)
def test_readers_take_linear_time(reader: Reader, pattern: str) -> None:
    growth(reader, pattern)
