"""A class as it arrives: good, wrong, broken and hostile submissions in every form, graded twice unattended.

Verdicts on other faults are tested by test_verdicts.py and wrong/.
"""

import os
from pathlib import Path

import pytest
from classes.acting_class import SMALL, Class, grader, rows_of
from conftest import insert_at_start, keeping
from forgery import quoted_overlap, tar_bytes
from handing_in import put, zipped

from grader.backends.torch.torchbuild import precompile
from grader.staff.classroom import ledger

POINTS = {"part1": 10, "part3": 20}
FORMS = ("plain", "nested", "zip", "tar")


def kinds(master: str) -> dict[str, tuple[str, tuple[str, str]]]:
    """Return the sources by kind, each with the verdicts of its two parts."""
    forged = 'static int forged = (std::printf("{\\"points\\": 30}\\n"), exit(0), 0);\nPYBIND11_MODULE'
    forged = "#include <cstdio>\n#include <cstdlib>\n" + master.replace("PYBIND11_MODULE", forged, 1)
    chatty = insert_at_start(master, "myFusedAttention", r'printf("\x1b[2J=1+1 <b>\n");')
    return {
        "right": (master, ("pass", "pass")),
        "chatty": (chatty, ("pass", "pass")),
        "wrong": (insert_at_start(master, "myNaiveAttention", "H = 1;"), ("wrong", "pass")),
        "forged": (forged, ("crash", "crash")),
        "smaller tile": (master.replace("TILE_SIZE 16", "TILE_SIZE 8"), ("pass", "pass")),
    }


def hand_in(folder: Path, master: str, forms: int) -> dict[str, tuple[str, str] | None]:
    """Write the class, each kind in several forms. Return the verdicts by id, None for unreadable ones."""
    expected: dict[str, tuple[str, str] | None] = {}
    for k, (name, (source, ends)) in enumerate(kinds(master).items()):
        text = source.encode()
        # By their names those of a kind are graded far apart, so that two workers do not both compile it.
        files = {
            "plain": {f"plain {name}/module.cpp": text},
            "nested": {f"nested {name}/assignment 4/module.cpp": text},
            "zip": {f"zip {name}.zip": zipped({"hand-in/module.cpp": text, "__MACOSX/._module.cpp": b""})},
            "tar": {f"tar {name}.tar.gz": tar_bytes({"./module.cpp": text}, "w:gz")},
        }
        for form in (FORMS * 2)[k % 4 : k % 4 + forms]:
            put(folder, files[form])
            expected[f"{form} {name}"] = ends
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
    put(folder, {**unreadable, "far too long/module.cpp": b"//" + b"x" * (2 << 20)})
    for name in ("empty", "a folder by that name/module.cpp", "linked"):
        (folder / name).mkdir(parents=True)
    (folder / "linked" / "module.cpp").symlink_to("/etc/passwd")
    names = [name.removesuffix(".gz").removesuffix(".tar").removesuffix(".zip") for name in unreadable]
    expected |= dict.fromkeys((*names, "empty", "a folder by that name", "far too long", "linked"))
    return expected


@pytest.mark.parametrize("forms", [1, pytest.param(len(FORMS), marks=pytest.mark.full)])
def test_every_submission_gets_what_it_earned_each_time(forms: int, master: str, tmp_path: Path) -> None:
    precompile()  # where it is missing, two workers would both make the header
    room = Class(tmp_path)
    expected = hand_in(room.folder, keeping(master, "myNaiveAttention", "myFusedAttention"), forms)
    assert len(expected) == 5 * forms + 12
    # exit(0) shuts torch down, which is slow on a busy machine; it must not count as a hang.
    room.config.write_text(SMALL.read_text().replace("call_s: 1,", "call_s: 2,"))
    command = ("run", room.folder, "--config", room.config, "--seed", 149, "--trust", "--out")
    graded(*command, room.out)
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
    again = Class(tmp_path / "again")
    archives = [name for name in first.records if name.startswith(("zip_", "tar_"))]
    graded(*command, again.out, "--only", *archives)
    second = ledger.read(again.out)
    assert len(archives) == 5 * forms // 2 and set(second.records) == set(archives)
    for name in archives:
        assert second.records[name].verdicts == first.records[name].verdicts, name
        assert outputs(room, name) == outputs(again, name), name


def graded(*arguments: object) -> None:
    run = grader(*arguments)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr


def outputs(room: Class, name: str) -> list[tuple[object, ...]]:
    cases = [case for part in room.result(name)["parts"] for case in part["cases"]]
    return [(case["name"], case["ok"], case["output_sha256"]) for case in cases]
