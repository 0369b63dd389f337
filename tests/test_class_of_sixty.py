"""A class as it arrives: sixty submissions, good, wrong, broken and hostile, in every form, graded twice unattended."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import insert_at_start, keeping
from forgery import quoted_overlap
from handing_in import zipped

from grader.assignment.regions import strip_solution
from grader.build.torchbuild import precompile
from grader.staff.classroom import ledger

ROOT = Path(__file__).resolve().parent.parent
SMALL = ROOT / "tests" / "classes" / "small.yaml"
POINTS = {"part1": 10, "part3": 20}
SEED = "149"


@dataclass(frozen=True)
class Kind:
    """One source, and the verdicts of its two parts."""

    source: str
    ends: tuple[str, str]


def kinds(master: str) -> dict[str, Kind]:
    def edited(function: str, statements: str) -> str:
        return insert_at_start(master, function, statements)

    forged = 'static int forged = (std::printf("{\\"points\\": 30}\\n"), 0);\n'
    return {
        "right": Kind(master, ("pass", "pass")),
        "larger tile": Kind(master.replace("TILE_SIZE 16", "TILE_SIZE 8"), ("pass", "pass")),
        "chatty": Kind(edited("myFusedAttention", r'printf("\x1b[2J=1+1 <b>\n");'), ("pass", "pass")),
        "wrong twice": Kind(
            insert_at_start(edited("myNaiveAttention", "N -= N > 1;"), "myFusedAttention", "d -= d > 1;"),
            ("wrong", "wrong"),
        ),
        "wrong once": Kind(edited("myNaiveAttention", "H = 1;"), ("wrong", "pass")),
        "crash": Kind(edited("myFusedAttention", "abort();"), ("pass", "crash")),
        "leaves": Kind(edited("myNaiveAttention", "exit(0);"), ("crash", "pass")),
        "hangs": Kind(edited("myNaiveAttention", "for (;;) sleep(1);"), ("timeout", "pass")),
        "forged": Kind(
            master.replace("#include <torch", forged_includes() + "#include <torch", 1).replace(
                "PYBIND11_MODULE", forged + "static int gone = (exit(0), 0);\nPYBIND11_MODULE", 1
            ),
            ("crash", "crash"),
        ),
        "syntax": Kind(master.replace("return O", "retrun O").replace(";", "", 1), ("compile_error",) * 2),
        "starter": Kind(strip_solution(master), ("wrong", "wrong")),
        "unbound": Kind(without_binding(master, "myFusedAttention"), ("pass", "missing")),
    }


def forged_includes() -> str:
    return "#include <cstdio>\n#include <cstdlib>\n"


def without_binding(source: str, function: str) -> str:
    lines = [line for line in source.splitlines(keepends=True) if f'm.def("{function}"' not in line]
    return "".join(lines)


def tarred(name: str, text: bytes) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return target.getvalue()


def hand_in(folder: Path, master: str) -> dict[str, tuple[str, str] | None]:
    """Writes the class; returns the verdicts that each id must get, None for what cannot be read."""
    expected: dict[str, tuple[str, str] | None] = {}
    for k, (name, kind) in enumerate(kinds(master).items()):
        text = kind.source.encode()
        # By their names the four of a kind are graded far apart, so that two workers do not both compile it.
        plain, nested, zip_file, tar_file = (f"{form} {name}" for form in ("plain", "nested", "zip", "tar"))
        for path, content in {
            f"{plain}/module.cpp": text,
            f"{nested}/assignment 4/module.cpp": text,
            f"{zip_file}.zip": zipped({"hand-in/module.cpp": text, "__MACOSX/._module.cpp": b"junk"}),
            f"{tar_file}.tar.gz": tarred("./module.cpp", text),
        }.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        expected |= dict.fromkeys((plain, nested, zip_file, tar_file), kind.ends)
        assert k < 12
    good = zipped({"module.cpp": master.encode()})
    unreadable = {
        "cut off.zip": good[: len(good) // 2],
        "climbs.zip": zipped({"../../module.cpp": master.encode()}),
        "rooted.zip": zipped({"/etc/module.cpp": master.encode()}),
        "bomb.zip": quoted_overlap(40, b"0" * 100_000),
        "no archive.zip": b"PK but not really",
        "nothing.zip": zipped({}),
        "another file.zip": zipped({"report.pdf": b"%PDF"}),
        "junk.tar.gz": os.urandom(200),
    }
    for name, content in unreadable.items():
        (folder / name).write_bytes(content)
    (folder / "empty").mkdir()
    (folder / "a folder by that name" / "module.cpp").mkdir(parents=True)
    (folder / "far too long").mkdir()
    (folder / "far too long" / "module.cpp").write_bytes(b"//" + b"x" * (2 << 20))
    (folder / "linked").mkdir()
    (folder / "linked" / "module.cpp").symlink_to("/etc/passwd")
    names = [name.removesuffix(".gz").removesuffix(".tar").removesuffix(".zip") for name in unreadable]
    expected |= dict.fromkeys((*names, "empty", "a folder by that name", "far too long", "linked"))
    return expected


def grade(folder: Path, out: Path, config: Path, *more: str) -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "grader",
            "run",
            folder,
            "--out",
            out,
            "--config",
            config,
            "--seed",
            SEED,
            "--trust",
            *more,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr


def rows_of(out: Path) -> dict[str, dict[str, str]]:
    return {
        row["name"]: row
        for row in csv.DictReader(io.StringIO((out / "grades.csv").read_text(encoding="utf-8-sig")))
    }


@pytest.fixture(scope="module")
def graded(
    master: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, tuple[str, str] | None], Path, Path]:
    precompile()  # where it is missing, two workers would both make the header
    place = tmp_path_factory.mktemp("sixty")
    expected = hand_in(place / "class", keeping(master, "myNaiveAttention", "myFusedAttention"))
    config = place / "small.yaml"
    # Leaving by exit(0) takes torch down, which on a busy machine takes a while; it is not to pass for a hang.
    config.write_text(SMALL.read_text().replace("call_s: 1,", "call_s: 2,"))
    grade(place / "class", place / "first", config)
    # Half of them again: every source, out of archives.
    again = [name for name in ledger.read(place / "first").records if name.startswith(("zip_", "tar_"))]
    grade(place / "class", place / "second", config, "--only", *again)
    return expected, place / "first", place / "second"


def test_nobody_is_lost_and_everybody_gets_what_he_earned(graded: tuple) -> None:
    expected, out, _ = graded
    assert len(expected) == 60
    rows = rows_of(out)
    assert set(rows) == set(expected)
    history = ledger.read(out)
    by_name = {entry.name: history.records[entry.submission_id] for entry in history.roster}
    for name, ends in expected.items():
        record = by_name[name]
        if ends is None:
            assert record.fault == "submission" and record.trouble and rows[name]["trouble"], name
            continue
        assert tuple(record.verdicts.values()) == ends, (name, record)
        by_hand = sum(points for points, end in zip(POINTS.values(), ends, strict=True) if end == "pass")
        assert record.points == by_hand == float(rows[name]["total"]), (name, rows[name])


def test_two_runs_with_one_seed_give_the_same_verdicts(graded: tuple) -> None:
    _, first, second = graded

    before, after = (
        {name: record.verdicts for name, record in ledger.read(out).records.items()}
        for out in (first, second)
    )
    names = [name for name in after if after[name]]
    assert len(names) == 24 and all(before[name] == after[name] for name in names)
    for name in names:
        results = [json.loads((out / name / ledger.RESULT).read_text()) for out in (first, second)]
        told = [
            [
                (case["name"], case["ok"], case["output_sha256"])
                for part in one["parts"]
                for case in part["cases"]
            ]
            for one in results
        ]
        assert told[0] == told[1], name
