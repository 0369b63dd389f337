"""The readers of what comes from outside a run: archives, an export's metadata, results, ledgers, locks and times.

python -m tests.fuzz.outside [inputs for each reader] [seed]
"""

from __future__ import annotations

import io
import json
import random
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fuzz import mutating  # noqa: E402
from fuzz.mutating import Reader  # noqa: E402
from grader import score  # noqa: E402
from grader.assignment.loading import load  # noqa: E402
from grader.base.errors import KitError, UsageError  # noqa: E402
from grader.base.quantities import MIB  # noqa: E402
from grader.base.results import CaseResult, Diagnosis, Flag, Memory, PartResult, SubmissionResult, Timing  # noqa: E402
from grader.report import classbook, feedback, result_json  # noqa: E402
from grader.report.classbook import Row  # noqa: E402
from grader.staff.classroom import ledger, times  # noqa: E402
from grader.staff.classroom.fingerprints import Fingerprints  # noqa: E402
from grader.staff.classroom.ledger import Entry, Record, Reported, Run  # noqa: E402
from grader.submission import find  # noqa: E402
from grader.submission.archive import ArchiveLimits, Unreadable, open_archive  # noqa: E402
from grader.submission.exports import canvas_name, gradescope_entries  # noqa: E402

COUNT = 1000
LIMITS = ArchiveLimits(members=2000, unpacked_bytes=16 * MIB, archive_bytes=16 * MIB)
SOURCE = b"int main() { return 0; }\n" * 40
SCRATCH = Path(tempfile.gettempdir())


# ---- archives


def read_archive(data: bytes) -> int:
    """List an archive and read all that is in it."""
    with tempfile.TemporaryDirectory(prefix="gpt149-fuzz-") as scratch:
        archive = open_archive(io.BytesIO(data), LIMITS, Path(scratch))
        try:
            return sum(len(piece) for member in archive.members for piece in _pieces(archive, member))
        finally:
            archive.close()


def _pieces(archive: object, member: object) -> list[bytes]:
    try:
        return list(archive.pieces(member))  # type: ignore[attr-defined]
    except Unreadable:
        return []


def read_class(data: bytes) -> int:
    """Take the archive for a class: every submission ends with a source or with an error."""
    with tempfile.TemporaryDirectory(prefix="gpt149-fuzz-") as folder:
        (Path(folder) / "class.zip").write_bytes(data)
        return len(find(Path(folder) / "class.zip", "module.cpp", Path(folder) / "scratch"))


def a_zip(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return target.getvalue()


def a_tar(files: dict[str, bytes], mode: str = "w", form: int = tarfile.PAX_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode, format=form) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


HANDED_IN = {"hw4/module.cpp": SOURCE, "hw4/" + "long/" * 25 + "name.txt": b"x", "hw4/Zoë.md": b"hi"}
CLASS = {
    "ada/module.cpp": SOURCE,
    "bob.zip": a_zip({"module.cpp": SOURCE}),
    "doejane_LATE_12345_67890_module-1.cpp": SOURCE,
    "eve/notes.txt": b"",
}
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
EXPORT = {
    "assignment_4_export/submission_metadata.yml": METADATA,
    "assignment_4_export/submission_101/module.cpp": SOURCE,
}


def many_members(size: int) -> bytes:
    return a_zip({f"{k}/module.cpp": b"" for k in range(size // 130)}, zipfile.ZIP_STORED)


def many_headers(size: int) -> bytes:
    return a_tar({f"{k}.txt": b"" for k in range(size // 512)})


def attributes(size: int) -> bytes:
    """A tar whose members bring long lists of attributes."""
    header = a_tar({"name" * 60: b"", "x" * 200: b"y"}, form=tarfile.PAX_FORMAT)
    return header[: header.rindex(b"ustar") - 257] * max(1, size // len(header)) + header


# ---- metadata, names, tables


def read_metadata(data: bytes) -> int:
    return len(gradescope_entries(data, "metadata"))


def read_name(data: bytes) -> object:
    return canvas_name(data.decode("utf-8", "surrogateescape"))


def _with_file(data: bytes, name: str, read: Callable[[Path], object]) -> object:
    with tempfile.TemporaryDirectory(prefix="gpt149-fuzz-") as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        return read(path)


def read_times(data: bytes) -> object:
    return _with_file(data, "times.csv", lambda path: times.read_times(path, ["ada", "bob"], None))


# ---- results, ledgers, locks


def a_result() -> bytes:
    found = Diagnosis("remainder_tile", "The last tile is wrong.", (0, 0, 96, 0), 0.25, 0.0, 640, 12360)
    timing = Timing(
        *(160.0, 170.0, 1.06, (1.0, 1.1), 0.98, 8, "cpu", 1.1, "pass", 1.0, True),  # type: ignore[arg-type]
        flags=("undecided",),
        student_wall_ms=(1.0, 2.5),
    )
    cases = (
        CaseResult("ramp", {"N": 4, "d": 2}, True, 1e-6),
        CaseResult("x", {}, False, 0.4, found, True, "ab"),
    )
    parts = (
        PartResult("part1", "Naive", "pass", 10.0, cases, timing, Memory(1, 2, None, 4)),
        PartResult("part3", "Fused", "wrong", 20.0, cases, None, None, found, (Flag("odd", "?", "review"),)),
    )
    machine = {"system": "Linux", "processor": "P", "cores": 2}
    result = SubmissionResult(
        "ada", "00", "small", machine, {"torch": "2"}, {"tier": "A", "applied": []}, parts
    )
    return json.dumps(result_json.to_dict(result, score.score(ASSIGNMENT, result))).encode()


def read_result(data: bytes) -> object:
    """Read a result and write all that a class's reports make of it."""
    with tempfile.TemporaryDirectory(prefix="gpt149-fuzz-") as folder:
        path = Path(folder) / "result.json"
        path.write_bytes(data)
        result = result_json.read(path)
        row = Row("ada", "Ada", "", result, None, None)
        return feedback.feedback(ASSIGNMENT, row)


def read_result_for_the_class(data: bytes) -> object:
    """The same for grades.csv and report.html."""
    with tempfile.TemporaryDirectory(prefix="gpt149-fuzz-") as folder:
        path = Path(folder) / "result.json"
        path.write_bytes(data)
        row = Row("ada", "Ada", "", result_json.read(path), None, None)
        return classbook.write(Path(folder), ASSIGNMENT, [row])


def a_ledger() -> bytes:
    at = "2026-11-14T10:00:00+00:00"
    record = Record(
        "ada", Fingerprints("s", "a", "k", "o"), at, {"building": 1.5}, 1, "00", {"part1": "pass"}, 10.0
    )
    with tempfile.TemporaryDirectory(prefix="gpt149-fuzz-") as folder:
        with ledger.hold(Path(folder)) as book:
            book.open_run(Run(at, "a.yaml", "a", "f", "k", 1, True, "D", 2, "m.csv"), ENTRIES)
            book.finish(record, None)
            book.reported(Reported(at, None, {"ada": 10.0}))
        return (Path(folder) / ledger.LEDGER).read_bytes()


def read_ledger(data: bytes) -> object:
    return _with_file(data, ledger.LEDGER, lambda path: ledger.read(path.parent))


def read_lock(data: bytes) -> object:
    def hold(path: Path) -> object:
        with ledger.hold(path.parent) as book:
            return book.scratch

    return _with_file(data, ledger.LOCK, hold)


ENTRIES = [
    Entry("ada", "Ada", ("a@b.c",), "2026-11-14T10:00:00+00:00", True),
    Entry("bob", "Bob", error="no"),
]
ASSIGNMENT = load(ROOT / "tests" / "classes" / "small.yaml")
JSON_WORDS = (
    b"null",
    b"true",
    b"1e999",
    b"-0",
    b'"\\ud800"',
    b"[]",
    b"{}",
    b"NaN",
    b'"kind":',
    b'"report"',
    b"\n",
)
TOLD = (UsageError, KitError)

READERS = (
    Reader(
        "archives",
        read_archive,
        [
            a_zip(HANDED_IN),
            a_zip(HANDED_IN, zipfile.ZIP_STORED),
            *(a_tar(HANDED_IN, mode) for mode in ("w", "w:gz", "w:bz2", "w:xz")),
            a_tar(HANDED_IN, form=tarfile.GNU_FORMAT),
        ],
        (Unreadable,),
        (
            b"PK\1\2",
            b"PK\5\6",
            b"PK\6\6",
            b"PK\6\7",
            b"PK\3\4",
            b"ustar\0",
            b"../",
            b"\0" * 512,
            b"20 path=x\n",
        ),
        {
            "members of a zip": many_members,
            "members of a tar": many_headers,
            "attributes": attributes,
            "signatures": lambda size: b"PK\3\4" + b"PK\5\6" * (size // 4),
            "zeros in a tar": lambda size: a_tar({"zeros": bytes(size)}, "w:gz"),
        },
    ),
    Reader(
        "a class's archive",
        read_class,
        [a_zip(CLASS), a_zip(EXPORT), a_tar(CLASS), a_tar(EXPORT, "w:gz")],
        TOLD,
        (b"module.cpp", b".zip", b"submission_1/", b"_1_2_", b"PK\1\2"),
        {"many students": many_members},
    ),
    Reader(
        "metadata",
        read_metadata,
        [METADATA],
        TOLD,
        (
            b"<<: *jane",
            b"&a ",
            b"*a",
            b"? ",
            b"- ",
            b"--- ",
            b"!!binary ",
            b"0001-01-01 00:00:00 +14:00",
            b"%TAG ! x\n",
        ),
        {
            "submissions": lambda size: METADATA * (size // len(METADATA)),
            "brackets": lambda size: b"a: " + b"[" * size,
            "comments": lambda size: METADATA + b"#" * size,
            "anchors": lambda size: b"".join(b"a%d: &a%d x\n" % (k, k) for k in range(size // 12)),
            "directives": lambda size: b"%TAG !a! tag:x\n" * (size // 15) + METADATA,
            "long scalar": lambda size: b"s:\n  :created_at: '" + b"1" * size + b"'\n",
            "many to a group": lambda size: b"s:\n  :submitters:\n" + b"  - {name: x}\n" * (size // 14),
        },
    ),
    Reader(
        "Canvas names",
        read_name,
        [b"doejane_LATE_12345_67890_module-1.cpp", b"lee_ann_23_400_module.cpp"],
        (),
        (b"_", b"_late_", b"_1_2_"),
        {
            "underscores": lambda size: b"a_" * (size // 64),
            "digits": lambda size: b"a_" + b"1_" * (size // 64),
        },
    ),
    Reader(
        "times",
        read_times,
        [b"id,time\nada,2026-11-14 23:59Z\nbob,2026-11-15T08:00:00+01:00\n"],
        TOLD,
        (b",", b'"', b"\n", b"ada", b"2026-11-14 10:00:00.5 Z"),
        {
            "one cell": lambda size: b"id,time\nada," + b" 1" * (size // 2),
            "commas": lambda size: b"id,time" + b"," * size,
        },
    ),
    Reader(
        "results",
        read_result,
        [a_result()],
        TOLD,
        JSON_WORDS,
        {
            "brackets": lambda size: b"[" * size,
            "pairs": lambda size: b"[" + b"[]," * (size // 3) + b"0]",
            "backslashes": lambda size: b'{"a": "' + b'\\"' * (size // 2),
            "cases": lambda size: a_result().replace(
                b'"cases": [', b'"cases": [' + _CASE * (size // len(_CASE)), 1
            ),
        },
    ),
    Reader("results, in a class's reports", read_result_for_the_class, [a_result()], TOLD, JSON_WORDS),
    Reader(
        "ledgers",
        read_ledger,
        [a_ledger()],
        TOLD,
        (*JSON_WORDS, b'"result"', b'"roster"', b"../"),
        {
            "lines": lambda size: a_ledger() * max(1, size // len(a_ledger())),
            "one line": lambda size: b'{"kind": "' + b"x" * size + b'"}\n',
            "newlines": lambda size: a_ledger() + b"\n" * size,
            "torn": lambda size: a_ledger() + b"x" * size,
        },
    ),
    Reader(
        "locks",
        read_lock,
        [b'{"lock": "1:2", "scratch": "/tmp/gpt149-class-0", "pid": 1}'],
        (),
        (b"gpt149-class-", b"/", b"null", b"../"),
        {"brackets": lambda size: b"[" * size},
    ),
)
_CASE = b'{"name": "x", "shape": {"N": 4}, "ok": true, "max_error": null}, '


def main(arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments else COUNT
    seed = int(arguments[1]) if len(arguments) > 1 else mutating.SEED
    random.seed(seed)
    return mutating.report(READERS, count, seed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
