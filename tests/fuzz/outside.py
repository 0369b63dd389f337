"""The readers of what comes from outside a run: archives, an export's metadata, results, ledgers, locks and times."""

import io
import json
import tarfile
import zipfile
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from classes.acting_class import AT, record, some_run
from conftest import ROOT
from handing_in import tar_bytes, zip64_bytes, zipped

from fuzz.mutating import PREFIX, Reader, in_file, repeats
from grader import score
from grader.assignment.loading import load
from grader.core.errors import KitError, UsageError
from grader.core.quantities import MIB
from grader.core.results import CaseResult, Diagnosis, Flag, Memory, PartResult, SubmissionResult, Timing
from grader.report import classbook, feedback, result_json
from grader.report.machines import Row
from grader.staff.classroom import byhand, ledger
from grader.staff.classroom.ledger import Entry, Reported
from grader.submission import find
from grader.submission.archive.opening import open_archive
from grader.submission.archive.records import PIECE_BYTES, ArchiveLimits, Unreadable
from grader.submission.exports import canvas_name, gradescope_entries

LIMITS = ArchiveLimits(members=2000, unpacked_bytes=16 * MIB, archive_bytes=16 * MIB)
SOURCE = b"int main() { return 0; }\n" * 40


def read_archive(data: bytes) -> int:
    """List an archive and read all that is in it, in small pieces and within the limits."""
    total_bytes = 0
    scratch = TemporaryDirectory(prefix=PREFIX)
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
METADATA = b"""---
submission_101:
  :submitters:
  - &jane
    :name: Jane Doe
    :sid: '7'
    :email: jane@example.edu
  - *jane
  :created_at: 2023-11-02 07:10:22.340000000 Z
  :score: 3.5
  :results: !ruby/object:Hash
    tests: [{a: 1, b: [x, "y"]}]
submission_102: !ruby/hash:ActiveSupport::HashWithIndifferentAccess
  :submitters:
  - :name: "\\u674E\\u96F7"
  :created_at: '2023-11-01T18:00:00.123456789-07:00'
  <<: {created_at: no}
"""
EXPORTED = {"submission_metadata.yml": METADATA, "submission_101/module.cpp": SOURCE}
EXPORT = {f"assignment_4_export/{name}": content for name, content in EXPORTED.items()}


def many_members(size: int) -> bytes:
    return zipped({f"{k}/module.cpp": b"" for k in range(size // 130)}, zipfile.ZIP_STORED)


def attributes(size: int) -> bytes:
    """Return a tar whose members bring long lists of attributes."""
    header = tar_bytes({"name" * 60: b"", "x" * 200: b"y"}, format=tarfile.PAX_FORMAT)
    return header[: header.rindex(b"ustar") - 257] * max(1, size // len(header)) + header


def a_result() -> bytes:
    found = Diagnosis("remainder_tile", "The last tile is wrong.", (0, 0, 96, 0), 0.25, 0.0, 640, 12360)
    timing = Timing(160.0, 170.0, 1.06, (1.0, 1.1), 0.98, 8, "cpu", 1.1, "pass", 1.0, True)
    timing = replace(timing, flags=("undecided",), student_wall_ms=(1.0, 2.5))
    right = CaseResult("ramp", {"N": 4, "d": 2}, True, 1e-6)
    cases = (right, CaseResult("x", {}, False, 0.4, found, True, "ab"))
    part1 = PartResult("part1", "Naive", "pass", 10.0, cases, timing, Memory(1, 2, None, 4))
    odd = (Flag("odd", "?", "review"),)
    part3 = PartResult("part3", "Fused", "wrong", 20.0, cases, None, None, found, odd)
    about = ({"system": "Linux", "processor": "P", "cores": 2}, {"torch": "2"}, {"tier": "A", "applied": []})
    result = SubmissionResult("ada", "00", "small", *about, (part1, part3))
    return json.dumps(result_json.to_dict(result, score.score(ASSIGNMENT, result))).encode()


def row_of(path: Path) -> Row:
    return Row("ada", "Ada", "", result_json.read(path), None, None)


def reports(path: Path) -> object:
    return classbook.write(path.parent, ASSIGNMENT, [row_of(path)])


def a_ledger() -> bytes:
    found = replace(record("ada", 10.0), sha256="00", verdicts={"part1": "pass"})
    with TemporaryDirectory(prefix=PREFIX) as folder:
        with ledger.hold(Path(folder)) as book:
            book.open_run(replace(some_run(), manual="m.csv"), ENTRIES)
            book.finish(found, None)
            book.reported(Reported(AT, None, {"ada": 10.0}))
        return (Path(folder) / ledger.LEDGER).read_bytes()


def read_lock(path: Path) -> object:
    with ledger.hold(path.parent) as book:
        return book.scratch


ENTRIES = [Entry("ada", "Ada", ("a@b.c",), AT, True), Entry("bob", "Bob", error="no")]
ASSIGNMENT = load(ROOT / "tests" / "classes" / "small.yaml")
JSON_WORDS = (*rb'null true 1e999 -0 "\ud800" [] {} NaN "kind": "report"'.split(), b"\n")
TOLD = (UsageError, KitError)
_CASE = b'{"name": "x", "shape": {"N": 4}, "ok": true, "max_error": null}, '

READERS = (
    Reader(
        "archives", read_archive,
        [
            zipped(HANDED_IN), zipped(HANDED_IN, zipfile.ZIP_STORED), zip64_bytes(b"module.cpp", SOURCE),
            *(tar_bytes(HANDED_IN, mode) for mode in ("w", "w:gz", "w:bz2", "w:xz")),
            *(tar_bytes({**HANDED_IN, "n" * 120: b"1"}, format=k) for k in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)),
        ],
        (Unreadable,), (*b"PK\1\2 PK\5\6 PK\6\6 PK\6\7 PK\3\4 ustar\0 ../".split(), b"\0" * 512, b"20 path=x\n"),
        {
            "members of a zip": many_members,
            "members of a tar": lambda size: tar_bytes({f"{k}.txt": b"" for k in range(size // 512)}),
            "attributes": attributes,
            "signatures": lambda size: b"PK\3\4" + b"PK\5\6" * (size // 4),
            "zeros in a tar": lambda size: tar_bytes({"zeros": bytes(size)}, "w:gz"),
        },
    ),
    Reader(
        "a class's archive", in_file(lambda path: find(path, "module.cpp", path.with_name("scratch")), "class.zip"),
        [zipped(CLASS), zipped(EXPORT), tar_bytes(CLASS), tar_bytes(EXPORT, "w:gz")],
        TOLD, b"module.cpp .zip submission_1/ _1_2_ PK\1\2".split(), {"many students": many_members}, cost=3,
    ),
    Reader(
        "metadata", lambda data: len(gradescope_entries(data, "metadata")), [METADATA], TOLD,
        (b"<<: *jane", b"&a ", b"*a", b"? ", b"- ", b"--- ", b"!!binary ", b"0001-01-01 00:00:00 +14:00", b"%TAG !"),
        {
            **repeats(METADATA),
            **repeats(b"[", head=b"a: "),
            **repeats(b"#", head=METADATA),
            **repeats(b"%TAG !a! tag:x\n", tail=METADATA),
            **repeats(b"1", head=b"s:\n  :created_at: '", tail=b"'\n"),
            **repeats(b"  - {name: x}\n", head=b"s:\n  :submitters:\n"),
            "anchors": lambda size: b"".join(b"a%d: &a%d x\n" % (k, k) for k in range(size // 12)),
        },
    ),
    Reader(
        "Canvas names", lambda data: canvas_name(data.decode("utf-8", "surrogateescape")),
        [CANVAS.encode(), b"lee_ann_23_400_module.cpp"], (), (b"_", b"_late_", b"_1_2_"),
        {"underscores": lambda n: b"a_" * (n // 64), "digits": lambda n: b"a_" + b"1_" * (n // 64)},
    ),
    Reader(
        "times", in_file(lambda path: byhand.read_times(path, ["ada", "bob"], None), "times.csv"),
        [b"id,time\nada,2026-11-14 23:59Z\nbob,2026-11-15T08:00:00+01:00\n"],
        TOLD, (b",", b'"', b"\n", b"ada", b"2026-11-14 10:00:00.5 Z"),
        {**repeats(b" 1", head=b"id,time\nada,"), **repeats(b",", head=b"id,time")},
    ),
    Reader(
        "results", in_file(lambda path: feedback.feedback(ASSIGNMENT, row_of(path)), "result.json"),
        [a_result()], TOLD, JSON_WORDS,
        {
            **repeats(b"["),
            **repeats(b"[],", head=b"[", tail=b"0]"),
            **repeats(b'\\"', head=b'{"a": "'),
            "cases": lambda size: a_result().replace(b'"cases": [', b'"cases": [' + _CASE * (size // len(_CASE)), 1),
        },
    ),
    Reader("results, in a class's reports", in_file(reports, "result.json"), [a_result()], TOLD, JSON_WORDS, cost=3),
    Reader(
        "ledgers", in_file(lambda path: ledger.read(path.parent), ledger.LEDGER), [a_ledger()],
        TOLD, (*JSON_WORDS, b'"result"', b'"roster"', b"../"),
        {
            **repeats(a_ledger()),
            **repeats(b"x", head=b'{"kind": "', tail=b'"}\n'),
            **repeats(b"\n", b"x", head=a_ledger()),
        },
    ),
    Reader(
        "locks", in_file(read_lock, ledger.LOCK), [b'{"lock": "1:2", "scratch": "/tmp/gpt149-class-0", "pid": 1}'],
        (), (b"gpt149-class-", b"/", b"null", b"../"), repeats(b"["),
    ),
)  # fmt: skip
