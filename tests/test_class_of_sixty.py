"""A class as it arrives: sixty submissions, good, wrong, broken and hostile, in every form, graded twice unattended."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from classes.acting_class import SMALL, Class, grader, rows_of
from conftest import insert_at_start, keeping
from forgery import quoted_overlap, tar_bytes
from handing_in import put, zipped

from grader.assignment.regions import strip_solution
from grader.build.torchbuild import precompile
from grader.staff.classroom import ledger

POINTS = {"part1": 10, "part3": 20}
FORMS = ("plain", "nested", "zip", "tar")


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


def hand_in(folder: Path, master: str, forms: int = len(FORMS)) -> dict[str, tuple[str, str] | None]:
    """Write the class. Return the verdicts that each id must get, None for what cannot be read.

    Each kind is handed in by as many forms, a first form that changes from kind to kind and those after it.
    """
    expected: dict[str, tuple[str, str] | None] = {}
    for k, (name, kind) in enumerate(kinds(master).items()):
        text = kind.source.encode()
        # By their names those of a kind are graded far apart, so that two workers do not both compile it.
        files = {
            "plain": {f"plain {name}/module.cpp": text},
            "nested": {f"nested {name}/assignment 4/module.cpp": text},
            "zip": {
                f"zip {name}.zip": zipped({"hand-in/module.cpp": text, "__MACOSX/._module.cpp": b"junk"})
            },
            "tar": {f"tar {name}.tar.gz": tar_bytes({"./module.cpp": text}, "w:gz")},
        }
        for form in (FORMS * 2)[k % 4 : k % 4 + forms]:
            put(folder, files[form])
            expected[f"{form} {name}"] = kind.ends
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
    put(folder, unreadable)
    (folder / "empty").mkdir()
    (folder / "a folder by that name" / "module.cpp").mkdir(parents=True)
    put(folder, {"far too long/module.cpp": b"//" + b"x" * (2 << 20)})
    (folder / "linked").mkdir()
    (folder / "linked" / "module.cpp").symlink_to("/etc/passwd")
    names = [name.removesuffix(".gz").removesuffix(".tar").removesuffix(".zip") for name in unreadable]
    expected |= dict.fromkeys((*names, "empty", "a folder by that name", "far too long", "linked"))
    return expected


@pytest.mark.parametrize(
    "forms", [1, pytest.param(len(FORMS), marks=pytest.mark.full)], ids=["one form of each", "all forms"]
)
def test_every_submission_gets_what_it_earned_and_the_same_verdict_again(
    forms: int, master: str, tmp_path: Path
) -> None:
    precompile()  # where it is missing, two workers would both make the header
    room = Class(tmp_path)
    expected = hand_in(room.folder, keeping(master, "myNaiveAttention", "myFusedAttention"), forms)
    assert len(expected) == 12 * forms + 12
    # Leaving by exit(0) takes torch down, which on a busy machine takes a while; it is not to pass for a hang.
    room.config.write_text(SMALL.read_text().replace("call_s: 1,", "call_s: 2,"))
    command = ("run", room.folder, "--config", room.config, "--seed", 149, "--trust", "--out")
    run = grader(*command, room.out)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr
    rows = rows_of(room.out, "name")
    assert set(rows) == set(expected)
    first = ledger.read(room.out)
    ids = {entry.name: entry.submission_id for entry in first.roster}
    for name, ends in expected.items():
        record = first.records[ids[name]]
        if ends is None:
            assert record.fault == "submission" and record.trouble and rows[name]["trouble"], name
            continue
        assert tuple(record.verdicts.values()) == ends, (name, record)
        by_hand = sum(points for points, end in zip(POINTS.values(), ends, strict=True) if end == "pass")
        assert record.points == by_hand == float(rows[name]["total"]), (name, rows[name])

    # Half of them again, out of archives, with the same seed.
    (tmp_path / "again").mkdir()
    again = Class(tmp_path / "again")
    names = [name for name in first.records if name.startswith(("zip_", "tar_"))]
    run = grader(*command, again.out, "--only", *names)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr
    second = ledger.read(again.out)
    assert len(names) == 6 * forms and set(second.records) == set(names)
    for name in names:
        assert second.records[name].verdicts == first.records[name].verdicts, name
        outputs = [
            [
                (case["name"], case["ok"], case["output_sha256"])
                for part in one.result(name)["parts"]
                for case in part["cases"]
            ]
            for one in (room, again)
        ]
        assert outputs[0] == outputs[1], name
